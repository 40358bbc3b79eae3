/* replicas_kit.c - see replicas_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "replicas_kit.h"

#include "device/mock_device.h"

#include <string.h>

quire_device *replica_mocks[DEVICES];
static uint32_t n_mocks;

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts none = { 0 };
    const int rc = quire_mock_device_open(out, opts, &none, err);

    (void)name;
    replica_mocks[n_mocks++ % DEVICES] = *out;
    return rc;
}

const quire_binding replica_bindings[DEVICES] = { { .class_index = 0, .devices = 1u << 0 },
                                                  { .class_index = 1, .devices = 1u << 1 } };

quire_store *replicas_second_store;
quire_prefix_watcher replicas_second_watcher;
bool replicas_first_is_cpu;
uint32_t replicas_second_set;

quire_runtime_opts replica_runtime_opts(const char *device)
{
    quire_runtime_opts opts = bench_runtime_opts(N_CTX, N_SEQS);

    opts.n_batch = 128;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F16;
    opts.device = device;
    opts.device_open = strcmp(device, "vulkan0") != 0 ? open_mock : NULL;
    return opts;
}

replicas replicas_open_with(const char *device, const quire_engine_opts *engine,
                            uint64_t budget_bytes)
{
    const quire_engine_opts alone = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = replica_runtime_opts(device);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_opts opts = *engine;
    quire_engine_device second = { .runtime = NULL };
    replicas r = { .second = NULL };

    n_mocks = 0;
    runtime.device = replicas_first_is_cpu ? NULL : device;
    replicas_first_is_cpu = false;
    r.b = bench_panels(32, &alone, &runtime);
    quire_engine_destroy(r.b.engine);
    runtime.device = device;
    runtime.weights_set = replicas_second_set;
    runtime.kv_budget_bytes = budget_bytes;
    runtime.kv_overflows = budget_bytes != 0; /* less than a context is enough */
    r.second = fixture_runtime(r.b.model, &runtime);
    second.runtime = r.second;
    second.store = replicas_second_store;
    replicas_second_store = NULL;
    second.watcher = replicas_second_watcher;
    replicas_second_watcher = (quire_prefix_watcher){ 0 };
    opts.model = r.b.model;
    opts.runtime = r.b.runtime;
    opts.devices.items = &second;
    opts.devices.n = 1;
    if (quire_engine_create(&r.b.engine, &opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return r;
}

replicas replicas_open(const char *device, const quire_engine_opts *engine)
{
    return replicas_open_with(device, engine, 0);
}

void replicas_close(replicas *r)
{
    quire_cache_stats stats;

    quire_engine_destroy(r->b.engine);
    r->b.engine = NULL;
    quire_cache_validate(quire_runtime_cache(r->second));
    quire_cache_stats_get(quire_runtime_cache(r->second), &stats);
    assert_int_equal(stats.pages_live, 0);
    assert_int_equal(stats.seqs_open, 0);
    quire_runtime_destroy(r->second);
    bench_close(&r->b);
}

quire_request *replicas_ask(const replicas *r, uint64_t seed)
{
    int32_t text[N_PROMPT] = { 0 };
    const quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);

    tokens_make(text, N_PROMPT, seed);
    return submit(&r->b, &params);
}

answer answer_take(quire_request *request)
{
    const quire_request_result *result;
    answer a;

    assert_int_equal(collect(request, a.tokens, N_TOKENS), N_TOKENS);
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(result->n_generated_tokens, N_TOKENS);
    a.n_cached = result->n_cached_tokens;
    a.n_recomputed = result->n_recomputed_tokens;
    quire_request_release(request);
    return a;
}

answer ask_at(const replicas *r, uint32_t device, uint64_t seed)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);

    params.class_index = device;
    tokens_make(text, N_PROMPT, seed);
    return answer_take(submit(&r->b, &params));
}
