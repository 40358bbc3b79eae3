/* gguf_gen_scheme.c - see gguf_gen_scheme.h.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen_scheme.h"

#include <stdio.h>
#include <string.h>

#include <gguf.h>

typedef enum scheme_heads {
    HEADS_OF_SHAPE,
    HEADS_ALL,
    HEADS_ONE
} scheme_heads;

/* The KV that layers without stored KV read. */
typedef enum scheme_reads {
    READS_OWN, /* no such layers */
    READS_BELOW,
    READS_MIDDLE,
    READS_MIDDLE_MIXED, /* of layers that store the sum of layer 0 and their own */
    READS_FUSED,
    READS_SPLIT
} scheme_reads;

static const struct {
    const char *name;
    scheme_heads heads;
    scheme_reads reads;
    bool has_gates;
} schemes[] = {
    { "mha", HEADS_ALL, READS_OWN, false },
    { "gqa", HEADS_OF_SHAPE, READS_OWN, false },
    { "mqa", HEADS_ONE, READS_OWN, false },
    { "cla2", HEADS_OF_SHAPE, READS_BELOW, false },
    { "yoco", HEADS_OF_SHAPE, READS_MIDDLE, false },
    { "fusedkv", HEADS_OF_SHAPE, READS_FUSED, true },
    { "fusedkv-lite", HEADS_OF_SHAPE, READS_SPLIT, false },
    { "fusedkv-lite-learnable", HEADS_OF_SHAPE, READS_SPLIT, true },
    { "yoco++", HEADS_OF_SHAPE, READS_MIDDLE_MIXED, false },
};
#define N_SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

const char *gguf_gen_scheme_name(unsigned i)
{
    return i < N_SCHEMES ? schemes[i].name : NULL;
}

static void sources_set(gguf_gen_opts *opts, uint32_t layer, int32_t k0, int32_t k1)
{
    opts->k_sources[layer][0] = opts->v_sources[layer][0] = k0;
    opts->k_sources[layer][1] = opts->v_sources[layer][1] = k1;
}

static void map_fill(gguf_gen_opts *opts, scheme_reads reads)
{
    const uint32_t n_lower = (opts->n_layer + 1) / 2;
    const int32_t middle = (int32_t)n_lower - 1;

    for (uint32_t l = 0; l < opts->n_layer; l++) {
        const bool is_upper = reads != READS_OWN && reads != READS_BELOW && l >= n_lower;

        sources_set(opts, l, (int32_t)l, -1);
        if (reads == READS_BELOW && l % 2 == 1) {
            sources_set(opts, l, (int32_t)l - 1, -1);
        } else if (is_upper) {
            sources_set(opts, l, middle, -1);
        }
        if (is_upper && reads == READS_SPLIT) {
            opts->v_sources[l][0] = 0;
        } else if (is_upper && reads == READS_FUSED && middle > 0) {
            sources_set(opts, l, 0, middle);
        }
    }
}

int gguf_gen_scheme_apply(gguf_gen_opts *opts, const char *name, quire_error *err)
{
    size_t i = 0;

    while (i < N_SCHEMES && strcmp(schemes[i].name, name) != 0) {
        i++;
    }
    if (i == N_SCHEMES) {
        return quire_error_set(err, QUIRE_NOTFOUND, "unknown scheme '%s'", name);
    }
    if (opts->n_layer > GGUF_GEN_LAYERS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "a scheme takes shapes of at most %u layers",
                               GGUF_GEN_LAYERS_MAX);
    }
    if (opts->window != 0 && schemes[i].reads != READS_MIDDLE &&
        schemes[i].reads != READS_MIDDLE_MIXED) {
        return quire_error_set(err, QUIRE_INVAL, "a window belongs to the schemes yoco and yoco++");
    }
    (void)snprintf(opts->arch, sizeof(opts->arch), "quire");
    (void)snprintf(opts->scheme, sizeof(opts->scheme), "%s", name);
    if (schemes[i].heads != HEADS_OF_SHAPE) {
        opts->n_kv_head = schemes[i].heads == HEADS_ALL ? opts->n_head : 1;
    }
    opts->has_map = true;
    opts->has_mixes = schemes[i].reads == READS_MIDDLE_MIXED;
    opts->gates = schemes[i].has_gates ? GGUF_GEN_GATES_HALF : GGUF_GEN_GATES_NONE;
    map_fill(opts, schemes[i].reads);
    for (uint32_t l = 0; l + 1 < (opts->n_layer + 1) / 2; l++) {
        opts->windows[l] = (int32_t)opts->window;
    }
    return QUIRE_OK;
}

bool gguf_gen_is_stored(const gguf_gen_opts *opts, uint32_t layer)
{
    return !opts->has_map || opts->k_sources[layer][0] == (int32_t)layer ||
           opts->k_sources[layer][1] == (int32_t)layer;
}

uint32_t gguf_gen_n_gates(const gguf_gen_opts *opts, uint32_t layer, bool is_k)
{
    const int32_t *sources = is_k ? opts->k_sources[layer] : opts->v_sources[layer];

    if (!opts->has_map || opts->gates == GGUF_GEN_GATES_NONE ||
        (sources[0] == (int32_t)layer && sources[1] < 0)) {
        return 0;
    }
    return sources[1] < 0 ? 1 : 2;
}

static bool has_windows(const gguf_gen_opts *opts)
{
    for (uint32_t l = 0; opts->has_map && l < opts->n_layer; l++) {
        if (opts->windows[l] != 0) {
            return true;
        }
    }
    return false;
}

void gguf_gen_scheme_keys(struct gguf_context *gguf, const gguf_gen_opts *opts)
{
    if (opts->has_map) {
        gguf_set_val_str(gguf, "quire.attention.kv_scheme", opts->scheme);
        gguf_set_arr_data(gguf, "quire.attention.kv_source_k", GGUF_TYPE_INT32, opts->k_sources,
                          (size_t)opts->n_layer * 2);
        gguf_set_arr_data(gguf, "quire.attention.kv_source_v", GGUF_TYPE_INT32, opts->v_sources,
                          (size_t)opts->n_layer * 2);
    }
    if (has_windows(opts)) {
        gguf_set_arr_data(gguf, "quire.attention.window", GGUF_TYPE_INT32, opts->windows,
                          opts->n_layer);
    }
}
