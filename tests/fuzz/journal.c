/* SPDX-License-Identifier: Apache-2.0
 * The journal of an interrupted conversion: whatever it holds and whatever lies beside it, the
 * writer goes on or begins anew, and a store comes of it whose finished items are those that were
 * written; or the journal is somebody else's and stays as it is.
 * The first byte is what lies there: bit 0 the right first line in front of the rest, bit 1 two
 * folders, bits 2 and 3 the data file, bit 4 a stripe.json of another store, bits 5 to 7 after how
 * many items the writer is stopped once more. */
#include "base/json.h"
#include "engine/checkpoint/store.h"
#include "tests/fuzz/fuzz_dir.h"

#include <xxhash.h>

enum { ITEMS = 5, ITEM_BYTES_MAX = 5000, DATA_BYTES = 192 * 1024, HEAD_MAX = 80 };
enum { FIRST_LINE = 1, TWO_FOLDERS = 2, OTHER_STRIPE = 16 };
enum data_file { DATA_RIGHT, DATA_MISSING, DATA_SHORT, DATA_ZERO };

static const struct aq_store_item_desc descs[ITEMS] = {
    {.name = "a", .kind = AQ_STORE_BLOB, .dtype = AQ_U8, .bytes = 100},
    {.name = "b", .kind = AQ_STORE_BLOB, .dtype = AQ_U8, .bytes = ITEM_BYTES_MAX},
    {.name = "c", .kind = AQ_STORE_BLOB, .dtype = AQ_U8, .bytes = 1},
    {.name = "d", .kind = AQ_STORE_BLOB, .dtype = AQ_U8, .bytes = 4096},
    {.name = "e", .kind = AQ_STORE_VECTOR, .dtype = AQ_F32, .rows = 1, .cols = 3},
};
static const struct aq_store_step_desc steps[] = {{"one", descs, 3}, {"two", descs + 3, 2}};

static char dir[TEMP_PATH_MAX];
static uint8_t data_right[DATA_BYTES];
static size_t data_bytes;      /* of the first folder's file */
static char head[2][HEAD_MAX]; /* the first line, of one folder and of two */

static void remove_dir(void)
{
    temp_remove(dir);
}

static void inside(char path[TEMP_INSIDE_MAX], const char *name)
{
    snprintf(path, TEMP_INSIDE_MAX, "%s/%s", dir, name);
}

static size_t read_small(const char *name, char *bytes, size_t max)
{
    char path[TEMP_INSIDE_MAX];
    inside(path, name);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, max, f) : 0;
    if (f)
        fclose(f);
    return n;
}

static uint8_t content(uint32_t item, uint64_t at)
{
    return (uint8_t)(31 * item + at * 7 + at / 251 + 1);
}

static int open_writer(struct aq_store_writer **ret, bool two, struct aq_err *err)
{
    static json_t *model;
    char first[TEMP_INSIDE_MAX], second[TEMP_INSIDE_MAX];
    inside(first, "s");
    inside(second, "t");
    if (!model)
        model = json_object();
    const char *dirs[] = {first, second};
    struct aq_store_writer_opts opts = {.dirs = dirs,
                                        .dir_count = two ? 2 : 1,
                                        .steps = steps,
                                        .step_count = AQ_ARRAY_LEN(steps),
                                        .source = "fuzz",
                                        .model = model};
    return aq_store_writer_open(ret, &opts, err);
}

static void write_item(struct aq_store_writer *w, uint32_t i)
{
    uint8_t bytes[ITEM_BYTES_MAX];
    uint64_t count = aq_store_writer_item(w, i)->bytes;
    for (uint64_t k = 0; k < count; k++)
        bytes[k] = content(i, k);
    aq_store_writer_begin(w, i);
    fuzz_check(aq_store_writer_append(w, bytes, count, NULL) == 0);
    fuzz_check(aq_store_writer_end(w, NULL) == 0);
}

static void clear(void)
{
    temp_remove(dir);
    fuzz_check(mkdir(dir, 0700) == 0);
}

/* What a whole conversion leaves: the first lines, and the data. */
static void look_once(void)
{
    fuzz_dir(dir, "journal");
    atexit(remove_dir);
    for (int two = 1; two >= 0; two--) {
        struct aq_store_writer *w;
        fuzz_check(open_writer(&w, two, NULL) == 0);
        for (uint32_t i = 0; i < ITEMS; i++)
            write_item(w, i);
        aq_store_writer_close(w);
        fuzz_check(read_small("s.partial/journal", head[two], HEAD_MAX - 1) > 0);
        *strchr(head[two], '\n') = '\0';
        data_bytes = read_small("s.partial/data.0", (char *)data_right, sizeof(data_right));
        clear();
    }
    fuzz_check(data_bytes > 0 && data_bytes < sizeof(data_right));
}

/* An interrupted conversion, as the input has it; returns the journal's bytes. */
static char *lay_out(const uint8_t *data, size_t size, uint8_t how, size_t *ret_bytes)
{
    static const uint8_t zero[DATA_BYTES];
    static const char other[] = "{\"stripe\": 1}";
    bool two = how & TWO_FOLDERS;
    enum data_file file = (enum data_file)(how / 4 % 4);
    char path[TEMP_INSIDE_MAX], *journal = NULL;
    inside(path, "s.partial");
    fuzz_check(mkdir(path, 0700) == 0);
    int n = how & FIRST_LINE ? asprintf(&journal, "%s\n", head[two]) : 0;
    journal = realloc(journal, (size_t)n + size + 1);
    fuzz_check(n >= 0 && journal);
    memcpy(journal + n, data, size);
    *ret_bytes = (size_t)n + size;
    inside(path, "s.partial/journal");
    fuzz_write_file(path, journal, *ret_bytes);
    inside(path, "s.partial/data.0");
    if (file == DATA_RIGHT || file == DATA_SHORT)
        fuzz_write_file(path, data_right, data_bytes - (file == DATA_SHORT));
    else if (file == DATA_ZERO)
        fuzz_write_file(path, zero, data_bytes);
    inside(path, "t.partial");
    if (how & OTHER_STRIPE) {
        fuzz_check(mkdir(path, 0700) == 0);
        inside(path, "t.partial/stripe.json");
        fuzz_write_file(path, other, sizeof(other) - 1);
    }
    return journal;
}

/* A journal that is not taken over is left alone. */
static void check_refusal(const struct aq_err *err, const char *journal, size_t bytes)
{
    char *now = malloc(bytes + 1);
    fuzz_check_error_text(err);
    fuzz_check(now && read_small("s.partial/journal", now, bytes + 1) == bytes);
    fuzz_check(memcmp(now, journal, bytes) == 0);
    free(now);
}

/* The published store: what was written is in it; what the journal said of it is kept, true or not,
 * so that reading finds the lie. */
static void check_store(const bool *written, bool right)
{
    char path[TEMP_INSIDE_MAX];
    struct aq_store *s;
    inside(path, "s");
    fuzz_check(aq_store_open(&s, path, NULL) == 0 && aq_store_item_count(s) == ITEMS);
    for (uint32_t i = 0; i < ITEMS; i++) {
        const struct aq_store_item *item = aq_store_item(s, i);
        uint8_t bytes[ITEM_BYTES_MAX], buffer[ITEM_BYTES_MAX];
        struct aq_err err = {0};
        bool same = true;
        fuzz_check(aq_store_read(s, item, 0, bytes, item->bytes, NULL) == 0);
        for (uint64_t k = 0; k < item->bytes; k++)
            same = same && bytes[k] == content(i, k);
        fuzz_check(same || (!written[i] && !right));
        bool honest = XXH3_64bits(bytes, item->bytes) == item->xxh3;
        fuzz_check(honest || !written[i]);
        int rc = aq_store_verify_item(s, i, buffer, sizeof(buffer), &err);
        fuzz_check(rc == (honest ? 0 : -ENOEXEC));
        fuzz_check_error(rc, &err);
    }
    aq_store_close(s);
}

/* From an open writer to a store, stopped once on the way; where nothing was taken over and nothing
 * is written before the stop, no store is made: one that begins anew is like any other. */
static void go_on(struct aq_store_writer *w, bool two, unsigned stop_after, bool right)
{
    bool has[ITEMS], written[ITEMS] = {false};
    uint64_t total, done, sum = 0;
    bool whole = stop_after > 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        has[i] = aq_store_writer_has(w, i);
        sum += has[i] ? aq_store_writer_item(w, i)->bytes : 0;
        whole = whole || has[i];
    }
    aq_store_writer_progress(w, &total, &done);
    fuzz_check(done == sum && done <= total);
    for (uint32_t i = 0; i < ITEMS && stop_after; i++) {
        if (has[i])
            continue;
        write_item(w, i);
        has[i] = written[i] = true;
        stop_after--;
    }
    aq_store_writer_close(w);
    fuzz_check(open_writer(&w, two, NULL) == 0);
    for (uint32_t i = 0; i < ITEMS; i++) {
        fuzz_check(aq_store_writer_has(w, i) == has[i]);
        if (whole && !has[i])
            write_item(w, i);
        written[i] = written[i] || !has[i];
    }
    fuzz_check(!whole || aq_store_writer_publish(w, NULL) == 0);
    aq_store_writer_close(w);
    if (whole)
        check_store(written, right);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_store_writer *w;
    struct aq_err err = {0};
    size_t bytes;
    if (!*dir)
        look_once();
    if (size == 0)
        return 0;
    uint8_t how = data[0];
    bool two = how & TWO_FOLDERS, right = how / 4 % 4 == DATA_RIGHT;
    char *journal = lay_out(data + 1, size - 1, how, &bytes);
    if (open_writer(&w, two, &err) == 0)
        go_on(w, two, how >> 5, right);
    else
        check_refusal(&err, journal, bytes);
    free(journal);
    clear();
    return 0;
}
