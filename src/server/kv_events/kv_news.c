/* kv_news.c - see kv_news.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/kv_events/kv_news.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* The fixed part of an item, before its tokens and its salt. */
typedef struct head {
    uint64_t hash;
    uint64_t parent;
    uint32_t n_tokens;
    uint32_t salt_bytes;
    uint8_t kind;
    uint8_t is_first;
    uint8_t rank;
    uint8_t unused[5];
} head;

static size_t room_of(const quire_kv_news_item *item)
{
    const size_t n = sizeof(head) + item->n_tokens * sizeof item->tokens[0] + item->salt_bytes;

    return (n + 7) / 8 * 8;
}

int quire_kv_news_init(quire_kv_news *news, size_t capacity)
{
    *news = (quire_kv_news){ .capacity = capacity };
    news->filling = malloc(capacity);
    news->reading = malloc(capacity);
    if (news->filling == NULL || news->reading == NULL ||
        pthread_mutex_init(&news->lock, NULL) != 0) {
        free(news->filling);
        free(news->reading);
        *news = (quire_kv_news){ 0 };
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

void quire_kv_news_fini(quire_kv_news *news)
{
    if (news->filling != NULL) {
        (void)pthread_mutex_destroy(&news->lock);
    }
    free(news->filling);
    free(news->reading);
    *news = (quire_kv_news){ 0 };
}

static void write_item(unsigned char *to, const quire_kv_news_item *item)
{
    const size_t n_tokens_bytes = item->n_tokens * sizeof item->tokens[0];
    const head h = { .hash = item->hash,
                     .parent = item->parent,
                     .n_tokens = item->n_tokens,
                     .salt_bytes = item->salt_bytes,
                     .kind = (uint8_t)item->kind,
                     .is_first = item->is_first,
                     .rank = item->rank };

    memcpy(to, &h, sizeof h);
    if (n_tokens_bytes > 0) {
        memcpy(to + sizeof h, item->tokens, n_tokens_bytes);
    }
    if (item->salt_bytes > 0) {
        memcpy(to + sizeof h + n_tokens_bytes, item->salt, item->salt_bytes);
    }
}

bool quire_kv_news_put(quire_kv_news *news, const quire_kv_news_item *item, bool *was_empty)
{
    const size_t n = room_of(item);
    bool has_room;

    (void)pthread_mutex_lock(&news->lock);
    has_room = n <= news->capacity - news->n_filling;
    *was_empty = news->n_filling == 0;
    if (has_room) {
        write_item(news->filling + news->n_filling, item);
        news->n_filling += n;
    }
    (void)pthread_mutex_unlock(&news->lock);
    return has_room;
}

size_t quire_kv_news_take(quire_kv_news *news, const unsigned char **bytes)
{
    unsigned char *const read = news->reading;
    size_t n;

    (void)pthread_mutex_lock(&news->lock);
    n = news->n_filling;
    news->reading = news->filling;
    news->filling = read;
    news->n_filling = 0;
    (void)pthread_mutex_unlock(&news->lock);
    *bytes = news->reading;
    return n;
}

size_t quire_kv_news_read(const unsigned char *bytes, size_t at, quire_kv_news_item *item)
{
    head h;

    memcpy(&h, bytes + at, sizeof h);
    *item = (quire_kv_news_item){ .kind = (quire_kv_news_kind)h.kind,
                                  .rank = h.rank,
                                  .hash = h.hash,
                                  .parent = h.parent,
                                  .is_first = h.is_first,
                                  .n_tokens = h.n_tokens,
                                  .tokens = (const int32_t *)(const void *)(bytes + at + sizeof h),
                                  .salt_bytes = h.salt_bytes };
    item->salt = item->tokens + h.n_tokens;
    return at + room_of(item);
}
