/* SPDX-License-Identifier: Apache-2.0
 * engine/options/check.h - values with a grammar of their own: what is wrong with them, if
 * anything. Each returns 0, -EINVAL (malformed, or not available in this version) or -ENODEV;
 * `label` is how the message calls the option. */
#ifndef AQ_ENGINE_OPTIONS_CHECK_H
#define AQ_ENGINE_OPTIONS_CHECK_H

#include "base/err.h"

int aq_check_attention(const char *label, const char *text, struct aq_err *reterr);
int aq_check_device(const char *label, const char *text, struct aq_err *reterr);
/* "512" or "100-800". */
int aq_check_length(const char *label, const char *text, struct aq_err *reterr);
int aq_check_link(const char *label, const char *text, struct aq_err *reterr);
int aq_check_host_products(const char *label, const char *text, struct aq_err *reterr);
int aq_check_placement(const char *label, const char *text, struct aq_err *reterr);
int aq_check_chat_time(const char *label, const char *text, struct aq_err *reterr);
int aq_check_kv_budget(const char *label, const char *text, struct aq_err *reterr);
int aq_check_kv_floor(const char *label, const char *text, struct aq_err *reterr);
int aq_check_kv_layers(const char *label, const char *text, struct aq_err *reterr);
int aq_check_kv_pool(const char *label, const char *text, struct aq_err *reterr);
int aq_check_kv_part(const char *label, const char *text, struct aq_err *reterr);
/* "K/N" or "slurm". */
int aq_check_shard(const char *label, const char *text, struct aq_err *reterr);
/* An item of --price. */
int aq_check_price(const char *label, const char *text, struct aq_err *reterr);
int aq_check_numa(const char *label, const char *text, struct aq_err *reterr);

#endif
