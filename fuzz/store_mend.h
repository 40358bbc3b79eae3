/* store_mend.h - puts the checksums of changed segments, records and exported files right, so that
 * a search comes past them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_FUZZ_STORE_MEND_H
#define QUIRE_FUZZ_STORE_MEND_H

#include <stdbool.h>
#include <stddef.h>

/* A header, marker or trailer, [QUIRE_SEGMENT_BLOCK]. */
void fuzz_block_mend(unsigned char *block);
/* A record at the beginning of [n] bytes. Its sequence number stays. With has_own_key it gets the
 * key of its tokens. Returns its length; 0: there is none. */
size_t fuzz_record_mend(unsigned char *bytes, size_t n, bool has_own_key);
/* A trailer, the last block of [n] bytes, and the footer before it. */
void fuzz_footer_mend(unsigned char *bytes, size_t n);
/* A segment's file: all of these. n is a multiple of QUIRE_SEGMENT_BLOCK. */
void fuzz_segment_mend(unsigned char *bytes, size_t n);

#endif /* QUIRE_FUZZ_STORE_MEND_H */
