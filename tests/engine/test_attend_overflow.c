/* test_attend_overflow.c - requests larger than the KV budget whose generated tokens read a share
 * of the pages: answers have the bits of a run with everything in memory, only chosen pages are
 * read from the file, and after a failed read the request is computed again.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "doze.h"
#include "engine_fixture.h"
#include "mem_disk.h"
#include "rounds.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX     2048u
#define N_PROMPT  1500u
#define N_TOKENS  30u
#define N_LAYER   12u
#define N_TOPS    4u
#define N_MEMORY  900u /* tokens that the budget has room for */
#define SHARE     0.25
#define BLOCK     4096u /* of O_DIRECT */
#define N_WRITES  4096u
#define LAYER_BAD 5u /* a layer whose rows choose pages */

#define LAYER_DENSE 0u /* that all rows read; layer 1 stays in its buffer between steps */
#define SLOT_INSIDE 3u /* of a stripe: chosen with the page before it */

/* The operating system's calls, and the place of the written pages. */
typedef struct watched_disk {
    quire_file_ops ops;
    atomic_bool is_stuck; /* reads of chosen pages never end, until the test ends */
    atomic_bool is_over;
    atomic_bool fails;     /* the next read of LAYER_BAD */
    atomic_bool is_inside; /* a read of LAYER_BAD had SLOT_INSIDE behind other pages */
    atomic_uint n_held;    /* reads that have waited */
    uint32_t n_writes;
    int fd;
    uint64_t offsets[N_WRITES]; /* of part i % N_LAYER */
    size_t bytes[N_WRITES];
} watched_disk;

typedef struct setting {
    quire_format format;
    bool is_small;        /* memory for N_MEMORY tokens, and a file */
    uint32_t page_tokens; /* 0 = 64 */
    uint32_t n_threads;   /* 0 = 1 */
    quire_store *store;   /* NULL: none */
    watched_disk *disk;   /* NULL: the operating system's */
    uint32_t wait_ms;     /* 0: the default */
} setting;

static engine_bench bench_with(const setting *s, uint64_t budget_bytes)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.k_format = runtime.v_format = s->format;
    runtime.has_bounds = true;
    runtime.page_tokens = s->page_tokens != 0 ? s->page_tokens : runtime.page_tokens;
    runtime.n_threads = s->n_threads != 0 ? s->n_threads : 1;
    runtime.kv_budget_bytes = budget_bytes;
    runtime.kv_overflows = s->is_small;
    engine.overflow = (quire_overflow_opts){ .dir = s->is_small ? test_dir : NULL,
                                             .capacity_bytes = (uint64_t)1 << 28,
                                             .wait_ms = s->wait_ms,
                                             .ops = s->disk != NULL ? &s->disk->ops : NULL };
    engine.tier = (quire_tier_opts){ .store = s->store,
                                     .copies_all = true,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    return bench_deep_panels(N_LAYER, &engine, &runtime);
}

static engine_bench bench_of(const setting *s)
{
    setting all = *s;
    quire_kv_price price;
    engine_bench b;

    if (!s->is_small) {
        return bench_with(s, 0);
    }
    all.is_small = false;
    all.store = NULL;
    b = bench_with(&all, 0);
    price = quire_kv_price_make(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));
    bench_close(&b);
    return bench_with(s, quire_kv_price_bytes(&price, N_MEMORY));
}

/* A request's tokens with the log-probabilities of the best: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS][N_TOPS];
    uint32_t n;
} answer;

static quire_request *ask(const engine_bench *b, double share, const int32_t *text, uint32_t n)
{
    quire_request_params params = params_greedy(text, n, N_TOKENS);

    params.has_logprobs = true;
    params.n_top_logprobs = N_TOPS;
    params.attend_share = share;
    return submit(b, &params);
}

/* Wait for the end of a request, and take what it has generated. */
static void take_tokens(quire_request *request, answer *out)
{
    quire_request_token event;
    int rc;

    *out = (answer){ 0 };
    while ((rc = quire_request_wait(request, out->n, FIXTURE_WAIT_MS, &event)) == 1) {
        assert_true(out->n < N_TOKENS);
        out->tokens[out->n] = event.token;
        for (uint32_t i = 0; i < event.n_tops && i < N_TOPS; i++) {
            out->logprobs[out->n][i] = event.tops[i].logprob;
        }
        out->n++;
    }
    assert_int_equal(rc, 0);
}

/* The answer of a request that ends well. Returns how many tokens of its prompt were cached. */
static uint32_t take(quire_request *request, answer *out)
{
    uint32_t n_cached;

    take_tokens(request, out);
    assert_int_equal(out->n, N_TOKENS);
    assert_string_equal(quire_request_result_get(request)->message, "");
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_LENGTH);
    n_cached = quire_request_result_get(request)->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

/* Prompts with their answers, with a share and without, from an engine with everything in memory.
 */
#define N_TEXTS 2u
typedef struct texts {
    int32_t prompts[N_TEXTS][N_PROMPT];
    answer some[N_TEXTS];
    answer all[N_TEXTS];
} texts;

static void texts_make(const setting *s, texts *t)
{
    setting whole = { .format = s->format, .page_tokens = s->page_tokens };
    engine_bench b = bench_of(&whole);

    for (uint32_t i = 0; i < N_TEXTS; i++) {
        tokens_make(t->prompts[i], N_PROMPT, 1 + i);
        (void)take(ask(&b, SHARE, t->prompts[i], N_PROMPT), &t->some[i]);
        (void)take(ask(&b, 0, t->prompts[i], N_PROMPT), &t->all[i]);
        assert_memory_not_equal(&t->some[i], &t->all[i], sizeof t->all[i]);
    }
    bench_close(&b);
}

static uint32_t check(const engine_bench *b, double share, const texts *t, uint32_t i)
{
    answer got;
    const uint32_t n_cached = take(ask(b, share, t->prompts[i], N_PROMPT), &got);

    assert_memory_equal(&got, share > 0 ? &t->some[i] : &t->all[i], sizeof got);
    return n_cached;
}

static quire_offload_file_stats file_now(const engine_bench *b)
{
    return stats_now(b->engine).overflow.offload.file;
}

/* A miss, a hit on pages of which most are in the file, and a request that reads all of them. */
static void same_answers(const setting *s)
{
    static texts t;
    quire_offload_file_stats before, after;
    uint64_t some_bytes;
    engine_bench b;

    texts_make(s, &t);
    b = bench_of(s);
    assert_int_equal(check(&b, SHARE, &t, 0), 0);
    before = file_now(&b);
    assert_true(before.chosen_total > 0 && before.left_total > 0);
    assert_int_equal(check(&b, SHARE, &t, 0), N_PROMPT - 1);
    after = file_now(&b);
    some_bytes = after.read_bytes_total - before.read_bytes_total;
    assert_true(after.left_total > before.left_total);
    assert_int_equal(check(&b, 0, &t, 0), N_PROMPT - 1);
    before = after;
    after = file_now(&b);
    /* A step that reads all, the last one of the prompt, is in both. */
    assert_true(some_bytes < (after.read_bytes_total - before.read_bytes_total) * 2 / 3);
    assert_int_equal(after.chosen_total, before.chosen_total);
    assert_int_equal(after.left_total, before.left_total);
    assert_int_equal(after.failures_total, 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_same_answers(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_F16, .is_small = true },
        { .format = QUIRE_FORMAT_F32, .is_small = true },
        { .format = QUIRE_FORMAT_BF16, .is_small = true, .page_tokens = 128 },
        { .format = QUIRE_FORMAT_Q8, .is_small = true, .n_threads = 3 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i += TEST_STRIDE(3u)) {
        same_answers(&settings[i]);
    }
}

/* Pages, buffers and the bounds of pages in the file stay within the budget. */
static void test_memory_is_bounded(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16, .is_small = true };
    static texts t;
    engine_bench b = bench_of(&s);
    const uint64_t budget_bytes = quire_runtime_opts_get(b.runtime)->kv_budget_bytes;
    quire_request *request;
    uint32_t n_offloaded = 0; /* steps with pages in the file */
    answer got;

    (void)state;
    texts_make(&s, &t);
    request = ask(&b, SHARE, t.prompts[0], N_PROMPT);
    for (uint32_t i = 0; i < 20; i++) {
        gate *g = gate_close(b.engine);
        quire_cache_stats cache;
        quire_engine_stats stats;

        gate_step(g);
        quire_engine_stats_get(b.engine, &stats);
        quire_cache_stats_get(quire_runtime_cache(b.runtime), &cache);
        assert_true(cache.live_bytes + cache.cached_bytes + stats.overflow.offload.buffer_bytes <=
                    budget_bytes);
        if (stats.overflow.offload.pages > 0) {
            n_offloaded++;
            assert_true(stats.overflow.offload.buffer_bytes > 0);
        }
        gate_open(g);
    }
    assert_true(n_offloaded > 0);
    (void)take(request, &got);
    assert_memory_equal(&got, &t.some[0], sizeof got);
    bench_close(&b);
}

/* Two large requests and a small one, of both kinds, in the same steps. */
static void test_side_by_side(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16, .is_small = true };
    static texts t;
    quire_request *requests[4];
    answer small[2], got;
    engine_bench b = bench_of(&s);

    (void)state;
    texts_make(&s, &t);
    (void)take(ask(&b, SHARE, t.prompts[1], 300), &small[0]);
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = ask(&b, i == 1 ? 0 : SHARE, t.prompts[i % 2], i == 2 ? 300 : N_PROMPT);
    }
    requests[3] = ask(&b, SHARE, t.prompts[1], 300);
    for (uint32_t i = 0; i < 2; i++) {
        (void)take(requests[i], &got);
        assert_memory_equal(&got, i == 1 ? &t.all[1] : &t.some[0], sizeof got);
    }
    (void)take(requests[2], &got);
    (void)take(requests[3], &small[1]);
    assert_memory_equal(&small[0], &small[1], sizeof small[0]);
    validate(b.engine);
    bench_close(&b);
}

static quire_request *running(const engine_bench *b)
{
    return b->engine->loop->set.n_running > 0 ? b->engine->loop->set.running[0] : NULL;
}

/* Let the engine go on until the request has generated some tokens. */
static void generate_some(const engine_bench *b, gate *g)
{
    while (running(b) == NULL || running(b)->n_tokens < N_PROMPT + 10) {
        gate_step(g);
    }
}

/* Tokens that are computed again after a preemption choose as they did, in steps of many rows. */
static void test_preempted(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_Q8, .is_small = true };
    static texts t;
    quire_request *request;
    answer got;
    engine_bench b;
    gate *g;

    (void)state;
    texts_make(&s, &t);
    b = bench_of(&s);
    g = gate_close(b.engine);
    request = ask(&b, SHARE, t.prompts[0], N_PROMPT);
    generate_some(&b, g);
    quire_loop_preempt(b.engine->loop, running(&b));
    request->wait.blocked_at = 0; /* as if pages had been released since */
    gate_open(g);
    (void)take(request, &got);
    assert_memory_equal(&got, &t.some[0], sizeof got);
    assert_int_equal(stats_now(b.engine).preemptions_total, 1);
    validate(b.engine);
    bench_close(&b);
}

/* A text that is larger than memory comes back from the store: its pages go on to the file, and
 * their bounds stay. */
static void test_restart(void **state)
{
    setting s = { .format = QUIRE_FORMAT_F16 };
    mem_disk *disk = mem_disk_new();
    static texts t;
    engine_bench b;

    (void)state;
    texts_make(&s, &t);
    s.store = mem_disk_store(disk);
    b = bench_of(&s);
    (void)check(&b, 0, &t, 0);
    bench_close(&b);
    s.store = mem_disk_store(disk);
    s.is_small = true;
    b = bench_of(&s);
    assert_int_equal(check(&b, SHARE, &t, 0), N_PROMPT - 1); /* a partly filled page, too */
    assert_true(stats_now(b.engine).tier.fetched_tokens_total >= N_PROMPT / 64 * 64);
    assert_true(file_now(&b).left_total > 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* ---- faults while pages are chosen ---- */

static ssize_t disk_pwrite(void *ctx, int fd, const void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    watched_disk *d = ctx;

    assert_true(d->n_writes < N_WRITES);
    d->fd = fd;
    d->offsets[d->n_writes] = offset;
    d->bytes[d->n_writes++] = n;
    return os->pwrite(os->ctx, fd, buffer, n, offset);
}

/* Whether a read is one of a layer, of which all stripes lie side by side. */
static bool is_of_layer(const watched_disk *d, uint32_t layer, uint64_t offset)
{
    return offset >= d->offsets[layer] && offset < d->offsets[layer + 1];
}

/* Whether a read of LAYER_BAD has SLOT_INSIDE, and not as its first page. */
static bool has_inside(const watched_disk *d, size_t n, uint64_t offset)
{
    const size_t stripe = d->bytes[LAYER_BAD], slot = stripe / QUIRE_OFFLOAD_STRIPE;
    const size_t first = (offset - d->offsets[LAYER_BAD]) % stripe / slot;

    return first < SLOT_INSIDE && first + n / slot > SLOT_INSIDE;
}

static int disk_read_begin(void *ctx, int fd, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    watched_disk *d = ctx;

    if (offset >= d->offsets[QUIRE_ATTEND_DENSE] && atomic_load(&d->is_stuck)) {
        (void)atomic_fetch_add(&d->n_held, 1);
        while (!atomic_load(&d->is_over)) {
            test_doze_ms();
        }
    }
    if (is_of_layer(d, LAYER_BAD, offset)) {
        if (has_inside(d, n, offset)) {
            atomic_store(&d->is_inside, true);
        }
        if (atomic_exchange(&d->fails, false)) {
            return -EIO;
        }
    }
    return os->read_begin(os->ctx, fd, n, offset);
}

static void disk_init(watched_disk *d)
{
    *d = (watched_disk){ .ops = *quire_file_ops_default() };
    d->ops.pwrite = disk_pwrite;
    d->ops.read_begin = disk_read_begin;
    d->ops.ctx = d;
}

/* Change a bit of one layer of pages in the file: those in these slots of each stripe. */
static void disk_damage(const watched_disk *d, uint32_t layer, uint32_t slots)
{
    const quire_file_ops *os = quire_file_ops_default();

    for (uint32_t i = layer; i < d->n_writes; i += N_LAYER) {
        unsigned char *bytes = aligned_alloc(BLOCK, d->bytes[i]);
        const size_t slot = d->bytes[i] / QUIRE_OFFLOAD_STRIPE;

        assert_non_null(bytes);
        assert_int_equal(os->pread(os->ctx, d->fd, bytes, d->bytes[i], d->offsets[i]), d->bytes[i]);
        for (uint32_t k = 0; k < QUIRE_OFFLOAD_STRIPE; k++) {
            bytes[k * slot + 100] ^= (slots & 1u << k) != 0 ? 0x10 : 0;
        }
        assert_int_equal(os->pwrite(os->ctx, d->fd, bytes, d->bytes[i], d->offsets[i]),
                         d->bytes[i]);
        free(bytes);
    }
}

/* ---- faults ---- */

static void pages_damage(watched_disk *d)
{
    disk_damage(d, LAYER_BAD, UINT32_MAX);
}

static void dense_damage(watched_disk *d)
{
    disk_damage(d, LAYER_DENSE, UINT32_MAX);
}

/* Until here reads of whole stripes had the page inside them. */
static void inside_damage(watched_disk *d)
{
    disk_damage(d, LAYER_BAD, 1u << SLOT_INSIDE);
    atomic_store(&d->is_inside, false);
}

static void reads_fail(watched_disk *d)
{
    atomic_store(&d->fails, true);
}

/* The file ends in the first page of a layer. */
static void file_cut(watched_disk *d)
{
    const quire_file_ops *os = quire_file_ops_default();
    const size_t slot = d->bytes[LAYER_BAD] / QUIRE_OFFLOAD_STRIPE;

    assert_int_equal(os->truncate(os->ctx, d->fd, d->offsets[LAYER_BAD] + slot / 2), 0);
}

static const texts *texts_f16(void)
{
    static const setting s = { .format = QUIRE_FORMAT_F16 };
    static bool is_made;
    static texts t;

    if (!is_made) {
        texts_make(&s, &t);
        is_made = true;
    }
    return &t;
}

/* A fault while tokens choose pages: the step fails, and the request is computed again, with the
 * same bits. */
static void computed_again(void (*harm)(watched_disk *d), uint32_t n_threads, const char *trouble)
{
    static watched_disk d;
    const setting s = {
        .format = QUIRE_FORMAT_F16, .is_small = true, .disk = &d, .n_threads = n_threads
    };
    const texts *t = texts_f16();
    quire_engine_stats stats;
    quire_request *request;
    answer got;
    engine_bench b;
    gate *g;

    disk_init(&d);
    b = bench_of(&s);
    g = gate_close(b.engine);
    request = ask(&b, SHARE, t->prompts[0], N_PROMPT);
    generate_some(&b, g);
    harm(&d);
    gate_open(g);
    (void)take(request, &got);
    assert_memory_equal(&got, &t->some[0], sizeof got);
    stats = stats_now(b.engine);
    assert_int_equal(stats.overflow.lost_total, 1);
    assert_true(stats.overflow.offload.file.failures_total > 0);
    assert_non_null(strstr(stats.overflow.offload.trouble, trouble));
    assert_true(harm != inside_damage || atomic_load(&d.is_inside));
    validate(b.engine);
    bench_close(&b);
}

static void test_damage_is_computed_again(void **state)
{
    (void)state;
    computed_again(pages_damage, 1, "checksum");
}

/* The damaged page is read with the page before it, in one piece. */
static void test_damage_inside_a_read(void **state)
{
    (void)state;
    computed_again(inside_damage, 1, "checksum");
}

/* Damage of a layer that all rows read whole, while the threads of the step wait for it. */
static void test_damage_of_dense_layers(void **state)
{
    (void)state;
    computed_again(dense_damage, 3, "checksum");
}

static void test_failed_reads(void **state)
{
    (void)state;
    computed_again(reads_fail, 1, strerror(EIO));
    computed_again(file_cut, 3, strerror(ENODATA));
}

/* A request is cancelled while a token's pages are being read: it ends as such, and the pages in
 * the file are whole. */
static void test_cancel(void **state)
{
    static watched_disk d;
    const setting s = { .format = QUIRE_FORMAT_F16, .is_small = true, .disk = &d, .n_threads = 3 };
    const texts *t = texts_f16();
    quire_request *request;
    engine_bench b;
    answer got;
    gate *g;

    (void)state;
    disk_init(&d);
    b = bench_of(&s);
    g = gate_close(b.engine);
    request = ask(&b, SHARE, t->prompts[0], N_PROMPT);
    generate_some(&b, g);
    atomic_store(&d.is_stuck, true);
    gate_open(g);
    while (atomic_load(&d.n_held) == 0) {
        test_doze_ms();
    }
    quire_request_cancel(request);
    atomic_store(&d.is_over, true);
    take_tokens(request, &got);
    assert_true(got.n >= 10 && got.n < N_TOKENS);
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_CANCEL);
    quire_request_release(request);
    (void)check(&b, SHARE, t, 0);
    assert_int_equal(stats_now(b.engine).overflow.lost_total, 0);
    validate(b.engine);
    bench_close(&b);
}

/* The disk answers no more when pages are chosen: the request ends behind the tokens that it has
 * with an error, which names the cause as the figures do, and others run. */
static void test_a_stuck_disk(void **state)
{
    static watched_disk d;
    setting s = { .format = QUIRE_FORMAT_F16, .is_small = true, .disk = &d, .wait_ms = 300 };
    const texts *t = texts_f16();
    quire_request *request;
    engine_bench b;
    answer got;
    gate *g;

    (void)state;
    disk_init(&d);
    b = bench_of(&s);
    g = gate_close(b.engine);
    request = ask(&b, SHARE, t->prompts[0], N_PROMPT);
    generate_some(&b, g);
    atomic_store(&d.is_stuck, true);
    gate_open(g);
    take_tokens(request, &got);
    assert_true(got.n >= 10 && got.n < N_TOKENS);
    assert_memory_equal(got.tokens, t->some[0].tokens, got.n * sizeof got.tokens[0]);
    assert_memory_equal(got.logprobs, t->some[0].logprobs, got.n * sizeof got.logprobs[0]);
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_ERROR);
    assert_non_null(strstr(quire_request_result_get(request)->message,
                           "; overflow file in --cache-dir: read: Connection timed out"));
    quire_request_release(request);
    assert_non_null(strstr(stats_now(b.engine).overflow.offload.trouble, "timed out"));
    (void)take(ask(&b, SHARE, t->prompts[1], 300), &got);
    atomic_store(&d.is_over, true);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_damage_is_computed_again),
        cmocka_unit_test(test_a_stuck_disk),
        cmocka_unit_test(test_damage_inside_a_read),
        cmocka_unit_test(test_damage_of_dense_layers),
        cmocka_unit_test(test_failed_reads),
        cmocka_unit_test(test_cancel),
    };

    return cmocka_run_group_tests_name("attend_overflow", tests, test_dir_make, test_dir_remove);
}
