/* account.c - see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/account.h"

#include "base/check.h"

#include <string.h>

#ifdef QUIRE_TINY
#define ACCOUNTS_FIRST 1u
#else
#define ACCOUNTS_FIRST 16u
#endif

void quire_accounts_init(quire_accounts *accounts, const quire_allocator *allocator)
{
    memset(accounts, 0, sizeof(*accounts));
    accounts->allocator = *allocator;
}

void quire_accounts_fini(quire_accounts *accounts)
{
    accounts->allocator.free(accounts->allocator.ctx, accounts->items);
    memset(accounts, 0, sizeof(*accounts));
}

int quire_accounts_plan(quire_accounts *accounts, uint16_t account)
{
    uint32_t capacity = accounts->capacity > 0 ? accounts->capacity : ACCOUNTS_FIRST;
    quire_account *items;

    QUIRE_ASSERT(account < QUIRE_ACCOUNTS_MAX);
    if (account < accounts->capacity) {
        return QUIRE_OK;
    }
    while (capacity <= account) {
        capacity *= 2;
    }
    items = accounts->allocator.alloc(accounts->allocator.ctx, capacity * sizeof(*items));
    QUIRE_FAIL_IF(items == NULL, QUIRE_NOMEM);
    memset(items, 0, capacity * sizeof(*items));
    for (uint32_t i = 0; i < capacity; i++) {
        items[i].weight = 1;
    }
    if (accounts->capacity > 0) {
        memcpy(items, accounts->items, accounts->capacity * sizeof(*items));
    }
    accounts->allocator.free(accounts->allocator.ctx, accounts->items);
    accounts->items = items;
    accounts->capacity = capacity;
    return QUIRE_OK;
}

static quire_account *item_of(const quire_accounts *accounts, uint16_t account)
{
    QUIRE_CHECK(account < accounts->capacity);
    return &accounts->items[account];
}

void quire_accounts_set(quire_accounts *accounts, uint16_t account, const quire_account_opts *opts)
{
    quire_account *item = item_of(accounts, account);

    item->weight = opts->weight;
    item->quota_bytes = opts->quota_bytes;
}

void quire_accounts_charge(quire_accounts *accounts, uint16_t account, uint32_t region,
                           uint64_t bytes)
{
    quire_account *item = item_of(accounts, account);

    item->bytes[region] += bytes;
    item->total_bytes += bytes;
}

void quire_accounts_uncharge(quire_accounts *accounts, uint16_t account, uint32_t region,
                             uint64_t bytes)
{
    quire_account *item = item_of(accounts, account);

    QUIRE_ASSERT(bytes <= item->bytes[region]);
    item->bytes[region] -= bytes;
    item->total_bytes -= bytes;
}

uint64_t quire_accounts_excess_bytes(const quire_accounts *accounts, uint16_t account)
{
    const quire_account *item = item_of(accounts, account);

    return item->quota_bytes > 0 && item->total_bytes > item->quota_bytes
               ? item->total_bytes - item->quota_bytes
               : 0;
}

void quire_accounts_validate(const quire_accounts *accounts)
{
    for (uint32_t i = 0; i < accounts->capacity; i++) {
        const quire_account *item = &accounts->items[i];
        uint64_t total = 0;

        QUIRE_CHECK(item->weight > 0);
        for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
            total += item->bytes[r];
        }
        QUIRE_CHECK(total == item->total_bytes);
    }
}
