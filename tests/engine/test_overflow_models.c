/* test_overflow_models.c - texts larger than memory with models of all kinds: layers that share K
 * and V, from one stored layer or two; windows; recurrent layers. Answers are those of a run with
 * everything in memory, bit by bit: with pages in a file, in the host's memory below a device's,
 * and in a file behind that.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "bad_disk.h"
#include "directory.h"
#include "engine_fixture.h"
#include "rounds.h"

#include "device/mock_device.h"
#include "gguf_gen_scheme.h"
#include "model/recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N_CTX      2048u
#define N_LAYER    16u
#define N_PROMPT   1300u
#define N_TOKENS   12u
#define N_TOPS     4u
#define WINDOW     100u
#define FILE_BYTES ((uint64_t)1 << 30)

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

/* ---- models ---- */

static void recurrent_fill(gguf_gen_opts *gen, const char *arch)
{
    (void)snprintf(gen->arch, sizeof gen->arch, "%s", arch);
    gen->is_tied = true;
    gen->attention_every = 2;
    gen->conv_taps = 3;
    gen->vocab = GGUF_GEN_VOCAB_BPE;
    if (strcmp(arch, "lfm2") != 0) {
        gen->n_delta_k_heads = 2;
        gen->n_delta_v_heads = 4;
        gen->d_delta_head = 32;
        gen->d_mamba_state = strcmp(arch, "qwen35") != 0 ? 16 : 0;
    }
}

static void gemma_fill(gguf_gen_opts *gen, const char *arch)
{
    const bool is_4 = strcmp(arch, "gemma4") == 0;

    (void)snprintf(gen->arch, sizeof gen->arch, "%s", arch);
    gen->sliding_window = WINDOW;
    gen->is_tied = true;
    gen->window_rope_base = is_4 ? 500.0f : 0.0f;
    gen->has_window_array = true;
    if (is_4) {                  /* layers of two sizes, the last four read those below */
        gen->rope_factor = 4.0f; /* of frequency factors, which the file has */
        gen->rope_ctx_orig = 64;
        gen->d_head = 64;
        gen->window_d_head = 32;
        gen->n_shared_kv = 4;
        gen->n_embd_layer = 32;
    }
}

static void windows_fill(gguf_gen_opts *gen)
{
    for (uint32_t l = 0; l < N_LAYER; l++) {
        gen->windows[l] = l % 2 == 0 ? (int32_t)WINDOW : 0;
    }
}

/* The KV that the upper half reads: its own layer's V, the bottom's K, and so on. */
static void crossed_fill(gguf_gen_opts *gen)
{
    for (uint32_t l = N_LAYER / 2; l < N_LAYER; l++) {
        gen->k_sources[l][0] = (int32_t)(l % 4);
        gen->v_sources[l][0] = (int32_t)(l % 3 + 4);
    }
}

static gguf_gen_opts latent_make(void)
{
    gguf_gen_opts gen;

    assert_true(gguf_gen_shape("tiny-deepseek2", &gen));
    gen.type = GGML_TYPE_Q8_0;
    gen.n_layer = N_LAYER;
    gen.n_ctx = N_CTX;
    return gen;
}

/* Weights in Q8_0: a row has the same bits in a step of any shape. */
static gguf_gen_opts model_of(const char *kind)
{
    static const char *const schemes[] = { "windows", "gqa", "crossed", "gqa", NULL };
    gguf_gen_opts gen = bench_gen_opts(GGML_TYPE_Q8_0, 32, N_LAYER, N_CTX);
    quire_error err = QUIRE_ERROR_INIT;
    const char *scheme = kind;

    if (strcmp(kind, "deepseek2") == 0) {
        return latent_make();
    }
    if (strncmp(kind, "gemma", 5) == 0) {
        gemma_fill(&gen, kind);
        return gen;
    }
    if (strcmp(kind, "lfm2") == 0 || strcmp(kind, "qwen35") == 0 ||
        strcmp(kind, "falcon-h1") == 0) {
        recurrent_fill(&gen, kind);
        return gen;
    }
    for (size_t i = 0; schemes[i] != NULL; i += 2) {
        scheme = strcmp(kind, schemes[i]) == 0 ? schemes[i + 1] : scheme;
    }
    if (gguf_gen_scheme_apply(&gen, scheme, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    if (strcmp(kind, "windows") == 0) {
        windows_fill(&gen);
    } else if (strcmp(kind, "crossed") == 0) {
        crossed_fill(&gen);
    }
    return gen;
}

/* ---- engines ---- */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    static const quire_mock_device_opts slow = { .delay_ticks = 2 };

    assert_string_equal(name, "mock");
    return quire_mock_device_open(out, opts, &slow, err);
}

typedef struct setting {
    const char *kind;
    quire_format format;
    const char *device; /* NULL: the host's memory */
    uint32_t n_prompt;  /* that memory has no room for; 0: N_PROMPT */
    bool is_small;      /* memory for a share of a text */
    bool has_few;       /* of the host's memory below a device's: a stripe, and the stage */
    bool has_no_file;
    bool attends;       /* pages in the host's memory where they lie */
    uint32_t n_threads; /* 0: 1 */
    const quire_file_ops *ops;
} setting;

static quire_runtime_opts runtime_of(const setting *s)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.n_batch = 128;
    runtime.n_threads = s->n_threads != 0 ? s->n_threads : 1;
    runtime.k_format = runtime.v_format = s->format;
    runtime.kv_recent = runtime.kv_sinks = 64;
    return runtime;
}

/* The share of a text's KV that memory has room for. Buffers take more of it where each layer reads
 * two parts, and where few layers see the whole text; hot tiles do in sealed formats. */
static double share_of(const setting *s)
{
    return strcmp(s->kind, "crossed") == 0     ? 0.85
           : s->n_prompt != 0                  ? 0.75 /* for the buffers of eight pages */
           : strcmp(s->kind, "gemma4") == 0    ? 0.65
           : quire_format_is_sealed(s->format) ? 0.6
                                               : 0.52;
}

/* Memory of a share of a text, and of the states that requests keep. */
static void small_fill(const setting *s, const gguf_gen_opts *gen, quire_runtime_opts *runtime,
                       quire_engine_opts *engine)
{
    engine_bench b = bench_generated(gen, engine, runtime);
    const quire_model_desc *desc = quire_model_desc_get(b.model);
    const quire_runtime_opts *o = quire_runtime_opts_get(b.runtime);
    const quire_kv_price price = quire_kv_price_make(desc, o);
    const uint32_t n_prompt = s->n_prompt != 0 ? s->n_prompt : N_PROMPT;
    const uint32_t n_stripes = quire_format_is_sealed(s->format) ? 4 : 2;
    const uint64_t need_bytes = quire_kv_price_bytes(&price, n_prompt + N_TOKENS);

    runtime->kv_budget_bytes =
        (uint64_t)((double)need_bytes * share_of(s)) + quire_state_seq_bytes(desc);
    runtime->kv_overflows = true;
    runtime->attends_host = s->attends;
    engine->overflow = (quire_overflow_opts){
        .dir = s->has_no_file ? NULL : test_dir,
        .capacity_bytes = FILE_BYTES,
        .host_bytes =
            s->has_few ? n_stripes * quire_overflow_bytes_min(desc, o) : (uint64_t)1 << 28,
        .attend = s->attends ? QUIRE_OVERFLOW_ATTEND_HOST : QUIRE_OVERFLOW_ATTEND_DEVICE,
        .ops = s->ops,
    };
    bench_close(&b);
}

static engine_bench bench_of(const setting *s)
{
    const gguf_gen_opts gen = model_of(s->kind);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = runtime_of(s);

    if (s->is_small) {
        small_fill(s, &gen, &runtime, &engine);
    }
    runtime.device = s->device;
    runtime.device_open = s->device != NULL && strcmp(s->device, "mock") == 0 ? open_mock : NULL;
    return bench_generated(&gen, &engine, &runtime);
}

/* A request's tokens with the log-probabilities of the best: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS][N_TOPS];
} answer;

static quire_request *ask(const engine_bench *b, uint64_t seed, uint32_t n_prompt)
{
    int32_t text[N_CTX];
    quire_request_params params;

    tokens_make(text, n_prompt, seed);
    params = params_greedy(text, n_prompt, N_TOKENS);
    params.has_logprobs = true;
    params.n_top_logprobs = N_TOPS;
    return submit(b, &params);
}

static void take_answer(quire_request *request, answer *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        quire_request_token token;

        if (quire_request_wait(request, i, FIXTURE_WAIT_MS, &token) != 1) {
            fail_msg("%s", finish(request)->message);
        }
        out->tokens[i] = token.token;
        for (uint32_t t = 0; t < token.n_tops && t < N_TOPS; t++) {
            out->logprobs[i][t] = token.tops[t].logprob;
            assert_true(isfinite(token.tops[t].logprob));
        }
    }
}

/* The end of a request. Returns the number of its cached tokens. */
static uint32_t finish_cached(quire_request *request)
{
    const uint32_t n_cached = finish(request)->n_cached_tokens;

    finish_as(request, QUIRE_FINISH_LENGTH);
    return n_cached;
}

static void take(quire_request *request, answer *out)
{
    take_answer(request, out);
    (void)finish_cached(request);
}

static setting in_memory(const setting *s)
{
    return (setting){
        .kind = s->kind, .format = s->format, .device = s->device, .n_threads = s->n_threads
    };
}

/* ---- answers ---- */

/* A text that memory has no room for is computed, and then found as a hit. */
static void check_answers(const setting *s)
{
    const setting all = in_memory(s);
    quire_engine_stats stats;
    answer whole, again, got;
    engine_bench b = bench_of(&all);

    take(ask(&b, 1, N_PROMPT), &whole);
    take(ask(&b, 1, N_PROMPT), &again);
    bench_close(&b);

    b = bench_of(s);
    take(ask(&b, 1, N_PROMPT), &got);
    stats = stats_now(b.engine);
    if (memcmp(&whole, &got, sizeof whole) != 0) {
        fail_msg("%s in %s on %s: other bits", s->kind, quire_format_name(s->format),
                 s->device != NULL ? s->device : "the CPU");
    }
    if (stats.overflow.offload.pages_out_total < 8) {
        fail_msg("%s: %u pages left memory", s->kind,
                 (unsigned)stats.overflow.offload.pages_out_total);
    }
    assert_int_equal(stats.overflow.requests_total, 1);
    assert_true(stats.overflow.offload.file.read_bytes_total > 0);
    assert_int_equal(stats.overflow.offload.file.failures_total, 0);
    assert_int_equal(stats.overflow.lost_total, 0);
    if (s->has_few && share_of(s) < 0.6 && stats.overflow.offload.below.pages == 0) {
        fail_msg("%s: no pages below the host's memory", s->kind);
    }
    validate(b.engine);
    take(ask(&b, 1, N_PROMPT), &got);
    assert_memory_equal(&again, &got, sizeof again);
    validate(b.engine);
    bench_close(&b);
}

static const char *const kinds[] = { "cla2",     "yoco",         "yoco++",
                                     "fusedkv",  "fusedkv-lite", "fusedkv-lite-learnable",
                                     "crossed",  "windows",      "gemma3",
                                     "gemma4",   "lfm2",         "qwen35",
                                     "falcon-h1" };
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static void test_in_a_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        check_answers(&(setting){ .kind = kinds[i], .format = QUIRE_FORMAT_F16, .is_small = true });
    }
}

/* V is a part of K and is not stored. */
static void test_latent_in_a_file(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        check_answers(&(setting){ .kind = "deepseek2", .format = formats[i], .is_small = true });
    }
}

/* Formats with hot tiles, and threads of a step that wait for the pages of a layer that stores
 * nothing. */
static void test_formats_and_threads(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t i = 0; i < N_KINDS; i += TEST_STRIDE(2u)) {
        check_answers(&(setting){
            .kind = kinds[i], .format = formats[i % 3], .is_small = true, .n_threads = 2 });
    }
}

static void test_below_a_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i += TEST_STRIDE(2u)) {
        check_answers(&(setting){ .kind = kinds[i],
                                  .format = i % 3 == 1 ? QUIRE_FORMAT_Q4 : QUIRE_FORMAT_F16,
                                  .device = "mock",
                                  .is_small = true,
                                  .has_no_file = true });
    }
}

static void test_in_a_file_below_a_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i += TEST_STRIDE(5u)) {
        check_answers(&(setting){ .kind = kinds[i],
                                  .format = i % 3 == 2 ? QUIRE_FORMAT_Q4 : QUIRE_FORMAT_F16,
                                  .device = "mock",
                                  .is_small = true,
                                  .has_few = true,
                                  .n_threads = 1 + i % 2 });
    }
}

static bool has_vulkan(void)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    opts.attn.n_entries_max = 16;
    if (quire_device_open(&device, "vulkan0", &opts, &err) < 0) {
        (void)printf("skipped: %s\n", err.message);
        return false;
    }
    quire_device_close(device);
    return true;
}

/* A card's kernels find second addresses in a table of their own. */
static void test_on_a_card(void **state)
{
    (void)state;
    if (has_vulkan()) {
        const setting s = { .kind = "fusedkv",
                            .format = QUIRE_FORMAT_F16,
                            .device = "vulkan0",
                            .n_prompt = 450,
                            .is_small = true,
                            .has_no_file = true };
        const setting all = in_memory(&s);
        answer whole, got;
        engine_bench b = bench_of(&all);

        take(ask(&b, 1, s.n_prompt), &whole);
        bench_close(&b);
        b = bench_of(&s);
        take(ask(&b, 1, s.n_prompt), &got);
        assert_memory_equal(&whole, &got, sizeof whole);
        assert_true(stats_now(b.engine).overflow.offload.pages_out_total > 0);
        bench_close(&b);
    }
}

/* Memory of pages, states and buffers stays within the budget. */
static void test_memory_is_bounded(void **state)
{
    static const char *const some[] = { "fusedkv", "crossed", "windows", "qwen35" };

    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        const setting s = { .kind = some[i], .format = QUIRE_FORMAT_F16, .is_small = true };
        engine_bench b = bench_of(&s);
        const uint64_t budget_bytes = quire_runtime_opts_get(b.runtime)->kv_budget_bytes;
        quire_request *request = ask(&b, 1, N_PROMPT);
        uint64_t buffer_bytes = 0;
        answer got;

        for (uint32_t k = 0; k < 18; k++) {
            gate *g = gate_close(b.engine);
            quire_cache_stats cache;
            quire_engine_stats stats;

            gate_step(g);
            quire_engine_stats_get(b.engine, &stats);
            quire_cache_stats_get(quire_runtime_cache(b.runtime), &cache);
            buffer_bytes = stats.overflow.offload.buffer_bytes;
            assert_true(cache.live_bytes + cache.cached_bytes + buffer_bytes <= budget_bytes);
            gate_open(g);
        }
        assert_true(buffer_bytes > 0);
        take(request, &got);
        bench_close(&b);
    }
}

/* Two texts at once: while one has tokens generated, steps compute the prompt of the other, and
 * above the last layer that stores they go on with the rows of the first alone. */
static void two_at_once(const setting *s)
{
    const setting all = in_memory(s);
    answer whole[2], got[2];
    quire_request *requests[2];
    engine_bench b = bench_of(&all);

    for (uint32_t i = 0; i < 2; i++) {
        take(ask(&b, 1 + i, N_PROMPT - 400 * i), &whole[i]);
    }
    bench_close(&b);
    b = bench_of(s);
    for (uint32_t i = 0; i < 2; i++) {
        requests[i] = ask(&b, 1 + i, N_PROMPT - 400 * i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        take(requests[i], &got[i]);
        assert_memory_equal(&whole[i], &got[i], sizeof whole[i]);
    }
    if (stats_now(b.engine).overflow.offload.pages_out_total < 8) {
        fail_msg("%s: all pages stay in memory", s->kind);
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_two_at_once(void **state)
{
    static const char *const some[] = { "yoco", "fusedkv", "windows", "qwen35" };

    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        two_at_once(&(setting){ .kind = some[i], .format = QUIRE_FORMAT_F16, .is_small = true });
        two_at_once(&(setting){ .kind = some[i],
                                .format = QUIRE_FORMAT_F16,
                                .device = "mock",
                                .is_small = true,
                                .has_few = true });
    }
}

/* The next turn of a text: the prompt, its answer, and a few tokens more. Returns the number of
 * cached tokens. */
static uint32_t take_turn(const engine_bench *b, const answer *before, answer *out)
{
    int32_t text[N_CTX];
    quire_request_params params;
    quire_request *request;

    tokens_make(text, N_PROMPT, 1);
    memcpy(text + N_PROMPT, before->tokens, sizeof before->tokens);
    tokens_make(text + N_PROMPT + N_TOKENS, 3, 9);
    params = params_greedy(text, N_PROMPT + N_TOKENS + 3, N_TOKENS);
    params.has_logprobs = true;
    params.n_top_logprobs = N_TOPS;
    request = submit(b, &params);
    take_answer(request, out);
    return finish_cached(request);
}

/* Pages in the host's memory are attended where they lie. Such tokens have other last bits, and so
 * they are no part of a later hit: the next turn has the bits of a run with everything in memory
 * but for its own tokens. */
static void check_attended(const char *kind, quire_format format, float tolerance)
{
    const setting s = { .kind = kind,
                        .format = format,
                        .device = "mock",
                        .is_small = true,
                        .has_few = true,
                        .attends = true,
                        .n_threads = 2 };
    const setting all = in_memory(&s);
    answer whole[2], got[2];
    uint32_t n_cached;
    engine_bench b = bench_of(&all);

    take(ask(&b, 1, N_PROMPT), &whole[0]);
    (void)take_turn(&b, &whole[0], &whole[1]);
    bench_close(&b);
    b = bench_of(&s);
    take(ask(&b, 1, N_PROMPT), &got[0]);
    n_cached = take_turn(&b, &whole[0], &got[1]);
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < N_TOKENS; i++) {
            for (uint32_t t = 0; t < N_TOPS; t++) {
                const float diff = got[turn].logprobs[i][t] - whole[turn].logprobs[i][t];

                if (!(fabsf(diff) < tolerance)) {
                    fail_msg("%s, turn %u, token %u: %g", kind, turn, i, (double)diff);
                }
            }
        }
        assert_memory_equal(whole[turn].tokens, got[turn].tokens, sizeof got[turn].tokens);
        /* The first token comes of a prompt, which the device alone computes. */
        assert_memory_equal(whole[turn].logprobs[0], got[turn].logprobs[0],
                            sizeof got[turn].logprobs[0]);
    }
    assert_true(n_cached <= N_PROMPT);
    assert_true(stats_now(b.engine).overflow.offload.file.attended_bytes_total > 0);
    validate(b.engine);
    bench_close(&b);
}

/* Gemma's GELU is a table of f16, in which the next number is far. */
static void test_attended_where_they_lie(void **state)
{
    static const char *const some[] = { "fusedkv", "windows", "lfm2", "qwen35", "falcon-h1" };

    (void)state;
    check_attended("fusedkv", QUIRE_FORMAT_F16, 1e-3f);
    check_attended("gemma3", QUIRE_FORMAT_F32, 2e-2f);
    check_attended("gemma4", QUIRE_FORMAT_F32, 2e-2f);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        check_attended(some[i], QUIRE_FORMAT_F32, 1e-5f);
    }
}

/* ---- disks that fail ---- */

static const char *const some_kinds[] = { "fusedkv", "windows", "lfm2" };
#define N_SOME (sizeof some_kinds / sizeof some_kinds[0])

static setting on_disk(const char *kind, bad_disk *d, bool has_device)
{
    bad_disk_begin(d);
    return (setting){ .kind = kind,
                      .format = QUIRE_FORMAT_F16,
                      .device = has_device ? "mock" : NULL,
                      .is_small = true,
                      .has_few = true,
                      .ops = &d->ops };
}

/* Damage is detected, and the damaged pages are computed again: the answer is right. */
static void test_damage_is_computed_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * N_SOME; i++) {
        bad_disk d = { .n_writes_good = 3 };
        const setting s = on_disk(some_kinds[i / 2], &d, i % 2 == 1);
        const setting all = in_memory(&s);
        quire_engine_stats stats;
        answer whole, got;
        engine_bench b = bench_of(&all);

        take(ask(&b, 1, N_PROMPT), &whole);
        bench_close(&b);
        b = bench_of(&s);
        take(ask(&b, 1, N_PROMPT), &got);
        assert_memory_equal(&whole, &got, sizeof whole);
        stats = stats_now(b.engine);
        assert_int_equal(stats.overflow.lost_total, 1);
        assert_non_null(strstr(stats.overflow.offload.trouble, "checksum"));
        bench_close(&b);
    }
}

/* A request that can go nowhere ends with a message that names the cause; others run. */
static void test_a_full_disk(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SOME; i++) {
        bad_disk d = { .fails = true, .n_writes_good = 0 };
        const setting s = on_disk(some_kinds[i], &d, false);
        engine_bench b = bench_of(&s);
        quire_request *request = ask(&b, 1, N_PROMPT);
        answer got;

        assert_int_equal(finish(request)->finish, QUIRE_FINISH_ERROR);
        assert_non_null(strstr(finish(request)->message, "No space left"));
        quire_request_release(request);
        take(ask(&b, 2, 200), &got);
        bench_close(&b);
    }
}

/* States stay in memory: a text whose pages have no room beside them is refused at once, although
 * memory and file together would have room. */
static void test_states_stay(void **state)
{
    const setting all = { .kind = "qwen35", .format = QUIRE_FORMAT_F16 };
    const gguf_gen_opts gen = model_of(all.kind);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = runtime_of(&all);
    quire_error err = QUIRE_ERROR_INIT;
    engine_bench b = bench_of(&all);
    const quire_model_desc *desc = quire_model_desc_get(b.model);
    const quire_kv_price price = quire_kv_price_make(desc, quire_runtime_opts_get(b.runtime));
    const uint32_t n = 4 * price.page_tokens;
    int32_t text[N_CTX];
    quire_request_params params = params_greedy(text, n, 1);
    quire_request *request;

    (void)state;
    runtime.kv_budget_bytes = quire_state_seq_bytes(desc) + 2 * price.main_page_bytes;
    runtime.kv_overflows = true;
    engine.overflow = (quire_overflow_opts){ .dir = test_dir, .capacity_bytes = FILE_BYTES };
    bench_close(&b);
    b = bench_generated(&gen, &engine, &runtime);
    tokens_make(text, n, 1);
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    if (strstr(err.message, "in memory, for windows, states and buffers") == NULL) {
        fail_msg("%s", err.message);
    }
    params.n_tokens = price.page_tokens;
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_a_file),
        cmocka_unit_test(test_latent_in_a_file),
        cmocka_unit_test(test_formats_and_threads),
        cmocka_unit_test(test_below_a_device),
        cmocka_unit_test(test_in_a_file_below_a_device),
        cmocka_unit_test(test_on_a_card),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_attended_where_they_lie),
        cmocka_unit_test(test_damage_is_computed_again),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_states_stay),
    };

#ifdef __SANITIZE_THREAD__ /* the others have one thread */
    cmocka_set_test_filter("test_formats_and_threads");
#endif
    return cmocka_run_group_tests_name("overflow_models", tests, test_dir_make, test_dir_remove);
}
