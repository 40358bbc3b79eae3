/* kv_endpoint.c - see kv_endpoint.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/kv_events/kv_endpoint.h"

#include "base/check.h"
#include "server/kv_events/kv_events.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define TCP "tcp://"
#define IPC "ipc://"

/* Whether text is a number of a port. */
static bool is_port(const char *text)
{
    char *end;
    const long port = strtol(text, &end, 10);

    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && strlen(text) <= 5 && port <= 65535;
}

/* HOST of tcp://HOST:PORT, without brackets. Returns false: no such address. */
static bool host_read(quire_kv_endpoint *out, const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    const size_t n = strlen(host);
    char inside[INET6_ADDRSTRLEN];

    if (strcmp(host, "*") == 0) {
        return true;
    }
    if (inet_pton(AF_INET, host, &v4) == 1) {
        out->is_local = (ntohl(v4.s_addr) >> 24) == 127;
        return true;
    }
    if (n < 3 || n - 2 >= sizeof inside || host[0] != '[' || host[n - 1] != ']') {
        return false;
    }
    memcpy(inside, host + 1, n - 2);
    inside[n - 2] = '\0';
    if (inet_pton(AF_INET6, inside, &v6) != 1) {
        return false;
    }
    out->is_ipv6 = true;
    out->is_local = IN6_IS_ADDR_LOOPBACK(&v6);
    return true;
}

static bool tcp_read(quire_kv_endpoint *out, const char *text)
{
    const char *colon = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN + 3];
    const size_t n = colon != NULL ? (size_t)(colon - text) : sizeof host;

    if (n >= sizeof host || !is_port(colon + 1)) {
        return false;
    }
    memcpy(host, text, n);
    host[n] = '\0';
    out->is_tcp = true;
    return host_read(out, host);
}

int quire_kv_endpoint_read(quire_kv_endpoint *out, const char *name, const char *text,
                           quire_error *err)
{
    const struct sockaddr_un address = { 0 };

    *out = (quire_kv_endpoint){ 0 };
    if (strncmp(text, TCP, sizeof(TCP) - 1) == 0 && tcp_read(out, text + sizeof(TCP) - 1)) {
        return QUIRE_OK;
    }
    if (strncmp(text, IPC, sizeof(IPC) - 1) == 0 && text[sizeof(IPC) - 1] != '\0' &&
        strlen(text + sizeof(IPC) - 1) < sizeof address.sun_path) {
        out->is_local = true;
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "%s: '%.80s' is no address: tcp://HOST:PORT (HOST a numeric address, "
                           "IPv6 in brackets, or *) or ipc://PATH",
                           name, text);
}

bool quire_kv_events_is_local(const char *endpoint)
{
    quire_kv_endpoint parts;
    quire_error err = QUIRE_ERROR_INIT;

    return quire_kv_endpoint_read(&parts, "kv_events", endpoint, &err) == QUIRE_OK &&
           parts.is_local;
}
