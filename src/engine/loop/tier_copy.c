/* tier_copy.c - pages worth keeping, from the tree to the store. See engine/tier.h.
 *
 * A cursor goes around the nodes of the tree, some at a time. It passes over nodes whose parent has
 * no copy: without the parent a copy would never be found.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "core/prefix/prefix_learned.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"

#include <float.h>
#include <string.h>

#define NODES_STEP 128u /* looked at after a step, at most */
#define NODE_US    20u  /* of a step for each of them: a look takes about a hundredth of that */
#define NODES_IDLE 4096u
#define REST_NS    2e6 /* while nothing runs: time before the inbox is checked again */
#define NS_PER_US  1000.0

typedef struct walk {
    quire_loop *loop;
    uint64_t now_us;
    uint64_t begin_ns;
    double may_ns;
    double spent_ns;
    bool is_forced; /* copy every page without a copy */
    bool is_full;   /* a page was not copied for want of time or a buffer */
} walk;

/* Whether a page shall have a copy. */
static bool is_worth(const walk *w, const quire_prefix_copy *c)
{
    const quire_tier *tier = w->loop->tier;

    if (c->mark != QUIRE_COPY_NONE || c->parent_mark == QUIRE_COPY_NONE ||
        (!c->is_full && c->needs_state && !c->has_state)) { /* no hit could end in it */
        return false;
    }
    if (w->is_forced) {
        return true;
    }
    if (!c->is_full && !tier->is_closing &&
        (c->n_refs > 0 || w->now_us - c->used_us < QUIRE_TIER_REST_US)) {
        return false;
    }
    return tier->opts.copies_all || c->hits > 0 || c->n_pins > 0 || c->owner != 0 ||
           (c->n_refs == 0 &&
            quire_prefix_return_chance(w->loop->tree, c->node, QUIRE_TIER_RETURN_US) >=
                QUIRE_TIER_RETURN_CHANCE);
}

/* Begin the record of a node and copy its pages into it. */
static int record_fill(quire_loop *loop, const quire_prefix_copy *c, quire_transfer *t)
{
    quire_prefix_key root;
    quire_page_text text = { .key = *c->key,
                             .parent = *c->parent_key,
                             .first_token = c->first_token,
                             .n_tokens = c->n_tokens,
                             .tokens = c->tokens };

    quire_prefix_copy_root(loop->tree, c->node, &root);
    if (quire_loop_is_condensed(loop, &root)) {
        root = quire_loop_key(loop, root.salt, root.salt_bytes); /* tier_condensed.c */
    }
    quire_prefix_key_root(&root, &text.root);
    text.salt = root.salt;
    text.salt_bytes = root.salt_bytes;
    if (!c->is_full) {
        quire_page_record_slot(&text.parent, c->tokens[0], &text.key);
    }
    QUIRE_TRY(quire_page_write(loop->cache, &loop->tier->parts, &text, c->pages, NULL, t));
    /* For quire_copy_done(): the node's own key, which may differ from the record's. */
    t->text.key = *c->key;
    t->text.first_token = c->node;
    /* An older record may lack the windows or the state. */
    t->is_replacing = !c->is_full || c->has_windows || c->has_state;
    quire_prefix_standing_get(loop->tree, c->node, &t->use.standing);
    t->use.is_told = true;
    return QUIRE_OK;
}

static void look(void *ctx, const quire_prefix_copy *c)
{
    walk *w = ctx;
    quire_tier *tier = w->loop->tier;
    quire_transfer *t;

    if (!is_worth(w, c)) {
        return;
    }
    if (w->spent_ns >= w->may_ns || tier->n_puts_away >= (tier->n_buffers_max + 1) / 2 ||
        (t = quire_tier_buffer_take(tier)) == NULL) {
        w->is_full = true;
        return;
    }
    if (record_fill(w->loop, c, t) < 0) {
        quire_tier_buffer_give(tier, t);
        return;
    }
    (void)quire_prefix_copy_mark_set(w->loop->tree, c->node, c->key, QUIRE_COPY_ASKED);
    tier->n_puts_away++;
    tier->n_lap++;
    tier->store->ops->put(tier->store, &t, 1);
    w->spent_ns = (double)(quire_clock_ns() - w->begin_ns);
}

void quire_copy_done(quire_loop *loop, quire_transfer *t)
{
    const bool is_kept = t->result == QUIRE_STORE_OK;
    quire_tier *tier = loop->tier;

    (void)quire_prefix_copy_mark_set(loop->tree, t->text.first_token, &t->text.key,
                                     is_kept ? QUIRE_COPY_KEPT : QUIRE_COPY_NONE);
    loop->figures.now.tier.copied_pages_total += is_kept;
    loop->figures.now.tier.refused_pages_total += !is_kept;
    tier->n_puts_away--;
    quire_tier_buffer_give(tier, t);
}

/* Pages of preempted requests first, at most n of them. */
static void look_down(void *ctx, const quire_prefix_copy *c)
{
    const quire_tier_down *down = &((const walk *)ctx)->loop->tier->down;

    if (memcmp(c->key->bytes, down->pages[down->first].key.bytes, QUIRE_PAGE_KEY_BYTES) == 0) {
        look(ctx, c);
    }
}

static void copy_down(walk *w, uint32_t n)
{
    quire_tier_down *down = &w->loop->tier->down;

    w->is_forced = true;
    while (down->n > 0 && n-- > 0) {
        (void)quire_prefix_copies_visit(w->loop->tree, down->pages[down->first].node, 1, look_down,
                                        w);
        if (w->is_full) {
            break;
        }
        quire_tier_down_pop(down);
    }
    w->is_forced = false;
}

static bool takes_puts(const quire_loop *loop)
{
    return loop->tier != NULL && loop->figures.now.tier.store.state == QUIRE_STORE_READY;
}

static uint32_t nodes_of(uint64_t step_us)
{
    return step_us == 0 ? NODES_IDLE : (uint32_t)quire_min_u64(step_us / NODE_US + 1, NODES_STEP);
}

bool quire_tier_copy(quire_loop *loop, uint64_t step_us)
{
    quire_tier *tier = loop->tier;
    walk w = { .loop = loop, .begin_ns = quire_clock_ns() };
    uint32_t next;

    if (!takes_puts(loop)) {
        return false;
    }
    w.now_us = quire_loop_now_us(loop);
    w.may_ns =
        step_us > 0 ? (double)step_us * NS_PER_US * QUIRE_TIER_COPY_SHARE - tier->debt_ns : REST_NS;
    copy_down(&w, nodes_of(step_us));
    next = tier->down.n > 0
               ? tier->cursor
               : quire_prefix_copies_visit(loop->tree, tier->cursor, nodes_of(step_us), look, &w);
    if (step_us > 0) {
        tier->debt_ns = w.spent_ns > w.may_ns ? w.spent_ns - w.may_ns : 0.0;
    }
    if (w.is_full || tier->down.n > 0) {
        return true; /* the same nodes again */
    }
    tier->cursor = next != 0 ? next : 1;
    if (next == 0) {
        const bool has_more = tier->n_lap > 0;

        tier->n_lap = 0;
        return has_more;
    }
    return true;
}

/* ---- uses ---- */

static void touch(void *ctx, const quire_prefix_copy *c)
{
    quire_loop *loop = ctx;
    quire_tier *tier = loop->tier;
    quire_transfer *t;

    if (c->mark != QUIRE_COPY_KEPT || !c->is_full || (t = quire_tier_query_take(tier)) == NULL) {
        return;
    }
    t->text = (quire_page_text){
        .key = *c->key, .parent = *c->parent_key, .first_token = c->first_token, .n_tokens = 0
    };
    t->text.root = tier->touched_root;
    t->number = c->node;
    t->use.request = tier->touched_by;
    t->use.is_told = true;
    quire_prefix_standing_get(loop->tree, c->node, &t->use.standing);
    tier->store->ops->get(tier->store, &t, 1);
}

void quire_tier_touch(quire_loop *loop, const quire_request *r)
{
    const quire_prefix_key key = quire_loop_key(loop, r->tenant, r->tenant_bytes);

    if (loop->tier == NULL || r->kv.ref == QUIRE_PREFIX_REF_NULL || r->kv.n_found == 0) {
        return;
    }
    quire_prefix_key_root(&key, &loop->tier->touched_root);
    loop->tier->touched_by = quire_tier_number(loop, r);
    (void)quire_prefix_copies_visit_path(loop->tree, r->kv.ref, touch, loop);
}

void quire_touch_done(quire_loop *loop, quire_transfer *t)
{
    if (t->result == QUIRE_STORE_ABSENT) { /* the store has let go of it */
        (void)quire_prefix_copy_mark_set(loop->tree, t->number, &t->text.key, QUIRE_COPY_NONE);
    }
    quire_tier_query_give(loop->tier, t);
}

static void note(void *ctx, const quire_prefix_copy *c)
{
    quire_loop *loop = ctx;

    if (c->mark == QUIRE_COPY_NONE) {
        quire_tier_down_add(&loop->tier->down, c->node, c->key);
    }
}

void quire_tier_copy_request(quire_loop *loop, const quire_request *r)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    walk w = { .loop = loop, .begin_ns = quire_clock_ns(), .may_ns = DBL_MAX, .is_forced = true };

    if (!takes_puts(loop) || r->kv.ref == QUIRE_PREFIX_REF_NULL ||
        quire_tier_page_us(loop) * (r->kv.n_published / page_tokens) >
            quire_cost_prefill_us(&loop->figures.now.cost, 0, r->kv.n_published,
                                  loop->opts.chunk_tokens)) {
        return;
    }
    if (quire_runtime_page_memory(loop->runtime) != NULL) {
        (void)quire_prefix_copies_visit_path(loop->tree, r->kv.ref, note, loop);
    } else {
        (void)quire_prefix_copies_visit_path(loop->tree, r->kv.ref, look, &w);
    }
}
