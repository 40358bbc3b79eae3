/* origin.c - see origin.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/origin.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_printable(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text <= 0x20 || *text >= 0x7f) {
            return false;
        }
    }
    return true;
}

/* "scheme://host" or "scheme://host:port"; pages from files send "null". */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");

    return strcmp(text, "null") == 0 ||
           (host != NULL && host > text && host[3] != '\0' && strpbrk(host + 3, "/?#@") == NULL);
}

static bool is_host(const char *text)
{
    return text[0] == '[' ? strchr(text, ']') == text + strlen(text) - 1
                          : strpbrk(text, ":/?#@[]") == NULL;
}

static int add(quire_origins *list, const char *item, const char *name, bool are_hosts,
               quire_error *err)
{
    if (strcmp(item, "*") == 0) {
        list->has_all = true;
        return QUIRE_OK;
    }
    if (list->n == QUIRE_ORIGINS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "%s: more than %u items", name, QUIRE_ORIGINS_MAX);
    }
    if (strlen(item) > QUIRE_ORIGIN_BYTES_MAX || !is_printable(item) ||
        !(are_hosts ? is_host(item) : is_origin(item))) {
        return quire_error_set(err, QUIRE_INVAL, "%s: \"%.64s\" is no %s", name, item,
                               are_hosts ? "name or address of a host, without a port"
                                         : "origin such as https://app.example:8443");
    }
    list->items[list->n++] = item;
    return QUIRE_OK;
}

int quire_origins_init(quire_origins *list, const char *text, const char *name, bool are_hosts,
                       quire_error *err)
{
    char *item, *rest;

    *list = (quire_origins){ .text = NULL };
    if (text == NULL) {
        return QUIRE_OK;
    }
    list->text = strdup(text);
    if (list->text == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (item = strtok_r(list->text, ", ", &rest); item != NULL;
         item = strtok_r(NULL, ", ", &rest)) {
        const int rc = add(list, item, name, are_hosts, err);

        if (rc < 0) {
            quire_origins_fini(list);
            return rc;
        }
    }
    return QUIRE_OK;
}

void quire_origins_fini(quire_origins *list)
{
    free(list->text);
    *list = (quire_origins){ .text = NULL };
}

bool quire_origins_has(const quire_origins *list, const char *origin)
{
    for (unsigned i = 0; i < list->n; i++) {
        if (strcasecmp(list->items[i], origin) == 0) {
            return true;
        }
    }
    return list->has_all;
}

size_t quire_host_bytes(const char *host)
{
    const size_t n = host[0] == '[' ? strcspn(host, "]") : strcspn(host, ":");

    return host[0] == '[' && host[n] == ']' ? n + 1 : n;
}

bool quire_origins_has_host(const quire_origins *list, const char *host)
{
    const size_t n = quire_host_bytes(host);

    for (unsigned i = 0; i < list->n; i++) {
        if (strlen(list->items[i]) == n && strncasecmp(list->items[i], host, n) == 0) {
            return true;
        }
    }
    return list->has_all;
}
