/* SPDX-License-Identifier: Apache-2.0
 * Loading a library whose needs lie where the loader does not look.  AQ_NEEDING and AQ_NEEDED are
 * two libraries that were built for this: the first needs the second. */
#include "engine/compute/cuda_find.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/stat.h>

struct path {
    char text[TEMP_DEEP_MAX];
};

/* A file or folder inside the test's own, and the folders on the way to it. */
static struct path inside(const char *root, const char *name)
{
    struct path p;
    assert_true(snprintf(p.text, sizeof(p.text), "%s/%s", root, name) < TEMP_DEEP_MAX);
    for (char *slash = p.text + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(p.text, 0700);
        *slash = '/';
    }
    return p;
}

/* The file, or nothing at all where there is none to copy. */
static void copy(const char *from, struct path to)
{
    FILE *out = fopen(to.text, "wb"), *in = from ? fopen(from, "rb") : NULL;
    assert_non_null(out);
    assert_true(!from || in);
    for (int c; in && (c = fgetc(in)) != EOF;)
        fputc(c, out);
    if (in)
        fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* What is loaded stays, so what is not found comes first. */
static void needs_are_found_or_named(void **state)
{
    char root[TEMP_PATH_MAX];
    struct aq_err err = {0};
    (void)state;
    temp_dir(root, "find");
    struct path needing = inside(root, "needing.so");
    copy(getenv("AQ_NEEDING"), needing);

    assert_null(aq_cuda_find_load(inside(root, "nothing.so").text, &err));
    assert_non_null(strstr(err.text, "the CUDA backend cannot be loaded: "));
    assert_non_null(strstr(err.text, "nothing.so"));

    unsetenv("CUDA_HOME");
    setenv("VIRTUAL_ENV", inside(root, "env").text, 1);
    assert_null(aq_cuda_find_load(needing.text, &err));
    assert_non_null(
        strstr(err.text, "the CUDA backend needs libaq_needed.so.7, which is neither "));
    assert_non_null(strstr(err.text, "LD_LIBRARY_PATH"));

    /* An empty file of that name is passed over. */
    copy(NULL, inside(root, "cuda/lib64/libaq_needed.so.7"));
    setenv("CUDA_HOME", inside(root, "cuda").text, 1);
    assert_null(aq_cuda_find_load(needing.text, &err));

    copy(getenv("AQ_NEEDED"),
         inside(root, "env/lib/python3.11/site-packages/nvidia/cu13/lib/libaq_needed.so.7"));
    void *library = aq_cuda_find_load(needing.text, &err);
    if (!library)
        fail_msg("%s", err.text);
    int (*answer)(void) = (int (*)(void))dlsym(library, "aq_needing");
    assert_non_null(answer);
    assert_int_equal(answer(), 43);
    temp_remove(root);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(needs_are_found_or_named)};
AQ_TEST_MAIN(tests)
