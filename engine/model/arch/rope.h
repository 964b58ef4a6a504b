/* SPDX-License-Identifier: Apache-2.0
 * engine/model/arch/rope.h - what config.json says of rotary positions, in all places and words
 * that files have for it.  Called by the rows. */
#ifndef AQ_ENGINE_MODEL_ARCH_ROPE_H
#define AQ_ENGINE_MODEL_ARCH_ROPE_H

#include "engine/model/config_keys.h"

/* What a row means where nothing is said, and what it calls otherwise than others do. */
struct aq_rope_defaults {
    double share;      /* of each head that turns: 1 where 0 */
    uint32_t original; /* positions of the first training: max_positions where 0 */
    bool yarn_is_long; /* a type of this name is that of the other: two words of one's own */
};

/* Fills c->rotary; head_dim and max_positions are known.  YARN raises max_positions to what the
 * factor makes of the original ones: its users are told to add the factor to the file alone. */
int aq_rope_read(struct aq_model_config *c, const struct aq_config_keys *keys,
                 const struct aq_rope_defaults *defaults);

#endif
