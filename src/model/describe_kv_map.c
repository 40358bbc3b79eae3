/* describe_kv_map.c - which stored layers give a layer its K and its V, and how far back it sees,
 * from a file of the architecture quire (docs/schemes.md).
 *
 * A layer stores its own K and V if it is one of its own sources. Layers are computed in order, so
 * a source is the layer itself or an earlier one that stores.
 *
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"

#define SOURCES QUIRE_ATTN_SOURCES_MAX

/* One of the two keys. */
typedef struct source_key {
    const quire_gguf *file;
    char name[QUIRE_GGUF_KEY_NAME_MAX];
    char side; /* 'K' or 'V' */
    int32_t layers[QUIRE_LAYERS_MAX * SOURCES];
} source_key;

void quire_kv_map_plain(quire_model_desc *desc)
{
    desc->n_stored = 0;
    desc->last_stored = desc->n_layer - 1;
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        const uint16_t stored = (uint16_t)desc->n_stored;

        if (!quire_mixer_attends(desc->mixer[l])) {
            desc->kv_map[l] = (quire_kv_map_entry){ .stored = -1 };
            continue;
        }
        desc->kv_map[l] = (quire_kv_map_entry){
            .stored = (int32_t)stored,
            .n_k = 1,
            .n_v = 1,
            .k_src = { stored },
            .v_src = { stored },
        };
        desc->n_stored++;
    }
}

/* Check the sources of layer l alone. */
static int sources_check(const source_key *key, uint32_t l, quire_error *err)
{
    const int32_t *sources = &key->layers[(size_t)l * SOURCES];

    if (sources[0] < 0) {
        return quire_error_set(
            err, QUIRE_CORRUPT,
            "%s: %s of layer %u begins with -1; its first source must be a layer",
            quire_gguf_path(key->file), key->name, l);
    }
    for (uint32_t i = 0; i < SOURCES; i++) {
        if (sources[i] > (int32_t)l) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: %s of layer %u names layer %d, which is computed later; a "
                                   "source is the layer itself or an earlier one",
                                   quire_gguf_path(key->file), key->name, l, (int)sources[i]);
        }
    }
    if (sources[0] == sources[1]) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: %s of layer %u names layer %d twice",
                               quire_gguf_path(key->file), key->name, l, (int)sources[0]);
    }
    return QUIRE_OK;
}

static int key_get(const quire_gguf *file, const quire_model_desc *desc, source_key *key,
                   quire_error *err)
{
    const quire_gguf_range_i32 range = { -1, (int32_t)desc->n_layer - 1 };

    key->file = file;
    (void)quire_gguf_key(key->name, desc->arch_name,
                         key->side == 'K' ? "attention.kv_source_k" : "attention.kv_source_v");
    QUIRE_TRY(quire_gguf_get_i32_array(file, key->name, desc->n_layer * SOURCES, range, key->layers,
                                       err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        QUIRE_TRY(sources_check(key, l, err));
    }
    return QUIRE_OK;
}

static bool reads_itself(const source_key *key, uint32_t l)
{
    const int32_t *sources = &key->layers[(size_t)l * SOURCES];

    return sources[0] == (int32_t)l || sources[1] == (int32_t)l;
}

/* Number the layers that store. */
static int stored_fill(quire_model_desc *desc, const source_key *k, const source_key *v,
                       quire_error *err)
{
    desc->n_stored = 0;
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        const bool is_stored = reads_itself(k, l);

        if (is_stored != reads_itself(v, l)) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: layer %u reads its own %s but not its own %s; a layer "
                                   "stores both or neither",
                                   quire_gguf_path(k->file), l, is_stored ? "K" : "V",
                                   is_stored ? "V" : "K");
        }
        desc->kv_map[l].stored = is_stored ? (int32_t)desc->n_stored++ : -1;
        desc->last_stored = is_stored ? l : desc->last_stored;
    }
    return QUIRE_OK;
}

/* Turn the layers that a key names for layer l into stored layers. */
static int sources_fill(const quire_model_desc *desc, const source_key *key, uint32_t l,
                        uint16_t *stored, uint8_t *n, quire_error *err)
{
    *n = 0;
    for (uint32_t i = 0; i < SOURCES; i++) {
        const int32_t source = key->layers[(size_t)l * SOURCES + i];

        if (source < 0) {
            continue;
        }
        if (desc->kv_map[source].stored < 0) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: %s of layer %u names layer %d, which stores no K and V",
                                   quire_gguf_path(key->file), key->name, l, (int)source);
        }
        stored[(*n)++] = (uint16_t)desc->kv_map[source].stored;
    }
    return QUIRE_OK;
}

static int windows_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_gguf_range_i32 range = { 0, INT32_MAX };
    int32_t windows[QUIRE_LAYERS_MAX];
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "attention.window");
    if (quire_gguf_find(file, key) < 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_gguf_get_i32_array(file, key, desc->n_layer, range, windows, err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        desc->window[l] = (uint32_t)windows[l];
    }
    return QUIRE_OK;
}

int quire_describe_kv_map(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    source_key k = { .side = 'K' };
    source_key v = { .side = 'V' };
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    const char *scheme = "";

    QUIRE_TRY(windows_get(file, desc, err));
    QUIRE_TRY(quire_gguf_get_str(file, quire_gguf_key(key, desc->arch_name, "attention.kv_scheme"),
                                 false, &scheme, err));
    (void)quire_gguf_printable(desc->kv_scheme, sizeof(desc->kv_scheme), scheme, strlen(scheme));
    (void)quire_gguf_key(key, desc->arch_name, "attention.kv_source_k");
    (void)quire_gguf_key(k.name, desc->arch_name, "attention.kv_source_v");
    if (quire_gguf_find(file, key) < 0 && quire_gguf_find(file, k.name) < 0) {
        quire_kv_map_plain(desc);
        return QUIRE_OK;
    }
    QUIRE_TRY(key_get(file, desc, &k, err));
    QUIRE_TRY(key_get(file, desc, &v, err));
    QUIRE_TRY(stored_fill(desc, &k, &v, err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        quire_kv_map_entry *entry = &desc->kv_map[l];

        QUIRE_TRY(sources_fill(desc, &k, l, entry->k_src, &entry->n_k, err));
        QUIRE_TRY(sources_fill(desc, &v, l, entry->v_src, &entry->n_v, err));
    }
    return QUIRE_OK;
}

/* ---- gates ---- */

static int shape_check(const quire_gguf *file, const quire_model_desc *desc,
                       const struct ggml_tensor *t, quire_error *err)
{
    const uint32_t d = desc->d_k; /* as wide as V: head_dims_get() */
    const bool is_vector = t->ne[1] == 1 && (t->ne[0] == d || t->ne[0] == d / 2);
    const bool is_by_head = t->ne[0] == d && t->ne[1] == desc->n_kv_head;

    if ((!is_vector && !is_by_head) || t->ne[2] != 1 || t->ne[3] != 1) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s has shape %" PRId64 " x %" PRId64 " x %" PRId64
                               " x %" PRId64 "; expected %u, %u or %u x %u (damaged file?)",
                               quire_gguf_path(file), t->name, t->ne[0], t->ne[1], t->ne[2],
                               t->ne[3], d / 2, d, d, desc->n_kv_head);
    }
    if (t->type != GGML_TYPE_F32) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: tensor %s is of type %s; supported here: f32",
                               quire_gguf_path(file), t->name, ggml_type_name(t->type));
    }
    return QUIRE_OK;
}

int quire_describe_gate(const quire_gguf *file, quire_model_desc *desc, quire_gate_place place,
                        const struct ggml_tensor *t, quire_error *err)
{
    quire_kv_map_entry *entry = &desc->kv_map[place.layer];
    const uint32_t n = place.is_k ? entry->n_k : entry->n_v;
    const int32_t first = place.is_k ? entry->k_src[0] : entry->v_src[0];
    const char side = place.is_k ? 'K' : 'V';

    QUIRE_TRY(shape_check(file, desc, t, err));
    if (place.source >= n) {
        return quire_error_set(
            err, QUIRE_CORRUPT, "%s: tensor %s has no source: layer %u has %u %c source%s",
            quire_gguf_path(file), t->name, place.layer, n, side, n == 1 ? "" : "s");
    }
    if (n == 1 && first == entry->stored) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s is a gate on layer %u's own %c alone; gates weigh "
                               "what other layers stored",
                               quire_gguf_path(file), t->name, place.layer, side);
    }
    if (place.is_k) {
        entry->k_gates |= (uint8_t)(1u << place.source);
    } else {
        entry->v_gates |= (uint8_t)(1u << place.source);
    }
    return QUIRE_OK;
}

/* All sources of a side have a gate, or none. */
static int gates_check(const quire_gguf *file, uint32_t l, char side, uint32_t n, uint32_t gates,
                       quire_error *err)
{
    const uint32_t all = (1u << n) - 1u;

    if (gates == 0 || gates == all) {
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_CORRUPT,
                           "%s: tensor blk.%u.attn_%c_gate.%d is missing: the layer's other %c "
                           "source has a gate",
                           quire_gguf_path(file), l, side == 'K' ? 'k' : 'v',
                           __builtin_ctz(all & ~gates), side);
}

int quire_describe_gates_check(const quire_gguf *file, const quire_model_desc *desc,
                               quire_error *err)
{
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        const quire_kv_map_entry *entry = &desc->kv_map[l];

        QUIRE_TRY(gates_check(file, l, 'K', entry->n_k, entry->k_gates, err));
        QUIRE_TRY(gates_check(file, l, 'V', entry->n_v, entry->v_gates, err));
    }
    return QUIRE_OK;
}
