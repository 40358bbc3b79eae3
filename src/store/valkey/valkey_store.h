/* valkey_store.h - the shared tier: a store in servers of Valkey or Redis, one or a cluster.
 *
 *          caller's thread                      the store's thread                      servers
 *   get  --> jobs ------------> epochs, MGET  ---------- pipelined ----------------->
 *   put  --> jobs, queue -----> is it there? SET head and chunks, with a time to live >
 *   drop --> waits no longer -> SET or APPEND of an epoch, PUBLISH ------------------>
 *   poll <-- done <------------ seal, epochs, record, text verified <------------------
 *
 * Machines that serve the same model with the same secret share the pages that they compute. The
 * store is a cache: servers may lose or evict anything at any time.
 *
 * Invariants:
 *   1. No call waits for a server. Only the store's thread talks to servers, and it waits in poll()
 *      alone (and in getaddrinfo(), for names).
 *   2. A get ends OK only with a record that a holder of the secret wrote (shared_seal.h), under
 *      epochs that hold now, whose text no drop has ended (valkey_epoch.h), and which is the page
 *      asked for (quire_page_record_check()). Other records are removed, or end by their time to
 *      live.
 *   3. A server that is away, silent for timeout_ms, slow or talking nonsense is left alone
 *      (valkey_breaker.h): gets end CLOSED at once, puts are refused. It is tried again by itself.
 *   4. Puts that wait take at most queue_bytes; beyond that the oldest ends FULL.
 *   5. After drop returns, no get of this process finds a record that the drop ended, whether a
 *      server has taken the drop or not. Gets of other processes find such a record until a server
 *      has taken the drop.
 *
 * A record lives ttl_s from the time when it was written; uses do not prolong that. So a tenant's
 * records take at most the bytes that the tenant wrote in the last ttl_s. A quota bounds these
 * bytes (by a sliding window: the current one, and the rest of the one before). When its memory is
 * full, the server chooses the records that go (maxmemory-policy).
 *
 * A put that the server refuses (memory full, read-only, no permission) makes the state DEGRADED:
 * writes pause for QUIRE_VK_WRITES_PAUSE_MIN_US, doubled up to QUIRE_VK_WRITES_PAUSE_MAX_US while
 * they are refused; reads go on.
 *
 * A drop that no server has taken is repeated until the end of the process; close() tries until
 * close_ms. Beyond QUIRE_VK_DROPS_PENDING_MAX such drops they become one that ends all of the
 * model.
 *
 * Results: ABSENT (no record, or one that was ended), CHECKSUM (the seal is wrong), FORMAT,
 * IDENTITY, TOKENS, IO (the server answered an error), CLOSED (no server now), FULL (the queue or
 * the tenant's quota).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_VALKEY_STORE_H
#define QUIRE_STORE_VALKEY_VALKEY_STORE_H

#include "quire/error.h"
#include "store/store.h"

#define QUIRE_VK_WRITES_BYTES        ((uint64_t)8 << 20) /* of puts that are being sent */
#define QUIRE_VK_WRITES_PAUSE_MIN_US 1000000u
#define QUIRE_VK_WRITES_PAUSE_MAX_US 60000000u
#define QUIRE_VK_DROPS_PENDING_MAX   1024u
#define QUIRE_VK_DROP_RETRY_US       200000u
#define QUIRE_VK_TIMEOUT_MS_MIN      5u
#define QUIRE_VK_TIMEOUT_MS_MAX      60000u
#define QUIRE_VK_TTL_S_MIN           1u
#define QUIRE_VK_TTL_S_MAX           (366u * 86400u)

typedef struct quire_valkey_store_opts {
    const char *url;         /* valkey_url.h */
    const char *secret_file; /* shared_seal.h */
    const char *user;        /* NULL = the server's default user */
    const char *password;    /* NULL = none */
    const char *ca_file;     /* of TLS; NULL = the system's authorities */
    const char *cert_file;   /* of the client; NULL = none */
    const char *key_file;    /* likewise */
    uint64_t identity[2];    /* of the model: quire_kv_identity_get() */
    /* How many bytes of a salt name its tenant; 0 = these bytes name none. NULL = all. Thread:
     * any. */
    uint32_t (*tenant_bytes)(const void *salt, uint32_t salt_bytes);
    uint64_t ttl_s;
    uint64_t quota_bytes; /* that a tenant may write in ttl_s; 0 = no quota */
    uint64_t queue_bytes; /* of puts that wait */
    uint32_t timeout_ms;  /* a server that moves no byte for this time is given up */
    uint32_t latency_ms;  /* a server whose mean latency is above is given up; 0 = no bound */
    uint32_t connect_ms;  /* create() waits so long for the first connection; it is no error when
                             there is none */
    uint32_t close_ms;    /* the longest time that close waits */
    /* One line about a server, without newline. From the store's threads. NULL = nobody. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
} quire_valkey_store_opts;

/* clang-format off */
#define QUIRE_VALKEY_STORE_OPTS_INIT                                                               \
    {                                                                                              \
        .ttl_s = 86400, .queue_bytes = (uint64_t)64 << 20, .timeout_ms = 50, .latency_ms = 25,     \
        .connect_ms = 500, .close_ms = 2000                                                        \
    }
/* clang-format on */

/* Check the options without asking a server. Errors: QUIRE_INVAL (an option, named), QUIRE_IO (a
 * file), QUIRE_UNSUPP (built without hiredis or libsodium, or TLS without OpenSSL). */
int quire_valkey_store_check(const quire_valkey_store_opts *opts, quire_error *err);

/* Errors: as above, QUIRE_NOMEM. A server that does not answer is no error. Memory: end with
 * (*out)->ops->close(). */
int quire_valkey_store_create(quire_store **out, const quire_valkey_store_opts *opts,
                              quire_error *err);

#endif /* QUIRE_STORE_VALKEY_VALKEY_STORE_H */
