/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/opts_from.h"

#include "engine/options/kv.h"

#include <assert.h>
#include <string.h>

/* Those with a notation of their own, as values. */
static int read_notations(struct aq_engine_opts *ret, const struct aq_options *o,
                          struct aq_err *reterr)
{
    int rc = aq_options_kv_policy(&ret->kv, o, reterr);
    rc = rc < 0 ? rc : aq_placement_parse(&ret->placement, "--placement", o->placement, reterr);
    rc = rc < 0 ? rc : aq_attention_parse(&ret->attention, "--attention", o->attention, reterr);
    rc = rc < 0 ? rc
                : aq_host_products_parse(&ret->host_products, "--host-products", o->host_products,
                                         reterr);
    if (rc == 0 && o->emulate_link)
        rc = aq_link_parse(&ret->emulate_link, "--emulate-link", o->emulate_link, reterr);
    if (o->numa && !aq_numa_parse(o->numa, &ret->numa))
        assert(!"aq_check_numa takes what is none");
    return rc;
}

int aq_engine_opts_from(struct aq_engine_opts *ret, const struct aq_options *o,
                        const struct aq_log *log, struct aq_err *reterr)
{
    struct aq_engine_opts opts = (struct aq_engine_opts){
        .model_dir = o->model,
        .shape = o->shape,
        .random_weights = o->random_weights,
        .random_seed = o->random_weights_seed,
        .compute = o->compute,
        .weight_format = o->weight_format,
        .kv_format = o->kv_format,
        .threads = o->threads,
        .isa = aq_options_isa(o),
        .device = aq_options_device(o),
        .device_memory = o->device_memory,
        .deterministic = o->deterministic,
        .host_memory = o->host_memory,
        .disk_memory = o->disk_memory,
        .side_by_side = o->side_by_side,
        .fuse_layer = o->fuse_layer,
        .alternate = o->alternate,
        .replay = o->replay,
        .emulate_device = o->emulate_device,
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
        .kv_stage = o->kv_stage,
        .context = o->context,
        .micro_batch = o->micro_batch,
        .micro_batches = o->micro_batches,
        .micro_batch_tokens = o->micro_batch_tokens,
        .refill = o->refill,
        .share_prefixes = o->share_prefixes != AQ_SHARE_OFF,
        .trace = o->trace,
        .predict = o->dry_run || o->report || o->trace || strcmp(o->command, "bench") == 0,
        .log = log,
    };
    int rc = read_notations(&opts, o, reterr);
    if (rc == 0)
        *ret = opts;
    return rc;
}
