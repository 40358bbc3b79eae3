/* prompts.c - requests that find the beginning of their prompt in the cache: the prefix tree, pages
 * in parts of one layer each, and a pin. No model is needed; the keys and values are made up.
 *
 * Two layers, each with 2 KV heads, 4 query heads and head size 64, stored in q8. A page has one
 * part per layer. In an extent the parts of one layer lie side by side (quire/cache.h, "Parts"):
 *
 *   extent:  [layer 0: page 0][layer 0: page 1] ...   [layer 1: page 0][layer 1: page 1] ...
 *   a part:  [K of head 0][K of head 1][V of head 0][V of head 1], one tile of 64 tokens each
 *
 * Build: cc prompts.c $(pkg-config --cflags --libs quire) -lm
 *
 * SPDX-License-Identifier: MIT */
#include "quire/attn.h"
#include "quire/cache.h"
#include "quire/codec.h"
#include "quire/pin.h"
#include "quire/prefix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N_LAYER     2u
#define N_KV_HEAD   2u
#define N_HEAD      4u
#define HEAD_DIM    64u
#define PAGE_TOKENS 64u
#define SYSTEM      128u /* tokens that all prompts begin with */
#define PROMPT      200u
#define N_ROWS      PROMPT

#define Q_FLOATS  ((size_t)N_HEAD * HEAD_DIM)
#define KV_FLOATS ((size_t)N_KV_HEAD * HEAD_DIM)

typedef struct engine {
    quire_cache *cache;
    quire_prefix *tree;
    quire_pins *pins;
    quire_attn_workspace *workspace;
    size_t part_bytes; /* K and V of one layer of a page */
    uint64_t now_us;   /* a clock: core has none */
    float q[N_ROWS * N_HEAD * HEAD_DIM];
    float k[N_ROWS * N_KV_HEAD * HEAD_DIM];
    float v[N_ROWS * N_KV_HEAD * HEAD_DIM];
    float out[N_ROWS * N_HEAD * HEAD_DIM];
} engine;

static void require(int status, const char *what)
{
    if (status != QUIRE_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, quire_status_text(status));
        exit(1);
    }
}

/* Where the layer's K and V lie, and how its rows are laid out. */
static quire_attn_layer describe_layer(const engine *e, uint32_t l)
{
    const size_t tile_bytes = quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, HEAD_DIM);
    const size_t n_pages = quire_cache_extent_pages(N_LAYER * e->part_bytes, N_LAYER);
    quire_attn_layer layer = { 0 };

    layer.n_head = N_HEAD;
    layer.n_kv_head = N_KV_HEAD;
    layer.d_k = HEAD_DIM;
    layer.d_v = HEAD_DIM;
    layer.n_k = 1;
    layer.n_v = 1;
    layer.scale = 1.0f / sqrtf((float)HEAD_DIM);
    layer.k_store.format = QUIRE_FORMAT_Q8;
    layer.k_store.lane.offset = l * n_pages * e->part_bytes; /* the layers before this one */
    layer.k_store.lane.page_stride = e->part_bytes;
    layer.k_store.lane.head_stride = tile_bytes;
    layer.k_store.lane.tile_stride = tile_bytes;
    layer.v_store = layer.k_store;
    layer.v_store.lane.offset += N_KV_HEAD * tile_bytes;
    layer.k[0] = layer.k_store;
    layer.v[0] = layer.v_store;
    layer.q[0] = e->q;
    layer.k_new = e->k;
    layer.v_new = e->v;
    layer.q_stride = Q_FLOATS;
    layer.out_stride = Q_FLOATS;
    layer.k_new_stride = KV_FLOATS;
    layer.v_new_stride = KV_FLOATS;
    return layer;
}

/* Q, K and V of a layer: a model computes them from the tokens. */
static void project(engine *e, uint32_t l, const int32_t *tokens, uint32_t first, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++) {
        const float x = (float)tokens[first + t] * 0.37f + (float)(first + t) * 0.01f;

        for (size_t i = 0; i < Q_FLOATS; i++) {
            e->q[t * Q_FLOATS + i] = sinf(x + (float)i * 0.11f + (float)l);
        }
        for (size_t i = 0; i < KV_FLOATS; i++) {
            e->k[t * KV_FLOATS + i] = sinf(x + (float)i * 0.13f + (float)l * 3);
            e->v[t * KV_FLOATS + i] = cosf(x + (float)i * 0.17f + (float)l * 5);
        }
    }
}

/* A step of the sequence: its tokens from `first` on. Returns a number of the last row's output. */
static float compute(engine *e, quire_seq_id id, const int32_t *tokens, uint32_t first, uint32_t n)
{
    quire_attn_seq seq = { 0 };
    quire_attn_batch batch = { 0 };
    quire_seq_table table;

    require(quire_seq_append(e->cache, id, n), "quire_seq_append");
    require(quire_seq_table_get(e->cache, id, 0, &table), "quire_seq_table_get");
    seq.tables[0].leaves = table.leaves;
    seq.tables[0].n_entries = table.n_entries;
    seq.n_tokens = table.n_tokens;
    seq.n_rows = n;
    batch.seqs = &seq;
    batch.n_seqs = 1;
    batch.page_tokens = PAGE_TOKENS;
    batch.page_addr = quire_cache_page_addrs(e->cache); /* behind the last append of the step */
    require(quire_attn_begin(e->workspace, &batch), "quire_attn_begin");
    for (uint32_t l = 0; l < N_LAYER; l++) {
        quire_attn_layer layer = describe_layer(e, l);

        project(e, l, tokens, first, n);
        layer.out = e->out;
        quire_attn_append(e->workspace, &layer, 0, 1);
        quire_attn_run(e->workspace, &layer, l, 0, 1);
    }
    return e->out[(n - 1) * Q_FLOATS];
}

/* A request: take the longest cached beginning, compute the rest, leave all of it for others. */
static void request(engine *e, const char *name, const int32_t *tokens, uint32_t n)
{
    /* identity: all that K and V depend on beside the tokens. salt: the tenant. */
    const quire_prefix_key key = { .identity = { 1, 2 }, .salt = "tenant", .salt_bytes = 6 };
    quire_prefix_acquire_opts opts = { .tokens_max = n - 1 }; /* the last one gives the logits */
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id id;
    float out;

    opts.now_us = e->now_us++;
    require(quire_seq_open(e->cache, QUIRE_REGION_DYNAMIC, &id), "quire_seq_open");
    require(quire_prefix_acquire(e->tree, &key, id, tokens, n, &opts, &match, &ref),
            "quire_prefix_acquire");
    out = compute(e, id, tokens, match.n_tokens, n - match.n_tokens);
    require(quire_prefix_publish(e->tree, ref, tokens, n, e->now_us), "quire_prefix_publish");
    require(quire_prefix_release(e->tree, ref, e->now_us), "quire_prefix_release");
    require(quire_seq_close(e->cache, id), "quire_seq_close");
    (void)printf("%s: %u of %u tokens from the cache (%s), out %.4f\n", name, match.n_tokens, n,
                 quire_prefix_end_name(match.end), (double)out);
}

static void pin_system(engine *e, const int32_t *tokens)
{
    quire_pin_spec spec = { .name = "system", .tokens = tokens, .n_tokens = SYSTEM };
    uint64_t missing_bytes;
    quire_pin_id pin;

    spec.key = (quire_prefix_key){ .identity = { 1, 2 }, .salt = "tenant", .salt_bytes = 6 };
    require(quire_pins_reserve(e->pins, &spec, e->now_us, &pin, &missing_bytes),
            "quire_pins_reserve");
    require(quire_pins_hold(e->pins, pin, e->now_us, &missing_bytes), "quire_pins_hold");
}

static void open_engine(engine *e)
{
    const size_t tile_bytes = quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, HEAD_DIM);
    size_t part_bytes[N_LAYER];
    quire_cache_opts cache = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts tree = QUIRE_PREFIX_OPTS_INIT;
    quire_pins_opts pins = QUIRE_PINS_OPTS_INIT;
    quire_attn_workspace_opts attn = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    e->part_bytes = 2 * N_KV_HEAD * tile_bytes;
    for (uint32_t l = 0; l < N_LAYER; l++) {
        part_bytes[l] = e->part_bytes;
    }
    cache.page_tokens = PAGE_TOKENS;
    cache.page_bytes[0] = N_LAYER * e->part_bytes;
    cache.n_parts[0] = N_LAYER;
    cache.part_bytes[0] = part_bytes;
    cache.budget_bytes = 10 * cache.page_bytes[0]; /* ten pages: later requests push out others */
    require(quire_cache_create(&e->cache, &cache), "quire_cache_create");
    tree.cache = e->cache;
    require(quire_prefix_create(&e->tree, &tree), "quire_prefix_create");
    pins.tree = e->tree;
    require(quire_pins_create(&e->pins, &pins), "quire_pins_create");

    attn.n_threads_max = 1;
    attn.n_seqs_max = 1;
    attn.n_rows_max = N_ROWS;
    attn.n_head_max = N_HEAD;
    attn.head_dim_max = HEAD_DIM;
    attn.n_entries_max = 64;
    attn.page_tokens = PAGE_TOKENS;
    attn.n_layers_max = N_LAYER;
    require(quire_attn_workspace_create(&e->workspace, &attn), "quire_attn_workspace_create");
    for (uint32_t l = 0; l < N_LAYER; l++) {
        const quire_attn_layer layer = describe_layer(e, l);

        require(quire_attn_layer_check(e->workspace, &layer), "quire_attn_layer_check");
    }
}

/* The system prompt, and a question of its own. */
static void make_prompt(int32_t *tokens, int32_t question)
{
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = i < SYSTEM ? (int32_t)i : question * 1000 + (int32_t)i;
    }
}

int main(void)
{
    static engine e;
    int32_t tokens[PROMPT];
    char name[32];

    open_engine(&e);
    make_prompt(tokens, 1);
    request(&e, "first", tokens, PROMPT);
    request(&e, "again", tokens, PROMPT); /* the same output, from one computed token */
    pin_system(&e, tokens);
    for (int32_t i = 2; i < 10; i++) {
        make_prompt(tokens, i);
        (void)snprintf(name, sizeof(name), "question %d", (int)i);
        request(&e, name, tokens, PROMPT);
    }
    make_prompt(tokens, 1);
    request(&e, "first, later", tokens, PROMPT); /* its own pages have gone, the pin's have not */

    quire_attn_workspace_destroy(e.workspace);
    quire_pins_destroy(e.pins);
    quire_prefix_destroy(e.tree);
    quire_cache_destroy(e.cache);
    return 0;
}
