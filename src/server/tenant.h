/* tenant.h - the bytes that keep tenants apart in the prefix tree.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_TENANT_H
#define QUIRE_SERVER_TENANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_CACHE_SALT_MAX 120u /* bytes of the request field */
#define QUIRE_TENANT_MAX     120u /* bytes of a tenant's name */

typedef struct quire_tenant_salt {
    unsigned char bytes[QUIRE_TENANT_MAX + QUIRE_CACHE_SALT_MAX + 2];
    uint32_t n;
} quire_tenant_salt;

/* Tenant and cache_salt (either may be ""), each preceded by its length, so that different pairs
 * give different bytes. Both must be within their limits. */
void quire_tenant_salt_make(quire_tenant_salt *out, const char *tenant, const char *cache_salt);

/* The common prefix of a tenant's salts for all values of cache_salt; no other tenant has it. */
void quire_tenant_salts_begin(quire_tenant_salt *out, const char *tenant);

/* How many bytes of a salt name its tenant: the length of quire_tenant_salts_begin()'s bytes. 0:
 * the bytes do not hold a whole name. */
uint32_t quire_tenant_salts_bytes(const void *bytes, uint32_t n);

typedef struct quire_tenant_names {
    char tenant[QUIRE_TENANT_MAX + 1];
    char cache_salt[QUIRE_CACHE_SALT_MAX + 1];
} quire_tenant_names;

/* Recover tenant and cache_salt from a salt. False for bytes not made by
 * quire_tenant_salt_make(). */
bool quire_tenant_salt_names(const void *bytes, uint32_t n, quire_tenant_names *out);

#endif /* QUIRE_SERVER_TENANT_H */
