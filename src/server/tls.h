/* tls.h - the certificate and the key of a server that speaks TLS.
 *
 * libmicrohttpd speaks TLS by GnuTLS, with its default protocols and ciphers.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_TLS_H
#define QUIRE_SERVER_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "quire/error.h"

#define QUIRE_TLS_FILE_BYTES_MAX (1u << 20)

typedef struct quire_tls {
    char *cert; /* PEM: the server's certificate, then those between it and the root. Owned */
    char *key;  /* PEM, without a password. Owned */
} quire_tls;

/* Read both files; both NULL: no TLS, and nothing is read. Errors: QUIRE_INVAL (one file without
 * the other, no PEM), QUIRE_IO, QUIRE_LIMIT, QUIRE_UNSUPP (libmicrohttpd was built without TLS),
 * QUIRE_NOMEM. */
int quire_tls_read(quire_tls *tls, const char *cert_path, const char *key_path, quire_error *err);
void quire_tls_fini(quire_tls *tls);

/* Whether the server has a certificate. */
bool quire_tls_is_on(const quire_tls *tls);

#endif /* QUIRE_SERVER_TLS_H */
