/* engine.h - requests in, tokens out: continuous batching on one runtime and one prefix tree.
 *
 *   submit                 admit                      prompt computed            stop, length,
 *     |                      |                              |                 cancel, error
 *     v                      v                              v                       v
 *   waiting --------------> prefill ---------------------> decode ----------------> done
 *     ^  ^                   |   |                           |
 *     |  '-- held back while another request computes        |
 *     |      the same prefix                                 |
 *     '---------- preempted: pages were short, its own are cached or evicted, tokens kept
 *
 * The engine owns a thread, which owns the runtime, its cache and the prefix tree. Everything else
 * reaches them through queues: requests (bounded, quire_engine_submit()), and what the thread does
 * between two steps: invalidation, pins (pins.h), views of the cache (views.h), tuning (tuning.h).
 *
 * A step's rows are one for each request in decode, then prefill up to chunk_tokens in all, shared
 * out among the requests that prefill (schedule.h), so that nobody waits behind a long prompt and
 * decode never waits longer than one chunk. With a cache hit, prefill begins behind it; the last
 * prompt token is always computed.
 *
 * Requests belong to service classes (classes.h). A request of a high class takes what it needs of
 * the lower ones within one step: rows of the step, a place among those that run, pages. Who has to
 * give its place is parked: it keeps its pages and its state, gets no rows, and goes on when there
 * is a place again. Where pages are short it is preempted instead, the one that is cheapest to
 * compute again first.
 *
 * Nothing ends another's request: what does not fit waits (QUIRE_ADMIT_RESERVE) or is preempted
 * (QUIRE_ADMIT_GROW: the youngest request gives its pages up and is computed again later, mostly
 * from the cache, with the same tokens and the same sampler state).
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
#include "engine/pinned.h"
#include "engine/precache.h"
#include "engine/sessions.h"
#include "engine/stats.h"
#include "model/model.h"
#include "model/runtime.h"
#include "model/sampler.h"
#include "quire/error.h"
#include "quire/prefix.h"

typedef struct quire_engine quire_engine;
typedef struct quire_request quire_request;

#define QUIRE_STOPS_MAX        16u
#define QUIRE_STOP_BYTES_MAX   256u
#define QUIRE_LOGPROBS_MAX     20u
#define QUIRE_REQUEST_ID_MAX   64u
#define QUIRE_ENGINE_QUEUE_MAX 65536u

typedef enum quire_admit {
    QUIRE_ADMIT_GROW,   /* begin when the prompt fits; preempt when pages run short */
    QUIRE_ADMIT_RESERVE /* begin when prompt + max_tokens fit, and keep that room */
} quire_admit;

/* Whose share of the cache a tenant's texts count to: quotas and weights of quire/prefix.h. */
typedef struct quire_engine_accounts {
    const quire_account_opts *items; /* [n]: account i + 1 is as items[i]; read by create only */
    uint32_t n;                      /* < QUIRE_ACCOUNTS_MAX */
    /* The account of a tenant, 0 .. n; NULL = everybody has account 0. Thread: the engine's. */
    uint16_t (*of)(void *ctx, const void *tenant, uint32_t tenant_bytes);
    void *ctx;
} quire_engine_accounts;

typedef struct quire_engine_opts {
    const quire_model *model; /* borrowed */
    quire_runtime *runtime;   /* borrowed; belongs to the engine's thread until destroy */
    uint32_t n_running_max;   /* requests computed at once (max_batch_size); the runtime's
                                 n_seqs_max and n_batch cap it; 0 = default, 64 */
    uint32_t n_parked_max;    /* requests that keep their pages while higher classes have their
                                 places; the runtime's n_seqs_max less n_running_max caps it;
                                 0 = all of those */
    uint32_t queue_max;       /* requests accepted beyond those, of each class; 0 = default, 256 */
    uint32_t chunk_tokens;    /* rows of a step that has prefill: see schedule.h; n_batch caps it;
                                 0 = default, 256 */
    uint32_t tokens_max;      /* cap on max_tokens; 0 = the context */
    quire_classes classes;    /* n = 0: one class; classes.h */
    uint64_t aging_us; /* waiting for so long counts as one rank: classes.h; 0 = default, 20 s */
    uint64_t pinned_bytes; /* budget of a pinned region at first, taken from the dynamic one; 0 =
                              no pinned region */
    bool pinned_stays;     /* classes that are pinned do not spill into the dynamic region */
    quire_admit admit;
    bool no_prefix_cache; /* find nothing, leave nothing behind */
    quire_evict_policy cache_policy;
    uint64_t cache_ttl_us; /* see quire_prefix_opts */
    uint64_t low_traffic_after_us;
    double low_traffic_hits_per_hour;
    quire_engine_accounts accounts;
    quire_sessions_opts sessions;
    uint32_t explain_max;            /* requests whose explanation is kept; 0 = none, at most 2^20;
                                        default 1024 */
    quire_pinned_opts pinned;        /* how the pinned region adapts */
    uint32_t pins_max;               /* pins.h; default 256, 0 = none */
    uint32_t events_max;             /* ring of events; 0 = default, 1024 */
    quire_precache_opts precache;    /* idle time */
    size_t recent_bytes;             /* for the last hour's requests (tuning.h); 0 = none; default
                                        4 MiB */
    bool no_shadow;                  /* no ghost caches of other sizes (trace/online/shadow.h) */
    uint64_t (*clock_us)(void *ctx); /* for tests; NULL = the monotonic clock */
    void *clock_ctx;
} quire_engine_opts;

#define QUIRE_ENGINE_OPTS_INIT                                                                     \
    {                                                                                              \
        .n_running_max = 64, .queue_max = 256, .chunk_tokens = 256, .aging_us = 20000000,          \
        .sessions = QUIRE_SESSIONS_OPTS_INIT, .explain_max = 1024, .pins_max = 256,                \
        .recent_bytes = (size_t)4 << 20                                                            \
    }

/* A good number of sequences beyond n_running_max for the runtime: as many may be parked. Who finds
 * no place among them is preempted, which costs little while its pages stay cached; each may keep
 * pages that nobody else can have, so it is a quarter. */
static inline uint32_t quire_engine_parked_max(uint32_t n_running_max)
{
    return n_running_max / 4 + 1;
}

/* Start the thread. Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_engine_create(quire_engine **out, const quire_engine_opts *opts, quire_error *err);
/* Cancel what runs, end the thread. Requests not released yet stay valid, they are done. NULL is
 * fine. No other call may be on its way. */
void quire_engine_destroy(quire_engine *engine);

/* Whether no request is waiting or running. */
bool quire_engine_is_idle(const quire_engine *engine);

const quire_model *quire_engine_model(const quire_engine *engine);
uint32_t quire_engine_n_ctx(const quire_engine *engine);
quire_sessions *quire_engine_sessions(quire_engine *engine);

/* ---- requests ---- */

typedef struct quire_request_params {
    const int32_t *tokens; /* the prompt; copied */
    uint32_t n_tokens;     /* >= 1 */
    uint32_t max_tokens;   /* to generate at most; 0 = up to the context */
    quire_sampler_opts sampler;
    const char *const *stops; /* texts that end generation, not part of it; copied */
    uint32_t n_stops;
    bool ignores_eos; /* goes on behind a token that ends a text; under a grammar that is the end
                         all the same (sampler.forbids_eog puts it off) */
    bool has_logprobs;
    uint32_t n_top_logprobs; /* 0 .. QUIRE_LOGPROBS_MAX alternatives per token */
    bool is_uncached;        /* cache_prompt: false: use hits, leave nothing behind */
    bool shows_special;      /* text of control tokens too */
    const void *tenant;      /* salt of the prefix tree: API key's tenant and cache_salt; copied */
    uint32_t tenant_bytes;
    quire_session_ref session; /* 0 = none; the caller leaves it when the request is done */
    uint32_t class_index;      /* into opts.classes */
    int32_t priority;          /* within the class: higher first among those that wait; default 0 */
    const char *id;            /* of the reply, copied; for explanations */
} quire_request_params;

/* Queue a request. Errors: QUIRE_LIMIT (its class's queue is full; or a grammar that is too large:
 * then err names the field), QUIRE_RANGE (prompt + 1 beyond the context, or beyond what the KV
 * budget can ever hold), QUIRE_INVAL (a token out of range, a grammar that does not parse),
 * QUIRE_AGAIN (the engine ends), QUIRE_NOMEM; err names the field. Memory: end with
 * quire_request_release(). */
int quire_engine_submit(quire_engine *engine, const quire_request_params *params,
                        quire_request **out, quire_error *err);

/* Ask for an early end: pages are freed within one step. Idempotent. */
void quire_request_cancel(quire_request *request);
/* Cancels when not done. */
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

/* One generated token and the text that can be shown since the last one: whole UTF-8, nothing that
 * may still become a stop text. What was held back comes with a later token or with the end. The
 * token of the vocabulary that ended a generation is none of them. */
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
    const char *tail; /* text after the last token's, "" mostly */
    uint32_t tail_bytes;
    int32_t stop_index; /* stop text that matched; -1 */
    uint32_t n_prompt_tokens;
    uint32_t n_cached_tokens; /* of the prompt, not computed */
    uint32_t n_generated_tokens;
    uint32_t n_preemptions;
    uint32_t n_recomputed_tokens; /* because of preemptions */
    uint32_t n_parkings;          /* times that it stood aside for a higher class, with its pages */
    uint64_t parked_us;           /* for so long */
    uint64_t queue_us;            /* submitted .. admitted */
    uint64_t prefill_us;          /* admitted .. first token */
    uint64_t decode_us;           /* first token .. last */
    uint64_t ttft_us;             /* submitted .. first token */
    uint64_t total_us;
} quire_request_result;

/* After quire_request_wait() returned 0. Memory: as above. */
const quire_request_result *quire_request_result_get(const quire_request *request);

/* The tokens of a request that is done, as far as their KV was computed and can be found: the
 * prompt and the answer but for its last token. The request has them no longer: once only. Memory:
 * free().
 */
int32_t *quire_request_tokens_take(quire_request *request, uint32_t *n_tokens);

/* ---- why did it miss ---- */

typedef struct quire_explanation {
    char request_id[QUIRE_REQUEST_ID_MAX];
    uint32_t n_prompt_tokens;
    uint32_t n_cached_tokens;
    uint32_t n_same_tokens; /* equal to something cached */
    quire_prefix_end end;   /* why no more */
    int32_t prompt_token;   /* at n_same_tokens; -1 at the end of the prompt */
    int32_t cached_token;   /* DIVERGED; else -1 */
    uint32_t n_gone_tokens; /* EVICTED */
    quire_prefix_gone gone;
    uint64_t gone_ago_us;
    uint32_t n_computed_tokens; /* of the prompt */
    double computed_ms;         /* what these cost, by the measured time per prefill token */
    double gone_ms;             /* what those of n_gone_tokens cost */
    bool has_waited;            /* for another request that computed the same prefix */
} quire_explanation;

/* Valid once the request was admitted; costs once it has a token. Errors: QUIRE_AGAIN (not yet),
 * QUIRE_NOTFOUND (it ended before it was admitted). */
int quire_request_explain(const quire_request *request, quire_explanation *out);
/* Of a request that is done, by the id it was submitted with, and for the tenant that did. Errors:
 * QUIRE_NOTFOUND. tenant NULL = whoever (admin). */
int quire_engine_explain(quire_engine *engine, const char *request_id, const void *tenant,
                         uint32_t tenant_bytes, quire_explanation *out);
/* The last n of them, newest first. Returns how many were written. */
uint32_t quire_engine_explain_last(quire_engine *engine, quire_explanation *out, uint32_t n);

/* ---- administration ---- */

typedef enum quire_invalidate_what {
    QUIRE_INVALIDATE_ALL,
    QUIRE_INVALIDATE_TENANT,
    QUIRE_INVALIDATE_TENANTS, /* all whose bytes begin with these */
    QUIRE_INVALIDATE_PREFIX,  /* of a tenant */
    QUIRE_INVALIDATE_SESSION  /* also forgets the session */
} quire_invalidate_what;

typedef struct quire_invalidate {
    quire_invalidate_what what;
    const void *tenant;
    uint32_t tenant_bytes;
    const int32_t *tokens; /* PREFIX */
    uint32_t n_tokens;
    const char *session_id; /* SESSION */
} quire_invalidate;

/* Has taken effect when it returns. Errors: QUIRE_NOTFOUND (session), QUIRE_AGAIN. */
int quire_engine_invalidate(quire_engine *engine, const quire_invalidate *what,
                            quire_prefix_dropped *dropped);

/* What it did of its own accord (events.h); time_us counts from quire_engine_create(). The events
 * with a number above `after`, oldest first, at most n. Returns how many. */
uint32_t quire_engine_events(const quire_engine *engine, uint64_t after, quire_event *out,
                             uint32_t n);

/* Counters, gauges, histograms: stats.h. */
void quire_engine_stats_get(quire_engine *engine, quire_engine_stats *out);

#endif /* QUIRE_ENGINE_ENGINE_H */
