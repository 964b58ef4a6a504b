/* SPDX-License-Identifier: Apache-2.0
 * Any tokenizer.model.  One that opens encodes and decodes texts of all kinds, its own bytes among
 * them. */
#include "tests/fuzz/fuzz_dir.h"
#include "tests/fuzz/fuzz_tokens.h"

#include <stdio.h>

enum { TEXT_MAX = 1024 };

static char dir[TEMP_PATH_MAX];

static void remove_dir(void)
{
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "  Hello  world<s>\n\xe4\xbd\xa0\xe4\xbd \xe2\x96\x81 ab[INST] \xff ";
    char path[TEMP_INSIDE_MAX];
    if (!*dir) {
        fuzz_dir(dir, "fuzz");
        atexit(remove_dir);
    }
    snprintf(path, sizeof(path), "%s/tokenizer.model", dir);
    fuzz_write_file(path, data, size);
    struct aq_tokenizer *t = NULL;
    struct aq_err err = {0};
    int rc = aq_tokenizer_open(&t, dir, NULL, &err);
    fuzz_check_error(rc, &err);
    if (rc == 0) {
        fuzz_check_tokenizer(t, text, sizeof(text) - 1);
        fuzz_check_tokenizer(t, (const char *)data, size < TEXT_MAX ? size : TEXT_MAX);
    }
    aq_tokenizer_close(t);
    unlink(path);
    return 0;
}
