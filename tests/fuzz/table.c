/* SPDX-License-Identifier: Apache-2.0
 * Tables of runs: whatever the bytes are, there are rows that are whole, or one sentence. */
#include "engine/measure/table.h"
#include "engine/options/options.h"
#include "tests/fuzz/fuzz_yaml.h"

#include <math.h>
#include <stdio.h>

static void check_policy(const struct aq_table *t, const struct aq_table_policy *p)
{
    fuzz_check(p->engine < t->engine_count && p->gpu_batch_size && p->num_gpu_batches);
    for (int i = 0; i < 6; i += 2)
        fuzz_check(p->percent[i] >= 0 && p->percent[i + 1] >= 0 &&
                   p->percent[i] + p->percent[i + 1] <= 100);
    fuzz_check(p->hh_ratio >= 0 && p->hh_ratio <= 0.5);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct aq_table *t = NULL;
    struct aq_err err = {0};
    char path[64];
    int fd = fuzz_file(data, bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = aq_table_read(&t, path, &err);
    close(fd);
    if (rc < 0) {
        fuzz_check_error_text(&err);
        return 0;
    }
    fuzz_check(t->name && t->row_count > 0 && t->row_count <= AQ_TABLE_ROWS_MAX);
    for (uint32_t i = 0; i < t->row_count; i++) {
        const struct aq_table_row *row = &t->row[i];
        struct aq_options *o = NULL;
        fuzz_check(row->name && json_is_object(row->options));
        fuzz_check((row->published > 0) == (row->source != NULL) && isfinite(row->published));
        if (row->has_policy)
            check_policy(t, &row->policy);
        if (aq_options_from_json(&o, "bench", row->options, &err) == 0)
            aq_options_close(o);
    }
    aq_table_close(t);
    return 0;
}
