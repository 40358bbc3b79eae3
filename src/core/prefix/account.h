/* account.h - the bytes of the tenants' cached texts by region, and the tenants' quotas and
 * weights.
 *
 * Account 0 serves all tenants without an account of their own. bytes[r] of an account is the
 * charge in region r of all pages in nodes of its roots, including pages that sequences hold too.
 *
 * An account's fair share of a region is the region's budget times the account's weight, divided by
 * the sum of the weights of all accounts with bytes in the region. The account furthest above its
 * share is the account with the most bytes per weight, so the shares need not be computed: see
 * quire_accounts_load().
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
    uint64_t evicted_bytes; /* evicted because the account was above its quota */
    uint64_t bytes[QUIRE_REGIONS_MAX];
} quire_account;

typedef struct quire_accounts {
    quire_allocator allocator;
    quire_account *items; /* [capacity]; accounts beyond were never used or set */
    uint32_t capacity;
} quire_accounts;

void quire_accounts_init(quire_accounts *accounts, const quire_allocator *allocator);
void quire_accounts_fini(quire_accounts *accounts);

/* Make sure that an account exists. Errors: QUIRE_NOMEM. */
int quire_accounts_plan(quire_accounts *accounts, uint16_t account);

/* Set the quota and the weight (>= 1) of an existing account. */
void quire_accounts_set(quire_accounts *accounts, uint16_t account, const quire_account_opts *opts);

/* Add bytes to an existing account, or subtract them. */
void quire_accounts_charge(quire_accounts *accounts, uint16_t account, uint32_t region,
                           uint64_t bytes);
void quire_accounts_uncharge(quire_accounts *accounts, uint16_t account, uint32_t region,
                             uint64_t bytes);

/* The bytes of an account above its quota. */
uint64_t quire_accounts_excess_bytes(const quire_accounts *accounts, uint16_t account);

/* An account's load in a region: bytes per weight. The account with the largest load exceeds its
 * share by the largest factor. */
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

/* Check that each total is the sum over the regions. The tree checks the bytes themselves. */
void quire_accounts_validate(const quire_accounts *accounts);

#endif /* QUIRE_CORE_ACCOUNT_H */
