/* working_set.h - the number of different blocks used lately (Denning's working set), in bounded
 * memory.
 *
 * A block is 64 tokens; its hash covers all earlier tokens and the tenant's salt, as in a prefix
 * tree. A common beginning of many texts counts once. The table holds hashes and the times of their
 * last use. A full table keeps a sample: hashes below a threshold, which is halved each time. The
 * count is then an estimate with an error of about 1 / sqrt(kept hashes), 1 % at the default size.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_WORKING_SET_H
#define QUIRE_TRACE_WORKING_SET_H

#include <stdint.h>

#define QUIRE_WORKING_SET_BLOCK_TOKENS 64u
#define QUIRE_WORKING_SET_SLOTS        16384u /* default */

typedef struct quire_working_set quire_working_set;

typedef struct quire_working_set_opts {
    uint32_t n_slots;   /* a power of two, >= 64; 0 = QUIRE_WORKING_SET_SLOTS, 256 KiB */
    uint64_t recent_us; /* the length of "lately", >= 1 */
    uint64_t seed;
} quire_working_set_opts;

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_working_set_create(quire_working_set **out, const quire_working_set_opts *opts);
void quire_working_set_destroy(quire_working_set *set);

typedef struct quire_working_set_text {
    const void *salt;
    uint32_t salt_bytes;
    const int32_t *tokens;
    uint32_t n_tokens; /* tokens after the last whole block do not count */
} quire_working_set_text;

/* The whole blocks of a text are used now; now_us must not go back. Cost: a hash over the tokens.
 */
void quire_working_set_touch(quire_working_set *set, const quire_working_set_text *text,
                             uint64_t now_us);

/* Blocks that were used within the last recent_us. Cost: O(slots). */
uint64_t quire_working_set_blocks(const quire_working_set *set, uint64_t now_us);

#endif /* QUIRE_TRACE_WORKING_SET_H */
