/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/exec.h - the executor's insides, shared by executor.c (buffers, issue, passes),
 * exec_turn.c (seats, admission, rows), exec_ops.c, exec_attn.c and exec_head.c (what ops compute),
 * exec_move.c (what they move), exec_check.c (whether that is what it was) and exec_kv.c (where KV
 * is).  The issuing thread owns everything but what an op in flight works on. */
#ifndef AQ_ENGINE_EXEC_EXEC_H
#define AQ_ENGINE_EXEC_EXEC_H

#include "engine/exec/executor.h"
#include "engine/exec/kv_pages.h"
#include "policy/host_product.h"
#include "policy/move_sizes.h"
#include "policy/traffic.h"

/* Who sits in a seat (policy/seats.h), and what HEAD has chosen for them. */
struct exec_seat {
    struct aq_sequence *sequence; /* NULL: free */
    uint32_t chosen;              /* token */
    bool has_chosen, bad;
    bool bad_prompt; /* a prompt row's logits were not finite: set by any worker */
};

/* A row whose logits are needed: the last row of a sequence (choose a token), or a prompt row whose
 * next token is scored. */
struct exec_logit_row {
    uint32_t seat;
    int32_t prompt_index; /* scores prompt token prompt_index + 1; -1: choose the next token */
};

struct exec_batch {
    uint32_t *id, *position, *logit_index; /* [rows_max] */
    struct exec_logit_row *logit_row;      /* [rows_max] */
    struct aq_attn_seq *decode, *prefill;  /* [seats] by part, decode rows also by seat */
    uint32_t *decode_seat, *prefill_seat;  /* [seats] seat of each entry above */
    /* Entries of a part: [first[part], first[part + 1]). */
    uint32_t decode_first[AQ_PART_MAX + 1], prefill_first[AQ_PART_MAX + 1];
    uint32_t row_count, logit_count, decode_count, prefill_count, prefill_rows;
};

struct exec_list {
    struct aq_sequence *first, *last;
    uint32_t count;
};

/* Where panels of a matrix are while a step runs: in memory for good, or in a chunk of the ring. */
struct exec_run {
    uint32_t first, count; /* panels */
    uint32_t chunk;        /* UINT32_MAX: resident */
    uint64_t offset;       /* in the chunk */
};

/* What has been issued to a lane and has not finished, in order. */
struct exec_issued {
    uint32_t op;
    bool idle; /* has no work: done when it comes to the front */
};

struct exec_lane {
    uint32_t *op; /* the ops of the lane in array order */
    uint32_t count, cursor;
    uint64_t pass; /* of the op at the cursor */
    struct aq_device_stream *stream;
    struct exec_issued *issued; /* ring of AQ_EXEC_LANE_DEPTH; lanes in order */
    uint32_t issued_first, issued_count;
    uint32_t in_flight; /* ops with work that have not finished */
    double busy_s;
    uint64_t bytes;
    uint64_t busy_from_ns; /* disk lanes: since when something is in flight */
};

enum { AQ_EXEC_LANE_DEPTH = 64, AQ_EXEC_DISK_DEPTH = 32 };
/* Weights on their way from disk at a time. */
#define AQ_EXEC_WEIGHTS_BYTES (64 * AQ_MIB)

/* Rows of a HEAD that a GPU is at work on: all that are left, as a rule. */
struct exec_round {
    uint32_t first, rows;
    bool holds;   /* nothing else is issued to the lane before it is over and seen to */
    bool on_host; /* where their tokens are chosen; else here they will be: */
    struct aq_compute_cuda_answers answers;
};

/* Ops of a GPU's compute lane that have been issued and go to its stream together, in order; those
 * without work among them. */
enum { AQ_EXEC_BUNDLE_MAX = 32 };
struct exec_bundle {
    uint32_t op[AQ_EXEC_BUNDLE_MAX], count;
    uint32_t desks; /* that they may fill */
};

/* An op as a job of a stream. */
struct exec_job {
    struct aq_executor *x;
    uint32_t op;
    struct aq_device_span span;
    struct exec_round round;
    struct aq_device_range output; /* virtual time: what it overwrites */
};

/* An op as transfers, or as pieces of a copy: lists that ops with KV share. */
struct exec_move {
    struct aq_disk_group group;
    struct aq_copy_piece *piece;
    struct aq_disk_transfer *transfer;
};

/* A list of pieces being made; there and back is the caller's to say. */
struct exec_pieces {
    struct aq_copy_piece *piece;
    uint32_t count;
    bool to_device;
};

struct aq_executor {
    struct aq_executor_opts opts;
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    const struct aq_stream *stream;
    const struct aq_program *program;
    struct aq_op_cost *cost;
    struct aq_pass_shape *pass_shape;
    struct aq_kv *kv;
    struct aq_seats seats;
    struct exec_seat *seat; /* [seats.count] */
    struct exec_batch *batch;
    /* Workspaces of attention: of the compute lane and of the host's. */
    struct exec_moves {
        struct aq_kv_move *move; /* [seats of a micro-batch] */
        struct aq_kv_blocks *blocks;
        uint8_t **run; /* [seats of a micro-batch] */
    } kv_moves[2];
    uint8_t **prompt_block; /* [runs of a prompt] of scratch */
    struct aq_kv_prefill_layout prompt_layout;
    size_t transfer_bytes; /* of a seat in a stage of a separate device, beside its runs */
    struct exec_list waiting, finished;
    struct aq_engine_stats stats;

    /* Issue. */
    struct exec_lane lane[AQ_LANE_COUNT];
    uint64_t *done; /* [op] instances that have finished */
    uint64_t pass;  /* being run */
    uint32_t left;  /* ops of it that have not finished */
    uint32_t ahead; /* ops of the next pass that have */
    /* On a GPU: how often each op was issued, and its place in its stream the last time. */
    uint64_t *issued, *ticket;
    bool held;    /* by a HEAD: see struct exec_round */
    bool bundles; /* ops go in bundles */
    struct exec_bundle bundle;
    bool *watched;       /* [op] an op of another lane waits for it */
    char failure[256];   /* what could not be launched; empty: nothing */
    bool inline_compute; /* the issuing thread computes: nothing else is there to do */
    struct aq_completions *completions;
    struct exec_job *job;   /* [op] */
    struct exec_move *move; /* [op], NULL without moves */
    struct aq_disk_lane *disk;
    bool disk_opened;      /* open_disk was called */
    bool *checked;         /* [chunk] its bytes have been compared, or are on their way to it */
    uint64_t *scratch_sum; /* [runs of KV on disk, then hidden states]: of what was written last */
    struct aq_move_sizes sizes;
    void *moves; /* all lists, then stage_block */
    size_t moves_bytes;
    uint8_t **stage_block; /* [stage][stage_seats][runs]: addresses in the device's KV stages */
    uint32_t weights_in_flight_max;

    /* Memory: a buffer for each class of slots. */
    uint8_t *class_buffer[AQ_SLOT_CLASS_COUNT];
    uint64_t class_bytes[AQ_SLOT_CLASS_COUNT];
    uint64_t *slot_offset;           /* [slot] in its class's buffer */
    struct exec_run *run;            /* of all matrices */
    uint32_t *run_first, *run_count; /* [aq_matrix_index()] */
    struct aq_segment *segment;      /* [segment_max] of one product; the host lane's behind */
    uint32_t segment_max;
    void *rows_buffer; /* everything per row and seat */
    size_t rows_bytes;
    void *tile_norm, *tile_inner, *tile_embed, *tiles;
    size_t tiles_bytes, sampler_bytes;
    void *host_tile;     /* where the host computes columns of products: NORM, */
    float *host_vectors; /* and the model's vectors, as they lie in its own buffer */
    size_t host_tile_bytes, host_vectors_bytes;
    struct aq_candidate *sampler; /* [threads][vocab] */
    float *sampler_logits;        /* [threads][vocab] */
    struct aq_logits_stat *logits_stat;
};

static inline uint8_t *exec_slot(const struct aq_executor *x, enum aq_slot_class c, uint32_t index)
{
    return x->class_buffer[c] + x->slot_offset[x->program->first[c] + index];
}

/* A register that holds all rows of an op's micro-batch: its slot where products run. */
uint8_t *exec_register(const struct aq_executor *x, const struct aq_op *op, enum aq_register r);

/* ---- exec_turn.c ---- */
extern const struct aq_seats_ops exec_seats_ops;
void exec_turn(struct aq_executor *x, uint32_t k);
/* Rows for sequences submitted since the last TURN; sorts rows by part and counts what the pass
 * will do.  Without refill a block that takes nobody more starts to decode. */
void exec_begin_pass(struct aq_executor *x, uint32_t *ret_prefill, uint32_t *ret_decode);

/* ---- exec_ops.c ---- */
void exec_compute(struct aq_executor *x, const struct aq_op *op);
/* The same on a GPU: puts ops on the stream, together where they all go in a bundle.  0, or a code
 * where that failed. */
int exec_enqueue(struct aq_executor *x, const uint32_t *ops, uint32_t count, bool together,
                 void *stream);
/* What such an op overwrites without having read it; empty where that cannot be said in one range.
 */
struct aq_device_range exec_output(const struct aq_executor *x, const struct aq_op *op);

/* HEAD's product: the logits of rows [first, first + rows) of those that need them. */
void exec_logits(struct aq_executor *x, const struct aq_op *op, uint32_t first, uint32_t rows);

enum aq_activation exec_activation(enum aq_step_activation a);
enum aq_norm_kind exec_norm_kind(enum aq_step_norm n);

/* ---- exec_attn.c ---- */
/* Stores the new keys and values of a part's sequences, lets their queries attend, and keeps up
 * what is remembered of their slots. */
void exec_attend(struct aq_executor *x, const struct aq_op *op, struct aq_compute *c,
                 const float *qkv, void *attention);

/* ---- exec_bundle.c ---- */
int exec_bundle_open(struct aq_executor *x, struct aq_err *reterr);
void exec_bundle_close(struct aq_executor *x);
/* Do ops of these lanes follow each other on the GPU itself?  One without work does not wait there:
 * it is over with what lies in front of it in its own lane. */
bool exec_lanes_chain(const struct aq_executor *x, enum aq_lane l, enum aq_lane other, bool work);
/* On a GPU an op is issued when what it waits for is in a stream: what is put into its own stream
 * next waits there.  Returns whether there is anything to wait for; look: without waiting. */
bool exec_follow_deps(struct aq_executor *x, const struct aq_op *op, uint64_t pass, bool look);
/* Does the bundle that has been begun take another op? */
bool exec_bundle_takes(struct aq_executor *x, uint32_t op_index, uint64_t pass);
/* Begins one, or adds to it; returns whether it ends here. */
bool exec_bundle_add(struct aq_executor *x, uint32_t op_index);
/* Puts it on the stream; the first of its ops is the token.  Without one there is nothing to do. */
int exec_bundle_send(struct aq_executor *x);

/* ---- exec_head.c ---- */
/* On a GPU: what is enqueued, a round of rows, leaves its answers there. */
void exec_head(struct aq_executor *x, const struct aq_op *op);
/* A round is over: gives the seats their tokens.  True when more rows are to be enqueued. */
bool exec_head_goes_on(struct aq_executor *x, const struct aq_op *op);
/* Without computing anything. */
void exec_head_replay(struct aq_executor *x, const struct aq_op *op);

/* ---- exec_host.c ---- */
int exec_host_open(struct aq_executor *x, struct aq_err *reterr);
void exec_host_close(struct aq_executor *x);
/* PRODUCT_HOST. */
void exec_product_host(struct aq_executor *x, const struct aq_op *op);
/* Puts the host's columns into the output; returns the primitives that follow the product. */
struct aq_prim_list exec_merge(struct aq_executor *x, const struct aq_op *op);
/* The piece of a move of INPUT or COLUMNS. */
void exec_link_share(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l);

/* ---- exec_kv.c ---- */
/* Where an attention op finds the KV of a seat: its pages, or their place in the op's stage. */
uint8_t *const *exec_kv_blocks(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* The same of a seat whose heads hold different numbers of slots: what *seq says of it. */
void exec_kv_ragged_table(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                          struct aq_attn_seq *seq);
/* Where it finds, or makes, what is remembered of the seat's slots; all NULL where nothing is. */
struct aq_attn_slots exec_kv_slots(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* Of a seat on disk: the delta that the op applies and adds to. */
struct aq_kv_delta exec_kv_delta(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* Does the row of the seat's pass join its delta, unless that is written back? */
bool exec_uses_delta(const struct aq_executor *x, uint32_t seat);
void exec_stages_open(struct aq_executor *x);
/* Transfers, or pieces, of a move of KV. */
void exec_list_kv(struct aq_executor *x, uint32_t op_index);
void exec_link_kv(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l);

/* ---- exec_check.c ---- */
/* Before the disk is opened; *ret is what it is to check by. */
int exec_check_open(struct aq_executor *x, struct aq_disk_check *ret, struct aq_err *reterr);
void exec_check_close(struct aq_executor *x);
/* Is what this move brings or takes to be checked? */
bool exec_check_wanted(struct aq_executor *x, const struct aq_op *op);

/* ---- exec_move.c ---- */
int exec_moves_open(struct aq_executor *x, struct aq_err *reterr);
void exec_moves_close(struct aq_executor *x);
/* Starts a move that has work; its token is the op's index. */
int exec_start_move(struct aq_executor *x, uint32_t op_index);
void exec_add_transfer(struct aq_executor *x, uint32_t op_index, uint32_t set, uint64_t offset,
                       uint64_t bytes, void *buffer);
void exec_add_piece(struct exec_pieces *l, void *device, void *host, uint64_t bytes);

#endif
