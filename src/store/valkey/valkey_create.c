/* valkey_create.c - opening the shared store: options, secrets, the first connection.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_store.h"

#include "base/check.h"

#ifdef QUIRE_HAS_VALKEY
#include "base/clock.h"
#include "store/valkey/valkey_internal.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

static int range(quire_error *err, const char *name, uint64_t value, uint64_t min, uint64_t max)
{
    if (value < min || value > max) {
        return quire_error_set(err, QUIRE_INVAL, "%s: %llu is outside %llu to %llu", name,
                               (unsigned long long)value, (unsigned long long)min,
                               (unsigned long long)max);
    }
    return QUIRE_OK;
}

static int opts_check(const quire_valkey_store_opts *o, quire_error *err)
{
    QUIRE_TRY(range(err, "store_timeout in ms", o->timeout_ms, QUIRE_VK_TIMEOUT_MS_MIN,
                    QUIRE_VK_TIMEOUT_MS_MAX));
    QUIRE_TRY(range(err, "store_ttl in seconds", o->ttl_s, QUIRE_VK_TTL_S_MIN, QUIRE_VK_TTL_S_MAX));
    if (o->url == NULL || o->secret_file == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "store needs a store_key_file: all machines that "
                               "share the store have the same one");
    }
    if (o->user != NULL && o->password == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "store_user needs a password");
    }
    if ((o->cert_file == NULL) != (o->key_file == NULL)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "store_tls_cert and store_tls_key belong together");
    }
    return QUIRE_OK;
}

/* Read the URL and the files that the options name. Memory: quire_vk_tls_free(*tls), which may be
 * NULL. */
static int opts_read(const quire_valkey_store_opts *o, quire_valkey_url *url, quire_seal_key *key,
                     quire_vk_tls **tls, quire_error *err)
{
    const quire_vk_tls_opts files = { o->ca_file, o->cert_file, o->key_file };
    quire_error inner = QUIRE_ERROR_INIT;

    *tls = NULL;
    QUIRE_TRY(opts_check(o, err));
    if (quire_valkey_url_parse(o->url, url, &inner) < 0) {
        return quire_error_set(err, QUIRE_INVAL, "store: %.300s", inner.message);
    }
    if (!url->is_tls && (o->ca_file != NULL || o->cert_file != NULL)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "store: certificates are for TLS: the URL begins with valkeys://");
    }
    QUIRE_TRY(quire_seal_key_read(key, o->secret_file, err));
    return url->is_tls ? quire_vk_tls_new(tls, &files, err) : QUIRE_OK;
}

int quire_valkey_store_check(const quire_valkey_store_opts *opts, quire_error *err)
{
    quire_valkey_url url;
    quire_seal_key key;
    quire_vk_tls *tls;
    const int rc = opts_read(opts, &url, &key, &tls, err);

    quire_vk_tls_free(tls);
    explicit_bzero(&key, sizeof key);
    return rc;
}

static char *copy_of(const char *text)
{
    return text != NULL ? strdup(text) : NULL;
}

static void heard(void *ctx, const char *data, size_t n)
{
    quire_vk_news_heard(ctx, data, n);
}

static void say(void *ctx, const char *line)
{
    const quire_valkey_store *m = ctx;

    if (m->opts.log != NULL) {
        m->opts.log(m->opts.log_ctx, line);
    }
}

static void answered(void *ctx)
{
    (void)ctx; /* the loop looks at all jobs */
}

static int cluster_open(quire_valkey_store *m)
{
    const quire_vk_cluster_opts opts = { .url = &m->url,
                                         .user = m->user,
                                         .password = m->password,
                                         .tls = m->tls,
                                         .silence_us = m->opts.timeout_ms * (uint64_t)1000,
                                         .latency_max_us = m->opts.latency_ms * (uint64_t)1000,
                                         .channel = m->channel.text,
                                         .message = heard,
                                         .log = say,
                                         .ctx = m };

    m->cluster = calloc(1, sizeof *m->cluster);
    m->ancestors = malloc((size_t)8 * QUIRE_SEAL_ANCESTORS_MAX);
    QUIRE_FAIL_IF(m->cluster == NULL || m->ancestors == NULL, QUIRE_NOMEM);
    m->epochs =
        (quire_vk_epochs){ .cluster = m->cluster, .fleet = m->key.fleet, .answered = answered };
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    QUIRE_FAIL_IF(m->wake_fd < 0, QUIRE_NOMEM);
    return quire_vk_cluster_init(m->cluster, &opts);
}

static void names_make(quire_valkey_store *m)
{
    unsigned char node[8];

    randombytes_buf(node, sizeof node);
    (void)sodium_bin2hex(m->node, sizeof m->node, node, sizeof node);
    quire_valkey_name_channel(&m->channel, m->key.fleet);
    quire_lineage_init(&m->lineage, &m->key);
    m->n_chunks_usual = 1;
    m->writes = (quire_breaker){ .pause_min_us = QUIRE_VK_WRITES_PAUSE_MIN_US,
                                 .pause_max_us = QUIRE_VK_WRITES_PAUSE_MAX_US };
    m->stats.state = QUIRE_STORE_DEGRADED;
    (void)snprintf(m->stats.trouble, sizeof m->stats.trouble, "not connected yet");
}

/* Wait for the first connection, or for its failure. */
static void first_wait(quire_valkey_store *m)
{
    const struct timespec until = quire_deadline(m->opts.connect_ms);

    (void)pthread_mutex_lock(&m->lock);
    while (!m->has_tried && pthread_cond_timedwait(&m->is_tried, &m->lock, &until) == 0) {
    }
    (void)pthread_mutex_unlock(&m->lock);
}

static int open_all(quire_valkey_store *m, quire_error *err)
{
    int rc;

    QUIRE_TRY(opts_read(&m->opts, &m->url, &m->key, &m->tls, err));
    names_make(m);
    m->user = copy_of(m->opts.user);
    m->password = copy_of(m->opts.password);
    rc = cluster_open(m);
    rc = rc == QUIRE_OK ? quire_vk_store_start(m) : rc;
    return rc < 0 ? quire_error_set(err, rc, "no memory for the shared store") : rc;
}

int quire_valkey_store_create(quire_store **out, const quire_valkey_store_opts *opts,
                              quire_error *err)
{
    quire_valkey_store *m = calloc(1, sizeof *m);
    int rc;

    *out = NULL;
    if (m == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the shared store");
    }
    m->opts = *opts;
    m->wake_fd = -1;
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)quire_cond_init(&m->is_tried);
    rc = open_all(m, err);
    if (rc < 0) {
        quire_vk_store_free(m);
        return rc;
    }
    first_wait(m);
    *out = &m->store;
    return QUIRE_OK;
}

#else

int quire_valkey_store_create(quire_store **out, const quire_valkey_store_opts *opts,
                              quire_error *err)
{
    *out = NULL;
    return quire_valkey_store_check(opts, err);
}

int quire_valkey_store_check(const quire_valkey_store_opts *opts, quire_error *err)
{
    (void)opts;
    return quire_error_set(err, QUIRE_UNSUPP,
                           "store: this build has no shared store: it was made without hiredis or "
                           "libsodium (packages libhiredis-dev and libsodium-dev)");
}
#endif
