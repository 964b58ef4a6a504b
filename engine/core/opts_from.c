/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/opts_from.h"

#include "engine/options/kv.h"

#include <string.h>

int aq_engine_opts_from(struct aq_engine_opts *ret, const struct aq_options *o,
                        const struct aq_log *log, struct aq_err *reterr)
{
    struct aq_kv_policy kv;
    int rc = aq_options_kv_policy(&kv, o, reterr);
    if (rc < 0)
        return rc;
    *ret = (struct aq_engine_opts){
        .model_dir = o->model,
        .shape = o->shape,
        .random_weights = o->random_weights,
        .random_seed = o->random_weights_seed,
        .compute = o->compute,
        .weight_format = o->weight_format,
        .kv_format = o->kv_format,
        .kv = kv,
        .threads = o->threads,
        .isa = o->isa,
        .device = o->device ? o->device : "auto",
        .device_memory = o->device_memory,
        .deterministic = o->deterministic,
        .host_memory = o->host_memory,
        .disk_memory = o->disk_memory,
        .placement = o->placement,
        .attention = o->attention,
        .host_products = o->host_products,
        .fuse_layer = o->fuse_layer,
        .alternate = o->alternate,
        .replay = o->replay,
        .numa = o->numa,
        .emulate_device = o->emulate_device,
        .emulate_link = o->emulate_link,
        .serial = o->executor && strcmp(o->executor, "serial") == 0,
        .io = o->io,
        .io_direct = o->io_direct,
        .verify_store = o->verify_store,
        .disk_dirs = (const char *const *)o->disk_dir.item,
        .disk_dir_count = o->disk_dir.count,
        .disk_dir_any = o->disk_dir_any,
        .cache_dir = o->cache_dir,
        .hardware = o->hardware,
        .prefetch = o->prefetch,
        .chunk = o->chunk,
        .context = o->context,
        .micro_batch = o->micro_batch,
        .micro_batches = o->micro_batches,
        .micro_batch_tokens = o->micro_batch_tokens,
        .refill = o->refill,
        .trace = o->trace,
        .predict = o->dry_run || o->report || o->trace || strcmp(o->command, "bench") == 0,
        .log = log,
    };
    return 0;
}
