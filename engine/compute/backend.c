/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compute/backend.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Calls `match` for each entry of a directory until it says yes. */
static bool any_entry(const char *root, const char *directory,
                      bool (*match)(const char *path, const char *name))
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s%s", root ? root : "", directory);
    DIR *d = opendir(path);
    bool found = false;
    struct dirent *entry;
    while (d && !found && (entry = readdir(d)))
        found = entry->d_name[0] != '.' && match(path, entry->d_name);
    if (d)
        closedir(d);
    return found;
}

/* nvidia0, nvidia1, ...: not nvidiactl, which a driver leaves without any GPU. */
static bool is_device_node(const char *path, const char *name)
{
    (void)path;
    return strncmp(name, "nvidia", 6) == 0 && name[6] >= '0' && name[6] <= '9';
}

static bool is_any(const char *path, const char *name)
{
    (void)path;
    (void)name;
    return true;
}

static bool file_begins_with(const char *directory, const char *name, const char *file,
                             const char *begin)
{
    char path[PATH_MAX], text[32];
    int n = snprintf(path, sizeof(path), "%s/%s/%s", directory, name, file);
    int fd = n > 0 && (size_t)n < sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t count = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (count < 0)
        return false;
    text[count] = '\0';
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* Vendor 10de, class 03xx: a display or 3D controller. */
static bool is_pci_gpu(const char *path, const char *name)
{
    return file_begins_with(path, name, "vendor", "0x10de") &&
           file_begins_with(path, name, "class", "0x03");
}

bool aq_device_nvidia_visible(const char *root, const char **ret_where)
{
    if (any_entry(root, "/dev", is_device_node))
        *ret_where = "/dev/nvidia*";
    else if (any_entry(root, "/proc/driver/nvidia/gpus", is_any))
        *ret_where = "/proc/driver/nvidia/gpus";
    else if (any_entry(root, "/sys/bus/pci/devices", is_pci_gpu))
        *ret_where = "the PCI bus";
    else
        return false;
    return true;
}

bool aq_device_parse(struct aq_device_choice *ret, const char *text)
{
    enum { DIGITS_MAX = 9 };
    const char *number = strncmp(text, "cuda:", 5) == 0 ? text + 5 : "";
    size_t digits = strspn(number, "0123456789");
    if (strcmp(text, "auto") == 0)
        *ret = (struct aq_device_choice){.backend = AQ_BACKEND_ANY};
    else if (strcmp(text, "cpu") == 0)
        *ret = (struct aq_device_choice){.backend = AQ_BACKEND_CPU};
    else if (strcmp(text, "cuda") == 0)
        *ret = (struct aq_device_choice){.backend = AQ_BACKEND_CUDA};
    else if (digits > 0 && digits <= DIGITS_MAX && !number[digits])
        *ret = (struct aq_device_choice){AQ_BACKEND_CUDA, (uint32_t)strtoul(number, NULL, 10)};
    else
        return false;
    return true;
}

int aq_device_choose(int *ret_gpu, struct aq_device_choice device, const char *root,
                     const char *module, struct aq_err *reterr)
{
    const char *where;
    struct aq_err why;
    *ret_gpu = -1;
    if (device.backend == AQ_BACKEND_CPU)
        return 0;
    if (device.backend == AQ_BACKEND_CUDA) {
        if (aq_cuda_check(module, device.gpu, &why) < 0)
            return aq_error(reterr, -ENODEV, "--device cuda:%u cannot be used: %s", device.gpu,
                            why.text);
        *ret_gpu = (int)device.gpu;
        return 0;
    }
    if (!aq_device_nvidia_visible(root, &where))
        return 0;
    if (aq_cuda_check(module, 0, &why) < 0)
        return aq_error(reterr, -ENODEV,
                        "an NVIDIA GPU is visible (%s) but cannot be used: %s; --device cpu says "
                        "that the CPU is meant",
                        where, why.text);
    *ret_gpu = 0;
    return 0;
}

int aq_device_open_gpu(struct aq_cuda *ret, struct aq_device_choice device, struct aq_err *reterr)
{
    int index;
    int rc = aq_device_choose(&index, device, NULL, NULL, reterr);
    *ret = (struct aq_cuda){0};
    return rc < 0 || index < 0 ? rc : aq_cuda_open(ret, NULL, (uint32_t)index, reterr);
}
