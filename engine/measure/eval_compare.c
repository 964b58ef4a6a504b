/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/eval_compare.h"

#include "base/file.h"

#include "engine/machine/limits.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kept {
    float log_sum_exp;
    uint32_t argmax;
};

struct aq_eval_compare {
    struct aq_eval_compare_opts opts;
    char *path; /* where the file was, for messages */
    int fd;
    struct kept *kept; /* [windows][tokens] */
    float *row;        /* [threads][vocab] */
    double *kl;
    uint32_t *agreed;
    int failed; /* -errno of the first transfer that failed, by any thread */
};

uint64_t aq_eval_compare_bytes(const struct aq_eval_compare_opts *o)
{
    return (uint64_t)o->windows * o->tokens * sizeof(struct kept) +
           (uint64_t)o->threads * o->vocab * sizeof(float) +
           o->windows * (sizeof(double) + sizeof(uint32_t));
}

static int make_file(struct aq_eval_compare *c, struct aq_err *reterr)
{
    const struct aq_eval_compare_opts *o = &c->opts;
    uint64_t bytes = (uint64_t)o->windows * o->tokens * o->vocab * sizeof(float);
    struct aq_disk_limits disk;
    int rc = aq_limits_disk(&disk, o->directory, reterr);
    if (rc < 0)
        return rc;
    uint64_t most = o->disk_memory ? o->disk_memory : disk.budget;
    if (bytes > most)
        return aq_error(reterr, -ENOMEM,
                        "--compare-full keeps the logits of %u x %u tokens x %u in '%s': %.1f MiB, "
                        "and %.1f may be used; fewer --windows, or another --disk-dir",
                        o->windows, o->tokens, o->vocab, o->directory, (double)bytes / 0x1p20,
                        (double)most / 0x1p20);
    if (asprintf(&c->path, "%s/aquifer-logits-XXXXXX", o->directory) < 0) {
        c->path = NULL;
        return aq_error_memory(reterr, "--compare-full");
    }
    c->fd = aq_file_open_temp(c->path);
    if (c->fd < 0)
        return aq_error(reterr, c->fd, "--compare-full cannot make a file in '%s': %s",
                        o->directory, strerror(-c->fd));
    unlink(c->path);
    return 0;
}

int aq_eval_compare_open(struct aq_eval_compare **ret, const struct aq_eval_compare_opts *opts,
                         struct aq_err *reterr)
{
    struct aq_eval_compare *c = calloc(1, sizeof(*c));
    if (!c)
        return aq_error_memory(reterr, "--compare-full");
    c->opts = *opts;
    c->fd = -1;
    c->kept = calloc((size_t)opts->windows * opts->tokens, sizeof(*c->kept));
    c->row = calloc((size_t)opts->threads * opts->vocab, sizeof(*c->row));
    c->kl = calloc(opts->windows, sizeof(*c->kl));
    c->agreed = calloc(opts->windows, sizeof(*c->agreed));
    int rc = 0;
    if (!c->kept || !c->row || !c->kl || !c->agreed)
        rc = aq_error_memory(reterr, "--compare-full of %u windows", opts->windows);
    rc = rc < 0 ? rc : make_file(c, reterr);
    if (rc < 0)
        aq_eval_compare_close(c);
    else
        *ret = c;
    return rc;
}

void aq_eval_compare_close(struct aq_eval_compare *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    free(c->path);
    free(c->kept);
    free(c->row);
    free(c->kl);
    free(c->agreed);
    free(c);
}

static void note_failure(struct aq_eval_compare *c, int code)
{
    int none = 0;
    __atomic_compare_exchange_n(&c->failed, &none, code, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* A whole row, by as many calls as it takes. */
static bool transfer(struct aq_eval_compare *c, uint64_t index, float *row, bool write)
{
    size_t bytes = (size_t)c->opts.vocab * sizeof(*row), done = 0;
    while (done < bytes) {
        uint8_t *at = (uint8_t *)row + done;
        off_t offset = (off_t)(index * bytes + done);
        ssize_t n = write ? pwrite(c->fd, at, bytes - done, offset)
                          : pread(c->fd, at, bytes - done, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            note_failure(c, n < 0 ? -errno : -EIO);
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

void aq_eval_compare_keep(struct aq_eval_compare *c, uint32_t window, uint32_t token,
                          const float *logits, const struct aq_logits_stat *stat)
{
    assert(window < c->opts.windows && token < c->opts.tokens);
    uint64_t index = (uint64_t)window * c->opts.tokens + token;
    c->kept[index] = (struct kept){stat->log_sum_exp, stat->argmax};
    transfer(c, index, (float *)logits, true);
}

void aq_eval_compare_row(struct aq_eval_compare *c, uint32_t window, uint32_t token,
                         uint32_t worker, const float *logits, const struct aq_logits_stat *stat)
{
    assert(window < c->opts.windows && token < c->opts.tokens && worker < c->opts.threads);
    uint64_t index = (uint64_t)window * c->opts.tokens + token;
    float *row = c->row + (size_t)worker * c->opts.vocab;
    if (!transfer(c, index, row, false))
        return;
    double kl = 0, lse_p = (double)c->kept[index].log_sum_exp, lse_q = (double)stat->log_sum_exp;
    for (uint32_t i = 0; i < c->opts.vocab; i++) {
        double ln_p = (double)row[i] - lse_p, ln_q = (double)logits[i] - lse_q;
        kl += exp(ln_p) * (ln_p - ln_q);
    }
    c->kl[window] += kl;
    c->agreed[window] += stat->argmax == c->kept[index].argmax;
}

void aq_eval_compare_reset(struct aq_eval_compare *c)
{
    memset(c->kl, 0, c->opts.windows * sizeof(*c->kl));
    memset(c->agreed, 0, c->opts.windows * sizeof(*c->agreed));
}

int aq_eval_compare_check(const struct aq_eval_compare *c, struct aq_err *reterr)
{
    return c->failed
               ? aq_error(reterr, c->failed, "--compare-full: logits in '%s' (deleted)", c->path)
               : 0;
}

const double *aq_eval_compare_kl(const struct aq_eval_compare *c)
{
    return c->kl;
}

const uint32_t *aq_eval_compare_agreed(const struct aq_eval_compare *c)
{
    return c->agreed;
}
