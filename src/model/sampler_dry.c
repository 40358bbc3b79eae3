/* sampler_dry.c - DRY, by libllama's sampler: see sampler.h.
 *
 * libllama looks up the breakers in the whole vocabulary, which takes tens of milliseconds. So a
 * model keeps the last sampler that was made, and a sampler with the same options is a copy of it.
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

/* ---- the last sampler ---- */

struct quire_dry_memo {
    pthread_mutex_t lock;
    struct llama_sampler *sampler; /* has seen no token; NULL = none yet */
    quire_bytes key;               /* its options */
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

void quire_dry_memo_destroy(quire_dry_memo *memo)
{
    if (memo != NULL) {
        llama_sampler_free(memo->sampler);
        quire_bytes_fini(&memo->key);
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

/* A copy of the kept sampler; NULL: it has other options. */
static struct llama_sampler *memo_copy(quire_dry_memo *memo, const quire_bytes *key)
{
    struct llama_sampler *copy = NULL;

    (void)pthread_mutex_lock(&memo->lock);
    if (memo->sampler != NULL && memo->key.n == key->n &&
        memcmp(memo->key.data, key->data, key->n) == 0) {
        copy = llama_sampler_clone(memo->sampler);
    }
    (void)pthread_mutex_unlock(&memo->lock);
    return copy;
}

/* Keep a copy; takes over the key. */
static void memo_keep(quire_dry_memo *memo, const struct llama_sampler *sampler, quire_bytes *key)
{
    struct llama_sampler *old;
    quire_bytes old_key;

    (void)pthread_mutex_lock(&memo->lock);
    old = memo->sampler;
    old_key = memo->key;
    memo->sampler = llama_sampler_clone(sampler);
    memo->key = *key;
    (void)pthread_mutex_unlock(&memo->lock);
    llama_sampler_free(old);
    *key = old_key;
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

static int sampler_get(struct llama_sampler **out, const quire_model *model,
                       const quire_sampler_opts *opts)
{
    quire_bytes key = { 0 };
    int rc = key_make(&key, opts);

    if (rc == QUIRE_OK) {
        *out = memo_copy(model->dry_memo, &key);
        if (*out == NULL) {
            *out = sampler_make(model, opts);
            memo_keep(model->dry_memo, *out, &key);
        }
    }
    quire_bytes_fini(&key);
    return rc;
}

/* ---- tokens ---- */

int quire_dry_init(quire_dry *dry, const quire_model *model, const quire_sampler_opts *opts)
{
    *dry = (quire_dry){ .sampler = NULL };
    if (opts->dry_multiplier == 0.0f || opts->dry_tokens == 0 ||
        !quire_sampler_order_has(&opts->order, QUIRE_SAMPLER_DRY)) {
        return QUIRE_OK;
    }
    dry->n_max = opts->dry_tokens;
    dry->recent = calloc(dry->n_max, sizeof(*dry->recent));
    dry->list = calloc(dry->n_max, sizeof(*dry->list));
    QUIRE_FAIL_IF(dry->recent == NULL || dry->list == NULL, QUIRE_NOMEM);
    return sampler_get(&dry->sampler, model, opts);
}

void quire_dry_fini(quire_dry *dry)
{
    llama_sampler_free(dry->sampler);
    free(dry->recent);
    free(dry->list);
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
    llama_sampler_apply(dry->sampler, &list);
    for (uint32_t i = 0; i < dry->n; i++) {
        float *logit = &logits[dry->list[i].id];

        if (dry->list[i].logit < *logit) {
            *logit = dry->list[i].logit > LOGIT_LEAST ? dry->list[i].logit : LOGIT_LEAST;
        }
    }
}

void quire_dry_accept(quire_dry *dry, int32_t token)
{
    if (dry->sampler == NULL) {
        return;
    }
    llama_sampler_accept(dry->sampler, token);
    dry->n += dry->n < dry->n_max;
    dry->recent[dry->next] = token;
    dry->next = dry->next + 1 == dry->n_max ? 0 : dry->next + 1;
}

void quire_dry_reset(quire_dry *dry)
{
    if (dry->sampler != NULL) {
        llama_sampler_reset(dry->sampler);
    }
    dry->n = dry->next = 0;
}
