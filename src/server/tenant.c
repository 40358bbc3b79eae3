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
