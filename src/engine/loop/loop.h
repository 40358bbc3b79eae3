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
 * The loop includes no header of engine/adapt. Adaptation (engine/adapt) includes this header alone
 * of engine/loop, and has four ways to the loop:
 *
 *   events   loop_events.h: the loop calls adaptation, on the engine's thread. Adaptation does not
 *            change the request of an event, and keeps no pointer to the request.
 *   setters  the functions of this header, queries included: the only way to change the loop's
 *            settings, limits, regions and requests. A pin is computed by a request of adaptation's
 *            own (quire_loop_submit_pin), to which it keeps a pointer until the request has ended.
 *   calls    loop_call.h: for pins and tuning, a function of adaptation runs on the engine's thread
 *            between two steps, on behalf of a client's thread. The function may use the other
 *            three ways.
 *   parts    quire_loop_parts: options, the cache and the tree. Adaptation reads them. In the cache
 *            and the tree it changes only objects of its own: the table of pins on the tree, and
 *            the sequence of the text that pre-caching computes, with the place of this text in the
 *            tree. When such a change frees pages or budget, adaptation calls
 *            quire_loop_released().
 *
 * Locks: cancel takes a request's lock before the inbox's lock. The engine's thread never holds
 * both. No thread holds either lock while it computes, samples or waits for memory of the cache.
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

/* Create the loop, its tree, pinned region and sessions; no thread yet. Errors: QUIRE_INVAL,
 * QUIRE_NOMEM. */
int quire_loop_create(quire_loop **out, const quire_engine_opts *opts, quire_error *err);
/* Another loop, which takes the requests of a loop whose device is lost; set before start(). The
 * thread of the lost loop calls it for each request, which then has no pages and is in no list. */
typedef struct quire_loop_heir {
    /* Returns whether a loop took the request. Then it belongs to that loop's thread. */
    bool (*take)(void *ctx, quire_request *request);
    /* A session of this owner has expired: the trees of the other loops drop its pages, too. */
    void (*owner_gone)(void *ctx, quire_loop *loop, uint64_t owner);
    /* Whether a request with these tokens would come to this loop now. */
    bool (*is_home)(void *ctx, const quire_loop *loop, const quire_prefix_key *key,
                    const int32_t *tokens, uint32_t n_tokens);
    void *ctx;
} quire_loop_heir;
bool quire_loop_has_heir(const quire_loop *loop);
void quire_loop_heir_set(quire_loop *loop, const quire_loop_heir *heir);
/* Start the thread. events is copied. Errors: QUIRE_NOMEM. */
int quire_loop_start(quire_loop *loop, const quire_loop_events *events, quire_error *err);
/* The thread will end without closing the store below memory: the engine could not be created, so
 * the store is still the caller's. No request has come. */
void quire_loop_store_leave(quire_loop *loop);
/* Cancel all requests and let the thread end. */
void quire_loop_stop_begin(quire_loop *loop);
/* The same, and wait for the thread. Allowed if it was not started. */
void quire_loop_stop(quire_loop *loop);
/* Destroy a stopped loop. NULL is allowed. */
void quire_loop_destroy(quire_loop *loop);

/* ---- calls of clients: see the functions of engine.h and views.h. Thread: any ---- */

/* n_cached: tokens of the prompt that the caller knows to be cached, for quire_loop_load_get(). */
int quire_loop_submit(quire_loop *loop, const quire_request_params *params, uint32_t n_cached,
                      quire_request **out, quire_error *err);
/* Why a loop refuses a request. Of several answers the last one here says most to the client. */
typedef enum quire_refusal {
    QUIRE_REFUSAL_NONE,
    QUIRE_REFUSAL_OTHER,   /* no memory, the end of the engine, an unknown class: not counted */
    QUIRE_REFUSAL_INVALID, /* by any loop */
    QUIRE_REFUSAL_LOST,    /* the device was lost; not counted */
    QUIRE_REFUSAL_BUDGET,  /* counted as invalid */
    QUIRE_REFUSAL_QUEUE,   /* is full */
} quire_refusal;
/* Submit a request. A refusal is not counted; *why says which it is. */
int quire_loop_try(quire_loop *loop, const quire_request_params *params, uint32_t n_cached,
                   quire_request **out, quire_refusal *why, quire_error *err);
void quire_loop_refusal_count(quire_loop *loop, uint32_t class_index, quire_refusal why);
/* Whether this loop's runtime supports the options of the request (context_overflow, retain,
 * attend). Errors: QUIRE_UNSUPP, QUIRE_INVAL. */
int quire_loop_abilities_check(const quire_loop *loop, const quire_request_params *params,
                               quire_error *err);
int quire_loop_explain(quire_loop *loop, const char *request_id, const void *tenant,
                       uint32_t tenant_bytes, quire_explanation *out);
uint32_t quire_loop_explain_last(quire_loop *loop, quire_explanation *out, uint32_t n);
bool quire_loop_is_idle(const quire_loop *loop);
bool quire_loop_is_lost(const quire_loop *loop);
/* The lost device, of a lost loop; of a split, the first one that was lost. Memory: the
 * runtime's. */
const char *quire_loop_lost_name(const quire_loop *loop);
/* Take over a request of a loop whose device was lost: it is queued, and its tokens are computed
 * as after a preemption. The other loop has the same model, classes and sessions. Returns false if
 * it can never fit, or if this loop has ended or its device is lost, too. */
bool quire_loop_adopt(quire_loop *loop, quire_request *request);
/* Have the pages of an expired session dropped from this loop's tree, within a second or so.
 * Without memory for a note they stay until they are evicted. */
void quire_loop_owner_gone(quire_loop *loop, uint64_t owner);
/* Requests that wait or run, and their prompt tokens that are not computed yet. */
void quire_loop_load_get(const quire_loop *loop, uint32_t *n_requests, uint64_t *n_to_compute);
/* All but `memory`. */
void quire_loop_stats_get(quire_loop *loop, quire_engine_stats *out);

/* Submit a request that only computes its prompt, for a pin. Errors: quire_engine_submit(). */
int quire_loop_submit_pin(quire_loop *loop, const quire_request_params *params, uint64_t pin,
                          quire_request **out, quire_error *err);
/* Check that the model can compute these tokens. Errors: QUIRE_INVAL, QUIRE_RANGE. */
int quire_loop_tokens_check(const quire_loop *loop, const quire_request_params *params,
                            quire_error *err);
/* Whether requests can overflow the context so: quire_engine_context_check(). */
int quire_loop_context_check(const quire_loop *loop, quire_context_overflow overflow, uint32_t keep,
                             const char *setting, quire_error *err);

/* ... and condense it: quire_engine_context_condense_check(). */
int quire_loop_context_condense_check(const quire_loop *loop, const quire_retain_spec *spec,
                                      uint32_t keep, const char *setting, quire_error *err);

/* Whether texts of requests can keep a share of their tokens so: quire_engine_retain_check(). */
int quire_loop_retain_check(const quire_loop *loop, const quire_retain_spec *spec,
                            const char *setting, quire_error *err);

/* ... and read a share of the pages: quire_engine_attend_check(). */
int quire_loop_attend_check(const quire_loop *loop, const char *setting, quire_error *err);

/* To users: of the device with this name. */
#define QUIRE_LOST_MESSAGE "device %s was lost, and the KV on it"

/* ---- queries. Thread: any ---- */

/* Objects of the loop that the other parts of the engine (adaptation, saver, devices) use directly.
 * The struct is constant after create. The cache, the tree and the cost are for the engine's thread
 * alone; before its start and after its end for the owner's. Adaptation changes only its own
 * objects in the cache and the tree (see above). The saver changes only the tree's model of reuse,
 * before the start. */
typedef struct quire_loop_parts {
    const quire_engine_opts *opts; /* with the defaults filled in */
    const quire_model *model;
    const quire_model_desc *desc;
    const quire_runtime_opts *runtime_opts;
    quire_sessions *sessions;
    _Atomic uint64_t *arrivals; /* requests numbered so far; of all devices */
    quire_cache *cache;         /* statistics of cache and regions: any thread */
    quire_prefix *tree;         /* statistics and the size of its model of reuse: any thread */
    const quire_cost *cost;     /* of steps */
    uint64_t page_bytes;        /* charge of a page of all tokens */
    bool is_page_exact;         /* hits end at full pages */
    quire_region_id pinned;     /* QUIRE_REGION_DYNAMIC = no pinned region */
    uint64_t created_us;
} quire_loop_parts;
const quire_loop_parts *quire_loop_parts_get(const quire_loop *loop);

uint64_t quire_loop_now_us(const quire_loop *loop);
/* Time since the loop was created: the time of events. */
uint64_t quire_loop_uptime_us(const quire_loop *loop);
/* A random number that outsiders cannot predict; 0 if the system provides none. */
uint64_t quire_loop_random(void);
/* Upper bound of the charge of all pages for n_tokens tokens of one request. */
uint64_t quire_loop_need_bytes(const quire_loop *loop, uint32_t n_tokens);
/* The region of the sequences of a class. */
quire_region_id quire_loop_region(const quire_loop *loop, uint32_t class_index);
/* The key of a tenant's texts in the tree. Memory: salt is borrowed. */
quire_prefix_key quire_loop_key(const quire_loop *loop, const void *tenant, uint32_t tenant_bytes);

/* ---- queries of the engine's thread ---- */

/* The account that a new key of this tenant is charged to. */
uint16_t quire_loop_account(const quire_loop *loop, const void *tenant, uint32_t tenant_bytes);
/* Number of running requests per class: [QUIRE_CLASSES_MAX]. */
const uint32_t *quire_loop_running_of(const quire_loop *loop);

/* The figures of the stores below memory, as quire_store_parts(). 0: there is none. */
uint32_t quire_loop_store_parts(const quire_loop *loop, quire_store_part *out);
/* Bring the store's figures up to date: those of other devices' loops may be older. Thread: any,
 * until the loop is stopped. */
void quire_loop_store_look(const quire_loop *loop, quire_tier_stats *out);

/* How many of these keys, from the first one on, have records below memory, as far as the store can
 * tell at once (store.h). Thread: any, until the loop is destroyed. */
uint32_t quire_loop_stored(quire_loop *loop, const quire_page_key *keys, uint32_t n);
/* The time of fetching tokens [begin, end) : that of computing them. Negative: not known yet.
 * Thread: any. */
double quire_loop_fetch_share(quire_loop *loop, uint32_t begin, uint32_t end);

/* Whether there is a store below memory that nothing reads from now. */
bool quire_loop_can_fetch(const quire_loop *loop);

/* Whether a request of a tenant with these tokens would come to this loop, rather than to that of
 * another device. key: its salt is the tenant. */
bool quire_loop_is_home(const quire_loop *loop, const quire_prefix_key *key, const int32_t *tokens,
                        uint32_t n_tokens);

/* ---- setters ---- */

typedef struct quire_loop_text {
    const void *tenant;
    uint32_t tenant_bytes;
    const int32_t *tokens;
    uint32_t n_tokens;
    uint64_t owner; /* of the session, 0 = none */
} quire_loop_text;

/* Fetch a text from the store into the tree while no request runs. The caller makes sure that
 * memory is free for it. Returns whether pages are on their way; the rounds of the loop take them
 * in. */
bool quire_loop_fetch_ahead(quire_loop *loop, const quire_loop_text *text);
/* End the fetch; the fetched pages stay cached. */
void quire_loop_fetch_ahead_end(quire_loop *loop);

/* Between a hold and its release no fetch from the store begins: requests that need one wait. A
 * fetch under way goes on; it brings no text that is dropped meanwhile. */
void quire_loop_fetch_hold(quire_loop *loop);
void quire_loop_fetch_release(quire_loop *loop);

/* Where requests of a policy find a text in the tree (loop/condense_names.h). */
typedef struct quire_retained_text {
    quire_prefix_key key; /* of its root; the salt is borrowed */
    uint32_t n_gone;      /* under this root the text begins behind so many tokens */
    uint32_t entry;       /* held: quire_loop_retained_release(). 0 = that of all plain texts */
} quire_retained_text;

/* Where the first n_tokens tokens of a text are found, all computed. spec NULL: as a plain text.
 * Errors: QUIRE_LIMIT (no entry is left, or no memory). */
int quire_loop_retained_hold(quire_loop *loop, const quire_retain_spec *spec,
                             const quire_loop_text *text, quire_retained_text *out);
void quire_loop_retained_release(quire_loop *loop, uint32_t entry);

/* Pages or budget may have become free: requests waiting for room are tried again. */
void quire_loop_released(quire_loop *loop);
/* Limit the running requests of a class; requests above the limit are parked. */
void quire_loop_limit_set(quire_loop *loop, uint32_t class_index, uint32_t limit);
/* Set the time to live of cached pages, except for classes with their own. */
int quire_loop_ttl_set(quire_loop *loop, uint64_t ttl_us);
/* Set the age of the low-traffic rule. */
int quire_loop_low_traffic_set(quire_loop *loop, uint64_t after_us);
/* Set the cost of computing a token at a depth: quire_prefix_cost_set(). */
int quire_loop_token_cost_set(quire_loop *loop, double token_us, double token_depth_us);
/* Resize the pinned region at once. Errors: QUIRE_NOTFOUND (no pinned region),
 * quire_region_transfer(). */
int quire_loop_pinned_resize(quire_loop *loop, uint64_t budget_bytes);
/* Compute a slice of the caller's own sequence while no request runs. The step is given up when a
 * request arrives. Errors: quire_runtime_step(). */
int quire_loop_compute(quire_loop *loop, const quire_slice *slice);
/* States of recurrent layers of a text that such slices compute; without such layers begin and
 * leave do nothing. A text leaves states at the ends of its last pages, every state_every_tokens
 * tokens, and where its computation ends.
 *
 *   bytes  of memory that the states of tokens [n_begin, n_tokens) take, at most
 *   begin  the text's sequence was filled with n_tokens tokens: it gets the state there. Errors:
 *          those of quire_seq_states()
 *   until  of n_left tokens behind the first n_computed ones, those up to the next place for a
 *          state
 *   leave  the first n_computed tokens are published: leave their state, if their end is such a
 *          place or the computation ends here (is_end) */
typedef struct quire_loop_text_at {
    quire_seq_id seq;
    quire_prefix_ref ref;
    uint32_t n_tokens; /* of the whole text */
} quire_loop_text_at;
uint64_t quire_loop_text_states_bytes(const quire_loop *loop, uint32_t n_begin, uint32_t n_tokens);
int quire_loop_text_states_begin(quire_loop *loop, const quire_loop_text_at *at,
                                 uint32_t n_computed);
uint32_t quire_loop_text_states_until(const quire_loop *loop, const quire_loop_text_at *at,
                                      uint32_t n_computed, uint32_t n_left);
void quire_loop_text_states_leave(quire_loop *loop, const quire_loop_text_at *at,
                                  uint32_t n_computed, bool is_end);
/* Drop a session's own pages from the tree: `what` of kind SESSION with its tokens. *n_shared gets
 * how many of the tokens the tree still has, for other texts. */
quire_prefix_dropped quire_loop_session_drop(quire_loop *loop, const quire_invalidate *what,
                                             uint64_t owner, uint32_t *n_shared);
/* See quire_engine_invalidate(). owner: owner number of the session. */
quire_prefix_dropped quire_loop_invalidate(quire_loop *loop, const quire_invalidate *what,
                                           uint64_t owner);
/* Another machine dropped texts of the common store: drop them here, and tell the listener. */
void quire_loop_follow_drop(quire_loop *loop, const quire_invalidate *what);

#endif /* QUIRE_ENGINE_LOOP_H */
