/* sampler_dry.c - DRY, by libllama's sampler: see sampler.h.
 *
 * libllama looks up the breakers in the whole vocabulary, which takes tens of milliseconds, and
 * remembers each token that has one: a breaker such as "e" makes some megabytes. So all samplers of
 * a model with the same options share one of libllama's, which sees the tokens of a text anew for
 * each choice. The model keeps the last one.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "model/model_internal.h"

#include "base/bytes.h"
#include "base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A token that repeats stays possible: a grammar may allow no other. */
#define LOGIT_LEAST (-1e30f)

const char *const quire_dry_breakers[QUIRE_DRY_BREAKERS] = { "\n", ":", "\"", "*" };

/* ---- shared samplers ---- */

struct quire_dry_shared {
    quire_dry_shared *next;
    uint32_t n_users; /* under the memo's lock */
    quire_bytes key;  /* the options */
    pthread_mutex_t lock;
    struct llama_sampler *sampler; /* under `lock` */
};

struct quire_dry_memo {
    pthread_mutex_t lock;
    quire_dry_shared *all;
    quire_dry_shared *last; /* the memo is one of its users; NULL = none yet */
};

int quire_dry_memo_create(quire_dry_memo **out)
{
    quire_dry_memo *memo = calloc(1, sizeof *memo);

    *out = NULL;
    QUIRE_FAIL_IF(memo == NULL, QUIRE_NOMEM);
    if (pthread_mutex_init(&memo->lock, NULL) != 0) {
        free(memo);
        return QUIRE_NOMEM;
    }
    *out = memo;
    return QUIRE_OK;
}

static void shared_free(quire_dry_shared *shared)
{
    if (shared != NULL) {
        llama_sampler_free(shared->sampler);
        quire_bytes_fini(&shared->key);
        (void)pthread_mutex_destroy(&shared->lock);
        free(shared);
    }
}

/* One user less; NULL: none. Returns what nobody uses any more, for shared_free(). Under the lock.
 */
static quire_dry_shared *leave(quire_dry_memo *memo, quire_dry_shared *shared)
{
    quire_dry_shared **at = &memo->all;

    if (shared == NULL || --shared->n_users > 0) {
        return NULL;
    }
    while (*at != shared) {
        at = &(*at)->next;
    }
    *at = shared->next;
    return shared;
}

void quire_dry_memo_destroy(quire_dry_memo *memo)
{
    if (memo != NULL) {
        shared_free(leave(memo, memo->last));
        QUIRE_ASSERT(memo->all == NULL);
        (void)pthread_mutex_destroy(&memo->lock);
        free(memo);
    }
}

static int key_make(quire_bytes *key, const quire_sampler_opts *opts)
{
    (void)quire_bytes_addf(key, "%a %a %d %u", (double)opts->dry_multiplier, (double)opts->dry_base,
                           opts->dry_allowed_length, opts->dry_tokens);
    for (uint32_t i = 0; i < opts->n_dry_breakers; i++) {
        (void)quire_bytes_add(key, "", 1);
        (void)quire_bytes_add(key, opts->dry_breakers[i], strlen(opts->dry_breakers[i]));
    }
    return key->status;
}

/* One more user of the sampler with these options, and the memo keeps it; NULL: there is none.
 * Under the lock. *old: for shared_free(). */
static quire_dry_shared *enter(quire_dry_memo *memo, const quire_bytes *key, quire_dry_shared **old)
{
    quire_dry_shared *shared = memo->all;

    while (shared != NULL &&
           (shared->key.n != key->n || memcmp(shared->key.data, key->data, key->n) != 0)) {
        shared = shared->next;
    }
    *old = NULL;
    if (shared != NULL) {
        shared->n_users += 2;
        *old = leave(memo, memo->last);
        memo->last = shared;
    }
    return shared;
}

static struct llama_sampler *sampler_make(const quire_model *model, const quire_sampler_opts *opts)
{
    const char *breakers[QUIRE_DRY_BREAKERS_MAX];

    for (uint32_t i = 0; i < opts->n_dry_breakers; i++) {
        breakers[i] = opts->dry_breakers[i];
    }
    return llama_sampler_init_dry(model->vocab, opts->dry_multiplier, opts->dry_base,
                                  opts->dry_allowed_length, (int32_t)opts->dry_tokens, breakers,
                                  opts->n_dry_breakers);
}

/* Takes over the key. */
static int shared_make(quire_dry_shared **out, const quire_model *model,
                       const quire_sampler_opts *opts, quire_bytes *key)
{
    quire_dry_shared *shared = calloc(1, sizeof *shared);

    *out = NULL;
    QUIRE_FAIL_IF(shared == NULL, QUIRE_NOMEM);
    if (pthread_mutex_init(&shared->lock, NULL) != 0) {
        free(shared);
        return QUIRE_NOMEM;
    }
    shared->sampler = sampler_make(model, opts);
    shared->key = *key;
    *key = (quire_bytes){ 0 };
    *out = shared;
    return QUIRE_OK;
}

static int shared_get(quire_dry_shared **out, const quire_model *model,
                      const quire_sampler_opts *opts)
{
    quire_dry_memo *memo = model->dry_memo;
    quire_dry_shared *made = NULL, *old = NULL;
    quire_bytes key = { 0 };
    int rc = key_make(&key, opts);

    (void)pthread_mutex_lock(&memo->lock);
    *out = rc == QUIRE_OK ? enter(memo, &key, &old) : NULL;
    (void)pthread_mutex_unlock(&memo->lock);
    if (rc == QUIRE_OK && *out == NULL) {
        rc = shared_make(&made, model, opts, &key);
    }
    if (made != NULL) {
        (void)pthread_mutex_lock(&memo->lock);
        *out = enter(memo, &made->key, &old);
        if (*out == NULL) { /* nobody made the same one meanwhile */
            made->next = memo->all;
            memo->all = made;
            *out = enter(memo, &made->key, &old);
            made = NULL;
        }
        (void)pthread_mutex_unlock(&memo->lock);
        shared_free(made);
    }
    if (*out != NULL) {
        shared_free(old);
    }
    quire_bytes_fini(&key);
    return rc;
}

/* ---- tokens ---- */

int quire_dry_init(quire_dry *dry, const quire_model *model, const quire_sampler_opts *opts)
{
    *dry = (quire_dry){ .memo = model->dry_memo };
    if (opts->dry_multiplier == 0.0f || opts->dry_tokens == 0 ||
        !quire_sampler_order_has(&opts->order, QUIRE_SAMPLER_DRY)) {
        return QUIRE_OK;
    }
    dry->n_max = opts->dry_tokens;
    dry->recent = calloc(dry->n_max, sizeof(*dry->recent));
    dry->list = calloc(dry->n_max, sizeof(*dry->list));
    QUIRE_FAIL_IF(dry->recent == NULL || dry->list == NULL, QUIRE_NOMEM);
    return shared_get(&dry->shared, model, opts);
}

void quire_dry_fini(quire_dry *dry)
{
    if (dry->shared != NULL) {
        quire_dry_shared *unused;

        (void)pthread_mutex_lock(&dry->memo->lock);
        unused = leave(dry->memo, dry->shared);
        (void)pthread_mutex_unlock(&dry->memo->lock);
        shared_free(unused);
    }
    free(dry->recent);
    free(dry->list);
}

/* Change the logits of a list of tokens by the recent ones. */
static void shared_apply(const quire_dry *dry, llama_token_data_array *list)
{
    quire_dry_shared *shared = dry->shared;
    const uint32_t first = dry->n == dry->n_max ? dry->next : 0;

    (void)pthread_mutex_lock(&shared->lock);
    llama_sampler_reset(shared->sampler);
    for (uint32_t i = 0; i < dry->n; i++) {
        const uint32_t at = first + i;

        llama_sampler_accept(shared->sampler, dry->recent[at < dry->n_max ? at : at - dry->n_max]);
    }
    llama_sampler_apply(shared->sampler, list);
    (void)pthread_mutex_unlock(&shared->lock);
}

void quire_dry_apply(quire_dry *dry, float *logits)
{
    llama_token_data_array list = { dry->list, dry->n, -1, false };

    if (dry->n == 0) {
        return;
    }
    for (uint32_t i = 0; i < dry->n; i++) {
        dry->list[i] = (llama_token_data){ dry->recent[i], logits[dry->recent[i]], 0.0f };
    }
    shared_apply(dry, &list);
    for (uint32_t i = 0; i < dry->n; i++) {
        float *logit = &logits[dry->list[i].id];

        if (dry->list[i].logit < *logit) {
            *logit = dry->list[i].logit > LOGIT_LEAST ? dry->list[i].logit : LOGIT_LEAST;
        }
    }
}

void quire_dry_accept(quire_dry *dry, int32_t token)
{
    if (dry->shared == NULL) {
        return;
    }
    dry->n += dry->n < dry->n_max;
    dry->recent[dry->next] = token;
    dry->next = dry->next + 1 == dry->n_max ? 0 : dry->next + 1;
}

void quire_dry_reset(quire_dry *dry)
{
    dry->n = dry->next = 0;
}
