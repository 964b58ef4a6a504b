/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/emu_engines.cuh - when things would happen on a GPU: one engine copies to the
 * device, one from it, whatever streams the copies are in; kernels of different streams run side by
 * side.  An engine does the copy that became ready first, but stays with the stream it serves as
 * long as that has copies and the stream's time slice lasts.  Only for the runtime, under its
 * lock. */
#ifndef AQ_TESTS_CUDA_EMU_EMU_ENGINES_CUH
#define AQ_TESTS_CUDA_EMU_EMU_ENGINES_CUH

#include "tests/cuda_emu/control.h"

#include <algorithm>

enum aq_emu_engine { AQ_EMU_NO_ENGINE, AQ_EMU_TO_DEVICE, AQ_EMU_TO_HOST, AQ_EMU_ENGINES };

/* What an item costs, and since when it has been in its stream. */
struct aq_emu_cost {
    aq_emu_engine engine = AQ_EMU_NO_ENGINE;
    uint64_t ns = 0, bytes = 0, put_ns = 0;
};

struct aq_emu_times {
    aq_emu_rates rates = {};
    uint64_t now_ns = 0; /* the latest start */
    uint64_t kernels_ns = 0, late_ns = 0;
    struct {
        uint64_t free_ns, busy_ns; /* from when on it has nothing to do; what it has done */
        const void *stream;        /* the one it serves, and since when */
        uint64_t since_ns;
    } engine[AQ_EMU_ENGINES] = {};

    bool on() const
    {
        return rates.bytes_per_ms;
    }

    aq_emu_cost of_kernel() const
    {
        return {AQ_EMU_NO_ENGINE, rates.kernel_ns, 0, 0};
    }

    aq_emu_cost of_copy(uint64_t bytes, cudaMemcpyKind kind) const
    {
        aq_emu_engine e = kind == cudaMemcpyHostToDevice   ? AQ_EMU_TO_DEVICE
                          : kind == cudaMemcpyDeviceToHost ? AQ_EMU_TO_HOST
                                                           : AQ_EMU_NO_ENGINE;
        uint64_t ns = on() && e ? bytes * 1000000 / rates.bytes_per_ms : 0;
        return {e, ns, bytes, 0};
    }

    /* Of an item in front of a stream that has been over with the one before it since over_ns. */
    static uint64_t ready(const aq_emu_cost &c, uint64_t over_ns)
    {
        return std::max(over_ns, c.put_ns);
    }

    uint64_t start(const aq_emu_cost &c, uint64_t over_ns) const
    {
        return c.engine ? std::max(engine[c.engine].free_ns, ready(c, over_ns)) : ready(c, over_ns);
    }

    /* Does the stream s with `a` in front go before the one with `b`? */
    bool before(const void *s, const aq_emu_cost &a, uint64_t a_over_ns, const void *other,
                const aq_emu_cost &b, uint64_t b_over_ns) const
    {
        uint64_t at = start(a, a_over_ns), b_at = start(b, b_over_ns);
        if (at != b_at)
            return at < b_at;
        if (a.engine != b.engine || !a.engine)
            return a.engine < b.engine; /* what is no copy takes no engine */
        const auto &e = engine[a.engine];
        if (at < e.since_ns + rates.slice_ns && (e.stream == s || e.stream == other))
            return e.stream == s;
        return ready(a, a_over_ns) < ready(b, b_over_ns);
    }

    /* Starts it; when it ends. */
    uint64_t run(const void *stream, const aq_emu_cost &c, uint64_t over_ns)
    {
        uint64_t at = start(c, over_ns);
        now_ns = std::max(now_ns, at);
        if (!c.engine) {
            kernels_ns += c.ns;
            return at + c.ns;
        }
        auto &e = engine[c.engine];
        if (e.stream != stream || at > e.free_ns)
            e.since_ns = at;
        e.stream = stream;
        e.free_ns = at + c.ns;
        e.busy_ns += c.ns;
        if (c.bytes <= rates.small_bytes)
            late_ns = std::max(late_ns, at - ready(c, over_ns));
        return e.free_ns;
    }
};

#endif
