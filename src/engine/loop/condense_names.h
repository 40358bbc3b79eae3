/* condense_names.h - texts as a policy condenses them, their entries in the set of condensed texts
 * (condensed_set.h), and the roots of the prefix tree that follow from these.
 *
 * A root's identity is the first half of the entry's name, which covers the model's identity, the
 * policy with its parameters, the tenant and the text. So it is the same in every process, and
 * pages of condensed texts are found in stores below memory (tier_condensed.c). A root's salt is
 * the tenant, as of every text.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONDENSE_NAMES_H
#define QUIRE_ENGINE_CONDENSE_NAMES_H

#include "engine/condensing.h"
#include "engine/loop/condensed_set.h"
#include "engine/loop/loop.h"
#include "engine/loop/request.h"
#include "quire/prefix.h"

/* A text and its condensing. Pointers are borrowed. */
typedef struct quire_condensed_text {
    const quire_condensing *condensing;
    const int32_t *tokens;
    const void *tenant;
    uint32_t tenant_bytes;
} quire_condensed_text;

static inline quire_condensed_text quire_condensed_text_of(const quire_request *r)
{
    return (quire_condensed_text){ &r->condensing, r->tokens, r->tenant, r->tenant_bytes };
}

/* The set of the loop, empty. Errors: QUIRE_NOMEM. Memory: quire_condensed_set_destroy(). */
int quire_loop_condensed_create(quire_loop *loop);

/* The entry of the text's first chunks, at most k_max of them; *k: how many. Changes nothing. */
quire_condensed quire_loop_condensed_find(const quire_loop *loop, const quire_condensed_text *text,
                                          uint32_t k_max, uint32_t *k);
/* The entry of the text's first k >= 1 chunks; a new one where there is none. The caller holds it:
 * quire_condensed_release(). QUIRE_CONDENSED_NULL: no memory, or all entries have holders. */
quire_condensed quire_loop_condensed_hold(quire_loop *loop, const quire_condensed_text *text,
                                          uint32_t k);

/* The name of a text without chunks, and of the text with chunk number k (from 0) behind a name. */
quire_condensed_name quire_loop_condensed_name(const quire_loop *loop,
                                               const quire_condensed_text *text);
void quire_condensed_text_next(const quire_condensed_text *text, uint32_t k,
                               quire_condensed_name *name);

/* The key of the tree's root for a text of a name, and for an entry; QUIRE_CONDENSED_NULL: that of
 * plain texts. Memory: salt is borrowed. */
quire_prefix_key quire_condensed_name_key(const quire_condensed_name *name, const void *tenant,
                                          uint32_t tenant_bytes);
quire_prefix_key quire_loop_condensed_key(const quire_loop *loop, const void *tenant,
                                          uint32_t tenant_bytes, quire_condensed entry);

/* The roots of a text, from the one behind its first chunk on, as far as requests with these tokens
 * as their prompt use them. Nothing of the set is needed but its base. Memory: the text is
 * borrowed. Thread: any. */
typedef struct quire_condensed_walk {
    quire_condensing condensing;
    quire_loop_text of;
    quire_condensed_name name;
    uint32_t k; /* condensings behind the root at hand; 0 = that of plain texts */
} quire_condensed_walk;
void quire_condensed_walk_begin(const quire_loop *loop, const quire_retain_spec *spec,
                                const quire_loop_text *text, quire_condensed_walk *walk);
/* Go to the next root; false: there is none. */
bool quire_condensed_walk_next(quire_condensed_walk *walk, quire_prefix_key *key);

/* Bytes of tenant behind an entry: the salt of its root. Memory: until the entry leaves. */
const void *quire_loop_condensed_tenant(const quire_loop *loop, quire_condensed entry,
                                        uint32_t *n_bytes);

/* Whether a root has texts that were condensed. */
bool quire_loop_is_condensed(const quire_loop *loop, const quire_prefix_key *root);

#endif /* QUIRE_ENGINE_CONDENSE_NAMES_H */
