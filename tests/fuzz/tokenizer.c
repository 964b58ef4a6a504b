/* SPDX-License-Identifier: Apache-2.0
 * Any tokenizer files: the input is a list of files, each begun by a line "@@ NAME", and the text
 * to encode behind "@@ text".  A tokenizer that opens encodes into ids that have tokens, and
 * decodes the same as a whole and one by one. */
#include "tests/fuzz/fuzz_dir.h"
#include "tests/fuzz/fuzz_tokens.h"

#include <stdio.h>

enum { TEXT_MAX = 4096 };

static char dir[TEMP_PATH_MAX];

static void remove_dir(void)
{
    rmdir(dir);
}

static void path_of(char path[TEMP_INSIDE_MAX], const char *name)
{
    snprintf(path, TEMP_INSIDE_MAX, "%s/%s", dir, name);
}

static bool is_named(const struct fuzz_section *s, const char *name)
{
    return s->name_bytes == strlen(name) && memcmp(s->name, name, s->name_bytes) == 0;
}

/* Writes the sections; returns the text. */
static const char *write_files(const uint8_t *data, size_t size, size_t *ret_bytes)
{
    const char *text = "";
    struct fuzz_section s;
    *ret_bytes = 0;
    for (const uint8_t *at = data; fuzz_next_section(&s, &at, data + size);) {
        if (is_named(&s, "text")) {
            text = (const char *)s.data;
            *ret_bytes = s.bytes < TEXT_MAX ? s.bytes : TEXT_MAX;
        }
        for (int i = 0; aq_tokenizer_file_names[i]; i++) {
            char path[TEMP_INSIDE_MAX];
            path_of(path, aq_tokenizer_file_names[i]);
            if (is_named(&s, aq_tokenizer_file_names[i]))
                fuzz_write_file(path, s.data, s.bytes);
        }
    }
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!*dir) {
        fuzz_dir(dir, "fuzz");
        atexit(remove_dir);
    }
    size_t bytes;
    const char *text = write_files(data, size, &bytes);
    struct aq_tokenizer *t = NULL;
    struct aq_err err = {0};
    struct aq_tokenizer_defaults defaults = {.bos_id = 0, .eos_id = 1, .pad_id = -1};
    int rc = aq_tokenizer_open(&t, dir, size % 2 ? &defaults : NULL, &err);
    fuzz_check_error(rc, &err);
    if (rc == 0)
        fuzz_check_tokenizer(t, text, bytes);
    aq_tokenizer_close(t);
    for (int i = 0; aq_tokenizer_file_names[i]; i++) {
        char path[TEMP_INSIDE_MAX];
        path_of(path, aq_tokenizer_file_names[i]);
        unlink(path);
    }
    return 0;
}
