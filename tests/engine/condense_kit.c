/* condense_kit.c - see condense_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"

#include "base/rng.h"
#include "device/mock_device.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "engine/retention.h"

#include <stdio.h>
#include <string.h>

static engine_bench bench_of(const setting *s, const quire_engine_opts *engine,
                             const quire_runtime_opts *runtime)
{
    static const int32_t none[4] = { 0 };

    return s->attend_share > 0 || s->windows != NULL
               ? bench_windows(s->windows != NULL ? s->windows : none, engine, runtime)
               : bench_panels(32, engine, runtime);
}

quire_device *condense_mock;

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 2 };
    const int rc = quire_mock_device_open(out, opts, &slow, err);

    assert_string_equal(name, "mock");
    condense_mock = *out;
    return rc;
}

bool condense_has_vulkan(void)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = opts.attn.n_entries_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    if (quire_device_open(&device, "vulkan0", &opts, &err) < 0) {
        (void)printf("vulkan0: skipped: %s\n", err.message);
        return false;
    }
    quire_device_close(device);
    return true;
}

static void formats_set(const setting *s, quire_runtime_opts *opts)
{
    opts->k_format = s->format;
    opts->v_format = s->has_v_format ? s->v_format : s->format;
    opts->kv_recent = s->has_kv_recent ? s->kv_recent : opts->kv_recent;
}

/* A quire_loop_fn. */
static void budget_set(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const uint64_t *budget_bytes = ctx;

    (void)tree;
    assert_int_equal(quire_region_budget_set(cache, QUIRE_REGION_DYNAMIC, *budget_bytes), QUIRE_OK);
}

engine_bench condense_bench(const setting *s)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const uint32_t n_ctx = s->n_ctx != 0 ? s->n_ctx : N_CTX;
    quire_runtime_opts runtime = bench_runtime_opts(n_ctx, 8);
    engine_bench b;
    uint64_t page_bytes, budget_bytes;

    engine.retain_chunk = s->chunk != 0 ? s->chunk : CHUNK;
    engine.n_running_max = 4;
    engine.chunk_tokens = s->chunk_tokens;
    engine.no_prefix_cache = s->no_prefix_cache;
    engine.pins_max = 4;
    if (s->has_classes) {
        quire_classes_default(&engine.classes);
    }
    formats_set(s, &runtime);
    runtime.has_bounds = s->attend_share > 0;
    runtime.device = s->device;
    runtime.n_threads = s->n_threads != 0 ? s->n_threads : 1;
    runtime.device_open = s->device != NULL && strcmp(s->device, "mock") == 0 ? open_mock : NULL;
    runtime.page_tokens = s->page_tokens != 0 ? s->page_tokens : runtime.page_tokens;
    b = bench_of(s, &engine, &runtime);
    page_bytes = quire_loop_parts_get(b.engine->loop)->page_bytes;
    budget_bytes = page_bytes * (s->n_pages != 0 ? s->n_pages : 4 * n_ctx / runtime.page_tokens);
    runtime.kv_budget_bytes = page_bytes * 4 * (n_ctx / runtime.page_tokens);
    engine.predictor = s->maps != 0 ? maps_of(&b, s->maps) : NULL;
    bench_close(&b);
    engine.tier = (quire_tier_opts){ .store = s->store,
                                     .copies_all = true,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    b = bench_of(s, &engine, &runtime);
    /* Less than a context, which a runtime begins with at least. */
    assert_int_equal(engine_call(b.engine, budget_set, &budget_bytes), QUIRE_OK);
    return b;
}

const quire_predictor *maps_of(const engine_bench *b, uint32_t seed)
{
    static float maps[1u << 16];
    static quire_predictor predictor;
    const quire_model_desc *desc = quire_model_desc_get(b->model);
    const uint32_t n_lanes = desc->n_layer * desc->n_kv_head, n = desc->n_embd + 1;
    quire_rng rng;

    assert_true((size_t)n_lanes * n <= sizeof maps / sizeof maps[0]);
    rng.state = seed;
    predictor = (quire_predictor){ .shape = { .n_layers = desc->n_layer,
                                              .n_kv_head = desc->n_kv_head,
                                              .n_hidden = desc->n_embd,
                                              .fingerprint = desc->fingerprint },
                                   .maps = maps };
    for (uint32_t i = 0; i < n_lanes * n; i++) {
        /* The constant of each lane differs, so lanes keep different numbers. */
        maps[i] =
            i % n == n - 1 ? -4.0f - (float)(i / n % 3) : 0.3f * (float)quire_rng_normal(&rng);
    }
    return &predictor;
}

quire_retain_spec spec_of(const char *policy)
{
    const char *recent = strstr(policy, "recent=0");
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    char text[256];

    (void)snprintf(text, sizeof text, "%s", policy);
    if (recent != NULL) {
        text[recent - policy + strlen("recent=")] = '1';
    }
    if (quire_retain_parse(text, &spec, &err) < 0) {
        fail_msg("%s", err.message);
    }
    spec.recent = recent != NULL ? 0 : spec.recent;
    return spec;
}

void expect(const engine_bench *b, const setting *s, const int32_t *prompt, uint32_t n_prompt,
            answer *out)
{
    const uint32_t chunk = s->chunk != 0 ? s->chunk : CHUNK;
    const bool has_lanes = s->policy != NULL || s->attend_share > 0;
    quire_retention_opts retention_opts = { .chunk = chunk,
                                            .attend_share = s->attend_share,
                                            .keeps_all = s->policy == NULL,
                                            .predictor =
                                                s->maps != 0 ? maps_of(b, s->maps) : NULL };
    quire_runtime_opts opts = bench_runtime_opts(N_CTX, 1);
    const quire_model_desc *desc = quire_model_desc_get(b->model);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retention *retention = NULL;
    quire_runtime *runtime;
    quire_seq_id seq;

    formats_set(s, &opts);
    opts.n_batch = chunk;
    if (has_lanes) {
        retention_opts.spec = spec_of(s->policy != NULL ? s->policy : "window:1");
        assert_int_equal(quire_retention_plan(desc, &retention_opts, &opts, &err), QUIRE_OK);
    }
    runtime = fixture_runtime(b->model, &opts);
    seq = fixture_seq(runtime);
    if (has_lanes) {
        assert_int_equal(quire_retention_open(&retention, runtime, desc, &retention_opts, &err),
                         QUIRE_OK);
        quire_retention_attend_from(retention, n_prompt);
    }
    *out = (answer){ 0 };
    for (uint32_t at = 0; out->n < N_TOKENS;) {
        const int32_t *next = at < n_prompt ? prompt + at : &out->tokens[at - n_prompt];
        const uint32_t n_left = at < n_prompt ? n_prompt - at : 1;
        const quire_slice slice = { .seq = seq,
                                    .tokens = next,
                                    .n_tokens = n_left < chunk ? n_left : chunk,
                                    .logits = QUIRE_LOGITS_LAST };
        const float *logits;

        assert_int_equal(retention != NULL
                             ? quire_retention_step(retention, runtime, &slice, 1, &logits)
                             : quire_runtime_step(runtime, &slice, 1, &logits),
                         QUIRE_OK);
        at += slice.n_tokens;
        if (at >= n_prompt) {
            out->tokens[out->n] = fixture_argmax(logits, b->n_vocab);
            out->logprobs[out->n] =
                quire_logits_logprob(logits, b->n_vocab, out->tokens[out->n], NULL, 0);
            out->n++;
        }
    }
    quire_retention_close(retention);
    quire_runtime_destroy(runtime);
}

quire_request *ask(const engine_bench *b, const char *policy, const int32_t *prompt,
                   uint32_t n_prompt)
{
    quire_request_params params = params_greedy(prompt, n_prompt, N_TOKENS);
    quire_retain_spec spec;

    params.has_logprobs = true;
    if (policy != NULL) {
        spec = spec_of(policy);
        params.retain = &spec;
    }
    return submit(b, &params);
}

quire_request *ask_attending(const engine_bench *b, double share, const int32_t *prompt,
                             uint32_t n_prompt)
{
    quire_request_params params = params_greedy(prompt, n_prompt, N_TOKENS);

    params.has_logprobs = true;
    params.attend_share = share;
    return submit(b, &params);
}

uint32_t answer_read(quire_request *request, answer *out)
{
    quire_request_token event;
    uint32_t n_cached;

    *out = (answer){ 0 };
    while (quire_request_wait(request, out->n, FIXTURE_WAIT_MS, &event) == 1) {
        assert_true(out->n < N_TOKENS);
        out->tokens[out->n] = event.token;
        out->logprobs[out->n++] = event.logprob;
    }
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_LENGTH);
    n_cached = quire_request_result_get(request)->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

uint32_t answer_take(const engine_bench *b, const char *policy, const int32_t *prompt,
                     uint32_t n_prompt, answer *out)
{
    return answer_read(ask(b, policy, prompt, n_prompt), out);
}

uint32_t answer_check(quire_request *request, const answer *want)
{
    quire_request_token event;
    uint32_t n = 0, n_cached;
    int rc;

    while ((rc = quire_request_wait(request, n, FIXTURE_WAIT_MS, &event)) == 1) {
        assert_true(n < want->n);
        assert_int_equal(event.token, want->tokens[n]);
        assert_memory_equal(&event.logprob, &want->logprobs[n], sizeof event.logprob);
        n++;
    }
    assert_int_equal(rc, 0);
    assert_int_equal(n, want->n);
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_LENGTH);
    n_cached = quire_request_result_get(request)->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

uint32_t check(const engine_bench *b, const char *policy, const int32_t *prompt, uint32_t n_prompt,
               const answer *want)
{
    return answer_check(ask(b, policy, prompt, n_prompt), want);
}

void check_side_by_side(const engine_bench *b, const sides *s, uint32_t n_rounds)
{
    quire_request *requests[SIDES_MAX];

    assert_true(s->n <= SIDES_MAX);
    for (uint32_t round = 0; round < n_rounds; round++) {
        gate *g = gate_close(b->engine);

        for (uint32_t i = 0; i < s->n; i++) {
            requests[i] = ask(b, s->policies[i], s->prompt, s->n_prompt);
        }
        gate_open(g);
        for (uint32_t i = 0; i < s->n; i++) {
            (void)answer_check(requests[i], &s->want[i]);
        }
    }
    assert_true(stats_now(b->engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
}

void condense_miss(const setting *s, const int32_t *prompt, uint32_t n_prompt, answer *out)
{
    setting miss = *s;
    engine_bench b;

    miss.no_prefix_cache = true;
    miss.n_pages = 0;
    miss.store = NULL;
    b = condense_bench(&miss);
    assert_int_equal(answer_take(&b, s->policy, prompt, n_prompt, out), 0);
    bench_close(&b);
}
