/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/help_topics.h"

#include <stddef.h>
#include <string.h>

static const char words[] =
    "Words of plans, start lines and reports\n"
    "\n"
    "  seat  the place of one running sequence: a prompt and what is generated for it\n"
    "  micro-batch  the seats that are computed together\n"
    "  block  all seats: the micro-batches that share one reading of the weights\n"
    "  pass  each layer once for each micro-batch: one token more for every seat\n"
    "  lane  a queue of work on one resource: compute, h2d and d2h (copies to the device and "
    "back), "
    "disk_read, ...\n"
    "  placement  weights=D/H/N: percent on the device, in host memory, and on disk; on the cpu "
    "there "
    "is no device, and its share is host memory\n"
    "  head  the product that makes the logits: head=host says where its weights are\n"
    "  ring  memory that weights pass through which have no place\n"
    "  ledger  every large buffer, before it is allocated\n"
    "  lossy  what rounds or drops more than the checkpoint's own formats do\n";

const char *aq_help_topic(const char *name)
{
    return strcmp(name, "words") == 0 ? words : NULL;
}
