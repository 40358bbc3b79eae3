/* loop.h - the half of the engine that serves: requests in, steps, tokens out.
 *
 *   clients' threads                      the engine's thread
 *     submit --> inbox --------------------> queues -> running[] --> done
 *                                              ^------ parked[]
 *     wait   <-- events, result <----------- (the request's lock)
 *     call   --> tasks --------------------> run between two steps
 *     look   --> chores -------------------> a slice at a time, between two steps
 *     stats  <-- figures.shared <----------- (the inbox's lock)
 *
 * Adaptation (engine/adapt) watches by loop_events.h, asks by the questions below, and answers by
 * the setters. Nothing here includes anything of it.
 *
 * Locks: a request's before the inbox's, where both are held (cancel). The engine's thread never
 * holds both. Nobody holds either while it computes, samples or waits for memory of the cache.
 *
 * Thread: the engine's, unless a function says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LOOP_H
#define QUIRE_ENGINE_LOOP_H

#include "engine/engine.h"
#include "engine/loop/cost.h"
#include "engine/loop/loop_call.h"
#include "engine/loop/loop_events.h"

/* ---- life. Thread: the owner's ---- */

/* With the tree, the pinned region and the sessions, but at rest. Errors: QUIRE_INVAL, QUIRE_NOMEM.
 */
int quire_loop_create(quire_loop **out, const quire_engine_opts *opts, quire_error *err);
/* Start the thread. events is copied. Errors: QUIRE_NOMEM. */
int quire_loop_start(quire_loop *loop, const quire_loop_events *events, quire_error *err);
/* Cancel what runs, end the thread; fine where it was not started. */
void quire_loop_stop(quire_loop *loop);
/* After it has stopped. NULL is fine. */
void quire_loop_destroy(quire_loop *loop);

/* ---- what clients ask for: see the functions of engine.h and views.h. Thread: any ---- */

int quire_loop_submit(quire_loop *loop, const quire_request_params *params, quire_request **out,
                      quire_error *err);
int quire_loop_explain(quire_loop *loop, const char *request_id, const void *tenant,
                       uint32_t tenant_bytes, quire_explanation *out);
uint32_t quire_loop_explain_last(quire_loop *loop, quire_explanation *out, uint32_t n);
bool quire_loop_is_idle(const quire_loop *loop);
/* All but `memory`. */
void quire_loop_stats_get(quire_loop *loop, quire_engine_stats *out);

/* A request that computes its prompt for a pin, and then ends. Errors: quire_engine_submit(). */
int quire_loop_submit_pin(quire_loop *loop, const quire_request_params *params, uint64_t pin,
                          quire_request **out, quire_error *err);
/* Whether the model can compute these tokens at all. Errors: QUIRE_INVAL, QUIRE_RANGE. */
int quire_loop_tokens_check(const quire_loop *loop, const quire_request_params *params,
                            quire_error *err);

/* ---- questions. Thread: any ---- */

/* Constant after create. */
typedef struct quire_loop_parts {
    const quire_engine_opts *opts; /* with the defaults filled in */
    const quire_model *model;
    const quire_model_desc *desc;
    const quire_runtime_opts *runtime_opts;
    quire_sessions *sessions;
    quire_cache *cache;     /* the engine's thread's, but for its statistics */
    quire_prefix *tree;     /* likewise */
    const quire_cost *cost; /* the engine's thread's: what steps cost */
    uint64_t page_bytes;    /* charge of a page of all tokens */
    bool is_page_exact;     /* hits end at full pages */
    quire_region_id pinned; /* QUIRE_REGION_DYNAMIC = there is no pinned region */
    uint64_t created_us;
} quire_loop_parts;
const quire_loop_parts *quire_loop_parts_get(const quire_loop *loop);

uint64_t quire_loop_now_us(const quire_loop *loop);
/* Since the loop was created: what events are dated with. */
uint64_t quire_loop_uptime_us(const quire_loop *loop);
/* A number that nobody outside can know; 0 when the system has none. */
uint64_t quire_loop_random(void);
/* Charge of all pages that n_tokens tokens of one request take at most. */
uint64_t quire_loop_need_bytes(const quire_loop *loop, uint32_t n_tokens);
/* The region that a class's sequences are opened in. */
quire_region_id quire_loop_region(const quire_loop *loop, uint32_t class_index);
/* The key of a tenant's texts in the tree. Memory: salt is borrowed. */
quire_prefix_key quire_loop_key(const quire_loop *loop, const void *tenant, uint32_t tenant_bytes);

/* ---- questions of the engine's thread ---- */

/* Whose account a new key of this tenant counts to. */
uint16_t quire_loop_account(const quire_loop *loop, const void *tenant, uint32_t tenant_bytes);
/* How many requests of each class run: [QUIRE_CLASSES_MAX]. */
const uint32_t *quire_loop_running_of(const quire_loop *loop);

/* ---- setters ---- */

/* Pages, or room for them, may have become free: those that wait for room look again. */
void quire_loop_released(quire_loop *loop);
/* So many requests of a class may run from now on; those beyond are parked. */
void quire_loop_limit_set(quire_loop *loop, uint32_t class_index, uint32_t limit);
/* Time to live of what is cached, but for classes that have their own. */
int quire_loop_ttl_set(quire_loop *loop, uint64_t ttl_us);
/* Another low-traffic rule: its age, that is. */
int quire_loop_low_traffic_set(quire_loop *loop, uint64_t after_us);
/* What computing a token at a depth costs: quire_prefix_cost_set(). */
int quire_loop_token_cost_set(quire_loop *loop, double token_us, double token_depth_us);
/* Another size of the pinned region, at once. Errors: QUIRE_NOTFOUND (there is none),
 * quire_region_transfer(). */
int quire_loop_pinned_resize(quire_loop *loop, uint64_t budget_bytes);
/* While nothing runs: compute a slice of somebody's own sequence. It is given up when a request
 * comes. Errors: quire_runtime_step(). */
int quire_loop_compute(quire_loop *loop, const quire_slice *slice);
/* See quire_engine_invalidate(); owner: of a session. */
quire_prefix_dropped quire_loop_invalidate(quire_loop *loop, const quire_invalidate *what,
                                           uint64_t owner);

#endif /* QUIRE_ENGINE_LOOP_H */
