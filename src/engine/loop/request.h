/* request.h - a request, from its submission to its release.
 *
 * It is shared by the client and the loop, each of which lets go once; its `loop` is valid until
 * is_done, which is why cancel wakes the loop while it holds the request's lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_REQUEST_H
#define QUIRE_ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/loop/queue.h"
#include "engine/text_out.h"

typedef struct quire_loop quire_loop;

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

/* What it has of the cache. */
typedef struct quire_request_kv {
    quire_seq_id seq; /* QUIRE_SEQ_NULL: holds no pages */
    quire_prefix_ref ref;
    uint32_t n_computed;  /* tokens in the sequence */
    uint32_t n_published; /* tokens others can find, hits included */
    uint32_t n_found;     /* of n_computed, cached when the sequence began */
    uint32_t n_lost;      /* computed once and let go by preemption */
} quire_request_kv;

/* Why it does not run yet. */
typedef struct quire_request_waiting {
    uint64_t since_us; /* in a queue */
    quire_request_claim claim;
    uint64_t held_by;      /* arrival of the request that computes the same prefix; 0 = nobody */
    uint32_t held_tokens;  /* until it has published so many */
    uint32_t stuck_tokens; /* n_tokens when it could not grow though alone */
    quire_retreat retreat; /* since then */
    uint64_t blocked_at;   /* the room's n_releases when pages did not suffice */
} quire_request_waiting;

/* Those that are held back until it has published something: of the next step. */
typedef struct quire_request_lead {
    uint32_t n_tokens; /* they wait for so many; 0 = there are none */
    int32_t priority;  /* the highest of them */
    uint8_t rank;      /* likewise */
} quire_request_lead;

/* What its client gets. Under the lock. */
typedef struct quire_request_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    bool has_explanation;
    quire_request_token *events; /* [n_events] */
    uint32_t n_events;
    uint32_t events_capacity;
    quire_request_block *blocks; /* newest first; texts of events and the tail */
    quire_explanation explanation;
} quire_request_client;

struct quire_request {
    quire_queue_link link; /* first: a link is its request. Holds arrival and priority */

    /* Constant after submit. */
    quire_loop *loop;
    uint32_t n_prompt;
    uint32_t max_tokens; /* resolved: at least 1, within the context */
    uint32_t n_tops;
    bool has_logprobs;
    bool ignores_eos;
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
    bool is_uncached; /* leaves nothing behind */
    quire_sampler *sampler;
    quire_text_out *text;
    int32_t *tokens; /* [tokens_capacity] prompt, then what was generated */
    uint32_t n_tokens;
    uint32_t tokens_capacity;
    quire_request_kv kv;
    quire_request_waiting wait;
    quire_request_lead lead;
    uint32_t n_prefilled; /* rows of prefill, recomputation included */
    uint32_t n_left_out;  /* steps since its last row, in decode */
    bool is_parked;       /* in its class's queue, with its sequence; state as when it ran */
    uint8_t rank_now;     /* running: its class's, or that of who it was let in before */
    uint64_t admitted_us;
    uint64_t first_us;
    uint64_t last_us;
    quire_request_result result; /* its client's when it is done */

    /* Anyone. */
    atomic_bool is_cancelled;
    atomic_uint n_holders;
    quire_request_client client;
};

static inline quire_request *quire_request_of(quire_queue_link *link)
{
    return (quire_request *)(void *)link;
}

/* How a request ends. */
typedef struct quire_ending {
    quire_finish finish;
    int status;          /* ERROR */
    int32_t stop_index;  /* -1 */
    const char *message; /* ERROR; NULL: the status's text */
} quire_ending;

/* ---- request_events.c. Thread: the engine's ---- */

/* A token, with its text. Errors: QUIRE_NOMEM; nothing was added then. */
int quire_request_push(quire_request *request, const quire_request_token *token);
/* The end: result filled in but for counts and times, which come from the request. Wakes waiters
 * and lets go of the engine's share. */
void quire_request_finish(quire_request *request, const quire_request_result *result);
void quire_request_explained(quire_request *request, const quire_explanation *explanation);

/* Thread: any. */
void quire_request_unref(quire_request *request);

#endif /* QUIRE_ENGINE_REQUEST_H */
