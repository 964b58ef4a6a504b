/* SPDX-License-Identifier: Apache-2.0
 * policy/seats.h - the seats of a block: the sequence in each seat, the slots that it holds, and
 * its rows in the coming pass.  One state machine for two users: the executor runs sequences, and
 * the forecast runs lengths, so that both see the same passes.  Allocates nothing; knows nothing of
 * tokens, pages or buffers.  Pure. */
#ifndef AQ_POLICY_SEATS_H
#define AQ_POLICY_SEATS_H

#include "policy/admit.h"
#include "policy/kv_cross.h"
#include "policy/kv_layout.h"
#include "policy/program.h"

/* The KV of a seat's sequence in a layer of one kind. */
struct aq_seat_kv {
    struct aq_kv_limits limits;
    uint32_t before, held; /* slots in use before and after the pass, per head or on average */
    uint32_t start, most;  /* of a pass that feeds several tokens: before the first of them, and the
                              most after any of them */
    uint32_t spare;        /* aq_kv_limits_spare; of prompts that are cut over all layers up to
                              aq_kv_cross_whole runs; and where layers have packed runs of their
                              own what each head has at most in its first head-block of growth */
    uint64_t packed;       /* where heads have rules: packed runs of the kind's layers together */
    uint32_t delta;        /* on disk: rows that wait to be written before the pass, */
    uint32_t delta_next;   /* and after it */
    bool differ;           /* heads hold different numbers of slots */
    bool apart;            /* layers have packed runs of their own, as many as their heads fill */
    bool whole;            /* the prompt, which is cut over all layers, has the pages that it
                              needs before, until the seat's next turn */
    bool drops;            /* the sequence will drop keys, so positions and scores are kept */
    bool overwrites;       /* the new key takes the slot of a dropped one; where heads have rules it
                              does in some of them, and is stored as if in all */
    bool drops_many;       /* in front of the new key: what is left are aq_kv_limits_cut slots */
    bool rewrites;         /* all whole runs go to disk again, with the delta */
};

/* One more slot for a key, or one that is overwritten. */
void aq_seat_kv_step(struct aq_seat_kv *kv);

/* Runs of a sequence whose heads hold `slots` slots, or hold them on average; where layers have
 * packed runs of their own those for growth alone. */
static inline uint32_t aq_seat_kv_runs(const struct aq_seat_kv *kv, uint32_t slots)
{
    if (kv->apart)
        slots -= kv->limits.heavy_prompt + kv->limits.recent_prompt;
    return (uint32_t)aq_div_up((uint64_t)slots + kv->spare, AQ_HEAD_BLOCK_SLOTS);
}
/* Where heads of a layer differ: packed runs, */
static inline uint32_t aq_seat_kv_packed(const struct aq_seat_kv *kv)
{
    uint32_t kept = kv->limits.heavy_prompt + kv->limits.recent_prompt;
    return (kept + kv->spare) / AQ_HEAD_BLOCK_SLOTS;
}
/* and rows that each head has taken in since the prompt was cut, where heads differ. */
static inline uint32_t aq_seat_kv_grown(const struct aq_seat_kv *kv)
{
    return kv->held - (kv->limits.heavy_prompt + kv->limits.recent_prompt);
}

/* A seat (vLLM: a running slot) takes one sequence; its index in the block = micro-batch * seats
 * per micro-batch + place.  Numbers are those of the pass that the seat's rows are bound for. */
struct aq_seat {
    bool taken;
    bool over;  /* within a turn: its sequence has ended */
    bool takes; /* its prefix lies in pages that seat `from` left behind, which are its own now */
    uint32_t prompt, max_new;
    uint32_t given;        /* of its new tokens the first so many are known when it sits down */
    uint32_t prefix;       /* of the prompt's tokens, the first so many are those of seat `from`, */
    uint32_t from;         /* and not computed again: whole pages are shared, and the rest is
                              copied as the prompt is attended */
    uint32_t copied;       /* or, of a sequence that owns all its slots, the first so many keys are
                              copied from what `from` computes in the same pass */
    uint32_t brought, via; /* in the pass, of KV that passes through a stage: the first so many
                              slots lie there in the place of the lower seat `via` */
    uint32_t beside;       /* in the pass: slots that its row has in pages of the decode row in
                              front of it in its part: attention reads them for both at once */
    uint32_t rows;         /* in the pass: the prompt's, those of given tokens, one, or 0 */
    uint32_t seen;         /* positions after the pass, kept or not; 0: the prompt is to come */
    uint32_t last;         /* most positions of the sequence */
    uint32_t next;         /* within a turn: the seat of its part that is bound after it */
    uint64_t bound;        /* the pass that computes its prompt, as aq_seats.pass */
    struct aq_seat_kv *kv; /* [kinds of layers] */
};

/* A sequence that waits for a seat. */
struct aq_sitter {
    uint32_t prompt, max_new;
    uint32_t kv_prompt, kv_new; /* lengths that limit its KV, if not its own; 0: its own */
    uint32_t given;             /* tokens behind the prompt that are known; fewer than max_new */
    uint32_t shares;            /* most of its prompt's first tokens that need not be computed where
                                   another prompt begins with them, too */
};

/* Calls to the user of the seats. */
struct aq_seats_ops {
    /* The first waiting sequence, which asks for a seat; false: none waits. */
    bool (*next)(void *user, struct aq_sitter *ret);
    /* With how many tokens of the prompt in seat `from` the first waiting one begins; 0 will do
     * where they are no more than `known`. */
    uint32_t (*alike)(void *user, uint32_t from, uint32_t known);
    /* That sequence has this seat now, and what seat `from` left where it takes it. */
    void (*sat)(void *user, uint32_t seat);
    /* Has the sequence in this seat ended?  If so the seat is free when this returns, but for its
     * pages and its prompt, which may be asked for till `gone`; without `gone` its pages, too. */
    bool (*ended)(void *user, uint32_t seat);
    /* What an ended sequence has left in this seat is not needed.  NULL: nothing is ever left. */
    void (*gone)(void *user, uint32_t seat);
    /* The seat's next key, or its prompt, is in the coming pass: of a part's seats keys come in
     * the order of `aq_seats.order`, in which they stand side by side with those that they share
     * pages with, and before prompts.  May be NULL. */
    void (*bound)(void *user, uint32_t seat);
    /* The seat's prompt, which had pages in layers of this kind as if all of it stayed, has been
     * cut: returns the packed runs that its heads fill in all of them.  NULL: as many as they
     * may. */
    uint64_t (*cut)(void *user, uint32_t seat, uint32_t kind);
};

struct aq_seats_opts {
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    bool refill; /* seats are filled again as they become free; else a whole block at a time */
    const struct aq_seats_ops *ops;
    void *user;
};

struct aq_seats_arrays {
    struct aq_seat *seat;            /* [seats] */
    struct aq_seat_kv *kv;           /* [seats + 1][kinds]: of each seat, and of one that asks */
    struct aq_admit_length *lengths; /* [seats + 1][kinds] workspace of admission */
    uint32_t *prompt_rows;           /* [micro-batches] prompt rows of the coming pass */
    /* [seats] the taken ones, and slots that each has in pages of the one before it. */
    struct aq_seat_link {
        uint32_t seat, prefix;
    } * order;
};

struct aq_seats {
    struct aq_seats_opts opts;
    struct aq_seat *seat;            /* [count] */
    struct aq_seat_kv *asks;         /* [kinds] */
    struct aq_admit_length *lengths; /* [count + 1][kinds] */
    uint32_t *prompt_rows;           /* [micro-batches] */
    struct aq_seat_link *order;      /* [seated] */
    uint32_t count, seated;
    /* Within a turn: the seat whose ended sequence has left pages that no other has, to one that
     * begins as it did; -1: none. */
    int64_t left;
    uint64_t pass;  /* passes that have begun; what turns is bound for the one after */
    bool filling;   /* without refill: the block is being filled, no sequence decodes yet */
    bool turned;    /* all micro-batches have turned: the coming pass is about to begin */
    uint64_t steps; /* upper bound of admission's comparisons: the square of the seated sequences,
                       in each kind of layers, for each one that asked; and of looks for rows that
                       stand side by side: the seated ones, for each turn */
};

/* The arrays belong to the caller, who has set them to zero. */
void aq_seats_open(struct aq_seats *s, const struct aq_seats_opts *opts,
                   const struct aq_seats_arrays *arrays);

/* The seat as this sequence would find it, with kv[kinds] for its KV, and nothing shared. */
struct aq_seat aq_seats_seat(const struct aq_seats *s, const struct aq_sitter *who,
                             struct aq_seat_kv *kv);

/* Do sequences in seats of this part share the pages of what they begin with alike?  Where KV is
 * attended in the memory that products run in, whole: it stays there, or passes through a stage,
 * which it is brought to once for all of a part.  In one of KIVI's formats a prompt sees no codes,
 * which are all that pages have of another.  Those that drop keys own all their slots anywhere. */
bool aq_seats_shares(const struct aq_plan *plan, const struct aq_part *part);
/* May a sequence that takes seat `to` begin with pages of the one in seat `from`?  Both seats have
 * their pages in one pool, no key of the one in `from` is ever dropped, and its prompt is computed
 * no later: of two prompts in one pass, the one in the lower seat, of the same micro-batch where
 * steps visit micro-batches up and down.  Where KV passes through a stage, the moves of another
 * part or micro-batch do not wait for those of this one: the prompt in `from` was computed before
 * the last pass, and both have their KV in host memory; on disk each part has its own.  Of those
 * who may, the lowest seat lends from which the one that asks, of whose prompt one token is left,
 * has most tokens. */
bool aq_seats_lends(const struct aq_seats *s, uint32_t from, uint32_t to);
/* May a sequence in seat `to` also copy what is no whole page from the one in seat `from`, which
 * lends to it?  Where the memory of the products is the host's, and `from` has surely no end before
 * the coming pass: it has turned.  Nor where a new token of `from` may be stored in what is copied
 * meanwhile: that of another micro-batch, side by side. */
bool aq_seats_copies_tail(const struct aq_seats *s, uint32_t from, uint32_t to);
/* Slots of the seat's prefix in pages that are shared; those behind them are copied. */
static inline uint32_t aq_seat_shared_slots(const struct aq_plan *plan, const struct aq_seat *t)
{
    return t->takes ? 0 : t->prefix / plan->shape.page_slots * plan->shape.page_slots;
}

/* Of a sequence that owns its slots, most of its prompt's first tokens that need not be computed
 * (aq_kv_policy_copies_most), in layers of all kinds. */
uint32_t aq_seats_copies_most(const struct aq_plan *plan, const struct aq_seat *t);
/* May such a sequence, which asks for seat `to` as *t, copy its first keys from seat `from`?  Its
 * prompt is computed in the same op in front, and its keys are then where they have been made: at
 * home, or, of one that is cut or encoded, in the scratch of prompts, which none in between uses.
 * Where all queries rank keys, their sums lie there, too, of as many queries as the two have in
 * common, which are then no fewer than the one in front copied itself. */
bool aq_seats_copies(const struct aq_seats *s, uint32_t from, uint32_t to, const struct aq_seat *t);

/* Prompt tokens of a seat that are not computed. */
static inline uint32_t aq_seat_shared(const struct aq_seat *t)
{
    return t->prefix + t->copied;
}

/* Between two passes, a micro-batch at a time, in the order of the program's TURN ops: sequences
 * that have ended leave, the others advance, and waiting ones take free seats.  Of those that end
 * the one stays until the others sit with which the first waiting one has most in common, so that
 * a header which all of a micro-batch share outlives them. */
void aq_seats_turn(struct aq_seats *s, uint32_t k);
/* After all turns, and before the first pass: sequences that have come since then take seats;
 * without refill, a block that takes no more starts to decode. */
void aq_seats_begin_pass(struct aq_seats *s);

/* Adds the work of a seat with rows in the coming pass to the work of its part. */
void aq_seats_count(const struct aq_seats *s, uint32_t seat, struct aq_part_shape *io);

/* Of slots that a row has in common with the one in front of it, those that both read at once:
 * none where they are less than a quarter of its keys (aq_attn). */
static inline uint32_t aq_seats_joint(uint32_t common, uint32_t keys)
{
    return 4ull * common >= keys ? common : 0;
}

/* Keys attended by all rows of a prompt, where each sees the last `window` of them (0: all). */
uint64_t aq_seats_key_pairs(uint64_t prompt, uint64_t window);

uint32_t aq_seats_part(const struct aq_plan *plan, uint32_t seat);

/* May a seat of this part take in several given tokens in a pass?  Their rows are attended one
 * after the other by decode attention, so the bits are those of as many passes; but moves of KV,
 * the ring of a residual and pages of heads that differ are laid out for one new key a pass. */
bool aq_seats_feeds_many(const struct aq_plan *plan, const struct aq_part *part);

#endif
