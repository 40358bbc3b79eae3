/* pin_hold.c - a pin's share of its region's budget, and holding a text.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pin/pin_internal.h"

#include "base/num.h"

#include <string.h>

#define STATES_MAX                                                                                 \
    3u /* that a pin holds: those within its reach (quire_prefix_window_reach()), at most one of   \
          each page */

static quire_region *region_of(const quire_pins *pins, quire_region_id region)
{
    return &pins->tree->cache->regions.items[region];
}

/* A pinned child that begins with the last n tokens of a text; 0 = none. These children are
 * adjacent, from `first` on. */
static uint32_t pinned_tail(const quire_prefix *tree, uint32_t first, const int32_t *tokens,
                            uint32_t n)
{
    for (uint32_t id = first; id != QUIRE_NODE_NULL;
         id = quire_prefix_siblings_next(&tree->nodes, id)) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->n_tokens < n ||
            memcmp(quire_prefix_tokens_at(tree, id), tokens, n * sizeof(*tokens)) != 0) {
            break;
        }
        if (node->n_pins > 0) {
            return id;
        }
    }
    return QUIRE_NODE_NULL;
}

/* The last node of a text that a pin already holds; 0 = none. *n_tokens gets the number of the
 * text's tokens up to the end of the node. Before the text's end only full nodes count: others may
 * fill a partly filled page with other tokens. */
static uint32_t pinned_end(const quire_pins *pins, const quire_pin_spec *spec, uint32_t *n_tokens)
{
    const quire_prefix *tree = pins->tree;
    quire_prefix_walk walk =
        quire_prefix_walk_to(tree, &spec->key, spec->tokens, spec->n_tokens, NULL);
    uint32_t id = QUIRE_NODE_NULL;

    *n_tokens = spec->n_tokens;
    if (walk.n_full + walk.n_inside == spec->n_tokens) {
        id = pinned_tail(tree, walk.inside, spec->tokens + walk.n_full, walk.n_inside);
    }
    if (id != QUIRE_NODE_NULL) {
        return id;
    }
    id = walk.base;
    while (id != QUIRE_NODE_NULL && quire_prefix_at(tree, id)->n_pins == 0) {
        id = quire_prefix_at(tree, id)->parent;
    }
    *n_tokens = id != QUIRE_NODE_NULL ? quire_prefix_node_end(quire_prefix_at(tree, id)) : 0;
    return id;
}

/* The number of a text's pages that pins already hold: such pages count once. All nodes above a
 * pinned node are pinned too. */
static uint32_t pinned_pages(const quire_pins *pins, const quire_pin_spec *spec)
{
    uint32_t page_tokens = pins->tree->page_tokens;
    uint32_t n_tokens;

    (void)pinned_end(pins, spec, &n_tokens);
    return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

/* The most pages of a group with a window that a pin of n_tokens holds. */
static uint32_t window_pages(const quire_prefix *tree, uint32_t n_tokens)
{
    const uint32_t last = (n_tokens - 1) / tree->page_tokens;

    return last + 1 - quire_prefix_window_reach(tree, last * tree->page_tokens) / tree->page_tokens;
}

uint64_t quire_pin_spec_bytes(const quire_pins *pins, const quire_pin_spec *spec)
{
    const quire_cache_opts *opts = &pins->tree->cache->opts;
    uint32_t page_tokens = opts->page_tokens;
    uint32_t n_pages = spec->n_tokens / page_tokens + (spec->n_tokens % page_tokens != 0) -
                       pinned_pages(pins, spec);
    uint32_t n_window = n_pages;
    uint64_t sum = n_pages * (uint64_t)opts->charge_bytes[0];

    if (spec->n_windowed_tokens > 0) { /* a window may begin and end inside pages */
        n_window = quire_min_u32(n_pages, spec->n_windowed_tokens / page_tokens + 2);
    }
    for (uint32_t g = 1; g < opts->n_groups; g++) {
        const bool has_window =
            opts->needs_last_tokens[g] != 0; /* of pages of other pins: others */

        sum += (has_window ? window_pages(pins->tree, spec->n_tokens) : n_window) *
               (uint64_t)opts->charge_bytes[g];
    }
    if (opts->state_bytes != 0) {
        sum += STATES_MAX * (uint64_t)opts->charge_bytes[opts->n_groups];
    }
    return sum;
}

static int spec_check(const quire_pins *pins, const quire_pin_spec *spec)
{
    const quire_cache *cache = pins->tree->cache;
    size_t name_bytes = 0;

    QUIRE_FAIL_IF(spec->name == NULL || spec->tokens == NULL || spec->n_tokens == 0, QUIRE_INVAL);
    while (name_bytes <= QUIRE_PIN_NAME_MAX && spec->name[name_bytes] != '\0') {
        name_bytes++;
    }
    QUIRE_FAIL_IF(name_bytes == 0 || name_bytes > QUIRE_PIN_NAME_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(spec->n_tokens > cache->opts.seq_tokens_max, QUIRE_INVAL);
    QUIRE_FAIL_IF(spec->key.salt_bytes > QUIRE_PREFIX_SALT_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(spec->rank >= QUIRE_RANKS_MAX || spec->account >= QUIRE_ACCOUNTS_MAX,
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(spec->region >= QUIRE_REGIONS_MAX ||
                      quire_counter_get(&region_of(pins, spec->region)->is_open) == 0,
                  QUIRE_NOTFOUND);
    return QUIRE_OK;
}

int quire_pins_check(const quire_pins *pins, const quire_pin_spec *spec, uint64_t *missing_bytes)
{
    const quire_region *region;
    uint64_t wanted_bytes;
    uint64_t free_bytes;

    if (missing_bytes != NULL) {
        *missing_bytes = 0;
    }
    QUIRE_TRY(spec_check(pins, spec));
    region = region_of(pins, spec->region);
    wanted_bytes = quire_pin_spec_bytes(pins, spec);
    free_bytes = quire_counter_get(&region->budget_bytes) - quire_region_promised_bytes(region);
    if (wanted_bytes <= free_bytes) {
        return QUIRE_OK;
    }
    if (missing_bytes != NULL) {
        *missing_bytes = wanted_bytes - free_bytes;
    }
    return QUIRE_NOPAGES;
}

void quire_pin_reserve(quire_pins *pins, quire_pin *pin, uint64_t bytes)
{
    quire_region *region = region_of(pins, pin->spec.region);

    quire_counter_sub(&region->reserved_bytes, pin->reserved_bytes);
    quire_counter_add(&region->reserved_bytes, bytes);
    pin->reserved_bytes = bytes;
    quire_region_changed(&pins->tree->cache->regions, pin->spec.region);
}

/* End a tie that its pin does not need. The nodes of its path keep their recency. */
static void tie_end(quire_prefix *tree, quire_prefix_tie *tie)
{
    quire_prefix_tie_move(tree, tie, QUIRE_NODE_NULL);
    quire_prefix_tie_give(tree, tie);
}

void quire_pin_base_tie(quire_pins *pins, quire_pin *pin)
{
    uint32_t n_tokens;
    uint32_t node = pinned_end(pins, &pin->spec, &n_tokens);
    quire_prefix_tie *tie;

    if (node != QUIRE_NODE_NULL) {
        tie = quire_prefix_tie_hold(pins->tree, node, n_tokens, pin->spec.rank);
        quire_prefix_tie_pin(pins->tree, tie, false); /* the window is to be computed, maybe */
        pin->base = tie->id;
    }
}

void quire_pin_base_untie(quire_pins *pins, quire_pin *pin)
{
    if (pin->base != QUIRE_PREFIX_REF_NULL) {
        tie_end(pins->tree, quire_prefix_tie_find(pins->tree, pin->base));
        pin->base = QUIRE_PREFIX_REF_NULL;
    }
}

/* ---- hold ---- */

/* Charge of the pages of a node that a pin ending at node `end` holds: all of them, or only those
 * that no pin holds yet. */
static uint64_t held_bytes(const quire_prefix *tree, uint32_t id, uint32_t end, bool only_new)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint64_t sum = 0;

    for (uint32_t g = 0; g < tree->n_groups && node->kind == QUIRE_NODE_PAGE; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL && quire_prefix_window_reaches(tree, end, id, g) &&
            (!only_new || quire_prefix_page_pins(tree, node, g) == 0)) {
            sum += tree->cache->opts.charge_bytes[g];
        }
    }
    return sum;
}

uint64_t quire_pin_tie_bytes(const quire_pins *pins, const quire_prefix_tie *tie)
{
    uint32_t id = tie->node;
    uint64_t sum = 0;

    while (id != QUIRE_NODE_NULL) {
        sum += held_bytes(pins->tree, id, tie->node, false); /* 0 of a root */
        id = quire_prefix_at(pins->tree, id)->parent;
    }
    return sum;
}

/* The node that contains the last of a walk's first n tokens. */
static uint32_t end_of(const quire_prefix *tree, const quire_prefix_walk *walk, uint32_t n)
{
    uint32_t id = walk->base;

    if (n > walk->n_full) {
        return walk->inside;
    }
    while (quire_prefix_node_end(quire_prefix_at(tree, id)) > n) {
        id = quire_prefix_at(tree, id)->parent;
    }
    return id;
}

/* The node to hold for the first n tokens of a pin's text. When another pin already holds the whole
 * text, use that pin's node, not a sibling that begins with the same tokens. */
static uint32_t node_of(const quire_pins *pins, const quire_pin *pin, const quire_prefix_walk *walk,
                        uint32_t n)
{
    const quire_prefix_tie *base = quire_prefix_tie_find(pins->tree, pin->base);

    if (base != NULL && base->node != QUIRE_NODE_NULL && base->n_known == n) {
        return base->node;
    }
    return end_of(pins->tree, walk, n);
}

/* Bytes of a tie's path that no pin holds yet, by the region that will be charged; *moving_bytes
 * gets the bytes that come to the pin's region. Nodes that other pins hold stay in their region,
 * where a window of this pin may add to the pinned bytes. */
static void path_needs(const quire_prefix *tree, const quire_prefix_tie *tie,
                       quire_region_id region, uint64_t new_bytes[QUIRE_REGIONS_MAX],
                       uint64_t *moving_bytes)
{
    memset(new_bytes, 0, QUIRE_REGIONS_MAX * sizeof(*new_bytes));
    *moving_bytes = 0;
    for (uint32_t id = tie->node; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        new_bytes[node->n_pins == 0 ? region : node->region] +=
            held_bytes(tree, id, tie->node, true);
        if (node->n_pins == 0 && node->region != region) {
            *moving_bytes += quire_prefix_node_charge_bytes(tree, id);
        }
    }
}

/* The bytes that a region lacks for new pinned bytes, when a pin gives up its reserved bytes. */
static uint64_t missing_in(const quire_pins *pins, const quire_pin *pin, quire_region_id id,
                           uint64_t new_bytes)
{
    const quire_region *region = region_of(pins, id);
    const uint64_t promised_bytes =
        quire_region_promised_bytes(region) - (id == pin->spec.region ? pin->reserved_bytes : 0);
    const uint64_t budget_bytes = quire_counter_get(&region->budget_bytes);

    return new_bytes > budget_bytes - promised_bytes ? new_bytes - (budget_bytes - promised_bytes)
                                                     : 0;
}

/* Charge the path to the pin's region, except for nodes that other pins hold. */
static void path_bring(quire_prefix *tree, const quire_prefix_tie *tie, quire_region_id region)
{
    for (uint32_t id = tie->node; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        if (quire_prefix_at(tree, id)->n_pins == 1) {
            quire_prefix_node_recharge(tree, id, region);
        }
    }
}

/* Bring the charges of a tie's path to the pin's region and pin them there. */
static int tie_settle(quire_pins *pins, quire_pin *pin, quire_prefix_tie *tie,
                      uint64_t *missing_bytes)
{
    quire_region_id region_id = pin->spec.region;
    const quire_region *region = region_of(pins, region_id);
    uint64_t new_bytes[QUIRE_REGIONS_MAX];
    uint64_t moving_bytes;

    path_needs(pins->tree, tie, region_id, new_bytes, &moving_bytes);
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        *missing_bytes =
            new_bytes[r] > 0 ? missing_in(pins, pin, (quire_region_id)r, new_bytes[r]) : 0;
        if (*missing_bytes > 0) {
            return QUIRE_NOPAGES;
        }
    }
    quire_prefix_tie_pin(pins->tree, tie,
                         true); /* before making room, which might evict from the path */
    if (!quire_charge_headroom(pins->tree->cache, region_id, moving_bytes)) {
        *missing_bytes = moving_bytes - quire_region_headroom_bytes(region);
        return QUIRE_NOPAGES;
    }
    path_bring(pins->tree, tie, region_id);
    quire_prefix_tie_use(pins->tree, tie);
    quire_pin_reserve(pins, pin, 0);
    quire_pin_base_untie(pins, pin);
    return QUIRE_OK;
}

/* Tokens of a pin's text that can be cached. */
static uint32_t findable(const quire_prefix *tree, const quire_pin *pin)
{
    const uint32_t n = pin->spec.n_tokens;

    return tree->opts.is_page_exact ? n - n % tree->page_tokens : n;
}

int quire_pins_hold(quire_pins *pins, quire_pin_id id, uint64_t now_us, uint64_t *missing_bytes)
{
    quire_pin *pin = quire_pin_find(pins, id);
    quire_prefix *tree = pins->tree;
    quire_prefix_match match;
    quire_prefix_walk walk;
    quire_prefix_tie *tie;
    uint64_t missing = 0;
    int rc;

    if (missing_bytes != NULL) {
        *missing_bytes = 0;
    }
    QUIRE_FAIL_IF(pin == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(pin->ref != QUIRE_PREFIX_REF_NULL && !quire_pin_is_lost(pins, pin), QUIRE_AGAIN);
    QUIRE_TRY(quire_prefix_tie_plan(tree));
    walk = quire_prefix_walk_to(tree, &pin->spec.key, pin->spec.tokens, pin->spec.n_tokens, NULL);
    quire_prefix_walk_match(tree, &walk, pin->spec.tokens, pin->spec.n_tokens, UINT32_MAX, &match);
    QUIRE_FAIL_IF(match.n_tokens == 0 || match.n_same_tokens < findable(tree, pin), QUIRE_AGAIN);
    QUIRE_FAIL_IF(tree->window_tokens != 0 && /* the last window is not whole */
                      match.n_tokens < findable(tree, pin) / tree->page_tokens * tree->page_tokens,
                  QUIRE_AGAIN);
    quire_prefix_tick(tree, now_us);
    tie = quire_prefix_tie_hold(tree, node_of(pins, pin, &walk, match.n_tokens), match.n_tokens,
                                pin->spec.rank);
    rc = tie_settle(pins, pin, tie, &missing);
    if (rc < 0) {
        if (missing_bytes != NULL) {
            *missing_bytes = missing;
        }
        tie_end(tree, tie);
        return rc;
    }
    if (pin->ref != QUIRE_PREFIX_REF_NULL) { /* the rest of the lost text */
        (void)quire_prefix_release(tree, pin->ref, now_us);
    }
    pin->ref = tie->id;
    pin->n_held = match.n_tokens;
    QUIRE_PINS_CHECKED(pins);
    return QUIRE_OK;
}
