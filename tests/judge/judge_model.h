/* SPDX-License-Identifier: Apache-2.0
 * tests/judge/judge_model.h - the random model that a file of judged sets is about: the file says
 * shape and seed, so that test and judge make the same one. */
#ifndef AQ_TESTS_JUDGE_MODEL_H
#define AQ_TESTS_JUDGE_MODEL_H

#include "base/json.h"

/* Writes the checkpoint that `model` of a file of judged sets describes; in place of what was
 * there. */
void judge_model_write(const char *dir, const json_t *model);

#endif
