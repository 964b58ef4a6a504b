/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/kv.h"

#include "base/json.h"
#include "base/units.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int wrong_amount(const char *label, const char *text, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL,
                    "%s: expected a share such as 0.2 or 20%%, or a whole number of slots, found "
                    "'%s'",
                    label, text);
}

static int parse_slots(struct aq_kv_amount *ret, const char *label, const char *text, bool part,
                       struct aq_err *reterr)
{
    uint64_t slots;
    if (!aq_parse_u64(text, &slots) || slots > INT32_MAX)
        return wrong_amount(label, text, reterr);
    if (slots == 1 && !part)
        return aq_error(reterr, -EINVAL,
                        "%s: '1': 100 %% or one token?  write 100%% or 1.0 for the whole sequence, "
                        "or a number of slots from 2 on",
                        label);
    *ret = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = (uint32_t)slots};
    return 0;
}

int aq_kv_amount_parse(struct aq_kv_amount *ret, const char *label, const char *text, bool part,
                       struct aq_err *reterr)
{
    size_t n = strlen(text);
    bool percent = n > 0 && text[n - 1] == '%';
    char number[64];
    double x;
    if (n > 0 && strspn(text, "0123456789") == n)
        return parse_slots(ret, label, text, part, reterr);
    if (n - percent >= sizeof(number))
        return wrong_amount(label, text, reterr);
    memcpy(number, text, n - percent);
    number[n - percent] = '\0';
    if (!aq_parse_real(number, &x) || !(x >= 0))
        return wrong_amount(label, text, reterr);
    if (x > (percent ? 100 : 1))
        return aq_error(reterr, -EINVAL,
                        "%s: expected a share of at most 100 %% (0.2 or 20%%), or a whole number "
                        "of slots, found '%s'",
                        label, text);
    *ret = (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = percent ? x / 100 : x};
    return 0;
}

int aq_kv_pool_parse(enum aq_kv_pool *ret_pool, uint32_t *ret_width, const char *label,
                     const char *text, struct aq_err *reterr)
{
    bool avg = strncmp(text, "avg:", 4) == 0, max = strncmp(text, "max:", 4) == 0;
    uint64_t width = 0;
    bool none = strcmp(text, "none") == 0;
    bool right = none || ((avg || max) && aq_parse_u64(text + 4, &width) && width % 2 &&
                          width <= AQ_KV_POOL_MAX_WIDTH);
    if (!right)
        return aq_error(reterr, -EINVAL,
                        "%s: expected none, or avg:K or max:K with an odd K of at most %d tokens, "
                        "found '%s'",
                        label, AQ_KV_POOL_MAX_WIDTH, text);
    *ret_pool = none ? AQ_KV_POOL_NONE : avg ? AQ_KV_POOL_AVG : AQ_KV_POOL_MAX;
    *ret_width = (uint32_t)width;
    return 0;
}

int aq_kv_layers_parse(enum aq_kv_layers *ret_layers, uint32_t *ret_beta, const char *label,
                       const char *text, struct aq_err *reterr)
{
    bool pyramid = strncmp(text, "pyramid:", 8) == 0, rising = strncmp(text, "rising:", 7) == 0;
    bool uniform = strcmp(text, "uniform") == 0;
    uint64_t beta = 0;
    bool right = uniform || ((pyramid || rising) && aq_parse_u64(strchr(text, ':') + 1, &beta) &&
                             beta >= 1 && beta <= INT32_MAX);
    if (!right)
        return aq_error(reterr, -EINVAL,
                        "%s: expected uniform, or pyramid:B or rising:B with a whole number B from "
                        "1 on, found '%s'",
                        label, text);
    *ret_layers = uniform   ? AQ_KV_LAYERS_UNIFORM
                  : pyramid ? AQ_KV_LAYERS_PYRAMID
                            : AQ_KV_LAYERS_RISING;
    *ret_beta = (uint32_t)beta;
    return 0;
}

int aq_kv_floor_parse(struct aq_kv_amount *ret, enum aq_kv_floor *ret_kind, const char *label,
                      const char *text, struct aq_err *reterr)
{
    bool mix = strncmp(text, "mix:", 4) == 0, reserve = strncmp(text, "reserve:", 8) == 0;
    *ret_kind = mix ? AQ_KV_FLOOR_MIX : AQ_KV_FLOOR_RESERVE;
    return aq_kv_amount_parse(ret, label, text + (mix ? 4 : reserve ? 8 : 0), true, reterr);
}

static int amount(struct aq_kv_amount *ret, const char *label, const char *text,
                  struct aq_err *reterr)
{
    return text ? aq_kv_amount_parse(ret, label, text, strcmp(label, "--kv-budget") != 0, reterr)
                : 0;
}

/* What only KIVI's formats have, and what they cannot have. */
static int check_residual(const struct aq_kv_policy *p, const struct aq_options *o, bool kivi,
                          struct aq_err *reterr)
{
    const char *format = o->kv_format < 0 ? "auto" : aq_dtype_name((enum aq_dtype)o->kv_format);
    const char *option = o->kv_residual        ? "--kv-residual"
                         : o->kv_residual_rule ? "--kv-residual-rule"
                                               : NULL;
    if (!kivi)
        return option ? aq_error(reterr, -EINVAL,
                                 "%s: the newest tokens of kivi4 and kivi2; expected --kv-format "
                                 "kivi4 or kivi2 beside it, found %s",
                                 option, format)
                      : 0;
    if (o->kv_residual % AQ_HEAD_BLOCK_SLOTS)
        return aq_error(reterr, -EINVAL,
                        "--kv-residual %u: 32 tokens are encoded together; expected a multiple of "
                        "32, such as %u",
                        o->kv_residual, (uint32_t)aq_align_up(o->kv_residual, AQ_HEAD_BLOCK_SLOTS));
    if (aq_kv_policy_ragged(p))
        return aq_error(reterr, -EINVAL,
                        "--kv-format %s: all heads of a layer have one residual, and --kv-policy "
                        "%s lets them hold different numbers of tokens; --kv-policy snapkv, or "
                        "--kv-format int4",
                        format, aq_kv_policy_desc(p)->name);
    if (p->decode.source != AQ_KV_SOURCE_NONE)
        return aq_error(reterr, -EINVAL,
                        "--kv-format %s: a key cannot leave its group of 32, and --kv-policy %s"
                        "%s gives up keys after the prompt; --kv-format int4 keeps keys apart, and "
                        "full, snapkv, pyramidkv, knorm, keydiff and expected give up none then",
                        format, aq_kv_policy_desc(p)->name, p->bulk ? " --kv-decode bulk" : "");
    if (p->read)
        return aq_error(reterr, -EINVAL,
                        "--kv-read: bounds are of keys that are numbers or codes by row, and "
                        "--kv-format %s has codes by channel, behind a residual; --kv-format int4",
                        format);
    if (o->emulate_device)
        return aq_kv_format_refused((enum aq_dtype)o->kv_format, reterr);
    return 0;
}

/* Codes of a key and of what is added to it would have to be turned apart. */
static int check_positions(const struct aq_kv_policy *p, const struct aq_options *o,
                           struct aq_err *reterr)
{
    if (p->positions != AQ_KV_POSITIONS_CACHE || o->kv_format < 0 ||
        aq_dtype_is_float((enum aq_dtype)o->kv_format))
        return 0;
    return aq_error(reterr, -EINVAL,
                    "--kv-positions cache: queries are turned in front of keys that are numbers, "
                    "not codes; expected --kv-format f16, bf16 or f32 beside it, found %s",
                    aq_dtype_name((enum aq_dtype)o->kv_format));
}

int aq_kv_format_refused(enum aq_dtype format, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL,
                    "--kv-format %s: its codes are attended where no device has memory of its own; "
                    "--device cpu without --emulate-device, or --kv-format int4",
                    aq_dtype_name(format));
}

int aq_options_kv_policy(struct aq_kv_policy *ret, const struct aq_options *o,
                         struct aq_err *reterr)
{
    struct aq_kv_options kv = {
        .policy = o->kv_policy,
        .sinks_given = o->kv_sinks_given,
        .sinks = o->kv_sinks,
        .grace = o->kv_grace,
        .decay = o->kv_decay,
        .group_given = o->kv_group != NULL,
        .observe_given = o->kv_observe_given,
        .observe = o->kv_observe,
        .cross_layer_given = o->kv_cross_layer_given,
        .cross_layer = o->kv_cross_layer,
        .ahead_given = o->kv_ahead_given,
        .ahead = o->kv_ahead,
        .mass_given = o->kv_mass_given,
        .mass = o->kv_mass,
        .pool_given = o->kv_pool != NULL,
        .pool_order_given = o->kv_pool_order != NULL,
        .pool_first = o->kv_pool_order && strcmp(o->kv_pool_order, "pool-first") == 0,
        .decode_given = o->kv_decode != NULL,
        .history_given = o->kv_history_given,
        .history = o->kv_history,
        .low = o->kv_low,
        .read_given = o->kv_read_given,
        .read = o->kv_read,
        .read_dense_given = o->kv_read_dense_given,
        .read_dense = o->kv_read_dense,
        .positions_given = o->kv_positions != NULL,
    };
    for (int g = AQ_ATTN_SUM; o->kv_group && g <= AQ_ATTN_MAX_OF_SUMS; g++) {
        if (strcmp(aq_kv_group_name((enum aq_attn_group)g), o->kv_group) == 0)
            kv.group = (enum aq_attn_group)g;
    }
    int rc = amount(&kv.budget, "--kv-budget", o->kv_budget, reterr);
    rc = rc < 0 ? rc : amount(&kv.heavy, "--kv-heavy", o->kv_heavy, reterr);
    rc = rc < 0 ? rc : amount(&kv.recent, "--kv-recent", o->kv_recent, reterr);
    if (rc == 0 && o->kv_floor)
        rc = aq_kv_floor_parse(&kv.floor, &kv.floor_kind, "--kv-floor", o->kv_floor, reterr);
    rc = rc < 0 ? rc : amount(&kv.drop, "--kv-drop", o->kv_drop, reterr);
    rc = rc < 0 ? rc : amount(&kv.frequent, "--kv-frequent", o->kv_frequent, reterr);
    rc = rc < 0 ? rc : amount(&kv.local, "--kv-local", o->kv_local, reterr);
    for (int d = AQ_KV_DECODE_GROW; o->kv_decode && d <= AQ_KV_DECODE_BULK; d++) {
        if (strcmp(aq_kv_decode_name((enum aq_kv_decode)d), o->kv_decode) == 0)
            kv.decode = (enum aq_kv_decode)d;
    }
    for (int at = AQ_KV_POSITIONS_TEXT; o->kv_positions && at <= AQ_KV_POSITIONS_CACHE; at++) {
        if (strcmp(aq_kv_positions_name((enum aq_kv_positions)at), o->kv_positions) == 0)
            kv.positions = (enum aq_kv_positions)at;
    }
    kv.heads_given = o->kv_heads != NULL;
    if (kv.heads_given && strcmp(o->kv_heads, "shared") == 0)
        kv.heads = AQ_KV_HEADS_SHARED;
    if (rc == 0 && o->kv_pool)
        rc = aq_kv_pool_parse(&kv.pool, &kv.pool_width, "--kv-pool", o->kv_pool, reterr);
    kv.layers_given = o->kv_layers != NULL;
    if (rc == 0 && kv.layers_given)
        rc = aq_kv_layers_parse(&kv.layers, &kv.beta, "--kv-layers", o->kv_layers, reterr);
    bool kivi = o->kv_format >= 0 && aq_dtype_is_kivi((enum aq_dtype)o->kv_format);
    struct aq_kv_policy p;
    rc = rc < 0 ? rc : aq_kv_policy_resolve(&p, &kv, reterr);
    rc = rc < 0 ? rc : check_residual(&p, o, kivi, reterr);
    rc = rc < 0 ? rc : check_positions(&p, o, reterr);
    if (rc < 0)
        return rc;
    if (kivi)
        p.residual = (struct aq_kv_residual){
            .tokens = o->kv_residual ? o->kv_residual : AQ_KV_RESIDUAL_DEFAULT,
            .flush = o->kv_residual_rule && strcmp(o->kv_residual_rule, "flush") == 0};
    *ret = p;
    return 0;
}

int aq_kv_policy_check_gpu(const struct aq_kv_policy *p, struct aq_err *reterr)
{
    if (p->positions == AQ_KV_POSITIONS_CACHE)
        return aq_error(reterr, -EINVAL,
                        "--kv-positions cache: queries are turned in front of sinks by the cpu "
                        "backend; --device cpu, or --kv-positions text");
    if (p->prompt.source == AQ_KV_SOURCE_EXPECTED)
        return aq_error(reterr, -EINVAL,
                        "--kv-policy %s: queries are expected by the cpu backend; --device cpu, or "
                        "--kv-policy snapkv",
                        aq_kv_policy_desc(p)->name);
    if (!aq_kv_policy_ragged(p))
        return 0;
    return aq_error(reterr, -EINVAL,
                    "--kv-policy %s: heads that hold different numbers of tokens are the cpu "
                    "backend's; --device cpu, or --kv-policy %s",
                    aq_kv_policy_desc(p)->name,
                    !aq_kv_policy_grows(p) ? "h2o"
                    : p->layers            ? "pyramidkv"
                                           : "snapkv");
}

static json_t *amount_json(const struct aq_kv_amount *a)
{
    char text[32];
    return a->unit == AQ_KV_UNSET ? json_null() : json_string(aq_kv_amount_text(text, a));
}

static json_t *floor_json(const struct aq_kv_policy *p)
{
    char text[40] = "mix:";
    if (p->floor_kind != AQ_KV_FLOOR_MIX)
        return amount_json(&p->floor);
    aq_kv_amount_text(text + strlen(text), &p->floor);
    return json_string(text);
}

json_t *aq_kv_policy_json(const struct aq_kv_policy *p)
{
    json_t *o = json_pack("{s:s}", "name", aq_kv_policy_desc(p)->name);
    if (p->residual.tokens) {
        aq_json_put(&o, "residual", json_integer(p->residual.tokens));
        aq_json_put(&o, "residual_rule", json_string(p->residual.flush ? "flush" : "sliding"));
    }
    if (p->read) {
        aq_json_put(&o, "read", json_integer(p->read));
        aq_json_put(&o, "read_dense", json_integer(p->read_dense));
    }
    if (!aq_kv_policy_drops(p))
        return o;
    aq_json_put(&o, "budget", amount_json(&p->budget));
    aq_json_put(&o, "heavy", amount_json(&p->heavy));
    aq_json_put(&o, "recent", amount_json(&p->recent));
    if (p->heads == AQ_KV_HEADS_SHARED)
        aq_json_put(&o, "floor", floor_json(p));
    aq_json_put(&o, "sinks", json_integer(p->sinks));
    aq_json_put(&o, "grace", json_integer(p->grace));
    if (!aq_kv_policy_grows(p))
        aq_json_put(&o, "decay", aq_json_real((double)p->decode.decay));
    aq_json_put(&o, "group", json_string(aq_kv_group_name(p->prompt.group)));
    if (aq_kv_policy_desc(p)->prompt.pool) {
        char text[32];
        aq_json_put(&o, "observe", json_integer(p->prompt.rows));
        aq_json_put(&o, "pool", json_string(aq_kv_pool_text(text, &p->prompt)));
        aq_json_put(&o, "pool_order",
                    json_string(p->prompt.pool_first ? "pool-first" : "group-first"));
    }
    if (p->layers || aq_kv_policy_desc(p)->layers) {
        char text[32];
        aq_json_put(&o, "layers", json_string(aq_kv_layers_text(text, p)));
    }
    if (p->ahead)
        aq_json_put(&o, "ahead", json_integer(p->ahead));
    if (aq_kv_policy_cross(p))
        aq_json_put(&o, "cross_layer", aq_json_real(p->cross_layer));
    if (aq_kv_policy_profiled(p)) {
        aq_json_put(&o, "mass", aq_json_real(p->mass));
        aq_json_put(&o, "frequent", amount_json(&p->frequent));
        aq_json_put(&o, "local", amount_json(&p->local));
    }
    if (p->heads != aq_kv_policy_desc(p)->heads)
        aq_json_put(&o, "heads", json_string(aq_kv_heads_name(p->heads)));
    if (p->positions)
        aq_json_put(&o, "positions", json_string(aq_kv_positions_name(p->positions)));
    if (!p->bulk)
        return o;
    aq_json_put(&o, "decode", json_string(aq_kv_decode_name(AQ_KV_DECODE_BULK)));
    aq_json_put(&o, "drop", amount_json(&p->drop));
    aq_json_put(&o, "history", json_integer(p->history));
    if (p->prompt.stat == AQ_ATTN_LOW)
        aq_json_put(&o, "low", aq_json_real((double)p->prompt.threshold));
    return o;
}
