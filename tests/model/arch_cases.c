/* arch_cases.c - see arch_cases.h.
 *
 * SPDX-License-Identifier: MIT */
#include "arch_cases.h"

#include "model/archs.h"

#include <stdio.h>
#include <string.h>

#define WINDOW ARCH_CASE_WINDOW

static const arch_case cases[] = {
    { .arch = "llama", .what = "untied" },
    { .arch = "llama",
      .what = "one KV head per head, heads of 48",
      .n_head = 3,
      .n_kv_head = 3,
      .d_head = 48,
      .is_tied = true },
    { .arch = "llama", .what = "all biases", .has_qkv_bias = true, .has_biases = true },
    { .arch = "llama",
      .what = "QKV in one tensor, with biases",
      .has_qkv_bias = true,
      .is_fused = true },
    { .arch = "llama", .what = "linear scaling", .scaling = "linear" },
    { .arch = "llama", .what = "YaRN", .scaling = "yarn" },
    { .arch = "llama", .what = "llama3 scaling", .scaling = "llama3" },
    { .arch = "llama", .what = "longrope, long context", .scaling = "longrope" },
    { .arch = "qwen2", .what = "biases, tied", .has_qkv_bias = true, .is_tied = true },
    { .arch = "qwen2",
      .what = "YaRN, output bias",
      .scaling = "yarn",
      .has_qkv_bias = true,
      .has_biases = true },
    { .arch = "qwen3", .what = "tied", .is_tied = true },
    { .arch = "qwen3", .what = "heads of 64", .d_head = 64 },
    { .arch = "gemma", .what = "tied" },
    { .arch = "gemma2", .what = "windows, both softcaps", .n_layer = 4, .window = WINDOW },
    { .arch = "gemma2",
      .what = "46 layers: the other scale",
      .n_layer = 46,
      .window = WINDOW,
      .d_head = 16 },
    { .arch = "gemma2",
      .what = "base of windows",
      .n_layer = 4,
      .window = WINDOW,
      .window_rope_base = 500.0f },
    { .arch = "gemma3", .what = "5 of 6 layers with windows", .n_layer = 7, .window = WINDOW },
    { .arch = "gemma3",
      .what = "linear scaling of layers without windows",
      .n_layer = 7,
      .window = WINDOW,
      .scaling = "linear",
      .window_rope_base = 500.0f },
    { .arch = "gemma3",
      .what = "pattern by layer",
      .n_layer = 4,
      .window = WINDOW,
      .has_window_array = true },
    { .arch = "gemma3", .what = "no windows, untied" },
    { .arch = "gemma3",
      .what = "62 layers: the other scale",
      .n_layer = 62,
      .window = WINDOW,
      .d_head = 16 },
    { .arch = "phi3", .what = "QKV and gate-up in one tensor each", .is_fused = true },
    { .arch = "phi3", .what = "QKV apart, tied", .is_tied = true },
    { .arch = "phi3",
      .what = "longrope, short context",
      .is_fused = true,
      .scaling = "longrope",
      .ctx_orig = 512,
      .n_rot = 24 },
    { .arch = "phi3",
      .what = "longrope, long context",
      .is_fused = true,
      .scaling = "longrope",
      .n_rot = 24 },
    { .arch = "mistral3", .what = "plain" },
    { .arch = "mistral3",
      .what = "YaRN with its keys, temperature (Ministral 3)",
      .scaling = "yarn",
      .temperature = 0.1f },
    { .arch = "smollm3", .what = "layers without rope", .n_layer = 5, .is_tied = true },
    { .arch = "granite", .what = "all scales", .is_tied = true },
    { .arch = "granite", .what = "no rope, biases", .has_no_rope = true, .has_biases = true },
    { .arch = "olmo2", .what = "no windows" },
    { .arch = "olmo2",
      .what = "windows, YaRN elsewhere (Olmo 3)",
      .n_layer = 5,
      .window = WINDOW,
      .scaling = "yarn" },
    { .arch = "glm4", .what = "half of a head turned, biases", .n_rot = 16, .has_qkv_bias = true },
    { .arch = "glm4", .what = "a layer that predicts further tokens", .n_rot = 16, .n_nextn = 1 },
    { .arch = "cohere2", .what = "windows", .n_layer = 5, .window = WINDOW },
    { .arch = "exaone4", .what = "no windows", .is_tied = true },
    { .arch = "exaone4",
      .what = "64 layers: windows, no rope elsewhere",
      .n_layer = 64,
      .window = WINDOW,
      .d_head = 32 },
    { .arch = "exaone4",
      .what = "a layer that predicts further tokens, llama3 scaling",
      .scaling = "llama3",
      .n_nextn = 1 },
    { .arch = "starcoder2", .what = "biases everywhere", .has_qkv_bias = true, .is_tied = true },
    { .arch = "seed_oss", .what = "biases", .has_qkv_bias = true },
    { .arch = "hunyuan-dense", .what = "norm behind rope, alpha", .is_tied = true },
    { .arch = "ernie4_5", .what = "tied", .is_tied = true },
    { .arch = "internlm2", .what = "untied" },
    { .arch = "apertus", .what = "xIELU" },
    { .arch = "apertus",
      .what = "llama3 scaling, biases",
      .scaling = "llama3",
      .has_biases = true },
    { .arch = "arcee", .what = "squared ReLU" },
    { .arch = "command-r", .what = "tied" },
    { .arch = "exaone", .what = "llama3 scaling, tied", .scaling = "llama3", .is_tied = true },
    { .arch = "nemotron", .what = "half of a head turned", .n_rot = 16 },
    { .arch = "nemotron", .what = "all biases", .has_qkv_bias = true, .has_biases = true },
    { .arch = "gemma3", .what = "Q8_0", .n_layer = 7, .window = WINDOW, .type = GGML_TYPE_Q8_0 },
    { .arch = "gemma3", .what = "Q4_0", .n_layer = 7, .window = WINDOW, .type = GGML_TYPE_Q4_0 },
    { .arch = "gemma3",
      .what = "Q4_K and Q6_K (as Q4_K_M)",
      .n_layer = 7,
      .window = WINDOW,
      .type = GGML_TYPE_Q4_K,
      .type_more = GGML_TYPE_Q6_K },
    { .arch = "phi3", .what = "Q8_0", .is_fused = true, .type = GGML_TYPE_Q8_0 },
    { .arch = "phi3",
      .what = "Q4_K and Q6_K (as Q4_K_M)",
      .is_fused = true,
      .type = GGML_TYPE_Q4_K,
      .type_more = GGML_TYPE_Q6_K },
    { .arch = "mistral3",
      .what = "Q4_K and Q6_K (as Q4_K_M)",
      .type = GGML_TYPE_Q4_K,
      .type_more = GGML_TYPE_Q6_K },
};

const arch_case *arch_case_get(size_t i)
{
    return i < sizeof cases / sizeof cases[0] ? &cases[i] : NULL;
}

static uint32_t or_default(uint32_t value, uint32_t initial)
{
    return value != 0 ? value : initial;
}

gguf_gen_opts arch_case_options(const arch_case *c)
{
    const bool is_spm = strcmp(c->arch, "llama") == 0 || strncmp(c->arch, "gemma", 5) == 0;
    const bool is_super = ggml_blck_size(c->type) > 128;
    gguf_gen_opts o = {
        .n_layer = or_default(c->n_layer, 3),
        .n_embd = is_super ? 256 : 128, /* whole blocks */
        .n_ff = is_super ? 256 : 192,
        .n_head = or_default(c->n_head, 4),
        .n_kv_head = or_default(c->n_kv_head, 2),
        .d_head = or_default(c->d_head, is_super ? 64 : 32),
        .n_rot = c->n_rot,
        .n_vocab = 320,
        .n_ctx = 512,
        .rope_base = 10000.0f,
        .rope_factor = 4.0f,
        .rope_ctx_orig = or_default(c->ctx_orig, 64),
        .is_tied = c->is_tied,
        .has_qkv_bias = c->has_qkv_bias,
        .has_biases = c->has_biases,
        .is_fused = c->is_fused,
        .has_no_rope = c->has_no_rope,
        .n_nextn = c->n_nextn,
        .sliding_window = c->window,
        .window_pattern = c->pattern,
        .has_window_array = c->has_window_array,
        .window_rope_base = c->window_rope_base,
        .attn_temperature = c->temperature,
        .vocab = is_spm ? GGUF_GEN_VOCAB_SPM : GGUF_GEN_VOCAB_BPE,
        .type = c->type,
        .type_more = c->type_more,
        .seed = 23,
    };

    (void)snprintf(o.arch, sizeof o.arch, "%s", c->arch);
    (void)snprintf(o.name, sizeof o.name, "case");
    (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "%s",
                   c->scaling != NULL ? c->scaling : "");
    return o;
}

arch_case_limit arch_case_limits(const arch_case *c)
{
    const quire_arch_row *row = quire_arch_row_get(quire_arch_find(c->arch));

    /* Quantised products round activations to 8 bits: the last bit of an attention output can move
     * a logit by a step of that. */
    if (c->type != GGML_TYPE_F32) {
        return (arch_case_limit){ 0.15, 0.05, false };
    }
    /* f32 differs by the order of additions alone. ggml looks GELU up in a table whose index is the
     * activation in 16 bits, so the last bit of a sum can move an activation by a step of those. */
    return (arch_case_limit){ 1e-4, 1e-4, row->act == QUIRE_ACT_GELU };
}
