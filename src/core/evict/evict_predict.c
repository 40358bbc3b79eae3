/* evict_predict.c - Quire's default policy: evicts the node that saves least per byte and time.
 *
 *   1. A page saves its recomputation at its next use, and costs memory until that use.
 *   2. So the best use of memory keeps the pages that save most per byte and time (a knapsack).
 *   3. This ratio is an index of each page alone, independent of all other pages (reuse_model.h).
 *   4. Conversations return after a pause. When memory cannot hold all arrivals during the pause,
 *      LRU evicts every conversation just before its return. The index falls during the pause and
 *      rises towards its usual end. So some conversations stay until they return, and newcomers
 *      with no better chance are evicted at once. Loops and scans are handled in the same way.
 *   5. The traits that predict a return (turn, length, new tokens, own pauses, sharers) are learned
 *      online, from evicted and kept pages alike. The prior is LRU's assumption: older means later.
 *      So the policy becomes LRU on workloads that suit LRU, and has little to lose elsewhere.
 *
 * A victim is the least of 8 candidates drawn at random and a pool of the least 16 that were drawn
 * or became candidates before. This is as good as the exact minimum in all traces tried, and its
 * cost does not depend on the number of candidates. Heap 0, least recently used first, has the
 * candidates for which the bag found no memory.
 *
 * The turn of a request is counted from the node where the preceding text ended. Two requests
 * behind the same full page count as one conversation until a third text comes through that
 * continues neither. The same holds for evicted nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "core/evict/evict_bag.h"
#include "core/evict/evict_policies.h"
#include "core/evict/reuse_sample.h"

#include <string.h>

#define DRAWS        8u
#define UNIT_BITS    10u              /* the clock's unit is 1,024 us */
#define RECENT_GAPS  8.0f             /* the number of gaps in a mean gap */
#define GAP_SHARE    64u              /* inertia of the mean time between requests */
#define PAUSE_US     (60u * 1000000u) /* longer gaps do not count in the mean */
#define LAST_GAP_MAX 20u              /* octaves of 0.1 s */
#define OCTAVE_UNITS 100u             /* 0.1 s */
#define TEXTS_MAX    100u             /* counted; below GHOST_IS_END */
#define SIZES        63u              /* half octaves of tokens */

/* A node's words. */
typedef struct note {
    uint32_t slot; /* in its bin's bag, from 1; 0 = not in the bag */
    uint32_t life; /* handle */
    uint32_t used; /* clock, low bits */
    float mean_gap;
    uint8_t turn;
    uint8_t texts;
    uint8_t uses;
    uint8_t fresh;
    uint8_t length;
    uint8_t last_gap;
    bool is_end; /* the end of a prompt, or the page before */
} note;

/* A ghost's words. */
typedef struct memory {
    uint32_t life;
    uint32_t used;
    float mean_gap;
    uint8_t turn;
    uint8_t texts; /* with GHOST_IS_END */
    uint8_t uses;
} memory;

#define GHOST_IS_END 0x80u

/* A request's words. */
typedef struct asker {
    float mean_gap;
    uint8_t turn;
    uint8_t fresh;
    uint8_t length;
    uint8_t last_gap;
    bool is_next; /* the request continues a text */
} asker;

_Static_assert(sizeof(note) <= QUIRE_NODE_WORDS * sizeof(uint64_t), "fits a node");
_Static_assert(sizeof(memory) <= sizeof(((quire_ghost *)0)->words), "fits a ghost");
_Static_assert(sizeof(asker) <= sizeof(((quire_evict_request *)0)->words), "fits a request");

/* Of a bin. */
typedef struct group {
    quire_bag bag;
    uint64_t drawn_at; /* clock of the indexes in the pool */
} group;

/* Of the tree. */
typedef struct predictor {
    quire_reuse_model model;
    quire_reuse_sample sample;
    quire_rng rng;
    uint64_t now;     /* the clock, units */
    uint64_t last_us; /* of the last request */
    uint64_t mean_us; /* between requests, times GAP_SHARE */
    uint64_t fraction_us;
    uint32_t picks[2]; /* token positions in the current path: the nodes that contain them are
                          followed */
} predictor;

static note note_of(const quire_prefix_node *node)
{
    note n;

    memcpy(&n, node->words, sizeof(n));
    return n;
}

static void note_set(quire_prefix_node *node, const note *n)
{
    memcpy(node->words, n, sizeof(*n));
}

static asker asker_of(const quire_evict *evict)
{
    asker a;

    memcpy(&a, evict->request.words, sizeof(a));
    return a;
}

static uint8_t up(uint8_t n)
{
    return n < UINT8_MAX ? n + 1 : n;
}

/* ---- time ---- */

/* Advance the clock to the tree's time. For requests at the same time (a trace in whole seconds, a
 * batch) the clock advances by half the mean time between requests each, so that no gap is 0. */
static void clock_advance(predictor *p, uint64_t now_us)
{
    uint64_t gap_us = now_us > p->last_us ? now_us - p->last_us : 0;

    if (p->last_us != 0 && gap_us < PAUSE_US) {
        p->mean_us = p->mean_us - p->mean_us / GAP_SHARE + gap_us;
    }
    if (gap_us == 0) {
        p->fraction_us += quire_max_u64(p->mean_us / GAP_SHARE / 2, 1u << UNIT_BITS);
        p->now += p->fraction_us >> UNIT_BITS;
        p->fraction_us &= (1u << UNIT_BITS) - 1;
    }
    p->last_us = quire_max_u64(p->last_us, now_us);
    p->now = quire_max_u64(p->now, now_us >> UNIT_BITS);
}

/* The estimated time until the next request. */
static float least_time(const predictor *p)
{
    return 1.0f + (float)(p->mean_us / GAP_SHARE) / (float)(1u << UNIT_BITS);
}

/* The clock at the tree's time: time goes on between requests too. */
static uint64_t clock_now(const quire_evict *evict)
{
    predictor *p = evict->state;

    p->now = quire_max_u64(p->now, evict->now_us >> UNIT_BITS);
    return p->now;
}

static uint8_t gap_octaves(uint32_t gap)
{
    uint32_t octaves = (quire_reuse_half_octaves(gap / OCTAVE_UNITS, UINT8_MAX) + 1u) / 2;

    return (uint8_t)quire_min_u32(octaves, LAST_GAP_MAX);
}

static float mean_of(float mean, float gap, uint8_t n)
{
    return mean > 0 ? mean + (gap - mean) / (n < RECENT_GAPS ? (float)n : RECENT_GAPS) : gap;
}

/* ---- requests ---- */

/* Find the record of the text that this request continues; false = none. A request continues a text
 * behind the text's end or behind the end of its prompt: clients may leave parts of an answer
 * out. */
static bool before_of(const quire_evict *evict, uint32_t node, const quire_ghost *ghost,
                      memory *before)
{
    if (ghost != NULL) {
        bool is_end;

        memcpy(before, ghost->words, sizeof(*before));
        is_end = ghost->tip <= 1 || (before->texts & GHOST_IS_END) != 0;
        return ghost->list != 0 && is_end && (before->texts & ~GHOST_IS_END) <= 1;
    }
    if (node != QUIRE_NODE_NULL) {
        const quire_prefix_node *at = quire_evict_at(evict, node);
        note n = note_of(at);

        *before =
            (memory){ .used = n.used, .mean_gap = n.mean_gap, .turn = n.turn, .texts = n.texts };
        return (at->tip <= 1 || n.is_end) && n.texts <= 1;
    }
    return false;
}

static void predict_asked(quire_evict *evict, quire_evict_request *request, uint32_t node,
                          const quire_ghost *ghost)
{
    predictor *p = evict->state;
    uint32_t n_fresh = request->n_tokens - quire_min_u32(request->n_known, request->n_tokens);
    asker a = { .turn = 1,
                .fresh = quire_reuse_half_octaves(n_fresh, SIZES),
                .length = quire_reuse_half_octaves(request->n_tokens, SIZES) };
    memory before;

    clock_advance(p, evict->now_us);
    quire_reuse_advance(&p->sample, &p->model, p->now);
    quire_reuse_refresh(&p->model, p->now, least_time(p));
    if (before_of(evict, node, ghost, &before)) {
        uint32_t gap = (uint32_t)p->now - before.used;

        a.is_next = true;
        a.turn = up(before.turn);
        a.last_gap = gap_octaves(gap);
        a.mean_gap = mean_of(before.mean_gap, (float)gap, before.turn);
    }
    memcpy(request->words, &a, sizeof(a));
}

/* ---- nodes ---- */

/* A use ends a life and adds a gap. */
static void use(quire_evict *evict, note *n)
{
    predictor *p = evict->state;
    asker a = asker_of(evict);
    uint32_t gap = (uint32_t)p->now - n->used;

    quire_reuse_end(&p->sample, &p->model, n->life, p->now, true);
    n->life = 0;
    n->uses = up(n->uses);
    n->last_gap = gap_octaves(gap);
    n->mean_gap = a.is_next && n->texts <= 1
                      ? a.mean_gap
                      : mean_of(n->uses > 1 ? n->mean_gap : 0, (float)gap, n->uses);
    n->texts = a.is_next || n->texts >= TEXTS_MAX ? n->texts : up(n->texts);
    n->used = (uint32_t)p->now;
}

static void predict_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                         quire_ghost *ghost)
{
    predictor *p = evict->state;
    asker a = asker_of(evict);
    note n = { .used = (uint32_t)p->now,
               .mean_gap = a.mean_gap,
               .turn = a.turn,
               .texts = 1,
               .last_gap = a.last_gap };

    (void)bin;
    if (ghost != NULL && ghost->list != 0) {
        memory m;

        memcpy(&m, ghost->words, sizeof(m));
        ghost->list = 0;
        n.life = m.life;
        n.used = m.used;
        n.mean_gap = m.mean_gap;
        n.texts = m.texts & (uint8_t)~GHOST_IS_END;
        n.uses = m.uses;
        use(evict, &n);
    }
    note_set(quire_evict_at(evict, node), &n);
}

static void predict_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    note n = note_of(at);

    (void)bin;
    use(evict, &n);
    note_set(at, &n);
}

static quire_reuse_class class_of(const quire_evict *evict, const quire_prefix_node *at,
                                  const note *n)
{
    const predictor *p = evict->state;
    quire_reuse_traits traits = { .turn = n->turn,
                                  .fresh = n->fresh,
                                  .length = n->length,
                                  .tip = at->tip,
                                  .texts = n->texts,
                                  .uses = n->uses,
                                  .last_gap = n->last_gap,
                                  .mean_gap = n->mean_gap };

    return quire_reuse_class_of(&p->model, &traits);
}

/* Whether the sample follows the node. Of each text it follows the last two pages, because the end
 * of a text decides whether the text is continued, and two other pages. */
static bool is_picked(predictor *p, const quire_prefix_node *at)
{
    if (at->tip <= 1) {
        for (uint32_t i = 0; i < 2; i++) {
            p->picks[i] = at->first_token > 0 ? quire_rng_below(&p->rng, at->first_token) : 0;
        }
        return true;
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (p->picks[i] >= at->first_token && p->picks[i] < quire_prefix_node_end(at)) {
            return true;
        }
    }
    return false;
}

/* The sample follows a node from now on, if the node is one of those. */
static void follow(const quire_evict *evict, const quire_prefix_node *at, note *n)
{
    predictor *p = evict->state;

    if (is_picked(p, at)) {
        quire_reuse_class class = class_of(evict, at, n);

        quire_reuse_end(&p->sample, &p->model, n->life, p->now, false);
        n->life = quire_reuse_follow(&p->sample, &p->model, &class, p->now);
    }
}

static void predict_rested(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    asker a = asker_of(evict);
    note n = note_of(at);

    (void)bin;
    n.used = (uint32_t)clock_now(evict);
    if (evict->request.number != 0) { /* else a pin ends, which tells nothing about requests */
        n.turn = a.turn;
        n.fresh = a.fresh;
        n.length = a.length;
        n.is_end = at->first_token < evict->request.n_tokens &&
                   quire_prefix_node_end(at) + at->n_tokens >= evict->request.n_tokens;
        follow(evict, at, &n);
    }
    note_set(at, &n);
}

/* ---- another tree ---- */

/* Clocks differ: `used` is told as an age. */
static void predict_tell(const quire_evict *evict, uint32_t node, uint64_t words[QUIRE_NODE_WORDS])
{
    note n = note_of(quire_evict_at(evict, node));

    n.slot = 0;
    n.life = 0;
    n.used = (uint32_t)clock_now(evict) - n.used;
    memcpy(words, &n, sizeof(n));
}

static void predict_hear(quire_evict *evict, uint32_t node, const uint64_t words[QUIRE_NODE_WORDS])
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    const note own = note_of(at);
    note n;

    memcpy(&n, words, sizeof(n));
    n.slot = own.slot;
    n.life = own.life;
    n.used = (uint32_t)clock_now(evict) - n.used;
    follow(evict, at, &n);
    note_set(at, &n);
}

/* ---- candidates ---- */

static float index_of(const predictor *p, const quire_bag_item *item)
{
    return item->worth *
           quire_reuse_index(&p->model, item->class_id, (uint32_t)p->now - item->used);
}

static quire_evict_place predict_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    predictor *p = evict->state;
    group *g = bin->state;
    quire_prefix_node *at = quire_evict_at(evict, node);
    note n = note_of(at);
    quire_bag_item item = { .node = node,
                            .used = n.used,
                            .worth = (float)quire_evict_worth(evict, node),
                            .class_id = class_of(evict, at, &n).id };
    uint32_t slot;

    if (quire_bag_add(&g->bag, &evict->allocator, item, &slot) == QUIRE_OK) {
        n.slot = slot + 1;
        note_set(at, &n);
        quire_bag_remember(&g->bag, item, index_of(p, &item));
        return (quire_evict_place){ .heap = QUIRE_EVICT_ELSEWHERE };
    }
    return (quire_evict_place){ .heap = 0, .key = at->used_tick };
}

static uint32_t predict_n_elsewhere(const quire_evict_bin *bin)
{
    const group *g = bin->state;

    return g->bag.n;
}

static void predict_taken(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    group *g = bin->state;
    quire_prefix_node *at = quire_evict_at(evict, node);
    note n = note_of(at);
    uint32_t moved;

    if (n.slot == 0) {
        return;
    }
    moved = quire_bag_remove(&g->bag, n.slot - 1);
    if (moved != QUIRE_NODE_NULL) {
        note other = note_of(quire_evict_at(evict, moved));

        other.slot = n.slot;
        note_set(quire_evict_at(evict, moved), &other);
    }
    n.slot = 0;
    note_set(at, &n);
}

/* Recompute the indexes of the pool for the present time. */
static void drawn_refresh(const predictor *p, group *g)
{
    quire_bag_drawn drawn[QUIRE_BAG_POOL];
    uint32_t n = g->bag.n_drawn;

    memcpy(drawn, g->bag.drawn, n * sizeof(drawn[0]));
    g->bag.n_drawn = 0;
    for (uint32_t i = 0; i < n; i++) {
        quire_bag_remember(&g->bag, drawn[i].item, index_of(p, &drawn[i].item));
    }
    g->drawn_at = p->now;
}

static uint32_t predict_victim(quire_evict *evict, quire_evict_bin *bin)
{
    predictor *p = evict->state;
    group *g = bin->state;
    bool has_few = g->bag.n <= DRAWS + QUIRE_BAG_POOL;
    uint32_t n_draws = has_few ? g->bag.n : DRAWS;

    if (g->bag.n == 0) {
        return quire_evict_first(bin, 0);
    }
    if (g->drawn_at != clock_now(evict)) {
        drawn_refresh(p, g);
    }
    for (uint32_t i = 0; i < n_draws; i++) {
        const quire_bag_item *item =
            quire_bag_at(&g->bag, has_few ? i : quire_rng_below(&p->rng, g->bag.n));

        quire_bag_remember(&g->bag, *item, index_of(p, item));
    }
    return g->bag.drawn[0].item.node;
}

/* ---- ended nodes ---- */

static void predict_gone(quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                         quire_prefix_gone why, quire_ghost *ghost)
{
    predictor *p = evict->state;
    note n = note_of(quire_evict_at(evict, node));
    memory m = { .life = n.life,
                 .used = n.used,
                 .mean_gap = n.mean_gap,
                 .turn = n.turn,
                 .texts = (uint8_t)(n.texts | (n.is_end ? GHOST_IS_END : 0)),
                 .uses = n.uses };

    (void)bin;
    if (ghost == NULL || why == QUIRE_PREFIX_GONE_INVALIDATED || why == QUIRE_PREFIX_GONE_CLOSED) {
        quire_reuse_end(&p->sample, &p->model, n.life, p->now, false);
        return;
    }
    memcpy(ghost->words, &m, sizeof(m));
    ghost->list = 1;
}

static void predict_forgotten(quire_evict *evict, quire_ghost *ghost)
{
    predictor *p = evict->state;
    memory m;

    if (ghost->list != 0) {
        memcpy(&m, ghost->words, sizeof(m));
        quire_reuse_end(&p->sample, &p->model, m.life, p->now, false);
    }
}

/* ---- beginning and end ---- */

static void predict_start(quire_evict *evict)
{
    predictor *p = evict->state;

    quire_reuse_model_init(&p->model);
    quire_reuse_sample_init(&p->sample, evict->seed);
    p->rng.state = ~evict->seed;
}

static void predict_bin_stop(quire_evict *evict, quire_evict_bin *bin)
{
    group *g = bin->state;

    quire_bag_fini(&g->bag, &evict->allocator);
}

static double predict_chance(const quire_evict *evict, uint32_t node, uint64_t within_us)
{
    const predictor *p = evict->state;
    const quire_prefix_node *at = quire_evict_at(evict, node);
    const note n = note_of(at);

    return quire_reuse_chance(&p->model, class_of(evict, at, &n).id, p->now,
                              (uint32_t)quire_min_u64(within_us >> UNIT_BITS, UINT32_MAX));
}

static void predict_save(const quire_evict *evict, unsigned char *out)
{
    const predictor *p = evict->state;

    quire_reuse_model_save(&p->model, out);
}

static bool predict_load(quire_evict *evict, const unsigned char *bytes)
{
    predictor *p = evict->state;

    return quire_reuse_model_load(&p->model, bytes, p->now);
}

const quire_evict_ops quire_evict_predict = {
    .n_heaps = 1,
    .tree_bytes = sizeof(predictor),
    .bin_bytes = sizeof(group),
    .has_ghosts = true,
    .start = predict_start,
    .bin_stop = predict_bin_stop,
    .asked = predict_asked,
    .born = predict_born,
    .used = predict_used,
    .rested = predict_rested,
    .place = predict_place,
    .n_elsewhere = predict_n_elsewhere,
    .taken = predict_taken,
    .victim = predict_victim,
    .gone = predict_gone,
    .forgotten = predict_forgotten,
    .tell = predict_tell,
    .hear = predict_hear,
    .chance = predict_chance,
    .learned_bytes = QUIRE_REUSE_SAVED_BYTES,
    .save = predict_save,
    .load = predict_load,
};
