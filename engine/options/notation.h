/* SPDX-License-Identifier: Apache-2.0
 * engine/options/notation.h - --placement as text: "weights=D/H/N kv=D/H/N hidden=D/H/N
 * head=WHERE", and other options about where things are. */
#ifndef AQ_ENGINE_OPTIONS_NOTATION_H
#define AQ_ENGINE_OPTIONS_NOTATION_H

#include "policy/plan.h"

/* Parts that are not named stay in host memory (weights, kv, hidden 0/100/0, head=host).  `label`
 * begins messages.  -EINVAL: malformed, or shares that do not add up. */
int aq_placement_parse(struct aq_placement *ret, const char *label, const char *text,
                       struct aq_err *reterr);
/* "H2D/D2H" in GB/s (1e9 bytes/s), both more than 0: bytes per second of the two links. */
int aq_link_parse(uint64_t ret_bytes_per_s[2], const char *label, const char *text,
                  struct aq_err *reterr);

/* Lengths as --prompt-len of a plan: "512" (both the same) or "100-800", at least 1. */
int aq_length_parse(uint32_t *ret_first, uint32_t *ret_last, const char *label, const char *text,
                    struct aq_err *reterr);

/* A share as --host-products: "0.25" or "25%", in percent. */
int aq_host_products_parse(double *ret_percent, const char *label, const char *text,
                           struct aq_err *reterr);
/* Is the share one that a run on a GPU takes?  None is, above 0. */
int aq_host_products_check_gpu(double percent, struct aq_err *reterr);

/* Where decode attention runs, as --attention without auto: "device", "host", "split" or
 * "split:SHARE", the share of the host, in percent; 0 where it is not said. */
int aq_attention_parse(enum aq_attention_side *ret, double *ret_split_host, const char *label,
                       const char *text, struct aq_err *reterr);

/* Where a plan has decode attention run, as --attention takes it. */
void aq_attention_text(char text[32], const struct aq_plan *p);

/* A placement back as text, at most 160 bytes. */
void aq_placement_text(char text[160], const struct aq_placement *p);

#endif
