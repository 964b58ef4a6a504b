/* SPDX-License-Identifier: Apache-2.0
 * write_model FILE DIR: the model that a file of judged sets is about, for the judge's program. */
#include "tests/judge/judge_model.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    json_t *file;
    struct aq_err err;
    if (argc != 3) {
        fprintf(stderr, "usage: write_model FILE DIR\n");
        return 1;
    }
    if (aq_json_read_file(&file, argv[1], 1 << 20, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    judge_model_write(argv[2], json_object_get(file, "model"));
    json_decref(file);
    return 0;
}
