/* prefix_learned.h - the knowledge of a tree's eviction policy, for other objects. Its statistics
 * of the workload, as bytes, are the beginning of the tree in the next process. Its figures of a
 * node go to a store below memory, which keeps pages by the same policy.
 *
 * Thread: the tree's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_LEARNED_H
#define QUIRE_CORE_PREFIX_LEARNED_H

#include "core/prefix/prefix_node.h"
#include "quire/prefix.h"

/* The most bytes that quire_prefix_learned_save() writes. */
#define QUIRE_PREFIX_LEARNED_MAX ((size_t)256 << 10)

/* Bytes that the tree's policy would write; 0 = it learns nothing. Thread: any. */
size_t quire_prefix_learned_bytes(const quire_prefix *tree);
void quire_prefix_learned_save(const quire_prefix *tree, unsigned char *out);
/* Replace the policy's learned knowledge. Errors: QUIRE_INVAL (of another length, or a number is
 * out of range: the tree is unchanged). */
int quire_prefix_learned_load(quire_prefix *tree, const unsigned char *bytes, size_t n_bytes);

/* The chance, 0 .. 1, that a page's node is used within this time after its last use, as learned
 * from enough uses of nodes like it; 0 = not known. */
double quire_prefix_return_chance(const quire_prefix *tree, uint32_t node, uint64_t within_us);

/* A node's standing. */
typedef struct quire_prefix_standing {
    quire_evict_policy policy; /* of the tree */
    uint32_t hits;
    quire_region_id region; /* to which the node's pages are charged */
    uint8_t rank;
    uint16_t account; /* of the tenant, with its weight; weight 0 = 1 */
    uint32_t weight;
    uint8_t tip;                      /* pages to the end of the last text that ended behind it */
    bool has_words;                   /* the policy tells more */
    uint64_t words[QUIRE_NODE_WORDS]; /* quire_evict_ops.tell */
} quire_prefix_standing;

void quire_prefix_standing_get(const quire_prefix *tree, uint32_t node, quire_prefix_standing *out);

#endif /* QUIRE_CORE_PREFIX_LEARNED_H */
