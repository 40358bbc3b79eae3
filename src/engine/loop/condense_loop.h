/* condense_loop.h - requests that keep a share of their text (engine/condensing.h), in the prefix
 * tree.
 *
 *   root of the model and tenant          the text up to the first condensing: that of all requests
 *   root of the text's first k chunks     [ label of kept(k) tokens ][ the chunk behind them ]
 *
 * A text that was condensed k times is found under a root of its own, whose identity is made of the
 * name of the entry for model, policy, tenant and the first k chunks (condense_names.h). There it
 * is spelled by the text's tokens from `gone(k)` on: the first kept(k) of them only label the kept
 * pages, and the text is whole through the root. So the tree's pages, hits, references, owners,
 * ranks and accounts work as ever, and a tenant's salt is the root's.
 *
 * A hit needs all kept pages of its root. Where some were evicted, the request begins with those of
 * an earlier condensing, or with the plain text, and condenses again: the bytes are the same.
 *
 * Thread: the engine's, unless a function says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONDENSE_LOOP_H
#define QUIRE_ENGINE_CONDENSE_LOOP_H

#include "engine/loop/request.h"

/* The cached beginning of a request. */
typedef struct quire_condensed_hit {
    quire_condensed entry; /* QUIRE_CONDENSED_NULL: plain text */
    uint32_t k;            /* condensings behind it */
    uint32_t n_gone;       /* tokens that left in these */
    uint32_t n_end;        /* the text under this root ends here, at most */
    uint32_t n_use_end;    /* and the request begins here, at most: it must see the last queries */
} quire_condensed_hit;

/* Look up the first n_ask tokens of a request, of which n_use may be used, in the tree: the last
 * condensing whose pages are all there. The claim's tokens count from the hit's n_gone on. */
quire_condensed_hit quire_loop_condensed_claim(const quire_loop *loop, const quire_request *request,
                                               uint32_t n_ask, uint32_t n_use,
                                               quire_prefix_claim *claim);

/* A request has acquired a hit. Afterwards the match counts all tokens from the beginning of the
 * text. Errors: QUIRE_NOPAGES (its sequence does not hold all kept tokens of the text),
 * quire_loop_lanes_begin(). */
int quire_loop_condensed_begin(quire_loop *loop, quire_request *request,
                               const quire_condensed_hit *hit, quire_prefix_match *match);

/* Tokens up to which both requests find the same pages for the same text. */
uint32_t quire_loop_condensed_common(const quire_request *a, const quire_request *b);

/* The end of the cached tokens that are of use to a request with k condensings behind it. */
uint32_t quire_request_fetch_end(const quire_request *request, uint32_t k);

/* Before a step: condense the texts that are at a place for it. Returns false when there was no
 * memory for it; a request has then left the running ones, and there is no step in this round. */
bool quire_loop_condense(quire_loop *loop);

/* The request gives its pages up: give the hot pages back that were kept for a condensing, also
 * those that the tree has. After its last publication. */
void quire_loop_condensed_cool(quire_loop *loop, quire_request *request);

/* The request's pages are gone. */
void quire_loop_condensed_forget(quire_loop *loop, quire_request *request);

/* Texts are invalidated: drop the condensed ones that the tree does not find by its own rules, and
 * have running requests publish none of them later. */
void quire_loop_condensed_invalidate(quire_loop *loop, const quire_invalidate *what,
                                     quire_prefix_dropped *dropped);

/* Gauges of condensed texts. */
void quire_loop_condensed_stats_fill(quire_loop *loop);

#endif /* QUIRE_ENGINE_CONDENSE_LOOP_H */
