/* test_runtime_memory.c - the memory of the model runtime: decoding allocates nothing. Without
 * memory every call fails with an error, leaks nothing and changes nothing.
 *
 * The linker redirects the allocating functions here (--wrap), so that calls from statically linked
 * code can be counted and the Nth one failed. ggml's own failures are simulated at its entry points
 * that report them; inside ggml nothing fails, because there it would abort. Not counted: the small
 * context that ggml creates and frees whenever its CPU backend computes a graph.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "matmul/matmul.h"
#include "model/sampler.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MODEL FIXTURE_STORIES

/* Counted on the calling thread only: other threads belong to ggml. */
static _Thread_local unsigned n_calls;
static _Thread_local unsigned fail_at; /* the call that fails, from 1; 0 = none */
static _Thread_local bool has_failed;
static _Thread_local unsigned ggml_depth; /* > 0 inside ggml */

/* Count a call; whether it is the one to fail. */
static bool fails(void)
{
    if (ggml_depth > 0) {
        return false;
    }
    n_calls++;
    if (n_calls == fail_at) {
        has_failed = true;
    }
    return n_calls == fail_at;
}

/* TYPE wrapped(PARAMS): fails with FAILURE, else calls through; INSIDE = 1 for ggml's functions. */
#define WRAP(type, name, params, args, failure, inside)                                            \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        type result;                                                                               \
                                                                                                   \
        if (fails()) {                                                                             \
            return failure;                                                                        \
        }                                                                                          \
        ggml_depth += (inside);                                                                    \
        result = __real_##name args;                                                               \
        ggml_depth -= (inside);                                                                    \
        return result;                                                                             \
    }

WRAP(void *, malloc, (size_t n), (n), NULL, 0)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), NULL, 0)
WRAP(void *, aligned_alloc, (size_t alignment, size_t n), (alignment, n), NULL, 0)
WRAP(ggml_gallocr_t, ggml_gallocr_new_n, (ggml_backend_buffer_type_t * types, int n), (types, n),
     NULL, 1)
WRAP(bool, ggml_gallocr_reserve, (ggml_gallocr_t galloc, struct ggml_cgraph *graph),
     (galloc, graph), false, 1)
WRAP(bool, ggml_gallocr_reserve_n,
     (ggml_gallocr_t galloc, struct ggml_cgraph *graph, const int *nodes, const int *leafs),
     (galloc, graph, nodes, leafs), false, 1)
WRAP(bool, ggml_gallocr_alloc_graph, (ggml_gallocr_t galloc, struct ggml_cgraph *graph),
     (galloc, graph), false, 1)
WRAP(ggml_backend_t, ggml_backend_dev_init, (ggml_backend_dev_t dev, const char *params),
     (dev, params), NULL, 1)
WRAP(ggml_backend_buffer_t, ggml_backend_alloc_ctx_tensors_from_buft,
     (struct ggml_context * ctx, ggml_backend_buffer_type_t buft), (ctx, buft), NULL, 1)
WRAP(ggml_backend_buffer_t, ggml_backend_dev_buffer_from_host_ptr,
     (ggml_backend_dev_t dev, void *ptr, size_t size, size_t max_tensor_size),
     (dev, ptr, size, max_tensor_size), NULL, 1)

/* Memory of no file, which weights in panels take. */
static _Thread_local bool is_mapping_refused;
static _Thread_local unsigned n_refused;

void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (is_mapping_refused && fd < 0) {
        n_refused++;
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(at, n, protection, flags, fd, offset);
}

struct ggml_context *__real_ggml_init(struct ggml_init_params params);
struct ggml_context *__wrap_ggml_init(struct ggml_init_params params);
enum ggml_status __real_ggml_backend_graph_compute(ggml_backend_t backend,
                                                   struct ggml_cgraph *graph);
enum ggml_status __wrap_ggml_backend_graph_compute(ggml_backend_t backend,
                                                   struct ggml_cgraph *graph);

/* Called by our code to build graphs, and by ggml itself at every computation. */
static _Thread_local bool is_computing;

struct ggml_context *__wrap_ggml_init(struct ggml_init_params params)
{
    struct ggml_context *ctx;

    if (!is_computing && fails()) {
        return NULL;
    }
    ggml_depth++;
    ctx = __real_ggml_init(params);
    ggml_depth--;
    return ctx;
}

enum ggml_status __wrap_ggml_backend_graph_compute(ggml_backend_t backend,
                                                   struct ggml_cgraph *graph)
{
    enum ggml_status status;

    if (fail_at > 0 && fails()) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    is_computing = true;
    status = __real_ggml_backend_graph_compute(backend, graph);
    is_computing = false;
    return status;
}

/* Start an attempt in which call number n fails. */
static void arm(unsigned n)
{
    n_calls = 0;
    has_failed = false;
    fail_at = n;
}

/* End it; whether anything was failed. */
static bool disarm(void)
{
    fail_at = 0;
    return has_failed;
}

static quire_runtime_opts opts_small(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_batch = 128;
    opts.n_seqs_max = 4;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    return opts;
}

static void decode_does_not_allocate(quire_format format)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    quire_sampler_opts sampling = QUIRE_SAMPLER_OPTS_INIT;
    quire_sampler *sampler = NULL;
    quire_runtime *runtime;
    quire_seq_id seq;
    static int32_t tokens[128];
    int32_t token = 1;

    opts.n_threads = 2;
    opts.k_format = opts.v_format = format;
    opts.kv_recent = 0; /* hot pages of a sealed format come and go */
    sampling.temperature = 0.0f;
    arm(0);
    runtime = fixture_runtime(model, &opts);
    seq = fixture_seq(runtime);
    assert_int_equal(quire_sampler_create(&sampler, model, &sampling, NULL), QUIRE_OK);
    assert_true(n_calls > 10); /* the hook works */
    (void)fixture_step(runtime, seq, tokens, 50, QUIRE_LOGITS_LAST);
    (void)fixture_step(runtime, seq, tokens, 1, QUIRE_LOGITS_LAST);
    arm(0);
    for (uint32_t i = 0; i < 150; i++) { /* over two ends of a page */
        token =
            quire_sampler_pick(sampler, fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST));
    }
    assert_int_equal(n_calls, 0);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), seq, 0), QUIRE_OK);
    (void)fixture_step(runtime, seq, tokens, 128, QUIRE_LOGITS_LAST);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), seq, 0), QUIRE_OK);
    arm(0);
    (void)fixture_step(runtime, seq, tokens, 128, QUIRE_LOGITS_LAST); /* the full batch, again */
    assert_int_equal(n_calls, 0);
    quire_sampler_destroy(sampler);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_decode_does_not_allocate(void **state)
{
    (void)state;
    decode_does_not_allocate(QUIRE_FORMAT_F32);
    decode_does_not_allocate(QUIRE_FORMAT_Q4);
}

/* A table takes a leaf every QUIRE_LEAF_ENTRIES pages; with an extent and the two arrays of page
 * ids that is all that a long context may take, and not at each of its tokens. */
static void test_only_growth_allocates(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    const uint32_t leaf_tokens = QUIRE_LEAF_ENTRIES * opts.page_tokens;
    const int32_t token = 1;
    quire_runtime *runtime;
    unsigned n_steps = 0;
    quire_seq_id seq;

    (void)state;
    opts.n_ctx = leaf_tokens + 8;
    runtime = fixture_runtime(model, &opts);
    seq = fixture_seq(runtime);
    assert_int_equal(quire_runtime_fill(runtime, seq, leaf_tokens - 4, 1), QUIRE_OK);
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    for (uint32_t i = 0; i < 8; i++) {
        arm(0);
        (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
        assert_in_range(n_calls, 0, 4);
        n_steps += n_calls > 0;
    }
    assert_int_equal(n_steps, 1);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void open_without_memory(const char *path)
{
    unsigned n;
    bool is_failing = true;

    for (n = 1; is_failing && n < 1000; n++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_model *model = NULL;
        int rc;

        arm(n);
        rc = quire_model_open(&model, path, NULL, &err);
        is_failing = disarm();
        if (rc == QUIRE_OK) {
            /* A matrix may stay unpacked for want of memory to ask about it; the model works. */
            assert_non_null(model);
        } else {
            assert_true(is_failing);
            assert_null(model);
            assert_int_equal(err.status, rc);
            assert_true(err.message[0] != '\0');
        }
        quire_model_close(model);
    }
    assert_in_range(n, 10, 999);
}

/* The path of a model with weights that are copied into panels. */
static const char *path_of_panels(void)
{
    gguf_gen_opts opts = fixture_llama("panels", 3, 512, 128, 8);

    opts.type = GGML_TYPE_Q8_0;
    return fixture_generate(&opts);
}

static void test_open_without_memory(void **state)
{
    (void)state;
    open_without_memory(fixture_model_path(MODEL));
    open_without_memory(path_of_panels());
    fixture_generated_remove();
}

static void test_panels_without_memory(void **state)
{
    const char *path;
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;
    int rc;

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    path = path_of_panels();
    is_mapping_refused = true;
    rc = quire_model_open(&model, path, NULL, &err);
    is_mapping_refused = false;
    assert_true(n_refused > 0);
    assert_int_equal(rc, QUIRE_NOMEM);
    assert_null(model);
    assert_non_null(strstr(err.message, path));
    fixture_generated_remove();
}

static void test_create_without_memory(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    const quire_runtime_opts opts = opts_small();
    unsigned n;
    bool is_failing = true;

    (void)state;
    for (n = 1; is_failing && n < 1000; n++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_runtime *runtime = NULL;
        int rc;

        arm(n);
        rc = quire_runtime_create(&runtime, model, &opts, &err);
        is_failing = disarm();
        if (is_failing) {
            assert_int_equal(rc, QUIRE_NOMEM);
            assert_null(runtime);
            assert_int_equal(err.status, QUIRE_NOMEM);
        } else {
            assert_int_equal(rc, QUIRE_OK);
        }
        quire_runtime_destroy(runtime);
    }
    assert_in_range(n, 10, 999);
    quire_model_close(model);
}

/* Two sequences grow by steps of new shapes. One is a fork, and its last page must be copied. */
static void step_without_memory(quire_format format)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    static const int32_t tokens[100] = { 5, 6, 7 };
    const size_t n_vocab = quire_model_desc_get(model)->n_vocab;
    float *expected = calloc(n_vocab, sizeof *expected);
    unsigned n;
    bool is_failing = true;

    assert_non_null(expected);
    opts.k_format = opts.v_format = format;
    opts.kv_recent = opts.kv_sinks = 0;
    opts.kv_budget_bytes = 64u << 20;
    for (n = 1; is_failing && n < 1000; n++) {
        quire_runtime *runtime = fixture_runtime(model, &opts);
        quire_cache *cache = quire_runtime_cache(runtime);
        quire_seq_id seq = fixture_seq(runtime), fork = 0;
        quire_slice slices[2];
        const float *logits = NULL;
        int rc;

        (void)fixture_step(runtime, seq, tokens, 70, QUIRE_LOGITS_LAST);
        assert_int_equal(quire_seq_fork(cache, seq, &fork), QUIRE_OK);
        slices[0] = (quire_slice){
            .seq = seq, .tokens = tokens, .n_tokens = 40, .logits = QUIRE_LOGITS_NONE
        };
        slices[1] = (quire_slice){
            .seq = fork, .tokens = tokens, .n_tokens = 70, .logits = QUIRE_LOGITS_LAST
        };
        arm(n);
        rc = quire_runtime_step(runtime, slices, 2, &logits);
        is_failing = disarm();
        quire_cache_validate(cache);
        if (is_failing && rc != QUIRE_OK) { /* upkeep may fail without the step failing */
            assert_int_equal(rc, QUIRE_NOMEM);
            assert_null(logits);
            assert_int_equal(quire_seq_tokens(cache, seq), 70);
            assert_int_equal(quire_seq_tokens(cache, fork), 70);
            assert_int_equal(quire_runtime_step(runtime, slices, 2, &logits), QUIRE_OK);
        }
        assert_int_equal(quire_seq_tokens(cache, seq), 110);
        assert_int_equal(quire_seq_tokens(cache, fork), 140);
        if (n == 1) {
            memcpy(expected, logits, sizeof *expected * n_vocab);
        }
        assert_memory_equal(logits, expected, sizeof *expected * n_vocab);
        quire_runtime_destroy(runtime);
    }
    assert_in_range(n, 4, 999);
    free(expected);
    quire_model_close(model);
}

static void test_step_without_memory(void **state)
{
    (void)state;
    step_without_memory(QUIRE_FORMAT_F32);
    step_without_memory(QUIRE_FORMAT_Q4);
}

static void test_small_calls_without_memory(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    quire_sampler_opts sampling = QUIRE_SAMPLER_OPTS_INIT;
    const quire_chat_message message = { "user", "Hello", NULL };
    quire_runtime *runtime = fixture_runtime(model, &opts);
    const quire_seq_id seq = fixture_seq(runtime);
    bool is_failing = true;
    char out[128];

    (void)state;
    for (unsigned n = 1; is_failing; n++) {
        int rc;

        arm(n);
        rc = quire_runtime_fill(runtime, seq, 100, 1);
        is_failing = disarm();
        assert_int_equal(rc, is_failing ? QUIRE_NOMEM : QUIRE_OK);
        assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), is_failing ? 0 : 100);
    }
    for (int i = 0; i < 2; i++) {
        sampling.grammar = i == 1 ? "root ::= [a-z]{2,5} \"x\"" : NULL;
        is_failing = true;
        for (unsigned n = 1; is_failing; n++) {
            quire_sampler *sampler = NULL;
            int rc;

            arm(n);
            rc = quire_sampler_create(&sampler, model, &sampling, NULL);
            is_failing = disarm();
            assert_int_equal(rc, is_failing ? QUIRE_NOMEM : QUIRE_OK);
            assert_int_equal(sampler == NULL, is_failing);
            quire_sampler_destroy(sampler);
        }
    }
    arm(1);
    assert_int_equal(quire_model_chat_render(model, "chatml", &message, 1, true, out, sizeof out),
                     QUIRE_NOMEM);
    assert_true(disarm());
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_does_not_allocate),
        cmocka_unit_test(test_only_growth_allocates),
        cmocka_unit_test(test_open_without_memory),
        cmocka_unit_test(test_panels_without_memory),
        cmocka_unit_test(test_create_without_memory),
        cmocka_unit_test(test_step_without_memory),
        cmocka_unit_test(test_small_calls_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
