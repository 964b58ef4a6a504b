/* SPDX-License-Identifier: Apache-2.0
 * YAML files: the tree, and the whole way of --config into options.  Whatever the bytes are, there
 * is a tree whose counts, lines and texts agree, or one sentence. */
#include "base/yaml.h"
#include "engine/options/options.h"
#include "tests/fuzz/fuzz_yaml.h"

#include <stdio.h>

static void walk(const struct aq_yaml_node *node, bool in_map, int depth)
{
    char text[64];
    fuzz_check(depth <= AQ_YAML_DEPTH_MAX && node->line > 0);
    fuzz_check(in_map == (node->key != NULL));
    fuzz_check((node->kind == AQ_YAML_SCALAR) <= (node->text != NULL));
    fuzz_check(*aq_yaml_describe(node, text, sizeof(text)) != '\0');
    uint32_t count = 0;
    for (const struct aq_yaml_node *n = node->first; n; n = n->next, count++) {
        walk(n, node->kind == AQ_YAML_MAP, depth + 1);
        if (n->key)
            fuzz_check(aq_yaml_get(node, n->key) == n);
    }
    fuzz_check(count == node->count);
}

static void run_config(const uint8_t *data, size_t bytes)
{
    static const char *const commands[] = {"generate", "eval", "bench"};
    int fd = fuzz_file(data, bytes);
    for (size_t i = 0; i < AQ_ARRAY_LEN(commands); i++) {
        char flag[64], *words[] = {flag};
        struct aq_options *o = NULL;
        struct aq_err err = {0};
        bool help = false;
        snprintf(flag, sizeof(flag), "--config=/proc/self/fd/%d", fd);
        if (aq_options_from_args(&o, commands[i], 1, words, &help, &err) < 0) {
            fuzz_check_error_text(&err);
            continue;
        }
        json_t *json = aq_options_to_json(o);
        fuzz_check(json != NULL);
        json_decref(json);
        aq_options_close(o);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct aq_yaml *y = NULL;
    struct aq_err err = {0};
    if (aq_yaml_parse(&y, "fuzz.yaml", (const char *)data, bytes, &err) == 0)
        walk(aq_yaml_root(y), false, 0);
    else
        fuzz_check_error_text(&err);
    aq_yaml_close(y);
    run_config(data, bytes);
    return 0;
}
