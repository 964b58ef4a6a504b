/* SPDX-License-Identifier: Apache-2.0
 * tests/sim/drawn.h - runs of the engine drawn at random: a crowd of sequences, and options that
 * say where everything lives and how it moves.  What comes out of a run is compared bit by bit.
 * Every draw is a function of (seed, number). */
#ifndef AQ_TESTS_SIM_DRAWN_H
#define AQ_TESTS_SIM_DRAWN_H

#include "engine/core/engine_seams.h"

enum {
    CROWD_MAX = 16,
    CROWD_PROMPT_MAX = 110, /* four runs of keys */
    CROWD_TOKENS_MAX = 48,  /* more than a run of decoded keys */
    CROWD_TOPS = 2,
};

struct crowd_one {
    struct aq_sequence s;
    uint32_t prompt[CROWD_PROMPT_MAX], tokens[CROWD_TOKENS_MAX];
    float logprobs[CROWD_TOKENS_MAX], prompt_logprob[CROWD_PROMPT_MAX];
    struct aq_top tops[CROWD_TOKENS_MAX * CROWD_TOPS], prompt_tops[CROWD_PROMPT_MAX * CROWD_TOPS];
};

struct crowd {
    uint32_t count;
    struct aq_workload work;
    struct crowd_one one[CROWD_MAX];
};

/* Lengths, prompts and sampling of `count` sequences; outputs are cleared. */
void crowd_draw(struct crowd *c, uint64_t seed, uint32_t count, uint32_t prompt_max,
                uint32_t tokens_max, uint32_t vocab);
/* With how many tokens both prompts begin. */
uint32_t crowd_alike(const struct crowd_one *a, const struct crowd_one *b);
/* Puts the prompts into the order of their tokens, so that those that begin alike stand together,
 * and lets none be scored. */
void crowd_sort(struct crowd *c);
/* Lets about half of the sequences, drawn by (seed, number), go on from tokens that they had in
 * `whole`, a run of the same crowd. */
void crowd_give(struct crowd *c, const struct crowd *whole, uint64_t seed, uint64_t number);
/* Submits all and runs passes until nobody is left; 0 or the error of a pass. */
int crowd_run(struct crowd *c, struct aq_engine *e, struct aq_err *reterr);
/* Compares every output; false: `text` says the first difference. */
bool crowd_same(const struct crowd *want, const struct crowd *got, char *text, size_t text_bytes);
/* Have those sequences that ended given what they ought to?  *ret_ended: how many that are. */
bool crowd_same_ended(const struct crowd *want, const struct crowd *got, uint32_t *ret_ended,
                      char *text, size_t text_bytes);
/* Of every output. */
uint64_t crowd_hash(const struct crowd *c);
/* Have all sequences ended as asked for, with as many tokens? */
bool crowd_whole(const struct crowd *c);

/* What a drawn run may use. */
struct drawn_place {
    const char *dirs[3]; /* for scratch */
    uint32_t dir_count;
    const char *cache_dir;
    bool direct;          /* O_DIRECT works in all of them */
    uint64_t chunk_pages; /* most, of 4096 bytes */
};

struct drawn {
    struct aq_engine_opts opts; /* model and formats are the caller's */
    char placement[160], link[32], host_products[16];
    const char *dirs[3];
    char text[1024]; /* all of it in one line */
};

/* Formats: compute, weights and KV. */
void drawn_formats(struct aq_engine_opts *opts, uint64_t seed, uint64_t number);
/* A KV policy and its options: one of DRAWN_KV - 1 with a number of their own, the first of which
 * keeps everything, or (DRAWN_KV - 1) any. */
enum { DRAWN_KV = 36 };
uint32_t drawn_kv(struct aq_engine_opts *opts, uint64_t seed, uint64_t number);
/* Everything else that must not change a token.  d->opts.model_dir or .shape and the formats are
 * there. */
void drawn_plan(struct drawn *d, uint64_t seed, uint64_t number, const struct drawn_place *place);
/* The same formats with everything in memory, one op after the other. */
struct aq_engine_opts drawn_reference(const struct aq_engine_opts *opts);

#endif
