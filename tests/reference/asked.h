/* SPDX-License-Identifier: Apache-2.0
 * tests/reference/asked.h - KV policies as somebody asks for them: drawn, resolved by the engine's
 * rule, and told to the reference by their descriptions. */
#ifndef AQ_TESTS_ASKED_H
#define AQ_TESTS_ASKED_H

#include "policy/kv_policy.h"
#include "tests/reference/reference.h"

/* One policy as options give it and as the reference is told: of a sequence of n + g tokens. */
struct asked {
    struct aq_kv_options options;
    enum ref_variant variant;
};

struct aq_kv_amount asked_slots(uint32_t n);
struct aq_kv_amount asked_share(double x);

enum { ASKED_KINDS = 29 };
/* Draw `i` of a policy for sequences of some 10 to 60 tokens. */
struct asked asked_draw(uint64_t seed, uint64_t i);
/* The same of kvcompress, for prompts of up to some 150. */
struct asked asked_draw_kvcompress(uint64_t seed, uint64_t i);
/* The same of fastgen, and the classes of the ids of random models' tokens, where it is asked. */
struct asked asked_draw_fastgen(uint64_t seed, uint64_t i);
enum { ASKED_VOCAB = 97 };
extern const uint8_t asked_classes[ASKED_VOCAB];
/* A window with positions in the cache. */
struct asked asked_close(uint32_t sinks, uint32_t slots);
/* Draws which of a group of query heads counts, for a policy with scores. */
void asked_group(struct asked *a, uint64_t draw);
/* As the reference takes it, for a sequence of n + g tokens. */
struct ref_policy asked_reference(const struct asked *a, uint32_t n, uint32_t g);
/* As the engine does, and its text; fails the test where it refuses. */
struct aq_kv_policy asked_resolve(const struct asked *a, char text[128]);

#endif
