/* SPDX-License-Identifier: Apache-2.0
 * engine/cli/main.c - the `aquifer` program: words in, a library call, an exit status out.  The
 * only place that prints, handles signals and exits; uses nothing but the public header. */
#include "engine/aquifer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_IO = 4,
    EXIT_INTERRUPTED = 130,
    SAME_INTERRUPT_MS = 500,
    LAST_RESORT_S = 18, /* after an interrupt: the library's own limit is below this */
    POLL_MS = 200,
    PIPE_BYTES = 4096, /* what a writable pipe takes without waiting, PIPE_BUF of pipe(7) */
};

/* When the first signal came, monotonic ms; 0: none did.  Handlers can reach nothing else, and two
 * of them may run at once, in two threads. */
static atomic_llong first_interrupt_ms;

static void on_alarm(int signal)
{
    (void)signal;
    _exit(EXIT_INTERRUPTED);
}

static void on_signal(int signal)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* async-signal-safe by POSIX, as all of this */
    long long ms = (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 + 1, first = 0;
    if (atomic_compare_exchange_strong(&first_interrupt_ms, &first, ms)) {
        struct sigaction last_resort = {.sa_handler = on_alarm};
        sigemptyset(&last_resort.sa_mask);
        sigaction(SIGALRM, &last_resort, NULL);
        alarm(LAST_RESORT_S); /* whatever may hang then, a dead file server say, we are gone */
        return;
    }
    /* timeout(1) and shells signal a process and its group: two at once are one wish.  The others
     * come again by themselves, SIGXCPU every second: only these two tell of impatience. */
    if ((signal == SIGINT || signal == SIGTERM) && ms - first > SAME_INTERRUPT_MS)
        _exit(EXIT_INTERRUPTED);
}

static bool is_leaving(void)
{
    return atomic_load(&first_interrupt_ms) != 0;
}

static bool is_ignored(int signal)
{
    struct sigaction now;
    return sigaction(signal, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

/* What asks a run to end in good order: users, terminals that hang up, schedulers before their time
 * limit (Slurm's --signal=USR1), limits of CPU time, timers of a parent.  nohup(1) and others who
 * ignore one of the latter go on not hearing it. */
static void catch_signals(void)
{
    static const int heeded[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM};
    struct sigaction interrupt = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&interrupt.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &interrupt, NULL);
    sigaction(SIGTERM, &interrupt, NULL);
    for (size_t i = 0; i < sizeof(heeded) / sizeof(heeded[0]); i++)
        if (!is_ignored(heeded[i]))
            sigaction(heeded[i], &interrupt, NULL);
    sigaction(SIGPIPE, &ignore, NULL); /* a closed pipe is a failed write like any other */
    sigaction(SIGXFSZ, &ignore, NULL); /* and so is one beyond the limit of a file's size */
}

struct screen {
    struct aquifer_hooks hooks;
    bool terminal;      /* lines go to a terminal: progress stays on one line */
    bool stamped;       /* each line says when it was written */
    bool progress_open; /* a progress line stands there without its newline */
    int write_error;    /* errno of the first failed write to standard output */
    bool quiet_pipe;    /* a reader of standard output may leave without a word */
};

static int terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
        return size.ws_col;
    return 80;
}

/* Date and time of the zone that TZ or the system names, as ISO 8601 (and RFC 3339) has them. */
static void put_time(FILE *to)
{
    struct timespec now;
    struct tm parts;
    char text[sizeof("2000-01-01T00:00:00")], zone[sizeof("+0000")];
    clock_gettime(CLOCK_REALTIME, &now);
    if (!localtime_r(&now.tv_sec, &parts) ||
        !strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts) ||
        !strftime(zone, sizeof(zone), "%z", &parts))
        return;
    fprintf(to, "%s.%03ld%.3s:%s ", text, now.tv_nsec / 1000000, zone, zone + 3);
}

static void end_progress(struct screen *s)
{
    if (s->progress_open)
        fputc('\n', stderr);
    s->progress_open = false;
}

/* True as soon as the descriptor takes bytes, or fails; false when the user wants to leave before
 * that: nobody reads, and waiting on would be for ever. */
static bool wait_writable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    for (;;) {
        bool leaving = is_leaving(); /* before the wait: a reader who is there gets the rest */
        int n = poll(&p, 1, POLL_MS);
        if (n > 0 || (n < 0 && errno != EINTR))
            return true;
        if (n == 0 && leaving)
            return false;
    }
}

static void show_line(void *user, enum aquifer_level level, const char *text)
{
    struct screen *s = user;
    if (!wait_writable(STDERR_FILENO))
        return;
    if (level == AQUIFER_PROGRESS && s->terminal) {
        /* Overwrites the line before; the last column stays free so that nothing wraps. */
        int width = terminal_width() - 1;
        fprintf(stderr, "\r%-*.*s", width, width, text);
        fflush(stderr);
        s->hooks.line_columns = width;
        s->progress_open = true;
        return;
    }
    end_progress(s);
    const char *kind = level == AQUIFER_ERROR     ? "error: "
                       : level == AQUIFER_WARNING ? "warning: "
                                                  : "";
    if (s->stamped)
        put_time(stderr);
    fprintf(stderr, "aquifer: %s%s\n", kind, text);
}

static void show_output(void *user, const char *bytes, size_t count)
{
    struct screen *s = user;
    if (s->terminal && isatty(STDOUT_FILENO))
        end_progress(s);
    while (count && !s->write_error) {
        if (!wait_writable(STDOUT_FILENO)) {
            s->write_error = EINTR;
            return;
        }
        ssize_t n = write(STDOUT_FILENO, bytes, count < PIPE_BYTES ? count : PIPE_BYTES);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) /* somebody else filled the pipe */
            continue;
        if (n < 0) {
            s->write_error = errno;
            return;
        }
        bytes += n;
        count -= (size_t)n;
    }
}

/* Nothing more can be shown once standard output is gone, so the run may as well end. */
static int is_interrupted(void *user)
{
    const struct screen *s = user;
    return is_leaving() || s->write_error;
}

static int finish(struct screen *s, int status)
{
    end_progress(s);
    if (!s->write_error)
        return status;
    if (s->write_error == EINTR)
        return EXIT_INTERRUPTED;
    if (s->write_error != EPIPE || !s->quiet_pipe) {
        char said[256];
        snprintf(said, sizeof(said), "standard output: %s", strerror(s->write_error));
        show_line(s, AQUIFER_ERROR, said);
    }
    return EXIT_IO;
}

/* Help is laid out to the terminal's width, unless the user says otherwise. */
static void tell_width(void)
{
    struct winsize size;
    char text[16];
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
        snprintf(text, sizeof(text), "%u", size.ws_col);
        setenv("COLUMNS", text, 0);
    }
}

int main(int argc, char **argv)
{
    struct screen screen = {.terminal = isatty(STDERR_FILENO)};
    struct aquifer_error error;
    char *options = NULL, *text = NULL;
    catch_signals();
    tell_width();
    if (aquifer_parse_args(argc - 1, argv + 1, &options, &text, &error) < 0) {
        show_line(&screen, AQUIFER_ERROR, error.text);
        return error.exit_status;
    }
    /* Results that nobody took are worth a word, help that head(1) had enough of is not. */
    screen.quiet_pipe = text || strcmp(argv[1], "generate") != 0;
    int status = EXIT_SUCCESS;
    if (text) {
        show_output(&screen, text, strlen(text));
    } else {
        screen.stamped = aquifer_flag(options, "log_time");
        screen.terminal = screen.terminal && !screen.stamped;
        screen.hooks = (struct aquifer_hooks){
            .user = &screen,
            .line = show_line,
            .output = show_output,
            .interrupted = is_interrupted,
            .output_is_terminal = isatty(STDOUT_FILENO),
            .lines_are_terminal = screen.terminal,
            .line_columns = terminal_width() - 1,
        };
        status = aquifer_run(options, &screen.hooks);
    }
    aquifer_free(options);
    aquifer_free(text);
    return finish(&screen, status);
}
