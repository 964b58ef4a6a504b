/* SPDX-License-Identifier: Apache-2.0
 * The desk, tables of pages that stay on the device, and launches: see cuda_desk.h. */
#include "engine/compute/cuda_desk.h"

#include <string.h>

/* A desk is sent in pieces, a warp each. */
enum { DESK_PIECES_MAX = 256, DESK_PIECE_BYTES = 1024 };

void desk_check(const struct aq_compute_cuda *c, const void *p)
{
    assert(!p || aq_device_reaches(c->device, p, 1));
}

bool desk_failed(const struct aq_compute_cuda *c)
{
    return c->rc != 0;
}

void desk_note(struct aq_compute_cuda *c, int rc, const char *what)
{
    if (rc && !c->rc) {
        c->rc = rc;
        c->what = what;
        c->failed_op = c->op;
    }
}

/* The place of a byte of the ops' desks, here; *ret_there is its place on the device, where all
 * desks have the same one: in the stream, one is sent behind the kernels that read the last. */
static void *place(struct aq_compute_cuda *c, size_t at, void *ret_there)
{
    uint8_t *there = c->mirror + at;
    memcpy(ret_there, &there, sizeof(there));
    return c->desks_here + c->desk * c->sizes.desk_bytes + at;
}

void *desk_put(struct aq_compute_cuda *c, size_t bytes, void *ret_there)
{
    size_t at = c->used;
    assert(bytes <= c->back - c->used);
    c->used += aq_align_up(bytes, 16);
    return place(c, at, ret_there);
}

const void *desk_give(struct aq_compute_cuda *c, const void *data, size_t bytes)
{
    const void *there;
    memcpy(desk_put(c, bytes, &there), data, bytes);
    return there;
}

const void *desk_give_behind(struct aq_compute_cuda *c, const void *data, size_t bytes)
{
    const void *there;
    if (!c->noting)
        return desk_give(c, data, bytes);
    assert(aq_align_up(bytes, 16) <= c->back - c->used);
    c->back -= aq_align_up(bytes, 16);
    memcpy(place(c, c->back, &there), data, bytes);
    return there;
}

/* Copies pinned bytes to the device by a kernel that reads them: of engines that copy there is one
 * in this direction, where desks would wait behind chunks of weights, or for the end of a time
 * slice. */
static void send_bytes(struct aq_compute_cuda *c, uint8_t *there, const uint8_t *here, size_t bytes)
{
    struct aq_copy_piece piece[DESK_PIECES_MAX];
    uint32_t count = 0;
    size_t each = aq_align_up(aq_div_up(bytes, DESK_PIECES_MAX), 16);
    each = aq_max_u64(each, DESK_PIECE_BYTES);
    for (size_t at = 0; at < bytes; at += each)
        piece[count++] =
            (struct aq_copy_piece){there + at, here + at, aq_min_u64(each, bytes - at)};
    if (count && !desk_failed(c))
        desk_note(c, c->k->copy_pieces(&c->ex, piece, count), "copy_pieces");
}

static void send_range(struct aq_compute_cuda *c, size_t from, size_t end)
{
    uint8_t *there;
    const uint8_t *here = place(c, from, &there);
    assert(from <= end);
    send_bytes(c, there, here, end - from);
}

void desk_send(struct aq_compute_cuda *c)
{
    if (c->noting)
        return;
    send_range(c, c->sent, c->used);
    c->sent = c->used;
}

/* ---- tables of pages ---- */

/* Brings the device's tables up to date, in front of all ops that follow on the stream. */
static enum aq_cuda_changes send_changes(struct aq_compute_cuda *c)
{
    struct change change[CHANGES_MAX];
    pthread_mutex_lock(&c->lock);
    uint32_t count = c->change_count;
    memcpy(change, c->change, count * sizeof(*change));
    bool merged = c->changes_merged;
    c->change_count = 0;
    c->changes_merged = false;
    pthread_mutex_unlock(&c->lock);
    struct aq_copy_piece piece[CHANGES_MAX];
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t from = change[i].from, bytes = change[i].end - from;
        uint8_t *there = (uint8_t *)c->tables_there + from;
        const uint8_t *here = (const uint8_t *)c->tables + from;
        if (bytes > DESK_PIECE_BYTES)
            send_bytes(c, there, here, bytes);
        else
            piece[pieces++] = (struct aq_copy_piece){there, here, bytes};
    }
    if (pieces && !desk_failed(c))
        desk_note(c, c->k->copy_pieces(&c->ex, piece, pieces), "copy_pieces");
    return merged ? AQ_CUDA_CHANGED_ALL : count ? AQ_CUDA_CHANGED : AQ_CUDA_UNCHANGED;
}

void aq_compute_cuda_tables(struct aq_compute_cuda *c, uint8_t *const *tables)
{
    c->tables = c->sizes.tables_bytes ? tables : NULL;
    c->change_count = 0;
    desk_check(c, c->tables);
}

void aq_compute_cuda_changed(struct aq_compute_cuda *c, const void *at, size_t bytes)
{
    size_t from = (size_t)((const uint8_t *)at - (const uint8_t *)c->tables), end = from + bytes;
    assert(c->tables && end <= c->sizes.tables_bytes);
    pthread_mutex_lock(&c->lock);
    struct change *last = c->change_count ? &c->change[c->change_count - 1] : NULL;
    if (last && last->end == from) {
        last->end = end;
    } else if (c->change_count < CHANGES_MAX) {
        c->change[c->change_count++] = (struct change){from, end};
    } else {
        for (uint32_t i = 0; i < CHANGES_MAX; i++) {
            from = aq_min_u64(from, c->change[i].from);
            end = aq_max_u64(end, c->change[i].end);
        }
        c->change[0] = (struct change){from, end};
        c->change_count = 1;
        c->changes_merged = true;
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- launches ---- */

/* Makes the launches that are noted; later ones are launched at once. */
static void launch_noted(struct aq_compute_cuda *c, bool again)
{
    const char *what;
    uint32_t op;
    send_range(c, 0, c->used);
    send_range(c, c->back, c->desks * c->sizes.desk_bytes);
    c->sent = c->used;
    int rc = desk_failed(c) ? 0 : aq_cuda_record_launch(c->record, &c->ex, again, &what, &op);
    if (rc) {
        desk_note(c, rc, what);
        c->failed_op = op;
    }
    c->noting = false;
}

void desk_launch(struct aq_compute_cuda *c, enum aq_cuda_kernel kernel, const void *params)
{
    if (desk_failed(c) || (c->noting && aq_cuda_record_add(c->record, kernel, params, c->op)))
        return;
    if (c->noting) /* there is no room for another */
        launch_noted(c, false);
    if (!desk_failed(c))
        desk_note(c, aq_cuda_launch(c->k, &c->ex, kernel, params), aq_cuda_kernel_name(kernel));
}

/* ---- ops ---- */

enum aq_cuda_changes aq_compute_cuda_begin(struct aq_compute_cuda *c, void *stream, uint32_t desks,
                                           bool together)
{
    assert(AQ_GPU_DESKS % desks == 0 && desks <= AQ_GPU_BUNDLE_DESKS && c->desk % desks == 0);
    c->desks = desks;
    c->desk = (c->desk + desks) % AQ_GPU_DESKS;
    c->used = c->sent = 0;
    c->back = desks * c->sizes.desk_bytes;
    c->rc = 0;
    c->op = 0;
    c->given_count = 0;
    c->ex.stream = stream;
    c->noting = together;
    aq_cuda_record_clear(c->record);
    return send_changes(c);
}

void aq_compute_cuda_next(struct aq_compute_cuda *c, uint32_t op)
{
    c->op = op;
    c->given_count = 0;
}

int aq_compute_cuda_end(struct aq_compute_cuda *c, uint32_t *ret_op, const char **ret_what,
                        const char **ret_why)
{
    if (c->noting)
        launch_noted(c, true);
    if (c->rc) {
        *ret_op = c->failed_op;
        *ret_what = c->what;
        *ret_why = c->k->error_text(c->rc);
    }
    return c->rc ? -EIO : 0;
}
