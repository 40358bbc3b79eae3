/* tier_condensed.c - which condensed texts a store has. See engine/tier.h.
 *
 * A condensed text is found under a root of its own (condense_names.h), and its pages are of use
 * together alone. So a fetch first asks, without reading, for the first page of each text that the
 * request could begin with, from the fewest condensings to the most, and then reads the pages of
 * the last one that is there. Where one of these pages is missing, an earlier text is looked for.
 *
 * Records of condensed texts have the root of the tenant's plain texts, and a parent that is no
 * record: the root of the condensed text. A store does not know the text before such a page. It
 * therefore drops these records with any text of their root (store.h), also those that an earlier
 * process made.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/num.h"

#define LOOKS_MAX 512u /* texts asked for at once: those with the most condensings */

/* Ask for the first page of the text with this name, which has k condensings behind it. */
static void ask(quire_loop *loop, quire_fetch *f, const quire_condensed_name *name, uint32_t k)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const quire_request *r = f->request;
    const quire_prefix_key key = quire_condensed_name_key(name, r->tenant, r->tenant_bytes);
    quire_transfer *t = quire_tier_query_take(loop->tier);

    if (t == NULL) {
        return;
    }
    t->text = (quire_page_text){ .root = f->root };
    quire_prefix_key_root(&key, &t->text.parent);
    quire_prefix_key_add(&t->text.parent, r->tokens + quire_condensing_gone(&r->condensing, k),
                         page_tokens, &t->text.key);
    t->owner = f;
    t->number = k;
    t->urgency = f->rank;
    f->n_away++;
    loop->tier->store->ops->get(loop->tier->store, &t, 1);
}

/* Read the pages of the text behind k condensings that the tree lacks. */
static bool read_from(quire_loop *loop, quire_fetch *f, uint32_t k)
{
    const uint32_t n_want = quire_min_u32(f->n_want, quire_request_fetch_end(f->request, k));

    return (k > f->k_have || n_want > f->n_have) && quire_fetch_open(loop, f, k) == QUIRE_OK;
}

bool quire_fetch_look(quire_loop *loop, quire_fetch *f)
{
    const quire_condensed_text text = quire_condensed_text_of(f->request);
    const uint32_t k_first =
        quire_max_u32(f->k_have, f->k_max > LOOKS_MAX ? f->k_max - LOOKS_MAX : 0) + 1;

    f->k_found = 0;
    if (f->k_max > f->k_have) {
        quire_condensed_name name = quire_loop_condensed_name(loop, &text);

        f->stage = QUIRE_FETCH_LOOKS;
        for (uint32_t k = 1; k <= f->k_max; k++) {
            quire_condensed_text_next(&text, k - 1, &name);
            if (k >= k_first) {
                ask(loop, f, &name, k);
            }
        }
    }
    return f->n_away > 0 || read_from(loop, f, f->k_have);
}

void quire_fetch_heard(quire_loop *loop, quire_transfer *t)
{
    quire_fetch *f = t->owner;

    f->n_away--;
    if (t->result == QUIRE_STORE_OK) {
        f->k_found = quire_max_u32(f->k_found, t->number);
    }
    f->moved_us = quire_loop_now_us(loop);
    quire_tier_query_give(loop->tier, t);
}

bool quire_fetch_looked(quire_loop *loop, quire_fetch *f)
{
    return read_from(loop, f, f->k_found > 0 ? f->k_found : f->k_have);
}
