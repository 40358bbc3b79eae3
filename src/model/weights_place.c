/* weights_place.c - the wanted tensors of a model, and the kind of buffer that holds each of
 * them; see weights_store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights_store.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/panels.h"
#include "model/tensor_table.h"
#include "model/weights_device.h"
#include "model/weights_latent.h"

#include <stdio.h>
#include <stdlib.h>

/* The most slots of a layer, and of the model's own tensors. */
#define SLOTS_MAX      (QUIRE_TENSOR_ROWS_MAX + LAYER_CUTS_MAX)
#define LAYER_CUTS_MAX (3u * QUIRE_TENSOR_CUTS_MAX)

/* ---- slots ---- */

/* ggml's products with AMX (v0.5.0) of many rows are wrong where a row of weights is one block. */
#define EXTRA_IN_MIN 64

static uint32_t kind_choose(const quire_weight_load *load, const struct ggml_tensor *meta,
                            uint64_t offset, const quire_tensor_row *row)
{
    const struct quire_weights_store *store = load->weights->store;
    /* A factor of products is worth repacking; ggml repacks single matrices alone. */
    const bool is_factor = row->rows != QUIRE_DIM_ONE && !row->is_looked_up;
    const bool is_of_experts = row->depth == QUIRE_DIM_EXPERTS;
    const bool is_single = !is_of_experts && row->depth != QUIRE_DIM_HEADS;

    if (is_factor && store->kernels != NULL &&
        (is_of_experts
             ? quire_panels_take_experts(quire_gguf_meta(load->file), meta, store->kernels)
             : quire_panels_take(meta, store->kernels))) {
        return QUIRE_KIND_PANELS;
    }
    if (is_factor && is_single && !load->opts->no_repack) {
        for (uint32_t i = QUIRE_KIND_EXTRA; i < store->n_kinds; i++) {
            if (meta->ne[0] >= EXTRA_IN_MIN &&
                quire_backend_multiplies(quire_backend_cpu(), store->kinds[i].buft, meta, false)) {
                return i;
            }
        }
    }
    return offset % ggml_backend_buft_get_alignment(store->kinds[QUIRE_KIND_PLAIN].buft) == 0
               ? QUIRE_KIND_MAPPED
               : QUIRE_KIND_PLAIN;
}

/* il: the layer, as for quire_weights_device_takes(). */
static int slot_add(quire_weight_load *load, const quire_tensor_row *row, uint32_t il,
                    const quire_weight_slot *want)
{
    struct quire_weights_store *store = load->weights->store;
    quire_weight_slot *slot;

    QUIRE_CHECK(row->rows != QUIRE_DIM_ONE || want->meta->type == GGML_TYPE_F32);
    QUIRE_CHECK(store->n_slots < store->n_slots_max);
    slot = &store->slots[store->n_slots++];
    *slot = *want;
    if (quire_weights_device_takes(load->weights, row, il)) {
        const uint32_t device = quire_weights_device_of(load->weights, row, il);

        slot->kind = QUIRE_KIND_DEVICE + device;
        return quire_weights_device_check(load->weights->devices[device], row, want->meta,
                                          load->err);
    }
    slot->kind = kind_choose(load, want->meta, want->place.offset, row);
    store->panels_bytes +=
        slot->kind == QUIRE_KIND_PANELS && load->has == NULL ? ggml_nbytes(slot->meta) : 0;
    return QUIRE_OK;
}

/* The context of the pieces' shapes, made for the first one. */
static int cuts_create(quire_weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    const struct ggml_init_params params = {
        .mem_size = (size_t)load->desc->n_layer * LAYER_CUTS_MAX * ggml_tensor_overhead(),
        .no_alloc = true,
    };

    if (store->cuts == NULL) {
        store->cuts = ggml_init(params);
    }
    return store->cuts != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

/* A slot for each piece of a tensor: rows of a matrix, or elements of a vector. */
static int want_cuts(quire_weight_load *load, const quire_tensor_row *row,
                     const struct ggml_tensor *meta, uint32_t il, unsigned char *base)
{
    quire_gguf_place place = quire_gguf_tensor_place(load->file, meta->name);
    const bool is_vector = row->rows == QUIRE_DIM_ONE;

    QUIRE_TRY(cuts_create(load));
    for (uint32_t i = 0; i < QUIRE_TENSOR_CUTS_MAX && row->cuts[i].rows != QUIRE_DIM_ONE; i++) {
        const int64_t n = quire_dim_size(load->desc, row->cuts[i].rows, il);
        struct ggml_context *ctx = load->weights->store->cuts;
        struct ggml_tensor *piece = is_vector ? ggml_new_tensor_1d(ctx, meta->type, n)
                                              : ggml_new_tensor_2d(ctx, meta->type, meta->ne[0], n);

        (void)ggml_format_name(piece, "%s/%u", meta->name, i);
        QUIRE_TRY(slot_add(load, row, il,
                           &(quire_weight_slot){ .into = (void *)(base + row->cuts[i].into),
                                                 .meta = piece,
                                                 .place = place }));
        place.offset += ggml_nbytes(piece);
    }
    return QUIRE_OK;
}

/* A tensor of the table, if the file has it. The description was checked against the file's
 * tensors, so each of them has the right shape. il: its layer, 0 of a tensor of the model; base: of
 * the struct that the row's offsets are for. */
static int want(quire_weight_load *load, const quire_tensor_row *row, const char *name, uint32_t il,
                unsigned char *base)
{
    struct ggml_tensor *meta = ggml_get_tensor(quire_gguf_meta(load->file), name);

    if (meta == NULL || (load->desc->parts & row->part) == 0) {
        return QUIRE_OK;
    }
    if (row->cuts[0].rows != QUIRE_DIM_ONE) {
        return want_cuts(load, row, meta, il, base);
    }
    return slot_add(load, row, il,
                    &(quire_weight_slot){ .into = (void *)(base + row->into),
                                          .meta = meta,
                                          .place = quire_gguf_tensor_place(load->file, name) });
}

/* The tensors of the model: the output matrix may be the embedding once more. */
static int want_globals(quire_weight_load *load)
{
    unsigned char *base = (unsigned char *)load->weights;
    const quire_tensor_row *r;

    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        if (r->where != QUIRE_TENSOR_OF_MODEL) {
            continue;
        }
        if (r->part == QUIRE_PART_OUTPUT && load->desc->has_tied_output) {
            const quire_weight_slot tied = {
                .into = &load->weights->output,
                .meta = ggml_get_tensor(quire_gguf_meta(load->file), "token_embd.weight"),
                .place = quire_gguf_tensor_place(load->file, "token_embd.weight"),
            };

            QUIRE_TRY(slot_add(load, r, 0, &tied));
            continue;
        }
        QUIRE_TRY(want(load, r, r->name, 0, base));
    }
    return QUIRE_OK;
}

static int want_layer(quire_weight_load *load, uint32_t il)
{
    unsigned char *base = (unsigned char *)&load->weights->layers[il];
    const quire_tensor_row *r;
    char name[GGML_MAX_NAME];

    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        /* A file may have K and V of a layer that stores neither (Gemma 4). */
        if (r->where != QUIRE_TENSOR_OF_MODEL && quire_tensor_is_in_layer(load->desc, r, il)) {
            (void)snprintf(name, sizeof name, "blk.%u.%s", il, r->name);
            QUIRE_TRY(want(load, r, name, il, base));
        }
    }
    return QUIRE_OK;
}

static int kinds_init(struct quire_weights_store *store, const quire_weights *weights)
{
    ggml_backend_buffer_type_t *extra = quire_backend_extra_bufts();

    store->kinds[QUIRE_KIND_PLAIN].buft = ggml_backend_dev_buffer_type(quire_backend_cpu());
    for (uint32_t i = 0; i < weights->n_devices; i++) {
        store->kinds[QUIRE_KIND_DEVICE + i].buft =
            ggml_backend_dev_buffer_type(weights->devices[i]);
    }
    store->n_kinds = QUIRE_KIND_EXTRA;
    for (; extra != NULL && *extra != NULL && store->n_kinds < QUIRE_KINDS_MAX; extra++) {
        store->kinds[store->n_kinds++].buft = *extra;
    }
    return store->kinds[QUIRE_KIND_PLAIN].buft != NULL ? QUIRE_OK : QUIRE_UNSUPP;
}

int quire_weights_place(quire_weight_load *load)
{
    const quire_model_desc *desc = load->desc;
    quire_weights *weights = load->weights;
    struct quire_weights_store *store = calloc(1, sizeof *store);

    weights->store = store;
    weights->n_layer = desc->n_layer;
    weights->layers = calloc(desc->n_layer, sizeof *weights->layers);
    QUIRE_FAIL_IF(weights->layers == NULL || store == NULL, QUIRE_NOMEM);
    quire_weights_device_choose(weights, load->opts, load->set, load->split);
    store->kernels = load->opts->no_repack ? NULL : quire_matmul_kernels_find(NULL);
    store->n_slots_max = (desc->n_layer + 1) * SLOTS_MAX;
    store->slots = calloc(store->n_slots_max, sizeof *store->slots);
    QUIRE_FAIL_IF(store->slots == NULL, QUIRE_NOMEM);
    QUIRE_TRY(kinds_init(store, weights));
    QUIRE_TRY(want_globals(load));
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        QUIRE_TRY(want_layer(load, il));
    }
    return QUIRE_OK;
}

/* ---- tensors ---- */

/* Take the tensors of the host from the set that has them: its slots are in the same order. */
static void tensors_share(quire_weight_load *load)
{
    const struct quire_weights_store *from = load->has->store;
    quire_weights *weights = load->weights;

    QUIRE_CHECK(from->n_slots == weights->store->n_slots);
    for (uint32_t i = 0; i < from->n_slots; i++) {
        if (!quire_kind_is_device(weights->store->slots[i].kind)) {
            QUIRE_CHECK(!quire_kind_is_device(from->slots[i].kind));
            *weights->store->slots[i].into = *from->slots[i].into;
        }
    }
    for (uint32_t il = 0; il < weights->n_layer; il++) {
        if (il < weights->device_from) {
            weights->layers[il].qkv = load->has->layers[il].qkv;
            weights->layers[il].gate_up = load->has->layers[il].gate_up;
        }
    }
    quire_weights_latent_share(weights, load->has);
}

int quire_weights_tensors_create(quire_weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    struct ggml_init_params params = { .mem_size = store->n_slots * ggml_tensor_overhead(),
                                       .no_alloc = true };

    for (uint32_t i = 0; i < store->n_slots; i++) {
        quire_weight_slot *slot = &store->slots[i];
        quire_weight_kind *kind = &store->kinds[slot->kind];

        if (load->has != NULL && !quire_kind_is_device(slot->kind)) {
            continue;
        }
        if (kind->ctx == NULL) {
            kind->ctx = ggml_init(params);
            if (kind->ctx == NULL) {
                return QUIRE_NOMEM;
            }
        }
        *slot->into = ggml_dup_tensor(kind->ctx, slot->meta);
        ggml_set_name(*slot->into, ggml_get_name(slot->meta));
    }
    if (load->has != NULL) {
        tensors_share(load);
    }
    return QUIRE_OK;
}

/* ---- panels ---- */

/* Panels that follow each other are one matrix: *joint of n tensors, or NULL. */
static quire_matmul_weight *join(quire_matmul_weight *joint, struct ggml_tensor *const *tensors,
                                 uint32_t n)
{
    const quire_matmul_weight *first = quire_weights_panels(tensors[0]);

    if (first == NULL) {
        return NULL;
    }
    *joint = *first;
    for (uint32_t i = 1; i < n; i++) {
        const quire_matmul_weight *next = quire_weights_panels(tensors[i]);
        const size_t bytes = quire_matmul_weight_bytes(joint->type, joint->n_in, joint->n_out);

        if (next == NULL || next->type != joint->type || next->n_in != joint->n_in ||
            next->panels != joint->panels + bytes) {
            return NULL;
        }
        joint->n_out += next->n_out;
    }
    return joint;
}

static void join_layers(quire_weights *weights)
{
    for (uint32_t il = 0; il < weights->n_layer; il++) {
        quire_layer_weights *l = &weights->layers[il];
        quire_matmul_weight *joint = weights->store->joint + (size_t)2 * il;

        if (l->wk != NULL && l->wv != NULL) {
            l->qkv = join(joint, (struct ggml_tensor *[]){ l->wq, l->wk, l->wv }, 3);
        }
        if (l->gate != NULL) {
            l->gate_up = join(joint + 1, (struct ggml_tensor *[]){ l->gate, l->up }, 2);
        }
    }
}

int quire_weights_panels_place(quire_weight_load *load, uintptr_t at)
{
    struct quire_weights_store *store = load->weights->store;

    if (store->panels_bytes == 0) {
        return QUIRE_OK;
    }
    store->maps = calloc(store->n_slots, sizeof *store->maps);
    store->joint = calloc(load->weights->n_layer, 2 * sizeof *store->joint);
    QUIRE_FAIL_IF(store->maps == NULL || store->joint == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < store->n_slots; i++) {
        quire_weight_slot *slot = &store->slots[i];

        if (slot->kind == QUIRE_KIND_PANELS) {
            store->maps[i] = quire_panels_weight(slot->meta, store->kernels);
            store->maps[i].panels = (unsigned char *)at;
            (*slot->into)->extra = &store->maps[i];
            at += ggml_nbytes(slot->meta);
        }
    }
    join_layers(load->weights);
    return QUIRE_OK;
}

int quire_weights_load_fail(const quire_weight_load *load, int rc)
{
    if (rc < 0 && load->err != NULL && load->err->status == QUIRE_OK) {
        quire_error_set(load->err, rc, "%s: cannot load the weights: %s",
                        quire_gguf_path(load->file), quire_status_text(rc));
    }
    return rc;
}
