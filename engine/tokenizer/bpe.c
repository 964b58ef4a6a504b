/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/bpe.h"

#include "base/types.h"
#include "engine/tokenizer/unicode.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    SHORT_MAX = 32,       /* pieces up to here are merged by scanning, longer ones with a heap */
    SPELLING_MAX = 1024,  /* longest piece that is looked up whole, spelled */
    KEEP_MAX = 256 << 10, /* longer pieces give their buffers back */
};

#define NO_RANK   UINT32_MAX
#define NO_SYMBOL UINT32_MAX

/* Behind AQ_MERGE_CHARACTER: no character, but a byte that is not UTF-8. */
#define NOT_UTF8 0x40000000u

/* A token in the making: a linked list over the piece's bytes or characters. */
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
    aq_added_close(&m->whole);
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

/* The id of a token of the model; -1: there is none. */
static int32_t model_token(const struct aq_merger *m, const char *text, size_t bytes)
{
    int32_t id = aq_vocab_find(m->vocab, text, bytes);
    return id >= 0 && (aq_vocab_token(m->vocab, (uint32_t)id)->flags & AQ_TOKEN_MODEL) ? id : -1;
}

void aq_merger_of_characters(struct aq_merger *m, struct aq_unknown_rule unknown)
{
    m->of_characters = true;
    m->unknown = unknown;
    for (unsigned b = 0; b < 256; b++) {
        char spelling[8];
        int n = snprintf(spelling, sizeof(spelling), "<0x%02X>", b);
        m->byte_id[b] = aq_vocab_find(m->vocab, spelling, (size_t)n);
    }
    for (unsigned c = 0; c < 128; c++)
        m->ascii_id[c] = model_token(m, &(char){(char)c}, 1);
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
    return rc < 0 ? rc
                  : aq_merger_put(m, (struct aq_merge){pair_of(l, r), m->count, merged}, reterr);
}

int aq_merger_put(struct aq_merger *m, struct aq_merge merge, struct aq_err *reterr)
{
    int rc = m->count >= 1u << (m->slot_bits - 1) ? merger_resize(m, m->slot_bits + 1, reterr) : 0;
    if (rc < 0)
        return rc;
    *merger_slot(m, merge.pair) = merge;
    m->count++;
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

static bool reserve_symbols(struct aq_merge_scratch *s, size_t n)
{
    if (n <= s->symbol_capacity)
        return true;
    free(s->symbol);
    s->symbol = malloc(n * sizeof(*s->symbol));
    s->symbol_capacity = s->symbol ? n : 0;
    return s->symbol != NULL;
}

static void set_symbol(struct aq_merge_scratch *s, size_t i, size_t n, uint32_t id)
{
    s->symbol[i] = (struct symbol){
        .id = id,
        .prev = i ? (uint32_t)i - 1 : NO_SYMBOL,
        .next = i + 1 < n ? (uint32_t)i + 1 : NO_SYMBOL,
    };
}

static bool put_id(struct aq_ids *ids, uint32_t id)
{
    bool ok = aq_ids_reserve(ids, 1);
    if (ok)
        ids->item[ids->count++] = id;
    return ok;
}

/* Gives back the buffers of a freak: many times its size is not held until close. */
static void give_back(struct aq_merge_scratch *s, size_t bytes)
{
    if (bytes <= KEEP_MAX)
        return;
    free(s->symbol);
    free(s->heap);
    *s = (struct aq_merge_scratch){0};
}

static int merge_long(const struct aq_merger *m, struct aq_merge_scratch *s, const char *piece,
                      size_t n, struct aq_ids *ids, struct aq_err *reterr)
{
    size_t had = ids->count;
    bool ok = reserve_symbols(s, n);
    for (size_t i = 0; ok && i < n; i++)
        set_symbol(s, i, n, (uint32_t)m->byte_id[(unsigned char)piece[i]]);
    ok = ok && merge_heap(m, s, n);
    for (uint32_t i = 0; ok && i != NO_SYMBOL; i = s->symbol[i].next)
        ok = put_id(ids, s->symbol[i].id);
    if (!ok)
        ids->count = had;
    give_back(s, n);
    return ok ? 0 : aq_error_memory(reterr, "encode a piece of %zu bytes", n);
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
    return model_token(m, spelling, n);
}

/* ---- pieces that start as characters ---- */

/* The token that text begins with, or a mark for what is none; *ret_bytes: what it takes. */
static uint32_t first_token(const struct aq_merger *m, const char *text, size_t bytes,
                            size_t *ret_bytes)
{
    struct aq_added_match whole;
    bool valid;
    int32_t id, character;
    if (aq_added_at(&m->whole, text, bytes, 0, &whole)) {
        *ret_bytes = whole.end;
        return whole.id;
    }
    size_t n = *ret_bytes = aq_utf8_step(text, bytes, &valid);
    if (!valid) {
        *ret_bytes = 1;
        return AQ_MERGE_CHARACTER | NOT_UTF8 | (unsigned char)*text;
    }
    id = n == 1 ? m->ascii_id[(unsigned char)*text] : model_token(m, text, n);
    if (id >= 0)
        return (uint32_t)id;
    aq_unicode_read(text, &character);
    return AQ_MERGE_CHARACTER | (uint32_t)character;
}

/* The bytes of a character that has a mark. */
static size_t marked_bytes(uint32_t mark, unsigned char dst[4])
{
    if (mark & NOT_UTF8) {
        dst[0] = (unsigned char)mark;
        return 1;
    }
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)(mark & ~AQ_MERGE_CHARACTER), dst);
}

/* What of a piece has become ids. */
struct finished {
    const struct aq_merger *m;
    struct aq_ids *ids;
    bool unk_waits; /* for more unknown characters, which it may stand for, too */
    struct aq_err *reterr;
};

static bool flush_unknown(struct finished *f)
{
    bool ok = !f->unk_waits || put_id(f->ids, (uint32_t)f->m->unknown.unk_id);
    f->unk_waits = false;
    return ok;
}

/* As the tokenizers library has it (merge_word of its BPE model): bytes overtake an unknown token
 * that waits. */
static int put_unknown(struct finished *f, uint32_t mark)
{
    const struct aq_unknown_rule *rule = &f->m->unknown;
    unsigned char byte[4];
    size_t n = marked_bytes(mark, byte);
    bool to_bytes = rule->to_bytes, ok = true;
    for (size_t i = 0; i < n; i++)
        to_bytes = to_bytes && f->m->byte_id[byte[i]] >= 0;
    for (size_t i = 0; to_bytes && ok && i < n; i++)
        ok = put_id(f->ids, (uint32_t)f->m->byte_id[byte[i]]);
    if (!to_bytes && rule->unk_id < 0)
        return aq_error(f->reterr, -EINVAL, "the vocabulary has no token for %s%0*x",
                        mark & NOT_UTF8 ? "byte 0x" : "character U+", mark & NOT_UTF8 ? 2 : 4,
                        mark & ~(AQ_MERGE_CHARACTER | NOT_UTF8));
    if (!to_bytes) {
        ok = rule->fused || flush_unknown(f);
        f->unk_waits = true;
    }
    return ok ? 0 : -ENOMEM;
}

static int put_merged(struct finished *f, const struct aq_merge_scratch *s)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i != NO_SYMBOL; i = s->symbol[i].next) {
        uint32_t id = s->symbol[i].id;
        if (id & AQ_MERGE_CHARACTER)
            rc = put_unknown(f, id);
        else if (!flush_unknown(f) || !put_id(f->ids, id))
            rc = -ENOMEM;
    }
    return rc == 0 && !flush_unknown(f) ? -ENOMEM : rc;
}

static int merge_characters(const struct aq_merger *m, struct aq_merge_scratch *s,
                            const char *piece, size_t bytes, struct aq_ids *ids,
                            struct aq_err *reterr)
{
    size_t had = ids->count, n = 0, used;
    struct finished f = {.m = m, .ids = ids, .reterr = reterr};
    bool ok = reserve_symbols(s, bytes);
    for (size_t i = 0; ok && i < bytes; i += used)
        set_symbol(s, n++, SIZE_MAX, first_token(m, piece + i, bytes - i, &used));
    if (ok)
        s->symbol[n - 1].next = NO_SYMBOL;
    int rc = ok && merge_heap(m, s, n) ? put_merged(&f, s) : -ENOMEM;
    if (rc < 0)
        ids->count = had;
    give_back(s, bytes);
    return rc == -ENOMEM ? aq_error_memory(reterr, "encode a piece of %zu bytes", bytes) : rc;
}

int aq_merge_piece(const struct aq_merger *m, struct aq_merge_scratch *s, const char *piece,
                   size_t bytes, struct aq_ids *ids, struct aq_err *reterr)
{
    assert(bytes > 0 && bytes < NO_SYMBOL);
    if (m->of_characters) {
        int32_t id = m->whole_first ? model_token(m, piece, bytes) : -1;
        if (id < 0)
            return merge_characters(m, s, piece, bytes, ids, reterr);
        return put_id(ids, (uint32_t)id) ? 0 : aq_error_memory(reterr, "%zu ids", ids->count + 1);
    }
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
