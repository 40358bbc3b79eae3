/* valkey_news.c - messages between machines that share a store: news of drops.
 *
 * A message, sealed with the fleet's key, so that no stranger on the channel can make machines
 * forget:
 *
 *     seal (32)  model (16)  sender (16)  what (1)  key (16)  root (16)  salt
 *
 * Messages may get lost. Shared records do not need them (valkey_epoch.h); a machine's own copies,
 * in memory and in its directory, end by messages alone.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_internal.h"

#include "base/hash128.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SENDER_BYTES 16u
#define AT_MODEL     QUIRE_SEAL_MAC_BYTES
#define AT_SENDER    (AT_MODEL + 16u)
#define AT_WHAT      (AT_SENDER + SENDER_BYTES)
#define AT_KEY       (AT_WHAT + 1u)
#define AT_ROOT      (AT_KEY + QUIRE_PAGE_KEY_BYTES)
#define AT_SALT      (AT_ROOT + QUIRE_PAGE_KEY_BYTES)
#define BYTES_MAX    (AT_SALT + QUIRE_PREFIX_SALT_MAX)

_Static_assert(sizeof((quire_valkey_store *)0)->node == SENDER_BYTES + 1, "a sender's name");

static void seal(const quire_valkey_store *m, const unsigned char *message, size_t n,
                 unsigned char out[QUIRE_SEAL_MAC_BYTES])
{
    (void)crypto_generichash(out, QUIRE_SEAL_MAC_BYTES, message + AT_MODEL, n - AT_MODEL,
                             m->key.mac, sizeof m->key.mac);
}

static void model_put(const quire_valkey_store *m, unsigned char *at)
{
    (void)quire_le_put(quire_le_put(at, m->opts.identity[0], 8), m->opts.identity[1], 8);
}

/* A user without the right to publish is named once. */
static void on_sent(void *ctx, const quire_resp *reply)
{
    quire_valkey_store *m = ctx;
    char line[QUIRE_VK_REFUSAL_MAX];

    if (reply != NULL && reply->type == QUIRE_RESP_ERROR && !m->has_said_mute) {
        m->has_said_mute = true;
        if (m->opts.log != NULL) {
            (void)snprintf(line, sizeof line,
                           "other machines hear of no invalidation: PUBLISH failed: %s",
                           reply->str);
            m->opts.log(m->opts.log_ctx, line);
        }
    }
}

void quire_vk_news_send(quire_valkey_store *m, const quire_store_drop *what)
{
    unsigned char message[BYTES_MAX];
    const size_t n = AT_SALT + what->salt_bytes;
    const quire_vk_arg args[] = { QUIRE_VK_WORD("PUBLISH"),
                                  { m->channel.text, m->channel.n },
                                  { message, n } };
    quire_vk_cmd *cmd;

    model_put(m, message + AT_MODEL);
    memcpy(message + AT_SENDER, m->node, SENDER_BYTES);
    message[AT_WHAT] = (unsigned char)what->what;
    memcpy(message + AT_KEY, what->key.bytes, QUIRE_PAGE_KEY_BYTES);
    memcpy(message + AT_ROOT, what->root.bytes, QUIRE_PAGE_KEY_BYTES);
    if (what->salt_bytes > 0) {
        memcpy(message + AT_SALT, what->salt, what->salt_bytes);
    }
    seal(m, message, n, message);
    cmd = quire_vk_cmd_new(args, 3, QUIRE_VK_SLOT_ANY, on_sent, m);
    if (cmd != NULL) {
        quire_vk_cluster_send(m->cluster, cmd);
    }
}

/* Whether a message comes from another machine of the fleet that serves the same model. */
static bool is_news(const quire_valkey_store *m, const unsigned char *message, size_t n)
{
    unsigned char mac[QUIRE_SEAL_MAC_BYTES];
    unsigned char model[16];

    if (n < AT_SALT || n > BYTES_MAX || message[AT_WHAT] > QUIRE_STORE_DROP_BEHIND) {
        return false;
    }
    seal(m, message, n, mac);
    model_put(m, model);
    return sodium_memcmp(mac, message, sizeof mac) == 0 &&
           memcmp(model, message + AT_MODEL, sizeof model) == 0 &&
           memcmp(m->node, message + AT_SENDER, SENDER_BYTES) != 0;
}

/* Keep a drop for the owner. Under the lock. */
static void keep(quire_valkey_store *m, quire_vk_drop *drop)
{
    quire_vk_drop **end = &m->heard;

    if (m->n_heard >= QUIRE_VK_DROPS_PENDING_MAX) { /* the owner does not come: one for all */
        drop->what = (quire_store_drop){ .what = QUIRE_STORE_DROP_ALL };
        quire_vk_drops_free(m->heard);
        m->heard = NULL;
        m->n_heard = 0;
    }
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = drop;
    m->n_heard++;
    m->stats.evictions++;
    quire_seen_forget(&m->seen);
}

void quire_vk_news_heard(void *ctx, const char *data, size_t n)
{
    const unsigned char *message = (const unsigned char *)data;
    quire_valkey_store *m = ctx;
    quire_vk_drop *drop = is_news(m, message, n) ? calloc(1, sizeof *drop) : NULL;

    if (drop == NULL) {
        return;
    }
    drop->what.what = (quire_store_drop_what)message[AT_WHAT];
    memcpy(drop->what.key.bytes, message + AT_KEY, QUIRE_PAGE_KEY_BYTES);
    memcpy(drop->what.root.bytes, message + AT_ROOT, QUIRE_PAGE_KEY_BYTES);
    drop->what.salt = drop->salt;
    drop->what.salt_bytes = (uint32_t)(n - AT_SALT);
    memcpy(drop->salt, message + AT_SALT, n - AT_SALT);
    (void)pthread_mutex_lock(&m->lock);
    keep(m, drop);
    (void)pthread_mutex_unlock(&m->lock);
    m->has_done = true;
}

bool quire_vk_news_next(quire_store *store, quire_store_drop *out)
{
    quire_valkey_store *m = quire_vk_self(store);

    free(m->heard_now);
    (void)pthread_mutex_lock(&m->lock);
    m->heard_now = m->heard;
    if (m->heard != NULL) {
        m->heard = m->heard->next;
        m->n_heard--;
    }
    (void)pthread_mutex_unlock(&m->lock);
    if (m->heard_now == NULL) {
        return false;
    }
    *out = m->heard_now->what;
    return true;
}
