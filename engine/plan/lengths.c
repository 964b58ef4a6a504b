/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/lengths.c - the workload of a plan out of a table of lengths (--lengths): "prompt
 * generated [count]" on each line, or the same as JSON objects.  It is a distribution: in which
 * order sequences come is not told. */
#include "engine/plan/planning.h"

#include "base/json.h"
#include "base/prng.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_BYTES_MAX = 256 << 20,
    TOKENS_MAX = 1 << 28,
    /* Sequences that stand for all of a larger number: as many as aq_lengths keeps. */
    SAMPLES_MAX = 1 << 16,
};
#define COUNT_MAX 1000000000000ull

/* Sequences of one length. */
struct row {
    uint64_t prompt, gen, count;
};

struct rows {
    struct row *row;
    size_t count, room;
    uint64_t sequences, prompt_sum, gen_sum; /* of all */
};

/* ---- lines ---- */

static int refuse(const char *path, uint64_t line, struct aq_err *reterr, const char *found)
{
    char quoted[80];
    return aq_error(reterr, -EINVAL,
                    "--lengths: '%s', line %llu: expected \"prompt generated [count]\" or "
                    "{\"prompt\", \"generated\", \"count\"}, whole numbers from 1 on, found '%s'",
                    path, (unsigned long long)line,
                    aq_quote(quoted, sizeof(quoted), found, strlen(found)));
}

static bool in_range(const struct row *r)
{
    return r->prompt >= 1 && r->prompt <= TOKENS_MAX && r->gen >= 1 && r->gen <= TOKENS_MAX &&
           r->count >= 1 && r->count <= COUNT_MAX;
}

/* Two or three numbers with blanks or a comma between them. */
static bool parse_numbers(struct row *ret, const char *line)
{
    uint64_t value[3] = {0, 0, 1};
    size_t count = 0;
    for (const char *at = line + strspn(line, " \t"); *at;) {
        char word[24];
        size_t n = strcspn(at, " \t,");
        if (n >= sizeof(word) || count == AQ_ARRAY_LEN(value))
            return false;
        memcpy(word, at, n);
        word[n] = '\0';
        if (!aq_parse_u64(word, &value[count++]))
            return false;
        at += n + strspn(at + n, " \t");
        if (*at != ',')
            continue;
        at += 1 + strspn(at + 1, " \t");
        if (!*at)
            return false;
    }
    *ret = (struct row){value[0], value[1], value[2]};
    return count >= 2;
}

static int parse_object(struct row *ret, const char *line, const char *path, uint64_t number,
                        struct aq_err *reterr)
{
    static const char *const names[] = {"prompt", "generated", "count"};
    uint64_t *values[] = {&ret->prompt, &ret->gen, &ret->count};
    json_t *o = NULL, *v;
    const char *key;
    int rc = aq_json_parse(&o, line, strlen(line), true, NULL);
    if (rc == -ENOMEM)
        return aq_error_memory(reterr, "--lengths");
    if (rc < 0 || !json_is_object(o)) {
        json_decref(o);
        return refuse(path, number, reterr, line);
    }
    *ret = (struct row){.count = 1};
    json_object_foreach(o, key, v)
    {
        size_t i = 0;
        while (i < AQ_ARRAY_LEN(names) && strcmp(names[i], key) != 0)
            i++;
        if (rc == 0 && i == AQ_ARRAY_LEN(names))
            rc = aq_error(reterr, -EINVAL,
                          "--lengths: '%s', line %llu: unknown field '%.40s'; expected prompt, "
                          "generated or count",
                          path, (unsigned long long)number, key);
        if (rc == 0 && aq_json_get_u64(o, key, 0, COUNT_MAX, "", values[i], NULL) < 0)
            rc = refuse(path, number, reterr, line);
    }
    json_decref(o);
    return rc;
}

static int add_row(struct rows *rows, const struct row *r, struct aq_err *reterr)
{
    if (rows->count == rows->room) {
        size_t room = rows->room ? 2 * rows->room : 256;
        struct row *grown = realloc(rows->row, room * sizeof(*grown));
        if (!grown)
            return aq_error_memory(reterr, "--lengths");
        rows->row = grown;
        rows->room = room;
    }
    rows->row[rows->count++] = *r;
    rows->sequences += r->count;
    rows->prompt_sum += r->count * r->prompt; /* 40 bits, and fewer than 24 of a context */
    rows->gen_sum += r->count * r->gen;
    return 0;
}

static int read_line(struct rows *rows, const struct aq_planning *p, char *line, uint64_t number,
                     struct aq_err *reterr)
{
    const char *path = p->o->lengths;
    struct row r;
    char *at = line + strspn(line, " \t"), *cr = strchr(line, '\r');
    if (cr && cr[1]) /* rows of some other system's file, which one line would hide */
        return aq_error(reterr, -EINVAL,
                        "--lengths: '%s', line %llu: expected lines that end with a line feed, "
                        "found a carriage return within one",
                        path, (unsigned long long)number);
    if (cr)
        *cr = '\0';
    if (!*at || *at == '#')
        return 0;
    int rc = 0;
    if (*at == '{')
        rc = parse_object(&r, at, path, number, reterr);
    else if (!parse_numbers(&r, at))
        rc = refuse(path, number, reterr, at);
    if (rc == 0 && !in_range(&r))
        rc = refuse(path, number, reterr, at);
    if (rc == 0 && r.prompt + r.gen > p->context)
        rc = aq_error(reterr, -EINVAL,
                      "--lengths: '%s', line %llu: a prompt of %llu and %llu generated tokens do "
                      "not fit a context of %u",
                      path, (unsigned long long)number, (unsigned long long)r.prompt,
                      (unsigned long long)r.gen, p->context);
    if (rc == 0 && aq_planned_check_prompt(r.prompt, p->positions, p->context, reterr) < 0)
        rc =
            aq_error_prefix(reterr, "--lengths: '%s', line %llu", path, (unsigned long long)number);
    rc = rc < 0 ? rc : add_row(rows, &r, reterr);
    if (rc == 0 && rows->sequences > COUNT_MAX)
        rc = aq_error(reterr, -EINVAL, "--lengths: '%s' has more than %llu sequences", path,
                      COUNT_MAX);
    return rc;
}

static int read_rows(struct rows *ret, const struct aq_planning *p, struct aq_err *reterr)
{
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, p->o->lengths, FILE_BYTES_MAX, reterr);
    if (rc < 0) {
        aq_error_prefix(reterr, "--lengths");
        return rc;
    }
    if (strlen(text) < bytes)
        rc = aq_error(reterr, -EINVAL, "--lengths: '%s': expected text, found a NUL byte",
                      p->o->lengths);
    uint64_t number = 1;
    for (char *at = text, *end = text + bytes; at < end && rc == 0; number++) {
        char *line = at;
        at += strcspn(at, "\n");
        if (at < end)
            *at = '\0';
        at++;
        rc = read_line(ret, p, line, number, reterr);
    }
    free(text);
    if (rc == 0 && !ret->count)
        rc = aq_error(reterr, -EINVAL, "--lengths: '%s' has no lengths", p->o->lengths);
    return rc;
}

/* ---- the workload ---- */

static void widen(uint32_t range[2], uint64_t to)
{
    range[0] = !range[0] || to < range[0] ? (uint32_t)to : range[0];
    range[1] = to > range[1] ? (uint32_t)to : range[1];
}

/* --requests of these lengths, else as many as the table counts. */
static void fill_workload(struct aq_planning *p, const struct rows *rows)
{
    uint64_t requests = p->o->requests ? p->o->requests : rows->sequences;
    double times = (double)requests / (double)rows->sequences;
    struct aq_workload *w = &p->workload;
    *w = (struct aq_workload){.sequences = requests};
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *r = &rows->row[i];
        widen(p->prompt, r->prompt);
        widen(p->gen, r->gen);
        if (r->prompt + r->gen > w->total_max)
            w->total_max = (uint32_t)(r->prompt + r->gen);
    }
    w->prompt_sum =
        p->o->requests ? (uint64_t)llround((double)rows->prompt_sum * times) : rows->prompt_sum;
    w->total_sum =
        w->prompt_sum +
        (p->o->requests ? (uint64_t)llround((double)rows->gen_sum * times) : rows->gen_sum);
    w->prompt_max = p->prompt[1];
    w->new_max = p->gen[1];
}

/* As many lengths as there are requests, or as can be kept, evenly spread over the table; then
 * shuffled, always alike. */
static int spread(struct aq_planning *p, const struct rows *rows, struct aq_err *reterr)
{
    uint32_t count = (uint32_t)aq_min_u64(p->workload.sequences, SAMPLES_MAX), at = 0;
    uint64_t behind = rows->row[0].count; /* sequences of the table up to the end of row `at` */
    for (uint32_t i = 0; i < count; i++) {
        uint64_t number = (uint64_t)((i + 0.5) * (double)rows->sequences / count);
        while (number >= behind && at + 1 < rows->count)
            behind += rows->row[++at].count;
        struct aq_length l = {(uint32_t)rows->row[at].prompt, (uint32_t)rows->row[at].gen};
        if (!aq_lengths_add(&p->lengths, l, 1))
            return aq_error_memory(reterr, "--lengths");
    }
    for (uint32_t i = p->lengths.count; i > 1; i--) {
        uint64_t j = aq_prng_below(0, i, 0, i);
        struct aq_length other = p->lengths.item[j];
        p->lengths.item[j] = p->lengths.item[i - 1];
        p->lengths.item[i - 1] = other;
    }
    return 0;
}

int aq_planning_read_lengths(struct aq_planning *p, struct aq_err *reterr)
{
    struct rows rows = {0};
    int rc = read_rows(&rows, p, reterr);
    if (rc == 0) {
        fill_workload(p, &rows);
        rc = spread(p, &rows, reterr);
    }
    free(rows.row);
    return rc;
}
