/* lanes_loop.h - requests whose policy lets lanes keep different numbers of tokens: their packed
 * pages (retain/packed.h), and the device of attention on these, which the engine sets up with the
 * first such request; and requests whose generated tokens read a share of the pages.
 *
 * The KV of such generated tokens depends on the share. The request therefore finds and publishes
 * its prompt alone, whose tokens read all pages: an answer has the same bits after a hit, a miss
 * and a preemption. With quire_runtime_opts.has_bounds the device is there from the first step on,
 * because it makes the bounds of all pages.
 *
 * Thread: the engine's; create and destroy: the owner of the loop.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LANES_LOOP_H
#define QUIRE_ENGINE_LANES_LOOP_H

#include "engine/loop/request.h"
#include "engine/repeating.h"

/* The part of the loop that serves texts by lane. */
typedef struct quire_loop_lanes {
    quire_attn_layer *layers;     /* [n_layer] */
    quire_condensing_parts parts; /* constant */
    quire_packed_device *device;  /* NULL: no request needed it yet */
    bool is_outer;                /* it stands in front of the device of the overflow file */
    quire_repeating repeating;    /* constant */
    float *frequencies;           /* of the rotation */
    quire_rotation rotation;      /* constant; of parts */
} quire_loop_lanes;

/* Errors: QUIRE_NOMEM. */
int quire_loop_lanes_create(quire_loop *loop);
/* After the last step. */
void quire_loop_lanes_destroy(quire_loop *loop);

/* The request begins with the tokens of its sequence, n_pages of whose pages are packed. Nothing,
 * for an even policy, unless the request reads a share of the pages. Errors: QUIRE_UNSUPP, those of
 * quire_loop_lanes_follow(). Memory: quire_loop_lanes_end(), on errors too. */
int quire_loop_lanes_begin(quire_loop *loop, quire_request *request);
/* Its sequence is another one now. Errors: QUIRE_NOMEM, QUIRE_LOST, QUIRE_CORRUPT (its packed pages
 * are damaged; the tree has forgotten them). After an error the request cannot go on with it. */
int quire_loop_lanes_follow(quire_loop *loop, quire_request *request);
void quire_loop_lanes_end(quire_request *request);

/* The figures of rows that read a share of the pages. */
void quire_loop_lanes_stats_fill(quire_loop *loop);

/* Before condensing number k, of a policy that repeats: have the model repeat the next part of the
 * chunk, in steps of its own. Errors: those of quire_runtime_step(), QUIRE_NOMEM; the sequence has
 * its tokens then. */
int quire_loop_lanes_repeat(quire_loop *loop, quire_request *request, uint32_t k);

/* Whether the queries of the request's next n_rows rows in a step are to be kept. For this the last
 * layer must be computed. */
bool quire_request_lanes_want(const quire_request *request, uint32_t n_rows);

#endif /* QUIRE_ENGINE_LANES_LOOP_H */
