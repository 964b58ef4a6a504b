/* SPDX-License-Identifier: Apache-2.0
 * aquifer tokenize: opens what the command line names and hands it to
 * engine/commands/tokenize_lines.h. */
#include "engine/chat/chat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/commands/commands.h"
#include "engine/commands/tokenize_lines.h"
#include "engine/records/spool.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A stream that writes to hooks->output. */
static ssize_t write_to_hooks(void *cookie, const char *bytes, size_t count)
{
    aq_hooks_output(cookie, bytes, count);
    return (ssize_t)count;
}

static bool is_standard(const char *path)
{
    return !path || strcmp(path, "-") == 0;
}

/* The input; of a file that is compressed what is in it. */
static int open_input(FILE **ret, const struct aq_options *o, const struct aquifer_hooks *hooks,
                      struct aq_err *reterr)
{
    const char *name = is_standard(o->input) ? "standard input" : o->input;
    int fd = is_standard(o->input) ? dup(STDIN_FILENO) : open(o->input, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return aq_error(reterr, errno == ENOMEM ? -ENOMEM : -EINVAL, "input '%s': %s", name,
                        strerror(errno));
    if (!is_standard(o->input) && aq_spool_wanted(fd, name)) {
        struct aq_spool spool = {.to = aq_spool_open(NULL, reterr),
                                 .from = fd,
                                 .name = name,
                                 .interrupted = hooks ? hooks->interrupted : NULL,
                                 .user = hooks ? hooks->user : NULL};
        int rc = spool.to < 0 ? spool.to : aq_spool_copy(&spool, reterr);
        close(fd);
        fd = spool.to;
        if (rc < 0) {
            if (fd >= 0)
                close(fd);
            return rc;
        }
        lseek(fd, 0, SEEK_SET);
    }
    *ret = fdopen(fd, "r");
    if (*ret)
        return 0;
    close(fd);
    return aq_error_memory(reterr, "input '%s'", name);
}

static int open_streams(FILE **ret_in, FILE **ret_out, const struct aq_options *o,
                        const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    int rc = open_input(ret_in, o, hooks, reterr);
    if (rc < 0)
        return rc;
    cookie_io_functions_t io = {.write = write_to_hooks};
    *ret_out =
        is_standard(o->output) ? fopencookie((void *)hooks, "w", io) : fopen(o->output, "we");
    if (!*ret_out)
        return aq_error(reterr, -EIO, "output '%s': %s", o->output ? o->output : "-",
                        strerror(errno));
    return 0;
}

static int open_chat(struct aq_chat **ret, const char *dir, const char *time, struct aq_err *reterr)
{
    int rc = aq_chat_open(ret, dir, time, reterr);
    const char *problem = rc == 0 ? aq_chat_problem(*ret) : NULL;
    return problem ? aq_error(reterr, -ENOEXEC, "--chat: %s", problem) : rc;
}

int aq_cmd_tokenize(const struct aq_options *o, const struct aquifer_hooks *hooks,
                    struct aq_err *reterr)
{
    char dir[PATH_MAX];
    struct aq_tokenizer *t = NULL;
    struct aq_chat *chat = NULL;
    FILE *in = NULL, *out = NULL;
    struct aq_tokenize_stats stats = {0};
    if (!o->model)
        return aq_error(reterr, -EINVAL, "tokenize: expected --model DIR");
    if (o->chat && o->decode)
        return aq_error(reterr, -EINVAL, "tokenize: --chat and --decode exclude each other");
    int rc = aq_checkpoint_resolve(o->model, dir, sizeof(dir), reterr);
    if (rc == 0)
        rc = aq_tokenizer_open(&t, dir, NULL, reterr);
    if (rc == 0 && *aq_tokenizer_info(t)->notice)
        aq_hooks_line(hooks, AQUIFER_INFO, "%s", aq_tokenizer_info(t)->notice);
    if (rc == 0 && o->chat)
        rc = open_chat(&chat, dir, o->chat_time, reterr);
    if (rc == 0)
        rc = open_streams(&in, &out, o, hooks, reterr);
    if (rc == 0) {
        struct aq_tokenize_opts opts = {
            .decode = o->decode,
            .chat = chat,
            .prompt_field = o->prompt_field,
            .no_bos = o->bos == AQ_BOS_NEVER,
            .input_name = is_standard(o->input) ? "standard input" : o->input,
            .output_name = is_standard(o->output) ? "standard output" : o->output,
            .interrupted = hooks ? hooks->interrupted : NULL,
            .user = hooks ? hooks->user : NULL,
        };
        rc = aq_tokenize_stream(t, in, out, &opts, &stats, reterr);
    }
    if (in)
        fclose(in);
    if (out && fclose(out) != 0 && rc == 0)
        rc =
            aq_error(reterr, -EIO, "output '%s': %s", o->output ? o->output : "-", strerror(errno));
    aq_chat_close(chat);
    aq_tokenizer_close(t);
    return rc < 0 ? rc : stats.errors ? 3 : 0;
}
