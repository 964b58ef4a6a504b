/* SPDX-License-Identifier: Apache-2.0
 * engine/model/shapes.h - the shapes that --shape knows by name: files of configs/models, which the
 * library carries in itself.  Knows no architecture: a file names its own. */
#ifndef AQ_ENGINE_MODEL_SHAPES_H
#define AQ_ENGINE_MODEL_SHAPES_H

#include "base/err.h"
#include "engine/model/config.h"

/* The i-th name; NULL past the last.  Those of an architecture stand together, ordered by size. */
const char *aq_shape_name(uint32_t i);

/* "a-1b to a-70b, b-7b": first and last of the names that begin alike up to their '-'. */
void aq_shape_ranges(char *text, size_t bytes);

/* The shape of this name, any case.  -EINVAL lists the names. */
int aq_shape_find(struct aq_model_config *ret, const char *name, struct aq_err *reterr);

/* Text of such a file, which messages call `label`: a map with `name` as its name, `architecture`
 * as 'model_type' of config.json, and `config`, the other keys of config.json, objects as maps.
 * -EINVAL or -ENOEXEC names file and key. */
int aq_shape_parse(struct aq_model_config *ret, const char *label, const char *name,
                   const char *text, size_t bytes, struct aq_err *reterr);

#endif
