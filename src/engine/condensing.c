/* condensing.c - see condensing.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/condensing.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/even_choice.h"
#include "engine/repeating.h"
#include "model/recurrent.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"
#include "retain/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOT_PAGES_SPARE 3u
/* Rows behind a text, at most. */
#define ROOM_MAX                                                                                   \
    (QUIRE_RETAIN_REPEAT_MAX + QUIRE_REPEATING_LEAD_TOKENS + QUIRE_REPEATING_ASK_TOKENS)

/* ---- properties of a condensing ---- */

bool quire_condensing_is_by_lane(const quire_retain_spec *spec)
{
    return spec->policy->needs_attention || spec->policy->expects_queries ||
           spec->policy->worth != QUIRE_RETAIN_WORTH_NONE || spec->floor < 1 || spec->n_full > 0 ||
           spec->granule > 1;
}

/* The name covers all that the kept tokens depend on, apart from model and text. */
static void name_fill(quire_condensing *c, const quire_condensing_parts *parts)
{
    char maps[2 * QUIRE_HASH128_BYTES + 1] = "";

    for (uint32_t i = 0; c->predictor != NULL && i < QUIRE_HASH128_BYTES; i++) {
        (void)snprintf(maps + 2 * i, 3, "%02x", parts->maps[i]);
    }
    (void)snprintf(c->name, sizeof c->name, c->predictor != NULL ? "%s,maps=%s" : "%s%s", c->text,
                   maps);
}

void quire_condensing_init(quire_condensing *out, const quire_retain_spec *spec, uint32_t chunk,
                           uint32_t page_tokens, const quire_condensing_parts *parts)
{
    QUIRE_CHECK(chunk > 0 && chunk % page_tokens == 0);
    *out = (quire_condensing){ .spec = *spec, .chunk = chunk, .page_tokens = page_tokens };
    if (parts != NULL && (quire_condensing_is_by_lane(spec) || quire_condensing_packs(parts))) {
        out->packing = parts->packing;
        out->packing.has_worth = spec->policy->worth != QUIRE_RETAIN_WORTH_NONE;
        out->spec.granule = QUIRE_TILE_TOKENS;
    }
    if (parts != NULL && spec->policy->worth == QUIRE_RETAIN_WORTH_PREDICTED) {
        out->predictor = parts->predictor;
    }
    if (parts != NULL && spec->policy->expects_queries) {
        out->rotation = parts->rotation;
    }
    (void)quire_retain_text(&out->spec, out->text, sizeof out->text);
    name_fill(out, parts);
}

bool quire_condensing_is_same(const quire_condensing *a, const quire_condensing *b)
{
    return a->chunk == b->chunk && strcmp(a->name, b->name) == 0;
}

/* ---- numbers ---- */

/* The most tokens that all lanes together may keep of n_text tokens of each, n_protected of them
 * protected. */
static uint64_t most_by_lane(const quire_condensing *c, uint64_t n_text, uint64_t n_protected)
{
    const uint64_t n_lanes = quire_packing_n_lanes(&c->packing);
    const uint64_t n_share = (uint64_t)(c->spec.share * (double)n_text * (double)n_lanes);
    bool is_full[QUIRE_LAYERS_MAX];
    uint64_t n_whole, n_least, n_most;
    uint32_t n_layers;

    n_protected = quire_min_u64(n_protected, n_text);
    if (quire_condensing_full_layers(&c->spec, &c->packing, is_full, &n_layers, NULL) < 0) {
        n_layers = c->packing.n_layers; /* refused: quire_condensing_check() */
    }
    n_whole = (uint64_t)n_layers * c->packing.n_kv_head;
    n_least = n_whole * n_text + (n_lanes - n_whole) * n_protected;
    n_most = (n_share > n_least ? n_share : n_least) +
             (n_protected % QUIRE_TILE_TOKENS != 0 ? (n_lanes - n_whole) * QUIRE_TILE_TOKENS : 0);
    return quire_min_u64(n_most, n_text * n_lanes);
}

/* The same of sealed formats, after condensing number k: each condensing adds the tokens that are
 * kept of its chunk. Chunks behind the sinks are alike. */
static uint64_t most_sealed(const quire_condensing *c, uint32_t k)
{
    uint64_t n = 0;
    uint32_t i = 0;

    for (; i < k && (uint64_t)i * c->chunk < c->spec.sinks; i++) {
        const uint64_t n_sinks = c->spec.sinks - (uint64_t)i * c->chunk;

        n += most_by_lane(c, c->chunk, n_sinks + c->spec.recent);
    }
    return i < k ? n + (k - i) * most_by_lane(c, c->chunk, c->spec.recent) : n;
}

/* Tokens of the pages for the most that all lanes together may keep after condensing number k. */
static uint32_t kept_by_lane(const quire_condensing *c, uint32_t k)
{
    const uint64_t n_most =
        quire_packing_is_sealed(&c->packing)
            ? most_sealed(c, k)
            : most_by_lane(c, (uint64_t)k * c->chunk, (uint64_t)c->spec.sinks + c->spec.recent);

    return (uint32_t)(quire_packing_pages(&c->packing, n_most) * c->page_tokens);
}

/* The number of tokens after condensing number k, given those after the one before. */
static uint32_t kept_next(const quire_condensing *c, uint32_t k, uint32_t n_before)
{
    const uint64_t n_text = (uint64_t)k * c->chunk;
    const uint64_t n_protected = quire_min_u64((uint64_t)c->spec.sinks + c->spec.recent, n_text);
    const uint64_t n_share = (uint64_t)(c->spec.share * (double)n_text);
    const uint64_t n = n_share > n_protected ? n_share : n_protected;
    const uint64_t n_pages = (n + c->page_tokens - 1) / c->page_tokens;

    return (uint32_t)quire_min_u64(n_pages * c->page_tokens, (uint64_t)n_before + c->chunk);
}

uint32_t quire_condensing_kept(const quire_condensing *c, uint32_t k)
{
    uint32_t n = 0;

    if (c->packing.n_layers > 0) {
        return k > 0 ? kept_by_lane(c, k) : 0;
    }
    for (uint32_t i = 1; i <= k; i++) {
        n = kept_next(c, i, n);
    }
    return n;
}

uint32_t quire_condensing_need(const quire_condensing *c, uint32_t n_tokens)
{
    const uint32_t k = n_tokens > 0 ? quire_condensing_before(c, n_tokens - 1) : 0;
    const uint32_t n_kept = quire_condensing_kept(c, k);
    uint32_t n_place;

    if (k == 0) {
        return n_tokens;
    }
    n_place = quire_condensing_kept(c, k - 1) + c->chunk +
              quire_max_u32(n_kept - quire_condensing_shared(c, k), quire_repeating_room(&c->spec));
    return quire_max_u32(n_place, n_kept + n_tokens - k * c->chunk);
}

quire_kv_price quire_condensing_price(const quire_condensing *c, const quire_kv_price *price)
{
    quire_kv_price out = *price;
    uint32_t n_room;

    if (c->chunk == 0) {
        return out;
    }
    n_room = quire_repeating_room(&c->spec);
    if (out.window_tokens != 0) {
        /* The window before a place, in two sequences, and rows that repeat a part behind it. */
        out.window_tokens += out.window_tokens + n_room + c->page_tokens;
    }
    if (quire_packing_is_sealed(&c->packing)) {
        /* The rows of a part may begin and end inside of a page. */
        out.hot_pages_max = quire_max_u64(out.hot_pages_max,
                                          (c->chunk + n_room) / c->page_tokens + HOT_PAGES_SPARE);
    }
    return out;
}

uint64_t quire_condensing_least_bytes(const quire_condensing_on *on, const quire_retain_spec *spec,
                                      uint32_t chunk)
{
    const quire_kv_price whole = quire_kv_price_make(on->desc, on->opts);
    quire_kv_price price;
    quire_condensing c;

    quire_condensing_init(&c, spec, chunk, on->opts->page_tokens, on->parts);
    price = quire_condensing_price(&c, &whole);
    return quire_min_u64(quire_kv_price_bytes(&price, quire_condensing_need(&c, on->opts->n_ctx)) +
                             quire_state_seq_bytes(on->desc),
                         quire_runtime_kv_bytes(on->desc, on->opts));
}

/* ---- beside the pages ---- */

quire_packed_text_opts quire_condensing_text_opts(const quire_condensing *c)
{
    const bool is_summed =
        c->spec.policy != NULL && c->spec.policy->worth == QUIRE_RETAIN_WORTH_SUM;

    return (quire_packed_text_opts){ .packing = &c->packing,
                                     .probe = quire_condensing_probe(c),
                                     .n_worth = c->packing.has_worth && !is_summed ? c->chunk : 0,
                                     .predictor = c->predictor,
                                     .rotation = c->rotation,
                                     .n_summed = is_summed ? c->chunk : 0 };
}

uint32_t quire_condensing_n_watched(const quire_condensing *c, uint32_t n_ctx)
{
    const quire_packed_text_opts opts = quire_condensing_text_opts(c);
    const uint32_t n_repeating = quire_repeating_room(&c->spec);

    if (opts.n_summed > 0) {
        return n_ctx;
    }
    /* The part, the rows that repeat it, and the sinks. */
    return n_repeating > 0 ? c->spec.sinks + 2 * n_repeating : 0;
}

quire_packed_device_opts quire_condensing_device_opts(const quire_condensing_on *on,
                                                      const quire_attn_workspace_opts *all)
{
    const quire_runtime_opts *o = on->opts;

    return (quire_packed_device_opts){
        .packing = &on->parts->packing,
        .is_on_device = quire_runtime_has_device(o),
        .n_pairs_max = all->n_seqs_max,
        .rotation = on->parts->rotation,
        .window_opts = all,
        .recent_tiles = o->kv_recent / QUIRE_TILE_TOKENS,
        .sink_tiles = o->kv_sinks / QUIRE_TILE_TOKENS,
        .no_cascade = o->no_cascade,
        .n_text_max = o->n_ctx + ROOM_MAX,
        .n_rows_max = o->n_batch,
        .n_seqs_max = o->n_seqs_max,
        .n_threads = o->n_threads,
    };
}

quire_condensing_bytes quire_condensing_bytes_of(const quire_condensing_on *on,
                                                 const quire_retain_spec *spec, uint32_t chunk)
{
    const quire_packing *packing = &on->parts->packing;
    const quire_attn_workspace_opts all = quire_runtime_attn_opts(on->desc, on->opts);
    const quire_packed_device_opts device = quire_condensing_device_opts(on, &all);
    quire_packed_text_opts text = { .packing = packing,
                                    .n_mirrored = device.is_on_device ? on->opts->n_ctx : 0 };
    quire_condensing_bytes bytes = { 0 };
    quire_condensing c;

    if (packing->n_layers == 0 || (spec != NULL && !quire_condensing_is_by_lane(spec) &&
                                   !quire_condensing_packs(on->parts))) {
        return bytes;
    }
    if (spec != NULL) {
        quire_condensing_init(&c, spec, chunk, packing->page_tokens, on->parts);
        text = quire_condensing_text_opts(&c);
        text.n_summed_packed =
            (uint64_t)(spec->share * on->opts->n_ctx * quire_packing_n_lanes(packing));
        bytes.of_thread =
            quire_watch_room_bytes(quire_condensing_n_watched(&c, on->opts->n_ctx),
                                   on->desc->n_head / on->desc->n_kv_head, on->desc->d_k);
    }
    bytes.of_request = quire_packed_text_bytes(&text);
    bytes.of_device = quire_packed_device_bytes(&device);
    return bytes;
}

/* ---- choosing ---- */

/* Scratch of a condensing, for the tokens before it. */
typedef struct choice_room {
    quire_even_room even;
    bool *all_kept; /* [n_lanes][n], or [n] if all lanes keep the tokens of the first */
    bool *is_kept;  /* of these, those of the lane at hand */
} choice_room;

/* Whether each lane chooses tokens of its own. */
static bool chooses_by_lane(const quire_condensing *c)
{
    return c->spec.policy->needs_keys || c->spec.policy->is_by_lane;
}

static int room_init(choice_room *room, const quire_condensing *c, const quire_runtime *runtime,
                     size_t n)
{
    const size_t n_lanes = chooses_by_lane(c) ? quire_runtime_n_lanes(runtime) : 1;

    *room = (choice_room){ .all_kept = malloc(n_lanes * n * sizeof *room->all_kept) };
    QUIRE_FAIL_IF(room->all_kept == NULL, QUIRE_NOMEM);
    room->is_kept = room->all_kept;
    return quire_even_room_init(&room->even, &c->spec, n, n,
                                quire_model_desc_get(quire_runtime_model(runtime))->d_k);
}

static void room_fini(choice_room *room)
{
    quire_even_room_fini(&room->even);
    free(room->all_kept);
}

/* is_kept of the n tokens of a lane before condensing number k. */
static int choose(const quire_condensing *c, uint32_t k, uint64_t lane, uint32_t n, uint32_t d_k,
                  const choice_room *room)
{
    const quire_even_lane even = { .lane = lane,
                                   .n = n,
                                   .n_text = k * c->chunk,
                                   .n_kept = kept_next(c, k, n - c->chunk),
                                   .d_k = d_k };

    return quire_even_choose(&c->spec, &room->even, &even, room->is_kept);
}

/* Positions in order, such that the protected tokens have their own: the sinks are the first
 * tokens, and no other token is nearer to the end than its place in the sequence. */
static void positions_by_order(const quire_condensing *c, uint32_t k, uint32_t n,
                               int32_t *positions)
{
    const uint32_t n_gone = k * c->chunk - n;

    for (uint32_t t = 0; t < n; t++) {
        positions[t] = (int32_t)(t < c->spec.sinks ? t : t + n_gone);
    }
}

/* The positions of a lane's tokens before condensing number k, for policies that score by positions
 * alone: those condensings before are repeated. */
static int positions_replay(const quire_condensing *c, uint32_t k, uint64_t lane,
                            const choice_room *room)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i <= k; i++) {
        for (uint32_t t = 0; t < c->chunk; t++) {
            room->even.positions[n++] = (int32_t)((i - 1) * c->chunk + t);
        }
        if (i < k) {
            uint32_t n_kept = 0;

            QUIRE_TRY(choose(c, i, lane, n, 0, room));
            for (uint32_t t = 0; t < n; t++) {
                if (room->is_kept[t]) {
                    room->even.positions[n_kept++] = room->even.positions[t];
                }
            }
            n = n_kept;
        }
    }
    return QUIRE_OK;
}

static int positions_find(const quire_condensing *c, uint32_t k, uint64_t lane, uint32_t n,
                          const choice_room *room)
{
    if (c->spec.policy->reads_positions) {
        return positions_replay(c, k, lane, room);
    }
    positions_by_order(c, k, n, room->even.positions);
    return QUIRE_OK;
}

/* All lanes choose before any row moves: rows may move within the pages that keys are read from. */
static int choose_lanes(const quire_condensing *c, quire_runtime_rows *rows, uint32_t k, uint32_t n,
                        choice_room *room)
{
    const uint32_t n_lanes = chooses_by_lane(c) ? quire_runtime_n_lanes(rows->runtime) : 1;
    const uint32_t d_k = quire_model_desc_get(quire_runtime_model(rows->runtime))->d_k;

    for (uint32_t i = 0; i < n_lanes; i++) {
        if (room->even.keys != NULL) {
            quire_runtime_rows_keys(rows, quire_runtime_lane_at(rows->runtime, i), n,
                                    room->even.keys);
        }
        room->is_kept = room->all_kept + (size_t)i * n;
        QUIRE_TRY(positions_find(c, k, i, n, room));
        QUIRE_TRY(choose(c, k, i, n, d_k, room));
    }
    return QUIRE_OK;
}

static void move_lanes(const quire_condensing *c, quire_runtime_rows *rows, uint32_t n,
                       const choice_room *room)
{
    for (uint32_t i = 0; i < quire_runtime_n_lanes(rows->runtime); i++) {
        quire_runtime_rows_copy(rows, quire_runtime_lane_at(rows->runtime, i),
                                room->all_kept + (chooses_by_lane(c) ? (size_t)i * n : 0), n);
    }
}

static int move_rows(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                     quire_seq_id from, quire_seq_id to, choice_room *room)
{
    const uint32_t n = quire_condensing_kept(c, k - 1) + c->chunk;
    quire_runtime_rows rows;
    int rc = quire_runtime_rows_begin(runtime, from, to, &rows);
    int rc_end;

    rc = rc == QUIRE_OK ? choose_lanes(c, &rows, k, n, room) : rc;
    if (rc == QUIRE_OK) {
        move_lanes(c, &rows, n, room);
    }
    rc_end = quire_runtime_rows_end(&rows);
    return rc < 0 ? rc : rc_end;
}

static int condense_evenly(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                           quire_seq_id from, quire_seq_id to)
{
    choice_room room;
    int rc = room_init(&room, c, runtime, quire_condensing_kept(c, k - 1) + c->chunk);

    rc = rc == QUIRE_OK ? move_rows(c, runtime, k, from, to, &room) : rc;
    room_fini(&room);
    return rc;
}

/* Tokens of the kept ones before those that a window needs of the next token. */
static uint32_t before_window(const quire_condensing *c, uint32_t n_kept)
{
    const uint32_t n = c->packing.window_tokens - 1;

    return n_kept > n ? n_kept - n : 0;
}

/* Pages for the kept tokens. Nothing is written to hot ones, and to those behind the window, so
 * they go as they come. */
static int pages_take(const quire_condensing *c, quire_cache *cache, quire_seq_id to,
                      uint32_t n_kept)
{
    const quire_group_id hot = (quire_group_id)c->packing.hot_group;
    const quire_group_id window = (quire_group_id)c->packing.window_group;

    if (hot == 0 && window == 0) {
        QUIRE_TRY(quire_seq_reserve(cache, to, n_kept));
        return quire_seq_append(cache, to, n_kept);
    }
    for (uint32_t n = 0; n < n_kept; n += c->page_tokens) {
        QUIRE_TRY(quire_seq_append(cache, to, c->page_tokens));
        if (hot != 0) {
            QUIRE_TRY(quire_seq_release(cache, to, hot, 0, n + c->page_tokens, NULL));
        }
        if (window != 0) {
            QUIRE_TRY(quire_seq_release(cache, to, window, 0, before_window(c, n_kept), NULL));
        }
    }
    return QUIRE_OK;
}

/* The pages that layers with windows need of the n_kept tokens: those of the last tokens of `from`,
 * at the same distance from the end. */
static int window_copy(const quire_condensing *c, quire_cache *cache, uint32_t n_kept,
                       quire_seq_id from, quire_seq_id to)
{
    const quire_group_id group = (quire_group_id)c->packing.window_group;
    const size_t n_bytes = quire_cache_payload_bytes(cache, group);
    unsigned char *page = group != 0 ? malloc(n_bytes) : NULL;
    quire_seq_table old, new;
    int rc = QUIRE_OK;

    if (group == 0) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(page == NULL, QUIRE_NOMEM);
    rc = quire_seq_table_get(cache, from, group, &old);
    rc = rc == QUIRE_OK ? quire_seq_table_get(cache, to, group, &new) : rc;
    for (uint32_t i = before_window(c, n_kept) / c->page_tokens;
         rc == QUIRE_OK && i < new.n_entries; i++) {
        const uint32_t j = i + (old.n_entries - new.n_entries);
        const quire_page_id source =
            old.leaves[j / QUIRE_LEAF_ENTRIES][j % QUIRE_LEAF_ENTRIES].page;

        QUIRE_CHECK(source != QUIRE_PAGE_NULL); /* the next token would need it */
        rc = quire_cache_page_gather(cache, source, page, n_bytes);
        rc = rc == QUIRE_OK
                 ? quire_cache_page_scatter(
                       cache, new.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page, page,
                       n_bytes)
                 : rc;
    }
    free(page);
    return rc;
}

/* The kept tokens of `from` into the pages of `to`. */
static int condense_into(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                         const quire_packed_text *text, quire_seq_id from, quire_seq_id to)
{
    QUIRE_TRY(window_copy(c, quire_runtime_cache(runtime), quire_condensing_kept(c, k), from, to));
    return c->packing.n_layers > 0 ? quire_condense_lanes(c, runtime, k, text, from, to)
                                   : condense_evenly(c, runtime, k, from, to);
}

int quire_condense(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                   const quire_packed_text *text, quire_seq_id from, quire_seq_id to)
{
    quire_cache *cache = quire_runtime_cache(runtime);
    int rc;

    QUIRE_CHECK(quire_seq_tokens(cache, from) == quire_condensing_kept(c, k - 1) + c->chunk &&
                quire_seq_tokens(cache, to) == 0);
    rc = pages_take(c, cache, to, quire_condensing_kept(c, k));
    rc = rc == QUIRE_OK ? condense_into(c, runtime, k, text, from, to) : rc;
    if (rc < 0) {
        (void)quire_seq_truncate(cache, to, 0);
    }
    return rc;
}

/* ---- in the pages that are there ---- */

int quire_condense_share(const quire_condensing *c, quire_cache *cache, uint32_t k,
                         quire_seq_id from, quire_seq_id to)
{
    QUIRE_CHECK(quire_seq_tokens(cache, from) == quire_condensing_kept(c, k - 1) + c->chunk);
    return quire_seq_inherit(cache, from, quire_condensing_shared(c, k), to,
                             quire_condensing_kept(c, k));
}

/* Whether the prefix tree relies on a page of a sequence. */
static bool is_relied_on(const quire_cache *cache, quire_seq_id seq)
{
    quire_seq_table table = { 0 };
    bool is_kept = false;

    (void)quire_seq_table_get(cache, seq, 0, &table);
    for (uint32_t i = 0; i < table.n_entries && !is_kept; i++) {
        quire_page_info info = { 0 };

        (void)quire_cache_page_info_get(
            cache, table.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page, &info);
        is_kept = info.n_kept > 0;
    }
    return is_kept;
}

int quire_condense_shared(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                          const quire_packed_text *text, quire_seq_id from, quire_seq_id to)
{
    quire_cache *cache = quire_runtime_cache(runtime);
    int rc = is_relied_on(cache, to) ? QUIRE_NOPAGES : condense_into(c, runtime, k, text, from, to);

    if (rc < 0) {
        (void)quire_seq_truncate(cache, to, 0);
    }
    return rc;
}
