/* valkey_url.h - the address of a shared store, as an operator writes it.
 *
 *   valkey://HOST[:PORT][,HOST[:PORT]...][/DATABASE]     redis:// is the same
 *   valkeys://...                                        with TLS; rediss:// is the same
 *
 * A host is a name, an IPv4 address, or an IPv6 address in brackets. The hosts are places where a
 * client begins to ask: the nodes of one cluster, or servers of which the first that answers is
 * used. A URL with a user or a password is refused: other users of a machine can read its command
 * lines.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_URL_H
#define QUIRE_STORE_VALKEY_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/error.h"

#define QUIRE_VALKEY_HOSTS_MAX 16u
#define QUIRE_VALKEY_HOST_MAX  253u /* bytes of a name: RFC 1035 */
#define QUIRE_VALKEY_PORT      6379u

typedef struct quire_valkey_addr {
    char host[QUIRE_VALKEY_HOST_MAX + 1]; /* IPv6 without brackets */
    uint16_t port;
} quire_valkey_addr;

typedef struct quire_valkey_url {
    bool is_tls;
    uint32_t database; /* 0 in a cluster */
    uint32_t n_hosts;
    quire_valkey_addr hosts[QUIRE_VALKEY_HOSTS_MAX];
} quire_valkey_url;

/* Read a URL. Errors: QUIRE_INVAL, with a message that names the wrong part. */
int quire_valkey_url_parse(const char *text, quire_valkey_url *out, quire_error *err);

/* "HOST:PORT", or "[HOST]:PORT" for IPv6; a missing port is QUIRE_VALKEY_PORT. n bytes of text.
 * Errors: QUIRE_INVAL. */
int quire_valkey_addr_parse(const char *text, uint32_t n, quire_valkey_addr *out);

#endif /* QUIRE_STORE_VALKEY_URL_H */
