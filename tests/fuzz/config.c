/* SPDX-License-Identifier: Apache-2.0
 * Any text: a config that is accepted describes a model whose steps can be laid out. */
#include "engine/model/arch/arch.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_model_config c;
    struct aq_err err = {0};
    int rc = aq_model_config_parse(&c, (const char *)data, size, "config", &err);
    fuzz_check_error(rc, &err);
    if (rc < 0)
        return 0;
    assert(c.vocab_size >= 1 && c.vocab_size <= AQ_CONFIG_VOCAB_MAX);
    assert(c.hidden_size >= 1 && c.hidden_size <= AQ_CONFIG_WIDTH_MAX);
    assert(c.intermediate_size >= 1 && c.intermediate_size <= AQ_CONFIG_WIDTH_MAX);
    assert(c.layers >= 1 && c.layers <= AQ_CONFIG_LAYERS_MAX);
    assert(c.max_positions >= 1 && c.max_positions <= AQ_CONFIG_POSITIONS_MAX);
    assert(c.embed_width >= 1 && c.embed_width <= AQ_CONFIG_WIDTH_MAX);
    assert(c.heads >= 1 && c.head_dim >= 1 && c.head_dim <= AQ_CONFIG_HEAD_DIM_MAX);
    assert((uint64_t)c.heads * c.head_dim <= AQ_CONFIG_WIDTH_MAX);
    assert(c.kv_heads >= 1 && c.heads % c.kv_heads == 0);
    assert(c.rotary.dims % 2 == 0 && c.rotary.dims <= c.head_dim);
    assert(c.bos_id >= -1 && c.bos_id < (int64_t)c.vocab_size);
    assert(c.quantised.count <= AQ_QUANTISED_SCHEMES_MAX);
    for (uint32_t i = 0; i < c.quantised.count; i++) {
        const struct aq_quantised_scheme *s = &c.quantised.scheme[i];
        assert(s->format && (s->bits == 4 || s->bits == 8));
        assert(s->block_rows <= AQ_CONFIG_WIDTH_MAX && s->block_k <= AQ_CONFIG_WIDTH_MAX);
    }
    for (uint32_t i = 0; i < c.eos_count; i++)
        assert(c.eos_id[i] < c.vocab_size);
    struct aq_model_steps steps;
    if (c.layers <= 64 && aq_arch_steps(&steps, &c, NULL) == 0) {
        assert(steps.parameters > 0);
        for (uint32_t i = 0; i < steps.rotary.dims / 2; i++)
            assert(isfinite(steps.rotary.frequency[0][i]) && steps.rotary.frequency[0][i] > 0);
        aq_steps_close(&steps);
    }
    return 0;
}
