/* SPDX-License-Identifier: Apache-2.0
 * base/yaml.h - YAML files as a small tree that remembers lines and the text of every scalar, so
 * that messages can name both.  One document; no anchors, aliases, tags or duplicate keys: settings
 * need none of them, and a hostile file could use them to grow without bound.  Owns its tree; knows
 * no option. */
#ifndef AQ_BASE_YAML_H
#define AQ_BASE_YAML_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AQ_YAML_DEPTH_MAX = 16,
    AQ_YAML_NODES_MAX = 1 << 18,
    AQ_YAML_KEYS_MAX = 4096, /* of one map: looking for doubles takes the square of it */
    AQ_YAML_BYTES_MAX = 16 << 20,
};

enum aq_yaml_kind { AQ_YAML_NULL, AQ_YAML_SCALAR, AQ_YAML_LIST, AQ_YAML_MAP };

struct aq_yaml_node {
    enum aq_yaml_kind kind;
    uint32_t line;    /* from 1; of the key where there is one */
    const char *key;  /* in a map; else NULL */
    const char *text; /* of a scalar, as written: "1.0" is not "1" */
    bool quoted;      /* "12" is a string, 12 may be a number */
    uint32_t count;   /* children of a list or map */
    struct aq_yaml_node *first, *next;
};

struct aq_yaml;

/* -EINVAL names the file (`name` in messages), the line, what was expected and what was found. */
int aq_yaml_parse(struct aq_yaml **ret, const char *name, const char *text, size_t bytes,
                  struct aq_err *reterr);
int aq_yaml_read_file(struct aq_yaml **ret, const char *path, struct aq_err *reterr);
void aq_yaml_close(struct aq_yaml *y);

/* The document; NULL kind when the file is empty. */
const struct aq_yaml_node *aq_yaml_root(const struct aq_yaml *y);
/* The child with this key, NULL when there is none or the node is no map. */
const struct aq_yaml_node *aq_yaml_get(const struct aq_yaml_node *map, const char *key);
/* "a list", "a map", "nothing", or "'text'": for the found part of a message. */
const char *aq_yaml_describe(const struct aq_yaml_node *node, char *text, size_t bytes);

#endif
