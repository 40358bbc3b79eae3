/* loop_object.h - the struct of the loop, for src/engine/loop only. Its parts have headers of their
 * own: inbox.h, running_set.h, room.h, step.h, figures.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LOOP_OBJECT_H
#define QUIRE_ENGINE_LOOP_OBJECT_H

#include "engine/loop/condensed_set.h"
#include "engine/loop/figures.h"
#include "engine/loop/inbox.h"
#include "engine/loop/lanes_loop.h"
#include "engine/loop/loop.h"
#include "engine/loop/room.h"
#include "engine/loop/running_set.h"
#include "engine/loop/step.h"

/* The file for requests that are larger than the budget: overflow_loop.h. */
typedef struct quire_loop_overflow {
    quire_offload *offload; /* NULL = none */
    uint32_t n_given;       /* stripes given up in this round for requests that wait */
    quire_attend_choice choice;
    uint64_t attend_bytes; /* of offloaded pages that the step at hand reads, if it may attend them
                              where they lie; else 0 */
    bool is_timed;         /* the step at hand has generated tokens alone */
    bool has_failed;       /* quire_overflow_has_failed() */
} quire_loop_overflow;

/* The store below memory, for other threads: tier_look.c. */
typedef struct quire_store_view {
    pthread_mutex_t lock;
    const quire_store *store; /* under the lock; NULL = there is none, or it ends */
} quire_store_view;

struct quire_loop {
    /* Constant after start. */
    quire_engine_opts opts;
    quire_loop_parts parts;
    quire_loop_events events;
    const quire_model *model;
    const quire_model_desc *desc;
    const quire_runtime_opts *runtime_opts;
    quire_runtime *runtime;
    quire_cache *cache;
    quire_sessions *sessions;
    uint64_t identity[2];
    uint64_t created_us;
    pthread_t thread;
    bool is_started;
    quire_loop_heir heir;

    /* The engine's thread. */
    quire_prefix *tree;
    quire_condensed_set *condensed;
    quire_loop_lanes lanes;
    quire_room room;
    struct quire_tier *tier; /* NULL = nothing below memory */
    quire_loop_overflow overflow;
    quire_running_set set;
    quire_step step;
    uint64_t tier_step_us; /* time of the last round; 0 = nothing ran */
    uint64_t upkeep_us;    /* when upkeep was last done */
    bool has_cleared;      /* the watcher knows that the pages are lost with the device */
    quire_chore_budget chore_budget;

    quire_figures figures;
    quire_inbox inbox;
    quire_store_view store_view;
};

/* ---- admit.c: from the queues to running ---- */

void quire_loop_admit(quire_loop *loop);

/* Tokens of a waiting request that are cached, and tokens that it would use if they were. */
void quire_loop_tokens_have(const quire_loop *loop, quire_request *request, uint32_t *n_have,
                            uint32_t *n_want);

/* ---- leave.c: from running to the queue or the end ---- */

void quire_loop_end(quire_loop *loop, quire_request *request, const quire_ending *ending);
/* End cancelled requests. */
void quire_loop_cancels_apply(quire_loop *loop);
/* Close the sequence of a request, and release its hold on the tree. */
void quire_loop_seq_end(quire_loop *loop, quire_request *request);
/* Publish the computed tokens of a request, release its pages, and take it from the running or the
 * parked ones. */
void quire_loop_let_go(quire_loop *loop, quire_request *request);
/* Publish the computed tokens of a request, release its pages and queue it again. */
void quire_loop_preempt(quire_loop *loop, quire_request *request);
/* End all requests, those that wait too. */
void quire_loop_all_end(quire_loop *loop, const quire_ending *ending);
/* React to a failed step: preempt a request, or end the only running one, to make the next step
 * smaller. */
void quire_loop_relieve(quire_loop *loop, int status);

/* ---- failover.c ---- */

/* The runtime's device was lost, and all pages with it: the heir takes the requests, and those that
 * it does not take fail, as do all new ones. */
void quire_loop_lost(quire_loop *loop);

#endif /* QUIRE_ENGINE_LOOP_OBJECT_H */
