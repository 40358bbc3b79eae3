/* attn_block.c - see attn_block.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_plain_body.h"
#include "base/check.h"
#include "base/num.h"

#include <string.h>

/* Tiles of a position that a block reads. */
static uint32_t n_tiles(const quire_attn_ctx *c, const quire_attn_block *b)
{
    return b->n_heads * (c->layer->n_k + c->layer->n_v);
}

/* Tiles of one source of the block's kv heads, `step` entries apart. */
static void list_source(const quire_attn_ctx *c, const quire_attn_block *b,
                        const quire_attn_tile_pos *pos, const quire_attn_source *source,
                        const quire_page_addr *hot, const void **at, uint32_t step)
{
    const quire_attn_lane *lane = hot != NULL ? &source->hot_lane : &source->lane;
    const quire_page_addr *page = hot != NULL ? hot : pos->page;
    const unsigned char *tile;

    if (hot == NULL && (source->group != c->shape.table || source->is_second)) {
        page = quire_attn_source_page(&c->ws->batch, b->seq, source, pos->entry);
    }
    tile = quire_attn_tile(lane, page, b->g, pos->tile);
    for (uint32_t h = 0; h < b->n_heads; h++) {
        at[h * step] = tile;
        tile += lane->head_stride;
    }
}

/* All tiles of a position, in the order of the work and the forms of `hot`; NULL when the position
 * is nowhere. */
static void list_tiles(const quire_attn_ctx *c, const quire_attn_block *b,
                       const quire_attn_tile_pos *pos, const quire_attn_hot_pages *hot,
                       const void **at)
{
    const quire_attn_layer *layer = c->layer;
    const void **v_at = at + b->n_heads * layer->n_k;

    if (pos->page == NULL) {
        for (uint32_t i = 0; i < n_tiles(c, b); i++) {
            at[i] = NULL;
        }
        return;
    }
    for (uint32_t k = 0; k < layer->n_k; k++) {
        list_source(c, b, pos, &layer->k[k], hot->at[c->shape.k[k].hot], at + k, layer->n_k);
    }
    for (uint32_t v = 0; v < layer->n_v; v++) {
        list_source(c, b, pos, &layer->v[v], hot->at[c->shape.v[v].hot], v_at + v * b->n_heads, 1);
    }
}

/* The same of a layer with one K and one V in the pages of the table that is walked, none read hot.
 */
static void list_plain(const quire_attn_ctx *c, const quire_attn_block *b,
                       const quire_attn_tile_pos *pos, const void **at)
{
    const quire_attn_lane *k_lane = &c->layer->k[0].lane;
    const quire_attn_lane *v_lane = &c->layer->v[0].lane;
    const unsigned char *k_tile = quire_attn_tile(k_lane, pos->page, b->g, pos->tile);
    const unsigned char *v_tile = quire_attn_tile(v_lane, pos->page, b->g, pos->tile);

    for (uint32_t h = 0; h < b->n_heads; h++) {
        at[h] = k_tile;
        at[b->n_heads + h] = v_tile;
        k_tile += k_lane->head_stride;
        v_tile += v_lane->head_stride;
    }
}

static void run_rows(const quire_attn_ctx *c, const quire_attn_block *b,
                     quire_attn_tile_pair *tiles, quire_attn_tile_run *run,
                     const quire_attn_state *st)
{
    if (!quire_attn_is_same_hot(c, run->hot, tiles->hot)) {
        list_tiles(c, b, &tiles->pos, run->hot, tiles->at);
        tiles->room[0] = *run->hot;
        tiles->hot = &tiles->room[0];
    }
    rows_run(c, b, tiles, run, st);
}

/* Which hot pages a query reads a tile in; in *room, if there are any. */
static const quire_attn_hot_pages *hot_pages_of(const quire_attn_ctx *c,
                                                const quire_attn_query *query,
                                                const quire_attn_tile_pos *pos,
                                                quire_attn_hot_pages *room)
{
    if (c->shape.n_hot == 0 || !quire_attn_is_hot(c->layer, query->pos, pos->first)) {
        return &no_hot;
    }
    *room = no_hot;
    for (uint32_t i = 0; i < c->shape.n_hot; i++) {
        room->at[i] =
            quire_attn_page(&c->ws->batch, query->seq, c->shape.hot_groups[i], pos->entry);
    }
    return room;
}

/* Whether all queries see the whole tile, and none reads it hot. */
static bool is_behind_all(const quire_attn_ctx *c, const quire_attn_block *b,
                          const quire_attn_tile_pos *pos)
{
    return b->first_pos + 1 >= pos->end && pos->first >= b->all_seen_begin &&
           (c->shape.n_hot == 0 || !quire_attn_is_hot(c->layer, b->first_pos, pos->first));
}

/* A tile behind all queries, as most are. */
static void run_whole_tile(const quire_attn_ctx *c, const quire_attn_block *b,
                           quire_attn_tile_pair *tiles, const quire_attn_state *st)
{
    quire_attn_tile_run run = { .hot = &no_hot,
                                .end_row = b->head_rows,
                                .slot_begin = tiles->pos.slot_begin,
                                .slot_begin_max = tiles->pos.slot_begin };
    const uint32_t end = tiles->pos.slot_begin + tiles->pos.n_slots;

    for (uint32_t r = 0; r < b->n_rows; r++) {
        c->slot_end[r] = end;
    }
    run_rows(c, b, tiles, &run, st);
}

/* The slots of a tile that a query sees; none when it sees none. */
typedef struct slot_range {
    uint32_t begin;
    uint32_t end;
} slot_range;

static slot_range slots_of(const quire_attn_ctx *c, const quire_attn_tile_pos *pos,
                           const quire_attn_query *query)
{
    return (slot_range){ quire_attn_slot_begin(c, pos, query),
                         pos->slot_begin + quire_attn_slots_before(pos, query->pos + 1) };
}

/* Add a query to a run. */
static void extend_run(const quire_attn_ctx *c, quire_attn_tile_run *run, slot_range slots)
{
    const uint32_t group = c->shape.group;

    for (uint32_t r = run->end_row; r < run->end_row + group; r++) {
        c->slot_end[r] = slots.end;
    }
    run->end_row += group;
    run->slot_begin = quire_min_u32(run->slot_begin, slots.begin);
    run->slot_begin_max = quire_max_u32(run->slot_begin_max, slots.begin);
}

static void run_tile(const quire_attn_ctx *c, const quire_attn_block *b,
                     quire_attn_tile_pair *tiles, const quire_attn_state *st)
{
    const quire_attn_tile_pos *pos = &tiles->pos;
    const uint32_t group = c->shape.group;

    for (uint32_t i = 0; i < b->n_queries;) {
        slot_range slots = slots_of(c, pos, &b->queries[i]);
        quire_attn_hot_pages room[2];
        const quire_attn_hot_pages *hot = hot_pages_of(c, &b->queries[i], pos, &room[0]);
        quire_attn_tile_run run = { .hot = hot,
                                    .first_row = i * group,
                                    .end_row = i * group,
                                    .slot_begin = slots.begin,
                                    .slot_begin_max = slots.begin };

        if (slots.begin >= slots.end) { /* the tile lies before the query's window or behind it */
            i++;
            continue;
        }
        do {
            extend_run(c, &run, slots);
            if (++i == b->n_queries) {
                break;
            }
            slots = slots_of(c, pos, &b->queries[i]);
            hot = hot_pages_of(c, &b->queries[i], pos, &room[1]);
        } while (slots.begin < slots.end && quire_attn_is_same_hot(c, hot, run.hot));
        for (uint32_t head = 1; head < b->n_heads; head++) {
            memcpy(c->slot_end + head * b->head_rows + run.first_row, c->slot_end + run.first_row,
                   (run.end_row - run.first_row) * sizeof(uint32_t));
        }
        run_rows(c, b, tiles, &run, st);
    }
}

/* ---- a split, and the end ---- */

/* From the first tile of a split on that some query sees. */
static quire_attn_tile_walk walk_of(const quire_attn_ctx *c, const quire_attn_block *b,
                                    uint32_t split)
{
    const quire_attn_table *table = &b->seq->tables[c->shape.table];
    quire_attn_tile_walk walk;

    quire_attn_tile_walk_init(&walk, &c->ws->batch, table, split * c->ws->limits.split_entries,
                              table->n_entries);
    if (b->split_pos[split] < b->seen_begin) {
        quire_attn_tile_walk_seek(&walk, b->seen_begin);
    }
    return walk;
}

void quire_attn_block_touch(const quire_attn_ctx *ctx, const quire_attn_block *block,
                            uint32_t split)
{
    uint32_t n = quire_min_u32(ctx->n_ahead, n_tiles(ctx, block));
    quire_attn_tile_walk walk = walk_of(ctx, block, split);
    quire_attn_tile_pos pos;
    quire_attn_hot_pages room;
    const void *tiles[QUIRE_ATTN_TILES_MAX];

    QUIRE_CHECK(n_tiles(ctx, block) <= QUIRE_ATTN_TILES_MAX);
    if (!quire_attn_tile_walk_next(&walk, block->pos_end, &pos)) {
        return;
    }
    list_tiles(ctx, block, &pos,
               hot_pages_of(ctx, &block->queries[block->n_queries - 1], &pos, &room), tiles);
    for (uint32_t i = 0; i < n; i++) {
        quire_prefetch_lines(tiles[i], ctx->tile_bytes / QUIRE_PREFETCH_LINE, ctx->ahead_to);
    }
}

/* The position that the walk comes to next; false when there is none before pos_end. */
static bool next_position(const quire_attn_ctx *c, const quire_attn_block *b,
                          quire_attn_tile_walk *walk, quire_attn_tile_pair *tiles)
{
    const bool is_one = quire_attn_tile_walk_next(walk, b->pos_end, &tiles->next);

    tiles->next_room = 3 - tiles->next_room;
    if (is_one) {
        tiles->next_hot = hot_pages_of(c, &b->queries[b->n_queries - 1], &tiles->next,
                                       &tiles->room[tiles->next_room]);
    } else {
        tiles->next.page = NULL;
    }
    if (is_one && tiles->is_plain && tiles->next_hot == &no_hot) {
        list_plain(c, b, &tiles->next, tiles->at + tiles->n);
    } else {
        list_tiles(c, b, &tiles->next, tiles->next_hot, tiles->at + tiles->n);
    }
    return is_one;
}

/* The next position becomes the current one. */
static void take_position(quire_attn_tile_pair *tiles)
{
    tiles->pos = tiles->next;
    tiles->hot = tiles->next_hot;
    for (uint32_t i = 0; i < tiles->n; i++) {
        tiles->at[i] = tiles->at[tiles->n + i];
    }
}

/* The walk looks past the end of the split, so that its last tile prefetches the next split's
 * first. */
void quire_attn_block_run(const quire_attn_ctx *ctx, const quire_attn_block *block, uint32_t split,
                          const quire_attn_state *st)
{
    uint32_t split_end = split + 1 < block->n_splits ? block->split_pos[split + 1] : block->pos_end;
    quire_attn_tile_walk walk = walk_of(ctx, block, split);
    quire_attn_tile_pair tiles; /* at[] is large: entries that were not set are never read */
    plain_calls calls;
    bool has_next;

    calls.is_made = false;
    tiles.is_plain = is_plain(ctx, block);
    tiles.next_hot = &no_hot;
    tiles.next_room = 1;
    tiles.n = n_tiles(ctx, block);
    tiles.ahead = quire_min_u32(ctx->n_ahead, tiles.n); /* the walk knows one position more */
    QUIRE_CHECK(tiles.n <= QUIRE_ATTN_TILES_MAX);
    quire_attn_state_reset(ctx, st);
    has_next = next_position(ctx, block, &walk, &tiles);
    while (has_next && tiles.next.first < split_end) {
        take_position(&tiles);
        has_next = next_position(ctx, block, &walk, &tiles);
        if (!is_behind_all(ctx, block, &tiles.pos)) {
            run_tile(ctx, block, &tiles, st);
            calls.slot_end = 0;
        } else if (tiles.is_plain && tiles.hot == &no_hot) {
            run_plain_tile(ctx, block, &tiles, &calls, st);
        } else {
            run_whole_tile(ctx, block, &tiles, st);
        }
    }
}
