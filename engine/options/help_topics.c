/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/help_topics.h"

#include <stddef.h>
#include <string.h>

static const char hardware[] =
    "A hardware profile is a YAML file for --hardware FILE: sections of numbers. What is left out "
    "is "
    "derived, and plans list what was. aquifer probe writes one of this machine; configs/hardware "
    "has some. A number may be a map {value, spread, source}, and a section may have a source.\n"
    "\n"
    "What it must have\n"
    "  machine.cores  of the host; else host.threads\n"
    "  host.memory  a size such as 64GiB\n"
    "  host.memory_gb_s  what all cores read of it, GB/s (1e9 bytes)\n"
    "  host.product_f32_tflop_s  products of large matrices, TFLOP/s; or _f16_, or _bf16_\n"
    "\n"
    "With an accelerator also\n"
    "  device.memory  a size\n"
    "  device.memory_gb_s  GB/s\n"
    "  device.product_f16_tflop_s  dense, as a data sheet has it, less what is never reached "
    "(0.8); "
    "or _bf16_, or _f32_\n"
    "  links.h2d_gb_s  copies from pinned host memory to the device; d2h_gb_s: back (else alike)\n"
    "\n"
    "With a disk also\n"
    "  disk.space  a size: what is free\n"
    "  disk.read_gb_s  large sequential reads; write_gb_s: writes (else half of it)\n"
    "\n"
    "Texts: machine.name, machine.description, machine.cpu, device.name. Further numbers "
    "(host.attention_memory_gb_s, device.unpack_int4_gb_s, links.duplex, ...) are those that probe "
    "writes.\n";

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
    return strcmp(name, "hardware") == 0 ? hardware : strcmp(name, "words") == 0 ? words : NULL;
}
