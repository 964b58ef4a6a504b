/* SPDX-License-Identifier: Apache-2.0
 * engine/options/notation.h - --placement as text: "weights=D/H/N kv=D/H/N hidden=D/H/N
 * head=WHERE", and other options about where things are and what they cost. */
#ifndef AQ_ENGINE_OPTIONS_NOTATION_H
#define AQ_ENGINE_OPTIONS_NOTATION_H

#include "base/money.h"
#include "policy/plan.h"

/* What options say, as values.  All zero: auto. */
struct aq_placement_choice {
    bool given;
    struct aq_placement at;
};
struct aq_attention_choice {
    bool given;
    enum aq_attention_side side;
    double split_host; /* percent of split attention that the host does; 0: chosen */
};
/* Are decode rows attended beside products (struct aq_plan)? */
enum aq_side_by_side { AQ_BESIDE_AUTO, AQ_BESIDE_ON, AQ_BESIDE_OFF };

struct aq_host_products_choice {
    bool given;
    double percent; /* of the host's weights that are multiplied there */
};
struct aq_link_choice {
    uint64_t bytes_per_s[2]; /* to the device, from it; 0: as fast as it goes */
};

/* "auto" (as NULL, here and below), or shares.  Parts that are not named stay in host memory
 * (weights, kv, hidden 0/100/0, head=host).  `label` begins messages.  -EINVAL: malformed, or
 * shares that do not add up. */
int aq_placement_parse(struct aq_placement_choice *ret, const char *label, const char *text,
                       struct aq_err *reterr);
/* "H2D/D2H" in GB/s (1e9 bytes/s), both more than 0: bytes per second of the two links. */
int aq_link_parse(struct aq_link_choice *ret, const char *label, const char *text,
                  struct aq_err *reterr);

/* "HARDWARE=MONEY/h", an item of --price: what an hour on a machine of --hardware costs. */
struct aq_price_choice {
    char hardware[256];
    struct aq_money per_hour;
};
int aq_price_parse(struct aq_price_choice *ret, const char *label, const char *text,
                   struct aq_err *reterr);

/* Lengths as --prompt-len of a plan: "512" (both the same) or "100-800", at least 1. */
int aq_length_parse(uint32_t *ret_first, uint32_t *ret_last, const char *label, const char *text,
                    struct aq_err *reterr);

/* "auto", or a share: "0.25" or "25%". */
int aq_host_products_parse(struct aq_host_products_choice *ret, const char *label, const char *text,
                           struct aq_err *reterr);
/* Where decode attention runs: "auto", "device", "host", "split" or "split:SHARE", the host's. */
int aq_attention_parse(struct aq_attention_choice *ret, const char *label, const char *text,
                       struct aq_err *reterr);

/* Where a plan has decode attention run, as --attention takes it. */
void aq_attention_text(char text[32], const struct aq_plan *p);

/* A placement back as text, at most 160 bytes. */
void aq_placement_text(char text[160], const struct aq_placement *p);
/* For people, with shares rounded to tenths: "kv=0/97.3/2.7" of "kv=0/97.2917/2.7083". */
void aq_placement_shown(char text[160], const char *exact);

#endif
