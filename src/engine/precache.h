/* precache.h - use idle time to recompute texts that are likely to be requested again.
 *
 * Candidates are texts that were cached before and no longer are:
 *
 *   shared     prefixes of several requests, evicted for lack of memory or expired
 *   continued  sessions that are likely to continue (sessions.h keeps their tokens)
 *
 * Invalidated texts and closed sessions are never recomputed in advance.
 *
 * Pre-caching begins after idle_us without work and proceeds in steps of one page, or less where a
 * page would take longer than 50 ms. It stops when a request arrives, at the latest at the end of
 * the step; KV computed so far stays cached. It uses free memory only and never evicts: cached
 * texts have proven more useful than a guess. Its pages have the lowest rank.
 *
 * Reading comes before computing. With a store below memory (tier.h), the pages of a session that
 * memory lacks are fetched when the session is likely to continue soon: when at least half of the
 * mean time between its turns has passed, or less than QUIRE_PRECACHE_NEAR_US of it are left. Each
 * session that lacks a full page is tried once after each turn, one at a time, into free memory; a
 * request that arrives ends it. Shared prefixes that were evicted and have copies in the store are
 * read as well. So a session that comes back after a restart finds its pages in memory.
 *
 * Gain counts pre-cached tokens that requests hit. Waste counts pre-cached tokens that were
 * evicted, expired or unused for judge_us. When waste exceeds gain by more than slack_tokens,
 * pre-caching pauses: for a minute at first, then twice as long each time. After a pause the full
 * slack is available again.
 *
 * With recurrent layers a run leaves states at the ends of the text's last pages, every
 * state_every_tokens tokens, and where it ends; memory for them must be free, too.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PRECACHE_H
#define QUIRE_ENGINE_PRECACHE_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_PRECACHE_NEAR_US  60000000u
#define QUIRE_PRECACHE_SESSIONS 64u /* that are considered: those used last */

typedef struct quire_precache_opts {
    bool is_off;
    uint64_t idle_us;      /* begin after this time without work; 0 = default, 200 ms */
    uint64_t judge_us;     /* tokens unused for this time are waste; 0 = default, 10 minutes */
    uint32_t slack_tokens; /* tolerated excess of waste over gain; 0 = default, 4096 */
    uint32_t texts_max;    /* shared prefixes remembered; 0 = default, 256 */
} quire_precache_opts;

typedef struct quire_precache_stats {
    bool is_on; /* false: switched off, or pausing because of waste */
    uint64_t runs_total;
    uint64_t aborted_runs_total; /* stopped by a request */
    uint64_t tokens_total;       /* computed */
    uint64_t gain_tokens_total;
    uint64_t waste_tokens_total;
    uint64_t pauses_total;
} quire_precache_stats;

#endif /* QUIRE_ENGINE_PRECACHE_H */
