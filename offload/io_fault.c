/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/io_fault.h"

#include "base/prng.h"
#include "base/types.h"
#include "offload/io_engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { POISON = 0xff, REAP_NS = 1000 };

static const char *const kind_names[AQ_FAULT_KIND_COUNT] = {
    [AQ_FAULT_NONE] = "none",
    [AQ_FAULT_BUSY] = "busy",
    [AQ_FAULT_EAGAIN] = "eagain",
    [AQ_FAULT_EINTR] = "eintr",
    [AQ_FAULT_SHORT] = "short",
    [AQ_FAULT_EIO_ONCE] = "eio_once",
    [AQ_FAULT_STALL] = "stall",
    [AQ_FAULT_LOST] = "lost",
    [AQ_FAULT_TORN] = "torn",
    [AQ_FAULT_STRAY] = "stray",
    [AQ_FAULT_EIO_STICKY] = "eio_sticky",
    [AQ_FAULT_FLIP] = "flip",
    [AQ_FAULT_MISDIRECT] = "misdirect",
};

const char *aq_fault_kind_name(enum aq_fault_kind kind)
{
    return kind < AQ_FAULT_KIND_COUNT ? kind_names[kind] : "?";
}

/* Draws are told apart by what they are for; the low half of the counter is the request's number,
 * or the sector's. */
enum salt { SALT_KIND = 0, SALT_LATENCY = 64, SALT_BYTES, SALT_ROUND, SALT_BIT, SALT_TORN };

struct slot {
    struct aq_io_request *request;
    uint64_t ready_ns, number;
    enum aq_fault_kind fate; /* of the request; its sectors' are pure functions of their place */
};

struct fault {
    struct aq_io io;
    struct aq_io *inner;
    struct aq_fault_opts opts;
    struct aq_fault_extent *map; /* [opts.map_count]; opts.map only says whether there is one */
    struct slot *slots; /* [depth]; the first slot_count are out, in the order of queueing */
    uint32_t slot_count;
    uint64_t now_ns; /* without a timeline */
    uint64_t asked;  /* requests that queue was asked to take: numbers them */
    bool healed;
    struct {
        uint64_t number;
        enum aq_fault_kind kind;
    } forced[AQ_FAULT_FORCED_MAX];
    uint32_t forced_count;
    struct aq_fault_stats stats;
    struct aq_io_bell bell;
};

static struct fault *fault_of(struct aq_io *io)
{
    return (struct fault *)io;
}

static uint64_t now_of(const struct fault *f)
{
    return f->opts.timeline ? aq_timeline_now(f->opts.timeline) : f->now_ns;
}

/* Others' events up to then happen on the way. */
static void advance_to(struct fault *f, uint64_t then)
{
    if (!f->opts.timeline)
        f->now_ns = then;
    else
        while (aq_timeline_step(f->opts.timeline, then)) /* one event a turn */
            ;
}

/* ---- draws ---- */

static bool draw(const struct fault *f, enum aq_fault_kind kind, uint64_t low, uint64_t high)
{
    struct aq_ratio r = f->opts.ratio[kind];
    return r.num > 0 && !f->healed && aq_prng_below(f->opts.seed, low, high, r.den) < r.num;
}

/* -log2(u) in 1/256, u = (bits + 1) / 2^32: the integer part from the highest bit, the fraction bit
 * by bit, by squaring the mantissa. */
static uint32_t minus_log2(uint32_t bits)
{
    uint64_t u = (uint64_t)bits + 1;
    uint32_t e = 63 - (uint32_t)__builtin_clzll(u), fraction = 0;
    uint64_t m = e == 32 ? u >> 1 : u << (31 - e); /* in [1, 2), 31 bits after the point */
    for (int i = 0; i < 8; i++) {
        m = m * m >> 31;
        fraction <<= 1;
        if (m >> 32) {
            m >>= 1;
            fraction |= 1;
        }
    }
    return (32 - e) * 256 - fraction;
}

/* Exponential above the floor: mean * ln 2 * -log2(u), ln 2 = 45426 / 65536. */
static uint64_t draw_latency(const struct fault *f, uint64_t number)
{
    uint32_t bits = (uint32_t)aq_prng_u64(f->opts.seed, number, SALT_LATENCY);
    uint64_t above = f->opts.latency_ns_mean * minus_log2(bits) / 256 * 45426 / 65536;
    return f->opts.latency_ns_min + above;
}

static bool in_map(const struct fault *f, enum aq_fault_kind kind, uint32_t file, uint64_t offset,
                   uint64_t bytes, bool wholly)
{
    for (uint32_t i = 0; i < f->opts.map_count; i++) {
        const struct aq_fault_extent *e = &f->map[i];
        uint64_t end = offset + bytes, extent_end = e->offset + e->bytes;
        if (e->file != file || !(e->kinds & (1u << kind)))
            continue;
        if (wholly ? e->offset <= offset && end <= extent_end
                   : offset < extent_end && e->offset < end)
            return true;
    }
    return !f->opts.map;
}

/* The fate that a request meets as a whole. */
static enum aq_fault_kind draw_fate(struct fault *f, const struct aq_io_request *r, uint64_t number)
{
    for (uint32_t i = 0; i < f->forced_count; i++) {
        if (f->forced[i].number == number) {
            enum aq_fault_kind kind = f->forced[i].kind;
            f->forced[i] = f->forced[--f->forced_count];
            return kind;
        }
    }
    for (enum aq_fault_kind k = AQ_FAULT_BUSY; k <= AQ_FAULT_STRAY; k++) {
        if (draw(f, k, number, SALT_KIND + k) && in_map(f, k, r->file, r->offset, r->bytes, false))
            return k;
    }
    return AQ_FAULT_NONE;
}

static uint64_t sector_key(uint32_t file, uint64_t sector)
{
    return (uint64_t)file << 48 ^ sector;
}

static bool strikes(const struct fault *f, enum aq_fault_kind kind, uint32_t file, uint64_t sector)
{
    return draw(f, kind, sector_key(file, sector), (1ull << 32) + kind) &&
           in_map(f, kind, file, sector * AQ_FAULT_SECTOR_BYTES, AQ_FAULT_SECTOR_BYTES, true);
}

/* Does a request touch a sector that is bad for good? */
static bool touches_bad(const struct fault *f, const struct aq_io_request *r)
{
    if (f->opts.ratio[AQ_FAULT_EIO_STICKY].num == 0)
        return false;
    uint64_t end = aq_div_up(r->offset + r->bytes, AQ_FAULT_SECTOR_BYTES);
    for (uint64_t s = r->offset / AQ_FAULT_SECTOR_BYTES; s < end; s++) {
        if (strikes(f, AQ_FAULT_EIO_STICKY, r->file, s))
            return true;
    }
    return false;
}

/* A length that is neither nothing nor all; half of the time a multiple of a disk's 512 bytes. */
static uint32_t draw_short(const struct fault *f, uint32_t bytes, uint64_t number)
{
    uint64_t n = 1 + aq_prng_below(f->opts.seed, number, SALT_BYTES, bytes - 1);
    if (n >= 512 && aq_prng_below(f->opts.seed, number, SALT_ROUND, 2))
        n -= n % 512;
    return (uint32_t)n;
}

/* ---- queue ---- */

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static void check_overlaps(const struct fault *f, const struct aq_io_request *r)
{
    for (uint32_t i = 0; i < f->slot_count; i++) {
        const struct aq_io_request *o = f->slots[i].request;
        bool write = r->op == AQ_IO_WRITE || o->op == AQ_IO_WRITE;
        bool read = r->op == AQ_IO_READ || o->op == AQ_IO_READ;
        assert(!write || r->file != o->file || !overlap(r->offset, r->bytes, o->offset, o->bytes));
        assert(!read || !overlap((uintptr_t)r->buffer, r->bytes, (uintptr_t)o->buffer, o->bytes));
    }
}

static int fault_queue(struct aq_io *io, struct aq_io_request *r)
{
    struct fault *f = fault_of(io);
    uint64_t number = f->asked++;
    enum aq_fault_kind fate = draw_fate(f, r, number);
    if (fate == AQ_FAULT_SHORT && r->bytes == 1)
        fate = AQ_FAULT_NONE;
    if (fate == AQ_FAULT_BUSY || fate == AQ_FAULT_STALL)
        f->stats.struck[fate]++;
    if (fate == AQ_FAULT_BUSY)
        return -EAGAIN;
    check_overlaps(f, r);
    if (r->op == AQ_IO_READ)
        memset(r->buffer, POISON, r->bytes);
    f->slots[f->slot_count++] = (struct slot){
        .request = r,
        .number = number,
        .ready_ns = now_of(f) + draw_latency(f, number) + (f->opts.timeline ? f->opts.reap_ns : 0),
        .fate = fate,
    };
    return 0;
}

static int fault_commit(struct aq_io *io, struct aq_err *reterr)
{
    (void)io;
    (void)reterr;
    return 0;
}

/* ---- completion ---- */

/* One request on the inner engine, from beginning to end. */
static int32_t do_inner(struct fault *f, enum aq_io_op op, uint32_t file, uint64_t offset,
                        void *buffer, uint32_t bytes)
{
    struct aq_io_request r = {
        .op = op, .file = file, .offset = offset, .buffer = buffer, .bytes = bytes};
    struct aq_io_reaped reaped = {0};
    int rc = aq_io_queue(f->inner, &r);
    /* Wakes and signals of the inner engine end its waits early. */
    while (rc == 0 && reaped.count == 0)
        rc = aq_io_reap(f->inner, 1, AQ_IO_FOREVER, &reaped, NULL);
    return rc < 0 ? (int32_t)rc : r.result;
}

/* What the disk says of the sectors that a read has brought. */
static bool corrupt(struct fault *f, const struct aq_io_request *r, uint32_t bytes)
{
    bool flips = f->opts.ratio[AQ_FAULT_FLIP].num > 0;
    bool strays = f->opts.ratio[AQ_FAULT_MISDIRECT].num > 0;
    bool any = false;
    uint64_t first = aq_div_up(r->offset, AQ_FAULT_SECTOR_BYTES);
    uint64_t end = (r->offset + bytes) / AQ_FAULT_SECTOR_BYTES;
    for (uint64_t s = first; (flips || strays) && s < end; s++) {
        unsigned char *at = (unsigned char *)r->buffer + (s * AQ_FAULT_SECTOR_BYTES - r->offset);
        if (strays && strikes(f, AQ_FAULT_MISDIRECT, r->file, s)) {
            uint64_t other = s ? s - 1 : s + 1;
            do_inner(f, AQ_IO_READ, r->file, other * AQ_FAULT_SECTOR_BYTES, at,
                     AQ_FAULT_SECTOR_BYTES);
            f->stats.struck[AQ_FAULT_MISDIRECT]++;
            any = true;
        }
        if (flips && strikes(f, AQ_FAULT_FLIP, r->file, s)) {
            uint64_t bit = aq_prng_below(f->opts.seed, sector_key(r->file, s), SALT_BIT,
                                         8 * AQ_FAULT_SECTOR_BYTES);
            at[bit / 8] ^= (unsigned char)(1u << bit % 8);
            f->stats.struck[AQ_FAULT_FLIP]++;
            any = true;
        }
    }
    return any;
}

/* A request that does not do what it says it did.  What the inner engine refuses of it, beyond the
 * end of a file, is not done either. */
static int32_t deceive(struct fault *f, const struct slot *s)
{
    const struct aq_io_request *r = s->request;
    uint64_t sectors = r->bytes / AQ_FAULT_SECTOR_BYTES, offset = r->offset;
    uint32_t bytes = r->bytes;
    if (s->fate == AQ_FAULT_LOST)
        bytes = 0;
    else if (s->fate == AQ_FAULT_TORN)
        bytes = sectors ? AQ_FAULT_SECTOR_BYTES *
                              (uint32_t)aq_prng_below(f->opts.seed, s->number, SALT_TORN, sectors)
                        : 0;
    else if (offset >= AQ_FAULT_SECTOR_BYTES)
        offset -= AQ_FAULT_SECTOR_BYTES;
    else
        offset += AQ_FAULT_SECTOR_BYTES;
    if (bytes)
        (void)do_inner(f, r->op, r->file, offset, r->buffer, bytes);
    return (int32_t)r->bytes;
}

/* Carries a request out, as its fate says. */
static int32_t carry_out(struct fault *f, const struct slot *s)
{
    const struct aq_io_request *r = s->request;
    enum aq_fault_kind fate = s->fate;
    uint32_t bytes = r->bytes;
    if (fate == AQ_FAULT_NONE && touches_bad(f, r))
        fate = AQ_FAULT_EIO_STICKY;
    if (fate != AQ_FAULT_NONE)
        f->stats.struck[fate]++;
    switch (fate) {
    case AQ_FAULT_EAGAIN: return -EAGAIN;
    case AQ_FAULT_EINTR: return -EINTR;
    case AQ_FAULT_EIO_ONCE:
    case AQ_FAULT_EIO_STICKY: return -EIO;
    case AQ_FAULT_SHORT: bytes = draw_short(f, bytes, s->number); break;
    case AQ_FAULT_LOST:
    case AQ_FAULT_TORN:
    case AQ_FAULT_STRAY: return deceive(f, s);
    default: break;
    }
    /* A direct inner engine moves whole blocks: of a read the surplus is poisoned again, a write
     * ends at a block. */
    uint32_t align = f->io.caps.align_bytes;
    uint32_t moved =
        r->op == AQ_IO_READ ? (uint32_t)aq_align_up(bytes, align) : bytes - bytes % align;
    int32_t n = moved ? do_inner(f, r->op, r->file, r->offset, r->buffer, moved) : 0;
    if (n < 0)
        return n;
    if (r->op == AQ_IO_READ) {
        uint32_t kept = (uint32_t)aq_min_u64((uint32_t)n, bytes);
        bool any = corrupt(f, r, kept);
        memset((char *)r->buffer + kept, POISON, r->bytes - kept);
        n = (int32_t)kept;
        if (fate == AQ_FAULT_NONE && !any)
            f->stats.struck[AQ_FAULT_NONE]++;
    } else if (fate == AQ_FAULT_NONE) {
        f->stats.struck[AQ_FAULT_NONE]++;
    } else if ((uint32_t)n == moved) {
        n = (int32_t)bytes; /* what a disk may say although it wrote less than a block more */
    }
    return n;
}

static void record_event(struct fault *f, const struct slot *s, int32_t result)
{
    const struct aq_io_request *r = s->request;
    uint64_t event[] = {
        now_of(f), s->number, r->op, r->file, r->offset, r->bytes, (uint64_t)(int64_t)result};
    f->stats.event_hash = XXH3_64bits_withSeed(event, sizeof(event), f->stats.event_hash);
    f->stats.events++;
}

/* The slot that is ready first; among equals the one queued first.  UINT32_MAX: none will be. */
static uint32_t earliest(const struct fault *f)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < f->slot_count; i++) {
        if (f->slots[i].fate != AQ_FAULT_STALL &&
            (best == UINT32_MAX || f->slots[i].ready_ns < f->slots[best].ready_ns))
            best = i;
    }
    return best;
}

/* Finishes all that is ready by now. */
static void finish_ready(struct fault *f, struct aq_io_reaped *ret)
{
    for (uint32_t i; (i = earliest(f)) != UINT32_MAX && f->slots[i].ready_ns <= now_of(f);) {
        struct slot s = f->slots[i];
        int32_t result = carry_out(f, &s);
        record_event(f, &s, result);
        f->slot_count--;
        memmove(&f->slots[i], &f->slots[i + 1], (f->slot_count - i) * sizeof(s));
        aq_io_finish(&f->io, ret, s.request, result);
    }
    if (aq_io_bell_take(&f->bell))
        ret->woken = true;
}

/* Nothing will ever arrive: only other threads can have something to say, in real time. */
static void wait_bell(struct fault *f, struct aq_io_reaped *ret)
{
    (void)aq_io_bell_wait(&f->bell, AQ_IO_FOREVER);
    aq_io_bell_quiet(&f->bell);
    atomic_store(&f->bell.rung, false);
    ret->woken = true;
}

static uint64_t fault_next(const struct aq_io *io)
{
    const struct fault *f = (const struct fault *)io;
    uint32_t first = earliest(f);
    return first == UINT32_MAX ? UINT64_MAX : f->slots[first].ready_ns;
}

static int fault_reap(struct aq_io *io, uint32_t min, uint64_t timeout_ns, struct aq_io_reaped *ret,
                      struct aq_err *reterr)
{
    struct fault *f = fault_of(io);
    (void)reterr;
    if (!f->opts.timeline)
        f->now_ns += f->opts.reap_ns;
    uint64_t now = now_of(f);
    uint64_t end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    /* A turn finishes one request at least, or is the last. */
    for (;;) {
        finish_ready(f, ret);
        if (ret->count >= min || ret->woken)
            return 0;
        uint64_t next = fault_next(io);
        if (next > end || next == UINT64_MAX)
            break;
        advance_to(f, next);
    }
    if (end != UINT64_MAX)
        advance_to(f, end);
    else
        wait_bell(f, ret);
    return 0;
}

static void fault_wake(struct aq_io *io)
{
    aq_io_bell_ring(&fault_of(io)->bell);
}

static uint64_t fault_now(const struct aq_io *io)
{
    return now_of((const struct fault *)io);
}

static void fault_close(struct aq_io *io, bool abandon)
{
    struct fault *f = fault_of(io);
    (void)abandon; /* what is out is only noted down here */
    aq_io_close(f->inner);
    aq_io_bell_close(&f->bell);
    aq_io_fini(io);
    free(f->map);
    free(f->slots);
    free(f);
}

static const struct aq_io_ops fault_ops = {
    .queue = fault_queue,
    .commit = fault_commit,
    .reap = fault_reap,
    .wake = fault_wake,
    .now = fault_now,
    .next = fault_next,
    .close = fault_close,
};

int aq_io_open_fault(struct aq_io **ret, struct aq_io *inner, const struct aq_fault_opts *opts,
                     struct aq_err *reterr)
{
    assert(ret && inner && opts && aq_io_out(inner) == 0);
    for (int k = 0; k < AQ_FAULT_KIND_COUNT; k++)
        assert(opts->ratio[k].num <= opts->ratio[k].den);
    struct fault *f = calloc(1, sizeof(*f));
    if (!f) {
        aq_io_close(inner);
        return aq_error_memory(reterr, "io engine 'fault'");
    }
    f->inner = inner;
    f->bell.fd = -1;
    f->opts = *opts;
    if (f->opts.reap_ns == 0)
        f->opts.reap_ns = REAP_NS;
    const struct aq_io_caps *caps = aq_io_caps(inner);
    int rc = aq_io_init(&f->io, &fault_ops, "fault", inner->files, inner->file_count,
                        caps->depth_max, reterr);
    if (rc < 0)
        goto fail;
    f->io.caps.align_bytes = caps->align_bytes;
    f->io.caps.direct = caps->direct;
    f->io.caps.virtual_time = true;
    f->slots = calloc(caps->depth_max, sizeof(*f->slots));
    f->map = calloc(opts->map_count + 1, sizeof(*f->map));
    if (!f->slots || !f->map) {
        rc = aq_error_memory(reterr, "io engine 'fault': depth %u", caps->depth_max);
        goto fail;
    }
    if (opts->map_count)
        memcpy(f->map, opts->map, opts->map_count * sizeof(*f->map));
    rc = aq_io_bell_open(&f->bell, reterr);
    if (rc < 0)
        goto fail;
    *ret = &f->io;
    return 0;
fail:
    fault_close(&f->io, false);
    return rc;
}

/* ---- for tests ---- */

void aq_io_fault_at(struct aq_io *io, uint64_t nth, enum aq_fault_kind kind)
{
    struct fault *f = fault_of(io);
    assert(io->ops == &fault_ops && f->forced_count < AQ_FAULT_FORCED_MAX);
    assert(kind <= AQ_FAULT_STRAY);
    f->forced[f->forced_count].number = f->asked + nth;
    f->forced[f->forced_count++].kind = kind;
}

void aq_io_fault_stop(struct aq_io *io, uint64_t for_ns)
{
    struct fault *f = fault_of(io);
    assert(io->ops == &fault_ops && !f->opts.timeline);
    f->now_ns += for_ns;
    for (uint32_t i = 0; i < f->slot_count; i++)
        f->slots[i].ready_ns += for_ns;
}

void aq_io_fault_heal(struct aq_io *io)
{
    assert(io->ops == &fault_ops);
    fault_of(io)->healed = true;
}

struct aq_fault_stats aq_io_fault_stats(const struct aq_io *io)
{
    assert(io->ops == &fault_ops);
    return ((const struct fault *)io)->stats;
}
