/* SPDX-License-Identifier: Apache-2.0
 * tests/fake_engine.h - engine/core/engine.h without arithmetic: the next token is a hash of the
 * tokens before it, so results are the same in every order and batch, and passes take no time.
 * Linked before the library, it stands in for the real engine; what it does is set here. */
#ifndef AQ_TESTS_FAKE_ENGINE_H
#define AQ_TESTS_FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

struct fake_engine {
    uint32_t vocab, context, seats; /* defaults: 4096, 256, 4 */
    uint32_t eos_every;             /* EOS once in about so many tokens; 0: never */
    uint64_t model_hash;
    bool packed;        /* the model is a store */
    double pass_s;      /* a pass takes this long */
    uint64_t fail_pass; /* this pass (from 1) fails with -EIO; 0: none */
    bool refuse_plan;   /* nothing fits */
    uint64_t bad_token; /* a sequence whose prompt begins with this id gets no finite logits */
    /* Script: these tokens come first, whatever the prompt; 0 ends it. */
    uint32_t script[64];
    /* Called at the beginning of each pass. */
    void (*on_pass)(uint64_t pass);
    /* what was seen */
    uint64_t loads, passes, submitted;
    uint64_t given_tokens; /* that sequences went on from */
    uint32_t waiting_max;
    uint64_t queue_bytes; /* of the last plan */
};

extern struct fake_engine fake_engine;
void fake_engine_reset(void);
/* Sets pass_s and on_pass while an abandoned pass may still be asleep. */
void fake_engine_passes(double pass_s, void (*on_pass)(uint64_t pass));

#endif
