/* SPDX-License-Identifier: Apache-2.0
 * Preflight: every line is parsed, checked and tokenised once, before weights are read.  What is
 * kept of a record is one small row, so that memory is bounded by their number, not their size. */
#include "engine/job/job.h"

#include "base/file.h"
#include "base/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum {
    ROWS_MAX = 1 << 30,
    RESULT_BYTES = 320, /* of a plain result without its tokens, about */
    TOKEN_BYTES = 11,   /* of a generated token: its text, its id and a comma, about */
    LOGPROB_BYTES = 60, /* of a token in the logprobs lists, and of each alternative, about */
};

/* ---- rows ---- */

struct aq_record_list aq_job_records(const struct aq_job *j)
{
    const struct aq_row *first = j->rows;
    if (!j->row_count)
        return (struct aq_record_list){0};
    return (struct aq_record_list){.count = j->row_count,
                                   .stride = sizeof(*first),
                                   .id_hash = &first->id_hash,
                                   .key = &first->key,
                                   .index = &first->index,
                                   .line = &first->line,
                                   .ids = &j->ids};
}

/* A table of the ids of all rows anew, with room for `capacity`. */
static int table_make(struct aq_job *j, uint64_t capacity, struct aq_err *reterr)
{
    int rc = aq_id_table_make(&j->ids, capacity, reterr);
    if (rc < 0)
        return rc;
    j->row_capacity = capacity;
    for (uint64_t i = 0; i < j->row_count; i++)
        if (j->rows[i].has_id)
            aq_id_table_put(&j->ids, j->rows[i].id_hash, i);
    return 0;
}

/* Room for one more row. */
static int rows_reserve(struct aq_job *j, struct aq_err *reterr)
{
    if (j->row_count < j->row_capacity)
        return 0;
    if (j->row_count == ROWS_MAX)
        return aq_error(reterr, -EINVAL, "the input has more than %d records", ROWS_MAX);
    uint64_t capacity = j->row_capacity ? 2 * j->row_capacity : 1024;
    struct aq_row *rows = realloc(j->rows, capacity * sizeof(*rows));
    if (!rows)
        return aq_error_memory(reterr, "%" PRIu64 " records", capacity);
    j->rows = rows;
    return table_make(j, capacity, reterr);
}

/* ---- one record ---- */

static uint32_t clamp_u32(uint64_t x)
{
    return x < UINT32_MAX ? (uint32_t)x : UINT32_MAX;
}

static void row_from(struct aq_row *row, const struct aq_request *r)
{
    *row = (struct aq_row){.line = (uint32_t)r->line,
                           .index = (uint32_t)r->index,
                           .id_hash = r->id_hash,
                           .key = r->key,
                           .form = (uint8_t)r->form,
                           .code = (uint8_t)r->error.code,
                           .has_id = r->has_id,
                           .sequences = (uint16_t)aq_request_sequences(r)};
    if (r->error.code)
        return;
    uint64_t prompt_sum = 0, output_sum = 0;
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        const struct aq_prompt *p = &r->prompts[i];
        prompt_sum += (uint64_t)p->count * r->params.n;
        output_sum += (uint64_t)p->max_tokens * r->params.n;
        row->prompt_max = p->count > row->prompt_max ? p->count : row->prompt_max;
        if (p->count + p->max_tokens > row->total_max)
            row->total_max = p->count + p->max_tokens;
        row->new_max = p->max_tokens > row->new_max ? p->max_tokens : row->new_max;
        row->prompt_logprobs |= aq_request_scored_from(r, p) < p->count;
    }
    row->prompt_sum = clamp_u32(prompt_sum);
    row->output_sum = clamp_u32(output_sum);
    row->held_kib = clamp_u32(aq_div_up(aq_record_bytes(r), AQ_KIB));
    row->shared = aq_distinct_within(r);
}

static void show_bad(struct aq_job_shown *s, const struct aq_request *r)
{
    s->line = r->line;
    s->code = r->error.code;
    snprintf(s->message, sizeof(s->message), "%.*s", (int)sizeof(s->message) - 1, r->error.message);
}

/* What must be the same for every shard of an input. */
static void count_whole(struct aq_job *j, const struct aq_row *row, const struct aq_request *r)
{
    if (row->code && j->whole.records == j->whole.valid)
        show_bad(&j->whole.first_bad, r);
    j->whole.records++;
    j->whole.valid += !row->code;
    j->whole.chats += !row->code && r->chat;
    if (!row->code && !j->g.result_rules.malformed)
        j->g.result_rules.malformed = r->form;
}

/* Records are answered by the one model that runs, whatever name they have for it.  "OWNER/NAME" is
 * NAME; `label` is the record's own JSON text. */
static void count_model(struct aq_job *j, const struct aq_request *r)
{
    const char *label = r->label_model, *slash = label ? strrchr(label, '/') : NULL;
    if (!label || label[0] != '"')
        return;
    const char *name = slash ? slash + 1 : label + 1;
    size_t n = strlen(name) - 1; /* without the quote at its end */
    if (strlen(j->g.info->name) == n && strncasecmp(name, j->g.info->name, n) == 0)
        return;
    if (j->counts.other_models++)
        return;
    j->other_model.line = r->line;
    aq_quote(j->other_model.name, sizeof(j->other_model.name), label + 1, strlen(label) - 2);
}

static void count_row(struct aq_job *j, const struct aq_row *row, const struct aq_request *r)
{
    struct aq_job_counts *c = &j->counts;
    c->records++;
    c->form[row->form]++;
    c->code[row->code]++;
    if (row->code) {
        if (c->code[row->code] == 1) {
            assert(j->shown_count < AQ_JOB_SHOWN_ERRORS);
            show_bad(&j->shown[j->shown_count++], r);
        }
        return;
    }
    c->valid++;
    count_model(j, r);
    c->sequences += row->sequences;
    c->scored += r->params.echo && r->params.logprobs >= 0;
    c->scoring += r->scoring != AQ_SCORING_NONE;
    c->chats += r->chat;
    c->prompt_tokens += row->prompt_sum;
    c->output_tokens += row->output_sum;
    c->prompt_max = row->prompt_max > c->prompt_max ? row->prompt_max : c->prompt_max;
    c->output_bytes += RESULT_BYTES + (uint64_t)TOKEN_BYTES * row->output_sum;
    if (r->params.logprobs >= 0)
        c->output_bytes += (uint64_t)LOGPROB_BYTES * (uint64_t)(1 + r->params.logprobs) *
                           (row->output_sum + (r->params.echo ? row->prompt_sum : 0));
    if (r->echo_request)
        c->output_bytes += strlen(r->echo_request);
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        const struct aq_prompt *p = &r->prompts[i];
        j->prompt_histogram[p->count]++;
        c->bos_twice += p->bos_twice;
        c->continuations += p->scored > 0;
        c->fed += p->scored > 0 && p->max_tokens == p->scored && p->scored > 1;
        if (p->scored && r->params.logprobs >= 0)
            c->output_bytes +=
                (uint64_t)LOGPROB_BYTES * (uint64_t)(1 + r->params.logprobs) * p->scored;
    }
}

/* The id of a row as text, read again; NULL when that fails. */
static struct aq_request *request_again(struct aq_job *j, uint64_t row)
{
    struct aq_request *r = NULL;
    struct aq_unknown_fields *unknown = j->g.rules.unknown;
    j->g.rules.unknown = NULL; /* counted when it was read first */
    if (aq_job_request(&r, j, row, NULL) < 0)
        r = NULL;
    j->g.rules.unknown = unknown;
    return r;
}

/* Same hash: really the same text? */
static int check_duplicate(struct aq_job *j, const struct aq_request *r, struct aq_err *reterr)
{
    const struct aq_record_list records = aq_job_records(j);
    uint64_t other = aq_record_list_id(&records, r->id_hash);
    if (other == SIZE_MAX)
        return 0;
    struct aq_request *o = request_again(j, other);
    bool same = o && o->id_text.count == r->id_text.count &&
                !memcmp(o->id_text.bytes, r->id_text.bytes, r->id_text.count);
    aq_request_close(o);
    char id[80];
    aq_quote(id, sizeof(id), r->id_text.bytes, r->id_text.count);
    if (!same) /* two ids of 64 equal bits: not seen in practice, but never mixed up */
        return aq_error(reterr, -EINVAL,
                        "lines %u and %" PRIu64 ": the ids have the same hash; change '%s'",
                        j->rows[other].line, r->line, id);
    return aq_error(reterr, -EINVAL,
                    "lines %u and %" PRIu64 " have the same id '%s' (a record without id is known "
                    "by its index); ids must be unique",
                    j->rows[other].line, r->line, id);
}

static int add_line(struct aq_job *j, const struct aq_line *line, const struct aq_line_place *place,
                    struct aq_err *reterr)
{
    struct aq_request *r;
    if (line->number > UINT32_MAX)
        return aq_error(reterr, -EINVAL, "the input has more than %u lines", UINT32_MAX);
    int rc = rows_reserve(j, reterr);
    if (rc == 0)
        rc = aq_request_open(&r, &j->g.rules, line, reterr);
    if (rc < 0)
        return rc;
    struct aq_row *row = &j->rows[j->row_count];
    row_from(row, r);
    row->place = *place;
    j->line_max = aq_max_u64(j->line_max, line->bytes);
    if (row->has_id)
        rc = check_duplicate(j, r, reterr);
    if (rc == 0) {
        count_whole(j, row, r);
        if (aq_job_has(j, row))
            count_row(j, row, r);
        if (aq_job_has(j, row) && !row->code && r->prompt_count && j->alike)
            rc = aq_alike_add(j->alike, j->counts.records - 1, r->prompts[0].ids,
                              r->prompts[0].count, reterr);
        j->row_count++;
        if (row->has_id)
            aq_id_table_put(&j->ids, row->id_hash, j->row_count - 1);
    }
    aq_request_close(r);
    return rc;
}

/* Rows of other shards have only told of duplicates and of the input as a whole: those of this one
 * move together, and the tables follow. */
static int keep_shard(struct aq_job *j, struct aq_err *reterr)
{
    uint64_t kept = 0;
    if (!j->shard.count)
        return 0;
    for (uint64_t i = 0; i < j->row_count; i++)
        if (aq_job_has(j, &j->rows[i]))
            j->rows[kept++] = j->rows[i];
    uint64_t capacity = 1;
    while (capacity < kept)
        capacity *= 2;
    struct aq_row *rows = realloc(j->rows, capacity * sizeof(*rows));
    if (!rows)
        return aq_error_memory(reterr, "%" PRIu64 " records", capacity);
    j->rows = rows;
    j->row_count = kept;
    return table_make(j, capacity, reterr);
}

int aq_job_preflight(struct aq_job *j, struct aq_err *reterr)
{
    j->prompt_histogram = calloc((size_t)j->g.rules.context + 1, sizeof(*j->prompt_histogram));
    if (!j->prompt_histogram)
        return aq_error_memory(reterr, "preflight");
    if (j->o->share_prefixes != AQ_SHARE_OFF) {
        int rc = aq_alike_open(&j->alike, AQ_ALIKE_BYTES_MAX, reterr);
        if (rc < 0)
            return rc;
    }
    struct aq_line line;
    struct aq_line_place place;
    while (!j->o->limit || j->row_count < j->o->limit) {
        if (aq_job_interrupted(j))
            return aq_error(reterr, -EINTR, "interrupted in the preflight, at record %" PRIu64,
                            j->row_count);
        int rc = aq_input_next(j->input, &line, &place, reterr);
        if (rc == 1)
            rc = add_line(j, &line, &place, reterr);
        else if (rc == 0)
            break;
        if (rc < 0)
            return rc;
    }
    int rc = aq_input_drain(j->input, reterr);
    return rc < 0 ? rc : keep_shard(j, reterr);
}

int aq_job_request(struct aq_request **ret, struct aq_job *j, uint64_t row, struct aq_err *reterr)
{
    const struct aq_row *known = &j->rows[row];
    struct aq_line line = {.index = known->index, .number = known->line, .hash = known->key};
    int rc = aq_input_at(j->input, &known->place, &line, reterr);
    if (rc == 0)
        rc = aq_request_open(ret, &j->g.rules, &line, reterr);
    if (rc < 0)
        return rc;
    if ((*ret)->key == known->key && (*ret)->error.code == (enum aq_record_code)known->code)
        return 0;
    aq_request_close(*ret);
    return aq_error(reterr, -EIO, "line %u of the input has changed while the job runs",
                    known->line);
}

/* ---- what follows from the counts ---- */

static uint64_t invalid_count(const struct aq_job *j)
{
    return j->counts.records - j->counts.valid;
}

int aq_job_check_counts(const struct aq_job *j, struct aq_err *reterr)
{
    const struct aq_job_shown *s = &j->whole.first_bad;
    uint64_t records = j->whole.records, invalid = records - j->whole.valid;
    if (!records)
        return aq_error(reterr, -EINVAL, "the input has no records");
    if (!j->whole.valid)
        return aq_error(reterr, -EINVAL,
                        "none of the %" PRIu64 " records is valid; nothing was written.  Line "
                        "%" PRIu64 ": %s: %s%s",
                        records, s->line, aq_record_code_name(s->code), s->message,
                        aq_input_is_list(j->input) ? ".  The input looks like one JSON list; jq -c "
                                                     "'.[]' makes a line of each item"
                                                   : "");
    if (j->o->strict && invalid)
        return aq_error(reterr, -EINVAL,
                        "--strict: %" PRIu64 " of %" PRIu64 " records are invalid.  Line %" PRIu64
                        ": %s: %s",
                        invalid, records, s->line, aq_record_code_name(s->code), s->message);
    struct aq_records_read read = {records, invalid, s->line, s->code, s->message};
    return aq_request_check_invalid(&read, j->o->allow_errors, reterr);
}

static bool is_pending(void *user, uint64_t row)
{
    const struct aq_job *j = user;
    return !j->rows[row].done && !j->rows[row].code;
}

static void find_turns(struct aq_job *j)
{
    free(j->turn);
    uint64_t least = aq_distinct_least(j->o->share_prefixes, j->workload.prompt_sum);
    j->turn = aq_distinct_order(j->alike, j->row_count, least, is_pending, j, &j->alike_tokens);
}

/* Tokens of the pending sequences in their order.  Without the memory predictions are of a block of
 * mean ones. */
static void list_lengths(struct aq_job *j)
{
    struct aq_distinct d = {.lengths = &j->lengths, .alike = j->alike};
    bool good = true;
    aq_lengths_close(&j->lengths);
    for (uint64_t i = 0; i < j->row_count && good; i++) {
        uint64_t at = aq_job_turn(j, i);
        const struct aq_row *row = &j->rows[at];
        if (row->done || row->code || !row->sequences)
            continue;
        struct aq_length l = {row->prompt_sum / row->sequences,
                              (uint32_t)aq_max_u64(1, row->output_sum / row->sequences),
                              row->shared};
        good = aq_distinct_add(&d, at, l, row->sequences);
    }
    j->workload.shared_sum = good ? d.shared_sum : 0;
    j->workload.length = j->lengths.item;
    j->workload.length_count = j->lengths.count;
}

void aq_job_workload(struct aq_job *j)
{
    struct aq_workload *w = &j->workload;
    *w = (struct aq_workload){0};
    j->pending = j->pending_valid = 0;
    j->held_max = j->held_sum = 0;
    for (uint64_t i = 0; i < j->row_count; i++) {
        const struct aq_row *row = &j->rows[i];
        if (row->done)
            continue;
        j->pending++;
        if (row->code)
            continue;
        j->pending_valid++;
        w->sequences += row->sequences;
        w->prompt_sum += row->prompt_sum;
        w->total_sum += (uint64_t)row->prompt_sum + row->output_sum;
        w->prompt_max = row->prompt_max > w->prompt_max ? row->prompt_max : w->prompt_max;
        w->total_max = row->total_max > w->total_max ? row->total_max : w->total_max;
        w->new_max = row->new_max > w->new_max ? row->new_max : w->new_max;
        w->prompt_logprobs |= row->prompt_logprobs;
        j->held_max = aq_max_u64(j->held_max, row->held_kib * AQ_KIB);
        j->held_sum += row->held_kib * AQ_KIB;
    }
    find_turns(j);
    list_lengths(j);
}

/* Smallest length that at least `share` of the prompts do not exceed. */
static uint32_t percentile(const struct aq_job *j, double share)
{
    uint64_t total = 0, seen = 0;
    for (uint32_t i = 0; i <= j->g.rules.context; i++)
        total += j->prompt_histogram[i];
    for (uint32_t i = 0; i <= j->g.rules.context; i++) {
        seen += j->prompt_histogram[i];
        if (total && (double)seen >= share * (double)total)
            return i;
    }
    return 0;
}

/* Free bytes where the results go; UINT64_MAX when unknown. */
uint64_t aq_job_free_bytes(const struct aq_job *j)
{
    if (!j->output)
        return UINT64_MAX;
    char *folder = aq_file_folder(j->output);
    struct statvfs fs;
    bool known = folder && statvfs(folder, &fs) == 0;
    free(folder);
    return known ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
}

static uint64_t bytes_to_write(const struct aq_job *j)
{
    return j->counts.output_bytes * (j->o->ordered ? 2 : 1); /* sorting needs a second copy */
}

/* ---- what is printed ---- */

/* The report's own text, a line at a time. */
struct printer {
    void (*line)(void *user, const char *text);
    void *user;
    struct aq_buf text;
};

static void end_line(struct printer *p)
{
    p->line(p->user, p->text.data ? p->text.data : "");
    aq_buf_clear(&p->text);
}

bool aq_job_distinct_text(char text[AQ_JOB_DISTINCT_TEXT_MAX], const struct aq_job *j)
{
    const struct aq_workload *w = &j->workload;
    if (!w->shared_sum)
        return false;
    snprintf(text, AQ_JOB_DISTINCT_TEXT_MAX,
             "prompts to run: %" PRIu64 " tokens, %" PRIu64 " of them distinct; sharing saves at "
             "most %" PRIu64 " (%.0f %%)",
             w->prompt_sum, w->prompt_sum - w->shared_sum, w->shared_sum,
             100 * (double)w->shared_sum / (double)w->prompt_sum);
    return true;
}

static void print_counts(struct printer *p, const struct aq_job *j)
{
    const struct aq_job_counts *c = &j->counts;
    char shard[AQ_SHARD_TEXT_MAX];
    if (j->shard.count) {
        aq_buf_printf(&p->text, "shard %s: %" PRIu64 " of the input's %" PRIu64 " records",
                      aq_shard_text(shard, j->shard), c->records, j->whole.records);
        end_line(p);
    }
    aq_buf_printf(&p->text, "records: %" PRIu64 " (%" PRIu64 " valid, %" PRIu64 " invalid)",
                  c->records, c->valid, invalid_count(j));
    for (int f = 0; f < AQ_FORM_COUNT; f++)
        if (c->form[f])
            aq_buf_printf(&p->text, ", %s %" PRIu64, aq_form_name((enum aq_form)f), c->form[f]);
    end_line(p);
    for (int e = 1; e < AQ_RECORD_CODE_COUNT; e++) {
        if (!c->code[e])
            continue;
        aq_buf_printf(&p->text, "  %s: %" PRIu64, aq_record_code_name((enum aq_record_code)e),
                      c->code[e]);
        end_line(p);
    }
    for (uint32_t i = 0; i < j->shown_count; i++) {
        aq_buf_printf(&p->text, "  line %" PRIu64 ": %s: %s", j->shown[i].line,
                      aq_record_code_name(j->shown[i].code), j->shown[i].message);
        end_line(p);
    }
    for (uint32_t i = 0; i < j->g.unknown.count; i++) {
        char name[80];
        aq_quote(name, sizeof(name), j->g.unknown.field[i].name,
                 strlen(j->g.unknown.field[i].name));
        aq_buf_printf(&p->text,
                      "unknown field '%s' ignored in %" PRIu64 " records (first in line "
                      "%" PRIu64 ")",
                      name, j->g.unknown.field[i].count, j->g.unknown.field[i].first_line);
        if (j->g.unknown.field[i].nearest)
            aq_buf_printf(&p->text, "; nearest known: '%s'", j->g.unknown.field[i].nearest);
        end_line(p);
    }
    if (c->other_models) {
        aq_buf_printf(&p->text,
                      "model: %" PRIu64 " %s another one (first '%s' in line %" PRIu64
                      "), and %s by %s",
                      c->other_models, c->other_models == 1 ? "record names" : "records name",
                      j->other_model.name, j->other_model.line,
                      c->other_models == 1 ? "is answered" : "are answered", j->g.info->name);
        end_line(p);
    }
    if (j->g.unknown.more) {
        aq_buf_printf(&p->text, "and other unknown fields, %" PRIu64 " times", j->g.unknown.more);
        end_line(p);
    }
}

static void print_scoring(struct printer *p, const struct aq_job *j)
{
    const struct aq_job_counts *c = &j->counts;
    const struct aq_engine_info *i = j->g.info;
    if (!c->scoring)
        return;
    aq_buf_printf(&p->text, "scores: %" PRIu64 " records, %" PRIu64 " continuations or windows",
                  c->scoring, c->continuations);
    if (c->fed)
        aq_buf_printf(&p->text,
                      "; %" PRIu64 " of them token by token, under KV %s and kv policy %s", c->fed,
                      aq_dtype_name(i->kv_format), aq_kv_policy_desc(&i->kv)->name);
    else
        aq_buf_puts(&p->text, ", each read at once, as the KV cache loses nothing of it");
    end_line(p);
}

static void print_defaults(struct printer *p, const struct aq_job *j)
{
    const struct aq_params *d = &j->g.rules.defaults;
    aq_buf_printf(&p->text,
                  "prompts: p50 %u, p95 %u, longest %u tokens; %" PRIu64 " in all; at most %" PRIu64
                  " to generate in %" PRIu64 " sequences",
                  percentile(j, 0.5), percentile(j, 0.95), j->counts.prompt_max,
                  j->counts.prompt_tokens, j->counts.output_tokens, j->counts.sequences);
    end_line(p);
    aq_buf_printf(&p->text, "defaults: max_tokens %u, temperature %g, top_p %g, top_k %u, n %u, %s",
                  d->max_tokens, (double)d->temperature, (double)d->top_p, d->top_k, d->n,
                  d->ignore_eos ? "EOS ignored" : "stop at EOS");
    aq_buf_printf(&p->text, ", seed %" PRId64 "; context %u; overlong: %s", d->seed,
                  j->g.rules.context, aq_job_overlong_name(j->o->overlong));
    end_line(p);
    print_scoring(p, j);
    aq_buf_printf(&p->text, "bos: %s", aq_job_bos_name(j->o->bos));
    if (j->o->bos == AQ_BOS_AUTO)
        aq_buf_puts(&p->text, j->g.rules.adds_bos
                                  ? " (text of plain and batch records gets a leading BOS; ids and "
                                    "harness records do not)"
                                  : " (this tokenizer adds none)");
    end_line(p);
    if (j->counts.chats) {
        const char *time = aq_chat_time(j->g.chat);
        aq_buf_printf(&p->text, "chat: %" PRIu64 " records, by the model's chat template%s%s",
                      j->counts.chats, time ? "; its present time is " : "", time ? time : "");
        end_line(p);
    }
}

static void print_bos_twice(struct printer *p, const struct aq_job *j)
{
    if (!j->counts.bos_twice)
        return;
    aq_buf_printf(&p->text,
                  "bos: %" PRIu64 " prompt%s with BOS already and got another one in front; "
                  "--bos never adds none",
                  j->counts.bos_twice, j->counts.bos_twice == 1 ? " began" : "s began");
    end_line(p);
}

static void print_machine(struct printer *p, const struct aq_job *j)
{
    const struct aq_engine_info *i = j->g.info;
    aq_buf_printf(&p->text, "model: %s, %.3g M parameters, weights %s, KV %s, compute %s", i->name,
                  1e-6 * (double)i->parameters, aq_dtype_name(i->weight_format),
                  aq_dtype_name(i->kv_format), aq_dtype_name(i->compute));
    end_line(p);
    for (uint32_t n = 0; n < i->lossy_count; n++) {
        aq_buf_printf(&p->text, "lossy: %s", i->lossy[n]);
        end_line(p);
    }
    if (!i->lossy_count) {
        aq_buf_puts(&p->text, "lossy: nothing");
        end_line(p);
    }
    char scores[AQ_SCORES_TEXT_MAX];
    if (aq_generator_scores_text(scores, &j->g, j->counts.scored)) {
        aq_buf_printf(&p->text, "lossy: %s", scores);
        end_line(p);
    }
    aq_buf_printf(&p->text, "device: %s, %s, %u threads (%s); memory budget %.2f GiB (%s)",
                  i->backend, i->isa, i->threads, aq_job_device_reason(j),
                  (double)i->host_budget / (double)AQ_GIB, i->host_limited_by);
    end_line(p);
}

static void print_output(struct printer *p, const struct aq_job *j)
{
    uint64_t space = aq_job_free_bytes(j), want = bytes_to_write(j);
    if (!j->output)
        aq_buf_printf(&p->text, "results: to standard output, about %.1f MB at most",
                      1e-6 * (double)want);
    else
        aq_buf_printf(&p->text, "results: '%s', about %.1f MB at most%s", j->output,
                      1e-6 * (double)want, j->o->ordered ? " (ordered: written twice)" : "");
    if (space != UINT64_MAX)
        aq_buf_printf(&p->text, ", %.1f MB free", 1e-6 * (double)space);
    end_line(p);
    if (space < want) {
        aq_buf_puts(&p->text, "results: there may be too little space");
        end_line(p);
    }
}

void aq_job_preflight_lines(const struct aq_job *j, void (*line)(void *user, const char *text),
                            void *user)
{
    struct printer p = {line, user, {0}};
    bool few =
        j->text_output && !j->o->dry_run; /* a prompt on the command line: no file to check */
    if (!few || j->counts.records != j->counts.valid)
        print_counts(&p, j);
    if (!few)
        print_defaults(&p, j);
    print_bos_twice(&p, j);
    print_machine(&p, j);
    if (!few)
        print_output(&p, j);
    aq_buf_close(&p.text);
}

static json_t *counts_json(const uint64_t *count, int first, int end, const char *(*name)(int))
{
    json_t *o = json_object();
    for (int i = first; i < end; i++)
        if (count[i])
            aq_json_put(&o, name(i), json_integer((json_int_t)count[i]));
    return o;
}

static const char *form_name(int form)
{
    return aq_form_name((enum aq_form)form);
}

static const char *code_name(int code)
{
    return aq_record_code_name((enum aq_record_code)code);
}

json_t *aq_job_preflight_json(const struct aq_job *j)
{
    const struct aq_job_counts *c = &j->counts;
    const struct aq_params *d = &j->g.rules.defaults;
    uint64_t space = aq_job_free_bytes(j);
    json_t *o =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "records", (json_int_t)c->records, "valid",
                  (json_int_t)c->valid, "sequences", (json_int_t)c->sequences, "prompt_tokens",
                  (json_int_t)c->prompt_tokens, "output_tokens_max", (json_int_t)c->output_tokens,
                  "bytes_to_write", (json_int_t)bytes_to_write(j));
    const struct aq_workload *w = &j->workload;
    aq_json_put(&o, "pending_prompts",
                json_pack("{s:I, s:I, s:I}", "tokens", (json_int_t)w->prompt_sum, "distinct_tokens",
                          (json_int_t)(w->prompt_sum - w->shared_sum), "shared_tokens_max",
                          (json_int_t)w->shared_sum));
    if (j->shard.count)
        aq_json_put(&o, "shard",
                    json_pack("{s:I, s:I, s:I}", "index", (json_int_t)j->shard.index, "count",
                              (json_int_t)j->shard.count, "of_records",
                              (json_int_t)j->whole.records));
    aq_json_put(&o, "bytes_free",
                space == UINT64_MAX ? json_null() : json_integer((json_int_t)space));
    aq_json_put(&o, "forms", counts_json(c->form, 0, AQ_FORM_COUNT, form_name));
    aq_json_put(&o, "errors", counts_json(c->code, 1, AQ_RECORD_CODE_COUNT, code_name));
    aq_json_put(&o, "prompt_length",
                json_pack("{s:i, s:i, s:i}", "p50", (int)percentile(j, 0.5), "p95",
                          (int)percentile(j, 0.95), "max", (int)c->prompt_max));
    aq_json_put(&o, "defaults",
                json_pack("{s:i, s:o, s:o, s:i, s:i, s:I}", "max_tokens", (int)d->max_tokens,
                          "temperature", aq_json_real((double)d->temperature), "top_p",
                          aq_json_real((double)d->top_p), "top_k", (int)d->top_k, "n", (int)d->n,
                          "seed", (json_int_t)d->seed));
    aq_json_put(&o, "bos", json_string(aq_job_bos_name(j->o->bos)));
    aq_json_put(&o, "overlong", json_string(aq_job_overlong_name(j->o->overlong)));
    json_t *unknown = json_object();
    for (uint32_t i = 0; i < j->g.unknown.count; i++)
        aq_json_put(&unknown, j->g.unknown.field[i].name,
                    json_integer((json_int_t)j->g.unknown.field[i].count));
    aq_json_put(&o, "unknown_fields", unknown);
    if (c->other_models)
        aq_json_put(&o, "other_models", json_integer((json_int_t)c->other_models));
    aq_json_put(&o, "predicted", json_null());
    return o;
}
