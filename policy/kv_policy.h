/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_policy.h - which keys and values each (layer, KV head, sequence) keeps: named policies
 * as rows of one table.  A row says what keys are ranked by, at the prompt's end and at each
 * decoded token, so that ledger, program and executor can provide it; limits say how many slots one
 * sequence comes to hold.  The kernels that rank, select and move run elsewhere.  Pure.
 *
 * One rule covers the policies here.  Of a sequence with n prompt tokens (positions 0..n-1):
 *   prefill  Attention is full.  If n > keep_prompt, the last recent_prompt positions stay, and of
 *            the older ones the heavy_prompt of highest value, in the order of their positions.
 *            Positions below `sinks` count as the highest of all; of two equal values the lower
 *            position is dropped.
 *            Where a layer's heads share their slots (adakv: Ada-KV, arXiv 2407.11550, with the
 *            safeguard as NVIDIA's kvpress has it) each head first keeps the floor_prompt of its
 *            own highest values; the other kv_heads * (heavy_prompt - floor_prompt) slots go to
 *            the highest values of all heads together, of equal positions to the lower head's.
 *            With a mixed floor (ada-snapkv, ada-pyramid, as Ada-KV's own program has it) the
 *            kv_heads * heavy_prompt highest values of all heads only count: a head that has c of
 *            them keeps its round(c (1 - mix) + floor(mix heavy_prompt)) highest, halves to even:
 *            together at most a half a head more than the budget.
 *   decode   A row at position t finds `slots` slots full: of the keys with
 *            sinks <= position < t + 1 - recent_decode one is dropped, by score the lowest (the
 *            lower position loses a tie), by position the highest, and the new key takes its slot.
 *            Else the new key takes a slot of its own.  (Heads that hold different numbers of
 *            slots are all full from the prompt on: each drops one of its own.)  Then the row
 *            attends all slots held, its own included, and the attention that each key got enters
 *            its score: score = decay * score + f(p).
 *            tova (TOVA, arXiv 2401.06104) takes one victim for all heads of a layer, by the sums
 *            of their scores, which are those of the last row alone (decay 0).
 *   bulk     scissorhands (Scissorhands, arXiv 2305.17118), and h2o, snapkv and pyramidkv if told
 *            to, give up many keys at a time: a row that finds `slots` slots full first drops all
 *            but heavy_prompt + recent_prompt of them, chosen as those of a prompt, in the order
 *            of their positions; then its key joins them.  A prompt longer than `slots` is cut to
 *            as many.  Scores are of the last `history` rows in front of a drop, among them the
 *            last queries of a prompt that stays whole and is followed by fewer; 0: of all rows.
 *   growth   snapkv (SnapKV, arXiv 2404.14469), pyramidkv, knorm, keydiff and expected cut the
 *            prompt, and give up nothing after it: their slots are those kept and one for each new
 *            token.
 *   layers   Of a budget of C slots with a window of w, pyramidkv (PyramidKV, arXiv 2406.02069)
 *            gives the first layers more and the last ones less, in whole numbers as the authors'
 *            program has them.  For n prompt tokens, B = C - w, and `beta` (20):
 *              lo = B / beta, hi = 2 B - lo;  where hi >= n - w: hi = n - w, lo = 2 B - hi
 *              layer l of L keeps w + hi - l * ((hi - lo) / (L - 1)) tokens,
 *            or C, like every layer, while n < 2 B; and n, while n <= C.  (Of a policy without a
 *            window one token counts as such.)
 *   places   Keys are turned at their positions in the text, by models with rotary positions. Where
 *            `positions` is CACHE, rows after the prompt see them at their places in the cache, as
 *            StreamingLLM has it (arXiv 2309.17453, section 3.2): the key of slot rank r at r, the
 *            query at held - 1.  Of a window that has given up c = t + 1 - held tokens before row t
 *            that moves nothing but the first `sinks` keys, which come c nearer to all others: they
 *            get the query at t - c in place of t.  Prompts are attended whole, at the positions of
 *            the text.
 *   all      The heads of all layers of kvcompress share one budget: policy/kv_cross.h.
 *   profile  Each head of fastgen has a rule of its own, found when the prompt has been attended:
 *            policy/kv_profile.h.  How much it keeps is known only then; what counts before is that
 *            it keeps all, or as much as the budget, its cap, lets it keep of a prompt.
 *   read     Where nothing is given up after the prompt, a row may read a part of what is held
 *            (Quest, arXiv 2406.10774, on head-blocks): policy/kv_read.h.
 * The programs of h2o:flexgen and h2o:hf drop after a step; here the same drop stands at the start
 * of the next step (tests/unit/policy/test_kv_policy.c has their loops). */
#ifndef AQ_POLICY_KV_POLICY_H
#define AQ_POLICY_KV_POLICY_H

#include "base/err.h"
#include "base/kinds.h"
#include "base/kv_block.h"
#include "base/types.h"
#include "policy/kv_residual.h"
#include "policy/steps.h"

/* What keys are ranked by. */
enum aq_kv_source {
    AQ_KV_SOURCE_NONE,     /* nothing: all of them stay */
    AQ_KV_SOURCE_POSITION, /* their positions */
    AQ_KV_SOURCE_COLUMNS,  /* the attention that they got, summed over queries */
    AQ_KV_SOURCE_KEY_NORM, /* their lengths: short ones are worth more */
    AQ_KV_SOURCE_KEY_DIFF, /* their directions: those unlike the others' are worth more */
    AQ_KV_SOURCE_EXPECTED, /* the attention that queries to come are expected to give them */
};

/* The score of a key: its source, and for COLUMNS what a query adds to it, and what is made of the
 * sums of a prompt (struct aq_kv_value of kernels/kernels.h says in which order). */
struct aq_kv_score {
    enum aq_kv_source source;
    enum aq_attn_stat stat;
    enum aq_attn_group group;
    float decay;   /* factor on scores from one query to the next, at most 1; 0: this row's alone */
    uint32_t rows; /* of a prompt's last so many queries; 0: of all */
    enum aq_kv_pool pool;
    uint32_t pool_width;
    bool pool_first; /* before query heads are taken together */
    bool together;   /* the KV heads of a layer keep the same tokens: by the sums over them */
    float threshold; /* of AQ_ATTN_LOW */
};

/* How a budget is spread over layers: the same for all, or more for the first or for the last. */
enum aq_kv_layers { AQ_KV_LAYERS_UNIFORM, AQ_KV_LAYERS_PYRAMID, AQ_KV_LAYERS_RISING };

/* How many slots heads hold: all as many, or as many together as they would: those of a layer, or
 * those of all layers; or each as many as its own rule keeps. */
enum aq_kv_heads {
    AQ_KV_HEADS_UNIFORM,
    AQ_KV_HEADS_SHARED,
    AQ_KV_HEADS_GLOBAL,
    AQ_KV_HEADS_PROFILED,
};

/* What each head has for itself where heads share: its best slots first, or a part of the budget
 * that is the same for all heads, beside a part by the layer's best slots. */
enum aq_kv_floor { AQ_KV_FLOOR_RESERVE, AQ_KV_FLOOR_MIX };

/* What a new key takes once all slots are full: one of its own, that of a dropped one, or one of
 * those that a drop of many has left. */
enum aq_kv_decode { AQ_KV_DECODE_GROW, AQ_KV_DECODE_OVERWRITE, AQ_KV_DECODE_BULK };

/* Which positions the keys of a row after the prompt have: those of the text, or their places in
 * the cache. */
enum aq_kv_positions { AQ_KV_POSITIONS_TEXT, AQ_KV_POSITIONS_CACHE };

/* An amount as options give it: slots, or a share of a sequence's tokens. */
enum aq_kv_unit { AQ_KV_UNSET, AQ_KV_SLOTS, AQ_KV_SHARE };
struct aq_kv_amount {
    enum aq_kv_unit unit;
    uint32_t slots;
    double share; /* 0..1 */
};

/* Limits of one sequence; slots and keep_prompt are UINT32_MAX where the cache is not limited.
 * sinks + recent_decode <= slots: there is always a candidate. */
struct aq_kv_limits {
    uint32_t slots;                       /* most slots of a head */
    uint32_t keep_prompt;                 /* longest prompt that is kept whole */
    uint32_t heavy_prompt, recent_prompt; /* kept of a longer prompt */
    uint32_t recent_decode;               /* newest positions, the row's own among them */
    uint32_t sinks;
    /* A prompt that is cut leaves `slots` to a head on average.  Heads share all of these but
     * floor_prompt heavy slots (at least the sinks), which each head keeps for itself. */
    bool shared;
    uint32_t floor_prompt;
    uint32_t mix; /* of 10^9: the part of heavy_prompt that is mixed in; 0: the floor is reserved */
    /* Keys are dropped in bulk, down to what a prompt is cut to; scores are of the last `history`
     * rows, which are no more than come between two drops.  0: of all. */
    bool bulk;
    uint32_t history;
    /* Heads of all layers share: the prompt is held whole until its last layer is attended.  Of a
     * longer one than keep_prompt all heads keep heavy_prompt + recent_prompt on average, or up to
     * a head-block less in all (policy/kv_cross.h).  Until then a layer keeps at most layer_prompt
     * slots of a head on average. */
    bool cross;
    uint32_t layer_prompt;
    /* Each head has a rule (policy/kv_profile.h), and holds no more than heavy_prompt tokens of the
     * prompt, which is all of it or the cap, and a slot for each new token. */
    bool profiled;
    uint32_t frequent, local;
    double mass;
};

struct aq_kv_policy;

struct aq_kv_policy_desc {
    const char *name; /* as --kv-policy has it */
    /* Ranks at the prompt's end, and before a key is given up; decode NONE: no key is given up
     * after the prompt, and each new one takes a slot of its own. */
    struct aq_kv_score prompt, decode;
    enum aq_kv_layers layers;
    uint32_t beta; /* of layers that differ: the first keeps about 2 beta - 1 times the last's */
    enum aq_kv_heads heads;
    bool can_share; /* its heads can share their slots */
    bool can_close; /* positions can be those in the cache: sinks and the newest tokens stay */
    bool can_bulk;  /* its keys can be dropped in bulk; */
    bool bulk;      /* and they always are */
    double drop;    /* such a drop, as a share of the slots, unless it is given */
    enum aq_kv_floor floor;
    void (*limits)(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                   uint32_t max_new);
};

/* A policy with its options, as aq_kv_policy_resolve() leaves it; all zero is `full`. */
struct aq_kv_policy {
    const struct aq_kv_policy_desc *desc; /* NULL: full */
    struct aq_kv_amount budget, heavy, recent;
    struct aq_kv_amount floor; /* of the heavy slots, where heads share */
    uint32_t sinks, grace;
    struct aq_kv_score prompt, decode; /* those of the row, with what was given */
    struct aq_kv_residual residual;    /* where keys and values are in one of KIVI's formats */
    enum aq_kv_layers layers;
    uint32_t beta;
    enum aq_kv_heads heads;
    enum aq_kv_floor floor_kind;
    bool bulk;
    struct aq_kv_amount drop; /* of the slots */
    uint32_t history;         /* rows in front of a drop that count; 0: all */
    uint32_t ahead;           /* positions behind a prompt from which queries are expected */
    double cross_layer;       /* even shares of a layer until all are ranked; 0: it is held whole */
    double mass;              /* of attention that a head's rule must keep; 1: all is kept */
    struct aq_kv_amount frequent, local; /* of the prompt */
    /* Slots that a decoded row reads in each head (policy/kv_read.h); 0: all.  Rows of the first
     * `read_dense` layers read all. */
    uint32_t read, read_dense;
    enum aq_kv_positions positions;
};

/* The user's options; all zero: full. */
struct aq_kv_options {
    const char *policy; /* NULL: full */
    struct aq_kv_amount budget, heavy, recent, floor;
    bool sinks_given;
    uint32_t sinks, grace;
    double decay; /* 0: not given, 1 */
    bool group_given;
    enum aq_attn_group group;
    bool observe_given, pool_given, pool_order_given;
    uint32_t observe;
    enum aq_kv_pool pool;
    uint32_t pool_width; /* odd, at most AQ_KV_POOL_MAX_WIDTH */
    bool pool_first;
    bool layers_given;
    enum aq_kv_layers layers;
    uint32_t beta; /* at least 1, unless uniform */
    bool heads_given;
    enum aq_kv_heads heads;
    enum aq_kv_floor floor_kind; /* of a floor that is given */
    bool decode_given, history_given;
    enum aq_kv_decode decode;
    struct aq_kv_amount drop;
    uint32_t history;
    double low; /* 0: not given, 1 */
    bool cross_layer_given;
    double cross_layer;
    bool ahead_given;
    uint32_t ahead;
    bool mass_given;
    double mass;
    struct aq_kv_amount frequent, local;
    bool read_given, read_dense_given;
    uint32_t read, read_dense;
    bool positions_given;
    enum aq_kv_positions positions;
};
enum { AQ_KV_POOL_MAX_WIDTH = 127 };
#define AQ_KV_CROSS_LAYER_DEFAULT 2.0
enum { AQ_KV_AHEAD_DEFAULT = 512, AQ_KV_AHEAD_MAX = 1 << 20 };

/* -EINVAL: the sentence names the options (--kv-budget, ...) that exclude each other, and the
 * options that would be right. */
int aq_kv_policy_resolve(struct aq_kv_policy *ret, const struct aq_kv_options *o,
                         struct aq_err *reterr);
/* -EINVAL: a number of slots is above the longest sequence of the model; or sequences of `context`
 * tokens are longer than the `known` positions of the model, and not all that is held after the
 * prompt has positions among these. */
int aq_kv_policy_check_context(const struct aq_kv_policy *p, uint32_t context, uint32_t known,
                               struct aq_err *reterr);
/* -EINVAL: rows are to read a part of their keys, and no layer is left in which they do: all are
 * dense, or have a window of their own; or positions are to be those in the cache, and the model
 * does not turn its keys. */
int aq_kv_policy_check_layers(const struct aq_kv_policy *p, const struct aq_model_steps *m,
                              struct aq_err *reterr);

/* Never NULL. */
const struct aq_kv_policy_desc *aq_kv_policy_desc(const struct aq_kv_policy *p);
/* A policy by name (NULL: unknown), and by index from 0 on (NULL: behind the last one). */
const struct aq_kv_policy_desc *aq_kv_policy_find(const char *name);
const struct aq_kv_policy_desc *aq_kv_policy_at(uint32_t index);
/* "20%" and "256", as far as nine digits tell.  Returns dst. */
const char *aq_kv_amount_text(char dst[32], const struct aq_kv_amount *a);
const char *aq_kv_group_name(enum aq_attn_group g);
/* "avg:5", "max:7", "none".  Returns dst. */
const char *aq_kv_pool_text(char dst[32], const struct aq_kv_score *s);
/* "pyramid:20", "rising:20", "uniform".  Returns dst. */
const char *aq_kv_layers_text(char dst[32], const struct aq_kv_policy *p);
const char *aq_kv_heads_name(enum aq_kv_heads heads);
const char *aq_kv_decode_name(enum aq_kv_decode decode);
const char *aq_kv_positions_name(enum aq_kv_positions positions);
/* The newest `slots` tokens stay: the rule of a layer whose attention has a window of so many. */
struct aq_kv_policy aq_kv_policy_window(uint32_t slots);
/* "h2o: budget 20%, heavy 4 slots, ...", for messages.  Returns dst. */
const char *aq_kv_policy_text(char *dst, size_t dst_bytes, const struct aq_kv_policy *p);

/* Are the amounts numbers of slots, the same for each sequence? */
bool aq_kv_policy_in_slots(const struct aq_kv_policy *p);
/* Does the policy keep scores beside the slots?  And original positions and victims, because it
 * drops keys?  Does it give up none after the prompt?  Can heads come to hold different numbers of
 * slots? */
static inline bool aq_kv_policy_scores(const struct aq_kv_policy *p)
{
    return p->decode.source == AQ_KV_SOURCE_COLUMNS;
}
static inline bool aq_kv_policy_grows(const struct aq_kv_policy *p)
{
    return p->prompt.source != AQ_KV_SOURCE_NONE && p->decode.source == AQ_KV_SOURCE_NONE;
}
static inline bool aq_kv_policy_drops(const struct aq_kv_policy *p)
{
    return p->prompt.source != AQ_KV_SOURCE_NONE;
}
/* May tokens be others than those of the full cache, for what is dropped or not read? */
static inline bool aq_kv_policy_lossy(const struct aq_kv_policy *p)
{
    return aq_kv_policy_drops(p) || p->read > 0;
}
static inline bool aq_kv_policy_ragged(const struct aq_kv_policy *p)
{
    return p->heads != AQ_KV_HEADS_UNIFORM;
}
/* By how much a row at position t, the last of `held` slots, is nearer to its sinks in the cache
 * than in the text; 0 where positions are the text's, or nothing is dropped yet. */
static inline uint32_t aq_kv_policy_closer(const struct aq_kv_policy *p, uint32_t t, uint32_t held)
{
    return p->positions == AQ_KV_POSITIONS_CACHE && t >= held ? t + 1 - held : 0;
}
/* Do the heads of all layers share? */
static inline bool aq_kv_policy_cross(const struct aq_kv_policy *p)
{
    return p->heads == AQ_KV_HEADS_GLOBAL;
}

/* Has each head a rule of its own? */
static inline bool aq_kv_policy_profiled(const struct aq_kv_policy *p)
{
    return p->heads == AQ_KV_HEADS_PROFILED;
}

/* Are values of a prompt's keys made of column sums (aq_kv_value_fn), and of those of each query
 * head?  Where query heads are added up or one of them counts, pooling their sum is the same. */
static inline bool aq_kv_policy_values(const struct aq_kv_policy *p)
{
    return p->prompt.source == AQ_KV_SOURCE_COLUMNS &&
           (p->prompt.pool || p->prompt.together || p->prompt.group == AQ_ATTN_MAX_OF_SUMS);
}
static inline bool aq_kv_policy_each(const struct aq_kv_policy *p)
{
    bool apart = p->prompt.pool && p->prompt.pool_first && p->prompt.group != AQ_ATTN_FIRST;
    return p->prompt.group == AQ_ATTN_MAX_OF_SUMS || apart;
}

/* Heavy and recent slots of a sequence with this many tokens, by the options of h2o: recent slots
 * first, and at least one. */
void aq_kv_policy_split(uint32_t *ret_heavy, uint32_t *ret_recent, const struct aq_kv_policy *p,
                        uint64_t tokens);
/* The limits of one sequence in layer `layer` of `layers`. */
void aq_kv_policy_limits(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                         uint32_t max_new, uint32_t layer, uint32_t layers);
/* Slots of a prompt that is cut, and those left by a drop of many. */
static inline uint32_t aq_kv_limits_cut(const struct aq_kv_limits *l)
{
    return l->heavy_prompt + l->recent_prompt;
}
/* Slots held per head, or on average where heads share them, after the first `seen` positions (at
 * least the prompt's): the slots that the row at position seen - 1 attends, or those kept of a
 * prompt of `seen` tokens, which are those kept until its cut where heads of all layers share. */
uint32_t aq_kv_limits_held(const struct aq_kv_limits *l, uint32_t prompt, uint32_t seen);
/* Most slots held at a time until then, which there are pages for. */
uint32_t aq_kv_limits_most(const struct aq_kv_limits *l, uint32_t prompt, uint32_t seen);
/* Where keys are dropped in bulk: does the attention of a row that finds itself the last of `held`
 * slots count for the next drop, and is it the first that does? */
enum aq_kv_counts { AQ_KV_COUNTS_NOT, AQ_KV_COUNTS_FIRST, AQ_KV_COUNTS };
enum aq_kv_counts aq_kv_limits_counts(const struct aq_kv_limits *l, uint32_t held);
/* Will a sequence with these limits drop a key?  The last token's key is never computed. */
bool aq_kv_limits_drop(const struct aq_kv_limits *l, uint32_t prompt, uint32_t max_new);
/* A sequence of prompt + max_new tokens comes to positions below this. */
uint64_t aq_kv_policy_positions(const struct aq_kv_policy *p, uint32_t prompt, uint32_t max_new);
/* The lengths of a workload: prompts have at most prompt_max tokens, sequences at most total_max,
 * new tokens are at most new_max (0: unknown), prompts have at least prompt_min. */
struct aq_kv_lengths {
    uint32_t prompt_max, total_max, new_max, prompt_min;
};
/* What sequences of a workload come to hold in a layer, in each head or on average: at most `kept`
 * slots of a prompt and `slots` in all, and at most `head` in one head.  whole: `slots` is the
 * longest sequence. */
struct aq_kv_most {
    uint32_t kept, slots, head;
    bool whole;
};
/* For each of the layers, into most[layers].  False: in all layers every sequence has the same
 * limits. */
bool aq_kv_policy_most(struct aq_kv_most *most, const struct aq_kv_policy *p,
                       const struct aq_kv_lengths *lengths, uint32_t layers, uint32_t kv_heads);
/* The last queries of a prompt whose attention counts, and the pairs of a query and a key whose
 * probabilities rank its keys.  They are computed once more; but on a CPU those of few queries
 * come with attention, in a quarter of that time, which forecasts leave out.  Where there are no
 * pairs, no query counts. */
uint32_t aq_kv_policy_prompt_rows(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                  uint32_t prompt);
uint64_t aq_kv_policy_stat_pairs(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                 uint32_t prompt);
/* The time that ranking a prompt's keys takes, in such pairs: a mean and a covariance of queries
 * (expected) take as long as attention to 1.5 head_dim more keys, twice as many pairs. */
uint64_t aq_kv_policy_rank_pairs(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                 uint32_t prompt, uint32_t head_dim);
/* Does the attention of all queries of a prompt rank its keys, and nothing beside it? */
bool aq_kv_policy_sums_all(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                           uint32_t prompt);

/* Are sums over the queries of a prompt's beginning kept for the next one?  Where all queries of a
 * prompt rank its keys. */
bool aq_kv_policy_keeps_begun(const struct aq_kv_policy *p);
/* Of a prompt whose keys are copied from one that begins alike, most of the first tokens that need
 * not be computed, of a sequence that drops keys or does not: those whose queries rank no key, or
 * of which sums are kept.  0: what keys are worth follows from all keys together, or from heads of
 * all layers. */
uint32_t aq_kv_policy_copies_most(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                  uint32_t prompt, bool drops);

/* ---- head-blocks ---- A head-block is 32 slots of one KV head; a run is one head-block of each KV
 * head.  Heads that hold equally many slots fill ceil(slots / 32) runs together.
 *
 * Heads that hold different numbers of slots have first the head-blocks that each fills when the
 * prompt is cut, head after head, packed into runs: of n heads that keep M slots in all at most
 * ceil(floor(M / 32) / n) runs, whatever each keeps.  Then come runs for growth, with one
 * head-block of each head: into the first go the rows that each head has left, fewer than 32, then
 * its new rows, and so on into the next ones.  After t rows ceil((31 + t) / 32) of them are in use,
 * of which at most the last two are partly filled.  (Where each head has a rule, it takes in some
 * of the rows: heads lag behind, in runs that count as full.)  So the number of runs follows from
 * the limits before the prompt has run: it is that of `spare` slots more than are held. */

/* Do the heads of a sequence hold different numbers of slots? */
static inline bool aq_kv_limits_differ(const struct aq_kv_limits *l, uint32_t prompt)
{
    return (l->shared || l->cross || l->profiled) && prompt > l->keep_prompt;
}
/* Most packed runs of kv_heads heads that keep `kept` slots each on average, or half a slot
 * more. */
uint32_t aq_kv_packed_runs(uint32_t kept, bool mixed, uint32_t kv_heads);
/* Slots that the runs of a sequence have room for beside those that a head holds on average: the
 * room for growth begins 31 slots early.  0 where heads of a layer do not differ; not for heads of
 * all layers. */
uint32_t aq_kv_limits_spare(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t prompt);
/* Most runs of any sequence of a workload. */
uint32_t aq_kv_policy_runs(const struct aq_kv_policy *p, const struct aq_kv_most *most,
                           uint32_t kv_heads);
/* Runs of a sequence after its first `seen` positions. */
uint32_t aq_kv_limits_runs(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t prompt,
                           uint32_t seen);
/* Runs of partly filled head-blocks that a sequence may have at a time. */
uint32_t aq_kv_policy_tail_runs(const struct aq_kv_policy *p);

#endif
