/* tier_object.h - the loop's side of a store below memory; for tier*.c and the loop.
 *
 * Transfers come from one list of buffers; those of puts are at most half of them.
 *
 * Thread: the engine's, except for the waker.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_TIER_OBJECT_H
#define QUIRE_ENGINE_TIER_OBJECT_H

#include "engine/loop/condensed_set.h"
#include "engine/loop/loop.h"
#include "engine/loop/tier_down.h"
#include "engine/tier.h"
#include "store/page_io.h"

/* The stages of a fetch. */
typedef enum quire_fetch_stage {
    QUIRE_FETCH_READS, /* pages come, in order */
    QUIRE_FETCH_LOOKS, /* the store is asked which condensed texts it has: tier_condensed.c */
    QUIRE_FETCH_ENDS   /* of a condensed text a page is missing; an earlier one is looked for */
} quire_fetch_stage;

/* Pages of one request on their way into the tree. */
typedef struct quire_fetch {
    struct quire_fetch *next;
    quire_request *request; /* NULL: given up; the fetch waits for its transfers */
    uint8_t rank;           /* highest of the requests that wait for it */
    quire_seq_id seq;       /* holds the arrived pages */
    quire_prefix_ref ref;
    quire_prefix_key key; /* salt: of the request */
    quire_page_key root;  /* of the tenant's plain texts: that of all records */
    quire_fetch_stage stage;
    quire_condensed entry;    /* whose text is fetched; held. QUIRE_CONDENSED_NULL: a plain one */
    uint32_t k;               /* condensings behind it */
    uint32_t n_gone;          /* tokens of the text that left in these; pages count behind them */
    uint32_t k_have;          /* condensings behind the text that the tree has, */
    uint32_t n_have;          /* its tokens, */
    uint32_t k_max;           /* condensings that a text from the store may have, */
    uint32_t n_want;          /* its tokens */
    uint32_t k_found;         /* the most condensings of a text that the store has */
    quire_page_key *keys;     /* [n_pages + 1] of the text before page i */
    uint32_t n_pages;         /* full pages wanted: [next_use, n_pages) are not there yet */
    uint32_t next_get;        /* next page to ask for */
    uint32_t next_use;        /* next page to write into the tree */
    uint32_t n_open;          /* tokens wanted behind the full pages; 0 = none */
    bool is_open_full;        /* they begin a full page of the request: ask for that first */
    uint32_t n_away;          /* transfers that the store has */
    quire_transfer **arrived; /* [n_slots], page i at i % n_slots */
    uint32_t n_slots;
    uint64_t begun_us;
    uint64_t moved_us; /* when a page last arrived */
} quire_fetch;

typedef struct quire_tier {
    quire_tier_opts opts;
    quire_store *store;
    uint64_t local_wait_us; /* tier_patience.h; 0 = a wait was chosen, or the store is shared */
    quire_request *ahead;   /* in no queue: stands for the text that is fetched ahead; NULL = none
                               was */
    uint32_t n_holds;       /* no fetch begins: quire_loop_fetch_hold() */
    quire_fetch *fetches;   /* by rank, the highest first; of one rank in order of their begin */
    /* Buffers. */
    quire_transfer *unused;         /* linked by next */
    quire_transfer *unused_queries; /* without buffers, linked likewise */
    quire_page_key touched_root;    /* of the request that is touched now */
    uint64_t touched_by;            /* its number */
    uint32_t n_buffers;             /* made so far */
    uint32_t n_buffers_max;
    uint32_t n_puts_away;
    quire_page_parts parts;
    quire_store_hints hints; /* the last ones */
    /* Copying. */
    uint32_t cursor;    /* next node to look at */
    double debt_ns;     /* time taken beyond the share, for copies */
    double use_debt_ns; /* likewise, for arrived pages */
    bool is_closing;    /* copy everything */
    uint32_t n_lap;     /* copies begun since the cursor was at the first node */
    quire_tier_down down;
    /* The breaker. */
    uint64_t paused_until_us;
    uint64_t pause_us;
} quire_tier;

/* Errors: QUIRE_NOMEM, QUIRE_RANGE (pages are too large). *out is NULL without a store. The store
 * is the loop's once the loop's thread runs. */
int quire_tier_create(quire_loop *loop, quire_tier **out);
/* Copy the pages that are worth a copy, within the time bound, unless copies end with the process,
 * and close the store. Requests have ended. */
void quire_tier_close(quire_loop *loop);

/* The loop ends before its thread ran: the store stays its owner's. */
void quire_tier_release(quire_loop *loop);

/* The store hears of the budgets of regions, and of the cost of computing a token. */
void quire_tier_regions_changed(quire_loop *loop);
void quire_tier_cost_set(quire_loop *loop, double token_us, double token_depth_us);

/* Take in the transfers that the store gives back; write arrived pages. step_us: time of the last
 * step, 0 = nothing runs. */
void quire_tier_poll(quire_loop *loop, uint64_t step_us);

/* Whether this request waits for pages from below; begins a fetch if that is worth it. Called when
 * the request could be admitted. */
bool quire_tier_holds(quire_loop *loop, quire_request *request);
/* Begin fetches for requests that should be admitted within opts.prefetch_steps. */
void quire_tier_prefetch(quire_loop *loop);
/* Whether queued requests wait for pages from below, or may not ask for them yet. */
bool quire_tier_is_fetching(const quire_loop *loop);
/* Give up all fetches, so that their pages can be evicted. Returns whether there were any. */
bool quire_tier_yield(quire_loop *loop);
/* The request ends: so does its fetch. */
void quire_tier_leave(quire_loop *loop, quire_request *request);

/* Copy pages below, after a step of step_us; 0 = nothing runs. Returns whether there may be more
 * to do now. */
bool quire_tier_copy(quire_loop *loop, uint64_t step_us);

/* Copy the published pages of a request that is about to give up its pages, if reading them again
 * should cost less than computing them: as far as buffers are free; or from a device, whose copies
 * the steps of others would wait for, by and by in quire_tier_copy(). */
void quire_tier_copy_request(quire_loop *loop, const quire_request *request);

/* A request began with pages from memory: their copies count as used, and pages whose copies have
 * gone are copied again. */
void quire_tier_touch(quire_loop *loop, const quire_request *request);

/* Forget copies. Called after the tree has forgotten. */
void quire_tier_invalidate(quire_loop *loop, const quire_invalidate *what);

/* Forget the pages that other machines dropped: of tenants, or all pages. Of single texts memory
 * keeps its pages, because it finds them by tokens alone; the store forgets them. */
void quire_tier_hear(quire_loop *loop);

/* Take the store's figures into loop->figures: once per round, and while nothing runs. */
void quire_tier_stats_fill(quire_loop *loop);

/* ---- between tier*.c ---- */

/* Begin to fetch the pages of a request's tokens n_have to n_want, if fetching is worth it. Returns
 * whether it waits for pages now. */
bool quire_fetch_start(quire_loop *loop, quire_request *request, uint32_t n_have, uint32_t n_want);
void quire_tier_ahead_free(quire_tier *tier);

/* The number of a request for stores (quire_page_use); 0: it only stands for a text. */
uint64_t quire_tier_number(const quire_loop *loop, const quire_request *request);

/* The region of the pages that a request fetches. */
quire_region_id quire_tier_region(const quire_loop *loop, const quire_request *request);
/* The use of a page that the tree does not have: the request is known, the page has no history. */
quire_page_use quire_tier_use(const quire_loop *loop, const quire_request *request, uint8_t rank);

/* A buffer, or NULL: none is free. */
quire_transfer *quire_tier_buffer_take(quire_tier *tier);
void quire_tier_buffer_give(quire_tier *tier, quire_transfer *transfer);
/* A query for the owner of a tier: tier_condensed.c has those whose owner is a fetch. NULL: no
 * memory. */
quire_transfer *quire_tier_query_take(quire_tier *tier);
void quire_tier_query_give(quire_tier *tier, quire_transfer *transfer);
/* Enter the pages of the request's text behind k condensings. Errors: QUIRE_NOMEM, QUIRE_AGAIN,
 * those of quire_seq_open() and quire_prefix_acquire(). */
int quire_fetch_open(quire_loop *loop, quire_fetch *fetch, uint32_t k);
/* Ask for the condensed texts that are more than the tree has; without any, for pages at once.
 * Returns whether there is something to wait for. */
bool quire_fetch_look(quire_loop *loop, quire_fetch *fetch);
/* A query came back; all of them did. The latter returns as quire_fetch_look(). */
void quire_fetch_heard(quire_loop *loop, quire_transfer *transfer);
bool quire_fetch_looked(quire_loop *loop, quire_fetch *fetch);
/* A request of a higher rank waits for this fetch as well. */
void quire_fetch_raise(quire_tier *tier, quire_fetch *fetch, uint8_t rank);
/* Give up the last fetch of a lower rank, so that a request of this rank may fetch. Its request may
 * fetch again later. Returns whether there was one. */
bool quire_fetch_displace(quire_loop *loop, uint8_t rank);
/* A get came back. */
void quire_fetch_arrived(quire_loop *loop, quire_transfer *transfer);
/* Write arrived pages of all fetches, ask for more, end the complete and the given-up ones. */
void quire_fetches_move(quire_loop *loop, uint64_t step_us);
void quire_fetches_destroy(quire_loop *loop);
/* Mean time of reading a record in microseconds; 0 = not known. */
double quire_tier_read_us(const quire_store_stats *stats);
double quire_tier_page_us(const quire_loop *loop);
/* The store that other threads look at from now; NULL = none. */
void quire_tier_view_set(quire_loop *loop, const quire_store *store);
/* Whether the first n_tokens tokens of a page that came are of use. Where there are states, a hit
 * ends in an open page behind its last token or nowhere. */
bool quire_fetch_is_useful(const quire_loop *loop, const quire_transfer *transfer,
                           uint32_t n_tokens);
/* Give the tree the state behind these tokens, which the fetch has published. Without room the tree
 * has none. */
void quire_fetch_state(quire_loop *loop, const quire_fetch *fetch, const quire_transfer *transfer,
                       uint32_t n_tokens);
/* A query came back. */
void quire_touch_done(quire_loop *loop, quire_transfer *transfer);
/* A put came back. */
void quire_copy_done(quire_loop *loop, quire_transfer *transfer);

#endif /* QUIRE_ENGINE_TIER_OBJECT_H */
