/* SPDX-License-Identifier: Apache-2.0
 * Hardware profiles: whatever the bytes are, there is a machine whose rates are finite, in their
 * limits and stay the same when it is written and read again, or one sentence. */
#include "engine/machine/hw_file.h"
#include "engine/machine/hw_keys.h"
#include "tests/fuzz/fuzz_yaml.h"

#include <math.h>

static void check_machine(const struct aq_hw_profile *p)
{
    for (uint32_t k = 0; k < aq_hw_key_count(); k++) {
        double value = aq_hw_key_value(p, k);
        fuzz_check(isfinite(value) && value >= 0);
        if (p->note[k].origin != AQ_HW_ABSENT)
            fuzz_check(value >= aq_hw_key_table[k].min * (1 - 1e-9) &&
                       value <= aq_hw_key_table[k].max * (1 + 1e-9));
    }
    fuzz_check(p->hw.cores > 0 && p->hw.host_memory_bytes_per_s > 0 && p->hw.h2d_bytes_per_s > 0);
    fuzz_check(p->hw.device_on_host == (p->capacity[AQ_DEVICE] == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct aq_hw_profile p, again;
    struct aq_err err = {0};
    int rc = aq_hw_file_parse(&p, "fuzz.yaml", (const char *)data, bytes, &err);
    if (rc < 0) {
        fuzz_check_error_text(&err);
        return 0;
    }
    struct aq_buf first = {0}, second = {0};
    check_machine(&p);
    json_decref(aq_hw_json(&p));
    aq_hw_file_text(&first, &p);
    /* What is written has five digits: a rate at a limit may have been rounded past it. */
    if (aq_hw_file_parse(&again, "again.yaml", first.data, first.count, &err) == 0) {
        check_machine(&again);
        aq_hw_file_text(&second, &again);
        fuzz_check(strcmp(first.data, second.data) == 0);
    }
    aq_buf_close(&first);
    aq_buf_close(&second);
    return 0;
}
