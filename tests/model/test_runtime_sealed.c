/* test_runtime_sealed.c - runtimes with sealed formats: which hot pages they keep, and that chunks,
 * forks, cuts, failures and synthetic KV leave no trace in results.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/runtime_internal.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define N_LAYER      3u
#define N_VOCAB      320u
#define N_CTX        1024u
#define N_TOKENS     600u

/* Formats by layer that stand for all: every sealed format on both sides, one side sealed only, and
 * layers that differ. */
static const char *const settings[] = {
    "*=q6", "*=q5", "*=q4", "*=q3", "*=q8:q4", "*=q4:f16", "*=f32:q3", "0=q8;1=q6:q3;2=f16:q4",
};

typedef struct bench {
    quire_model *model;
    const quire_model_desc *desc;
    quire_kv_pair pairs[N_LAYER];
    quire_runtime_opts opts;
    quire_runtime *runtime;
    quire_cache *cache;
} bench;

static bench bench_model(const char *formats)
{
    const gguf_gen_opts gen = fixture_llama("sealed", N_LAYER, N_VOCAB, N_CTX, 5);
    quire_error err = QUIRE_ERROR_INIT;
    bench b = { .opts = QUIRE_RUNTIME_OPTS_INIT };

    b.model = fixture_open(fixture_generate(&gen));
    b.desc = quire_model_desc_get(b.model);
    if (quire_kv_layers_parse(formats, b.desc, b.pairs, &err) < 0) {
        fail_msg("%s", err.message);
    }
    b.opts.n_ctx = N_CTX;
    b.opts.n_batch = 256;
    b.opts.n_seqs_max = 4;
    b.opts.n_threads = 1;
    b.opts.kv_budget_bytes = 64u << 20;
    return b;
}

static void bench_start(bench *b)
{
    b->opts.kv_pairs = b->pairs;
    b->runtime = fixture_runtime(b->model, &b->opts);
    b->cache = quire_runtime_cache(b->runtime);
}

static bench bench_open(const char *formats)
{
    bench b = bench_model(formats);

    bench_start(&b);
    return b;
}

static void bench_stop(bench *b)
{
    quire_cache_validate(b->cache);
    quire_runtime_destroy(b->runtime);
}

static void bench_close(bench *b)
{
    bench_stop(b);
    quire_model_close(b->model);
    fixture_generated_remove();
}

static const int32_t *tokens_of(uint64_t seed)
{
    static int32_t tokens[4][N_CTX];
    int32_t *out = tokens[seed % 4];
    quire_rng rng = { seed };

    for (uint32_t i = 0; i < N_CTX; i++) {
        out[i] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
    return out;
}

/* Tokens begin .. end - 1 in chunks; the last logits go to out (NULL: not wanted). */
static void advance(const bench *b, quire_seq_id seq, const int32_t *tokens, uint32_t begin,
                    uint32_t end, uint32_t chunk, float *out)
{
    for (uint32_t i = begin; i < end; i += chunk) {
        const uint32_t n = end - i < chunk ? end - i : chunk;
        const float *logits = fixture_step(b->runtime, seq, tokens + i, n, QUIRE_LOGITS_LAST);

        if (out != NULL) {
            memcpy(out, logits, N_VOCAB * sizeof *out);
        }
    }
}

static double rms(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum / (double)n);
}

static quire_page_id hot_page(const bench *b, quire_seq_id seq, uint32_t entry)
{
    quire_seq_table table;

    assert_int_equal(quire_seq_table_get(b->cache, seq, QUIRE_KV_GROUP_HOT, &table), QUIRE_OK);
    assert_true(entry < table.n_entries);
    return table.leaves[entry / QUIRE_LEAF_ENTRIES][entry % QUIRE_LEAF_ENTRIES].page;
}

/* ---- which hot pages there are ---- */

/* Just those that a row at the next token, or behind it, reads by the distance rule; a page as a
 * whole. */
static void check_hot_pages(const bench *b, quire_seq_id seq)
{
    const uint32_t page_tokens = b->opts.page_tokens;
    const uint32_t n = quire_seq_tokens(b->cache, seq);
    const uint32_t n_tiles = (n + QUIRE_TILE_TOKENS - 1) / QUIRE_TILE_TOKENS;
    const uint32_t next_tile = n / QUIRE_TILE_TOKENS;

    for (uint32_t e = 0; e * page_tokens < n; e++) {
        const uint32_t per_page = page_tokens / QUIRE_TILE_TOKENS;
        bool is_needed = (e + 1) * page_tokens > n; /* a tail is written on */

        for (uint32_t j = e * per_page; j < (e + 1) * per_page && j < n_tiles; j++) {
            is_needed = is_needed || next_tile - j <= b->opts.kv_recent / QUIRE_TILE_TOKENS ||
                        j >= next_tile || j < b->opts.kv_sinks / QUIRE_TILE_TOKENS;
        }
        if ((hot_page(b, seq, e) != QUIRE_PAGE_NULL) != is_needed) {
            fail_msg("%u tokens, pages of %u, recent %u, sinks %u: hot page %u is %s", n,
                     page_tokens, b->opts.kv_recent, b->opts.kv_sinks, e,
                     is_needed ? "gone" : "kept");
        }
    }
}

static void test_hot_pages_kept(void **state)
{
    static const struct {
        uint32_t page_tokens, recent, sinks, chunk;
    } cases[] = {
        { 64, 128, 64, 1 }, { 64, 0, 0, 1 },      { 64, 0, 64, 32 },   { 64, 128, 64, 64 },
        { 64, 64, 128, 7 }, { 128, 128, 64, 64 }, { 256, 64, 0, 100 }, { 64, 65536, 64, 256 },
    };
    bench b = bench_model("*=q4");

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int32_t *tokens = tokens_of(1);
        quire_seq_id seq;

        b.opts.page_tokens = cases[i].page_tokens;
        b.opts.kv_recent = cases[i].recent;
        b.opts.kv_sinks = cases[i].sinks;
        bench_start(&b);
        seq = fixture_seq(b.runtime);
        for (uint32_t n = 0; n + cases[i].chunk <= N_TOKENS; n += cases[i].chunk) {
            advance(&b, seq, tokens, n, n + cases[i].chunk, cases[i].chunk, NULL);
            check_hot_pages(&b, seq);
        }
        bench_stop(&b);
    }
    quire_model_close(b.model);
    fixture_generated_remove();
}

/* The default budget holds the whole context for steps of any shape. */
static void test_default_budget_suffices(void **state)
{
    static const struct {
        uint32_t page_tokens, recent, sinks, n_batch;
    } cases[] = {
        { 64, 128, 64, 256 }, { 64, 0, 0, 1 },        { 64, 0, 64, 33 },   { 128, 192, 64, 97 },
        { 256, 64, 320, 64 }, { 1024, 128, 64, 511 }, { 64, 640, 64, 65 },
    };
    bench b = bench_model("0=q3;1=q8;2=q4:q5");

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_cache_stats stats;
        quire_seq_id seq;

        b.opts.page_tokens = cases[i].page_tokens;
        b.opts.kv_recent = cases[i].recent;
        b.opts.kv_sinks = cases[i].sinks;
        b.opts.n_batch = cases[i].n_batch;
        b.opts.n_seqs_max = 1;
        b.opts.kv_budget_bytes = 0;
        bench_start(&b);
        seq = fixture_seq(b.runtime);
        advance(&b, seq, tokens_of(2), 0, 37, 37 < cases[i].n_batch ? 37 : 1, NULL);
        advance(&b, seq, tokens_of(2), 37, N_CTX, cases[i].n_batch, NULL);
        quire_cache_stats_get(b.cache, &stats);
        assert_int_equal(stats.budget_bytes, quire_runtime_kv_bytes(b.desc, &b.runtime->opts));
        assert_int_equal(quire_seq_truncate(b.cache, seq, 0), QUIRE_OK);
        assert_int_equal(quire_runtime_fill(b.runtime, seq, N_CTX, 1), QUIRE_OK);
        check_hot_pages(&b, seq);
        bench_stop(&b);
    }
    quire_model_close(b.model);
    fixture_generated_remove();
}

/* ---- contents of the tiles ---- */

static const unsigned char *tile_at(const bench *b, quire_page_id page, const quire_attn_lane *lane,
                                    uint32_t g)
{
    const quire_page_addr *addr = &quire_cache_page_addrs(b->cache)[page];

    return addr->extent + lane->offset + addr->slot * lane->page_stride + g * lane->head_stride;
}

/* Every full tile with a hot form equals that form sealed, in all layers, sides and heads. */
static void check_sealed_from_hot(const bench *b, quire_seq_id seq)
{
    const quire_codec *codec = quire_codec_get();
    const quire_tile_rows rows = { .d = 32, .n_tokens = QUIRE_TILE_TOKENS, .stride = 32 };
    static _Alignas(64) unsigned char sealed[64 * 32 * 4];
    static _Alignas(64) float x[64 * 32];
    quire_seq_table table;
    uint32_t n_checked = 0;

    assert_int_equal(quire_seq_table_get(b->cache, seq, QUIRE_KV_GROUP_MAIN, &table), QUIRE_OK);
    for (uint32_t e = 0; e < table.n_tokens / QUIRE_TILE_TOKENS; e++) {
        const quire_page_id hot = hot_page(b, seq, e);

        for (uint32_t i = 0; hot != QUIRE_PAGE_NULL && i < N_LAYER * 2 * 2; i++) {
            const quire_attn_layer *layer = &b->runtime->ops[i / 4].layer;
            const bool is_k = i / 2 % 2 == 0;
            const quire_attn_source *store = is_k ? &layer->k_store : &layer->v_store;
            const quire_format format = store->format;

            if (!quire_format_is_sealed(format)) {
                continue;
            }
            (is_k ? codec->decode_k : codec->decode_v)(QUIRE_FORMAT_HOT, &rows,
                                                       tile_at(b, hot, &store->hot_lane, i % 2), x);
            (is_k ? codec->encode_k : codec->encode_v)(format, &rows, x, sealed);
            assert_memory_equal(sealed, tile_at(b, table.leaves[0][e].page, &store->lane, i % 2),
                                quire_tile_bytes(format, is_k ? QUIRE_SIDE_K : QUIRE_SIDE_V, 32));
            n_checked++;
        }
    }
    assert_true(n_checked > 0);
}

/* Steps and synthetic KV alike, also where synthetic tokens go on in a tile of computed ones. */
static void test_tiles_are_sealed_from_hot(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        bench b = bench_open(settings[i]);
        quire_seq_id seq = fixture_seq(b.runtime);
        quire_seq_id filled = fixture_seq(b.runtime);

        advance(&b, seq, tokens_of(3), 0, 333, 50, NULL);
        check_sealed_from_hot(&b, seq);
        advance(&b, filled, tokens_of(3), 0, 70, 70, NULL);
        assert_int_equal(quire_runtime_fill(b.runtime, filled, 58, 4), QUIRE_OK);
        check_sealed_from_hot(&b, filled); /* the tile that both wrote to is among them */
        assert_int_equal(quire_runtime_fill(b.runtime, filled, 301, 4), QUIRE_OK);
        assert_int_equal(quire_seq_tokens(b.cache, filled), 429);
        check_sealed_from_hot(&b, filled);
        check_hot_pages(&b, filled);
        bench_close(&b);
    }
}

/* ---- inputs of attention ---- */

/* In every layer that rounds K and queries together, append() gets the queries and attention the
 * new K, in steps with logits and without. In other layers neither does. Returns the number of
 * layers that attend. */
static uint32_t check_sources(const bench *b, struct ggml_cgraph *cgraph)
{
    uint32_t n_attend = 0;

    for (int i = 0; i < ggml_graph_n_nodes(cgraph); i++) {
        const struct ggml_tensor *attention = ggml_graph_node(cgraph, i);
        const struct ggml_tensor *append = attention->src[1];

        if (attention->op != GGML_OP_CUSTOM || append == NULL || append->op != GGML_OP_CUSTOM ||
            ggml_nelements(append) != 1) {
            continue;
        }
        if (quire_attn_pairs_qk(&b->runtime->ops[n_attend++].layer)) {
            assert_non_null(append->src[2]);
            assert_ptr_equal(append->src[2], attention->src[0]);
            assert_ptr_equal(attention->src[2], append->src[0]);
        } else {
            assert_null(append->src[2]);
            assert_null(attention->src[2]);
        }
    }
    return n_attend;
}

static void test_attention_gets_its_sources(void **state)
{
    bench b = bench_open("0=q8;1=f16;2=q4:f16");
    quire_seq_id seq = fixture_seq(b.runtime);
    uint32_t n_graphs = 0;

    (void)state;
    (void)fixture_step(b.runtime, seq, tokens_of(1), 70, QUIRE_LOGITS_NONE);
    (void)fixture_step(b.runtime, seq, tokens_of(1) + 70, 3, QUIRE_LOGITS_LAST);
    for (uint32_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        const quire_graph *graph = &b.runtime->graphs.entries[i];

        if (graph->ctx != NULL) {
            assert_int_equal(check_sources(&b, graph->cgraph),
                             graph->n_logits > 0 ? N_LAYER : N_LAYER - 1);
            n_graphs++;
        }
    }
    assert_int_equal(n_graphs, 2);
    bench_close(&b);
}

/* ---- results ---- */

/* f32 weights: ggml's products differ in the order of additions between batch sizes, and a
 * difference in the last bit can move a code by one. The resulting error stays far below that of
 * the format. */
static void test_chunks_do_not_matter(void **state)
{
    static const uint32_t chunks[] = { 1, 7, 64, 200 };
    const int32_t *tokens = tokens_of(1);
    static float exact[N_VOCAB], whole[N_VOCAB], pieces[N_VOCAB];

    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        bench f32 = bench_open("*=f32");
        bench b;
        double format_costs;

        advance(&f32, fixture_seq(f32.runtime), tokens, 0, 450, 225, exact);
        bench_close(&f32);
        b = bench_open(settings[i]);
        advance(&b, fixture_seq(b.runtime), tokens, 0, 450, 225, whole);
        format_costs = rms(exact, whole, N_VOCAB);
        for (size_t j = 0; j < COUNT(chunks); j++) {
            quire_seq_id seq = fixture_seq(b.runtime);
            double difference;

            advance(&b, seq, tokens, 0, 450, chunks[j], pieces);
            difference = rms(whole, pieces, N_VOCAB);
            if (!(difference < 0.3 * format_costs && format_costs < 0.5)) {
                fail_msg("%s, chunks of %u: differ by %g, the format costs %g", settings[i],
                         chunks[j], difference, format_costs);
            }
            assert_int_equal(quire_seq_close(b.cache, seq), QUIRE_OK);
        }
        bench_close(&b);
    }
}

/* A fork inside a page, deep enough that hot pages are gone on both sides: each goes on as if it
 * were alone, bit by bit. */
static void test_fork_then_diverge(void **state)
{
    static float expected[2][N_VOCAB], got[2][N_VOCAB];

    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        bench b = bench_open(settings[i]);
        quire_seq_id seq = fixture_seq(b.runtime);
        quire_seq_id fork = QUIRE_SEQ_NULL;
        int32_t other[N_CTX];

        memcpy(other, tokens_of(1), sizeof other);
        memcpy(other + 300, tokens_of(2) + 300, sizeof other - 300 * sizeof *other);
        for (int side = 0; side < 2; side++) {
            quire_seq_id alone = fixture_seq(b.runtime);
            const int32_t *tokens = side == 0 ? tokens_of(1) : other;

            advance(&b, alone, tokens, 0, 300, 150, NULL);
            advance(&b, alone, tokens, 300, 500, 40, expected[side]);
            assert_int_equal(quire_seq_close(b.cache, alone), QUIRE_OK);
        }
        advance(&b, seq, tokens_of(1), 0, 300, 150, NULL);
        assert_int_equal(quire_seq_fork(b.cache, seq, &fork), QUIRE_OK);
        for (uint32_t n = 300; n < 500; n += 40) { /* in turns, so that leaves part on the way */
            advance(&b, fork, other, n, n + 40, 40, got[1]);
            advance(&b, seq, tokens_of(1), n, n + 40, 40, got[0]);
            quire_cache_validate(b.cache);
        }
        assert_memory_equal(expected, got, sizeof got);
        assert_true(rms(got[0], got[1], N_VOCAB) > 1e-3);
        bench_close(&b);
    }
}

/* Cut inside the tile that the next token belongs to: the same bits as without the cut tokens. */
static void test_cut_and_go_on(void **state)
{
    static float expected[N_VOCAB], got[N_VOCAB];

    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        bench b = bench_open(settings[i]);
        quire_seq_id seq = fixture_seq(b.runtime);
        quire_seq_id cut = fixture_seq(b.runtime);

        advance(&b, seq, tokens_of(1), 0, 290, 145, NULL);
        advance(&b, seq, tokens_of(1), 290, 330, 20, expected);
        advance(&b, cut, tokens_of(1), 0, 290, 145, NULL);
        advance(&b, cut, tokens_of(2), 290, 319, 10, NULL); /* other tokens */
        assert_int_equal(quire_seq_truncatable(b.cache, cut, 290), 290);
        assert_int_equal(quire_seq_truncate(b.cache, cut, 290), QUIRE_OK);
        advance(&b, cut, tokens_of(1), 290, 330, 20, got);
        assert_memory_equal(expected, got, sizeof got);
        bench_close(&b);
    }
}

/* The logits after a text computed from its start. */
static void logits_of(const bench *b, const int32_t *tokens, uint32_t n, float *out)
{
    const quire_seq_id seq = fixture_seq(b->runtime);

    advance(b, seq, tokens, 0, n, 130, out);
    assert_int_equal(quire_seq_close(b->cache, seq), QUIRE_OK);
}

/* Cut to where hot pages are gone: the cut moves to the start of a page, the tokens from there are
 * computed again, and tiles that were hot are read sealed. The logits move by less than one wrong
 * tile among five would move them, and by less than the distance of unrelated texts. */
static void check_cut(const char *formats, uint32_t recent, uint32_t at, uint32_t end)
{
    static float expected[N_VOCAB], got[N_VOCAB], wrong[N_VOCAB], unrelated[N_VOCAB];
    bench b = bench_model(formats);
    const uint32_t page = at / QUIRE_TILE_TOKENS;
    int32_t tokens[N_CTX];
    quire_seq_id seq;
    double difference, of_tile, of_texts;

    b.opts.kv_recent = recent;
    bench_start(&b);
    memcpy(tokens, tokens_of(1), sizeof tokens);
    memcpy(tokens + at, tokens_of(2) + at, sizeof tokens - at * sizeof *tokens);
    logits_of(&b, tokens, end, expected);
    logits_of(&b, tokens_of(3), end, unrelated);
    memcpy(tokens + QUIRE_TILE_TOKENS, tokens_of(3), QUIRE_TILE_TOKENS * sizeof *tokens);
    logits_of(&b, tokens, end, wrong);
    memcpy(tokens + QUIRE_TILE_TOKENS, tokens_of(1) + QUIRE_TILE_TOKENS,
           QUIRE_TILE_TOKENS * sizeof *tokens);

    seq = fixture_seq(b.runtime);
    advance(&b, seq, tokens_of(1), 0, 600, 150, NULL);
    assert_int_equal(quire_seq_truncate(b.cache, seq, at), QUIRE_RANGE);
    assert_int_equal(quire_seq_tokens(b.cache, seq), 600);
    assert_int_equal(quire_seq_truncatable(b.cache, seq, at), page * QUIRE_TILE_TOKENS);
    assert_int_equal(quire_seq_truncate(b.cache, seq, page * QUIRE_TILE_TOKENS), QUIRE_OK);
    advance(&b, seq, tokens, page * QUIRE_TILE_TOKENS, end, 68, got);
    /* Tiles 1 and up stay gone, the new ones are there. */
    assert_int_equal(hot_page(&b, seq, page - 1), QUIRE_PAGE_NULL);
    assert_int_not_equal(hot_page(&b, seq, end / QUIRE_TILE_TOKENS), QUIRE_PAGE_NULL);
    assert_int_not_equal(hot_page(&b, seq, 0), QUIRE_PAGE_NULL);
    difference = rms(expected, got, N_VOCAB);
    of_tile = rms(expected, wrong, N_VOCAB);
    of_texts = rms(expected, unrelated, N_VOCAB);
    /* Nothing was hot and nothing differs, or 0.23 of the wrong tile and less (q3). */
    if (!(difference < of_tile / (recent == 0 ? 10 : 3) && of_tile < of_texts)) {
        fail_msg("%s, recent %u, cut at %u: differs by %g, a wrong tile by %g, texts by %g",
                 formats, recent, at, difference, of_tile, of_texts);
    }
    bench_close(&b);
}

static void test_cut_far_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        check_cut(settings[i], QUIRE_KV_RECENT_DEFAULT, 250, 260);
        check_cut(settings[i], QUIRE_KV_RECENT_DEFAULT, 150, 250);
        check_cut(settings[i], 0, 150, 250);
    }
}

/* ---- failures ---- */

static void test_failed_step_changes_nothing(void **state)
{
    static float expected[N_VOCAB], got[N_VOCAB];
    bench b = bench_model("0=q4;1=q8:q3;2=f16");
    quire_seq_id seq, other;
    quire_cache_stats before, after;
    quire_page_id hot[8];
    const float *logits = NULL;
    quire_slice slice;
    uint32_t n_other = 0;

    (void)state;
    b.opts.kv_budget_bytes = 0; /* of one sequence, for two */
    b.opts.n_batch = 128;
    bench_start(&b);
    seq = fixture_seq(b.runtime);
    other = fixture_seq(b.runtime);
    advance(&b, seq, tokens_of(1), 0, 400, 100, NULL);
    for (int rc = QUIRE_OK; rc == QUIRE_OK;) {
        slice = (quire_slice){ .seq = other,
                               .tokens = tokens_of(2) + n_other,
                               .n_tokens = 32,
                               .logits = QUIRE_LOGITS_LAST };
        rc = quire_runtime_step(b.runtime, &slice, 1, &logits);
        n_other += rc == QUIRE_OK ? 32 : 0;
        assert_true(rc == QUIRE_OK || rc == QUIRE_NOPAGES);
    }
    assert_int_equal(quire_seq_tokens(b.cache, other), n_other);
    quire_cache_stats_get(b.cache, &before);
    for (uint32_t e = 0; e < 7; e++) {
        hot[e] = hot_page(&b, seq, e);
    }
    slice = (quire_slice){
        .seq = seq, .tokens = tokens_of(1) + 400, .n_tokens = 128, .logits = QUIRE_LOGITS_LAST
    };
    assert_int_equal(quire_runtime_step(b.runtime, &slice, 1, &logits), QUIRE_NOPAGES);
    assert_null(logits);
    assert_int_equal(quire_runtime_fill(b.runtime, seq, 500, 1), QUIRE_NOPAGES);
    quire_cache_validate(b.cache);
    quire_cache_stats_get(b.cache, &after);
    assert_int_equal(quire_seq_tokens(b.cache, seq), 400);
    assert_int_equal(before.charged_bytes, after.charged_bytes);
    for (uint32_t e = 0; e < 7; e++) {
        assert_int_equal(hot_page(&b, seq, e), hot[e]);
    }
    assert_int_equal(quire_seq_close(b.cache, other), QUIRE_OK);
    advance(&b, seq, tokens_of(1), 400, 528, 128, got);
    other = fixture_seq(b.runtime);
    assert_int_equal(quire_seq_close(b.cache, seq), QUIRE_OK);
    advance(&b, other, tokens_of(1), 0, 400, 100, NULL);
    advance(&b, other, tokens_of(1), 400, 528, 128, expected);
    assert_memory_equal(expected, got, sizeof got);
    bench_close(&b);
}

static void create_fails(bench *b, int status, const char *word)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime = NULL;

    b->opts.kv_pairs = b->pairs;
    assert_int_equal(quire_runtime_create(&runtime, b->model, &b->opts, &err), status);
    assert_null(runtime);
    if (strstr(err.message, word) == NULL) {
        fail_msg("'%s' lacks '%s'", err.message, word);
    }
}

static void test_create_refuses(void **state)
{
    bench b = bench_model("0=q8;*=q4");
    const quire_runtime_opts good = b.opts;

    (void)state;
    b.opts.is_contiguous = true;
    create_fails(&b, QUIRE_UNSUPP, "contiguous");
    b.opts = good;
    b.opts.kv_recent = 100;
    create_fails(&b, QUIRE_INVAL, "100");
    b.opts = good;
    b.opts.kv_sinks = 65;
    create_fails(&b, QUIRE_INVAL, "65");
    b.opts = good;
    b.opts.kv_pairs = b.pairs;
    b.opts.kv_budget_bytes = quire_runtime_kv_bytes(b.desc, &b.opts) - 1;
    create_fails(&b, QUIRE_NOPAGES, "q8 in 1 layer, q4 in 2");
    b.opts.kv_budget_bytes++;
    bench_start(&b);
    bench_stop(&b);
    b.opts = good;
    b.pairs[2].v = QUIRE_FORMAT_COUNT;
    create_fails(&b, QUIRE_INVAL, "layer 2");
    b.pairs[1] = b.pairs[2] = b.pairs[0]; /* nothing sealed: contiguous will do */
    b.opts.is_contiguous = true;
    bench_start(&b);
    bench_close(&b);
}

/* ---- a real model ---- */

/* Mean negative log-likelihood of tokens 1 .. n - 1. */
static double mean_nll(const quire_model *model, quire_format format, const int32_t *tokens,
                       uint32_t n)
{
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_runtime *runtime;
    double sum = 0;
    const float *logits;

    opts.n_ctx = n;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = format;
    opts.kv_recent = opts.kv_sinks = 0; /* the hardest */
    runtime = fixture_runtime(model, &opts);
    logits = fixture_step(runtime, fixture_seq(runtime), tokens, n, QUIRE_LOGITS_ALL);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * n_vocab;
        double total = 0;

        for (uint32_t j = 0; j < n_vocab; j++) {
            total += exp((double)row[j] - (double)row[tokens[i + 1]]);
        }
        sum += log(total) / (n - 1);
    }
    quire_runtime_destroy(runtime);
    return sum;
}

static void test_text_is_predicted_as_well(void **state)
{
    static const struct {
        quire_format format;
        double nll_more_max; /* seen: 0.002 and less down to q4, 0.03 for q3 */
    } cases[] = { { QUIRE_FORMAT_Q8, 0.01 },
                  { QUIRE_FORMAT_Q6, 0.01 },
                  { QUIRE_FORMAT_Q5, 0.015 },
                  { QUIRE_FORMAT_Q4, 0.03 },
                  { QUIRE_FORMAT_Q3, 0.10 } };
    static const char text[] =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "sunshine. One day, she saw a big, red ball in the park. She wanted to play with it, but "
        "it was too high up in a tree. Lily asked her friend, a bird, to help her. The bird flew "
        "up "
        "and pushed the ball down. Lily was very happy. She thanked the bird and they played with "
        "the ball all day. When the sun went down, Lily went home and told her mom about the ball "
        "and the bird. Her mom smiled and gave her a big hug. Lily went to bed and dreamed of "
        "playing with the bird again. The next day, the bird came back with a friend.";
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    int32_t tokens[256];
    const int64_t n =
        quire_model_tokenize(model, text, sizeof text - 1, true, false, tokens, COUNT(tokens));
    double exact;

    (void)state;
    assert_in_range(n, 150, 256);
    exact = mean_nll(model, QUIRE_FORMAT_F16, tokens, (uint32_t)n);
    assert_true(exact < 2.0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const double nll = mean_nll(model, cases[i].format, tokens, (uint32_t)n);

        (void)printf("%s: nll %.4f, f16 %.4f\n", quire_format_name(cases[i].format), nll, exact);
        assert_true(fabs(nll - exact) < cases[i].nll_more_max);
    }
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_pages_kept),
        cmocka_unit_test(test_default_budget_suffices),
        cmocka_unit_test(test_tiles_are_sealed_from_hot),
        cmocka_unit_test(test_attention_gets_its_sources),
        cmocka_unit_test(test_chunks_do_not_matter),
        cmocka_unit_test(test_fork_then_diverge),
        cmocka_unit_test(test_cut_and_go_on),
        cmocka_unit_test(test_cut_far_back),
        cmocka_unit_test(test_failed_step_changes_nothing),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_text_is_predicted_as_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
