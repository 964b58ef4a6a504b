/* SPDX-License-Identifier: Apache-2.0
 * engine/embedded.h - files that the library carries in itself, so that they are found from
 * wherever it runs.  Made by engine/embed.py at build time. */
#ifndef AQ_ENGINE_EMBEDDED_H
#define AQ_ENGINE_EMBEDDED_H

#include <stddef.h>
#include <stdint.h>

struct aq_embedded {
    const char *name; /* of the file, without its suffix; in the order of engine/meson.build */
    size_t bytes;
    const char *text;
};

extern const struct aq_embedded aq_embedded_hardware[]; /* configs/hardware */
extern const uint32_t aq_embedded_hardware_count;
extern const struct aq_embedded aq_embedded_models[]; /* configs/models */
extern const uint32_t aq_embedded_models_count;
extern const struct aq_embedded aq_embedded_page[]; /* engine/plan/page_* */
extern const uint32_t aq_embedded_page_count;

#endif
