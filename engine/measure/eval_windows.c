/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/eval_windows.h"

#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_FILE_MAX = 1 << 30, TEXT_FILE_MAX = 1 << 30 };

/* Ids as decimal numbers between spaces, commas and brackets: a JSON list, or one a line. */
static int parse_ids(struct aq_eval_ids *ret, const char *text, size_t bytes, const char *path,
                     struct aq_err *reterr)
{
    size_t max = bytes / 2 + 2, count = 0;
    uint32_t *id = malloc(max * sizeof(*id));
    if (!id)
        return aq_error_memory(reterr, "'%s': %zu ids", path, max);
    for (const char *at = text; at < text + bytes;) { /* which a 0 ends */
        if (isspace((unsigned char)*at) || *at == ',' || *at == '[' || *at == ']') {
            at++;
            continue;
        }
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at || !isdigit((unsigned char)*at) || value > UINT32_MAX) {
            free(id);
            return aq_error(reterr, -EINVAL, "'%s' byte %zu: expected a token id, found '%.16s'",
                            path, (size_t)(at - text), *at ? at : "\\0");
        }
        id[count++] = (uint32_t)value;
        at = end;
    }
    *ret = (struct aq_eval_ids){id, count};
    return 0;
}

/* Little-endian 16-bit ids. */
static int unpack_ids(struct aq_eval_ids *ret, const char *data, size_t bytes, const char *path,
                      struct aq_err *reterr)
{
    if (bytes % 2)
        return aq_error(reterr, -EINVAL, "'%s': expected 16-bit ids, found %zu bytes", path, bytes);
    uint32_t *id = malloc((bytes / 2 + 1) * sizeof(*id));
    if (!id)
        return aq_error_memory(reterr, "'%s': %zu ids", path, bytes / 2);
    for (size_t i = 0; i < bytes / 2; i++)
        id[i] = (uint32_t)(uint8_t)data[2 * i] | (uint32_t)(uint8_t)data[2 * i + 1] << 8;
    *ret = (struct aq_eval_ids){id, bytes / 2};
    return 0;
}

static int read_ids(struct aq_eval_ids *ret, const char *path, struct aq_err *reterr)
{
    char *text;
    size_t bytes, n = strlen(path);
    int rc = aq_read_file(&text, &bytes, path, IDS_FILE_MAX, reterr);
    if (rc < 0)
        return aq_error_named(reterr, rc, "--ids");
    bool packed = n > 4 && strcmp(path + n - 4, ".u16") == 0;
    rc = (packed ? unpack_ids : parse_ids)(ret, text, bytes, path, reterr);
    free(text);
    return rc;
}

static int encode_text(struct aq_eval_ids *ret, const char *model_dir, const char *path,
                       struct aq_err *reterr)
{
    struct aq_tokenizer *t = NULL;
    struct aq_tok_state *state = NULL;
    struct aq_ids ids = {0};
    char *text = NULL, dir[4096];
    size_t bytes;
    int rc =
        aq_error_named(reterr, aq_read_file(&text, &bytes, path, TEXT_FILE_MAX, reterr), "--text");
    if (rc == 0)
        rc = aq_checkpoint_resolve(model_dir, dir, sizeof(dir), reterr);
    if (rc == 0)
        rc = aq_tokenizer_open(&t, dir, NULL, reterr);
    if (rc == 0)
        rc = aq_tok_state_open(&state, t, reterr);
    if (rc == 0)
        rc = aq_tokenizer_encode(t, state, text, bytes,
                                 (struct aq_encode_opts){.parse_special = true}, &ids, reterr);
    if (rc == 0)
        *ret = (struct aq_eval_ids){ids.item, ids.count};
    else
        aq_ids_close(&ids);
    aq_tok_state_close(state);
    aq_tokenizer_close(t);
    free(text);
    return rc;
}

int aq_eval_ids_read(struct aq_eval_ids *ret, const struct aq_options *o, struct aq_err *reterr)
{
    return o->text ? encode_text(ret, o->model, o->text, reterr) : read_ids(ret, o->ids, reterr);
}

void aq_eval_ids_close(struct aq_eval_ids *ids)
{
    free(ids->id);
    *ids = (struct aq_eval_ids){0};
}

/* ---- windows ----------------------------------------------------------------------------- */

void aq_eval_windows_close(struct aq_eval_windows *w)
{
    free(w->ids);
    free(w->sequence);
    free(w->tokens);
    free(w->logprobs);
    free(w->prompt_logprob);
}

int aq_eval_windows_open(struct aq_eval_windows *w, const struct aq_eval_ids *text,
                         const struct aq_options *o, int32_t bos_id, struct aq_err *reterr)
{
    const char *mode = o->bos_mode ? o->bos_mode : "none";
    bool once = strcmp(mode, "once") == 0;
    w->bos_each = strcmp(mode, "each") == 0;
    if ((once || w->bos_each) && bos_id < 0)
        return aq_error(reterr, -EINVAL, "--bos %s: the model names no BOS token", mode);
    w->prompt_tokens = o->prompt_tokens;
    w->score_tokens = o->score_tokens;
    uint32_t length = w->prompt_tokens + w->score_tokens;
    size_t total = text->count + once, most = total / length;
    w->count = (uint32_t)(o->windows && o->windows < most ? o->windows : most);
    if (most < (o->windows ? o->windows : 1))
        return aq_error(
            reterr, -EINVAL,
            "eval: %u window(s) of %u + %u tokens were asked for, the text has %zu tokens",
            o->windows ? o->windows : 1, w->prompt_tokens, w->score_tokens, total);
    w->stride = length + w->bos_each;
    w->ids = malloc((size_t)w->count * w->stride * sizeof(*w->ids));
    w->sequence = calloc(w->count, sizeof(*w->sequence));
    w->tokens = calloc((size_t)w->count * w->score_tokens, sizeof(*w->tokens));
    w->logprobs = calloc((size_t)w->count * w->score_tokens, sizeof(*w->logprobs));
    w->prompt_logprob = calloc((size_t)w->count * w->stride, sizeof(*w->prompt_logprob));
    if (!w->ids || !w->sequence || !w->tokens || !w->logprobs || !w->prompt_logprob)
        return aq_error_memory(reterr, "eval: %u windows of %u tokens", w->count, w->stride);
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t *at = w->ids + (size_t)i * w->stride;
        if (w->bos_each)
            *at++ = (uint32_t)bos_id;
        for (uint32_t t = 0; t < length; t++) {
            size_t from = (size_t)i * length + t;
            at[t] = once ? (from == 0 ? (uint32_t)bos_id : text->id[from - 1]) : text->id[from];
        }
    }
    return 0;
}

void aq_eval_windows_reset(struct aq_eval_windows *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        struct aq_sequence *s = &w->sequence[i];
        uint32_t prompt = w->prompt_tokens + w->bos_each;
        *s = (struct aq_sequence){
            .prompt = w->ids + (size_t)i * w->stride,
            .prompt_count = w->prompt_tokens ? prompt : w->stride,
            .sampling = {.top_p = 1, .repetition_penalty = 1},
            .top_count = 0,
            .tokens = w->tokens + (size_t)i * w->score_tokens,
            .logprobs = w->logprobs + (size_t)i * w->score_tokens,
        };
        if (w->prompt_tokens) {
            s->max_tokens = w->score_tokens;
            s->forced = s->prompt + prompt;
        } else {
            s->prompt_logprobs = true;
            s->prompt_logprob = w->prompt_logprob + (size_t)i * w->stride;
        }
    }
}

uint32_t aq_eval_windows_scored(const struct aq_eval_windows *w)
{
    return w->prompt_tokens ? w->score_tokens : w->stride - 1;
}

void aq_eval_windows_nll(const struct aq_eval_windows *w, double *nll)
{
    uint32_t first = w->prompt_tokens ? 0 : 1;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct aq_sequence *s = &w->sequence[i];
        nll[i] = 0;
        for (uint32_t t = first; t < first + aq_eval_windows_scored(w); t++)
            nll[i] -= (double)(w->prompt_tokens ? s->logprobs[t] : s->prompt_logprob[t]);
    }
}

struct aq_eval_mean aq_eval_mean(const double *sum, uint32_t windows, uint32_t n)
{
    double mean = 0, square = 0;
    for (uint32_t i = 0; i < windows; i++)
        mean += sum[i] / n / windows;
    for (uint32_t i = 0; i < windows; i++)
        square += (sum[i] / n - mean) * (sum[i] / n - mean);
    double se = windows > 1 ? sqrt(square / windows / (windows - 1)) : NAN;
    return (struct aq_eval_mean){mean, se};
}
