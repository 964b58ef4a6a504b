/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/table.h - a table of runs as one YAML file: rows of options of `aquifer bench`,
 * each with a published figure and the policy behind that figure.  Owns reading and checking; rows
 * are run by engine/measure/bench_table.h and predicted by engine/measure/published.h.
 *
 *   table: name
 *   about: text                    said above the printed table
 *   defaults: {option: value}      options of bench for every row
 *   engines: {name: {...}}         rates of another program on a machine, each with its source
 *   rows:
 *     - name: text                 each its own
 *       option: value              any option of bench that describes one run
 *       published: {tok-s: 7.32, source: text}
 *       policy: {engine: name, ...}  struct aq_table_policy
 *       machine: name              of a row without a policy: its machine, as --hardware
 *       note: text */
#ifndef AQ_ENGINE_MEASURE_TABLE_H
#define AQ_ENGINE_MEASURE_TABLE_H

#include "base/err.h"
#include "policy/flexgen_model.h"

#include <jansson.h>

enum { AQ_TABLE_ROWS_MAX = 1000, AQ_TABLE_ENGINES_MAX = 16 };

/* Another program on a machine. */
struct aq_table_engine {
    char *name, *hardware; /* as --hardware */
    struct aq_flexgen_rates rates;
    /* Published rates of the machine, in place of the profile's; 0: the profile's. */
    double link_bytes_per_s, disk_read_bytes_per_s, disk_write_bytes_per_s;
};

/* The options of the other program for a row, by its names. */
struct aq_table_policy {
    uint32_t engine;                          /* index in the table's */
    uint32_t gpu_batch_size, num_gpu_batches; /* both 0: not published */
    double percent[6]; /* weights, KV, hidden: on the device and on the host */
    bool cpu_cache_compute, pin_weight, compress_weight, compress_cache, overlap;
    double hh_ratio;    /* of the prompt, heavy and recent each; 0: full cache */
    double prompt_mean; /* tokens of a mean prompt; 0: all are equal */
    bool first_step;    /* decode time projected from its first step */
};

struct aq_table_row {
    char *name;
    uint32_t line;
    json_t *options;               /* of bench, the table's defaults among them */
    double published;              /* tok/s; 0: none */
    char *source, *note, *machine; /* NULL: none */
    bool has_policy;
    struct aq_table_policy policy;
};

struct aq_table {
    char *name, *about; /* about NULL: none */
    struct aq_table_engine engine[AQ_TABLE_ENGINES_MAX];
    uint32_t engine_count;
    struct aq_table_row *row;
    uint32_t row_count;
};

/* -EINVAL names file, line and key, what was expected and what was found. */
int aq_table_read(struct aq_table **ret, const char *path, struct aq_err *reterr);
void aq_table_close(struct aq_table *t);

#endif
