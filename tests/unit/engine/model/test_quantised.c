/* SPDX-License-Identifier: Apache-2.0
 * Matrices that checkpoints keep as codes: decoded bit for bit as the goldens' script does it, in
 * pieces of any size and by many threads; and tensors and values that are wrong, each refused by
 * its name. */
#include "base/json.h"
#include "base/panel.h"
#include "base/threads.h"
#include "engine/model/config_keys.h"
#include "engine/model/model.h"
#include "engine/model/quantised/quantised.h"
#include "engine/model/relaid.h"
#include "kernels/cpu/panel.h"
#include "tests/checkpoint_files.h"
#include "tests/sha256.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- goldens ------------------------------------------------------------------------------ */

static const char *const goldens[] = {
    "fp8_blocks", "fp8_tensors", "fp8_rows", "compressed_fp8", "compressed_int8", "awq",
    "gptq_order", "gptq_v2",     "gptq_8",   "packed",         "packed_order",    "packed_8",
};

static const char *golden(const char *name)
{
    char tail[128];
    snprintf(tail, sizeof(tail), "../golden/quantised/%s", name);
    return test_data_path(tail);
}

/* In pieces of `once` rows. */
static float *decode(const struct aq_quantised *q, uint32_t once)
{
    float *all = malloc((size_t)q->rows * q->k * sizeof(*all));
    struct aq_err err = {0};
    for (uint32_t first = 0; first < q->rows; first += once) {
        uint32_t n = q->rows - first < once ? q->rows - first : once;
        if (aq_quantised_read(q, first, n, all + (size_t)first * q->k, &err) < 0)
            fail_msg("%s", err.text);
    }
    return all;
}

static uint32_t check_golden(const char *name)
{
    static const uint32_t once[] = {1, 7, 64, 1000};
    char dir[600], path[700];
    struct aq_model_config config;
    struct aq_checkpoint *c;
    struct aq_columns *columns;
    struct aq_err err = {0};
    json_t *expected, *matrix;
    const char *tensor;
    snprintf(dir, sizeof(dir), "%s", golden(name));
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    assert_int_equal(aq_json_read_file(&expected, path, AQ_MIB, NULL), 0);
    if (aq_model_config_read(&config, dir, &err) < 0 || aq_checkpoint_open(&c, dir, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(aq_columns_open(&columns, c, NULL), 0);
    json_t *matrices = json_object_get(expected, "decoded");
    json_object_foreach(matrices, tensor, matrix)
    {
        struct aq_quantised q;
        char digest[65];
        uint32_t rows = (uint32_t)json_integer_value(json_array_get(matrix, 0)),
                 k = (uint32_t)json_integer_value(json_array_get(matrix, 1));
        if (aq_quantised_find(&q, &config.quantised, c, tensor, rows, k, &err) != 1)
            fail_msg("%s: '%s' is not found: %s", name, tensor, err.text);
        q.columns = columns;
        for (size_t i = 0; i < AQ_ARRAY_LEN(once); i++) {
            float *all = decode(&q, once[i]);
            sha256_hex(digest, all, (size_t)rows * k * sizeof(*all));
            if (strcmp(digest, json_string_value(json_array_get(matrix, 2))) != 0)
                fail_msg("%s: '%s' in pieces of %u rows: other values", name, tensor, once[i]);
            free(all);
        }
    }
    uint32_t count = (uint32_t)json_object_size(matrices);
    aq_columns_close(columns);
    aq_checkpoint_close(c);
    json_decref(expected);
    return count;
}

static void every_form_is_decoded_bit_for_bit(void **state)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(goldens); i++)
        assert_in_range(check_golden(goldens[i]), 8, 21);
}

/* ---- columns ------------------------------------------------------------------------------ */

enum { COLUMNS = 1200, LINES = 5000, AT_ONCE = 7 };

static uint32_t value_at(uint64_t line, uint64_t column)
{
    return (uint32_t)(line * 2654435761u + column * 40503u);
}

struct reading {
    struct aq_columns *columns;
    const struct aq_tensor_info *tensor;
    uint32_t wrong;
};

/* Tiles in the order in which workers take them. */
static void read_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct reading *r = arg;
    uint32_t first = tile * AT_ONCE % COLUMNS,
             count = first + AT_ONCE > COLUMNS ? COLUMNS - first : AT_ONCE;
    uint32_t *dst = malloc(sizeof(*dst) * LINES * count);
    assert_int_equal(aq_columns_read(r->columns, 0, r->tensor, first, count, dst, NULL), 0);
    for (uint32_t line = 0; line < LINES; line++)
        for (uint32_t i = 0; i < count; i++)
            if (dst[line * count + i] != value_at(line, first + i))
                __atomic_fetch_add(&r->wrong, 1, __ATOMIC_RELAXED);
    free(dst);
}

/* The tensor does not fit what is kept of it. */
static void columns_are_those_of_the_file_whoever_reads_them(void **state)
{
    char dir[TEMP_PATH_MAX], path[TEMP_INSIDE_MAX], header[200];
    struct aq_checkpoint *c;
    struct aq_pool *pool;
    size_t bytes = sizeof(uint32_t) * LINES * COLUMNS;
    uint32_t *data = malloc(bytes);
    for (uint32_t line = 0; line < LINES; line++)
        for (uint32_t i = 0; i < COLUMNS; i++)
            data[line * COLUMNS + i] = value_at(line, i);
    temp_dir(dir, "columns");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    snprintf(header, sizeof(header),
             "{\"w\":{\"dtype\":\"I32\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}", LINES,
             COLUMNS, bytes);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    safetensors_write(fd, header, data, bytes);
    close(fd);
    free(data);
    assert_int_equal(aq_checkpoint_open(&c, dir, NULL), 0);
    struct reading r = {.tensor = aq_checkpoint_find(c, "w")};
    assert_int_equal(aq_columns_open(&r.columns, c, NULL), 0);
    assert_int_equal(aq_pool_open(&pool, 3, NULL), 0);
    aq_pool_run(pool, read_tile, &r, COLUMNS / AT_ONCE + 40);
    assert_int_equal(r.wrong, 0);
    aq_pool_close(pool);
    aq_columns_close(r.columns);
    aq_checkpoint_close(c);
    assert_int_equal(temp_remove(dir), 0);
}

/* ---- wrong tensors and values ------------------------------------------------------------- */

/* A tensor of zeros, but for one element. */
struct part {
    const char *name, *dtype;
    uint32_t shape[2]; /* second 0: a vector */
    double value;      /* of element 5, or of the last one */
};

enum { PARTS_MAX = 6 };

/* A matrix [16][32] in groups or blocks of 16. */
struct form {
    const char *config;
    struct part part[PARTS_MAX];
};

static const struct form fp8 = {"{\"quant_method\": \"fp8\", \"weight_block_size\": [16, 16]}",
                                {{"weight", "F8_E4M3", {16, 32}, 0x41},
                                 {"weight_scale_inv", "F32", {1, 2}, 1}}},
                         awq = {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 16}",
                                {{"qweight", "I32", {32, 2}, 3},
                                 {"qzeros", "I32", {2, 2}, 1},
                                 {"scales", "F16", {2, 16}, 1}}},
                         gptq = {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16, "
                                 "\"desc_act\": true}",
                                 {{"qweight", "I32", {4, 16}, 3},
                                  {"qzeros", "I32", {2, 2}, 1},
                                  {"scales", "F16", {2, 16}, 1},
                                  {"g_idx", "I32", {32, 0}, 1}}},
                         packed = {
                             "{\"quant_method\": \"compressed-tensors\", \"format\": "
                             "\"pack-quantized\", \"config_groups\": {\"group_0\": "
                             "{\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": "
                             "\"group\", \"group_size\": 16, \"symmetric\": false}}}}",
                             {{"weight_packed", "I32", {16, 4}, 3},
                              {"weight_scale", "BF16", {16, 2}, 1},
                              {"weight_zero_point", "I32", {2, 2}, 1},
                              {"weight_shape", "I64", {2, 0}, 0}}};

static size_t put_value(uint8_t *data, const struct part *p)
{
    struct aq_element e = *aq_element_find(p->dtype);
    size_t size = e.bits / 8, count = (size_t)p->shape[0] * (p->shape[1] ? p->shape[1] : 1);
    uint8_t *at = data + (count > 5 ? 5 : count ? count - 1 : 0) * size;
    memset(data, 0, count * size);
    if (!count)
        return 0;
    if (aq_dtype_is_float(e.dtype))
        aq_element_store(at, e.dtype, 0, (float)p->value);
    else if (strcmp(p->name, "weight_shape") == 0 && p->value == 0)
        memcpy(data, (int64_t[]){16, 32}, 16);
    else
        memcpy(at, &(int64_t){(int64_t)p->value}, size);
    return count * size;
}

static void write_form(const char *dir, const struct form *f)
{
    char path[TEMP_INSIDE_MAX], header[2000];
    static uint8_t data[1 << 16];
    size_t at = 0, text = (size_t)snprintf(header, sizeof(header), "{");
    for (const struct part *p = f->part; p < f->part + PARTS_MAX && p->name; p++) {
        size_t bytes = put_value(data + at, p);
        text += (size_t)snprintf(header + text, sizeof(header) - text,
                                 "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[%u",
                                 p > f->part ? "," : "", p->name, p->dtype, p->shape[0]);
        text += (size_t)snprintf(header + text, sizeof(header) - text, p->shape[1] ? ",%u" : "%.0u",
                                 p->shape[1]);
        text += (size_t)snprintf(header + text, sizeof(header) - text,
                                 "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    snprintf(header + text, sizeof(header) - text, "}");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    safetensors_write(fd, header, data, at);
    close(fd);
}

static struct aq_quantised_config parsed(const char *text, struct aq_err *err)
{
    struct aq_quantised_config config;
    json_error_t why;
    json_t *inner = json_loads(text, 0, &why),
           *root = json_pack("{so}", "quantization_config", inner);
    assert_non_null(root);
    struct aq_config_keys keys = {.root = root, .what = "config.json", .reterr = err};
    assert_int_equal(aq_quantised_config_read(&config, &keys), 0);
    json_decref(root);
    return config;
}

/* Found, and read whole.  Returns what find or read did. */
static int try_form(const struct form *f, struct aq_err *err)
{
    char dir[TEMP_PATH_MAX];
    struct aq_checkpoint *c;
    struct aq_columns *columns;
    struct aq_quantised q;
    static float dst[16 * 32];
    struct aq_quantised_config config = parsed(f->config, err);
    temp_dir(dir, "quantised");
    write_form(dir, f);
    if (aq_checkpoint_open(&c, dir, err) < 0)
        fail_msg("%s", err->text);
    assert_int_equal(aq_columns_open(&columns, c, NULL), 0);
    int rc = aq_quantised_find(&q, &config, c, "m.weight", 16, 32, err);
    if (rc == 1) {
        q.columns = columns;
        rc = aq_quantised_read(&q, 0, 16, dst, err);
    }
    aq_columns_close(columns);
    aq_checkpoint_close(c);
    assert_int_equal(temp_remove(dir), 0);
    return rc;
}

static void sound_ones_are_read(void **state)
{
    struct aq_err err = {0};
    const struct form *const forms[] = {&fp8, &awq, &gptq, &packed};
    for (size_t i = 0; i < AQ_ARRAY_LEN(forms); i++)
        if (try_form(forms[i], &err) != 0)
            fail_msg("%s: %s", forms[i]->config, err.text);
}

static void wrong_tensors_and_values_are_refused_by_name(void **state)
{
    static const struct {
        const struct form *form;
        uint32_t part;
        struct part is; /* name NULL: it is missing */
        const char *want;
    } table[] = {
        {&fp8, 0, {"weight", "F8_E4M3", {16, 31}, 0}, "'m.weight': expected f8_e4m3 [16, 32] by"},
        {&fp8, 0, {"weight", "F8_E5M2", {16, 32}, 0}, "'m.weight': expected f8_e4m3 [16, 32] by"},
        {&fp8, 0, {"weight", "F8_E4M3", {16, 32}, 0x7f}, "'m.weight': expected numbers, found NaN"},
        {&fp8,
         1,
         {"weight_scale_inv", "F32", {1, 3}, 0},
         "'m.weight_scale_inv': expected f32, bf16"},
        {&fp8, 1, {"weight_scale_inv", "I32", {1, 2}, 0}, "found i32 [1, 2]"},
        {&fp8, 1, {"weight_scale_inv", "F32", {0, 2}, 0}, "found f32 [0, 2]"},
        {&fp8, 1, {"weight_scale_inv", "F32", {1, 2}, NAN}, "expected scales that are numbers"},
        {&fp8, 1, {"weight_scale_inv", "F32", {1, 2}, 1e31}, "at most 1e30, found 1e+31"},
        {&fp8, 1, {0}, "'m.weight_scale_inv' is missing, with which 'm.weight' is fp8"},
        {&awq, 0, {"qweight", "I32", {32, 4}, 0}, "'m.qweight': expected i32 [32, 2]"},
        {&awq, 0, {"qweight", "I64", {32, 2}, 0}, "found i64 [32, 2]"},
        {&awq, 1, {"qzeros", "I32", {1, 2}, 0}, "'m.qzeros': expected i32 [2, 2]"},
        {&awq, 1, {0}, "'m.qzeros' is missing, with which 'm.qweight' is awq"},
        {&awq, 2, {"scales", "F16", {4, 16}, 0}, "'m.scales': expected f16, bf16 or f32 [2, 16]"},
        {&awq, 2, {"scales", "F16", {2, 16}, INFINITY}, "'m.scales': expected scales that are"},
        {&gptq, 0, {"qweight", "I32", {16, 16}, 0}, "'m.qweight': expected i32 [4, 16]"},
        {&gptq, 2, {"scales", "BOOL", {2, 16}, 0}, "found bool [2, 16]"},
        {&gptq, 3, {"g_idx", "I32", {32, 0}, 2}, "'m.g_idx': expected groups from 0 to 1, found 2"},
        {&gptq, 3, {"g_idx", "I32", {32, 0}, -1}, "found -1 for column 5"},
        {&gptq, 3, {"g_idx", "I32", {31, 0}, 0}, "'m.g_idx': expected i32 [32], found i32 [31]"},
        {&gptq, 3, {0}, "'m.g_idx' is missing, with which 'm.qweight' is gptq"},
        {&packed,
         0,
         {"weight_packed", "I32", {16, 8}, 0},
         "'m.weight_packed': expected i32 [16, 4]"},
        {&packed, 1, {"weight_scale", "BF16", {16, 1}, 0}, "expected f16, bf16 or f32 [16, 2]"},
        {&packed, 1, {"weight_scale", "BF16", {16, 2}, NAN}, "'m.weight_scale': expected scales"},
        {&packed, 2, {0}, "'m.weight_zero_point' is missing"},
        {&packed, 2, {"weight_zero_point", "I32", {16, 2}, 0}, "expected i32 [2, 2]"},
        {&packed, 3, {"weight_shape", "I64", {2, 0}, 9}, "expected [16, 32] by config.json, found"},
        {&packed, 3, {0}, "'m.weight_shape' is missing"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct form f = *table[i].form;
        struct aq_err err = {0};
        f.part[table[i].part] = table[i].is;
        for (uint32_t n = table[i].part; !table[i].is.name && n + 1 < PARTS_MAX; n++)
            f.part[n] = f.part[n + 1];
        int rc = try_form(&f, &err);
        if (rc != -ENOEXEC || !strstr(err.text, table[i].want))
            fail_msg("expected '%s', found %d: %s", table[i].want, rc, err.text);
    }
}

static void configurations_that_do_not_fit_the_tensors_are_refused(void **state)
{
    static const struct {
        const struct form *form;
        const char *config, *want;
    } table[] = {
        {&awq, "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 24}",
         "'m.qweight': expected groups that divide its 32 columns, found groups of 24"},
        {&awq, "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32}",
         "expected i32 [1, 2]"},
        {&awq, "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16}",
         "'m.qweight': expected i32 [4, 16]"},
        {&gptq, "{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 16}",
         "expected i32 [8, 16]"},
        {&fp8, "{\"quant_method\": \"fp8\", \"weight_block_size\": [8, 16]}",
         "[2, 2], found f32 [1, 2]"},
        {&fp8, "{\"quant_method\": \"fp8\"}", "[16, 1] or one, found f32 [1, 2]"},
        {&packed,
         "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
         "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", "
         "\"strategy\": \"group\", \"group_size\": 16, \"symmetric\": true}}}}",
         "'m.weight_zero_point': expected none, as config.json says that the codes are symmetric"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct form f = *table[i].form;
        struct aq_err err = {0};
        f.config = table[i].config;
        int rc = try_form(&f, &err);
        if (rc != -ENOEXEC || !strstr(err.text, table[i].want))
            fail_msg("expected '%s', found %d: %s", table[i].want, rc, err.text);
    }
}

static void a_matrix_that_is_there_twice_is_refused(void **state)
{
    struct form f = gptq;
    struct aq_err err = {0};
    f.part[4] = (struct part){"weight", "F16", {16, 32}, 0};
    assert_int_equal(try_form(&f, &err), -ENOEXEC);
    assert_non_null(
        strstr(err.text, "'m.weight': expected it or the codes of 'm.qweight', found both"));
}

/* Biases of zeros stand beside codes of one form; others mean something. */
static void biases_are_idle_where_they_are_zeros(void **state)
{
    for (int value = 0; value < 2; value++) {
        char dir[TEMP_PATH_MAX];
        struct aq_checkpoint *c;
        struct aq_err err = {0};
        struct form f = gptq;
        f.part[4] = (struct part){"bias", "F16", {16, 0}, value};
        f.part[5] = (struct part){"input_scale", "F32", {1, 0}, 1};
        struct aq_quantised_config config = parsed(f.config, &err),
                                   other = parsed(awq.config, &err), none = {0};
        temp_dir(dir, "quantised");
        write_form(dir, &f);
        assert_int_equal(aq_checkpoint_open(&c, dir, NULL), 0);
        const struct aq_tensor_info *bias = aq_checkpoint_find(c, "m.bias"),
                                    *scale = aq_checkpoint_find(c, "m.input_scale");
        assert_int_equal(aq_quantised_is_idle(&config, c, bias, NULL), !value);
        assert_int_equal(aq_quantised_is_idle(&other, c, bias, NULL), 0);
        assert_int_equal(aq_quantised_is_idle(&other, c, scale, NULL), 1);
        assert_int_equal(aq_quantised_is_idle(&none, c, scale, NULL), 0);
        aq_checkpoint_close(c);
        assert_int_equal(temp_remove(dir), 0);
    }
}

/* One that is kept as it is stays so; find says that it has no codes. */
static void a_plain_matrix_is_left_alone(void **state)
{
    struct form f = fp8;
    struct aq_err err = {0};
    f.part[0] = (struct part){"weight", "BF16", {16, 32}, 0};
    f.part[1] = (struct part){0};
    assert_int_equal(try_form(&f, &err), 0);
}

/* ---- models ------------------------------------------------------------------------------- */

static char lines[4096]; /* all that were logged */

static void keep_line(void *user, enum aq_log_level level, const char *text)
{
    size_t at = strlen(lines);
    snprintf(lines + at, sizeof(lines) - at, "%s\n", text);
}

static const struct aq_log to_lines = {.line = keep_line};

static void what_was_read_is_said_once(void **state)
{
    static const struct {
        const char *name, *want, *form;
        enum aq_dtype dtype;
    } table[] = {
        {"fp8_blocks", "14 matrices are fp8 (e4m3, scales of blocks of 32 x 32)", "fp8", AQ_BF16},
        {"fp8_tensors", "fp8 (e4m3, scales of whole matrices)", "fp8", AQ_BF16},
        {"fp8_rows", "fp8 (e4m3, scales of rows)", "fp8", AQ_BF16},
        {"compressed_fp8", "8 matrices are fp8 (e4m3, scales of rows)", "fp8", AQ_BF16},
        {"compressed_int8", "int-quantized (i8, scales of rows)", "int-quantized", AQ_BF16},
        {"awq", "14 matrices are awq (4 bits, scales of groups of 16)", "awq", AQ_F16},
        {"gptq_order", "gptq (4 bits, scales of groups of 16)", "gptq", AQ_F16},
        {"gptq_8", "gptq (8 bits, scales of rows)", "gptq", AQ_BF16},
        {"packed", "pack-quantized (4 bits, scales of groups of 16)", "pack-quantized", AQ_BF16},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct aq_model *m;
        struct aq_err err = {0};
        lines[0] = '\0';
        const struct aq_model_opts opts = {.dir = golden(table[i].name), .log = &to_lines};
        if (aq_model_open(&m, &opts, &err) < 0)
            fail_msg("%s", err.text);
        if (!strstr(lines, table[i].want) || !strstr(lines, "--weight-format int8 takes"))
            fail_msg("expected '%s', found '%s'", table[i].want, lines);
        assert_int_equal(m->checkpoint_dtype, table[i].dtype);
        assert_string_equal(m->quantised, table[i].form);
        assert_string_equal(aq_model_rounded_from(m, AQ_Q8), table[i].form);
        assert_string_equal(aq_model_rounded_from(m, table[i].dtype), table[i].form);
        assert_null(aq_model_rounded_from(m, AQ_F32));
        aq_model_close(m);
    }
}

static void errors_are_measured_in_every_layout(void **state)
{
    static const struct {
        enum aq_dtype dtype;
        enum aq_layout layout;
        double least, most; /* the largest error: half a step of the format */
    } table[] = {
        {AQ_BF16, AQ_LAYOUT_PAIR64, 0x1p-9, 0x1p-8}, {AQ_BF16, AQ_LAYOUT_ROWS, 0x1p-9, 0x1p-8},
        {AQ_F16, AQ_LAYOUT_COL64, 0x1p-12, 0x1p-11}, {AQ_F32, AQ_LAYOUT_COL64, 0, 0},
        {AQ_Q8, AQ_LAYOUT_GROUP64, 0.001, 0.006},    {AQ_Q4, AQ_LAYOUT_GROUP64, 0.02, 0.09},
    };
    enum { ROWS = 50, K = 100 };
    static float values[64 * K];
    struct aq_kernels kernels;
    double largest, rms;
    aq_kernels_cpu(&kernels, aq_isa_detect());
    for (int i = 0; i < 64 * K; i++)
        values[i] = sinf((float)i * 0.7f) + 0.01f * (float)(i % 13);
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct aq_relaid r;
        void *panel = aligned_alloc(4096, aq_panel_bytes(table[i].dtype, K));
        struct aq_laid_out p = {panel, table[i].dtype, table[i].layout, ROWS, K};
        aq_relaid_open(&r);
        assert_false(aq_relaid_take(&r, &largest, &rms));
        kernels.pack_panel(panel, p.dtype, p.layout, values, AQ_F32, ROWS, K);
        aq_relaid_measure(&r, &p, values);
        assert_true(aq_relaid_take(&r, &largest, &rms));
        if (!(largest >= table[i].least && largest <= table[i].most && rms <= largest))
            fail_msg("%s in %s: %g, %g", aq_dtype_name(p.dtype), aq_layout_name(p.layout), largest,
                     rms);
        assert_false(aq_relaid_take(&r, &largest, &rms));
        aq_relaid_close(&r);
        free(panel);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_form_is_decoded_bit_for_bit),
    cmocka_unit_test(columns_are_those_of_the_file_whoever_reads_them),
    cmocka_unit_test(sound_ones_are_read),
    cmocka_unit_test(wrong_tensors_and_values_are_refused_by_name),
    cmocka_unit_test(configurations_that_do_not_fit_the_tensors_are_refused),
    cmocka_unit_test(a_matrix_that_is_there_twice_is_refused),
    cmocka_unit_test(biases_are_idle_where_they_are_zeros),
    cmocka_unit_test(a_plain_matrix_is_left_alone),
    cmocka_unit_test(what_was_read_is_said_once),
    cmocka_unit_test(errors_are_measured_in_every_layout),
};
AQ_TEST_MAIN(tests)
