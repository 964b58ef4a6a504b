/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/registers.h"

#include <assert.h>

uint32_t aq_register_width(const struct aq_model_steps *m, enum aq_register r)
{
    switch (r) {
    case AQ_REG_HIDDEN:
    case AQ_REG_NORM: return m->hidden;
    case AQ_REG_QKV: return (m->heads + 2 * m->kv_heads) * m->head_dim;
    case AQ_REG_ATTENTION: return m->heads * m->head_dim;
    case AQ_REG_INNER: return m->inner;
    case AQ_REG_EMBED: return m->embed_width;
    case AQ_REG_LOGITS: return m->vocab;
    case AQ_REG_NONE:
    case AQ_REG_COUNT: break;
    }
    return 0;
}

enum aq_dtype aq_register_dtype(enum aq_register r, enum aq_dtype compute)
{
    return r == AQ_REG_HIDDEN || r == AQ_REG_QKV || r == AQ_REG_LOGITS ? AQ_F32 : compute;
}

static bool holds_all_rows(enum aq_register r)
{
    return r == AQ_REG_HIDDEN || r == AQ_REG_QKV || r == AQ_REG_ATTENTION;
}

/* Does the primitive change the content of dst, in place of filling it? */
static bool adds_to_dst(const struct aq_prim *p)
{
    return p->combine != AQ_COMBINE_SET || p->kind == AQ_PRIM_POSITION;
}

struct aq_list_io aq_list_io(const struct aq_prim_list *list)
{
    struct aq_list_io io = {0};
    bool written[AQ_REG_COUNT] = {false};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *p = &list->prim[i];
        assert(p->dst != AQ_REG_NONE);
        io.takes[p->src] |= !written[p->src];
        io.takes[p->dst] |= adds_to_dst(p) && !written[p->dst];
        if (!holds_all_rows(p->src))
            io.leaves[p->src] = false; /* written for this primitive only */
        written[p->dst] = io.leaves[p->dst] = true;
    }
    io.takes[AQ_REG_NONE] = false;
    return io;
}
