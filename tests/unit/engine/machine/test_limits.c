/* SPDX-License-Identifier: Apache-2.0
 * Limits read from made-up /proc and /sys trees. */
#include "base/types.h"
#include "engine/compute/backend.h"
#include "engine/machine/limits.h"
#include "tests/choices.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tree {
    char root[64];
};

static void put(const struct tree *t, const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", t->root, path);
    for (char *slash = strchr(full + strlen(t->root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static struct tree open_tree(void)
{
    struct tree t = {"/tmp/aq-limits-XXXXXX"};
    assert_non_null(mkdtemp(t.root));
    put(&t, "/proc/meminfo",
        "MemTotal:       104857600 kB\nMemFree:  1 kB\nMemAvailable:   83886080 kB\n");
    put(&t, "/proc/self/status", "Name:\tx\nVmSize:\t  1048576 kB\nVmData:\t   524288 kB\n");
    put(&t, "/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             unlimited            unlimited            bytes     \n"
        "Max locked memory         8388608              8388608              bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n");
    return t;
}

static void close_tree(struct tree *t)
{
    temp_remove(t->root);
}

static struct aq_host_limits limits_of(const struct tree *t)
{
    struct aq_host_limits h;
    struct aq_err err = {0};
    if (aq_limits_host(&h, t->root, &err) < 0)
        fail_msg("%s", err.text);
    return h;
}

/* A unified hierarchy with the process in /a/b. */
static void put_v2(const struct tree *t)
{
    put(t, "/proc/self/cgroup", "0::/a/b\n");
    put(t, "/proc/self/mountinfo",
        "25 1 0:22 / /proc rw - proc proc rw\n"
        "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put(t, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    put(t, "/sys/fs/cgroup/a/b/memory.current", "1000\n");
}

static void without_limits_available_memory_counts(void **state)
{
    struct tree t = open_tree();
    struct aq_host_limits h = limits_of(&t);
    assert_string_equal(h.limited_by, "MemAvailable");
    assert_int_equal(h.total, 100 * AQ_GIB);
    assert_int_equal(h.usable, 80 * AQ_GIB);
    assert_int_equal(h.budget, 76 * AQ_GIB); /* 5 % is more than 2 GiB */
    assert_true(h.cgroup == UINT64_MAX && h.address_space == UINT64_MAX && h.data == UINT64_MAX);
    assert_int_equal(h.locked, 8 * AQ_MIB);
    close_tree(&t);
}

static void small_machines_keep_two_gib_or_three_quarters(void **state)
{
    struct tree t = open_tree();
    put(&t, "/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
    assert_int_equal(limits_of(&t).budget, 6 * AQ_GIB);
    put(&t, "/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n");
    assert_int_equal(limits_of(&t).budget, AQ_GIB / 4);
    close_tree(&t);
}

static void the_tightest_level_of_a_v2_hierarchy_binds(void **state)
{
    struct tree t = open_tree();
    put_v2(&t);
    put(&t, "/sys/fs/cgroup/a/memory.max", "21474836480\n");     /* 20 GiB */
    put(&t, "/sys/fs/cgroup/a/memory.current", "10737418240\n"); /* 10 GiB */
    put(&t, "/sys/fs/cgroup/a/memory.stat",
        "anon 1\nfile 99\ninactive_file 3221225472\nactive_file 1073741824\n"); /* 4 GiB */
    struct aq_host_limits h = limits_of(&t);
    assert_string_equal(h.limited_by, "cgroup");
    assert_int_equal(h.cgroup, 14 * AQ_GIB);
    assert_int_equal(h.budget, 12 * AQ_GIB);
    close_tree(&t);
}

static void the_high_mark_counts_like_a_limit(void **state)
{
    struct tree t = open_tree();
    put_v2(&t);
    put(&t, "/sys/fs/cgroup/a/b/memory.high", "4294967296\n");
    put(&t, "/sys/fs/cgroup/a/b/memory.current", "1073741824\n");
    assert_int_equal(limits_of(&t).cgroup, 3 * AQ_GIB);
    close_tree(&t);
}

static void use_above_the_limit_leaves_nothing(void **state)
{
    struct tree t = open_tree();
    put_v2(&t);
    put(&t, "/sys/fs/cgroup/a/b/memory.max", "1000\n");
    put(&t, "/sys/fs/cgroup/a/b/memory.current", "2000\n");
    assert_int_equal(limits_of(&t).budget, 0);
    close_tree(&t);
}

static void v1_limits_are_read_where_the_container_mounts_them(void **state)
{
    struct tree t = open_tree();
    put(&t, "/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n");
    put(&t, "/proc/self/mountinfo",
        "40 30 0:30 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "41 30 0:31 /docker/x /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
    put(&t, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "8589934592\n");
    put(&t, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    put(&t, "/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
    put(&t, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    put(&t, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    struct aq_host_limits h = limits_of(&t);
    assert_string_equal(h.limited_by, "cgroup");
    assert_int_equal(h.cgroup, 6 * AQ_GIB);
    struct aq_cpu_limits c;
    aq_limits_cpu(&c, t.root);
    assert_true(c.quota == 1.5);
    close_tree(&t);
}

static void the_v1_number_for_no_limit_is_none(void **state)
{
    struct tree t = open_tree();
    put(&t, "/proc/self/cgroup", "4:memory:/\n");
    put(&t, "/proc/self/mountinfo",
        "40 30 0:30 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put(&t, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(&t, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    assert_true(limits_of(&t).cgroup == UINT64_MAX);
    close_tree(&t);
}

static void resource_limits_count_what_is_already_used(void **state)
{
    struct tree t = open_tree();
    put(&t, "/proc/self/limits",
        "Max data size             unlimited            unlimited            bytes     \n"
        "Max address space         11811160064          unlimited            bytes     \n");
    struct aq_host_limits h = limits_of(&t);
    assert_string_equal(h.limited_by, "RLIMIT_AS");
    assert_int_equal(h.usable, 10 * AQ_GIB); /* 11 GiB - VmSize */
    put(&t, "/proc/self/limits",
        "Max data size             1610612736           unlimited            bytes     \n"
        "Max address space         11811160064          unlimited            bytes     \n");
    h = limits_of(&t);
    assert_string_equal(h.limited_by, "RLIMIT_DATA");
    assert_int_equal(h.usable, AQ_GIB); /* 1.5 GiB - VmData */
    close_tree(&t);
}

static void without_meminfo_the_budget_must_be_given(void **state)
{
    struct tree t = open_tree();
    struct aq_host_limits h;
    struct aq_err err = {0};
    put(&t, "/proc/meminfo", "MemFree: 3 kB\n");
    assert_int_equal(aq_limits_host(&h, t.root, &err), -EIO);
    assert_non_null(strstr(err.text, "--host-memory"));
    close_tree(&t);
}

static void threads_are_affinity_or_quota_rounded_up(void **state)
{
    struct tree t = open_tree();
    struct aq_cpu_limits c;
    aq_limits_cpu(&c, t.root);
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    assert_int_equal(c.threads, CPU_COUNT(&set));
    assert_string_equal(c.limited_by, "affinity");
    put_v2(&t);
    put(&t, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put(&t, "/sys/fs/cgroup/a/cpu.max", "30000 100000\n");
    aq_limits_cpu(&c, t.root);
    assert_int_equal(c.threads, 1);
    assert_true(c.quota > 0.29 && c.quota < 0.31);
    close_tree(&t);
}

static void the_real_machine_has_limits(void **state)
{
    struct aq_host_limits h;
    struct aq_err err = {0};
    if (aq_limits_host(&h, NULL, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(h.budget < h.usable && h.usable <= h.available && h.available <= h.total);
}

static void a_directory_has_a_file_system_and_room(void **state)
{
    struct tree t = open_tree();
    struct aq_disk_limits d;
    struct aq_err err = {0};
    assert_int_equal(aq_limits_disk(&d, t.root, &err), 0);
    assert_true(d.total >= d.free && d.free >= d.budget);
    assert_true(d.direct == !d.direct_reason);
    assert_int_equal(aq_limits_disk(&d, "/proc", &err), 0);
    assert_string_equal(d.file_system, "unknown"); /* and no file can be made there */
    assert_false(d.direct);
    assert_int_equal(aq_limits_disk(&d, "/nonexistent", &err), -ENOENT);
    close_tree(&t);
}

static void a_visible_gpu_is_not_left_idle_unasked(void **state)
{
    struct tree t = open_tree();
    struct aq_err err = {0};
    const char *where = NULL;
    assert_false(aq_device_nvidia_visible(t.root, &where));
    int gpu = 7;
    assert_int_equal(aq_device_choose(&gpu, computed_on("auto"), t.root, NULL, &err), 0);
    assert_int_equal(gpu, -1);
    put(&t, "/dev/nvidiactl", "");
    assert_false(aq_device_nvidia_visible(t.root, &where));
    put(&t, "/sys/bus/pci/devices/0000:00:01.0/vendor", "0x10de\n");
    put(&t, "/sys/bus/pci/devices/0000:00:01.0/class", "0x040300\n"); /* its sound half */
    assert_false(aq_device_nvidia_visible(t.root, &where));
    put(&t, "/sys/bus/pci/devices/0000:00:01.0/class", "0x030200\n");
    assert_true(aq_device_nvidia_visible(t.root, &where));
    assert_int_equal(aq_device_choose(&gpu, computed_on("auto"), t.root, NULL, &err), -ENODEV);
    assert_non_null(strstr(err.text, "--device cpu"));
    assert_int_equal(aq_device_choose(&gpu, computed_on("cpu"), t.root, NULL, &err), 0);
    assert_int_equal(aq_device_choose(&gpu, computed_on("cuda:0"), t.root, NULL, &err), -ENODEV);
    assert_int_equal(gpu, -1);
    put(&t, "/dev/nvidia0", "");
    assert_true(aq_device_nvidia_visible(t.root, &where));
    assert_string_equal(where, "/dev/nvidia*");
    close_tree(&t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_limits_available_memory_counts),
    cmocka_unit_test(small_machines_keep_two_gib_or_three_quarters),
    cmocka_unit_test(the_tightest_level_of_a_v2_hierarchy_binds),
    cmocka_unit_test(the_high_mark_counts_like_a_limit),
    cmocka_unit_test(use_above_the_limit_leaves_nothing),
    cmocka_unit_test(v1_limits_are_read_where_the_container_mounts_them),
    cmocka_unit_test(the_v1_number_for_no_limit_is_none),
    cmocka_unit_test(resource_limits_count_what_is_already_used),
    cmocka_unit_test(without_meminfo_the_budget_must_be_given),
    cmocka_unit_test(threads_are_affinity_or_quota_rounded_up),
    cmocka_unit_test(the_real_machine_has_limits),
    cmocka_unit_test(a_directory_has_a_file_system_and_room),
    cmocka_unit_test(a_visible_gpu_is_not_left_idle_unasked),
};

AQ_TEST_MAIN(tests)
