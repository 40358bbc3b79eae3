/* prefix_learned.c - see prefix_learned.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_learned.h"

#include "base/check.h"
#include "core/evict/reuse_model.h"
#include "core/prefix/prefix_internal.h"

_Static_assert(QUIRE_REUSE_SAVED_BYTES <= QUIRE_PREFIX_LEARNED_MAX, "learned figures are bounded");

size_t quire_prefix_learned_bytes(const quire_prefix *tree)
{
    return tree->evict.ops->learned_bytes;
}

void quire_prefix_learned_save(const quire_prefix *tree, unsigned char *out)
{
    if (tree->evict.ops->learned_bytes > 0) {
        tree->evict.ops->save(&tree->evict, out);
    }
}

int quire_prefix_learned_load(quire_prefix *tree, const unsigned char *bytes, size_t n_bytes)
{
    const quire_evict_ops *ops = tree->evict.ops;

    QUIRE_FAIL_IF(ops->learned_bytes == 0 || n_bytes != ops->learned_bytes, QUIRE_INVAL);
    QUIRE_FAIL_IF(!ops->load(&tree->evict, bytes), QUIRE_INVAL);
    return QUIRE_OK;
}

double quire_prefix_return_chance(const quire_prefix *tree, uint32_t node, uint64_t within_us)
{
    const quire_evict_ops *ops = tree->evict.ops;

    return ops->chance != NULL ? ops->chance(&tree->evict, node, within_us) : 0.0;
}

void quire_prefix_standing_get(const quire_prefix *tree, uint32_t node, quire_prefix_standing *out)
{
    const quire_evict_ops *ops = tree->evict.ops;
    const quire_prefix_node *at = quire_prefix_at(tree, node);

    quire_account_info account = { 0 };

    (void)quire_prefix_account_get(tree, at->account, &account);
    *out = (quire_prefix_standing){ .policy = tree->opts.policy,
                                    .hits = at->hits,
                                    .region = at->region,
                                    .rank = at->rank,
                                    .account = at->account,
                                    .weight = account.weight,
                                    .tip = at->tip,
                                    .has_words = ops->tell != NULL };
    if (ops->tell != NULL) {
        ops->tell(&tree->evict, node, out->words);
    }
}
