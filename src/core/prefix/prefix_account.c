/* prefix_account.c - settings: quotas and weights of tenants, times to live of ranks, the
 * low-traffic rule, the cost of a token.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <math.h>
#include <string.h>

void quire_prefix_quotas_apply(quire_prefix *tree)
{
    if (!tree->is_over_quota) {
        return;
    }
    tree->is_over_quota = false;
    for (uint32_t a = 0; a < tree->accounts.capacity; a++) {
        quire_prefix_quota_apply(tree, (uint16_t)a);
    }
}

void quire_prefix_quota_apply(quire_prefix *tree, uint16_t account)
{
    uint64_t excess_bytes = quire_accounts_excess_bytes(&tree->accounts, account);
    uint64_t before_bytes = tree->accounts.items[account].total_bytes;
    uint64_t freed_bytes; /* in the regions, including other accounts' expired nodes */

    /* An evicted node may make its parent, of another region, a candidate. */
    do {
        freed_bytes = 0;
        for (uint32_t r = 0; r < QUIRE_REGIONS_MAX && freed_bytes < excess_bytes; r++) {
            quire_evict_ask ask = { .region = (quire_region_id)r, .account = account };

            if (tree->accounts.items[account].bytes[r] > 0) {
                freed_bytes += quire_prefix_evict_ask(tree, ask, excess_bytes - freed_bytes);
            }
        }
        excess_bytes = quire_accounts_excess_bytes(&tree->accounts, account);
    } while (freed_bytes > 0 && excess_bytes > 0);
    tree->accounts.items[account].evicted_bytes +=
        before_bytes - tree->accounts.items[account].total_bytes;
    tree->is_over_quota = tree->is_over_quota || excess_bytes > 0;
}

int quire_prefix_account_set(quire_prefix *tree, uint16_t account, const quire_account_opts *opts)
{
    QUIRE_FAIL_IF(account >= QUIRE_ACCOUNTS_MAX, QUIRE_RANGE);
    QUIRE_FAIL_IF(opts->weight == 0, QUIRE_INVAL);
    QUIRE_TRY(quire_accounts_plan(&tree->accounts, account));
    quire_accounts_set(&tree->accounts, account, opts);
    quire_prefix_quota_apply(tree, account);
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}

int quire_prefix_account_get(const quire_prefix *tree, uint16_t account, quire_account_info *out)
{
    const quire_account *item;

    QUIRE_FAIL_IF(account >= QUIRE_ACCOUNTS_MAX, QUIRE_RANGE);
    memset(out, 0, sizeof(*out));
    out->weight = 1;
    if (account >= tree->accounts.capacity) {
        return QUIRE_OK;
    }
    item = &tree->accounts.items[account];
    out->quota_bytes = item->quota_bytes;
    out->weight = item->weight;
    out->bytes = item->total_bytes;
    out->quota_evicted_bytes_total = item->evicted_bytes;
    memcpy(out->region_bytes, item->bytes, sizeof(out->region_bytes));
    return QUIRE_OK;
}

int quire_prefix_ttl_set(quire_prefix *tree, uint8_t rank, uint64_t ttl_us)
{
    QUIRE_FAIL_IF(rank >= QUIRE_RANKS_MAX, QUIRE_RANGE);
    quire_evict_ttl_set(&tree->evict, rank, ttl_us);
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}

int quire_prefix_low_traffic_set(quire_prefix *tree, uint64_t after_us, double hits_per_hour)
{
    QUIRE_FAIL_IF(!(hits_per_hour >= 0.0), QUIRE_INVAL);
    quire_evict_low_traffic_set(&tree->evict, after_us, hits_per_hour);
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}

int quire_prefix_cost_set(quire_prefix *tree, double token_us, double token_depth_us)
{
    QUIRE_FAIL_IF(!isfinite(token_us) || !isfinite(token_depth_us), QUIRE_INVAL);
    QUIRE_FAIL_IF(token_us < 0.0 || token_depth_us < 0.0, QUIRE_INVAL);
    tree->evict.token_us = token_us > 0.0 || token_depth_us > 0.0 ? token_us : 1.0;
    tree->evict.token_depth_us = token_depth_us;
    return QUIRE_OK;
}
