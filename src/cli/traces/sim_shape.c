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
#include "model/recurrent.h"
#include "model/runtime.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PARTS_MAX 64u /* of a shape */
#define PART_MAX  64u /* bytes of one */

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

static bool is_shape(const unsigned n[3])
{
    return n[0] > 0 && n[0] <= QUIRE_LAYERS_MAX && n[1] > 0 && n[1] <= 4096 && n[2] > 0 &&
           n[2] <= 4096 && n[2] % QUIRE_HEAD_DIM_MULTIPLE == 0;
}

/* Add "32x8x128", "32x8x128@1024" or "state=50MB". */
static bool part_add(const char *text, quire_kv_pair pair, quire_sim_shape *out)
{
    unsigned n[3];
    unsigned window = 0;
    uint64_t bytes;
    char end;

    if (strncmp(text, "state=", 6) == 0) {
        return out->state_bytes == 0 && quire_parse_size(text + 6, &out->state_bytes) == QUIRE_OK &&
               out->state_bytes > 0 && out->state_bytes <= QUIRE_PAGE_BYTES_MAX;
    }
    if ((sscanf(text, "%5ux%5ux%5u%c", &n[0], &n[1], &n[2], &end) != 3 &&
         (sscanf(text, "%5ux%5ux%5u@%8u%c", &n[0], &n[1], &n[2], &window, &end) != 4 ||
          window == 0)) ||
        !is_shape(n)) {
        return false;
    }
    bytes = shape_bytes(&(shape){ text, n[0], n[1], n[2] }, pair);
    out->token_bytes += window == 0 ? bytes : 0;
    out->window_token_bytes += window != 0 ? bytes : 0;
    out->window_tokens = window > out->window_tokens ? window : out->window_tokens;
    return true;
}

static bool parts_parse(const char *text, quire_kv_pair pair, quire_sim_shape *out)
{
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        const size_t n = strcspn(text, ",");
        char part[PART_MAX];

        if (n >= sizeof(part)) {
            return false;
        }
        memcpy(part, text, n);
        part[n] = '\0';
        if (!part_add(part, pair, out)) {
            return false;
        }
        if (text[n] == '\0') {
            /* As a server has it: a page without layers takes a byte a token. */
            out->token_bytes = out->token_bytes != 0 ? out->token_bytes : 1;
            return true;
        }
        text += n + 1;
    }
    return false;
}

static int file_read(const char *path, quire_kv_pair pair, quire_sim_shape *out, quire_error *err)
{
    const quire_model_opts opts = { .describe_only = true };
    quire_runtime_opts runtime = QUIRE_RUNTIME_OPTS_INIT;
    const quire_model_desc *desc;
    quire_model *model = NULL;
    quire_kv_price price;

    runtime.k_format = pair.k;
    runtime.v_format = pair.v;

    QUIRE_TRY(quire_model_open(&model, path, &opts, err));
    desc = quire_model_desc_get(model);
    quire_runtime_opts_resolve(desc, &runtime);
    price = quire_kv_price_make(desc, &runtime);
    out->token_bytes = price.main_page_bytes / price.page_tokens;
    out->window_token_bytes =
        price.window_tokens != 0 ? price.window_page_bytes / price.page_tokens : 0;
    out->window_tokens = price.window_tokens;
    out->state_bytes = quire_state_seq_bytes(desc) / 2; /* a sequence has two */
    quire_model_close(model);
    return QUIRE_OK;
}

int quire_sim_shape_find(const char *text, quire_kv_pair pair, quire_sim_shape *out,
                         quire_error *err)
{
    char known[256] = "";
    quire_text names = { known, sizeof(known), 0 };

    *out = (quire_sim_shape){ 0 };
    for (size_t i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, text) == 0) {
            out->token_bytes = shape_bytes(&shapes[i], pair);
            return QUIRE_OK;
        }
        quire_text_add(&names, "%s%s", i > 0 ? ", " : "", shapes[i].name);
    }
    if (access(text, F_OK) == 0) {
        return file_read(text, pair, out, err);
    }
    if (parts_parse(text, pair, out)) {
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "--model '%.80s' is no file and no shape: LAYERSxKVHEADSxHEADSIZE, as "
                           "32x8x128, with commas 29x4x256@1024 (layers with a window) and "
                           "state=50MB, or one of %s",
                           text, known);
}

quire_sim_kv quire_sim_shape_kv(const quire_sim_shape *model, uint32_t block_tokens,
                                quire_format state_format, uint32_t state_every_tokens)
{
    const bool is_half = state_format == QUIRE_FORMAT_F16;

    if (model->window_token_bytes == 0 && model->state_bytes == 0) {
        return (quire_sim_kv){ 0 };
    }
    return (quire_sim_kv){ .block_bytes = model->token_bytes * block_tokens,
                           .window_bytes = model->window_token_bytes * block_tokens,
                           .window_tokens = model->window_tokens,
                           .state_bytes =
                               is_half ? (model->state_bytes + 1) / 2 : model->state_bytes,
                           .seq_state_bytes = model->state_bytes,
                           .state_every_tokens = state_every_tokens };
}
