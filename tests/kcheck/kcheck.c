/* SPDX-License-Identifier: Apache-2.0
 * kcheck: parity checks and micro-benchmarks of the kernels.
 * Exit status: 0 all compared and within limits, 1 something was not, 77 nothing was compared. */
#include "tests/kcheck/kc_internal.h"

#include "base/clock.h"
#include "base/json.h"
#include "commit.h"
#include "config.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage_text[] =
    "usage: kcheck [options]\n"
    "  --filter TEXT     only cases whose name contains TEXT\n"
    "  --isa NAME        tables up to this level: ref, avx2, avx512, avx512vnni, avx512bf16, amx\n"
    "  --seed N          replay; default: from the clock, printed\n"
    "  --threads N       default: the processors this process may use\n"
    "  --sample N        only one case in N, others for another seed\n"
    "  --bench           time the kernels instead of checking them\n"
    "  --duration S      seconds per benchmark line (default 0.5)\n"
    "  --clock cpu       processor time per thread instead of the wall's: for a shared machine\n"
    "  --peer onednn     time oneDNN in turns with the products\n"
    "  --json FILE       write the benchmark lines there too\n"
    "  --in-process      do not fork: for debuggers\n"
    "  --list            print the names of the checks\n";

/* One file each; meson.build says which. */
#define KC_CHECK(name) extern const struct kc_check kc_check_##name;
KC_CHECKS
#undef KC_CHECK

static const struct kc_check *const kc_checks[] = {
#define KC_CHECK(name) &kc_check_##name,
    KC_CHECKS
#undef KC_CHECK
};

enum { FAILURES_SHOWN = 10 }; /* failing cases shown per check and table */

/* ---- cases ---- */

typedef void any_fn(void);

static any_fn *slot_of(const struct aq_kernels *k, size_t slot)
{
    any_fn *fn;
    memcpy(&fn, (const char *)k + slot, sizeof(fn));
    return fn;
}

static uint64_t hash_text(const char *text, uint64_t h)
{
    for (; *text; text++) /* FNV-1a */
        h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
    return h;
}

static bool begin(struct kc *kc, size_t slot, const char *format, va_list args)
{
    kc_release_buffers(kc);
    vsnprintf(kc->name, sizeof(kc->name), format, args);
    if (kc->options->filter && !strstr(kc->name, kc->options->filter))
        return false;
    uint64_t key = hash_text(kc->name, 0xcbf29ce484222325ull ^ kc->options->seed);
    if (kc->options->sample > 1 && (key >> 20) % kc->options->sample)
        return false;
    any_fn *fn = slot_of(&kc->tables[kc->table], slot);
    if (!fn)
        return false;
    for (uint32_t i = 0; i < kc->table; i++) {
        if (slot_of(&kc->tables[i], slot) == fn)
            return false;
    }
    memcpy(kc->report->present, kc->name, sizeof(kc->name));
    kc->key = key;
    kc->counter = 0;
    kc->printed = 0;
    return true;
}

bool kc_begin(struct kc *kc, size_t slot, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool on = begin(kc, slot, format, args);
    va_end(args);
    kc->report->cases += on;
    return on;
}

bool kc_bench_begin(struct kc *kc, size_t slot, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool on = begin(kc, slot, format, args);
    va_end(args);
    return on;
}

const struct aq_kernels *kc_ref(const struct kc *kc)
{
    return &kc->tables[0];
}

const struct aq_kernels *kc_new(const struct kc *kc)
{
    return &kc->tables[kc->table];
}

const struct aq_kernels *kc_table(const struct kc *kc, const char *name)
{
    for (uint32_t i = 0; i <= kc->table; i++) {
        if (strcmp(kc->traits[i].name, name) == 0)
            return &kc->tables[i];
    }
    return NULL;
}

const struct aq_kernels *kc_instructions(const struct kc *kc)
{
    const char *name = kc->traits[kc->table].emulates;
    return name ? kc_table(kc, name) : NULL;
}

bool kc_rows_only(const struct kc *kc)
{
    return kc->traits[kc->table].rows_only;
}

uint32_t kc_threads(const struct kc *kc)
{
    return kc->options->threads;
}

struct aq_exec *kc_exec(struct kc *kc, uint32_t threads)
{
    if (!threads)
        threads = kc->options->threads;
    assert(threads <= KC_THREADS_MAX);
    if (kc->exec[threads])
        return kc->exec[threads];
    const struct aq_scratch_need need = {.k_max = 16384 + 64,
                                         .head_dim_max = 256,
                                         .context_max = 8192,
                                         .scored_q_per_kv = 48,
                                         .choosing_q_per_kv = 48,
                                         .observed = 1024};
    size_t bytes = aq_kernels_scratch_bytes(&need);
    kc->scratch[threads] = aligned_alloc(4096, bytes * threads);
    size_t codes = aq_kernels_codes_bytes(need.k_max);
    kc->codes = kc->codes ? kc->codes : aligned_alloc(4096, codes);
    struct aq_err err;
    if (!kc->scratch[threads] || aq_pool_open(&kc->pool[threads], threads, &err) < 0 ||
        aq_exec_open(&kc->exec[threads], kc->pool[threads], kc->scratch[threads], bytes, &err) <
            0 ||
        !kc->codes) {
        fprintf(stderr, "kcheck: no execution context with %u threads\n", threads);
        exit(1);
    }
    aq_exec_lend_codes(kc->exec[threads], kc->codes, codes);
    return kc->exec[threads];
}

static void close_contexts(struct kc *kc)
{
    kc_release_buffers(kc);
    free(kc->codes);
    kc->codes = NULL;
    for (uint32_t i = 0; i <= KC_THREADS_MAX; i++) {
        aq_exec_close(kc->exec[i]);
        aq_pool_close(kc->pool[i]);
        free(kc->scratch[i]);
        kc->exec[i] = NULL;
        kc->pool[i] = NULL;
        kc->scratch[i] = NULL;
    }
}

bool kc_expect(struct kc *kc, bool ok, const char *format, ...)
{
    if (ok)
        return true;
    if (kc->printed++ == 0)
        kc->report->failures++;
    if (kc->printed > 4 || kc->report->failures > FAILURES_SHOWN)
        return false;
    va_list args;
    va_start(args, format);
    printf("   %s: ", kc->name);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return false;
}

/* ---- children ---- */

static void run_here(struct kc *kc, const struct kc_check *check)
{
    if (kc->options->bench && !check->bench)
        return;
    if (kc->options->bench)
        check->bench(kc);
    else
        check->check(kc);
    close_contexts(kc);
}

/* Runs one check for one table in a child; what kills the child is a failure of the case it was
 * in. */
static void run_forked(struct kc *kc, const struct kc_check *check)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        fprintf(stderr, "kcheck: fork: %s\n", strerror(errno));
        exit(1);
    }
    if (pid == 0) {
        run_here(kc, check);
        exit(0); /* the sanitizers report at exit */
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(status)) {
        kc->report->failures++;
        printf("   %s: %s\n", kc->report->present, strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
        kc->report->failures++;
        printf("   %s: the child exited with status %d\n", kc->report->present,
               WEXITSTATUS(status));
    }
}

static void print_check(const struct kc *kc, const struct kc_check *check)
{
    const struct kc_report *r = kc->report;
    if (!r->cases && !r->failures)
        return;
    printf("%-11s %-10s [%s] %4u cases", kc->traits[kc->table].name, check->name,
           r->failures ? "FAILED" : "OK", r->cases);
    if (r->worst > 0)
        printf(", worst %.0f%% of limit: %s (%s)", r->worst * 100, r->worst_name, r->worst_why);
    printf("\n");
    fflush(stdout);
}

static uint32_t processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > KC_THREADS_MAX ? KC_THREADS_MAX : (uint32_t)n;
}

static uint64_t parse_number(const char *text, const char *option, uint64_t max)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 0);
    if (errno || end == text || *end || n > max) {
        fprintf(stderr, "kcheck: %s: expected a number up to %llu, found '%s'\n", option,
                (unsigned long long)max, text);
        exit(1);
    }
    return n;
}

static void parse_options(struct kc_options *o, int argc, char **argv)
{
    static const struct option known[] = {
        {"filter", required_argument, 0, 'f'},   {"isa", required_argument, 0, 'i'},
        {"seed", required_argument, 0, 's'},     {"threads", required_argument, 0, 't'},
        {"sample", required_argument, 0, 'S'},   {"bench", no_argument, 0, 'b'},
        {"duration", required_argument, 0, 'd'}, {"clock", required_argument, 0, 'c'},
        {"peer", required_argument, 0, 'p'},     {"json", required_argument, 0, 'j'},
        {"in-process", no_argument, 0, 'n'},     {"list", no_argument, 0, 'l'},
        {"help", no_argument, 0, 'h'},           {0},
    };
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (c) {
        case 'f': o->filter = optarg; break;
        case 'i': o->isa = optarg; break;
        case 's': o->seed = parse_number(optarg, "--seed", UINT64_MAX); break;
        case 't': o->threads = (uint32_t)parse_number(optarg, "--threads", KC_THREADS_MAX); break;
        case 'S': o->sample = (uint32_t)parse_number(optarg, "--sample", 100000); break;
        case 'b': o->bench = true; break;
        case 'd': o->duration_s = atof(optarg); break;
        case 'c': o->cpu_clock = strcmp(optarg, "cpu") == 0; break;
        case 'p': o->peer = optarg; break;
        case 'j': o->json = optarg; break;
        case 'n': o->in_process = true; break;
        case 'l': o->list = true; break;
        case 'h': fputs(usage_text, stdout); exit(0);
        default: fputs(usage_text, stderr); exit(1);
        }
    }
    if (optind < argc) {
        fputs(usage_text, stderr);
        exit(1);
    }
    if (!o->threads)
        o->threads = 1;
}

static int run_checks(struct kc *kc, uint32_t table_count)
{
    uint32_t cases = 0, failures = 0;
    for (uint32_t t = kc->options->table_first; t < table_count; t++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(kc_checks); i++) {
            memset(kc->report, 0, offsetof(struct kc_report, row_count));
            kc->table = t;
            if (kc->options->in_process)
                run_here(kc, kc_checks[i]);
            else
                run_forked(kc, kc_checks[i]);
            if (!kc->options->bench || kc->report->failures)
                print_check(kc, kc_checks[i]);
            cases += kc->report->cases;
            failures += kc->report->failures;
        }
    }
    if (failures) {
        printf("%u failures in %u cases; replay with --seed %llu --filter NAME\n", failures, cases,
               (unsigned long long)kc->options->seed);
        return 1;
    }
    if (kc->options->bench)
        return kc->report->row_count ? 0 : 77;
    if (!cases) {
        printf("nothing was compared: no case matches\n");
        return 77;
    }
    printf("%u cases, all within their limits\n", cases);
    return 0;
}

/* ---- benchmarks ---- */

const struct kc_peer *kc_load_peer(struct kc *kc)
{
    if (!kc->options->peer || kc->peer)
        return kc->peer;
    char path[4096], threads[16];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);
    char *slash = n > 0 ? (path[n] = '\0', strrchr(path, '/')) : NULL;
    if (!slash)
        return NULL;
    snprintf(slash + 1, 64, "kcheck_%s.so", kc->options->peer);
    /* Its threads must neither outnumber ours nor spin while ours are timed. */
    snprintf(threads, sizeof(threads), "%u", kc->options->threads);
    setenv("OMP_NUM_THREADS", threads, 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    kc->peer = module ? dlsym(module, "kc_peer") : NULL;
    if (!kc->peer) {
        fprintf(stderr, "kcheck: --peer %s: %s\n", kc->options->peer, dlerror());
        exit(1);
    }
    return kc->peer;
}

static void cpu_name(char name[64])
{
    snprintf(name, 64, "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "model name : %63[^\n]", name) == 1)
            break;
    }
    if (f)
        fclose(f);
}

/* More than twice the last-level cache, so that what rotates is cold; at least 512 MiB, and never
 * more than a quarter of the memory that is free. */
static size_t cold_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = aq_max_u64(512 * AQ_MIB, 2 * (uint64_t)(cache > 0 ? cache : 0));
    bytes = aq_min_u64(bytes, aq_max_u64(free_bytes / 4, 512 * AQ_MIB));
    return aq_align_up(bytes, 64 * AQ_MIB);
}

static json_t *row_to_json(const struct kc_row *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(r->name));
    json_object_set_new(o, "table", json_string(r->table));
    json_object_set_new(o, "unit", json_string(r->in_bytes ? "bytes/s" : "flop/s"));
    json_object_set_new(o, "samples", json_integer(r->samples));
    json_object_set_new(o, "call_s", aq_json_real(r->call_s));
    json_object_set_new(o, "call_s_best", aq_json_real(r->best_s));
    json_object_set_new(o, "spread", aq_json_real(r->spread));
    json_object_set_new(o, "rate", aq_json_real(r->rate));
    json_object_set_new(o, "rate_best", aq_json_real(r->best_rate));
    json_object_set_new(o, "bound", json_string(kc_bound_name(r->bound)));
    if (r->bound_rate > 0) {
        json_object_set_new(o, "bound_rate", aq_json_real(r->bound_rate));
        json_object_set_new(o, "bound_rate_best", aq_json_real(r->best_bound_rate));
        json_object_set_new(o, "share_of_bound", aq_json_real(r->rate / r->bound_rate));
    }
    if (r->peer_call_s > 0) {
        json_object_set_new(o, "peer_call_s", aq_json_real(r->peer_call_s));
        json_object_set_new(o, "peer_call_s_best", aq_json_real(r->peer_best_s));
        json_object_set_new(o, "share_of_peer", aq_json_real(r->peer_call_s / r->call_s));
    }
    return o;
}

static int write_json(const struct kc *kc, const char *cpu)
{
    json_t *rows = json_array(), *o = json_object();
    for (uint32_t i = 0; i < kc->report->row_count; i++)
        json_array_append_new(rows, row_to_json(&kc->report->row[i]));
    json_object_set_new(o, "schema", json_string("aquifer-kcheck-1"));
    json_object_set_new(o, "aquifer", json_string(AQ_VERSION));
    json_object_set_new(o, "commit", json_string(AQ_COMMIT));
    json_object_set_new(o, "cpu", json_string(cpu));
    json_object_set_new(o, "threads", json_integer(kc->options->threads));
    json_object_set_new(o, "cold_bytes", json_integer((json_int_t)kc->cold_bytes));
    json_object_set_new(o, "peer",
                        kc->options->peer ? json_string(kc->options->peer) : json_null());
    json_object_set_new(o, "rows", rows);
    int rc = json_dump_file(o, kc->options->json, JSON_INDENT(1));
    json_decref(o);
    if (rc < 0)
        fprintf(stderr, "kcheck: cannot write '%s'\n", kc->options->json);
    return rc < 0 ? 1 : 0;
}

static int run_benches(struct kc *kc, uint32_t table_count)
{
    char cpu[64];
    cpu_name(cpu);
    kc->cold_bytes = cold_bytes();
    kc->cold = kc_make_cold(kc->cold_bytes);
    printf("%s | commit %s | cold data: %zu MiB | medians; best against best\n", cpu, AQ_COMMIT,
           kc->cold_bytes / (size_t)AQ_MIB);
    kc_print_heading();
    int rc = run_checks(kc, table_count);
    if (rc == 0 && kc->options->json)
        rc = write_json(kc, cpu);
    return rc;
}

int main(int argc, char **argv)
{
    struct kc_options options = {
        .seed = aq_clock_ns() & 0xffffffffu, .threads = processors(), .duration_s = 0.5};
    parse_options(&options, argc, argv);
    if (options.list) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(kc_checks); i++)
            puts(kc_checks[i]->name);
        return 0;
    }
    struct aq_kernels tables[KC_TABLES_MAX];
    struct kc_traits traits[KC_TABLES_MAX] = {0};
    uint32_t table_count = kc_make_tables(tables, traits, &options);
    struct kc_report *report =
        mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        fprintf(stderr, "kcheck: %s\n", strerror(errno));
        return 1;
    }
    struct kc kc = {.options = &options, .tables = tables, .traits = traits, .report = report};
    printf("kcheck: tables ref");
    for (uint32_t t = 1; t < table_count; t++)
        printf(" %s", traits[t].name);
    printf(" | %u threads | seed %llu\n", options.threads, (unsigned long long)options.seed);
    return options.bench ? run_benches(&kc, table_count) : run_checks(&kc, table_count);
}
