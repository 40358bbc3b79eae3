/* test_memory.c - the memory computed before a model is loaded is the memory that it takes.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/device_ahead.h"
#include "model/memory.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"
#include "model/step_sizes.h"
#include "model_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static gguf_gen_opts shape(enum ggml_type type, bool is_tied)
{
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.type = type;
    opts.is_tied = is_tied;
    opts.seed = 3;
    return opts;
}

static quire_runtime_opts opts_of(uint32_t n_ctx)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = n_ctx;
    opts.n_seqs_max = 1;
    opts.n_threads = 2;
    return opts;
}

/* ---- weights ---- */

/* Known before loading, for weights that are mapped, repacked, and both. */
static void weights_are_known(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                            GGML_TYPE_Q4_0 };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof types / sizeof types[0]; i++) {
        const bool is_tied = i % 2 == 1;
        const gguf_gen_opts gen = shape(types[i / 2], is_tied);
        quire_model *model = fixture_open(fixture_generate(&gen));
        const quire_weights *w = model->weights;
        const bool is_shared = w->output->data == w->tok_embd->data;

        assert_int_equal(model->desc.resident_bytes, w->mapped_bytes + w->repacked_bytes -
                                                         (is_shared ? model->desc.embd_bytes : 0));
        assert_true(model->desc.resident_bytes >= model->desc.weight_bytes);
        assert_true(model->desc.resident_bytes <=
                    model->desc.weight_bytes + (is_tied ? model->desc.embd_bytes : 0));
        quire_model_close(model);
        fixture_generated_remove();
    }
}

typedef struct asked {
    unsigned n;
    uint64_t resident_bytes;
    int answer;
} asked;

static int admit(void *ctx, const quire_model_desc *desc, quire_error *err)
{
    asked *a = ctx;

    a->n++;
    a->resident_bytes = desc->resident_bytes;
    return a->answer < 0 ? quire_error_set(err, a->answer, "not today") : QUIRE_OK;
}

static void progress_counts(void *ctx, float done)
{
    (void)done;
    ++*(unsigned *)ctx;
}

static void opening_can_be_refused(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_Q8_0, false);
    const char *path = fixture_generate(&gen);
    asked a = { .answer = QUIRE_OK };
    unsigned n_progress = 0;
    quire_model_opts opts = {
        .admit = admit, .admit_ctx = &a, .progress = progress_counts, .progress_ctx = &n_progress
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;

    (void)state;
    assert_int_equal(quire_model_open(&model, path, &opts, &err), QUIRE_OK);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.resident_bytes, quire_model_desc_get(model)->resident_bytes);
    assert_true(n_progress > 0);
    quire_model_close(model);

    a = (asked){ .answer = QUIRE_NOMEM };
    n_progress = 0;
    assert_int_equal(quire_model_open(&model, path, &opts, &err), QUIRE_NOMEM);
    assert_null(model);
    assert_string_equal(err.message, "not today");
    assert_int_equal(a.n, 1);
    assert_int_equal(n_progress, 0); /* nothing was loaded */
    fixture_generated_remove();
}

/* ---- the sum ---- */

static void kv_is_exact(void **state)
{
    static const struct {
        quire_format k, v;
        uint64_t token_bytes; /* 3 layers x 2 kv heads x (K + V) x 32 values */
    } formats[] = { { QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 6 * 256 },
                    { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 6 * 128 },
                    { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8, 6 * 68 },
                    { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, 6 * 98 } };
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_memory_need need;

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        quire_runtime_opts opts = opts_of(1000); /* 16 pages of 64 */

        opts.k_format = formats[i].k;
        opts.v_format = formats[i].v;
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_int_equal(need.n_ctx, 1000);
        assert_int_equal(need.kv_bytes, 1024 * formats[i].token_bytes);
        assert_int_equal(need.weights_bytes, model->desc.resident_bytes);
        assert_int_equal(need.total_bytes, need.weights_bytes + need.kv_bytes + need.buffers_bytes +
                                               need.program_bytes);
        opts.n_seqs_max = 4;
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_int_equal(need.kv_bytes, 1024 * formats[i].token_bytes);
        opts.kv_budget_bytes = 2500 * formats[i].token_bytes;
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_int_equal(need.kv_bytes, opts.kv_budget_bytes);
        opts.kv_budget_bytes = 1u << 30;
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_int_equal(need.kv_bytes, 4 * 1024 * formats[i].token_bytes);
    }
    quire_memory_need_get(&model->desc, &(quire_runtime_opts){ 0 }, &need);
    assert_int_equal(need.n_ctx, model->desc.n_ctx_train);
    quire_model_close(model);
    fixture_generated_remove();
}

/* In a long context a sealed format saves more than its hot pages cost. */
static void sealed_formats_take_less(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q5,
                                            QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q3 };
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    uint64_t last_bytes = UINT64_MAX;

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        quire_runtime_opts opts = opts_of(1u << 16);
        quire_memory_need need;

        opts.k_format = opts.v_format = formats[i];
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_true(need.kv_bytes >=
                    ((uint64_t)1 << 16) *
                        quire_kv_uniform_bytes_per_token(
                            &model->desc, (quire_kv_pair){ formats[i], formats[i] }));
        if (quire_tile_bytes(formats[i], QUIRE_SIDE_K, 32) <
            quire_tile_bytes(formats[i > 0 ? i - 1 : 0], QUIRE_SIDE_K, 32)) {
            assert_true(need.kv_bytes < last_bytes);
        }
        last_bytes = need.kv_bytes;
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* The compute buffer is known to the byte, and so is attention's workspace. */
static void buffers_check(const gguf_gen_opts *gen, uint32_t n_batch, size_t i)
{
    quire_model *model = fixture_open(fixture_generate(gen));
    quire_runtime_opts opts = opts_of(1024);
    quire_attn_workspace_opts attn;
    quire_graphs_size size;
    quire_runtime_stats stats;
    quire_memory_need need;
    quire_runtime *runtime;

    opts.n_batch = n_batch;
    runtime = fixture_runtime(model, &opts);
    quire_runtime_stats_get(runtime, &stats);
    quire_memory_need_get(&model->desc, &opts, &need);
    attn = quire_runtime_attn_opts(&model->desc, &runtime->opts);
    assert_true(quire_attn_workspace_bytes(&attn) > 2 * (192u << 10)); /* two threads */
    size = quire_step_sizes_get(model->desc.step_sizes, &runtime->opts);
    if (size.buffer_bytes != stats.compute_buffer_bytes || size.device_bytes[0] != 0) {
        fail_msg("case %zu: computed %llu bytes, reserved %llu", i,
                 (unsigned long long)size.buffer_bytes,
                 (unsigned long long)stats.compute_buffer_bytes);
    }
    assert_true(need.buffers_bytes >=
                size.buffer_bytes + size.kept_bytes + quire_attn_workspace_bytes(&attn));
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

static void buffers_are_exact(void **state)
{
    static const struct {
        uint32_t n_embd, n_ff, n_vocab, n_batch;
    } cases[] = { { 128, 256, 8192, 512 }, /* logits are largest */
                  { 128, 4096, 512, 512 }, /* feed-forward */
                  { 256, 256, 300, 256 },  /* attention */
                  { 128, 256, 512, 7 },
                  /* logits in blocks, whose results are kept beside them */
                  { 128, 256, 16384, 16 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_gen_opts gen = shape(GGML_TYPE_F16, false);

        gen.n_embd = cases[i].n_embd;
        gen.n_ff = cases[i].n_ff;
        gen.n_vocab = cases[i].n_vocab;
        buffers_check(&gen, cases[i].n_batch, i);
    }
}

/* The same for models with experts, with weights as mapped and in panels. */
static void buffers_of_experts_are_exact(void **state)
{
    static const struct {
        enum ggml_type type;
        uint32_t n_used, n_ff, n_ff_shared, n_batch;
    } cases[] = { { GGML_TYPE_F16, 2, 256, 0, 512 },   { GGML_TYPE_Q8_0, 2, 256, 0, 512 },
                  { GGML_TYPE_F16, 8, 512, 0, 512 },   { GGML_TYPE_Q8_0, 8, 512, 0, 512 },
                  { GGML_TYPE_Q8_0, 8, 32, 0, 512 },   { GGML_TYPE_Q8_0, 8, 512, 0, 1 },
                  { GGML_TYPE_F16, 2, 64, 2048, 512 }, { GGML_TYPE_Q8_0, 2, 64, 2048, 512 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_gen_opts gen = shape(cases[i].type, false);

        (void)snprintf(gen.arch, sizeof gen.arch, "%s",
                       cases[i].n_ff_shared != 0 ? "qwen2moe" : "qwen3moe");
        gen.has_qk_norm = true;
        gen.n_experts = 8;
        gen.n_experts_used = cases[i].n_used;
        gen.n_ff_expert = cases[i].n_ff;
        gen.n_ff_shared = cases[i].n_ff_shared;
        buffers_check(&gen, cases[i].n_batch, i);
    }
}

static gguf_gen_opts latent_shape(enum ggml_type type, bool is_joint)
{
    gguf_gen_opts gen;

    assert_true(gguf_gen_shape("tiny-deepseek2", &gen));
    gen.type = type;
    gen.has_joint_latent = is_joint;
    gen.n_layer = 2;
    gen.seed = 3;
    return gen;
}

/* Latent attention: the weights that are copied turned count, a page has K alone, and Q of all
 * heads is as wide as the latent row. */
static void latent_models(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_Q8_0 };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const bool is_joint = i % 2 != 0;
        gguf_gen_opts gen = latent_shape(types[i / 2], is_joint);
        quire_model *model = fixture_open(fixture_generate(&gen));
        const quire_weights *w = model->weights;
        const uint64_t turned_bytes = 2u * 4 * 64 * 128 * (i / 2 == 0 ? 4 : 2);
        quire_runtime_opts opts = opts_of(1024);
        quire_memory_need need;

        assert_int_equal(model->desc.resident_bytes,
                         w->mapped_bytes + w->repacked_bytes + (is_joint ? turned_bytes : 0));
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_int_equal(need.kv_bytes, 1024u * 2 * 160 * 2); /* f16 */
        quire_model_close(model);
        fixture_generated_remove();
        buffers_check(&gen, 512, i);
        gen.n_head = 16;
        buffers_check(&gen, 512, i);
        buffers_check(&gen, 1, i);
    }
}

static gguf_gen_opts recurrent_shape(const char *arch, enum ggml_type type)
{
    gguf_gen_opts gen = shape(type, true);

    (void)snprintf(gen.arch, sizeof gen.arch, "%s", arch);
    gen.vocab = GGUF_GEN_VOCAB_BPE;
    gen.n_layer = 5;
    gen.n_vocab = 300;
    gen.n_ff = 128;
    gen.attention_every = 2;
    gen.conv_taps = 4;
    if (strcmp(arch, "lfm2") != 0) {
        gen.n_delta_k_heads = 2;
        gen.n_delta_v_heads = 8;
        gen.d_delta_head = 64; /* the convolution is the widest */
        gen.d_mamba_state = strcmp(arch, "qwen35") != 0 ? 96 : 0;
    }
    return gen;
}

/* Recurrent layers: the KV of a context has the bytes that a text of its length takes in the pool,
 * states included, and the buffers of a step have room for the needs of the layers. */
static void recurrent_models(void **state)
{
    static const char *const archs[] = { "lfm2", "qwen35", "granitehybrid", "nemotron_h",
                                         "falcon-h1" };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof archs / sizeof archs[0]; i++) {
        const gguf_gen_opts gen =
            recurrent_shape(archs[i / 2], i % 2 == 0 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0);
        quire_model *model = fixture_open(fixture_generate(&gen));
        const quire_runtime_opts opts = opts_of(1000);
        quire_runtime *runtime = fixture_runtime(model, &opts);
        quire_cache_stats stats;
        quire_memory_need need;

        quire_memory_need_get(&model->desc, &opts, &need);
        assert_int_equal(quire_runtime_fill(runtime, fixture_seq(runtime), 1000, 1), QUIRE_OK);
        quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
        assert_int_equal(need.kv_bytes, stats.charged_bytes);
        quire_runtime_destroy(runtime);
        quire_model_close(model);
        fixture_generated_remove();
        buffers_check(&gen, 512, i);
        buffers_check(&gen, 1, i);
    }
}

/* Threads and sequences count: each thread has its scratch, sequences may share a cascade. */
static void buffers_grow_with_threads_and_sequences(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_runtime_opts opts = opts_of(8192);
    quire_memory_need two, eight, many;

    (void)state;
    quire_memory_need_get(&model->desc, &opts, &two);
    opts.n_threads = 8;
    quire_memory_need_get(&model->desc, &opts, &eight);
    assert_true(eight.buffers_bytes >= two.buffers_bytes + 6 * (192u << 10));
    opts.n_seqs_max = 16;
    quire_memory_need_get(&model->desc, &opts, &many);
    assert_true(many.buffers_bytes > eight.buffers_bytes + MIB);
    quire_model_close(model);
    fixture_generated_remove();
}

/* The CPU's kernels beside a device take a workspace of the host, and rows and tables. Without a
 * device they are there anyway. */
static void buffers_grow_with_attention_on_the_host(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_runtime_opts opts = opts_of(8192);
    quire_memory_need plain, both;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        opts.device = i == 0 ? NULL : "mock";
        opts.attends_host = false;
        quire_memory_need_get(&model->desc, &opts, &plain);
        opts.attends_host = true;
        quire_memory_need_get(&model->desc, &opts, &both);
        assert_int_equal(both.kv_bytes, plain.kv_bytes);
        assert_int_equal(both.device_bytes, plain.device_bytes);
        if (i == 0) {
            assert_int_equal(both.buffers_bytes, plain.buffers_bytes);
        } else {
            const quire_attn_workspace_opts attn = quire_runtime_attn_opts(&model->desc, &opts);
            const uint64_t rows = (uint64_t)opts.n_batch * model->desc.n_head;

            assert_true(both.buffers_bytes >= plain.buffers_bytes +
                                                  quire_attn_workspace_bytes(&attn) +
                                                  rows * (model->desc.d_v + 4) * sizeof(float));
        }
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* Each device that is not the CPU has pinned memory for copies of pages both ways. */
static void buffers_grow_with_each_card(void **state)
{
    static const char *const names[] = { "cpu", "mock0", "mock1" };
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_runtime_opts opts = opts_of(512);
    quire_memory_need none, one, split[2];

    (void)state;
    quire_memory_need_get(&model->desc, &opts, &none);
    opts.device = "mock0";
    quire_memory_need_get(&model->desc, &opts, &one);
    assert_in_range(one.buffers_bytes - none.buffers_bytes, QUIRE_DEVICE_AHEAD_BYTES + MIB,
                    QUIRE_DEVICE_AHEAD_BYTES + 2 * MIB);
    for (uint32_t i = 0; i < 2; i++) {
        opts.split.n = 2;
        for (uint32_t k = 0; k < 2; k++) {
            (void)snprintf(opts.split.names[k], sizeof(opts.split.names[k]), "%s", names[i + k]);
        }
        quire_memory_need_get(&model->desc, &opts, &split[i]);
    }
    assert_int_equal(split[1].buffers_bytes - split[0].buffers_bytes,
                     one.buffers_bytes - none.buffers_bytes);
    quire_model_close(model);
    fixture_generated_remove();
}

/* ---- the limit ---- */

static void limit_is_exact(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_Q8_0, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    const quire_runtime_opts opts = opts_of(1u << 16);
    quire_error err = QUIRE_ERROR_INIT;
    quire_memory_need need;

    (void)state;
    quire_memory_need_get(&model->desc, &opts, &need);
    assert_int_equal(quire_memory_check(&model->desc, &opts, need.total_bytes, NULL, &err),
                     QUIRE_OK);
    assert_int_equal(quire_memory_check(&model->desc, &opts, UINT64_MAX, NULL, &err), QUIRE_OK);
    assert_int_equal(quire_memory_check(&model->desc, &opts, need.total_bytes - 1, NULL, &err),
                     QUIRE_NOMEM);
    assert_int_equal(
        quire_memory_check(&model->desc, &opts, need.total_bytes - 10 * 1000 * 1000, NULL, &err),
        QUIRE_NOMEM);
    assert_non_null(strstr(err.message, "65536 tokens of KV f16 need "));
    assert_non_null(strstr(err.message, ": 10.0 MB too much"));
    assert_non_null(strstr(err.message, "(-c "));
    assert_non_null(strstr(err.message, "--kv"));
    assert_non_null(strstr(err.message, "--memory-limit"));
    /* Where not a page fits, no context is offered. */
    assert_int_equal(quire_memory_check(&model->desc, &opts, 1000, NULL, &err), QUIRE_NOMEM);
    assert_null(strstr(err.message, "(-c "));
    quire_model_close(model);
    fixture_generated_remove();
}

/* KV on a device of its own memory is no need of the host; where the memory is the host's, it is a
 * need of both. */
static void kv_may_be_on_a_device(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_memory_place place = { .name = "card0" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime_opts opts = opts_of(512);
    quire_memory_need need;
    uint64_t host;

    (void)state;
    quire_memory_need_get(&model->desc, &opts, &need);
    assert_true(need.device_bytes > 0 && need.kv_bytes > 0);
    place.bytes = need.kv_bytes + need.device_bytes;
    host = need.total_bytes - need.kv_bytes;
    assert_int_equal(quire_memory_host_bytes(&need, &place), host);
    assert_int_equal(quire_memory_check(&model->desc, &opts, host, &place, &err), QUIRE_OK);
    assert_int_equal(quire_memory_check(&model->desc, &opts, host - 1, &place, &err), QUIRE_NOMEM);
    assert_null(strstr(err.message, ", KV "));
    assert_int_equal(quire_memory_tokens_max(&model->desc, &opts, host, &place, 1u << 20), 512);

    need.has_states =
        true; /* they are in the host's memory, and may be all that the budget holds */
    assert_int_equal(quire_memory_host_bytes(&need, &place), need.total_bytes);
    need.has_states = false;

    place.bytes--;
    assert_int_equal(quire_memory_check(&model->desc, &opts, UINT64_MAX, &place, &err),
                     QUIRE_NOMEM);
    assert_non_null(strstr(err.message, " on device card0 (KV "));
    assert_non_null(strstr(err.message, "--device cpu"));
    assert_true(quire_memory_tokens_max(&model->desc, &opts, UINT64_MAX, &place, 1u << 20) < 512);

    place.bytes++;
    place.is_hosts = true;
    host = need.total_bytes + need.device_bytes;
    assert_int_equal(quire_memory_check(&model->desc, &opts, host, &place, &err), QUIRE_OK);
    assert_int_equal(quire_memory_check(&model->desc, &opts, host - 1, &place, &err), QUIRE_NOMEM);
    assert_non_null(strstr(err.message, ", KV "));
    quire_model_close(model);
    fixture_generated_remove();
}

/* Layers on a device are its need, and no more the host's. */
static void layers_on_a_device_move_the_need(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_F32, false);
    const char *path = fixture_generate(&gen);
    const quire_runtime_opts opts = opts_of(512);
    quire_model_opts on_device = { .n_device_layers = 1 };
    quire_memory_place place = { .name = "card0" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = fixture_open(path), *other;
    quire_memory_need all, need;

    (void)state;
    on_device.devices[0] = quire_backend_cpu();
    assert_int_equal(quire_model_open(&other, path, &on_device, &err), QUIRE_OK);
    quire_memory_need_get(&model->desc, &opts, &all);
    quire_memory_need_get(&other->desc, &opts, &need);
    assert_int_equal(all.device_weights_bytes, 0);
    assert_int_equal(need.device_weights_bytes, other->weights->device_bytes);
    assert_int_equal(need.weights_bytes + need.device_weights_bytes, all.weights_bytes);
    /* The host's memory is this device's, too: it has the activations of all layers. */
    assert_int_equal(need.device_bytes, all.device_bytes);
    assert_true(need.buffers_bytes >= all.buffers_bytes);

    place.bytes = need.kv_bytes + need.device_bytes + need.device_weights_bytes;
    assert_int_equal(quire_memory_check(&other->desc, &opts, UINT64_MAX, &place, &err), QUIRE_OK);
    place.bytes--;
    assert_int_equal(quire_memory_check(&other->desc, &opts, UINT64_MAX, &place, &err),
                     QUIRE_NOMEM);
    assert_non_null(strstr(err.message, " on device card0 (weights "));
    assert_non_null(strstr(err.message, "fewer layers there (-ngl)"));
    place.is_hosts = true;
    assert_int_equal(quire_memory_host_bytes(&need, &place),
                     need.total_bytes + need.device_bytes + need.device_weights_bytes);
    quire_model_close(other);
    quire_model_close(model);
    fixture_generated_remove();
}

/* A model of 7B of Llama-2's shape with all weights in f16 on a card of 24 GB, of which 23.8 GB are
 * free: KV of 32,768 tokens fits in q8, and not in f16. No weight is read, so the file has none. */
static void card_of_24_gb(void **state)
{
    quire_model_opts on_card = { .describe_only = true, .n_device_layers = UINT32_MAX };
    const quire_memory_place place = { .name = "card0", .bytes = UINT64_C(23800000000) };
    quire_runtime_opts opts = opts_of(32768);
    quire_error err = QUIRE_ERROR_INIT;
    quire_memory_need need;
    quire_model *model;
    gguf_gen_opts gen;

    (void)state;
    assert_true(gguf_gen_shape("llama2-7b", &gen));
    gen.type = GGML_TYPE_F16;
    gen.n_ctx = opts.n_ctx;
    gen.is_hollow = true;
    on_card.devices[0] = quire_backend_cpu();
    if (quire_model_open(&model, fixture_generate(&gen), &on_card, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    fixture_generated_remove();
    opts.k_format = opts.v_format = QUIRE_FORMAT_Q8;
    quire_memory_need_get(&model->desc, &opts, &need);
    (void)printf("on the card: weights %.2f GB, KV %.2f GB, buffers %.2f GB\n",
                 (double)need.device_weights_bytes * 1e-9, (double)need.kv_bytes * 1e-9,
                 (double)need.device_bytes * 1e-9);
    assert_int_equal(need.n_ctx, 32768);
    /* Layers, K and V, heads: 128 codes and a scale in f16. */
    assert_int_equal(need.kv_bytes, UINT64_C(32768) * 32 * 2 * 32 * 130);
    assert_true(need.device_weights_bytes > UINT64_C(13000000000)); /* all but the embedding */
    assert_int_equal(quire_memory_check(&model->desc, &opts, UINT64_MAX, &place, &err), QUIRE_OK);
    assert_true(quire_memory_tokens_max(&model->desc, &opts, UINT64_MAX, &place, 1u << 20) >=
                32768);
    opts.k_format = opts.v_format = QUIRE_FORMAT_F16;
    assert_int_equal(quire_memory_check(&model->desc, &opts, UINT64_MAX, &place, &err),
                     QUIRE_NOMEM);
    assert_non_null(strstr(err.message, " on device card0 (weights "));
    quire_model_close(model);
}

static void longest_context_fits(void **state)
{
    const gguf_gen_opts gen = shape(GGML_TYPE_Q8_0, false);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_runtime_opts opts = opts_of(0);
    quire_memory_need need;

    (void)state;
    for (uint64_t limit = 32 * MIB; limit <= 512 * MIB; limit *= 2) {
        opts.n_ctx = quire_memory_tokens_max(&model->desc, &opts, limit, NULL, 1u << 20);
        assert_int_equal(opts.n_ctx % 64, 0);
        assert_in_range(opts.n_ctx, 64, (1u << 20) - 64);
        assert_int_equal(quire_memory_check(&model->desc, &opts, limit, NULL, NULL), QUIRE_OK);
        opts.n_ctx += 64;
        quire_memory_need_get(&model->desc, &opts, &need);
        assert_true(need.total_bytes > limit);
        assert_int_equal(quire_memory_tokens_max(&model->desc, &opts, limit, NULL, 640), 640);
    }
    assert_int_equal(quire_memory_tokens_max(&model->desc, &opts, 1 * MIB, NULL, 1u << 20), 0);
    quire_model_close(model);
    fixture_generated_remove();
}

/* ---- available memory ---- */

static char fake_root[64];

static void fake_file(const char *path, const char *text)
{
    char full[512];
    FILE *file;

    (void)snprintf(full, sizeof full, "%s%s", fake_root, path);
    for (char *slash = strchr(full + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int fake_begin(void **state)
{
    (void)state;
    (void)snprintf(fake_root, sizeof fake_root, "/tmp/quire-memory-XXXXXX");
    return mkdtemp(fake_root) != NULL ? 0 : -1;
}

static int fake_end(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", fake_root);
    return system(command);
}

static void available_of_the_machine(void **state)
{
    (void)state;
    assert_true(quire_memory_available_in(fake_root) == UINT64_MAX);
    fake_file("/proc/meminfo", "MemTotal:       24684092 kB\nMemFree: 7 kB\n");
    assert_int_equal(quire_memory_available_in(fake_root), (uint64_t)24684092 * 1024);
    fake_file("/proc/meminfo", "MemTotal: 24684092 kB\nMemAvailable:   1000 kB\n");
    assert_int_equal(quire_memory_available_in(fake_root), 1000 * 1024);
    /* A group that is not there, and one without a limit, change nothing. */
    fake_file("/proc/self/cgroup", "4:cpu,memory:/none\n0::/a/b\n");
    fake_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    fake_file("/sys/fs/cgroup/a/b/memory.current", "5\n");
    assert_int_equal(quire_memory_available_in(fake_root), 1000 * 1024);
}

static void available_of_a_group(void **state)
{
    (void)state;
    fake_file("/proc/meminfo", "MemAvailable:   100000 kB\n");
    fake_file("/proc/self/cgroup", "0::/a/b\n");
    fake_file("/sys/fs/cgroup/a/b/memory.max", "50000000\n");
    fake_file("/sys/fs/cgroup/a/b/memory.current", "30000000\n");
    fake_file("/sys/fs/cgroup/a/b/memory.stat",
              "anon 20000000\nfile 9\nactive_file 4000000\ninactive_file 6000000\n");
    assert_int_equal(quire_memory_available_in(fake_root), 30000000);
    /* Its parent is tighter; used up, it leaves nothing. */
    fake_file("/sys/fs/cgroup/a/memory.max", "40000000\n");
    fake_file("/sys/fs/cgroup/a/memory.current", "15000000\n");
    assert_int_equal(quire_memory_available_in(fake_root), 25000000);
    fake_file("/sys/fs/cgroup/a/memory.current", "45000000\n");
    assert_int_equal(quire_memory_available_in(fake_root), 0);
}

static void available_of_an_old_group(void **state)
{
    (void)state;
    fake_file("/proc/meminfo", "MemAvailable:   100000 kB\n");
    fake_file("/proc/self/cgroup", "3:cpu,memory:/job\n2:cpuset:/\n");
    fake_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    fake_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
    fake_file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "7000000\n");
    fake_file("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000000\n");
    fake_file("/sys/fs/cgroup/memory/job/memory.stat",
              "inactive_file 9\ntotal_inactive_file 500000\ntotal_active_file 500000\n");
    assert_int_equal(quire_memory_available_in(fake_root), 5000000);
}

static void this_machine_says(void **state)
{
    (void)state;
    assert_true(quire_memory_available() > 0);
    assert_true(quire_memory_resident_peak() > MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_known),
        cmocka_unit_test(opening_can_be_refused),
        cmocka_unit_test(kv_is_exact),
        cmocka_unit_test(sealed_formats_take_less),
        cmocka_unit_test(buffers_are_exact),
        cmocka_unit_test(buffers_of_experts_are_exact),
        cmocka_unit_test(latent_models),
        cmocka_unit_test(recurrent_models),
        cmocka_unit_test(buffers_grow_with_threads_and_sequences),
        cmocka_unit_test(buffers_grow_with_attention_on_the_host),
        cmocka_unit_test(buffers_grow_with_each_card),
        cmocka_unit_test(limit_is_exact),
        cmocka_unit_test(kv_may_be_on_a_device),
        cmocka_unit_test(layers_on_a_device_move_the_need),
        cmocka_unit_test(card_of_24_gb),
        cmocka_unit_test(longest_context_fits),
        cmocka_unit_test_setup_teardown(available_of_the_machine, fake_begin, fake_end),
        cmocka_unit_test_setup_teardown(available_of_a_group, fake_begin, fake_end),
        cmocka_unit_test_setup_teardown(available_of_an_old_group, fake_begin, fake_end),
        cmocka_unit_test(this_machine_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
