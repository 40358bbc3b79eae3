/* adapt.h - the parts of an engine that watch it and change it: events, the pinned region, ghost
 * caches, the memory of its last hour, pre-caching. For src/engine only.
 *
 *   admitted ---> pre-caching: was it foreseen, will it return
 *   ended ------> ghost caches (trace/online/shadow.h), the last hour (trace/online/recent.h)
 *   once a second: judge what was computed in advance, size the pinned region, say what low
 *                  classes have to do without
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
#include "engine/sizer.h"
#include "engine/tuning.h"
#include "trace/online/recent.h"
#include "trace/online/shadow.h"
#include "trace/online/working_set.h"

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

    uint32_t limits_said[QUIRE_CLASSES_MAX]; /* of running ones, in the last event; 0 = as usual */

    /* What tuning has made of the options. */
    uint64_t ttl_us;
    uint64_t low_traffic_after_us;

    /* Under the engine's lock. */
    bool is_tuning;
    quire_engine_tuning tuning; /* the last */
    /* Of who is tuning. */
    quire_tune_state tune_state;
    double suggested[QUIRE_TUNE_KNOB_COUNT];  /* what was said last */
    bool is_suggested[QUIRE_TUNE_KNOB_COUNT]; /* and not done */
} quire_adapt;

/* See pinned.h. */
typedef struct quire_pinned {
    quire_region_id region;  /* QUIRE_REGION_DYNAMIC = there is none. Constant after create */
    uint64_t block_bytes;    /* KV of a block of the working set */
    quire_working_set *used; /* by high classes; NULL without a region */
    uint64_t touch_us;       /* pins count as used so often */
    bool is_adapting;        /* its size is the sizer's */
    quire_sizer sizer;
    quire_sizer_reason reason; /* of the last decision */
    uint64_t n_spilled_said;   /* pages, in the last event */
    uint64_t spill_said_us;
} quire_pinned;

int quire_adapt_create(quire_engine *engine, quire_error *err);
void quire_adapt_destroy(quire_engine *engine);

/* Time to live of what is cached, but for classes that have their own. */
int quire_adapt_ttl_set(quire_engine *engine, uint64_t ttl_us);

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

/* ---- pinned.c ---- */

/* Open the region, before the tree is filled; close it when nothing is left in it. */
int quire_pinned_open(quire_engine *engine, quire_error *err);
void quire_pinned_close(quire_engine *engine);
/* The high classes use this text. */
void quire_pinned_touch(quire_engine *engine, const quire_working_set_text *text);
void quire_pinned_upkeep(quire_engine *engine);
/* Another size, at once. Errors: QUIRE_NOTFOUND (there is no region), quire_region_transfer(). */
int quire_pinned_resize(quire_engine *engine, uint64_t budget_bytes);
/* Thread: any. */
void quire_pinned_stats(const quire_engine *engine, quire_memory_stats *out);

/* The region that a class's sequences are opened in. Thread: any. */
quire_region_id quire_engine_region(const quire_engine *engine, uint32_t class_index);
/* What requests of a class can have at most. Thread: any. */
uint64_t quire_engine_budget_bytes(const quire_engine *engine, uint32_t class_index);
/* Whether sequences in the pinned region and others can have so much more, evicting what is
 * cached. */
bool quire_engine_fits(const quire_engine *engine, uint64_t pinned_bytes, uint64_t dynamic_bytes);
/* Whether asker can use what other lets go of. */
bool quire_engine_helps(const quire_engine *engine, const quire_request *asker,
                        const quire_request *other);

/* ---- pins.c: see pins.h ---- */

typedef struct quire_engine_pins quire_engine_pins;
struct quire_ending;

int quire_engine_pins_open(quire_engine *engine, quire_error *err);
/* Before the tree is destroyed. */
void quire_engine_pins_close(quire_engine *engine);
/* A request that computed a pin ends; its pages are still its own. */
void quire_engine_pins_ended(quire_engine *engine, quire_request *request,
                             const struct quire_ending *ending);
/* Texts were invalidated. */
void quire_engine_pins_invalidated(quire_engine *engine);
void quire_engine_pins_upkeep(quire_engine *engine);
/* Nobody waits for a pin any more. */
void quire_engine_pins_stop(quire_engine *engine);

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
