/* arch_cases.c - see arch_cases.h.
 *
 * SPDX-License-Identifier: MIT */
#include "arch_cases.h"

#include "model/archs.h"

#include <stdio.h>
#include <string.h>

#define WIDE      256u   /* inputs of a block of K-quants and of most IQ types */
#define HALF_STEP 4.9e-4 /* of 16-bit floats, relative: 2^-11 */

static uint32_t or_default(uint32_t value, uint32_t initial)
{
    return value != 0 ? value : initial;
}

const arch_case *arch_case_get(size_t i)
{
    size_t n_plain = 0;

    while (arch_case_plain_get(n_plain) != NULL) {
        n_plain++;
    }
    return i < n_plain ? arch_case_plain_get(i) : arch_case_mixed_get(i - n_plain);
}

/* Rows of matrices are whole blocks of 256 inputs, but for those of a head of latent attention. */
static void widen(const arch_case *c, gguf_gen_opts *o)
{
    const bool has_two_sizes = c->window_d_head != 0;

    o->n_embd = o->n_ff = WIDE;
    o->n_ff_expert = c->n_experts != 0 ? WIDE : 0;
    o->n_ff_shared = c->n_ff_shared != 0 ? WIDE : 0;
    o->n_embd_expert = c->n_embd_expert != 0 ? WIDE : 0;
    o->n_embd_layer = c->n_embd_layer != 0 ? WIDE : 0;
    o->n_head = 4;
    o->n_kv_head = c->n_kv_head == 0 || c->n_kv_head > 4 ? 2 : c->n_kv_head;
    o->d_head = has_two_sizes ? WIDE / 2 : WIDE / 4;
    o->window_d_head = has_two_sizes ? WIDE / 4 : 0;
    if (c->n_latent != 0) {
        o->n_latent = WIDE;
        o->n_latent_q = c->n_latent_q != 0 ? WIDE : 0;
        o->n_rot = WIDE / 8;
        o->d_value = WIDE / 4;
    }
    if (c->n_delta_v_heads != 0) {
        o->n_delta_v_heads = 8;
        o->d_delta_head = WIDE / 4; /* together 2 * n_embd, as libllama wants of granitehybrid */
    }
}

gguf_gen_opts arch_case_options(const arch_case *c)
{
    const bool is_spm = strcmp(c->arch, "llama") == 0 || strncmp(c->arch, "gemma", 5) == 0;
    gguf_gen_opts o = {
        .n_layer = or_default(c->n_layer, 3),
        .n_embd = 128, /* whole blocks */
        .n_ff = 192,
        .n_head = or_default(c->n_head, 4),
        .n_kv_head = or_default(c->n_kv_head, 2),
        .d_head = or_default(c->d_head, 32),
        .n_rot = c->n_latent != 0 ? 8 : c->n_rot,
        .n_latent = c->n_latent,
        .n_latent_q = c->n_latent_q,
        .d_value = c->n_latent != 0 ? 16 : 0,
        .has_joint_latent = c->has_joint_latent,
        .yarn_log_mul = c->yarn_log_mul,
        .n_vocab = 320,
        .n_ctx = c->n_text > 512 ? c->n_text : 512,
        .rope_base = 10000.0f,
        .rope_factor = 4.0f,
        .rope_ctx_orig = or_default(c->ctx_orig, 64),
        .is_tied = c->is_tied,
        .has_qkv_bias = c->has_qkv_bias,
        .has_biases = c->has_biases,
        .is_fused = c->is_fused,
        .has_no_rope = c->has_no_rope,
        .n_nextn = c->n_nextn,
        .n_experts = c->n_experts,
        .n_experts_used = c->n_experts_used,
        .n_experts_dense = c->n_experts_dense,
        .n_expert_groups = c->n_expert_groups,
        .n_ff_expert = c->n_experts != 0 ? 64 : 0,
        .n_ff_shared = c->n_ff_shared,
        .expert_gating = c->expert_gating,
        .expert_step = c->expert_step,
        .n_embd_expert = c->n_embd_expert,
        .has_choice_bias = c->has_choice_bias,
        .has_fused_experts = c->has_fused_experts,
        .has_qk_norm = c->has_qk_norm,
        .has_expert_type = c->has_expert_type,
        .expert_type = c->expert_type,
        .sliding_window = c->window,
        .window_pattern = c->pattern,
        .has_window_array = c->has_window_array,
        .window_rope_base = c->window_rope_base,
        .window_d_head = c->window_d_head,
        .full_n_kv_head = c->full_n_kv_head,
        .n_shared_kv = c->n_shared_kv,
        .n_embd_layer = c->n_embd_layer,
        .has_spare_kv = c->has_spare_kv,
        .has_wide_ff = c->has_wide_ff,
        .has_no_full_v = c->has_no_full_v,
        .attn_temperature = c->temperature,
        .attention_every = c->attention_every,
        .conv_taps = c->conv_taps,
        .n_delta_k_heads = c->n_delta_k_heads,
        .n_delta_v_heads = c->n_delta_v_heads,
        .d_delta_head = c->d_delta_head,
        .d_mamba_state = c->d_mamba_state,
        .has_no_mamba_norm = c->has_no_mamba_norm,
        .vocab = is_spm ? GGUF_GEN_VOCAB_SPM : GGUF_GEN_VOCAB_BPE,
        .type = c->type,
        .type_more = c->type_more,
        .seed = 23,
    };

    (void)snprintf(o.arch, sizeof o.arch, "%s", c->arch);
    (void)snprintf(o.name, sizeof o.name, "case");
    (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "%s",
                   c->scaling != NULL ? c->scaling : "");
    if (c->is_wide || ggml_blck_size(c->type) > 128) {
        widen(c, &o);
    }
    return o;
}

/* ---- families ---- */

/* Case i if no case before it has the same architecture and as many experts as it, or none. */
static bool is_first(size_t i)
{
    const arch_case *c = arch_case_get(i), *before;

    for (size_t k = 0; k < i; k++) {
        before = arch_case_get(k);
        if (strcmp(before->arch, c->arch) == 0 && (before->n_experts != 0) == (c->n_experts != 0)) {
            return false;
        }
    }
    return true;
}

static bool has_plain_form(const char *arch)
{
    const arch_case *c;

    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        if (strcmp(c->arch, arch) == 0 && c->n_experts == 0) {
            return true;
        }
    }
    return false;
}

static void family_fill(const arch_case *c, arch_family *out)
{
    arch_case wide = *c;
    const bool has_experts = c->n_experts != 0;

    wide.is_wide = true;
    wide.type = wide.type_more = GGML_TYPE_F32;
    wide.has_expert_type = false;
    /* With a tied output the likeliest token is the input token, for any layers. Rounding may
     * change a choice of experts, and such a change hides other errors. So the output is not tied,
     * and all experts are used. */
    wide.is_tied = false;
    wide.n_experts_used = c->n_experts;
    wide.n_expert_groups = 0;
    out->options = arch_case_options(&wide);
    out->options.type = GGML_TYPE_Q8_0;
    out->has_experts = has_experts;
    (void)snprintf(out->name, sizeof out->name, "%s%s", c->arch,
                   has_experts && has_plain_form(c->arch) ? "+experts" : "");
}

bool arch_family_get(size_t i, arch_family *out)
{
    size_t n = 0;

    for (size_t k = 0; arch_case_get(k) != NULL; k++) {
        if (is_first(k) && n++ == i) {
            family_fill(arch_case_get(k), out);
            return true;
        }
    }
    return false;
}

bool arch_family_find(const char *name, arch_family *out)
{
    for (size_t i = 0; arch_family_get(i, out); i++) {
        if (strcmp(out->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- limits ---- */

arch_case_limit arch_case_limits(const arch_case *c)
{
    const quire_arch_row *row = quire_arch_row_get(quire_arch_find(c->arch));

    /* Quantised products round activations to 8 bits: the last bit of an attention output can move
     * a logit by a step of that. */
    if (c->type != GGML_TYPE_F32) {
        return (arch_case_limit){ 0.15, 0.05, false };
    }
    /* f32 differs by the order of additions alone. ggml looks GELU up in a table by the activation
     * in 16 bits, so the last bit of a sum can move an activation by a step of 16 bits. */
    return row->act == QUIRE_ACT_GELU ? (arch_case_limit){ HALF_STEP, 1e-4, true }
                                      : (arch_case_limit){ 1e-4, 1e-4, false };
}
