/* SPDX-License-Identifier: Apache-2.0
 * engine/records/result.h - result lines: the four forms of the result, or of the error, of a
 * record; and reading such a line again on resume.  Knows JSON and text; nothing of files. */
#ifndef AQ_ENGINE_RECORDS_RESULT_H
#define AQ_ENGINE_RECORDS_RESULT_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/records/record.h"

#include <jansson.h>

struct aq_result_rules {
    const struct aq_tokenizer *tokenizer;
    const char *model;      /* name for the batch form when the record gives none */
    enum aq_form malformed; /* form of the errors of records without a form; NONE: plain */
    int64_t created;        /* unix seconds for the batch form */
};

/* Appends one line without its newline: the result of a finished record, or its error record if the
 * engine could not finish it (*ret_error, NULL allowed). */
int aq_result_format(struct aq_buf *out, const struct aq_record *rec,
                     const struct aq_result_rules *rules, bool *ret_error, struct aq_err *reterr);
/* The error record of a refused request. */
int aq_result_format_error(struct aq_buf *out, const struct aq_request *r,
                           const struct aq_result_rules *rules, struct aq_err *reterr);
/* The text of one choice as in the result, without JSON: for a terminal. */
int aq_result_text(struct aq_buf *out, const struct aq_record *rec, uint32_t choice,
                   struct aq_err *reterr);

/* The record that an existing result line belongs to. */
struct aq_result_mark {
    enum aq_form form;
    bool error;
    bool has_id; /* id is set; else index or line */
    char *id;    /* as text, malloc'd, NUL-terminated */
    size_t id_bytes;
    bool has_index, has_line;
    uint64_t index, line;
    uint64_t key;
};

/* -ENOEXEC: not a line that this program writes. */
int aq_result_read(struct aq_result_mark *ret, const char *line, size_t bytes,
                   struct aq_err *reterr);
void aq_result_mark_close(struct aq_result_mark *m);

#endif
