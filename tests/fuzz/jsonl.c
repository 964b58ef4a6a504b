/* SPDX-License-Identifier: Apache-2.0
 * Prompt files and result files: whatever the bytes are, every line becomes a request within its
 * bounds or an error record, both are written as JSON, and both are recognised again.  The first
 * byte chooses how the lines are read. */
#include "base/json.h"
#include "base/prng.h"
#include "engine/records/input.h"
#include "engine/records/result.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <xxhash.h>

/* READ_BYTES: so few that lines end in later reads and outgrow the first. */
enum { VOCAB = 4096, CONTEXT = 48, EOS = 2, READ_BYTES = 32 };

static const uint32_t eos_ids[] = {EOS};

static struct aq_tokenizer *tokenizer;
static struct aq_tok_state *tok_state;
static struct aq_template *prompt_template;

/* Once for all inputs; the fuzzer never gives them back. */
static void open_once(void)
{
    if (tokenizer)
        return;
    char dir[4096];
    const char *data = getenv("AQ_TEST_DATA");
    snprintf(dir, sizeof(dir), "%s/tiny-opt", data ? data : "tests/data");
    struct aq_tokenizer_defaults defaults = {EOS, EOS, 1, true};
    const char text[] = "{{{text}}} {model}";
    fuzz_check(aq_tokenizer_open(&tokenizer, dir, &defaults, NULL) == 0);
    fuzz_check(aq_tok_state_open(&tok_state, tokenizer, NULL) == 0);
    fuzz_check(aq_template_open(&prompt_template, text, strlen(text), NULL) == 0);
}

static bool feeds(const void *user, uint32_t prompt, uint32_t count)
{
    fuzz_check(prompt >= 1 && count >= 1 && (uint64_t)prompt + count <= CONTEXT + 1);
    return (prompt + count) % 2;
}

static struct aq_request_rules rules_of(uint8_t how, struct aq_unknown_fields *unknown)
{
    return (struct aq_request_rules){
        .defaults = {.max_tokens = 8,
                     .n = 1,
                     .top_p = 1,
                     .repetition_penalty = 1,
                     .logprobs = how & 64 ? 3 : -1,
                     .echo = how & 128},
        .tokenizer = tokenizer,
        .tok_state = tok_state,
        .vocab = VOCAB,
        .context = CONTEXT,
        .bos_id = EOS,
        .adds_bos = true,
        .prefix_id = how & 16 ? EOS : -1,
        .feeds = how & 32 ? feeds : NULL,
        .bos = (enum aq_bos)(how / 4 % 3),
        .overlong = (enum aq_overlong)(how % 4),
        .prompt_field = how % 5 == 1 ? "text" : NULL,
        .prompt_template = how % 5 == 2 ? prompt_template : NULL,
        .unknown_is_error = how % 5 == 3,
        .unknown = unknown,
    };
}

static void answer_prompt(struct aq_sequence *s, uint32_t k)
{
    size_t at = k - s->prompt_from;
    s->prompt_logprob[at] = -1;
    for (int t = 0; t < s->top_count; t++)
        s->prompt_tops[at * (size_t)s->top_count + (size_t)t] =
            (struct aq_top){(s->prompt[k] + (uint32_t)t) % VOCAB, -1};
}

/* Anything an engine could answer, the same for the same request. */
static void answer(struct aq_record *rec)
{
    for (uint32_t i = 0; i < rec->choice_count; i++) {
        struct aq_sequence *s = &rec->choices[i].sequence;
        uint64_t total = (uint64_t)s->prompt_count + s->max_tokens;
        fuzz_check(s->prompt_count >= 1 && total <= CONTEXT + (s->forced != NULL));
        for (uint32_t k = 0; k < s->prompt_count; k++)
            fuzz_check(s->prompt[k] < VOCAB);
        for (uint32_t k = 0; s->forced && k < s->max_tokens; k++)
            fuzz_check(s->forced[k] < VOCAB);
        for (uint32_t k = s->prompt_from; s->prompt_logprobs && k < s->prompt_count; k++)
            answer_prompt(s, k);
        while (s->token_count < s->max_tokens && s->finish == AQ_FINISH_NONE) {
            uint32_t at = s->token_count;
            s->tokens[at] = s->forced ? s->forced[at]
                                      : (uint32_t)aq_prng_below(rec->request->key, i, at, VOCAB);
            if (s->top_count >= 0)
                s->logprobs[at] = -0.5f;
            for (int k = 0; k < s->top_count; k++) {
                struct aq_top top = {(s->tokens[at] + (uint32_t)k) % VOCAB, -1};
                s->tops[(size_t)at * (size_t)s->top_count + (size_t)k] = top;
            }
            s->token_count++;
            if (s->on_token && s->on_token(s))
                s->finish = AQ_FINISH_CALLER;
        }
        s->finish = s->finish ? s->finish : AQ_FINISH_LENGTH;
        aq_record_finish(s);
    }
}

/* One line of JSON that belongs to this request. */
static void check_line(const struct aq_buf *line, const struct aq_request *r, bool error)
{
    json_t *v;
    bool wide;
    struct aq_result_mark mark;
    fuzz_check(!line->failed && !memchr(line->data, '\n', line->count));
    fuzz_check(aq_utf8_invalid_at(line->data, line->count) == line->count);
    fuzz_check(aq_json_parse_wide(&v, &wide, line->data, line->count, false, NULL) == 0);
    json_decref(v);
    fuzz_check(aq_result_read(&mark, line->data, line->count, NULL) == 0);
    fuzz_check(mark.key == r->key && mark.error == error);
    fuzz_check(!mark.has_id || (mark.id_bytes == r->id_text.count &&
                                !memcmp(mark.id, r->id_text.bytes, mark.id_bytes)));
    aq_result_mark_close(&mark);
}

static void run_line(const struct aq_line *line, struct aq_request_rules *rules)
{
    const struct aq_record_rules record_rules = {tokenizer, eos_ids, 1};
    struct aq_result_rules result_rules = {tokenizer, "fuzz", AQ_FORM_NONE, 1};
    struct aq_request *r;
    struct aq_record *rec;
    struct aq_buf out = {0};
    fuzz_check(aq_request_open(&r, rules, line, NULL) == 0);
    if (r->error.code) {
        fuzz_check(r->error.message[0] && r->id_json);
        for (int f = AQ_FORM_PLAIN; f < AQ_FORM_COUNT; f++) {
            result_rules.malformed = (enum aq_form)f;
            aq_buf_clear(&out);
            fuzz_check(aq_result_format_error(&out, r, &result_rules, NULL) == 0);
            check_line(&out, r, true);
        }
        aq_request_close(r);
    } else if (aq_record_bytes(r) < (8u << 20)) {
        fuzz_check(aq_record_open(&rec, r, &record_rules, NULL) == 0);
        fuzz_check(rec->bytes <= aq_record_bytes(r));
        answer(rec);
        bool error;
        fuzz_check(aq_result_format(&out, rec, &result_rules, &error, NULL) == 0 && !error);
        check_line(&out, r, false);
        aq_record_close(rec);
    } else {
        aq_request_close(r);
    }
    aq_buf_close(&out);
}

/* The bytes as a prompt file. */
static void run_file(const uint8_t *data, size_t bytes, uint8_t how)
{
    char path[64];
    int fd = fuzz_file(data, bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct aq_input *in;
    struct aq_input_opts opts = {
        .path = path, .format = (enum aq_input_format)(how % 3), .read_bytes = READ_BYTES};
    struct aq_unknown_fields unknown = {0};
    struct aq_request_rules rules = rules_of(how, &unknown);
    struct aq_err err = {0};
    if (aq_input_open(&in, &opts, &err) < 0) {
        fuzz_check(err.text[0]);
        close(fd);
        return;
    }
    rules.text_lines = aq_input_is_text(in);
    struct aq_line line, again;
    struct aq_line_place place;
    while (aq_input_next(in, &line, &place, NULL) == 1) {
        again = line;
        fuzz_check(aq_input_at(in, &place, &again, NULL) == 0);
        fuzz_check(again.hash == line.hash);
        run_line(&again, &rules);
    }
    fuzz_check(unknown.count <= AQ_UNKNOWN_FIELDS_MAX && aq_input_bytes(in) == bytes);
    aq_input_close(in);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1)
        return 0;
    open_once();
    uint8_t how = data[0];
    const char *text = (const char *)data + 1;
    run_file(data + 1, bytes - 1, how);
    struct aq_result_mark mark;
    if (aq_result_read(&mark, text, bytes - 1, NULL) == 0)
        aq_result_mark_close(&mark);
    struct aq_template *t;
    if (aq_template_open(&t, text, bytes - 1, NULL) == 0)
        aq_template_close(t);
    return 0;
}
