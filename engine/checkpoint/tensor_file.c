/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/tensor_file.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* huggingface/safetensors, safetensors/src/tensor.rs, plus torch's second complex type. */
static const struct aq_element elements[] = {
    {"F32", AQ_F32, 32},
    {"F16", AQ_F16, 16},
    {"BF16", AQ_BF16, 16},
    {"F64", AQ_F64, 64},
    {"I64", AQ_I64, 64},
    {"I32", AQ_I32, 32},
    {"I16", AQ_I16, 16},
    {"I8", AQ_I8, 8},
    {"U8", AQ_U8, 8},
    {"BOOL", AQ_BOOL, 8},
    {"U16", AQ_DTYPE_COUNT, 16},
    {"U32", AQ_DTYPE_COUNT, 32},
    {"U64", AQ_DTYPE_COUNT, 64},
    {"F8_E5M2", AQ_DTYPE_COUNT, 8},
    {"F8_E4M3", AQ_F8_E4M3, 8},
    {"F8_E5M2FNUZ", AQ_DTYPE_COUNT, 8},
    {"F8_E4M3FNUZ", AQ_DTYPE_COUNT, 8},
    {"F8_E8M0", AQ_DTYPE_COUNT, 8},
    {"F6_E2M3", AQ_DTYPE_COUNT, 6},
    {"F6_E3M2", AQ_DTYPE_COUNT, 6},
    {"F4", AQ_DTYPE_COUNT, 4},
    {"C64", AQ_DTYPE_COUNT, 64},
    {"C128", AQ_DTYPE_COUNT, 128},
};

const struct aq_element *aq_element_find(const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(elements); i++)
        if (strcmp(elements[i].name, name) == 0)
            return &elements[i];
    return NULL;
}

/* ---- the list ---- */

const char *aq_tensor_text(const struct aq_tensor_info *t, char *text, size_t bytes)
{
    const char *type = t->dtype == AQ_DTYPE_COUNT ? t->element->name : aq_dtype_name(t->dtype);
    size_t at = (size_t)snprintf(text, bytes, "%s [", type);
    for (uint32_t i = 0; i < t->rank && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)t->shape[i]);
    if (at < bytes)
        snprintf(text + at, bytes - at, "]");
    return text;
}

void aq_tensor_default_strides(struct aq_tensor_info *info)
{
    uint64_t stride = 1;
    for (uint32_t i = info->rank; i-- > 0;) {
        info->stride[i] = stride;
        stride *= aq_max_u64(info->shape[i], 1);
    }
}

/* Row-major without gaps.  The stride of a dimension of length 1 is never used. */
static bool is_contiguous(const struct aq_tensor_info *t)
{
    uint64_t want = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        if (t->shape[i] != 1 && t->stride[i] != want)
            return false;
        want *= t->shape[i];
    }
    return true;
}

/* Elements of the shape, their bytes, and how far from the first one the last one lies. */
static int measure(struct aq_tensor_info *t, uint64_t *ret_span, struct aq_err *reterr,
                   const char *quoted)
{
    uint64_t count = 1, span = 0, bits, step;
    bool over = false, empty = false;
    for (uint32_t i = 0; i < t->rank; i++) {
        empty |= t->shape[i] == 0;
        over |= aq_mul_overflows(count, aq_max_u64(t->shape[i], 1), &count);
        over |= aq_mul_overflows(aq_max_u64(t->shape[i], 1) - 1, t->stride[i], &step);
        over |= aq_add_overflows(span, step, &span);
    }
    /* The product over nonzero lengths is bounded too, so that no partial product overflows. */
    over |= aq_mul_overflows(count, (uint64_t)t->element->bits, &bits) || bits > INT64_MAX;
    if (over)
        return aq_error(reterr, -ENOEXEC, "tensor '%s': the shape's size overflows", quoted);
    if (!empty && bits % 8 != 0)
        return aq_error(reterr, -ENOEXEC, "tensor '%s': %s values do not fill whole bytes", quoted,
                        t->element->name);
    t->elements = empty ? 0 : count;
    t->bytes = empty ? 0 : bits / 8;
    *ret_span = empty ? 0 : span + 1;
    return 0;
}

static int check_name(const char *name, struct aq_err *reterr, const char *quoted)
{
    size_t n = strlen(name);
    if (n == 0 || n >= AQ_TENSOR_NAME_MAX)
        return aq_error(reterr, -ENOEXEC, "tensor name '%s': expected 1 to %d bytes, found %zu",
                        quoted, AQ_TENSOR_NAME_MAX - 1, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return aq_error(reterr, -ENOEXEC, "tensor name '%s': found a control character",
                            quoted);
    return 0;
}

static int check_place(struct aq_tensor_info *t, uint64_t span, const struct aq_tensor_place *place,
                       const struct aq_tensor_file *file, struct aq_err *reterr, const char *quoted)
{
    uint64_t region_end;
    if (aq_add_overflows(place->region_offset, place->region_bytes, &region_end) ||
        region_end > file->bytes)
        return aq_error(
            reterr, -ENOEXEC,
            "tensor '%s': its storage of %llu bytes at %llu ends beyond the file's %llu "
            "bytes",
            quoted, (unsigned long long)place->region_bytes,
            (unsigned long long)place->region_offset, (unsigned long long)file->bytes);
    uint64_t last = 0, last_bits = 0;
    bool over = aq_add_overflows(place->first_element, span, &last) ||
                aq_mul_overflows(last, (uint64_t)t->element->bits, &last_bits);
    if (t->elements && (over || aq_div_up(last_bits, 8) > place->region_bytes))
        return aq_error(reterr, -ENOEXEC,
                        "tensor '%s': needs elements %llu to %llu of a storage of %llu bytes (%s)",
                        quoted, (unsigned long long)place->first_element, (unsigned long long)last,
                        (unsigned long long)place->region_bytes, t->element->name);
    t->offset = place->region_offset;
    if (t->elements)
        t->offset += place->first_element * t->element->bits / 8;
    return 0;
}

int aq_tensor_list_add(struct aq_tensor_list *list, const struct aq_tensor_info *info,
                       const struct aq_tensor_place *place, const struct aq_tensor_file *file,
                       struct aq_err *reterr)
{
    assert(info->rank <= AQ_TENSOR_RANK_MAX);
    struct aq_tensor_info t = *info;
    t.dtype = t.element->dtype;
    char quoted[128];
    aq_quote(quoted, sizeof(quoted), t.name, strlen(t.name));
    uint64_t span;
    int rc = check_name(t.name, reterr, quoted);
    if (rc == 0)
        rc = measure(&t, &span, reterr, quoted);
    if (rc == 0)
        rc = check_place(&t, span, place, file, reterr, quoted);
    if (rc < 0)
        return rc;
    t.contiguous = is_contiguous(&t);
    if (list->count == AQ_TENSOR_COUNT_MAX)
        return aq_error(reterr, -ENOEXEC, "expected at most %d tensors", AQ_TENSOR_COUNT_MAX);
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        void *grown = realloc(list->tensor, capacity * sizeof(*list->tensor));
        if (!grown)
            return aq_error_memory(reterr, "list of %zu tensors", capacity);
        list->tensor = grown;
        list->capacity = capacity;
    }
    t.name = strdup(info->name);
    if (!t.name)
        return aq_error_memory(reterr, "name of tensor '%s'", quoted);
    list->tensor[list->count++] = t;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct aq_tensor_info *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int aq_tensor_list_sort(struct aq_tensor_list *list, size_t first, struct aq_err *reterr)
{
    assert(first <= list->count);
    if (list->count - first < 2)
        return 0;
    qsort(list->tensor + first, list->count - first, sizeof(*list->tensor), compare_names);
    for (size_t i = first + 1; i < list->count; i++) {
        const char *name = list->tensor[i].name;
        char quoted[128];
        if (strcmp(list->tensor[i - 1].name, name) == 0)
            return aq_error(reterr, -ENOEXEC, "tensor '%s': the name appears twice",
                            aq_quote(quoted, sizeof(quoted), name, strlen(name)));
    }
    return 0;
}

const struct aq_tensor_info *aq_tensor_list_find(const struct aq_tensor_list *list,
                                                 const char *name)
{
    struct aq_tensor_info key = {.name = name};
    return list->count ? bsearch(&key, list->tensor, list->count, sizeof(key), compare_names)
                       : NULL;
}

void aq_tensor_list_truncate(struct aq_tensor_list *list, size_t count)
{
    assert(count <= list->count);
    for (size_t i = count; i < list->count; i++)
        free((char *)list->tensor[i].name);
    list->count = count;
}

void aq_tensor_list_keep(struct aq_tensor_list *list,
                         bool (*keep)(const struct aq_tensor_info *t, void *user), void *user)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (keep(&list->tensor[i], user))
            list->tensor[kept++] = list->tensor[i];
        else
            free((char *)list->tensor[i].name);
    }
    list->count = kept;
}

void aq_tensor_list_clear(struct aq_tensor_list *list)
{
    aq_tensor_list_truncate(list, 0);
    free(list->tensor);
    *list = (struct aq_tensor_list){0};
}

/* ---- reading ---- */

uint64_t aq_tensor_rows(const struct aq_tensor_info *t)
{
    return t->rank ? t->shape[0] : 1;
}

uint64_t aq_tensor_row_bytes(const struct aq_tensor_info *t)
{
    uint64_t rows = aq_tensor_rows(t);
    return rows ? t->bytes / rows : 0;
}

int aq_tensor_file_pread(const struct aq_tensor_file *file, void *dst, size_t bytes,
                         uint64_t offset, struct aq_err *reterr)
{
    for (size_t have = 0; have < bytes;) {
        /* Linux moves at most 2^31 - 4096 bytes a call; smaller pieces keep a signal's wait short.
         */
        size_t want = aq_min_u64(bytes - have, 64 * AQ_MIB);
        ssize_t n = pread(file->fd, (char *)dst + have, want, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int code = -errno;
            return aq_error(reterr, code, "'%s': read %zu bytes at %llu: %s", file->name, want,
                            (unsigned long long)(offset + have), strerror(-code));
        }
        if (n == 0)
            return aq_error(reterr, -EIO,
                            "'%s': expected %zu bytes at %llu, the file ends after %zu", file->name,
                            bytes, (unsigned long long)offset, have);
        have += (size_t)n;
    }
    return 0;
}

/* One dimension of the box of elements that is read: how many, and how far apart in the file and in
 * dst. */
struct axis {
    uint64_t count, src_stride, dst_stride;
};

/* A bounded view of the file, moved forward as runs are asked for. */
struct window {
    const struct aq_tensor_file *file;
    uint8_t *data;
    uint64_t offset, bytes; /* what data holds */
    uint64_t ahead;         /* read at least this much when there is more */
};

enum { WINDOW_BYTES = 1 << 18 };

/* The bytes [offset, offset + bytes) of the file, bytes <= WINDOW_BYTES. */
static int window_at(struct window *w, uint64_t offset, uint64_t bytes, const uint8_t **ret,
                     struct aq_err *reterr)
{
    if (offset < w->offset || offset + bytes > w->offset + w->bytes) {
        uint64_t want = aq_min_u64(aq_max_u64(bytes, w->ahead), w->file->bytes - offset);
        w->bytes = 0;
        int rc = aq_tensor_file_pread(w->file, w->data, want, offset, reterr);
        if (rc < 0)
            return rc;
        w->offset = offset;
        w->bytes = want;
    }
    *ret = w->data + (offset - w->offset);
    return 0;
}

static void copy_strided(uint8_t *dst, uint64_t dst_stride, const uint8_t *src, uint64_t src_stride,
                         uint64_t count, size_t size)
{
    if (src_stride == 1 && dst_stride == 1) {
        memcpy(dst, src, count * size);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        memcpy(dst + i * dst_stride * size, src + i * src_stride * size, size);
}

/* Copies the innermost axis, in pieces that fit the window. */
static int copy_run(struct window *w, const struct axis *a, uint64_t src, uint8_t *dst, size_t size,
                    struct aq_err *reterr)
{
    uint64_t stride_bytes = a->src_stride * size;
    uint64_t piece = stride_bytes ? (WINDOW_BYTES - size) / stride_bytes + 1 : a->count;
    for (uint64_t i = 0; i < a->count; i += piece) {
        uint64_t n = aq_min_u64(piece, a->count - i);
        const uint8_t *data;
        int rc = window_at(w, src + i * stride_bytes, (n - 1) * stride_bytes + size, &data, reterr);
        if (rc < 0)
            return rc;
        copy_strided(dst + i * a->dst_stride * size, a->dst_stride, data, a->src_stride, n, size);
    }
    return 0;
}

static int by_stride_down(const void *a, const void *b)
{
    const struct axis *x = a, *y = b;
    return x->src_stride < y->src_stride ? 1 : x->src_stride > y->src_stride ? -1 : 0;
}

/* The axes of rows [.., rows) of t, longest stride first, so that the file is read forward whatever
 * order the tensor's dimensions have.  At least one axis. */
static uint32_t strided_axes(const struct aq_tensor_info *t, uint64_t rows, struct axis *axis)
{
    uint32_t count = 0;
    uint64_t dst_stride = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        uint64_t n = i == 0 ? rows : t->shape[i];
        if (n > 1)
            axis[count++] = (struct axis){n, t->stride[i], dst_stride};
        dst_stride *= n;
    }
    if (count == 0)
        axis[count++] = (struct axis){1, 1, 1};
    qsort(axis, count, sizeof(*axis), by_stride_down);
    return count;
}

static int read_strided(const struct aq_tensor_file *file, const struct aq_tensor_info *t,
                        uint64_t first_row, uint64_t rows, uint8_t *dst, struct aq_err *reterr)
{
    size_t size = t->element->bits / 8;
    struct axis axis[AQ_TENSOR_RANK_MAX];
    uint32_t count = strided_axes(t, rows, axis);
    const struct axis *inner = &axis[count - 1];
    struct window w = {.file = file, .data = malloc(WINDOW_BYTES)};
    if (!w.data)
        return aq_error_memory(reterr, "buffer of %d bytes to read '%s'", WINDOW_BYTES, t->name);
    /* Runs that lie close together are fetched many at a time; a system call costs about as much as
     * copying 4 KiB. */
    if (count > 1 && axis[count - 2].src_stride * size <= 4096)
        w.ahead = WINDOW_BYTES;
    uint64_t src = t->offset + (t->rank ? first_row * t->stride[0] * size : 0), to = 0;
    uint64_t at[AQ_TENSOR_RANK_MAX] = {0};
    int rc = 0;
    for (bool more = true; more && rc == 0;) {
        rc = copy_run(&w, inner, src, dst + to, size, reterr);
        more = false;
        for (uint32_t i = count - 1; i-- > 0 && !more;) {
            more = ++at[i] < axis[i].count;
            src += axis[i].src_stride * size;
            to += axis[i].dst_stride * size;
            if (more)
                continue;
            src -= axis[i].count * axis[i].src_stride * size;
            to -= axis[i].count * axis[i].dst_stride * size;
            at[i] = 0;
        }
    }
    free(w.data);
    return rc;
}

int aq_tensor_read(const struct aq_tensor_file *file, const struct aq_tensor_info *t,
                   uint64_t first_row, uint64_t rows, void *dst, struct aq_err *reterr)
{
    assert(first_row <= aq_tensor_rows(t) && rows <= aq_tensor_rows(t) - first_row);
    if (t->dtype == AQ_DTYPE_COUNT)
        return aq_error(reterr, -ENOEXEC, "'%s': tensor '%s': values of type %s cannot be read",
                        file->name, t->name, t->element->name);
    uint64_t row_bytes = aq_tensor_row_bytes(t);
    if (rows == 0 || row_bytes == 0)
        return 0;
    int rc = t->contiguous ? aq_tensor_file_pread(file, dst, rows * row_bytes,
                                                  t->offset + first_row * row_bytes, reterr)
                           : read_strided(file, t, first_row, rows, dst, reterr);
    if (rc < 0 && rc != -ENOMEM)
        aq_error_prefix(reterr, "tensor '%s'", t->name);
    return rc;
}
