/* SPDX-License-Identifier: Apache-2.0 */
#include "base/panel.h"

const char *aq_layout_name(enum aq_layout l)
{
    static const char *const names[AQ_LAYOUT_COUNT] = {"rows", "pair64", "col64", "group64"};
    return (unsigned)l < AQ_LAYOUT_COUNT ? names[l] : "?";
}
