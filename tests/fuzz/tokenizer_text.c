/* SPDX-License-Identifier: Apache-2.0
 * Any text, with a real tokenizer: every byte comes back, whatever the bytes; and as JSONL, every
 * line has its result line. */
#include "engine/commands/tokenize_lines.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>

static const struct aq_tokenizer *tokenizer(void)
{
    static struct aq_tokenizer *t;
    const char *data = getenv("AQ_TEST_DATA");
    char dir[4096];
    struct aq_err err;
    if (t)
        return t;
    snprintf(dir, sizeof(dir), "%s/tiny-opt", data ? data : "tests/data");
    if (aq_tokenizer_open(&t, dir, NULL, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return t;
}

static void check_round_trip(const char *text, size_t bytes)
{
    static struct aq_tok_state *s;
    struct aq_ids ids = {0};
    struct aq_buf back = {0};
    if (!s && aq_tok_state_open(&s, tokenizer(), NULL) < 0)
        abort();
    for (int special = 0; special < 2; special++) {
        ids.count = 0;
        aq_buf_clear(&back);
        struct aq_encode_opts opts = {.parse_special = special};
        if (aq_tokenizer_encode(tokenizer(), s, text, bytes, opts, &ids, NULL) < 0)
            abort();
        aq_tokenizer_decode(tokenizer(), ids.item, ids.count, false, &back);
        assert(back.count == bytes && (bytes == 0 || memcmp(back.data, text, bytes) == 0));
    }
    aq_ids_close(&ids);
    aq_buf_close(&back);
}

static void check_lines(const char *text, size_t bytes, bool decode)
{
    char *out = NULL;
    size_t out_bytes = 0, lines = 0;
    FILE *input = fmemopen((void *)text, bytes, "r");
    FILE *output = open_memstream(&out, &out_bytes);
    if (!input || !output)
        abort();
    struct aq_tokenize_opts opts = {.decode = decode, .input_name = "in", .output_name = "out"};
    struct aq_tokenize_stats stats;
    int rc = aq_tokenize_stream(tokenizer(), input, output, &opts, &stats, NULL);
    fclose(input);
    fclose(output);
    assert(rc == 0);
    for (size_t i = 0; i < out_bytes; i++)
        lines += out[i] == '\n';
    assert(lines == stats.records && stats.errors <= stats.records);
    assert(aq_utf8_invalid_at(out, out_bytes) == out_bytes);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_round_trip((const char *)data, size);
    if (size) {
        check_lines((const char *)data, size, false);
        check_lines((const char *)data, size, true);
    }
    return 0;
}
