/* SPDX-License-Identifier: Apache-2.0
 * Loading the module.  Its own needs (cuBLASLt, and through it the driver) are looked for then, not
 * when the program starts. */
#include "engine/compute/cuda.h"

#include "config.h"
#include "engine/compute/cuda_find.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "aquifer_cuda.so"

/* From the folder of the program, or of the shared library where this runs in that: beside it, as
 * bundles have it; installed, whatever the folder of libraries is called; in the build folder. */
static const char *const places[] = {
    "", "aquifer/", "../aquifer/", "../lib/aquifer/", "../kernels/", "../../kernels/",
};

/* The first place, from the folder of this file, where the module is. */
static bool find_from(char path[PATH_MAX], const char *file)
{
    const char *slash = strrchr(file, '/');
    if (!slash)
        return false;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int bytes = snprintf(path, PATH_MAX, "%.*s%s%s", (int)(slash + 1 - file), file, places[i],
                             MODULE_NAME);
        if (bytes < PATH_MAX && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

/* False where the module is nowhere.  The program may be somebody else's, a Python say, and for the
 * program itself the loader may know no more than the word that it was called by. */
static bool find_module(char path[PATH_MAX])
{
    char self[PATH_MAX];
    Dl_info info;
    if (dladdr(MODULE_NAME, &info) && info.dli_fname && find_from(path, info.dli_fname))
        return true;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return false;
    self[n] = '\0';
    return find_from(path, self);
}

static int load(struct aq_cuda *c, const char *path, struct aq_err *reterr)
{
    char found[PATH_MAX];
    if (!path && !find_module(found))
        return aq_error(reterr, -ENODEV, "the CUDA backend (%s) is not installed with this program",
                        MODULE_NAME);
    c->library = aq_cuda_find_load(path ? path : found, reterr);
    if (!c->library)
        return -ENODEV;
    const struct aq_cuda_module *m = dlsym(c->library, AQ_CUDA_MODULE_SYMBOL);
    if (m && m->version == AQ_CUDA_MODULE_VERSION && m->bytes == sizeof(*m) &&
        strcmp(m->build, AQ_VERSION) == 0) {
        c->module = m;
        return 0;
    }
    dlclose(c->library);
    c->library = NULL;
    return aq_error(reterr, -ENODEV, "the CUDA backend '%s' is of another version than the program",
                    path ? path : found);
}

/* Versions as 1000 * major + 10 * minor. */
static int say_driver(uint32_t driver, uint32_t runtime, struct aq_err *reterr)
{
    if (!driver)
        return aq_error(reterr, -ENODEV, "no NVIDIA driver is installed (libcuda.so.1)");
    return aq_error(
        reterr, -ENODEV,
        "the NVIDIA driver is too old: it knows CUDA %u.%u, needed is %u.%u or later: "
        "install a newer one, or on a data centre's GPU NVIDIA's package cuda-compat-%u-%u",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, runtime / 1000,
        runtime % 1000 / 10);
}

static int look(const struct aq_cuda *c, uint32_t index, struct aq_err *reterr)
{
    uint32_t count, driver, runtime;
    int rc = c->module->gpu->count(&count, &driver, &runtime);
    if (driver / 1000 < runtime / 1000)
        return say_driver(driver, runtime, reterr);
    if (rc)
        return aq_error(reterr, -ENODEV, "the NVIDIA driver finds no GPU: %s",
                        c->module->gpu->error_text(rc));
    if (index >= count)
        return aq_error(reterr, -ENODEV, "GPU %u: the NVIDIA driver offers %u", index, count);
    return 0;
}

int aq_cuda_check(const char *path, uint32_t index, struct aq_err *reterr)
{
    struct aq_cuda c = {0};
    int rc = load(&c, path, reterr);
    rc = rc < 0 ? rc : look(&c, index, reterr);
    aq_cuda_close(&c);
    return rc;
}

uint32_t aq_cuda_code_for(const uint32_t *made_for, uint32_t sm)
{
    uint32_t own = 0, last = 0;
    if (!made_for[0])
        return sm;
    for (; *made_for; made_for++) {
        uint32_t code = *made_for / 10;
        if (code / 10 == sm / 10 && code <= sm)
            own = (uint32_t)aq_max_u64(own, code);
        last = (uint32_t)aq_max_u64(last, code);
    }
    return own ? own : last <= sm ? last : 0;
}

int aq_cuda_open(struct aq_cuda *ret, const char *path, uint32_t index, struct aq_err *reterr)
{
    struct aq_cuda c = {0};
    int rc = load(&c, path, reterr);
    rc = rc < 0 ? rc : look(&c, index, reterr);
    if (rc == 0) {
        int code = c.module->gpu->open(&c.gpu, index, &c.info);
        c.info.code_sm = code ? 0 : aq_cuda_code_for(c.module->kernels->made_for, c.info.sm);
        if (code)
            rc = aq_error(reterr, -ENODEV, "GPU %u cannot be opened: %s", index,
                          c.module->gpu->error_text(code));
        else if (c.info.sm < 75)
            rc = aq_error(reterr, -ENODEV,
                          "GPU %u ('%s') has compute capability %u.%u, needed is 7.5 or later",
                          index, c.info.name, c.info.sm / 10, c.info.sm % 10);
        else if (!c.info.code_sm)
            rc = aq_error(reterr, -ENODEV,
                          "the CUDA backend has no code for GPU %u ('%s', compute capability "
                          "%u.%u): build it with -Dgpu_arch=%u among the others",
                          index, c.info.name, c.info.sm / 10, c.info.sm % 10, c.info.sm);
        else if (!c.info.host_addresses)
            rc = aq_error(reterr, -ENODEV,
                          "GPU %u ('%s') does not know pinned memory by the host's addresses, "
                          "which kernels are given",
                          index, c.info.name);
    }
    if (rc < 0) {
        aq_cuda_close(&c);
        return rc;
    }
    *ret = c;
    return 0;
}

static const struct {
    const char *name;
    size_t bytes;
} launchers[] = {
#define ROW(name, params) [AQ_CUDA_KERNEL_##name] = {#name, sizeof(struct params)},
    AQ_CUDA_KERNELS(ROW)
#undef ROW
};

const char *aq_cuda_kernel_name(enum aq_cuda_kernel kernel)
{
    return kernel == AQ_CUDA_KERNEL_dense ? "cublasLtMatmul" : launchers[kernel].name;
}

size_t aq_cuda_kernel_bytes(enum aq_cuda_kernel kernel)
{
    return launchers[kernel].bytes;
}

int aq_cuda_launch(const struct aq_cuda_kernels *k, const struct aq_cuda_exec *ex,
                   enum aq_cuda_kernel kernel, const void *params)
{
    switch (kernel) {
#define CASE(name, type)                                                                           \
    case AQ_CUDA_KERNEL_##name: return k->name(ex, params);
        AQ_CUDA_KERNELS(CASE)
#undef CASE
    }
    assert(!"a kernel");
    return -EINVAL;
}

int aq_cuda_pieces(void *user, void *native, const struct aq_copy_piece *pieces, uint32_t count)
{
    const struct aq_cuda *c = user;
    struct aq_cuda_exec ex = {
        .stream = native, .sm = c->info.code_sm, .multiprocessors = c->info.multiprocessors};
    return c->module->kernels->copy_pieces(&ex, pieces, count);
}

void aq_cuda_close(struct aq_cuda *c)
{
    if (c->gpu)
        c->module->gpu->close(c->gpu);
    if (c->library)
        dlclose(c->library);
    *c = (struct aq_cuda){0};
}
