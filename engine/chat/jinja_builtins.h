/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_builtins.h - filters, tests, methods and functions by name. */
#ifndef AQ_ENGINE_CHAT_JINJA_BUILTINS_H
#define AQ_ENGINE_CHAT_JINJA_BUILTINS_H

#include "engine/chat/jinja_tree.h"

struct aq_jinja_run;
struct aq_jinja_value;
struct aq_jinja_arguments;

/* Index for the calls below; -1: there is none of that name. */
int aq_jinja_filter_find(struct aq_text name);
int aq_jinja_test_find(struct aq_text name);
/* A method of any type. */
bool aq_jinja_method_known(struct aq_text name);

bool aq_jinja_filter(struct aq_jinja_run *r, int filter, const struct aq_jinja_value *self,
                     const struct aq_jinja_arguments *arguments, struct aq_jinja_value *ret);
bool aq_jinja_test(struct aq_jinja_run *r, int test, const struct aq_jinja_value *self,
                   const struct aq_jinja_arguments *arguments, bool *ret);
/* The method of a value as a value; false when its type has none of that name. */
bool aq_jinja_method_of(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        struct aq_text name, struct aq_jinja_value *ret);
bool aq_jinja_method(struct aq_jinja_run *r, const struct aq_jinja_value *method,
                     const struct aq_jinja_arguments *arguments, struct aq_jinja_value *ret);
/* raise_exception, range and the other functions that every template has. */
bool aq_jinja_function_of(struct aq_text name, struct aq_jinja_value *ret);
bool aq_jinja_function(struct aq_jinja_run *r, const struct aq_jinja_value *function,
                       const struct aq_jinja_arguments *arguments, struct aq_jinja_value *ret);

#endif
