/* SPDX-License-Identifier: Apache-2.0
 * engine/records/request_draft.h - a request while its JSON is still at hand: what
 * request*.c and draft.c share. */
#ifndef AQ_ENGINE_RECORDS_REQUEST_DRAFT_H
#define AQ_ENGINE_RECORDS_REQUEST_DRAFT_H

#include "base/buf.h"
#include "engine/records/request.h"

#include <jansson.h>

/* One prompt as it was given: text, or a JSON list of ids. */
struct aq_draft_prompt {
    struct aq_text text;
    const json_t *ids; /* NULL for text */
};

struct aq_request_draft {
    bool no_memory; /* for the words of a refusal: they are not what they should be */
    const struct aq_request_rules *rules;
    const struct aq_line *line;
    json_t *root;
    bool wide;          /* the line has numbers out of range, which are reals near them in root */
    json_t *body;       /* borrowed from root: where prompt and parameters are */
    struct aq_text raw; /* the body's text within the line */
    struct aq_draft_prompt *prompts;
    struct aq_draft_prompt *continuations; /* of records that score */
    uint32_t continuation_count;
    const char *continuation_field;
    const char *field; /* whose tokens are being made, for messages; NULL: the prompt's */
    bool max_tokens_given, max_completion_tokens_given;
    uint32_t max_completion_tokens;
    double best_of; /* 0: not given */
};

/* Memory that lives as long as the request, NULL when there is none left. */
void *aq_request_alloc(struct aq_request *r, size_t bytes);
/* A NUL-terminated copy in that memory. */
char *aq_request_copy(struct aq_request *r, const char *bytes, size_t count);

/* Frees what is only needed while the request is read. */
void aq_request_draft_close(struct aq_request *r);

/* Reads every field of the body into r->params; false when the request is refused. -ENOMEM comes
 * back in *ret_rc. */
bool aq_request_read_fields(struct aq_request *r, int *ret_rc);
/* Most tokens that are attended together. */
static inline uint32_t aq_request_prompt_max(const struct aq_request_rules *rules)
{
    bool less = rules->prompt_max && rules->prompt_max < rules->context;
    return less ? rules->prompt_max : rules->context;
}

/* Where a record has its prompt; lines of plain text have no fields to choose from. */
static inline const char *aq_request_prompt_field(const struct aq_request_rules *rules)
{
    return rules->prompt_field && !rules->text_lines ? rules->prompt_field : "prompt";
}

/* Whether a plain record is a conversation. */
bool aq_request_has_messages(const struct aq_request *r);
/* Reads what only conversations have, and renders the messages as the one prompt; memory for it is
 * there. */
bool aq_request_read_chat(struct aq_request *r, int *ret_rc);

/* Finds the prompts and their number; text stays where the JSON parser put it. */
bool aq_request_read_prompts(struct aq_request *r, int *ret_rc);

/* Does the record score, and what?  Reads what only such records have, and its prompt. */
enum aq_scoring aq_request_scoring(const struct aq_request *r);
bool aq_request_read_scored(struct aq_request *r, int *ret_rc);
/* Turns prompt and continuations into ids within the context. */
bool aq_request_tokenise_scored(struct aq_request *r, int *ret_rc);

/* Turns the draft's prompts into ids within the context. */
bool aq_request_tokenise(struct aq_request *r, int *ret_rc);
/* Ids of a text, or of a list, which may be none: p's ids, count, bos, bos_twice and estimated.  In
 * front of them stands `first` (-1: nothing), unless a list brings it along. */
bool aq_request_fill_ids(struct aq_request *r, struct aq_prompt *p,
                         const struct aq_draft_prompt *draft, int32_t first, int *ret_rc);
/* Whether BOS is to stand in front of the prompt, which is a text or a list. */
bool aq_request_wants_bos(const struct aq_request *r, bool text);
/* The field whose tokens are being made, for messages. */
const char *aq_request_field(const struct aq_request *r);
/* What a value is, for messages. */
const char *aq_request_type_name(const json_t *v);

/* Checks what depends on more than one parameter; false and *reterr-like text in r->error. */
bool aq_request_check_params(struct aq_request *r);

#endif
