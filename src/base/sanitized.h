/* sanitized.h - whether the compiler adds a sanitizer's checks to each access of memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_SANITIZED_H
#define QUIRE_BASE_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUIRE_SANITIZED 1
#endif
#endif
#ifndef QUIRE_SANITIZED
#define QUIRE_SANITIZED 0
#endif

#endif /* QUIRE_BASE_SANITIZED_H */
