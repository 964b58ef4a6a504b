/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk_lane.h"

#include "base/threads.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct aq_disk_lane {
    struct aq_disk_lane_opts opts;
    struct aq_xfer *xfer;
    pthread_t thread, checker;
    bool started, checks;

    pthread_mutex_t lock; /* of all below */
    struct group_list {
        struct aq_disk_group *first, *last;
    } submitted, arrived; /* to be transferred; to be checked */
    pthread_cond_t arrival;
    bool closing, drained; /* nothing is submitted any more; nothing arrives any more */
    int status;
    struct aq_err err;
    struct aq_xfer_stats stats;
};

static void push(struct group_list *l, struct aq_disk_group *g)
{
    g->next = NULL;
    if (l->last)
        l->last->next = g;
    else
        l->first = g;
    l->last = g;
}

static struct aq_disk_group *take_submitted(struct aq_disk_lane *d, bool *ret_closing)
{
    pthread_mutex_lock(&d->lock);
    struct aq_disk_group *g = d->submitted.first;
    d->submitted = (struct group_list){0};
    *ret_closing = d->closing;
    pthread_mutex_unlock(&d->lock);
    return g;
}

static void record_failure(struct aq_disk_lane *d, int status, const struct aq_err *err)
{
    pthread_mutex_lock(&d->lock);
    if (d->status == 0) {
        d->status = status;
        d->err = *err;
    }
    pthread_mutex_unlock(&d->lock);
}

/* The group's last step, and the caller's again. */
static void check(struct aq_disk_lane *d, struct aq_disk_group *g)
{
    struct aq_err err = {0};
    g->status = d->opts.check.fn(d->opts.check.user, g, &err);
    if (g->status < 0)
        record_failure(d, g->status, &err);
    aq_completions_push(d->opts.done, g->token, g->status);
}

/* Its transfers have ended. */
static void finish(struct aq_disk_lane *d, struct aq_disk_group *g)
{
    bool checked = g->check && g->status == 0;
    struct aq_xfer_stats stats = aq_xfer_stats(d->xfer);
    pthread_mutex_lock(&d->lock);
    d->stats = stats;
    if (checked && d->checks) {
        push(&d->arrived, g);
        pthread_cond_signal(&d->arrival);
    }
    pthread_mutex_unlock(&d->lock);
    if (!checked)
        aq_completions_push(d->opts.done, g->token, g->status);
    else if (!d->checks) /* in virtual time */
        check(d, g);
}

static void *check_thread(void *arg)
{
    struct aq_disk_lane *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct aq_disk_group *g = d->arrived.first;
        if (!g && d->drained)
            break;
        if (!g) {
            pthread_cond_wait(&d->arrival, &d->lock);
            continue;
        }
        d->arrived.first = g->next;
        if (!g->next)
            d->arrived.last = NULL;
        pthread_mutex_unlock(&d->lock);
        check(d, g);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static void start_groups(struct aq_disk_lane *d, struct aq_disk_group *g)
{
    while (g) {
        struct aq_disk_group *next = g->next; /* g is the caller's again once it is finished */
        g->left = g->count;
        g->status = 0;
        for (uint32_t i = 0; i < g->count; i++) {
            g->transfer[i].group = g;
            aq_xfer_start(d->xfer, &g->transfer[i].t);
        }
        if (!g->count)
            finish(d, g);
        g = next;
    }
}

static void end_transfers(struct aq_disk_lane *d, struct aq_transfer *t)
{
    while (t) {
        struct aq_transfer *next = t->next;
        struct aq_disk_group *g = ((struct aq_disk_transfer *)t)->group;
        if (t->status < 0) {
            struct aq_err err = {0};
            aq_xfer_error(d->xfer, t, &err);
            record_failure(d, t->status, &err);
            /* After a timeout a buffer is still the engine's: that must not get lost. */
            if (g->status != -ETIMEDOUT)
                g->status = t->status;
        }
        if (--g->left == 0)
            finish(d, g);
        t = next;
    }
}

static void *disk_thread(void *arg)
{
    struct aq_disk_lane *d = arg;
    bool closing;
    for (;;) {
        start_groups(d, take_submitted(d, &closing));
        if (closing && !aq_xfer_running(d->xfer))
            return NULL;
        end_transfers(d, aq_xfer_poll(d->xfer, AQ_IO_FOREVER));
    }
}

/* ---- virtual time ---- */

static uint64_t lane_next(void *arg)
{
    struct aq_disk_lane *d = arg;
    return d->submitted.first ? aq_timeline_now(d->opts.timeline) : aq_xfer_next(d->xfer);
}

static void lane_fire(void *arg, uint64_t now_ns)
{
    struct aq_disk_lane *d = arg;
    bool closing;
    (void)now_ns;
    start_groups(d, take_submitted(d, &closing));
    end_transfers(d, aq_xfer_poll(d->xfer, 0));
}

/* ---- opening ---- */

static int start_threads(struct aq_disk_lane *d, struct aq_err *reterr)
{
    int rc = d->opts.check.fn ? aq_thread_start(&d->checker, NULL, check_thread, d) : 0;
    d->checks = d->opts.check.fn && rc == 0;
    if (rc == 0) {
        rc = aq_thread_start(&d->thread, NULL, disk_thread, d);
        d->started = rc == 0;
    }
    return rc == 0 ? 0 : aq_thread_error(reterr, "the disk's thread", rc);
}

int aq_disk_lane_open(struct aq_disk_lane **ret, const struct aq_disk_lane_opts *opts,
                      struct aq_err *reterr)
{
    assert(!opts->timeline == !aq_io_caps(opts->io)->virtual_time);
    struct aq_disk_lane *d = calloc(1, sizeof(*d));
    if (!d)
        return aq_error_memory(reterr, "disk thread");
    _Static_assert(offsetof(struct aq_disk_transfer, t) == 0, "a transfer leads to its group");
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->arrival, NULL);
    int rc = aq_xfer_open(&d->xfer, &opts->xfer, reterr);
    d->opts = *opts;
    d->opts.timeline = NULL;
    if (rc == 0 && opts->timeline) {
        struct aq_timeline_source source = {lane_next, lane_fire, d};
        aq_timeline_add(opts->timeline, &source);
        d->opts.timeline = opts->timeline;
    } else if (rc == 0) {
        rc = start_threads(d, reterr);
    }
    if (rc < 0) {
        aq_disk_lane_close(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void aq_disk_lane_close(struct aq_disk_lane *d)
{
    if (!d)
        return;
    if (d->opts.timeline) {
        assert(!d->submitted.first && aq_xfer_running(d->xfer) == 0);
        aq_timeline_remove(d->opts.timeline, d);
    }
    if (d->started) {
        pthread_mutex_lock(&d->lock);
        d->closing = true;
        pthread_mutex_unlock(&d->lock);
        aq_io_wake(d->opts.io);
        pthread_join(d->thread, NULL);
    }
    if (d->checks) {
        pthread_mutex_lock(&d->lock);
        d->drained = true;
        pthread_cond_signal(&d->arrival);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->checker, NULL);
    }
    aq_xfer_close(d->xfer);
    pthread_cond_destroy(&d->arrival);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void aq_disk_lane_submit(struct aq_disk_lane *d, struct aq_disk_group *g)
{
    pthread_mutex_lock(&d->lock);
    assert(!d->closing && (!g->check || d->opts.check.fn));
    push(&d->submitted, g);
    pthread_mutex_unlock(&d->lock);
    if (!d->opts.timeline)
        aq_io_wake(d->opts.io);
}

int aq_disk_lane_error(struct aq_disk_lane *d, struct aq_err *reterr)
{
    pthread_mutex_lock(&d->lock);
    int status = d->status;
    if (status < 0 && reterr)
        *reterr = d->err;
    pthread_mutex_unlock(&d->lock);
    return status;
}

struct aq_xfer_stats aq_disk_lane_stats(struct aq_disk_lane *d)
{
    pthread_mutex_lock(&d->lock);
    struct aq_xfer_stats stats = d->stats;
    pthread_mutex_unlock(&d->lock);
    return stats;
}
