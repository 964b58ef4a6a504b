/* SPDX-License-Identifier: Apache-2.0
 * engine/records/request.h - makes a request of one line of prompts.jsonl: its form, its id, its
 * parameters and the tokens of its prompts; or the error, which says exactly what is wrong.  Called
 * by the job driver and the session, one thread at a time.  Knows JSON, parameters and the
 * tokenizer; nothing of files, seats or passes.
 *
 * A bad record is not an operating error: the functions return 0 and the request carries `error`.
 */
#ifndef AQ_ENGINE_RECORDS_REQUEST_H
#define AQ_ENGINE_RECORDS_REQUEST_H

#include "base/err.h"
#include "base/types.h"
#include "engine/options/options.h"
#include "engine/records/template.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_chat;
struct aq_tokenizer;
struct aq_tok_state;

enum {
    AQ_LINE_BYTES_MAX = 64 << 20, /* of one input line */
    AQ_LINE_DEPTH_MAX = 512,      /* brackets in brackets; a result adds its own around them */
    AQ_REQUEST_SEQUENCES_MAX = 1024,
    AQ_REQUEST_STOPS_MAX = 64,
    AQ_REQUEST_STOP_BYTES_MAX = 1024,
    AQ_REQUEST_STOP_IDS_MAX = 256,
    AQ_UNKNOWN_FIELDS_MAX = 64,
};

/* The three forms of a record; NONE when a line is too broken to tell. */
enum aq_form { AQ_FORM_NONE, AQ_FORM_PLAIN, AQ_FORM_BATCH, AQ_FORM_HARNESS, AQ_FORM_COUNT };

enum aq_record_code {
    AQ_RECORD_OK,
    AQ_RECORD_INVALID_JSON,
    AQ_RECORD_INVALID_RECORD,
    AQ_RECORD_INVALID_PARAMETER,
    AQ_RECORD_UNSUPPORTED_PARAMETER,
    AQ_RECORD_UNSUPPORTED_ENDPOINT,
    AQ_RECORD_CONTEXT_LENGTH_EXCEEDED,
    AQ_RECORD_EMPTY_PROMPT,
    AQ_RECORD_EMPTY_CONTINUATION,
    AQ_RECORD_TOKEN_OUT_OF_RANGE,
    AQ_RECORD_INTERNAL_ERROR,
    AQ_RECORD_CODE_COUNT,
};

struct aq_record_error {
    enum aq_record_code code;
    char param[64]; /* the field at fault; "" when no single one is */
    char message[512];
};

/* Parameters that the run sets and each record may set again. */
struct aq_params {
    uint32_t max_tokens, min_tokens, n, top_k;
    float temperature, top_p, min_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    int64_t seed;
    int logprobs; /* -1: none */
    bool echo, ignore_eos, include_stop;
    const struct aq_text *stop;
    uint32_t stop_count;
    const uint32_t *stop_ids; /* without the model's EOS */
    uint32_t stop_id_count;
};

/* Whether tokens are to be generated, or given ones scored. */
enum aq_scoring {
    AQ_SCORING_NONE,
    AQ_SCORING_CONTINUATIONS, /* of one prompt; prompts[] has each of them, behind the prompt */
    AQ_SCORING_ROLLING,       /* a text; prompts[] are the windows that it is read through */
};

struct aq_prompt {
    uint32_t *ids; /* BOS included, after truncation */
    uint32_t count;
    uint32_t dropped;    /* tokens cut off by truncation */
    uint32_t max_tokens; /* the record's, lowered by --overlong clip */
    /* The last of ids[count + max_tokens], whose log-probabilities are wanted: count tokens are
     * prefilled and the others fed one by one.  0: tokens are generated. */
    uint32_t scored;
    bool bos;       /* ids[0] is BOS */
    bool bos_twice; /* the text began with it, and got another one */
    bool estimated; /* without a tokenizer: as many ids as the text may have, all 0 */
    /* With echo: the text in front of the generated text.  What is scored, in batch records. */
    struct aq_text text;
};

struct aq_request {
    enum aq_form form;
    bool chat; /* its prompt is made of messages */
    enum aq_scoring scoring;
    bool scores_list; /* continuations came as a list, and so do the scores */
    uint64_t index;   /* line - 1 over non-blank lines */
    uint64_t line;    /* 1-based line of the file */
    uint64_t key; /* xxh3-64 of the canonical request; of the line's bytes where there is none */
    uint64_t id_hash;       /* xxh3-64 of id_text */
    struct aq_text id_text; /* the index as text where no id is given; empty when malformed */
    const char *id_json;    /* the id in its JSON type; "null" without an id */
    bool has_id;            /* false: malformed, or of the batch form without its id */
    struct aq_params params;
    struct aq_prompt *prompts;
    uint32_t prompt_count;
    /* JSON text as it stood in the line, NULL when absent */
    const char *label_model, *label_user, *label_metadata, *scenario;
    const char *echo_request; /* harness: the request's bytes */
    struct aq_record_error error;

    void *owned;                    /* memory of everything above */
    struct aq_request_draft *draft; /* between parsing and tokenising */
};

/* Names of unknown fields, once each, with the number of their occurrences. */
struct aq_unknown_fields {
    struct {
        char name[64];
        const char *nearest; /* NULL when nothing is near */
        uint64_t count, first_line;
    } field[AQ_UNKNOWN_FIELDS_MAX];
    uint32_t count;
    uint64_t more; /* occurrences of names beyond the first AQ_UNKNOWN_FIELDS_MAX */
};

/* How records of this run are read.  Everything is borrowed and outlives the requests. */
struct aq_request_rules {
    struct aq_params defaults;
    const struct aq_tokenizer *tokenizer; /* NULL: prompts can only be ids, unless ... */
    uint32_t token_bytes;                 /* ... this is set, to estimate lengths: bytes a token */
    struct aq_tok_state *tok_state;
    const struct aq_chat *chat; /* NULL: messages cannot be rendered */
    uint32_t vocab, context;
    uint32_t prompt_max; /* most tokens of a prompt, below the context perhaps; 0: as that */
    uint32_t window_max; /* most of a rolling score's windows, below that perhaps; 0: as that */
    int32_t bos_id;      /* -1: the model has none */
    bool adds_bos;       /* the model's files put BOS in front of text */
    int32_t prefix_id;   /* what a text without a context is scored behind: BOS, or EOS; -1: none */
    /* Do scores of `count` tokens behind a prompt depend on whether they are prefilled, or fed one
     * by one?  NULL: never. */
    bool (*feeds)(const void *user, uint32_t prompt, uint32_t count);
    const void *feeds_user;
    enum aq_bos bos;
    enum aq_overlong overlong;
    const char *prompt_field; /* NULL: "prompt" */
    const struct aq_template *prompt_template;
    bool unknown_is_error;
    bool text_lines;                   /* a line is a prompt, not JSON */
    struct aq_unknown_fields *unknown; /* NULL: not collected */
};

struct aq_line {
    const char *text; /* without its line end */
    size_t bytes;
    uint64_t index, number;
    bool too_long; /* text holds only the beginning; hash is of all bytes */
    uint64_t hash; /* xxh3-64 of the whole line */
};

/* Rules' defaults out of the options, whose strings are borrowed.  -EINVAL names the option. */
int aq_request_defaults(struct aq_params *ret, const struct aq_options *o, uint32_t vocab,
                        struct aq_err *reterr);
void aq_request_defaults_close(struct aq_params *p);

/* Reads, checks and tokenises one line.  Only -ENOMEM is an error here. */
int aq_request_open(struct aq_request **ret, const struct aq_request_rules *rules,
                    const struct aq_line *line, struct aq_err *reterr);
void aq_request_close(struct aq_request *r);

static inline uint32_t aq_request_sequences(const struct aq_request *r)
{
    return r->error.code ? 0 : r->prompt_count * r->params.n;
}
/* The prompt's first token whose log-probability is wanted; its count: none is. */
static inline uint32_t aq_request_scored_from(const struct aq_request *r, const struct aq_prompt *p)
{
    if (p->scored)
        return p->count + p->max_tokens - p->scored;
    return r->params.echo && r->params.logprobs >= 0 ? 0 : p->count;
}

/* An input that was read to its end. */
struct aq_records_read {
    uint64_t count, invalid;
    uint64_t line; /* of the first invalid one */
    enum aq_record_code code;
    const char *message;
};
/* -EINVAL where more than half of the records are invalid, unless `allow` (--allow-errors). */
int aq_request_check_invalid(const struct aq_records_read *read, bool allow, struct aq_err *reterr);

const char *aq_record_code_name(enum aq_record_code code);
const char *aq_form_name(enum aq_form form);
/* Marks the request as failed; the first failure stays.  Returns false, so that a check can end in
 * it. */
bool aq_request_refuse(struct aq_request *r, enum aq_record_code code, const char *param,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
