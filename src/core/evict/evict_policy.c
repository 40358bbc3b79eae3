/* evict_policy.c - the policies by number and by name.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_policies.h"

#include "base/check.h"

#include <string.h>

static const char *const names[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_EVICT_POLICY_MAP(X)
#undef X
};

static const quire_evict_ops *const tables[] = {
    [QUIRE_EVICT_DEFAULT] = &quire_evict_predict, [QUIRE_EVICT_LRU] = &quire_evict_lru,
    [QUIRE_EVICT_LFU] = &quire_evict_lfu,         [QUIRE_EVICT_SLRU] = &quire_evict_slru,
    [QUIRE_EVICT_FIFO] = &quire_evict_fifo,       [QUIRE_EVICT_S3FIFO] = &quire_evict_s3fifo,
    [QUIRE_EVICT_SIEVE] = &quire_evict_sieve,     [QUIRE_EVICT_ARC] = &quire_evict_arc,
    [QUIRE_EVICT_GDSF] = &quire_evict_gdsf,
};

const char *quire_evict_policy_name(quire_evict_policy policy)
{
    size_t i = (size_t)policy;

    return i < sizeof(names) / sizeof(names[0]) ? names[i] : "unknown";
}

int quire_evict_policy_find(const char *name, quire_evict_policy *out)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (quire_evict_policy)i;
            return QUIRE_OK;
        }
    }
    return QUIRE_NOTFOUND;
}

_Static_assert(sizeof(tables) / sizeof(tables[0]) == QUIRE_EVICT_POLICY_COUNT, "a table each");

const quire_evict_ops *quire_evict_ops_of(quire_evict_policy policy)
{
    QUIRE_CHECK((size_t)policy < QUIRE_EVICT_POLICY_COUNT);
    return tables[policy];
}
