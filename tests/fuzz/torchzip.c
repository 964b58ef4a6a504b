/* SPDX-License-Identifier: Apache-2.0
 * Any file: it is refused with one error, or all that it lists can be read. */
#include "engine/checkpoint/torchzip.h"
#include "tests/fuzz/fuzz_tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_tensors(data, size, aq_torchzip_list);
    return 0;
}
