/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/xfer.h"

#include "base/types.h"
#include "offload/stripe.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After which a request is offered again that the engine had no reason to refuse. */
enum { REFUSED_NS = 10000 };

/* Looks at the clock until a deadline, at least. */
enum { LOOKS = 16 };

/* A request is spare, out (in the engine), or waits in `again` to be queued. */
struct request {
    struct aq_io_request io;      /* first: a reaped request is its record */
    struct aq_transfer *transfer; /* NULL: given up, its answer interests nobody */
    uint64_t since_ns;            /* its start, or its last progress, in time that ran */
    uint32_t eio_count;
    bool out;
    struct request *next; /* spare, or again */
};

/* Transfers with bytes that are not cut yet, in the order of their start. */
struct lane {
    struct aq_transfer *head, *tail;
};

struct aq_xfer {
    struct aq_xfer_opts opts;
    struct aq_io *io;
    struct aq_xfer_set *sets;
    uint32_t align;

    struct request *requests; /* [depth] */
    struct request *spare;
    struct request *again, *again_tail;
    struct lane lane[AQ_IO_OP_COUNT];
    enum aq_io_op turn;
    struct aq_transfer *finished, *finished_tail;
    uint32_t running;
    uint32_t lost;        /* requests given up and not back */
    bool refused;         /* the engine did not take a request, although it had room */
    uint64_t refused_ns;  /* when */
    bool broken;          /* the engine; every transfer fails */
    struct aq_err reason; /* why it broke */

    uint64_t look_ns;   /* the longest wait between two looks at the clock */
    uint64_t looked_ns; /* when the last one was, */
    uint64_t ran_ns;    /* how long this has run by then, */
    bool leapt;         /* and whether it had not, and nobody was judged since */

    struct aq_xfer_stats stats;
    uint32_t out[AQ_IO_OP_COUNT]; /* requests in the engine, those given up not counted */
    uint64_t counted_ns;          /* until when the times are counted */
    double depth_ns;              /* sum of requests out * time */
};

/* ---- opening ---- */

struct aq_xfer_opts aq_xfer_defaults(void)
{
    return (struct aq_xfer_opts){
        .depth = 16,
        /* A disk shares its rate among requests: with larger ones what was asked for first comes
         * little before what was asked for last, and a short ring stands still until then. */
        .request_bytes = 2 * AQ_MIB,
        .eio_retries = 3,
        .deadline_ns = 60ull * 1000 * 1000 * 1000,
    };
}

int aq_xfer_open(struct aq_xfer **ret, const struct aq_xfer_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts && opts->io && opts->set_count >= 1 && opts->set_count <= AQ_XFER_SETS_MAX);
    assert(opts->depth >= 1 && opts->depth <= aq_io_caps(opts->io)->depth_max);
    assert(opts->request_bytes >= AQ_XFER_REQUEST_BYTES_MIN &&
           opts->request_bytes <= AQ_XFER_REQUEST_BYTES_MAX && opts->request_bytes % 4096 == 0);
    assert(opts->deadline_ns > 0);
    struct aq_xfer *x = calloc(1, sizeof(*x));
    if (!x)
        return aq_error_memory(reterr, "disk transfers: %zu bytes", sizeof(*x));
    x->opts = *opts;
    x->io = opts->io;
    x->align = aq_io_caps(x->io)->align_bytes;
    x->requests = calloc(opts->depth, sizeof(*x->requests));
    x->sets = calloc(opts->set_count, sizeof(*x->sets));
    if (!x->requests || !x->sets) {
        aq_xfer_close(x);
        return aq_error_memory(reterr, "disk transfers: depth %u", opts->depth);
    }
    memcpy(x->sets, opts->sets, opts->set_count * sizeof(*x->sets));
    for (uint32_t i = 0; i < opts->depth; i++) {
        x->requests[i].next = x->spare;
        x->spare = &x->requests[i];
    }
    x->look_ns = aq_max_u64(1, opts->deadline_ns / LOOKS);
    x->counted_ns = x->looked_ns = aq_io_now(x->io);
    *ret = x;
    return 0;
}

void aq_xfer_close(struct aq_xfer *x)
{
    if (!x)
        return;
    free(x->requests);
    free(x->sets);
    free(x);
}

/* ---- times ---- */

/* How long this has run.  Deadlines are counted in that: waits are short, so that between two looks
 * at the clock little time passes, and if much has, nobody looked: the process was stopped, or the
 * machine slept.  Such a leap counts as one wait, and nobody is judged by it, for the answers may
 * only now be on their way. */
static uint64_t read_clock(struct aq_xfer *x)
{
    uint64_t now = aq_io_now(x->io), spent = now - x->looked_ns;
    bool leapt = spent > 2 * x->look_ns;
    x->ran_ns += leapt ? x->look_ns : spent;
    x->looked_ns = now;
    x->leapt |= leapt;
    return x->ran_ns;
}

/* Accounts for the time since the last change of what is out; called before every change. */
static void count_time(struct aq_xfer *x)
{
    uint64_t now = aq_io_now(x->io), spent = now - x->counted_ns;
    uint32_t out = 0;
    x->counted_ns = now;
    for (int op = 0; op < AQ_IO_OP_COUNT; op++) {
        out += x->out[op];
        if (x->out[op])
            x->stats.busy_ns[op] += spent;
    }
    if (out)
        x->stats.any_busy_ns += spent;
    x->depth_ns += (double)out * (double)spent;
}

struct aq_xfer_stats aq_xfer_stats(const struct aq_xfer *x)
{
    struct aq_xfer_stats s = x->stats;
    s.depth = s.any_busy_ns ? x->depth_ns / (double)s.any_busy_ns : 0;
    return s;
}

uint32_t aq_xfer_running(const struct aq_xfer *x)
{
    return x->running;
}

/* ---- transfers ---- */

static void lane_push(struct lane *l, struct aq_transfer *t)
{
    t->next = NULL;
    if (l->tail)
        l->tail->next = t;
    else
        l->head = t;
    l->tail = t;
}

static void lane_remove(struct lane *l, struct aq_transfer *t)
{
    struct aq_transfer *before = NULL;
    for (struct aq_transfer *at = l->head; at; before = at, at = at->next) {
        if (at != t)
            continue;
        if (before)
            before->next = t->next;
        else
            l->head = t->next;
        if (l->tail == t)
            l->tail = before;
        return;
    }
}

void aq_xfer_start(struct aq_xfer *x, struct aq_transfer *t)
{
    assert(!t->running && t->op < AQ_IO_OP_COUNT && t->set < x->opts.set_count && t->buffer);
    const struct aq_xfer_set *set = &x->sets[t->set];
    assert(t->bytes > 0 && t->offset <= set->bytes && t->bytes <= set->bytes - t->offset);
    assert(t->offset % x->align == 0 && t->bytes % x->align == 0 &&
           (uintptr_t)t->buffer % x->align == 0);
    t->status = 0;
    t->cut = 0;
    t->out = 0;
    t->failed_bytes = 0;
    t->began_ns = t->ended_ns = 0;
    t->running = true;
    x->running++;
    lane_push(&x->lane[t->op], t);
}

/* Its last request came back, and it is in no lane. */
static void finish(struct aq_xfer *x, struct aq_transfer *t)
{
    assert(t->running && t->out == 0);
    t->running = false;
    t->ended_ns = aq_io_now(x->io);
    t->next = NULL;
    x->running--;
    if (t->status < 0)
        x->stats.failed++;
    if (t->status == -ETIMEDOUT)
        x->stats.timed_out++;
    if (x->finished)
        x->finished_tail->next = t;
    else
        x->finished = t;
    x->finished_tail = t;
}

/* Nothing more is asked for; what is out must still come back. */
static void fail(struct aq_xfer *x, struct aq_transfer *t, int status)
{
    if (t->status == 0)
        t->status = status;
    if (t->cut < t->bytes) {
        lane_remove(&x->lane[t->op], t);
        t->cut = t->bytes;
    }
}

/* The request is done with its transfer, one way or the other. */
static void leave(struct aq_xfer *x, struct request *r)
{
    struct aq_transfer *t = r->transfer;
    r->transfer = NULL;
    assert(t->out > 0);
    if (--t->out == 0 && t->cut == t->bytes)
        finish(x, t);
}

/* `lost`: the request does not come back, which the caller must learn whatever else went wrong. */
static void fail_request(struct aq_xfer *x, struct request *r, int status, bool lost)
{
    struct aq_transfer *t = r->transfer;
    if (lost)
        t->status = 0;
    if (t->status == 0) {
        t->failed_file = r->io.file;
        t->failed_offset = r->io.offset;
        t->failed_bytes = r->io.bytes;
        t->failed_tries = r->eio_count;
    }
    fail(x, t, status);
    leave(x, r);
}

int aq_xfer_error(const struct aq_xfer *x, const struct aq_transfer *t, struct aq_err *reterr)
{
    assert(t->status < 0 && !t->running);
    const char *verb = t->op == AQ_IO_READ ? "read" : "write";
    if (x->broken && t->status == x->reason.code)
        return aq_error(reterr, t->status, "%s", x->reason.text);
    if (t->failed_bytes == 0)
        return aq_error(reterr, t->status, "%s %llu bytes: not begun, the disk gives no answer",
                        verb, (unsigned long long)t->bytes);
    char why[160];
    const char *says = strerror(-t->status);
    if (t->status == -ETIMEDOUT)
        snprintf(why, sizeof(why), "no answer for %.3g seconds",
                 1e-9 * (double)x->opts.deadline_ns);
    else if (t->failed_tries > 0)
        snprintf(why, sizeof(why), "%s, tried %u times", says, t->failed_tries);
    else if (t->status == -EINVAL && x->align > 1)
        snprintf(why, sizeof(why), "%s; a disk with blocks of more than %u bytes?", says, x->align);
    else
        snprintf(why, sizeof(why), "%s", t->status == -EIO ? "the file ends" : says);
    return aq_error(reterr, t->status, "%s %u bytes at %llu of '%s': %s", verb, t->failed_bytes,
                    (unsigned long long)t->failed_offset, aq_io_file_name(x->io, t->failed_file),
                    why);
}

/* ---- requests ---- */

static void give(struct aq_xfer *x, struct request *r)
{
    r->next = x->spare;
    x->spare = r;
}

static void push_again(struct aq_xfer *x, struct request *r)
{
    r->next = NULL;
    if (x->again)
        x->again_tail->next = r;
    else
        x->again = r;
    x->again_tail = r;
}

/* The next request of a lane's first transfer; NULL when there is none.  Needs a spare one. */
static struct request *cut(struct aq_xfer *x, struct lane *l)
{
    struct aq_transfer *t = l->head;
    if (!t)
        return NULL;
    const struct aq_xfer_set *set = &x->sets[t->set];
    struct aq_stripe_piece piece =
        aq_stripe_locate(set->file_count, t->offset + t->cut, t->bytes - t->cut);
    struct request *r = x->spare;
    x->spare = r->next;
    *r = (struct request){
        .transfer = t,
        .since_ns = read_clock(x),
        .io = {.op = t->op,
               .file = set->first_file + piece.file,
               .offset = piece.offset,
               .buffer = (char *)t->buffer + t->cut,
               .bytes = (uint32_t)aq_min_u64(piece.bytes, x->opts.request_bytes)},
    };
    if (t->cut == 0)
        t->began_ns = x->looked_ns;
    t->cut += r->io.bytes;
    t->out++;
    if (t->cut == t->bytes) {
        l->head = t->next;
        if (!l->head)
            l->tail = NULL;
    }
    return r;
}

/* What to queue next: what was tried before, else reads and writes in turn. */
static struct request *next_request(struct aq_xfer *x)
{
    struct request *r = x->again;
    if (r) {
        x->again = r->next;
        return r;
    }
    if (!x->spare)
        return NULL;
    enum aq_io_op first = x->turn, second = AQ_IO_OP_COUNT - 1 - x->turn;
    r = cut(x, &x->lane[first]);
    if (r)
        x->turn = second;
    return r ? r : cut(x, &x->lane[second]);
}

/* Fills the queue.  Bound: every turn queues one of `depth` requests, or is the last. */
static void fill(struct aq_xfer *x)
{
    struct request *r;
    x->refused = false;
    while (!x->broken && (r = next_request(x))) {
        if (aq_io_queue(x->io, &r->io) < 0) {
            x->refused = aq_io_out(x->io) < aq_io_caps(x->io)->depth_max;
            x->refused_ns = aq_io_now(x->io);
            r->next = x->again; /* it keeps its place */
            if (!x->again)
                x->again_tail = r;
            x->again = r;
            return;
        }
        count_time(x);
        x->out[r->io.op]++;
        r->out = true;
    }
}

/* Steps over what has been moved, in whole blocks; false when that is everything. */
static bool advance(struct aq_xfer *x, struct request *r, uint32_t moved)
{
    if (moved == r->io.bytes)
        return false;
    moved -= moved % x->align;
    if (moved > 0)
        r->since_ns = read_clock(x);
    r->io.offset += moved;
    r->io.buffer = (char *)r->io.buffer + moved;
    r->io.bytes -= moved;
    return true;
}

/* A request is back from the engine. */
static void take_back(struct aq_xfer *x, struct request *r)
{
    int32_t result = r->io.result;
    assert(r->out);
    r->out = false;
    if (!r->transfer) {
        x->lost--;
        give(x, r);
        return;
    }
    count_time(x);
    x->out[r->io.op]--;
    x->stats.requests[r->io.op]++;
    if (result > 0)
        x->stats.bytes[r->io.op] += (uint32_t)result;

    bool retry = false;
    int status = 0;
    if (result > 0) {
        retry = advance(x, r, (uint32_t)result);
        x->stats.shorts += retry;
    } else if (result == -EAGAIN || result == -EINTR) {
        retry = true;
        x->stats.again++;
    } else if (result == -EIO) {
        retry = r->eio_count++ < x->opts.eio_retries;
        x->stats.eio += retry;
        status = -EIO;
    } else {
        status = result < 0 ? result : -EIO;
    }
    if (retry && r->transfer->status == 0) {
        push_again(x, r);
        return;
    }
    if (status < 0)
        fail_request(x, r, status, false);
    else
        leave(x, r);
    give(x, r);
}

/* ---- deadlines ---- */

/* Gives up a request: its transfer goes on without it. */
static void give_up(struct aq_xfer *x, struct request *r, int status)
{
    if (r->out) {
        count_time(x);
        x->out[r->io.op]--;
        x->lost++;
    }
    fail_request(x, r, status, r->out);
}

/* The engine is broken, or all requests are lost: nothing will move any more. */
static void fail_all(struct aq_xfer *x, int status)
{
    x->again = NULL;
    for (uint32_t i = 0; i < x->opts.depth; i++) {
        struct request *r = &x->requests[i];
        if (!r->transfer)
            continue;
        give_up(x, r, status);
        if (!r->out)
            give(x, r);
    }
    for (int op = 0; op < AQ_IO_OP_COUNT; op++) {
        for (struct aq_transfer *t; (t = x->lane[op].head);) {
            fail(x, t, status);
            finish(x, t);
        }
    }
}

static void remove_again(struct aq_xfer *x, struct request *r)
{
    struct request **link = &x->again, *before = NULL;
    while (*link && *link != r) {
        before = *link;
        link = &before->next;
    }
    if (!*link)
        return;
    *link = r->next;
    if (x->again_tail == r)
        x->again_tail = before;
}

/* How long after the last look a request is overdue, or the next look is due. */
static uint64_t wait_for(const struct aq_xfer *x, const struct request *r)
{
    uint64_t spent = x->ran_ns - r->since_ns;
    uint64_t left = x->opts.deadline_ns - aq_min_u64(spent, x->opts.deadline_ns);
    return left == 0 && x->leapt ? x->look_ns : aq_min_u64(left, x->look_ns);
}

/* Gives up requests that are overdue.  Returns how long to wait at most until the next call;
 * UINT64_MAX: as long as one likes. */
static uint64_t expire(struct aq_xfer *x)
{
    uint64_t next = UINT64_MAX;
    read_clock(x);
    for (uint32_t i = 0; i < x->opts.depth; i++) {
        struct request *r = &x->requests[i];
        if (!r->transfer)
            continue;
        uint64_t wait = wait_for(x, r);
        if (wait > 0) {
            next = aq_min_u64(next, wait);
            continue;
        }
        if (!r->out)
            remove_again(x, r);
        give_up(x, r, -ETIMEDOUT);
        if (!r->out)
            give(x, r);
    }
    if (x->lost == x->opts.depth)
        fail_all(x, -ETIMEDOUT);
    x->leapt = false;
    return next;
}

/* ---- poll ---- */

void aq_xfer_commit(struct aq_xfer *x)
{
    fill(x);
    if (x->broken || aq_io_out(x->io) == 0)
        return;
    int rc = aq_io_commit(x->io, &x->reason);
    if (rc < 0) {
        x->broken = true;
        fail_all(x, rc);
    }
}

/* Takes back what is there; waits at most this long for something.  True: woken. */
static bool reap(struct aq_xfer *x, uint64_t timeout_ns)
{
    struct aq_io_reaped reaped;
    int rc = aq_io_reap(x->io, 1, timeout_ns, &reaped, &x->reason);
    if (rc < 0) {
        x->broken = true;
        fail_all(x, rc);
        return true;
    }
    for (struct aq_io_request *q = reaped.list, *next; q; q = next) {
        next = q->next;
        take_back(x, (struct request *)q);
    }
    return reaped.woken;
}

uint64_t aq_xfer_next(const struct aq_xfer *x)
{
    bool more = x->lane[AQ_IO_READ].head || x->lane[AQ_IO_WRITE].head;
    if (x->finished || (x->broken && x->running) || (x->again && !x->refused) ||
        (more && x->spare && !x->refused))
        return aq_io_now(x->io);
    uint64_t next = aq_io_next(x->io);
    if (x->refused)
        next = aq_min_u64(next, x->refused_ns + REFUSED_NS);
    for (uint32_t i = 0; i < x->opts.depth; i++) {
        if (x->requests[i].transfer)
            next = aq_min_u64(next, x->looked_ns + wait_for(x, &x->requests[i]));
    }
    return next;
}

struct aq_transfer *aq_xfer_poll(struct aq_xfer *x, uint64_t timeout_ns)
{
    uint64_t now = aq_io_now(x->io);
    uint64_t end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    bool woken = false;
    /* Every turn brings a request back, or time forward to a deadline or the end. */
    for (bool last = false; !last;) {
        aq_xfer_commit(x);
        now = aq_io_now(x->io);
        uint64_t due = expire(x);
        if (x->broken && x->running)
            fail_all(x, x->reason.code);
        last = x->finished || woken || now >= end || x->broken;
        uint64_t wait = last ? 0 : end == UINT64_MAX ? AQ_IO_FOREVER : end - now;
        wait = aq_min_u64(wait, due);
        if (x->refused)
            wait = aq_min_u64(wait, REFUSED_NS);
        woken = reap(x, wait) || woken;
    }
    aq_xfer_commit(x);
    struct aq_transfer *list = x->finished;
    x->finished = x->finished_tail = NULL;
    return list;
}
