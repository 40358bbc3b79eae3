/* test_describe_archs.c - the keys that only some architectures read: their meaning, their
 * defaults, and a clear line for each that is damaged.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "describe_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A small model of an architecture, with windows where it has any. */
static gguf_gen_opts small(const char *arch)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");

    (void)snprintf(opts.arch, sizeof(opts.arch), "%s", arch);
    opts.n_layer = 3;
    opts.sliding_window = 4;
    if (strcmp(arch, "lfm2") == 0) { /* recurrent, attention, recurrent */
        opts.attention_every = 2;
        opts.conv_taps = 3;
    }
    if (strcmp(arch, "deepseek2") == 0 || strcmp(arch, "minicpm3") == 0 ||
        strcmp(arch, "mistral4") == 0) {
        opts.d_head = 24;
        opts.n_rot = 8;
        opts.n_latent = opts.n_latent_q = 16;
        opts.d_value = 8;
        opts.has_joint_latent = strcmp(arch, "minicpm3") == 0;
        opts.n_experts = opts.has_joint_latent ? 0 : 4;
        opts.n_experts_used = 2;
        opts.n_ff_expert = opts.n_ff_shared = 16;
        opts.attn_temperature = strcmp(arch, "mistral4") == 0 ? 0.1f : 0.0f;
    }
    if (strcmp(arch, "gemma4") == 0) { /* window, full, and two that read these */
        opts.n_layer = 4;
        opts.has_window_array = true;
        opts.window_d_head = 16;
        opts.n_shared_kv = 2;
        opts.n_embd_layer = 8;
    }
    if (strcmp(arch, "gemma3n") == 0) {
        opts.n_embd_layer = 256;
    }
    if (strcmp(arch, "qwen35") == 0) {
        opts.attention_every = 2;
        opts.conv_taps = 3;
        opts.n_delta_k_heads = 2;
        opts.n_delta_v_heads = 4;
        opts.d_delta_head = 8;
    }
    if (strcmp(arch, "granitehybrid") == 0 || strcmp(arch, "nemotron_h") == 0 ||
        strcmp(arch, "falcon-h1") == 0) {
        opts.attention_every = 2; /* with networks between, in nemotron_h */
        opts.conv_taps = 3;
        opts.n_delta_k_heads = 2;
        opts.n_delta_v_heads = 4;
        opts.d_delta_head = 8;
        opts.d_mamba_state = 16;
        opts.n_layer = strcmp(arch, "nemotron_h") == 0 ? 5 : 3;
    }
    return opts;
}

static const describe_key_case key_cases[] = {
    { "gemma2",
      { "gemma2.attention.sliding_window", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "sliding_window is 0; expected 1.." },
    { "gemma2", { "gemma2.attention.sliding_window", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
    { "gemma3", { "gemma3.attention.sliding_window", EDIT_U32, 0, NULL, 0 }, QUIRE_OK, NULL },
    { "cohere2",
      { "cohere2.attention.sliding_window", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key cohere2.attention.sliding_window is missing" },
    { "gemma3",
      { "gemma3.attention.sliding_window_pattern", EDIT_U32_ARRAY, 1, NULL, 2 },
      QUIRE_CORRUPT,
      "sliding_window_pattern has 2 elements; expected 3" },
    { "gemma3",
      { "gemma3.attention.sliding_window_pattern", EDIT_U32_ARRAY, 2, NULL, 3 },
      QUIRE_CORRUPT,
      "element 0 of gemma3.attention.sliding_window_pattern is 2; expected 0..1" },
    { "gemma3",
      { "gemma3.attention.sliding_window_pattern", EDIT_STR, 0, "x", 0 },
      QUIRE_CORRUPT,
      "is of type str; expected an integer" },
    { "gemma3",
      { "gemma3.attention.key_length_swa", EDIT_U32, 16, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length_swa is 16; supported: 8, as in layers without a window" },
    { "gemma3",
      { "gemma3.rope.freq_base_swa", EDIT_F32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "rope.freq_base_swa is 0" },
    { "gemma2",
      { "gemma2.attn_logit_softcapping", EDIT_F32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "attn_logit_softcapping is 0; expected 0.001.." },
    { "gemma2",
      { "gemma2.final_logit_softcapping", EDIT_F32, -1, NULL, 0 },
      QUIRE_CORRUPT,
      "final_logit_softcapping is -1" },
    { "gemma3", { "gemma3.final_logit_softcapping", EDIT_F32, 0, NULL, 0 }, QUIRE_OK, NULL },
    { "granite",
      { "granite.logit_scale", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key granite.logit_scale is missing" },
    { "granite",
      { "granite.logit_scale", EDIT_F32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "granite.logit_scale is 0" },
    { "granite",
      { "granite.residual_scale", EDIT_F32, NAN, NULL, 0 },
      QUIRE_CORRUPT,
      "granite.residual_scale is nan" },
    { "granite",
      { "granite.attention.scale", EDIT_F32, -1, NULL, 0 },
      QUIRE_CORRUPT,
      "granite.attention.scale is -1" },
    { "granite_swa",
      { "granite_swa.attention.rope_pattern", EDIT_U32_ARRAY, 1, NULL, 2 },
      QUIRE_CORRUPT,
      "attention.rope_pattern has 2 elements; expected 3" },
    { "granite_swa",
      { "granite_swa.attention.rope_pattern", EDIT_U32_ARRAY, 2, NULL, 3 },
      QUIRE_CORRUPT,
      "element 0 of granite_swa.attention.rope_pattern is 2; expected 0..1" },
    { "granite_swa",
      { "granite_swa.attention.rope_pattern", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_OK,
      NULL },
    { "granite",
      { "granite.embedding_scale", EDIT_STR, 0, "6", 0 },
      QUIRE_CORRUPT,
      "embedding_scale is of type str; expected f32" },
    { "granite",
      { "granite.rope.scaling.finetuned", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "finetuned is of type u32; expected bool" },
    { "granite",
      { "granite.deepstack_mapping", EDIT_U32_ARRAY, 1, NULL, 3 },
      QUIRE_UNSUPP,
      "granite.deepstack_mapping is there; models that read pictures" },
    { "mistral3",
      { "mistral3.attention.temperature_scale", EDIT_F32, -1, NULL, 0 },
      QUIRE_CORRUPT,
      "temperature_scale is -1" },
    { "mistral3",
      { "mistral3.rope.scaling.yarn_beta_fast", EDIT_F32, INFINITY, NULL, 0 },
      QUIRE_CORRUPT,
      "yarn_beta_fast is inf" },
    { "mistral3",
      { "mistral3.rope.scaling.yarn_beta_slow", EDIT_F32, NAN, NULL, 0 },
      QUIRE_CORRUPT,
      "yarn_beta_slow is nan" },
    { "glm4",
      { "glm4.rope.dimension_count", EDIT_U32, 5, NULL, 0 },
      QUIRE_CORRUPT,
      "rope.dimension_count is 5; expected an even number up to 8, the head size" },
    { "glm4", { "glm4.rope.dimension_count", EDIT_U32, 4, NULL, 0 }, QUIRE_OK, NULL },
    { "glm4",
      { "glm4.nextn_predict_layers", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "nextn_predict_layers is 3; expected less than the 3 layers" },
    { "glm4", { "glm4.nextn_predict_layers", EDIT_U32, 1, NULL, 0 }, QUIRE_OK, NULL },
    { "glm4",
      { "glm4.rope.dimension_sections", EDIT_U32_ARRAY, 2, NULL, 4 },
      QUIRE_UNSUPP,
      "rope.dimension_sections names several dimensions of positions" },
    { "hunyuan-dense",
      { "hunyuan-dense.rope.scaling.alpha", EDIT_F32, -1, NULL, 0 },
      QUIRE_CORRUPT,
      "rope.scaling.alpha is -1" },
    { "hunyuan-dense", { "hunyuan-dense.expert_count", EDIT_U32, 1, NULL, 0 }, QUIRE_OK, NULL },
    { "hunyuan-dense",
      { "hunyuan-dense.expert_count", EDIT_U32, 2, NULL, 0 },
      QUIRE_UNSUPP,
      "expert_count is 2; not supported" },
    { "apertus",
      { "xielu.beta", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key xielu.beta is missing" },
    { "apertus",
      { "xielu.alpha_n", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key xielu.alpha_n is missing" },
    { "apertus", { "xielu.eps", EDIT_F32, NAN, NULL, 0 }, QUIRE_CORRUPT, "xielu.eps is nan" },
    { "apertus", { "xielu.beta", EDIT_F32, 0.5, NULL, 0 }, QUIRE_OK, NULL },
    { "apertus",
      { "xielu.alpha_p", EDIT_U32_ARRAY, 1, NULL, 3 },
      QUIRE_CORRUPT,
      "xielu.alpha_p is of type arr; expected f32 or an array of f32" },
    { "lfm2",
      { "lfm2.shortconv.l_cache", EDIT_U32, 2, NULL, 0 },
      QUIRE_CORRUPT,
      "expected 2 x 16" },
    { "lfm2",
      { "lfm2.shortconv.l_cache", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key lfm2.shortconv.l_cache is missing" },
    { "lfm2",
      { "lfm2.shortconv.l_cache", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "lfm2.shortconv.l_cache is 1; expected 2..64" },
    { "lfm2",
      { "lfm2.attention.head_count_kv", EDIT_U32_ARRAY, 0, NULL, 3 },
      QUIRE_UNSUPP,
      "head_count_kv is 0 in all layers; models without attention are not supported" },
    { "lfm2",
      { "lfm2.attention.head_count_kv", EDIT_U32_ARRAY, 1, NULL, 2 },
      QUIRE_CORRUPT,
      "head_count_kv has 2 elements; expected 3" },
    { "lfm2",
      { "lfm2.attention.head_count_kv", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "belongs to a layer with attention (lfm2.attention.head_count_kv)" },
    { "qwen35",
      { "qwen35.ssm.state_size", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key qwen35.ssm.state_size is missing" },
    { "qwen35",
      { "qwen35.ssm.state_size", EDIT_U32, 257, NULL, 0 },
      QUIRE_CORRUPT,
      "qwen35.ssm.state_size is 257; expected 1..256" },
    { "qwen35",
      { "qwen35.ssm.time_step_rank", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "qwen35.ssm.time_step_rank is 3; expected a multiple of the 2 groups" },
    { "qwen35",
      { "qwen35.ssm.inner_size", EDIT_U32, 31, NULL, 0 },
      QUIRE_UNSUPP,
      "qwen35.ssm.inner_size is 31; supported: 4 heads of 8" },
    { "qwen35",
      { "qwen35.full_attention_interval", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "belongs to a layer with attention (qwen35.full_attention_interval)" },
    { "qwen35",
      { "qwen35.full_attention_interval", EDIT_U32, 100, NULL, 0 },
      QUIRE_UNSUPP,
      "all 3 layers are recurrent (qwen35.full_attention_interval); models without attention" },
    { "qwen35",
      { "qwen35.attention.recurrent_layers", EDIT_U32_ARRAY, 0, NULL, 3 },
      QUIRE_CORRUPT,
      "belongs to a layer with attention (qwen35.full_attention_interval)" },
    { "qwen35",
      { "qwen35.rope.dimension_sections", EDIT_U32_ARRAY, 1, NULL, 4 },
      QUIRE_UNSUPP,
      "rope.dimension_sections is 1, 1, 1, 1 and leaves pair 3 of 4 without a position" },
    { "qwen35",
      { "qwen35.rope.dimension_sections", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key qwen35.rope.dimension_sections is missing" },
    { "cohere2",
      { "cohere2.attention.layer_norm_epsilon", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key cohere2.attention.layer_norm_epsilon is missing" },
};

static const describe_key_case mamba_cases[] = {
    { "granitehybrid",
      { "granitehybrid.ssm.conv_kernel", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "granitehybrid.ssm.conv_kernel is 1; expected 2..64" },
    { "granitehybrid",
      { "granitehybrid.ssm.state_size", EDIT_U32, 257, NULL, 0 },
      QUIRE_CORRUPT,
      "granitehybrid.ssm.state_size is 257; expected 1..256" },
    { "granitehybrid",
      { "granitehybrid.ssm.group_count", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "granitehybrid.ssm.time_step_rank is 4; expected a multiple of the 3 groups" },
    { "granitehybrid",
      { "granitehybrid.ssm.inner_size", EDIT_U32, 33, NULL, 0 },
      QUIRE_CORRUPT,
      "granitehybrid.ssm.inner_size is 33; expected 4 heads of the same size, at most 256" },
    { "granitehybrid",
      { "granitehybrid.ssm.inner_size", EDIT_U32, 2048, NULL, 0 },
      QUIRE_CORRUPT,
      "granitehybrid.ssm.inner_size is 2048; expected 4 heads of the same size, at most 256" },
    { "granitehybrid",
      { "granitehybrid.ssm.time_step_rank", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key granitehybrid.ssm.time_step_rank is missing" },
    { "granitehybrid",
      { "granitehybrid.attention.head_count_kv", EDIT_U32_ARRAY, 0, NULL, 3 },
      QUIRE_UNSUPP,
      "head_count_kv is 0 in all layers; models without attention are not supported" },
    { "granitehybrid",
      { "granitehybrid.attention.head_count_kv", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "belongs to a layer with attention (granitehybrid.attention.head_count_kv)" },
    { "granitehybrid", { "granitehybrid.logit_scale", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
    { "nemotron_h",
      { "nemotron_h.attention.head_count_kv", EDIT_U32, 1, NULL, 0 },
      QUIRE_CORRUPT,
      "head_count_kv is of type u32; expected an array" },
    { "nemotron_h",
      { "nemotron_h.feed_forward_length", EDIT_U32, 16, NULL, 0 },
      QUIRE_CORRUPT,
      "feed_forward_length is of type u32; expected an array" },
    { "nemotron_h",
      { "nemotron_h.feed_forward_length", EDIT_U32_ARRAY, 0, NULL, 5 },
      QUIRE_CORRUPT,
      "blk.1.ffn_up.weight belongs to a layer of another kind "
      "(nemotron_h.attention.head_count_kv and feed_forward_length)" },
    { "nemotron_h",
      { "nemotron_h.attention.layer_norm_epsilon", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key nemotron_h.attention.layer_norm_epsilon is missing" },
    { "nemotron_h",
      { "nemotron_h.attention.layer_norm_rms_epsilon", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_OK,
      NULL },
    { "nemotron_h",
      { "nemotron_h.expert_count", EDIT_U32, 4, NULL, 0 },
      QUIRE_UNSUPP,
      "nemotron_h.expert_count is 4; not supported" },
    { "falcon-h1",
      { "falcon-h1.ssm.state_size", EDIT_U32, 8, NULL, 0 },
      QUIRE_CORRUPT,
      "ssm_in.weight has shape" },
    { "falcon-h1",
      { "falcon-h1.attention.head_count_kv", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "head_count_kv is 0; expected 1..2" },
};

static const describe_key_case sized_cases[] = {
    { "gemma3n",
      { "gemma3n.altup.num_inputs", EDIT_U32, 3, NULL, 0 },
      QUIRE_UNSUPP,
      "altup.num_inputs is 3; supported: 4" },
    { "gemma3n",
      { "gemma3n.altup.active_idx", EDIT_U32, 1, NULL, 0 },
      QUIRE_UNSUPP,
      "altup.active_idx is 1; supported: 0" },
    { "gemma3n",
      { "gemma3n.embedding_length_per_layer_input", EDIT_U32, 128, NULL, 0 },
      QUIRE_UNSUPP,
      "embedding_length_per_layer_input is 128; supported: 256" },
    { "gemma3n",
      { "gemma3n.attention.shared_kv_layers", EDIT_U32, 1, NULL, 0 },
      QUIRE_UNSUPP,
      "shared_kv_layers is 1; supported: 0" },
    { "gemma3n",
      { "gemma3n.final_logit_softcapping", EDIT_F32, 20, NULL, 0 },
      QUIRE_UNSUPP,
      "final_logit_softcapping is 20; supported: 30" },
    { "gemma3n",
      { "gemma3n.activation_sparsity_scale", EDIT_F32, 1, NULL, 0 },
      QUIRE_UNSUPP,
      "activation_sparsity_scale of layer 0 is 1; supported: 1.64485 in the first 10 layers" },
    { "gemma4",
      { "gemma4.attention.shared_kv_layers", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "blk.2.attn_k.weight is missing" },
    { "gemma4",
      { "gemma4.attention.shared_kv_layers", EDIT_U32, 4, NULL, 0 },
      QUIRE_CORRUPT,
      "shared_kv_layers is 4; expected 0..3" },
    { "gemma4",
      { "gemma4.attention.shared_kv_layers", EDIT_U32, 3, NULL, 0 },
      QUIRE_CORRUPT,
      "shared_kv_layers is 3 of 4 layers; the first two must have their own" },
    { "gemma4",
      { "gemma4.attention.shared_kv_layers", EDIT_U32, 1, NULL, 0 },
      QUIRE_UNSUPP,
      "layer 3 reads the K and V of layer 2, which has another window or other heads" },
    { "gemma4",
      { "gemma4.attention.key_length_swa", EDIT_U32, 12, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length_swa is 12 and value_length_swa 16; supported: equal ones" },
    { "gemma4",
      { "gemma4.attention.key_length_swa", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length_swa is 8 and value_length_swa 16" },
    { "gemma4",
      { "gemma4.attention.value_length_swa", EDIT_U32, 8, NULL, 0 },
      QUIRE_UNSUPP,
      "key_length_swa is 16 and value_length_swa 8" },
    { "gemma4",
      { "gemma4.rope.dimension_count_swa", EDIT_U32, 18, NULL, 0 },
      QUIRE_CORRUPT,
      "dimension_count_swa is 18; expected an even number up to 16" },
    { "gemma4",
      { "gemma4.attention.head_count_kv", EDIT_U32_ARRAY, 2, NULL, 3 },
      QUIRE_CORRUPT,
      "head_count_kv has 3 elements; expected 4" },
    { "gemma4",
      { "gemma4.attention.head_count_kv", EDIT_U32_ARRAY, 3, NULL, 4 },
      QUIRE_CORRUPT,
      "element 0 of gemma4.attention.head_count_kv is 3; expected 1..2" },
    { "gemma4",
      { "gemma4.feed_forward_length", EDIT_U32_ARRAY, 48, NULL, 4 },
      QUIRE_CORRUPT,
      "expected 16 x 48" },
    { "gemma4",
      { "gemma4.embedding_length_per_layer_input", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key gemma4.embedding_length_per_layer_input is missing" },
    { "gemma4",
      { "gemma4.embedding_length_per_layer_input", EDIT_U32, 4, NULL, 0 },
      QUIRE_CORRUPT,
      "expected 16 x" },
    { "gemma4",
      { "gemma4.embedding_length_per_layer_input", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "has shape" },
};

static const describe_key_case latent_cases[] = {
    { "deepseek2",
      { "deepseek2.attention.kv_lora_rank", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key deepseek2.attention.kv_lora_rank is missing" },
    { "deepseek2",
      { "deepseek2.attention.kv_lora_rank", EDIT_U32, 12, NULL, 0 },
      QUIRE_UNSUPP,
      "kv_lora_rank is 12, with 8 turned dimensions behind it" },
    { "deepseek2",
      { "deepseek2.attention.kv_lora_rank", EDIT_U32, 1024, NULL, 0 },
      QUIRE_UNSUPP,
      "supported: multiples of 8 up to 1024 together" },
    { "deepseek2",
      { "deepseek2.attention.kv_lora_rank", EDIT_U32, 32, NULL, 0 },
      QUIRE_CORRUPT,
      "attn_kv_a_mqa.weight has shape 16 x 24 x 1 x 1; expected 16 x 40" },
    { "deepseek2",
      { "deepseek2.attention.q_lora_rank", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key deepseek2.attention.q_lora_rank is missing" },
    { "deepseek2",
      { "deepseek2.attention.q_lora_rank", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "q_lora_rank is 0; expected 1.." },
    { "deepseek2",
      { "deepseek2.attention.key_length_mla", EDIT_U32, 8, NULL, 0 },
      QUIRE_CORRUPT,
      "heads of 8 with 8 turned dimensions" },
    { "deepseek2",
      { "deepseek2.attention.key_length_mla", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "attn_output.weight has shape 16 x 16 x 1 x 1; expected 32 x 16" },
    { "deepseek2",
      { "deepseek2.attention.value_length_mla", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key deepseek2.attention.value_length_mla is missing" },
    { "deepseek2",
      { "deepseek2.rope.dimension_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key deepseek2.rope.dimension_count is missing" },
    { "deepseek2",
      { "deepseek2.rope.scaling.yarn_log_multiplier", EDIT_F32, NAN, NULL, 0 },
      QUIRE_CORRUPT,
      "yarn_log_multiplier is nan" },
    { "deepseek2",
      { "deepseek2.attention.temperature_scale", EDIT_F32, 0.1, NULL, 0 },
      QUIRE_CORRUPT,
      "key deepseek2.attention.temperature_length is missing" },
    { "deepseek2",
      { "deepseek2.expert_shared_count", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key deepseek2.expert_shared_count is missing" },
    { "deepseek2", { "deepseek2.expert_weights_norm", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
    { "mistral4",
      { "mistral4.attention.temperature_length", EDIT_U32, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "temperature_length is 0; expected 1.." },
    { "minicpm3",
      { "minicpm3.attention.q_lora_rank", EDIT_REMOVE, 0, NULL, 0 },
      QUIRE_CORRUPT,
      "key minicpm3.attention.q_lora_rank is missing" },
    { "minicpm3",
      { "minicpm3.attention.value_length", EDIT_U32, 16, NULL, 0 },
      QUIRE_CORRUPT,
      "attn_output.weight has shape 16 x 16 x 1 x 1; expected 32 x 16" },
    { "minicpm3", { "minicpm3.attention.value_length", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
};

#define KEYS_CHECK(cases) describe_keys_check(cases, sizeof(cases) / sizeof((cases)[0]), small)

static void damaged_keys_are_named(void **state)
{
    (void)state;
    KEYS_CHECK(key_cases);
    KEYS_CHECK(mamba_cases);
    KEYS_CHECK(sized_cases);
    KEYS_CHECK(latent_cases);
}

static void damaged_tensors_are_named(void **state)
{
    static const describe_tensor_case cases[] = {
        { "gemma3", "blk.1.post_ffw_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.post_ffw_norm.weight is missing" },
        { "gemma2", "output_norm.weight", "output.weight", GGML_TYPE_F32, 16, 268, QUIRE_UNSUPP,
          "output.weight has no place in a gemma2 model" },
        { "olmo2", "blk.0.attn_q_norm.weight", NULL, GGML_TYPE_F32, 8, 1, QUIRE_CORRUPT,
          "has shape 8 x 1 x 1 x 1; expected 16 x 1" },
        { "olmo2", "output.weight", "", 0, 0, 0, QUIRE_CORRUPT, "output.weight is missing" },
        { "phi3", "blk.0.ffn_up.weight", NULL, GGML_TYPE_F32, 16, 16, QUIRE_CORRUPT,
          "has shape 16 x 16 x 1 x 1; expected 16 x 32" },
        { "starcoder2", "blk.2.ffn_norm.bias", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.2.ffn_norm.bias is missing" },
        { "starcoder2", "blk.0.ffn_up.bias", "blk.0.ffn_gate.bias", 0, 0, 0, QUIRE_UNSUPP,
          "blk.0.ffn_gate.bias has no place" },
        { "seed_oss", "blk.0.post_attention_norm.weight", "blk.0.ffn_norm.weight", 0, 0, 0,
          QUIRE_UNSUPP, "blk.0.ffn_norm.weight has no place" },
        { "phi3", "output.weight", "rope_factors_long.weight", GGML_TYPE_F32, 4, 1, QUIRE_CORRUPT,
          "rope_factors_short.weight is missing" },
        { "apertus", "blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", 0, 0, 0, QUIRE_UNSUPP,
          "blk.0.ffn_gate.weight has no place" },
        { "lfm2", "blk.0.shortconv.conv.weight", "blk.1.shortconv.conv.weight", 0, 0, 0,
          QUIRE_CORRUPT, "blk.1.shortconv.conv.weight belongs to a layer with attention" },
        { "lfm2", "blk.1.attn_k.weight", "blk.0.attn_k.weight", 0, 0, 0, QUIRE_CORRUPT,
          "blk.0.attn_k.weight belongs to a layer without attention" },
        { "lfm2", "blk.1.attn_q.weight", "blk.2.attn_q.weight", 0, 0, 0, QUIRE_CORRUPT,
          "blk.2.attn_q.weight belongs to a layer without attention" },
        { "lfm2", "blk.2.shortconv.in_proj.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.2.shortconv.in_proj.weight is missing" },
        { "qwen35", "blk.0.ssm_a", "", 0, 0, 0, QUIRE_CORRUPT, "blk.0.ssm_a is missing" },
        { "qwen35", "blk.0.ssm_norm.weight", NULL, GGML_TYPE_F32, 7, 1, QUIRE_CORRUPT,
          "expected 8 x 1" },
        { "qwen35", "blk.1.attn_q.weight", NULL, GGML_TYPE_F32, 16, 16, QUIRE_CORRUPT,
          "has shape 16 x 16 x 1 x 1; expected 16 x 32" },
        { "granitehybrid", "blk.0.ssm_d", "", 0, 0, 0, QUIRE_CORRUPT, "blk.0.ssm_d is missing" },
        { "granitehybrid", "blk.0.ssm_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.0.ssm_norm.weight is missing" },
        { "granitehybrid", "blk.0.ssm_a", NULL, GGML_TYPE_F32, 4, 1, QUIRE_CORRUPT,
          "ssm_a has shape 4 x 1 x 1 x 1; expected 1 x 4" },
        { "granitehybrid", "blk.2.ssm_in.weight", "blk.1.ssm_in.weight", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.ssm_in.weight belongs to a layer with attention" },
        { "falcon-h1", "blk.1.ssm_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.1.ssm_norm.weight is missing" },
        { "falcon-h1", "blk.1.ffn_norm", "blk.1.ffn_norm.weight", 0, 0, 0, QUIRE_UNSUPP,
          "blk.1.ffn_norm.weight has no place" },
        { "lfm2", "token_embd_norm.weight", "output_norm.weight", 0, 0, 0, QUIRE_UNSUPP,
          "output_norm.weight has no place" },
        { "deepseek2", "blk.0.attn_kv_a_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "blk.0.attn_kv_a_norm.weight is missing" },
        { "deepseek2", "blk.1.attn_v_b.weight", NULL, GGML_TYPE_F32, 16, 16, QUIRE_CORRUPT,
          "attn_v_b.weight has shape 16 x 16 x 2 x 1; expected 16 x 8 x 2" },
        { "deepseek2", "blk.1.attn_k_b.weight", "blk.1.attn_kv_b.weight", 0, 0, 0, QUIRE_CORRUPT,
          "attn_kv_b.weight does not fit the other tensors" },
        { "deepseek2", "blk.0.attn_q_a.weight", "blk.0.attn_q.weight", GGML_TYPE_F32, 16, 48,
          QUIRE_CORRUPT,
          "attn_q_a_norm.weight does not fit the other tensors, or the keys "
          "deepseek2.attention.q_lora_rank and key_length_mla" },
        { "minicpm3", "blk.2.attn_kv_b.weight", "blk.2.attn_k_b.weight", 0, 0, 0, QUIRE_CORRUPT,
          "attn_k_b.weight does not fit the other tensors" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const gguf_gen_opts opts = small(cases[i].model);

        describe_tensor_check(&cases[i], &opts);
    }
}

static void described(const gguf_gen_opts *opts, quire_model_desc *desc)
{
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(gguf_gen_write(opts, gguf_edit_path(), &err), QUIRE_OK);
    if (describe_file(desc, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static void windows_follow_the_pattern(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = small("gemma3");

    (void)state;
    opts.n_layer = 7;
    described(&opts, &desc);
    for (uint32_t l = 0; l < 7; l++) {
        assert_int_equal(desc.window[l], l == 5 ? 0 : 4);
        assert_int_equal(desc.layer_rope[l],
                         l == 5 ? QUIRE_LAYER_ROPE_MAIN : QUIRE_LAYER_ROPE_WINDOW);
    }
    opts.window_pattern = 3;
    described(&opts, &desc);
    for (uint32_t l = 0; l < 7; l++) {
        assert_int_equal(desc.window[l], l % 3 == 2 ? 0 : 4);
    }
    opts.window_pattern = 0;
    opts.has_window_array = true;
    described(&opts, &desc);
    for (uint32_t l = 0; l < 7; l++) {
        assert_int_equal(desc.window[l], l % 2 == 0 ? 4 : 0);
    }
}

static void layers_without_kv_heads_are_recurrent(void **state)
{
    static quire_model_desc desc;
    const gguf_gen_opts opts = small("lfm2");

    (void)state;
    described(&opts, &desc);
    for (uint32_t l = 0; l < 3; l++) {
        assert_int_equal(desc.mixer[l], l == 1 ? QUIRE_MIXER_ATTENTION : QUIRE_MIXER_SHORT_CONV);
        assert_int_equal(desc.window[l], l == 1 ? 4 : 0);
        assert_int_equal(desc.kv_map[l].stored, l == 1 ? 0 : -1);
    }
    assert_int_equal(desc.n_stored, 1);
    assert_int_equal(desc.last_stored, 2);
    assert_int_equal(desc.recurrent.n_layers, 2);
    assert_int_equal(desc.recurrent.conv_taps, 3);
    assert_int_equal(desc.recurrent.conv_width, 16);
}

static void layers_with_mamba(void **state)
{
    static const uint8_t single[] = { QUIRE_MIXER_MAMBA, QUIRE_MIXER_NONE, QUIRE_MIXER_ATTENTION,
                                      QUIRE_MIXER_NONE, QUIRE_MIXER_MAMBA };
    static quire_model_desc desc;
    gguf_gen_opts opts = small("nemotron_h");

    (void)state;
    described(&opts, &desc);
    assert_memory_equal(desc.mixer, single, sizeof single);
    assert_int_equal(desc.n_ff, opts.n_ff);
    assert_int_equal(desc.n_stored, 1);
    assert_int_equal(desc.last_stored, 4);
    assert_int_equal(desc.recurrent.n_layers, 2);
    assert_int_equal(desc.recurrent.conv_width, 4 * 8 + 2 * 2 * 16);
    assert_int_equal(desc.layer_rope[2], QUIRE_LAYER_ROPE_NONE);
    assert_float_equal(desc.rms_eps, 1e-5f, 0.0f);
    opts = small("falcon-h1");
    described(&opts, &desc);
    assert_int_equal(desc.n_stored, 3);
    assert_int_equal(desc.recurrent.n_layers, 3);
    for (uint32_t l = 0; l < 3; l++) {
        assert_int_equal(desc.mixer[l], QUIRE_MIXER_BOTH);
        assert_int_equal(desc.kv_map[l].stored, l);
    }
}

/* V is a part of the one KV head's row. The size of a head gives the scale of the logits. */
static void latent_sizes(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = small("deepseek2");

    (void)state;
    for (uint32_t joint = 0; joint < 2; joint++) {
        opts.has_joint_latent = joint != 0;
        described(&opts, &desc);
        assert_true(desc.latent.is_there);
        assert_int_equal(desc.latent.is_split, joint == 0);
        assert_int_equal(desc.latent.n_q, 16);
        assert_int_equal(desc.latent.d_plain, 16);
        assert_int_equal(desc.latent.d_out, 8);
        assert_int_equal(desc.n_kv_head, 1);
        assert_int_equal(desc.d_k, 24);
        assert_int_equal(desc.d_v, 16);
        assert_true(fabs((double)desc.attn_scale - 1.0 / sqrt(24.0)) < 1e-7);
        assert_int_equal(desc.experts.router.gating, QUIRE_GATING_SOFTMAX);
    }
}

/* The first files of GLM-4.7-Flash do not say how experts are chosen: their size does. */
static void gating_of_glm_flash(void **state)
{
    static quire_model_desc desc;
    const gguf_edit_key none = { "tokenizer.ggml.tokens", EDIT_REMOVE, 0, NULL, 0 };
    gguf_gen_opts opts = small("deepseek2");
    quire_error err = QUIRE_ERROR_INIT;
    gguf_edit edit;

    (void)state;
    opts.n_layer = 47;
    opts.is_tied = true;
    gguf_edit_open(&edit, &opts);
    gguf_edit_apply(&edit, &none);
    gguf_edit_reshape(gguf_edit_tensor(&edit, "token_embd.weight"), GGML_TYPE_F32, 16, 154880);
    gguf_edit_save(&edit, gguf_edit_path());
    gguf_edit_close(&edit);
    if (describe_file(&desc, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(desc.experts.router.gating, QUIRE_GATING_SIGMOID);
}

static void ropes_differ_by_layer(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = small("gemma3");

    (void)state;
    (void)snprintf(opts.rope_scaling, sizeof(opts.rope_scaling), "linear");
    opts.rope_factor = 8.0f;
    opts.rope_base = 1e6f;
    described(&opts, &desc);
    assert_float_equal(desc.rope.freq_base, 1e6f, 0.0f);
    assert_float_equal(desc.rope.freq_scale, 0.125f, 0.0f);
    assert_float_equal(desc.rope_window.freq_base, 1e4f, 0.0f);
    assert_float_equal(desc.rope_window.freq_scale, 1.0f, 0.0f);
    (void)snprintf(opts.arch, sizeof(opts.arch), "gemma2");
    described(&opts, &desc);
    assert_float_equal(desc.rope_window.freq_base, 1e6f, 0.0f);
    assert_float_equal(desc.rope_window.freq_scale, 0.125f, 0.0f);

    opts = small("smollm3");
    opts.n_layer = 4;
    described(&opts, &desc);
    for (uint32_t l = 0; l < 4; l++) {
        assert_int_equal(desc.layer_rope[l],
                         l == 3 ? QUIRE_LAYER_ROPE_NONE : QUIRE_LAYER_ROPE_MAIN);
    }
    opts = small("cohere2");
    opts.n_layer = 4;
    described(&opts, &desc);
    for (uint32_t l = 0; l < 4; l++) {
        assert_int_equal(desc.layer_rope[l],
                         l == 3 ? QUIRE_LAYER_ROPE_NONE : QUIRE_LAYER_ROPE_WINDOW);
    }
}

static void scales_have_their_defaults(void **state)
{
    static quire_model_desc desc;
    gguf_gen_opts opts = small("gemma2");
    gguf_edit edit;
    quire_error err;

    (void)state;
    gguf_edit_open(&edit, &opts);
    (void)gguf_remove_key(edit.gguf, "gemma2.attn_logit_softcapping");
    (void)gguf_remove_key(edit.gguf, "gemma2.final_logit_softcapping");
    gguf_edit_save(&edit, gguf_edit_path());
    assert_int_equal(describe_file(&desc, &err), QUIRE_OK);
    gguf_edit_close(&edit);
    assert_float_equal(desc.attn_softcap, 50.0f, 0.0f);
    assert_float_equal(desc.logit_softcap, 30.0f, 0.0f);
    assert_float_equal(desc.embd_scale, 4.0f, 0.0f);
    assert_float_equal(desc.attn_scale, 1.0f / sqrtf(8.0f), 0.0f);

    opts = small("llama");
    described(&opts, &desc);
    assert_float_equal(desc.embd_scale, 1.0f, 0.0f);
    assert_float_equal(desc.residual_scale, 1.0f, 0.0f);
    assert_float_equal(desc.logit_scale, 1.0f, 0.0f);
    assert_float_equal(desc.logit_softcap, 0.0f, 0.0f);
    assert_float_equal(desc.attn_softcap, 0.0f, 0.0f);
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
        cmocka_unit_test(damaged_tensors_are_named),
        cmocka_unit_test(layers_without_kv_heads_are_recurrent),
        cmocka_unit_test(layers_with_mamba),
        cmocka_unit_test(latent_sizes),
        cmocka_unit_test(gating_of_glm_flash),
        cmocka_unit_test(windows_follow_the_pattern),
        cmocka_unit_test(ropes_differ_by_layer),
        cmocka_unit_test(scales_have_their_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
