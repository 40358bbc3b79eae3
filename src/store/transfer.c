/* transfer.c - helpers around a store: transfers' memory, parts; see store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/store.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A transfer and the tokens of its text. */
typedef struct owned {
    quire_transfer transfer; /* must be first */
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
    uint32_t tokens_max;
    int32_t tokens[];
} owned;

quire_transfer *quire_transfer_new(size_t record_bytes, uint32_t tokens_max)
{
    const size_t align = QUIRE_PAGE_RECORD_ALIGN;
    const size_t capacity = (record_bytes + align - 1) / align * align;
    owned *o = calloc(1, sizeof *o + tokens_max * sizeof o->tokens[0]);

    if (o == NULL) {
        return NULL;
    }
    o->tokens_max = tokens_max;
    o->transfer.capacity = capacity;
    if (capacity > 0) {
        o->transfer.record = aligned_alloc(align, capacity);
        if (o->transfer.record == NULL) {
            free(o);
            return NULL;
        }
    }
    return &o->transfer;
}

void quire_transfer_free(quire_transfer *transfer)
{
    if (transfer != NULL) {
        free(transfer->record);
        free(transfer);
    }
}

void quire_transfer_text_set(quire_transfer *transfer, const quire_page_text *text)
{
    owned *o = (owned *)(void *)transfer;

    QUIRE_CHECK(text->n_tokens <= o->tokens_max && text->salt_bytes <= sizeof o->salt);
    transfer->text = *text;
    if (text->n_tokens > 0) {
        memcpy(o->tokens, text->tokens, text->n_tokens * sizeof o->tokens[0]);
    }
    if (text->salt_bytes > 0) {
        memcpy(o->salt, text->salt, text->salt_bytes);
    }
    transfer->text.salt = o->salt;
    transfer->text.tokens = o->tokens;
}

void quire_store_waker_set(quire_store *store, quire_store_waker waker)
{
    (void)pthread_mutex_lock(&store->wake_lock);
    store->waker = waker;
    (void)pthread_mutex_unlock(&store->wake_lock);
}

void quire_store_wake(quire_store *store)
{
    (void)pthread_mutex_lock(&store->wake_lock);
    if (store->waker.wake != NULL) {
        store->waker.wake(store->waker.ctx);
    }
    (void)pthread_mutex_unlock(&store->wake_lock);
}

void quire_store_hint(quire_store *store, const quire_store_hints *hints)
{
    if (store->ops->hint != NULL) {
        store->ops->hint(store, hints);
    }
}

uint32_t quire_store_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    return store->ops->has != NULL ? store->ops->has(store, keys, n) : 0;
}

void quire_store_part_fill(const quire_store *store, quire_store_part *out)
{
    (void)snprintf(out->name, sizeof out->name, "%s", store->name);
    store->ops->stats(store, &out->stats);
}

uint32_t quire_store_parts(const quire_store *store, quire_store_part *out)
{
    if (store->ops->parts != NULL) {
        return store->ops->parts(store, out);
    }
    quire_store_part_fill(store, out);
    return 1;
}

void quire_store_stats_add(quire_store_stats *sum, const quire_store_stats *more)
{
    sum->records += more->records;
    sum->record_bytes += more->record_bytes;
    sum->stored_bytes += more->stored_bytes;
    sum->capacity_bytes += more->capacity_bytes;
    sum->reads_total += more->reads_total;
    sum->read_bytes_total += more->read_bytes_total;
    sum->read_us_total += more->read_us_total;
    sum->puts_total += more->puts_total;
    sum->known_total += more->known_total;
    sum->put_bytes_total += more->put_bytes_total;
    sum->written_bytes_total += more->written_bytes_total;
    sum->evicted_total += more->evicted_total;
    sum->copied_total += more->copied_total;
    sum->dropped_total += more->dropped_total;
    sum->passed_total += more->passed_total;
    sum->unpassed_total += more->unpassed_total;
    sum->evictions += more->evictions;
}
