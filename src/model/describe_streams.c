/* describe_streams.c - the keys of a model whose residual has streams (Gemma 3n).
 *
 * libllama does not read these keys: it computes with the numbers of the models that there are
 * (src/models/gemma3n.cpp and llama-hparams.h at ggml 0.25.1). Quire computes with the same, and
 * refuses a file that names others.
 *
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

#define SPARSE_SCALE 1.6448534f /* of gates that stay; 0 or less: all gates of a layer stay */

static int number_check(const quire_gguf *file, const quire_model_desc *desc, const char *suffix,
                        uint32_t expected, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    uint32_t value = expected;

    (void)quire_gguf_key(key, desc->arch_name, suffix);
    QUIRE_TRY(
        quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false }, &value, err));
    return value == expected ? QUIRE_OK
                             : quire_error_set(err, QUIRE_UNSUPP, "%s: %s is %u; supported: %u",
                                               quire_gguf_path(file), key, value, expected);
}

/* The layers whose gates are sparse, from a number of each layer. */
static int sparsity_check(const quire_gguf *file, const quire_model_desc *desc, quire_error *err)
{
    const uint32_t n_sparse = quire_arch_row_get(desc->arch)->sparse_layers;
    float scales[QUIRE_LAYERS_MAX];
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "activation_sparsity_scale");
    if (quire_gguf_find(file, key) < 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_gguf_get_f32_by_layer(
        file, &(quire_gguf_f32_by_layer){ key, desc->n_layer, { -INFINITY, 1e6f, true } }, scales,
        err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        const bool is_right =
            l < n_sparse ? fabsf(scales[l] - SPARSE_SCALE) < 1e-4f : scales[l] <= 0.0f;

        if (!is_right) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s: %s of layer %u is %g; supported: %g in the first %u "
                                   "layers, none in the others",
                                   quire_gguf_path(file), key, l, (double)scales[l],
                                   (double)SPARSE_SCALE, n_sparse);
        }
    }
    return QUIRE_OK;
}

static int softcap_check(const quire_gguf *file, const quire_model_desc *desc, quire_error *err)
{
    const float expected = quire_arch_row_get(desc->arch)->logit_softcap;
    float value = expected;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "final_logit_softcapping");
    QUIRE_TRY(
        quire_gguf_get_f32(file, key, (quire_gguf_range_f32){ 0.0f, 1e6f, false }, &value, err));
    return value == expected
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_UNSUPP, "%s: %s is %g; supported: %g",
                                 quire_gguf_path(file), key, (double)value, (double)expected);
}

int quire_describe_streams(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const uint32_t n_own = quire_arch_row_get(desc->arch)->own_kv_layers;
    const uint32_t n_shared = desc->n_layer > n_own ? desc->n_layer - n_own : 0;

    desc->n_embd_layer = QUIRE_STREAMS_EMBD;
    QUIRE_TRY(number_check(file, desc, "altup.num_inputs", QUIRE_STREAMS, err));
    QUIRE_TRY(number_check(file, desc, "altup.active_idx", 0, err));
    QUIRE_TRY(
        number_check(file, desc, "embedding_length_per_layer_input", QUIRE_STREAMS_EMBD, err));
    QUIRE_TRY(number_check(file, desc, "attention.shared_kv_layers", n_shared, err));
    QUIRE_TRY(softcap_check(file, desc, err));
    return sparsity_check(file, desc, err);
}
