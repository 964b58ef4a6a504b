/* SPDX-License-Identifier: Apache-2.0
 * tests/alloc_trap.h - counts allocations while it is armed.  The test links alloc_trap.c and has
 * the linker send malloc, calloc and realloc there (--wrap). */
#ifndef AQ_TESTS_ALLOC_TRAP_H
#define AQ_TESTS_ALLOC_TRAP_H

#include <stdbool.h>

/* As the observer of an engine: armed while a pass runs. */
void alloc_trap_arm(void *user, bool running);
/* Allocations in any thread while it was armed, since the last call. */
unsigned alloc_trap_take(void);

#endif
