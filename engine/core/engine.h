/* SPDX-License-Identifier: Apache-2.0
 * engine/core/engine.h - the engine below text: a model, a plan, and the loop that runs passes.
 *   open (config and tensor names are read, nothing large) -> plan (pure; can be repeated) ->
 *   load (every buffer is taken, weights are read) -> submit / pass / finished -> close.
 * One thread drives it.  After load nothing is allocated until close. */
#ifndef AQ_ENGINE_CORE_ENGINE_H
#define AQ_ENGINE_CORE_ENGINE_H

#include "base/err.h"
#include "base/log.h"
#include "base/types.h"
#include "engine/compute/backend.h"
#include "engine/exec/stats.h"
#include "engine/options/notation.h"
#include "engine/sequence.h"
#include "kernels/kernels.h"
#include "offload/disk.h"
#include "offload/io.h"
#include "offload/numa.h"
#include "offload/sum.h"
#include "policy/forecast.h"
#include "policy/kv_profile.h"
#include "policy/program.h"

#include <jansson.h>

struct aq_engine;

/* What is chosen of a plan and of a run; what is zero (formats: -1) is open.  Filled once from the
 * options (engine/core/opts_from.h). */
struct aq_engine_opts {
    const char *model_dir; /* checkpoint directory or packed store; NULL with shape */
    const char *shape;     /* a built-in name or the path of a config.json: no weights */
    bool random_weights;   /* with shape: seeded random weights */
    uint64_t random_seed;
    int compute;            /* enum aq_dtype or -1 for auto: bf16 where the CPU has it, else f32 */
    int weight_format;      /* enum aq_dtype or -1 for auto */
    int kv_format;          /* enum aq_dtype or -1 for auto: f16, bf16 for bf16 checkpoints */
    struct aq_kv_policy kv; /* all zero: full */
    /* Of tokens, instead of the tokenizer's, where the policy needs them; borrowed. */
    struct aq_kv_classes classes;
    uint32_t threads; /* 0: from affinity and cgroup quota */
    struct aq_isa_choice isa;
    struct aq_device_choice device;
    const char *cuda_module; /* tests: another module than the one beside the program */
    bool deterministic;      /* of a GPU: a row's bits do not depend on the others */
    uint64_t device_memory;  /* absolute budget on a GPU; 0: what is free less 3 %, or 512 MiB */
    uint64_t host_memory;    /* absolute budget of the whole process, bytes; 0: the default rule */
    uint64_t disk_memory;    /* budget of scratch on disk, bytes; 0: what is free less 5 % */
    struct aq_placement_choice placement;
    enum aq_side_by_side side_by_side;
    bool fuse_layer, alternate; /* order of the visits, as plan.h says */
    bool replay; /* moves alone: nothing is computed, random weights are not generated */
    struct aq_numa_choice numa;
    struct aq_attention_choice attention;
    struct aq_host_products_choice host_products;
    uint64_t emulate_device; /* bytes of an emulated device inside host_memory; 0: none */
    struct aq_link_choice emulate_link;
    uint64_t prefetch, chunk; /* bytes of the weight ring and of its chunks; 0: planned */
    uint64_t kv_stage;        /* most bytes of a staging slot of KV; 0: planned */
    bool serial;              /* one op after the other */
    enum aq_io_kind io;
    enum aq_direct io_direct;
    enum aq_verify verify_store;
    const char *const *disk_dirs; /* for scratch; none: the cache directory */
    uint32_t disk_dir_count;
    bool disk_dir_any;     /* tmpfs and network file systems are fine */
    const char *hardware;  /* whose rates plans are made with; NULL: kept ones, else measured */
    const char *cache_dir; /* for packed stores; NULL: the default one */
    uint32_t context;      /* 0: the model's */
    uint32_t micro_batch, micro_batches, micro_batch_tokens; /* 0: planned */
    bool predict;             /* measure the machine and say what the plan will do */
    bool attention_stats;     /* watch how prompts attend (engine/exec/attention_stats.h) */
    bool refill;              /* a finished sequence's seat goes to a waiting one at once */
    bool share_prefixes;      /* what prompts begin with alike is computed once (policy/seats.h) */
    const char *trace;        /* file for what the lanes did, written at close; NULL: none */
    const struct aq_log *log; /* NULL: silent */
};

/* The workload: bounds over the records, known from the preflight. */
struct aq_workload {
    uint64_t sequences;             /* how many in all; 0 unknown */
    uint32_t prompt_max;            /* longest prompt, tokens */
    uint32_t total_max;             /* longest prompt + max_tokens of one sequence; at most the
                                       context and one, as the last token is never computed with */
    uint32_t new_max;               /* largest max_tokens of one sequence; 0 unknown */
    uint64_t prompt_sum, total_sum; /* over all sequences; 0 unknown */
    /* Of prompt_sum: what prompts begin with as the one before them does, in steps of 32 tokens,
     * which need not be computed again. */
    uint64_t shared_sum;
    /* Of sequence i: length[i * length_count / sequences]; NULL: a block of the mean or longest one
     * is predicted.  Copied. */
    const struct aq_length *length;
    uint32_t length_count;
    bool prompt_logprobs; /* some record wants log-probabilities of its prompt */
    uint64_t queue_bytes; /* what the caller itself may hold in memory: counted on the ledger */
};

struct aq_engine_info {
    const char *name;        /* directory's base name or the shape's name */
    uint32_t vocab, context; /* context: limit after --context */
    uint32_t positions;      /* that the model knows: most tokens of a prompt */
    uint32_t layers, hidden;
    int32_t bos_id, pad_id;
    bool add_bos; /* the architecture wants BOS in front of text */
    uint32_t eos_id[8];
    uint32_t eos_count;
    enum aq_dtype checkpoint_dtype, compute, weight_format, kv_format;
    struct aq_kv_policy kv;
    const char *isa, *backend; /* "cpu" or "cuda" */
    const char *gpu;           /* its name; NULL: none */
    uint32_t threads;
    uint64_t parameters;
    uint64_t model_hash; /* identity of the checkpoint or store, or of (shape, seed) */
    bool random_weights;
    bool packed;          /* from a store: model_hash says how its weights were rounded, too */
    const char *lossy[8]; /* sentences: what is rounded, e.g. "compute bf16 rounds f16 weights" */
    uint32_t lossy_count;
    uint64_t host_budget;
    const char *host_limited_by; /* "option", "MemAvailable", "cgroup", "RLIMIT_AS" */
};

int aq_engine_open(struct aq_engine **ret, const struct aq_engine_opts *opts,
                   struct aq_err *reterr);
void aq_engine_close(struct aq_engine *e);
const struct aq_engine_info *aq_engine_info(const struct aq_engine *e);

/* Chooses block shape and KV pool for the workload and fills the ledger; -ENOBUFS says the
 * shortfall and the largest block that fits.  Replaces an earlier plan; not after load. */
int aq_engine_plan(struct aq_engine *e, const struct aq_workload *w, struct aq_err *reterr);
/* The plan as a JSON object: placement, micro_batch, micro_batches, formats, "ledger": [{tier,
 * purpose, bytes}], "memory": {tier: {budget, ledger}}.  New reference. */
json_t *aq_engine_plan_json(const struct aq_engine *e);

/* Proves the plan's program (policy/checker.h): a failure is this program's own fault. */
int aq_engine_check(const struct aq_engine *e, struct aq_err *reterr);
/* The plan's forecast on this machine (engine/core/forecast_json.h); null where nobody wanted
 * to know. New reference. */
json_t *aq_engine_predicted_json(const struct aq_engine *e);

/* Before load: `observe` is called with true before the first op of each pass and with false after
 * the last.  Tests trap allocation in between. */
void aq_engine_observe(struct aq_engine *e, void (*observe)(void *user, bool running), void *user);

/* Before load: what load asks on its thread, now and then, while it packs weights or waits for a
 * process that does; true ends it with -EINTR. */
void aq_engine_stop_when(struct aq_engine *e, bool (*stop)(void *user), void *user);

/* Takes every buffer of the plan and reads or generates the weights. */
int aq_engine_load(struct aq_engine *e, struct aq_err *reterr);

/* Queues a sequence; asserts that it lies within the planned bounds. */
void aq_engine_submit(struct aq_engine *e, struct aq_sequence *s);
/* Sequences submitted and not yet seated: keep this at micro_batch or above to keep seats busy. */
uint32_t aq_engine_waiting(const struct aq_engine *e);
/* Seats of the block: micro_batch * micro_batches. */
uint32_t aq_engine_seats(const struct aq_engine *e);
/* Runs one pass: seats waiting sequences, prefills them, decodes one token for the others.
 * *ret_worked is false when there was nothing to do. */
int aq_engine_pass(struct aq_engine *e, bool *ret_worked, struct aq_err *reterr);
/* Next finished sequence in the order of finishing, or NULL. */
struct aq_sequence *aq_engine_finished(struct aq_engine *e);

/* The KV that a sequence holds at some time. */
struct aq_engine_held {
    double slots;       /* of each head (or on average), the mean over the layers */
    uint32_t slots_max; /* in the layers that hold most */
    double read;        /* slots that a new token reads of these, likewise */
    uint64_t bytes;     /* of the pages of all layers, of the residual and of bounds */
    bool drops;         /* the sequence will drop keys for the KV policy's sake */
    bool chooses;       /* the row at the last position reads a part, in some layer */
};
/* Of a sequence with these lengths after its first `seen` positions.  After plan. */
struct aq_engine_held aq_engine_held(const struct aq_engine *e, uint32_t prompt, uint32_t max_new,
                                     uint32_t seen);

/* Statistics of attention so far (engine/exec/attention_stats.h); null where nobody wanted to
 * know. New reference. */
json_t *aq_engine_attention_json(const struct aq_engine *e);

/* Is the device one that the cpu plays? */
bool aq_engine_emulated(const struct aq_engine *e);

void aq_engine_stats(const struct aq_engine *e, struct aq_engine_stats *ret);
/* What heads have held since load, [layers][*ret_heads]; NULL where they have no rules. */
const struct aq_rule_stats *aq_engine_rules(const struct aq_engine *e, uint32_t *ret_heads);
/* {tier: {"budget", "ledger", "measured"}}; measured host = peak resident set.  New reference. */
json_t *aq_engine_memory_json(const struct aq_engine *e);

#endif
