/* test_describe.c - the description of a model file, and the refusal of every kind of wrong
 * description.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "describe_fixture.h"
#include "model/archs.h"
#include "model/gguf_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct key_case {
    gguf_edit_key change;
    int status;
    const char *needle; /* in the message; NULL when it must pass */
} key_case;

/* Describe the file at gguf_edit_path(). */
static void run_key_cases(const char *shape, const key_case *cases, size_t n)
{
    gguf_gen_opts opts = gguf_edit_small(shape);

    for (size_t i = 0; i < n; i++) {
        gguf_edit edit;

        gguf_edit_open(&edit, &opts);
        gguf_edit_apply(&edit, &cases[i].change);
        describe_expect(&edit, cases[i].status, cases[i].needle);
        gguf_edit_close(&edit);
    }
}

static const key_case key_cases[] = {
    { { "general.architecture", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      ": key general.architecture is missing" },
    { { "general.architecture", EDIT_STR, 0, "mamba", 0 },
      QUIRE_UNSUPP,
      ": general.architecture 'mamba' is not supported (all: docs/architectures.md or quire info "
      "--architectures)" },
    { { "general.architecture", EDIT_STR, 0, "qwen3tts", 0 },
      QUIRE_UNSUPP,
      ": general.architecture 'qwen3tts' is not supported (the nearest that is: qwen3; all: "
      "docs/architectures.md" },
    { { "general.architecture", EDIT_STR, 0, "two\nlines", 0 }, QUIRE_UNSUPP, "'two?lines'" },
    { { "general.architecture", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "general.architecture is of type u32; expected string" },
    { { "general.name", EDIT_U32, 3, NULL, 0 }, QUIRE_CORRUPT, "general.name is of type u32" },
    { { "general.type", EDIT_STR, 0, "adapter", 0 }, QUIRE_UNSUPP, "general.type is 'adapter'" },
    { { "general.type", EDIT_STR, 0, "model", 0 }, QUIRE_OK, NULL },
    { { "split.count", EDIT_U16, 1, NULL, 0 }, QUIRE_OK, NULL },
    { { "llama.block_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "llama.block_count is missing" },
    { { "llama.block_count", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "llama.block_count is 0; expected 1..512 (damaged file?)" },
    { { "llama.block_count", EDIT_U32, 513, NULL, 0 }, QUIRE_CORRUPT, "llama.block_count is 513" },
    { { "llama.block_count", EDIT_U32, 2, NULL, 0 },
      QUIRE_CORRUPT,
      "blk.1.attn_norm.weight is missing" },
    { { "llama.block_count", EDIT_STR, 0, "1", 0 },
      QUIRE_CORRUPT,
      "is of type str; expected an integer" },
    { { "llama.block_count", EDIT_F32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "is of type f32; expected an integer" },
    { { "llama.block_count", EDIT_I32, -1, NULL, 0 }, QUIRE_CORRUPT, "llama.block_count is -1" },
    { { "llama.block_count", EDIT_I64, 1, NULL, 0 }, QUIRE_OK, NULL },
    { { "llama.block_count", EDIT_U64, 1e19, NULL, 0 },
      QUIRE_CORRUPT,
      "is 9223372036854775807; expected" },
    { { "llama.context_length", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "llama.context_length is 0" },
    { { "llama.context_length", EDIT_U32, 3e9, NULL, 0 }, QUIRE_CORRUPT, "is 3000000000" },
    { { "llama.embedding_length", EDIT_U32, 32, NULL, 0 },
      QUIRE_CORRUPT,
      "expected 16, the head size" },
    { { "llama.embedding_length", EDIT_U32, 4e9, NULL, 0 },
      QUIRE_CORRUPT,
      "embedding_length is 4000000000" },
    { { "llama.feed_forward_length", EDIT_U32, 17, NULL, 0 }, QUIRE_CORRUPT, "expected 16 x 17" },
    { { "llama.feed_forward_length", EDIT_U32_ARRAY, 16, NULL, 2 },
      QUIRE_CORRUPT,
      "has 2 elements; expected 1, one per layer" },
    { { "llama.feed_forward_length", EDIT_STR_ARRAY, 0, "x", 1 }, QUIRE_CORRUPT, "is of type arr" },
    { { "llama.feed_forward_length", EDIT_U32_ARRAY, 16, NULL, 1 }, QUIRE_OK, NULL },
    { { "llama.attention.head_count", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "llama.attention.head_count is 0; expected 1..1024 (damaged file?)" },
    { { "llama.attention.head_count", EDIT_U32, 4096, NULL, 0 },
      QUIRE_CORRUPT,
      "head_count is 4096" },
    { { "llama.attention.head_count_kv", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "is 3; expected 1..2" },
    { { "llama.attention.head_count_kv", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "is 0; expected 1..2" },
    { { "llama.attention.head_count_kv", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "expected 16 x 16" },
    { { "llama.attention.key_length", EDIT_U32, 12, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length is 12 (embedding_length 16, 2 heads); supported: multiples of 8 up to 1024" },
    { { "llama.attention.key_length", EDIT_U32, 2048, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length is 2048" },
    { { "llama.attention.key_length", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key_length is 0; expected" },
    { { "llama.attention.value_length", EDIT_U32, 16, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length is 8 but value_length is 16" },
    { { "llama.attention.layer_norm_rms_epsilon", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "is missing" },
    { { "llama.attention.layer_norm_rms_epsilon", EDIT_F32, -1, NULL, 0 },
      QUIRE_CORRUPT,
      "epsilon is -1; expected 0..1" },
    { { "llama.attention.layer_norm_rms_epsilon", EDIT_F32, NAN, NULL, 0 },
      QUIRE_CORRUPT,
      "nan; expected" },
    { { "llama.attention.layer_norm_rms_epsilon", EDIT_F64, 1e-5, NULL, 0 },
      QUIRE_CORRUPT,
      "is of type f64; expected f32" },
    { { "llama.pooling_type", EDIT_U32, 4e9, NULL, 0 },
      QUIRE_CORRUPT,
      "llama.pooling_type is 4000000000; expected 0.." },
    { { "llama.attention.causal", EDIT_BOOL, 0, NULL, 0 },
      QUIRE_UNSUPP,
      "attention.causal is false" },
    { { "llama.attention.causal", EDIT_BOOL, 1, NULL, 0 }, QUIRE_OK, NULL },
    { { "llama.attention.causal", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "is of type u32; expected bool" },
    { { "llama.expert_count", EDIT_U32, 8, NULL, 0 },
      QUIRE_CORRUPT,
      "llama.expert_used_count is missing" },
    { { "llama.expert_count", EDIT_U32, 0, NULL, 0 }, QUIRE_OK, NULL },
    { { "llama.nextn_predict_layers", EDIT_U32, 1, NULL, 0 },
      QUIRE_UNSUPP,
      "nextn_predict_layers is 1" },
    /* As in libllama these architectures ignore a window. */
    { { "llama.attention.sliding_window", EDIT_U32, 4096, NULL, 0 }, QUIRE_OK, NULL },
};

static void damaged_keys_are_named(void **state)
{
    (void)state;
    run_key_cases("tiny-llama", key_cases, sizeof(key_cases) / sizeof(key_cases[0]));
}

static void damaged_rope_keys_are_named(void **state)
{
    static const key_case cases[] = {
        { { "llama.rope.dimension_count", EDIT_U32, 4, NULL, 0 },
          QUIRE_CORRUPT,
          "rope.dimension_count is 4; expected 8, the head size" },
        { { "llama.rope.dimension_count", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
        { { "llama.rope.freq_base", EDIT_F32, 0, NULL, 0 }, QUIRE_CORRUPT, "rope.freq_base is 0" },
        { { "llama.rope.freq_base", EDIT_F32, INFINITY, NULL, 0 },
          QUIRE_CORRUPT,
          "rope.freq_base is inf" },
        { { "llama.rope.scaling.type", EDIT_STR, 0, "dynamic", 0 },
          QUIRE_UNSUPP,
          "is 'dynamic'; supported: none, linear, yarn, longrope, llama3 (as a tensor)" },
        { { "llama.rope.scaling.type", EDIT_STR, 0, "longrope", 0 }, QUIRE_OK, NULL },
        { { "llama.rope.scaling.type", EDIT_U32, 1, NULL, 0 }, QUIRE_CORRUPT, "is of type u32" },
        { { "llama.rope.scaling.factor", EDIT_F32, -2, NULL, 0 },
          QUIRE_CORRUPT,
          "scaling.factor is -2" },
        { { "llama.rope.scaling.factor", EDIT_F32, 1e-6, NULL, 0 },
          QUIRE_CORRUPT,
          "is 1e-06; expected 0.001..1e+06" },
        { { "llama.rope.scale_linear", EDIT_F32, NAN, NULL, 0 },
          QUIRE_CORRUPT,
          "scale_linear is nan" },
        { { "llama.rope.scaling.attn_factor", EDIT_F32, 0, NULL, 0 },
          QUIRE_CORRUPT,
          "attn_factor is 0" },
        { { "llama.rope.scaling.original_context_length", EDIT_U32, 4e9, NULL, 0 },
          QUIRE_CORRUPT,
          "original_context_length is 4000000000" },
    };

    (void)state;
    run_key_cases("tiny-llama", cases, sizeof(cases) / sizeof(cases[0]));
}

static void damaged_tensors_are_named(void **state)
{
    static const describe_tensor_case cases[] = {
        { "tiny-llama", "token_embd.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor token_embd.weight is missing" },
        { "tiny-llama", "token_embd.weight", NULL, GGML_TYPE_F32, 16, 267, QUIRE_CORRUPT,
          "tokenizer.ggml.tokens has 268 elements; expected 267" },
        { "tiny-llama", "token_embd.weight", NULL, GGML_TYPE_F32, 16, 1 << 23, QUIRE_CORRUPT,
          "has 8388608 rows; expected 1..4194304" },
        { "tiny-llama", "token_embd.weight", NULL, GGML_TYPE_F32, 8, 268, QUIRE_CORRUPT,
          "has shape 8 x 268 x 1 x 1; expected 16 x 268" },
        { "tiny-llama", "token_embd.weight", NULL, GGML_TYPE_I32, 16, 268, QUIRE_UNSUPP,
          "is of type i32; supported here: f32, f16, bf16 and quantised types" },
        { "tiny-llama", "token_embd.weight", NULL, GGML_TYPE_F16, 16, 268, QUIRE_OK, NULL },
        { "tiny-llama", "output_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT, "is missing" },
        { "tiny-llama", "output_norm.weight", NULL, GGML_TYPE_F16, 16, 1, QUIRE_UNSUPP,
          "is of type f16; supported here: f32" },
        { "tiny-llama", "output.weight", "", 0, 0, 0, QUIRE_OK, NULL },
        { "tiny-llama", "output.weight", "output.bias", GGML_TYPE_F32, 268, 1, QUIRE_UNSUPP,
          "tensor output.bias has no place in a llama model of 1 layers" },
        { "tiny-llama", "blk.0.attn_q.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.0.attn_q.weight is missing (llama with 1 layers" },
        { "tiny-llama", "blk.0.attn_q.weight", "blk.1.attn_q.weight", 0, 0, 0, QUIRE_UNSUPP,
          "blk.1.attn_q.weight has no place" },
        { "tiny-llama", "blk.0.attn_q.weight", "blk.00.attn_q.weight", 0, 0, 0, QUIRE_UNSUPP,
          "blk.00.attn_q.weight has no place" },
        { "tiny-llama", "blk.0.attn_q.weight", "blk.99999.attn_q.weight", 0, 0, 0, QUIRE_UNSUPP,
          "has no place" },
        { "tiny-llama", "blk.0.attn_q.weight", "attn_q.weight", 0, 0, 0, QUIRE_UNSUPP, "no place" },
        { "tiny-llama", "blk.0.attn_q.weight", "blk.0.attn_qkv.weight", 0, 0, 0, QUIRE_CORRUPT,
          "blk.0.attn_qkv.weight has shape 16 x 16 x 1 x 1; expected 16 x 32" },
        { "tiny-llama", "blk.0.attn_q.weight", "blk.0.attn_qkv.weight", GGML_TYPE_F32, 16, 32,
          QUIRE_CORRUPT, "attn_k.weight and attn_qkv.weight are both there" },
        { "tiny-llama", "blk.0.attn_q.weight", "blk.0.attn_q\t.weight", 0, 0, 0, QUIRE_UNSUPP,
          "blk.0.attn_q?.weight has no place" },
        { "tiny-llama", "blk.0.attn_k.weight", NULL, GGML_TYPE_F32, 16, 16, QUIRE_CORRUPT,
          "expected 16 x 8" },
        { "tiny-llama", "blk.0.attn_k.weight", NULL, GGML_TYPE_F64, 16, 8, QUIRE_UNSUPP, "f64" },
        { "tiny-llama", "blk.0.attn_norm.weight", NULL, GGML_TYPE_F32, 16, 2, QUIRE_CORRUPT,
          "has shape 16 x 2 x 1 x 1; expected 16 x 1" },
        { "tiny-llama", "output.weight", "blk.0.ffn_down.bias", GGML_TYPE_F32, 16, 1, QUIRE_OK,
          NULL },
        { "tiny-llama", "output.weight", "rope_freqs.weight", GGML_TYPE_F32, 4, 1, QUIRE_OK, NULL },
        { "tiny-llama", "output.weight", "rope_freqs.weight", GGML_TYPE_F32, 8, 1, QUIRE_CORRUPT,
          "expected 4 x 1" },
        { "tiny-llama", "output.weight", "blk.0.attn_q.bias", GGML_TYPE_F32, 16, 1, QUIRE_CORRUPT,
          "tensor blk.0.attn_k.bias is missing" },
        { "tiny-qwen2", "blk.0.attn_v.bias", "", 0, 0, 0, QUIRE_CORRUPT, "attn_v.bias is missing" },
        { "tiny-qwen2", "blk.0.attn_v.bias", "rope_freqs.weight", 0, 0, 0, QUIRE_UNSUPP,
          "rope_freqs.weight has no place in a qwen2 model" },
        { "tiny-qwen2", "blk.0.attn_q.bias", NULL, GGML_TYPE_F32, 8, 1, QUIRE_CORRUPT,
          "expected 16 x 1" },
        { "tiny-qwen3", "blk.0.attn_k_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "attn_k_norm.weight is missing" },
        { "tiny-qwen3", "blk.0.attn_k_norm.weight", NULL, GGML_TYPE_F32, 16, 1, QUIRE_CORRUPT,
          "expected 8 x 1" },
        { "tiny-qwen3", "output.weight", "cls.output.weight", 0, 0, 0, QUIRE_UNSUPP, "no place" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const gguf_gen_opts opts = gguf_edit_small(cases[i].model);

        describe_tensor_check(&cases[i], &opts);
    }
}

static void per_layer_arrays_must_agree(void **state)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    uint32_t heads[3] = { 2, 2, 2 };
    gguf_edit edit;

    (void)state;
    opts.n_layer = 3;
    gguf_edit_open(&edit, &opts);
    gguf_set_arr_data(edit.gguf, "llama.attention.head_count", GGUF_TYPE_UINT32, heads, 3);
    describe_expect(&edit, QUIRE_OK, NULL);
    heads[0] = heads[1] = heads[2] = 1;
    gguf_set_arr_data(edit.gguf, "llama.attention.head_count_kv", GGUF_TYPE_INT32, heads, 3);
    describe_expect(&edit, QUIRE_OK, NULL);
    heads[2] = 2;
    gguf_set_arr_data(edit.gguf, "llama.attention.head_count_kv", GGUF_TYPE_INT32, heads, 3);
    describe_expect(
        &edit, QUIRE_UNSUPP,
        "head_count_kv differs between layers (1 in layer 0, 2 in layer 2); not supported");
    heads[1] = 7;
    gguf_set_arr_data(edit.gguf, "llama.attention.head_count_kv", GGUF_TYPE_INT32, heads, 3);
    describe_expect(&edit, QUIRE_CORRUPT, "head_count_kv is 7; expected 1..2");
    gguf_set_arr_data(edit.gguf, "llama.attention.head_count_kv", GGUF_TYPE_FLOAT32, heads, 3);
    describe_expect(&edit, QUIRE_CORRUPT, "expected an integer or an array of integers");
    gguf_edit_close(&edit);
}

static void generate(const gguf_gen_opts *opts, quire_model_desc *desc)
{
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(gguf_gen_write(opts, gguf_edit_path(), &err), QUIRE_OK);
    if (describe_file(desc, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static void shapes_are_described(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    generate(&opts, &desc);
    assert_int_equal(desc.arch, QUIRE_ARCH_LLAMA);
    assert_string_equal(desc.arch_name, "llama");
    assert_string_equal(desc.name, "tiny-llama");
    assert_string_equal(desc.file_type, "Q8_0");
    assert_int_equal(desc.n_layer, 3);
    assert_int_equal(desc.n_stored, 3);
    assert_int_equal(desc.n_embd, 128);
    assert_int_equal(desc.n_ff, 256);
    assert_int_equal(desc.n_head, 4);
    assert_int_equal(desc.n_kv_head, 2);
    assert_int_equal(desc.d_k, 32);
    assert_int_equal(desc.d_v, 32);
    assert_int_equal(desc.n_vocab, 512);
    assert_int_equal(desc.n_ctx_train, 512);
    assert_float_equal(desc.rms_eps, 1e-5f, 0.0f);
    assert_float_equal(desc.attn_scale, 1.0f / sqrtf(32.0f), 0.0f);
    assert_int_equal(desc.rope.type, QUIRE_ROPE_NORMAL);
    assert_int_equal(desc.rope.n_dims, 32);
    assert_false(desc.has_tied_output);
    assert_false(desc.has_qkv_bias);
    assert_false(desc.has_qk_norm);
    /* Embedding and output, per layer two norms, q and o, k and v, three of the network, last norm.
     */
    assert_int_equal(desc.n_params,
                     2 * 512 * 128 + 3 * (2 * 128 + 2 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 256) +
                         128);
    assert_int_equal(desc.weight_bytes, (desc.n_params - 7 * 128) / 32 * 34 + 7 * 128 * 4);

    assert_true(gguf_gen_shape("tiny-qwen2", &opts));
    opts.type = GGML_TYPE_F16;
    generate(&opts, &desc);
    assert_int_equal(desc.arch, QUIRE_ARCH_QWEN2);
    assert_int_equal(desc.rope.type, QUIRE_ROPE_NEOX);
    assert_string_equal(desc.file_type, "F16");
    assert_true(desc.has_qkv_bias);
    assert_true(desc.has_tied_output);
    assert_false(desc.has_qk_norm);

    assert_true(gguf_gen_shape("tiny-qwen3", &opts));
    generate(&opts, &desc);
    assert_int_equal(desc.arch, QUIRE_ARCH_QWEN3);
    assert_int_equal(desc.d_k, 48);
    assert_int_equal(desc.rope.n_dims, 48);
    assert_true(desc.has_qk_norm);
    assert_false(desc.has_qkv_bias);
}

/* The same file again has the same fingerprint, and so have other weights of the same shape; one
 * thing changed gives another. */
static void fingerprints_tell_models_apart(void **state)
{
    static quire_model_desc desc;
    const gguf_gen_opts plain = gguf_edit_small("tiny-llama");
    gguf_gen_opts others[5] = { plain, plain, plain, plain, plain };
    uint64_t seen[6];

    (void)state;
    generate(&plain, &desc);
    seen[0] = desc.fingerprint;
    assert_int_not_equal(seen[0], 0);
    generate(&plain, &desc);
    assert_int_equal(desc.fingerprint, seen[0]);
    others[0].seed = plain.seed + 1;
    generate(&others[0], &desc);
    assert_int_equal(desc.fingerprint, seen[0]);

    others[0].n_layer = 2;
    others[1].n_ff = 2 * plain.n_ff;
    others[2].type = plain.type == GGML_TYPE_F16 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    others[3].n_head = 1;
    others[3].d_head = plain.n_head * plain.d_head;
    others[3].n_kv_head = 1;
    (void)snprintf(others[4].rope_scaling, sizeof(others[4].rope_scaling), "linear");
    others[4].rope_factor = 2.0f;
    for (size_t i = 0; i < 5; i++) {
        generate(&others[i], &desc);
        seen[i + 1] = desc.fingerprint;
        for (size_t j = 0; j <= i; j++) {
            assert_int_not_equal(seen[i + 1], seen[j]);
        }
    }
}

static void kv_map(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");

    (void)state;
    opts.n_layer = 5;
    generate(&opts, &desc);
    for (uint32_t l = 0; l < 5; l++) {
        const quire_kv_map_entry *entry = &desc.kv_map[l];

        assert_int_equal(entry->stored, l);
        assert_int_equal(entry->n_k, 1);
        assert_int_equal(entry->n_v, 1);
        assert_int_equal(entry->k_src[0], l);
        assert_int_equal(entry->v_src[0], l);
    }
}

static void rope_of(const char *scaling, float factor, quire_rope *rope)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");

    (void)snprintf(opts.rope_scaling, sizeof(opts.rope_scaling), "%s", scaling);
    opts.rope_factor = factor;
    opts.rope_ctx_orig = 128;
    generate(&opts, &desc);
    *rope = desc.rope;
}

/* The values libllama's context ends up with. */
static void rope_scalings_are_derived(void **state)
{
    quire_rope rope;

    (void)state;
    rope_of("", 4.0f, &rope);
    assert_int_equal(rope.scaling, QUIRE_ROPE_SCALING_NONE);
    assert_float_equal(rope.freq_scale, 1.0f, 0.0f);
    assert_float_equal(rope.freq_base, 1e4f, 0.0f);
    assert_int_equal(rope.ctx_orig, 512);
    rope_of("none", 4.0f, &rope);
    assert_int_equal(rope.scaling, QUIRE_ROPE_SCALING_NONE);
    assert_float_equal(rope.freq_scale, 1.0f, 0.0f);
    rope_of("linear", 4.0f, &rope);
    assert_int_equal(rope.scaling, QUIRE_ROPE_SCALING_LINEAR);
    assert_float_equal(rope.freq_scale, 0.25f, 0.0f);
    assert_float_equal(rope.ext_factor, 0.0f, 0.0f);
    assert_float_equal(rope.attn_factor, 1.0f, 0.0f);
    rope_of("linear", 1.0f, &rope);
    assert_int_equal(rope.scaling, QUIRE_ROPE_SCALING_NONE);
    rope_of("yarn", 4.0f, &rope);
    assert_int_equal(rope.scaling, QUIRE_ROPE_SCALING_YARN);
    assert_float_equal(rope.freq_scale, 0.25f, 0.0f);
    assert_float_equal(rope.ext_factor, 1.0f, 0.0f);
    assert_float_equal(rope.beta_fast, 32.0f, 0.0f);
    assert_float_equal(rope.beta_slow, 1.0f, 0.0f);
    assert_int_equal(rope.ctx_orig, 128);
    /* ggml's rope multiplies by 1 + 0.1 ln 4 itself. */
    assert_float_equal(rope.attn_factor, 1.0f, 1e-6f);
    rope_of("yarn", 0.5f, &rope);
    assert_float_equal(rope.attn_factor, 1.0f / (1.0f + 0.1f * logf(0.5f)), 1e-6f);
    rope_of("llama3", 8.0f, &rope);
    assert_int_equal(rope.scaling, QUIRE_ROPE_SCALING_NONE);
    assert_float_equal(rope.freq_scale, 1.0f, 0.0f);
}

static void older_rope_keys(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    quire_error err;
    gguf_edit edit;

    (void)state;
    gguf_edit_open(&edit, &opts);
    gguf_set_val_f32(edit.gguf, "llama.rope.scale_linear", 2.0f);
    gguf_set_val_f32(edit.gguf, "llama.rope.scaling.attn_factor", 0.5f);
    gguf_set_val_u32(edit.gguf, "llama.rope.scaling.original_context_length", 0);
    (void)gguf_remove_key(edit.gguf, "llama.rope.freq_base");
    gguf_edit_save(&edit, gguf_edit_path());
    assert_int_equal(describe_file(&desc, &err), QUIRE_OK);
    assert_int_equal(desc.rope.scaling, QUIRE_ROPE_SCALING_LINEAR);
    assert_float_equal(desc.rope.freq_scale, 0.5f, 0.0f);
    assert_float_equal(desc.rope.attn_factor, 0.5f, 0.0f);
    assert_float_equal(desc.rope.freq_base, 10000.0f, 0.0f);
    assert_int_equal(desc.rope.ctx_orig, 512);
    /* The newer name wins. */
    gguf_set_val_f32(edit.gguf, "llama.rope.scaling.factor", 8.0f);
    gguf_edit_save(&edit, gguf_edit_path());
    assert_int_equal(describe_file(&desc, &err), QUIRE_OK);
    assert_float_equal(desc.rope.freq_scale, 0.125f, 0.0f);
    gguf_edit_close(&edit);
}

static void the_nearest_name_is_offered(void **state)
{
    (void)state;
    assert_string_equal(quire_arch_nearest("gemma3x"), "gemma3");
    assert_string_equal(quire_arch_nearest("qwen4moe"), "qwen3moe");
    assert_string_equal(quire_arch_nearest("lama"), "llama");
    assert_string_equal(quire_arch_nearest("graniteswa"), "granite_swa");
    assert_null(quire_arch_nearest("rwkv7"));
    assert_null(quire_arch_nearest("mamba2")); /* no attention */
    assert_null(quire_arch_nearest(""));
    assert_null(quire_arch_nearest("a name that is longer than all names in the table"));
    assert_int_equal(quire_arch_find("gemma3"), QUIRE_ARCH_GEMMA3);
    assert_int_equal(quire_arch_find("gemma"), QUIRE_ARCH_GEMMA);
    assert_int_equal(quire_arch_find("gem"), QUIRE_ARCH_COUNT);
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(gguf_edit_path());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_keys_are_named),
        cmocka_unit_test(damaged_rope_keys_are_named),
        cmocka_unit_test(damaged_tensors_are_named),
        cmocka_unit_test(per_layer_arrays_must_agree),
        cmocka_unit_test(shapes_are_described),
        cmocka_unit_test(fingerprints_tell_models_apart),
        cmocka_unit_test(kv_map),
        cmocka_unit_test(rope_scalings_are_derived),
        cmocka_unit_test(older_rope_keys),
        cmocka_unit_test(the_nearest_name_is_offered),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
