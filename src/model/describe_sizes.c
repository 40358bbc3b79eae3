/* describe_sizes.c - layers of different sizes, and last layers that read the K and V of earlier
 * ones (Gemma 4).
 *
 * Layers with a window may have heads of another size than the others; the numbers of KV heads and
 * the widths of the networks come by layer. The meaning of every key and the default of every
 * absent one are libllama's (llama-model.cpp and src/models/<name>.cpp at ggml 0.25.1).
 *
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The largest of a number per layer. */
static uint32_t most_of(const uint32_t *numbers, uint32_t n)
{
    uint32_t most = 0;

    for (uint32_t l = 0; l < n; l++) {
        most = larger(most, numbers[l]);
    }
    return most;
}

int quire_describe_ff_by_layer(const quire_gguf *file, quire_model_desc *desc,
                               quire_gguf_range range, quire_error *err)
{
    uint32_t numbers[QUIRE_LAYERS_MAX] = { 0 };
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "feed_forward_length");
    QUIRE_TRY(quire_gguf_get_u32_by_layer(file, key, desc->n_layer_file, range, numbers, err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        desc->layer_sizes[l].n_ff = numbers[l];
    }
    desc->n_ff = most_of(numbers, desc->n_layer);
    return QUIRE_OK;
}

int quire_describe_kv_heads_by_layer(const quire_gguf *file, quire_model_desc *desc,
                                     quire_error *err)
{
    uint32_t numbers[QUIRE_LAYERS_MAX];
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "attention.head_count_kv");
    for (uint32_t l = 0; l < desc->n_layer_file; l++) {
        numbers[l] = desc->n_head;
    }
    QUIRE_TRY(quire_gguf_get_u32_by_layer(
        file, key, desc->n_layer_file, (quire_gguf_range){ 1, desc->n_head, false }, numbers, err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        desc->layer_sizes[l].n_kv_head = numbers[l];
        if (desc->n_head % numbers[l] != 0) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: %s of layer %u is %u; expected a divisor of the %u query "
                                   "heads (damaged file?)",
                                   quire_gguf_path(file), key, l, numbers[l], desc->n_head);
        }
    }
    desc->n_kv_head = most_of(numbers, desc->n_layer);
    return QUIRE_OK;
}

/* Heads of layers with a window. */
static int window_head_get(const quire_gguf *file, const quire_model_desc *desc, uint32_t *d,
                           quire_error *err)
{
    const quire_gguf_range range = { 1, UINT32_MAX, false };
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    uint32_t d_v = desc->d_v;

    *d = desc->d_k;
    (void)quire_gguf_key(key, desc->arch_name, "attention.value_length_swa");
    QUIRE_TRY(quire_gguf_get_u32(file, key, range, &d_v, err));
    (void)quire_gguf_key(key, desc->arch_name, "attention.key_length_swa");
    QUIRE_TRY(quire_gguf_get_u32(file, key, range, d, err));
    if (*d % QUIRE_HEAD_DIM_MULTIPLE != 0 || *d > QUIRE_HEAD_DIM_MAX || *d != d_v) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is %u and value_length_swa %u; supported: equal ones, "
                               "multiples of %u up to %u",
                               quire_gguf_path(file), key, *d, d_v, QUIRE_HEAD_DIM_MULTIPLE,
                               QUIRE_HEAD_DIM_MAX);
    }
    return QUIRE_OK;
}

int quire_describe_layer_heads(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    uint32_t d_window;

    QUIRE_TRY(window_head_get(file, desc, &d_window, err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        const uint32_t d = desc->window[l] != 0 ? d_window : desc->d_k;

        desc->layer_sizes[l].d_k = desc->layer_sizes[l].d_v = d;
    }
    return QUIRE_OK;
}

void quire_layer_sizes_join(quire_model_desc *desc)
{
    const bool has = quire_arch_row_get(desc->arch)->has_layer_sizes;
    const quire_layer_sizes *sizes = desc->layer_sizes;

    for (uint32_t l = 0; l < desc->n_layer; l++) {
        if (desc->kv_map[l].stored >= 0) {
            desc->stored_by[desc->kv_map[l].stored] = (uint16_t)l;
        }
        if (has && memcmp(&sizes[l], &sizes[0], sizeof(sizes[l])) != 0) {
            desc->has_layer_sizes = true;
        }
    }
    if (has) {
        desc->d_k = desc->d_v = sizes[0].d_k;
    }
    for (uint32_t l = 1; has && l < desc->n_layer; l++) {
        desc->d_k = desc->d_v = larger(desc->d_k, sizes[l].d_k);
    }
}

/* ---- layers that read the K and V of earlier ones ---- */

/* Layer l reads the K and V of layer `from`. Both layers must have the same window and shape. */
static int source_check(const quire_gguf *file, const quire_model_desc *desc, uint32_t l,
                        uint32_t from, quire_error *err)
{
    const quire_layer_sizes *a = &desc->layer_sizes[l], *b = &desc->layer_sizes[from];

    if (desc->window[l] != desc->window[from] || a->n_kv_head != b->n_kv_head || a->d_k != b->d_k) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: layer %u reads the K and V of layer %u, which has another "
                               "window or other heads (%s.attention.shared_kv_layers)",
                               quire_gguf_path(file), l, from, desc->arch_name);
    }
    return QUIRE_OK;
}

int quire_describe_shared_kv(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    const uint32_t n_fixed = quire_arch_row_get(desc->arch)->own_kv_layers;
    uint32_t n_shared = 0, n_own;

    (void)quire_gguf_key(key, desc->arch_name, "attention.shared_kv_layers");
    QUIRE_TRY(quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, desc->n_layer - 1, false },
                                 &n_shared, err));
    if (n_fixed != 0) {
        n_shared = desc->n_layer > n_fixed ? desc->n_layer - n_fixed : 0;
    }
    quire_kv_map_plain(desc);
    n_own = desc->n_layer - n_shared;
    if (n_shared > 0 && n_own < 2) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u of %u layers; the first two must have their own K and "
                               "V (damaged file?)",
                               quire_gguf_path(file), key, n_shared, desc->n_layer);
    }
    for (uint32_t l = n_own; l < desc->n_layer; l++) {
        const uint16_t from = (uint16_t)(n_own - (desc->window[l] != 0 ? 2 : 1));

        QUIRE_TRY(source_check(file, desc, l, from, err));
        desc->kv_map[l] = (quire_kv_map_entry){
            .stored = -1, .n_k = 1, .n_v = 1, .k_src = { from }, .v_src = { from }
        };
    }
    desc->n_stored = n_own;
    desc->last_stored = n_own - 1;
    return QUIRE_OK;
}
