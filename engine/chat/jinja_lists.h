/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_lists.h - filters of lists and dicts, with the parameters that
 * jinja_filters.c's table names. */
#ifndef AQ_ENGINE_CHAT_JINJA_LISTS_H
#define AQ_ENGINE_CHAT_JINJA_LISTS_H

#include "engine/chat/jinja_value.h"

/* "a.b.0" of a value, each step as an item; path may be an integer. */
bool aq_jinja_path(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                   const struct aq_jinja_value *path, struct aq_jinja_value *ret);
/* map(attribute=..., default=...) */
bool aq_jinja_map_attribute(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                            const struct aq_jinja_arguments *a, struct aq_jinja_value *ret);

#define AQ_JINJA_LIST_FILTER(name)                                                                 \
    bool name(struct aq_jinja_run *r, const struct aq_jinja_value *self,                           \
              const struct aq_jinja_value *p, struct aq_jinja_value *ret)
AQ_JINJA_LIST_FILTER(aq_jinja_dictsort);
AQ_JINJA_LIST_FILTER(aq_jinja_first);
AQ_JINJA_LIST_FILTER(aq_jinja_items);
AQ_JINJA_LIST_FILTER(aq_jinja_join_filter);
AQ_JINJA_LIST_FILTER(aq_jinja_last);
AQ_JINJA_LIST_FILTER(aq_jinja_to_list);
AQ_JINJA_LIST_FILTER(aq_jinja_max);
AQ_JINJA_LIST_FILTER(aq_jinja_min);
AQ_JINJA_LIST_FILTER(aq_jinja_reverse);
AQ_JINJA_LIST_FILTER(aq_jinja_sort);
AQ_JINJA_LIST_FILTER(aq_jinja_sum);
AQ_JINJA_LIST_FILTER(aq_jinja_unique);

#endif
