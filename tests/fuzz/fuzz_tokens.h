/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/fuzz_tokens.h - what holds for every tokenizer that opens: texts become ids that have
 * tokens, and decode the same as a whole and one by one. */
#ifndef AQ_TESTS_FUZZ_FUZZ_TOKENS_H
#define AQ_TESTS_FUZZ_FUZZ_TOKENS_H

#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>

static inline void fuzz_check_decoding(const struct aq_tokenizer *t, const struct aq_ids *ids)
{
    size_t max = aq_detok_bytes_max(t);
    char *out = malloc(max);
    struct aq_buf whole = {0}, stream = {0}, a = {0}, b = {0};
    struct aq_detok d;
    aq_detok_start(&d, t, false);
    for (size_t i = 0; i < ids->count; i++) {
        size_t n = aq_detok_push(&d, ids->item[i], out);
        assert(n <= max);
        aq_buf_put(&stream, out, n);
        assert(aq_tokenizer_token_text(t, ids->item[i]));
    }
    aq_buf_put(&stream, out, aq_detok_flush(&d, out));
    aq_tokenizer_decode(t, ids->item, ids->count, false, &whole);
    /* as JSON strings, in which replacements are made */
    aq_buf_json_string(&a, whole.data, whole.count);
    aq_buf_json_string(&b, stream.data, stream.count);
    assert(a.count == b.count && memcmp(a.data, b.data, a.count) == 0);
    assert(aq_utf8_invalid_at(stream.data, stream.count) == stream.count);
    aq_buf_close(&whole);
    aq_buf_close(&stream);
    aq_buf_close(&a);
    aq_buf_close(&b);
    free(out);
}

static inline void fuzz_check_tokenizer(const struct aq_tokenizer *t, const char *text,
                                        size_t bytes)
{
    struct aq_tok_state *s = NULL;
    struct aq_ids ids = {0};
    struct aq_err err = {0};
    if (aq_tok_state_open(&s, t, &err) < 0)
        abort();
    for (int i = 0; i < 4; i++) {
        struct aq_encode_opts opts = {.add_bos = i & 1, .add_eos = i & 1, .parse_special = i & 2};
        ids.count = 0;
        int rc = aq_tokenizer_encode(t, s, text, bytes, opts, &ids, &err);
        fuzz_check_error(rc, &err);
        assert(rc == 0 || (rc == -EINVAL && ids.count == 0));
        fuzz_check_decoding(t, &ids);
    }
    aq_ids_close(&ids);
    aq_tok_state_close(s);
}

#endif
