/* SPDX-License-Identifier: Apache-2.0
 * tokenizer.model: a SentencePiece model, a protobuf message (sentencepiece_model.proto).  Pieces
 * have scores instead of merges: of all neighbours that are a piece together, those of the highest
 * score become one, the leftmost among equals (Kudo, Richardson, "SentencePiece", EMNLP 2018;
 * bpe_model.cc).  That is merging by rank, if every way to make a piece of two parts is a merge
 * whose rank is the place of the piece's score.  Every stretch of text between special tokens is
 * encoded by itself, as the library would. */
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/protobuf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char file_name[] = "tokenizer.model";

enum {
    PIECE_BYTES_MAX =
        1024, /* the trainer's own limit is 512 characters; bounds the ways to part it */
    MERGES_MAX = 1 << 24,
};

enum piece_type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

struct piece {
    struct aq_proto text;
    float score;
    uint64_t type;
    uint32_t rank;
};

struct model {
    struct piece *piece;
    size_t count, capacity;
    uint64_t model_type, byte_fallback, space_behind;             /* TrainerSpec */
    struct aq_proto bos_piece, eos_piece, pad_piece;              /* TrainerSpec */
    struct aq_proto charsmap, denormalizer_charsmap;              /* NormalizerSpec */
    uint64_t add_dummy_prefix, remove_extra_whitespaces, escapes; /* NormalizerSpec */
};

static size_t bytes_of(struct aq_proto text)
{
    return (size_t)(text.end - text.at);
}

static struct aq_proto literal(const char *text)
{
    return (struct aq_proto){text, text + strlen(text)};
}

/* ---- the message ---- */

/* A field of a message that is wanted: where it goes. */
struct wanted {
    uint32_t number;
    uint64_t *value;       /* of numbers */
    struct aq_proto *text; /* of texts */
};

/* Takes the fields that are wanted out of a message; the last of a kind counts. */
static int read_message(struct aq_proto message, const struct wanted *wanted, size_t count,
                        struct aq_err *err)
{
    struct aq_proto_field f;
    int rc;
    while ((rc = aq_proto_next(&message, &f, err)) == 1) {
        for (size_t i = 0; i < count; i++) {
            if (wanted[i].number != f.number)
                continue;
            if ((f.type == AQ_PROTO_BYTES) != (wanted[i].text != NULL))
                return aq_error(err, -ENOEXEC, "protobuf field %u: expected %s", f.number,
                                wanted[i].text ? "text" : "a number");
            if (wanted[i].text)
                *wanted[i].text = f.inside;
            else
                *wanted[i].value = f.value;
        }
    }
    return rc;
}

static int read_piece(struct model *m, struct aq_proto message, struct aq_err *err)
{
    struct piece p = {.type = NORMAL};
    uint64_t score = 0;
    const struct wanted wanted[] = {{1, NULL, &p.text}, {2, &score, NULL}, {3, &p.type, NULL}};
    int rc = read_message(message, wanted, sizeof(wanted) / sizeof(*wanted), err);
    uint32_t bits = (uint32_t)score;
    memcpy(&p.score, &bits, sizeof(bits));
    if (rc == 0 && !isfinite(p.score))
        rc = aq_error(err, -ENOEXEC, "expected a score that is a number");
    if (rc == 0 && aq_utf8_invalid_at(p.text.at, bytes_of(p.text)) != bytes_of(p.text))
        rc = aq_error(err, -ENOEXEC, "expected UTF-8");
    if (rc < 0)
        return aq_error_prefix(err, "piece %zu", m->count);
    if (m->count == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 1024;
        struct piece *piece = realloc(m->piece, capacity * sizeof(*piece));
        if (!piece)
            return aq_error_memory(err, "%zu pieces", capacity);
        m->piece = piece;
        m->capacity = capacity;
    }
    m->piece[m->count++] = p;
    return 0;
}

static int read_trainer_spec(struct model *m, struct aq_proto message, struct aq_err *err)
{
    const struct wanted wanted[] = {{3, &m->model_type, NULL},     {24, &m->space_behind, NULL},
                                    {35, &m->byte_fallback, NULL}, {46, NULL, &m->bos_piece},
                                    {47, NULL, &m->eos_piece},     {48, NULL, &m->pad_piece}};
    int rc = read_message(message, wanted, sizeof(wanted) / sizeof(*wanted), err);
    return rc < 0 ? aq_error_prefix(err, "trainer_spec") : 0;
}

static int read_normalizer_spec(struct model *m, struct aq_proto message, struct aq_err *err)
{
    const struct wanted wanted[] = {{2, NULL, &m->charsmap},
                                    {3, &m->add_dummy_prefix, NULL},
                                    {4, &m->remove_extra_whitespaces, NULL},
                                    {5, &m->escapes, NULL}};
    int rc = read_message(message, wanted, sizeof(wanted) / sizeof(*wanted), err);
    return rc < 0 ? aq_error_prefix(err, "normalizer_spec") : 0;
}

static int read_model(struct model *m, struct aq_proto message, struct aq_err *err)
{
    struct aq_proto_field f;
    int rc;
    while ((rc = aq_proto_next(&message, &f, err)) == 1) {
        const struct wanted denormalizer = {2, NULL, &m->denormalizer_charsmap};
        if (f.type != AQ_PROTO_BYTES)
            return aq_error(err, -ENOEXEC, "protobuf field %u: expected a message", f.number);
        switch (f.number) {
        case 1: rc = read_piece(m, f.inside, err); break;
        case 2: rc = read_trainer_spec(m, f.inside, err); break;
        case 3: rc = read_normalizer_spec(m, f.inside, err); break;
        case 5: rc = read_message(f.inside, &denormalizer, 1, err); break;
        default: rc = 0; break;
        }
        if (rc < 0)
            return rc;
    }
    return rc;
}

/* ---- what is not read as the library would ---- */

static int check_model(const struct model *m, struct aq_err *err)
{
    static const char *const types[] = {"unknown", "unigram", "BPE", "word", "char"};
    static const char cure[] = "put a tokenizer.json with a BPE model beside it";
    if (m->count == 0)
        return aq_error(err, -ENOEXEC, "expected a SentencePiece model, found no pieces");
    if (m->model_type != 2)
        return aq_error(err, -ENOEXEC, "expected a BPE model, found a model of type %s; %s",
                        m->model_type < 5 ? types[m->model_type] : types[0], cure);
    if (bytes_of(m->charsmap))
        return aq_error(err, -ENOEXEC,
                        "a normaliser with a map of characters (NFKC and its like) is not "
                        "supported; expected an identity; %s",
                        cure);
    if (bytes_of(m->denormalizer_charsmap))
        return aq_error(err, -ENOEXEC, "a denormaliser is not supported; %s", cure);
    if (!m->escapes || m->space_behind)
        return aq_error(err, -ENOEXEC, "%s is not supported; %s",
                        m->escapes ? "treat_whitespace_as_suffix" : "escape_whitespaces false",
                        cure);
    return 0;
}

/* ---- pieces into the vocabulary ---- */

static int add_piece(struct aq_tok_load *l, const struct model *m, size_t id, struct aq_err *err)
{
    const struct piece *p = &m->piece[id];
    size_t bytes = bytes_of(p->text);
    unsigned flags = 0;
    switch (p->type) {
    case NORMAL:
        if (bytes > PIECE_BYTES_MAX)
            return aq_error(err, -ENOEXEC, "expected at most %d bytes, found %zu", PIECE_BYTES_MAX,
                            bytes);
        flags = AQ_TOKEN_MODEL;
        break;
    case USER_DEFINED:
        /* it would keep its spaces where all others go */
        if (m->remove_extra_whitespaces && bytes && memchr(p->text.at, ' ', bytes))
            return aq_error(err, -ENOEXEC, "a user-defined symbol with a space is not supported");
        flags = AQ_TOKEN_MODEL;
        break;
    case UNKNOWN:
        if (l->model_unk >= 0)
            return aq_error(err, -ENOEXEC, "expected one unknown piece, found another one");
        l->model_unk = (int32_t)id;
        flags = AQ_TOKEN_ADDED | AQ_TOKEN_SPECIAL;
        break;
    case CONTROL: flags = AQ_TOKEN_ADDED | AQ_TOKEN_SPECIAL; break;
    case BYTE: break;
    default:
        return aq_error(err, -ENOEXEC, "pieces of type %s are not supported",
                        p->type == UNUSED ? "unused" : "unknown");
    }
    int rc = aq_vocab_add(&l->t->vocab, (int64_t)id, p->text.at, bytes, flags, err);
    if (rc == 0 && p->type == USER_DEFINED)
        rc = aq_added_put(&l->t->merger.whole, p->text.at, bytes, (uint32_t)id, err);
    return rc;
}

static int32_t control_piece(const struct aq_tok_load *l, const struct model *m,
                             struct aq_proto name)
{
    int32_t id = aq_vocab_find(&l->t->vocab, name.at, bytes_of(name));
    return id >= 0 && m->piece[id].type == CONTROL ? id : -1;
}

static int add_pieces(struct aq_tok_load *l, const struct model *m, struct aq_err *err)
{
    for (size_t i = 0; i < m->count; i++) {
        int rc = add_piece(l, m, i, err);
        if (rc < 0)
            return aq_error_prefix(err, "piece %zu", i);
    }
    if (l->model_unk < 0)
        return aq_error(err, -ENOEXEC, "expected an unknown piece, found none");
    l->model_bos = control_piece(l, m, m->bos_piece);
    l->model_eos = control_piece(l, m, m->eos_piece);
    l->model_pad = control_piece(l, m, m->pad_piece);
    return 0;
}

/* ---- scores into merges ---- */

static int by_score(const void *a, const void *b)
{
    float x = (*(struct piece *const *)a)->score, y = (*(struct piece *const *)b)->score;
    return (x < y) - (x > y);
}

static int rank_pieces(struct model *m, struct aq_err *err)
{
    struct piece **order = malloc(m->count * sizeof(struct piece *));
    if (!order)
        return aq_error_memory(err, "%zu pieces", m->count);
    for (size_t i = 0; i < m->count; i++)
        order[i] = &m->piece[i];
    qsort(order, m->count, sizeof(*order), by_score);
    for (size_t i = 1; i < m->count; i++)
        order[i]->rank = order[i - 1]->rank + (order[i]->score != order[i - 1]->score);
    free(order);
    return 0;
}

/* A part of a piece as a symbol of the merger; false: it never is one.  A character need not be a
 * piece. */
static bool find_part(const struct aq_tok_load *l, const struct model *m, const char *text,
                      size_t bytes, uint32_t *ret)
{
    struct aq_added_match whole;
    int32_t id = aq_vocab_find(&l->t->vocab, text, bytes), character;
    bool valid;
    if (id >= 0 && m->piece[id].type == NORMAL) {
        *ret = (uint32_t)id;
        return true;
    }
    if (aq_utf8_step(text, bytes, &valid) != bytes ||
        aq_added_at(&l->t->merger.whole, text, bytes, 0, &whole))
        return false;
    aq_unicode_read(text, &character);
    *ret = AQ_MERGE_CHARACTER | (uint32_t)character;
    return true;
}

static int add_merges(struct aq_tok_load *l, const struct model *m, size_t id, struct aq_err *err)
{
    struct aq_merger *merger = &l->t->merger;
    const char *text = m->piece[id].text.at;
    size_t bytes = bytes_of(m->piece[id].text);
    bool valid;
    int rc = 0;
    for (size_t i = aq_utf8_step(text, bytes, &valid); rc == 0 && i < bytes;
         i += aq_utf8_step(text + i, bytes - i, &valid)) {
        uint32_t left, right;
        if (!find_part(l, m, text, i, &left) || !find_part(l, m, text + i, bytes - i, &right))
            continue;
        if (merger->count == MERGES_MAX)
            return aq_error(err, -ENOEXEC, "expected at most %d ways to merge pieces", MERGES_MAX);
        rc = aq_merger_put(
            merger,
            (struct aq_merge){(uint64_t)left << 32 | right, m->piece[id].rank, (uint32_t)id}, err);
    }
    return rc;
}

static int make_merger(struct aq_tok_load *l, struct model *m, struct aq_err *err)
{
    struct aq_merger *merger = &l->t->merger;
    int rc = aq_merger_start(merger, &l->t->vocab, false, err);
    if (rc == 0)
        rc = rank_pieces(m, err);
    if (rc < 0)
        return rc;
    aq_merger_of_characters(merger, (struct aq_unknown_rule){.to_bytes = m->byte_fallback != 0,
                                                             .unk_id = l->model_unk,
                                                             .fused = true});
    for (unsigned b = 0; m->byte_fallback && b < 256; b++)
        if (merger->byte_id[b] < 0 || m->piece[merger->byte_id[b]].type != BYTE)
            return aq_error(err, -ENOEXEC,
                            "byte_fallback: expected a piece for every byte, found none for "
                            "<0x%02X>",
                            b);
    for (size_t i = 0; rc == 0 && i < m->count; i++)
        rc = m->piece[i].type == NORMAL ? add_merges(l, m, i, err) : 0;
    return rc;
}

/* ---- text ---- */

/* The order of Normalizer::Normalize(): what a text of spaces alone becomes is nothing. */
static int make_normalizer(struct aq_tokenizer *t, const struct model *m, struct aq_err *err)
{
    struct aq_normalizer *n = &t->normalizer;
    int rc = 0;
    if (m->remove_extra_whitespaces)
        rc = aq_normalizer_add(n, AQ_NORMALIZER_SQUEEZE, NULL, NULL, err);
    if (rc == 0 && m->add_dummy_prefix)
        rc = aq_normalizer_add(n, AQ_NORMALIZER_PREPEND, NULL, AQ_SPACE_MARK, err);
    if (rc == 0)
        rc = aq_normalizer_add(n, AQ_NORMALIZER_REPLACE, " ", AQ_SPACE_MARK, err);
    if (rc == 0 && m->remove_extra_whitespaces)
        rc = aq_normalizer_add(n, AQ_NORMALIZER_TRIM, AQ_SPACE_MARK, NULL, err);
    t->decoder.byte_fallback = m->byte_fallback;
    t->decoder.strip = m->remove_extra_whitespaces ? AQ_STRIP_EACH_TOKEN
                       : m->add_dummy_prefix       ? AQ_STRIP_TOKEN
                                                   : AQ_STRIP_NOTHING;
    return rc < 0 ? rc
                  : aq_normalizer_add(&t->decoder.respell, AQ_NORMALIZER_REPLACE, AQ_SPACE_MARK,
                                      " ", err);
}

int aq_tok_read_sentencepiece(struct aq_tok_load *l, struct aq_err *err)
{
    struct model m = {.model_type = 1,
                      .bos_piece = literal("<s>"),
                      .eos_piece = literal("</s>"),
                      .pad_piece = literal("<pad>"),
                      .add_dummy_prefix = 1,
                      .remove_extra_whitespaces = 1,
                      .escapes = 1};
    char *text = NULL;
    size_t bytes;
    int rc = aq_tok_read_text(l, file_name, &text, &bytes, err);
    if (rc <= 0)
        return rc;
    l->sentencepiece = true;
    l->t->info.source = file_name;
    rc = read_model(&m, (struct aq_proto){text, text + bytes}, err);
    if (rc == 0)
        rc = check_model(&m, err);
    if (rc == 0)
        rc = add_pieces(l, &m, err);
    if (rc == 0)
        rc = make_merger(l, &m, err);
    if (rc == 0)
        rc = make_normalizer(l->t, &m, err);
    free(m.piece);
    free(text);
    return rc < 0 ? aq_error_prefix(err, "'%s/%s'", l->dir, file_name) : 1;
}
