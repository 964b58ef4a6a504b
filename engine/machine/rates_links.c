/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/rates_parts.h"

#include "base/clock.h"
#include "offload/device.h"

#include <assert.h>
#include <math.h>

enum { DEPTH = 32, ROUNDS = 5, LARGE = 2, SIZES = 3 };
static const uint64_t piece_bytes[SIZES] = {64 << 10, 1 << 20, 16 << 20};

/* A GPU or the emulated device, its two link lanes, and memory at both ends of each. */
struct links {
    struct aq_device *device;
    struct aq_device_stream *stream[AQ_LINK_COUNT];
    struct aq_completions *done;
    uint8_t *host[AQ_LINK_COUNT], *far[AQ_LINK_COUNT];
    size_t bytes; /* of each of the four */
    struct aq_copy_piece piece[AQ_LINK_COUNT][DEPTH];
    struct aq_device_span span[AQ_LINK_COUNT][DEPTH];
    uint32_t submitted[AQ_LINK_COUNT];
};

static void close_links(struct links *l)
{
    for (int i = 0; i < AQ_LINK_COUNT; i++)
        aq_device_stream_close(l->stream[i]);
    for (int i = 0; i < AQ_LINK_COUNT && l->device; i++) {
        aq_device_free(l->device, AQ_MEMORY_PINNED, "rates", l->host[i], l->bytes);
        aq_device_free(l->device, AQ_MEMORY_DEVICE, "rates", l->far[i], l->bytes);
    }
    aq_completions_close(l->done);
    aq_device_close(l->device);
}

static int open_links(struct links *l, struct aq_rates_rig *r, const struct aq_cuda *cuda,
                      struct aq_err *reterr)
{
    static const char *const names[AQ_LINK_COUNT] = {[AQ_H2D] = "h2d", [AQ_D2H] = "d2h"};
    struct aq_device_opts opts = {.kind = cuda ? AQ_DEVICE_GPU : AQ_DEVICE_EMULATED,
                                  .mem = r->mem,
                                  .gpu_ops = cuda ? cuda->module->gpu : NULL,
                                  .gpu = cuda ? cuda->gpu : NULL};
    int rc = aq_device_open(&l->device, &opts, reterr);
    rc = rc < 0 ? rc : aq_completions_open(&l->done, AQ_LINK_COUNT * DEPTH, NULL, reterr);
    for (int i = 0; rc == 0 && i < AQ_LINK_COUNT; i++) {
        struct aq_device_stream_opts stream = {
            .name = names[i], .side = AQ_STREAM_DEVICE, .depth = DEPTH};
        void *host = NULL, *far = NULL;
        rc = aq_device_alloc(&host, l->device, AQ_MEMORY_PINNED, "rates", l->bytes, reterr);
        l->host[i] = host;
        rc = rc < 0 ? rc
                    : aq_device_alloc(&far, l->device, AQ_MEMORY_DEVICE, "rates", l->bytes, reterr);
        l->far[i] = far;
        rc = rc < 0 ? rc : aq_device_stream_open(&l->stream[i], l->device, &stream, reterr);
    }
    return rc;
}

/* Submits up to DEPTH copies of one direction that pass over the whole buffer at most once. */
static int submit(struct links *l, enum aq_direction way, uint64_t each)
{
    uint32_t count = (uint32_t)aq_max_u64(1, aq_min_u64(DEPTH, l->bytes / each));
    each = aq_min_u64(each, l->bytes);
    l->submitted[way] = count;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *host = l->host[way] + i * each, *far = l->far[way] + i * each;
        l->piece[way][i] =
            (struct aq_copy_piece){way == AQ_H2D ? far : host, way == AQ_H2D ? host : far, each};
        struct aq_device_copy copy = {.direction = way,
                                      .pieces = &l->piece[way][i],
                                      .piece_count = 1,
                                      .token = i,
                                      .done = l->done,
                                      .span = &l->span[way][i]};
        int rc = aq_device_copy(l->stream[way], &copy);
        assert(rc == 0); /* no more than the stream holds */
    }
    return (int)count;
}

/* Waits for so many copies; meanwhile decode attention runs where it is given.  Bytes of KV that
 * it read, or a negative errno. */
static double finish(struct links *l, int count, struct aq_rates_attention *a)
{
    double bytes = 0;
    while (count > 0) {
        struct aq_completion c;
        if (a)
            bytes += aq_rates_decode(a);
        int n = aq_completions_wait(l->done, &c, 1, a ? 0 : AQ_WAIT_FOREVER);
        for (; n > 0; n = aq_completions_wait(l->done, &c, 1, 0)) {
            if (c.result < 0)
                return c.result;
            count--;
        }
        if (n < 0)
            return n;
    }
    return bytes;
}

/* Bytes per second that a direction carried, from its first start to its last end. */
static double carried(const struct links *l, enum aq_direction way)
{
    uint32_t n = l->submitted[way];
    double ns = (double)(l->span[way][n - 1].end_ns - l->span[way][0].start_ns);
    return ns > 0 ? (double)n * (double)l->piece[way][0].bytes / (1e-9 * ns) : 0;
}

static int one_way(struct links *l, enum aq_direction way, uint64_t each, struct aq_sample *ret)
{
    double rate[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) { /* the first one warms up */
        double rc = finish(l, submit(l, way, each), NULL);
        if (rc < 0)
            return (int)rc;
        rate[i < 0 ? 0 : i] = carried(l, way);
    }
    *ret = aq_sample_of(rate, ROUNDS);
    return 0;
}

/* From the first start to the last end of both. */
static int both_ways(struct links *l, struct aq_sample *ret)
{
    double rate[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int count = submit(l, AQ_H2D, piece_bytes[LARGE]) + submit(l, AQ_D2H, piece_bytes[LARGE]);
        double bytes = count * (double)l->piece[AQ_H2D][0].bytes, rc = finish(l, count, NULL);
        if (rc < 0)
            return (int)rc;
        const struct aq_device_span *h = l->span[AQ_H2D], *d = l->span[AQ_D2H];
        uint64_t start = aq_min_u64(h[0].start_ns, d[0].start_ns);
        uint64_t end =
            aq_max_u64(h[l->submitted[AQ_H2D] - 1].end_ns, d[l->submitted[AQ_D2H] - 1].end_ns);
        rate[i] = end > start ? bytes / (1e-9 * (double)(end - start)) : 0;
    }
    *ret = aq_sample_of(rate, ROUNDS);
    return 0;
}

static int in_attention(struct links *l, struct aq_rates_attention *a, struct aq_rates_link *ret)
{
    double link[ROUNDS], attention[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double start = aq_clock_s();
        double bytes = finish(l, submit(l, AQ_H2D, piece_bytes[LARGE]), a);
        double s = aq_clock_s() - start;
        if (bytes < 0)
            return (int)bytes;
        link[i] = carried(l, AQ_H2D);
        attention[i] = s > 0 ? bytes / s : 0;
    }
    ret->h2d_in_attention = aq_sample_of(link, ROUNDS);
    ret->attention_in_h2d = aq_sample_of(attention, ROUNDS);
    return 0;
}

static int core_seconds(struct links *l, struct aq_sample *ret)
{
    double core_s[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double start = aq_rates_cpu_s();
        int count = submit(l, AQ_H2D, piece_bytes[LARGE]);
        double bytes = count * (double)l->piece[AQ_H2D][0].bytes, rc = finish(l, count, NULL);
        if (rc < 0)
            return (int)rc;
        core_s[i] = (aq_rates_cpu_s() - start) / bytes;
    }
    *ret = aq_sample_of(core_s, ROUNDS);
    return 0;
}

static int measure(struct links *l, struct aq_rates_attention *a, struct aq_rates_link *ret)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < SIZES; i++) {
        rc = one_way(l, AQ_H2D, piece_bytes[i], &ret->h2d_size[i]);
        rc = rc < 0 ? rc : one_way(l, AQ_D2H, piece_bytes[i], &ret->d2h_size[i]);
    }
    ret->h2d = ret->h2d_size[LARGE];
    ret->d2h = ret->d2h_size[LARGE];
    rc = rc < 0 ? rc : both_ways(l, &ret->both);
    rc = rc < 0 ? rc : core_seconds(l, &ret->core_s);
    return rc < 0 ? rc : in_attention(l, a, ret);
}

int aq_rates_links(struct aq_rates_link *ret, struct aq_rates_rig *r, const struct aq_cuda *cuda,
                   struct aq_rates_attention *a, size_t bytes, struct aq_err *reterr)
{
    struct links l = {.bytes = bytes};
    struct aq_rates_link found = {0};
    int rc = open_links(&l, r, cuda, reterr);
    if (rc == 0) {
        rc = measure(&l, a, &found);
        if (rc < 0)
            aq_error(reterr, rc, "links: a copy failed");
    }
    close_links(&l);
    if (rc == 0)
        *ret = found;
    return rc;
}
