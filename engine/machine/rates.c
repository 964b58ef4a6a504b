/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/rates.h"

#include "engine/machine/rates_parts.h"

#define LARGE_BYTES     (96 * AQ_MIB)
#define LARGE_BYTES_MIN (24 * AQ_MIB)
/* Then a measurement stops repeating. */
static const double long_s = 0.08;

static void scale_flops(const struct aq_rates_products *p, const struct aq_rates_opts *o,
                        struct aq_hardware *hw)
{
    struct aq_hw_side *side = &hw->device;
    double rate = aq_rates_product_flops(p, o->compute, o->compute).median;
    if (rate <= 0)
        return;
    double scale = rate / side->product_flops_per_s[o->compute];
    for (int t = 0; t < AQ_DTYPE_COUNT; t++)
        side->product_flops_per_s[t] *= scale;
    side->attention_flops_per_s *= scale;
}

/* Codes may be read more slowly than memory goes. */
static void scale_memory(const struct aq_rates_products *p, const struct aq_rates_opts *o,
                         struct aq_hardware *hw)
{
    enum aq_dtype rows = aq_compute_rows(o->compute);
    double rate = aq_rates_product_bytes(p, rows, rows, p->weight_bytes).median;
    if (rate <= 0)
        return;
    double scale = rate / hw->device.product_bytes_per_s;
    hw->device.product_bytes_per_s *= scale;
    hw->device.attention_bytes_per_s *= scale;
    hw->device.unpack_bytes_per_s *= scale;
    if (p->rig->threads > 1) /* keys and values are read as weights are */
        hw->device.attention_thread_bytes_per_s =
            aq_rates_product_alone(p, rows).median * hw->device.attention_bytes_per_s;
    hw->host_memory_bytes_per_s = rate;
    if (aq_dtype_is_quantised(o->weight_format))
        hw->device.code_bytes_per_s[o->weight_format == AQ_Q4] =
            aq_rates_product_bytes(p, o->compute, o->weight_format, p->weight_bytes).median;
}

int aq_rates_measure(struct aq_hardware *ret, struct aq_rates_measured *ret_measured,
                     const struct aq_rates_opts *opts, struct aq_err *reterr)
{
    size_t panel =
        aq_panel_bytes(aq_compute_rows(opts->compute), AQ_RATES_K); /* the largest there are */
    uint64_t bytes = aq_min_u64(opts->memory, LARGE_BYTES) / panel * panel;
    struct aq_hardware hw;
    struct aq_rates_measured measured = {0};
    aq_hardware_default(&hw, opts->cores, opts->threads, opts->threads);
    if (bytes >= AQ_RATES_PANELS * panel) {
        struct aq_rates_rig rig;
        struct aq_rates_products products;
        int rc = aq_rates_rig_open(&rig, opts->kernels, opts->threads, long_s, 64, reterr);
        if (rc < 0)
            return rc;
        rc = aq_rates_products_open(&products, &rig, bytes, reterr);
        if (rc == 0) {
            scale_flops(&products, opts, &hw);
            measured.products = true;
            measured.memory = bytes >= LARGE_BYTES_MIN;
            if (measured.memory)
                scale_memory(&products, opts, &hw);
        }
        aq_rates_rig_close(&rig);
        if (rc < 0)
            return rc;
    }
    hw.host = hw.device;
    *ret = hw;
    *ret_measured = measured;
    return 0;
}
