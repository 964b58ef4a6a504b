/* SPDX-License-Identifier: Apache-2.0
 * tests/rot.h - a packed store that rots or is old. */
#ifndef AQ_TESTS_ROT_H
#define AQ_TESTS_ROT_H

#include "tests/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

/* Flips a bit; the second time it is as it was. */
static inline void rot_flip(const char *path, off_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Takes the tiles' checksums out of a manifest: what the first version of the format wrote. */
static inline void rot_make_old(const char *path)
{
    json_t *root = json_load_file(path, 0, NULL), *step, *item;
    size_t i, j;
    json_object_set_new(root, "format_version", json_integer(1));
    json_object_del(root, "tiles");
    json_array_foreach(json_object_get(root, "steps"), i, step)
    {
        json_array_foreach(json_object_get(step, "items"), j, item) json_object_del(item, "tiles");
    }
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

#endif
