/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/arch/rows.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const struct aq_arch *const rows[] = {
    &aq_arch_opt,   &aq_arch_llama, &aq_arch_mistral,  &aq_arch_qwen2,
    &aq_arch_qwen3, &aq_arch_phi3,  &aq_arch_gpt_neox,
};

const struct aq_arch *aq_arch_find(const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        if (strcmp(name, rows[i]->name) == 0)
            return rows[i];
    }
    return NULL;
}

const char *aq_arch_names(char *text, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", i ? ", " : "", rows[i]->name);
        assert(at < bytes);
    }
    return text;
}

int aq_arch_check_classes(const struct aq_config_keys *k)
{
    static const char end[] = "ForCausalLM";
    static const struct aq_config_place place = {.key = "architectures"};
    const json_t *classes = json_object_get(k->root, place.key), *first = NULL;
    for (size_t i = 0; i < json_array_size(classes); i++) {
        const json_t *name = json_array_get(classes, i);
        size_t n = json_string_length(name);
        if (n >= sizeof(end) - 1 &&
            strcmp(json_string_value(name) + n - (sizeof(end) - 1), end) == 0)
            return 0;
        first = first ? first : name;
    }
    return first ? aq_config_wrong(k, &place, first, "a model that generates text (...ForCausalLM)")
                 : 0;
}

/* First the canonical name behind each prefix, then its alias, if it has one, behind each. */
bool aq_arch_tensor_name(const struct aq_arch *arch, const char *canonical, uint32_t variant,
                         char *text)
{
    enum { BYTES = 2 * AQ_NAME_MAX };
    uint32_t prefixes = 0;
    while (arch->prefixes[prefixes])
        prefixes++;
    if (variant < prefixes) {
        snprintf(text, BYTES, "%s%s", arch->prefixes[variant], canonical);
        return true;
    }
    if (variant >= 2 * prefixes)
        return false;
    for (const struct aq_arch_alias *a = arch->aliases; a->canonical; a++) {
        size_t n = strlen(a->canonical);
        if (strncmp(canonical, a->canonical, n) == 0) {
            snprintf(text, BYTES, "%s%s%s", arch->prefixes[variant - prefixes], a->other,
                     canonical + n);
            return true;
        }
    }
    return false;
}
