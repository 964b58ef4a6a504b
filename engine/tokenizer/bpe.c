/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/bpe.h"

#include "base/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHORT_MAX = 32,       /* pieces up to here are merged by scanning, longer ones with a heap */
    SPELLING_MAX = 1024,  /* longest piece that is looked up whole, spelled */
    KEEP_MAX = 256 << 10, /* longer pieces give their buffers back */
};

#define NO_RANK   UINT32_MAX
#define NO_SYMBOL UINT32_MAX

/* A token in the making: a linked list over the piece's bytes. */
struct symbol {
    uint32_t id, prev, next;
};

struct aq_merge_scratch {
    struct symbol *symbol;
    uint64_t *heap; /* rank << 32 | index of the left symbol, least first */
    size_t symbol_capacity, heap_count, heap_capacity;
};

/* ---- the table of ranks ---- */

static inline uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Slot of this pair or the empty one where it belongs; multiplicative hashing by 2^64 / phi
 * (Knuth, The Art of Computer Programming, vol. 3, section 6.4). */
static inline struct aq_merge *merger_slot(const struct aq_merger *m, uint64_t pair)
{
    uint64_t hash = (pair ^ pair >> 32) * 0x9e3779b97f4a7c15u;
    uint32_t mask = (1u << m->slot_bits) - 1, i = (uint32_t)(hash >> (64 - m->slot_bits));
    while (m->slot[i].pair != pair && m->slot[i].pair != UINT64_MAX)
        i = (i + 1) & mask;
    return &m->slot[i];
}

static inline uint32_t merger_rank(const struct aq_merger *m, uint32_t left, uint32_t right)
{
    const struct aq_merge *e = merger_slot(m, pair_of(left, right));
    return e->pair == UINT64_MAX ? NO_RANK : e->rank;
}

static int merger_resize(struct aq_merger *m, uint32_t bits, struct aq_err *reterr)
{
    uint32_t old_count = m->slot ? 1u << m->slot_bits : 0;
    struct aq_merge *old = m->slot, *slot = malloc(((size_t)1 << bits) * sizeof(*slot));
    if (!slot)
        return aq_error_memory(reterr, "table of %u merges", m->count);
    for (uint32_t i = 0; i < 1u << bits; i++)
        slot[i].pair = UINT64_MAX;
    m->slot = slot;
    m->slot_bits = bits;
    for (uint32_t i = 0; i < old_count; i++)
        if (old[i].pair != UINT64_MAX)
            *merger_slot(m, old[i].pair) = old[i];
    free(old);
    return 0;
}

void aq_merger_close(struct aq_merger *m)
{
    free(m->slot);
    *m = (struct aq_merger){0};
}

int aq_merger_start(struct aq_merger *m, const struct aq_vocab *vocab, bool whole_first,
                    struct aq_err *reterr)
{
    m->vocab = vocab;
    m->whole_first = whole_first;
    for (unsigned b = 0; b < 256; b++) {
        char spelling[2];
        size_t n = aq_byte_spell(spelling, (unsigned char)b);
        m->byte_id[b] = aq_vocab_find(vocab, spelling, n);
    }
    return merger_resize(m, 12, reterr);
}

/* The id of left, right or both together; -ENOEXEC when the vocabulary lacks it. */
static int part_id(const struct aq_merger *m, const char *part, size_t bytes, uint32_t *ret,
                   struct aq_err *reterr)
{
    int32_t id = aq_vocab_find(m->vocab, part, bytes);
    char q[80];
    if (id < 0)
        return aq_error(reterr, -ENOEXEC, "'%s' is not in the vocabulary",
                        aq_quote(q, sizeof(q), part, bytes));
    *ret = (uint32_t)id;
    return 0;
}

int aq_merger_add(struct aq_merger *m, const char *left, size_t left_bytes, const char *right,
                  size_t right_bytes, struct aq_err *reterr)
{
    uint32_t l, r, merged;
    int rc = part_id(m, left, left_bytes, &l, reterr);
    if (rc == 0)
        rc = part_id(m, right, right_bytes, &r, reterr);
    if (rc < 0)
        return rc;
    struct aq_buf both = {0};
    aq_buf_put(&both, left, left_bytes);
    aq_buf_put(&both, right, right_bytes);
    if (both.failed)
        rc = aq_error_memory(reterr, "merge of %zu bytes", left_bytes + right_bytes);
    else
        rc = part_id(m, both.data, both.count, &merged, reterr);
    aq_buf_close(&both);
    if (rc == 0 && m->count >= 1u << (m->slot_bits - 1))
        rc = merger_resize(m, m->slot_bits + 1, reterr);
    if (rc < 0)
        return rc;
    *merger_slot(m, pair_of(l, r)) = (struct aq_merge){pair_of(l, r), m->count++, merged};
    return 0;
}

/* ---- merging ---- */

int aq_merge_scratch_open(struct aq_merge_scratch **ret, struct aq_err *reterr)
{
    struct aq_merge_scratch *s = calloc(1, sizeof(*s));
    if (!s)
        return aq_error_memory(reterr, "buffers for encoding");
    *ret = s;
    return 0;
}

void aq_merge_scratch_close(struct aq_merge_scratch *s)
{
    if (!s)
        return;
    free(s->symbol);
    free(s->heap);
    free(s);
}

/* n <= SHORT_MAX ids in place; returns how many are left. */
static size_t merge_short(const struct aq_merger *m, uint32_t *id, size_t n)
{
    uint32_t rank[SHORT_MAX];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = merger_rank(m, id[i], id[i + 1]);
    while (n > 1) { /* each turn ends the loop or takes one symbol away */
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_RANK)
            break;
        id[best] = merger_slot(m, pair_of(id[best], id[best + 1]))->merged;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
        }
        /* rank[best..n-1) now belongs to the pairs from best on, the first of which is new */
        if (best + 1 < n)
            rank[best] = merger_rank(m, id[best], id[best + 1]);
        if (best > 0)
            rank[best - 1] = merger_rank(m, id[best - 1], id[best]);
    }
    return n;
}

static bool heap_push(struct aq_merge_scratch *s, uint64_t key)
{
    if (s->heap_count == s->heap_capacity) {
        size_t capacity = s->heap_capacity ? 2 * s->heap_capacity : 256;
        uint64_t *heap = realloc(s->heap, capacity * sizeof(*heap));
        if (!heap)
            return false;
        s->heap = heap;
        s->heap_capacity = capacity;
    }
    size_t i = s->heap_count++;
    for (; i > 0 && s->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = key;
    return true;
}

static uint64_t heap_pop(struct aq_merge_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0, n = s->heap_count;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && s->heap[child + 1] < s->heap[child])
            child++;
        if (s->heap[child] >= last)
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* Queues the pair that begins at `left` if it has a rank. */
static bool queue_pair(const struct aq_merger *m, struct aq_merge_scratch *s, uint32_t left)
{
    uint32_t right = left == NO_SYMBOL ? NO_SYMBOL : s->symbol[left].next;
    if (right == NO_SYMBOL)
        return true;
    uint32_t rank = merger_rank(m, s->symbol[left].id, s->symbol[right].id);
    return rank == NO_RANK || heap_push(s, (uint64_t)rank << 32 | left);
}

/* The heap holds every pair that has a rank, and stale entries of pairs that are gone, told by a
 * rank that no longer fits: at most two pushes a merge, so O(n log n). */
static bool merge_heap(const struct aq_merger *m, struct aq_merge_scratch *s, size_t n)
{
    s->heap_count = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (!queue_pair(m, s, (uint32_t)i))
            return false;
    while (s->heap_count) {
        uint64_t top = heap_pop(s);
        uint32_t left = (uint32_t)top;
        struct symbol *l = &s->symbol[left];
        if (l->id == NO_SYMBOL || l->next == NO_SYMBOL)
            continue;
        struct symbol *r = &s->symbol[l->next];
        const struct aq_merge *e = merger_slot(m, pair_of(l->id, r->id));
        if (e->pair == UINT64_MAX || e->rank != (uint32_t)(top >> 32))
            continue;
        l->id = e->merged;
        l->next = r->next;
        r->id = NO_SYMBOL;
        if (l->next != NO_SYMBOL)
            s->symbol[l->next].prev = left;
        if (!queue_pair(m, s, l->prev) || !queue_pair(m, s, left))
            return false;
    }
    return true;
}

static int merge_long(const struct aq_merger *m, struct aq_merge_scratch *s, const char *piece,
                      size_t n, struct aq_ids *ids, struct aq_err *reterr)
{
    int rc = 0;
    if (n > s->symbol_capacity) {
        free(s->symbol);
        s->symbol = malloc(n * sizeof(*s->symbol));
        s->symbol_capacity = s->symbol ? n : 0;
    }
    if (!s->symbol) {
        rc = aq_error_memory(reterr, "encode a piece of %zu bytes", n);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        s->symbol[i] = (struct symbol){
            .id = (uint32_t)m->byte_id[(unsigned char)piece[i]],
            .prev = i ? (uint32_t)i - 1 : NO_SYMBOL,
            .next = i + 1 < n ? (uint32_t)i + 1 : NO_SYMBOL,
        };
    size_t had = ids->count;
    bool ok = merge_heap(m, s, n);
    for (uint32_t i = 0; ok && i != NO_SYMBOL; i = s->symbol[i].next) {
        ok = aq_ids_reserve(ids, 1);
        if (ok)
            ids->item[ids->count++] = s->symbol[i].id;
    }
    if (!ok) {
        ids->count = had;
        rc = aq_error_memory(reterr, "encode a piece of %zu bytes", n);
    }
out:
    if (n > KEEP_MAX) { /* a freak: do not hold many times its size until close */
        free(s->symbol);
        free(s->heap);
        *s = (struct aq_merge_scratch){0};
    }
    return rc;
}

/* The piece's id when it is a token of the model as a whole; -1 otherwise. */
static int32_t whole_piece(const struct aq_merger *m, const char *piece, size_t bytes)
{
    char spelling[SPELLING_MAX];
    size_t n = 0;
    if (bytes > SPELLING_MAX / 2)
        return -1;
    for (size_t i = 0; i < bytes; i++)
        n += aq_byte_spell(spelling + n, (unsigned char)piece[i]);
    int32_t id = aq_vocab_find(m->vocab, spelling, n);
    return id >= 0 && (aq_vocab_token(m->vocab, (uint32_t)id)->flags & AQ_TOKEN_MODEL) ? id : -1;
}

int aq_merge_piece(const struct aq_merger *m, struct aq_merge_scratch *s, const char *piece,
                   size_t bytes, struct aq_ids *ids, struct aq_err *reterr)
{
    assert(bytes > 0 && bytes < NO_SYMBOL);
    for (size_t i = 0; i < bytes; i++)
        if (m->byte_id[(unsigned char)piece[i]] < 0)
            return aq_error(reterr, -EINVAL, "the vocabulary has no token for byte 0x%02x",
                            (unsigned char)piece[i]);
    int32_t whole = m->whole_first ? whole_piece(m, piece, bytes) : -1;
    if (bytes > SHORT_MAX && whole < 0)
        return merge_long(m, s, piece, bytes, ids, reterr);
    if (!aq_ids_reserve(ids, SHORT_MAX))
        return aq_error_memory(reterr, "%zu ids", ids->count + SHORT_MAX);
    uint32_t *id = ids->item + ids->count;
    if (whole >= 0) {
        id[0] = (uint32_t)whole;
        ids->count++;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        id[i] = (uint32_t)m->byte_id[(unsigned char)piece[i]];
    ids->count += merge_short(m, id, bytes);
    return 0;
}
