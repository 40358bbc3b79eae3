/* kv_news.h - news of pages on their way from the engine's threads to the publisher's: a bounded
 * queue of two buffers. One fills while the other is read, so a lock is held for a copy of one page
 * or for an exchange of pointers.
 *
 * Thread: put: the engine's, of several devices any. take: the publisher's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_KV_NEWS_H
#define QUIRE_SERVER_KV_NEWS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum quire_kv_news_kind {
    QUIRE_KV_CLEARED,
    QUIRE_KV_STORED,
    QUIRE_KV_REMOVED
} quire_kv_news_kind;

typedef struct quire_kv_news_item {
    quire_kv_news_kind kind;
    uint8_t rank;    /* of the device whose pages these are */
    uint64_t hash;   /* STORED, REMOVED */
    uint64_t parent; /* STORED */
    bool is_first;   /* STORED: nothing comes before; no parent */
    uint32_t n_tokens;
    const int32_t *tokens; /* STORED: [n_tokens]; aligned for int32_t */
    const void *salt;      /* STORED: of a first page; else 0 bytes */
    uint32_t salt_bytes;
} quire_kv_news_item;

typedef struct quire_kv_news {
    pthread_mutex_t lock;
    unsigned char *filling; /* [capacity]; under the lock */
    size_t n_filling;
    unsigned char *reading; /* [capacity]; the reader's */
    size_t capacity;
} quire_kv_news;

/* Each of both buffers has `capacity` bytes. Errors: QUIRE_NOMEM. */
int quire_kv_news_init(quire_kv_news *news, size_t capacity);
void quire_kv_news_fini(quire_kv_news *news);

/* Returns false: no room. *was_empty: the reader may sleep. */
bool quire_kv_news_put(quire_kv_news *news, const quire_kv_news_item *item, bool *was_empty);

/* Take everything that was put since the last take, in order. *bytes stay until the next take. */
size_t quire_kv_news_take(quire_kv_news *news, const unsigned char **bytes);

/* Read the item at bytes[at]; its pointers point into bytes. Returns where the next one begins. */
size_t quire_kv_news_read(const unsigned char *bytes, size_t at, quire_kv_news_item *item);

#endif /* QUIRE_SERVER_KV_NEWS_H */
