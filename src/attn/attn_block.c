/* attn_block.c - see attn_block.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_block.h"
#include "attn/attn_tiles.h"
#include "base/check.h"
#include "base/cpu.h"
#include "base/num.h"

#include <string.h>

/* Prefetch goes so far ahead, in whole tiles: memory takes longer to answer than the work on a
 * small tile, and what waits must fit the L1 cache beside what the work itself reuses. Measured
 * with 3 rows of head 64, 3 kv heads. Zen 5 (48 KB): q4 5 or 6 tiles of 2.3 KB ahead take a fifth
 * less time than 2, q8 3 tiles of 4.2 KB 10 % less, f16 is as fast with 1 tile of 8 KB as with any
 * number. Cascade Lake (32 KB): q4 and q8 are 5 to 8 % faster with 7 KB than with 14, 9 KB lie
 * between; other CPUs with so small a cache follow it unmeasured. */
#define AHEAD_BYTES       ((size_t)14 << 10)
#define AHEAD_BYTES_SMALL ((size_t)7 << 10)
#define L1D_BYTES_SMALL   (32u << 10)

/* Zen 4 (32 KB) has prefetchers of its own that bring tiles as they are read, in the order of
 * memory, at the speed of memory; a prefetch into the L1 cache takes their place and does worse.
 * One into the L2 cache goes along with them, and wants to be far ahead. ns by token and kv head,
 * 1 thread, 3 rows of head 64, 3 kv heads; 7 KB into L1 / none / a position into L2:
 * f16 13.2 / 12.7 / 10.6, bf16 17.4 / 11.3 / 12.6, q8 7.3 / 6.4 / 5.5, q4 5.2 / 5.7 / 3.9.
 * Granite Rapids (48 KB; 2 MB of L2), 2 threads, 14 KB into L1 / a position into L2: f16 11.0
 * / 10.9, bf16 10.2 / 9.4, q8 5.6 / 4.9, q6 4.4 / 3.7, q4 2.8 / 2.5; head 128, 4 rows, 1 thread:
 * f16 47.6 / 41.0, q8 20.7 / 17.5, q6 13.4 / 11.4, q4 7.1 / 7.1. */
#define AHEAD_BYTES_L2 ((size_t)64 << 10)

/* Blocks that share the prefetches of bf16 tiles, and rows between them. More rows take longer than
 * memory does: prefill of 96 rows by block lost 4 %, a cascade of 24 gained 5. */
#define SHARED_AHEAD_ROWS_MIN 16u
#define SHARED_AHEAD_ROWS_MAX 48u
#define SHARED_AHEAD_STEP     4u

/* Stored tiles of a position that a block reads, at most: of the rows of a block of several kv
 * heads at least one is of each. */
#define TILES_MAX (2u * QUIRE_ATTN_SOURCES_MAX * QUIRE_ATTN_WIDE_ROWS_MAX)

/* A position and the one after it (page NULL: none), whose tiles kernels prefetch. at[] has the n
 * tiles of the one, then those of the other, each in the order of the work: K of all kv heads of
 * the block, then V. They are worked out once, in the form that the last query reads, which is most
 * often that of all. */
typedef struct tile_pair {
    quire_attn_tile_pos pos;
    quire_attn_tile_pos next;
    const quire_page_addr *hot; /* the hot page that at[] has tiles of; NULL: the main page */
    const quire_page_addr *next_hot;
    uint32_t n;
    uint32_t ahead; /* from the tile in work to the one prefetched, <= n */
    const void *at[2 * TILES_MAX];
} tile_pair;

/* Consecutive queries of a block that read a tile in the same form. */
typedef struct tile_run {
    const quire_page_addr *hot; /* the hot page to read; NULL: the main page */
    uint32_t first_row;         /* of the first kv head's */
    uint32_t end_row;
    bool
        shares_ahead; /* a quarter of the next tiles is prefetched while softmax runs (kernels.h) */
} tile_run;

/* ---- context ---- */

static size_t ahead_bytes(void)
{
    const uint32_t l1d_bytes = quire_cpu_get()->l1d_bytes;

    if (quire_cpu_get()->prefetch_to_l2) {
        return AHEAD_BYTES_L2;
    }
    return l1d_bytes > 0 && l1d_bytes <= L1D_BYTES_SMALL ? AHEAD_BYTES_SMALL : AHEAD_BYTES;
}

static unsigned char *take(unsigned char **rest, size_t bytes)
{
    unsigned char *p = *rest;

    *rest += quire_attn_round_up(bytes, 64);
    return p;
}

quire_attn_ctx quire_attn_ctx_of(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                                 uint32_t thread, quire_attn_packed *held)
{
    quire_attn_ctx c = { .ws = workspace,
                         .layer = layer,
                         .held = held,
                         .shape = quire_attn_shape_of(workspace, layer) };
    uint32_t rows = c.shape.block_rows;
    size_t k_bytes = quire_tile_bytes(layer->k_format, QUIRE_SIDE_K, layer->d_k);
    size_t v_bytes =
        layer->v_prefix_of_k ? 0 : quire_tile_bytes(layer->v_format, QUIRE_SIDE_V, layer->d_v);
    unsigned char *begin = (unsigned char *)quire_attn_scratch_tile(workspace, thread);
    unsigned char *rest = begin;

    c.tile_bytes = k_bytes > v_bytes ? k_bytes : v_bytes;
    c.n_ahead = (uint32_t)(ahead_bytes() / c.tile_bytes);
    c.n_ahead = c.n_ahead > 0 ? c.n_ahead : 1;
    c.ahead_to_l2 = quire_cpu_get()->prefetch_to_l2;
    c.decoded = (void *)take(&rest, quire_attn_scratch_tile_floats(workspace) * sizeof(float));
    c.row = (void *)take(&rest, workspace->limits.head_dim_max * sizeof(float));
    for (uint32_t k = 0; k < layer->n_k; k++) {
        c.packed[QUIRE_ATTN_PACKED_MAIN][k] = take(&rest, rows * c.shape.q_bytes);
        c.packed[QUIRE_ATTN_PACKED_HOT][k] = take(&rest, rows * c.shape.q_hot_bytes);
    }
    c.logits = (void *)take(&rest, (size_t)rows * QUIRE_TILE_TOKENS * sizeof(float));
    c.weights = (void *)take(&rest, rows * c.shape.weights_bytes);
    c.rescale = (void *)take(&rest, rows * sizeof(float));
    c.slot_end = (void *)take(&rest, rows * sizeof(uint32_t));
    c.queries = (void *)take(&rest, c.shape.block_queries * sizeof(quire_attn_query));
    for (uint32_t i = 0; i < 2; i++) {
        c.states[i] = (void *)take(&rest, quire_attn_state_floats(&c.shape, rows) * sizeof(float));
    }
    QUIRE_CHECK((size_t)(rest - begin) + workspace->behind_bytes <= workspace->scratch_bytes);
    return c;
}

/* ---- one tile ---- */

/* Tiles of a position that a block reads. */
static uint32_t n_tiles(const quire_attn_ctx *c, const quire_attn_block *b)
{
    return b->n_heads * (c->layer->n_k + c->layer->n_v);
}

/* Tiles of one lane of the block's kv heads, `step` entries apart. */
static void list_lane(const quire_attn_block *b, const quire_attn_tile_pos *pos,
                      const quire_page_addr *page, const quire_attn_lane *lane, const void **at,
                      uint32_t step)
{
    const unsigned char *tile = quire_attn_tile(lane, page, b->g, pos->tile);

    for (uint32_t h = 0; h < b->n_heads; h++) {
        at[h * step] = tile;
        tile += lane->head_stride;
    }
}

/* All tiles of a position, in the order of the work and the form of `hot` (NULL: the main page);
 * NULL when the position is nowhere. */
static void list_tiles(const quire_attn_ctx *c, const quire_attn_block *b,
                       const quire_attn_tile_pos *pos, const quire_page_addr *hot, const void **at)
{
    const quire_attn_layer *layer = c->layer;
    const bool k_is_hot = hot != NULL && c->shape.k_is_sealed;
    const bool v_is_hot = hot != NULL && c->shape.v_is_sealed;
    const void **v_at = at + b->n_heads * layer->n_k;

    if (pos->page == NULL) {
        for (uint32_t i = 0; i < n_tiles(c, b); i++) {
            at[i] = NULL;
        }
        return;
    }
    for (uint32_t k = 0; k < layer->n_k; k++) {
        list_lane(b, pos, k_is_hot ? hot : pos->page, k_is_hot ? &layer->k_hot[k] : &layer->k[k],
                  at + k, layer->n_k);
    }
    for (uint32_t v = 0; v < layer->n_v; v++) {
        list_lane(b, pos, v_is_hot ? hot : pos->page, v_is_hot ? &layer->v_hot[v] : &layer->v[v],
                  v_at + v * b->n_heads, 1);
    }
}

/* With v_prefix_of_k V is K decoded to f32: K tiles are dimension-major, so the first d_v
 * dimensions of a tile of d_k dimensions are a tile of d_v dimensions. */
static const void *v_of_k(const quire_attn_ctx *c, const quire_attn_tile_pos *pos,
                          const void *k_tile)
{
    quire_tile_rows rows = { .d = c->layer->d_v,
                             .first_slot = pos->slot_begin,
                             .n_tokens = pos->n_slots,
                             .stride = c->layer->d_v };

    c->ws->codec->decode_k(c->layer->k_format, &rows, k_tile,
                           c->decoded + (size_t)pos->slot_begin * rows.d);
    return c->decoded;
}

static void prefetch_line(const quire_attn_ctx *c, const char *line)
{
    if (c->ahead_to_l2) {
        __builtin_prefetch(line, 0, 2);
    } else {
        __builtin_prefetch(line);
    }
}

/* Which form of the queries a run is multiplied with. */
static uint32_t packed_form(const quire_attn_ctx *c, const tile_run *run)
{
    return run->hot != NULL && c->shape.k_is_sealed ? QUIRE_ATTN_PACKED_HOT
                                                    : QUIRE_ATTN_PACKED_MAIN;
}

/* What a run multiplies its weights with. */
static quire_format v_format(const quire_attn_ctx *c, const tile_run *run)
{
    if (c->layer->v_prefix_of_k) {
        return QUIRE_FORMAT_F32;
    }
    return run->hot != NULL && c->shape.v_is_sealed ? QUIRE_FORMAT_HOT : c->layer->v_format;
}

/* Where at[] has source v of V of the block's kv head `head`. */
static uint32_t v_place(const quire_attn_ctx *c, const quire_attn_block *b, uint32_t head,
                        uint32_t v)
{
    return b->n_heads * (c->layer->n_k + v) + head;
}

/* Whether weights are made before pv, of all kv heads. */
static bool is_weighed(const quire_attn_ctx *c, const tile_run *run)
{
    return c->shape.weights_bytes > 0 && run->hot == NULL;
}

static void run_weigh(const quire_attn_ctx *c, const quire_attn_block *b, const tile_pair *tiles,
                      const tile_run *run, uint32_t head, uint32_t v)
{
    const uint32_t first = head * b->head_rows + run->first_row;
    const uint32_t end = head * b->head_rows + run->end_row;
    const quire_attn_weigh args = { .n_rows = end - first,
                                    .slot_begin = tiles->pos.slot_begin,
                                    .slot_end = c->slot_end[end - 1],
                                    .p = c->logits + (size_t)first * QUIRE_TILE_TOKENS,
                                    .v_tile = tiles->at[v_place(c, b, head, v)],
                                    .weights = c->weights + first };

    c->ws->kernels->weigh(&args);
}

/* Of a run whose rows are set. */
static bool is_ahead_shared(const quire_attn_ctx *c, const quire_attn_block *b, const tile_run *run)
{
    const quire_attn_layer *layer = c->layer;

    return c->ws->kernels->shares_ahead && b->n_heads == 1 && run->first_row == 0 &&
           run->end_row == b->n_rows && b->n_rows >= SHARED_AHEAD_ROWS_MIN &&
           b->n_rows <= SHARED_AHEAD_ROWS_MAX && layer->k_format == QUIRE_FORMAT_BF16 &&
           layer->v_format == QUIRE_FORMAT_BF16 && layer->d_k == layer->d_v && layer->n_k == 1 &&
           layer->n_v == 1 && !layer->v_prefix_of_k;
}

/* o += P V of source v for the rows of a run of kv head `head`. When they end at different slots
 * and V is damaged between those ends, rows go by query, so that a NaN of a later token stays out
 * of earlier rows. */
static void run_pv(const quire_attn_ctx *c, const quire_attn_block *b, const tile_pair *tiles,
                   const tile_run *run, uint32_t head, uint32_t v, const quire_attn_state *st)
{
    const quire_attn_layer *layer = c->layer;
    const uint32_t first = head * b->head_rows + run->first_row;
    const uint32_t end = head * b->head_rows + run->end_row;
    uint32_t end_min = c->slot_end[first];
    uint32_t end_max = c->slot_end[end - 1];
    quire_attn_pv args = { .format = v_format(c, run),
                           .d = layer->d_v,
                           .o_stride = c->shape.o_stride,
                           .next_to_l2 = c->ahead_to_l2,
                           .next_in_part = run->shares_ahead,
                           .slot_begin = tiles->pos.slot_begin };
    bool is_safe;

    if (layer->v_prefix_of_k) {
        args.v_tile = v_of_k(c, &tiles->pos, tiles->at[head]);
    } else {
        args.v_tile = tiles->at[v_place(c, b, head, v)];
        args.next = tiles->at[v_place(c, b, head, v) + tiles->ahead];
    }
    is_safe = end_min == end_max ||
              quire_attn_tile_v_is_finite(args.format, args.d, args.v_tile, end_min, end_max);
    args.n_rows = is_safe ? end - first : c->shape.group;
    for (uint32_t r = first; r < end; r += args.n_rows) {
        args.p = c->logits + (size_t)r * QUIRE_TILE_TOKENS;
        args.weights = c->weights + r;
        args.rescale = c->rescale + r;
        args.slot_end = c->slot_end[r + args.n_rows - 1];
        args.o = st->o + ((size_t)v * b->n_rows + r) * c->shape.o_stride;
        c->ws->kernels->pv(&args);
    }
}

static void run_qk(const quire_attn_ctx *c, const quire_attn_block *b, const tile_pair *tiles,
                   const tile_run *run, uint32_t head)
{
    const quire_attn_layer *layer = c->layer;
    const uint32_t first = head * b->head_rows + run->first_row;
    const uint32_t form = packed_form(c, run);
    size_t q_bytes = form == QUIRE_ATTN_PACKED_HOT ? c->shape.q_hot_bytes : c->shape.q_bytes;
    quire_attn_qk args = { .format =
                               form == QUIRE_ATTN_PACKED_HOT ? QUIRE_FORMAT_HOT : layer->k_format,
                           .d = layer->d_k,
                           .n_rows = run->end_row - run->first_row,
                           .next_to_l2 = c->ahead_to_l2,
                           .next_in_part = run->shares_ahead,
                           .s = c->logits + (size_t)first * QUIRE_TILE_TOKENS };

    for (uint32_t k = 0; k < layer->n_k; k++) {
        args.accumulate = k > 0;
        args.packed = c->packed[form][k] + first * q_bytes;
        args.k_tile = tiles->at[head * layer->n_k + k];
        args.next = tiles->at[head * layer->n_k + k + tiles->ahead];
        c->ws->kernels->qk(&args);
    }
}

/* Of rows [first, end). */
static void run_softmax(const quire_attn_ctx *c, const tile_pair *tiles, const tile_run *run,
                        uint32_t first, uint32_t end, const quire_attn_state *st)
{
    const quire_attn_kernels *kernels = c->ws->kernels;
    bool is_bf16 = kernels->softmax_bf16 != NULL && v_format(c, run) == QUIRE_FORMAT_BF16;

    (is_bf16 ? kernels->softmax_bf16
             : kernels->softmax)(end - first, tiles->pos.slot_begin, c->slot_end + first,
                                 c->logits + (size_t)first * QUIRE_TILE_TOKENS, st->m + first,
                                 st->l + first, c->rescale + first);
}

/* One of n_steps parts of the last quarter of a tile. */
static void prefetch_part(const quire_attn_ctx *c, const void *tile, size_t tile_bytes,
                          uint32_t step, uint32_t n_steps)
{
    const uint32_t n_lines = (uint32_t)(tile_bytes / 4 / 64);
    const char *lines;

    if (tile == NULL) {
        return;
    }
    lines = (const char *)tile + tile_bytes - 64 * (size_t)n_lines;
    for (uint32_t i = n_lines * step / n_steps; i < n_lines * (step + 1) / n_steps; i++) {
        prefetch_line(c, lines + 64 * (size_t)i);
    }
}

/* The same of a run that shares the next tiles' prefetches: lines of them before every few rows. */
static void run_softmax_ahead(const quire_attn_ctx *c, const tile_pair *tiles, const tile_run *run,
                              const quire_attn_state *st)
{
    const uint32_t n_steps = quire_attn_ceil_div(run->end_row, SHARED_AHEAD_STEP);

    for (uint32_t step = 0; step < n_steps; step++) {
        const uint32_t first = step * SHARED_AHEAD_STEP;

        prefetch_part(c, tiles->at[tiles->ahead], c->tile_bytes, step, n_steps);
        prefetch_part(c, tiles->at[1 + tiles->ahead], c->tile_bytes, step, n_steps);
        run_softmax(c, tiles, run, first, quire_min_u32(first + SHARED_AHEAD_STEP, run->end_row),
                    st);
    }
}

/* slot_end of the rows is set. */
static void run_rows(const quire_attn_ctx *c, const quire_attn_block *b, tile_pair *tiles,
                     tile_run *run, const quire_attn_state *st)
{
    const uint32_t n = run->end_row - run->first_row;

    if (run->hot != tiles->hot) {
        list_tiles(c, b, &tiles->pos, run->hot, tiles->at);
        tiles->hot = run->hot;
    }
    run->shares_ahead = is_ahead_shared(c, b, run);
    quire_attn_pack_queries(c, b, packed_form(c, run));
    for (uint32_t head = 0; head < b->n_heads; head++) {
        run_qk(c, b, tiles, run, head);
    }
    if (run->shares_ahead) {
        run_softmax_ahead(c, tiles, run, st);
    } else if (n == b->head_rows) {
        run_softmax(c, tiles, run, 0, b->n_rows, st);
    } else {
        for (uint32_t head = 0; head < b->n_heads; head++) {
            run_softmax(c, tiles, run, head * b->head_rows + run->first_row,
                        head * b->head_rows + run->end_row, st);
        }
    }
    for (uint32_t v = 0; v < c->shape.n_v; v++) {
        for (uint32_t head = 0; is_weighed(c, run) && head < b->n_heads; head++) {
            run_weigh(c, b, tiles, run, head, v);
        }
        for (uint32_t head = 0; head < b->n_heads; head++) {
            run_pv(c, b, tiles, run, head, v, st);
        }
    }
}

/* The hot page in which a query reads a tile; NULL: it reads the main page. */
static const quire_page_addr *hot_page_of(const quire_attn_ctx *c, const quire_attn_block *b,
                                          const quire_attn_query *query,
                                          const quire_attn_tile_pos *pos)
{
    if (!(c->shape.k_is_sealed || c->shape.v_is_sealed) ||
        !quire_attn_is_hot(c->layer, query->index, pos->token)) {
        return NULL;
    }
    return query->seq == b->seq ? pos->hot
                                : quire_attn_hot_page(&c->ws->batch, query->seq, pos->entry);
}

/* Whether queries whose first token is `index` all see the whole tile, and none reads it hot. */
static bool is_behind_all(const quire_attn_ctx *c, uint32_t index, const quire_attn_tile_pos *pos)
{
    return index + 1 >= pos->token + pos->n_slots &&
           (!(c->shape.k_is_sealed || c->shape.v_is_sealed) ||
            !quire_attn_is_hot(c->layer, index, pos->token));
}

/* A tile behind all queries, as most are. */
static void run_whole_tile(const quire_attn_ctx *c, const quire_attn_block *b, tile_pair *tiles,
                           const quire_attn_state *st)
{
    tile_run run = { .end_row = b->head_rows };
    const uint32_t end = tiles->pos.slot_begin + tiles->pos.n_slots;

    for (uint32_t r = 0; r < b->n_rows; r++) {
        c->slot_end[r] = end;
    }
    run_rows(c, b, tiles, &run, st);
}

static void run_tile(const quire_attn_ctx *c, const quire_attn_block *b, tile_pair *tiles,
                     const quire_attn_state *st)
{
    const quire_attn_tile_pos *pos = &tiles->pos;
    uint32_t group = c->shape.group;
    uint32_t i = 0;

    while (b->queries[i].index < pos->token) { /* they see nothing of this tile */
        i++;
    }
    while (i < b->n_queries) {
        tile_run run = { .hot = hot_page_of(c, b, &b->queries[i], pos), .first_row = i * group };

        do {
            uint32_t n_seen = b->queries[i].index + 1 - pos->token;
            uint32_t end = pos->slot_begin + (n_seen < pos->n_slots ? n_seen : pos->n_slots);

            for (uint32_t r = i * group; r < (i + 1) * group; r++) {
                c->slot_end[r] = end;
            }
            i++;
        } while (i < b->n_queries && hot_page_of(c, b, &b->queries[i], pos) == run.hot);
        run.end_row = i * group;
        for (uint32_t head = 1; head < b->n_heads; head++) {
            memcpy(c->slot_end + head * b->head_rows + run.first_row, c->slot_end + run.first_row,
                   (run.end_row - run.first_row) * sizeof(uint32_t));
        }
        run_rows(c, b, tiles, &run, st);
    }
}

/* ---- a split, and the end ---- */

static quire_attn_tile_walk walk_of(const quire_attn_ctx *c, const quire_attn_block *b,
                                    uint32_t split)
{
    quire_attn_tile_walk walk;

    quire_attn_tile_walk_init(&walk, &c->ws->batch, b->seq, split * c->ws->limits.split_entries,
                              b->seq->n_entries);
    walk.token = b->split_token[split];
    return walk;
}

void quire_attn_block_touch(const quire_attn_ctx *ctx, const quire_attn_block *block,
                            uint32_t split)
{
    uint32_t n = quire_min_u32(ctx->n_ahead, n_tiles(ctx, block));
    quire_attn_tile_walk walk = walk_of(ctx, block, split);
    quire_attn_tile_pos pos;
    const void *tiles[TILES_MAX];

    QUIRE_CHECK(n_tiles(ctx, block) <= TILES_MAX);
    if (!quire_attn_tile_walk_next(&walk, block->token_end, &pos)) {
        return;
    }
    list_tiles(ctx, block, &pos,
               hot_page_of(ctx, block, &block->queries[block->n_queries - 1], &pos), tiles);
    for (uint32_t i = 0; i < n; i++) {
        for (size_t at = 0; at < ctx->tile_bytes; at += 64) {
            prefetch_line(ctx, (const char *)tiles[i] + at);
        }
    }
}

/* The position that the walk comes to next; false when there is none before token_end. */
static bool next_position(const quire_attn_ctx *c, const quire_attn_block *b,
                          quire_attn_tile_walk *walk, tile_pair *tiles)
{
    const bool is_one = quire_attn_tile_walk_next(walk, b->token_end, &tiles->next);

    tiles->next_hot = NULL;
    if (is_one) {
        tiles->next_hot = hot_page_of(c, b, &b->queries[b->n_queries - 1], &tiles->next);
    } else {
        tiles->next.page = NULL;
    }
    list_tiles(c, b, &tiles->next, tiles->next_hot, tiles->at + tiles->n);
    return is_one;
}

/* What was next is in work now. */
static void take_position(tile_pair *tiles)
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
    uint32_t split_end =
        split + 1 < block->n_splits ? block->split_token[split + 1] : block->token_end;
    uint32_t first_index = block->queries[0].index;
    quire_attn_tile_walk walk = walk_of(ctx, block, split);
    tile_pair tiles; /* at[] is large: what is not set is not read */
    bool has_next;

    tiles.n = n_tiles(ctx, block);
    tiles.ahead = quire_min_u32(ctx->n_ahead, tiles.n); /* the walk knows one position more */
    QUIRE_CHECK(tiles.n <= TILES_MAX);
    for (uint32_t i = 1; i < block->n_queries; i++) {
        first_index = quire_min_u32(first_index, block->queries[i].index);
    }
    quire_attn_state_reset(ctx, st);
    has_next = next_position(ctx, block, &walk, &tiles);
    while (has_next && tiles.next.token < split_end) {
        take_position(&tiles);
        has_next = next_position(ctx, block, &walk, &tiles);
        if (is_behind_all(ctx, first_index, &tiles.pos)) {
            run_whole_tile(ctx, block, &tiles, st);
        } else {
            run_tile(ctx, block, &tiles, st);
        }
    }
}
