/* engine_internal.h - what an engine and a request consist of; for src/engine only.
 *
 *   clients' threads                      the engine's thread
 *     submit --> inbox --------------------> queues -> running[] --> done
 *                                              ^------ parked[]
 *     wait   <-- events, result <----------- (the request's lock)
 *     call   --> calls --------------------> run between two steps
 *     stats  <-- shared_stats <------------- (the engine's lock)
 *
 * Locks: a request's before the engine's, where both are held (cancel). The engine's thread never
 * holds both. Nobody holds either while it computes, samples or waits for memory of the cache.
 *
 * A request is shared by the client and the engine, each of which lets go once; its `engine` is
 * valid until is_done, which is why cancel wakes the engine while it holds the request's lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ENGINE_INTERNAL_H
#define QUIRE_ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"

#include "base/bytes.h"
#include "engine/adapt.h"
#include "engine/chores.h"
#include "engine/degrade.h"
#include "engine/engine_call.h"
#include "engine/queue.h"
#include "engine/schedule.h"
#include "engine/text_out.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef enum quire_request_state {
    QUIRE_REQUEST_WAITING,
    QUIRE_REQUEST_PREFILL,
    QUIRE_REQUEST_DECODE,
    QUIRE_REQUEST_DONE
} quire_request_state;

/* How much of the cache a request may begin with. */
typedef enum quire_retreat {
    QUIRE_RETREAT_NONE,
    QUIRE_RETREAT_FULL_PAGES,
    QUIRE_RETREAT_NO_HIT
} quire_retreat;

/* What the tree has of a request's tokens: right while both generations stay. */
typedef struct quire_request_claim {
    uint64_t tree_generation; /* 0 = not looked up yet */
    uint64_t cache_generation;
    uint32_t n_cached; /* tokens that are cached */
    uint32_t n_used;   /* of them, those it would begin with */
    /* Charge of the pages of those that it would begin with (quire_prefix_claim). */
    uint64_t cached_dynamic_bytes;
    uint64_t live_dynamic_bytes;
    uint64_t cached_pinned_bytes;
} quire_request_claim;

/* Texts and alternatives of tokens: blocks that never move. */
typedef struct quire_request_block {
    struct quire_request_block *next;
    size_t used;
    size_t capacity;
    max_align_t data[];
} quire_request_block;

struct quire_request {
    quire_queue_link link; /* first: a link is its request. Holds arrival and priority */

    /* Constant after submit. */
    quire_engine *engine;
    uint32_t n_prompt;
    uint32_t max_tokens; /* resolved: at least 1, within the context */
    uint32_t n_tops;
    bool has_logprobs;
    bool ignores_eos;
    bool is_uncached;
    bool has_session;
    uint32_t class_index;
    uint8_t rank; /* of the class */
    uint64_t pin; /* quire_pin_id that it computes the text of, and nothing else; 0 = none */
    uint64_t owner;
    uint32_t tenant_bytes;
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
    char id[QUIRE_REQUEST_ID_MAX];
    uint64_t submitted_us;

    /* The engine's thread. */
    quire_request_state state;
    quire_sampler *sampler;
    quire_text_out *text;
    int32_t *tokens; /* [tokens_capacity] prompt, then what was generated */
    uint32_t n_tokens;
    uint32_t tokens_capacity;
    quire_seq_id seq; /* QUIRE_SEQ_NULL: holds no pages */
    quire_prefix_ref ref;
    quire_request_claim claim; /* waiting */
    uint32_t n_computed;       /* tokens in the sequence */
    uint32_t n_published;      /* tokens others can find, hits included */
    uint32_t n_found;          /* of n_computed, cached when the sequence began */
    uint32_t n_prefilled;      /* rows of prefill, recomputation included */
    uint32_t n_lost;           /* computed once and let go by preemption */
    uint64_t held_by;     /* arrival of the request that computes the same prefix; 0 = nobody */
    uint32_t held_tokens; /* until it has published so many */
    uint32_t n_wanted; /* tokens that somebody held back waits for in the next step; 0 = nobody */
    int32_t wanted_priority; /* of those */
    uint8_t wanted_rank;     /* likewise */
    uint32_t n_left_out;     /* steps since its last row, in decode */
    bool is_parked;          /* in its class's queue, with its sequence; state as when it ran */
    uint8_t rank_now;        /* running: its class's, or that of who it was let in before */
    uint64_t waiting_us;     /* in a queue: since when */
    uint64_t blocked_at;     /* engine->n_releases when pages did not suffice */
    uint32_t stuck_tokens;   /* n_tokens when it could not grow though alone */
    quire_retreat retreat;   /* since then */
    uint64_t admitted_us;
    uint64_t first_us;
    uint64_t last_us;

    /* Anyone. */
    atomic_bool is_cancelled;
    atomic_uint n_holders;

    /* Under lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    bool has_explanation;
    quire_request_token *events; /* [n_events] */
    uint32_t n_events;
    uint32_t events_capacity;
    quire_request_block *blocks; /* newest first; texts of events and the tail */
    quire_request_result result;
    quire_explanation explanation;
};

typedef struct quire_engine_task {
    struct quire_engine_task *next;
    quire_engine_fn fn;
    void *ctx;
    int status; /* QUIRE_OK once it ran */
    bool is_done;
} quire_engine_task;

typedef struct quire_explained {
    quire_explanation explanation;
    uint32_t tenant_bytes;
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
} quire_explained;

/* What is known of classes beyond the schedule's memory. By index of the class. */
typedef struct quire_qos {
    uint64_t seen_us[QUIRE_CLASSES_MAX];  /* when it last had something running; 0 = never */
    double typical_us[QUIRE_CLASSES_MAX]; /* what its prompts cost to compute, as a rule */
    quire_degrade degrade;
} quire_qos;

struct quire_engine {
    /* Constant after create. */
    quire_engine_opts opts;
    const quire_model *model;
    const quire_model_desc *desc;
    const quire_runtime_opts *runtime_opts;
    quire_runtime *runtime;
    quire_cache *cache;
    quire_sessions *sessions;
    uint64_t identity[2];
    uint64_t created_us;
    uint64_t page_bytes;  /* charge of a page of all tokens */
    quire_kv_price price; /* of a sequence's pages */
    bool is_page_exact;   /* hits end at full pages */
    uint8_t rank_max;     /* of any class */
    uint32_t n_promoted_max[QUIRE_CLASSES_MAX];
    pthread_t thread;

    /* The engine's thread. */
    quire_prefix *tree;
    quire_queue queues[QUIRE_CLASSES_MAX]; /* waiting and parked, by class */
    uint32_t n_queued;                     /* in all of them */
    quire_request **running;               /* [n_running_max], by admission */
    uint32_t n_running;
    quire_request **parked; /* [n_parked_max] */
    uint32_t n_parked;
    uint32_t n_running_of[QUIRE_CLASSES_MAX];
    uint32_t n_parked_of[QUIRE_CLASSES_MAX];
    uint32_t n_promoted_of[QUIRE_CLASSES_MAX]; /* running ones that were let in before others */
    quire_schedule_item *items;                /* [n_running_max] */
    quire_slice *slices;                       /* [n_running_max] */
    quire_schedule schedule;
    quire_qos qos;
    int step_rank;  /* of the step at hand: quire_schedule_interruptible(); -1 = below all */
    double step_us; /* what it is going to take; 0 = unknown */
    uint64_t step_begin_us; /* when it began */
    quire_adapt adapt;
    quire_pinned pinned;
    quire_engine_pins *pins; /* NULL = none are kept. Constant after create */
    quire_bytes shown;       /* text of the token at hand */
    quire_top_logit tops[QUIRE_LOGPROBS_MAX];
    uint64_t n_releases;   /* times that pages may have become free */
    uint64_t upkeep_us;    /* when upkeep was last done */
    double chores_debt_ns; /* what chores have taken beyond their share */
    quire_engine_stats stats;

    atomic_uint n_unfinished; /* accepted and not done */
    atomic_uint n_unfinished_of[QUIRE_CLASSES_MAX];
    atomic_int urgent_rank; /* highest in the inbox; -1 = it is empty. Set under lock */

    /* Under lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;      /* the engine's thread: there is something to do */
    pthread_cond_t task_done; /* callers */
    quire_queue inbox;
    quire_engine_task *tasks; /* oldest first */
    quire_chore *chores;      /* likewise */
    bool is_stopping;
    bool has_ended;
    bool has_cancels;
    uint64_t n_arrivals; /* requests accepted; arrival numbers begin with 1 */
    uint64_t n_queue_full;
    uint64_t n_arrivals_of[QUIRE_CLASSES_MAX];
    uint64_t n_queue_full_of[QUIRE_CLASSES_MAX];
    uint64_t n_invalid;
    quire_engine_stats shared_stats;
    quire_explained *explained; /* [explain_max], a ring */
    uint32_t explained_next;
    uint32_t n_explained;
};

/* For waits: so many milliseconds from now, by the monotonic clock. */
static inline struct timespec quire_deadline(uint32_t ms)
{
    const long ns_per_s = 1000000000L;
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000u);
    t.tv_nsec += (long)(ms % 1000u) * 1000000L;
    if (t.tv_nsec >= ns_per_s) {
        t.tv_sec++;
        t.tv_nsec -= ns_per_s;
    }
    return t;
}

static inline quire_request *quire_request_of(quire_queue_link *link)
{
    return (quire_request *)(void *)link;
}

uint64_t quire_engine_now_us(const quire_engine *engine);
/* A number that nobody outside can know; 0 when the system has none. Thread: any. */
uint64_t quire_engine_random(void);

/* Expire what is due, once a second at most. Thread: the engine's. */
void quire_engine_upkeep(quire_engine *engine);

/* Have the engine's thread look for cancelled requests; the caller holds no lock of the engine. */
void quire_engine_wake_cancels(quire_engine *engine);

/* Run what calls brought, or end them with QUIRE_AGAIN. Thread: the engine's. */
void quire_engine_tasks_run(quire_engine *engine, bool is_ending);

/* ---- request.c ---- */

/* A request that computes its prompt for a pin, and then ends. Errors: quire_engine_submit(). */
int quire_engine_submit_pin(quire_engine *engine, const quire_request_params *params, uint64_t pin,
                            quire_request **out, quire_error *err);
/* Whether the model can compute these tokens at all. Thread: any. Errors: QUIRE_INVAL, QUIRE_RANGE.
 */
int quire_engine_tokens_check(const quire_engine *engine, const quire_request_params *params,
                              quire_error *err);

/* ---- request_events.c, the engine's side of a request. Thread: the engine's ---- */

/* A token with the text in engine->shown. Errors: QUIRE_NOMEM; nothing was added then. */
int quire_request_push(quire_request *request, const quire_request_token *token);
/* The end: result filled in but for counts and times, which come from the request. Wakes waiters
 * and lets go of the engine's share. */
void quire_request_finish(quire_request *request, const quire_request_result *result);
void quire_request_explained(quire_request *request, const quire_explanation *explanation);
void quire_request_unref(quire_request *request);

/* ---- admit.c: from the queue to running. Thread: the engine's ---- */

void quire_engine_admit(quire_engine *engine);
/* Charge of all pages that n_tokens tokens of one request take at most. Thread: any. */
uint64_t quire_engine_need_bytes(const quire_engine *engine, uint32_t n_tokens);
/* Bytes that a request will take beyond the pages of its first n_have tokens. */
uint64_t quire_engine_bytes_ahead(const quire_engine *engine, const quire_request *request,
                                  uint32_t n_have);

/* ---- park.c: places and pages for high classes. Thread: the engine's ---- */

void quire_engine_enqueue(quire_engine *engine, quire_request *request);
void quire_engine_dequeue(quire_engine *engine, quire_request *request);
void quire_engine_running_add(quire_engine *engine, quire_request *request, uint8_t rank_now);
void quire_engine_running_remove(quire_engine *engine, quire_request *request);
/* From running to its queue, with its pages; there must be a place among the parked. */
void quire_engine_park(quire_engine *engine, quire_request *request);
/* Out of its queue and of the parked ones, and now nowhere. */
void quire_engine_unpark(quire_engine *engine, quire_request *request);

typedef struct quire_victim_ask {
    uint8_t rank;               /* of who wants something */
    bool is_below;              /* lower ones only */
    bool has_parked;            /* those too */
    bool by_cost;               /* of computing again, among lower ones */
    const quire_request *asker; /* only those whose pages it can use; NULL = all */
} quire_victim_ask;
/* Who gives way first; NULL = nobody can. */
quire_request *quire_engine_victim(const quire_engine *engine, const quire_victim_ask *ask);

/* Have a lower one give up its place, or its pages. Returns false when there is none. */
bool quire_engine_place_make(quire_engine *engine, const quire_request *request);
bool quire_engine_room_make(quire_engine *engine, const quire_request *request);
/* What lower ones hold and are going to take. */
uint64_t quire_engine_lower_bytes(const quire_engine *engine, const quire_request *request);
/* Park those beyond the class's limit. */
void quire_engine_limit_apply(quire_engine *engine, uint32_t class_index);

/* ---- leave.c: from running to the queue or the end. Thread: the engine's ---- */

typedef struct quire_ending {
    quire_finish finish;
    int status;          /* ERROR */
    int32_t stop_index;  /* -1 */
    const char *message; /* ERROR; NULL: the status's text */
} quire_ending;
void quire_engine_end(quire_engine *engine, quire_request *request, const quire_ending *ending);
/* Let go of the request's sequence, its pages and its place in the tree. */
void quire_engine_seq_end(quire_engine *engine, quire_request *request);
/* End what was cancelled. */
void quire_engine_cancels_apply(quire_engine *engine);
/* Publish what is computed, let go of the pages, and back to the queue. */
void quire_engine_preempt(quire_engine *engine, quire_request *request);
/* A step could not be computed: preempt somebody, or end who is alone, so that the next one is
 * smaller. */
void quire_engine_relieve(quire_engine *engine, int status);

/* ---- batch.c. Thread: the engine's ---- */

/* One step of those that run, if there are any. */
void quire_engine_step(quire_engine *engine);
/* Tell the tree what was computed since the last time. */
void quire_engine_publish(quire_engine *engine, quire_request *request);

/* ---- qos.c: classes and steps. Thread: the engine's ---- */

/* Before a step: what lower classes may add to it. */
void quire_engine_qos_prepare(quire_engine *engine);
/* While it is computed: whether somebody has come for whom to give it up. ctx: the engine. */
bool quire_engine_qos_gives_up(void *ctx);
/* It was given up. */
void quire_engine_qos_interrupted(quire_engine *engine, uint32_t n_items, uint64_t step_us);
/* After it: who got rows; then what it cost, when all of it is done. */
void quire_engine_qos_rows(quire_engine *engine, uint32_t n_items);
void quire_engine_qos_step(quire_engine *engine, const quire_cost_step *cost, uint64_t step_us);
/* Now and then: fewer of low classes at once, or more again. */
void quire_engine_qos_tick(quire_engine *engine);
/* A request was admitted for the first time; it has its first token. */
void quire_engine_qos_admitted(quire_engine *engine, const quire_request *request);
void quire_engine_qos_first(quire_engine *engine, const quire_request *request);

/* ---- explain.c ---- */

/* From a match at admission; times come at the end. */
void quire_explanation_begin(quire_explanation *explanation, const quire_request *request,
                             const quire_prefix_match *match, uint64_t now_us);
/* Costs, as far as they are known. Thread: the engine's. */
void quire_engine_explanation_update(quire_engine *engine, quire_request *request);
/* Keep it for quire_engine_explain(). Thread: the engine's. */
void quire_engine_explanation_keep(quire_engine *engine, quire_request *request);

/* ---- engine_call.c ---- */

/* The key of a tenant's texts in the tree. Memory: salt is borrowed. */
quire_prefix_key quire_engine_key(const quire_engine *engine, const void *tenant,
                                  uint32_t tenant_bytes);

/* Whose account a new key of this tenant counts to. */
uint16_t quire_engine_account(const quire_engine *engine, const void *tenant,
                              uint32_t tenant_bytes);

/* ---- engine_stats.c ---- */

void quire_engine_stats_init(quire_engine_stats *stats, uint32_t n_classes);
/* Make the thread's figures visible. Thread: the engine's. */
void quire_engine_stats_publish(quire_engine *engine);

#endif /* QUIRE_ENGINE_ENGINE_INTERNAL_H */
