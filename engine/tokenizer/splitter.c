/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/splitter.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    MATCH_LIMIT = 1 << 20,     /* backtracking steps of one match */
    HEAP_LIMIT_KIB = 64 << 10, /* of one match, without JIT */
    JIT_STACK_BYTES_MIN = 32 << 10,
    JIT_STACK_BYTES_MAX = 4 << 20,
    MATCHES_PER_LOOK = 64,    /* between two looks at the clock */
    UNICODE_VERSION_MAX = 64, /* of "14.0.0"; PCRE2 asks for 24 */
};

/* A pattern without backtracking trouble needs well under 1 us a byte; one that scans ahead from
 * each character needs time that grows with the square of the text.  The limit is far from the
 * former and ends the latter. */
static const double text_s_min = 10, text_s_per_byte = 10e-6;

struct aq_split_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct aq_buf prefixed[AQ_SPLIT_STAGES_MAX];
    uint64_t matches;
    double deadline_s;
    size_t text_bytes;
    const struct aq_splitter *splitter;
    bool newer; /* the text has characters that PCRE2 may not know */
    aq_piece_fn *fn;
    void *arg;
    struct aq_err *reterr;
};

void aq_splitter_close(struct aq_splitter *s)
{
    for (unsigned i = 0; i < s->stage_count; i++) {
        pcre2_code_free(s->stage[i].plain.code);
        pcre2_code_free(s->stage[i].newer.code);
    }
    *s = (struct aq_splitter){0};
}

/* Lines end in LF alone and ^ and $ look at lines, as in Ruby's syntax. */
static int compile(struct aq_split_code *ret, const struct aq_buf *pattern, struct aq_err *reterr)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return aq_error_memory(reterr, "pattern of %zu bytes", pattern->count);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    ret->code = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->count,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &code, &at, context);
    pcre2_compile_context_free(context);
    if (!ret->code) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        return aq_error(reterr, -ENOEXEC, "pattern, byte %zu after translation: %s", (size_t)at,
                        why);
    }
    ret->jit = pcre2_jit_compile(ret->code, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

static int translate(struct aq_split_code *ret, const char *pattern, size_t bytes,
                     enum aq_unicode_spelling spelling, struct aq_err *reterr)
{
    struct aq_buf translated = {0};
    aq_buf_put(&translated, "", 0);
    int rc = aq_split_translate(pattern, bytes, spelling, &translated, reterr);
    if (rc == 0)
        rc = compile(ret, &translated, reterr);
    aq_buf_close(&translated);
    return rc;
}

int aq_splitter_add(struct aq_splitter *s, enum aq_split_kind kind, const char *pattern,
                    size_t bytes, struct aq_err *reterr)
{
    if (s->stage_count == AQ_SPLIT_STAGES_MAX)
        return aq_error(reterr, -ENOEXEC, "expected at most %d stages", AQ_SPLIT_STAGES_MAX);
    struct aq_split_stage stage = {.kind = kind};
    if (kind != AQ_SPLIT_PREFIX_SPACE) {
        char version[UNICODE_VERSION_MAX] = "";
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
        bool agree = aq_unicode_names_agree(version);
        int rc = translate(&stage.plain, pattern, bytes,
                           agree ? AQ_UNICODE_NAMES : AQ_UNICODE_RANGES, reterr);
        if (rc == 0 && agree)
            rc = translate(&stage.newer, pattern, bytes, AQ_UNICODE_NEWER, reterr);
        if (rc < 0) {
            pcre2_code_free(stage.plain.code);
            return rc;
        }
    }
    s->stage[s->stage_count++] = stage;
    return 0;
}

int aq_split_scratch_open(struct aq_split_scratch **ret, const struct aq_splitter *s,
                          struct aq_err *reterr)
{
    struct aq_split_scratch *c = calloc(1, sizeof(*c));
    if (c) {
        c->match = pcre2_match_data_create(1, NULL);
        c->context = pcre2_match_context_create(NULL);
        c->stack = pcre2_jit_stack_create(JIT_STACK_BYTES_MIN, JIT_STACK_BYTES_MAX, NULL);
    }
    /* No JIT stack: a PCRE2 without JIT. */
    if (!c || !c->match || !c->context) {
        aq_split_scratch_close(c);
        return aq_error_memory(reterr, "buffers for splitting text");
    }
    pcre2_set_match_limit(c->context, MATCH_LIMIT);
    pcre2_set_depth_limit(c->context, MATCH_LIMIT);
    pcre2_set_heap_limit(c->context, HEAP_LIMIT_KIB);
    if (c->stack)
        pcre2_jit_stack_assign(c->context, NULL, c->stack);
    c->splitter = s;
    *ret = c;
    return 0;
}

void aq_split_scratch_close(struct aq_split_scratch *c)
{
    if (!c)
        return;
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->context);
    if (c->stack)
        pcre2_jit_stack_free(c->stack);
    for (size_t i = 0; i < AQ_SPLIT_STAGES_MAX; i++)
        aq_buf_close(&c->prefixed[i]);
    free(c);
}

/* Finds the next match in valid UTF-8: 1 found, 0 none.  A pattern too deep for the JIT's stack is
 * tried again by the interpreter, whose memory is on the heap. */
static int find(const struct aq_split_scratch *c, const struct aq_split_code *split,
                const char *text, size_t bytes, size_t from)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (split->jit)
        rc = pcre2_jit_match(split->code, subject, bytes, from, PCRE2_NO_UTF_CHECK, c->match,
                             c->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(split->code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         c->match, c->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc >= 0)
        return 1;
    char why[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
    return aq_error(c->reterr, rc == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -EINVAL,
                    "the tokenizer's split pattern fails at byte %zu of a text of %zu bytes: %s",
                    from, bytes, why);
}

static int split_stage(struct aq_split_scratch *c, unsigned index, const char *text, size_t bytes);

static int put_piece(struct aq_split_scratch *c, unsigned index, const char *text, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (index == c->splitter->stage_count)
        return c->fn(c->arg, text, bytes, c->reterr);
    return split_stage(c, index, text, bytes);
}

static int prefix_space(struct aq_split_scratch *c, unsigned index, const char **text,
                        size_t *bytes)
{
    struct aq_buf *b = &c->prefixed[index];
    aq_buf_clear(b);
    aq_buf_put(b, " ", 1);
    aq_buf_put(b, *text, *bytes);
    if (b->failed)
        return aq_error_memory(c->reterr, "split a text of %zu bytes", *bytes);
    *text = b->data;
    *bytes = b->count;
    return 0;
}

static size_t character_bytes(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* The pieces up to and with a match, of text from *done on. */
static int put_match(struct aq_split_scratch *c, unsigned index, const char *text, size_t *done,
                     size_t begin, size_t end)
{
    int rc = 0;
    switch (c->splitter->stage[index].kind) {
    case AQ_SPLIT_BEHIND: rc = put_piece(c, index + 1, text + *done, end - *done); break;
    case AQ_SPLIT_BEFORE:
        rc = put_piece(c, index + 1, text + *done, begin - *done);
        end = begin;
        break;
    case AQ_SPLIT_ISOLATE:
        rc = put_piece(c, index + 1, text + *done, begin - *done);
        if (rc >= 0)
            rc = put_piece(c, index + 1, text + begin, end - begin);
        break;
    default: rc = put_piece(c, index + 1, text + begin, end - begin); break;
    }
    *done = end;
    return rc;
}

static int split_regex(struct aq_split_scratch *c, unsigned index, const char *text, size_t bytes)
{
    const struct aq_split_stage *stage = &c->splitter->stage[index];
    const struct aq_split_code *code =
        c->newer && stage->newer.code ? &stage->newer : &stage->plain;
    size_t done = 0, from = 0;
    while (from < bytes) {
        if (++c->matches % MATCHES_PER_LOOK == 0 && aq_clock_thread_s() > c->deadline_s)
            return aq_error(c->reterr, -EINVAL,
                            "the tokenizer's split pattern takes too long on a text of %zu bytes",
                            c->text_bytes);
        int rc = find(c, code, text, bytes, from);
        if (rc < 0)
            return rc;
        if (rc == 0)
            break;
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(c->match);
        size_t begin = range[0], end = range[1];
        rc = put_match(c, index, text, &done, begin, end);
        if (rc < 0)
            return rc;
        /* an empty match divides, and the search goes on behind the next character */
        from = end > begin   ? end
               : end < bytes ? end + character_bytes((unsigned char)text[end])
                             : bytes;
    }
    return stage->kind == AQ_SPLIT_KEEP ? 0 : put_piece(c, index + 1, text + done, bytes - done);
}

/* Recursion is bounded by the number of stages. */
static int split_stage(struct aq_split_scratch *c, unsigned index, const char *text, size_t bytes)
{
    if (c->splitter->stage[index].kind != AQ_SPLIT_PREFIX_SPACE)
        return split_regex(c, index, text, bytes);
    int rc = 0;
    if (*text != ' ')
        rc = prefix_space(c, index, &text, &bytes);
    return rc < 0 ? rc : put_piece(c, index + 1, text, bytes);
}

int aq_split(const struct aq_splitter *s, struct aq_split_scratch *c, const char *text,
             size_t bytes, aq_piece_fn *fn, void *arg, struct aq_err *reterr)
{
    assert(c->splitter == s);
    c->fn = fn;
    c->arg = arg;
    c->reterr = reterr;
    c->text_bytes = bytes;
    c->deadline_s = aq_clock_thread_s() + text_s_min + text_s_per_byte * (double)bytes;
    unsigned first = 0;
    int rc = 0;
    /* At the head of the chain the space goes in front of the whole text: what follows a byte that
     * is not UTF-8 does not begin a text. */
    if (bytes && s->stage_count && s->stage[0].kind == AQ_SPLIT_PREFIX_SPACE) {
        first = 1;
        if (*text != ' ')
            rc = prefix_space(c, 0, &text, &bytes);
    }
    for (size_t i = 0; rc >= 0 && i < bytes;) {
        size_t n = aq_utf8_invalid_at(text + i, bytes - i);
        c->newer = aq_unicode_has_newer(text + i, n);
        rc = put_piece(c, first, text + i, n);
        i += n;
        if (rc >= 0 && i < bytes)
            rc = fn(arg, text + i++, 1, reterr);
    }
    return rc < 0 ? rc : 0;
}
