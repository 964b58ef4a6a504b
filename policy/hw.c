/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/hw.h"

#include "base/kv_block.h"

#include <assert.h>
#include <math.h>

const char *aq_resource_name(enum aq_resource r)
{
    static const char *const names[AQ_RESOURCE_COUNT] = {
        "cores",     "host memory", "device memory", "h2d link",   "d2h link", "link",
        "disk read", "disk write",  "disk",          "arithmetic", "memory",   "overhead",
    };
    return (unsigned)r < AQ_RESOURCE_COUNT ? names[r] : "?";
}

/* Seconds for an amount at a rate; 0 for nothing, even at rate 0. */
static double seconds(double amount, double per_s)
{
    if (amount <= 0)
        return 0;
    return per_s > 0 ? amount / per_s : INFINITY;
}

const uint32_t aq_hw_rows[AQ_HW_ROWS] = {4, 16, 64, 256};

/* Interpolates the share by the logarithm of the rows; one row has a rate of its own. */
static double product_share(const struct aq_hw_side *side, enum aq_dtype weights, uint32_t rows)
{
    const double *share = side->product_share[weights == AQ_Q8 ? 1 : weights == AQ_Q4 ? 2 : 0];
    double at = log2(fmax(rows, 1)), before = 1, before_at = 0;
    for (int i = 0; i < AQ_HW_ROWS; i++) {
        double here = share[i] > 0 ? share[i] : 1, here_at = log2(aq_hw_rows[i]);
        if (at <= here_at)
            return before + (here - before) * (at - before_at) / (here_at - before_at);
        before = here;
        before_at = here_at;
    }
    return before;
}

static double product_bytes_per_s(const struct aq_hw_side *side, enum aq_dtype weights)
{
    double codes = weights == AQ_Q8   ? side->code_bytes_per_s[0]
                   : weights == AQ_Q4 ? side->code_bytes_per_s[1]
                                      : 0;
    return codes > 0 ? codes : side->product_bytes_per_s;
}

double aq_hardware_shortness(uint32_t k)
{
    double usual = 1.0 / AQ_HW_K, brief = 1.0 / AQ_HW_K_SHORT;
    return k < AQ_HW_K ? (1.0 / fmax(k, AQ_HW_K_LEAST) - usual) / (brief - usual) : 0;
}

static double product_flops_s(const struct aq_hw_side *side, const struct aq_op_cost *cost,
                              enum aq_dtype compute)
{
    double share = side->short_share[compute], flops = (double)cost->flops;
    if (share > 0)
        flops += (1 / share - 1) * (double)cost->short_flops;
    return seconds(flops, side->product_flops_per_s[compute]);
}

/* The rate at `at` (0..1) between two rates, linear in the seconds per amount. */
static double rate_between(double at, double from, double to)
{
    return to > 0 && from > 0 ? 1 / ((1 - at) / from + at / to) : from;
}

const uint32_t aq_hw_groups[AQ_HW_GROUPS] = {4, 8};

/* Seconds of something that takes one[0] with a head of keys each, and one[i] in groups of
 * aq_hw_groups[i - 1]: linear between them and beyond the last, where it does not fall. */
static double grouped_s(const double one[1 + AQ_HW_GROUPS], uint32_t group)
{
    double before = 1, slope = 0;
    for (int i = 0; i < AQ_HW_GROUPS; i++) {
        slope = (one[i + 1] - one[i]) / (aq_hw_groups[i] - before);
        if (group <= aq_hw_groups[i])
            return one[i] + slope * (group - before);
        before = aq_hw_groups[i];
    }
    return one[AQ_HW_GROUPS] + fmax(slope, 0) * (group - before);
}

static bool knows_decode(const struct aq_hw_attention shared[AQ_HW_GROUPS])
{
    bool all = true;
    for (int i = 0; i < AQ_HW_GROUPS; i++)
        all = all && shared[i].bytes_per_s > 0;
    return all;
}

static bool knows_prefill(const struct aq_hw_attention shared[AQ_HW_GROUPS])
{
    bool all = true;
    for (int i = 0; i < AQ_HW_GROUPS; i++)
        all = all && shared[i].flops_per_s > 0;
    return all;
}

/* Rates of a group, from those of a head of keys each and of aq_hw_groups[]. */
static struct aq_hw_attention of_group(struct aq_hw_attention one,
                                       const struct aq_hw_attention shared[AQ_HW_GROUPS],
                                       uint32_t group)
{
    double key_s[1 + AQ_HW_GROUPS], head_s[1 + AQ_HW_GROUPS];
    struct aq_hw_attention ret = one;
    if (group > 1 && one.bytes_per_s > 0 && knows_decode(shared)) {
        for (int i = 0; i <= AQ_HW_GROUPS; i++) {
            const struct aq_hw_attention *a = i > 0 ? &shared[i - 1] : &one;
            key_s[i] = 1 / a->bytes_per_s;
            head_s[i] = a->decode_head_s;
        }
        ret.bytes_per_s = 1 / grouped_s(key_s, group);
        ret.decode_head_s = grouped_s(head_s, group);
    }
    if (group > 1 && one.flops_per_s > 0 && knows_prefill(shared)) {
        for (int i = 0; i <= AQ_HW_GROUPS; i++) {
            const struct aq_hw_attention *a = i > 0 ? &shared[i - 1] : &one;
            key_s[i] = 1 / a->flops_per_s;
            head_s[i] = a->prefill_head_s;
        }
        ret.flops_per_s = 1 / grouped_s(key_s, group);
        ret.prefill_head_s = grouped_s(head_s, group);
    }
    return ret;
}

/* Rates for heads of this size and group; below AQ_HW_HEAD those of AQ_HW_HEAD, above
 * AQ_HW_HEAD_WIDE those of AQ_HW_HEAD_WIDE. */
static struct aq_hw_attention attention_of(const struct aq_hw_side *side, uint32_t head_dim,
                                           uint32_t group)
{
    struct aq_hw_attention wide = of_group(side->wide, side->shared[1], group);
    struct aq_hw_attention ret = {side->attention_bytes_per_s, side->decode_head_s,
                                  side->attention_flops_per_s, side->prefill_head_s};
    double at = ((double)head_dim - AQ_HW_HEAD) / (AQ_HW_HEAD_WIDE - AQ_HW_HEAD);
    at = fmin(fmax(at, 0), 1);
    ret = of_group(ret, side->shared[0], group);
    ret.bytes_per_s = rate_between(at, ret.bytes_per_s, wide.bytes_per_s);
    ret.flops_per_s = rate_between(at, ret.flops_per_s, wide.flops_per_s);
    if (wide.bytes_per_s > 0)
        ret.decode_head_s += at * (wide.decode_head_s - ret.decode_head_s);
    if (wide.flops_per_s > 0)
        ret.prefill_head_s += at * (wide.prefill_head_s - ret.prefill_head_s);
    return ret;
}

/* Threads, not in whole ones, that attend decode rows as fast as all do.  Where keys go more slowly
 * than those that are read alone, arithmetic holds them up, which is the work of all. */
static double threads_needed(const struct aq_hw_side *side, double bytes_per_s)
{
    static const double as_fast = 0.9;
    double one = side->attention_thread_bytes_per_s, all = side->attention_bytes_per_s;
    if (one <= 0 || bytes_per_s < as_fast * all)
        return side->threads;
    return fmax(1, fmin(side->threads, all / one));
}

uint32_t aq_hardware_aside(const struct aq_hw_side *side)
{
    return (uint32_t)fmax(
        1, fmin(ceil(threads_needed(side, side->attention_bytes_per_s)), floor(side->threads / 2)));
}

static void scale(struct aq_hw_attention *a, double decode, double prefill)
{
    a->bytes_per_s *= decode;
    a->decode_head_s /= decode;
    a->flops_per_s *= prefill;
    a->prefill_head_s /= prefill;
}

void aq_hardware_scale_attention(struct aq_hw_side *side, double decode, double prefill)
{
    side->attention_bytes_per_s *= decode;
    side->attention_thread_bytes_per_s *= decode;
    side->decode_head_s /= decode;
    side->attention_flops_per_s *= prefill;
    side->prefill_head_s /= prefill;
    scale(&side->wide, decode, prefill);
    for (int i = 0; i < AQ_HW_GROUPS; i++) {
        scale(&side->shared[0][i], decode, prefill);
        scale(&side->shared[1][i], decode, prefill);
    }
}

/* What of the rate of f32 products arithmetic reaches where one reading of K and V serves many
 * query rows: with one head of keys for each of queries, or four (kcheck --bench: attn_joint). */
static const double joint_share = 0.5;

/* Bytes of K and V that are not read again, as they are read for several sequences at once: for as
 * many as one reading serves, but each thread is to have four such tiles. */
static double spared_bytes(const struct aq_hw_side *side, const struct aq_op_cost *cost)
{
    uint32_t group = cost->group ? cost->group : 1;
    double members = AQ_ATTN_JOINT_QUERIES / group, rows_of_heads = (double)cost->heads / group;
    if (cost->heads && side->threads > 0)
        members = fmin(members, floor(rows_of_heads / (4 * side->threads)));
    return members > 1 ? (double)cost->joint_bytes * (members - 1) / members : 0;
}

/* Arithmetic and memory time overlap in part; rows that pass between the primitives of an op
 * overlap with nothing. */
static void need_compute(struct aq_op_need *n, const struct aq_hardware *hw, const struct aq_op *op,
                         const struct aq_op_cost *cost, enum aq_dtype compute)
{
    bool beside = op->kind == AQ_OP_ATTN_DEVICE && op->lane == AQ_LANE_HOST_COMPUTE;
    bool on_device = op->lane == AQ_LANE_COMPUTE || beside;
    const struct aq_hw_side *side = on_device ? &hw->device : &hw->host;
    bool on_host = !on_device || hw->device_on_host;
    bool prefill = op->kind == AQ_OP_ATTN_PREFILL;
    bool attention = prefill || op->kind == AQ_OP_ATTN_DEVICE || op->kind == AQ_OP_ATTN_HOST;
    bool product = !attention && op->kind != AQ_OP_UNPACK;
    double bytes = (double)cost->memory_bytes, row_bytes = (double)cost->row_bytes;
    double memory_rate = on_host ? hw->host_memory_bytes_per_s : hw->device_memory_bytes_per_s;
    struct aq_hw_attention attend = attention_of(side, cost->head_dim, cost->group);
    double spared = on_host ? spared_bytes(side, cost) : 0,
           left = spared > 0 ? 1 - spared / bytes : 1;
    double joint_rate = joint_share * side->product_flops_per_s[AQ_F32];
    double joint_s =
        seconds((1 - left) * (double)cost->flops, joint_rate > 0 ? joint_rate : attend.flops_per_s);
    double arithmetic = attention ? seconds(left * (double)cost->flops, attend.flops_per_s)
                                  : product_flops_s(side, cost, compute);
    bytes -= spared;
    double memory = seconds(bytes, attention ? attend.bytes_per_s
                                   : product ? product_bytes_per_s(side, cost->weights)
                                             : side->unpack_bytes_per_s);
    n->limit = arithmetic + joint_s >= memory ? AQ_RESOURCE_FLOPS : AQ_RESOURCE_MEMORY;
    if (attention && !prefill && cost->group > 1 &&
        knows_decode(side->shared[cost->head_dim > AQ_HW_HEAD]))
        arithmetic = 0; /* contained in that rate */
    n->work_s = fmax(arithmetic, memory) + (1 - side->overlap) * fmin(arithmetic, memory);
    if (product)
        n->work_s /= product_share(side, cost->weights, cost->rows);
    n->work_s += (double)cost->heads * (prefill ? attend.prefill_head_s : attend.decode_head_s);
    n->work_s += seconds(row_bytes, memory_rate) + joint_s;
    n->threads = on_host ? side->threads : 0;
    if (beside) { /* cores that it can do without are not taken from products */
        n->aside = aq_hardware_aside(side);
        n->threads = fmax(n->aside, threads_needed(side, attend.bytes_per_s));
    }
    if (on_host) {
        n->shared_s[AQ_RESOURCE_CORES] = seconds(n->work_s * n->threads, hw->cores);
        n->shared_s[AQ_RESOURCE_HOST_MEMORY] = seconds(bytes + row_bytes, memory_rate);
    } else {
        n->shared_s[AQ_RESOURCE_DEVICE_MEMORY] = seconds(bytes + row_bytes, memory_rate);
    }
}

static void need_move(struct aq_op_need *n, const struct aq_hardware *hw, const struct aq_op *op,
                      const struct aq_op_cost *cost)
{
    double bytes = (double)cost->move_bytes, core_s;
    bool disk = op->kind == AQ_OP_READ || op->kind == AQ_OP_WRITE;
    enum aq_resource way = disk ? AQ_RESOURCE_DISK : AQ_RESOURCE_LINK;
    double duplex = disk ? hw->disk_duplex : hw->link_duplex;
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_READ:
        n->limit = AQ_RESOURCE_DISK_READ;
        n->work_s = seconds(bytes, hw->disk_read_bytes_per_s);
        break;
    case AQ_OP_WRITE:
        n->limit = AQ_RESOURCE_DISK_WRITE;
        n->work_s = seconds(bytes, hw->disk_write_bytes_per_s);
        break;
    case AQ_OP_H2D:
        n->limit = AQ_RESOURCE_H2D;
        n->work_s = seconds(bytes, hw->h2d_bytes_per_s);
        break;
    default:
        n->limit = AQ_RESOURCE_D2H;
        n->work_s = seconds(bytes, hw->d2h_bytes_per_s);
        break;
    }
    n->shared_s[n->limit] = n->work_s;
    n->shared_s[way] = duplex > 0 ? n->work_s / duplex : 0;
    core_s = bytes * (disk ? hw->disk_core_s_per_byte : hw->copy_core_s_per_byte);
    n->threads = core_s > 0;
    n->shared_s[AQ_RESOURCE_CORES] = seconds(core_s, hw->cores);
    n->shared_s[AQ_RESOURCE_HOST_MEMORY] =
        seconds(disk ? bytes : bytes * hw->copy_host_bytes_per_byte, hw->host_memory_bytes_per_s);
    if (!disk && !hw->device_on_host)
        n->shared_s[AQ_RESOURCE_DEVICE_MEMORY] = seconds(bytes, hw->device_memory_bytes_per_s);
    if (core_s > n->work_s) { /* one thread copies, and cannot copy faster */
        n->work_s = core_s;
        n->limit = AQ_RESOURCE_CORES;
    }
}

void aq_hardware_need(struct aq_op_need *ret, const struct aq_hardware *hw, const struct aq_op *op,
                      const struct aq_op_cost *cost, enum aq_dtype compute)
{
    assert(op->lane < AQ_LANE_COUNT && (unsigned)compute < AQ_DTYPE_COUNT);
    *ret = (struct aq_op_need){.limit = AQ_RESOURCE_OVERHEAD};
    if (!aq_op_has_work(op, cost))
        return;
    ret->overhead_s = hw->overhead_s[op->lane];
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_READ:
    case AQ_OP_WRITE:
    case AQ_OP_H2D:
    case AQ_OP_D2H: need_move(ret, hw, op, cost); break;
    case AQ_OP_TURN: break;
    default: need_compute(ret, hw, op, cost, compute);
    }
}

double aq_hardware_wake(const struct aq_hardware *hw, enum aq_lane lane)
{
    double threads = lane == AQ_LANE_HOST_COMPUTE                    ? hw->host.threads
                     : lane == AQ_LANE_COMPUTE && hw->device_on_host ? hw->device.threads
                                                                     : 0;
    bool link = lane == AQ_LANE_H2D || lane == AQ_LANE_D2H || lane == AQ_LANE_H2D_WEIGHTS;
    if (threads >= 1) /* all but the first wake one after it */
        return hw->wake_s * (1 + (threads - 1) / threads);
    return link && hw->device_on_host ? hw->wake_s : 0;
}

static struct aq_hw_side default_side(uint32_t threads)
{
    double n = threads;
    return (struct aq_hw_side){
        .product_flops_per_s = {[AQ_F32] = 250e9 * n,
                                [AQ_F16] = 250e9 * n,
                                [AQ_BF16] = 472e9 * n,
                                [AQ_Q8] = 760e9 * n},
        .attention_flops_per_s = 170e9 * n,
        .product_bytes_per_s = fmin(41e9 + 15e9 * (n - 1), 56e9),
        .attention_bytes_per_s = fmin(36e9 + 9e9 * (n - 1), 45e9),
        .unpack_bytes_per_s = fmin(5e9 * n, 14e9),
        .overlap = 0.87,
        .threads = n,
        .decode_head_s = 180e-9 / n,
        .prefill_head_s = 220e-9 / n,
        .product_share = {{0.93, 0.96, 1, 1}, {0.87, 0.75, 0.94, 0.98}, {0.69, 0.67, 0.91, 0.97}},
    };
}

/* Shares and the seconds of a head are from aquifer probe on the same machine.
 * Rates of bench/results/epyc-zen5-2vcpu-2026-11-21.md: products 883, 932 and 940 GFLOP/s at 32,
 * 128 and 512 rows and 55.9 GB/s at one, from which overlap follows; decode attention 83-88 % of
 * 52.6 GB/s; prefill attention 331-381 GFLOP/s.  Disk: 3.7 GB/s read, 0.03 core-seconds a GB
 * through io_uring.  Unpacking and overheads are assumptions. */
void aq_hardware_default(struct aq_hardware *ret, uint32_t cores, uint32_t device_threads,
                         uint32_t host_threads)
{
    assert(cores && device_threads && host_threads);
    *ret = (struct aq_hardware){
        .device = default_side(device_threads),
        .host = default_side(host_threads),
        .device_on_host = true,
        .cores = cores,
        .host_memory_bytes_per_s = 56e9,
        .h2d_bytes_per_s = 12e9,
        .d2h_bytes_per_s = 12e9,
        .disk_read_bytes_per_s = 3.7e9,
        .disk_write_bytes_per_s = 4.5e9,
        .link_duplex = 2,
        .disk_duplex = 1,
        .disk_in_flight = 2,
        .copy_core_s_per_byte = 1 / 21e9,
        .disk_core_s_per_byte = 0.03e-9,
        .copy_host_bytes_per_byte = 2,
        .overhead_s = {[AQ_LANE_COMPUTE] = 10e-6,
                       [AQ_LANE_HOST_COMPUTE] = 10e-6,
                       [AQ_LANE_H2D] = 20e-6,
                       [AQ_LANE_D2H] = 20e-6,
                       [AQ_LANE_DISK_READ] = 150e-6,
                       [AQ_LANE_DISK_WRITE] = 150e-6,
                       [AQ_LANE_H2D_WEIGHTS] = 20e-6,
                       [AQ_LANE_READ_WEIGHTS] = 150e-6,
                       [AQ_LANE_CONTROL] = 5e-6},
        .wake_s = 10e-6,
    };
}
