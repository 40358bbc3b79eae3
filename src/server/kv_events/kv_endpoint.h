/* kv_endpoint.h - addresses of ZeroMQ sockets, as settings name them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_KV_ENDPOINT_H
#define QUIRE_SERVER_KV_ENDPOINT_H

#include <stdbool.h>

#include "quire/error.h"

typedef struct quire_kv_endpoint {
    bool is_tcp;
    bool is_ipv6;
    bool is_local; /* only this machine can connect */
} quire_kv_endpoint;

/* "tcp://HOST:PORT" with HOST an IPv4 address, an IPv6 address in brackets or "*", PORT 0 .. 65535;
 * or "ipc://PATH". `name` is the setting, for the message. Errors: QUIRE_INVAL. */
int quire_kv_endpoint_read(quire_kv_endpoint *out, const char *name, const char *text,
                           quire_error *err);

#endif /* QUIRE_SERVER_KV_ENDPOINT_H */
