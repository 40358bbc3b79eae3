/* describe_rope.c - the rotary embedding's parameters as libllama derives them.
 *
 * The order of the float operations is libllama's too (llama-context.cpp at ggml 0.25.1): the
 * result reaches every logit.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"

#define BETA_FAST 32.0f
#define BETA_SLOW 1.0f

/* Turn the key's text into a kind of scaling; an absent key means linear, whose factor is 1 by
 * default. */
static int scaling_get(const quire_gguf *file, const char *key, quire_rope_scaling *out,
                       quire_error *err)
{
    static const struct {
        const char *name;
        quire_rope_scaling scaling;
    } kinds[] = {
        { "none", QUIRE_ROPE_SCALING_NONE },
        { "linear", QUIRE_ROPE_SCALING_LINEAR },
        { "yarn", QUIRE_ROPE_SCALING_YARN },
    };
    const char *raw = "linear";
    char text[32];

    QUIRE_TRY(quire_gguf_get_str(file, key, false, &raw, err));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(raw, kinds[i].name) == 0) {
            *out = kinds[i].scaling;
            return QUIRE_OK;
        }
    }
    return quire_error_set(
        err, QUIRE_UNSUPP, "%s: %s is '%s'; supported: none, linear, yarn, llama3 (as a tensor)",
        quire_gguf_path(file), key, quire_gguf_printable(text, sizeof(text), raw, strlen(raw)));
}

static int dims_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    desc->rope.n_dims = desc->d_k;
    (void)quire_gguf_key(key, desc->arch_name, "rope.dimension_count");
    QUIRE_TRY(quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false },
                                 &desc->rope.n_dims, err));
    /* libllama refuses (llama) or asserts on (qwen2, qwen3) a partly rotated head, too. */
    if (desc->rope.n_dims != desc->d_k) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected %u, the head size (damaged file?)",
                               quire_gguf_path(file), key, desc->rope.n_dims, desc->d_k);
    }
    return QUIRE_OK;
}

/* YaRN's magnitude: ggml's rope multiplies by 1 + 0.1 ln(factor) itself. libllama sets the
 * magnitude that it wants and divides by this number. Source: arXiv 2309.00071 and llama.cpp PR
 * 17945. */
static float yarn_attn_factor(float factor)
{
    float scale = factor <= 1.0f ? 1.0f : 0.1f * 1.0f * logf(factor) + 1.0f;

    return scale * (1.0f / (1.0f + 0.1f * logf(factor)));
}

int quire_describe_rope(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    /* 0 means absent; below 0.001 the magnitude above would lose its sign. */
    const quire_gguf_range_f32 factor_range = { 0.0f, 1e6f, false };
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    const char *arch = desc->arch_name;
    quire_rope *rope = &desc->rope;
    float attn_factor = 1.0f;
    float factor = 0.0f;

    QUIRE_TRY(dims_get(file, desc, err));
    rope->freq_base = 10000.0f;
    QUIRE_TRY(quire_gguf_get_f32(file, quire_gguf_key(key, arch, "rope.freq_base"),
                                 (quire_gguf_range_f32){ 1.0f, 1e15f, false }, &rope->freq_base,
                                 err));
    QUIRE_TRY(
        scaling_get(file, quire_gguf_key(key, arch, "rope.scaling.type"), &rope->scaling, err));
    rope->ctx_orig = desc->n_ctx_train;
    QUIRE_TRY(quire_gguf_get_u32(file,
                                 quire_gguf_key(key, arch, "rope.scaling.original_context_length"),
                                 (quire_gguf_range){ 0, INT32_MAX, false }, &rope->ctx_orig, err));
    if (rope->ctx_orig == 0) {
        rope->ctx_orig = desc->n_ctx_train;
    }
    QUIRE_TRY(quire_gguf_get_f32(file, quire_gguf_key(key, arch, "rope.scaling.attn_factor"),
                                 (quire_gguf_range_f32){ 1e-3f, 1e3f, false }, &attn_factor, err));
    (void)quire_gguf_key(key, arch, "rope.scaling.factor");
    if (quire_gguf_find(file, key) < 0) {
        (void)quire_gguf_key(key, arch, "rope.scale_linear"); /* the older name */
    }
    QUIRE_TRY(quire_gguf_get_f32(file, key, factor_range, &factor, err));
    if (factor != 0.0f && factor < 1e-3f) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %g; expected 0.001..1e+06 (damaged "
                               "file?)",
                               quire_gguf_path(file), key, (double)factor);
    }

    rope->freq_scale = factor == 0.0f ? 1.0f : 1.0f / factor;
    if (rope->scaling == QUIRE_ROPE_SCALING_LINEAR && rope->freq_scale == 1.0f) {
        rope->scaling = QUIRE_ROPE_SCALING_NONE;
    }
    if (rope->scaling == QUIRE_ROPE_SCALING_NONE) {
        rope->freq_scale = 1.0f;
    }
    rope->attn_factor = 1.0f;
    rope->ext_factor = rope->scaling == QUIRE_ROPE_SCALING_YARN ? 1.0f : 0.0f;
    if (rope->ext_factor != 0.0f) {
        rope->attn_factor = yarn_attn_factor(1.0f / rope->freq_scale);
    }
    rope->attn_factor *= attn_factor;
    rope->beta_fast = BETA_FAST;
    rope->beta_slow = BETA_SLOW;
    return QUIRE_OK;
}
