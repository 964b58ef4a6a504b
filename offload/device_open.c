/* SPDX-License-Identifier: Apache-2.0
 * Which backend keeps a device's time: the host's clock, a GPU, or a timeline. */
#include "base/types.h"
#include "offload/device_internal.h"

#include <assert.h>
#include <stdlib.h>

int aq_device_open(struct aq_device **ret, const struct aq_device_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts && opts->mem && opts->kind < AQ_DEVICE_KIND_COUNT);
    assert(opts->jitter_permille <= 1000);
    assert(opts->timeline || (!opts->poison && !opts->eager && !opts->jitter_permille));
    assert((opts->kind == AQ_DEVICE_GPU) == (opts->gpu_ops && opts->gpu));
    assert(opts->kind != AQ_DEVICE_GPU || !opts->timeline);
    struct aq_device *d = calloc(1, sizeof(*d));
    if (!d)
        return aq_error_memory(reterr, "device");
    d->opts = *opts;
    d->separate = opts->kind != AQ_DEVICE_UNIFIED;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->idle, NULL);
    d->ops = opts->timeline                ? &aq_device_virtual
             : opts->kind == AQ_DEVICE_GPU ? &aq_device_gpu
                                           : &aq_device_real;
    if (d->ops->open)
        d->ops->open(d);
    *ret = d;
    return 0;
}

void aq_device_close(struct aq_device *d)
{
    if (!d)
        return;
    assert(d->stream_count == 0 && d->range_count == 0);
    if (d->ops->close)
        d->ops->close(d);
    pthread_cond_destroy(&d->idle);
    pthread_mutex_destroy(&d->lock);
    free(d->range);
    free(d);
}
