/* describe_scales.c - the numbers by which a model multiplies or bounds its results.
 *
 * The meaning of every key and the default of every absent one are libllama's
 * (src/models/<name>.cpp at ggml 0.25.1). Where libllama takes a value of 0 for "none", the
 * description says 1 for a factor.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

#define ATTN_SOFTCAP 50.0f

/* The state that the functions below share. */
typedef struct scales {
    const quire_gguf *file;
    const quire_arch_row *arch;
    quire_model_desc *desc;
    quire_error *err;
} scales;

/* A factor; an optional one of 0 stands for 1. */
static int factor_get(const scales *s, const char *suffix, bool is_required, float *factor)
{
    const quire_gguf_range_f32 range = { is_required ? 1e-6f : 0.0f, 1e6f, is_required };
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    float value = 0.0f;

    (void)quire_gguf_key(key, s->desc->arch_name, suffix);
    QUIRE_TRY(quire_gguf_get_f32(s->file, key, range, &value, s->err));
    if (value != 0.0f) {
        *factor = value;
    }
    return QUIRE_OK;
}

static int embd_scale_get(const scales *s)
{
    quire_model_desc *desc = s->desc;

    desc->embd_scale = 1.0f;
    switch (s->arch->embd_scale) {
    case QUIRE_EMBD_SCALE_SQRT:
        desc->embd_scale = sqrtf((float)desc->n_embd);
        break;
    case QUIRE_EMBD_SCALE_KEY:
        return factor_get(s, "embedding_scale", false, &desc->embd_scale);
    case QUIRE_EMBD_SCALE_NONE:
        break;
    }
    return QUIRE_OK;
}

/* Of latent attention: by the size of a head of Q, and with DeepSeek-V2's correction for YaRN, in
 * libllama's order of operations (src/models/deepseek2.cpp). */
static float latent_scale(const scales *s)
{
    const quire_model_desc *desc = s->desc;
    const float d_head = (float)(desc->latent.d_plain + desc->rope.n_dims);
    const float log_factor = logf(1.0f / desc->rope.freq_scale);
    float scale;

    if ((s->arch->reads & QUIRE_READS_LOG_MUL) == 0) {
        return 1.0f / sqrtf(d_head);
    }
    scale = desc->rope.attn_factor * (1.0f + 0.1f * log_factor);
    scale *= 1.0f + 0.1f * desc->rope.log_mul * log_factor;
    return 1.0f * scale * scale / sqrtf(d_head);
}

static int attn_scale_get(const scales *s)
{
    quire_model_desc *desc = s->desc;
    const bool is_wide =
        s->arch->wide_scale_layers != 0 && s->arch->wide_scale_layers == desc->n_layer;

    desc->attn_scale = 1.0f / sqrtf((float)(is_wide ? desc->n_embd / desc->n_head : desc->d_k));
    if (s->arch->attn_scale != 0.0f) {
        desc->attn_scale = s->arch->attn_scale;
    }
    if (desc->latent.is_there) {
        desc->attn_scale = latent_scale(s);
    }
    return (s->arch->reads & QUIRE_READS_ATTN_SCALE) != 0
               ? factor_get(s, "attention.scale", false, &desc->attn_scale)
               : QUIRE_OK;
}

static int logit_scale_get(const scales *s)
{
    quire_model_desc *desc = s->desc;
    const bool is_required = s->arch->logit_scale == QUIRE_LOGIT_SCALE_OVER;

    desc->logit_scale = 1.0f;
    if (s->arch->logit_scale == QUIRE_LOGIT_SCALE_NONE) {
        return QUIRE_OK;
    }
    QUIRE_TRY(factor_get(s, "logit_scale", is_required, &desc->logit_scale));
    if (s->arch->logit_scale != QUIRE_LOGIT_SCALE_TIMES) {
        desc->logit_scale = 1.0f / desc->logit_scale;
    }
    return QUIRE_OK;
}

static int softcaps_get(const scales *s)
{
    quire_model_desc *desc = s->desc;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if ((s->arch->reads & QUIRE_READS_ATTN_SOFTCAP) != 0) {
        desc->attn_softcap = ATTN_SOFTCAP;
        (void)quire_gguf_key(key, desc->arch_name, "attn_logit_softcapping");
        QUIRE_TRY(quire_gguf_get_f32(s->file, key, (quire_gguf_range_f32){ 1e-3f, 1e6f, false },
                                     &desc->attn_softcap, s->err));
    }
    desc->logit_softcap = s->arch->logit_softcap;
    if ((s->arch->reads & QUIRE_READS_LOGIT_SOFTCAP) != 0) {
        /* 0 means none where there is no default. */
        const float min = s->arch->logit_softcap == 0.0f ? 0.0f : 1e-3f;

        (void)quire_gguf_key(key, desc->arch_name, "final_logit_softcapping");
        QUIRE_TRY(quire_gguf_get_f32(s->file, key, (quire_gguf_range_f32){ min, 1e6f, false },
                                     &desc->logit_softcap, s->err));
    }
    return QUIRE_OK;
}

static int temperature_get(const scales *s)
{
    quire_model_desc *desc = s->desc;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if (s->arch->unroped_temperature != 0.0f) {
        desc->attn_temperature = s->arch->unroped_temperature;
        desc->attn_temperature_tokens = s->arch->window.tokens;
        desc->attn_temperature_first = 1;
        desc->is_temperature_unroped = true;
    }
    if ((s->arch->reads & QUIRE_READS_TEMPERATURE) == 0) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, desc->arch_name, "attention.temperature_scale");
    desc->attn_temperature_tokens = desc->rope.ctx_orig;
    QUIRE_TRY(quire_gguf_get_f32(s->file, key, (quire_gguf_range_f32){ 0.0f, 1e3f, false },
                                 &desc->attn_temperature, s->err));
    if (desc->attn_temperature == 0.0f || (s->arch->reads & QUIRE_READS_TEMPERATURE_LENGTH) == 0) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, desc->arch_name, "attention.temperature_length");
    return quire_gguf_get_u32(s->file, key, (quire_gguf_range){ 1, INT32_MAX, true },
                              &desc->attn_temperature_tokens, s->err);
}

/* These keys have no architecture before them. */
static int xielu_get(const scales *s)
{
    static const char *const keys[] = { "xielu.alpha_n", "xielu.alpha_p", "xielu.beta",
                                        "xielu.eps" };
    const quire_gguf_range_f32 range = { -1e6f, 1e6f, true };
    float values[QUIRE_LAYERS_MAX];

    if ((s->arch->reads & QUIRE_READS_XIELU) == 0) {
        return QUIRE_OK;
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        QUIRE_TRY(quire_gguf_get_f32_by_layer(
            s->file, &(quire_gguf_f32_by_layer){ keys[i], s->desc->n_layer, range }, values,
            s->err));
        for (uint32_t l = 0; l < s->desc->n_layer; l++) {
            s->desc->xielu[l][i] = values[l];
        }
    }
    return QUIRE_OK;
}

/* Positions of several dimensions, of models that also read pictures. Text has the same position
 * in each dimension, but the order of the pairs differs. */
static int sections_check(const scales *s)
{
    int32_t sections[4] = { 0 };
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, s->desc->arch_name, "rope.dimension_sections");
    if ((s->arch->reads & QUIRE_READS_SECTIONS) == 0 || quire_gguf_find(s->file, key) < 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_gguf_get_i32_array(
        s->file, key, 4, (quire_gguf_range_i32){ 0, QUIRE_HEAD_DIM_MAX }, sections, s->err));
    if (sections[0] > 0 && sections[1] > 0) {
        return quire_error_set(s->err, QUIRE_UNSUPP,
                               "%s: %s names several dimensions of positions; models that read "
                               "pictures are not supported",
                               quire_gguf_path(s->file), key);
    }
    return QUIRE_OK;
}

/* Text has the same position in all of three dimensions. The pairs of a head take turns by
 * dimension, as far as a dimension has pairs; a pair without one would not turn. */
static int mrope_check(const scales *s)
{
    int32_t n[4] = { 0 };
    uint32_t all;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if ((s->arch->reads & QUIRE_READS_MROPE) == 0) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, s->desc->arch_name, "rope.dimension_sections");
    QUIRE_TRY(quire_gguf_get_i32_array(s->file, key, 4,
                                       (quire_gguf_range_i32){ 0, QUIRE_HEAD_DIM_MAX }, n, s->err));
    all = (uint32_t)(n[0] + n[1] + n[2] + n[3]);
    for (uint32_t i = 0; i < s->desc->rope.n_dims / 2; i++) {
        if (all == 0 || (int32_t)(i % all) >= 3 * n[i % all % 3]) {
            return quire_error_set(s->err, QUIRE_UNSUPP,
                                   "%s: %s is %d, %d, %d, %d and leaves pair %u of %u without a "
                                   "position; not supported",
                                   quire_gguf_path(s->file), key, (int)n[0], (int)n[1], (int)n[2],
                                   (int)n[3], i, s->desc->rope.n_dims / 2);
        }
    }
    return QUIRE_OK;
}

static int deepstack_check(const scales *s)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, s->desc->arch_name, "deepstack_mapping");
    if ((s->arch->reads & QUIRE_READS_DEEPSTACK) == 0 || quire_gguf_find(s->file, key) < 0) {
        return QUIRE_OK;
    }
    return quire_error_set(s->err, QUIRE_UNSUPP,
                           "%s: %s is there; models that read pictures are not supported",
                           quire_gguf_path(s->file), key);
}

int quire_describe_scales(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const scales s = { file, quire_arch_row_get(desc->arch), desc, err };

    QUIRE_TRY(embd_scale_get(&s));
    QUIRE_TRY(attn_scale_get(&s));
    QUIRE_TRY(logit_scale_get(&s));
    QUIRE_TRY(softcaps_get(&s));
    QUIRE_TRY(temperature_get(&s));
    desc->has_unit_qk =
        s.arch->mean_qk_experts != 0 && s.arch->mean_qk_experts != desc->experts.router.n_experts;
    QUIRE_TRY(xielu_get(&s));
    QUIRE_TRY(sections_check(&s));
    QUIRE_TRY(mrope_check(&s));
    QUIRE_TRY(deepstack_check(&s));
    desc->residual_scale = 1.0f;
    if (s.arch->has_depth_scales) {
        desc->embd_scale = 12.0f;
        desc->residual_scale = 1.4f / sqrtf((float)desc->n_layer);
        desc->logit_scale = 256.0f / (float)desc->n_embd;
    }
    return (s.arch->reads & QUIRE_READS_RESIDUAL_SCALE) != 0
               ? factor_get(&s, "residual_scale", false, &desc->residual_scale)
               : QUIRE_OK;
}
