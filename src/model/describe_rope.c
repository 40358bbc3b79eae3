/* describe_rope.c - the rotary embedding's parameters as libllama derives them.
 *
 * The order of the float operations is libllama's too (llama-context.cpp at ggml 0.25.1): the
 * result reaches every logit.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"

#define BETA_FAST 32.0f
#define BETA_SLOW 1.0f
#define BASE      10000.0f

static const quire_gguf_range_f32 base_range = { 1.0f, 1e15f, false };

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
        { "longrope", QUIRE_ROPE_SCALING_LONGROPE },
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
        err, QUIRE_UNSUPP,
        "%s: %s is '%s'; supported: none, linear, yarn, longrope, llama3 (as a tensor)",
        quire_gguf_path(file), key, quire_gguf_printable(text, sizeof(text), raw, strlen(raw)));
}

/* The turned numbers of heads of d. */
static int partial_check(const quire_gguf *file, const char *key, uint32_t n_dims, uint32_t d,
                         quire_error *err)
{
    if (n_dims == 0 || n_dims % 2 != 0 || n_dims > d) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected an even number up to %u, the head size "
                               "(damaged file?)",
                               quire_gguf_path(file), key, n_dims, d);
    }
    return QUIRE_OK;
}

static int dims_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    desc->rope.n_dims = desc->d_k;
    if (quire_arch_row_get(desc->arch)->rope_where == QUIRE_ROPE_NOWHERE) {
        return QUIRE_OK; /* libllama does not look at it either */
    }
    (void)quire_gguf_key(key, desc->arch_name, "rope.dimension_count");
    QUIRE_TRY(quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false },
                                 &desc->rope.n_dims, err));
    if (quire_arch_row_get(desc->arch)->has_partial_rope) {
        return partial_check(file, key, desc->rope.n_dims, desc->d_k, err);
    }
    /* libllama refuses (llama) or asserts on (qwen2, qwen3) a partly rotated head, too. */
    if (desc->rope.n_dims != desc->d_k) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected %u, the head size (damaged file?)",
                               quire_gguf_path(file), key, desc->rope.n_dims, desc->d_k);
    }
    return QUIRE_OK;
}

/* YaRN's magnitude: ggml's rope multiplies by 1 + 0.1 ln(factor) itself. libllama sets the
 * magnitude that it wants and divides by this number. Models with a multiplier of the logarithm
 * (log_mul, 0 = none) want another magnitude. Source: arXiv 2309.00071 and llama.cpp PR 17945. */
static float yarn_magnitude(float factor, float mul)
{
    return factor <= 1.0f ? 1.0f : 0.1f * mul * logf(factor) + 1.0f;
}

static float yarn_attn_factor(const quire_rope *rope, float log_mul)
{
    const float factor = 1.0f / rope->freq_scale;
    float scale = rope->log_mul != 0.0f ? 1.0f : yarn_magnitude(factor, 1.0f);

    if (log_mul != 0.0f) {
        scale /= yarn_magnitude(factor, log_mul);
    }
    return scale * (1.0f / (1.0f + 0.1f * logf(factor)));
}

/* DeepSeek-V2's multiplier, which its files have times 0.1. It is for the scale of the logits
 * (describe_scales.c); rotated numbers keep their magnitude then. */
static int latent_yarn_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    float log_mul = 0.0f;

    (void)quire_gguf_key(key, desc->arch_name, "rope.scaling.yarn_log_multiplier");
    QUIRE_TRY(
        quire_gguf_get_f32(file, key, (quire_gguf_range_f32){ 0.0f, 1e6f, false }, &log_mul, err));
    desc->rope.log_mul = log_mul / 0.1f;
    return QUIRE_OK;
}

/* Mistral 3's further keys of YaRN. */
static int yarn_get(const quire_gguf *file, quire_model_desc *desc, float *log_mul,
                    quire_error *err)
{
    const quire_gguf_range_f32 range = { 0.0f, 1e6f, false };
    const char *arch = desc->arch_name;
    quire_rope *rope = &desc->rope;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    *log_mul = 0.0f;
    rope->beta_fast = BETA_FAST;
    rope->beta_slow = BETA_SLOW;
    if ((quire_arch_row_get(desc->arch)->reads & QUIRE_READS_LOG_MUL) != 0) {
        return latent_yarn_get(file, desc, err);
    }
    if ((quire_arch_row_get(desc->arch)->reads & QUIRE_READS_YARN) == 0) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, arch, "rope.scaling.yarn_beta_fast");
    QUIRE_TRY(quire_gguf_get_f32(file, key, range, &rope->beta_fast, err));
    (void)quire_gguf_key(key, arch, "rope.scaling.yarn_beta_slow");
    QUIRE_TRY(quire_gguf_get_f32(file, key, range, &rope->beta_slow, err));
    (void)quire_gguf_key(key, arch, "rope.scaling.yarn_log_multiplier");
    return quire_gguf_get_f32(file, key, range, log_mul, err);
}

/* The base, with Hunyuan's exponent where the file has one. */
static int base_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    quire_rope *rope = &desc->rope;
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    float alpha = 0.0f;

    rope->freq_base = BASE;
    (void)quire_gguf_key(key, desc->arch_name, "rope.freq_base");
    QUIRE_TRY(quire_gguf_get_f32(file, key, base_range, &rope->freq_base, err));
    if ((quire_arch_row_get(desc->arch)->reads & QUIRE_READS_ROPE_ALPHA) == 0) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, desc->arch_name, "rope.scaling.alpha");
    QUIRE_TRY(
        quire_gguf_get_f32(file, key, (quire_gguf_range_f32){ 0.0f, 1e6f, false }, &alpha, err));
    if (alpha > 0.0f) {
        rope->freq_base *= powf(alpha, (float)desc->d_k / (float)(desc->d_k - 2));
    }
    return QUIRE_OK;
}

/* 1 / the factor of linear scaling, or 1. */
static int freq_scale_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    /* 0 means absent; below 0.001 the magnitude above would lose its sign. */
    const quire_gguf_range_f32 range = { 0.0f, 1e6f, false };
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    float factor = 0.0f;

    (void)quire_gguf_key(key, desc->arch_name, "rope.scaling.factor");
    if (quire_gguf_find(file, key) < 0) {
        (void)quire_gguf_key(key, desc->arch_name, "rope.scale_linear"); /* the older name */
    }
    QUIRE_TRY(quire_gguf_get_f32(file, key, range, &factor, err));
    if (factor != 0.0f && factor < 1e-3f) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %g; expected 0.001..1e+06 (damaged "
                               "file?)",
                               quire_gguf_path(file), key, (double)factor);
    }
    desc->rope.freq_scale = factor == 0.0f ? 1.0f : 1.0f / factor;
    return QUIRE_OK;
}

static int main_rope_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    const char *arch = desc->arch_name;
    quire_rope *rope = &desc->rope;
    float attn_factor = 1.0f, log_mul;

    QUIRE_TRY(base_get(file, desc, err));
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
    QUIRE_TRY(freq_scale_get(file, desc, err));
    QUIRE_TRY(yarn_get(file, desc, &log_mul, err));

    if (rope->scaling == QUIRE_ROPE_SCALING_LINEAR && rope->freq_scale == 1.0f) {
        rope->scaling = QUIRE_ROPE_SCALING_NONE;
    }
    if (rope->scaling == QUIRE_ROPE_SCALING_NONE) {
        rope->freq_scale = 1.0f;
    }
    rope->attn_factor = 1.0f;
    rope->ext_factor = rope->scaling == QUIRE_ROPE_SCALING_YARN ? 1.0f : 0.0f;
    if (rope->ext_factor != 0.0f) {
        rope->attn_factor = yarn_attn_factor(rope, log_mul);
    }
    rope->attn_factor *= attn_factor;
    return QUIRE_OK;
}

/* The rope of layers with a window. */
static int window_rope_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_window_rope kind = quire_arch_row_get(desc->arch)->window.rope;
    quire_rope *rope = &desc->rope_window;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    *rope = desc->rope;
    switch (kind) {
    case QUIRE_WINDOW_ROPE_OWN:
        rope->freq_base = BASE;
        rope->freq_scale = 1.0f;
        break;
    case QUIRE_WINDOW_ROPE_UNSCALED:
        rope->freq_scale = 1.0f;
        rope->ext_factor = 0.0f;
        rope->attn_factor = 1.0f;
        return QUIRE_OK;
    case QUIRE_WINDOW_ROPE_SAME:
        return QUIRE_OK;
    case QUIRE_WINDOW_ROPE_LIKE:
        break;
    }
    (void)quire_gguf_key(key, desc->arch_name, "rope.freq_base_swa");
    return quire_gguf_get_f32(file, key, base_range, &rope->freq_base, err);
}

/* Rotated dimensions of layers with a window whose heads have a size of their own. */
static int window_dims_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    uint32_t d = desc->d_k;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    for (uint32_t l = 0; l < desc->n_layer; l++) {
        d = desc->window[l] != 0 ? desc->layer_sizes[l].d_k : d;
    }
    (void)quire_gguf_key(key, desc->arch_name, "rope.dimension_count_swa");
    QUIRE_TRY(quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false },
                                 &desc->rope_window.n_dims, err));
    return partial_check(file, key, desc->rope_window.n_dims, d, err);
}

/* Head sizes and rotated dimensions of layers with a window, where the file names them. */
static int window_dims_check(const quire_gguf *file, const quire_model_desc *desc, quire_error *err)
{
    const struct {
        const char *name;
        uint32_t expected;
    } keys[] = { { "attention.key_length_swa", desc->d_k },
                 { "attention.value_length_swa", desc->d_v },
                 { "rope.dimension_count_swa", desc->rope.n_dims } };
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint32_t value = keys[i].expected;

        (void)quire_gguf_key(key, desc->arch_name, keys[i].name);
        QUIRE_TRY(
            quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false }, &value, err));
        if (value != keys[i].expected) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s: %s is %u; supported: %u, as in layers without a window",
                                   quire_gguf_path(file), key, value, keys[i].expected);
        }
    }
    return QUIRE_OK;
}

/* The layers that a file names; all without the key. */
static int pattern_get(const quire_gguf *file, const quire_model_desc *desc, bool *has_rope,
                       quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    for (uint32_t l = 0; l < desc->n_layer_file; l++) {
        has_rope[l] = true;
    }
    (void)quire_gguf_key(key, desc->arch_name, "attention.rope_pattern");
    return (quire_arch_row_get(desc->arch)->reads & QUIRE_READS_ROPE_PATTERN) != 0 &&
                   quire_gguf_find(file, key) >= 0
               ? quire_gguf_get_bool_array(file, key, desc->n_layer_file, has_rope, err)
               : QUIRE_OK;
}

static int layers_fill(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_rope_where where = quire_arch_row_get(desc->arch)->rope_where;
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    bool is_in_pattern[QUIRE_LAYERS_MAX];
    bool is_finetuned = true;
    bool has_windows = false;

    QUIRE_TRY(pattern_get(file, desc, is_in_pattern, err));
    if (where == QUIRE_ROPE_FINETUNED) {
        (void)quire_gguf_key(key, desc->arch_name, "rope.scaling.finetuned");
        QUIRE_TRY(quire_gguf_get_bool(file, key, &is_finetuned, err));
    }
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        has_windows = has_windows || desc->window[l] != 0;
    }
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        const bool is_windowed = desc->window[l] != 0;
        bool has_rope = true;

        switch (where) {
        case QUIRE_ROPE_EVERYWHERE:
            has_rope = is_in_pattern[l];
            break;
        case QUIRE_ROPE_NOT_EVERY_4TH:
            has_rope = (l + 1) % 4 != 0;
            break;
        case QUIRE_ROPE_NOT_1ST_OF_4:
            has_rope = l % 4 != 0 || !has_windows;
            break;
        case QUIRE_ROPE_WINDOWED:
            has_rope = is_windowed;
            break;
        case QUIRE_ROPE_WINDOWED_OR_LEAD:
            has_rope = is_windowed || l < desc->experts.n_dense;
            break;
        case QUIRE_ROPE_WINDOWED_IF_ANY:
            has_rope = is_windowed || !has_windows;
            break;
        case QUIRE_ROPE_FINETUNED:
            has_rope = is_finetuned;
            break;
        case QUIRE_ROPE_NOWHERE:
            has_rope = false;
            break;
        }
        desc->layer_rope[l] = !has_rope     ? QUIRE_LAYER_ROPE_NONE
                              : is_windowed ? QUIRE_LAYER_ROPE_WINDOW
                                            : QUIRE_LAYER_ROPE_MAIN;
    }
    return QUIRE_OK;
}

int quire_describe_rope(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    desc->rope.type = quire_arch_row_get(desc->arch)->rope_type;
    QUIRE_TRY(dims_get(file, desc, err));
    QUIRE_TRY(main_rope_get(file, desc, err));
    QUIRE_TRY(window_rope_get(file, desc, err));
    if (quire_arch_row_get(desc->arch)->has_layer_sizes) {
        QUIRE_TRY(window_dims_get(file, desc, err));
    } else if (quire_arch_row_get(desc->arch)->window.is_there) {
        QUIRE_TRY(window_dims_check(file, desc, err));
    }
    return layers_fill(file, desc, err);
}
