/* request.h - a request, from its submission to its release.
 *
 * The client and the loop share a request, and each releases it once. The field `loop` is valid
 * until is_done; therefore cancel wakes the loop while it holds the request's lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_REQUEST_H
#define QUIRE_ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/condensing.h"
#include "engine/engine.h"
#include "engine/loop/condensed_set.h"
#include "engine/loop/queue.h"
#include "engine/text_out.h"

typedef struct quire_loop quire_loop;

typedef enum quire_request_state {
    QUIRE_REQUEST_WAITING,
    QUIRE_REQUEST_PREFILL,
    QUIRE_REQUEST_DECODE,
    QUIRE_REQUEST_DONE
} quire_request_state;

/* Limit on the cache hit of a request. */
typedef enum quire_retreat {
    QUIRE_RETREAT_NONE,
    QUIRE_RETREAT_FULL_PAGES,
    QUIRE_RETREAT_NO_HIT
} quire_retreat;

/* Result of a lookup of the request's tokens in the tree: valid while both generations are
 * unchanged. */
typedef struct quire_request_claim {
    uint64_t tree_generation; /* 0 = not looked up yet */
    uint64_t cache_generation;
    uint32_t n_condensings; /* behind the text that is cached, */
    uint32_t n_gone;        /* tokens that left in these: among all that follow */
    uint32_t n_cached;      /* tokens that are cached */
    uint32_t n_used;        /* of n_cached, tokens that the request would begin with */
    /* Charge of the pages of n_used tokens (quire_prefix_claim). */
    uint64_t cached_dynamic_bytes;
    uint64_t live_dynamic_bytes;
    uint64_t cached_pinned_bytes;
} quire_request_claim;

/* Memory for texts and alternatives of tokens: blocks that never move. */
typedef struct quire_request_block {
    struct quire_request_block *next;
    size_t used;
    size_t capacity;
    max_align_t data[];
} quire_request_block;

#define QUIRE_STATE_ENDS 3u /* of the prompt, of two common beginnings */

/* The request's share of the cache. */
typedef struct quire_request_kv {
    quire_seq_id seq; /* QUIRE_SEQ_NULL: holds no pages */
    quire_prefix_ref ref;
    uint32_t n_computed;       /* tokens of the text that were computed */
    uint32_t n_dropped;        /* of n_computed, not in the sequence any more: context_loop.h,
                                  condense_loop.h */
    uint32_t n_published;      /* tokens that other requests can find, hits included */
    uint32_t n_found;          /* of the sequence, cached when it began */
    uint32_t n_lost;           /* computed before, released by preemption */
    uint32_t n_mixed_from;     /* tokens from here on have K and V that follow from attention by two
                                  kinds of kernels (overflow.h); 0 = none have */
    bool is_own;               /* nothing is published, so that tokens can leave in place */
    quire_condensed condensed; /* the text of the last condensing */
    uint32_t n_condensings;
    quire_packed_text *lanes;              /* of a policy by lane; NULL: of none */
    uint32_t state_ends[QUIRE_STATE_ENDS]; /* places for states: loop_states.h; 0 = none */
} quire_request_kv;

/* State of a waiting request. */
typedef struct quire_request_waiting {
    struct quire_fetch *fetch; /* its pages on their way from below; NULL = none */
    bool has_fetched;          /* the store was asked, or need not be */
    uint64_t since_us;         /* time of entry into the queue */
    quire_request_claim claim;
    uint64_t held_by; /* arrival number of the request that computes the same prefix; 0 = none */
    uint32_t held_tokens;  /* held until that request has published this many tokens */
    uint32_t stuck_tokens; /* n_tokens when it could not grow although it ran alone */
    quire_retreat retreat; /* since stuck_tokens was set */
    uint32_t n_unread;     /* times that its offloaded pages could not be read */
    uint64_t blocked_at;   /* the room's n_releases when pages last ran short */
} quire_request_waiting;

/* Requests held back until this request publishes its prefix; recomputed for each step. */
typedef struct quire_request_lead {
    uint32_t n_tokens; /* tokens that they wait for; 0 = none wait */
    int32_t priority;  /* highest of them */
    uint8_t rank;      /* likewise */
} quire_request_lead;

/* Data for the client, under the lock. */
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

/* A vector of the prompt's hidden states: pooling.h. */
typedef struct quire_request_pool {
    quire_pooling how;
    uint32_t n_embd;
    double *sum;   /* [n_embd] of n_tokens tokens; NULL: no vector is wanted */
    float *vector; /* [n_embd], at the end */
    uint32_t n_tokens;
} quire_request_pool;

typedef struct quire_prompt_score {
    float logprob;
    uint32_t rank;
} quire_prompt_score;

/* Log-probabilities of the prompt's tokens: prompt_logprobs.h. */
typedef struct quire_prompt_scores {
    quire_prompt_score *items; /* [n_max], from the second token on */
    quire_top_logit *tops;     /* [n_max][n_tops] */
    uint32_t n;                /* rows that were taken in */
    uint32_t n_max;            /* 0: none are wanted */
    uint32_t n_tops;
} quire_prompt_scores;

struct quire_request {
    quire_queue_link link; /* must be first: quire_request_of(). Holds arrival and priority */

    /* Constant after submit. */
    quire_loop *loop;
    uint32_t n_prompt;
    uint32_t max_tokens; /* resolved: at least 1 unless is_prompt_only, within the context or the
                            longest text */
    uint32_t n_held_max; /* tokens in a sequence: the context */
    quire_context_overflow overflow;
    uint32_t context_keep;
    quire_retain_spec context_retain; /* with QUIRE_CONTEXT_CONDENSE */
    quire_condensing condensing;
    double attend_share; /* of generated tokens; 0 = they read all pages */
    uint32_t n_tops;
    bool has_logprobs;
    bool ignores_eos;
    bool has_session;
    uint32_t class_index;
    uint8_t rank; /* of the class */
    bool is_prompt_only;
    uint64_t pin; /* quire_pin_id: the request only computes the text of this pin; 0 = none */
    uint64_t owner;
    uint32_t tenant_bytes;
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
    char id[QUIRE_REQUEST_ID_MAX];
    uint64_t submitted_us;

    /* The engine's thread. */
    quire_request_state state;
    bool is_uncached; /* publishes nothing */
    quire_sampler *sampler;
    quire_text_out *text;
    quire_request_pool pool;
    quire_prompt_scores scored;
    int32_t *tokens; /* [tokens_capacity] prompt, then generated tokens */
    uint32_t n_tokens;
    uint32_t tokens_capacity;
    quire_request_kv kv;
    quire_request_waiting wait;
    quire_request_lead lead;
    uint32_t n_to_compute; /* tokens of the prompt, counted in the loop's load */
    uint32_t n_prefilled;  /* rows of prefill, recomputation included */
    uint32_t n_left_out;   /* decode: steps since its last row */
    bool is_parked;        /* in the queue of its class, keeps its sequence and its state */
    uint8_t rank_now;      /* while running: rank of its class, or of the class it overtook */
    uint64_t admitted_us;
    uint64_t first_us;
    uint64_t last_us;
    uint32_t n_sampled;          /* from the first token on; also the one that ended the answer */
    quire_request_result result; /* for the client once is_done */

    /* Any thread. */
    atomic_bool is_cancelled;
    atomic_uint n_holders;
    quire_request_client client;
};

static inline quire_request *quire_request_of(quire_queue_link *link)
{
    return (quire_request *)(void *)link;
}

static inline bool quire_request_is_same_tenant(const quire_request *a, const quire_request *b)
{
    return a->tenant_bytes == b->tenant_bytes && memcmp(a->tenant, b->tenant, a->tenant_bytes) == 0;
}

/* Tokens in the request's sequence. */
static inline uint32_t quire_request_held(const quire_request *r)
{
    return r->kv.n_computed - r->kv.n_dropped;
}

/* The first n tokens, or as many as the context has room for. */
static inline uint32_t quire_request_reachable(const quire_request *r, uint32_t n)
{
    return n < r->n_held_max ? n : r->n_held_max;
}

/* Whether generated tokens read a share of the pages. */
static inline bool quire_request_attends(const quire_request *r)
{
    return quire_attends(r->attend_share);
}

/* The first n tokens, or as many of them as other requests compute alike. */
static inline uint32_t quire_request_common(const quire_request *r, uint32_t n)
{
    if (r->kv.n_mixed_from != 0 && r->kv.n_mixed_from < n) {
        n = r->kv.n_mixed_from;
    }
    return quire_request_attends(r) && r->n_prompt < n ? r->n_prompt : n;
}

/* The first n tokens, or as many as the tree can have of them in one piece. */
static inline uint32_t quire_request_cacheable(const quire_request *r, uint32_t n)
{
    const uint32_t chunk = r->condensing.chunk;

    n = quire_request_common(r, n);
    return quire_request_reachable(r, chunk != 0 && chunk < n ? chunk : n);
}

/* Whether `retain` condenses the text before its context is full. */
static inline bool quire_params_condense(const quire_request_params *p)
{
    return p->retain != NULL && p->context_overflow != QUIRE_CONTEXT_CONDENSE;
}

/* Whether tokens leave the text. Its pages stay in memory then (engine/overflow.h). */
static inline bool quire_params_drop(const quire_request_params *p)
{
    return p->retain != NULL || p->context_overflow != QUIRE_CONTEXT_REFUSE;
}
static inline bool quire_request_drops(const quire_request *r)
{
    return r->condensing.chunk != 0 || r->overflow != QUIRE_CONTEXT_REFUSE;
}

/* Whether the request uses no cached token, unless it was preempted. */
static inline bool quire_params_are_cold(const quire_request_params *p)
{
    return p->has_prompt_logprobs || p->pooling == QUIRE_POOLING_MEAN ||
           p->pooling == QUIRE_POOLING_CLS;
}

/* Whether the request publishes its computed tokens. */
static inline bool quire_request_publishes(const quire_request *r)
{
    return r->kv.ref != QUIRE_PREFIX_REF_NULL && !r->is_uncached && !r->kv.is_own &&
           (r->kv.n_dropped == 0 || r->condensing.chunk != 0);
}

/* How a request ends. */
typedef struct quire_ending {
    quire_finish finish;
    int status;          /* ERROR */
    int32_t stop_index;  /* -1 */
    const char *message; /* ERROR; NULL: the status's text */
} quire_ending;

/* ---- request_events.c. Thread: the engine's ---- */

/* Prompt tokens of the request that are to be computed yet, for the load of its loop. Before the
 * request is queued, any thread. */
void quire_loop_to_compute_set(quire_request *request, uint32_t n_tokens);

/* Append a token with its text. Errors: QUIRE_NOMEM; nothing is added then. */
int quire_request_push(quire_request *request, const quire_request_token *token);
/* End a request. The request supplies the counts and times of the result. Wakes waiters and
 * releases the engine's reference. */
void quire_request_finish(quire_request *request, const quire_request_result *result);
void quire_request_explained(quire_request *request, const quire_explanation *explanation);

/* Thread: any. */
void quire_request_unref(quire_request *request);

#endif /* QUIRE_ENGINE_REQUEST_H */
