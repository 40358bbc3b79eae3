/* test_overflow_soak.c - requests of all lengths, of which some are larger than the KV budget, from
 * several clients: cancels, two classes, a pinned region, a budget of a few pages. Every answer is
 * that of a request alone in memory, every request ends, and the file is empty at the end. The same
 * on a slow device, whose pages go to the host's memory and from there to the file, with a disk
 * that sometimes fails: then a request may end with an error, and no answer is wrong. The same with
 * models whose layers share K and V or have windows.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "doze.h"
#include "rounds.h"
#include "seed.h"
#include "soak_fixture.h"

#include "device/mock_device.h"
#include "gguf_gen_scheme.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CLIENTS     4u
#define N_REQUESTS    TEST_ROUNDS(40u, 24u)
#define N_LAYER       16u
#define N_CTX         2048u
#define PAGE          64u
#define OWN_TOKENS    1200u
#define IN_FLIGHT     3u
#define ANSWER_TOKENS 24u
#define BUDGET_PAGES  12u /* of the largest texts: 22 pages */
#define SCHEME_PAGES  19u /* where half of the layers store, buffers take twice the share */
#define PINNED_PAGES  3u
#define HOST_STRIPES  2u /* below a device, with the stage; the stage of a scheme takes one more */
#define FAILS_ONE_IN  150u /* calls to a disk with faults */

typedef struct soak {
    const engine_bench *bench;
    soak_texts texts;
    bool has_classes;
    bool has_device;
    const char *scheme; /* of gguf_gen_scheme.h; NULL: layers store their own K and V */
    bool has_windows;   /* every other layer */
    bool has_faults;    /* of the disk */
    quire_file_ops ops;
    atomic_uint n_calls;
    atomic_uint n_failed;
    atomic_uint n_refused;
    atomic_uint n_ended; /* with an error for which the disk is to blame */
} soak;

/* ---- device and disk ---- */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 2 };

    assert_string_equal(name, "mock");
    return quire_mock_device_open(out, opts, &slow, err);
}

static bool is_bad(soak *s)
{
    return s->has_faults && atomic_fetch_add(&s->n_calls, 1) % FAILS_ONE_IN == FAILS_ONE_IN - 1;
}

static ssize_t soak_pwrite(void *ctx, int fd, const void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();

    return is_bad(ctx) ? -ENOSPC : os->pwrite(os->ctx, fd, buffer, n, offset);
}

static int soak_read_begin(void *ctx, int fd, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();

    return is_bad(ctx) ? -EIO : os->read_begin(os->ctx, fd, n, offset);
}

static ssize_t soak_pread(void *ctx, int fd, void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();

    return is_bad(ctx) ? -EIO : os->pread(os->ctx, fd, buffer, n, offset);
}

/* ---- clients ---- */

typedef struct client {
    soak *soak;
    quire_rng rng;
    pthread_t thread;
} client;

/* Whether a request ended because the disk failed. */
static bool is_ended_by_disk(const soak *s, const quire_request *request)
{
    const quire_request_result *result = quire_request_result_get(request);

    return s->has_faults && result->finish == QUIRE_FINISH_ERROR &&
           (result->status == QUIRE_IO || result->status == QUIRE_CORRUPT);
}

/* cmocka's assertions belong to the main thread. */
static void land(client *c, const soak_flight *f)
{
    quire_request_token token;
    int verdict;

    switch (quire_rng_below(&c->rng, 6)) {
    case 0: /* gone without a word */
        break;
    case 1: /* cancelled in the middle */
        (void)quire_request_wait(f->request, 0, FIXTURE_WAIT_MS, &token);
        quire_request_cancel(f->request);
        atomic_fetch_add(&c->soak->n_failed,
                         quire_request_wait(f->request, UINT32_MAX, FIXTURE_WAIT_MS, &token) != 0);
        break;
    default:
        verdict = soak_flight_finish(&c->soak->texts, f);
        if (verdict < 0 && is_ended_by_disk(c->soak, f->request)) {
            atomic_fetch_add(&c->soak->n_ended, 1);
        } else if (verdict != 0) {
            const quire_request_result *result = quire_request_result_get(f->request);

            (void)fprintf(stderr,
                          "verdict %d, text %u of %u tokens: finish %d, %s; preempted %u times, %u "
                          "tokens cached\n",
                          verdict, f->text, c->soak->texts.n_tokens[f->text], (int)result->finish,
                          result->message, result->n_preemptions, result->n_cached_tokens);
            atomic_fetch_add(&c->soak->n_failed, 1);
        }
        break;
    }
    quire_request_release(f->request);
}

static void *client_main(void *arg)
{
    client *c = arg;
    soak_flight flights[IN_FLIGHT];
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_REQUESTS / N_CLIENTS; i++) {
        quire_request_params params = soak_params(&c->soak->texts, &c->rng, &flights[n]);
        quire_error err = QUIRE_ERROR_INIT;

        params.class_index = c->soak->has_classes ? quire_rng_below(&c->rng, 2) : 0;
        if (quire_engine_submit(c->soak->bench->engine, &params, &flights[n].request, &err) < 0) {
            (void)fprintf(stderr, "%s\n", err.message);
            atomic_fetch_add(&c->soak->n_refused, 1);
            continue;
        }
        n++;
        if (n == IN_FLIGHT || quire_rng_below(&c->rng, 3) == 0) {
            const uint32_t k = quire_rng_below(&c->rng, n);

            land(c, &flights[k]);
            flights[k] = flights[--n];
        }
    }
    while (n > 0) {
        land(c, &flights[--n]);
    }
    return NULL;
}

static quire_runtime_opts runtime_opts(quire_format format)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.k_format = runtime.v_format = format;
    runtime.kv_recent = runtime.kv_sinks = 0; /* the same bits computed or found */
    return runtime;
}

static uint32_t budget_pages(const soak *s)
{
    return s->scheme != NULL ? SCHEME_PAGES : BUDGET_PAGES;
}

static engine_bench bench_model(const soak *s, const quire_engine_opts *engine,
                                const quire_runtime_opts *runtime)
{
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_F32, 32, N_LAYER, N_CTX);

    if (s->scheme != NULL) {
        assert_int_equal(gguf_gen_scheme_apply(&gen, s->scheme, NULL), QUIRE_OK);
    }
    for (uint32_t l = 0; s->has_windows && l < N_LAYER; l += 2) {
        gen.windows[l] = 100;
    }
    return bench_generated(&gen, engine, runtime);
}

/* Texts with their answers in memory, the same for each engine with a file that has this model. */
typedef struct known_texts {
    bool is_made;
    soak_texts texts;
    quire_rng rng;         /* behind them */
    uint64_t budget_bytes; /* the charge of budget_pages() */
} known_texts;

static void texts_make(known_texts *known, const soak *how, quire_format format)
{
    const quire_runtime_opts runtime = runtime_opts(format);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_model(how, &engine, &runtime);
    const quire_kv_price price =
        quire_kv_price_make(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));

    known->rng = test_rng(2027);
    known->texts.n = SOAK_TEXTS_MAX;
    known->texts.answer_tokens = ANSWER_TOKENS;
    known->texts.own_tokens_max = OWN_TOKENS;
    soak_texts_make(&known->texts, &b, 70, &known->rng);
    known->budget_bytes = quire_kv_price_bytes(&price, budget_pages(how) * PAGE);
    known->is_made = true;
    bench_close(&b);
}

/* Several scenes have the plain model. */
static const known_texts *texts_of(const soak *how, quire_format format)
{
    static known_texts plain[QUIRE_FORMAT_COUNT];
    static known_texts other;
    const bool is_plain = how->scheme == NULL && !how->has_windows;
    known_texts *known = is_plain ? &plain[format] : &other;

    if (!known->is_made || !is_plain) {
        texts_make(known, how, format);
    }
    return known;
}

/* An engine with a file. Its budget holds only a part of a larger text. */
static engine_bench bench_small(soak *s, quire_format format, uint64_t budget_bytes,
                                uint64_t file_bytes)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = runtime_opts(format);

    runtime.kv_budget_bytes = budget_bytes;
    runtime.kv_overflows = true;
    s->ops = *quire_file_ops_default();
    s->ops.pwrite = soak_pwrite;
    s->ops.pread = soak_pread;
    s->ops.read_begin = soak_read_begin;
    s->ops.ctx = s;
    engine.overflow = (quire_overflow_opts){
        .dir = test_dir,
        .capacity_bytes = file_bytes,
        .host_bytes = (HOST_STRIPES + (s->scheme != NULL)) * QUIRE_OFFLOAD_STRIPE *
                      (budget_bytes / budget_pages(s)),
        .ops = &s->ops,
    };
    runtime.device = s->has_device ? "mock" : NULL;
    runtime.device_open = s->has_device ? open_mock : NULL;
    if (s->has_classes) {
        quire_classes_default(&engine.classes);
        engine.classes.items[0].is_pinned = true;
        engine.pinned_bytes = budget_bytes / budget_pages(s) * PINNED_PAGES;
    }
    return bench_model(s, &engine, &runtime);
}

static void clients_run(soak *s, quire_rng *rng)
{
    client clients[N_CLIENTS];

    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        clients[i].soak = s;
        clients[i].rng = (quire_rng){ quire_rng_below(rng, 1u << 30) };
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        (void)pthread_join(clients[i].thread, NULL);
    }
}

/* A text that nearly fills the context, or beside a pinned region one that the rest of the budget
 * can still compute. The clients may have cancelled each request that exceeds the budget before its
 * pages had to leave memory. */
static void longest_run(const soak *s)
{
    static int32_t text[N_CTX - ANSWER_TOKENS];
    const uint32_t n = s->has_classes ? OWN_TOKENS : N_CTX - ANSWER_TOKENS;
    quire_request_params params;
    quire_request *request;

    tokens_make(text, n, 2027);
    params = params_greedy(text, n, ANSWER_TOKENS);
    request = submit(s->bench, &params);
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(finish(request)->n_generated_tokens, ANSWER_TOKENS);
    quire_request_release(request);
}

static void drop_all(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_drop_all(tree, 0);
}

/* After the last request and the last cached page: the file is empty, and the budget is whole. */
static void end_check(const soak *s, const engine_bench *b, uint64_t budget_bytes)
{
    quire_engine_stats stats;
    const quire_offload_below_stats *below = &stats.overflow.offload.below;

    while (!quire_engine_is_idle(b->engine)) { /* those that were let go of */
        (void)stats_now(b->engine);
    }
    validate(b->engine);
    stats = stats_now(b->engine);
    assert_true(stats.overflow.offload.pages_out_total > 0);
    assert_int_equal(stats.overflow.offload.file.failures_total, 0);
    assert_int_equal(below->is_on, s->has_device);
    if (s->has_device) {
        assert_true(below->pages_down_total > 0);
        assert_true(below->file.read_bytes_total > 0);
        assert_int_equal(below->file.failures_total > 0, s->has_faults);
    }
    assert_int_equal(stats.cache.pages_live, 0);
    (void)engine_call(b->engine, drop_all, NULL);
    do {
        test_doze();
        stats = stats_now(b->engine);
    } while (stats.overflow.offload.buffer_bytes > 0);
    assert_int_equal(stats.overflow.offload.file.stripes_used, 0);
    assert_int_equal(below->file.stripes_used, 0);
    assert_int_equal(below->pages, 0);
    assert_int_equal(stats.cache.budget_bytes, budget_bytes);
    assert_int_equal(stats.cache.offloaded_bytes, 0);
}

static void soak_run(const soak *how, quire_format format, uint64_t file_bytes)
{
    const bool has_classes = how->has_classes;
    const known_texts *known = texts_of(how, format);
    const uint64_t budget_bytes = known->budget_bytes;
    quire_rng rng = known->rng;
    soak *s = calloc(1, sizeof *s);
    uint64_t pinned_bytes = 0;
    engine_bench b;

    assert_non_null(s);
    s->has_classes = has_classes;
    s->has_device = how->has_device;
    s->has_faults = how->has_faults;
    s->scheme = how->scheme;
    s->has_windows = how->has_windows;
    s->texts = known->texts;
    b = bench_small(s, format, budget_bytes, file_bytes);
    pinned_bytes = has_classes ? budget_bytes / budget_pages(s) * PINNED_PAGES : 0;
    s->bench = &b;
    clients_run(s, &rng);
    assert_int_equal(s->n_failed, 0);
    assert_int_equal(s->n_refused, 0);
    if (!s->has_faults) {
        longest_run(s);
    }
    assert_true(s->n_ended < N_REQUESTS / 4); /* most faults are mended */
    end_check(s, &b, budget_bytes - pinned_bytes);
    bench_close(&b);
    free(s);
}

static void test_one_class(void **state)
{
    (void)state;
    soak_run(&(soak){ .has_classes = false }, QUIRE_FORMAT_F32, (uint64_t)64 << 20);
}

static void test_classes_and_a_pinned_region(void **state)
{
    (void)state;
    soak_run(&(soak){ .has_classes = true }, QUIRE_FORMAT_F32, (uint64_t)64 << 20);
}

static void test_sealed(void **state)
{
    (void)state;
    soak_run(&(soak){ .has_classes = false }, QUIRE_FORMAT_Q4, (uint64_t)64 << 20);
}

static void test_device(void **state)
{
    (void)state;
    soak_run(&(soak){ .has_device = true }, QUIRE_FORMAT_F32, (uint64_t)64 << 20);
}

static void test_device_and_faults(void **state)
{
    (void)state;
    soak_run(&(soak){ .has_device = true, .has_classes = true, .has_faults = true },
             QUIRE_FORMAT_F32, (uint64_t)64 << 20);
}

/* Layers that read K and V of two others, and layers with windows between others. */
static void test_other_models(void **state)
{
    (void)state;
    soak_run(&(soak){ .has_classes = true, .scheme = "fusedkv" }, QUIRE_FORMAT_F32,
             (uint64_t)64 << 20);
    soak_run(&(soak){ .has_device = true, .scheme = "fusedkv" }, QUIRE_FORMAT_F32,
             (uint64_t)64 << 20);
    soak_run(&(soak){ .scheme = "gqa", .has_windows = true }, QUIRE_FORMAT_F32, (uint64_t)64 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_one_class),
        cmocka_unit_test(test_classes_and_a_pinned_region),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_device_and_faults),
        cmocka_unit_test(test_other_models),
    };

    return cmocka_run_group_tests_name("overflow_soak", tests, test_dir_make, test_dir_remove);
}
