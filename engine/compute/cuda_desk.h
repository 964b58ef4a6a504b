/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_desk.h - what the files of cuda_lane.h share: the lane, and the desk from
 * which its ops' arrays go to the device ahead of the launches that read them. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_DESK_H
#define AQ_ENGINE_COMPUTE_CUDA_DESK_H

#include "engine/compute/cuda_bias.h"
#include "engine/compute/cuda_graph.h"
#include "engine/compute/cuda_lane.h"

#include <assert.h>
#include <pthread.h>

/* Changes of tables that are kept apart: beyond it goes all that lies between them. */
enum { CHANGES_MAX = 256 };

struct aq_compute_cuda {
    struct aq_compute c;
    const struct aq_cuda_kernels *k;
    const struct aq_gpu_ops *gpu_ops;
    struct aq_gpu *gpu;
    struct aq_device *device;
    struct aq_gpu_sizes sizes;
    struct aq_cuda_exec ex;
    struct aq_cuda_blas blas;
    struct aq_cuda_biases biases;
    uint8_t *work, *desks_here; /* all of the device's, and of the pinned memory */
    size_t work_bytes, desks_bytes;
    uint8_t *mirror, *sums, *unpacked;        /* in work */
    uint8_t *biases_there;                    /* likewise */
    struct aq_logits_stat *stats, *stats_now; /* as the model gave them, and penalised */
    uint32_t *chosen;                         /* in work: [seats] */
    struct aq_logits_stat *stats_home;
    float *logits_home;
    bool deterministic;
    const struct aq_model_steps *steps;
    enum aq_dtype compute;
    /* Answers of the op at work: on the desk and its mirror, and where the next ones go. */
    uint8_t *answers, *answers_there;
    size_t answers_bytes;
    struct aq_cuda_choice *choice;
    struct aq_cuda_top *top;
    /* The ops at work: the stream, their desks, how much of these is taken from the front and, for
     * what has another size in every pass, down to where from the back, and how much of the front
     * has been sent. */
    struct aq_cuda_record *record;
    bool noting; /* launches are noted; the desks' bytes are copied in front of all of them */
    uint32_t desk, desks, op;
    size_t used, back, sent;
    /* Tables of blocks of the op at work that are on its desk already, by sequence: a layer appends
     * to the same tables that it then attends. */
    struct given {
        uint8_t *const *block, *const *there;
        uint32_t count;
    } * given;
    uint32_t given_count, given_max;
    /* Tables that stay on the device, and what of them has to be sent again, in bytes from their
     * beginning; the lock is of the changes, which come from another thread. */
    uint8_t *const *tables, **tables_there;
    struct change {
        size_t from, end;
    } change[CHANGES_MAX];
    uint32_t change_count;
    bool changes_merged; /* what lies between them is sent, too */
    pthread_mutex_t lock;
    int rc;
    const char *what; /* what failed first, and of which op */
    uint32_t failed_op;
};

/* Nothing of the host's but what is pinned may reach a kernel. */
void desk_check(const struct aq_compute_cuda *c, const void *p);

/* A lane that has failed once launches nothing more; `what` failed with a code of the module's. */
bool desk_failed(const struct aq_compute_cuda *c);
void desk_note(struct aq_compute_cuda *c, int rc, const char *what);

/* Room on the desk, to be filled in before it is sent; *ret_there, a pointer, is its place on the
 * device. */
void *desk_put(struct aq_compute_cuda *c, size_t bytes, void *ret_there);
/* A copy of an array of the host's; its place on the device. */
const void *desk_give(struct aq_compute_cuda *c, const void *data, size_t bytes);
/* The same of an array whose size changes from pass to pass: what is in front stays where it was in
 * the last one, so that launches have the same arguments. */
const void *desk_give_behind(struct aq_compute_cuda *c, const void *data, size_t bytes);
/* Sends what was put there since. */
void desk_send(struct aq_compute_cuda *c);

/* Puts a kernel on the stream, or on the list of those that go there together. */
void desk_launch(struct aq_compute_cuda *c, enum aq_cuda_kernel kernel, const void *params);

/* A launch by the kernel's name, whose launcher says of what type the struct has to be. */
#define DESK_LAUNCH(c, name, params)                                                               \
    ((void)sizeof(aq_cuda_##name(&(c)->ex, (params))),                                             \
     desk_launch(c, AQ_CUDA_KERNEL_##name, (params)))

#endif
