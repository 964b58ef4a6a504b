/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/alloc_trap.h"

#include <stddef.h>

static bool armed;
static unsigned hits;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static void note(void)
{
    if (__atomic_load_n(&armed, __ATOMIC_RELAXED))
        __atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
}

void *__wrap_malloc(size_t n)
{
    note();
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    note();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    note();
    return __real_realloc(p, n);
}

void alloc_trap_arm(void *user, bool running)
{
    (void)user;
    __atomic_store_n(&armed, running, __ATOMIC_RELAXED);
}

unsigned alloc_trap_take(void)
{
    return __atomic_exchange_n(&hits, 0, __ATOMIC_RELAXED);
}
