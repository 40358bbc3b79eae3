/* describe_windows.c - which layers of a model see a window of positions, and how wide it is.
 *
 * libllama numbers the layers that see everything: the last one of each pattern, or the first one.
 * A pattern may also come as an array, one value per layer.
 *
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

/* The width of the windows; 0 where the model has none. Chunks cannot be left out: libllama loads
 * such a file of llama4, and aborts at its first token. */
static int width_get(const quire_gguf *file, const quire_model_desc *desc, uint32_t *tokens,
                     quire_error *err)
{
    const quire_window_rule *rule = &quire_arch_row_get(desc->arch)->window;
    const quire_gguf_range range = { rule->is_optional || rule->is_chunked ? 0 : 1, INT32_MAX,
                                     !rule->is_optional && rule->tokens == 0 };
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    *tokens = 0;
    if (!rule->is_there || (rule->in_layers != 0 && rule->in_layers != desc->n_layer)) {
        return QUIRE_OK;
    }
    *tokens = rule->is_fixed ? 0 : rule->tokens;
    (void)quire_gguf_key(key, desc->arch_name, "attention.sliding_window");
    QUIRE_TRY(quire_gguf_get_u32(file, key, range, tokens, err));
    if (rule->is_chunked && *tokens == 0) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: %s is 0; supported: chunks of %u tokens",
                               quire_gguf_path(file), key, rule->tokens);
    }
    *tokens = rule->is_chunked || (rule->is_fixed && *tokens != 0) ? rule->tokens : *tokens;
    return QUIRE_OK;
}

/* How many values the array of a key has; 0 = the key has no array. */
static size_t array_length(const quire_gguf *file, const char *key)
{
    const int64_t index = quire_gguf_find(file, key);

    return index >= 0 && gguf_get_kv_type(quire_gguf_context(file), index) == GGUF_TYPE_ARRAY
               ? gguf_get_arr_n(quire_gguf_context(file), index)
               : 0;
}

int quire_describe_windows(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const bool is_full_first = quire_arch_row_get(desc->arch)->window.is_full_first;
    uint32_t pattern = quire_arch_row_get(desc->arch)->window.pattern;
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    bool has_window[QUIRE_LAYERS_MAX];
    uint32_t tokens;
    size_t n_values;

    QUIRE_TRY(width_get(file, desc, &tokens, err));
    if (tokens == 0) {
        return QUIRE_OK;
    }
    desc->has_chunks = quire_arch_row_get(desc->arch)->window.is_chunked;
    (void)quire_gguf_key(key, desc->arch_name, "attention.sliding_window_pattern");
    n_values = array_length(file, key);
    if (n_values > 0) {
        /* Some converters leave out the layers that predict further tokens. */
        QUIRE_TRY(quire_gguf_get_bool_array(
            file, key, n_values == desc->n_layer ? desc->n_layer : desc->n_layer_file, has_window,
            err));
    } else {
        QUIRE_TRY(quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, QUIRE_LAYERS_MAX, false },
                                     &pattern, err));
        for (uint32_t l = 0; l < desc->n_layer; l++) {
            has_window[l] =
                pattern == 0 || (is_full_first ? l % pattern != 0 : l % pattern < pattern - 1);
        }
    }
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        desc->window[l] = has_window[l] && desc->mixer[l] == QUIRE_MIXER_ATTENTION ? tokens : 0;
    }
    return QUIRE_OK;
}
