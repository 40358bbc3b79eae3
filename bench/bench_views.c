/* bench_views.c - the cost of an open dashboard for decode: steps of one request while a client
 * asks for the page map of a large cache all the time, and without that client, in turns.
 *
 *   bench_views [pages, default 100000] [tokens a turn, default 2000] [turns, default 5]
 *
 * Pages are published without being computed. The program includes the engine's internal headers.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/clock.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_call.h"
#include "engine/views.h"
#include "gguf_gen.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE   64u
#define N_TEXT 64u /* pages of a text */
#define N_CTX  8192u

typedef struct looker {
    quire_engine *engine;
    atomic_bool is_over;
    uint32_t n_maps;
    uint32_t n_in_use;
} looker;

static void die(const char *what)
{
    fprintf(stderr, "bench_views: %s\n", what);
    exit(1);
}

static void *looker_main(void *arg)
{
    looker *l = arg;

    while (!atomic_load(&l->is_over)) {
        quire_page_map map;

        if (quire_engine_page_map(l->engine, &map) == QUIRE_OK) {
            l->n_maps++;
            l->n_in_use = map.n_in_use;
        }
        quire_page_map_fini(&map);
    }
    return NULL;
}

/* A text of N_TEXT pages that is in no other. */
static void publish(quire_cache *cache, quire_prefix *tree, uint32_t number)
{
    const quire_prefix_key key = { .identity = { 1, 2 } };
    const quire_prefix_acquire_opts opts = { .tokens_max = 0 };
    int32_t tokens[N_TEXT * PAGE];
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;

    for (uint32_t i = 0; i < N_TEXT * PAGE; i++) {
        tokens[i] = (int32_t)(number * 31 + i);
    }
    if (quire_seq_open(cache, QUIRE_REGION_DYNAMIC, &seq) < 0 ||
        quire_prefix_acquire(tree, &key, seq, tokens, N_TEXT * PAGE, &opts, &match, &ref) < 0 ||
        quire_seq_reserve(cache, seq, N_TEXT * PAGE) < 0 ||
        quire_seq_append(cache, seq, N_TEXT * PAGE) < 0 ||
        quire_prefix_publish(tree, ref, tokens, N_TEXT * PAGE, 1) < 0) {
        die("the cache does not take so many pages");
    }
    (void)quire_prefix_release(tree, ref, 1);
    (void)quire_seq_close(cache, seq);
}

static void fill(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const uint32_t n_pages = *(const uint32_t *)ctx;

    for (uint32_t i = 0; i < n_pages / N_TEXT; i++) {
        publish(cache, tree, i);
    }
}

/* Microseconds a token. */
static double decode(quire_engine *engine, uint32_t n_tokens)
{
    const int32_t prompt[] = { 300, 301, 302, 303 };
    quire_request_params params = {
        .tokens = prompt,
        .n_tokens = 4,
        .max_tokens = n_tokens,
        .sampler = QUIRE_SAMPLER_OPTS_INIT,
        .ignores_eos = true,
        .is_uncached = true,
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_request_token token;
    quire_request *request;
    double us;

    params.sampler.temperature = 0.0f;
    if (quire_engine_submit(engine, &params, &request, &err) < 0) {
        die(err.message);
    }
    while (quire_request_wait(request, UINT32_MAX, 60000, &token) != 0) {
    }
    us = (double)quire_request_result_get(request)->decode_us / (n_tokens - 1);
    quire_request_release(request);
    return us;
}

static double decode_looked_at(quire_engine *engine, uint32_t n_tokens, looker *l)
{
    pthread_t thread;
    double us;

    *l = (looker){ .engine = engine };
    if (pthread_create(&thread, NULL, looker_main, l) != 0) {
        die("no thread");
    }
    us = decode(engine, n_tokens);
    atomic_store(&l->is_over, true);
    (void)pthread_join(thread, NULL);
    return us;
}

static quire_model *model_make(void)
{
    const gguf_gen_opts gen = {
        .arch = "llama",
        .name = "views",
        .n_layer = 4,
        .n_embd = 512,
        .n_ff = 1536,
        .n_head = 8,
        .n_kv_head = 1,
        .d_head = 16,
        .n_vocab = 2048,
        .n_ctx = N_CTX,
        .rope_base = 1e4f,
        .vocab = GGUF_GEN_VOCAB_SPM,
        .type = GGML_TYPE_F32,
        .seed = 7,
    };
    char path[] = "/tmp/bench_views_XXXXXX";
    const int fd = mkstemp(path);
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;

    if (fd < 0 || close(fd) != 0 || gguf_gen_write(&gen, path, &err) < 0 ||
        quire_model_open(&model, path, NULL, &err) < 0) {
        die(err.message);
    }
    (void)unlink(path);
    return model;
}

int main(int argc, char **argv)
{
    uint32_t n_pages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 100000;
    const uint32_t n_tokens = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2000;
    const uint32_t n_turns = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 5;
    quire_runtime_opts runtime_opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_stats before, after;
    quire_engine *engine;
    looker l;

    if (n_tokens < 2 || n_tokens > N_CTX - 8) {
        die("tokens a turn: 2 to 8184");
    }
    runtime_opts.n_ctx = N_CTX;
    runtime_opts.n_seqs_max = 2;
    runtime_opts.n_threads = 1;
    opts.model = model_make();
    runtime_opts.kv_budget_bytes = (uint64_t)(n_pages + 1024) * PAGE * 4 * 2 * 16 * 2;
    if (quire_runtime_create(&opts.runtime, opts.model, &runtime_opts, &err) < 0) {
        die(err.message);
    }
    opts.cache_policy = QUIRE_EVICT_LRU;
    if (quire_engine_create(&engine, &opts, &err) < 0) {
        die(err.message);
    }
    if (quire_loop_call(engine->loop, fill, &n_pages) < 0) {
        die("the engine has ended");
    }
    printf("turn  us/token alone  watched  ratio  maps  pages  views' share of steps\n");
    for (uint32_t i = 0; i < n_turns; i++) {
        const double alone = decode(engine, n_tokens);
        double watched;
        double share;

        quire_engine_stats_get(engine, &before);
        watched = decode_looked_at(engine, n_tokens, &l);
        quire_engine_stats_get(engine, &after);
        share = (after.views_seconds_total - before.views_seconds_total) /
                (after.step_seconds_total - before.step_seconds_total);
        printf("%4u  %14.1f  %7.1f  %5.3f  %4u  %5u  %.2f %%\n", i, alone, watched, watched / alone,
               l.n_maps, l.n_in_use, 100.0 * share);
    }
    quire_engine_destroy(engine);
    quire_runtime_destroy(opts.runtime);
    quire_model_close((quire_model *)(uintptr_t)opts.model);
    return 0;
}
