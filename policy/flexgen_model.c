/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/flexgen_model.h"

#include "policy/flexgen_loop.h"

#include <assert.h>
#include <math.h>

enum { DECODE_PASSES = 4 };

static const struct {
    const char *name, *text;
} rule_table[AQ_FLEXGEN_RULE_COUNT] = {
    [AQ_FLEXGEN_PADDING] = {"padding", "prompts padded to the longest"},
    [AQ_FLEXGEN_ALL_LOGITS] = {"all-logits", "logits of every prompt token"},
    [AQ_FLEXGEN_WHOLE_TENSORS] = {"whole-tensors", "tensors placed whole, by their midpoints"},
    [AQ_FLEXGEN_TABLE_TWICE] = {"table-twice", "token table kept and sent twice"},
    [AQ_FLEXGEN_FIRST_SLOT] = {"first-slot", "weights move in the first micro-batch's slot only"},
    [AQ_FLEXGEN_BARRIER] = {"barrier", "a barrier after every (step, micro-batch)"},
    [AQ_FLEXGEN_ONE_QUEUE] = {"one-queue", "activations wait behind weights, the device for them"},
    [AQ_FLEXGEN_WHOLE_READS] = {"whole-reads", "a tensor is read whole before the link sees it"},
    [AQ_FLEXGEN_PAGEABLE] = {"pageable", "KV through pageable memory"},
    [AQ_FLEXGEN_SERIAL_HOST] = {"serial-host", "the device waits while the host attends"},
    [AQ_FLEXGEN_SLOW_HOST] = {"slow-host", "host attention at their rate"},
    [AQ_FLEXGEN_UNPACK_EACH] = {"unpack-each", "unpacked again for every micro-batch"},
    [AQ_FLEXGEN_SLOW_DEVICE] = {"slow-device", "device kernels at their rates"},
};

const char *aq_flexgen_rule_name(enum aq_flexgen_rule h)
{
    return (unsigned)h < AQ_FLEXGEN_RULE_COUNT ? rule_table[h].name : "?";
}

const char *aq_flexgen_rule_text(enum aq_flexgen_rule h)
{
    return (unsigned)h < AQ_FLEXGEN_RULE_COUNT ? rule_table[h].text : "?";
}

static bool moves(const struct aq_shares *s)
{
    return s->percent[AQ_DEVICE] < 100;
}

bool aq_flexgen_rule_matters(const struct aq_flexgen_run *run, enum aq_flexgen_rule h)
{
    bool kv = moves(&run->kv), copies = kv || moves(&run->weights) || moves(&run->hidden);
    switch (h) {
    case AQ_FLEXGEN_PADDING: return run->prompt_mean > 0 && run->prompt_mean < run->prompt;
    case AQ_FLEXGEN_WHOLE_TENSORS:
    case AQ_FLEXGEN_TABLE_TWICE:
    case AQ_FLEXGEN_FIRST_SLOT: return moves(&run->weights);
    case AQ_FLEXGEN_BARRIER:
    case AQ_FLEXGEN_ONE_QUEUE: return copies && !run->serial;
    case AQ_FLEXGEN_WHOLE_READS: return run->weights.percent[AQ_DISK] > 0;
    case AQ_FLEXGEN_PAGEABLE: return kv || (run->pageable_weights && moves(&run->weights));
    case AQ_FLEXGEN_SERIAL_HOST: return kv && run->host_attention && !run->serial;
    case AQ_FLEXGEN_SLOW_HOST: return kv && run->host_attention;
    case AQ_FLEXGEN_UNPACK_EACH: return run->pack_weights || run->pack_kv;
    default: return true;
    }
}

static int check_run(const struct aq_flexgen_run *run, struct aq_err *reterr)
{
    struct aq_placement p = {run->weights, run->kv, run->hidden, AQ_HOST};
    int rc = aq_placement_check(&p, reterr);
    const double *hidden = run->hidden.percent, *kv = run->kv.percent;
    if (rc < 0)
        return rc;
    if (hidden[AQ_DEVICE] != 100 && hidden[AQ_HOST] != 100)
        return aq_error(reterr, -EINVAL,
                        "hidden=%g/%g/%g: their hidden states are all on the device or all on the "
                        "host",
                        hidden[0], hidden[1], hidden[2]);
    if (run->pack_kv && kv[AQ_DEVICE] != 100 && kv[AQ_HOST] != 100 && kv[AQ_DISK] != 100)
        return aq_error(reterr, -EINVAL, "kv=%g/%g/%g: their packed KV is all on one tier", kv[0],
                        kv[1], kv[2]);
    if (run->pack_kv && run->host_attention)
        return aq_error(reterr, -EINVAL, "their host does not attend to packed KV");
    return 0;
}

static double or_own(double theirs, double own)
{
    return theirs > 0 ? theirs : own;
}

/* The machine with the rates of FlexGen's kernels in one phase. */
static struct aq_hardware machine_of(const struct aq_flexgen_run *run, bool prefill)
{
    struct aq_hardware hw = *run->hw;
    const struct aq_flexgen_rates *r = &run->rates;
    struct aq_hw_side *device = &hw.device, *host = &hw.host;
    hw.overhead_s[AQ_LANE_CONTROL] = 0; /* barriers themselves are free, waiting at them is not */
    if (run->rules & 1u << AQ_FLEXGEN_SLOW_DEVICE) {
        double own = device->product_flops_per_s[AQ_F16];
        device->product_flops_per_s[AQ_F16] =
            or_own(prefill ? r->prefill_flops_per_s : r->decode_flops_per_s, own);
        device->attention_flops_per_s =
            or_own(r->prefill_attention_flops_per_s, device->attention_flops_per_s);
        device->attention_bytes_per_s =
            or_own(r->decode_attention_bytes_per_s, device->attention_bytes_per_s);
    }
    if (run->rules & 1u << AQ_FLEXGEN_UNPACK_EACH)
        device->unpack_bytes_per_s = or_own(r->unpack_bytes_per_s, device->unpack_bytes_per_s);
    if (run->rules & 1u << AQ_FLEXGEN_SLOW_HOST && r->host_attention_bytes_per_s > 0) {
        host->attention_bytes_per_s = r->host_attention_bytes_per_s;
        host->attention_flops_per_s = INFINITY; /* contained in that rate */
    }
    /* UNPACK on the host stands for the copy into pinned memory (flexgen_loop.c): the time from
     * pageable memory to the device, less the link's time. */
    double copy = r->pageable_bytes_per_s > 0 ? 1 / r->pageable_bytes_per_s : 0;
    double left = copy - 1 / hw.h2d_bytes_per_s;
    host->unpack_bytes_per_s = left > 0 ? 1 / left : INFINITY;
    return hw;
}

static int play_phase(struct aq_sim_result *ret, const struct aq_flexgen_run *run, bool prefill,
                      struct aq_err *reterr)
{
    struct aq_hardware hw = machine_of(run, prefill);
    struct aq_flexgen_loop loop;
    int rc = aq_flexgen_loop_build(&loop, run, prefill, reterr);
    if (rc < 0)
        return rc;
    struct aq_simulate_opts opts = {
        .passes = prefill ? 1 : DECODE_PASSES,
        .serial = run->serial,
        .compute = AQ_F16,
        .cost = loop.cost,
    };
    rc = aq_simulate(ret, &loop.program, &hw, &opts, reterr);
    aq_flexgen_loop_close(&loop);
    return rc;
}

int aq_flexgen_play(struct aq_flexgen_times *ret, const struct aq_flexgen_run *run,
                    struct aq_err *reterr)
{
    assert(run->micro_batch && run->micro_batches && run->prompt && run->gen);
    struct aq_flexgen_times t = {0};
    struct aq_sim_result r;
    int rc = check_run(run, reterr);
    rc = rc < 0 ? rc : play_phase(&r, run, true, reterr);
    if (rc < 0)
        return rc;
    t.prefill_s = r.end_s[0];
    aq_sim_result_close(&r);
    rc = play_phase(&r, run, false, reterr);
    if (rc < 0)
        return rc;
    t.decode_pass_s = r.pass_s;
    t.binding_lane = r.binding_lane;
    t.binding = r.binding;
    for (int l = 0; l < AQ_LANE_COUNT; l++)
        t.lane[l] = r.lane[l];
    aq_sim_result_close(&r);
    double prompts = (double)run->micro_batch * run->micro_batches;
    t.decode_s = t.decode_pass_s * (run->gen - 1);
    t.total_s = t.prefill_s + t.decode_s;
    t.prefill_tok_s = prompts * run->prompt / t.prefill_s;
    t.decode_tok_s = prompts / t.decode_pass_s;
    t.gen_tok_s = prompts * run->gen / t.total_s;
    *ret = t;
    return 0;
}
