/* SPDX-License-Identifier: Apache-2.0
 * engine/options/habit_table.c - flags of FlexGen and of H2O's fork of it, of vLLM, of programs for
 * GGUF files, of the Hugging Face family.  Flags with another name alone are aliases (table.c). */
#include "engine/options/habits.h"

#include "base/types.h"

#include <stdio.h>
#include <string.h>

#define FLAG   .takes = AQ_HABIT_FLAG
#define VALUE  .takes = AQ_HABIT_VALUE
#define SWITCH .takes = AQ_HABIT_SWITCH
#define IDLE   .idle = true, .why
#define MODE   .flexgen = true

/* Reasons that several flags share. */
#define NO_SERVER  "there is no server here: aquifer generate reads files and ends"
#define ONE_DEVICE "one device is used; a model that does not fit it streams through it"
#define LAYERS_MOVE                                                                                \
    "layers are not assigned one by one: --placement \"weights=D/H/N\" gives the shares on "       \
    "device, host and disk, and auto chooses them"
/* A --placement in place of such a flag would pin what it does not name, too. */
#define SHARES                                                                                     \
    "shares are planned; --placement \"weights=D/H/N kv=D/H/N hidden=D/H/N\" fixes them all, in "  \
    "percent on device, host and disk, and what it does not name lies in host memory"
#define KV_EITHER    "programs mean opposite sides by it, kv=0/100/0 and kv=100/0/0: " SHARES
#define KV_ON_HOST   "to keep the KV cache in host memory, kv=0/100/0: " SHARES
#define NO_ADAPTERS  "adapters are not applied: merge them into the checkpoint first"
#define NO_DRAFT     "there is no speculative decoding here; --micro-batch is what makes passes pay"
#define NO_GRAMMAR   "output is not constrained here: leave it out, and check answers afterwards"
#define NO_HUB       "nothing is downloaded here: hf download NAME, then --model NAME"
#define READS_DIRECT "weights are read into buffers of the plan's (--io, --io-direct, --prefetch)"
#define ONE_KV       "keys and values have one format here: --kv-format f16, int8 or int4"
#define ROPE         "positions are as the checkpoint's config.json has them"
#define NO_CACHE_BLOCKS                                                                            \
    "what a sequence may need is set aside when it takes its seat; nothing is swapped out"

const struct aq_habit aq_habit_table[] = {
    /* ---- FlexGen, in bench flexgen alone ---- */
    {"model", VALUE, MODE, .translate = aq_habit_model},
    {"path", VALUE, MODE, .translate = aq_habit_path},
    {"verbose", VALUE, MODE, .translate = aq_habit_verbose},
    {"log-file", VALUE, MODE, .translate = aq_habit_log_file},
    {"offload-dir", VALUE, MODE, .becomes = "disk-dir=%s"},
    {"prompt-len", VALUE, MODE, .becomes = "prompt-len=%s"},
    {"gen-len", VALUE, MODE, .becomes = "gen-len=%s"},
    {"gpu-batch-size", VALUE, MODE, .becomes = "micro-batch=%s"},
    {"num-gpu-batches", VALUE, MODE, .becomes = "micro-batches=%s"},
    /* ---- FlexGen, anywhere ---- */
    {"percent", .takes = AQ_HABIT_SIX, .translate = aq_habit_percent,
     .why = "six percentages of FlexGen's; write the shares as placement: \"weights=D/H/N kv=D/H/N "
            "hidden=D/H/N\""},
    {"cpu-cache-compute", SWITCH, .translate = aq_habit_cpu, .why = "attention: host"},
    {"compress-weight", SWITCH, .becomes = "weight-format=int4"},
    {"compress-cache", SWITCH, .becomes = "kv-format=int4"},
    {"hh-ratio", VALUE, .translate = aq_habit_hh_ratio,
     .why = "H2O's share of heavy tokens: kv-policy h2o:flexgen with kv-budget"},
    {"hh-all", SWITCH, .translate = aq_habit_hh_all,
     .why = "kv-policy h2o:flexgen always drops while it decodes"},
    {"hh-long-seq", SWITCH, .neutral = "off",
     .why =
         "it leaves positions out, whose text means nothing: give a model with a longer context"},
    {"attn-sparsity", VALUE, .neutral = "1|1.0",
     .why = "values are not read sparsely: --kv-policy h2o --kv-budget 20% keeps fewer tokens"},
    {"overlap", SWITCH, .neutral = "on", .becomes_off = "executor=serial",
     .why = "executor: overlapped or serial"},
    {"sep-layer", SWITCH, .neutral = "on", .becomes_off = "fuse-layer=on",
     .why = "fuse-layer: on where FlexGen's is off"},
    {"pin-weight", SWITCH, IDLE = "host memory is pinned where a device copies from it"},
    {"cut-gen-len", VALUE, .translate = aq_habit_cut_gen_len,
     .why = "decode-passes N decodes a part and projects the rest"},
    {"debug-mode", VALUE, .translate = aq_habit_debug_mode,
     .why = "decode-passes 1 for fewer_batch, executor serial for breakdown"},
    {"no-log", FLAG, IDLE = "no log is written unless --report FILE asks for it"},
    {"log-file", VALUE, .neutral = "auto", .becomes = "report=%s"},
    {"cpu", FLAG,
     .why = "FlexGen's --cpu is --attention host; to compute on the CPU alone: --device cpu"},
    {"path", VALUE,
     .why =
         "--model takes the directory; for FlexGen's _DUMMY_: --shape NAME --random-weights SEED"},
    /* ---- H2O's Hugging Face programs ---- */
    {"heavy-ratio", VALUE, .becomes = "kv-policy=h2o kv-heavy=%s"},
    {"recent-ratio", VALUE, .becomes = "kv-policy=h2o kv-recent=%s"},
    {"enable-small-cache", SWITCH, IDLE = "--kv-policy says what is kept, and full is the default"},
    {"enable-h2o-cache", SWITCH, IDLE = "--kv-policy says what is kept, and full is the default"},

    /* ---- vLLM ---- */
    {"gpu-memory-utilization", VALUE,
     .why =
         "budgets are absolute here: give bytes with --device-memory, or --host-memory on the cpu"},
    {"tensor-parallel-size", VALUE, .neutral = "1", .why = ONE_DEVICE},
    {"tp", VALUE, .neutral = "1", .why = ONE_DEVICE},
    {"pipeline-parallel-size", VALUE, .neutral = "1", .why = ONE_DEVICE},
    {"pp", VALUE, .neutral = "1", .why = ONE_DEVICE},
    {"data-parallel-size", VALUE, .neutral = "1", .why = ONE_DEVICE},
    {"distributed-executor-backend", VALUE, .why = ONE_DEVICE},
    {"trust-remote-code", SWITCH, .neutral = "off",
     .why = "model files are data here: no code of theirs is ever run"},
    {"quantization", VALUE, .neutral = "none",
     .why = "a quantised checkpoint says so itself; others are rounded by --weight-format int8 or "
            "int4"},
    {"q", VALUE, .neutral = "none",
     .why = "a quantised checkpoint says so itself; others are rounded by --weight-format int8 or "
            "int4"},
    {"load-format", VALUE, .neutral = "auto|safetensors|pt",
     .why = "files are told apart by what they are; for dummy: --shape NAME --random-weights SEED"},
    {"cpu-offload-gb", VALUE, .neutral = "0",
     .why = "what has no place on the device goes to host memory or disk by itself, within "
            "--host-memory SIZE; --placement fixes the shares"},
    {"swap-space", VALUE, IDLE = NO_CACHE_BLOCKS},
    {"num-gpu-blocks-override", VALUE,
     .why = "seats are planned within --device-memory or --host-memory; --micro-batch fixes them"},
    {"max-num-seqs", VALUE,
     .why = "seats are planned to fill the memory; --micro-batch N --micro-batches K fixes them"},
    {"max-num-batched-tokens", VALUE,
     .why = "new tokens of a pass are planned; --micro-batch-tokens fixes those of a micro-batch"},
    {"block-size", VALUE, IDLE = "pages of the KV cache have 32 slots of a head"},
    {"enforce-eager", SWITCH, IDLE = "there is no compiler to switch off"},
    {"enable-prefix-caching", SWITCH, .neutral = "on", .becomes_off = "share-prefixes=off",
     .why = "share-prefixes: prompts that begin alike are computed once"},
    {"enable-chunked-prefill", SWITCH, IDLE = "prompts are cut as --micro-batch-tokens says"},
    {"max-seq-len-to-capture", VALUE, IDLE = "passes are one program of any length"},
    {"num-scheduler-steps", VALUE, IDLE = "passes follow one another without a scheduler between"},
    {"disable-log-stats", SWITCH, IDLE = "progress goes to standard error; --quiet leaves it out"},
    {"disable-log-requests", SWITCH, IDLE = "requests are not logged"},
    {"tokenizer-mode", VALUE, .neutral = "auto|slow", .why = "the checkpoint's tokenizer is used"},
    {"revision", VALUE, .why = NO_HUB},
    {"download-dir", VALUE, .why = NO_HUB},
    {"served-model-name", VALUE,
     .why = "answers have the record's own \"model\", or the checkpoint's name"},
    {"chat-template", VALUE,
     .why = "the checkpoint's own is used: put yours beside it as chat_template.jinja"},
    {"enable-lora", SWITCH, .neutral = "off", .why = NO_ADAPTERS},
    {"lora-modules", VALUE, .why = NO_ADAPTERS},
    {"speculative-model", VALUE, .why = NO_DRAFT},
    {"speculative-config", VALUE, .why = NO_DRAFT},
    {"num-speculative-tokens", VALUE, .neutral = "0", .why = NO_DRAFT},
    {"guided-decoding-backend", VALUE, .why = NO_GRAMMAR},
    {"max-logprobs", VALUE, IDLE = "records may ask for up to 20"},
    {"dataset", VALUE, .why = "generate --input FILE runs it; bench draws prompts of --prompt-len"},
    {"dataset-name", VALUE, .neutral = "random",
     .why = "generate --input FILE runs it; bench draws prompts of --prompt-len"},
    {"dataset-path", VALUE,
     .why = "generate --input FILE runs it; bench draws prompts of --prompt-len"},
    {"request-rate", VALUE, .neutral = "inf",
     .why = "all requests are there from the beginning: throughput is what is measured"},
    {"backend", VALUE, .neutral = "vllm", .why = "--device cpu or cuda says where it runs"},
    {"host", VALUE, .why = NO_SERVER},
    {"port", VALUE, .why = NO_SERVER},
    {"api-key", VALUE, .why = NO_SERVER},
    {"response-role", VALUE, .neutral = "assistant", .why = "answers have the role assistant"},

    /* ---- ggml's programs ---- */
    {"n-gpu-layers", VALUE, .why = LAYERS_MOVE},
    {"gpu-layers", VALUE, .why = LAYERS_MOVE},
    {"ngl", VALUE, .why = LAYERS_MOVE},
    {"n-cpu-moe", VALUE, .why = LAYERS_MOVE},
    {"override-tensor", VALUE, .why = LAYERS_MOVE},
    {"ot", VALUE, .why = LAYERS_MOVE},
    {"tensor-split", VALUE, .why = ONE_DEVICE},
    {"ts", VALUE, .why = ONE_DEVICE},
    {"split-mode", VALUE, .neutral = "none", .why = ONE_DEVICE},
    {"sm", VALUE, .neutral = "none", .why = ONE_DEVICE},
    {"main-gpu", VALUE, .becomes = "device=cuda:%s"},
    {"mg", VALUE, .becomes = "device=cuda:%s"},
    {"c", VALUE, .becomes = "context=%s"},
    {"s", VALUE, .becomes = "seed=%s"},
    {"d", VALUE, .why = "a longer --prompt-len fills the cache before what is measured"},
    {"n-depth", VALUE, .why = "a longer --prompt-len fills the cache before what is measured"},
    {"r", VALUE, .becomes = "repeats=%s"},
    {"p", VALUE, .why = "--prompt TEXT of generate; the length of bench's is --prompt-len N"},
    {"b", VALUE, .why = "--micro-batch N for seats, --micro-batch-tokens N for tokens of a pass"},
    {"ub", VALUE, .why = "--micro-batch N for seats, --micro-batch-tokens N for tokens of a pass"},
    {"ubatch-size", VALUE,
     .why = "--micro-batch N for seats, --micro-batch-tokens N for tokens of a pass"},
    {"threads-batch", VALUE, .why = "--threads N is for prompts and for decoding"},
    {"tb", VALUE, .why = "--threads N is for prompts and for decoding"},
    {"file", VALUE, .why = "--input FILE --input-format text takes one prompt a line"},
    {"f", VALUE, .why = "--input FILE --input-format text takes one prompt a line"},
    {"flash-attn", SWITCH, IDLE = "attention of prompts never writes its matrix of scores"},
    {"fa", SWITCH, IDLE = "attention of prompts never writes its matrix of scores"},
    {"cache-type-k", VALUE, .why = ONE_KV},
    {"ctk", VALUE, .why = ONE_KV},
    {"cache-type-v", VALUE, .why = ONE_KV},
    {"ctv", VALUE, .why = ONE_KV},
    {"no-kv-offload", FLAG, .why = KV_ON_HOST},
    {"nkvo", FLAG, .why = KV_ON_HOST},
    {"mlock", FLAG, IDLE = READS_DIRECT},
    {"no-mmap", FLAG, IDLE = READS_DIRECT},
    {"mmp", VALUE, IDLE = READS_DIRECT},
    {"parallel", VALUE, .why = "seats are planned; --micro-batch N --micro-batches K fixes them"},
    {"np", VALUE, .why = "seats are planned; --micro-batch N --micro-batches K fixes them"},
    {"cont-batching", FLAG, IDLE = "a finished sequence's seat goes to the next one (--refill)"},
    {"cb", FLAG, IDLE = "a finished sequence's seat goes to the next one (--refill)"},
    {"repeat-last-n", VALUE, .neutral = "-1",
     .why = "penalties look at the prompt and all the text so far"},
    {"mirostat", VALUE, .neutral = "0",
     .why = "--temperature, --top-p, --top-k and --min-p sample"},
    {"typical", VALUE, .neutral = "1|1.0",
     .why = "--temperature, --top-p, --top-k and --min-p sample"},
    {"samplers", VALUE, .why = "top-k, top-p and min-p follow one another as in vLLM"},
    {"grammar", VALUE, .why = NO_GRAMMAR},
    {"grammar-file", VALUE, .why = NO_GRAMMAR},
    {"json-schema", VALUE, .why = NO_GRAMMAR},
    {"j", VALUE, .why = NO_GRAMMAR},
    {"logit-bias", VALUE, .why = "no token is made likelier or less likely by its id"},
    {"lora", VALUE, .why = NO_ADAPTERS},
    {"model-draft", VALUE, .why = NO_DRAFT},
    {"hf-repo", VALUE, .why = NO_HUB},
    {"hf", VALUE, .why = NO_HUB},
    {"model-url", VALUE, .why = NO_HUB},
    {"rope-freq-base", VALUE, .why = ROPE},
    {"rope-freq-scale", VALUE, .why = ROPE},
    {"rope-scaling", VALUE, .why = ROPE},
    {"rope-theta", VALUE, .why = ROPE},
    {"interactive", FLAG, .why = "nothing is interactive here: --prompt TEXT prints one answer"},
    {"conversation", FLAG, .why = "nothing is interactive here: records take \"messages\""},
    {"cnv", FLAG, .why = "nothing is interactive here: records take \"messages\""},
    {"no-cnv", FLAG, IDLE = "a prompt is continued as it is; records with \"messages\" converse"},
    {"system-prompt", VALUE,
     .why = "a record's \"messages\" may begin with one of the role system"},
    {"sys", VALUE, .why = "a record's \"messages\" may begin with one of the role system"},
    {"jinja", FLAG, IDLE = "the checkpoint's template is always used"},
    {"escape", FLAG, IDLE = "--stop and --prompt-template read \\n and \\t"},
    {"e", FLAG, IDLE = "--stop and --prompt-template read \\n and \\t"},
    {"keep", VALUE, .why = "a text ends at the context; --overlong says what becomes of a prompt"},
    {"no-warmup", FLAG, .becomes = "warmup=0"},
    {"log-disable", FLAG, .becomes = "quiet=on"},
    {"verbose", FLAG, IDLE = "all notes are printed; --report and --trace tell more"},
    {"v", FLAG, IDLE = "all notes are printed; --report and --trace tell more"},
    {"fit", SWITCH, .neutral = "on", .why = "--placement fixes what is not to be planned"},

    /* ---- transformers, accelerate, lm-eval, text-generation-webui ---- */
    {"load-in-8bit", SWITCH, .neutral = "off", .becomes = "weight-format=int8"},
    {"load-in-4bit", SWITCH, .neutral = "off", .becomes = "weight-format=int4"},
    {"quantize", VALUE,
     .why = "--weight-format int8 or int4 rounds; a quantised checkpoint says so itself"},
    {"fp16", SWITCH, .neutral = "off", .becomes = "compute=f16"},
    {"bf16", SWITCH, .neutral = "off", .becomes = "compute=bf16"},
    {"device-map", VALUE, .neutral = "auto", .why = LAYERS_MOVE},
    {"max-memory", VALUE, .why = "--device-memory, --host-memory and --disk-memory take sizes"},
    {"gpu-memory", VALUE, .translate = aq_habit_gpu_memory,
     .why = "--device-memory takes a size such as 12GiB"},
    {"cpu-memory", VALUE, .translate = aq_habit_cpu_memory,
     .why = "--host-memory takes a size such as 64GiB"},
    {"auto-devices", FLAG, IDLE = "placement is planned by itself"},
    {"disk", FLAG, IDLE = "what has no place in memory streams from disk by itself"},
    {"low-cpu-mem-usage", SWITCH, IDLE = "weights are read once, where they stay"},
    {"attn-implementation", VALUE, IDLE = "attention of prompts never writes its matrix of scores"},
    {"use-cache", SWITCH, .neutral = "on",
     .why = "the KV cache is always used; --kv-policy cuts it"},
    {"use-fast", SWITCH, IDLE = "the tokenizer is one of our own"},
    {"num-beams", VALUE, .neutral = "1", .why = "there is no beam search; --n N draws samples"},
    {"best-of", VALUE, .neutral = "1", .why = "there is no ranking; --n N draws samples"},
    {"do-sample", SWITCH, .neutral = "off", .why = "a --temperature above 0 samples"},
    {"no-repeat-ngram-size", VALUE, .neutral = "0",
     .why = "--repetition-penalty and --frequency-penalty make repeats less likely"},
    {"length-penalty", VALUE, .neutral = "1|1.0", .why = "it is beam search's, and there is none"},
    {"max-length", VALUE, .why = "--max-tokens counts what is generated, --context all tokens"},
    {"model-args", VALUE, .why = "--model DIR, and its options one by one"},
    {"tasks", VALUE, .why = "records of lm-eval go to generate --input; see aquifer help generate"},
    {"num-fewshot", VALUE, .why = "the harness writes its examples into the prompts"},
    {"output-path", VALUE, .why = "--output FILE"},
    {"adapter", VALUE, .why = NO_ADAPTERS},
    {"peft", VALUE, .why = NO_ADAPTERS},
    {"deepspeed", VALUE, .why = "weights, KV cache and hidden states are offloaded by --placement"},
    {"cpu-offload", SWITCH, .neutral = "off",
     .why = "to keep the weights in host memory, weights=0/100/0: " SHARES},
    {"disk-offload", SWITCH, .neutral = "off",
     .why = "to read the weights from disk, weights=0/0/100: " SHARES},
    /* Here it moves the KV cache to the host, in ggml's programs to the device. */
    {"kv-offload", SWITCH, .why = KV_EITHER},
    {"kvo", SWITCH, .why = KV_EITHER},
    {"pin-memory", VALUE, IDLE = "host memory is pinned where a device copies from it"},
    {"quant-bits", VALUE, .neutral = "16", .why = "--weight-format int8 or int4"},
    {"local-rank", VALUE, IDLE = "one process runs the model"},
    {"num-gpus", VALUE, .neutral = "1", .why = ONE_DEVICE},
};
const uint32_t aq_habit_count = AQ_ARRAY_LEN(aq_habit_table);

/* Whether `name` is the row's, or its beginning; '-' and '_' are the same. */
static bool begins_so(const char *row, const char *name, bool whole)
{
    for (; *name; row++, name++) {
        if (*row != (*name == '_' ? '-' : *name))
            return false;
    }
    return !whole || !*row;
}

/* Flags of FlexGen's are those above the first of another program. */
static bool is_of_flexgen(const struct aq_habit *h)
{
    const struct aq_habit *end = aq_habit_table;
    while (strcmp(end->name, "cpu") != 0)
        end++;
    return h < end;
}

const struct aq_habit *aq_habit_find(const char *name, bool flexgen)
{
    for (uint32_t i = 0; i < aq_habit_count; i++) {
        const struct aq_habit *h = &aq_habit_table[i];
        if ((flexgen ? is_of_flexgen(h) : !h->flexgen) && begins_so(h->name, name, true))
            return h;
    }
    return NULL;
}

/* Flags of FlexGen's that begin so, each name once; at most `most` of them. */
static uint32_t begin_so(const struct aq_habit **ret, uint32_t most, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < aq_habit_count && count < most; i++) {
        const struct aq_habit *h = &aq_habit_table[i];
        bool again = false;
        for (uint32_t k = 0; k < count; k++)
            again = again || strcmp(ret[k]->name, h->name) == 0;
        if (is_of_flexgen(h) && !again && begins_so(h->name, name, false))
            ret[count++] = h;
    }
    return count;
}

const struct aq_habit *aq_habit_abbreviated(const char *name)
{
    const struct aq_habit *found[2];
    return begin_so(found, 2, name) == 1 ? found[0] : NULL;
}

void aq_habit_candidates(const char *name, char *text, size_t bytes)
{
    const struct aq_habit *found[8];
    uint32_t count = begin_so(found, AQ_ARRAY_LEN(found), name);
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count && used < bytes; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s--%s", i ? ", " : "", found[i]->name);
}
