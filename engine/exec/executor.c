/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/exec/exec.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------ */

/* Hands out pieces of one buffer: the arrays per row and seat, so that they are one line of the
 * ledger. */
struct row_layout {
    uint8_t *base;
    size_t used;
};

static void *lay_out(struct row_layout *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += aq_align_up(bytes, 64);
    return p;
}

static void lay_out_rows(struct row_layout *c, struct aq_executor *x, const struct aq_plan *plan)
{
    const struct aq_block_shape *s = &plan->shape;
    size_t kinds = plan->kinds.count;
    size_t rows = s->rows_max, seats = s->micro_batch;
    for (uint32_t k = 0; k < s->micro_batches; k++) {
        struct exec_batch unused, *b = x ? &x->batch[k] : &unused;
        b->id = lay_out(c, rows * sizeof(*b->id));
        b->position = lay_out(c, rows * sizeof(*b->position));
        b->logit_index = lay_out(c, rows * sizeof(*b->logit_index));
        b->logit_row = lay_out(c, rows * sizeof(*b->logit_row));
        b->decode = lay_out(c, seats * sizeof(*b->decode));
        b->prefill = lay_out(c, seats * sizeof(*b->prefill));
        b->decode_seat = lay_out(c, seats * sizeof(*b->decode_seat));
        b->prefill_seat = lay_out(c, seats * sizeof(*b->prefill_seat));
    }
    seats *= s->micro_batches;
    struct exec_seat *seat = lay_out(c, seats * sizeof(*seat));
    struct aq_seats_arrays at = {
        .seat = lay_out(c, seats * sizeof(*at.seat)),
        .kv = lay_out(c, (seats + 1) * kinds * sizeof(*at.kv)),
        .lengths = lay_out(c, (seats + 1) * kinds * sizeof(*at.lengths)),
        .prompt_rows = lay_out(c, s->micro_batches * sizeof(*at.prompt_rows)),
        .order = lay_out(c, seats * sizeof(*at.order)),
    };
    struct aq_logits_stat *stat = lay_out(c, s->head_tile_rows * sizeof(*stat));
    struct exec_moves unused[2], *moves = x ? x->kv_moves : unused;
    for (int i = 0; i < 2; i++) {
        moves[i].move = lay_out(c, s->micro_batch * sizeof(*moves->move));
        moves[i].run = lay_out(c, s->micro_batch * sizeof(*moves->run));
    }
    uint32_t runs = (uint32_t)aq_div_up(s->prompt_max, AQ_HEAD_BLOCK_SLOTS);
    for (uint32_t i = 0; i < AQ_KV_PROMPT_ROOMS_MAX && i < aq_max_u64(1, s->prompt_rooms); i++) {
        struct exec_prompt_room unused_room, *room = x ? &x->prompt_room[i] : &unused_room;
        room->block = lay_out(c, runs * sizeof(*room->block));
        room->kept = lay_out(c, runs * sizeof(*room->kept));
    }
    if (x) {
        x->seat = seat;
        aq_seats_open(&x->seats,
                      &(struct aq_seats_opts){.steps = x->steps,
                                              .plan = x->plan,
                                              .refill = x->opts.refill,
                                              .ops = &exec_seats_ops,
                                              .user = x},
                      &at);
        x->logits_stat = stat;
    }
}

uint64_t aq_executor_rows_bytes(const struct aq_plan *plan)
{
    struct row_layout c = {0};
    lay_out_rows(&c, NULL, plan);
    return c.used;
}

static enum aq_device_memory class_memory(const struct aq_executor *x, enum aq_slot_class c)
{
    const struct aq_slot *s = &x->program->slot[x->program->first[c]];
    return s->tier == AQ_DEVICE || !x->plan->separate ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
}

/* A buffer for each class that has bytes in memory, its slots one after the other. */
static int take_slots(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_program *p = x->program;
    x->slot_offset = calloc(p->slot_count, sizeof(*x->slot_offset));
    if (!x->slot_offset)
        return aq_error_memory(reterr, "executor of %u slots", p->slot_count);
    for (int c = 0; c < AQ_SLOT_CLASS_COUNT; c++) {
        uint64_t bytes = 0;
        for (uint32_t i = p->first[c]; i < p->first[c + 1]; i++) {
            x->slot_offset[i] = bytes;
            bytes += aq_align_up(p->slot[i].bytes, AQ_PANEL_ALIGN);
        }
        const char *purpose = aq_block_purpose((enum aq_slot_class)c);
        if (!bytes || !purpose || p->slot[p->first[c]].tier == AQ_DISK)
            continue;
        assert(bytes == aq_program_class_bytes(p, (enum aq_slot_class)c));
        int rc = aq_device_alloc((void **)&x->class_buffer[c], x->opts.device,
                                 class_memory(x, (enum aq_slot_class)c), purpose, bytes, reterr);
        if (rc < 0)
            return rc;
        x->class_bytes[c] = bytes;
    }
    return 0;
}

static int take(struct aq_executor *x, void *ret, enum aq_device_memory memory, const char *purpose,
                size_t bytes, size_t *ret_bytes, struct aq_err *reterr)
{
    int rc = aq_device_alloc(ret, x->opts.device, memory, purpose, bytes, reterr);
    if (rc == 0)
        *ret_bytes = bytes;
    return rc;
}

static int take_buffers(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_model_steps *m = x->steps;
    size_t ids = (size_t)aq_pool_threads(x->opts.pool) * m->vocab;
    int rc = take(x, &x->rows_buffer, AQ_MEMORY_HOST, "rows and seats",
                  aq_executor_rows_bytes(x->plan), &x->rows_bytes, reterr);
    if (rc < 0)
        return rc;
    struct row_layout c = {.base = x->rows_buffer};
    lay_out_rows(&c, x, x->plan);
    struct aq_block_tiles tiles = aq_block_tiles(x->plan, m);
    rc = take(x, &x->tiles, AQ_MEMORY_DEVICE, "tiles", tiles.bytes, &x->tiles_bytes, reterr);
    rc = rc < 0 ? rc
                : take(x, &x->sampler.id, AQ_MEMORY_HOST, "sampler",
                       3 * ids * sizeof(*x->sampler.id), &x->sampler_bytes, reterr);
    if (rc < 0)
        return rc;
    x->sampler.weight = (float *)(x->sampler.id + ids);
    x->sampler.logits = x->sampler.weight + ids;
    x->sampler.kernels = x->opts.kernels;
    x->tile_norm = x->tiles;
    x->tile_inner = (uint8_t *)x->tiles + tiles.norm;
    x->tile_rotary = (uint8_t *)x->tile_inner + tiles.inner;
    x->tile_embed = (uint8_t *)x->tile_rotary + tiles.rotary;
    return take_slots(x, reterr);
}

/* Finds the scratch for prompts that are cut or encoded, and the bytes that move with a seat's
 * KV. */
static void find_scratch(struct aq_executor *x)
{
    const struct aq_block_shape *s = &x->plan->shape;
    uint32_t runs = (uint32_t)aq_div_up(s->prompt_max, AQ_HEAD_BLOCK_SLOTS);
    uint64_t run_bytes = s->plain_run_bytes ? s->plain_run_bytes : s->run_bytes;
    aq_kv_layout_prefill(&x->prompt_layout, x->plan, x->steps);
    x->transfer_bytes = aq_kv_layout_transfer(x->plan, x->steps->kv_heads);
    for (uint32_t r = 0; r < x->prompt_layout.rooms; r++) {
        struct exec_prompt_room *room = &x->prompt_room[r];
        room->scratch = exec_slot(x, AQ_SLOT_KV_PREFILL, 0) + r * x->prompt_layout.room_bytes;
        for (uint32_t i = 0; i < runs; i++) {
            room->block[i] = room->scratch + i * run_bytes;
            if (s->plain_run_bytes) /* as many as stay */
                room->kept[i] = room->block[i] + x->prompt_layout.kept;
        }
    }
}

/* ---- where weights are ------------------------------------------------------------------- */

static uint32_t list_runs(const struct aq_executor *x, uint32_t step, uint32_t matrix,
                          struct exec_run *to)
{
    const struct aq_stream *s = x->stream;
    uint32_t count = 0,
             resident = s->split[aq_matrix_index(x->steps, step, matrix)].panels[AQ_DEVICE];
    if (resident) {
        if (to)
            to[count] = (struct exec_run){.count = resident, .chunk = UINT32_MAX};
        count++;
    }
    for (uint32_t c = s->step_chunk[step]; c < s->step_chunk[step + 1]; c++) {
        for (uint32_t i = 0; i < s->chunk[c].piece_count; i++) {
            const struct aq_piece *p = &s->piece[s->chunk[c].piece_first + i];
            if (p->matrix != matrix)
                continue;
            if (to)
                to[count] = (struct exec_run){p->first, p->count, c, p->offset};
            count++;
        }
    }
    return count;
}

static int find_runs(struct aq_executor *x, struct aq_err *reterr)
{
    uint32_t steps = x->steps->step_count, total = 0;
    x->run_first = calloc(x->steps->matrix_count, sizeof(*x->run_first));
    x->run_count = calloc(x->steps->matrix_count, sizeof(*x->run_count));
    if (!x->run_first || !x->run_count)
        return aq_error_memory(reterr, "executor of %u steps", steps);
    for (uint32_t j = 0; j < steps; j++) {
        uint32_t of_step = 0;
        for (uint32_t i = 0; i < x->steps->step[j].matrix_count; i++) {
            uint32_t index = aq_matrix_index(x->steps, j, i), count = list_runs(x, j, i, NULL);
            x->run_first[index] = total;
            x->run_count[index] = count;
            total += count;
            of_step += count;
        }
        /* An unpacked matrix has at most two segments: before and behind the host's panels. */
        of_step = (uint32_t)aq_max_u64(of_step, 2ull * x->steps->step[j].matrix_count);
        x->segment_max = of_step > x->segment_max ? of_step : x->segment_max;
    }
    x->run = calloc(total + 1, sizeof(*x->run));
    x->segment = calloc(x->segment_max + 1, sizeof(*x->segment));
    if (!x->run || !x->segment)
        return aq_error_memory(reterr, "executor of %u runs of panels", total);
    for (uint32_t j = 0; j < steps; j++) {
        for (uint32_t i = 0; i < x->steps->step[j].matrix_count; i++)
            list_runs(x, j, i, x->run + x->run_first[aq_matrix_index(x->steps, j, i)]);
    }
    return 0;
}

/* ---- lanes ------------------------------------------------------------------------------- */

static bool is_disk_lane(enum aq_lane l)
{
    return l == AQ_LANE_DISK_READ || l == AQ_LANE_DISK_WRITE || l == AQ_LANE_READ_WEIGHTS;
}

static void help(void *pool)
{
    aq_pool_help(pool);
}

static void call(void *pool)
{
    aq_pool_call(pool);
}

/* Two lanes that have the same workers help each other. */
static struct aq_stream_idle idle_of(const struct aq_executor *x, enum aq_lane l)
{
    if (!x->plan->side_by_side || (l != AQ_LANE_COMPUTE && l != AQ_LANE_HOST_COMPUTE))
        return (struct aq_stream_idle){0};
    const struct aq_compute *c = l == AQ_LANE_COMPUTE ? x->opts.compute : x->opts.host_compute;
    return (struct aq_stream_idle){help, call, aq_exec_pool(c->exec)};
}

static int open_lane(struct aq_executor *x, enum aq_lane l, struct aq_err *reterr)
{
    struct exec_lane *lane = &x->lane[l];
    bool disk = is_disk_lane(l);
    lane->issued = calloc(AQ_EXEC_LANE_DEPTH, sizeof(*lane->issued));
    if (!lane->issued)
        return aq_error_memory(reterr, "lane '%s'", aq_lane_name(l));
    if (!lane->count || disk || l == AQ_LANE_CONTROL || (l == AQ_LANE_COMPUTE && x->inline_compute))
        return 0;
    uint32_t cpu = l == AQ_LANE_COMPUTE        ? x->opts.compute_cpu
                   : l == AQ_LANE_HOST_COMPUTE ? x->opts.host_compute_cpu
                                               : 0;
    struct aq_device_stream_opts opts = {
        .name = aq_lane_name(l),
        .side = l == AQ_LANE_HOST_COMPUTE ? AQ_STREAM_HOST : AQ_STREAM_DEVICE,
        .depth = AQ_EXEC_LANE_DEPTH,
        .first = l != AQ_LANE_COMPUTE,
        .idle = idle_of(x, l),
        .bind = cpu > 0,
        .cpu = cpu - (cpu > 0),
    };
    return aq_device_stream_open(&lane->stream, x->opts.device, &opts, reterr);
}

/* Opens the disk, with the buffers that transfers use. */
static int open_disk(struct aq_executor *x, struct aq_err *reterr)
{
    static const enum aq_slot_class classes[] = {AQ_SLOT_RING,    AQ_SLOT_STAGING,
                                                 AQ_SLOT_HIDDEN,  AQ_SLOT_HIDDEN_HOST,
                                                 AQ_SLOT_KV_HOST, AQ_SLOT_KV_DEVICE};
    struct aq_io_region region[AQ_ARRAY_LEN(classes)];
    uint32_t count = 0;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(classes); i++) {
        enum aq_slot_class c = classes[i];
        if (x->class_buffer[c] &&
            class_memory(x, c) != (x->plan->separate ? AQ_MEMORY_DEVICE : AQ_MEMORY_COUNT))
            region[count++] = (struct aq_io_region){x->class_buffer[c], x->class_bytes[c]};
    }
    struct aq_disk_check check = {0};
    int rc = exec_check_open(x, &check, reterr);
    if (rc < 0)
        return rc;
    x->disk_opened = true;
    return x->opts.open_disk(x->opts.disk_user, &x->disk, region, count, &check, x->completions,
                             reterr);
}

static int open_lanes(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_program *p = x->program;
    for (uint32_t i = 0; i < p->op_count; i++)
        x->lane[p->op[i].lane].count++;
    bool moves = false, disk = false;
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        x->lane[l].op = calloc(x->lane[l].count + 1, sizeof(*x->lane[l].op));
        if (!x->lane[l].op)
            return aq_error_memory(reterr, "lane of %u ops", x->lane[l].count);
        disk |= x->lane[l].count && is_disk_lane((enum aq_lane)l);
        moves |= x->lane[l].count && l != AQ_LANE_COMPUTE && l != AQ_LANE_CONTROL;
        x->lane[l].count = 0;
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        struct exec_lane *lane = &x->lane[p->op[i].lane];
        lane->op[lane->count++] = i;
    }
    x->inline_compute = !x->opts.cuda && (!moves || x->opts.serial);
    uint32_t capacity = AQ_LANE_COUNT * AQ_EXEC_LANE_DEPTH;
    _Static_assert(AQ_EXEC_DISK_DEPTH <= AQ_EXEC_LANE_DEPTH, "completions have room for all");
    uint64_t chunk = aq_max_u64(x->stream->chunk_bytes, 1);
    x->weights_in_flight_max =
        (uint32_t)aq_min_u64(AQ_EXEC_DISK_DEPTH, 2 + AQ_EXEC_WEIGHTS_BYTES / chunk);
    int rc = aq_completions_open(&x->completions, capacity, x->opts.timeline, reterr);
    for (int l = 0; l < AQ_LANE_COUNT && rc == 0; l++)
        rc = open_lane(x, (enum aq_lane)l, reterr);
    return rc == 0 && disk ? open_disk(x, reterr) : rc;
}

static void tables_changed(void *user, const void *at, size_t bytes)
{
    struct aq_executor *x = user;
    aq_compute_cuda_changed(x->opts.cuda, at, bytes);
    exec_early_changed(x, at);
}

int aq_executor_open(struct aq_executor **ret, const struct aq_executor_opts *opts,
                     struct aq_err *reterr)
{
    /* Only a GPU would know the lengths of heads that differ. */
    assert(opts->block->program.ordered);
    assert(!opts->cuda || !aq_kv_policy_ragged(&opts->block->plan.kv));
    assert(!opts->cuda || (!opts->kv_seen && !opts->attention_stats && !opts->timeline));
    struct aq_executor *x = calloc(1, sizeof(*x));
    if (!x)
        return aq_error_memory(reterr, "executor");
    x->opts = *opts;
    x->steps = &opts->model->steps;
    x->plan = &opts->block->plan;
    x->stream = &opts->block->stream;
    x->program = &opts->block->program;
    uint32_t ops = x->program->op_count, batches = x->plan->shape.micro_batches;
    x->batch = calloc(batches, sizeof(*x->batch));
    x->pass_shape = aq_pass_shapes_new(x->plan);
    x->cost = calloc(ops, sizeof(*x->cost));
    x->done = calloc(ops, sizeof(*x->done));
    x->job = calloc(ops, sizeof(*x->job));
    x->issued = calloc(ops, sizeof(*x->issued));
    x->ticket = calloc(ops, sizeof(*x->ticket));
    int rc = 0;
    if (!x->batch || !x->pass_shape || !x->cost || !x->done || !x->job || !x->issued || !x->ticket)
        rc = aq_error_memory(reterr, "executor of %u ops", ops);
    struct aq_kv_opts kv = {
        .device = opts->device,
        .plan = x->plan,
        .kv_heads = x->steps->kv_heads,
        .changed = opts->cuda ? tables_changed : NULL,
        .user = x,
    };
    rc = rc < 0 ? rc : exec_profile_open(x, reterr);
    rc = rc < 0 ? rc : take_buffers(x, reterr);
    rc = rc < 0 ? rc : find_runs(x, reterr);
    rc = rc < 0 ? rc : exec_rotary_open(x, reterr);
    if (rc == 0)
        find_scratch(x);
    rc = rc < 0 ? rc : aq_kv_open(&x->kv, &kv, reterr);
    if (rc == 0 && opts->cuda)
        aq_compute_cuda_tables(opts->cuda, aq_kv_tables(x->kv));
    rc = rc < 0 ? rc : exec_moves_open(x, reterr);
    rc = rc < 0 ? rc : exec_host_open(x, reterr);
    rc = rc < 0 ? rc : exec_bundle_open(x, reterr);
    rc = rc < 0 ? rc : open_lanes(x, reterr);
    rc = rc < 0 ? rc : exec_early_open(x, reterr);
    if (rc < 0) {
        aq_executor_close(x);
        return rc;
    }
    *ret = x;
    return 0;
}

static uint32_t in_flight(const struct aq_executor *x)
{
    uint32_t count = 0;
    for (int l = 0; l < AQ_LANE_COUNT; l++)
        count += x->lane[l].in_flight;
    return count;
}

/* Waits for all ops in flight, so that no thread or device writes to a buffer any more. */
static void drain(struct aq_executor *x)
{
    while (in_flight(x)) {
        struct aq_completion done[32];
        int count = aq_completions_wait(x->completions, done, AQ_ARRAY_LEN(done), AQ_WAIT_FOREVER);
        for (int i = 0; i < count; i++)
            x->lane[x->program->op[done[i].token].lane].in_flight--;
        if (count < 0)
            break;
    }
}

static void close_lanes(struct aq_executor *x)
{
    /* Weights may have run ahead of the last pass. */
    drain(x);
    aq_disk_lane_close(x->disk);
    if (x->disk_opened && x->opts.close_disk)
        x->opts.close_disk(x->opts.disk_user);
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        aq_device_stream_close(x->lane[l].stream);
        free(x->lane[l].op);
        free(x->lane[l].issued);
    }
    aq_completions_close(x->completions);
}

void aq_executor_close(struct aq_executor *x)
{
    if (!x)
        return;
    struct aq_device *d = x->opts.device;
    close_lanes(x);
    exec_check_close(x);
    exec_moves_close(x);
    exec_host_close(x);
    exec_rotary_close(x);
    aq_kv_close(x->kv);
    for (int c = 0; c < AQ_SLOT_CLASS_COUNT; c++) {
        if (x->class_buffer[c])
            aq_device_free(d, class_memory(x, (enum aq_slot_class)c),
                           aq_block_purpose((enum aq_slot_class)c), x->class_buffer[c],
                           x->class_bytes[c]);
    }
    aq_device_free(d, AQ_MEMORY_HOST, "rows and seats", x->rows_buffer, x->rows_bytes);
    aq_device_free(d, AQ_MEMORY_DEVICE, "tiles", x->tiles, x->tiles_bytes);
    aq_device_free(d, AQ_MEMORY_HOST, "sampler", x->sampler.id, x->sampler_bytes);
    free(x->slot_offset);
    free(x->run);
    free(x->run_first);
    free(x->run_count);
    free(x->segment);
    free(x->batch);
    free(x->pass_shape);
    free(x->cost);
    free(x->done);
    free(x->job);
    free(x->issued);
    free(x->ticket);
    free(x->rules);
    exec_bundle_close(x);
    exec_early_close(x);
    free(x);
}

/* ---- issue ------------------------------------------------------------------------------- */

/* Moves of weights depend on no TURN: they run ahead into the next pass. */
static bool runs_ahead(const struct aq_op *op)
{
    return op->object == AQ_OBJECT_WEIGHTS && op->kind != AQ_OP_UNPACK;
}

static bool is_ready(const struct aq_executor *x, uint32_t op_index, uint64_t pass)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct aq_dep *dep = aq_op_deps(x->program, op);
    bool work = aq_op_has_work(op, &x->cost[op_index]);
    if (pass > x->pass && (!runs_ahead(op) || pass > x->pass + 1))
        return false;
    if (x->done[op_index] < pass) /* what its last turn left is still looked at */
        return false;
    if (op->kind == AQ_OP_TURN && exec_early_may_turn(x, op->micro_batch))
        return true;
    for (uint32_t i = 0; i < op->dep_count; i++) {
        enum aq_lane other = (enum aq_lane)x->program->op[dep[i].op].lane;
        const uint64_t *count =
            exec_lanes_chain(x, (enum aq_lane)op->lane, other, work) ? x->issued : x->done;
        if (count[dep[i].op] + dep[i].back < pass + 1)
            return false;
    }
    return true;
}

/* A pass has ended: counts its time, which is from its begin or the end of the one before. */
static void count_time(struct aq_executor *x, const struct exec_pass *p)
{
    struct aq_engine_stats *st = &x->stats;
    uint64_t now_ns = aq_clock_ns();
    double seconds = (double)(now_ns - aq_max_u64(p->start_ns, x->ended_ns)) * 1e-9;
    x->ended_ns = now_ns;
    st->last_pass_s = seconds;
    if (p->prefill && p->decode)
        st->mixed_s += seconds;
    else if (p->prefill)
        st->prefill_s += seconds;
    else
        st->decode_s += seconds;
}

static void mark_done(struct aq_executor *x, uint32_t op_index)
{
    uint64_t pass = x->done[op_index]++;
    if (pass == x->pass)
        x->left--;
    else if (pass > x->pass)
        x->ahead++;
    else if (--x->late == 0)
        count_time(x, &x->late_pass);
}

/* All micro-batches have turned: the next pass may begin, though ops of this one may still be in
 * the stream. */
static bool is_over(const struct aq_executor *x)
{
    return !x->left || (x->early.allowed && x->lane[AQ_LANE_CONTROL].pass > x->pass &&
                        x->lane[AQ_LANE_COMPUTE].pass > x->pass);
}

static int run_job(void *arg, void *native)
{
    struct exec_job *job = arg;
    const struct aq_op *op = &job->x->program->op[job->op];
    if (native)
        return exec_enqueue(job->x, &job->op, 1, false, native);
    /* Two lanes have the same workers. */
    struct aq_pool *pool =
        job->x->plan->side_by_side ? aq_exec_pool(exec_compute_of(job->x, op)->exec) : NULL;
    if (pool)
        aq_pool_begin(pool);
    exec_compute(job->x, op);
    if (pool)
        aq_pool_end(pool);
    return 0;
}

static int start_job(struct aq_executor *x, struct exec_lane *lane, uint32_t op_index)
{
    x->job[op_index].x = x;
    x->job[op_index].op = op_index;
    struct aq_device_job job = {
        .fn = run_job,
        .arg = &x->job[op_index],
        .token = op_index,
        .done = x->completions,
        .span = &x->job[op_index].span,
    };
    if (x->opts.timeline) {
        const struct aq_op *op = &x->program->op[op_index];
        x->job[op_index].output = exec_output(x, op);
        job.outputs = &x->job[op_index].output;
        job.output_count = 1;
        if (x->opts.cost_ns)
            job.cost_ns = x->opts.cost_ns(x->opts.cost_user, op, &x->cost[op_index]);
    }
    return aq_device_run(lane->stream, &job);
}

/* Computes in place; the lane's time is the issuing thread's. */
static void run_inline(struct aq_executor *x, struct exec_lane *lane, const struct aq_op *op)
{
    uint64_t start = aq_clock_ns(), end;
    uint32_t op_index = (uint32_t)(op - x->program->op);
    if (op->kind == AQ_OP_TURN)
        exec_turn(x, op->micro_batch);
    else
        exec_compute(x, op);
    end = aq_clock_ns();
    lane->busy_s += (double)(end - start) * 1e-9;
    aq_trace_op(x->opts.trace, op_index, x->done[op_index], start, end);
}

static void push_issued(struct exec_lane *lane, uint32_t op_index, bool idle)
{
    uint32_t at = (lane->issued_first + lane->issued_count++) % AQ_EXEC_LANE_DEPTH;
    lane->issued[at] = (struct exec_issued){op_index, idle};
}

/* The op is in its stream as a whole: ops that follow it there may be issued. */
static void book_issue(struct aq_executor *x, uint32_t op_index)
{
    const struct exec_lane *lane = &x->lane[x->program->op[op_index].lane];
    x->issued[op_index]++;
    if (lane->stream)
        x->ticket[op_index] = aq_device_mark(lane->stream);
}

static void advance(struct exec_lane *lane)
{
    if (++lane->cursor == lane->count) {
        lane->cursor = 0;
        lane->pass++;
    }
}

/* Issues an op through a bundle.  Of a bundle's ops with work the first counts as in flight, and
 * the others end with it. */
static int issue_bundled(struct aq_executor *x, struct exec_lane *lane, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    bool work = aq_op_has_work(op, &x->cost[op_index]);
    uint64_t pass = lane->pass;
    advance(lane);
    if (!work && !lane->issued_count) {
        x->issued[op_index]++;
        mark_done(x, op_index);
        return 0;
    }
    int rc = x->bundle.count && !exec_bundle_takes(x, op_index, pass) ? exec_bundle_send(x) : 0;
    if (rc < 0)
        return rc;
    bool first = x->bundle.count == 0;
    push_issued(lane, op_index, !work || !first);
    if (!work && first) {
        book_issue(x, op_index);
        return 0;
    }
    if (first) {
        lane->in_flight++;
        exec_follow_deps(x, op, pass, false);
    }
    return exec_bundle_add(x, op_index) ? exec_bundle_send(x) : 0;
}

/* Starts an op that is ready.  Returns 0 or a failure of the lane. */
static int issue(struct aq_executor *x, enum aq_lane l, uint32_t op_index)
{
    struct exec_lane *lane = &x->lane[l];
    const struct aq_op *op = &x->program->op[op_index];
    bool work = aq_op_has_work(op, &x->cost[op_index]);
    bool in_place = l == AQ_LANE_CONTROL || (l == AQ_LANE_COMPUTE && x->inline_compute);
    uint64_t pass = lane->pass;
    int rc = 0;
    if (x->bundles && l == AQ_LANE_COMPUTE && op->kind != AQ_OP_HEAD)
        return issue_bundled(x, lane, op_index);
    if (l == AQ_LANE_COMPUTE && (rc = exec_bundle_send(x)) < 0)
        return rc;
    advance(lane);
    if (in_place && work)
        run_inline(x, lane, op);
    if (in_place || (!work && (is_disk_lane(l) || !lane->issued_count))) {
        x->issued[op_index]++;
        mark_done(x, op_index);
        return 0;
    }
    if (!is_disk_lane(l))
        push_issued(lane, op_index, !work);
    if (!work) {
        book_issue(x, op_index);
        return 0;
    }
    if (is_disk_lane(l)) {
        uint64_t now_ns = aq_clock_ns();
        x->job[op_index].span.start_ns = now_ns;
        if (lane->in_flight == 0)
            lane->busy_from_ns = now_ns;
    }
    lane->in_flight++;
    lane->bytes += x->cost[op_index].move_bytes;
    exec_follow_deps(x, op, pass, false);
    bool computes = l == AQ_LANE_COMPUTE || l == AQ_LANE_HOST_COMPUTE;
    x->job[op_index].round = (struct exec_round){0};
    rc = computes ? start_job(x, lane, op_index) : exec_start_move(x, op_index);
    x->held |= x->job[op_index].round.holds;
    if (!x->job[op_index].round.holds)
        book_issue(x, op_index);
    return rc;
}

static bool has_room(struct aq_executor *x, enum aq_lane l)
{
    const struct exec_lane *lane = &x->lane[l];
    if (x->opts.cuda && l == AQ_LANE_COMPUTE) { /* ops in flight have desks of their own */
        if (x->held || lane->issued_count == AQ_EXEC_LANE_DEPTH)
            return false;
        return x->bundles ? lane->in_flight < AQ_GPU_DESKS / AQ_GPU_BUNDLE_DESKS ||
                                exec_bundle_takes(x, lane->op[lane->cursor], lane->pass)
                          : lane->issued_count < AQ_GPU_DESKS;
    }
    if (l == AQ_LANE_READ_WEIGHTS) /* enough for the disk; others share its queue */
        return lane->in_flight < x->weights_in_flight_max;
    return is_disk_lane(l) ? lane->in_flight < AQ_EXEC_DISK_DEPTH
                           : lane->issued_count < AQ_EXEC_LANE_DEPTH;
}

/* Issues all ops that may start now, lane by lane.  Between two rounds over the lanes the issuing
 * thread runs at most one op itself. */
static int issue_ready(struct aq_executor *x)
{
    bool again = true;
    while (again && !is_over(x)) {
        again = false;
        for (int l = AQ_LANE_COUNT - 1; l >= 0; l--) {
            struct exec_lane *lane = &x->lane[l];
            bool in_place = l == AQ_LANE_CONTROL || (l == AQ_LANE_COMPUTE && x->inline_compute);
            while (lane->count && has_room(x, (enum aq_lane)l) &&
                   is_ready(x, lane->op[lane->cursor], lane->pass)) {
                int rc = issue(x, (enum aq_lane)l, lane->op[lane->cursor]);
                if (rc < 0)
                    return rc;
                again = true;
                if (in_place)
                    break;
            }
            int rc = l == AQ_LANE_COMPUTE ? exec_bundle_send(x) : 0;
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* After a round of a GPU's HEAD: issues the next round; returns whether there is one. */
static bool head_goes_on(struct aq_executor *x, uint32_t op_index, int *ret_rc)
{
    const struct aq_op *op = &x->program->op[op_index];
    struct exec_round *round = &x->job[op_index].round;
    if (!x->opts.cuda || op->kind != AQ_OP_HEAD || *ret_rc < 0)
        return false;
    bool held = round->holds, goes_on = exec_head_goes_on(x, op);
    if (goes_on)
        *ret_rc = start_job(x, &x->lane[op->lane], op_index);
    if (held && !(goes_on && round->holds)) {
        x->held = false;
        book_issue(x, op_index);
    }
    return goes_on && *ret_rc == 0;
}

/* An op with work has finished, and so have the ops without work right behind it in its lane. */
static void finish_op(struct aq_executor *x, uint32_t op_index)
{
    exec_early_over(x, op_index);
    enum aq_lane l = (enum aq_lane)x->program->op[op_index].lane;
    struct exec_lane *lane = &x->lane[l];
    struct aq_device_span *span = &x->job[op_index].span;
    lane->in_flight--;
    if (is_disk_lane(l))
        span->end_ns = aq_clock_ns();
    aq_trace_op(x->opts.trace, op_index, x->done[op_index], span->start_ns, span->end_ns);
    if (is_disk_lane(l)) {
        if (!lane->in_flight)
            lane->busy_s += (double)(span->end_ns - lane->busy_from_ns) * 1e-9;
        mark_done(x, op_index);
        return;
    }
    lane->busy_s += (double)(span->end_ns - span->start_ns) * 1e-9;
    bool first = true;
    while (lane->issued_count) {
        struct exec_issued *i = &lane->issued[lane->issued_first];
        assert(!first || i->op == op_index);
        if (!first && !i->idle)
            break;
        mark_done(x, i->op);
        lane->issued_first = (lane->issued_first + 1) % AQ_EXEC_LANE_DEPTH;
        lane->issued_count--;
        first = false;
    }
}

/* Waits for completions and books them.  Returns 0 or the first failure among them. */
static int wait_some(struct aq_executor *x)
{
    struct aq_completion done[32];
    int count = aq_completions_wait(x->completions, done, AQ_ARRAY_LEN(done), AQ_WAIT_FOREVER);
    if (count < 0)
        return count;
    int rc = 0;
    for (int i = 0; i < count; i++) {
        int result = done[i].result;
        if (!head_goes_on(x, (uint32_t)done[i].token, &result))
            finish_op(x, (uint32_t)done[i].token);
        if (result < 0 && (rc == 0 || rc == -ECANCELED))
            rc = result;
    }
    return rc;
}

static int run_overlapped(struct aq_executor *x)
{
    int rc = 0;
    while (rc == 0 && !is_over(x)) {
        rc = issue_ready(x);
        if (rc < 0 || is_over(x))
            break;
        assert(in_flight(x) > 0); /* the checker has proved that some op can always go on */
        rc = wait_some(x);
    }
    return rc;
}

/* After the last pass nobody else would wait for the tokens that are still to come. */
static int wait_for_last(struct aq_executor *x)
{
    int rc = 0;
    while (rc == 0 && x->late && !x->seats.seated && !x->waiting.first)
        rc = wait_some(x);
    return rc;
}

/* One op after the other, in array order. */
static int run_serial(struct aq_executor *x)
{
    for (uint32_t i = 0; i < x->program->op_count; i++) {
        enum aq_lane l = (enum aq_lane)x->program->op[i].lane;
        assert(x->lane[l].op[x->lane[l].cursor] == i);
        int rc = issue(x, l, i);
        while (rc == 0 && in_flight(x))
            rc = wait_some(x);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- passes ------------------------------------------------------------------------------ */

/* Counts the rows of a pass that has been issued. */
static void count_rows(struct aq_executor *x, const struct exec_pass *p)
{
    struct aq_engine_stats *st = &x->stats;
    st->passes++;
    st->prefill_tokens += p->prefill;
    st->decode_tokens += p->decode;
    if (p->prefill && p->decode)
        st->mixed_passes++;
    else if (p->prefill)
        st->prefill_passes++;
    else
        st->decode_passes++;
}

static int fail(struct aq_executor *x, uint64_t pass, int rc, struct aq_err *reterr)
{
    aq_device_fail(x->opts.device, rc);
    drain(x);
    if (rc == -ECANCELED) /* skipped ops may be reported before the cause */
        rc = aq_device_failed(x->opts.device);
    if (x->disk && aq_disk_lane_error(x->disk, reterr) < 0)
        return aq_disk_lane_error(x->disk, NULL);
    const char *said = aq_device_failure(x->opts.device);
    if (x->failure[0])
        return aq_error(reterr, rc, "pass %llu: %s", (unsigned long long)pass, x->failure);
    if (said)
        return aq_error(reterr, rc, "pass %llu: the GPU failed: %s", (unsigned long long)pass,
                        said);
    return aq_error(reterr, rc, "pass %llu", (unsigned long long)pass);
}

int aq_executor_pass(struct aq_executor *x, bool *ret_worked, struct aq_err *reterr)
{
    struct exec_pass now;
    uint64_t pass = x->pass;
    exec_begin_pass(x, &now.prefill, &now.decode);
    *ret_worked = now.prefill + now.decode > 0;
    if (!*ret_worked) {
        assert(!x->waiting.first);
        return 0;
    }
    if (x->opts.observe)
        x->opts.observe(x->opts.observe_user, true);
    aq_program_annotate(x->cost, x->program, x->steps, x->plan, x->stream, x->pass_shape);
    now.start_ns = aq_clock_ns();
    aq_trace_begin(x->opts.trace, pass, now.start_ns, x->cost, now.prefill, now.decode);
    x->left = x->program->op_count - x->ahead;
    x->ahead = 0;
    int rc = x->opts.serial ? run_serial(x) : run_overlapped(x);
    aq_trace_end(x->opts.trace, pass, aq_clock_ns());
    x->pass++;
    assert(rc < 0 || !x->late); /* each op waits for its last turn */
    x->late = rc < 0 ? 0 : x->left;
    x->late_pass = now;
    count_rows(x, &now);
    if (x->late)
        rc = wait_for_last(x);
    else
        count_time(x, &now);
    x->stats.early_passes += x->late > 0;
    rc = rc < 0 ? fail(x, pass, rc, reterr) : 0;
    if (x->opts.observe)
        x->opts.observe(x->opts.observe_user, false);
    return rc;
}

struct aq_engine_stats aq_executor_stats(const struct aq_executor *x)
{
    struct aq_engine_stats st = x->stats;
    st.seated = x->seats.seated;
    st.waiting = x->waiting.count;
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        st.lane[l].busy_s = x->lane[l].busy_s;
        /* A disk lane with ops in flight is still busy: its time so far is added. */
        if (is_disk_lane((enum aq_lane)l) && x->lane[l].in_flight)
            st.lane[l].busy_s += (double)(aq_clock_ns() - x->lane[l].busy_from_ns) * 1e-9;
        st.lane[l].bytes = x->lane[l].bytes;
    }
    return st;
}
