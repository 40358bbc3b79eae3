/* test_layers_sets.c - a model whose weights are several sets, for runtimes on several devices of
 * ggml: the tensors of the host are common, and each set has the bits and the identity of a model
 * that is opened for it alone. The device is a second backend of the CPU's.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "model/backend.h"
#include "model/kv_identity.h"
#include "model/model_internal.h"
#include "model_fixture.h"
#include "rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TEXT  40u
#define N_GROWN 3u
#define ALL     UINT32_MAX /* layers */
#define SETS    3u

static const bool has_device[SETS] = { true, false, true };
static bool is_repacked; /* the host's matrices, where they can be */

static quire_runtime_opts runtime_opts(uint32_t set)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 64;
    opts.n_batch = N_TEXT;
    opts.n_seqs_max = 1;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    opts.weights_set = set;
    return opts;
}

/* The logits of a prompt and of further tokens, and the identity. Memory: free(). */
static float *work(const quire_model *model, uint32_t set, uint64_t identity[2])
{
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    const quire_runtime_opts opts = runtime_opts(set);
    quire_runtime *runtime = fixture_runtime(model, &opts);
    const quire_seq_id seq = fixture_seq(runtime);
    float *all = calloc((size_t)(N_TEXT + N_GROWN) * n_vocab, sizeof *all);
    int32_t text[N_TEXT + N_GROWN];

    assert_non_null(all);
    for (uint32_t i = 0; i < N_TEXT + N_GROWN; i++) {
        text[i] = (int32_t)((i * 31 + 7) % n_vocab);
    }
    memcpy(all, fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_ALL),
           (size_t)N_TEXT * n_vocab * sizeof *all);
    for (uint32_t i = N_TEXT; i < N_TEXT + N_GROWN; i++) {
        memcpy(all + (size_t)i * n_vocab,
               fixture_step(runtime, seq, text + i, 1, QUIRE_LOGITS_LAST), n_vocab * sizeof *all);
    }
    quire_kv_identity_get(runtime, identity);
    quire_runtime_destroy(runtime);
    return all;
}

/* One set beside a model that is opened for it alone. */
static void assert_alone(const char *path, uint32_t n_layers, const quire_model *model,
                         uint32_t set, uint64_t identity[2], const char *what)
{
    quire_model_opts opts = { .no_repack = !is_repacked,
                              .n_device_layers = has_device[set] ? n_layers : 0 };
    uint64_t of_alone[2];
    quire_model *alone;
    float *by_set, *by_alone;

    opts.devices[0] = quire_backend_cpu();
    alone = fixture_open_as(path, &opts);
    assert_true(model->desc.resident_bytes >= alone->desc.resident_bytes);
    by_set = work(model, set, identity);
    by_alone = work(alone, 0, of_alone);
    if (memcmp(by_set, by_alone,
               (size_t)(N_TEXT + N_GROWN) * model->desc.n_vocab * sizeof *by_set) != 0) {
        fail_msg("%s: set %u has other bits than a model alone", what, set);
    }
    assert_memory_equal(identity, of_alone, sizeof of_alone);
    free(by_set);
    free(by_alone);
    quire_model_close(alone);
}

static void assert_sets(const char *path, uint32_t n_layers, const char *what)
{
    quire_model_opts opts = { .no_repack = !is_repacked,
                              .n_sets = SETS,
                              .n_device_layers = n_layers };
    uint64_t identities[SETS][2];
    quire_model *model;

    for (uint32_t i = 0; i < SETS; i++) {
        opts.devices[i] = has_device[i] ? quire_backend_cpu() : NULL;
    }
    model = fixture_open_as(path, &opts);
    assert_ptr_equal(model->sets[0]->tok_embd, model->sets[1]->tok_embd);
    assert_ptr_equal(model->sets[2]->tok_embd, model->sets[1]->tok_embd);
    assert_ptr_not_equal(model->sets[0]->output, model->sets[2]->output);
    assert_int_equal(model->sets[2]->device_bytes, model->desc.device_weight_bytes[2]);
    assert_int_equal(model->desc.device_weight_bytes[0], model->desc.device_weight_bytes[2]);
    assert_int_equal(model->desc.device_weight_bytes[1], 0);
    assert_int_equal(model->sets[0]->mapped_bytes + model->sets[0]->repacked_bytes, 0);
    for (uint32_t i = 0; i < SETS; i++) {
        assert_alone(path, n_layers, model, i, identities[i], what);
    }
    assert_memory_equal(identities[0], identities[2], sizeof identities[0]);
    assert_memory_not_equal(identities[0], identities[1], sizeof identities[0]);
    quire_model_close(model);
}

static void test_sets(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        is_repacked = i == 1; /* and then the host's layers are in panels */
        assert_sets(fixture_model_path(FIXTURE_STORIES), 2, FIXTURE_STORIES);
    }
    assert_sets(fixture_model_path(FIXTURE_STORIES), ALL, FIXTURE_STORIES);
    is_repacked = false;
}

/* Matrices that are turned at loading, experts, states and streams are common, too. */
static void test_architectures(void **state)
{
    const arch_case *c;

    (void)state;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i += TEST_STRIDE(5u)) {
        const gguf_gen_opts gen = arch_case_options(c);
        char what[96];

        (void)snprintf(what, sizeof what, "%s, %s", c->arch, c->what);
        is_repacked = i % 2 == 0;
        assert_sets(fixture_generate(&gen), 2, what);
        fixture_generated_remove();
    }
    is_repacked = false;
}

/* A runtime that names a set that the model has not. */
static void test_no_such_set(void **state)
{
    quire_runtime_opts opts = runtime_opts(1);
    quire_model_opts one = { .n_device_layers = 1 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;
    quire_model *model;

    (void)state;
    one.devices[0] = quire_backend_cpu();
    model = fixture_open_as(fixture_model_path(FIXTURE_STORIES), &one);
    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), QUIRE_INVAL);
    assert_null(runtime);
    quire_model_close(model);
}

static int setup(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    return quire_backend_init(&err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_no_such_set),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
