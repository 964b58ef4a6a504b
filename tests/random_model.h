/* SPDX-License-Identifier: Apache-2.0
 * tests/random_model.h - small checkpoints with random weights, one of each family of decoders,
 * whose heads look at particular keys, unlike those of freshly drawn weights as models are
 * initialised with. */
#ifndef AQ_TESTS_RANDOM_MODEL_H
#define AQ_TESTS_RANDOM_MODEL_H

#include <stdint.h>

enum random_family {
    RANDOM_OPT,
    RANDOM_LLAMA,   /* rotary positions, gated MLP */
    RANDOM_MISTRAL, /* the same, of which each query sees the last `window` tokens */
    RANDOM_QWEN2,   /* the same, with biases of q, k and v */
    RANDOM_QWEN3,   /* the same, with norms of the heads of q and k */
    RANDOM_NEOX,    /* q, k and v in one tensor, a quarter of each head turns, parallel MLP */
};

struct random_model {
    enum random_family family;
    uint32_t layers, hidden, heads, kv_heads, head_dim, vocab, context;
    float sharpness; /* deviation of q . k / sqrt(head_dim) */
    uint32_t window;
    uint32_t full_layers; /* bit l: layer l has no window, though the others have */
    uint32_t long_from;   /* longrope: longer sequences turn by other frequencies; 0: none */
};

/* Writes config.json and model.safetensors (f32) into a folder that is made for them, in place of
 * what was there. */
void random_model_write(const char *dir, const struct random_model *m, uint64_t seed);

#endif
