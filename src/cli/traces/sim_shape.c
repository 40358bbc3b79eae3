/* sim_shape.c - shapes by name, by numbers, by file.
 *
 * Shapes: the config.json of each model, published by its makers (num_hidden_layers,
 * num_key_value_heads, hidden_size / num_attention_heads or head_dim).
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/sim_shape.h"

#include "base/check.h"
#include "base/parse.h"
#include "base/text_buffer.h"
#include "model/model.h"
#include "model/runtime.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct shape {
    const char *name;
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t d_head;
} shape;

static const shape shapes[] = {
    { "llama-7b", 32, 32, 128 },   { "llama-13b", 40, 40, 128 },  { "llama-70b", 80, 8, 128 },
    { "llama-3-8b", 32, 8, 128 },  { "llama-3.2-1b", 16, 8, 64 }, { "llama-3.2-3b", 28, 8, 128 },
    { "mistral-7b", 32, 8, 128 },  { "qwen2.5-0.5b", 24, 2, 64 }, { "qwen2.5-7b", 28, 4, 128 },
    { "qwen2.5-32b", 64, 8, 128 }, { "qwen3-8b", 36, 8, 128 },    { "tinyllama-1.1b", 22, 4, 64 },
    { "smollm2-135m", 30, 3, 64 },
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static uint64_t shape_bytes(const shape *s, quire_kv_pair pair)
{
    quire_model_desc desc = { .n_layer = s->n_layers,
                              .n_stored = s->n_layers,
                              .n_kv_head = s->n_kv_heads,
                              .d_k = s->d_head,
                              .d_v = s->d_head };

    return quire_kv_uniform_bytes_per_token(&desc, pair);
}

/* "32x8x128" */
static bool numbers_parse(const char *text, shape *out)
{
    unsigned n[3];
    char end;

    if (sscanf(text, "%5ux%5ux%5u%c", &n[0], &n[1], &n[2], &end) != 3) {
        return false;
    }
    *out = (shape){ text, n[0], n[1], n[2] };
    return n[0] > 0 && n[0] <= QUIRE_LAYERS_MAX && n[1] > 0 && n[1] <= 4096 && n[2] > 0 &&
           n[2] <= 4096 && n[2] % QUIRE_HEAD_DIM_MULTIPLE == 0;
}

static int file_bytes(const char *path, quire_kv_pair pair, uint64_t *token_bytes, quire_error *err)
{
    const quire_model_opts opts = { .describe_only = true };
    quire_runtime_opts runtime = QUIRE_RUNTIME_OPTS_INIT;
    quire_model *model = NULL;
    quire_kv_price price;

    runtime.k_format = pair.k;
    runtime.v_format = pair.v;

    QUIRE_TRY(quire_model_open(&model, path, &opts, err));
    quire_runtime_opts_resolve(quire_model_desc_get(model), &runtime);
    price = quire_kv_price_make(quire_model_desc_get(model), &runtime);
    *token_bytes = price.main_page_bytes / price.page_tokens; /* layers with windows left out */
    quire_model_close(model);
    return QUIRE_OK;
}

int quire_sim_shape_bytes(const char *text, quire_kv_pair pair, uint64_t *token_bytes,
                          quire_error *err)
{
    char known[256] = "";
    quire_text names = { known, sizeof(known), 0 };
    shape numbers;

    for (size_t i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, text) == 0) {
            *token_bytes = shape_bytes(&shapes[i], pair);
            return QUIRE_OK;
        }
        quire_text_add(&names, "%s%s", i > 0 ? ", " : "", shapes[i].name);
    }
    if (access(text, F_OK) == 0) {
        return file_bytes(text, pair, token_bytes, err);
    }
    if (numbers_parse(text, &numbers)) {
        *token_bytes = shape_bytes(&numbers, pair);
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "--model '%.80s' is no file and no shape: LAYERSxKVHEADSxHEADSIZE, as "
                           "32x8x128, or one of %s",
                           text, known);
}
