/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/torchzip.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { INDEX_BYTES_MAX = 64 << 20 };

struct weight_format {
    const char *name, *single, *index;
    int (*list)(struct aq_tensor_list *list, const struct aq_tensor_file *file, uint32_t file_index,
                uint64_t *ret_header_hash, struct aq_err *reterr);
};

static const struct weight_format formats[] = {
    {"safetensors", "model.safetensors", "model.safetensors.index.json", aq_safetensors_list},
    {"pytorch", "pytorch_model.bin", "pytorch_model.bin.index.json", aq_torchzip_list},
};

struct shard {
    struct aq_tensor_file file; /* fd -1 until opened; owns file.name */
    uint64_t header_hash;
};

struct aq_checkpoint {
    char *dir;
    const struct weight_format *format;
    struct shard *shards; /* in the order of names */
    uint32_t shard_count;
    json_t *weight_map; /* tensor -> shard, while opening; NULL with a single file */
    struct aq_tensor_list list;
    uint64_t hash, tensor_bytes;
};

/* ---- complaints: all of them in one sentence ---- */

struct complaint {
    uint32_t shard;
    char why[512];
};

struct complaints {
    struct complaint *item; /* in the order of shards; room for one a shard */
    uint32_t count;
    int code; /* of the first one that is not a missing file, else -ENOENT */
};

static void complain(struct complaints *all, uint32_t shard, int code, const char *why)
{
    struct complaint *c = &all->item[all->count++];
    c->shard = shard;
    snprintf(c->why, sizeof(c->why), "%.511s", why);
    if (all->code == 0 || all->code == -ENOENT)
        all->code = code;
}

/* Complaints from `first` on that say the same of neighbouring files. */
static uint32_t run_length(const struct complaints *all, uint32_t first)
{
    uint32_t n = 1;
    while (first + n < all->count && all->item[first + n].shard == all->item[first].shard + n &&
           strcmp(all->item[first + n].why, all->item[first].why) == 0)
        n++;
    return n;
}

/* Writes the complaints, runs of three or more as "first to last (n files)" when `runs`; returns
 * how many did not fit. */
static uint32_t write_complaints(const struct aq_checkpoint *c, const struct complaints *all,
                                 bool runs, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0, n; i < all->count; i += n) {
        char name[80], more[128] = "", last[80];
        const char *file = c->shards[all->item[i].shard].file.name;
        aq_quote(name, sizeof(name), file, strlen(file));
        n = runs ? run_length(all, i) : 1;
        if (n < 3) {
            n = 1;
        } else {
            file = c->shards[all->item[i + n - 1].shard].file.name;
            snprintf(more, sizeof(more), " to %s (%u files)",
                     aq_quote(last, sizeof(last), file, strlen(file)), n);
        }
        int length = snprintf(text + at, size - at, "%s%s%s: %s", i ? "; " : "", name, more,
                              all->item[i].why);
        if (length < 0 || (size_t)length >= size - at) {
            text[at] = '\0';
            return all->count - i;
        }
        at += (size_t)length;
    }
    return 0;
}

/* Unfinished downloads that lie about, in the places where the hub's tools leave them. */
static unsigned count_unfinished(const char *dir)
{
    static const char *const places[] = {"", "/.cache/huggingface/download", "/../../blobs"};
    unsigned count = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(places); i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof(path), "%s%s", dir, places[i]) >= (int)sizeof(path))
            continue;
        DIR *d = opendir(path);
        if (!d)
            continue;
        for (const struct dirent *e; (e = readdir(d));) {
            const char *dot = strrchr(e->d_name, '.');
            count += dot && (strcmp(dot, ".incomplete") == 0 || strcmp(dot, ".aria2") == 0 ||
                             strcmp(dot, ".part") == 0);
        }
        closedir(d);
    }
    return count;
}

static int raise_complaints(const struct aq_checkpoint *c, const struct complaints *all,
                            struct aq_err *reterr)
{
    char text[760], more[32] = "", unfinished[48] = "";
    uint32_t left = write_complaints(c, all, false, text, sizeof(text));
    if (left)
        left = write_complaints(c, all, true, text, sizeof(text));
    if (left)
        snprintf(more, sizeof(more), "; and %u more", left);
    unsigned partial = count_unfinished(c->dir);
    if (partial)
        snprintf(unfinished, sizeof(unfinished), " (%u unfinished download%s there)", partial,
                 partial == 1 ? " lies" : "s lie");
    return aq_error(reterr, all->code,
                    "checkpoint '%.120s': %u of %u weight files cannot be used: %s%s%s", c->dir,
                    all->count, c->shard_count, text, more, unfinished);
}

/* ---- which files ---- */

static int join(char path[PATH_MAX], const char *dir, const char *name, struct aq_err *reterr)
{
    if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return aq_error(reterr, -ENOENT, "'%.300s...': the path is too long", dir);
    return 0;
}

static bool exists(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    /* lstat: a link into the hub's cache whose blob is missing is a file that is missing. */
    return join(path, dir, name, NULL) == 0 && lstat(path, &st) == 0;
}

static bool is_gguf(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".gguf") == 0;
}

/* Weights in formats this engine does not read, to say so instead of "nothing found": the name of
 * such a file, "" where there is none. */
static const char *foreign_weights(const char *dir, char name[NAME_MAX + 1])
{
    static const char *const names[] = {
        "tf_model.h5",         "flax_model.msgpack",       "model.onnx",
        "consolidated.00.pth", "consolidated.safetensors", "adapter_model.safetensors",
        "adapter_model.bin"};
    name[0] = '\0';
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++)
        if (exists(dir, names[i]))
            return names[i];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && !name[0] && (e = readdir(d));)
        if (is_gguf(e->d_name))
            snprintf(name, NAME_MAX + 1, "%s", e->d_name);
    if (d)
        closedir(d);
    return name;
}

/* What to take instead of such a file; "" where nothing better is known. */
static const char *cure_of(const char *foreign)
{
    if (is_gguf(foreign))
        return ": take the checkpoint that it was made from";
    if (strncmp(foreign, "adapter_model.", 14) == 0)
        return ": an adapter has to be merged into its model first (peft's merge_and_unload)";
    return "";
}

static int no_weights(const char *dir, struct aq_err *reterr)
{
    char found[256] = "", name[NAME_MAX + 1], quoted[96];
    const char *foreign = foreign_weights(dir, name);
    unsigned partial = count_unfinished(dir);
    if (*foreign)
        snprintf(found, sizeof(found), "; found %s, which is not read%s",
                 aq_quote(quoted, sizeof(quoted), foreign, strlen(foreign)), cure_of(foreign));
    else if (partial)
        snprintf(found, sizeof(found), "; found %u unfinished download%s", partial,
                 partial == 1 ? "" : "s");
    return aq_error(
        reterr, -ENOENT,
        "checkpoint '%.300s': expected model.safetensors, pytorch_model.bin or the index "
        "of either%s",
        dir, found);
}

static bool is_plain_name(const char *name)
{
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/') &&
           strlen(name) <= NAME_MAX;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each of the names once, in order; `names` is sorted.  Files are opened later. */
static int add_shards(struct aq_checkpoint *c, const char **names, size_t count,
                      struct aq_err *reterr)
{
    qsort(names, count, sizeof(*names), compare_names);
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(names[distinct - 1], names[i]) != 0)
            names[distinct++] = names[i];
    if (distinct > AQ_CHECKPOINT_SHARDS_MAX)
        return aq_error(reterr, -ENOEXEC,
                        "checkpoint '%.300s': expected at most %d weight files, found %zu", c->dir,
                        AQ_CHECKPOINT_SHARDS_MAX, distinct);
    c->shards = calloc(distinct, sizeof(*c->shards));
    if (!c->shards)
        return aq_error_memory(reterr, "list of %zu weight files", distinct);
    for (size_t i = 0; i < distinct; i++) {
        c->shards[i].file = (struct aq_tensor_file){.fd = -1, .name = strdup(names[i])};
        if (!c->shards[i].file.name)
            return aq_error_memory(reterr, "name of a weight file");
        c->shard_count++;
    }
    return 0;
}

/* The shards of an index: {"metadata": ..., "weight_map": {tensor: file}}.  metadata.total_size is
 * not used: it is a float in some files, absent in others, and wrong in a few. */
static int read_index(struct aq_checkpoint *c, const char *index, struct aq_err *reterr)
{
    char path[PATH_MAX];
    json_t *root;
    int rc = join(path, c->dir, index, reterr);
    if (rc == 0)
        rc = aq_json_read_file(&root, path, INDEX_BYTES_MAX, reterr);
    if (rc < 0)
        return rc;
    json_t *map = json_object_get(root, "weight_map");
    size_t count = json_object_size(map), i = 0;
    const char **names = calloc(count + 1, sizeof(*names));
    if (!names)
        rc = aq_error_memory(reterr, "'%s': %zu tensors", path, count);
    else if (!json_is_object(map) || count == 0)
        rc = aq_error(reterr, -ENOEXEC, "'%s': 'weight_map': expected tensors and their files",
                      path);
    const char *tensor;
    json_t *file;
    json_object_foreach(map, tensor, file)
    {
        char quoted[128];
        if (rc < 0)
            break;
        const char *name = json_string_value(file);
        if (!name || strlen(name) != json_string_length(file) || !is_plain_name(name))
            rc = aq_error(reterr, -ENOEXEC,
                          "'%s': tensor '%s': expected the name of a file in this directory", path,
                          aq_quote(quoted, sizeof(quoted), tensor, strlen(tensor)));
        else
            names[i++] = name;
    }
    if (rc == 0)
        rc = add_shards(c, names, i, reterr);
    if (rc == 0)
        c->weight_map = json_incref(map);
    free(names);
    json_decref(root);
    return rc;
}

static int choose_files(struct aq_checkpoint *c, struct aq_err *reterr)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        c->format = &formats[i];
        if (exists(c->dir, formats[i].single))
            return add_shards(c, (const char *[1]){formats[i].single}, 1, reterr);
        if (exists(c->dir, formats[i].index))
            return read_index(c, formats[i].index, reterr);
    }
    return no_weights(c->dir, reterr);
}

/* ---- opening the files ---- */

/* The kind of a file that is no weight file at all; NULL when it may be one. */
static const char *stub_kind(const struct aq_tensor_file *f)
{
    char head[64] = "";
    size_t n = aq_min_u64(f->bytes, sizeof(head) - 1);
    if (n == 0)
        return "is empty";
    if (aq_tensor_file_pread(f, head, n, 0, NULL) < 0)
        return NULL;
    if (strncmp(head, "version https://git-lfs", 23) == 0)
        return "is a git-LFS pointer, not the file itself (run git lfs pull)";
    if (strncasecmp(head, "<!doctype", 9) == 0 || strncasecmp(head, "<html", 5) == 0)
        return "is a web page, not weights";
    return NULL;
}

/* Opens a regular file; *ret_why says what is wrong otherwise. */
static int open_file(const char *path, struct aq_tensor_file *f, const char **ret_why)
{
    struct stat st;
    *ret_why = NULL;
    f->fd = aq_file_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); /* a fifo must not block */
    if (f->fd < 0) {
        int code = f->fd;
        *ret_why = strerror(-code);
        if (code == -ENOENT)
            *ret_why = lstat(path, &st) == 0 ? "is a link to a file that is missing" : "is missing";
        return code == -ENOENT || code == -EIO ? code : -ENOEXEC;
    }
    if (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        *ret_why = "is not a regular file";
        return -ENOEXEC;
    }
    f->bytes = (uint64_t)st.st_size;
    *ret_why = stub_kind(f);
    return *ret_why ? -ENOEXEC : 0;
}

static void open_shard(struct aq_checkpoint *c, uint32_t index, struct complaints *all)
{
    struct shard *s = &c->shards[index];
    char path[PATH_MAX];
    const char *why = "the path is too long";
    struct aq_err err = {0};
    int rc = join(path, c->dir, s->file.name, NULL);
    if (rc == 0)
        rc = open_file(path, &s->file, &why);
    if (rc == 0) {
        why = err.text;
        rc = c->format->list(&c->list, &s->file, index, &s->header_hash, &err);
    }
    if (rc < 0)
        complain(all, index, rc, why);
}

/* The index decides which file a tensor comes from, when it names the tensor at all. */
static bool is_indexed_here(const struct aq_tensor_info *t, void *user)
{
    const struct aq_checkpoint *c = user;
    const char *want = json_string_value(json_object_get(c->weight_map, t->name));
    return !want || strcmp(want, c->shards[t->file].file.name) == 0;
}

/* Every tensor of the index must have been found in its file. */
static int check_index(struct aq_checkpoint *c, struct complaints *all, struct aq_err *reterr)
{
    struct absent {
        const char *first;
        unsigned count;
    } *absent = calloc(c->shard_count, sizeof(*absent));
    if (!absent)
        return aq_error_memory(reterr, "list of %u weight files", c->shard_count);
    const char *name;
    json_t *file;
    json_object_foreach(c->weight_map, name, file)
    {
        uint32_t i = 0;
        if (aq_tensor_list_find(&c->list, name))
            continue;
        while (strcmp(c->shards[i].file.name, json_string_value(file)) != 0)
            i++;
        if (absent[i].count++ == 0)
            absent[i].first = name;
    }
    for (uint32_t i = 0; i < c->shard_count; i++) {
        char why[256], quoted[128];
        if (!absent[i].count)
            continue;
        snprintf(why, sizeof(why),
                 "lacks %u of the tensors that the index puts there, such as '%s'", absent[i].count,
                 aq_quote(quoted, sizeof(quoted), absent[i].first, strlen(absent[i].first)));
        complain(all, i, -ENOEXEC, why);
    }
    free(absent);
    return 0;
}

static int open_shards(struct aq_checkpoint *c, struct complaints *all, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < c->shard_count; i++)
        open_shard(c, i, all);
    if (all->count)
        return raise_complaints(c, all, reterr);
    if (c->weight_map)
        aq_tensor_list_keep(&c->list, is_indexed_here, c);
    int rc = aq_tensor_list_sort(&c->list, 0, reterr);
    if (rc < 0) {
        aq_error_prefix(reterr, "checkpoint '%.300s'", c->dir);
        return rc;
    }
    rc = check_index(c, all, reterr);
    return rc == 0 && all->count ? raise_complaints(c, all, reterr) : rc;
}

static int open_files(struct aq_checkpoint *c, struct aq_err *reterr)
{
    struct complaints all = {.item = calloc(c->shard_count, sizeof(*all.item))};
    if (!all.item)
        return aq_error_memory(reterr, "list of %u weight files", c->shard_count);
    int rc = open_shards(c, &all, reterr);
    free(all.item);
    return rc;
}

/* ---- identity ---- */

enum { SAMPLE_BYTES = 4096, SAMPLES_MAX = 16, SAMPLES_ALL = 1024 };

/* Evenly spaced pieces of a file, its first and last bytes among them. */
static int hash_samples(XXH3_state_t *hash, const struct aq_tensor_file *f, uint64_t samples,
                        struct aq_err *reterr)
{
    uint8_t data[SAMPLE_BYTES];
    size_t n = aq_min_u64(f->bytes, SAMPLE_BYTES);
    for (uint64_t i = 0; i < samples; i++) {
        uint64_t offset = (f->bytes - n) / (samples - 1) * i;
        int rc = aq_tensor_file_pread(f, data, n, i + 1 < samples ? offset : f->bytes - n, reterr);
        if (rc < 0)
            return rc;
        XXH3_64bits_update(hash, data, n);
    }
    return 0;
}

static int hash_config(XXH3_state_t *hash, const char *dir, struct aq_err *reterr)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    int rc = join(path, dir, "config.json", reterr);
    if (rc < 0 || access(path, F_OK) != 0)
        return rc;
    rc = aq_read_file(&text, &bytes, path, AQ_MIB, reterr);
    if (rc < 0)
        return rc;
    XXH3_64bits_update(hash, text, bytes);
    free(text);
    return 0;
}

static int compute_hash(struct aq_checkpoint *c, struct aq_err *reterr)
{
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return aq_error_memory(reterr, "hash state");
    XXH3_64bits_reset(hash);
    /* Fewer samples a file when there are very many files: seeks are slow on some disks. */
    uint64_t samples = aq_max_u64(2, aq_min_u64(SAMPLES_MAX, SAMPLES_ALL / c->shard_count));
    int rc = hash_config(hash, c->dir, reterr);
    for (uint32_t i = 0; i < c->shard_count && rc == 0; i++) {
        const struct shard *s = &c->shards[i];
        uint64_t says[2] = {s->file.bytes, s->header_hash};
        XXH3_64bits_update(hash, s->file.name, strlen(s->file.name) + 1);
        XXH3_64bits_update(hash, says, sizeof(says));
        rc = hash_samples(hash, &s->file, samples, reterr);
    }
    c->hash = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return rc;
}

/* ---- the checkpoint ---- */

int aq_checkpoint_open(struct aq_checkpoint **ret, const char *dir, struct aq_err *reterr)
{
    assert(ret && dir);
    struct stat st;
    if (stat(dir, &st) < 0)
        return aq_error(reterr, -ENOENT, "checkpoint '%.300s': %s", dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return aq_error(reterr, -ENOEXEC, "checkpoint '%.300s': expected a directory", dir);
    struct aq_checkpoint *c = calloc(1, sizeof(*c));
    if (!c)
        return aq_error_memory(reterr, "checkpoint '%.300s'", dir);
    int rc = 0;
    c->dir = strdup(dir);
    if (!c->dir)
        rc = aq_error_memory(reterr, "checkpoint '%.300s'", dir);
    if (rc == 0)
        rc = choose_files(c, reterr);
    if (rc == 0)
        rc = open_files(c, reterr);
    if (rc == 0)
        rc = compute_hash(c, reterr);
    json_decref(c->weight_map);
    c->weight_map = NULL;
    if (rc < 0) {
        aq_checkpoint_close(c);
        return rc;
    }
    for (size_t i = 0; i < c->list.count; i++) /* repeating strides can claim any size: saturate */
        if (aq_add_overflows(c->tensor_bytes, c->list.tensor[i].bytes, &c->tensor_bytes))
            c->tensor_bytes = UINT64_MAX;
    *ret = c;
    return 0;
}

void aq_checkpoint_close(struct aq_checkpoint *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->shard_count; i++) {
        if (c->shards[i].file.fd >= 0)
            close(c->shards[i].file.fd);
        free((char *)c->shards[i].file.name);
    }
    aq_tensor_list_clear(&c->list);
    json_decref(c->weight_map);
    free(c->shards);
    free(c->dir);
    free(c);
}

const char *aq_checkpoint_format(const struct aq_checkpoint *c)
{
    return c->format->name;
}

size_t aq_checkpoint_count(const struct aq_checkpoint *c)
{
    return c->list.count;
}

const struct aq_tensor_info *aq_checkpoint_tensor(const struct aq_checkpoint *c, size_t index)
{
    assert(index < c->list.count);
    return &c->list.tensor[index];
}

const struct aq_tensor_info *aq_checkpoint_find(const struct aq_checkpoint *c, const char *name)
{
    return aq_tensor_list_find(&c->list, name);
}

const char *aq_checkpoint_file(const struct aq_checkpoint *c, const struct aq_tensor_info *t)
{
    return c->shards[t->file].file.name;
}

int aq_checkpoint_read(const struct aq_checkpoint *c, const struct aq_tensor_info *t,
                       uint64_t first_row, uint64_t rows, void *dst, struct aq_err *reterr)
{
    return aq_tensor_read(&c->shards[t->file].file, t, first_row, rows, dst, reterr);
}

uint64_t aq_checkpoint_hash(const struct aq_checkpoint *c)
{
    return c->hash;
}

uint64_t aq_checkpoint_bytes(const struct aq_checkpoint *c)
{
    return c->tensor_bytes;
}

/* ---- the local hub cache: huggingface_hub, "Understand caching" ---- */

/* "name" or "org/name", as the hub allows them. */
static bool is_repository(const char *model)
{
    unsigned slashes = 0;
    for (const char *p = model; *p; p++) {
        bool first = p == model || p[-1] == '/';
        bool word =
            (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');
        if (*p == '/' && !first && p[1])
            slashes++;
        else if (!word && *p != '_' && (first || (*p != '-' && *p != '.')))
            return false;
    }
    return *model && slashes <= 1;
}

static bool cache_dir(char path[PATH_MAX])
{
    static const struct {
        const char *variable, *tail;
    } table[] = {
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        const char *value = getenv(table[i].variable);
        if (value && *value)
            return snprintf(path, PATH_MAX, "%s%s", value, table[i].tail) < PATH_MAX;
    }
    return false;
}

/* The snapshot that refs/main of a cached repository names; false when there is none. */
static bool find_snapshot(const char *repository, char *path, size_t path_bytes)
{
    char ref_path[PATH_MAX], *commit;
    size_t bytes;
    struct stat st;
    if (join(ref_path, repository, "refs/main", NULL) < 0 ||
        aq_read_file(&commit, &bytes, ref_path, 256, NULL) < 0)
        return false;
    commit[strcspn(commit, " \r\n")] = '\0';
    bool ok = is_plain_name(commit) &&
              snprintf(path, path_bytes, "%s/snapshots/%s", repository, commit) < (int)path_bytes &&
              stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    free(commit);
    return ok;
}

/* A directory without config.json whose weights are of a kind that is not read is no model
 * directory at all. */
static int check_kind(const char *dir, struct aq_err *reterr)
{
    char name[NAME_MAX + 1], quoted[96];
    const char *foreign = exists(dir, "config.json") ? "" : foreign_weights(dir, name);
    return !*foreign ? 0
                     : aq_error(reterr, -ENOENT,
                                "model '%.300s': expected config.json and safetensors or .bin "
                                "files, found %s, which is not read%s",
                                dir, aq_quote(quoted, sizeof(quoted), foreign, strlen(foreign)),
                                cure_of(foreign));
}

int aq_checkpoint_resolve(const char *model, char *path, size_t path_bytes, struct aq_err *reterr)
{
    assert(model && path);
    struct stat st;
    if (stat(model, &st) == 0) {
        if (strlen(model) >= path_bytes)
            return aq_error(reterr, -ENOENT, "'%.300s...': the path is too long", model);
        if (!S_ISDIR(st.st_mode))
            return aq_error(reterr, -ENOENT, "model '%.300s': expected a directory, found a file%s",
                            model, is_gguf(model) ? cure_of(model) : "");
        int rc = check_kind(model, reterr);
        if (rc == 0)
            memcpy(path, model, strlen(model) + 1);
        return rc;
    }
    char quoted[256], cache[PATH_MAX], repository[PATH_MAX];
    aq_quote(quoted, sizeof(quoted), model, strlen(model));
    if (!is_repository(model))
        return aq_error(reterr, -ENOENT, "model '%s': no such directory", quoted);
    if (!cache_dir(cache))
        return aq_error(reterr, -ENOENT,
                        "model '%s': no such directory, and no Hugging Face cache to look it up in "
                        "(HF_HOME and HOME are not set)",
                        quoted);
    const char *slash = strchr(model, '/');
    int org = slash ? (int)(slash - model) : 0;
    int n = snprintf(repository, sizeof(repository), "%s/models--%.*s%s%s", cache, org, model,
                     slash ? "--" : "", slash ? slash + 1 : model);
    if (n < (int)sizeof(repository) && find_snapshot(repository, path, path_bytes))
        return 0;
    return aq_error(reterr, -ENOENT,
                    "model '%s': no such directory, and not in the Hugging Face cache '%.200s'; "
                    "download it with: hf download %s%s%s",
                    quoted, cache, slash ? "" : "OWNER/", quoted,
                    slash ? "" : "; --shape takes a shape by its name, without weights");
}
