/* SPDX-License-Identifier: Apache-2.0
 * The machine of a plan: its profile, and the budgets that the options and what is free leave. */
#include "engine/plan/planning.h"

#include "base/mem.h"
#include "base/paths.h"
#include "base/units.h"
#include "engine/compute/backend.h"
#include "engine/machine/limits.h"
#include "engine/model/pack.h"
#include "engine/model/weight_store.h"
#include "engine/options/notation.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the profile ---- */

static int check_options(const struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    bool device = aq_planning_has_device(p);
    if (o->emulate_device && device)
        return aq_error(reterr, -EINVAL, "--emulate-device: '%s' has a device of its own",
                        p->machine.name);
    if (o->device_memory && !device)
        return aq_error(reterr, -EINVAL,
                        "--device-memory: '%s' has no device; --host-memory bounds the process",
                        p->machine.name);
    return 0;
}

/* Of several for one machine the last one counts, as of other options. */
static void choose_price(struct aq_planning *p)
{
    const char *hardware = p->o->hardware ? p->o->hardware : "local";
    p->price = p->machine.price;
    for (uint32_t i = 0; i < p->o->price.count; i++) {
        struct aq_price_choice c;
        int rc = aq_price_parse(&c, "--price", p->o->price.item[i], NULL);
        assert(rc == 0); /* the table has checked it */
        if (strcmp(c.hardware, hardware) == 0)
            p->price =
                (struct aq_hw_price){.given = true, .per_hour = c.per_hour, .source = "--price"};
    }
}

int aq_planning_read_machine(struct aq_planning *p, struct aq_planning_env *env,
                             struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    struct aq_cuda cuda = {0};
    p->local = !o->hardware || strcmp(o->hardware, "local") == 0;
    if (o->device && !p->local)
        return aq_error(reterr, -EINVAL,
                        "--device: it chooses of this machine; expected --hardware local, found "
                        "'%s'",
                        o->hardware);
    int rc = p->local ? aq_device_open_gpu(&cuda, p->choices.device, reterr) : 0;
    struct aq_hw_local_opts local = {
        .cache_dir = o->cache_dir,
        .threads = o->threads,
        .isa = p->choices.isa,
        .cuda = cuda.module ? &cuda : NULL,
        .log = env->log,
        .before = &env->measured,
    };
    rc = rc < 0 ? rc : aq_hw_find(&p->machine, o->hardware, &local, reterr);
    p->gpu = cuda.info;
    if (rc == 0 && p->local) {
        env->measured = p->machine;
        p->held = aq_mem_process_now();
    }
    aq_cuda_close(&cuda);
    if (rc == 0)
        choose_price(p);
    return rc < 0 ? rc : check_options(p, reterr);
}

/* ---- budgets ---- */

static uint64_t less(uint64_t bytes, uint64_t by)
{
    return bytes > by ? bytes - by : 0;
}

static int choose_memory(struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_engine_opts *c = &p->choices;
    const uint64_t *has = p->machine.capacity;
    uint64_t *budget = p->budget;
    int rc = aq_planned_host_budget(&budget[AQ_HOST], &p->host_limited_by, c,
                                    p->local ? 0 : has[AQ_HOST], reterr);
    if (rc < 0)
        return rc;
    budget[AQ_HOST] -= c->emulate_device;
    budget[AQ_DEVICE] = c->emulate_device;
    if (aq_planning_has_device(p))
        budget[AQ_DEVICE] =
            c->device_memory ? c->device_memory : aq_planned_usable(AQ_DEVICE, has[AQ_DEVICE]);
    return 0;
}

/* Of this machine's disk what is free counts, now and not when it was measured; packed weights that
 * are there already take no more of it. */
static int look_at_disk(struct aq_planning *p, const struct aq_planning_env *env,
                        struct aq_err *reterr)
{
    struct aq_planning_disk *d = &p->disk;
    struct aq_disk_limits limits;
    d->dir = aq_path_cache(p->o->cache_dir, reterr);
    if (!d->dir)
        return -EINVAL;
    char *existing = aq_path_existing(d->dir);
    int rc = existing ? aq_limits_disk(&limits, existing, reterr) : aq_error_memory(reterr, "plan");
    free(existing);
    if (rc < 0)
        return rc;
    d->there = limits.free + env->disk_more;
    p->model->row_major = aq_planning_has_device(p); /* a store of its own */
    if (aq_weight_store_present(p->model, p->o->cache_dir, p->formats.weights))
        d->store = 0;
    return 0;
}

static int refuse_disk(const struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_planning_disk *d = &p->disk;
    char want[AQ_SIZE_TEXT_MAX], have[AQ_SIZE_TEXT_MAX];
    aq_format_size(want, p->o->disk_memory);
    if (d->there)
        return aq_error(reterr, -EINVAL, "--disk-memory: %s are more than the %s free on '%s'",
                        want, aq_format_size(have, d->there), d->dir);
    if (p->local)
        return aq_error(reterr, -EINVAL,
                        "--disk-memory: expected a disk, found none in the profile of this "
                        "machine: the cache directory lies in memory or cannot be written to; "
                        "--cache-dir DIR names another one");
    return aq_error(reterr, -EINVAL,
                    "--disk-memory: '%s' has no disk: expected disk.space, disk.read_gb_s and "
                    "disk.write_gb_s in its profile",
                    p->machine.name);
}

/* A machine that is not here may be planned with a larger disk than it has. */
static int choose_disk(struct aq_planning *p, const struct aq_planning_env *env,
                       struct aq_err *reterr)
{
    struct aq_planning_disk *d = &p->disk;
    uint64_t wanted = p->o->disk_memory;
    d->there = p->machine.capacity[AQ_DISK];
    d->store = p->store_bytes;
    int rc = p->local && d->there ? look_at_disk(p, env, reterr) : 0;
    if (rc < 0)
        return rc;
    if (wanted && (p->local ? wanted > d->there : !d->there))
        return refuse_disk(p, reterr);
    d->budget = aq_max_u64(aq_planned_usable(AQ_DISK, d->there), wanted);
    d->small = d->store >= d->budget;
    d->streams = p->hw.disk_read_bytes_per_s > 0 && !d->small;
    uint64_t room = less(d->budget, d->store);
    p->budget[AQ_DISK] = wanted ? aq_min_u64(wanted, room) : room;
    return 0;
}

int aq_planning_choose_budgets(struct aq_planning *p, const struct aq_planning_env *env,
                               struct aq_err *reterr)
{
    int rc = choose_memory(p, reterr);
    rc = rc < 0 ? rc : aq_pack_store_bytes(&p->store_bytes, p->model, p->formats.weights, reterr);
    return rc < 0 ? rc : choose_disk(p, env, reterr);
}

/* ---- a disk that is too small ---- */

static uint64_t lacking(const struct aq_block *b, const struct aq_block_inputs *in)
{
    uint64_t sum = 0;
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        sum += less(aq_ledger_total(&b->ledger, (enum aq_tier)t), in->budget[t]);
    return sum;
}

uint64_t aq_planning_disk_needed(const struct aq_planning *p)
{
    return (p->disk_short ? p->disk.store : 0) + aq_ledger_total(&p->block.ledger, AQ_DISK);
}

void aq_planning_blame_disk(struct aq_planning *p)
{
    const struct aq_block_shape *s = &p->block.plan.shape;
    const struct aq_planning_disk *d = &p->disk;
    char seats[64] = "one seat needs", need[AQ_SIZE_TEXT_MAX], store[AQ_SIZE_TEXT_MAX],
         have[AQ_SIZE_TEXT_MAX];
    p->feasible = false;
    p->disk_short = true;
    if (s->micro_batches > 1)
        snprintf(seats, sizeof(seats), "%u seats x %u micro-batches need", s->micro_batch,
                 s->micro_batches);
    else if (s->micro_batch > 1)
        snprintf(seats, sizeof(seats), "%u seats need", s->micro_batch);
    aq_error(&p->why_not, -ENOBUFS,
             "%s: disk: %s %s (packed weights %s), the budget is %s%s%s%s; no block fits",
             p->model->name, seats, aq_format_size(need, aq_planning_disk_needed(p)),
             aq_format_size(store, d->store), aq_format_size(have, d->budget),
             d->dir ? ", what is free on '" : "", d->dir ? d->dir : "", d->dir ? "' less 5 %" : "");
}

int aq_planning_weigh_disk(struct aq_planning *p, struct aq_err *reterr)
{
    struct aq_block with = {0};
    struct aq_block_inputs in = p->in;
    bool small = p->disk.small;
    if (!(p->hw.disk_read_bytes_per_s > 0))
        return 0;
    in.can_stream = true;
    if (!small) /* else scratch stays without a budget: it counts as lacking */
        in.budget[AQ_DISK] = UINT64_MAX;
    int rc = aq_block_least(&with, &in, reterr);
    if (rc < 0) {
        aq_block_close(&with);
        return rc == -ENOMEM ? rc : 0; /* there is no such program */
    }
    bool scratch = aq_ledger_total(&with.ledger, AQ_DISK) > p->in.budget[AQ_DISK];
    bool helps = small ? scratch || with.stream.bytes[AQ_DISK] : scratch && !in.placement;
    if (!helps) { /* with a placement that is fixed, the block at hand is that one */
        aq_block_close(&with);
        return 0;
    }
    p->other = with;
    if (!small ||
        p->disk.store - p->disk.budget + lacking(&with, &in) >= lacking(&p->block, &p->in))
        return 0;
    p->other = p->block;
    p->block = with;
    aq_planning_blame_disk(p);
    return 0;
}
