/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/info.c - `aquifer info`: what this build and this machine offer, and where each
 * limit comes from; or, of a model, how large it is and which machines hold it.  One JSON document
 * is built; the text form is read off it. */
#include "engine/commands/commands.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/paths.h"
#include "base/units.h"
#include "engine/build_info.h"
#include "engine/compute/backend.h"
#include "engine/compute/cuda.h"
#include "engine/machine/limits.h"
#include "engine/plan/sizes.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/kernels.h"
#include "offload/io.h"
#include "offload/numa.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what the machine says -------------------------------------------------------------- */

/* First line of a small file; "" when it cannot be read. */
static void first_line(const char *path, char *text, size_t bytes)
{
    text[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, bytes - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

/* The word in brackets of "always [madvise] never"; "unknown" when there is none. */
static void chosen_word(const char *path, char *text, size_t bytes)
{
    char line[256];
    first_line(path, line, sizeof(line));
    const char *open = strchr(line, '['), *close = open ? strchr(open, ']') : NULL;
    snprintf(text, bytes, "%.*s", close ? (int)(close - open - 1) : 7,
             close ? open + 1 : "unknown");
}

/* ---- the document ----------------------------------------------------------------------- */

static json_t *bytes_json(uint64_t bytes)
{
    return bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *backends_json(void)
{
    const char *where;
    struct aq_err why;
    bool visible = aq_device_nvidia_visible(NULL, &where);
    bool usable = aq_cuda_check(NULL, 0, &why) == 0;
    return json_pack("[{s:s, s:b}, {s:s, s:b, s:s?, s:b}]", "name", "cpu", "usable", 1, "name",
                     "cuda", "usable", usable, "reason", usable ? NULL : why.text,
                     "hardware_visible", visible);
}

static json_t *cpu_json(void)
{
    char model[256];
    struct aq_cpu_limits c;
    aq_limits_cpu(&c, NULL);
    aq_limits_cpu_model(model, sizeof(model), NULL);
    const char *why;
    const char *isa = aq_isa_name(aq_isa_auto(aq_isa_detect(), &why));
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:i, s:o}", "model", model, "isa", isa,
                     "isa_reason", why, "threads", (int)c.threads, "limited_by", c.limited_by,
                     "affinity", (int)c.affinity, "quota",
                     c.quota > 0 ? json_real(c.quota) : json_null());
}

static json_t *memory_json(void)
{
    struct aq_host_limits h;
    struct aq_err err;
    char enabled[32], defrag[32];
    chosen_word("/sys/kernel/mm/transparent_hugepage/enabled", enabled, sizeof(enabled));
    chosen_word("/sys/kernel/mm/transparent_hugepage/defrag", defrag, sizeof(defrag));
    json_t *huge = json_pack("{s:s, s:s}", "enabled", enabled, "defrag", defrag);
    if (aq_limits_host(&h, NULL, &err) < 0)
        return json_pack("{s:n, s:o, s:o}", "budget", "error", aq_json_string(err.text),
                         "transparent_huge_pages", huge);
    return json_pack(
        "{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "budget", bytes_json(h.budget),
        "limited_by", h.limited_by, "usable", bytes_json(h.usable), "total", bytes_json(h.total),
        "available", bytes_json(h.available), "cgroup_left", bytes_json(h.cgroup),
        "address_space_left", bytes_json(h.address_space), "data_left", bytes_json(h.data),
        "locked_limit", bytes_json(h.locked), "transparent_huge_pages", huge);
}

/* How `--numa auto` places memory without a device. */
static json_t *numa_json(void)
{
    char large[128];
    struct aq_numa_topology t;
    struct aq_cpu_limits c;
    struct aq_numa n;
    aq_numa_read(&t);
    aq_numa_decide(&n, &t, (struct aq_numa_choice){.mode = AQ_NUMA_AUTO}, -1);
    aq_limits_cpu(&c, NULL);
    aq_numa_part(&n, &t, c.threads);
    json_t *memory_nodes = json_array(), *cpu_nodes = json_array();
    for (int i = 0; i < AQ_NUMA_NODES_MAX; i++) {
        if (t.memory_nodes >> i & 1)
            aq_json_add(&memory_nodes, json_integer(i));
        if (t.cpu_nodes >> i & 1)
            aq_json_add(&cpu_nodes, json_integer(i));
    }
    return json_pack("{s:b, s:s?, s:o, s:o, s:s, s:s}", "usable", !t.reason, "reason", t.reason,
                     "memory_nodes", memory_nodes, "cpu_nodes", cpu_nodes, "placement",
                     aq_numa_describe(large, sizeof(large), &n.large), "why", n.why);
}

/* directory NULL: there is none, for the reason `why`.  NULL: no memory. */
static json_t *io_json(const char *directory, const char *why)
{
    struct aq_io_description engine;
    struct aq_disk_limits d;
    struct aq_err err;
    aq_io_describe(&engine);
    json_t *io =
        json_pack("{s:s, s:b, s:s?}", "engine", aq_io_kind_name(engine.kind), "uring_usable",
                  !engine.uring_reason, "uring_reason", engine.uring_reason);
    if (!directory) {
        aq_json_put(&io, "error", aq_json_string(why));
        return io;
    }
    char *existing = aq_path_existing(directory);
    aq_json_put(&io, "directory", aq_json_string(directory));
    json_t *disk = NULL;
    if (existing && aq_limits_disk(&d, existing, &err) == 0)
        disk = json_pack("{s:s, s:b, s:b, s:o, s:o, s:b, s:s?}", "file_system", d.file_system,
                         "in_memory", d.in_memory, "network", d.network, "free", bytes_json(d.free),
                         "budget", bytes_json(d.budget), "direct", d.direct, "direct_reason",
                         d.direct_reason);
    else if (existing)
        disk = json_pack("{s:o}", "error", aq_json_string(err.text));
    if (json_object_update_new(io, disk) < 0)
        aq_json_put(&io, "", NULL);
    free(existing);
    return io;
}

/* Bytes of the regular files in a directory; its subdirectories are not stores' own. */
static uint64_t directory_bytes(const char *path)
{
    uint64_t sum = 0;
    DIR *d = opendir(path);
    struct dirent *entry;
    struct stat st;
    while (d && (entry = readdir(d))) {
        if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_size;
    }
    if (d)
        closedir(d);
    return sum;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Packed stores: directories with a manifest. */
static json_t *cache_json(const char *directory)
{
    json_t *stores = json_array();
    struct dirent **entries = NULL;
    int count = scandir(directory, &entries, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX], manifest[PATH_MAX];
        int n = snprintf(path, sizeof(path), "%s/%s", directory, entries[i]->d_name);
        int m = snprintf(manifest, sizeof(manifest), "%s/%s/manifest.json", directory,
                         entries[i]->d_name);
        bool fits = n > 0 && m > 0 && (size_t)m < sizeof(manifest);
        if (entries[i]->d_name[0] != '.' && fits && access(manifest, F_OK) == 0)
            aq_json_add(&stores,
                        json_pack("{s:o, s:o, s:o}", "name", aq_json_string(entries[i]->d_name),
                                  "path", aq_json_string(path), "bytes",
                                  bytes_json(directory_bytes(path))));
        free(entries[i]);
    }
    free(entries);
    return json_pack("{s:o, s:o}", "directory", aq_json_string(directory), "stores", stores);
}

/* ---- the same as text ------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? json_string_value(value) : NULL;
}

static void print_size(const struct aquifer_hooks *hooks, const char *label, const json_t *object,
                       const char *key, const char *none)
{
    char amount[AQ_SIZE_TEXT_MAX];
    const json_t *value = json_object_get(object, key);
    const char *text =
        json_is_integer(value) ? aq_format_size(amount, (uint64_t)json_integer_value(value)) : none;
    if (text)
        aq_hooks_outputf(hooks, "  %-22s %s\n", label, text);
}

static void print_cpu(const struct aquifer_hooks *hooks, const json_t *cpu)
{
    const json_t *quota = json_object_get(cpu, "quota");
    aq_hooks_outputf(hooks, "cpu         %s\n", text_of(cpu, "model"));
    aq_hooks_outputf(hooks, "  %-22s %s (%s)\n", "instruction set", text_of(cpu, "isa"),
                     text_of(cpu, "isa_reason"));
    aq_hooks_outputf(hooks, "  %-22s %lld (%s: %lld CPUs", "threads",
                     (long long)json_integer_value(json_object_get(cpu, "threads")),
                     text_of(cpu, "limited_by"),
                     (long long)json_integer_value(json_object_get(cpu, "affinity")));
    if (json_is_real(quota))
        aq_hooks_outputf(hooks, ", cgroup quota %.2f", json_real_value(quota));
    aq_hooks_outputf(hooks, ")\n");
}

static void print_memory(const struct aquifer_hooks *hooks, const json_t *memory)
{
    const json_t *huge = json_object_get(memory, "transparent_huge_pages");
    if (text_of(memory, "error"))
        aq_hooks_outputf(hooks, "memory      %s\n", text_of(memory, "error"));
    else
        aq_hooks_outputf(hooks, "memory      limited by %s\n", text_of(memory, "limited_by"));
    print_size(hooks, "default --host-memory", memory, "budget", NULL);
    print_size(hooks, "MemAvailable", memory, "available", NULL);
    print_size(hooks, "MemTotal", memory, "total", NULL);
    print_size(hooks, "left in the cgroup", memory, "cgroup_left", "no limit");
    print_size(hooks, "left of RLIMIT_AS", memory, "address_space_left", "no limit");
    print_size(hooks, "left of RLIMIT_DATA", memory, "data_left", "no limit");
    print_size(hooks, "RLIMIT_MEMLOCK", memory, "locked_limit", "no limit");
    aq_hooks_outputf(hooks, "  %-22s %s, defrag %s\n", "transparent huge pages",
                     text_of(huge, "enabled"), text_of(huge, "defrag"));
}

static void print_numa(const struct aquifer_hooks *hooks, const json_t *numa)
{
    aq_hooks_outputf(hooks, "  %-22s %s: %s\n", "--numa auto", text_of(numa, "placement"),
                     text_of(numa, "why"));
}

static void print_io(const struct aquifer_hooks *hooks, const json_t *io)
{
    const char *uring = text_of(io, "uring_reason"), *direct = text_of(io, "direct_reason");
    aq_hooks_outputf(hooks, "io          io_uring %s%s%s\n", uring ? "cannot be used: " : "usable",
                     uring ? uring : "", uring ? "; a pool of threads takes its place" : "");
    if (text_of(io, "directory"))
        aq_hooks_outputf(hooks, "  %-22s %s\n", "cache directory", text_of(io, "directory"));
    if (text_of(io, "error")) {
        aq_hooks_outputf(hooks, "  %s\n", text_of(io, "error"));
        return;
    }
    aq_hooks_outputf(hooks, "  %-22s %s%s\n", "file system", text_of(io, "file_system"),
                     json_is_true(json_object_get(io, "in_memory")) ? ", in memory"
                     : json_is_true(json_object_get(io, "network")) ? ", on the network"
                                                                    : "");
    aq_hooks_outputf(hooks, "  %-22s %s%s\n", "O_DIRECT", direct ? "no: " : "yes",
                     direct ? direct : "");
    print_size(hooks, "free", io, "free", NULL);
}

static void print_backends(const struct aquifer_hooks *hooks, const json_t *backends)
{
    size_t i;
    const json_t *backend;
    json_array_foreach(backends, i, backend)
    {
        const char *reason = text_of(backend, "reason");
        bool visible = json_is_true(json_object_get(backend, "hardware_visible"));
        aq_hooks_outputf(hooks, "%-11s %s: %s%s%s\n", i ? "" : "backends", text_of(backend, "name"),
                         reason ? "cannot be used, " : "usable", reason ? reason : "",
                         visible ? " (an NVIDIA GPU is visible)" : "");
    }
}

static void print_cache(const struct aquifer_hooks *hooks, const json_t *cache)
{
    size_t i;
    const json_t *store, *stores = json_object_get(cache, "stores");
    aq_hooks_outputf(hooks, "cache       %s: %zu packed store%s\n", text_of(cache, "directory"),
                     json_array_size(stores), json_array_size(stores) == 1 ? "" : "s");
    json_array_foreach(stores, i, store)
        print_size(hooks, text_of(store, "name"), store, "bytes", NULL);
}

/* ---- of a model ------------------------------------------------------------------------- */

static int tell_sizes(const struct aq_options *o, const struct aquifer_hooks *hooks,
                      struct aq_err *reterr)
{
    struct aq_log log = aq_log_from_hooks(hooks);
    json_t *document;
    int rc = aq_plan_sizes(&document, o, &log, reterr);
    if (rc < 0)
        return rc;
    if (o->json)
        return aq_hooks_json(hooks, document, reterr);
    aq_plan_sizes_text(document, hooks);
    json_decref(document);
    return 0;
}

int aq_cmd_info(const struct aq_options *o, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    if (o->model || o->shape)
        return tell_sizes(o, hooks, reterr);
    struct aq_err why = {0};
    char *cache = aq_path_cache(o->cache_dir, &why);
    if (!cache && (o->cache || why.code == -ENOMEM))
        return aq_error(reterr, why.code, "%s", why.text);
    json_t *document = json_pack(
        "{s:i, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:{s:s, s:s}}", "schema", 1, "version",
        aq_build_version(), "commit", aq_build_commit(), "backends", backends_json(), "cpu",
        cpu_json(), "memory", memory_json(), "numa", numa_json(), "io", io_json(cache, why.text),
        "unicode", "characters", AQ_UNICODE_VERSION, "normalization", AQ_UNICODE_VERSION_NFC);
    if (document && o->cache)
        aq_json_put(&document, "cache", cache_json(cache));
    free(cache);
    if (!document)
        return aq_error_memory(reterr, "info");
    if (o->json)
        return aq_hooks_json(hooks, document, reterr);
    aq_hooks_outputf(hooks, "aquifer     %s\n", aquifer_version());
    print_backends(hooks, json_object_get(document, "backends"));
    print_cpu(hooks, json_object_get(document, "cpu"));
    print_memory(hooks, json_object_get(document, "memory"));
    print_numa(hooks, json_object_get(document, "numa"));
    print_io(hooks, json_object_get(document, "io"));
    aq_hooks_outputf(
        hooks,
        "tokenizers  tokenizer.json, tokenizer.model (SentencePiece's BPE), vocab.json "
        "and merges.txt; Unicode %s, NFC of Unicode %s\n",
        AQ_UNICODE_VERSION, AQ_UNICODE_VERSION_NFC);
    if (o->cache)
        print_cache(hooks, json_object_get(document, "cache"));
    json_decref(document);
    return 0;
}
