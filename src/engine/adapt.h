/* adapt.h - the parts of an engine that watch it and change it: events, ghost caches, the memory of
 * its last hour, pre-caching. For src/engine only.
 *
 *   admitted ---> pre-caching: was it foreseen, will it return
 *   ended ------> ghost caches (trace/shadow.h), the last hour (trace/recent.h)
 *   once a second: judge what was computed in advance
 *   idle -------> compute in advance
 *
 * Each of them may be absent: the engine serves without.
 *
 * Thread: the engine's, unless a function says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ADAPT_H
#define QUIRE_ENGINE_ADAPT_H

#include "engine/engine.h"
#include "engine/precache_book.h"
#include "engine/tuning.h"
#include "trace/recent.h"
#include "trace/shadow.h"

/* Something computed in advance: one text, step by step. */
typedef struct quire_precache_run {
    quire_seq_id seq; /* QUIRE_SEQ_NULL = there is none */
    quire_prefix_ref ref;
    int32_t *tokens; /* [tokens_capacity] */
    uint32_t tokens_capacity;
    uint32_t n_tokens;
    uint32_t n_begin; /* cached before */
    uint32_t n_computed;
    uint64_t owner;
    uint32_t tenant_bytes;
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
} quire_precache_run;

typedef struct quire_adapt {
    quire_events *events; /* any thread */
    quire_shadow *shadow; /* NULL = none */
    quire_recent *recent; /* NULL = none; any thread */

    quire_precache_book *book; /* NULL = nothing is computed in advance */
    quire_precache_run run;
    uint64_t busy_us; /* when a request last ran or waited */

    /* What tuning has made of the options. */
    uint64_t ttl_us;
    uint64_t low_traffic_after_us;

    /* Under the engine's lock. */
    bool is_tuning;
    quire_engine_tuning tuning; /* the last */
    /* Of who is tuning. */
    quire_tune_state tune_state;
    double suggested[QUIRE_TUNE_KNOB_COUNT]; /* what was said last */
} quire_adapt;

int quire_adapt_create(quire_engine *engine, quire_error *err);
void quire_adapt_destroy(quire_engine *engine);

/* Microseconds since the engine was created: what events are dated with. Thread: any. */
uint64_t quire_engine_uptime_us(const quire_engine *engine);

/* A request was admitted for the first time; what it found. */
void quire_adapt_admitted(quire_engine *engine, const quire_request *request,
                          const quire_prefix_match *match);
/* A request ends; its pages are still its own. */
void quire_adapt_ended(quire_engine *engine, const quire_request *request);
void quire_adapt_upkeep(quire_engine *engine);
/* Texts of a tenant were called wrong (NULL: everybody's). */
void quire_adapt_invalidated(quire_engine *engine, const void *tenant, uint32_t tenant_bytes);
/* Figures of parts that may be asked from any thread. */
void quire_adapt_stats(const quire_engine *engine, quire_memory_stats *out);

/* ---- precache.c ---- */

/* Nothing is to do: compute one step in advance, if that seems worth while. Returns after how many
 * milliseconds to ask again; 0 = at once. */
uint32_t quire_precache_idle(quire_engine *engine, uint32_t idle_ms);
/* Requests are there: let go. What was computed stays cached. */
void quire_precache_yield(quire_engine *engine);
/* Let go of a text that was called wrong: it is not entered in the book. */
void quire_precache_forget(quire_engine *engine);
/* Once a second. */
void quire_precache_judge(quire_engine *engine);
/* Into the thread's figures. */
void quire_precache_count(quire_engine *engine);

#endif /* QUIRE_ENGINE_ADAPT_H */
