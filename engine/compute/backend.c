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

/* N of "cuda:N"; 0 of "cuda". */
static uint32_t number_of(const char *device)
{
    return device[4] == ':' ? (uint32_t)strtoul(device + 5, NULL, 10) : 0;
}

int aq_device_choose(int *ret_gpu, const char *device, const char *root, const char *module,
                     struct aq_err *reterr)
{
    const char *where;
    struct aq_err why;
    *ret_gpu = -1;
    if (device && strcmp(device, "cpu") == 0)
        return 0;
    if (device && strcmp(device, "auto") != 0) {
        uint32_t index = number_of(device);
        if (aq_cuda_check(module, index, &why) < 0)
            return aq_error(reterr, -ENODEV, "--device %s cannot be used: %s", device, why.text);
        *ret_gpu = (int)index;
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

int aq_device_open_gpu(struct aq_cuda *ret, const char *device, struct aq_err *reterr)
{
    int index;
    int rc = aq_device_choose(&index, device, NULL, NULL, reterr);
    *ret = (struct aq_cuda){0};
    return rc < 0 || index < 0 ? rc : aq_cuda_open(ret, NULL, (uint32_t)index, reterr);
}
