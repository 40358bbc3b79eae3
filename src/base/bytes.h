/* bytes.h - bytes that grow: text of unknown length, replies, documents.
 *
 * Start with { 0 }. A failed append leaves the bytes unchanged. The error is also stored, so that a
 * series of appends can be checked once at its end.
 *
 * Memory: quire_bytes_fini(), or take `data` and free() it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_BYTES_H
#define QUIRE_BASE_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct quire_bytes {
    char *data; /* [capacity], a zero byte after the n ones that count; NULL while empty */
    size_t n;
    size_t capacity;
    int status; /* QUIRE_OK, or the first error */
} quire_bytes;

/* Append n bytes. Errors: QUIRE_NOMEM. */
int quire_bytes_add(quire_bytes *bytes, const void *data, size_t n);
/* Append printf's text. Errors: QUIRE_NOMEM. */
__attribute__((format(printf, 2, 3))) int quire_bytes_addf(quire_bytes *bytes, const char *format,
                                                           ...);
/* Forget the content, keep the memory. */
void quire_bytes_clear(quire_bytes *bytes);
void quire_bytes_fini(quire_bytes *bytes);

/* The number of equal bytes at the beginning of both. */
size_t quire_bytes_same(const char *a, size_t n_a, const char *b, size_t n_b);

#endif /* QUIRE_BASE_BYTES_H */
