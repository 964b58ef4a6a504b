/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "engine/torchzip.h"
#include "tests/checkpoint_files.h"
#include "tests/sha256.h"
#include "tests/test.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lists the file behind fd, which is closed by opened_close. */
struct opened {
    struct aq_tensor_file file;
    struct aq_tensor_list list;
    uint64_t hash;
    struct aq_err err;
    int rc;
};

static struct opened open_fd(int fd)
{
    struct opened o = {.file = tensor_file_of(fd, "test.bin")};
    o.rc = aq_torchzip_list(&o.list, &o.file, 0, &o.hash, &o.err);
    return o;
}

static void opened_close(struct opened *o)
{
    aq_tensor_list_clear(&o->list);
    close(o->file.fd);
}

static int fixture(const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/torch-pt/%s", getenv("AQ_TEST_DATA"), name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* ---- real files ---- */

static void check_tensor(const char *file, struct opened *o, const json_t *want)
{
    const char *name = json_string_value(json_object_get(want, "name"));
    const struct aq_tensor_info *t = aq_tensor_list_find(&o->list, name);
    if (!t)
        fail_msg("%s: no tensor '%s'", file, name);
    assert_string_equal(t->element->name, json_string_value(json_object_get(want, "dtype")));
    const json_t *shape = json_object_get(want, "shape");
    assert_int_equal(t->rank, json_array_size(shape));
    for (uint32_t i = 0; i < t->rank; i++)
        assert_int_equal(t->shape[i], json_integer_value(json_array_get(shape, i)));
    void *data = tensor_contents(&o->file, t);
    char text[65];
    sha256_hex(text, data, t->bytes);
    free(data);
    assert_string_equal(text, json_string_value(json_object_get(want, "sha256_contiguous")));
}

static void every_real_file_gives_its_recorded_tensors(void **state)
{
    char path[PATH_MAX];
    json_t *expected, *entry;
    const char *name;
    unsigned files = 0, tensors = 0;
    snprintf(path, sizeof(path), "%s/torch-pt/expected.json", getenv("AQ_TEST_DATA"));
    assert_int_equal(aq_json_read_file(&expected, path, 1 << 24, NULL), 0);
    json_object_foreach(expected, name, entry)
    {
        const json_t *list = json_object_get(entry, "tensors");
        if (!json_is_array(list))
            continue;
        struct opened o = open_fd(fixture(name));
        if (o.rc < 0)
            fail_msg("%s: %s", name, o.err.text);
        assert_int_equal(o.list.count, json_array_size(list));
        for (size_t i = 0; i < json_array_size(list); i++, tensors++)
            check_tensor(name, &o, json_array_get(list, i));
        opened_close(&o);
        files++;
    }
    json_decref(expected);
    assert_int_equal(files, 39);
    assert_true(tensors > 90);
}

static void a_broken_real_file_gives_one_error(void **state)
{
    struct opened o = open_fd(fixture("broken.pt"));
    assert_int_equal(o.rc, -ENOEXEC);
    assert_non_null(strstr(o.err.text, "expected a file written by torch.save, found 3 bytes"));
    opened_close(&o);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_real_file_gives_its_recorded_tensors),
    cmocka_unit_test(a_broken_real_file_gives_one_error),
};
AQ_TEST_MAIN(tests)
