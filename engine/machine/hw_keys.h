/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/hw_keys.h - the table behind engine/machine/hw_file.h: a row for each number of a
 * hardware profile, with its name, its unit, its place in the struct and its limits.  Reader,
 * writer, rules and reports follow from the rows.  Constant data, no code but look-ups. */
#ifndef AQ_ENGINE_MACHINE_HW_KEYS_H
#define AQ_ENGINE_MACHINE_HW_KEYS_H

#include "engine/machine/hw_file.h"

enum aq_hw_section {
    AQ_HW_MACHINE,
    AQ_HW_DEVICE, /* missing: no accelerator */
    AQ_HW_HOST,
    AQ_HW_LINKS,
    AQ_HW_DISK, /* missing: no disk */
    AQ_HW_SECTION_COUNT,
};

enum aq_hw_kind { AQ_HW_REAL, AQ_HW_COUNT, AQ_HW_SIZE }; /* double, uint32_t, uint64_t */

enum aq_hw_need {
    AQ_HW_NEEDED,   /* cannot be derived */
    AQ_HW_DERIVES,  /* has a rule in hw_derive.c */
    AQ_HW_REFINES,  /* corrects other rates, which hold without it */
    AQ_HW_OPTIONAL, /* for people to read; not used in computations */
};

struct aq_hw_key {
    enum aq_hw_section section;
    const char *name;
    enum aq_hw_kind kind;
    enum aq_hw_need need;
    const char *unit; /* for messages */
    double factor;    /* of the unit */
    uint32_t offset;  /* in struct aq_hw_profile */
    double min, max;  /* in the unit */
    const char *what; /* for aquifer help hardware */
};

extern const struct aq_hw_key aq_hw_key_table[];
const char *aq_hw_section_name(enum aq_hw_section s);
/* The key with a name such as "host.memory_gb_s"; asserts that there is one. */
uint32_t aq_hw_key_find(const char *name);

/* Sets a number, in the unit of the key. */
void aq_hw_key_set(struct aq_hw_profile *p, uint32_t key, double value);
/* Sets a measured number, with its spread and its source (copied). */
void aq_hw_key_give(struct aq_hw_profile *p, const char *name, double value, double spread,
                    const char *source);
/* The widest spread among given numbers that computations use, and its key; 0: none is known. */
double aq_hw_spread(const struct aq_hw_profile *p, uint32_t *ret_key);
/* Whether the machine has the section. */
bool aq_hw_has(const struct aq_hw_profile *p, enum aq_hw_section s);

#endif
