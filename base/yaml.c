/* SPDX-License-Identifier: Apache-2.0 */
#include "base/yaml.h"

#include "base/json.h"

#include <assert.h>
#include <libfyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct aq_yaml {
    struct aq_yaml_node *root;
    uint32_t node_count;
};

/* A list or map being read, and the last of its children so far. */
struct level {
    struct aq_yaml_node *node, *last;
    char *key; /* read, its value not yet */
    uint32_t key_line;
};

struct reader {
    struct aq_yaml *yaml;
    const char *name;
    struct level level[AQ_YAML_DEPTH_MAX];
    uint32_t depth;
    bool done; /* the one document has been read */
};

static void free_node(struct aq_yaml_node *node)
{
    while (node) {
        struct aq_yaml_node *next = node->next;
        free_node(node->first); /* at most AQ_YAML_DEPTH_MAX deep */
        free((char *)node->key);
        free((char *)node->text);
        free(node);
        node = next;
    }
}

void aq_yaml_close(struct aq_yaml *y)
{
    if (!y)
        return;
    free_node(y->root);
    free(y);
}

static int out_of_memory(const struct reader *r, struct aq_err *reterr)
{
    return aq_error_memory(reterr, "'%s', after %u nodes", r->name, r->yaml->node_count);
}

/* Hangs a node (owned from here on) into the tree: below the open level, or as the root. */
static int attach(struct reader *r, struct aq_yaml_node *node, struct aq_err *reterr)
{
    if (r->depth == 0) {
        if (r->yaml->root) {
            free_node(node);
            return aq_error(reterr, -EINVAL, "'%s': expected one document, found a second one",
                            r->name);
        }
        r->yaml->root = node;
        return 0;
    }
    struct level *top = &r->level[r->depth - 1];
    if (top->node->kind == AQ_YAML_MAP) {
        assert(top->key);
        node->key = top->key;
        node->line = top->key_line;
        top->key = NULL;
    }
    if (top->last)
        top->last->next = node;
    else
        top->node->first = node;
    top->last = node;
    top->node->count++;
    return 0;
}

static char *token_text(struct fy_token *token)
{
    size_t bytes = 0;
    const char *text = token ? fy_token_get_text(token, &bytes) : NULL;
    char *copy = token && !text ? NULL : malloc(bytes + 1);
    if (!copy)
        return NULL;
    if (bytes)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

static bool has_nul(struct fy_token *token)
{
    size_t bytes = 0;
    const char *text = token ? fy_token_get_text(token, &bytes) : NULL;
    return text && memchr(text, 0, bytes);
}

/* Takes a scalar as the next key of the open map. */
static int take_key(struct reader *r, struct fy_token *token, uint32_t line, struct aq_err *reterr)
{
    struct level *top = &r->level[r->depth - 1];
    if (top->node->count == AQ_YAML_KEYS_MAX)
        return aq_error(reterr, -EINVAL, "%s:%u: expected at most %d keys in a map", r->name, line,
                        AQ_YAML_KEYS_MAX);
    char *key = token_text(token);
    if (!key)
        return out_of_memory(r, reterr);
    const struct aq_yaml_node *same = aq_yaml_get(top->node, key);
    if (same) {
        int rc = aq_error(reterr, -EINVAL, "%s:%u: '%s' was already given in line %u", r->name,
                          line, key, same->line);
        free(key);
        return rc;
    }
    top->key = key;
    top->key_line = line;
    return 0;
}

static bool wants_key(const struct reader *r)
{
    return r->depth > 0 && r->level[r->depth - 1].node->kind == AQ_YAML_MAP &&
           !r->level[r->depth - 1].key;
}

static int new_node(struct reader *r, enum aq_yaml_kind kind, uint32_t line,
                    struct aq_yaml_node **ret, struct aq_err *reterr)
{
    if (r->yaml->node_count >= AQ_YAML_NODES_MAX)
        return aq_error(reterr, -EINVAL, "%s:%u: expected at most %d values", r->name, line,
                        AQ_YAML_NODES_MAX);
    struct aq_yaml_node *node = calloc(1, sizeof(*node));
    if (!node)
        return out_of_memory(r, reterr);
    r->yaml->node_count++;
    node->kind = kind;
    node->line = line;
    *ret = node;
    return 0;
}

static int read_scalar(struct reader *r, struct fy_event *event, uint32_t line,
                       struct aq_err *reterr)
{
    struct fy_token *token = event->scalar.value;
    if (has_nul(token))
        return aq_error(reterr, -EINVAL, "%s:%u: expected text, found a NUL character", r->name,
                        line);
    if (wants_key(r))
        return take_key(r, token, line, reterr);
    struct aq_yaml_node *node = NULL;
    int rc = new_node(r, AQ_YAML_SCALAR, line, &node, reterr);
    if (rc < 0)
        return rc;
    node->quoted = token && fy_token_scalar_style(token) != FYSS_PLAIN;
    node->text = token_text(token);
    if (!node->text) {
        free_node(node);
        return out_of_memory(r, reterr);
    }
    /* The core schema's ways to write nothing: YAML 1.2.2, section 10.3.2. */
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; !node->quoted && i < sizeof(nulls) / sizeof(nulls[0]); i++) {
        if (strcmp(node->text, nulls[i]) == 0)
            node->kind = AQ_YAML_NULL;
    }
    return attach(r, node, reterr);
}

static int open_level(struct reader *r, enum aq_yaml_kind kind, uint32_t line,
                      struct aq_err *reterr)
{
    if (wants_key(r))
        return aq_error(reterr, -EINVAL, "%s:%u: expected a name as key, found %s", r->name, line,
                        kind == AQ_YAML_MAP ? "a map" : "a list");
    if (r->depth == AQ_YAML_DEPTH_MAX)
        return aq_error(reterr, -EINVAL, "%s:%u: expected at most %d levels", r->name, line,
                        AQ_YAML_DEPTH_MAX);
    struct aq_yaml_node *node = NULL;
    int rc = new_node(r, kind, line, &node, reterr);
    if (rc < 0)
        return rc;
    rc = attach(r, node, reterr);
    if (rc < 0)
        return rc;
    r->level[r->depth++] = (struct level){.node = node};
    return 0;
}

static int refuse(const struct reader *r, uint32_t line, const char *what, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL, "%s:%u: %s are not accepted here", r->name, line, what);
}

static int read_event(struct reader *r, struct fy_event *event, struct aq_err *reterr)
{
    const struct fy_mark *mark = fy_event_start_mark(event);
    uint32_t line = mark && mark->line >= 0 ? (uint32_t)mark->line + 1 : 1;
    if (event->type == FYET_ALIAS)
        return refuse(r, line, "aliases (*name)", reterr);
    if (event->type == FYET_SCALAR || event->type == FYET_MAPPING_START ||
        event->type == FYET_SEQUENCE_START) {
        if (fy_event_get_anchor_token(event))
            return refuse(r, line, "anchors (&name)", reterr);
        if (fy_event_get_tag_token(event))
            return refuse(r, line, "tags (!name)", reterr);
    }
    switch (event->type) {
    case FYET_SCALAR: return read_scalar(r, event, line, reterr);
    case FYET_MAPPING_START: return open_level(r, AQ_YAML_MAP, line, reterr);
    case FYET_SEQUENCE_START: return open_level(r, AQ_YAML_LIST, line, reterr);
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        assert(r->depth > 0);
        r->depth--;
        return 0;
    case FYET_DOCUMENT_START:
        if (r->done)
            return aq_error(reterr, -EINVAL, "%s:%u: expected one document, found a second one",
                            r->name, line);
        return 0;
    case FYET_DOCUMENT_END: r->done = true; return 0;
    default: return 0;
    }
}

/* The parser's first complaint, in one sentence. */
static int syntax_error(const struct reader *r, struct fy_diag *diag, struct aq_err *reterr)
{
    void *at = NULL;
    const struct fy_diag_error *e = fy_diag_errors_iterate(diag, &at);
    if (!e || !e->msg)
        return aq_error(reterr, -EINVAL, "'%s': expected YAML", r->name);
    int bytes = (int)strcspn(e->msg, "\n");
    if (e->line <= 0)
        return aq_error(reterr, -EINVAL, "'%s': expected YAML: %.*s", r->name, bytes, e->msg);
    return aq_error(reterr, -EINVAL, "%s:%d:%d: expected YAML: %.*s", r->name, e->line, e->column,
                    bytes, e->msg);
}

static int read_events(struct reader *r, const char *text, size_t bytes, struct fy_diag *diag,
                       struct aq_err *reterr)
{
    const struct fy_parse_cfg cfg = {.flags = FYPCF_JSON_NONE | FYPCF_DEFAULT_VERSION_AUTO,
                                     .diag = diag};
    struct fy_parser *parser = fy_parser_create(&cfg);
    if (!parser)
        return out_of_memory(r, reterr);
    int rc = 0;
    if (fy_parser_set_string(parser, text, bytes) < 0) {
        rc = out_of_memory(r, reterr);
        goto out;
    }
    for (;;) {
        struct fy_event *event = fy_parser_parse(parser);
        bool end = !event || event->type == FYET_STREAM_END;
        if (event && !end)
            rc = read_event(r, event, reterr);
        if (event)
            fy_parser_event_free(parser, event);
        if (end || rc < 0)
            break;
    }
    if (rc == 0 && (fy_parser_get_stream_error(parser) || fy_diag_got_error(diag)))
        rc = syntax_error(r, diag, reterr);
out:
    fy_parser_destroy(parser);
    return rc;
}

/* Directives name a version or tags, neither of which matters here, and libfyaml 0.7.12 scans some
 * broken ones for ever (tests/fuzz/corpus/yaml/directive-loop.yaml). */
static uint32_t find_directive(const char *text, size_t bytes)
{
    static const char bom[] = "\xef\xbb\xbf";
    uint32_t line = 1;
    if (bytes >= 4 && memcmp(text, bom, 3) == 0 && text[3] == '%')
        return line;
    for (size_t i = 0; i < bytes; i++) {
        bool start = i == 0 || text[i - 1] == '\n' || text[i - 1] == '\r';
        line += i > 0 && text[i - 1] == '\n';
        if (start && text[i] == '%')
            return line;
    }
    return 0;
}

int aq_yaml_parse(struct aq_yaml **ret, const char *name, const char *text, size_t bytes,
                  struct aq_err *reterr)
{
    assert(ret && name && text);
    struct reader r = {.name = name};
    if (memchr(text, 0, bytes))
        return aq_error(reterr, -EINVAL, "'%s': expected text, found a NUL byte", name);
    uint32_t directive = find_directive(text, bytes);
    if (directive)
        return refuse(&r, directive, "directives (%NAME)", reterr);
    r.yaml = calloc(1, sizeof(*r.yaml));
    if (!r.yaml)
        return aq_error_memory(reterr, "'%s'", name);
    errno = 0;
    struct fy_diag_cfg diag_cfg;
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL; /* nothing of ours goes to standard error */
    diag_cfg.colorize = false;
    struct fy_diag *diag = fy_diag_create(&diag_cfg);
    int rc = diag ? 0 : out_of_memory(&r, reterr);
    if (diag) {
        fy_diag_set_collect_errors(diag, true);
        rc = read_events(&r, text, bytes, diag, reterr);
        fy_diag_destroy(diag);
    }
    if (rc != -ENOMEM && errno == ENOMEM) /* libfyaml does not say so, nor always that it failed */
        rc = out_of_memory(&r, reterr);
    if (rc == 0 && !r.yaml->root)
        rc = new_node(&r, AQ_YAML_NULL, 1, &r.yaml->root, reterr);
    for (uint32_t i = 0; i < AQ_YAML_DEPTH_MAX; i++)
        free(r.level[i].key); /* of a map that ended in an error */
    if (rc < 0) {
        aq_yaml_close(r.yaml);
        return rc;
    }
    *ret = r.yaml;
    return 0;
}

int aq_yaml_read_file(struct aq_yaml **ret, const char *path, struct aq_err *reterr)
{
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, path, AQ_YAML_BYTES_MAX, reterr);
    if (rc < 0)
        return rc;
    rc = aq_yaml_parse(ret, path, text, bytes, reterr);
    free(text);
    return rc;
}

const struct aq_yaml_node *aq_yaml_root(const struct aq_yaml *y)
{
    return y->root;
}

const struct aq_yaml_node *aq_yaml_get(const struct aq_yaml_node *map, const char *key)
{
    if (!map || map->kind != AQ_YAML_MAP)
        return NULL;
    for (const struct aq_yaml_node *n = map->first; n; n = n->next) {
        if (strcmp(n->key, key) == 0)
            return n;
    }
    return NULL;
}

const char *aq_yaml_describe(const struct aq_yaml_node *node, char *text, size_t bytes)
{
    switch (node->kind) {
    case AQ_YAML_NULL: return "nothing";
    case AQ_YAML_LIST: return "a list";
    case AQ_YAML_MAP: return "a map";
    case AQ_YAML_SCALAR: break;
    }
    snprintf(text, bytes, "'%s'", node->text);
    return text;
}
