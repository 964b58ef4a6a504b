/* SPDX-License-Identifier: Apache-2.0
 * tests/choices.h - options of the engine out of the text that a user would type; NULL: auto.  A
 * test that misspells one ends there. */
#ifndef AQ_TESTS_CHOICES_H
#define AQ_TESTS_CHOICES_H

#include "engine/compute/backend.h"
#include "engine/options/notation.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

static inline void must_parse(int rc, const struct aq_err *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

static inline struct aq_placement_choice placed(const char *text)
{
    struct aq_placement_choice ret;
    struct aq_err err;
    must_parse(aq_placement_parse(&ret, "placement", text, &err), &err);
    return ret;
}

static inline struct aq_attention_choice attended(const char *text)
{
    struct aq_attention_choice ret;
    struct aq_err err;
    must_parse(aq_attention_parse(&ret, "attention", text, &err), &err);
    return ret;
}

static inline struct aq_host_products_choice multiplied(const char *text)
{
    struct aq_host_products_choice ret;
    struct aq_err err;
    must_parse(aq_host_products_parse(&ret, "host products", text, &err), &err);
    return ret;
}

static inline struct aq_device_choice computed_on(const char *text)
{
    struct aq_device_choice ret;
    if (!aq_device_parse(&ret, text))
        abort();
    return ret;
}

static inline struct aq_isa_choice using_isa(const char *text)
{
    struct aq_isa_choice ret = {.given = text};
    if (text && !aq_isa_parse(text, &ret.mask))
        abort();
    return ret;
}

static inline struct aq_link_choice linked(const char *text)
{
    struct aq_link_choice ret = {{0}};
    struct aq_err err;
    if (text)
        must_parse(aq_link_parse(&ret, "link", text, &err), &err);
    return ret;
}

#endif
