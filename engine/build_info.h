/* SPDX-License-Identifier: Apache-2.0
 * engine/build_info.h - which sources this build was made from.  Static strings. */
#ifndef AQ_ENGINE_BUILD_INFO_H
#define AQ_ENGINE_BUILD_INFO_H

const char *aq_build_version(void); /* "0.1.0" */
const char *aq_build_commit(void);  /* as `git describe --always --dirty`, or "unknown" */

#endif
