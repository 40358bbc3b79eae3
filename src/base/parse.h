/* parse.h - numbers and sizes as people write them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_PARSE_H
#define QUIRE_BASE_PARSE_H

#include <stddef.h>
#include <stdint.h>

/* A whole string as a decimal integer within [min, max].
 * Errors: QUIRE_INVAL (not a number), QUIRE_RANGE. *out is unchanged on failure. */
int quire_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out);

/* A whole string as a finite decimal number within [min, max]. Errors: as above. */
int quire_parse_f64(const char *text, double min, double max, double *out);

/* A count or size: a non-negative decimal number, fractions allowed, followed by nothing, by B, by
 * k M G T (powers of 1,000), each with an optional B ("1.5GB"), or by KiB MiB GiB TiB (powers of
 * 1,024). Case of the suffix does not matter. Errors: QUIRE_INVAL, QUIRE_RANGE (over 2^63). */
int quire_parse_size(const char *text, uint64_t *out);

/* A time in microseconds: a non-negative decimal number, fractions allowed, followed by nothing or
 * s (seconds), ms, m (minutes), h or d. Errors: as above. */
int quire_parse_duration(const char *text, uint64_t *us);

/* "17.2 GB": three significant digits, powers of 1,000. Returns text. buffer of at least 16. */
char *quire_format_bytes(uint64_t bytes, char *buffer, size_t buffer_bytes);

/* "0.1": a finite value as printf's %g prints it, with as many more digits as quire_parse_f64()
 * needs to read exactly this value. Returns buffer, of at least 32 bytes. */
char *quire_format_real(double value, char *buffer, size_t buffer_bytes);

/* The candidate closest to word by edit distance (Damerau, restricted), if it is close enough to be
 * a likely typo (at most a third of the longer word, rounded up); NULL otherwise.
 * Cost: O(sum of lengths product). Words over 64 bytes are compared by their first 64. */
const char *quire_nearest_name(const char *word, const char *const *candidates, size_t n);
/* The same, with at most so many edits. */
const char *quire_nearest_within(const char *word, const char *const *candidates, size_t n,
                                 size_t edits_max);

#endif /* QUIRE_BASE_PARSE_H */
