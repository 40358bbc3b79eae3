/* precache.h - idle time computes what is likely to be asked for again.
 *
 * Candidates are texts that were cached once and are no longer:
 *
 *   shared     prefixes that several requests began with, evicted for want of memory or expired
 *   continued  sessions that are likely to go on (their tokens are kept, sessions.h)
 *
 * What somebody invalidated is left alone: it was called wrong, and nothing here knows better. Nor
 * is anything computed for a session that was closed.
 *
 * It begins when nothing ran for idle_us, goes on in steps of one page (less, where that would take
 * longer than 50 ms), and stops when a request comes, at the latest at the step's end: what was
 * computed by then stays cached. It takes free memory only, never by
 * evicting: what is cached has shown more than a guess has. Its pages have the lowest rank.
 *
 * Gain is what requests found of it, in tokens; waste is what was evicted, expired or lay unused
 * for judge_us. When waste exceeds gain by more than slack_tokens it pauses, first for a minute,
 * then twice as long each time, and is no worse off afterwards than before.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PRECACHE_H
#define QUIRE_ENGINE_PRECACHE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire_precache_opts {
    bool is_off;
    uint64_t idle_us;      /* nothing ran for so long; 0 = default, 200 ms */
    uint64_t judge_us;     /* unused for so long is waste; 0 = default, 10 minutes */
    uint32_t slack_tokens; /* of waste that is put up with; 0 = default, 4096 */
    uint32_t texts_max;    /* shared prefixes remembered; 0 = default, 256 */
} quire_precache_opts;

typedef struct quire_precache_stats {
    bool is_on; /* false: switched off, or pausing because it wasted */
    uint64_t runs_total;
    uint64_t aborted_runs_total; /* because a request came */
    uint64_t tokens_total;       /* computed */
    uint64_t gain_tokens_total;
    uint64_t waste_tokens_total;
    uint64_t pauses_total;
} quire_precache_stats;

#endif /* QUIRE_ENGINE_PRECACHE_H */
