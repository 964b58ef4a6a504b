/* SPDX-License-Identifier: Apache-2.0
 * offsim - the whole engine on one thread in virtual time, over disks that fail: from a seed are
 * drawn a model, a plan, latencies and faults; the crowd of sequences then runs to its end or to an
 * error.  Every copy, read and output of a job is poisoned until it is complete.
 *
 *   offsim [FIRST [COUNT]]     seeds FIRST to FIRST + COUNT - 1
 *
 * A run must
 *   - give the bits of the run without moves and faults, or end in -EIO, -ETIMEDOUT or -ENOEXEC
 *     (weights that are damaged), with a sentence; and only where faults were drawn that may cause
 *     it.  What had ended by then is right;
 *   - end: something is always due, within a number of events;
 *   - close without a descriptor left open (and, built with the address sanitizer, without a leak);
 *   - be the same again, event by event, from the same seed.
 *
 * Disks also deceive: bits flip, sectors come from elsewhere, requests are lost, torn or led astray
 * and said to be done.  --verify-store always must notice all of it.  Once notices what is wrong
 * with a store from the first read on: there only that is drawn.  Off notices nothing, and nothing
 * of the kind is drawn. */
#include "base/prng.h"
#include "offload/io_fault.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"

#include <assert.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { SHAPES = 4, CROWD = 6, PROMPT = 70, TOKENS = 16, FILES_MAX = 8 };
#define EVENTS_MAX (8ull * 1000 * 1000)

static const struct shape {
    uint32_t hidden, heads, layers, ffn, vocab, embed;
} shapes[SHAPES] = {
    {64, 4, 2, 256, 320, 64},
    {128, 4, 3, 512, 512, 128},
    {96, 3, 1, 160, 260, 64},
    {256, 4, 4, 320, 500, 256},
};

static struct {
    char root[TEMP_PATH_MAX], cache[TEMP_INSIDE_MAX], scratch[TEMP_INSIDE_MAX];
    char config[SHAPES][TEMP_INSIDE_MAX];
    struct crowd *reference[SHAPES][AQ_DTYPE_COUNT][AQ_DTYPE_COUNT][AQ_DTYPE_COUNT][DRAWN_KV];
    uint64_t seed;
    struct {
        unsigned refused, whole, eio, timed_out, damaged, twice;
        uint64_t events, struck[AQ_FAULT_KIND_COUNT], bytes[AQ_LANE_COUNT];
    } total;
} rig;

/* ---- ends -------------------------------------------------------------------------------- */

static char line[1400];

static _Noreturn void die(const char *what, const char *detail)
{
    printf("offsim: %s: %s\n  again: offsim %llu 1\n  %s\n", what, detail,
           (unsigned long long)rig.seed, line);
    fflush(stdout);
    exit(1);
}

static void crashed(int sig)
{
    static char text[1500];
    int n = snprintf(text, sizeof(text), "offsim: crash: signal %d\n  again: offsim %llu 1\n  %s\n",
                     sig, (unsigned long long)rig.seed, line);
    ssize_t written = write(STDOUT_FILENO, text, n > 0 ? (size_t)n : 0);
    (void)written;
    signal(sig, SIG_DFL);
    raise(sig);
}

/* ---- the simulated machine --------------------------------------------------------------- */

struct sim {
    uint64_t seed;
    struct aq_timeline *timeline;
    struct aq_fault_opts faults;
    bool may_fail;    /* some of the faults end a run */
    bool may_deceive; /* ... or hand it wrong bytes */
    enum aq_verify verify;
    struct aq_fault_extent map[FILES_MAX]; /* with `once` */
    uint64_t cost_base_ns, cost_flop_ps;
    struct aq_io *io; /* the engine's */
    struct aq_fault_stats stats;
    void *file[FILES_MAX];
    uint32_t file_count;
    uint64_t looks; /* of the timeline at its sources: once an event */
    uint64_t hash;
};

static uint64_t watch_next(void *arg)
{
    struct sim *s = arg;
    if (++s->looks > EVENTS_MAX)
        die("hang", "events without end");
    return AQ_TIMELINE_NEVER;
}

static void watch_fire(void *arg, uint64_t now_ns)
{
    (void)arg;
    (void)now_ns;
}

static uint64_t op_cost_ns(void *user, const struct aq_op *op, const struct aq_op_cost *cost)
{
    const struct sim *s = user;
    (void)op;
    return s->cost_base_ns + cost->flops * s->cost_flop_ps / 1000;
}

#define SECTORS_DECEIVE (1u << AQ_FAULT_FLIP | 1u << AQ_FAULT_MISDIRECT)

static bool is_scratch(const struct aq_io_file *file)
{
    return strstr(file->name, "(scratch)");
}

/* What is read from scratch is not compared with anything: there sectors are as they should be. */
static void spare_scratch(struct sim *s, const struct aq_io_opts *opts)
{
    for (uint32_t i = 0; i < opts->file_count; i++)
        s->map[i] =
            (struct aq_fault_extent){.file = i,
                                     .kinds = is_scratch(&opts->files[i]) ? ~SECTORS_DECEIVE : ~0u,
                                     .bytes = UINT64_MAX / 2};
    s->faults.map = s->map;
    s->faults.map_count = opts->file_count;
}

/* The engine's files, copied into memory: the store's hold the weights, scratch holds garbage. */
static int open_io(void *user, struct aq_io **ret, const struct aq_io_opts *opts,
                   struct aq_err *reterr)
{
    struct sim *s = user;
    struct aq_io_mem_file file[FILES_MAX];
    struct aq_io *mem;
    assert(opts->file_count <= FILES_MAX);
    for (uint32_t i = 0; i < opts->file_count; i++) {
        struct stat st;
        int rc = fstat(opts->files[i].fd, &st);
        size_t bytes = (size_t)aq_align_up((uint64_t)st.st_size, AQ_IO_ALIGN);
        rc |= posix_memalign(&s->file[i], AQ_IO_ALIGN, bytes + AQ_IO_ALIGN);
        assert(rc == 0);
        s->file_count = i + 1;
        ssize_t n = pread(opts->files[i].fd, s->file[i], bytes, 0);
        assert(n == (ssize_t)st.st_size);
        if (is_scratch(&opts->files[i]))
            memset(s->file[i], 0xa5, bytes);
        file[i] = (struct aq_io_mem_file){s->file[i], bytes, opts->files[i].name};
    }
    struct aq_io_mem_opts mem_opts = {.files = file,
                                      .file_count = opts->file_count,
                                      .depth = opts->depth,
                                      .align_bytes = AQ_IO_ALIGN};
    if (s->verify == AQ_VERIFY_ONCE)
        spare_scratch(s, opts);
    int rc = aq_io_open_mem(&mem, &mem_opts, reterr);
    rc = rc < 0 ? rc : aq_io_open_fault(&s->io, mem, &s->faults, reterr);
    *ret = s->io;
    return rc;
}

/* After each pass: what the disks did is theirs to tell only while they are open. */
static void look(void *user, bool running)
{
    struct sim *s = user;
    if (running)
        return;
    if (s->io)
        s->stats = aq_io_fault_stats(s->io);
    uint64_t event[] = {aq_timeline_now(s->timeline), s->stats.event_hash, s->stats.events};
    s->hash = XXH3_64bits_withSeed(event, sizeof(event), s->hash);
}

static struct aq_ratio some(uint64_t seed, uint64_t at, uint32_t in, uint32_t den)
{
    return aq_prng_below(seed, at, 1, in) ? (struct aq_ratio){0, 0} : (struct aq_ratio){1, den};
}

static void draw_deceit(struct sim *s, uint64_t seed)
{
    struct aq_fault_opts *f = &s->faults;
    if (s->verify == AQ_VERIFY_OFF)
        return;
    f->ratio[AQ_FAULT_FLIP] = some(seed, 14, 5, 400);
    f->ratio[AQ_FAULT_MISDIRECT] = some(seed, 15, 5, 400);
    s->may_deceive = f->ratio[AQ_FAULT_FLIP].num || f->ratio[AQ_FAULT_MISDIRECT].num;
    if (s->verify == AQ_VERIFY_ONCE)
        return;
    for (enum aq_fault_kind k = AQ_FAULT_LOST; k <= AQ_FAULT_STRAY; k++) {
        f->ratio[k] = some(seed, 16 + k, 5, 60);
        s->may_deceive |= f->ratio[k].num;
    }
}

static void sim_draw(struct sim *s, uint64_t seed, enum aq_verify verify)
{
    static const uint64_t means_ns[] = {0, 2000, 50 * 1000, 2000 * 1000};
    *s = (struct sim){.seed = seed, .verify = verify};
    struct aq_fault_opts *f = &s->faults;
    f->seed = seed;
    f->latency_ns_min = aq_prng_below(seed, 1, 0, 20000);
    f->latency_ns_mean = means_ns[aq_prng_below(seed, 2, 0, AQ_ARRAY_LEN(means_ns))];
    f->ratio[AQ_FAULT_BUSY] = some(seed, 3, 2, 3);
    f->ratio[AQ_FAULT_EAGAIN] = some(seed, 4, 2, 4);
    f->ratio[AQ_FAULT_EINTR] = some(seed, 5, 2, 6);
    f->ratio[AQ_FAULT_SHORT] = some(seed, 6, 2, 3);
    f->ratio[AQ_FAULT_EIO_ONCE] = some(seed, 7, 3, 12);
    f->ratio[AQ_FAULT_STALL] = some(seed, 8, 8, 300);
    f->ratio[AQ_FAULT_EIO_STICKY] = some(seed, 9, 8, 150);
    s->may_fail = f->ratio[AQ_FAULT_EIO_ONCE].num || f->ratio[AQ_FAULT_STALL].num ||
                  f->ratio[AQ_FAULT_EIO_STICKY].num;
    draw_deceit(s, seed);
    s->cost_base_ns = aq_prng_below(seed, 10, 0, 3) * 4000;
    s->cost_flop_ps = aq_prng_below(seed, 11, 0, 4) * 300;
}

static void sim_open(struct sim *s)
{
    struct aq_timeline_source watch = {watch_next, watch_fire, s};
    int rc = aq_timeline_open(&s->timeline, s->seed, NULL);
    assert(rc == 0);
    aq_timeline_add(s->timeline, &watch);
    s->faults.timeline = s->timeline;
}

static void sim_close(struct sim *s)
{
    aq_timeline_remove(s->timeline, s);
    aq_timeline_close(s->timeline);
    for (uint32_t i = 0; i < s->file_count; i++)
        free(s->file[i]);
}

/* ---- runs -------------------------------------------------------------------------------- */

static void fresh_crowd(struct crowd *c, uint32_t shape)
{
    crowd_draw(c, shape, CROWD, PROMPT, TOKENS, shapes[shape].vocab);
}

static const struct crowd *reference(uint32_t shape, const struct aq_engine_opts *opts,
                                     uint32_t policy)
{
    struct crowd **c =
        &rig.reference[shape][opts->compute][opts->weight_format][opts->kv_format][policy];
    if (*c && policy < DRAWN_KV - 1)
        return *c;
    struct aq_engine_opts o = drawn_reference(opts);
    struct aq_engine *e;
    struct aq_err err;
    free(*c); /* of another policy without a number */
    *c = calloc(1, sizeof(**c));
    assert(*c);
    fresh_crowd(*c, shape);
    if (aq_engine_open(&e, &o, &err) < 0 || aq_engine_plan(e, &(*c)->work, &err) < 0 ||
        aq_engine_load(e, &err) < 0 || crowd_run(*c, e, &err) < 0)
        die("reference", err.text);
    if (!crowd_whole(*c))
        die("reference", "sequences that did not end");
    aq_engine_close(e);
    return *c;
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        count++;
    if (d)
        closedir(d);
    return count;
}

static struct aq_engine_seams seams_of(struct sim *s)
{
    return (struct aq_engine_seams){
        .timeline = s->timeline,
        .poison = true,
        .eager = true,
        .jitter_permille = (uint32_t)aq_prng_below(s->seed, 12, 0, 900),
        .link_latency_ns = aq_prng_below(s->seed, 13, 0, 20000),
        .cost_ns = op_cost_ns,
        .open_io = open_io,
        .user = s,
    };
}

/* One run; *ret_hash: of all events and outputs.  Returns 0, the error of a pass, or 1 when the
 * plan was refused. */
static int run(uint64_t seed, uint64_t *ret_hash)
{
    struct sim s;
    struct drawn d = {.opts = {.random_weights = true}};
    static struct crowd crowd;
    struct drawn_place place = {.dirs = {rig.scratch, rig.scratch},
                                .dir_count = 2,
                                .cache_dir = rig.cache,
                                .chunk_pages = 24};
    uint32_t shape = (uint32_t)aq_prng_below(seed, 0, 2, SHAPES);
    unsigned descriptors = open_descriptors();
    d.opts.shape = rig.config[shape];
    d.opts.random_seed = shape + 1;
    drawn_formats(&d.opts, seed, 1);
    uint32_t policy = drawn_kv(&d.opts, seed, 1);
    drawn_plan(&d, seed, 1, &place);
    d.opts.threads = 1;
    d.opts.io_direct = AQ_DIRECT_OFF; /* its files are only read once, into memory */
    sim_draw(&s, seed, d.opts.verify_store);
    snprintf(line, sizeof(line), "shape %u, latency %llu + %llu ns, may fail %d, deceive %d; %s",
             shape, (unsigned long long)s.faults.latency_ns_min,
             (unsigned long long)s.faults.latency_ns_mean, s.may_fail, s.may_deceive, d.text);
    const struct crowd *want = reference(shape, &d.opts, policy);
    fresh_crowd(&crowd, shape);
    struct aq_engine *e;
    struct aq_err err = {0};
    if (aq_engine_open(&e, &d.opts, &err) < 0)
        die("open", err.text);
    int rc = aq_engine_plan(e, &crowd.work, &err);
    if (rc < 0) {
        if ((rc != -EINVAL && rc != -ENOBUFS) || strlen(err.text) < 20)
            die("plan", err.text);
        aq_engine_close(e);
        return 1;
    }
    sim_open(&s);
    struct aq_engine_seams seams = seams_of(&s);
    aq_engine_set_seams(e, &seams);
    aq_engine_observe(e, look, &s);
    if (aq_engine_load(e, &err) < 0)
        die("load", err.text);
    rc = crowd_run(&crowd, e, &err);
    if (rc < 0 && rc != -EIO && rc != -ETIMEDOUT && !(rc == -ENOEXEC && s.may_deceive))
        die(rc == -EDEADLK ? "hang" : "an error that is not allowed", err.text);
    if (rc < 0 && !s.may_fail && !s.may_deceive)
        die("an error without a fault that causes it", err.text);
    if (rc < 0 && strlen(err.text) < 10)
        die("an error without a sentence", err.text);
    char difference[256];
    uint32_t ended;
    if (rc == 0 ? !crowd_same(want, &crowd, difference, sizeof(difference))
                : !crowd_same_ended(want, &crowd, &ended, difference, sizeof(difference)))
        die("other results", difference);
    struct aq_engine_stats st;
    aq_engine_stats(e, &st);
    for (int l = 0; l < AQ_LANE_COUNT; l++)
        rig.total.bytes[l] += st.lane[l].bytes;
    aq_engine_close(e);
    uint64_t all[] = {s.hash, crowd_hash(&crowd), aq_timeline_now(s.timeline), (uint64_t)rc};
    *ret_hash = XXH3_64bits(all, sizeof(all));
    rig.total.events += s.looks;
    for (int k = 0; k < AQ_FAULT_KIND_COUNT; k++)
        rig.total.struck[k] += s.stats.struck[k];
    sim_close(&s);
    if (open_descriptors() != descriptors)
        die("leak", "descriptors that stay open");
    return rc;
}

static void run_seed(uint64_t seed)
{
    uint64_t hash, again;
    rig.seed = seed;
    int rc = run(seed, &hash);
    rig.total.refused += rc > 0;
    rig.total.whole += rc == 0;
    rig.total.eio += rc == -EIO;
    rig.total.timed_out += rc == -ETIMEDOUT;
    rig.total.damaged += rc == -ENOEXEC;
    if (rc > 0 || seed % 4)
        return;
    if (run(seed, &again) != rc || hash != again)
        die("chance", "the same seed gave other events");
    rig.total.twice++;
}

/* ---- main -------------------------------------------------------------------------------- */

static void make_files(void)
{
    temp_dir(rig.root, "offsim");
    snprintf(rig.cache, sizeof(rig.cache), "%s/cache", rig.root);
    snprintf(rig.scratch, sizeof(rig.scratch), "%s/scratch", rig.root);
    if (mkdir(rig.cache, 0700) < 0 || mkdir(rig.scratch, 0700) < 0)
        die("set-up", rig.root);
    for (uint32_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        snprintf(rig.config[i], sizeof(rig.config[i]), "%s/shape%u.json", rig.root, i);
        FILE *f = fopen(rig.config[i], "w");
        if (!f)
            die("set-up", rig.config[i]);
        bool before = s->embed == s->hidden;
        fprintf(f,
                "{\"architectures\": [\"OPTForCausalLM\"], \"model_type\": \"opt\", "
                "\"activation_function\": \"relu\", \"bos_token_id\": 2, \"pad_token_id\": 1, "
                "\"eos_token_id\": 2, \"do_layer_norm_before\": %s, "
                "\"_remove_final_layer_norm\": false, \"ffn_dim\": %u, \"hidden_size\": %u, "
                "\"max_position_embeddings\": 256, \"num_attention_heads\": %u, "
                "\"num_hidden_layers\": %u, \"torch_dtype\": \"float16\", \"vocab_size\": %u, "
                "\"word_embed_proj_dim\": %u}\n",
                before ? "true" : "false", s->ffn, s->hidden, s->heads, s->layers, s->vocab,
                s->embed);
        fclose(f);
    }
}

static void free_references(void)
{
    struct crowd **c = &rig.reference[0][0][0][0][0];
    for (size_t i = 0; i < sizeof(rig.reference) / sizeof(*c); i++)
        free(c[i]);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGTERM};
    for (size_t i = 0; i < AQ_ARRAY_LEN(signals); i++)
        signal(signals[i], crashed);
    make_files();
    for (uint64_t i = 0; i < count; i++)
        run_seed(first + i);
    printf("offsim: seeds %llu to %llu: %u whole, %u -EIO, %u -ETIMEDOUT, %u damaged, %u refused "
           "at plan, %u twice the same; %llu events\n",
           (unsigned long long)first, (unsigned long long)(first + count - 1), rig.total.whole,
           rig.total.eio, rig.total.timed_out, rig.total.damaged, rig.total.refused,
           rig.total.twice, (unsigned long long)rig.total.events);
    for (int k = 0; k < AQ_FAULT_KIND_COUNT; k++) {
        if (rig.total.struck[k])
            printf("  %s %llu", aq_fault_kind_name((enum aq_fault_kind)k),
                   (unsigned long long)rig.total.struck[k]);
    }
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        if (rig.total.bytes[l])
            printf("  %s %.1f MB", aq_lane_name((enum aq_lane)l),
                   (double)rig.total.bytes[l] * 1e-6);
    }
    printf("\n");
    free_references();
    if (temp_remove(rig.root) != 0)
        die("tear-down", rig.root);
    /* Or else it is not faults and moves that are tried here. */
    if (count >= 100 && (3 * rig.total.refused > count || 2 * rig.total.whole < count ||
                         !rig.total.eio || !rig.total.damaged || !rig.total.twice))
        die("draws", "too few of them ran, or failed");
    return 0;
}
