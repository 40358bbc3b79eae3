/* attn_fixture.c - see attn_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_fixture.h"
#include "attn/kernels.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STRIDE_PAD  8u /* rows are not dense: strides must be used */
#define THREADS_MAX 8u

fixture_opts fixture_defaults(void)
{
    return (fixture_opts){ .n_head = 8,
                           .n_kv_head = 2,
                           .d_k = 64,
                           .d_v = 64,
                           .k_format = QUIRE_FORMAT_F32,
                           .v_format = QUIRE_FORMAT_F32,
                           .n_k = 1,
                           .n_v = 1,
                           .has_keys = true,
                           .recent_tiles = 1,
                           .page_tokens = 64,
                           .n_seqs = 1,
                           .n_tokens = { 100 },
                           .n_rows = { 1 } };
}

static void *take(size_t bytes)
{
    const quire_allocator *allocator = quire_allocator_default();
    void *p = allocator->alloc(allocator->ctx, bytes > 0 ? bytes : 1);

    assert_non_null(p);
    return p;
}

/* About normal, by the sum of four uniform numbers (most of a test's time would go into the
 * logarithms of a better one). */
static float *random_floats(quire_rng *rng, size_t n, double scale)
{
    float *x = take(n * sizeof(float));

    for (size_t i = 0; i < n; i++) {
        uint64_t bits = quire_rng_next(rng);
        uint32_t sum = 0;

        for (uint32_t k = 0; k < 4; k++) {
            sum += (uint32_t)(bits >> 16 * k) & 0xffffu;
        }
        x[i] = (float)(((double)sum / 65536.0 - 2.0) * sqrt(3.0) * scale);
    }
    return x;
}

/* Lanes of one source, a part of its pages: all heads, tile after tile. Returns where the next
 * source starts in a page. */
static size_t lay_out(const fixture_opts *o, quire_side side, quire_format format, uint32_t d,
                      size_t offset, quire_attn_lane *lane)
{
    lane->offset = offset * FIXTURE_EXTENT_PAGES;
    lane->tile_stride = quire_tile_bytes(format, side, d);
    lane->head_stride = lane->tile_stride * (o->page_tokens / QUIRE_TILE_TOKENS);
    lane->page_stride = lane->head_stride * o->n_kv_head;
    return offset + lane->page_stride;
}

static bool has_sealed(const fixture_opts *o)
{
    return quire_format_is_sealed(o->k_format) ||
           (o->n_v > 0 && quire_format_is_sealed(o->v_format));
}

/* Main and hot pages are of one size, that of the larger. */
static void init_lanes(fixture *f)
{
    const fixture_opts *o = &f->opts;
    quire_attn_layer *layer = &f->layer;
    size_t hot_bytes = 0;

    for (uint32_t i = 0; i < o->n_k; i++) {
        f->page_bytes = lay_out(o, QUIRE_SIDE_K, o->k_format, o->d_k, f->page_bytes, &layer->k[i]);
        if (quire_format_is_sealed(o->k_format)) {
            hot_bytes =
                lay_out(o, QUIRE_SIDE_K, QUIRE_FORMAT_HOT, o->d_k, hot_bytes, &layer->k_hot[i]);
        }
    }
    for (uint32_t i = 0; i < o->n_v; i++) {
        f->page_bytes = lay_out(o, QUIRE_SIDE_V, o->v_format, o->d_v, f->page_bytes, &layer->v[i]);
        if (quire_format_is_sealed(o->v_format)) {
            hot_bytes =
                lay_out(o, QUIRE_SIDE_V, QUIRE_FORMAT_HOT, o->d_v, hot_bytes, &layer->v_hot[i]);
        }
    }
    f->page_bytes = f->page_bytes > hot_bytes ? f->page_bytes : hot_bytes;
}

static void init_layer(fixture *f)
{
    const fixture_opts *o = &f->opts;
    double logit_scale = o->logit_scale != 0.0f ? (double)o->logit_scale : 2.0;
    double k_scale = o->k_scale != 0.0f ? (double)o->k_scale : 1.0;
    quire_attn_layer *layer = &f->layer;

    *layer = (quire_attn_layer){ .n_head = o->n_head,
                                 .n_kv_head = o->n_kv_head,
                                 .d_k = o->d_k,
                                 .d_v = o->d_v,
                                 .k_format = o->k_format,
                                 .v_format = o->v_format,
                                 .rotate_k = o->rotate_k,
                                 .rotate_v = o->rotate_v,
                                 .n_k = o->n_k,
                                 .n_v = o->n_v,
                                 .v_prefix_of_k = o->n_v == 0,
                                 .recent_tiles = o->recent_tiles,
                                 .sink_tiles = o->sink_tiles,
                                 .q_stride = (size_t)o->n_head * o->d_k + STRIDE_PAD,
                                 .out_stride = (size_t)o->n_head * o->d_v + STRIDE_PAD };
    layer->scale = (float)(logit_scale / k_scale / sqrt((double)o->d_k * o->n_k));
    init_lanes(f);
}

static void init_data(fixture *f, quire_rng *rng)
{
    const fixture_opts *o = &f->opts;
    quire_attn_layer *layer = &f->layer;
    double k_scale = o->k_scale != 0.0f ? (double)o->k_scale : 1.0;
    double v_scale = o->v_scale != 0.0f ? (double)o->v_scale : 1.0;

    for (uint32_t i = 0; i < o->n_k; i++) {
        f->q[i] = random_floats(rng, f->n_rows * layer->q_stride, 1.0);
        f->k[i] = random_floats(rng, (size_t)f->n_tokens * o->n_kv_head * o->d_k, k_scale);
        layer->q[i] = f->q[i];
    }
    if (o->has_keys) {
        layer->k_new_stride = (size_t)o->n_kv_head * o->d_k + STRIDE_PAD;
        f->keys = random_floats(rng, f->n_rows * layer->k_new_stride, k_scale);
        layer->k_new = f->keys;
    }
    for (uint32_t i = 0; i < o->n_v; i++) {
        f->v[i] = random_floats(rng, (size_t)f->n_tokens * o->n_kv_head * o->d_v, v_scale);
    }
    for (uint32_t i = 0; o->has_gates && i < QUIRE_ATTN_SOURCES_MAX; i++) {
        f->gate[i] = random_floats(rng, (size_t)o->n_kv_head * o->d_v, 1.0);
        layer->v_gate[i] = f->gate[i];
    }
}

static uint32_t next_entry(const fixture_opts *o, uint32_t n_left, quire_rng *rng,
                           quire_page_entry *entry)
{
    uint32_t unit = has_sealed(o) ? QUIRE_TILE_TOKENS : 1;
    uint32_t n_units = o->page_tokens / unit;
    uint32_t first = o->is_ragged ? quire_rng_below(rng, n_units) : 0;
    uint32_t n = n_units - first;

    n = o->is_ragged ? 1 + quire_rng_below(rng, n) : n;
    n = n * unit < n_left ? n * unit : n_left;
    *entry = (quire_page_entry){ .first_slot = (uint16_t)(first * unit), .n_tokens = (uint16_t)n };
    return n;
}

static uint32_t n_leaves_of(const quire_attn_seq *seq)
{
    return (seq->n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
}

quire_page_entry *fixture_entry(const quire_page_entry *const *leaves, uint32_t i)
{
    return (quire_page_entry *)(uintptr_t)&leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

static const quire_page_entry *const *new_leaves(uint32_t n_leaves)
{
    const quire_page_entry **leaves = take(n_leaves * sizeof(*leaves));

    for (uint32_t i = 0; i < n_leaves; i++) {
        leaves[i] = take(QUIRE_LEAF_ENTRIES * sizeof(quire_page_entry));
    }
    return leaves;
}

static void free_leaves(const quire_page_entry *const *leaves, uint32_t n_leaves)
{
    for (uint32_t i = 0; leaves != NULL && i < n_leaves; i++) {
        free((void *)(uintptr_t)leaves[i]);
    }
    free((void *)(uintptr_t)leaves);
}

/* The tables of one sequence, pages in order of use. */
static void init_table(fixture *f, uint32_t s, quire_rng *rng)
{
    uint32_t n_tokens = f->opts.n_tokens[s];
    quire_page_entry *entries = take(n_tokens * sizeof(*entries)); /* at least a token each */
    quire_attn_seq *seq = &f->seqs[s];

    *seq = (quire_attn_seq){ .n_tokens = n_tokens,
                             .first_row = f->n_rows,
                             .n_rows = f->opts.n_rows[s] };
    for (uint32_t token = 0; token < n_tokens; seq->n_entries++) {
        token += next_entry(&f->opts, n_tokens - token, rng, &entries[seq->n_entries]);
    }
    seq->leaves = new_leaves(n_leaves_of(seq));
    seq->hot_leaves = has_sealed(&f->opts) ? new_leaves(n_leaves_of(seq)) : NULL;
    for (uint32_t i = 0; i < seq->n_entries; i++) {
        entries[i].page = ++f->n_pages;
        *fixture_entry(seq->leaves, i) = entries[i];
        if (seq->hot_leaves != NULL) {
            entries[i].page = ++f->n_pages;
            *fixture_entry(seq->hot_leaves, i) = entries[i];
        }
    }
    free(entries);
    f->first_token[s] = f->n_tokens;
    f->n_rows += f->opts.n_rows[s];
    f->n_tokens += n_tokens;
}

/* Make holes of the entries [1, 1 + n) of a hot table, as far as no new row is in them. */
static void punch(const quire_attn_seq *seq, uint32_t n)
{
    uint32_t token = fixture_entry(seq->leaves, 0)->n_tokens;

    for (uint32_t i = 1; seq->hot_leaves != NULL && i <= n && i < seq->n_entries; i++) {
        token += fixture_entry(seq->leaves, i)->n_tokens;
        if (token <= seq->n_tokens - seq->n_rows) {
            fixture_entry(seq->hot_leaves, i)->page = QUIRE_PAGE_NULL;
        }
    }
}

quire_attn_seq fixture_truncated(const quire_attn_seq *seq, uint32_t n_tokens)
{
    quire_attn_seq t = *seq;
    uint32_t left = n_tokens;

    t.n_tokens = n_tokens;
    t.n_entries = 0;
    t.leaves = new_leaves(n_leaves_of(seq));
    t.hot_leaves = seq->hot_leaves != NULL ? new_leaves(n_leaves_of(seq)) : NULL;
    for (uint32_t i = 0; i < seq->n_entries && left > 0; i++) {
        quire_page_entry *entry = fixture_entry(t.leaves, i);

        *entry = *fixture_entry(seq->leaves, i);
        entry->n_tokens = entry->n_tokens < left ? entry->n_tokens : (uint16_t)left;
        left -= entry->n_tokens;
        t.n_entries++;
        if (t.hot_leaves != NULL) {
            *fixture_entry(t.hot_leaves, i) = *fixture_entry(seq->hot_leaves, i);
            fixture_entry(t.hot_leaves, i)->n_tokens = entry->n_tokens;
        }
    }
    return t;
}

void fixture_free_seq(const quire_attn_seq *seq, const quire_attn_seq *truncated)
{
    free_leaves(truncated->leaves, n_leaves_of(seq));
    free_leaves(truncated->hot_leaves, n_leaves_of(seq));
}

/* Give page ids first, first + step, ... places in extents from *store on, in shuffled order, so
 * nothing may rely on neighbours. */
static void place_pages(fixture *f, uint32_t first, uint32_t step, unsigned char **store,
                        quire_rng *rng)
{
    uint32_t n = 0;

    for (uint32_t id = first; id <= f->n_pages; id += step, n++) {
        uint32_t other = first + quire_rng_below(rng, n + 1) * step;
        uint32_t slot = n % FIXTURE_EXTENT_PAGES;

        f->page_addr[id] = f->page_addr[other];
        f->page_addr[other] = (quire_page_addr){ *store + (n - slot) * f->page_bytes, slot };
    }
    *store += (n + FIXTURE_EXTENT_PAGES - 1) / FIXTURE_EXTENT_PAGES * FIXTURE_EXTENT_PAGES *
              f->page_bytes;
}

/* Main and hot pages lie in extents of their own: their parts differ. */
static void init_pages(fixture *f, quire_rng *rng)
{
    const uint32_t step = has_sealed(&f->opts) ? 2 : 1; /* see init_table() */
    unsigned char *end;

    f->store = take((f->n_pages + 2u * FIXTURE_EXTENT_PAGES) * f->page_bytes);
    f->page_addr = take((f->n_pages + 1u) * sizeof(*f->page_addr));
    f->page_addr[0] = (quire_page_addr){ NULL, 0 };
    end = f->store;
    for (uint32_t kind = 0; kind < step; kind++) {
        place_pages(f, 1 + kind, step, &end, rng);
    }
    f->store_bytes = (size_t)(end - f->store);
    fixture_wipe(f);
}

void fixture_wipe(fixture *f)
{
    memset(f->store, 0xff, f->store_bytes);
    memset(f->n_stored, 0, sizeof(f->n_stored));
}

void fixture_init(fixture *f, const fixture_opts *opts, quire_rng *rng)
{
    *f = (fixture){ .opts = *opts };
    for (uint32_t s = 0; s < opts->n_seqs; s++) {
        init_table(f, s, rng);
    }
    init_layer(f);
    init_data(f, rng);
    init_pages(f, rng);
    f->batch = (quire_attn_batch){ .seqs = f->seqs,
                                   .n_seqs = opts->n_seqs,
                                   .page_tokens = opts->page_tokens,
                                   .page_addr = f->page_addr };
    for (uint32_t s = 0; s < opts->n_seqs; s++) {
        fixture_store(f, s, 0, opts->n_tokens[s]);
        punch(&f->seqs[s], opts->n_punched);
    }
}

void fixture_free(fixture *f)
{
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        fixture_free_seq(&f->seqs[s], &f->seqs[s]);
    }
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        free(f->q[i]);
        free(f->k[i]);
        free(f->v[i]);
        free(f->gate[i]);
    }
    free(f->keys);
    free(f->page_addr);
    free(f->store);
}

/* One source of a head: where its tiles lie in main and hot pages. */
typedef struct stored_lane {
    quire_side side;
    quire_format format;
    uint32_t d;
    uint32_t rotate;
    uint32_t g;
    const float *x; /* of a token t: x + t * n_kv_head * d */
    bool pairs_q;
    const quire_attn_lane *lane;
    const quire_attn_lane *hot_lane;
} stored_lane;

static void encode(const stored_lane *lane, quire_format format, const quire_tile_rows *rows,
                   const float *x, void *tile)
{
    const quire_codec *codec = quire_codec_find("ref");

    if (lane->side == QUIRE_SIDE_K) {
        codec->encode_k(format, rows, x, tile);
    } else {
        codec->encode_v(format, rows, x, tile);
    }
}

/* The tile of a slot of entry i, in the hot table or the main one. */
static void *tile_of(const fixture *f, const stored_lane *lane, const quire_attn_seq *seq,
                     const uint32_t at[2], bool is_hot)
{
    const quire_attn_lane *where = is_hot ? lane->hot_lane : lane->lane;
    const quire_page_entry *entry = fixture_entry(is_hot ? seq->hot_leaves : seq->leaves, at[0]);

    assert_int_not_equal(entry->page, QUIRE_PAGE_NULL);
    return f->page_addr[entry->page].extent + where->offset +
           f->page_addr[entry->page].slot * where->page_stride + lane->g * where->head_stride +
           at[1] / QUIRE_TILE_TOKENS * where->tile_stride;
}

/* What the queries of the lane's head add up to, rotated; false: the token is no query row, or the
 * layer has no queries. */
static bool sum_queries(const fixture *f, const stored_lane *lane, uint32_t s, uint32_t token,
                        float *sum)
{
    const quire_attn_seq *seq = &f->seqs[s];
    const uint32_t group = f->opts.n_head / f->opts.n_kv_head;
    const uint32_t first = seq->n_tokens - seq->n_rows;
    const float *q;

    if (!lane->pairs_q || f->layer.q[0] == NULL || token < first) {
        return false;
    }
    q = f->q[0] + (seq->first_row + token - first) * f->layer.q_stride;
    for (uint32_t i = 0; i < lane->d; i++) {
        sum[i] = q[lane->g * group * lane->d + i];
        for (uint32_t h = 1; h < group; h++) {
            sum[i] += q[(lane->g * group + h) * lane->d + i];
        }
    }
    if (lane->rotate != 0) {
        quire_hadamard(sum, lane->d, lane->rotate);
    }
    return true;
}

/* Store token `token` of a sequence; at: its entry, and its slot in the page. */
static void store_row(const fixture *f, const stored_lane *lane, uint32_t s, uint32_t token,
                      const uint32_t at[2])
{
    bool is_hot = quire_format_is_sealed(lane->format);
    size_t row = (size_t)(f->first_token[s] + token) * f->opts.n_kv_head;
    quire_tile_rows rows = {
        .d = lane->d, .first_slot = at[1] % QUIRE_TILE_TOKENS, .n_tokens = 1, .stride = lane->d
    };
    float rotated[QUIRE_HEAD_DIM_MAX];
    float queries[QUIRE_HEAD_DIM_MAX];

    rows.queries = sum_queries(f, lane, s, token, queries) ? queries : NULL;
    memcpy(rotated, lane->x + row * lane->d, lane->d * sizeof(float));
    if (lane->rotate != 0) {
        quire_hadamard(rotated, lane->d, lane->rotate);
    }
    encode(lane, is_hot ? QUIRE_FORMAT_HOT : lane->format, &rows, rotated,
           tile_of(f, lane, &f->seqs[s], at, is_hot));
}

static void seal(const fixture *f, const stored_lane *lane, uint32_t s, const uint32_t at[2])
{
    const quire_codec *codec = quire_codec_find("ref");
    quire_tile_rows rows = { .d = lane->d, .n_tokens = QUIRE_TILE_TOKENS, .stride = lane->d };
    float *x = take((size_t)QUIRE_TILE_TOKENS * lane->d * sizeof(float));
    const void *hot = tile_of(f, lane, &f->seqs[s], at, true);

    if (lane->side == QUIRE_SIDE_K) {
        codec->decode_k(QUIRE_FORMAT_HOT, &rows, hot, x);
    } else {
        codec->decode_v(QUIRE_FORMAT_HOT, &rows, hot, x);
    }
    encode(lane, lane->format, &rows, x, tile_of(f, lane, &f->seqs[s], at, false));
    free(x);
}

/* Tokens [begin, end) of a sequence in one lane. */
static void store_lane(const fixture *f, const stored_lane *lane, uint32_t s, uint32_t begin,
                       uint32_t end)
{
    const quire_attn_seq *seq = &f->seqs[s];
    uint32_t token = 0;
    bool is_open = false; /* tokens of the tile at hand were stored */

    for (uint32_t e = 0; e < seq->n_entries; e++) {
        const quire_page_entry *entry = fixture_entry(seq->leaves, e);

        for (uint32_t i = 0; i < entry->n_tokens; i++, token++) {
            const uint32_t at[2] = { e, entry->first_slot + i };

            if (token >= begin && token < end) {
                store_row(f, lane, s, token, at);
                is_open = true;
            }
            if (at[1] % QUIRE_TILE_TOKENS == QUIRE_TILE_TOKENS - 1) {
                if (is_open && quire_format_is_sealed(lane->format) && token < f->n_stored[s]) {
                    seal(f, lane, s, at);
                }
                is_open = false;
            }
        }
    }
}

void fixture_store(fixture *f, uint32_t seq, uint32_t begin, uint32_t end)
{
    const quire_attn_layer *layer = &f->layer;

    f->n_stored[seq] = f->n_stored[seq] > end ? f->n_stored[seq] : end;
    for (uint32_t g = 0; g < f->opts.n_kv_head; g++) {
        for (uint32_t i = 0; i < f->opts.n_k; i++) {
            const stored_lane lane = { QUIRE_SIDE_K,
                                       layer->k_format,
                                       layer->d_k,
                                       layer->rotate_k,
                                       g,
                                       f->k[i] + (size_t)g * layer->d_k,
                                       i == 0,
                                       &layer->k[i],
                                       &layer->k_hot[i] };

            store_lane(f, &lane, seq, begin, end);
        }
        for (uint32_t i = 0; i < f->opts.n_v; i++) {
            const stored_lane lane = { QUIRE_SIDE_V,
                                       layer->v_format,
                                       layer->d_v,
                                       layer->rotate_v,
                                       g,
                                       f->v[i] + (size_t)g * layer->d_v,
                                       false,
                                       &layer->v[i],
                                       &layer->v_hot[i] };

            store_lane(f, &lane, seq, begin, end);
        }
    }
}

size_t fixture_out_floats(const fixture *f)
{
    return (size_t)f->n_rows * f->opts.n_head * f->opts.d_v;
}

typedef struct worker {
    quire_attn_workspace *workspace;
    const quire_attn_layer *layer;
    bool is_append;
    uint32_t thread;
    uint32_t n_threads;
} worker;

static void *work(void *arg)
{
    const worker *w = arg;

    if (w->is_append) {
        quire_attn_append(w->workspace, w->layer, w->thread, w->n_threads);
    } else {
        quire_attn_run(w->workspace, w->layer, 0, w->thread, w->n_threads);
    }
    return NULL;
}

static void work_all(quire_attn_workspace *workspace, const quire_attn_layer *layer, bool is_append,
                     uint32_t n_threads)
{
    worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX];

    assert_in_range(n_threads, 1, THREADS_MAX);
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i] = (worker){ workspace, layer, is_append, i, n_threads };
        if (i > 0) {
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        }
    }
    (void)work(&workers[0]);
    for (uint32_t i = 1; i < n_threads; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

/* K and V of the rows that are appended, in row order. */
static float *gather_new(const fixture *f, const quire_attn_batch *batch, const float *x,
                         uint32_t row_floats)
{
    float *rows = take((size_t)f->n_rows * row_floats * sizeof(float));

    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        const quire_attn_seq *seq = &batch->seqs[b];
        uint32_t s = 0;

        while (f->seqs[s].leaves[0][0].page != seq->leaves[0][0].page) {
            s++;
        }
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            size_t token = f->first_token[s] + seq->n_tokens - seq->n_rows + i;

            memcpy(rows + (size_t)(seq->first_row + i) * row_floats, x + token * row_floats,
                   row_floats * sizeof(float));
        }
    }
    return rows;
}

quire_attn_workspace *fixture_workspace(const fixture *f, const fixture_run_opts *opts)
{
    quire_attn_workspace_opts ws_opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;
    quire_attn_workspace *workspace;

    ws_opts.n_threads_max = opts->n_threads;
    ws_opts.n_seqs_max = FIXTURE_SEQS_MAX;
    ws_opts.n_rows_max = f->n_rows;
    ws_opts.n_head_max = f->opts.n_head;
    ws_opts.head_dim_max = f->opts.d_k > f->opts.d_v ? f->opts.d_k : f->opts.d_v;
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        uint32_t n = f->seqs[s].n_entries;

        ws_opts.n_entries_max = n > ws_opts.n_entries_max ? n : ws_opts.n_entries_max;
    }
    ws_opts.split_entries = f->opts.split_entries;
    ws_opts.page_tokens = f->opts.page_tokens;
    ws_opts.n_layers_max = 1;
    ws_opts.no_cascade = opts->no_cascade;
    ws_opts.isa = opts->isa;
    assert_int_equal(quire_attn_workspace_create(&workspace, &ws_opts), QUIRE_OK);
    return workspace;
}

void fixture_run(fixture *f, const quire_attn_batch *batch, const fixture_run_opts *opts,
                 float *out)
{
    const fixture_opts *o = &f->opts;
    quire_attn_workspace *workspace = fixture_workspace(f, opts);
    quire_attn_layer layer = f->layer;
    size_t row_floats = (size_t)o->n_head * o->d_v;
    float *padded = take(f->n_rows * layer.out_stride * sizeof(float));
    float *k_new = NULL;
    float *v_new = NULL;

    batch = batch != NULL ? batch : &f->batch;
    layer.out = padded;
    assert_int_equal(quire_attn_layer_check(workspace, &layer), QUIRE_OK);
    assert_int_equal(quire_attn_begin(workspace, batch), QUIRE_OK);
    if (opts->has_append) {
        layer.k_new_stride = (size_t)o->n_kv_head * o->d_k;
        layer.v_new_stride = (size_t)o->n_kv_head * o->d_v;
        k_new = gather_new(f, batch, f->k[0], (uint32_t)layer.k_new_stride);
        layer.k_new = k_new;
        if (o->n_v > 0) {
            v_new = gather_new(f, batch, f->v[0], (uint32_t)layer.v_new_stride);
            layer.v_new = v_new;
        }
        work_all(workspace, &layer, true, opts->n_threads);
    }
    work_all(workspace, &layer, false, opts->n_threads);
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        for (uint32_t i = 0; i < batch->seqs[b].n_rows; i++) {
            size_t row = batch->seqs[b].first_row + i;

            memcpy(out + row * row_floats, padded + row * layer.out_stride,
                   row_floats * sizeof(float));
        }
    }
    free(k_new);
    free(v_new);
    free(padded);
    quire_attn_workspace_destroy(workspace);
}

double *fixture_ref(fixture *f)
{
    double *ref = take(fixture_out_floats(f) * sizeof(double));

    assert_int_equal(quire_attn_ref(&f->batch, &f->layer, ref), QUIRE_OK);
    return ref;
}

/* A NaN on either side is an infinite error. */
static double relative(double difference, double norm)
{
    if (difference == 0.0) {
        return 0.0;
    }
    return difference / norm < INFINITY ? sqrt(difference / norm) : INFINITY;
}

fixture_error fixture_error_of(const fixture *f, const float *out, const double *ref)
{
    size_t d = f->opts.d_v;
    double total_difference = 0.0;
    double total_norm = 0.0;
    fixture_error error = { 0.0, 0.0 };

    for (size_t row = 0; row < (size_t)f->n_rows * f->opts.n_head; row++) {
        double difference = 0.0;
        double norm = 0.0;
        double row_error;

        for (size_t i = row * d; i < (row + 1) * d; i++) {
            difference += ((double)out[i] - ref[i]) * ((double)out[i] - ref[i]);
            norm += ref[i] * ref[i];
        }
        row_error = relative(difference, norm);
        error.worst_row = row_error > error.worst_row ? row_error : error.worst_row;
        total_difference += difference;
        total_norm += norm;
    }
    error.total = relative(total_difference, total_norm);
    return error;
}

uint32_t fixture_isas(const char **isas, uint32_t max)
{
    static const char *const names[] = { "portable",    "avx2",       "avx512",
                                         "avx512+bf16", "avx512+amx", "neon" };
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && n < max; i++) {
        if (quire_attn_kernels_find(names[i]) != NULL) {
            isas[n++] = names[i];
        }
    }
    return n;
}

uint64_t fixture_seed(void)
{
    const char *text = getenv("QUIRE_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 20260101u;

    print_message("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
