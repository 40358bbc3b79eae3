/* attn_run.c - attention of a step's rows over their page tables.
 *
 * Every thread walks the same list of items (a pure function of the batch, the layer and the number
 * of threads) and takes the next one from an atomic counter; there is no barrier. An item runs its
 * rows over a range of splits. The item that finishes a task last, or the only one, merges the
 * partials in ascending order and writes the rows out.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_internal.h"
#include "attn/attn_math.h"
#include "attn/attn_tiles.h"
#include "base/check.h"

#include <string.h>

/* Tiles up to this size are prefetched two ahead, because one is worked on in less time than memory
 * takes to answer; larger ones one ahead, so that what waits fits the L1 cache. Measured with
 * bench_attn on Zen 5: 2 to 5 KB gain 10-25 % from two, 8 KB and more lose 5-10 %. */
#define TILE_BYTES_SMALL 6144u

#define ITEMS_PER_THREAD 4u /* a task bigger than this share of a thread's work is cut */

/* Running state of a block of rows: o[source][row][o_stride] is not yet divided by l. */
typedef struct state {
    float *m;
    float *l;
    float *o;
} state;

/* One thread's view of a call. */
typedef struct run_ctx {
    quire_attn_workspace *ws;
    const quire_attn_layer *layer;
    quire_attn_shape shape;
    uint32_t n_ahead; /* tiles between the one in work and the one prefetched */
    float *decoded;   /* a V tile as f32, for v_prefix_of_k */
    float *row;       /* one row before packing or after merging */
    unsigned char *packed[QUIRE_ATTN_SOURCES_MAX];
    float *logits;
    float *rescale;
    uint32_t *slot_end;
    float *states[2];
} run_ctx;

/* How the tasks of one sequence are cut. Items of a sequence are numbered by kv head, then block,
 * the last block (the longest) first, then part. */
typedef struct seq_plan {
    uint32_t s;
    uint32_t n_blocks;
    uint32_t n_parts; /* items of one task */
    uint64_t first_item;
    size_t first_partial;  /* floats; n_parts > 1 only */
    uint32_t first_shared; /* index of its first task in done[] */
} seq_plan;

typedef struct task {
    const quire_attn_seq *seq;
    const uint32_t *split_token;
    uint32_t g;
    uint32_t first_query; /* of the sequence's rows */
    uint32_t n_queries;
    uint32_t n_rows;
    uint32_t first_index; /* token index of its first query */
    uint32_t n_splits;    /* that its last query sees */
} task;

/* A tile and the one after it (page NULL: none), which kernels prefetch. */
typedef struct tile_pair {
    quire_attn_tile_pos pos;
    quire_attn_tile_pos next;
} tile_pair;

static uint32_t n_splits_of(const run_ctx *c, const quire_attn_seq *seq)
{
    return quire_attn_ceil_div(seq->n_entries, c->ws->limits.split_entries);
}

/* Cost of a sequence's tasks for one kv head, in arbitrary units: every tile has a fixed cost (its
 * bytes come from memory) and one by row. */
static uint64_t seq_cost(const run_ctx *c, const quire_attn_seq *seq)
{
    uint64_t n_blocks = quire_attn_ceil_div(seq->n_rows, c->shape.block_queries);

    return (uint64_t)seq->n_tokens * (8 * n_blocks + (uint64_t)seq->n_rows * c->shape.group);
}

static uint64_t batch_cost(const run_ctx *c)
{
    uint64_t cost = 0;

    for (uint32_t s = 0; s < c->ws->batch.n_seqs; s++) {
        cost += seq_cost(c, &c->ws->batch.seqs[s]);
    }
    return cost * c->layer->n_kv_head;
}

/* Floats of the partials of one task: a state per split. */
static size_t task_partial_floats(const run_ctx *c, const quire_attn_seq *seq)
{
    uint32_t n_queries =
        c->shape.block_queries < seq->n_rows ? c->shape.block_queries : seq->n_rows;

    return n_splits_of(c, seq) * quire_attn_state_floats(&c->shape, n_queries * c->shape.group);
}

/* Plan sequence plan->s; item_cost is what an item should cost at most. */
static void plan_seq(const run_ctx *c, uint64_t item_cost, seq_plan *plan)
{
    const quire_attn_workspace *ws = c->ws;
    const quire_attn_seq *seq = &ws->batch.seqs[plan->s];
    uint32_t n_splits = n_splits_of(c, seq);
    uint64_t n_parts;
    uint32_t n_tasks;

    plan->n_blocks = quire_attn_ceil_div(seq->n_rows, c->shape.block_queries);
    n_tasks = plan->n_blocks * c->layer->n_kv_head;
    n_parts = seq_cost(c, seq) / plan->n_blocks / item_cost + 1;
    n_parts = n_parts < n_splits ? n_parts : n_splits;
    if (n_tasks > QUIRE_ATTN_SHARED_TASKS_MAX - plan->first_shared ||
        task_partial_floats(c, seq) > (ws->partial_floats - plan->first_partial) / n_tasks) {
        n_parts = 1; /* no room to share */
    }
    plan->n_parts = (uint32_t)n_parts;
}

/* Move to the next sequence; false after the last. */
static bool plan_next(const run_ctx *c, uint64_t item_cost, seq_plan *plan)
{
    const quire_attn_batch *batch = &c->ws->batch;
    uint32_t n_tasks = plan->n_blocks * c->layer->n_kv_head;

    plan->first_item += (uint64_t)n_tasks * plan->n_parts;
    if (plan->n_parts > 1) {
        plan->first_shared += n_tasks;
        plan->first_partial += n_tasks * task_partial_floats(c, &batch->seqs[plan->s]);
    }
    if (plan->s + 1 >= batch->n_seqs) {
        return false;
    }
    plan->s++;
    plan_seq(c, item_cost, plan);
    return true;
}

static task task_of(const run_ctx *c, const seq_plan *plan, uint32_t g, uint32_t block)
{
    const quire_attn_workspace *ws = c->ws;
    const quire_attn_seq *seq = &ws->batch.seqs[plan->s];
    task t = { .seq = seq,
               .split_token = ws->split_token + (size_t)plan->s * ws->n_splits_max,
               .g = g,
               .first_query = block * c->shape.block_queries };
    uint32_t rest = seq->n_rows - t.first_query;

    t.n_queries = rest < c->shape.block_queries ? rest : c->shape.block_queries;
    t.n_rows = t.n_queries * c->shape.group;
    t.first_index = seq->n_tokens - seq->n_rows + t.first_query;
    t.n_splits = n_splits_of(c, seq);
    while (t.split_token[t.n_splits - 1] >= t.first_index + t.n_queries) {
        t.n_splits--;
    }
    return t;
}

static state state_at(float *base, uint32_t n_rows)
{
    size_t padded = quire_attn_round_up(n_rows, 16);

    return (state){ base, base + padded, base + 2 * padded };
}

static void state_reset(const run_ctx *c, const state *st, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        st->m[r] = -INFINITY;
        st->l[r] = 0.0f;
    }
    memset(st->o, 0, (size_t)c->shape.n_v * n_rows * c->shape.o_stride * sizeof(float));
}

/* dst += src, rows weighted by exp of their maxima. A row that saw nothing in src is left alone. */
static void state_merge(const run_ctx *c, const state *dst, const state *src, uint32_t n_rows)
{
    size_t stride = c->shape.o_stride;

    for (uint32_t r = 0; r < n_rows; r++) {
        float m = src->m[r] > dst->m[r] ? src->m[r] : dst->m[r];
        float shift = m == -INFINITY ? 0.0f : m;
        float a = quire_attn_exp(dst->m[r] - shift);
        float b = quire_attn_exp(src->m[r] - shift);

        if (src->m[r] == -INFINITY && src->l[r] == 0.0f) {
            continue;
        }
        dst->m[r] = m;
        dst->l[r] = dst->l[r] * a + src->l[r] * b;
        for (uint32_t v = 0; v < c->shape.n_v; v++) {
            float *d = dst->o + ((size_t)v * n_rows + r) * stride;
            const float *x = src->o + ((size_t)v * n_rows + r) * stride;

            for (size_t i = 0; i < stride; i++) {
                d[i] = d[i] * a + x[i] * b;
            }
        }
    }
}

static void pack_queries(const run_ctx *c, const task *t)
{
    const quire_attn_layer *layer = c->layer;
    uint32_t group = c->shape.group;

    for (uint32_t k = 0; k < layer->n_k; k++) {
        for (uint32_t r = 0; r < t->n_rows; r++) {
            size_t q_row = t->seq->first_row + t->first_query + r / group;
            const float *q = layer->q[k] + q_row * layer->q_stride +
                             (size_t)(t->g * group + r % group) * layer->d_k;

            if (layer->rotate_k != 0) {
                memcpy(c->row, q, layer->d_k * sizeof(float));
                quire_hadamard(c->row, layer->d_k, layer->rotate_k);
                q = c->row;
            }
            c->ws->kernels->q_pack(layer->k_format, layer->d_k, layer->scale, q,
                                   c->packed[k] + r * c->shape.q_bytes);
        }
    }
}

/* V source v of a tile: as stored, or K decoded to f32 with v_prefix_of_k. K tiles are
 * dimension-major, so the first d_v dimensions of a tile of d_k dimensions are a tile of d_v
 * dimensions. */
static const void *v_tile(const run_ctx *c, const task *t, const quire_attn_tile_pos *pos,
                          uint32_t v)
{
    const quire_attn_layer *layer = c->layer;
    quire_tile_rows rows = { .d = layer->d_v,
                             .first_slot = pos->slot_begin,
                             .n_tokens = pos->n_slots,
                             .stride = layer->d_v };

    if (!layer->v_prefix_of_k) {
        return quire_attn_tile(&layer->v[v], pos->page, t->g, pos->tile);
    }
    c->ws->codec->decode_k(layer->k_format, &rows, quire_attn_tile_k(layer, pos, t->g, 0),
                           c->decoded + (size_t)pos->slot_begin * layer->d_v);
    return c->decoded;
}

/* The stored tile to prefetch while working on tile `source` of a position: K sources count first,
 * then V. NULL: none. */
static const void *tile_ahead(const run_ctx *c, const task *t, const tile_pair *tiles,
                              uint32_t source)
{
    const quire_attn_layer *layer = c->layer;
    uint32_t n = layer->n_k + (layer->v_prefix_of_k ? 0 : layer->n_v);
    uint32_t i = source + c->n_ahead;
    const quire_attn_tile_pos *pos = &tiles->pos;

    if (i >= n) {
        pos = &tiles->next;
        i = i < 2 * n ? i - n : n - 1;
    }
    if (pos->page == NULL) {
        return NULL;
    }
    return quire_attn_tile(i < layer->n_k ? &layer->k[i] : &layer->v[i - layer->n_k], pos->page,
                           t->g, pos->tile);
}

/* o += P V for the rows from `first` on. When the tile's rows end at different slots and V is
 * damaged between those ends, rows go by query, so that a NaN of a later token stays out of earlier
 * rows. */
static void run_pv(const run_ctx *c, const task *t, const tile_pair *tiles, uint32_t first,
                   const state *st)
{
    const quire_attn_layer *layer = c->layer;
    quire_format format = layer->v_prefix_of_k ? QUIRE_FORMAT_F32 : layer->v_format;
    uint32_t end_min = c->slot_end[first];
    uint32_t end_max = c->slot_end[t->n_rows - 1];
    quire_attn_pv args = { .format = format,
                           .d = layer->d_v,
                           .o_stride = c->shape.o_stride,
                           .slot_begin = tiles->pos.slot_begin };

    for (uint32_t v = 0; v < c->shape.n_v; v++) {
        bool is_safe;

        args.v_tile = v_tile(c, t, &tiles->pos, v);
        args.next = tile_ahead(c, t, tiles, layer->n_k + v);
        is_safe = end_min == end_max ||
                  quire_attn_tile_v_is_finite(format, layer->d_v, args.v_tile, end_min, end_max);
        args.n_rows = is_safe ? t->n_rows - first : c->shape.group;
        for (uint32_t r = first; r < t->n_rows; r += args.n_rows) {
            args.p = c->logits + (size_t)r * QUIRE_TILE_TOKENS;
            args.rescale = c->rescale + r;
            args.slot_end = c->slot_end[r + args.n_rows - 1];
            args.o = st->o + ((size_t)v * t->n_rows + r) * c->shape.o_stride;
            c->ws->kernels->pv(&args);
        }
    }
}

static void run_qk(const run_ctx *c, const task *t, const tile_pair *tiles, uint32_t first)
{
    const quire_attn_layer *layer = c->layer;
    quire_attn_qk args = { .format = layer->k_format,
                           .d = layer->d_k,
                           .n_rows = t->n_rows - first,
                           .s = c->logits + (size_t)first * QUIRE_TILE_TOKENS };

    for (uint32_t k = 0; k < layer->n_k; k++) {
        args.accumulate = k > 0;
        args.packed = c->packed[k] + first * c->shape.q_bytes;
        args.k_tile = quire_attn_tile_k(layer, &tiles->pos, t->g, k);
        args.next = tile_ahead(c, t, tiles, k);
        c->ws->kernels->qk(&args);
    }
}

static void run_tile(const run_ctx *c, const task *t, const tile_pair *tiles, const state *st)
{
    const quire_attn_tile_pos *pos = &tiles->pos;
    uint32_t group = c->shape.group;
    uint32_t first_query = pos->token > t->first_index ? pos->token - t->first_index : 0;
    uint32_t first = first_query * group; /* earlier rows see nothing of this tile */

    for (uint32_t r = first; r < t->n_rows; r++) {
        uint32_t n_seen = t->first_index + r / group + 1 - pos->token;

        c->slot_end[r] = pos->slot_begin + (n_seen < pos->n_slots ? n_seen : pos->n_slots);
    }
    run_qk(c, t, tiles, first);
    c->ws->kernels->softmax(t->n_rows - first, pos->slot_begin, c->slot_end + first,
                            c->logits + (size_t)first * QUIRE_TILE_TOKENS, st->m + first,
                            st->l + first, c->rescale + first);
    run_pv(c, t, tiles, first, st);
}

/* All tiles of one split that the task's last query sees. The walk looks past the end of the split,
 * so that its last tile prefetches the next split's first. */
static void run_split(const run_ctx *c, const task *t, uint32_t split, const state *st)
{
    const quire_attn_workspace *ws = c->ws;
    uint32_t token_end = t->first_index + t->n_queries;
    uint32_t split_end = split + 1 < t->n_splits ? t->split_token[split + 1] : token_end;
    quire_attn_tile_walk walk;
    tile_pair tiles;
    bool has_next;

    state_reset(c, st, t->n_rows);
    quire_attn_tile_walk_init(&walk, &ws->batch, t->seq, split * ws->limits.split_entries,
                              t->seq->n_entries);
    walk.token = t->split_token[split];
    has_next = quire_attn_tile_walk_next(&walk, token_end, &tiles.next);
    while (has_next && tiles.next.token < split_end) {
        tiles.pos = tiles.next;
        has_next = quire_attn_tile_walk_next(&walk, token_end, &tiles.next);
        if (!has_next) {
            tiles.next.page = NULL;
        }
        run_tile(c, t, &tiles, st);
    }
}

static void write_row(const run_ctx *c, const task *t, const state *st, uint32_t r)
{
    const quire_attn_layer *layer = c->layer;
    uint32_t group = c->shape.group;
    size_t out_row = t->seq->first_row + t->first_query + r / group;
    float *out =
        layer->out + out_row * layer->out_stride + (size_t)(t->g * group + r % group) * layer->d_v;
    float inverse = 1.0f / st->l[r];

    memset(out, 0, layer->d_v * sizeof(float));
    for (uint32_t v = 0; v < c->shape.n_v; v++) {
        const float *o = st->o + ((size_t)v * t->n_rows + r) * c->shape.o_stride;
        const float *gate = layer->v_gate[v];

        for (uint32_t i = 0; i < layer->d_v; i++) {
            c->row[i] = o[i] * inverse;
        }
        if (layer->rotate_v != 0) {
            quire_hadamard(c->row, layer->d_v, layer->rotate_v);
        }
        for (uint32_t i = 0; i < layer->d_v; i++) {
            out[i] += gate != NULL ? gate[(size_t)t->g * layer->d_v + i] * c->row[i] : c->row[i];
        }
    }
}

/* A task in one piece: partials are merged as they come. */
static void run_whole(const run_ctx *c, const task *t)
{
    state merged = state_at(c->states[0], t->n_rows);
    state part = state_at(c->states[1], t->n_rows);

    run_split(c, t, 0, &merged);
    for (uint32_t split = 1; split < t->n_splits; split++) {
        run_split(c, t, split, &part);
        state_merge(c, &merged, &part, t->n_rows);
    }
    for (uint32_t r = 0; r < t->n_rows; r++) {
        write_row(c, t, &merged, r);
    }
}

/* One part of a shared task; partials lie in the workspace until the last part is there. */
static void run_part(const run_ctx *c, const task *t, uint32_t part, uint32_t n_parts,
                     float *partials, quire_attn_counter *done)
{
    size_t state_floats = quire_attn_state_floats(&c->shape, t->n_rows);
    uint32_t end = (uint32_t)((uint64_t)t->n_splits * (part + 1) / n_parts);
    state merged;

    for (uint32_t split = (uint32_t)((uint64_t)t->n_splits * part / n_parts); split < end;
         split++) {
        state st = state_at(partials + split * state_floats, t->n_rows);

        run_split(c, t, split, &st);
    }
    if (atomic_fetch_add_explicit(&done->value, 1, memory_order_acq_rel) + 1 != n_parts) {
        return;
    }
    atomic_store_explicit(&done->value, 0, memory_order_relaxed);
    merged = state_at(partials, t->n_rows);
    for (uint32_t split = 1; split < t->n_splits; split++) {
        state st = state_at(partials + split * state_floats, t->n_rows);

        state_merge(c, &merged, &st, t->n_rows);
    }
    for (uint32_t r = 0; r < t->n_rows; r++) {
        write_row(c, t, &merged, r);
    }
}

static void run_item(const run_ctx *c, const seq_plan *plan, uint64_t item)
{
    uint32_t part = (uint32_t)(item % plan->n_parts);
    uint32_t task_index = (uint32_t)(item / plan->n_parts);
    uint32_t g = task_index / plan->n_blocks;
    uint32_t block = plan->n_blocks - 1 - task_index % plan->n_blocks;
    const quire_attn_seq *seq = &c->ws->batch.seqs[plan->s];
    task t = task_of(c, plan, g, block);

    pack_queries(c, &t);
    if (plan->n_parts == 1) {
        run_whole(c, &t);
        return;
    }
    run_part(c, &t, part, plan->n_parts,
             c->ws->partials + plan->first_partial + task_index * task_partial_floats(c, seq),
             &c->ws->done[plan->first_shared + task_index]);
}

static unsigned char *take(unsigned char **rest, size_t bytes)
{
    unsigned char *p = *rest;

    *rest += quire_attn_round_up(bytes, 64);
    return p;
}

static run_ctx ctx_of(quire_attn_workspace *ws, const quire_attn_layer *layer, uint32_t thread)
{
    run_ctx c = { .ws = ws, .layer = layer, .shape = quire_attn_shape_of(ws, layer) };
    uint32_t rows = c.shape.block_rows;
    size_t k_bytes = quire_tile_bytes(layer->k_format, QUIRE_SIDE_K, layer->d_k);
    size_t v_bytes = quire_tile_bytes(layer->v_format, QUIRE_SIDE_V, layer->d_v);
    unsigned char *begin = (unsigned char *)quire_attn_scratch_tile(ws, thread);
    unsigned char *rest = begin;

    c.n_ahead = k_bytes <= TILE_BYTES_SMALL && v_bytes <= TILE_BYTES_SMALL ? 2 : 1;
    c.decoded = (void *)take(&rest, quire_attn_scratch_tile_floats(ws) * sizeof(float));
    c.row = (void *)take(&rest, ws->limits.head_dim_max * sizeof(float));
    for (uint32_t k = 0; k < layer->n_k; k++) {
        c.packed[k] = take(&rest, rows * c.shape.q_bytes);
    }
    c.logits = (void *)take(&rest, (size_t)rows * QUIRE_TILE_TOKENS * sizeof(float));
    c.rescale = (void *)take(&rest, rows * sizeof(float));
    c.slot_end = (void *)take(&rest, rows * sizeof(uint32_t));
    for (uint32_t i = 0; i < 2; i++) {
        c.states[i] = (void *)take(&rest, quire_attn_state_floats(&c.shape, rows) * sizeof(float));
    }
    QUIRE_CHECK((size_t)(rest - begin) <= ws->scratch_bytes);
    return c;
}

static uint64_t next_item(quire_attn_workspace *ws, uint32_t call)
{
    return atomic_fetch_add_explicit(&ws->next_item[call].value, 1, memory_order_relaxed);
}

void quire_attn_run(quire_attn_workspace *workspace, const quire_attn_layer *layer, uint32_t call,
                    uint32_t thread, uint32_t n_threads)
{
    seq_plan plan = { .s = 0 };
    uint64_t item_cost;
    run_ctx c;

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_CHECK(call < workspace->limits.n_layers_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    if (workspace->batch.n_seqs == 0) {
        return;
    }
    c = ctx_of(workspace, layer, thread);
    item_cost = n_threads > 1 ? batch_cost(&c) / (n_threads * ITEMS_PER_THREAD) + 1 : UINT64_MAX;
    plan_seq(&c, item_cost, &plan);
    for (uint64_t item = next_item(workspace, call);; item = next_item(workspace, call)) {
        while (item - plan.first_item >=
               (uint64_t)plan.n_blocks * layer->n_kv_head * plan.n_parts) {
            if (!plan_next(&c, item_cost, &plan)) {
                return;
            }
        }
        run_item(&c, &plan, item - plan.first_item);
    }
}
