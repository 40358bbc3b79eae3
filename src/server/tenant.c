/* tenant.c - the bytes that keep tenants apart in the prefix tree.
 *
 * SPDX-License-Identifier: MIT */
#include "server/tenant.h"

#include "base/check.h"

#include <string.h>

static void salt_add(quire_tenant_salt *out, const char *text, size_t text_max)
{
    const size_t n = strlen(text);

    QUIRE_CHECK(n <= text_max);
    out->bytes[out->n++] = (unsigned char)n;
    memcpy(out->bytes + out->n, text, n);
    out->n += (uint32_t)n;
}

void quire_tenant_salt_make(quire_tenant_salt *out, const char *tenant, const char *cache_salt)
{
    out->n = 0;
    salt_add(out, tenant, QUIRE_TENANT_MAX);
    salt_add(out, cache_salt, QUIRE_CACHE_SALT_MAX);
}

void quire_tenant_salts_begin(quire_tenant_salt *out, const char *tenant)
{
    out->n = 0;
    salt_add(out, tenant, QUIRE_TENANT_MAX);
}

/* Read a text with its length before it. Returns the bytes behind it; NULL when malformed. */
static const unsigned char *name_get(const unsigned char *from, const unsigned char *end, char *out,
                                     size_t text_max)
{
    size_t n;

    if (from == NULL || from == end) {
        return NULL;
    }
    n = *from++;
    if (n > text_max || n > (size_t)(end - from)) {
        return NULL;
    }
    memcpy(out, from, n);
    out[n] = '\0';
    return from + n;
}

bool quire_tenant_salt_names(const void *bytes, uint32_t n, quire_tenant_names *out)
{
    const unsigned char *at = bytes;
    const unsigned char *end = at != NULL ? at + n : NULL;

    at = name_get(at, end, out->tenant, QUIRE_TENANT_MAX);
    at = name_get(at, end, out->cache_salt, QUIRE_CACHE_SALT_MAX);
    return at != NULL && at == end;
}

uint32_t quire_tenant_salts_bytes(const void *bytes, uint32_t n)
{
    const unsigned char *at = bytes;
    char tenant[QUIRE_TENANT_MAX + 1];
    const unsigned char *end = name_get(at, at != NULL ? at + n : NULL, tenant, QUIRE_TENANT_MAX);

    return end != NULL ? (uint32_t)(end - at) : 0;
}
