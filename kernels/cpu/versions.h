/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/versions.h - every version of every CPU kernel, declared from the kernel's own
 * function type so that versions cannot drift apart.  Included by table_cpu.c and by the files that
 * define them; nobody else names a version. */
#ifndef AQ_KERNELS_CPU_VERSIONS_H
#define AQ_KERNELS_CPU_VERSIONS_H

#include "kernels/kernels.h"

/* Products and panels. */
aq_product_fn aq_product_f32_ref;
aq_product_fn aq_product_bf16_ref;
aq_pack_panel_fn aq_pack_panel_ref;

/* Row operations, attention, logits: one block per kernel. */

#endif
