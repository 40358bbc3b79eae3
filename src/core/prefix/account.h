/* account.h - how many bytes of each region the tenants' cached texts take, and what is their due.
 *
 * Account 0 is everybody who has none of his own. bytes[r] of an account is the charge, in region
 * r, of all pages in nodes of its roots: pages that sequences hold as well count too.
 *
 * A fair share of a region is its budget times the account's weight, divided by the weights of all
 * accounts that have bytes there. Who is furthest above it is whose bytes per weight are most, so
 * that choosing needs no division: see quire_accounts_load().
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_ACCOUNT_H
#define QUIRE_CORE_ACCOUNT_H

#include "core/cache/region.h"
#include "quire/alloc.h"
#include "quire/prefix.h"

typedef struct quire_account {
    uint64_t quota_bytes; /* 0 = no limit */
    uint32_t weight;
    uint64_t total_bytes;   /* of all regions */
    uint64_t evicted_bytes; /* because it was above its quota */
    uint64_t bytes[QUIRE_REGIONS_MAX];
} quire_account;

typedef struct quire_accounts {
    quire_allocator allocator;
    quire_account *items; /* [capacity]; accounts beyond were never used nor set */
    uint32_t capacity;
} quire_accounts;

void quire_accounts_init(quire_accounts *accounts, const quire_allocator *allocator);
void quire_accounts_fini(quire_accounts *accounts);

/* Make sure that an account exists. Errors: QUIRE_NOMEM. */
int quire_accounts_plan(quire_accounts *accounts, uint16_t account);

/* Another quota, another weight >= 1; the account exists. */
void quire_accounts_set(quire_accounts *accounts, uint16_t account, const quire_account_opts *opts);

/* Bytes come, go; the account exists. */
void quire_accounts_charge(quire_accounts *accounts, uint16_t account, uint32_t region,
                           uint64_t bytes);
void quire_accounts_uncharge(quire_accounts *accounts, uint16_t account, uint32_t region,
                             uint64_t bytes);

/* By how much it is above its quota. */
uint64_t quire_accounts_excess_bytes(const quire_accounts *accounts, uint16_t account);

/* What orders accounts in a region: bytes per weight. The most loaded is furthest above its share,
 * as a multiple of it. */
static inline double quire_accounts_load(const quire_accounts *accounts, uint16_t account,
                                         uint32_t region)
{
    const quire_account *item;

    if (account >= accounts->capacity) {
        return 0.0;
    }
    item = &accounts->items[account];
    return (double)item->bytes[region] / item->weight;
}

/* Each total is the sum of its regions. The tree checks the bytes themselves. */
void quire_accounts_validate(const quire_accounts *accounts);

#endif /* QUIRE_CORE_ACCOUNT_H */
