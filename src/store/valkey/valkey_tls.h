/* valkey_tls.h - TLS under a link, by OpenSSL, without waiting.
 *
 * The server's certificate must be valid for the name or address that the URL gives, by the
 * operator's authority or by those of the system. TLS 1.2 at least.
 *
 * Without OpenSSL in the build every function that could begin a session is refused.
 *
 * Thread: the store's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_TLS_H
#define QUIRE_STORE_VALKEY_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "quire/error.h"

typedef struct quire_vk_tls quire_vk_tls;
typedef struct quire_vk_session quire_vk_session;

typedef struct quire_vk_tls_opts {
    const char *ca_file;   /* PEM; NULL = the authorities of the system */
    const char *cert_file; /* PEM, of the client; NULL = none */
    const char *key_file;  /* likewise */
} quire_vk_tls_opts;

/* Errors: QUIRE_IO (a file that cannot be used, by name), QUIRE_UNSUPP (built without OpenSSL),
 * QUIRE_NOMEM. Memory: quire_vk_tls_free(). */
int quire_vk_tls_new(quire_vk_tls **out, const quire_vk_tls_opts *opts, quire_error *err);
void quire_vk_tls_free(quire_vk_tls *tls); /* NULL is allowed */

/* A session over a connected socket. NULL: out of memory. */
quire_vk_session *quire_vk_session_new(quire_vk_tls *tls, int fd, const char *host);
void quire_vk_session_free(quire_vk_session *session); /* NULL is allowed */

/* These return bytes (handshake: 1), 0 when the socket must be ready first, or -1 at the end.
 * *wants_write says for which direction to wait. */
ssize_t quire_vk_session_handshake(quire_vk_session *session, bool *wants_write);
ssize_t quire_vk_session_read(quire_vk_session *session, void *out, size_t n, bool *wants_write);
ssize_t quire_vk_session_write(quire_vk_session *session, const void *data, size_t n,
                               bool *wants_write);
/* Why the last call returned -1. */
void quire_vk_session_why(const quire_vk_session *session, char *out, size_t n);

#endif /* QUIRE_STORE_VALKEY_TLS_H */
