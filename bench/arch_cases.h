/* arch_cases.h - small models of every architecture, for comparisons with libllama.
 *
 * A case sets what differs from a model of three layers, four query heads of 32 and two KV heads.
 * All blocks of the architecture are active, and windows are shorter than the texts of the test.
 * Where libllama fixes the width of windows, a case with a long text has them.
 * The first case of an architecture is its plain form; the others are its variants.
 * docs/architectures.md lists the names of the cases.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_ARCH_CASES_H
#define QUIRE_BENCH_ARCH_CASES_H

#include "gguf_gen.h"

typedef struct arch_case {
    const char *arch;
    const char *what; /* the variant, for people */
    const char *scaling;
    uint32_t n_layer, n_head, n_kv_head, d_head, n_rot; /* 0 = as above; n_rot: all of d_head */
    uint32_t ctx_orig;                                  /* of scalings; 0 = 64 */
    uint32_t window, pattern;
    uint32_t n_text; /* of one long text, in place of the texts of the test; 0 = those */
    uint32_t n_latent,
        n_latent_q; /* latent attention, of heads of 24 and 8 turned: results of 16 */
    bool has_joint_latent;
    float yarn_log_mul;
    float window_rope_base;
    float temperature;
    uint32_t n_nextn;
    /* n_ff_shared: 0 = none; experts: 0 = none; n_ff of an expert is 64, where it has a key. */
    uint32_t n_experts, n_experts_used, n_experts_dense, n_expert_groups, n_ff_shared;
    uint32_t expert_gating, expert_step, n_embd_expert;
    bool has_choice_bias, has_expert_type, has_fused_experts, has_qk_norm;
    enum ggml_type expert_type;
    uint32_t attention_every, conv_taps; /* of recurrent layers; 0 = there are none */
    uint32_t n_delta_k_heads, n_delta_v_heads, d_delta_head, d_mamba_state;
    bool has_no_mamba_norm;
    /* Layers of different sizes; see gguf_gen_opts. */
    uint32_t window_d_head, full_n_kv_head, n_shared_kv, n_embd_layer;
    bool has_spare_kv, has_wide_ff, has_no_full_v;
    bool has_window_array, is_tied, has_qkv_bias, has_biases, is_fused, has_no_rope;
    bool is_wide; /* widths of whole blocks of 256 inputs; so they are for types with such blocks */
    enum ggml_type type, type_more;
} arch_case;

#define ARCH_CASE_CTX    256u /* context of the comparison, but of long texts */
#define ARCH_CASE_WINDOW 24u

/* Case i, NULL past the end. Memory: static. */
const arch_case *arch_case_get(size_t i);
/* Its two tables, one behind the other. */
const arch_case *arch_case_plain_get(size_t i);
const arch_case *arch_case_mixed_get(size_t i);

/* The options of the generator. */
gguf_gen_opts arch_case_options(const arch_case *c);

/* A family is the plain form of an architecture, or its first form with experts, with wide matrices
 * for quantised types. */
typedef struct arch_family {
    char name[32]; /* the architecture's, with "+experts" behind it where both forms are */
    bool has_experts;
    gguf_gen_opts options; /* of type Q8_0 */
} arch_family;

/* Family i of the table, false past the end. */
bool arch_family_get(size_t i, arch_family *out);
/* The family of a name, false when there is none. */
bool arch_family_find(const char *name, arch_family *out);

/* The largest error of a logit, relative to the largest logit of its row: of any row, and of half
 * of the rows. Where has_band is true the errors that libllama has against itself, when a text goes
 * token by token and not in one chunk, may be larger than the limit and take its place. */
typedef struct arch_case_limit {
    double worst;
    double median;
    bool has_band;
} arch_case_limit;
arch_case_limit arch_case_limits(const arch_case *c);

#endif /* QUIRE_BENCH_ARCH_CASES_H */
