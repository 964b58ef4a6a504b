/* SPDX-License-Identifier: Apache-2.0
 * Hardware profiles: what is read, derived, refused and written; names and the kept profile of this
 * machine.  No claim depends on how fast anything is. */
#include "engine/machine/hw_file.h"
#include "engine/machine/hw_keys.h"
#include "engine/machine/probe.h"
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What a machine without an accelerator must say. */
#define CPU                                                                                        \
    "machine:\n  cores: 8\n"                                                                       \
    "host:\n  memory: 64GiB\n  memory_gb_s: 50\n  product_f32_tflop_s: 1\n"
#define DISK   "disk:\n  space: 1TB\n  read_gb_s: 3\n  write_gb_s: 2\n"
#define DEVICE "device:\n  memory: 16GB\n  memory_gb_s: 300\n  product_f32_tflop_s: 8\n"
#define LINKS  "links:\n  h2d_gb_s: 12\n"

static struct aq_hw_profile parse(const char *text)
{
    struct aq_hw_profile p;
    struct aq_err err = {0};
    if (aq_hw_file_parse(&p, "test.yaml", text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

/* What must be refused, with a message that holds `words`. */
static void refuse(const char *text, const char *words)
{
    struct aq_hw_profile p;
    struct aq_err err = {0};
    if (aq_hw_file_parse(&p, "test.yaml", text, strlen(text), &err) != -EINVAL)
        fail_msg("was taken: %s", text);
    if (!strstr(err.text, words))
        fail_msg("expected '%s' in: %s", words, err.text);
}

static const struct aq_hw_note *note(const struct aq_hw_profile *p, const char *key)
{
    return &p->note[aq_hw_key_find(key)];
}

static double value(const struct aq_hw_profile *p, const char *key)
{
    return aq_hw_key_value(p, aq_hw_key_find(key));
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fabs(b)))
        fail_msg("%.17g is not %.17g", a, b);
}

static void a_machine_is_read_in_its_units(void **state)
{
    struct aq_hw_profile p = parse(
        "machine: {name: Box, description: \"a box\", cpu: C, cores: 8, turn_us: 70}\n"
        "host:\n  source: all of it\n  memory: 64GiB\n"
        "  memory_gb_s: {value: 50, spread: 0.02, source: a meter}\n  product_f32_tflop_s: 1.5\n"
        "links: {copy_core_s_per_gb: 0.05}\n" DISK "  in_flight: 4\n");
    assert_string_equal(p.name, "Box");
    assert_string_equal(p.description, "a box");
    assert_string_equal(p.cpu, "C");
    assert_true(p.hw.device_on_host && p.capacity[AQ_DEVICE] == 0);
    assert_true(p.capacity[AQ_HOST] == 64 * AQ_GIB && p.capacity[AQ_DISK] == 1000000000000);
    near(p.hw.cores, 8);
    near(p.hw.overhead_s[AQ_LANE_CONTROL], 70e-6);
    near(p.hw.host_memory_bytes_per_s, 50e9);
    near(p.hw.host.product_flops_per_s[AQ_F32], 1.5e12);
    near(p.hw.device.product_flops_per_s[AQ_F32], 1.5e12); /* the host's: there is no other */
    near(p.hw.copy_core_s_per_byte, 0.05e-9);
    near(p.hw.disk_write_bytes_per_s, 2e9);
    assert_int_equal(p.hw.disk_in_flight, 4);
    assert_string_equal(note(&p, "host.memory_gb_s")->source, "a meter");
    near(note(&p, "host.memory_gb_s")->spread, 0.02);
    assert_string_equal(note(&p, "host.memory")->source, "all of it");
    assert_true(isnan(note(&p, "host.memory")->spread));
}

static void what_is_left_out_is_derived_and_listed(void **state)
{
    struct aq_hw_profile p = parse(CPU DISK);
    near(value(&p, "host.product_bf16_tflop_s"), 1);
    near(value(&p, "host.product_memory_gb_s"), 50);
    near(value(&p, "host.unpack_int8_gb_s"), 50.0 / 3);
    near(value(&p, "host.unpack_int4_gb_s"), 10);
    near(value(&p, "links.h2d_gb_s"), 25);
    near(value(&p, "host.threads"), 8);
    json_t *list = aq_hw_assumptions_json(&p), *row;
    size_t i, derived = 0;
    for (uint32_t k = 0; k < aq_hw_key_count(); k++)
        derived += p.note[k].origin == AQ_HW_DERIVED;
    assert_true(derived > 10 && json_array_size(list) == derived);
    bool seen = false;
    json_array_foreach(list, i, row)
    {
        const char *key = json_string_value(json_object_get(row, "key"));
        assert_true(strlen(json_string_value(json_object_get(row, "source"))) > 0);
        assert_true(json_is_real(json_object_get(row, "value")));
        assert_string_not_equal(key, "host.memory_gb_s");
        seen = seen || strcmp(key, "host.unpack_int4_gb_s") == 0;
    }
    assert_true(seen);
    json_decref(list);
}

static void a_price_has_its_date(void **state)
{
    char text[AQ_MONEY_TEXT_MAX];
    struct aq_hw_profile p = parse("machine:\n  cores: 8\n  price_per_hour: {value: $1.20, date: "
                                   "2026-01-31, source: a bill}\n"
                                   "host: {memory: 64GiB, memory_gb_s: 50, product_f32_tflop_s: "
                                   "1}\n");
    assert_true(p.price.given && p.price.per_hour.amount == 1.2);
    assert_string_equal(aq_money_exact(text, &p.price.per_hour), "$1.2");
    assert_string_equal(p.price.date, "2026-01-31");
    struct aq_buf b = {0};
    aq_hw_file_text(&b, &p);
    struct aq_hw_profile again = parse(b.data);
    aq_buf_close(&b);
    assert_memory_equal(&again.price, &p.price, sizeof(p.price));
    json_t *o = aq_hw_json(&p), *price = json_object_get(o, "price");
    assert_true(json_number_value(json_object_get(price, "per_hour")) == 1.2);
    assert_string_equal(json_string_value(json_object_get(price, "currency")), "$");
    json_decref(o);
#define PRICED(price) "machine: {cores: 8, price_per_hour: " price "}\n"
    refuse(PRICED("1.20"),
           "test.yaml:1: machine.price_per_hour: expected {value: 1.20 EUR, date: ");
    refuse(PRICED("{value: 1.20}"), "found no date");
    refuse(PRICED("{date: 2026-01-31}"), "found no value");
    refuse(PRICED("{value: 1.20, date: 2026-13-31}"), "expected a date such as 2026-01-31");
    refuse(PRICED("{value: 1.20, date: 26-1-31}"), "expected a date");
    refuse(PRICED("{value: cheap, date: 2026-01-31}"), "expected an amount such as 1.20 EUR");
    refuse(PRICED("{value: [1], date: 2026-01-31}"), "expected an amount");
    refuse(PRICED("{valu: 1}"), "the nearest one is 'value'");
    refuse("machine: {cores: 8, price: 1}\n", "the nearest one is 'price_per_hour'");
}

static void no_built_in_profile_has_a_price(void **state)
{
    struct aq_hw_profile p;
    struct aq_err err;
    for (uint32_t i = 0; aq_hw_built_in(i); i++) {
        assert_int_equal(aq_hw_find(&p, aq_hw_built_in(i), NULL, &err), 0);
        assert_false(p.price.given);
    }
}

static void bf16_and_f16_stand_for_each_other(void **state)
{
    struct aq_hw_profile p = parse(CPU DEVICE "  product_f16_tflop_s: 60\n" LINKS);
    near(value(&p, "device.product_bf16_tflop_s"), 60);
    p = parse(CPU DEVICE "  product_bf16_tflop_s: 50\n" LINKS);
    near(value(&p, "device.product_f16_tflop_s"), 50);
    assert_int_equal(note(&p, "device.product_bf16_tflop_s")->origin, AQ_HW_GIVEN);
    assert_int_equal(note(&p, "device.product_f16_tflop_s")->origin, AQ_HW_DERIVED);
}

static void a_device_has_memory_and_links_of_its_own(void **state)
{
    struct aq_hw_profile p = parse(CPU DEVICE "  name: D\n" LINKS);
    assert_string_equal(p.device, "D");
    assert_true(!p.hw.device_on_host && p.capacity[AQ_DEVICE] == 16000000000);
    near(p.hw.d2h_bytes_per_s, 12e9);
    near(p.hw.copy_core_s_per_byte, 0);
    near(p.hw.copy_host_bytes_per_byte, 1);
    near(p.hw.device.product_bytes_per_s, 300e9);
    assert_true(p.hw.device.threads == 0 && p.hw.host.threads == 8);
    assert_true(p.capacity[AQ_DISK] == 0 && p.hw.disk_read_bytes_per_s == 0);
}

static void weights_are_unpacked_at_the_rate_of_their_format(void **state)
{
    struct aq_hw_profile p = parse(CPU "  unpack_int8_gb_s: 20\n  unpack_int4_gb_s: 9\n");
    near(aq_hw_for_formats(&p, AQ_BF16, AQ_Q8, AQ_F16).host.unpack_bytes_per_s, 20e9);
    near(aq_hw_for_formats(&p, AQ_BF16, AQ_Q4, AQ_F16).host.unpack_bytes_per_s, 9e9);
    near(aq_hw_for_formats(&p, AQ_BF16, AQ_Q4, AQ_F16).device.unpack_bytes_per_s, 9e9);
    near(aq_hw_for_formats(&p, AQ_BF16, AQ_BF16, AQ_F16).host.unpack_bytes_per_s, 9e9);
}

static void what_one_thread_reads_is_known_of_floats(void **state)
{
    struct aq_hw_profile p = parse(CPU "  attention_memory_gb_s: 40\n  attention_thread_gb_s: 15\n"
                                       "  attention_int8_memory_gb_s: 30\n");
    struct aq_hardware floats = aq_hw_for_formats(&p, AQ_BF16, AQ_BF16, AQ_F16);
    near(floats.host.attention_thread_bytes_per_s, 15e9);
    near(floats.device.attention_thread_bytes_per_s, 15e9);
    assert_true(
        aq_hw_for_formats(&p, AQ_BF16, AQ_BF16, AQ_Q8).device.attention_thread_bytes_per_s == 0);
    p = parse(CPU "  attention_memory_gb_s: 40\n");
    assert_true(p.hw.device.attention_thread_bytes_per_s == 0);
}

static void prompts_in_f32_are_attended_at_a_rate_of_their_own(void **state)
{
    struct aq_hw_profile p =
        parse(CPU "  attention_tflop_s: 2\n  attention_d128_tflop_s: 3\n  prefill_head_ns: 100\n"
                  "  attention_memory_gb_s: 40\n  attention_f32_share: 0.25\n");
    struct aq_hardware bf16 = aq_hw_for_formats(&p, AQ_BF16, AQ_BF16, AQ_F16);
    struct aq_hardware f32 = aq_hw_for_formats(&p, AQ_F32, AQ_F32, AQ_F16);
    near(bf16.host.attention_flops_per_s, 2e12);
    near(f32.host.attention_flops_per_s, 0.5e12);
    near(f32.device.attention_flops_per_s, 0.5e12);
    near(f32.host.wide.flops_per_s, 0.75e12);
    near(f32.host.prefill_head_s, 400e-9);
    near(f32.host.attention_bytes_per_s, 40e9); /* decode rows are attended alike */
    p = parse(CPU "  attention_tflop_s: 2\n");
    near(aq_hw_for_formats(&p, AQ_F32, AQ_F32, AQ_F16).host.attention_flops_per_s, 2e12);
}

static void bad_profiles_are_refused_by_line_and_key(void **state)
{
    refuse("", "hardware profile: expected sections");
    refuse("[1]", "hardware profile: expected sections");
    refuse("machine: {cores: 8}\n", "2 numbers are missing and cannot be derived: host.memory (a");
    refuse("machine:\n", "test.yaml:1: machine: expected a map, found nothing");
    refuse("engine: {}\n" CPU, "test.yaml:1: hardware profile: expected one of its keys");
    refuse(CPU "  memory_gbs: 5\n", "test.yaml:7: host: expected one of its keys, found "
                                    "'memory_gbs'; the nearest one is 'memory_gb_s'");
    refuse(CPU "links: {h2d_gb_s: {valeu: 5}}\n", "the nearest one is 'value'");
    refuse(CPU "links: {h2d_gb_s: {spread: 0.1}}\n", "links.h2d_gb_s: expected 'value'");
    refuse(CPU "links: {h2d_gb_s: {value: 5, spread: -1}}\n", "links.h2d_gb_s: spread: expected");
    refuse(CPU "links: {h2d_gb_s: [5]}\n", "from 0.001 to 2000, found a list");
    refuse("machine: {cores: 0}\n", "test.yaml:1: machine.cores: expected a number from 0.01");
    refuse("host: {memory: lots}\n", "host.memory: expected a size such as 16GiB");
    refuse("machine: {cores: 1}\nhost: {memory_gb_s: 50, product_f32_tflop_s: 1}\n",
           "test.yaml:2: host.memory is missing and cannot be derived: expected a size such");
    refuse(CPU "machine: {cores: 1}\n", "was already given");
    refuse("machine: {name: \"a\\nb\"}\n", "machine.name: expected one line");
}

static void absurd_rates_are_refused(void **state)
{
    static const char *const bad[] = {"0", "-1", ".nan", ".inf", "1e9", "fast", "0x10", "\"\""};
    char text[1024];
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++) {
        snprintf(text, sizeof(text), CPU "links:\n  h2d_gb_s: %s\n", bad[i]);
        refuse(text, "test.yaml:8: links.h2d_gb_s: expected a number of GB/s from 0.001 to 2000");
    }
    refuse(CPU "disk: {space: 1TB, read_gb_s: 60, write_gb_s: 2}\n",
           "disk.read_gb_s must be at most 50, 1 x host.memory_gb_s, not 60");
    refuse(CPU "links: {h2d_gb_s: 70}\n", "links.h2d_gb_s must be at most 62.5");
    refuse(CPU "  attention_memory_gb_s: 500\n", "host.attention_memory_gb_s must be at most 100");
    refuse(CPU DISK "  in_flight: 1.5\n", "disk.in_flight: expected a whole number");
}

static void all_that_is_missing_is_named_at_once(void **state)
{
    refuse("machine: {name: Box}\ndevice: {name: L4}\nhost: {memory_gb_s: 50}\ndisk: {write_gb_s: "
           "1}\n",
           "test.yaml: 8 numbers are missing and cannot be derived: machine.cores (a number), "
           "device.memory (a size such as 16GiB), device.memory_gb_s (GB/s), "
           "device.product_f16_tflop_s (TFLOP/s), host.memory (a size such as 16GiB), "
           "links.h2d_gb_s (GB/s), disk.space (a size such as 16GiB), disk.read_gb_s (GB/s); "
           "aquifer help hardware has all keys");
    refuse("machine: {cores: 1, turn_us: -1}\n", "machine.turn_us: expected a number of micro");
}

static void the_least_that_is_said_is_enough(void **state)
{
    struct aq_hw_profile p =
        parse("machine: {cores: 10}\ndevice: {memory: 24GB, memory_gb_s: 300, "
              "product_bf16_tflop_s: 160}\nhost: {memory: 128GiB, memory_gb_s: 100}\n" LINKS
              "disk: {space: 1TB, read_gb_s: 3}\n");
    near(value(&p, "device.product_f16_tflop_s"), 160);
    near(value(&p, "device.product_f32_tflop_s"), 5);
    near(value(&p, "host.product_f32_tflop_s"), 0.224);
    near(value(&p, "disk.write_gb_s"), 1.5);
    for (uint32_t k = 0; k < aq_hw_key_count(); k++)
        assert_true(aq_hw_key_table[k].need > AQ_HW_DERIVES || p.note[k].origin != AQ_HW_ABSENT);
}

/* Every key with its section, what it means, and the reason of what stands in for it. */
static void help_has_every_key(void **state)
{
    struct aq_buf b = {0};
    char row[128];
    const char *at;
    aq_hw_help(&b);
    assert_false(b.failed);
    at = b.data;
    for (uint32_t k = 0; k < aq_hw_key_count(); k++) {
        const struct aq_hw_key *key = &aq_hw_key_table[k];
        snprintf(row, sizeof(row), "\n%s\n", aq_hw_section_name(key->section));
        at = k == 0 || key->section != key[-1].section ? strstr(at, row) + 1 : at;
        assert_true(key->what && strlen(key->what) > 3);
        snprintf(row, sizeof(row), "\n  %-30s ", key->name);
        at = strstr(at, row) + 1;
        assert_non_null(at - 1);
        assert_non_null(strstr(at, key->what));
        const char *next = strchr(at, '\n') + 1;
        assert_int_equal(key->need == AQ_HW_DERIVES, strncmp(next, "      else ", 11) == 0);
    }
    for (const char *line = b.data; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);
    aq_buf_close(&b);
}

static void what_cannot_be_derived_must_be_there(void **state)
{
    refuse("host: {memory: 1GiB, memory_gb_s: 50, product_f32_tflop_s: 1}\n",
           "machine.cores is missing and cannot be derived: expected a number");
    refuse("machine: {cores: 1}\nhost: {memory: 1GiB, product_f32_tflop_s: 1}\n",
           "host.memory_gb_s is missing and cannot be derived: expected GB/s");
    refuse(CPU DEVICE, "links.h2d_gb_s is missing and cannot be derived");
    refuse(CPU "disk: {read_gb_s: 3, write_gb_s: 2}\n", "disk.space is missing");
    refuse(CPU LINKS "device: {memory: 1GB, product_f32_tflop_s: 1}\n",
           "device.memory_gb_s is missing");
}

/* Writes, reads and writes again: the second text is the first. */
static void round_trip(const struct aq_hw_profile *p)
{
    struct aq_buf first = {0}, second = {0};
    aq_hw_file_text(&first, p);
    assert_false(first.failed);
    struct aq_hw_profile again = parse(first.data);
    aq_hw_file_text(&second, &again);
    assert_string_equal(first.data, second.data);
    assert_string_equal(again.made_for, p->made_for);
    for (uint32_t k = 0; k < aq_hw_key_count(); k++) {
        double was = aq_hw_key_value(p, k), is = aq_hw_key_value(&again, k);
        assert_int_equal(p->note[k].origin, again.note[k].origin);
        assert_string_equal(p->note[k].source, again.note[k].source);
        if (p->note[k].origin == AQ_HW_GIVEN)
            assert_true(fabs(was - is) <= 1e-4 * fabs(was)); /* five digits are written */
    }
    aq_buf_close(&first);
    aq_buf_close(&second);
}

static void what_is_written_reads_back(void **state)
{
    struct aq_hw_profile p = parse(CPU DEVICE LINKS DISK);
    round_trip(&p);
    snprintf(p.name, sizeof(p.name), "a \"name\" of \xc3\xa9t\xc3\xa9, \\ # and: all");
    snprintf(p.made_for, sizeof(p.made_for), "~");
    aq_hw_key_give(&p, "host.memory_gb_s", 51.3, 0.031, "a: {b}");
    aq_hw_key_give(&p, "disk.space", 12345678, NAN, "");
    aq_hw_key_give(&p, "links.duplex", 1.5, 0, "x");
    round_trip(&p);
}

static void files_are_read_and_replaced(void **state)
{
    char path[] = "/tmp/aq-hw-XXXXXX", missing[64];
    struct aq_err err = {0};
    struct aq_hw_profile p = parse(CPU), q;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(aq_hw_file_write(&p, path, &err), 0);
    assert_int_equal(aq_hw_file_read(&q, path, &err), 0);
    near(q.hw.cores, 8);
    unlink(path);
    assert_int_equal(aq_hw_file_read(&q, path, &err), -ENOENT);
    snprintf(missing, sizeof(missing), "%s/no/file.yaml", path);
    assert_true(aq_hw_file_write(&p, missing, &err) < 0);
    assert_non_null(strstr(err.text, path));
}

static void the_widest_spread_that_counts_is_found(void **state)
{
    struct aq_hw_profile p = parse(CPU);
    uint32_t key = 0;
    assert_true(aq_hw_spread(&p, &key) == 0);
    aq_hw_key_give(&p, "host.memory_gb_s", 50, 0.1, "");
    aq_hw_key_give(&p, "host.attention_memory_gb_s", 40, 0.3, "");
    aq_hw_key_give(&p, "host.product_f32_memory_gb_s", 40, 0.9, ""); /* for people to read */
    near(aq_hw_spread(&p, &key), 0.3);
    assert_int_equal(key, aq_hw_key_find("host.attention_memory_gb_s"));
}

/* ---- names ------------------------------------------------------------------------------- */

static void every_committed_profile_is_built_in_and_reads(void **state)
{
    char path[1024], name[256];
    uint32_t count = 0, built_in = 0;
    struct dirent *entry;
    char folder[512];
    snprintf(folder, sizeof(folder), "%s", test_data_path("../../configs/hardware"));
    DIR *d = opendir(folder);
    assert_non_null(d);
    while ((entry = readdir(d))) {
        struct aq_err err = {0};
        struct aq_hw_profile file, named;
        size_t n = strlen(entry->d_name);
        if (n < 6 || n >= sizeof(name) || strcmp(entry->d_name + n - 5, ".yaml") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%.200s", folder, entry->d_name);
        snprintf(name, sizeof(name), "%.*s", (int)(n - 5), entry->d_name);
        if (aq_hw_find(&file, path, NULL, &err) < 0 || aq_hw_find(&named, name, NULL, &err) < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(&file.hw, &named.hw, sizeof(file.hw));
        for (uint32_t k = 0; k < aq_hw_key_count(); k++) {
            if (file.note[k].origin == AQ_HW_GIVEN && !*file.note[k].source &&
                aq_hw_key_table[k].kind == AQ_HW_REAL)
                fail_msg("%s: no source of %s", path, aq_hw_key_table[k].name);
        }
        assert_true(file.name[0] && file.description[0]);
        round_trip(&file);
        count++;
    }
    closedir(d);
    while (aq_hw_built_in(built_in))
        built_in++;
    assert_true(count >= 6);
    assert_int_equal(count, built_in);
}

static void an_unknown_name_names_the_nearest_one(void **state)
{
    struct aq_err err = {0};
    struct aq_hw_profile p;
    assert_int_equal(aq_hw_find(&p, "a100-80g", NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, "found 'a100-80g', the nearest one is 'a100-80gb'"));
    assert_int_equal(aq_hw_find(&p, "none.yaml", NULL, &err), -EINVAL);
}

/* ---- this machine ------------------------------------------------------------------------ */

static void the_parts_of_a_measurement_are_there(const struct aq_hw_profile *p)
{
    for (uint32_t k = 0; k < aq_hw_key_count(); k++) {
        char name[AQ_HW_KEY_TEXT_MAX];
        double v = aq_hw_key_value(p, k), s = p->note[k].spread;
        if (p->note[k].origin == AQ_HW_GIVEN && !(isfinite(v) && v >= 0 && (isnan(s) || s >= 0)))
            fail_msg("%s is %g, spread %g", aq_hw_key_name(name, k), v, s);
    }
    static const char *const keys[] = {"host.memory_gb_s",
                                       "host.product_f32_tflop_s",
                                       "host.product_bf16_tflop_s",
                                       "host.attention_tflop_s",
                                       "host.attention_memory_gb_s",
                                       "host.unpack_int8_gb_s",
                                       "host.unpack_int4_gb_s",
                                       "links.h2d_gb_s",
                                       "links.d2h_gb_s",
                                       "links.both_gb_s",
                                       "links.h2d_64kib_gb_s",
                                       "links.h2d_in_attention_gb_s",
                                       "links.attention_in_h2d_gb_s",
                                       "links.copy_core_s_per_gb"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        if (note(p, keys[i])->origin != AQ_HW_GIVEN || !(value(p, keys[i]) > 0))
            fail_msg("%s was not measured", keys[i]);
    }
}

static char heard[2048]; /* the last line of a log */

static void hear(void *user, enum aq_log_level level, const char *text)
{
    snprintf(user, sizeof(heard), "%s", text);
}

static void this_machine_is_measured_where_nothing_is_kept(void **state)
{
    char dir[] = "/tmp/aq-hw-XXXXXX", path[64];
    struct aq_err err = {0};
    static struct aq_hw_profile p, q;
    uint32_t key;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/hardware-local.yaml", dir);
    struct aq_hw_local_opts opts = {.cache_dir = dir, .threads = 1, .quick = true};
    assert_false(aq_hw_local_kept(&p, &opts));
    if (aq_hw_find(&p, "local", &opts, &err) < 0)
        fail_msg("%s", err.text);
    the_parts_of_a_measurement_are_there(&p);
    assert_false(p.kept);
    /* By itself it is kept where the machine was quiet: access() tells, and the words. */
    bool steady = aq_hw_spread(&p, &key) <= 0.5;
    assert_int_equal(access(path, F_OK) == 0, steady);
    assert_non_null(strstr(p.told, steady ? "kept as" : "not kept, as"));
    /* What is kept now comes back, with its mark: so it was not measured again. */
    snprintf(p.name, sizeof(p.name), "the first");
    assert_int_equal(aq_hw_local_keep(&p, &opts, &err), 0);
    assert_int_equal(aq_hw_local(&q, &opts, &err), 0);
    assert_string_equal(q.name, "the first");
    assert_true(q.kept);
    assert_true(aq_hw_local_kept(&q, &opts));
    opts.threads = 2; /* another machine, as it were */
    assert_false(aq_hw_local_kept(&q, &opts));
    opts.threads = 1;
    opts.isa = (struct aq_isa_choice){.given = true}; /* with the reference's kernels */
    assert_false(aq_hw_local_kept(&q, &opts));
    opts.isa = (struct aq_isa_choice){0};
    /* Where it is not kept, another plan of the same command takes it, and measures nothing. */
    unlink(path);
    opts.before = &p;
    assert_int_equal(aq_hw_local(&q, &opts, &err), 0);
    assert_string_equal(q.name, "the first");
    assert_int_equal(access(path, F_OK), -1);
    opts.before = NULL;
    snprintf(p.made_for, sizeof(p.made_for), "aquifer 0.0.0");
    assert_int_equal(aq_hw_file_write(&p, path, &err), 0);
    assert_false(aq_hw_local_kept(&q, &opts));
    /* It is measured anew, and the log says why; here in too little memory. */
    struct aq_log log = {.line = hear, .user = heard};
    opts.log = &log;
    opts.memory = 1;
    assert_int_equal(aq_hw_local(&q, &opts, &err), -ENOMEM);
    assert_non_null(strstr(heard, "measuring this machine anew"));
    assert_non_null(strstr(heard, "is of 'aquifer 0.0.0', and this is 'aquifer "));
    unlink(path);
    rmdir(dir);
}

/* A profile as of this machine, whose plain reading varied by this share. */
static void make_varied(struct aq_hw_profile *p, double spread)
{
    struct aq_err err = {0};
    if (aq_hw_find(p, "epyc-zen5-2vcpu", NULL, &err) < 0)
        fail_msg("%s", err.text);
    p->note[aq_hw_key_find("host.memory_gb_s")].spread = spread;
}

static void what_varied_too_much_is_kept_only_for_those_who_ask(void **state)
{
    char dir[] = "/tmp/aq-hw-XXXXXX", path[64];
    struct aq_err err = {0};
    static struct aq_hw_profile p, q;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/hardware-local.yaml", dir);
    struct aq_hw_local_opts opts = {.cache_dir = dir};
    make_varied(&p, 0.51);
    aq_hw_local_offer(&p, &opts);
    assert_false(aq_hw_local_kept(&q, &opts));
    assert_int_equal(access(path, F_OK), -1);
    assert_non_null(strstr(p.told, "not kept, as host.memory_gb_s varied by 51 %"));
    assert_non_null(strstr(p.told, "aquifer probe --keep"));
    make_varied(&p, 0.5);
    aq_hw_local_offer(&p, &opts);
    assert_non_null(strstr(p.told, path));
    assert_true(aq_hw_local_kept(&q, &opts));
    /* Whoever asks for it by name has it, however much it varied; those that use it hear of it. */
    make_varied(&p, 12);
    assert_int_equal(aq_hw_local_keep(&p, &opts, &err), 0);
    assert_true(aq_hw_local_kept(&q, &opts));
    assert_non_null(strstr(q.told, "host.memory_gb_s varied by 1000 %"));
    unlink(path);
    rmdir(dir);
}

static void a_kept_profile_tells_its_file_and_age(void **state)
{
    static const struct {
        time_t age_s;
        const char *told;
    } cases[] = {
        {-5000, "measured less than a minute ago"}, /* a clock that was set back */
        {30, "measured less than a minute ago"},
        {61, "measured 1 minute ago"},
        {7300, "measured 2 hours ago"},
        {86400 + 7200, "measured 1 day ago"},
        {3 * 86400 + 60, "measured 3 days ago"},
    };
    char dir[] = "/tmp/aq-hw-XXXXXX", path[64], name[80];
    struct aq_err err = {0};
    static struct aq_hw_profile p, q;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/hardware-local.yaml", dir);
    snprintf(name, sizeof(name), "kept profile '%s'", path);
    struct aq_hw_local_opts opts = {.cache_dir = dir};
    make_varied(&p, 0.02);
    assert_int_equal(aq_hw_local_keep(&p, &opts, &err), 0);
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct timespec then = {.tv_sec = time(NULL) - cases[i].age_s};
        assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){then, then}, 0), 0);
        assert_true(aq_hw_local_kept(&q, &opts));
        assert_non_null(strstr(q.told, name));
        assert_non_null(strstr(q.told, cases[i].told));
    }
    unlink(path);
    rmdir(dir);
}

static void where_nothing_can_be_kept_that_is_told(void **state)
{
    static struct aq_hw_profile p;
    struct aq_hw_local_opts opts = {.cache_dir = "/dev/null/cache", .threads = 1, .quick = true};
    make_varied(&p, 0.02); /* e2e-plan_local measures */
    aq_hw_local_offer(&p, &opts);
    assert_non_null(strstr(p.told, "not kept: cannot make the directory '/dev/null/cache'"));
    assert_non_null(strstr(p.told, "--cache-dir DIR"));
    /* A home may be such a place, too. */
    setenv("HOME", "/dev/null", 1);
    unsetenv("XDG_CACHE_HOME");
    make_varied(&p, 0.02);
    aq_hw_local_offer(&p, &(struct aq_hw_local_opts){0});
    assert_non_null(strstr(p.told, "not kept: cannot make the directory '/dev/null/.cache"));
}

static bool at_once(void *user)
{
    return true;
}

static void a_measurement_can_be_stopped_and_needs_memory(void **state)
{
    static struct aq_hw_profile p;
    struct aq_err err = {0};
    struct aq_probe_opts opts = {.quick = true, .threads = 1, .stop = at_once};
    assert_int_equal(aq_probe(&p, &opts, &err), -EINTR);
    opts = (struct aq_probe_opts){.quick = true, .memory = 1};
    assert_int_equal(aq_probe(&p, &opts, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "MiB of memory"));
}

static void wide_heads_and_groups_over_codes_are_as_over_f16(void **state)
{
    struct aq_hw_profile p =
        parse(CPU "  product_f32_k768_share: 0.9\n  attention_memory_gb_s: 40\n"
                  "  attention_tflop_s: 0.3\n  decode_head_ns: 200\n  prefill_head_ns: 100\n"
                  "  attention_d128_memory_gb_s: 44\n  attention_d128_tflop_s: 0.36\n"
                  "  decode_d128_head_ns: 300\n  prefill_d128_head_ns: 120\n"
                  "  attention_g8_memory_gb_s: 20\n  decode_d128_g4_head_ns: 150\n"
                  "  attention_int8_memory_gb_s: 10\n  decode_int8_head_ns: 400\n");
    near(p.hw.host.short_share[AQ_F32], 0.9);
    near(p.hw.device.short_share[AQ_F32], 0.9);
    near(p.hw.host.short_share[AQ_F16], 0.9);
    assert_true(p.hw.host.short_share[AQ_BF16] == 0);
    struct aq_hw_attention f16 = aq_hw_for_formats(&p, AQ_BF16, AQ_F16, AQ_F16).device.wide;
    near(f16.bytes_per_s, 44e9);
    near(f16.decode_head_s, 300e-9);
    struct aq_hw_attention int8 = aq_hw_for_formats(&p, AQ_BF16, AQ_F16, AQ_Q8).device.wide;
    near(int8.bytes_per_s, 44e9 * 10 / 40);
    near(int8.decode_head_s, 600e-9);
    near(int8.flops_per_s, 0.36e12); /* nothing is said of int8 */
    near(int8.prefill_head_s, 120e-9);
    struct aq_hw_side side = aq_hw_for_formats(&p, AQ_BF16, AQ_F16, AQ_F16).host;
    near(side.shared[0][1].bytes_per_s, 20e9);
    near(side.shared[1][0].decode_head_s, 150e-9);
    side = aq_hw_for_formats(&p, AQ_BF16, AQ_F16, AQ_Q8).host;
    near(side.shared[0][1].bytes_per_s, 20e9 * 10 / 40);
    near(side.shared[1][0].decode_head_s, 300e-9);
    p = parse(CPU "  attention_int8_memory_gb_s: 10\n");
    assert_true(aq_hw_for_formats(&p, AQ_BF16, AQ_F16, AQ_Q8).device.wide.bytes_per_s == 0);
}

static void groups_of_a_device_are_its_own(void **state)
{
    struct aq_hw_profile p =
        parse(CPU "  attention_g4_memory_gb_s: 20\n" DEVICE "  attention_memory_gb_s: 240\n"
                  "  attention_d128_memory_gb_s: 250\n  attention_g4_memory_gb_s: 230\n"
                  "  attention_g8_memory_gb_s: 220\n  attention_d128_g4_memory_gb_s: 245\n"
                  "  attention_d128_g8_memory_gb_s: 243\n" LINKS);
    struct aq_hardware hw = aq_hw_for_formats(&p, AQ_F16, AQ_F16, AQ_F16);
    near(hw.device.wide.bytes_per_s, 250e9);
    near(hw.device.shared[0][0].bytes_per_s, 230e9);
    near(hw.device.shared[0][1].bytes_per_s, 220e9);
    near(hw.device.shared[1][0].bytes_per_s, 245e9);
    near(hw.device.shared[1][1].bytes_per_s, 243e9);
    near(hw.host.shared[0][0].bytes_per_s, 20e9);
    p = parse(CPU "  attention_g4_memory_gb_s: 20\n" DEVICE LINKS);
    assert_true(p.hw.device.shared[0][0].bytes_per_s == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(groups_of_a_device_are_its_own),
    cmocka_unit_test(wide_heads_and_groups_over_codes_are_as_over_f16),
    cmocka_unit_test(what_one_thread_reads_is_known_of_floats),
    cmocka_unit_test(prompts_in_f32_are_attended_at_a_rate_of_their_own),
    cmocka_unit_test(a_machine_is_read_in_its_units),
    cmocka_unit_test(what_is_left_out_is_derived_and_listed),
    cmocka_unit_test(a_price_has_its_date),
    cmocka_unit_test(no_built_in_profile_has_a_price),
    cmocka_unit_test(bf16_and_f16_stand_for_each_other),
    cmocka_unit_test(a_device_has_memory_and_links_of_its_own),
    cmocka_unit_test(weights_are_unpacked_at_the_rate_of_their_format),
    cmocka_unit_test(bad_profiles_are_refused_by_line_and_key),
    cmocka_unit_test(absurd_rates_are_refused),
    cmocka_unit_test(all_that_is_missing_is_named_at_once),
    cmocka_unit_test(the_least_that_is_said_is_enough),
    cmocka_unit_test(help_has_every_key),
    cmocka_unit_test(what_cannot_be_derived_must_be_there),
    cmocka_unit_test(what_is_written_reads_back),
    cmocka_unit_test(files_are_read_and_replaced),
    cmocka_unit_test(the_widest_spread_that_counts_is_found),
    cmocka_unit_test(every_committed_profile_is_built_in_and_reads),
    cmocka_unit_test(an_unknown_name_names_the_nearest_one),
    cmocka_unit_test(this_machine_is_measured_where_nothing_is_kept),
    cmocka_unit_test(what_varied_too_much_is_kept_only_for_those_who_ask),
    cmocka_unit_test(a_kept_profile_tells_its_file_and_age),
    cmocka_unit_test(where_nothing_can_be_kept_that_is_told),
    cmocka_unit_test(a_measurement_can_be_stopped_and_needs_memory),
};

AQ_TEST_MAIN(tests)
