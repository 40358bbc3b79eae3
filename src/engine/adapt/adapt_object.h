/* adapt_object.h - the struct of adaptation, for src/engine/adapt only.
 *
 * Each part may be absent; the engine serves requests without it.
 *
 * Thread: the engine's, unless a function says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ADAPT_OBJECT_H
#define QUIRE_ENGINE_ADAPT_OBJECT_H

#include <pthread.h>

#include "engine/adapt/adapt.h"
#include "engine/adapt/degrade.h"
#include "engine/adapt/event_log.h"
#include "engine/adapt/precache_book.h"
#include "engine/adapt/sizer.h"
#include "trace/online/recent.h"
#include "trace/online/working_set.h"

/* One text being computed in advance, step by step. */
typedef struct quire_precache_run {
    quire_seq_id seq; /* QUIRE_SEQ_NULL = no run */
    quire_prefix_ref ref;
    int32_t *tokens; /* [tokens_capacity] */
    uint32_t tokens_capacity;
    uint32_t n_tokens;
    uint32_t n_begin; /* tokens cached before the run */
    uint32_t n_computed;
    uint64_t owner;
    uint32_t tenant_bytes;
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
} quire_precache_run;

/* A text that was fetched, or tried, in idle time. */
typedef struct quire_precache_tried {
    uint64_t id;      /* of a session: its owner number; of a text: a hash of its tokens */
    uint64_t changed; /* of a session: as in quire_session_info; of a text: when it went */
} quire_precache_tried;

/* See pinned.h. */
typedef struct quire_pinned {
    uint64_t block_bytes;    /* KV of a block of the working set */
    quire_working_set *used; /* memory used by high classes; NULL without a region */
    uint64_t touch_us;       /* interval at which pins count as used */
    bool is_adapting;        /* the sizer decides its size */
    quire_sizer sizer;
    quire_sizer_reason reason; /* of the last decision */
    uint64_t n_spilled_said;   /* pages reported in the last event */
    uint64_t spill_said_us;
} quire_pinned;

typedef struct quire_pin_table quire_pin_table;

struct quire_adapt {
    quire_loop *loop;
    const quire_loop_parts *parts; /* of it */
    quire_events *events;          /* any thread */
    bool has_shared_events;        /* they are another one's */
    quire_shadow *shadow;          /* NULL = none */
    quire_recent *recent;          /* NULL = none; any thread */
    uint64_t upkeep_us;            /* when upkeep was last done */
    quire_memory_stats figures;    /* counters of adaptation */

    quire_degrade degrade;                         /* limits on running requests per class */
    bool has_said_degraded[QUIRE_STORE_PARTS_MAX]; /* of the stores below memory, in the last event
                                                      about each */
    uint32_t limits_said[QUIRE_CLASSES_MAX];       /* reported in the last event; 0 = no limit */

    quire_precache_book *book; /* NULL = nothing is computed in advance */
    quire_precache_run run;
    quire_precache_tried *fetched; /* [fetched_max], the last ones: as many as may be considered, so
                                      that none is tried twice */
    uint32_t fetched_max;
    uint32_t n_fetched;        /* ever */
    uint64_t precache_idle_us; /* idle time before pre-caching begins */
    uint64_t busy_us;          /* when a request last ran or waited */

    quire_pinned pinned;
    quire_pin_table *pins; /* NULL = no pins. Constant after create */

    /* Current values of options that tuning changes. */
    uint64_t ttl_us;
    uint64_t low_traffic_after_us;

    pthread_mutex_t lock;
    /* Under the lock. */
    quire_memory_stats shared; /* copy of figures made after the last round */
    bool is_tuning;
    quire_engine_tuning tuning; /* last result */
    /* For the thread that tunes. */
    quire_tune_state tune_state;
    double suggested[QUIRE_TUNE_KNOB_COUNT];  /* last suggested value */
    bool is_suggested[QUIRE_TUNE_KNOB_COUNT]; /* suggested and not applied */
};

/* Work that is due once a second. */
void quire_adapt_upkeep(quire_adapt *adapt);

/* ---- pinned.c ---- */

int quire_pinned_open(quire_adapt *adapt, quire_error *err);
void quire_pinned_close(quire_adapt *adapt);
/* Record that a high class uses this text. */
void quire_pinned_touch(quire_adapt *adapt, const quire_working_set_text *text);
void quire_pinned_upkeep(quire_adapt *adapt);
/* Whether the dynamic region can do without the bytes by which a pinned region of this size is
 * larger than it is. */
bool quire_pinned_may_be(const quire_adapt *adapt, uint64_t bytes);
/* Thread: any. */
void quire_pinned_stats(const quire_adapt *adapt, quire_memory_stats *out);

/* ---- pins.c: see pins.h ---- */

int quire_adapt_pins_open(quire_adapt *adapt, quire_error *err);
/* Call when no thread waits for a pin any more and before the tree is destroyed. Thread: the
 * owner's, after the loop has stopped. */
void quire_adapt_pins_close(quire_adapt *adapt);
/* A request that computed a pin ends; it still owns its pages. */
void quire_adapt_pins_ended(quire_adapt *adapt, const quire_request *request,
                            const quire_ending *ending);
/* Texts were invalidated. */
void quire_adapt_pins_invalidated(quire_adapt *adapt);
void quire_adapt_pins_upkeep(quire_adapt *adapt);
/* Count pins and their bytes anew, and show them, if any has changed. A walk over all their pages:
 * once for all changes of a round. */
void quire_adapt_pins_count(quire_adapt *adapt);
/* The device was lost: no client waits for a pin any more. */
void quire_adapt_pins_lost(quire_adapt *adapt);

/* ---- precache.c ---- */

/* The loop is idle: compute one step in advance, if a text is worth it. Returns the milliseconds
 * until the next call; 0 = at once. */
uint32_t quire_precache_idle(quire_adapt *adapt, uint32_t idle_ms);
/* Requests have arrived: end the run. Its computed tokens stay cached. */
void quire_precache_yield(quire_adapt *adapt);
/* End the run of an invalidated text, without entering it in the book. */
void quire_precache_forget(quire_adapt *adapt);
/* Judge texts computed in advance; once a second. */
void quire_precache_judge(quire_adapt *adapt);
/* Copy the accounts into the figures. */
void quire_precache_count(quire_adapt *adapt);

#endif /* QUIRE_ENGINE_ADAPT_OBJECT_H */
