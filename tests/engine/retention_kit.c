/* retention_kit.c - see retention_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "retention_kit.h"

#include "base/rng.h"
#include "seed.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int32_t tokens[N_TOKENS];
const quire_predictor *predictor;
quire_device *retention_mock;

void text_make(uint64_t seed)
{
    quire_rng rng = test_rng(seed);

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
}

typedef struct job {
    pthread_t thread;
    void (*fn)(void *ctx, uint32_t thread, uint32_t n_threads);
    void *ctx;
    uint32_t index;
    uint32_t n;
} job;

static void *work(void *opaque)
{
    const job *j = opaque;

    j->fn(j->ctx, j->index, j->n);
    return NULL;
}

static void in_threads(uint32_t n_threads,
                       void (*fn)(void *ctx, uint32_t thread, uint32_t n_threads), void *ctx)
{
    job jobs[8];

    assert_true(n_threads <= 8);
    for (uint32_t i = 0; i < n_threads; i++) {
        jobs[i] = (job){ .fn = fn, .ctx = ctx, .index = i, .n = n_threads };
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, work, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        assert_int_equal(pthread_join(jobs[i].thread, NULL), 0);
    }
}

quire_predictor *maps_make(const quire_model *model, uint64_t seed)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    const quire_predictor_shape shape = { .n_layers = desc->n_layer,
                                          .n_kv_head = desc->n_kv_head,
                                          .n_hidden = desc->n_embd,
                                          .fingerprint = desc->fingerprint };
    quire_rng own = { .state = seed };
    quire_predictor *out;

    assert_int_equal(quire_predictor_create(&out, &shape), QUIRE_OK);
    for (uint32_t lane = 0; lane < shape.n_layers * shape.n_kv_head; lane++) {
        float *map = quire_predictor_map(out, lane / shape.n_kv_head, lane % shape.n_kv_head);

        for (uint32_t i = 0; i < shape.n_hidden; i++) {
            map[i] = 0.3f * (float)quire_rng_normal(&own);
        }
        map[shape.n_hidden] = -4.0f - (float)(lane % 3);
    }
    return out;
}

void world_open(world *w, const quire_runtime_opts *runtime_opts, const char *policy)
{
    quire_retention_opts opts = { .parallel = in_threads, .predictor = predictor };
    quire_runtime_opts runtime = *runtime_opts;
    const quire_model_desc *desc = quire_model_desc_get(w->model);
    quire_error err = QUIRE_ERROR_INIT;

    w->retention = NULL;
    if (policy != NULL) {
        opts.keeps_all = strcmp(policy, "all") == 0;
        opts.attend_share = w->attend_share;
        opts.chunk = opts.keeps_all ? runtime.n_ctx : CHUNK;
        assert_int_equal(
            quire_retain_parse_lanes(opts.keeps_all ? "window:1" : policy, &opts.spec, &err),
            QUIRE_OK);
        if (quire_retention_plan(desc, &opts, &runtime, &err) < 0) {
            fail_msg("%s", err.message);
        }
        w->planned_bytes = runtime.kv_elsewhere_bytes;
    }
    w->runtime = fixture_runtime(w->model, &runtime);
    w->seq = fixture_seq(w->runtime);
    if (policy != NULL && quire_retention_open(&w->retention, w->runtime, desc, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
}

void world_close(world *w)
{
    quire_retention_close(w->retention);
    quire_runtime_destroy(w->runtime);
}

const float *step(world *w, uint32_t begin, uint32_t n, quire_logits wanted)
{
    const quire_slice slice = {
        .seq = w->seq, .tokens = tokens + begin, .n_tokens = n, .logits = wanted
    };
    const float *logits;
    int rc = w->retention != NULL
                 ? quire_retention_step(w->retention, w->runtime, &slice, 1, &logits)
                 : quire_runtime_step(w->runtime, &slice, 1, &logits);

    assert_int_equal(rc, QUIRE_OK);
    return logits;
}

float *read_text(world *w, uint32_t n)
{
    float *out = malloc((size_t)N_TOKENS * N_VOCAB * sizeof *out);

    assert_non_null(out);
    for (uint32_t at = 0; at < N_TOKENS; at += n) {
        const uint32_t now = n < N_TOKENS - at ? n : N_TOKENS - at;

        memcpy(out + (size_t)at * N_VOCAB, step(w, at, now, QUIRE_LOGITS_ALL),
               (size_t)now * N_VOCAB * sizeof *out);
    }
    return out;
}

quire_runtime_opts opts_of(quire_format format, uint32_t n_threads)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 512;
    opts.n_seqs_max = 1;
    opts.n_batch = 100;
    opts.n_threads = n_threads;
    opts.k_format = format;
    opts.v_format = format;
    return opts;
}

/* ---- states ---- */

unsigned char *copy_of(const quire_block_state *state)
{
    unsigned char *copy = malloc(state->n_bytes);

    assert_non_null(copy);
    memcpy(copy, state->memory, state->n_bytes);
    return copy;
}

void go_on(world *w, const quire_runtime_opts *opts, const char *policy)
{
    const uint32_t n = 320;
    const size_t n_floats = (size_t)(N_TOKENS - n) * N_VOCAB;
    quire_block_state saved, read;
    quire_error err = QUIRE_ERROR_INIT;
    quire_lanes_stats before, after;
    float *whole, *rest;

    world_open(w, opts, policy);
    whole = read_text(w, 64);
    world_close(w);
    world_open(w, opts, policy);
    for (uint32_t at = 0; at < n; at += 64) {
        (void)step(w, at, 64, QUIRE_LOGITS_LAST);
    }
    assert_int_equal(quire_retention_save(w->retention, w->runtime, tokens, &saved), QUIRE_OK);
    quire_lanes_stats_get(quire_retention_lanes(w->retention), &before);
    world_close(w);
    assert_true(before.generations > 0);
    if (quire_block_state_parse(&read, copy_of(&saved), saved.n_bytes, &err) < 0) {
        fail_msg("%s", err.message);
    }
    world_open(w, opts, policy);
    if (quire_retention_load(w->retention, w->runtime, w->seq, &read, &err) < 0) {
        fail_msg("%s: %s", policy, err.message);
    }
    quire_lanes_stats_get(quire_retention_lanes(w->retention), &after);
    assert_int_equal(after.n_held, before.n_held);
    assert_int_equal(after.generations, before.generations);
    /* A state has no page that a window does not need any more. */
    assert_true(after.live_bytes == before.live_bytes ||
                (after.n_windowed > 0 && after.live_bytes < before.live_bytes));
    rest = malloc(n_floats * sizeof *rest);
    assert_non_null(rest);
    for (uint32_t at = n; at < N_TOKENS; at += 64) {
        const uint32_t now = 64 < N_TOKENS - at ? 64 : N_TOKENS - at;

        memcpy(rest + (size_t)(at - n) * N_VOCAB, step(w, at, now, QUIRE_LOGITS_ALL),
               (size_t)now * N_VOCAB * sizeof *rest);
    }
    assert_memory_equal(rest, whole + (size_t)n * N_VOCAB, n_floats * sizeof *rest);
    world_close(w);
    free(rest);
    free(whole);
    quire_block_state_free(&read);
    quire_block_state_free(&saved);
}

/* ---- a device ---- */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 2 };
    const int rc = quire_mock_device_open(out, opts, &slow, err);

    assert_string_equal(name, "mock");
    retention_mock = *out;
    return rc;
}

quire_runtime_opts on_mock(quire_format format)
{
    quire_runtime_opts opts = opts_of(format, 2);

    opts.kv_recent = 64;
    opts.device = "mock";
    opts.device_open = open_mock;
    return opts;
}
