/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/timeline.h"

#include "base/prng.h"
#include "base/types.h"

#include <assert.h>
#include <stdlib.h>

struct aq_timeline {
    uint64_t now_ns, seed, draws;
    struct aq_timeline_source source[AQ_TIMELINE_SOURCES_MAX];
    uint32_t source_count;
};

int aq_timeline_open(struct aq_timeline **ret, uint64_t seed, struct aq_err *reterr)
{
    assert(ret);
    struct aq_timeline *t = calloc(1, sizeof(*t));
    if (!t)
        return aq_error_memory(reterr, "timeline: %zu bytes", sizeof(*t));
    t->seed = seed;
    *ret = t;
    return 0;
}

void aq_timeline_close(struct aq_timeline *t)
{
    assert(!t || t->source_count == 0);
    free(t);
}

void aq_timeline_add(struct aq_timeline *t, const struct aq_timeline_source *source)
{
    assert(t->source_count < AQ_TIMELINE_SOURCES_MAX && source->next && source->fire);
    t->source[t->source_count++] = *source;
}

void aq_timeline_remove(struct aq_timeline *t, const void *arg)
{
    for (uint32_t i = 0; i < t->source_count; i++) {
        if (t->source[i].arg != arg)
            continue;
        for (; i + 1 < t->source_count; i++)
            t->source[i] = t->source[i + 1];
        t->source_count--;
        return;
    }
    assert(!"a source that was never added");
}

uint64_t aq_timeline_now(const struct aq_timeline *t)
{
    return t->now_ns;
}

bool aq_timeline_step(struct aq_timeline *t, uint64_t end_ns)
{
    uint64_t at = AQ_TIMELINE_NEVER;
    uint32_t due[AQ_TIMELINE_SOURCES_MAX], due_count = 0;
    for (uint32_t i = 0; i < t->source_count; i++) {
        uint64_t next = t->source[i].next(t->source[i].arg);
        if (next > at)
            continue;
        if (next < at)
            due_count = 0;
        at = next;
        due[due_count++] = i;
    }
    if (at == AQ_TIMELINE_NEVER || at > end_ns) {
        if (end_ns != AQ_TIMELINE_NEVER)
            t->now_ns = aq_max_u64(t->now_ns, end_ns);
        return false;
    }
    /* A source may say that something was due before now: a disk that was not looked at. */
    t->now_ns = aq_max_u64(t->now_ns, at);
    uint32_t which = due_count > 1 ? due[aq_timeline_draw(t, due_count)] : due[0];
    t->source[which].fire(t->source[which].arg, t->now_ns);
    return true;
}

uint64_t aq_timeline_draw(struct aq_timeline *t, uint64_t n)
{
    return aq_prng_below(t->seed, t->draws++, 0, n);
}
