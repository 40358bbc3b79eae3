/* embed.c - libquire inside another engine: a cache, two sequences that share a prefix, and
 * attention computed on their pages. No model is needed; the keys and values are made up.
 *
 * One layer with 2 KV heads, 4 query heads (two per KV head) and head size 64, stored in q8. How K
 * and V lie inside a page is the engine's choice; here all K tiles of the page come first, then all
 * V tiles:
 *
 *   page: [K of head 0][K of head 1][V of head 0][V of head 1]   a tile each: a page has 64 tokens
 *
 * Build: cc embed.c $(pkg-config --cflags --libs quire) -lm
 *
 * SPDX-License-Identifier: MIT */
#include "quire/attn.h"
#include "quire/cache.h"
#include "quire/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N_KV_HEAD   2u
#define N_HEAD      4u
#define HEAD_DIM    64u
#define PAGE_TOKENS 64u
#define PREFIX      100u /* tokens that both sequences share */
#define N_SEQS      2u

#define Q_FLOATS  ((size_t)N_HEAD * HEAD_DIM)
#define KV_FLOATS ((size_t)N_KV_HEAD * HEAD_DIM)

static void require(int status, const char *what)
{
    if (status != QUIRE_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, quire_status_text(status));
        exit(1);
    }
}

/* Any repeatable numbers will do: row t of stream s. */
static void fill(float *x, size_t n, uint32_t t, uint32_t s)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = sinf((float)(t + 1) * 0.37f + (float)i * 0.11f * (float)(s + 1));
    }
}

/* One step for one sequence: n new tokens, of which the last row's output is returned in out. */
static void step(quire_cache *cache, quire_attn_workspace *workspace, quire_attn_layer layer,
                 quire_seq_id id, uint32_t n, uint32_t stream, float *out)
{
    uint32_t first = quire_seq_tokens(cache, id);
    float *q = calloc(n * Q_FLOATS, sizeof(*q));
    float *k = calloc(n * KV_FLOATS, sizeof(*k));
    float *v = calloc(n * KV_FLOATS, sizeof(*v));
    float *rows = calloc(n * Q_FLOATS, sizeof(*rows));
    quire_attn_seq seq = { 0 };
    quire_attn_batch batch = { 0 };
    quire_seq_table table;

    if (q == NULL || k == NULL || v == NULL || rows == NULL) {
        require(QUIRE_NOMEM, "step");
    }
    for (uint32_t i = 0; i < n; i++) {
        fill(q + i * Q_FLOATS, Q_FLOATS, first + i, stream);
        fill(k + i * KV_FLOATS, KV_FLOATS, first + i, stream + 10);
        fill(v + i * KV_FLOATS, KV_FLOATS, first + i, stream + 20);
    }

    /* First the table grows, then addresses are asked for, then kernels run. */
    require(quire_seq_append(cache, id, n), "quire_seq_append");
    require(quire_seq_table_get(cache, id, 0, &table), "quire_seq_table_get");
    seq.tables[0].leaves = table.leaves;
    seq.tables[0].n_entries = table.n_entries;
    seq.n_tokens = table.n_tokens;
    seq.n_rows = n;
    batch.seqs = &seq;
    batch.n_seqs = 1;
    batch.page_tokens = PAGE_TOKENS;
    batch.page_addr = quire_cache_page_addrs(cache);

    layer.q[0] = q;
    layer.k_new = k;
    layer.v_new = v;
    layer.out = rows;
    require(quire_attn_begin(workspace, &batch), "quire_attn_begin");
    quire_attn_append(workspace, &layer, 0, 1);
    quire_attn_run(workspace, &layer, 0, 0, 1);
    for (size_t i = 0; i < Q_FLOATS; i++) {
        out[i] = rows[(n - 1) * Q_FLOATS + i];
    }
    free(rows);
    free(v);
    free(k);
    free(q);
}

static quire_attn_layer describe_layer(size_t tile_bytes)
{
    quire_attn_layer layer = { 0 };

    layer.n_head = N_HEAD;
    layer.n_kv_head = N_KV_HEAD;
    layer.d_k = HEAD_DIM;
    layer.d_v = HEAD_DIM;
    layer.n_k = 1;
    layer.n_v = 1;
    layer.scale = 1.0f / sqrtf((float)HEAD_DIM);
    layer.k_store.format = QUIRE_FORMAT_Q8;
    layer.k_store.lane.page_stride = 2 * N_KV_HEAD * tile_bytes;
    layer.k_store.lane.head_stride = tile_bytes;
    layer.k_store.lane.tile_stride = tile_bytes;
    layer.v_store = layer.k_store;
    layer.v_store.lane.offset = N_KV_HEAD * tile_bytes;
    layer.k[0] = layer.k_store; /* the layer reads what it stores */
    layer.v[0] = layer.v_store;
    layer.q_stride = Q_FLOATS;
    layer.out_stride = Q_FLOATS;
    layer.k_new_stride = KV_FLOATS;
    layer.v_new_stride = KV_FLOATS;
    return layer;
}

int main(void)
{
    size_t tile_bytes = quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, HEAD_DIM);
    quire_attn_layer layer = describe_layer(tile_bytes);
    quire_cache_opts cache_opts = QUIRE_CACHE_OPTS_INIT;
    quire_attn_workspace_opts attn_opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;
    quire_cache *cache;
    quire_attn_workspace *workspace;
    quire_seq_id ids[N_SEQS];
    quire_cache_stats stats;
    float prefix[Q_FLOATS];
    float ahead[N_SEQS][Q_FLOATS];

    cache_opts.page_tokens = PAGE_TOKENS;
    cache_opts.page_bytes[0] = 2 * N_KV_HEAD * tile_bytes;
    cache_opts.budget_bytes = 1 << 20;
    require(quire_cache_create(&cache, &cache_opts), "quire_cache_create");

    attn_opts.n_threads_max = 1;
    attn_opts.n_seqs_max = 1;
    attn_opts.n_rows_max = PREFIX;
    attn_opts.n_head_max = N_HEAD;
    attn_opts.head_dim_max = HEAD_DIM;
    attn_opts.n_entries_max = 64;
    attn_opts.page_tokens = PAGE_TOKENS;
    attn_opts.n_layers_max = 1;
    require(quire_attn_workspace_create(&workspace, &attn_opts), "quire_attn_workspace_create");
    require(quire_attn_layer_check(workspace, &layer), "quire_attn_layer_check");

    require(quire_seq_open(cache, QUIRE_REGION_DYNAMIC, &ids[0]), "quire_seq_open");
    step(cache, workspace, layer, ids[0], PREFIX, 0, prefix);

    /* A second reader of the same prefix: nothing is copied until one of them appends to the page
     * that is only partly full. */
    require(quire_seq_fork(cache, ids[0], &ids[1]), "quire_seq_fork");
    quire_cache_stats_get(cache, &stats);
    (void)printf("%u tokens, forked: %llu pages live\n", quire_seq_tokens(cache, ids[1]),
                 (unsigned long long)stats.pages_live);

    for (uint32_t i = 0; i < N_SEQS; i++) {
        step(cache, workspace, layer, ids[i], 1, i, ahead[i]);
    }
    quire_cache_stats_get(cache, &stats);
    (void)printf("%u + %u tokens, apart: %llu pages live, %llu copied\n",
                 quire_seq_tokens(cache, ids[0]), quire_seq_tokens(cache, ids[1]),
                 (unsigned long long)stats.pages_live, (unsigned long long)stats.page_copies_total);
    (void)printf("out[0] of the prefix %.4f, of sequence 1 %.4f, of sequence 2 %.4f\n",
                 (double)prefix[0], (double)ahead[0][0], (double)ahead[1][0]);

    quire_attn_workspace_destroy(workspace);
    quire_cache_destroy(cache);
    return 0;
}
