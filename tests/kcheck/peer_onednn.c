/* SPDX-License-Identifier: Apache-2.0
 * oneDNN's matmul with weights reordered once to the library's own format. */
#include "tests/kcheck/peer.h"

#include <dnnl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { COPIES_MAX = 4096 };

struct product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t x, y, w[COPIES_MAX];
    void *x_data, *y_data;
    char *w_data;
    size_t w_bytes; /* of all copies */
    uint32_t copies;
};

static void product_close(void *arg)
{
    struct product *p = arg;
    if (!p)
        return;
    for (uint32_t i = 0; i < p->copies; i++)
        dnnl_memory_destroy(p->w[i]);
    dnnl_memory_destroy(p->x);
    dnnl_memory_destroy(p->y);
    dnnl_primitive_destroy(p->primitive);
    dnnl_primitive_desc_destroy(p->desc);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
    free(p->x_data);
    free(p->y_data);
    if (p->w_data)
        munmap(p->w_data, p->w_bytes);
    free(p);
}

static bool make_primitive(struct product *p, const struct kc_peer_shape *s)
{
    dnnl_data_type_t type = s->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t matmul;
    return dnnl_memory_desc_init_by_tag(&x, 2, (dnnl_dims_t){s->m, s->k}, type, dnnl_ab) ==
               dnnl_success &&
           dnnl_memory_desc_init_by_tag(&w, 2, (dnnl_dims_t){s->k, s->n}, type,
                                        dnnl_format_tag_any) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&y, 2, (dnnl_dims_t){s->m, s->n}, dnnl_f32, dnnl_ab) ==
               dnnl_success &&
           dnnl_matmul_desc_init(&matmul, &x, &w, NULL, &y) == dnnl_success &&
           dnnl_primitive_desc_create(&p->desc, &matmul, NULL, p->engine, NULL) == dnnl_success &&
           dnnl_primitive_create(&p->primitive, p->desc) == dnnl_success &&
           dnnl_memory_create(&p->x, &x, p->engine, p->x_data) == dnnl_success &&
           dnnl_memory_create(&p->y, &y, p->engine, p->y_data) == dnnl_success;
}

/* The packed format only moves elements, so any bytes are packed weights of some matrix: filled
 * with small numbers, in as many copies as it takes to be cold. */
static bool make_weights(struct product *p, const struct kc_peer_shape *s)
{
    const dnnl_memory_desc_t *w = dnnl_primitive_desc_query_md(p->desc, dnnl_query_weights_md, 0);
    size_t one = (dnnl_memory_desc_get_size(w) + 4095) / 4096 * 4096;
    size_t copies = (s->cold_bytes + one - 1) / one;
    if (copies > COPIES_MAX)
        copies = COPIES_MAX;
    p->w_bytes = copies * one;
    p->w_data = mmap(NULL, p->w_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->w_data == MAP_FAILED) {
        p->w_data = NULL;
        return false;
    }
    madvise(p->w_data, p->w_bytes, MADV_HUGEPAGE);
    memset(p->w_data, 0x3c, p->w_bytes);
    for (; p->copies < copies; p->copies++) {
        if (dnnl_memory_create(&p->w[p->copies], w, p->engine, p->w_data + p->copies * one) !=
            dnnl_success)
            return false;
    }
    return true;
}

static void *product_open(const struct kc_peer_shape *s)
{
    struct product *p = calloc(1, sizeof(*p));
    size_t x_bytes = (size_t)s->m * s->k * (s->bf16 ? 2 : 4), y_bytes = (size_t)s->m * s->n * 4;
    if (!p)
        return NULL;
    p->x_data = aligned_alloc(64, (x_bytes + 63) / 64 * 64);
    p->y_data = aligned_alloc(64, (y_bytes + 63) / 64 * 64);
    if (p->x_data && p->y_data) {
        memset(p->x_data, 0x3c, x_bytes);
        memset(p->y_data, 0, y_bytes);
        if (dnnl_engine_create(&p->engine, dnnl_cpu, 0) == dnnl_success &&
            dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags) == dnnl_success &&
            make_primitive(p, s) && make_weights(p, s))
            return p;
    }
    product_close(p);
    return NULL;
}

static void product_call(void *arg, uint64_t i)
{
    struct product *p = arg;
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w[i % p->copies]}, {DNNL_ARG_DST, p->y}};
    dnnl_primitive_execute(p->primitive, p->stream, 3, args);
    dnnl_stream_wait(p->stream);
}

const struct kc_peer kc_peer = {.name = "oneDNN",
                                .product_open = product_open,
                                .product_call = product_call,
                                .product_close = product_close};
