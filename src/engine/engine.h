/* engine.h - requests in, tokens out: continuous batching on one runtime and one prefix tree.
 *
 *   submit                 admit                      prompt computed            stop, length,
 *     |                      |                              |                 cancel, error
 *     v                      v                              v                       v
 *   waiting --------------> prefill ---------------------> decode ----------------> done
 *     ^  ^                   |   |                           |
 *     |  '-- held back while another request computes        |
 *     |      the same prefix                                 |
 *     '---------- preempted: pages were short; they are cached or evicted, tokens kept
 *
 * The engine owns a thread; the thread owns the runtime, its cache and the prefix tree. Other
 * threads reach them through queues only. Requests have a bounded queue (quire_engine_submit()).
 * Invalidation, pins (pins.h), views of the cache (views.h) and tuning (tuning.h) are queued as
 * tasks that the thread runs between two steps.
 *
 * A step has one row for each request in decode, then prefill rows up to chunk_tokens in all,
 * shared out among the requests in prefill (schedule.h). So no request waits for the end of a long
 * prompt, and decode never waits longer than one chunk. After a cache hit prefill begins at the
 * first token without KV; the last prompt token is always computed.
 *
 * Requests belong to service classes (classes.h). Within one step a request of a high class takes
 * rows, a running place and pages from lower classes. A request that loses its place is parked: it
 * keeps its pages and its state, gets no rows, and continues once a place is free. When pages are
 * short, requests are preempted instead, the cheapest to recompute first.
 *
 * No request ends because of another request. A request that does not fit waits
 * (QUIRE_ADMIT_RESERVE), or the youngest request is preempted (QUIRE_ADMIT_GROW): it gives up its
 * pages and is recomputed later, mostly from the cache, with the same tokens and the same sampler
 * state.
 *
 * An engine may have several devices, each with a thread, a runtime and a tree of its own:
 * replicas.h.
 *
 * Thread: any, unless a function says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/classes.h"
#include "engine/events.h"
#include "engine/overflow.h"
#include "engine/pinned.h"
#include "engine/precache.h"
#include "engine/replicas.h"
#include "engine/saver.h"
#include "engine/sessions.h"
#include "engine/stats.h"
#include "engine/tier.h"
#include "model/context_overflow.h"
#include "model/model.h"
#include "model/runtime.h"
#include "model/sampler.h"
#include "quire/error.h"
#include "quire/prefix.h"
#include "retain/page_choice.h"
#include "retain/policy.h"
#include "retain/predictor.h"

typedef struct quire_engine quire_engine;
typedef struct quire_request quire_request;

#define QUIRE_STOPS_MAX        16u
#define QUIRE_STOP_BYTES_MAX   256u
#define QUIRE_LOGPROBS_MAX     20u
#define QUIRE_REQUEST_ID_MAX   64u
#define QUIRE_ENGINE_QUEUE_MAX 65536u
#define QUIRE_CONTEXTS_MAX     16u /* tokens of a text that overflows its context, in contexts */
/* For the log-probabilities of a prompt's tokens: quire_prompt_logprobs_bytes(). */
#define QUIRE_PROMPT_LOGPROBS_BYTES_MAX (8u << 20)

typedef enum quire_admit {
    QUIRE_ADMIT_GROW,   /* begin when the prompt fits; preempt when pages run short */
    QUIRE_ADMIT_RESERVE /* begin when prompt + max_tokens fit, and keep that room */
} quire_admit;

/* Accounts of the cache, with the quotas and weights of quire/prefix.h, and the account of each
 * tenant. */
typedef struct quire_engine_accounts {
    const quire_account_opts *items; /* [n]: account i + 1 is as items[i]; read by create only */
    uint32_t n;                      /* < QUIRE_ACCOUNTS_MAX */
    /* The account of a tenant, 0 .. n; NULL = account 0 for all tenants. Thread: the engine's. */
    uint16_t (*of)(void *ctx, const void *tenant, uint32_t tenant_bytes);
    void *ctx;
} quire_engine_accounts;

typedef struct quire_engine_opts {
    const quire_model *model; /* borrowed */
    quire_runtime *runtime;   /* borrowed; belongs to the engine's thread until destroy */
    uint32_t n_running_max;   /* requests computed at once (max_batch_size); the runtime's
                                 n_seqs_max and n_batch cap it; 0 = default, 64 */
    uint32_t n_parked_max; /* requests that may be parked; the runtime's n_seqs_max - n_running_max
                              caps it; 0 = that cap */
    uint32_t queue_max; /* requests accepted beyond the running ones, per class; 0 = default, 256 */
    uint32_t chunk_tokens; /* rows of a step with prefill (schedule.h); n_batch caps it; 0 =
                              default, 256 */
    uint32_t tokens_max;   /* cap on max_tokens; 0 = the context */
    quire_classes classes; /* n = 0: one class; classes.h */
    uint64_t aging_us;     /* wait that counts as one rank (classes.h); 0 = default, 20 s */
    uint64_t pinned_bytes; /* initial budget of the pinned region, taken from the dynamic region; 0
                              = no pinned region */
    bool pinned_stays;     /* pinned classes do not spill into the dynamic region */
    quire_admit admit;
    bool no_prefix_cache;        /* neither look up nor publish prefixes */
    uint32_t state_every_tokens; /* with recurrent layers: a state is cached each so many tokens, a
                                    multiple of page_tokens; 0 = default, 1024 */
    uint32_t retain_chunk;       /* texts with params.retain are condensed each so many tokens, a
                                    multiple of page_tokens; then the runtime's n_seqs_max must be
                                    above n_running_max. 0 = no request is */
    const quire_predictor *predictor; /* of the policy predict, of the model; borrowed; NULL = texts
                                         cannot be condensed by it */
    quire_evict_policy cache_policy;
    uint64_t cache_ttl_us; /* see quire_prefix_opts */
    uint64_t low_traffic_after_us;
    double low_traffic_hits_per_hour;
    quire_engine_accounts accounts;
    quire_sessions_opts sessions;
    uint32_t explain_max;         /* explanations kept; 0 = none, at most 2^20; default 1024 */
    quire_pinned_opts pinned;     /* how the pinned region adapts */
    uint32_t pins_max;            /* pins.h; default 256, 0 = none */
    uint32_t events_max;          /* ring of events; 0 = default, 1024 */
    quire_precache_opts precache; /* idle time */
    size_t recent_bytes;          /* record of the last hour (tuning.h); 0 = none; default 4 MiB */
    quire_tier_opts tier;         /* pages below memory; tier.h */
    quire_saver_opts saver;       /* state that outlives a restart; saver.h */
    quire_overflow_opts overflow; /* requests larger than the budget; overflow.h */
    quire_prefix_watcher watcher; /* is told the full pages of text that memory has; stored NULL =
                                     none. Stays until destroy. Thread: the engine's */
    quire_engine_devices devices; /* further ones: replicas.h */
    quire_sessions *shared_sessions;   /* of another engine's loop, borrowed; NULL = its own */
    _Atomic uint64_t *shared_arrivals; /* likewise */
    bool no_shadow;                    /* no ghost caches of other sizes (trace/online/shadow.h) */
    uint64_t (*clock_us)(void *ctx);   /* for tests; NULL = the monotonic clock */
    void *clock_ctx;
} quire_engine_opts;

#define QUIRE_ENGINE_OPTS_INIT                                                                     \
    {                                                                                              \
        .n_running_max = 64, .queue_max = 256, .chunk_tokens = 256, .aging_us = 20000000,          \
        .sessions = QUIRE_SESSIONS_OPTS_INIT, .explain_max = 1024, .pins_max = 256,                \
        .recent_bytes = (size_t)4 << 20                                                            \
    }

/* Recommended number of parked requests: sequences that the runtime should have beyond
 * n_running_max. A displaced request without a parked place is preempted, which costs little while
 * its pages stay cached. Each parked request withholds pages from the others, hence only a
 * quarter. */
static inline uint32_t quire_engine_parked_max(uint32_t n_running_max)
{
    return n_running_max / 4 + 1;
}

/* Start the thread. Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_engine_create(quire_engine **out, const quire_engine_opts *opts, quire_error *err);
/* Cancel all requests and end the thread. Unreleased requests stay valid and are done. NULL is
 * allowed. No other call may be in progress. */
void quire_engine_destroy(quire_engine *engine);

/* Whether no request is waiting or running. */
bool quire_engine_is_idle(const quire_engine *engine);

/* Whether the device was lost, of several devices all. Then all requests have failed, or are about
 * to, and new ones are refused (QUIRE_LOST). Nothing repairs it: the owner ends the engine. */
bool quire_engine_is_lost(const quire_engine *engine);
/* The lost device of an engine with one loop, as --device names it: of a split, the first one that
 * was lost. NULL: none is lost. Memory: the runtime's. */
const char *quire_engine_lost_name(const quire_engine *engine);

const quire_model *quire_engine_model(const quire_engine *engine);
uint32_t quire_engine_n_ctx(const quire_engine *engine);
quire_sessions *quire_engine_sessions(quire_engine *engine);

/* ---- requests ---- */

/* The vector that a text becomes. */
typedef enum quire_pooling {
    QUIRE_POOLING_NONE, /* none: the request generates */
    QUIRE_POOLING_MEAN, /* the mean of all tokens' hidden states */
    QUIRE_POOLING_CLS,  /* the first token's */
    QUIRE_POOLING_LAST  /* the last token's */
} quire_pooling;

typedef struct quire_request_params {
    const int32_t *tokens; /* the prompt; copied */
    uint32_t n_tokens;     /* >= 1 */
    uint32_t max_tokens;   /* to generate at most; 0 = up to the context */
    quire_sampler_opts sampler;
    const char *const *stops; /* texts that end generation and are left out of the answer; copied */
    uint32_t n_stops;
    bool ignores_eos; /* continue after an end-of-generation token. Under a grammar that token ends
                         the request all the same (sampler.forbids_eog postpones it) */
    bool has_logprobs;
    uint32_t n_top_logprobs; /* 0 .. QUIRE_LOGPROBS_MAX alternatives per token */
    bool is_uncached;        /* cache_prompt: false: use hits, publish nothing */
    bool shows_special;      /* include the text of control tokens */
    const void *tenant;      /* salt of the prefix tree: API key's tenant and cache_salt; copied */
    uint32_t tenant_bytes;
    quire_session_ref session; /* 0 = none; the caller leaves it when the request is done */
    uint32_t class_index;      /* into opts.classes */
    int32_t priority;          /* order within the queue of the class, highest first; default 0 */
    /* When the text fills the context (model/context_overflow.h). A text has at most
     * QUIRE_CONTEXTS_MAX contexts of tokens then, and an answer without max_tokens has at most one
     * context of them. With pooling QUIRE_CONTEXT_REFUSE alone. */
    quire_context_overflow context_overflow;
    uint32_t context_keep; /* first tokens that never leave, rounded up to whole tiles */
    /* The text keeps a share of its tokens (engine/condensing.h): read by submit; NULL = all. Not
     * with context_overflow, nor with pooling. With QUIRE_CONTEXT_CONDENSE the text is whole until
     * it fills the context, and this is the policy by which it is condensed then; NULL =
     * QUIRE_CONTEXT_RETAIN (engine/context_condense.h). */
    const quire_retain_spec *retain;
    /* Below 1: a generated token reads this share of the pages in each lane that it may need most
     * (retain/page_choice.h); 0 = all. The KV of generated tokens depends on it, so the request
     * publishes its prompt alone. Not with retain, nor with context_overflow. */
    double attend_share;
    quire_pooling pooling; /* compute the prompt and its vector, and generate nothing */
    /* The log-probability of each token of the prompt: quire_request_prompt_logprob(). The request
     * uses no cached tokens. The text keeps all its tokens: not with retain, context_overflow or
     * pooling. */
    bool has_prompt_logprobs;
    uint32_t n_prompt_top_logprobs; /* alternatives of each token; at most QUIRE_LOGPROBS_MAX */
    bool is_prompt_only; /* compute the prompt and generate nothing; max_tokens is not read */
    const char *id;      /* id of the reply, the key of explanations; copied */
} quire_request_params;

/* Whether texts can overflow the context so; keep is context_keep. `setting` begins the message.
 * Errors: quire_context_overflow_check(). */
int quire_engine_context_check(const quire_engine *engine, quire_context_overflow overflow,
                               uint32_t keep, const char *setting, quire_error *err);

/* The same for QUIRE_CONTEXT_CONDENSE and its policy; NULL = QUIRE_CONTEXT_RETAIN. Errors: also
 * quire_context_condense_check(). */
int quire_engine_context_condense_check(const quire_engine *engine, const quire_retain_spec *spec,
                                        uint32_t keep, const char *setting, quire_error *err);

/* Whether texts can keep a share of their tokens so. `setting` begins the message. Errors:
 * quire_condensing_check(); QUIRE_UNSUPP without retain_chunk, with a store, with the file of
 * overflow.h and with a watcher. */
int quire_engine_retain_check(const quire_engine *engine, const quire_retain_spec *spec,
                              const char *setting, quire_error *err);

/* Whether generated tokens can read a share of the pages. `setting` begins the message. Errors:
 * quire_attending_check(). */
int quire_engine_attend_check(const quire_engine *engine, const char *setting, quire_error *err);

/* Queue a request. Errors: QUIRE_LIMIT (the queue of its class is full, or the grammar is too
 * large, or QUIRE_PROMPT_LOGPROBS_BYTES_MAX: err then names the field), QUIRE_RANGE (prompt, + 1
 * if the request generates, beyond the context, or beyond the tokens that the KV budget, with the
 * file of overflow.h, can ever hold), QUIRE_INVAL (a token out of range, a grammar that does not
 * parse), quire_engine_context_check(), quire_engine_retain_check(), quire_engine_attend_check(),
 * QUIRE_UNSUPP (has_prompt_logprobs of a text that does not keep all its tokens), QUIRE_AGAIN (the
 * engine is ending), QUIRE_LOST (quire_engine_is_lost()), QUIRE_NOMEM; err names the field. Memory:
 * end with quire_request_release(). */
int quire_engine_submit(quire_engine *engine, const quire_request_params *params,
                        quire_request **out, quire_error *err);

/* Request an early end. Pages are freed within one step. Idempotent. */
void quire_request_cancel(quire_request *request);
/* Release a request; cancels it if it is not done. */
void quire_request_release(quire_request *request);

/*  X(symbol, value, "name") */
#define QUIRE_FINISH_MAP(X)                                                                        \
    X(NONE, 0, "none")                                                                             \
    X(STOP, 1, "stop")     /* end of generation, or a stop text */                                 \
    X(LENGTH, 2, "length") /* max_tokens or the context */                                         \
    X(CANCEL, 3, "cancelled")                                                                      \
    X(ERROR, 4, "error")

typedef enum quire_finish {
#define X(sym, val, name) QUIRE_FINISH_##sym = (val),
    QUIRE_FINISH_MAP(X)
#undef X
} quire_finish;

static inline const char *quire_finish_name(quire_finish finish)
{
    static const char *const names[] = {
#define X(sym, val, name) [val] = (name),
        QUIRE_FINISH_MAP(X)
#undef X
    };

    return names[finish];
}

/* One generated token, and the text that became showable with it: whole UTF-8, without any
 * beginning of a possible stop text. Text held back comes with a later token or in the result's
 * tail. The end-of-generation token itself is not reported. */
typedef struct quire_request_token {
    int32_t token;
    const char *text; /* not terminated */
    uint32_t text_bytes;
    float logprob;               /* if has_logprobs */
    const quire_top_logit *tops; /* [n_tops], likeliest first */
    uint32_t n_tops;
} quire_request_token;

/* Wait until token number i (from 0) exists, the request is done, or timeout_ms passed. Returns 1
 * with *token filled in, 0 when the request is done and has no token i, QUIRE_AGAIN after the
 * timeout. Memory: *token is valid until release. Thread: one at a time per request. */
int quire_request_wait(quire_request *request, uint32_t i, uint32_t timeout_ms,
                       quire_request_token *token);

typedef struct quire_request_result {
    quire_finish finish;
    int status; /* ERROR: why */
    char message[QUIRE_ERROR_MESSAGE_MAX];
    const char *tail; /* text after the last token's text, usually "" */
    uint32_t tail_bytes;
    int32_t stop_index; /* stop text that matched; -1 = none */
    uint32_t n_prompt_tokens;
    uint32_t n_cached_tokens; /* tokens of the prompt that were not computed */
    uint32_t n_generated_tokens;
    uint32_t n_thought_tokens; /* of those: thoughts, by params.sampler.rules */
    uint32_t n_dropped_tokens; /* of the text, that left the context, or in condensings */
    uint32_t n_condensings;    /* of the text, those found in the cache included: its generations */
    uint32_t n_preemptions;
    uint32_t n_recomputed_tokens; /* because of preemptions */
    uint32_t n_parkings;          /* times that it was parked for a higher class */
    uint64_t parked_us;           /* total time parked */
    uint64_t queue_us;            /* submitted .. admitted */
    uint64_t prefill_us;          /* admitted .. first token */
    uint64_t decode_us;           /* first token .. last */
    uint64_t ttft_us;             /* submitted .. first token */
    uint64_t total_us;
    const float
        *vector; /* [n_vector] with params.pooling, after the model's last norm; else NULL */
    uint32_t n_vector;
} quire_request_result;

/* After quire_request_wait() returned 0. Memory: as above. */
const quire_request_result *quire_request_result_get(const quire_request *request);

/* Memory of the values of a prompt's tokens with n_tops alternatives each. */
static inline uint64_t quire_prompt_logprobs_bytes(uint32_t n_tokens, uint32_t n_tops)
{
    return (uint64_t)n_tokens * sizeof(quire_top_logit) * (1 + (uint64_t)n_tops);
}

/* What the model expected in place of a token of the prompt. */
typedef struct quire_prompt_logprob {
    float logprob;               /* of the prompt's token behind the tokens before it */
    uint32_t rank;               /* 1 + the tokens that were likelier */
    const quire_top_logit *tops; /* [n_tops], likeliest first */
    uint32_t n_tops;
} quire_prompt_logprob;

/* The values of token i of the prompt: with params.has_prompt_logprobs, after the request has a
 * generated token, or is done. Returns false for the first token, which has none, and for tokens
 * that a request did not reach before its end. Memory: valid until release. */
bool quire_request_prompt_logprob(const quire_request *request, uint32_t i,
                                  quire_prompt_logprob *out);

/* Take the tokens of a finished request whose KV was computed and is published: the prompt and the
 * answer without its last token, or as many of them as fit the context. Works once per request.
 * Memory: free(). */
int32_t *quire_request_tokens_take(quire_request *request, uint32_t *n_tokens);

/* ---- explanations of cache misses ---- */

typedef struct quire_explanation {
    char request_id[QUIRE_REQUEST_ID_MAX];
    uint32_t n_prompt_tokens;
    uint32_t n_cached_tokens;
    uint32_t n_same_tokens; /* leading tokens that equal a cached text */
    quire_prefix_end end;   /* why the match ended */
    quire_prefix_cut cut;   /* why n_cached_tokens is less than n_same_tokens */
    int32_t prompt_token;   /* the prompt's token at n_same_tokens; -1 = end of the prompt */
    int32_t cached_token;   /* DIVERGED: the cached token there; else -1 */
    uint32_t n_gone_tokens; /* EVICTED: number of evicted tokens */
    quire_prefix_gone gone;
    uint64_t gone_ago_us;
    uint32_t n_computed_tokens; /* of the prompt */
    double computed_ms; /* cost of n_computed_tokens, by the measured time per prefill token */
    double gone_ms;     /* cost of n_gone_tokens, likewise */
    bool has_waited;    /* was held back while another request computed the same prefix */
    uint64_t ended_us;  /* by the engine's clock */
} quire_explanation;

/* Explanation of a request: valid after admission, its costs after the first token. Errors:
 * QUIRE_AGAIN (not admitted yet), QUIRE_NOTFOUND (ended before admission). */
int quire_request_explain(const quire_request *request, quire_explanation *out);
/* Explanation of a finished request, by its id and its tenant; tenant NULL = any tenant (admin).
 * Errors: QUIRE_NOTFOUND. */
int quire_engine_explain(quire_engine *engine, const char *request_id, const void *tenant,
                         uint32_t tenant_bytes, quire_explanation *out);
/* The last n explanations, newest first. Returns the number written. */
uint32_t quire_engine_explain_last(quire_engine *engine, quire_explanation *out, uint32_t n);

/* ---- administration ---- */

typedef enum quire_invalidate_what {
    QUIRE_INVALIDATE_ALL,
    QUIRE_INVALIDATE_TENANT,
    QUIRE_INVALIDATE_TENANTS, /* all tenants whose bytes begin with these */
    QUIRE_INVALIDATE_PREFIX,  /* of a tenant */
    QUIRE_INVALIDATE_SESSION  /* also forgets the session */
} quire_invalidate_what;

typedef struct quire_invalidate {
    quire_invalidate_what what;
    const void *tenant;
    uint32_t tenant_bytes;
    const int32_t *tokens; /* PREFIX */
    uint32_t n_tokens;
    const char *session_id;   /* SESSION */
    uint32_t n_shared_tokens; /* SESSION, set by the engine: of the text, in trees of other texts
                                 and in other sessions */
} quire_invalidate;

/* Invalidate cached texts; complete on return. Errors: QUIRE_NOTFOUND (session), QUIRE_AGAIN. */
int quire_engine_invalidate(quire_engine *engine, const quire_invalidate *what,
                            quire_prefix_dropped *dropped);

/* Events: changes that the engine made by itself (events.h). Writes at most n events with a number
 * above `after`, oldest first, and returns the number written. time_us counts from
 * quire_engine_create(). */
uint32_t quire_engine_events(const quire_engine *engine, uint64_t after, quire_event *out,
                             uint32_t n);

/* The figures of each device, the first one first. Returns their number; never waits. */
uint32_t quire_engine_devices_get(quire_engine *engine,
                                  quire_engine_device_stats out[QUIRE_REPLICAS_MAX]);

/* Counters, gauges, histograms: stats.h. */
void quire_engine_stats_get(quire_engine *engine, quire_engine_stats *out);

#endif /* QUIRE_ENGINE_ENGINE_H */
