/* SPDX-License-Identifier: Apache-2.0
 * Transfers under thousands of seeds of faults, and the engine that makes the faults. */
#include "tests/unit/offload/xfer_rig.h"

#include "base/prng.h"
#include "base/types.h"
#include "offload/stripe.h"

#include <stdlib.h>
#include <string.h>

/* ---- the fault engine itself ---- */

static void flips_and_strays_are_the_same_on_every_read(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {
        .seed = 5, .ratio = {[AQ_FAULT_FLIP] = {1, 8}, [AQ_FAULT_MISDIRECT] = {1, 8}}};
    rig_open(&r, &faults, 1, small_requests());
    uint64_t bytes = PLACE_BYTES;
    struct aq_transfer *a = start(&r, 0, AQ_IO_READ, 1, 0, bytes);
    run(&r);
    struct aq_transfer *b = start(&r, 1, AQ_IO_READ, 1, 0, bytes);
    run(&r);
    assert_int_equal(a->status, 0);
    assert_memory_equal(a->buffer, b->buffer, bytes);
    assert_false(same(1, 0, a->buffer, bytes));
    uint64_t wrong = 0;
    for (uint64_t at = 0; at < bytes; at += 4096)
        wrong += !same(1, at, (unsigned char *)a->buffer + at, 4096);
    assert_true(wrong > 4 && wrong < 40); /* about 64 * 15 / 64 */
    rig_close(&r);
}

static void a_healed_engine_has_no_faults(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {
        .seed = 5,
        .ratio = {
            [AQ_FAULT_FLIP] = {1, 2}, [AQ_FAULT_EIO_STICKY] = {1, 2}, [AQ_FAULT_EAGAIN] = {1, 2}}};
    rig_open(&r, &faults, 1, small_requests());
    aq_io_fault_heal(r.io);
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, PLACE_BYTES);
    run(&r);
    assert_int_equal(t->status, 0);
    assert_true(same(1, 0, t->buffer, PLACE_BYTES));
    rig_close(&r);
}

static void latencies_have_their_floor_and_mean(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts slow = {.latency_ns_min = 1000, .latency_ns_mean = 100000, .reap_ns = 1};
    struct aq_xfer_opts opts = small_requests();
    opts.depth = 1;
    opts.request_bytes = 4096;
    opts.deadline_ns = 1ull << 40;
    rig_open(&r, &slow, 1, opts);
    enum { ROUNDS = 64 };
    for (int i = 0; i < ROUNDS; i++) {
        start(&r, 0, AQ_IO_READ, 1, 0, PLACE_BYTES);
        run(&r);
    }
    double mean = (double)aq_io_now(r.io) / (ROUNDS * PLACE_BYTES / 4096);
    assert_true(mean > 101000 * 0.93 && mean < 101000 * 1.07); /* 4096 draws: sigma is 1.6 % */
    rig_close(&r);
}

/* ---- a swarm of seeds ---- */

struct tally {
    uint64_t struck[AQ_FAULT_KIND_COUNT], good, eio, timeout, corrupted;
};

static uint64_t pick(uint64_t seed, uint64_t what, uint64_t n)
{
    return aq_prng_below(seed, what, 77, n);
}

/* Some kinds of fault, each rare or frequent. */
static struct aq_fault_opts draw_faults(uint64_t seed)
{
    static const uint32_t frequency[] = {0, 0, 0, 1, 8, 60};
    struct aq_fault_opts o = {
        .seed = seed,
        .latency_ns_min = pick(seed, 1, 3) * 1000,
        .latency_ns_mean = pick(seed, 2, 4) * 5000,
    };
    for (int k = AQ_FAULT_BUSY; k < AQ_FAULT_KIND_COUNT; k++) {
        uint32_t num = frequency[pick(seed, 10 + (uint64_t)k, AQ_ARRAY_LEN(frequency))];
        bool sector = k >= AQ_FAULT_EIO_STICKY;
        if (k == AQ_FAULT_STALL || sector)
            num = num > 1; /* these end transfers */
        o.ratio[k] = (struct aq_ratio){num, sector ? 1000 : 100};
    }
    return o;
}

static void draw_transfer(struct rig *r, uint64_t seed, uint64_t n, uint32_t align)
{
    int i = (int)(n % PLACES);
    uint64_t key = seed ^ (n + 1) << 32;
    uint64_t blocks = PLACE_BYTES / align;
    /* Half of them small, half of them anything. */
    uint64_t most = pick(key, 1, 2) ? blocks : blocks / 16;
    uint64_t count = 1 + pick(key, 2, most), first = pick(key, 3, blocks - count + 1);
    uint32_t set = (uint32_t)i % 2;
    /* Places of set 0 lie across the borders of its six units, the last one within. */
    uint64_t unit = (uint64_t)i / 2,
             within = unit < 5 ? AQ_STRIPE_UNIT_BYTES - PLACE_BYTES / 2 : AQ_MIB;
    uint64_t base = set ? (uint64_t)i * PLACE_BYTES : unit * AQ_STRIPE_UNIT_BYTES + within;
    enum aq_io_op op = pick(key, 4, 3) ? AQ_IO_READ : AQ_IO_WRITE;
    unsigned char *buffer = buffers + (size_t)i * PLACE_BYTES;
    if (op == AQ_IO_WRITE) {
        for (uint64_t at = 0; at + 8 <= count * align; at += 8) {
            uint64_t word = (key + at) * 0x9e3779b97f4a7c15ull;
            memcpy(buffer + at, &word, 8);
        }
    }
    start(r, i, op, set, base + first * align, count * align);
}

/* What became of a transfer is allowed by the contract and the faults of this seed. */
static void check(const struct rig *r, const struct aq_transfer *t, const struct aq_fault_opts *o,
                  struct tally *tally)
{
    struct aq_fault_stats s = aq_io_fault_stats(r->io);
    switch (t->status) {
    case 0:
        tally->good++;
        if (same(t->set, t->offset, t->buffer, t->bytes))
            break;
        if (s.struck[AQ_FAULT_LOST] + s.struck[AQ_FAULT_TORN] + s.struck[AQ_FAULT_STRAY] == 0) {
            assert_int_equal(t->op, AQ_IO_READ);
            assert_true(s.struck[AQ_FAULT_FLIP] + s.struck[AQ_FAULT_MISDIRECT] > 0);
        }
        tally->corrupted++;
        break;
    case -EIO:
        tally->eio++;
        assert_true(s.struck[AQ_FAULT_EIO_STICKY] > 0 || o->ratio[AQ_FAULT_EIO_ONCE].num > 0);
        break;
    case -ETIMEDOUT:
        tally->timeout++;
        assert_true(s.struck[AQ_FAULT_STALL] > 0);
        break;
    default: fail_msg("status %d", t->status);
    }
}

/* Returns the hash of all events. */
static uint64_t swarm(uint64_t seed, struct tally *tally)
{
    static const uint32_t sizes[] = {4096, 32768, 65536, 1 << 20};
    struct rig r;
    struct aq_fault_opts faults = draw_faults(seed);
    struct aq_xfer_opts opts = {
        .depth = 1 + (uint32_t)pick(seed, 3, 12),
        .request_bytes = sizes[pick(seed, 4, AQ_ARRAY_LEN(sizes))],
        .eio_retries = (uint32_t)pick(seed, 5, 4),
        .deadline_ns = 50ull * 1000 * 1000, /* a thousand mean latencies */
    };
    uint32_t align = pick(seed, 6, 2) ? 4096 : 1;
    uint64_t started = 0, total = PLACES + pick(seed, 7, PLACES);
    bool lost[PLACES] = {0}; /* buffers that belong to a request that never came back */
    int polls = 0;
    rig_open(&r, &faults, align, opts);
    for (; started < PLACES; started++)
        draw_transfer(&r, seed, started, align);
    while (aq_xfer_running(r.x) > 0) {
        struct aq_transfer *next, *t = aq_xfer_poll(r.x, pick(seed, 8, 2) ? AQ_IO_FOREVER : 3000);
        for (; t; t = next) {
            next = t->next;
            check(&r, t, &faults, tally);
            int i = (int)(t - r.t);
            lost[i] = lost[i] || t->status == -ETIMEDOUT;
            if (started < total && started % PLACES == (uint64_t)i && !lost[i])
                draw_transfer(&r, seed, started++, align);
        }
        if (++polls >= POLLS_MAX)
            fail_msg("seed %llu: %d polls", (unsigned long long)seed, polls);
    }
    /* Answers that come after the deadline still find home. */
    for (int i = 0; i < 100; i++)
        assert_null(aq_xfer_poll(r.x, 0));
    struct aq_fault_stats s = aq_io_fault_stats(r.io);
    /* A thousand seeds may each lose as many deadlines as there are requests of a transfer. */
    assert_true(aq_io_now(r.io) < 200 * opts.deadline_ns);
    assert_int_equal(aq_io_out(r.io), s.struck[AQ_FAULT_STALL]);
    for (int k = 0; k < AQ_FAULT_KIND_COUNT; k++)
        tally->struck[k] += s.struck[k];
    rig_close(&r);
    return s.event_hash;
}

static void thousands_of_seeds_end_as_the_contract_says(void **state)
{
    (void)state;
    struct tally tally = {0};
    const char *count = getenv("AQ_TEST_SEEDS"), *first = getenv("AQ_TEST_SEED");
    uint64_t from = first ? strtoull(first, NULL, 0) : 1,
             n = count ? strtoull(count, NULL, 0) : 3000;
    for (uint64_t seed = from; seed < from + n; seed++)
        swarm(seed, &tally);
    if (n < 3000)
        return;
    /* Every branch was really taken. */
    for (int k = 0; k < AQ_FAULT_KIND_COUNT; k++) {
        if (tally.struck[k] < 20)
            fail_msg("%s struck %llu times", aq_fault_kind_name((enum aq_fault_kind)k),
                     (unsigned long long)tally.struck[k]);
    }
    assert_true(tally.good > 10 * n && tally.eio > 20 && tally.timeout > 20);
    assert_true(tally.corrupted > 20);
}

static void a_seed_gives_the_same_events_twice(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint64_t different = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        uint64_t hash = swarm(seed, &tally);
        assert_int_equal(hash, swarm(seed, &tally));
        different += hash != swarm(seed + 1, &tally);
    }
    assert_int_equal(different, 100);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(flips_and_strays_are_the_same_on_every_read),
    cmocka_unit_test(a_healed_engine_has_no_faults),
    cmocka_unit_test(latencies_have_their_floor_and_mean),
    cmocka_unit_test(thousands_of_seeds_end_as_the_contract_says),
    cmocka_unit_test(a_seed_gives_the_same_events_twice),
};

int main(void)
{
    return cmocka_run_group_tests(tests, make_data, free_data) ? 1 : 0;
}
