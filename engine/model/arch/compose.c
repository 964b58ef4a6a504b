/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/arch/compose.h"

#include "engine/model/rotary.h"

#include <assert.h>
#include <stdio.h>

int aq_compose_open(struct aq_model_steps *ret, const struct aq_model_config *c,
                    uint32_t step_count, uint32_t matrix_max, uint32_t vector_max,
                    struct aq_err *reterr)
{
    struct aq_model_steps m = {
        .layers = c->layers,
        .hidden = c->hidden_size,
        .inner = c->intermediate_size,
        .embed_width = c->embed_width,
        .vocab = c->vocab_size,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .context = c->max_positions,
    };
    m.attention_scale = 1.0f / __builtin_sqrtf((float)m.head_dim);
    int rc = aq_steps_open(&m, step_count, matrix_max, vector_max, reterr);
    if (rc < 0)
        return rc;
    rc = aq_rotary_make(&m.rotary, &c->rotary, c->max_positions, reterr);
    if (rc < 0) {
        aq_steps_close(&m);
        return rc;
    }
    *ret = m;
    return 0;
}

struct aq_compose aq_compose_step(struct aq_step_desc *s, const struct aq_model_config *c,
                                  enum aq_step_kind kind, uint32_t layer)
{
    struct aq_compose at = {.config = c, .step = s, .list = &s->half[0]};
    s->kind = kind;
    s->layer = layer;
    if (aq_step_is_layer(s))
        snprintf(at.prefix, sizeof(at.prefix), "layers.%u.", layer);
    return at;
}

uint8_t aq_compose_matrix(struct aq_compose *at, const char *name, uint32_t rows, uint32_t k)
{
    struct aq_matrix_desc *m = &at->step->matrix[at->step->matrix_count];
    snprintf(m->name, sizeof(m->name), "%s%s", at->prefix, name);
    m->rows = rows;
    m->k = k;
    return (uint8_t)at->step->matrix_count++;
}

/* A vector without parts. */
static struct aq_vector_desc *add_vector(struct aq_compose *at, int8_t *ret_index)
{
    *ret_index = (int8_t)at->step->vector_count++;
    return &at->step->vector[*ret_index];
}

static void add_part(struct aq_vector_desc *v, uint32_t count, struct aq_tensor_rows from)
{
    v->part[v->part_count].count = count;
    v->part[v->part_count++].from = from;
    v->count += count;
}

int8_t aq_compose_vector(struct aq_compose *at, const char *name, uint32_t count)
{
    int8_t index;
    struct aq_vector_desc *v = add_vector(at, &index);
    snprintf(v->part[0].name, AQ_NAME_MAX, "%s%s", at->prefix, name);
    add_part(v, count, (struct aq_tensor_rows){0});
    return index;
}

struct aq_prim *aq_compose_prim(struct aq_compose *at, enum aq_prim_kind kind, enum aq_register src,
                                enum aq_register dst)
{
    assert(at->list->count < AQ_STEP_PRIM_MAX);
    struct aq_prim *p = &at->list->prim[at->list->count++];
    *p = (struct aq_prim){.kind = kind, .src = src, .dst = dst, .weight = -1, .bias = -1};
    return p;
}

void aq_compose_rows(struct aq_compose *at, enum aq_prim_kind kind, uint8_t matrix,
                     enum aq_register dst)
{
    struct aq_prim *p = aq_compose_prim(at, kind, AQ_REG_NONE, dst);
    p->matrix[0] = matrix;
    p->matrix_count = 1;
}

void aq_compose_norm(struct aq_compose *at, const char *name, enum aq_register dst)
{
    const struct aq_model_config *c = at->config;
    char part[AQ_NAME_MAX / 2];
    struct aq_prim *p = aq_compose_prim(at, AQ_PRIM_NORM, AQ_REG_HIDDEN, dst);
    p->norm = c->norm;
    p->eps = c->norm_eps;
    if (!c->norm_affine)
        return;
    snprintf(part, sizeof(part), "%s.weight", name);
    p->weight = aq_compose_vector(at, part, c->hidden_size);
    at->step->vector[p->weight].fill = 1.0f;
    if (c->norm == AQ_NORM_RMS)
        return;
    snprintf(part, sizeof(part), "%s.bias", name);
    p->bias = aq_compose_vector(at, part, c->hidden_size);
}

void aq_compose_cast(struct aq_compose *at)
{
    aq_compose_prim(at, AQ_PRIM_NORM, AQ_REG_HIDDEN, AQ_REG_NORM)->norm = AQ_NORM_CAST;
}

/* Values of a row of a register that products read. */
static uint32_t width_of(const struct aq_model_config *c, enum aq_register src)
{
    switch (src) {
    case AQ_REG_ATTENTION: return c->heads * c->head_dim;
    case AQ_REG_INNER: return c->intermediate_size;
    case AQ_REG_EMBED: return c->embed_width;
    default: assert(src == AQ_REG_NORM); return c->hidden_size;
    }
}

static void name_part(char name[AQ_NAME_MAX], const struct aq_compose *at,
                      const struct aq_compose_part *part, const char *what)
{
    snprintf(name, AQ_NAME_MAX, "%s%s.%s%s%s", at->prefix, part->name, what, part->word ? "#" : "",
             part->word ? part->word : "");
}

struct aq_prim *aq_compose_product(struct aq_compose *at, const struct aq_compose_part *part,
                                   uint32_t count, bool bias, enum aq_register src,
                                   enum aq_register dst)
{
    assert(count <= AQ_VECTOR_PART_MAX);
    struct aq_prim *p = aq_compose_prim(at, AQ_PRIM_PRODUCT, src, dst);
    struct aq_vector_desc *v = bias ? add_vector(at, &p->bias) : NULL;
    p->combine = dst == AQ_REG_HIDDEN ? AQ_COMBINE_ADD : AQ_COMBINE_SET;
    for (uint32_t i = 0; i < count; i++) {
        p->matrix[i] = aq_compose_matrix(at, "", part[i].rows, width_of(at->config, src));
        struct aq_matrix_desc *m = &at->step->matrix[p->matrix[i]];
        name_part(m->name, at, &part[i], "weight");
        m->from = part[i].from;
        if (!v)
            continue;
        name_part(v->part[i].name, at, &part[i], "bias");
        add_part(v, part[i].rows, part[i].from);
    }
    p->matrix_count = (uint8_t)count;
    return p;
}

struct aq_prim *aq_compose_product_of(struct aq_compose *at, const char *name, uint32_t rows,
                                      bool bias, enum aq_register src, enum aq_register dst)
{
    struct aq_compose_part part = {.name = name, .rows = rows};
    return aq_compose_product(at, &part, 1, bias, src, dst);
}

void aq_compose_tokens(struct aq_compose *at, enum aq_register dst)
{
    const struct aq_model_config *c = at->config;
    uint8_t tokens = aq_compose_matrix(at, c->arch->tokens, c->vocab_size, c->embed_width);
    at->step->matrix[tokens].vocabulary = true;
    aq_compose_rows(at, AQ_PRIM_GATHER, tokens, dst);
}

void aq_compose_head(struct aq_compose *at, enum aq_register src)
{
    const struct aq_model_config *c = at->config;
    uint8_t head = aq_compose_matrix(at, c->tie_word_embeddings ? c->arch->tokens : c->arch->head,
                                     c->vocab_size, width_of(c, src));
    at->step->matrix[head].vocabulary = true;
    struct aq_prim *p = aq_compose_prim(at, AQ_PRIM_PRODUCT, src, AQ_REG_LOGITS);
    p->matrix[0] = head;
    p->matrix_count = 1;
}
