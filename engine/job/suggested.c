/* SPDX-License-Identifier: Apache-2.0
 * The keys are those of transformers' GenerationConfig (5.2). */
#include "engine/job/suggested.h"

#include "base/buf.h"
#include "base/json.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { FILE_BYTES_MAX = 16 << 20 };

static const char file_name[] = "generation_config.json";

/* What can be taken over, and the option that says the same. */
static const struct suggestion {
    const char *key, *option;
    double min, max; /* min itself only where it is 0 */
    size_t offset;
    bool whole, sampling; /* sampling: without do_sample it means nothing */
} suggestions[] = {
    {"temperature", "temperature", 0, 100, offsetof(struct aq_params, temperature), false, true},
    {"top_p", "top-p", 0, 1, offsetof(struct aq_params, top_p), false, true},
    {"top_k", "top-k", 0, 1 << 24, offsetof(struct aq_params, top_k), true, true},
    {"min_p", "min-p", 0, 1, offsetof(struct aq_params, min_p), false, true},
    {"repetition_penalty", "repetition-penalty", 0, 100,
     offsetof(struct aq_params, repetition_penalty), false, false},
};

/* Keys that do not say how tokens are chosen, or that are read elsewhere. */
static const char *const ignored[] = {
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "chat_format",
    "compile_config",
    "decoder_start_token_id",
    "disable_compile",
    "do_sample",
    "eos_token_id",
    "is_assistant",
    "low_memory",
    "max_length",
    "max_new_tokens",
    "max_time",
    "max_window_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "return_dict_in_generate",
    "return_legacy_cache",
    "target_lookbehind",
    "token_healing",
    "transformers_version",
    "trust_remote_code",
    "use_cache",
};

/* Values that change nothing, of keys that are not supported. */
static const struct {
    const char *key;
    double neutral;
} neutrals[] = {
    {"diversity_penalty", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"guidance_scale", 1},
    {"length_penalty", 1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"no_repeat_ngram_size", 0},
    {"num_beam_groups", 1},
    {"num_beams", 1},
    {"num_return_sequences", 1},
    {"penalty_alpha", 0},
    {"top_h", 0},
    {"typical_p", 1},
};

static bool is_ignored(const char *key)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(ignored); i++)
        if (!strcmp(key, ignored[i]))
            return true;
    for (size_t i = 0; i < AQ_ARRAY_LEN(suggestions); i++)
        if (!strcmp(key, suggestions[i].key))
            return true;
    return false;
}

static bool is_neutral(const char *key, const json_t *v)
{
    bool empty =
        (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
    if (!v || json_is_null(v) || json_is_false(v) || empty)
        return true;
    for (size_t i = 0; i < AQ_ARRAY_LEN(neutrals); i++)
        if (!strcmp(key, neutrals[i].key))
            return json_is_number(v) && json_number_value(v) == neutrals[i].neutral;
    return false;
}

static int check_keys(const json_t *root, struct aq_err *reterr)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)root, key, v)
    {
        char shown[64];
        if (!is_ignored(key) && !is_neutral(key, v))
            return aq_error(reterr, -EINVAL,
                            "--generation-config all: '%s' of %s is not supported; "
                            "--generation-config eos uses its end tokens alone",
                            aq_quote(shown, sizeof(shown), key, strlen(key)), file_name);
    }
    return 0;
}

/* The value of a suggestion; false: the file has none. */
static bool read_value(const struct suggestion *s, const json_t *root, double *ret)
{
    const json_t *v = json_object_get(root, s->key);
    if (s->sampling && !json_is_true(json_object_get(root, "do_sample")))
        return false;
    bool temperature = !strcmp(s->key, "temperature");
    *ret = json_is_number(v) ? json_number_value(v) : 1;
    return json_is_number(v) || (temperature && (!v || json_is_null(v)));
}

static int take_over(struct aq_params *p, const struct aq_options *o, const json_t *root,
                     struct aq_err *reterr)
{
    int rc = check_keys(root, reterr);
    for (size_t i = 0; rc == 0 && i < AQ_ARRAY_LEN(suggestions); i++) {
        const struct suggestion *s = &suggestions[i];
        double x;
        if (!read_value(s, root, &x) || aq_options_given(o, s->option))
            continue;
        bool positive = !strcmp(s->key, "top_p") || !strcmp(s->key, "repetition_penalty");
        if (!(x >= s->min && x <= s->max) || (positive && !(x > 0)) || (s->whole && floor(x) != x))
            return aq_error(reterr, -EINVAL,
                            "--generation-config all: '%s' of %s is %g; expected %s up to %g",
                            s->key, file_name, x, positive ? "more than 0" : "0", s->max);
        void *to = (char *)p + s->offset;
        if (s->whole)
            *(uint32_t *)to = (uint32_t)x;
        else
            *(float *)to = (float)x;
    }
    return rc;
}

static void say_unused(const struct aq_options *o, const json_t *root, const struct aq_log *log)
{
    struct aq_buf b = {0};
    for (size_t i = 0; i < AQ_ARRAY_LEN(suggestions); i++) {
        const struct suggestion *s = &suggestions[i];
        double x;
        bool has = read_value(s, root, &x) && !aq_options_given(o, s->option);
        if (has && (s->sampling || x != 1))
            aq_buf_printf(&b, "%s%s %g", b.count ? ", " : "", s->key, x);
    }
    if (b.count && !b.failed)
        aq_log_line(log, AQ_LOG_INFO, "%s suggests %s: not used; --generation-config all",
                    file_name, b.data);
    aq_buf_close(&b);
}

int aq_suggested_params(struct aq_params *params, const struct aq_options *o, const char *dir,
                        const struct aq_log *log, struct aq_err *reterr)
{
    char path[PATH_MAX];
    json_t *root;
    if (snprintf(path, sizeof(path), "%s/%s", dir, file_name) >= (int)sizeof(path))
        return 0;
    int rc = aq_json_read_file(&root, path, FILE_BYTES_MAX, reterr);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    if (o->generation_config_all)
        rc = take_over(params, o, root, reterr);
    else
        say_unused(o, root, log);
    json_decref(root);
    return rc;
}
