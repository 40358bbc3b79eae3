/* test_describe_experts.c - the description of a model's experts, and the refusal of inconsistent
 * keys and tensors.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "describe_fixture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Three layers of width 16, the first without experts; 8 experts of width 16. */
static gguf_gen_opts small(const char *arch)
{
    gguf_gen_opts o = gguf_edit_small("tiny-qwen3moe");

    (void)snprintf(o.arch, sizeof o.arch, "%s", arch);
    o.n_layer = 3;
    o.n_experts = 8;
    o.n_experts_used = 2;
    o.n_ff_expert = 16;
    o.n_ff_shared = 32;
    o.n_experts_dense = strcmp(arch, "glm4moe") == 0 ? 1 : 0;
    o.sliding_window = strcmp(arch, "gpt-oss") == 0 ? 32 : 0;
    if (strcmp(arch, "llama4") == 0) {
        o.n_layer = 4;
        o.expert_step = 2;
    }
    if (strcmp(arch, "nemotron_h_moe") == 0) { /* Mamba-2, experts, attention, experts */
        o.n_layer = 4;
        o.attention_every = 2;
        o.conv_taps = 3;
        o.n_delta_k_heads = 2;
        o.n_delta_v_heads = 4;
        o.d_delta_head = 8;
        o.d_mamba_state = 16;
        o.n_embd_expert = 8;
    }
    if (strcmp(arch, "bailingmoe2") == 0) {
        o.n_expert_groups = 4;
    }
    if (strcmp(arch, "gemma4") == 0) {
        o.sliding_window = 32;
        o.has_fused_experts = true;
    }
    return o;
}

static void describe(const gguf_gen_opts *o, quire_model_desc *desc)
{
    gguf_edit edit;
    quire_error err = QUIRE_ERROR_INIT;

    gguf_edit_open(&edit, o);
    gguf_edit_save(&edit, gguf_edit_path());
    gguf_edit_close(&edit);
    if (describe_file(desc, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static void experts_are_described(void **state)
{
    static const struct {
        const char *arch;
        quire_gating gating;
        bool is_normalised;
        float scale;
        uint32_t n_dense, n_ff_shared;
    } cases[] = {
        { "qwen3moe", QUIRE_GATING_SOFTMAX, true, 1.0f, 0, 0 },
        { "gpt-oss", QUIRE_GATING_CHOSEN, false, 1.0f, 0, 0 },
        { "qwen2moe", QUIRE_GATING_SOFTMAX, false, 1.0f, 0, 32 },
        { "olmoe", QUIRE_GATING_SOFTMAX, false, 1.0f, 0, 0 },
        { "glm4moe", QUIRE_GATING_SIGMOID, true, 1.8f, 1, 32 },
        { "hunyuan-moe", QUIRE_GATING_SOFTMAX, true, 1.0f, 0, 32 },
    };
    static quire_model_desc desc;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const gguf_gen_opts o = small(cases[i].arch);
        const quire_router *r = &desc.experts.router;

        describe(&o, &desc);
        assert_int_equal(r->n_experts, 8);
        assert_int_equal(r->n_used, 2);
        assert_int_equal(r->n_groups, 0);
        assert_int_equal(r->gating, cases[i].gating);
        assert_int_equal(r->is_normalised, cases[i].is_normalised);
        assert_true(r->scale == cases[i].scale);
        assert_int_equal(desc.experts.n_dense, cases[i].n_dense);
        assert_int_equal(desc.experts.n_ff, 16);
        assert_int_equal(desc.experts.n_ff_shared, cases[i].n_ff_shared);
    }
}

/* A model without experts has plain networks in all layers. */
static void no_experts(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts o = small("llama");

    (void)state;
    o.n_experts = 0;
    o.n_ff_shared = 0;
    describe(&o, &desc);
    assert_int_equal(desc.experts.router.n_experts, 0);
    assert_int_equal(desc.experts.n_dense, 3);
}

static const describe_key_case key_cases[] = {
    { "nemotron_h_moe",
      { "nemotron_h_moe.moe_latent_size", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "has shape" },
    { "nemotron_h_moe",
      { "nemotron_h_moe.expert_used_count", EDIT_U32, 9, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_used_count is 9; expected 1..8" },
    { "qwen3moe",
      { "qwen3moe.expert_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "qwen3moe.expert_count is missing" },
    { "qwen3moe",
      { "qwen3moe.expert_count", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_count is 0; expected 1..1024" },
    { "qwen3moe",
      { "qwen3moe.expert_count", EDIT_U32, 1025, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_count is 1025" },
    { "qwen3moe",
      { "qwen3moe.expert_count", EDIT_U32, 4, NULL, 0 },
      QUIRE_CORRUPT,
      "ffn_gate_inp.weight has shape 16 x 8 x 1 x 1; expected 16 x 4" },
    { "qwen3moe",
      { "qwen3moe.expert_used_count", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_used_count is 0; expected 1..8" },
    { "qwen3moe",
      { "qwen3moe.expert_used_count", EDIT_U32, 9, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_used_count is 9; expected 1..8" },
    { "qwen3moe", { "qwen3moe.expert_used_count", EDIT_U32_ARRAY, 3, NULL, 3 }, QUIRE_OK, NULL },
    { "qwen3moe",
      { "qwen3moe.expert_used_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_used_count is missing" },
    /* Without its key an expert has a share of the network's width: 8, not 16. */
    { "qwen3moe",
      { "qwen3moe.expert_feed_forward_length", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "has shape 16 x 16 x 8 x 1; expected 16 x 8 x 8" },
    { "gpt-oss",
      { "gpt-oss.expert_feed_forward_length", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_feed_forward_length is missing" },
    { "gpt-oss", { "gpt-oss.feed_forward_length", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
    { "qwen3moe",
      { "qwen3moe.feed_forward_length", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "feed_forward_length is missing" },
    { "qwen3moe",
      { "qwen3moe.expert_group_count", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "8 experts in 3 groups (qwen3moe.expert_group_count), 0 of which" },
    { "qwen3moe", { "qwen3moe.expert_group_count", EDIT_U32, 1, NULL, 0 }, QUIRE_OK, NULL },
    { "bailingmoe2",
      { "bailingmoe2.expert_group_used_count", EDIT_U32, 4, NULL, 0 },
      QUIRE_CORRUPT,
      "8 experts in 4 groups (bailingmoe2.expert_group_count), 4 of which "
      "(expert_group_used_count) "
      "give 2 experts" },
    { "bailingmoe2",
      { "bailingmoe2.expert_group_used_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "0 of which (expert_group_used_count)" },
    { "bailingmoe2",
      { "bailingmoe2.expert_group_used_count", EDIT_U32, 4e9, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_group_used_count is 4000000000; expected 0.." },
    { "qwen2moe",
      { "qwen2moe.expert_shared_feed_forward_length", EDIT_U32, 16, NULL, 0 },
      QUIRE_CORRUPT,
      "shexp.weight has shape 16 x 32 x 1 x 1; expected 16 x 16" },
    { "qwen2moe",
      { "qwen2moe.expert_shared_feed_forward_length", EDIT_U32, 4e9, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_shared_feed_forward_length is 4000000000; expected 0..1048576" },
    { "llama4",
      { "llama4.attention.sliding_window", EDIT_U32, 0, NULL, 0 },
      QUIRE_UNSUPP,
      "llama4.attention.sliding_window is 0; supported: chunks of 8192 tokens" },
    { "llama4", { "llama4.attention.sliding_window", EDIT_U32, 1, NULL, 0 }, QUIRE_OK, NULL },
    { "glm4moe",
      { "glm4moe.leading_dense_block_count", EDIT_U32, 4, NULL, 0 },
      QUIRE_CORRUPT,
      "leading_dense_block_count is 4; expected 0..3" },
    { "glm4moe",
      { "glm4moe.leading_dense_block_count", EDIT_U32, 2, NULL, 0 },
      QUIRE_CORRUPT,
      "belongs to a layer without such experts (8 experts, the first 2 layers have none)" },
    { "glm4moe",
      { "glm4moe.leading_dense_block_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "belongs to a layer with experts (8 experts, the first 0 layers" },
    { "glm4moe", { "glm4moe.expert_gating_func", EDIT_U32, 3, NULL, 0 }, QUIRE_OK, NULL },
    { "glm4moe",
      { "glm4moe.expert_gating_func", EDIT_U32, 4, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_gating_func is 4; expected 0..3" },
    { "cohere2moe",
      { "cohere2moe.attention.layer_norm_rms_epsilon", EDIT_F32, 1, NULL, 0 },
      QUIRE_UNSUPP,
      "RMS norms in cohere2moe are not supported" },
    { "glm4moe",
      { "glm4moe.expert_weights_scale", EDIT_F32, -1, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_weights_scale is -1" },
    { "glm4moe",
      { "glm4moe.expert_weights_norm", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_weights_norm is of type u32; expected bool" },
    { "glm4moe",
      { "glm4moe.expert_shared_count", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "shexp.weight has shape 16 x 32 x 1 x 1; expected 16 x 16" },
    { "glm4moe",
      { "glm4moe.expert_shared_count", EDIT_U32, 4e9, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_shared_count is 4000000000" },
    { "ernie4_5-moe",
      { "ernie4_5-moe.interleave_moe_layer_step", EDIT_U32, 2, NULL, 0 },
      QUIRE_CORRUPT,
      "interleave_moe_layer_step is 2; expected 1..1" },
    { "llama",
      { "llama.expert_count", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "belongs to a layer without such experts (0 experts" },
    { "llama",
      { "llama.expert_used_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "expert_used_count is missing" },
};

static void damaged_keys_are_named(void **state)
{
    (void)state;
    describe_keys_check(key_cases, sizeof key_cases / sizeof key_cases[0], small);
}

static void damaged_tensors_are_named(void **state)
{
    static const describe_tensor_case cases[] = {
        { "qwen3moe", "blk.1.ffn_gate_inp.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.ffn_gate_inp.weight is missing" },
        { "qwen3moe", "blk.2.ffn_up_exps.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.2.ffn_up_exps.weight is missing" },
        { "qwen3moe", "blk.2.ffn_up_exps.weight", NULL, GGML_TYPE_F32, 16, 8, QUIRE_CORRUPT,
          "has shape 16 x 8 x 8 x 1; expected 16 x 16 x 8" },
        { "qwen3moe", "blk.2.ffn_up_exps.weight", "blk.2.ffn_up_exps.scale", GGML_TYPE_F32, 8, 1,
          QUIRE_UNSUPP, "blk.2.ffn_up_exps.scale has no place" },
        { "gpt-oss", "blk.0.attn_sinks.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "attn_sinks.weight is missing" },
        { "gpt-oss", "blk.0.attn_sinks.weight", NULL, GGML_TYPE_F32, 3, 1, QUIRE_CORRUPT,
          "has shape 3 x 1 x 1 x 1; expected 2 x 1" },
        { "gpt-oss", "blk.1.ffn_down_exps.bias", NULL, GGML_TYPE_F16, 16, 8, QUIRE_UNSUPP,
          "is of type f16; supported here: f32" },
        { "gpt-oss", "blk.1.ffn_down_exps.bias", NULL, GGML_TYPE_F32, 16, 7, QUIRE_CORRUPT,
          "has shape 16 x 7 x 1 x 1; expected 16 x 8" },
        { "glm4moe", "blk.1.exp_probs_b.bias", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.exp_probs_b.bias is missing" },
        { "glm4moe", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.ffn_up.weight belongs to a layer with experts" },
        { "llama4", "blk.3.ffn_up_shexp.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.3.ffn_up_shexp.weight is missing" },
        { "llama4", "blk.2.ffn_up.weight", "blk.3.ffn_up.weight", 0, 0, 0, QUIRE_CORRUPT,
          "blk.3.ffn_up.weight belongs to a layer with experts" },
        { "gemma4", "blk.1.ffn_gate_up_exps.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.ffn_gate_up_exps.weight is missing" },
        { "gemma4", "blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_gate_exps.weight", 0, 0, 0,
          QUIRE_CORRUPT, "has shape 16 x 32 x 8 x 1; expected 16 x 16 x 8" },
        { "gemma4", "blk.2.ffn_down_exps.scale", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.2.ffn_down_exps.scale is missing" },
        { "gemma4", "blk.0.pre_ffw_norm_2.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.0.pre_ffw_norm_2.weight is missing" },
        { "gemma4", "blk.0.ffn_up.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.0.ffn_up.weight is missing" },
        { "nemotron_h_moe", "blk.1.ffn_latent_down.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.ffn_latent_down.weight is missing" },
        { "nemotron_h_moe", "blk.3.ffn_up_exps.weight", "blk.2.ffn_up_exps.weight", 0, 0, 0,
          QUIRE_CORRUPT, "blk.2.ffn_up_exps.weight belongs to a layer of another kind" },
        { "nemotron_h_moe", "blk.3.ffn_down_shexp.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.3.ffn_down_shexp.weight is missing" },
        { "qwen3moe", "blk.2.ffn_up_exps.weight", "blk.2.ffn_gate_up_exps.weight", 0, 0, 0,
          QUIRE_UNSUPP, "blk.2.ffn_gate_up_exps.weight has no place" },
        { "glm4moe", "blk.2.ffn_gate_shexp.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.2.ffn_gate_shexp.weight is missing" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const gguf_gen_opts o = small(cases[i].model);

        describe_tensor_check(&cases[i], &o);
    }
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(gguf_edit_path());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_described),
        cmocka_unit_test(no_experts),
        cmocka_unit_test(damaged_keys_are_named),
        cmocka_unit_test(damaged_tensors_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, teardown);
}
