/* engine_fixture.c - see engine_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "arch_cases.h"
#include "base/rng.h"
#include "doze.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "gguf_gen_scheme.h"
#include "model/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_FIRST 262u /* behind control and byte tokens */

quire_runtime_opts bench_runtime_opts(uint32_t n_ctx, uint32_t n_seqs_max)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = n_ctx;
    opts.n_seqs_max = n_seqs_max;
    opts.n_threads = 1; /* spinning threads suffer when machines are shared */
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    return opts;
}

uint32_t bench_device_layers;
uint32_t bench_sets;

static engine_bench bench_open(const char *path, const quire_engine_opts *engine,
                               const quire_runtime_opts *runtime)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_model_opts model = { .n_sets = bench_sets, .n_device_layers = bench_device_layers };
    quire_engine_opts opts = *engine;
    engine_bench b;

    assert_int_equal(quire_backend_init(&err), QUIRE_OK);
    for (uint32_t i = 0; i < QUIRE_MODEL_SETS_MAX; i++) {
        model.devices[i] = quire_backend_cpu();
    }
    if (quire_model_open(&b.model, path, &model, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    b.runtime = fixture_runtime(b.model, runtime);
    b.n_vocab = quire_model_desc_get(b.model)->n_vocab;
    opts.model = b.model;
    opts.runtime = b.runtime;
    if (quire_engine_create(&b.engine, &opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return b;
}

gguf_gen_opts bench_gen_opts(enum ggml_type type, uint32_t d_head, uint32_t n_layer, uint32_t n_ctx)
{
    return (gguf_gen_opts){
        .arch = "llama",
        .name = "engine test",
        .n_layer = n_layer,
        .n_embd = 64,
        .n_ff = 128,
        .n_head = 4,
        .n_kv_head = 2,
        .d_head = d_head,
        .n_vocab = 320,
        .n_ctx = n_ctx,
        .rope_base = 1e4f,
        .vocab = GGUF_GEN_VOCAB_SPM,
        .type = type,
        .seed = 7,
    };
}

engine_bench bench_generated(const gguf_gen_opts *gen, const quire_engine_opts *engine,
                             const quire_runtime_opts *runtime)
{
    const engine_bench b = bench_open(fixture_generate(gen), engine, runtime);

    fixture_generated_remove();
    return b;
}

engine_bench bench_scheme(const char *scheme, const quire_engine_opts *engine,
                          const quire_runtime_opts *runtime)
{
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 32, 4, runtime->n_ctx);
    quire_error err = QUIRE_ERROR_INIT;

    if (gguf_gen_scheme_apply(&gen, scheme, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_windows(const int32_t windows[4], const quire_engine_opts *engine,
                           const quire_runtime_opts *runtime)
{
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 32, 4, runtime->n_ctx);
    quire_error err = QUIRE_ERROR_INIT;

    if (gguf_gen_scheme_apply(&gen, "gqa", &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    memcpy(gen.windows, windows, 4 * sizeof *windows);
    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_recurrent(const char *arch, const quire_engine_opts *engine,
                             const quire_runtime_opts *runtime)
{
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 32, 5, runtime->n_ctx);

    (void)snprintf(gen.arch, sizeof gen.arch, "%s", arch);
    gen.is_tied = true;
    gen.attention_every = 2; /* the last layer is recurrent */
    gen.conv_taps = 3;
    if (strcmp(arch, "lfm2") != 0) {
        gen.n_delta_k_heads = 2;
        gen.n_delta_v_heads = 4;
        gen.d_delta_head = 32;
        gen.d_mamba_state = strcmp(arch, "qwen35") != 0 ? 16 : 0;
    }
    if (strcmp(arch, "nemotron_h_moe") == 0) {
        gen.n_experts = 4;
        gen.n_experts_used = 2;
        gen.n_ff_expert = gen.n_ff_shared = gen.n_embd_expert = 64;
    }
    gen.vocab = GGUF_GEN_VOCAB_BPE;
    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_family(const char *name, uint32_t window, const quire_engine_opts *engine,
                          const quire_runtime_opts *runtime)
{
    arch_family family;

    assert_true(arch_family_find(name, &family));
    family.options.n_ctx = runtime->n_ctx;
    if (family.options.sliding_window != 0) {
        family.options.sliding_window = window;
    }
    return bench_generated(&family.options, engine, runtime);
}

engine_bench bench_tiny(const quire_engine_opts *engine, const quire_runtime_opts *runtime)
{
    const gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_F32, 16, 2, runtime->n_ctx);

    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_panels(uint32_t d_head, const quire_engine_opts *engine,
                          const quire_runtime_opts *runtime)
{
    const gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, d_head, 2, runtime->n_ctx);

    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_deep(uint32_t n_layer, const quire_engine_opts *engine,
                        const quire_runtime_opts *runtime)
{
    const gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_F32, 32, n_layer, runtime->n_ctx);

    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_deep_panels(uint32_t n_layer, const quire_engine_opts *engine,
                               const quire_runtime_opts *runtime)
{
    const gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 32, n_layer, runtime->n_ctx);

    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_unturned(bool has_halves, const quire_engine_opts *engine,
                            const quire_runtime_opts *runtime)
{
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 32, 4, runtime->n_ctx);

    if (has_halves) {
        (void)snprintf(gen.arch, sizeof gen.arch, "glm4");
        gen.n_rot = 16;
    } else {
        (void)snprintf(gen.arch, sizeof gen.arch, "smollm3"); /* each fourth layer */
        gen.is_tied = true;
    }
    return bench_generated(&gen, engine, runtime);
}

engine_bench bench_latent(const quire_engine_opts *engine, const quire_runtime_opts *runtime)
{
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 40, 2, runtime->n_ctx);

    (void)snprintf(gen.arch, sizeof gen.arch, "deepseek2");
    gen.n_rot = 8;
    gen.n_latent = 32;
    gen.n_latent_q = 32;
    gen.d_value = 32;
    gen.n_experts = 4;
    gen.n_experts_used = 2;
    gen.n_ff_expert = gen.n_ff_shared = 64;
    return bench_generated(&gen, engine, runtime);
}

void bench_close(engine_bench *b)
{
    quire_cache_stats stats;

    quire_engine_destroy(b->engine);
    quire_cache_validate(quire_runtime_cache(b->runtime));
    quire_cache_stats_get(quire_runtime_cache(b->runtime), &stats);
    assert_int_equal(stats.pages_live, 0);
    assert_int_equal(stats.charged_bytes, 0);
    assert_int_equal(stats.seqs_open, 0);
    quire_runtime_destroy(b->runtime);
    quire_model_close(b->model);
}

void tokens_make(int32_t *tokens, uint32_t n, uint64_t seed)
{
    quire_rng rng = { seed };

    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(TOKEN_FIRST + quire_rng_below(&rng, 320 - TOKEN_FIRST));
    }
}

quire_request_params params_greedy(const int32_t *tokens, uint32_t n, uint32_t max_tokens)
{
    quire_request_params params = {
        .tokens = tokens,
        .n_tokens = n,
        .max_tokens = max_tokens,
        .sampler = QUIRE_SAMPLER_OPTS_INIT,
        .ignores_eos = true,
    };

    params.sampler.temperature = 0.0f;
    return params;
}

quire_request *submit(const engine_bench *b, const quire_request_params *params)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request = NULL;

    if (quire_engine_submit(b->engine, params, &request, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return request;
}

uint32_t collect(quire_request *request, int32_t *tokens, uint32_t n)
{
    quire_request_token token;
    uint32_t i = 0;
    int rc;

    while ((rc = quire_request_wait(request, i, FIXTURE_WAIT_MS, &token)) == 1) {
        assert_true(i < n);
        tokens[i++] = token.token;
    }
    assert_int_equal(rc, 0);
    return i;
}

const quire_request_result *finish(quire_request *request)
{
    quire_request_token token;

    assert_int_equal(quire_request_wait(request, UINT32_MAX, FIXTURE_WAIT_MS, &token), 0);
    return quire_request_result_get(request);
}

void finish_as(quire_request *request, quire_finish ending)
{
    const quire_request_result *result = finish(request);

    if (result->finish != ending) {
        fail_msg("ended as %s (%s), not %s", quire_finish_name(result->finish), result->message,
                 quire_finish_name(ending));
    }
    quire_request_release(request);
}

/* Between a token and the best other one. */
static float gap_of(const float *logits, uint32_t n_vocab, int32_t token)
{
    float gap = INFINITY;

    for (uint32_t i = 0; i < n_vocab; i++) {
        if (i != (uint32_t)token) {
            gap = fminf(gap, logits[token] - logits[i]);
        }
    }
    return gap;
}

float reference(const engine_bench *b, const int32_t *prompt, uint32_t n_prompt, int32_t *tokens,
                uint32_t n)
{
    const quire_runtime_opts *like = quire_runtime_opts_get(b->runtime);
    quire_runtime_opts opts = *like;
    quire_runtime *runtime;
    quire_seq_id seq;
    const float *logits = NULL;
    float gap = INFINITY;

    opts.n_seqs_max = 1;
    opts.kv_budget_bytes = 0;
    runtime = fixture_runtime(b->model, &opts);
    seq = fixture_seq(runtime);
    for (uint32_t i = 0; i < n_prompt; i += like->n_batch) {
        const uint32_t n_now = n_prompt - i < like->n_batch ? n_prompt - i : like->n_batch;

        logits = fixture_step(runtime, seq, prompt + i, n_now, QUIRE_LOGITS_LAST);
    }
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = fixture_argmax(logits, b->n_vocab);
        gap = fminf(gap, gap_of(logits, b->n_vocab, tokens[i]));
        if (i + 1 < n) {
            logits = fixture_step(runtime, seq, &tokens[i], 1, QUIRE_LOGITS_LAST);
        }
    }
    quire_runtime_destroy(runtime);
    return gap;
}

int engine_call(quire_engine *engine, quire_loop_fn fn, void *ctx)
{
    return quire_loop_call(engine->loop, fn, ctx);
}

/* ---- the gate ---- */

/* One hold: a call that does not return before it is let go. */
typedef struct hold {
    quire_loop *loop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_holding;
    bool is_let_go;
} hold;

struct gate {
    quire_loop *loop;
    hold *hold;
};

static void hold_fn(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    hold *h = ctx;

    (void)cache;
    (void)tree;
    (void)pthread_mutex_lock(&h->lock);
    h->is_holding = true;
    (void)pthread_cond_broadcast(&h->changed);
    while (!h->is_let_go) {
        (void)pthread_cond_wait(&h->changed, &h->lock);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static void *hold_main(void *arg)
{
    hold *h = arg;

    (void)quire_loop_call(h->loop, hold_fn, h);
    return NULL;
}

static hold *hold_start(quire_loop *loop)
{
    hold *h = calloc(1, sizeof *h);

    assert_non_null(h);
    h->loop = loop;
    assert_int_equal(pthread_mutex_init(&h->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&h->changed, NULL), 0);
    assert_int_equal(pthread_create(&h->thread, NULL, hold_main, h), 0);
    return h;
}

static void hold_wait(hold *h)
{
    (void)pthread_mutex_lock(&h->lock);
    while (!h->is_holding) {
        (void)pthread_cond_wait(&h->changed, &h->lock);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static void hold_end(hold *h)
{
    (void)pthread_mutex_lock(&h->lock);
    h->is_let_go = true;
    (void)pthread_cond_broadcast(&h->changed);
    (void)pthread_mutex_unlock(&h->lock);
    (void)pthread_join(h->thread, NULL);
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}

gate *gate_close_at(quire_engine *engine, uint32_t device)
{
    gate *g = calloc(1, sizeof *g);

    assert_non_null(g);
    g->loop = engine->loops[device];
    g->hold = hold_start(g->loop);
    hold_wait(g->hold);
    return g;
}

gate *gate_close(quire_engine *engine)
{
    return gate_close_at(engine, 0);
}

/* The next hold must be queued before this one ends: then it is the next round's. */
void gate_step(gate *g)
{
    hold *next = hold_start(g->loop);
    bool is_queued = false;

    while (!is_queued) {
        (void)pthread_mutex_lock(&g->loop->inbox.lock);
        is_queued = g->loop->inbox.tasks != NULL;
        (void)pthread_mutex_unlock(&g->loop->inbox.lock);
        test_doze();
    }
    hold_end(g->hold);
    g->hold = next;
    hold_wait(next);
}

void gate_open(gate *g)
{
    hold_end(g->hold);
    free(g);
}

/* ---- looking in ---- */

static void do_nothing(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)tree;
}

uint64_t hands_of(void *ctx)
{
    return atomic_load((_Atomic uint64_t *)ctx);
}

uint64_t tiny_page_bytes(uint32_t page_tokens)
{
    return (uint64_t)page_tokens * 2 * 2 * 2 * 16 * sizeof(float); /* layers, K and V, heads, d */
}

uint32_t events_of(const engine_bench *b, quire_event_kind kind, const char *begin)
{
    quire_event events[256];
    const uint32_t n = quire_engine_events(b->engine, 0, events, 256);
    uint32_t n_of = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_of += events[i].kind == kind && strncmp(events[i].text, begin, strlen(begin)) == 0;
    }
    return n_of;
}

quire_engine_stats stats_now(quire_engine *engine)
{
    quire_engine_stats stats;

    /* Two calls: the figures of the round in which the first ran are shown before the second. */
    assert_int_equal(engine_call(engine, do_nothing, NULL), QUIRE_OK);
    assert_int_equal(engine_call(engine, do_nothing, NULL), QUIRE_OK);
    quire_engine_stats_get(engine, &stats);
    return stats;
}

static void validate_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    quire_prefix_validate(tree);
    quire_cache_validate(cache);
}

void validate(quire_engine *engine)
{
    assert_int_equal(engine_call(engine, validate_here, NULL), QUIRE_OK);
}
