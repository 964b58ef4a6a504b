/* SPDX-License-Identifier: Apache-2.0
 * base/sanitized.h - whether this build has sanitizers, in which what computes takes several times
 * as long: 1 or 0. */
#ifndef AQ_BASE_SANITIZED_H
#define AQ_BASE_SANITIZED_H

#if defined(__has_feature)
#define AQ_ADDRESS_SANITIZED __has_feature(address_sanitizer)
#define AQ_SANITIZED         (AQ_ADDRESS_SANITIZED || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__)
#define AQ_ADDRESS_SANITIZED 1
#define AQ_SANITIZED         1
#else
#define AQ_ADDRESS_SANITIZED 0
#if defined(__SANITIZE_THREAD__)
#define AQ_SANITIZED 1
#else
#define AQ_SANITIZED 0
#endif
#endif

#endif
