/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/exec.h - the executor's insides, shared by executor.c (buffers, issue, passes),
 * turn.c (seats, admission, rows), early.c (turns that do not wait for tokens), ops.c, attend.c
 * (with attend.h), head.c and host_product.c (ops that compute), rotary.c (their table of
 * positions), bundle.c (ops sent to a GPU together), moves.c (ops that move), check.c (checksums of
 * moved bytes) and kv_moves.c (addresses and moves of KV).  The issuing thread owns everything
 * except the slots of ops in flight. */
#ifndef AQ_ENGINE_EXEC_EXEC_H
#define AQ_ENGINE_EXEC_EXEC_H

#include "engine/compute/sample.h"
#include "engine/exec/executor.h"
#include "engine/exec/kv_pages.h"
#include "policy/host_product.h"
#include "policy/move_sizes.h"
#include "policy/traffic.h"

/* The sequence in a seat (policy/seats.h), and the token that HEAD has chosen for it. */
struct exec_seat {
    struct aq_sequence *sequence; /* NULL: free */
    uint32_t chosen;              /* token */
    bool has_chosen, bad;
    bool bad_prompt; /* a prompt row's logits were not finite: set by any worker */
    /* Passes that begin early: its token is on the device, and not here yet; and how its sequence
     * has ended, which leaves at the next turn. */
    bool asked;
    enum aq_finish over;
};

/* A row whose logits are needed: the last row of a sequence (choose a token), or a prompt row whose
 * next token is scored. */
struct exec_logit_row {
    uint32_t seat;
    int32_t prompt_index; /* scores prompt token prompt_index + 1; -1: choose the next token */
};

struct exec_batch {
    /* [rows_max]; id: a token's, or AQ_ID_CHOSEN + seat; position: the row of the model's position
     * table, or of the rotary table. */
    uint32_t *id, *position, *logit_index;
    struct exec_logit_row *logit_row; /* [rows_max] */
    /* [seats] by part, decode rows also by seat; only their rows are of the whole pass, and each
     * attention op fills in the rest for its layer. */
    struct aq_attn_seq *decode, *prefill;
    uint32_t *decode_seat, *prefill_seat; /* [seats] seat of each entry above */
    /* Entries of a part: [first[part], first[part + 1]). */
    uint32_t decode_first[AQ_PART_MAX + 1], prefill_first[AQ_PART_MAX + 1];
    uint32_t row_count, logit_count, decode_count, prefill_count, prefill_rows;
    uint32_t given_rows; /* of decode entries, beside one of each */
    /* Of the pass before: [seats] whose rows' answers are still to come, NULL where the sequence
     * had ended before; early_count 0: none. */
    struct aq_sequence **early;
    uint32_t early_count;
    bool asks;      /* HEAD answers all rows at once, each with the next token of its sequence */
    bool changed;   /* tables of its seats, since the last ops that were put on the stream */
    uint32_t reads; /* in front of this op's launches the device reads such changes, which stay as
                       they are until then; EXEC_NO_OP: none */
};

struct exec_list {
    struct aq_sequence *first, *last;
    uint32_t count;
};

/* Panels of a matrix that lie together while a step runs: resident, or in a chunk of the ring. */
struct exec_run {
    uint32_t first, count; /* panels */
    uint32_t chunk;        /* UINT32_MAX: resident */
    uint64_t offset;       /* in the chunk */
};

/* An op that was issued to a lane and has not finished. */
struct exec_issued {
    uint32_t op;
    bool idle; /* the op has no work: it is done when it comes to the front */
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
    uint64_t busy_from_ns; /* disk lanes: the time since which an op is in flight */
};

enum { AQ_EXEC_LANE_DEPTH = 64, AQ_EXEC_DISK_DEPTH = 32 };
#define EXEC_NO_OP UINT32_MAX
/* Most bytes of weights in flight from disk at a time. */
#define AQ_EXEC_WEIGHTS_BYTES (64 * AQ_MIB)

/* The rows of a HEAD that a GPU is computing: as a rule all that are left. */
struct exec_round {
    uint32_t first, rows;
    bool holds;   /* no other op is issued to the lane until the answers are read */
    bool on_host; /* the host chooses the tokens; else the device does, and answers has them */
    struct aq_compute_cuda_answers answers;
};

/* Ops of a GPU's compute lane that have been issued and go to the stream together, in order; ops
 * without work are among them. */
enum { AQ_EXEC_BUNDLE_MAX = 32 };
struct exec_bundle {
    uint32_t op[AQ_EXEC_BUNDLE_MAX], count;
    uint32_t desks; /* most desks that the ops may fill */
};

/* An op as a job of a stream. */
struct exec_job {
    struct aq_executor *x;
    uint32_t op;
    struct aq_device_span span;
    struct exec_round round;
    struct aq_device_range output; /* virtual time: the bytes that the op overwrites */
};

/* A move as disk transfers, or as pieces of a copy.  Moves of KV through one slot share a list. */
struct exec_move {
    struct aq_disk_group group;
    struct aq_copy_piece *piece;
    struct aq_disk_transfer *transfer;
};

/* A pass: its rows, and when it began. */
struct exec_pass {
    uint32_t prefill, decode;
    uint64_t start_ns;
};

/* A list of pieces under construction; the caller sets the direction. */
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
    /* Workspaces of attention, by exec_attending_lane(). */
    struct exec_moves {
        struct aq_kv_move *move; /* [seats of a micro-batch] */
        uint8_t **run;           /* [seats of a micro-batch] */
    } kv_moves[2];
    struct aq_kv_prefill_layout prompt_layout;
    /* Its rooms: scratch, and in it the runs of a prompt and those that stay of one
     * (aq_kv_prefill_layout.kept). */
    struct exec_prompt_room {
        uint8_t *scratch;
        uint8_t **block, **kept; /* [runs of a prompt] */
    } prompt_room[AQ_KV_PROMPT_ROOMS_MAX];
    size_t transfer_bytes; /* bytes of a seat in a device's KV stage, beside its runs */
    struct exec_list waiting, finished;
    struct aq_engine_stats stats;
    struct aq_rule_stats *rules; /* [layers][kv_heads] of policies whose heads have rules */

    /* Issue. */
    struct exec_lane lane[AQ_LANE_COUNT];
    uint64_t *done;             /* [op] passes in which the op has finished */
    uint64_t pass;              /* number of the current pass */
    uint32_t left;              /* ops of the current pass that have not finished */
    uint32_t ahead;             /* ops of the next pass that have finished */
    uint32_t late;              /* ops of the last pass that have not finished, */
    struct exec_pass late_pass; /* whose time is counted when they have */
    uint64_t ended_ns;          /* the last pass that has ended */
    /* early.c */
    struct {
        bool allowed, turning;
        uint32_t *head;           /* [micro-batches] the op */
        struct aq_sequence **row; /* [seats] of all micro-batches */
    } early;
    /* On a GPU: [op] how often the op was issued, and its last place in its stream. */
    uint64_t *issued, *ticket;
    bool held;    /* a HEAD holds the compute lane: struct exec_round */
    bool bundles; /* ops go to the stream in bundles */
    struct exec_bundle bundle;
    bool *watched;       /* [op] an op of another lane waits for it */
    char failure[256];   /* a launch that failed; empty: none */
    bool inline_compute; /* the issuing thread computes, since no other lane has work */
    struct aq_completions *completions;
    struct exec_job *job;   /* [op] */
    struct exec_move *move; /* [op], NULL without moves */
    struct aq_disk_lane *disk;
    bool disk_opened;      /* open_disk was called */
    bool *checked;         /* [chunk] its bytes have been compared, or are about to be */
    uint64_t *scratch_sum; /* [runs of KV on disk, then hidden states]: sum of the last write */
    struct aq_move_sizes sizes;
    void *moves; /* all lists, then stage_block */
    size_t moves_bytes;
    uint8_t **stage_block; /* [stage][stage_seats][runs]: addresses in the device's KV stages, made
                              by each op that attends */
    uint32_t weights_in_flight_max;

    /* Memory: a buffer for each class of slots. */
    uint8_t *class_buffer[AQ_SLOT_CLASS_COUNT];
    uint64_t class_bytes[AQ_SLOT_CLASS_COUNT];
    uint64_t *slot_offset;           /* [slot] in its class's buffer */
    struct exec_run *run;            /* of all matrices */
    uint32_t *run_first, *run_count; /* [aq_matrix_index()] */
    struct aq_segment *segment;      /* [segment_max] of one product; then those of the host lane */
    uint32_t segment_max;
    void *rows_buffer; /* everything per row and seat */
    size_t rows_bytes;
    void *tile_norm, *tile_inner, *tile_rotary, *tile_embed, *tiles;
    float *rotary_table; /* policy/rotary.h, where products run; NULL: no rotary positions */
    size_t rotary_bytes;
    size_t tiles_bytes, sampler_bytes;
    void *host_tile;     /* products on the host: the register NORM */
    float *host_vectors; /* products on the host: a copy of the model's vectors */
    size_t host_tile_bytes, host_vectors_bytes;
    struct aq_sample_work sampler; /* [threads] of each */
    struct aq_logits_stat *logits_stat;
};

/* The lane of an op that attends, as work space has one: 0, or 1 beside products. */
static inline uint32_t exec_attending_lane(const struct aq_op *op)
{
    return op->lane == AQ_LANE_HOST_COMPUTE;
}

static inline uint8_t *exec_slot(const struct aq_executor *x, enum aq_slot_class c, uint32_t index)
{
    return x->class_buffer[c] + x->slot_offset[x->program->first[c] + index];
}

/* ---- registers.c ---- */
/* The slot, where products run, of a register that holds all rows of an op's micro-batch. */
uint8_t *exec_register(const struct aq_executor *x, const struct aq_op *op, enum aq_register r);
/* The bytes that an op of the compute lanes overwrites without reading them; empty if they are not
 * one range. */
struct aq_device_range exec_output(const struct aq_executor *x, const struct aq_op *op);

/* ---- turn.c ---- */
extern const struct aq_seats_ops exec_seats_ops;
void exec_turn(struct aq_executor *x, uint32_t k);
/* Makes rows for sequences submitted since the last TURN, sorts rows by part, and counts the work
 * of the pass.  Without refill, a block that takes no more sequences starts to decode. */
void exec_begin_pass(struct aq_executor *x, uint32_t *ret_prefill, uint32_t *ret_decode);

/* The token of a row that has been answered after its micro-batch has turned. */
void exec_answered(struct aq_executor *x, struct aq_sequence *s, uint32_t token, bool bad);

/* ---- early.c ---- */
int exec_early_open(struct aq_executor *x, struct aq_err *reterr);
void exec_early_close(struct aq_executor *x);
/* Says of a HEAD that is about to be put on the stream whether its micro-batch turns early. */
void exec_early_asks(struct aq_executor *x, uint32_t k, const struct exec_round *round);
/* May micro-batch k turn though its HEAD has not answered? */
bool exec_early_may_turn(const struct aq_executor *x, uint32_t k);
/* Around a turn: of one that is early the rows' answers are expected, unless they are here. */
void exec_early_begin_turn(struct aq_executor *x, uint32_t k);
void exec_early_end_turn(struct aq_executor *x, uint32_t k);
/* These bytes of tables of pages are others now. */
void exec_early_changed(struct aq_executor *x, const void *at);
/* Ops are on the stream, behind what the device reads of changes: those of the micro-batches that
 * have some, or of what lies between them, too.  And: the op is over. */
void exec_early_sent(struct aq_executor *x, uint32_t op, bool all);
void exec_early_over(struct aq_executor *x, uint32_t op);

/* ---- dispatch.c ---- */
/* What computes the ops of this op's lane. */
const struct aq_compute *exec_compute_of(const struct aq_executor *x, const struct aq_op *op);
void exec_compute(struct aq_executor *x, const struct aq_op *op);
/* The same on a GPU: puts ops on the stream, with one sending of their arguments if `together`.
 * 0, or the code of a failed launch. */
int exec_enqueue(struct aq_executor *x, const uint32_t *ops, uint32_t count, bool together,
                 void *stream);
/* ---- ops.c ---- */
/* Runs primitives over all rows of the op's micro-batch, tile by tile. */
void exec_run_rows(struct aq_executor *x, const struct aq_op *op, const struct aq_prim_list *list);
/* Unpacks the matrices of the op's step into its slot. */
void exec_unpack(struct aq_executor *x, const struct aq_op *op);
/* HEAD's product: logits of [first, first + rows) of the micro-batch's logit rows. */
void exec_logits(struct aq_executor *x, const struct aq_op *op, uint32_t first, uint32_t rows);

/* ---- rotary.c ---- */
/* Takes and fills the rotary table of the plan, if the model has rotary positions. */
int exec_rotary_open(struct aq_executor *x, struct aq_err *reterr);
void exec_rotary_close(struct aq_executor *x);
/* The value of exec_batch.position for position 0 of a sequence. */
uint32_t exec_position_first(const struct aq_executor *x, const struct aq_sequence *s);
/* What turns a query of a sequence back by `positions` in front of its first `slots` slots. */
struct aq_attn_turn exec_rotary_back(const struct aq_executor *x, const struct aq_sequence *s,
                                     uint32_t positions, uint32_t slots);

/* What turns from `first` on are on average for `count` positions: cosines, then sines. */
void exec_rotary_mean(const struct aq_executor *x, const struct aq_sequence *s, uint32_t first,
                      uint32_t count, float *ret);

/* ---- expect.c ---- */
/* What the keys of a seat's prompt are worth to queries to come: into a->seqs[0].slots.score, in
 * the scratch of prompts. */
void exec_expect(struct aq_executor *x, const struct aq_compute *c, uint32_t seat,
                 const struct aq_attn *a, uint32_t skip);

/* ---- attend.c ---- */
/* Stores the new keys and values of a part's sequences, runs attention for their queries, and
 * updates scores, positions and victims of their slots. */
void exec_attend(struct aq_executor *x, const struct aq_op *op, const struct aq_compute *c,
                 const float *qkv, void *attention);

/* ---- read.c ---- */
/* In a layer whose rows choose what they read: makes tables of that for sequences seq
 * [a->seq_count], whose new keys are stored. */
void exec_read_part(struct aq_executor *x, const struct aq_op *op, const struct aq_compute *c,
                    const struct aq_attn *a, struct aq_attn_seq *seq, const uint32_t *seat);
/* What the row of a seat has chosen in an op that is not over yet: full head-blocks
 * [kv_heads][*ret_stride], *ret_count of each head; NULL: it reads all. */
const uint32_t *exec_read_chosen(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                                 uint32_t *ret_stride, uint32_t *ret_count);

/* ---- cross.c ---- */
/* Of a prompt that is cut over all layers, whose keys and values lie in scratch if layers are cut
 * before, and at home if not: takes what the keys of a layer are worth, [kv_heads][stride of the
 * scratch], and cuts the layer. */
void exec_cross_rank(struct aq_executor *x, const struct aq_compute *c, uint32_t seat,
                     uint32_t layer, const float *value);
/* Once all layers of the kind are ranked: the heads of all of them give up what is worth least, and
 * what they keep moves to the first runs of each layer. */
void exec_cross_cut(struct aq_executor *x, const struct aq_compute *c, uint32_t seat,
                    uint32_t kind);

/* ---- profile.c ---- */
/* Takes what rules are counted in, if heads have any; free() releases it. */
int exec_profile_open(struct aq_executor *x, struct aq_err *reterr);
/* Of a prompt whose heads find rules: takes the sums that lie in scratch, and says which rule each
 * head of a layer has, what it keeps, and how much that is. */
void exec_profile_prompt(struct aq_executor *x, uint32_t seat, uint32_t layer);
/* Once what is kept is at home, with scores and positions: what the next row finds. */
void exec_profile_kept(struct aq_executor *x, uint32_t seat, uint32_t layer);
/* In front of a row: gives it a slot in each head, as aq_attn_slots.victim. */
void exec_profile_place(struct aq_executor *x, uint32_t seat, uint32_t layer);
/* Behind it: what the next row finds. */
void exec_profile_row(struct aq_executor *x, uint32_t seat, uint32_t layer);

/* ---- bundle.c ---- */
int exec_bundle_open(struct aq_executor *x, struct aq_err *reterr);
void exec_bundle_close(struct aq_executor *x);
/* Does the GPU itself order an op of lane `l` (with work or not) behind an op of lane `other`?  An
 * op without work is ordered by its own lane alone: it ends when the op before it in that lane
 * ends. */
bool exec_lanes_chain(const struct aq_executor *x, enum aq_lane l, enum aq_lane other, bool work);
/* On a GPU an op may be issued when its deps are in streams: then its own stream waits for theirs.
 * Puts these waits into the stream (look: does not) and returns whether there are any. */
bool exec_follow_deps(struct aq_executor *x, const struct aq_op *op, uint64_t pass, bool look);
/* Can the open bundle take this op, too? */
bool exec_bundle_takes(struct aq_executor *x, uint32_t op_index, uint64_t pass);
/* Adds the op to the bundle, or begins one; returns whether the bundle is then to be sent. */
bool exec_bundle_add(struct aq_executor *x, uint32_t op_index);
/* Puts the bundle, if there is one, on the stream; its token is the first of its ops. */
int exec_bundle_send(struct aq_executor *x);

/* ---- head.c ---- */
/* Logits and the choice of tokens.  On a GPU: enqueues one round of rows. */
void exec_head(struct aq_executor *x, const struct aq_op *op);
/* After a round: gives the seats their tokens.  True when more rows are to be enqueued. */
bool exec_head_goes_on(struct aq_executor *x, const struct aq_op *op);
/* HEAD under replay: chooses token 0 and computes nothing. */
void exec_head_replay(struct aq_executor *x, const struct aq_op *op);

/* ---- host_product.c ---- */
int exec_host_open(struct aq_executor *x, struct aq_err *reterr);
void exec_host_close(struct aq_executor *x);
/* PRODUCT_HOST. */
void exec_product_host(struct aq_executor *x, const struct aq_op *op);
/* Puts the host's columns into the output; returns the primitives that follow the product. */
struct aq_prim_list exec_merge(struct aq_executor *x, const struct aq_op *op);
/* The piece of a move of INPUT or COLUMNS. */
void exec_link_share(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l);

/* ---- kv_moves.c ---- */
/* Addresses of a seat's KV for an attention op: its pages, or their copies in the op's stage. */
uint8_t *const *exec_kv_blocks(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* The partly filled run of a seat on disk that is attended where the run lies, apart from the
 * others, which are in a stage; NULL: it is with them. */
uint8_t *exec_kv_tail_apart(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* Addresses of such a seat's runs once all of them are in the stage. */
uint8_t *const *exec_kv_staged(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                               uint32_t runs);
/* The same for a seat whose heads hold different numbers of slots, with this KV: sets table and
 * lengths of *seq. */
void exec_kv_ragged_table(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                          const struct aq_seat_kv *kv, struct aq_attn_seq *seq);
/* Scores, positions and victims of the seat for an attention op; all NULL in layers that drop no
 * keys. */
struct aq_attn_slots exec_kv_slots(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* The delta of a seat on disk, which the attention op applies and adds to. */
struct aq_kv_delta exec_kv_delta(struct aq_executor *x, const struct aq_op *op, uint32_t seat);
/* Lists the transfers, or the pieces, of a move of KV. */
void exec_list_kv(struct aq_executor *x, uint32_t op_index);
void exec_link_kv(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l);

/* ---- check.c ---- */
/* Fills *ret, which the disk lane checks moved bytes by; called before the disk is opened. */
int exec_check_open(struct aq_executor *x, struct aq_disk_check *ret, struct aq_err *reterr);
void exec_check_close(struct aq_executor *x);
/* Are the bytes of this move to be checked? */
bool exec_check_wanted(struct aq_executor *x, const struct aq_op *op);

/* ---- moves.c ---- */
int exec_moves_open(struct aq_executor *x, struct aq_err *reterr);
void exec_moves_close(struct aq_executor *x);
/* Starts a move that has work; its token is the op's index. */
int exec_start_move(struct aq_executor *x, uint32_t op_index);

/* ---- lists.c ---- */
/* One more range of a disk move, and one more piece of a copy. */
void exec_add_transfer(struct aq_executor *x, uint32_t op_index, uint32_t set, uint64_t offset,
                       uint64_t bytes, void *buffer);
void exec_add_piece(struct exec_pieces *l, void *device, void *host, uint64_t bytes);

#endif
