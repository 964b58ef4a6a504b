/* SPDX-License-Identifier: Apache-2.0
 * The program as a shell sees it: exit status, what goes to which stream, signals.  AQ_PROGRAM
 * names it. */
#include "tests/temp.h"
#include "tests/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 32, TEXT_MAX = 1 << 20 };

struct rig {
    char dir[64];
    int status; /* exit status, or -signal */
    char *out, *err;
};

static char *path_in(const struct rig *r, const char *name)
{
    static char path[8][PATH_MAX];
    static int next;
    char *p = path[next++ % 8];
    snprintf(p, PATH_MAX, "%s/%s", r->dir, name);
    return p;
}

static const char *data(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", getenv("AQ_TEST_DATA"), name);
    return path;
}

static void put(const struct rig *r, const char *name, const char *text)
{
    FILE *f = fopen(path_in(r, name), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static char *get(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, TEXT_MAX + 1);
    assert_non_null(text);
    if (f) {
        size_t n = fread(text, 1, TEXT_MAX, f);
        text[n] = '\0';
        fclose(f);
    }
    return text;
}

static int set_up(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    strcpy(r->dir, "/tmp/aq-program-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    *state = r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    temp_remove(r->dir);
    free(r->out);
    free(r->err);
    free(r);
    return 0;
}

/* Starts the program with the words of "a|b|c"; standard output goes to `out`. */
static pid_t start(struct rig *r, const char *line, int out)
{
    char copy[2048], *words[WORDS_MAX] = {"aquifer"};
    int count = 1;
    assert_true(snprintf(copy, sizeof(copy), "%s", line) < (int)sizeof(copy));
    for (char *save = NULL, *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save)) {
        assert_true(count < WORDS_MAX - 1);
        words[count++] = w;
    }
    words[count] = NULL;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    int err = open(path_in(r, "stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int null = open("/dev/null", O_RDONLY);
    if (err < 0 || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(99);
    execv(getenv("AQ_PROGRAM"), words);
    _exit(99);
}

static void finish(struct rig *r, pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    r->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    free(r->out);
    free(r->err);
    r->out = get(path_in(r, "stdout"));
    r->err = get(path_in(r, "stderr"));
}

static void run(struct rig *r, const char *line)
{
    int out = open(path_in(r, "stdout"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(out >= 0);
    pid_t pid = start(r, line, out);
    close(out);
    finish(r, pid);
    if (r->status == 99)
        fail_msg("the program could not be started: %s", getenv("AQ_PROGRAM"));
}

static uint32_t line_count(const char *text)
{
    uint32_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* ---- texts ------------------------------------------------------------------------------- */

static void help_and_version_go_to_standard_output(void **state)
{
    static const char *const lines[] = {"",          "--help",      "help",
                                        "help|eval", "eval|--help", "--version"};
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        run(r, lines[i]);
        assert_int_equal(r->status, 0);
        assert_non_null(strstr(r->out, "aquifer"));
        assert_string_equal(r->err, "");
    }
}

static void usage_errors_exit_1_and_leave_standard_output_alone(void **state)
{
    static const char *const lines[] = {"generate|--tempreature|1", "genrate", "generate",
                                        "info|--config|/nonexistent", "plan"};
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        run(r, lines[i]);
        assert_int_equal(r->status, 1);
        assert_string_equal(r->out, "");
        assert_int_equal(line_count(r->err), 1);
        assert_memory_equal(r->err, "aquifer: error: ", 16);
    }
}

static void what_cannot_run_here_exits_2(void **state)
{
    struct rig *r = *state;
    run(r, "generate|--device|cuda:99|--prompt|x|--model|y");
    assert_int_equal(r->status, 2);
    assert_non_null(strstr(r->err, "--device cuda:99 cannot be used: "));
    run(r, "generate|--device|cpu|--prompt|x|--model|/nonexistent");
    assert_int_equal(r->status, 2);
    assert_non_null(strstr(r->err, "/nonexistent"));
}

/* ---- streams ----------------------------------------------------------------------------- */

static void a_full_standard_output_exits_4(void **state)
{
    struct rig *r = *state;
    int out = open("/dev/full", O_WRONLY);
    assert_true(out >= 0);
    pid_t pid = start(r, "info|--json", out);
    close(out);
    finish(r, pid);
    assert_int_equal(r->status, 4);
    assert_non_null(strstr(r->err, "standard output"));
}

static void a_closed_pipe_exits_4_and_not_by_a_signal(void **state)
{
    struct rig *r = *state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    pid_t pid = start(r, "help", ends[1]);
    close(ends[1]);
    finish(r, pid);
    assert_int_equal(r->status, 4);
}

/* ---- info and status --------------------------------------------------------------------- */

static void info_is_one_json_document(void **state)
{
    struct rig *r = *state;
    char line[PATH_MAX + 64];
    mkdir(path_in(r, "cache"), 0700);
    mkdir(path_in(r, "cache/some-store"), 0700);
    mkdir(path_in(r, "cache/no-store"), 0700);
    put(r, "cache/some-store/manifest.json", "{}");
    put(r, "cache/some-store/data", "12345678");
    snprintf(line, sizeof(line), "info|--json|--cache|--cache-dir|%s", path_in(r, "cache"));
    run(r, line);
    assert_int_equal(r->status, 0);
    json_t *d = json_loads(r->out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(d);
    assert_int_equal(json_integer_value(json_object_get(d, "schema")), 1);
    assert_true(json_is_string(json_object_get(d, "version")));
    assert_true(json_is_array(json_object_get(d, "backends")));
    assert_true(json_is_string(json_object_get(json_object_get(d, "cpu"), "isa")));
    assert_true(json_integer_value(json_object_get(json_object_get(d, "cpu"), "threads")) > 0);
    assert_true(json_is_string(json_object_get(json_object_get(d, "memory"), "limited_by")));
    assert_true(json_is_string(json_object_get(json_object_get(d, "numa"), "placement")));
    assert_true(json_is_boolean(json_object_get(json_object_get(d, "io"), "direct")));
    const json_t *stores = json_object_get(json_object_get(d, "cache"), "stores");
    assert_int_equal(json_array_size(stores), 1);
    const json_t *store = json_array_get(stores, 0);
    assert_string_equal(json_string_value(json_object_get(store, "name")), "some-store");
    assert_int_equal(json_integer_value(json_object_get(store, "bytes")), 10);
    json_decref(d);
}

static void info_is_readable(void **state)
{
    struct rig *r = *state;
    run(r, "info");
    assert_int_equal(r->status, 0);
    assert_non_null(strstr(r->out, "instruction set"));
    assert_non_null(strstr(r->out, "default --host-memory"));
    assert_non_null(strstr(r->out, "O_DIRECT"));
}

static void info_works_where_there_is_no_home(void **state)
{
    struct rig *r = *state;
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    char *xdg = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    run(r, "info");
    assert_int_equal(r->status, 0);
    assert_non_null(strstr(r->out, "expected --cache-dir"));
    run(r, "info|--cache");
    assert_int_equal(r->status, 1);
    if (home)
        setenv("HOME", home, 1);
    if (xdg)
        setenv("XDG_CACHE_HOME", xdg, 1);
    free(home);
    free(xdg);
}

static void status_prints_what_the_run_wrote(void **state)
{
    static const char document[] =
        "{\"schema\": 1, \"state\": \"running\", \"done\": 7, \"total\": 12,"
        " \"eta_s\": 90.0, \"gen_tok_s\": 123.46,"
        " \"lanes\": {\"compute\": {\"busy_s\": 3.0, \"gb_s\": null}},"
        " \"memory\": {\"host\": {\"budget\": 2147483648}},"
        " \"last_error\": null}";
    struct rig *r = *state;
    char line[PATH_MAX + 64];
    put(r, "results.jsonl.status.json", document);
    snprintf(line, sizeof(line), "status|%s", path_in(r, "results.jsonl"));
    run(r, line);
    assert_int_equal(r->status, 0);
    assert_non_null(strstr(r->out, "state        running\n"));
    assert_non_null(strstr(r->out, "done         7\n"));
    assert_non_null(strstr(r->out, "eta_s        1 m 30 s\n"));
    assert_non_null(strstr(r->out, "gen_tok_s    123.5 tok/s\n"));
    assert_non_null(strstr(r->out, "\n  compute                3 s           -"));
    assert_non_null(strstr(r->out, "\n  host               2.0 GiB           -"));
    snprintf(line, sizeof(line), "status|--json|%s", path_in(r, "results.jsonl.status.json"));
    run(r, line);
    assert_int_equal(r->status, 0);
    assert_memory_equal(r->out, document, sizeof(document) - 1);
}

static void the_status_of_a_killed_run_says_so(void **state)
{
    struct rig *r = *state;
    char line[PATH_MAX + 64], text[128];
    snprintf(line, sizeof(line), "status|%s", path_in(r, "x"));
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid); /* now nobody has this number */
    snprintf(text, sizeof(text), "{\"state\": \"running\", \"pid\": %d}", (int)pid);
    put(r, "x.status.json", text);
    run(r, line);
    assert_non_null(strstr(r->out, "no such process"));
    snprintf(text, sizeof(text), "{\"state\": \"running\", \"pid\": %d}", (int)getpid());
    put(r, "x.status.json", text);
    run(r, line);
    assert_null(strstr(r->out, "no such process"));
}

static void a_status_that_is_not_there_or_broken_exits_2(void **state)
{
    struct rig *r = *state;
    char line[PATH_MAX + 64];
    put(r, "broken.status.json", "{\"state\": ");
    snprintf(line, sizeof(line), "status|%s", path_in(r, "absent"));
    run(r, line);
    assert_int_equal(r->status, 2);
    snprintf(line, sizeof(line), "status|%s", path_in(r, "broken"));
    run(r, line);
    assert_int_equal(r->status, 2);
    assert_non_null(strstr(r->err, "broken.status.json"));
}

/* ---- the main job ------------------------------------------------------------------------ */

static const char prompts[] =
    "{\"id\": \"a\", \"prompt\": \"It was a dark and stormy night, and\"}\n"
    "{\"custom_id\": \"b\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
    "{\"model\": \"m\", \"prompt\": \"The old house\", \"max_tokens\": 4}}\n";

static void generate_line(const struct rig *r, char *line, size_t bytes, const char *more)
{
    snprintf(line, bytes, "generate|--device|cpu|--model|%s|--input|%s|--output|%s%s",
             data("tiny-opt"), path_in(r, "in.jsonl"), path_in(r, "out.jsonl"), more);
}

static void a_job_ends_with_0_and_again_without_work(void **state)
{
    struct rig *r = *state;
    char line[3 * PATH_MAX], *first, *second;
    put(r, "in.jsonl", prompts);
    generate_line(r, line, sizeof(line), "|--max-tokens|8|--quiet");
    run(r, line);
    assert_int_equal(r->status, 0);
    assert_string_equal(r->out, "");
    assert_string_equal(r->err, "");
    first = get(path_in(r, "out.jsonl"));
    assert_int_equal(line_count(first), 2);
    run(r, line);
    assert_int_equal(r->status, 0);
    second = get(path_in(r, "out.jsonl"));
    assert_string_equal(first, second);
    free(first);
    free(second);
}

static void a_bad_record_makes_the_exit_status_3(void **state)
{
    struct rig *r = *state;
    char line[3 * PATH_MAX], text[2048];
    snprintf(text, sizeof(text), "%s{\"id\": \"c\", \"prompt\": 7}\n", prompts);
    put(r, "in.jsonl", text);
    generate_line(r, line, sizeof(line), "|--max-tokens|4");
    run(r, line);
    assert_int_equal(r->status, 3);
    char *results = get(path_in(r, "out.jsonl"));
    assert_int_equal(line_count(results), 3);
    free(results);
}

static void a_prompt_on_the_command_line_is_answered_on_standard_output(void **state)
{
    struct rig *r = *state;
    char line[3 * PATH_MAX];
    snprintf(line, sizeof(line), "generate|--device|cpu|--model|%s|--prompt|The old house|-n|8",
             data("tiny-opt"));
    run(r, line);
    assert_int_equal(r->status, 0);
    assert_true(strlen(r->out) > 4);
}

static void options_may_come_from_a_file(void **state)
{
    struct rig *r = *state;
    char line[3 * PATH_MAX], text[3 * PATH_MAX];
    put(r, "in.jsonl", prompts);
    snprintf(text, sizeof(text), "model: %s\ninput: %s\noutput: %s\ndevice: cpu\nmax-tokens: 2\n",
             data("tiny-opt"), path_in(r, "in.jsonl"), path_in(r, "out.jsonl"));
    put(r, "job.yaml", text);
    snprintf(line, sizeof(line), "generate|--config|%s", path_in(r, "job.yaml"));
    run(r, line);
    assert_int_equal(r->status, 0);
    char *results = get(path_in(r, "out.jsonl"));
    assert_int_equal(line_count(results), 2);
    free(results);
}

/* ---- signals ----------------------------------------------------------------------------- */

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Starts a job of many records and waits until its first result is there. */
static pid_t start_long_job(struct rig *r)
{
    char line[3 * PATH_MAX];
    FILE *f = fopen(path_in(r, "in.jsonl"), "w");
    assert_non_null(f);
    for (int i = 0; i < 4000; i++)
        fprintf(f, "{\"id\": %d, \"prompt\": \"The old house %d\", \"max_tokens\": %d}\n", i, i,
                i == 0 ? 1 : 900);
    assert_int_equal(fclose(f), 0);
    generate_line(r, line, sizeof(line), "|--micro-batch|8|--micro-batches|1|--ignore-eos");
    int out = open(path_in(r, "stdout"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(out >= 0);
    pid_t pid = start(r, line, out);
    close(out);
    struct stat st = {0};
    for (int i = 0; i < 1200 && st.st_size == 0; i++) {
        pause_ms(100);
        if (stat(path_in(r, "out.jsonl"), &st) < 0)
            st.st_size = 0;
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    }
    assert_true(st.st_size > 0);
    return pid;
}

static void an_interrupted_job_exits_130_and_keeps_its_results(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM};
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        unlink(path_in(r, "out.jsonl"));
        unlink(path_in(r, "out.jsonl.manifest.json"));
        pid_t pid = start_long_job(r);
        assert_int_equal(kill(pid, signals[i]), 0);
        finish(r, pid);
        assert_int_equal(r->status, 130);
        char *results = get(path_in(r, "out.jsonl"));
        assert_true(line_count(results) >= 1);
        assert_true(results[strlen(results) - 1] == '\n');
        free(results);
    }
}

/* timeout(1), for one, signals the process and then its group. */
static void two_signals_at_once_are_one_wish(void **state)
{
    struct rig *r = *state;
    pid_t pid = start_long_job(r);
    assert_int_equal(kill(pid, SIGSTOP), 0); /* both arrive before it can react to the first */
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(kill(pid, SIGCONT), 0);
    finish(r, pid);
    assert_int_equal(r->status, 130);
    assert_non_null(strstr(r->err, "aquifer: error: interrupted"));
}

/* CPU time that a process has taken. */
static double cpu_seconds(pid_t pid)
{
    clockid_t clock;
    struct timespec used;
    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &used), 0);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* A job whose first pass takes a minute: long prompts on the reference kernels. */
static pid_t start_slow_pass(struct rig *r)
{
    char line[3 * PATH_MAX];
    FILE *f = fopen(path_in(r, "in.jsonl"), "w");
    assert_non_null(f);
    for (int i = 0; i < 512; i++) {
        fprintf(f, "{\"id\": %d, \"prompt\": \"", i);
        for (int k = 0; k < 500; k++)
            fprintf(f, "house ");
        fprintf(f, "\"}\n");
    }
    assert_int_equal(fclose(f), 0);
    generate_line(r, line, sizeof(line),
                  "|--isa|ref|-t|1|--micro-batch|512|--micro-batch-tokens|300000"
                  "|--share-prefixes|off");
    int out = open(path_in(r, "stdout"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(out >= 0);
    pid_t pid = start(r, line, out);
    close(out);
    bool planned = false;
    for (int i = 0; i < 1200 && !planned; i++) {
        pause_ms(100);
        char *err = get(path_in(r, "stderr"));
        planned = strstr(err, "plan:");
        free(err);
    }
    assert_true(planned);
    /* Weights, which are few, cost little time on a CPU; a busy machine or disk may take long. */
    double from = cpu_seconds(pid);
    for (int i = 0; i < 1200 && cpu_seconds(pid) < from + 3; i++)
        pause_ms(100);
    assert_true(cpu_seconds(pid) >= from + 3);
    return pid;
}

static void a_later_signal_ends_the_program_at_once(void **state)
{
    struct rig *r = *state;
    pid_t pid = start_slow_pass(r);
    assert_int_equal(kill(pid, SIGINT), 0);
    pause_ms(1000);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* still in its pass */
    assert_int_equal(kill(pid, SIGTERM), 0);
    finish(r, pid);
    assert_int_equal(r->status, 130);
    assert_null(strstr(r->err, "aquifer: error")); /* no time was left to say anything */
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

static const struct CMUnitTest tests[] = {
    CASE(help_and_version_go_to_standard_output),
    CASE(usage_errors_exit_1_and_leave_standard_output_alone),
    CASE(what_cannot_run_here_exits_2),
    CASE(a_full_standard_output_exits_4),
    CASE(a_closed_pipe_exits_4_and_not_by_a_signal),
    CASE(info_is_one_json_document),
    CASE(info_is_readable),
    CASE(info_works_where_there_is_no_home),
    CASE(status_prints_what_the_run_wrote),
    CASE(the_status_of_a_killed_run_says_so),
    CASE(a_status_that_is_not_there_or_broken_exits_2),
    CASE(a_job_ends_with_0_and_again_without_work),
    CASE(a_bad_record_makes_the_exit_status_3),
    CASE(a_prompt_on_the_command_line_is_answered_on_standard_output),
    CASE(options_may_come_from_a_file),
    CASE(an_interrupted_job_exits_130_and_keeps_its_results),
    CASE(two_signals_at_once_are_one_wish),
    CASE(a_later_signal_ends_the_program_at_once),
};

AQ_TEST_MAIN(tests)
