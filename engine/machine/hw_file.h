/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/hw_file.h - hardware profiles: a machine as one YAML file that people can read and
 * write, and as the numbers that plans are made with.  Every rate has its source; a rate that is
 * missing in a file is derived from others, or refused by name.  Measures nothing
 * (engine/machine/rates.h does) and plans nothing. */
#ifndef AQ_ENGINE_MACHINE_HW_FILE_H
#define AQ_ENGINE_MACHINE_HW_FILE_H

#include "base/buf.h"
#include "base/log.h"
#include "base/money.h"
#include "kernels/kernels.h"
#include "policy/hw.h"

#include <jansson.h>

enum {
    AQ_HW_KEYS_MAX = 144,
    AQ_HW_NAME_MAX = 96,
    AQ_HW_TEXT_MAX = 256, /* of a description or a source */
    AQ_HW_KEY_TEXT_MAX = 64,
    AQ_HW_TOLD_MAX = 4096 + 256, /* a path, and words about it */
    AQ_HW_DATE_MAX = 11,
};

enum aq_hw_origin {
    AQ_HW_ABSENT,  /* unknown, of rates that are optional */
    AQ_HW_GIVEN,   /* by the file, or measured */
    AQ_HW_DERIVED, /* an assumption, which `source` explains */
};

/* The source of a number. */
struct aq_hw_note {
    enum aq_hw_origin origin;
    double spread; /* of measurements: (third quartile - first) / median; NAN: unknown */
    char source[AQ_HW_TEXT_MAX];
};

/* What an hour on the machine costs, and when: prices are other people's, and they change. */
struct aq_hw_price {
    bool given;
    struct aq_money per_hour;
    char date[AQ_HW_DATE_MAX]; /* "2026-01-31"; "": the command line says what it is now */
    char source[AQ_HW_TEXT_MAX];
};

/* Measurements that the simulator does not use, for people to read; 0: not measured. */
struct aq_hw_seen {
    double row_f32_bytes_per_s; /* weights through an f32 product of one row */
    double h2d_64k_bytes_per_s, h2d_1m_bytes_per_s, h2d_16m_bytes_per_s;
    double d2h_64k_bytes_per_s, d2h_1m_bytes_per_s, d2h_16m_bytes_per_s;
    double both_bytes_per_s;             /* h2d and d2h at once, together */
    double h2d_in_attention_bytes_per_s; /* while host attention runs ... */
    double attention_in_h2d_bytes_per_s; /* ... and the rate of that attention */
    /* A GPU's products of 16, 64 and 256 rows, f16 and bf16; decode attention that keeps scores; a
     * kernel behind others. */
    double gpu_f16_flops_per_s[3], gpu_bf16_flops_per_s[3], gpu_scored_bytes_per_s, gpu_launch_s;
};

struct aq_hw_profile {
    char name[AQ_HW_NAME_MAX];
    char description[AQ_HW_TEXT_MAX];
    char cpu[AQ_HW_NAME_MAX];      /* model; "" when the file does not say */
    char device[AQ_HW_NAME_MAX];   /* model; "" where there is none */
    char made_for[AQ_HW_TEXT_MAX]; /* the machine that aq_hw_local() compares; "" elsewhere */
    char told[AQ_HW_TOLD_MAX];     /* file and age, set by aq_hw_local(); "" elsewhere */
    bool kept;                     /* the profile was read, and not measured now */
    struct aq_hw_price price;
    struct aq_hardware hw;            /* unpacks at the slower rate: see aq_hw_for_formats() */
    uint64_t capacity[AQ_TIER_COUNT]; /* bytes of each tier; 0: no such tier */
    /* Packed bytes of int8 and int4 that become the compute type, by side. */
    double device_unpack_bytes_per_s[2], host_unpack_bytes_per_s[2];
    struct aq_hw_attention host_attention[2]; /* over KV in int8 and int4; 0: as over f16 */
    /* Of the host's rates for prompts, what is reached where the compute type is f32; 0: all. */
    double host_attention_f32_share;
    struct aq_hw_seen seen;
    struct aq_hw_note note[AQ_HW_KEYS_MAX]; /* by key: aq_hw_key_name() */
};

/* Keys of a profile, below aq_hw_key_count(): "host.memory_gb_s" and so on. */
uint32_t aq_hw_key_count(void);
const char *aq_hw_key_name(char text[AQ_HW_KEY_TEXT_MAX], uint32_t key);
/* The number in the unit of the key's name. */
double aq_hw_key_value(const struct aq_hw_profile *p, uint32_t key);

/* ---- files ---- */

/* -EINVAL names file, line and key, what was expected and what was found; -ENOENT: no such file. */
int aq_hw_file_read(struct aq_hw_profile *ret, const char *path, struct aq_err *reterr);
/* The same for a text; `name` is the file's name in messages. */
int aq_hw_file_parse(struct aq_hw_profile *ret, const char *name, const char *text, size_t bytes,
                     struct aq_err *reterr);
/* Replaces the file as a whole or leaves it alone.  Derived numbers are not written: a reader
 * derives them again. */
int aq_hw_file_write(const struct aq_hw_profile *p, const char *path, struct aq_err *reterr);
void aq_hw_file_text(struct aq_buf *ret, const struct aq_hw_profile *p);

/* Derives the numbers that are not given; for callers that fill a profile themselves.  -EINVAL: a
 * number is absurd, or some are missing and cannot be derived; the message names `name` and
 * line[key] (NULL: no lines; 0: unknown; of the first key of a section: where that begins). */
int aq_hw_complete(struct aq_hw_profile *p, const char *name, const uint32_t *line,
                   struct aq_err *reterr);

/* Every key of a profile, for people: its unit, whether it must be there, what it means and what
 * stands in for it. */
void aq_hw_help(struct aq_buf *ret);

/* ---- use ---- */

/* The machine, with the rates for this compute type, and for weights and KV of these formats. */
struct aq_hardware aq_hw_for_formats(const struct aq_hw_profile *p, enum aq_dtype compute,
                                     enum aq_dtype weights, enum aq_dtype kv);

/* The derived numbers: [{"key", "value", "source"}, ...]. */
json_t *aq_hw_assumptions_json(const struct aq_hw_profile *p);
/* {"name", "description", "capacity": {tier: bytes}, "rates": {section: {key: {"value", "spread",
 * "origin", "source"}}}, "price": null or {"per_hour", "currency", "date", "source"}} */
json_t *aq_hw_json(const struct aq_hw_profile *p);
json_t *aq_hw_price_json(const struct aq_hw_price *p);

/* ---- where profiles are ---- */

struct aq_cuda;

struct aq_hw_local_opts {
    const char *cache_dir;      /* NULL: the default cache directory */
    const char *disk_dir;       /* its disk is measured; NULL: the cache directory's */
    uint32_t threads;           /* 0: as many as this process may use */
    struct aq_isa_choice isa;   /* rates are those of a level of instructions */
    const struct aq_cuda *cuda; /* as of struct aq_probe_opts */
    uint64_t memory;            /* as of struct aq_probe_opts */
    bool quick;                 /* likewise */
    const struct aq_log *log;
    /* A profile that an earlier call measured, used where none is kept.  NULL: none. */
    const struct aq_hw_profile *before;
};

/* The profile of --hardware: "local" or NULL (only this needs opts); the name of a built-in profile
 * (configs/hardware/NAME.yaml, which the binary holds); or a file, if the text has a '/' or ends in
 * .yaml or .yml.  An unknown name is -EINVAL, naming the nearest one. */
int aq_hw_find(struct aq_hw_profile *ret, const char *hardware, const struct aq_hw_local_opts *opts,
               struct aq_err *reterr);
/* Whether it could mean a machine: "local", a built-in name, or a file by its form.  `label` begins
 * the message of -EINVAL, which names the nearest one. */
int aq_hw_check_name(const char *hardware, const char *label, struct aq_err *reterr);
/* The name of built-in profile i, in order; NULL behind the last. */
const char *aq_hw_built_in(uint32_t i);

/* This machine: the kept profile, if CPU, instructions, cores, memory, disk and version are the
 * same; else one measured now (in seconds) and offered.  Without a cache directory that can be
 * written the profile cannot be kept, and the disk is not measured. */
int aq_hw_local(struct aq_hw_profile *ret, const struct aq_hw_local_opts *opts,
                struct aq_err *reterr);
/* Keeps a measurement of this machine, made with these options, in place of an older one. */
int aq_hw_local_keep(struct aq_hw_profile *p, const struct aq_hw_local_opts *opts,
                     struct aq_err *reterr);
/* Keeps the profile, unless a rate varied too much for further plans; p->told and the log say
 * whether it was kept, and why. */
void aq_hw_local_offer(struct aq_hw_profile *p, const struct aq_hw_local_opts *opts);
/* The kept profile, without measuring; false when none was kept for this machine. */
bool aq_hw_local_kept(struct aq_hw_profile *ret, const struct aq_hw_local_opts *opts);

#endif
