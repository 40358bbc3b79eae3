/* train_from.c - see train_from.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_from.h"

#include "base/check.h"
#include "base/hash128.h"
#include "model/pretrained.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the shape of a file ---- */

/* The layer that stores a stored layer. */
static int32_t layer_of(const quire_model_desc *d, uint32_t stored)
{
    for (uint32_t i = 0; i < d->n_layer; i++) {
        if (d->kv_map[i].stored == (int32_t)stored) {
            return (int32_t)i;
        }
    }
    return -1;
}

static bool has_mix(const quire_pretrained *file, uint32_t layer, char side)
{
    char name[QUIRE_TRAIN_NAME_MAX];

    (void)snprintf(name, sizeof(name), "blk.%u.attn_%c_mix", layer, side);
    return quire_pretrained_size(file, name) > 0;
}

static void read_map(quire_train_shape *s, const quire_pretrained *file, const quire_model_desc *d)
{
    for (uint32_t i = 0; i < d->n_layer; i++) {
        const quire_kv_map_entry *e = &d->kv_map[i];

        for (uint32_t j = 0; j < 2; j++) {
            s->source_k[i][j] = j < e->n_k ? layer_of(d, e->k_src[j]) : -1;
            s->source_v[i][j] = j < e->n_v ? layer_of(d, e->v_src[j]) : -1;
        }
        s->is_gated_k[i] = e->k_gates != 0;
        s->is_gated_v[i] = e->v_gates != 0;
        s->is_mixed_k[i] = has_mix(file, i, 'k');
        s->is_mixed_v[i] = has_mix(file, i, 'v');
        s->window[i] = d->window[i];
    }
}

/* The form of the first gate there is; the layout's sizes are compared with the others' later. */
static quire_gate_form gate_form_of(const quire_pretrained *file, const quire_model_desc *d)
{
    for (uint32_t i = 0; i < d->n_layer; i++) {
        for (uint32_t side = 0; side < 2; side++) {
            char name[QUIRE_TRAIN_NAME_MAX];
            uint64_t n;

            (void)snprintf(name, sizeof(name), "blk.%u.attn_%c_gate.0", i, side == 0 ? 'k' : 'v');
            n = quire_pretrained_size(file, name);
            if (n > 0) {
                return n == d->d_k / 2 ? QUIRE_GATE_HALF
                       : n == d->d_k   ? QUIRE_GATE_FULL
                                       : QUIRE_GATE_HEADS;
            }
        }
    }
    return QUIRE_GATE_HALF;
}

/* Factors of RoPE's pairs, where the file has them. */
static int read_factors(quire_train_shape *s, const quire_pretrained *file, quire_error *err)
{
    const char *name = QUIRE_TRAIN_ROPE_FACTORS;
    uint64_t n = quire_pretrained_size(file, name);

    s->has_rope_factors = n > 0;
    if (n == 0 || n > QUIRE_TRAIN_PAIRS_MAX) { /* too many: the check of the shape says so */
        return QUIRE_OK;
    }
    return quire_pretrained_read(file, name, s->d_head / 2, s->rope_factors, err);
}

static int read_shape(quire_train_from *f, const quire_pretrained *file, quire_error *err)
{
    const quire_model_desc *d = quire_pretrained_desc(file);
    const char *plain = d->n_kv_head == d->n_head ? "mha" : d->n_kv_head == 1 ? "mqa" : "gqa";

    if (d->n_layer > QUIRE_TRAIN_LAYERS_MAX) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s has %u layers; training has at most %u",
                               f->path, d->n_layer, QUIRE_TRAIN_LAYERS_MAX);
    }
    f->shape = (quire_train_shape){ .n_vocab = d->n_vocab,
                                    .n_layer = d->n_layer,
                                    .d_model = d->n_embd,
                                    .n_head = d->n_head,
                                    .n_kv_head = d->n_kv_head,
                                    .d_head = d->d_k,
                                    .d_ff = d->n_ff,
                                    .rope_base = (double)d->rope.freq_base,
                                    .norm_epsilon = (double)d->rms_eps,
                                    .has_qk_norm = d->has_qk_norm,
                                    .has_qkv_bias = d->has_qkv_bias,
                                    .is_tied = d->has_tied_output,
                                    .gate_form = gate_form_of(file, d) };
    f->n_ctx = d->n_ctx_train;
    QUIRE_TRY(read_factors(&f->shape, file, err));
    read_map(&f->shape, file, d);
    (void)snprintf(f->shape.scheme, sizeof(f->shape.scheme), "%s",
                   d->kv_scheme[0] != '\0' ? d->kv_scheme : plain);
    return quire_train_shape_check(&f->shape, err);
}

/* ---- weights ---- */

static const quire_train_tensor *find(const quire_train_layout *layout, const char *name)
{
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        if (strcmp(layout->tensors[i].name, name) == 0) {
            return &layout->tensors[i];
        }
    }
    return NULL;
}

/* Biases of other parts and the like would be lost without a word. */
static int names_check(const quire_train_from *f, const quire_pretrained *file, quire_error *err)
{
    const char *name;

    for (uint32_t i = 0; (name = quire_pretrained_name(file, i)) != NULL; i++) {
        if (find(&f->layout, name) == NULL && strcmp(name, QUIRE_TRAIN_ROPE_FACTORS) != 0) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s has the tensor %s, which the trainer's models do not have",
                                   f->path, name);
        }
    }
    return QUIRE_OK;
}

static int read_weights(quire_train_from *f, const quire_pretrained *file, quire_error *err)
{
    unsigned char hash[QUIRE_HASH128_BYTES];

    if (quire_train_layout_init(&f->layout, &f->shape) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    QUIRE_TRY(names_check(f, file, err));
    f->parameters = malloc(f->layout.n_parameters * sizeof(*f->parameters));
    if (f->parameters == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: %zu MiB in f32: out of memory", f->path,
                               f->layout.n_parameters * sizeof(*f->parameters) >> 20);
    }
    for (uint32_t i = 0; i < f->layout.n_tensors; i++) {
        const quire_train_tensor *t = &f->layout.tensors[i];

        QUIRE_TRY(quire_pretrained_read(file, t->name, (uint64_t)t->n_rows * t->n_cols,
                                        f->parameters + t->at, err));
    }
    quire_hash128(f->parameters, f->layout.n_parameters * sizeof(*f->parameters), hash);
    f->identity = quire_le_get(hash, 8);
    return QUIRE_OK;
}

int quire_train_from_open(quire_train_from *f, const char *path, quire_error *err)
{
    quire_pretrained *file = NULL;
    int rc;

    memset(f, 0, sizeof(*f));
    f->path = strdup(path);
    if (f->path == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    QUIRE_TRY(quire_pretrained_open(&file, path, err));
    rc = read_shape(f, file, err);
    if (rc == QUIRE_OK) {
        rc = read_weights(f, file, err);
    }
    quire_pretrained_close(file);
    return rc;
}

void quire_train_from_close(quire_train_from *f)
{
    quire_train_layout_fini(&f->layout);
    free(f->parameters);
    free(f->path);
    memset(f, 0, sizeof(*f));
}

/* ---- the cut ---- */

static bool is_same_map(const quire_train_shape *a, const quire_train_shape *b)
{
    size_t n = a->n_layer;

    return memcmp(a->source_k, b->source_k, n * sizeof(a->source_k[0])) == 0 &&
           memcmp(a->source_v, b->source_v, n * sizeof(a->source_v[0])) == 0 &&
           memcmp(a->is_gated_k, b->is_gated_k, n * sizeof(a->is_gated_k[0])) == 0 &&
           memcmp(a->is_gated_v, b->is_gated_v, n * sizeof(a->is_gated_v[0])) == 0 &&
           memcmp(a->is_mixed_k, b->is_mixed_k, n * sizeof(a->is_mixed_k[0])) == 0 &&
           memcmp(a->is_mixed_v, b->is_mixed_v, n * sizeof(a->is_mixed_v[0])) == 0 &&
           memcmp(a->window, b->window, n * sizeof(a->window[0])) == 0;
}

int quire_train_from_start(const quire_train_from *f, const quire_train_shape *shape, uint64_t seed,
                           float **start, quire_error *err)
{
    quire_train_layout layout;

    if (!quire_train_is_plain(&f->shape) && !is_same_map(&f->shape, shape)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s has the scheme %s already: only models whose layers all store K "
                               "and V can be cut to %s",
                               f->path, f->shape.scheme, shape->scheme);
    }
    if (quire_train_layout_init(&layout, shape) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    *start = malloc(layout.n_parameters * sizeof(**start));
    if (*start == NULL) {
        quire_train_layout_fini(&layout);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    quire_train_weights_init(&layout, shape, seed, *start);
    for (uint32_t i = 0; i < layout.n_tensors; i++) {
        const quire_train_tensor *to = &layout.tensors[i], *from = find(&f->layout, to->name);
        size_t n = (size_t)to->n_rows * to->n_cols;

        if (from != NULL && (size_t)from->n_rows * from->n_cols == n) {
            memcpy(*start + to->at, f->parameters + from->at, n * sizeof(**start));
        }
    }
    quire_train_layout_fini(&layout);
    return QUIRE_OK;
}
