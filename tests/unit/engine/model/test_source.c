/* SPDX-License-Identifier: Apache-2.0
 * Where a model's tensors come from: rows of larger tensors against the whole tensor cut here, from
 * a checkpoint and from a store of it; tied heads; tensors that a model has not. */
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/arch/arch.h"
#include "engine/model/pack.h"
#include "engine/model/quantised/quantised.h"
#include "kernels/cpu/panel.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char line[1024]; /* the last one that was logged */

static void keep_line(void *user, enum aq_log_level level, const char *text)
{
    snprintf(line, sizeof(line), "%s", text);
}

static const struct aq_log to_line = {.line = keep_line};

static const char *family(const char *name)
{
    char tail[128];
    snprintf(tail, sizeof(tail), "../golden/families/%s", name);
    return test_data_path(tail);
}

static struct aq_model *opened(const char *dir)
{
    struct aq_model *m;
    struct aq_err err = {0};
    line[0] = '\0';
    if (aq_model_open(&m, &(struct aq_model_opts){.dir = dir, .log = &to_line}, &err) < 0)
        fail_msg("%s", err.text);
    return m;
}

/* A folder with a family's tensors and a config.json in which one text is another. */
struct changed {
    char dir[TEMP_PATH_MAX];
};

static struct changed change(const char *name, const char *from, const char *to)
{
    struct changed c;
    char path[TEMP_INSIDE_MAX], source[700], *text;
    size_t bytes;
    temp_dir(c.dir, "source");
    snprintf(source, sizeof(source), "%s/model.safetensors", family(name));
    char *real = realpath(source, NULL);
    snprintf(path, sizeof(path), "%s/model.safetensors", c.dir);
    assert_true(real && symlink(real, path) == 0);
    free(real);
    snprintf(source, sizeof(source), "%s/config.json", family(name));
    assert_int_equal(aq_read_file(&text, &bytes, source, AQ_MIB, NULL), 0);
    char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(path, sizeof(path), "%s/config.json", c.dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_int_equal(fclose(f), 0);
    free(text);
    return c;
}

static void must_refuse(const char *name, const char *from, const char *to, const char *want)
{
    struct changed c = change(name, from, to);
    struct aq_model *m;
    struct aq_err err = {0};
    int rc = aq_model_open(&m, &(struct aq_model_opts){.dir = c.dir}, &err);
    if (rc != -ENOEXEC || !strstr(err.text, want))
        fail_msg("%s: expected '%s', found %d: %s", name, want, rc, err.text);
    assert_int_equal(temp_remove(c.dir), 0);
}

/* ---- rows of larger tensors ---- */

/* Row r of the matrix or vector of this name, in its tensor: by the layouts that the families
 * document, cut as one would by hand. */
static uint32_t tensor_row(const struct aq_model *m, const char *name, uint32_t r)
{
    const struct aq_model_config *c = &m->config;
    uint32_t d = c->head_dim, q = c->heads * d, kv = c->kv_heads * d;
    const char *word = strchr(name, '#') + 1;
    if (strstr(name, "query_key_value")) /* [head][q, k, v][d] */
        return (r / d * 3 + (uint32_t)(*word == 'k') + 2 * (uint32_t)(*word == 'v')) * d + r % d;
    if (strstr(name, "gate_up_proj"))
        return strcmp(word, "up") == 0 ? c->intermediate_size + r : r;
    return *word == 'q' ? r : *word == 'k' ? q + r : q + kv + r;
}

/* The whole matrix decoded; NULL where it is not kept as codes. */
static char *whole_codes(const struct aq_model *m, const struct aq_checkpoint *c, const char *name,
                         uint32_t k, size_t *ret_row_bytes)
{
    const struct aq_model_config *config = &m->config;
    struct aq_quantised q;
    char text[256];
    uint32_t q_rows = config->heads * config->head_dim,
             rows = strstr(name, "gate_up") ? 2 * config->intermediate_size
                                            : q_rows + 2 * config->kv_heads * config->head_dim;
    snprintf(text, sizeof(text), "%s%.*s", config->arch->prefixes[0], (int)strcspn(name, "#"),
             name);
    if (aq_quantised_find(&q, &config->quantised, c, text, rows, k, NULL) != 1)
        return NULL;
    *ret_row_bytes = sizeof(float) * k;
    char *data = malloc(rows * *ret_row_bytes);
    assert_int_equal(aq_columns_open(&q.columns, c, NULL), 0);
    assert_int_equal(aq_quantised_read(&q, 0, rows, (float *)(void *)data, NULL), 0);
    aq_columns_close(q.columns);
    return data;
}

/* The whole tensor, as the checkpoint has it. */
static char *whole_tensor(const struct aq_checkpoint *c, const char *name, size_t *ret_row_bytes)
{
    const struct aq_tensor_info *t = NULL;
    for (size_t i = 0; i < aq_checkpoint_count(c); i++) {
        const char *has = aq_checkpoint_tensor(c, i)->name, *dot = strchr(has, '.');
        size_t n = strcspn(name, "#");
        if (dot && strncmp(dot + 1, name, n) == 0 && !dot[1 + n])
            t = aq_checkpoint_tensor(c, i);
    }
    assert_non_null(t);
    char *data = malloc(t->bytes);
    assert_int_equal(aq_checkpoint_read(c, t, 0, t->shape[0], data, NULL), 0);
    *ret_row_bytes = aq_tensor_row_bytes(t);
    return data;
}

/* Matrices are read in pieces of 7 rows, which cross heads' borders; vectors at once. */
static void check_rows(const struct aq_model *m, const struct aq_checkpoint *c, const char *name,
                       uint32_t rows, uint32_t k)
{
    size_t row_bytes;
    char *codes = k ? whole_codes(m, c, name, k, &row_bytes) : NULL,
         *whole = codes ? codes : whole_tensor(c, name, &row_bytes);
    uint32_t once = k ? 7 : rows;
    char *piece = malloc(once * row_bytes);
    for (uint32_t first = 0; first < rows; first += once) {
        uint32_t n = first + once < rows ? once : rows - first;
        enum aq_dtype dtype;
        int rc = k ? aq_model_read_rows(m, name, first, n, k, piece, &dtype, NULL)
                   : aq_model_read_rows(m, name, 0, 1, rows, piece, &dtype, NULL);
        assert_int_equal(rc, 0);
        for (uint32_t r = 0; r < n; r++)
            assert_memory_equal(piece + r * row_bytes,
                                whole + tensor_row(m, name, first + r) * row_bytes, row_bytes);
    }
    free(piece);
    free(whole);
}

/* Every matrix and vector that is rows of a larger tensor. */
static void for_each_part(const struct aq_model *m, const struct aq_checkpoint *c,
                          uint32_t *ret_count)
{
    for (uint32_t s = 0; s < m->steps.step_count; s++) {
        const struct aq_step_desc *d = &m->steps.step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            if (!strchr(d->matrix[i].name, '#'))
                continue;
            check_rows(m, c, d->matrix[i].name, d->matrix[i].rows, d->matrix[i].k);
            ++*ret_count;
        }
        for (uint32_t i = 0; i < d->vector_count; i++) {
            for (uint32_t n = 0; n < d->vector[i].part_count; n++) {
                const struct aq_vector_part *part = &d->vector[i].part[n];
                if (!strchr(part->name, '#'))
                    continue;
                check_rows(m, c, part->name, part->count, 0);
                ++*ret_count;
            }
        }
    }
}

static void rows_of_fused_tensors_are_those_of_the_whole(void **state)
{
    static const struct {
        const char *name;
        uint32_t parts;
    } table[] = {
        {"phi3", 2 * 5},
        {"phi3_partial", 2 * 5},
        {"neox", 2 * 6},
        {"neox_sequential", 12},
        {"neox_tanh", 2 * 3},
        {"neox_linear", 3 * 6},
        {"../quantised/gptq_v2", 2 * 6},
        {"../quantised/packed_8", 12},
        {"../quantised/packed_order", 2 * 5},
        {"../quantised/compressed_fp8", 2 * 5},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct aq_model *m = opened(family(table[i].name));
        struct aq_checkpoint *c;
        uint32_t count = 0;
        assert_int_equal(aq_checkpoint_open(&c, family(table[i].name), NULL), 0);
        for_each_part(m, c, &count);
        assert_int_equal(count, table[i].parts);
        aq_checkpoint_close(c);
        aq_model_close(m);
    }
}

static void a_fused_tensor_of_another_size_is_refused_as_a_whole(void **state)
{
    must_refuse(
        "phi3", "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2",
        "tensor 'layers.0.self_attn.qkv_proj.weight': expected f32, f16 or bf16 [96, 48] by "
        "config.json, found bf16 [144, 48]");
    must_refuse("neox", "\"intermediate_size\": 64", "\"intermediate_size\": 65",
                "'layers.0.mlp.dense_h_to_4h.weight'");
}

/* A store keeps the parts apart, under names of their own. */
static void a_store_has_each_part_by_itself(void **state)
{
    char root[TEMP_PATH_MAX], store[TEMP_INSIDE_MAX];
    const char *dirs[] = {store};
    struct aq_kernels kernels;
    struct aq_pool *pool;
    struct aq_pack_result result;
    struct aq_err err = {0};
    temp_dir(root, "source");
    snprintf(store, sizeof(store), "%s/store", root);
    char dir[600];
    snprintf(dir, sizeof(dir), "%s", family("neox"));
    struct aq_model *m = opened(dir);
    aq_kernels_cpu(&kernels, aq_isa_detect());
    assert_int_equal(aq_pool_open(&pool, 2, NULL), 0);
    struct aq_pack_opts opts = {.model = m,
                                .model_dir = dir,
                                .dirs = dirs,
                                .dir_count = 1,
                                .format = AQ_F32,
                                .layout = AQ_LAYOUT_ROWS};
    if (aq_pack_run(&result, &opts, &kernels, pool, &err) < 0)
        fail_msg("%s", err.text);
    struct aq_model *packed = opened(store);
    assert_null(aq_store_find(aq_model_store(packed), "layers.0.attention.query_key_value.weight"));
    uint32_t k = m->config.hidden_size, rows = m->config.heads * m->config.head_dim;
    float *panel = malloc(aq_panel_bytes(AQ_F32, k)), *want = malloc(sizeof(*want) * 64 * k);
    void *staging = malloc(sizeof(*want) * 64 * k), *raw = malloc(sizeof(*want) * 64 * k);
    for (const char *word = "qkv"; *word; word++) {
        char name[AQ_NAME_MAX];
        enum aq_dtype dtype;
        snprintf(name, sizeof(name), "layers.1.attention.query_key_value.weight#%c", *word);
        assert_int_equal(aq_model_read_rows(m, name, 0, rows, k, raw, &dtype, NULL), 0);
        aq_convert(want, AQ_F32, raw, dtype, (size_t)rows * k);
        assert_int_equal(aq_model_read_panel(packed, name, 0, AQ_LAYOUT_ROWS, panel, staging, NULL),
                         0);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < k; i++)
                assert_true(panel[aq_panel_index(AQ_LAYOUT_ROWS, k, r, i)] == want[r * k + i]);
        snprintf(name, sizeof(name), "layers.1.attention.query_key_value.bias#%c", *word);
        assert_int_equal(aq_model_read_rows(m, name, 0, 1, rows, raw, &dtype, NULL), 0);
        aq_convert(want, AQ_F32, raw, dtype, rows);
        assert_int_equal(aq_model_read_rows(packed, name, 0, 1, rows, raw, &dtype, NULL), 0);
        assert_int_equal(dtype, AQ_F32);
        assert_memory_equal(raw, want, rows * sizeof(*want));
    }
    free(panel);
    free(want);
    free(staging);
    free(raw);
    aq_model_close(packed);
    aq_model_close(m);
    aq_pool_close(pool);
    assert_int_equal(temp_remove(root), 0);
}

/* ---- heads ---- */

static void a_head_that_is_not_there_is_the_token_table(void **state)
{
    static const char tied[] = "\"tie_word_embeddings\": true",
                      untied[] = "\"tie_word_embeddings\": false";
    struct aq_model *m = opened(family("llama_tied"));
    uint64_t parameters = m->steps.parameters;
    assert_true(m->config.tie_word_embeddings);
    assert_string_equal(line, "");
    aq_model_close(m);
    struct changed c = change("llama_tied", tied, untied);
    m = opened(c.dir);
    assert_true(m->config.tie_word_embeddings);
    assert_int_equal(m->steps.parameters, parameters);
    assert_non_null(strstr(line, ": there is no 'lm_head.weight': the token table is the LM head"));
    aq_model_close(m);
    assert_int_equal(temp_remove(c.dir), 0);
    /* And one that is there, of other values, is used. */
    c = change("neox", untied, tied);
    m = opened(c.dir);
    assert_false(m->config.tie_word_embeddings);
    assert_non_null(strstr(line, "'embed_out.weight' has other values"));
    aq_model_close(m);
    assert_int_equal(temp_remove(c.dir), 0);
}

/* ---- other tensors ---- */

static void tensors_that_the_model_has_not_are_refused(void **state)
{
    must_refuse("qwen2", "\"model_type\": \"qwen2\"", "\"model_type\": \"llama\"",
                "expected the tensors of a model of type 'llama' alone, found 6 others, such as "
                "'model.layers.0.self_attn.k_proj.bias'");
    must_refuse("qwen3", "\"model_type\": \"qwen3\"", "\"model_type\": \"llama\"",
                "found 4 others, such as 'model.layers.0.self_attn.k_norm.weight'");
    must_refuse("neox", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1",
                "found 12 others, such as 'gpt_neox.layers.1.attention.dense.bias'");
    must_refuse("llama_3", "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\"",
                "tensor 'layers.0.self_attn.q_proj.bias' is missing (also under 'model.')");
}

/* Masks and frequencies of old versions lie in two of the goldens. */
static void buffers_of_old_versions_are_left_alone(void **state)
{
    static const struct {
        const char *name, *tensor;
    } table[] = {
        {"llama_1", "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {"neox", "gpt_neox.layers.0.attention.masked_bias"},
        {"neox", "gpt_neox.layers.0.attention.bias"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct aq_checkpoint *c;
        assert_int_equal(aq_checkpoint_open(&c, family(table[i].name), NULL), 0);
        assert_non_null(aq_checkpoint_find(c, table[i].tensor));
        aq_checkpoint_close(c);
        aq_model_close(opened(family(table[i].name)));
        assert_string_equal(line, "");
    }
}

static void what_writers_of_codes_leave_beside_them_is_left_alone(void **state)
{
    static const struct {
        const char *name, *tensor;
    } table[] = {
        {"fp8_tensors", "model.layers.0.mlp.up_proj.input_scale"},
        {"compressed_fp8", "model.layers.1.self_attn.k_scale"},
        {"gptq_order", "model.layers.1.mlp.down_proj.bias"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct aq_checkpoint *c;
        char name[64];
        snprintf(name, sizeof(name), "../quantised/%s", table[i].name);
        assert_int_equal(aq_checkpoint_open(&c, family(name), NULL), 0);
        assert_non_null(aq_checkpoint_find(c, table[i].tensor));
        aq_checkpoint_close(c);
        aq_model_close(opened(family(name)));
    }
}

/* Codes without a configuration that says so: the cure is in config.json. */
static void codes_that_the_configuration_does_not_tell_of_are_named(void **state)
{
    must_refuse("../quantised/gptq_8", "\"quantization_config\"", "\"quantisation\"",
                "tensor 'layers.0.self_attn.q_proj.weight' is missing, and "
                "'model.layers.0.self_attn.q_proj.qweight' is there: expected a "
                "'quantization_config' in config.json");
    must_refuse("../quantised/packed", "\"pack-quantized\"", "\"int-quantized\"",
                "'num_bits': expected 8");
}

static void of_a_model_of_pictures_the_text_is_taken(void **state)
{
    struct aq_model *m = opened(family("mistral_nested"));
    assert_non_null(strstr(line, ": text only: 2 tensors of other parts are left out"));
    aq_model_close(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rows_of_fused_tensors_are_those_of_the_whole),
    cmocka_unit_test(a_fused_tensor_of_another_size_is_refused_as_a_whole),
    cmocka_unit_test(a_store_has_each_part_by_itself),
    cmocka_unit_test(a_head_that_is_not_there_is_the_token_table),
    cmocka_unit_test(tensors_that_the_model_has_not_are_refused),
    cmocka_unit_test(buffers_of_old_versions_are_left_alone),
    cmocka_unit_test(what_writers_of_codes_leave_beside_them_is_left_alone),
    cmocka_unit_test(codes_that_the_configuration_does_not_tell_of_are_named),
    cmocka_unit_test(of_a_model_of_pictures_the_text_is_taken),
};
AQ_TEST_MAIN(tests)
