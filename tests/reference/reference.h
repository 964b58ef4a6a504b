/* SPDX-License-Identifier: Apache-2.0
 * tests/reference/reference.h - decoders in f64 with a KV cache that shrinks, slow and plain: what
 * the engine is compared with (OPT, the LLaMAs and Qwens, Phi-3, GPT-NeoX).  Keys and values of
 * every position are kept for good; what a head has dropped is a mask.  Each variant is written
 * from its own description, one function a stage, not from the rule that policy/kv_policy.h brings
 * them under.  Shares with the engine the reading of files and nothing else.  Test code: out of
 * memory ends the test. */
#ifndef AQ_TESTS_REFERENCE_H
#define AQ_TESTS_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

/* ---- variants ---- */

enum ref_variant {
    REF_FULL,
    REF_H2O,        /* `heavy` of the highest scores, and the `recent` newest */
    REF_HEAVY,      /* heavy + recent slots: the highest scores, and the current token */
    REF_WINDOW,     /* the first `heavy` tokens, and the `recent` newest */
    REF_FLEXGEN,    /* heavy = K: a ring of recent tokens, forced promotion */
    REF_HF,         /* attends one more than heavy + recent, then drops */
    REF_ADAKV,      /* h2o whose heads of a layer share `heavy` tokens each among them */
    REF_SNAPKV,     /* of the prompt, the last `recent` tokens and what they attend to; then all */
    REF_TOVA,       /* `heavy` tokens that the newest one attends to, the same in all heads */
    REF_KNORM,      /* of the prompt, the `heavy` shortest keys; then all */
    REF_KEYDIFF,    /* of the prompt, the `heavy` keys least like the others; then all */
    REF_EXPECTED,   /* of the prompt, the `heavy` keys that later queries may attend to; then all */
    REF_KVCOMPRESS, /* of the prompt, heavy + recent of a head, on average over all layers */
    REF_FASTGEN,    /* each head by the first of five rules that keeps enough attention */
    /* Up to `high` tokens, and at the next one all but `heavy` and the `recent` of them go: */
    REF_BULK_H2O,     /* the heavy ones got most attention, */
    REF_BULK_SNAPKV,  /* the same among their neighbours, */
    REF_SCISSORHANDS, /* or least often a low one */
};

/* What a head of k and v counts as its score, of what several query heads give it. */
enum ref_group { REF_SUM, REF_MEAN, REF_MAX, REF_FIRST, REF_MAX_OF_SUMS };

struct ref_policy {
    enum ref_variant variant;
    enum ref_group group;
    uint32_t heavy, recent;
    /* h2o alone: tokens at the start that stay, how much of a score survives a step (0 is 1), and
     * for how many steps a new token is safe. */
    uint32_t sinks, grace;
    double decay;
    /* Where heads of a layer share `heavy` tokens each among them (adakv, and others that are said
     * to): those that each keeps for itself; or the percentage of its number that is even. */
    bool shared;
    uint32_t floor, mix;
    double floor_share; /* `floor` is this part of a layer's heavy tokens, where that differs */
    /* snapkv: how many tokens around one have a say in its score: their mean, or the largest; of
     * each query head, or of their group. */
    uint32_t pool;
    bool pool_largest, pool_each;
    uint32_t observe;   /* how many last queries of the prompt count; 0: all */
    bool squares;       /* of each query head, what they gave counts squared */
    double cross_layer; /* even shares that a layer keeps before all share; 0: everything */
    /* Of tokens that stay beside the `recent` the last layer has about a part in `beta` of the
     * average, and the first has most; or the other way round.  0: all layers have as many. */
    uint32_t beta;
    bool rising;
    /* Tokens that go many at a time.  Of `high` so many go, `drop` or a part of them; of what is
     * left `even` or `asked` ones are heavy, or all but so many recent ones.  Attention counts of
     * the `history` last tokens, or of all (0), and of so many of a prompt that is cut (0: all). */
    uint32_t high, drop, asked_heavy, asked_recent, asked_history, asked_sinks, history;
    double drop_share;
    double low; /* what counts is -1 where a probability is below low / keys seen; 0: it is not */
    /* fastgen: the part of attention that a rule must keep; `heavy` are frequent, `recent` newest;
     * and bits of each token id's classes, 1 special and 2 punctuation, [vocab].  Of a prompt at
     * most `cap` tokens are kept; 0: all may be. */
    double mass;
    uint32_t cap;
    uint32_t ahead; /* expected: how many positions behind the prompt are looked at */
    const uint8_t *classes;
    /* Of the kept keys a step's queries read at most so many, but in the first layers; 0: all. */
    uint32_t read, read_dense;
    /* window: after the prompt a key's position is the number of kept keys before it. */
    bool in_cache;
    uint32_t places; /* how many there are then */
};

/* What one head of k and v of one layer has seen, [positions] each. */
struct ref_head {
    double *k, *v;   /* [positions][head_dim] */
    double *still;   /* the same of k before it turned */
    double *asked;   /* [positions][group][head_dim]: scaled queries before they turned */
    double *to_come; /* [head_dim][head_dim]: unit vectors, as positions to come turn them on
                        average; only where queries are expected */
    double *score;   /* attention received; frozen when dropped */
    double *each;    /* [query heads of the group][positions]: of the last `observe` queries */
    double *given;   /* [positions][positions]: what each query gave */
    double *rank;    /* of tokens that go many at a time: what they were chosen by */
    uint32_t *doubt; /* [positions]: queries that f32 may count otherwise */
    uint32_t group, room, dim;
    bool *kept; /* seen by the query of this step, or by the next one */
    bool *left; /* kept, but not read by the queries of this step; all false before a step */
    /* Of each 32 kept keys, where a step chose: what they were worth; how far its logarithm may be
     * off, as a bound is close to the border between two f16. */
    double *worth, doubt_of_worth;
    /* h2o:flexgen: which position lies in which slot.  heavy [K], ring [K - 1]. */
    uint32_t *heavy, *ring, heavy_count;
    uint32_t slots; /* where heads share: tokens that it may keep */
    /* fastgen: what each rule keeps of attention, the rule that it has, 0 to 4, and the classes of
     * its positions, which all heads have together. */
    double recovered[5];
    uint32_t rule;
    uint8_t *classes;
};

struct ref_stages {
    /* The prompt's n tokens have been attended in full and scored: of one head; or, where that is
     * NULL, of a layer's `count` heads, which decide together. */
    void (*prefilled)(const struct ref_policy *p, struct ref_head *h, uint32_t n);
    void (*layer_prefilled)(const struct ref_policy *p, struct ref_head *h, uint32_t count,
                            uint32_t n);
    /* The token at position t has its key and is about to attend: the prompt had n tokens. */
    void (*arrives)(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n);
    /* It gave probabilities p[0..t], 0 where a key is not kept. */
    void (*attended)(const struct ref_policy *policy, struct ref_head *h, uint32_t t, uint32_t n,
                     const double *p);
    /* All of a layer's `count` heads have attended; NULL: nothing is decided then. */
    void (*layer_attended)(const struct ref_policy *p, struct ref_head *h, uint32_t count,
                           uint32_t t);
    /* Only makes scores of what the prompt's tokens but the `recent` are worth; the best stay. */
    void (*valued)(const struct ref_policy *p, struct ref_head *h, uint32_t n);
};
/* The values of `expected` (tests/reference/expected.c). */
void ref_expected_valued(const struct ref_policy *p, struct ref_head *h, uint32_t n);

/* What stays of a prompt whose tokens have been valued, of one head or of heads that share. */
void ref_cut(const struct ref_policy *p, struct ref_head *h, uint32_t n);
void ref_cut_shared(const struct ref_policy *p, struct ref_head *h, uint32_t count, uint32_t n);
/* The same of the heads of all layers without a window, `each` of a layer. */
void ref_cut_all(const struct ref_policy *p, struct ref_head *const *h, uint32_t count,
                 uint32_t each, uint32_t n);

/* What stays of a prompt by rule number h->rule; and is a token kept for its class then? */
void ref_cut_by_rule(const struct ref_policy *p, struct ref_head *h, uint32_t n);
bool ref_is_of_class(const struct ref_head *h, uint32_t j);

const struct ref_stages *ref_stages(enum ref_variant v);

/* What a token has got in front of position `end`, where tokens go many at a time. */
double ref_given(const struct ref_policy *p, const struct ref_head *h, uint32_t end, uint32_t j);
/* Fills in what follows from `high`. */
void ref_divide(struct ref_policy *p);

/* ---- reading a part: Quest (arXiv 2406.10774), of 32 keys at a time ---- */

/* Sets `left` for the queries q [group][head_dim] (scaled) of the token at position t, which is
 * kept.  True if they leave keys out. */
bool ref_read(const struct ref_policy *p, struct ref_head *h, const double *q, uint32_t t);

/* Keeps `in` instead of `out`, as if the choice between them had gone the other way. */
void ref_head_adopt(const struct ref_policy *p, struct ref_head *h, uint32_t out, uint32_t in);
/* The same of two heads that decided together: one keeps `in`, the other loses `out`. */
void ref_layer_adopt(struct ref_head *loses, uint32_t out, struct ref_head *keeps, uint32_t in);

/* ---- model ---- */

/* y = W x + b; w is [in][out], so that the innermost loop runs over outputs; NULL: there is none.
 * */
struct ref_linear {
    uint32_t in, out;
    float *w, *b;
};
struct ref_norm {
    float *w, *b; /* b: NULL for none */
};
/* The first `dims` numbers of each head of q and k turn, in pairs (i, i + dims / 2) by position *
 * frequency[i]; what turns is multiplied by `factor`.  [1]: of sequences of more than `long_from`
 * tokens, where that is not 0. */
struct ref_rotary {
    uint32_t dims, long_from;
    double frequency[2][128], factor[2];
};
struct ref_layer {
    struct ref_norm norm_attention, norm_mlp;
    struct ref_norm norm_q, norm_k; /* of each head, where they have weights */
    struct ref_linear q, k, v, o, gate, up, down;
    uint32_t window; /* a query sees its own token and the window - 1 before it; 0: all */
};

/* What is easily got wrong and is not a number of a model, done so on purpose: goldens must see it.
 */
enum ref_mistake {
    REF_NO_MISTAKE,
    REF_INTERLEAVED,   /* pairs (2i, 2i + 1) turn */
    REF_HEADS_MODULO,  /* query head h has the keys of head h % kv_heads */
    REF_LATE_NORMS,    /* heads are normed behind the rotation */
    REF_FUSED_BY_KIND, /* GPT-NeoX's rows are [q, k, v][head], not [head][q, k, v] */
};

struct ref_model {
    uint32_t layers, hidden, inner, heads, kv_heads, head_dim, vocab, context;
    bool rms, parallel; /* norms without a mean; MLP beside attention */
    double eps, scale;  /* what q . k is multiplied by */
    struct ref_rotary rotary;
    enum ref_mistake mistake;
    bool kv_f16; /* keys and values are rounded to f16 as they are made */
    double (*activation)(double);
    float *tokens, *positions; /* [vocab][hidden], [context + 2][hidden] or NULL */
    struct ref_layer *layer;
    struct ref_norm norm;
    struct ref_linear head;
};

/* A checkpoint's folder: of OPT the pre-norm sizes without projections. */
struct ref_model *ref_model_open(const char *dir);
/* The same with a mistake, and with `changes` to config.json: members of an object that take the
 * place of its own; NULL: none. */
struct ref_model *ref_model_open_wrong(const char *dir, const char *changes, enum ref_mistake m);
void ref_model_close(struct ref_model *m);

/* ---- a sequence ---- */

struct ref_run {
    const struct ref_model *m;
    struct ref_policy policy;
    uint32_t room, prompt, count; /* positions there is room for, of the prompt, so far */
    uint32_t *ids;                /* [room] */
    uint8_t *classes;             /* [room] */
    struct ref_head *head;        /* [layers][kv_heads] */
};

/* Attends `n` prompt tokens in full and scores them under the policy's decay; logits [n][vocab], or
 * NULL.  last [vocab]: of the last token, or NULL. */
struct ref_run *ref_run_open(const struct ref_model *m, const struct ref_policy *p,
                             const uint32_t *ids, uint32_t n, uint32_t room, double *last);
/* The same prompt under another policy of the same decay, before anything was decoded: the prefill
 * does not depend on it.  `full` must be a run of REF_FULL. */
struct ref_run *ref_run_fork(const struct ref_run *full, const struct ref_policy *p);
void ref_run_close(struct ref_run *r);

/* The policy of a layer: of one with a window, that the tokens in the window stay, and of any other
 * the run's, with this layer's part of what stays of the prompt. */
struct ref_policy ref_layer_policy(const struct ref_run *r, uint32_t layer);

/* One more token, forced on it.  attends (NULL: nobody) is called for each head of k and v before
 * it is attended, after the policy has decided, and may adopt other choices. */
typedef void ref_attends_fn(void *user, struct ref_run *r, uint32_t layer, uint32_t head,
                            uint32_t t);
void ref_run_step(struct ref_run *r, uint32_t id, double *logits, ref_attends_fn *attends,
                  void *user);

/* ln softmax(logits)[id]; the index of the largest, the lowest of equals. */
double ref_logprob(const double *logits, uint32_t vocab, uint32_t id);
uint32_t ref_argmax(const double *logits, uint32_t vocab);

/* The nearest f16, the even one of two; x is within f16's range. */
double ref_round_f16(double x);

static inline struct ref_head *ref_head(const struct ref_run *r, uint32_t layer, uint32_t head)
{
    return &r->head[layer * r->m->kv_heads + head];
}

#endif
