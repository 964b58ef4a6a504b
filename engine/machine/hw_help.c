/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/hw_help.c - what a hardware profile may say, read off the table of its keys and
 * off the rules that complete it. */
#include "engine/machine/hw_keys.h"

#include <stdlib.h>
#include <string.h>

/* Machines that say no more than they must; what is derived of them tells the rules. */
#define HOST  "machine: {cores: 32}\nhost: {memory: 128GiB, memory_gb_s: 100}\n"
#define GPU   "device: {memory: 24GB, memory_gb_s: 300, "
#define LINKS "links: {h2d_gb_s: 12}\ndisk: {space: 1TB, read_gb_s: 3}\n"
static const char *const least[] = {HOST GPU "product_f16_tflop_s: 100}\n" LINKS,
                                    HOST GPU "product_bf16_tflop_s: 100}\n" LINKS, HOST};

static const char head[] =
    "Usage: aquifer plan --hardware FILE.yaml ...\n\n"
    "A hardware profile is a machine as numbers, in sections of a YAML file. This is enough:\n\n";

static const char middle[] =
    "\nEach number may have a source and a spread: memory_gb_s: {value: 300, source: data sheet}; "
    "a\n"
    "source of a section stands for all its numbers. machine.price_per_hour is what an hour "
    "costs:\n"
    "{value: 0.70 USD, date: 2026-01-31}. Texts: machine.name, machine.description, machine.cpu,\n"
    "device.name. Without a device section there is no accelerator, without a disk no disk.\n"
    "aquifer plan --hardware list has the machines that are built in, aquifer probe measures "
    "one.\n";

static const char tail[] =
    "\nneeded: must be there; derived: may be left out, and plans say what was assumed;\n"
    "refines: corrects other rates, which hold without it; told: for people to read.\n"
    "Units are in the names: gb_s is 1e9 bytes a second, tflop_s 1e12 operations a second.\n";

static const char *need_text(const struct aq_hw_key *k)
{
    static const char *const names[] = {[AQ_HW_NEEDED] = "needed",
                                        [AQ_HW_DERIVES] = "derived",
                                        [AQ_HW_REFINES] = "refines",
                                        [AQ_HW_OPTIONAL] = "told"};
    return names[k->need];
}

/* Why the key may be left out; NULL: it may not, or nothing stands in for it. */
static const char *rule_of(const struct aq_hw_profile *p, uint32_t key)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(least); i++)
        if (p[i].note[key].origin == AQ_HW_DERIVED)
            return p[i].note[key].source;
    return NULL;
}

static void put_keys(struct aq_buf *ret, const struct aq_hw_profile *p)
{
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        const struct aq_hw_key *k = &aq_hw_key_table[i];
        if (i == 0 || k->section != k[-1].section)
            aq_buf_printf(ret, "\n%s\n", aq_hw_section_name(k->section));
        aq_buf_printf(ret, "  %-30s %-8s %s\n", k->name, need_text(k), k->what);
        if (rule_of(p, i))
            aq_buf_printf(ret, "      else %s\n", rule_of(p, i));
    }
}

void aq_hw_help(struct aq_buf *ret)
{
    struct aq_hw_profile *p = calloc(AQ_ARRAY_LEN(least), sizeof(*p));
    for (size_t i = 0; p && i < AQ_ARRAY_LEN(least); i++)
        ret->failed |= aq_hw_file_parse(&p[i], "example", least[i], strlen(least[i]), NULL) < 0;
    ret->failed |= !p;
    if (ret->failed) {
        free(p);
        return;
    }
    aq_buf_puts(ret, head);
    for (const char *at = least[0]; *at; at = strchr(at, '\n') + 1)
        aq_buf_printf(ret, "  %.*s\n", (int)strcspn(at, "\n"), at);
    aq_buf_puts(ret, middle);
    put_keys(ret, p);
    free(p);
    aq_buf_puts(ret, tail);
}
