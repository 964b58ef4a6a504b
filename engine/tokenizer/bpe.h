/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/bpe.h - byte-pair encoding: a piece of text starts as one token per byte or per
 * character, and the neighbouring pair of lowest rank, the leftmost among equals, becomes one token
 * until no pair has a rank (Sennrich, Haddow, Birch, "Neural machine translation of rare words with
 * subword units", ACL 2016; over bytes as in GPT-2, over characters as in SentencePiece).  Part of
 * tokenizer.h.  Knows ids; no files, no specials. */
#ifndef AQ_ENGINE_TOKENIZER_BPE_H
#define AQ_ENGINE_TOKENIZER_BPE_H

#include "engine/tokenizer/added.h"
#include "engine/tokenizer/vocab.h"

/* (left, right) -> (rank, merged), open addressing, at most half full. */
struct aq_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX is empty */
    uint32_t rank, merged;
};

/* What becomes of a character that is no token of the model. */
struct aq_unknown_rule {
    bool to_bytes;  /* the tokens of its bytes ("<0xE2>"), where the vocabulary has them all */
    int32_t unk_id; /* else this one; -1: none */
    bool fused;     /* one for all unknown characters in a row */
};

struct aq_merger {
    struct aq_merge *slot;
    uint32_t slot_bits, count;
    int32_t byte_id[256]; /* -1: the vocabulary has no token for this byte */
    bool whole_first;     /* a piece that is a token is taken whole ("ignore_merges") */
    const struct aq_vocab *vocab;
    /* Pieces start as characters. */
    bool of_characters;
    struct aq_unknown_rule unknown;
    int32_t ascii_id[128]; /* tokens of these characters; -1: none */
    struct aq_added whole; /* texts that stay one token, which never merges */
};

/* Stands in merges for a character that is no token itself but part of one. */
#define AQ_MERGE_CHARACTER 0x80000000u

/* Buffers of one thread. */
struct aq_merge_scratch;

void aq_merger_close(struct aq_merger *m);
/* Before the first rank; the vocabulary, in which all tokens of the model are, is borrowed.  Pieces
 * start as bytes, spelled as GPT-2 does. */
int aq_merger_start(struct aq_merger *m, const struct aq_vocab *vocab, bool whole_first,
                    struct aq_err *reterr);
/* They start as characters instead. */
void aq_merger_of_characters(struct aq_merger *m, struct aq_unknown_rule unknown);
/* Ranks ascend from 0 in the order of the calls; a pair given twice keeps the later rank.  -ENOEXEC
 * names the part that is not in the vocabulary. */
int aq_merger_add(struct aq_merger *m, const char *left, size_t left_bytes, const char *right,
                  size_t right_bytes, struct aq_err *reterr);
/* A rank of the caller's choice, which several pairs may have; left and right may be
 * AQ_MERGE_CHARACTER | character.  -ENOMEM. */
int aq_merger_put(struct aq_merger *m, struct aq_merge merge, struct aq_err *reterr);

int aq_merge_scratch_open(struct aq_merge_scratch **ret, struct aq_err *reterr);
void aq_merge_scratch_close(struct aq_merge_scratch *s);

/* Appends the ids of one piece.  Time O(n log n).  -EINVAL names a byte or a character that has no
 * token. */
int aq_merge_piece(const struct aq_merger *m, struct aq_merge_scratch *s, const char *piece,
                   size_t bytes, struct aq_ids *ids, struct aq_err *reterr);

#endif
