/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/scratch.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <stdlib.h>

struct aq_exec {
    struct aq_pool *pool;
    char *scratch;
    size_t scratch_bytes;
    void *codes;
    size_t codes_bytes;
};

int aq_exec_open(struct aq_exec **ret, struct aq_pool *pool, void *scratch, size_t scratch_bytes,
                 struct aq_err *reterr)
{
    assert(ret && pool && scratch);
    assert((uintptr_t)scratch % 64 == 0 && scratch_bytes % 64 == 0);
    struct aq_exec *ex = malloc(sizeof(*ex));
    if (!ex)
        return aq_error_memory(reterr, "execution context: %zu bytes", sizeof(*ex));
    *ex = (struct aq_exec){.pool = pool, .scratch = scratch, .scratch_bytes = scratch_bytes};
    *ret = ex;
    return 0;
}

void aq_exec_close(struct aq_exec *ex)
{
    free(ex);
}

struct aq_pool *aq_exec_pool(struct aq_exec *ex)
{
    return ex->pool;
}

void *aq_exec_scratch(struct aq_exec *ex, uint32_t worker)
{
    assert(worker < aq_pool_threads(ex->pool));
    return ex->scratch + ex->scratch_bytes * worker;
}

size_t aq_exec_scratch_size(const struct aq_exec *ex)
{
    return ex->scratch_bytes;
}

void aq_exec_lend_codes(struct aq_exec *ex, void *memory, size_t bytes)
{
    assert((uintptr_t)memory % 64 == 0);
    ex->codes = memory;
    ex->codes_bytes = bytes;
}

void *aq_exec_codes(struct aq_exec *ex, size_t *ret_bytes)
{
    *ret_bytes = ex->codes_bytes;
    return ex->codes;
}

size_t aq_kernels_codes_bytes(uint32_t k_max)
{
    return aq_align_up(AQ_CODES_ROWS * aq_codes_x_row(2, k_max), 4096);
}

size_t aq_kernels_scratch_bytes(const struct aq_scratch_need *need)
{
    size_t bytes = 64;
    bytes = aq_max_u64(bytes, aq_scratch_product(need));
    bytes = aq_max_u64(bytes, aq_scratch_attention(need));
    bytes = aq_max_u64(bytes, aq_scratch_choice(need));
    return aq_align_up(bytes, 4096);
}
