/* SPDX-License-Identifier: Apache-2.0
 * Does what a sanitizer has to stop, by its name: overflow, beyond, leak; x, w, bias, y: that array
 * of a product is a number too short, whose steps are not instrumented.  With another name nothing
 * is wrong, and the exit status is 0. */
#include "kernels/kernels.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int most = INT_MAX;

/* An array of zeros; of this name, too short by a number. */
static float *array_of(const char *name, const char *what, size_t count)
{
    return calloc(count - (strcmp(name, what) == 0), sizeof(float));
}

/* Two rows of x by 64 rows of W. */
static int multiply(const char *what)
{
    enum { M = 2, K = 128, N = AQ_PANEL_ROWS };
    const struct aq_scratch_need need = {.k_max = K, .head_dim_max = 64, .context_max = 64};
    size_t scratch_bytes = aq_kernels_scratch_bytes(&need);
    void *scratch = aligned_alloc(64, scratch_bytes);
    float *x = array_of("x", what, (size_t)M * K), *w = array_of("w", what, (size_t)N * K);
    float *bias = array_of("bias", what, N), *y = array_of("y", what, (size_t)M * N);
    struct aq_segment segment = {.panels = w, .rows = N};
    struct aq_product p = {.x = x,
                           .x_dtype = AQ_F32,
                           .m = M,
                           .k = K,
                           .x_stride = K,
                           .segments = &segment,
                           .segment_count = 1,
                           .w_dtype = AQ_F32,
                           .w_layout = aq_layout_cpu(AQ_F32),
                           .bias = bias,
                           .y = y,
                           .y_dtype = AQ_F32,
                           .y_stride = N};
    struct aq_kernels kernels;
    struct aq_pool *pool = NULL;
    struct aq_exec *exec = NULL;
    aq_kernels_cpu(&kernels, aq_isa_detect());
    bool all = scratch && x && w && bias && y && aq_pool_open(&pool, 1, NULL) == 0 &&
               aq_exec_open(&exec, pool, scratch, scratch_bytes, NULL) == 0;
    if (all)
        kernels.product_f32(exec, &p);
    aq_exec_close(exec);
    aq_pool_close(pool);
    free(scratch);
    free(x);
    free(w);
    free(bias);
    free(y);
    return all ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    char *volatile bytes = malloc(16);
    if (!bytes)
        return 1;
    memset(bytes, 0, 16);
    if (strcmp(what, "overflow") == 0)
        printf("%d\n", most + argc);
    if (strcmp(what, "beyond") == 0)
        printf("%d\n", bytes[14 + argc]);
    if (strcmp(what, "leak") == 0)
        bytes = NULL;
    free(bytes);
    return multiply(what);
}
