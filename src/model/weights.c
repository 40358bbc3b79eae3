/* weights.c - see weights.h.
 *
 * Loading goes in three passes over one list of wanted tensors: place (which kind of buffer holds
 * each tensor), allocate (one ggml context and buffer per kind), fill. A kind is the mapped files,
 * a plain CPU buffer (a mapped tensor that is not aligned as ggml wants it), panels for our own
 * products (one mapping, in huge pages where there are any), a device's memory, or one extra buffer
 * type.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/backend_calls.h"
#include "model/panels.h"
#include "model/tensor_table.h"
#include "model/weights_device.h"
#include "model/weights_digest.h"
#include "model/weights_latent.h"
#include "model/weights_map.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>

#define KIND_MAPPED 0u
#define KIND_PLAIN  1u
#define KIND_PANELS 2u
#define KIND_DEVICE 3u
#define KIND_EXTRA  4u
#define EXTRA_MAX   8u
#define KINDS_MAX   (KIND_EXTRA + EXTRA_MAX)

/* The most slots of a layer, and of the model's own tensors. */
#define SLOTS_MAX      (QUIRE_TENSOR_ROWS_MAX + LAYER_CUTS_MAX)
#define LAYER_CUTS_MAX (3u * QUIRE_TENSOR_CUTS_MAX)

typedef struct weight_kind {
    ggml_backend_buffer_type_t buft; /* NULL for the mapping and for panels */
    struct ggml_context *ctx;        /* its tensors; NULL while it has none */
    ggml_backend_buffer_t buffer;
} weight_kind;

/* One wanted tensor. */
typedef struct weight_slot {
    struct ggml_tensor **into;
    struct ggml_tensor *meta; /* in the file's context, or in that of cuts */
    quire_gguf_place place;
    uint32_t kind;
} weight_slot;

struct quire_weights_store {
    quire_weights_map *files; /* [n_files], one for each part of the model */
    uint32_t n_files;
    weight_kind kinds[KINDS_MAX];
    uint32_t n_kinds;
    weight_slot *slots;
    uint32_t n_slots;
    uint32_t n_slots_max;
    struct ggml_context *cuts; /* shapes of the pieces of tensors that hold several matrices */
    const quire_matmul_kernels *kernels; /* NULL: no panels */
    quire_matmul_weight *maps;           /* [n_slots], of those in panels */
    quire_matmul_weight *joint;          /* [n_layer][2] */
    unsigned char *panels;
    size_t panels_bytes;
};

/* The state that the loaders below share. */
typedef struct weight_load {
    quire_weights *weights;
    const quire_gguf *file;
    const quire_model_desc *desc;
    const quire_model_opts *opts;
    quire_error *err;
} weight_load;

/* ---- pass 1: place ---- */

/* ggml's products with AMX (v0.5.0) of many rows are wrong where a row of weights is one block. */
#define EXTRA_IN_MIN 64

static uint32_t kind_choose(const weight_load *load, const struct ggml_tensor *meta,
                            uint64_t offset, const quire_tensor_row *row)
{
    const struct quire_weights_store *store = load->weights->store;
    /* A factor of products is worth repacking. */
    const bool is_factor =
        row->rows != QUIRE_DIM_ONE && !row->is_looked_up && row->depth != QUIRE_DIM_HEADS;
    const bool is_of_experts = row->depth == QUIRE_DIM_EXPERTS;
    /* Panels and repacked weights are of one matrix, or of experts. */

    if (is_factor && store->kernels != NULL &&
        (is_of_experts
             ? quire_panels_take_experts(quire_gguf_meta(load->file), meta, store->kernels)
             : quire_panels_take(meta, store->kernels))) {
        return KIND_PANELS;
    }
    if (is_factor && !is_of_experts && !load->opts->no_repack) {
        for (uint32_t i = KIND_EXTRA; i < store->n_kinds; i++) {
            if (meta->ne[0] >= EXTRA_IN_MIN &&
                quire_backend_multiplies(quire_backend_cpu(), store->kinds[i].buft, meta, false)) {
                return i;
            }
        }
    }
    return offset % ggml_backend_buft_get_alignment(store->kinds[KIND_PLAIN].buft) == 0
               ? KIND_MAPPED
               : KIND_PLAIN;
}

/* il: the layer, as for quire_weights_device_takes(). */
static int slot_add(weight_load *load, const quire_tensor_row *row, uint32_t il,
                    const weight_slot *want)
{
    struct quire_weights_store *store = load->weights->store;
    weight_slot *slot;

    QUIRE_CHECK(row->rows != QUIRE_DIM_ONE || want->meta->type == GGML_TYPE_F32);
    QUIRE_CHECK(store->n_slots < store->n_slots_max);
    slot = &store->slots[store->n_slots++];
    *slot = *want;
    if (quire_weights_device_takes(load->weights, row, il)) {
        slot->kind = KIND_DEVICE;
        return quire_weights_device_check(load->weights, row, want->meta, load->err);
    }
    slot->kind = kind_choose(load, want->meta, want->place.offset, row);
    return QUIRE_OK;
}

/* The context of the pieces' shapes, made for the first one. */
static int cuts_create(weight_load *load)
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
static int want_cuts(weight_load *load, const quire_tensor_row *row, const struct ggml_tensor *meta,
                     uint32_t il, unsigned char *base)
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
                           &(weight_slot){ .into = (void *)(base + row->cuts[i].into),
                                           .meta = piece,
                                           .place = place }));
        place.offset += ggml_nbytes(piece);
    }
    return QUIRE_OK;
}

/* A tensor of the table, if the file has it. The description was checked against the file's
 * tensors, so each of them has the right shape. il: its layer, 0 of a tensor of the model; base: of
 * the struct that the row's offsets are for. */
static int want(weight_load *load, const quire_tensor_row *row, const char *name, uint32_t il,
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
                    &(weight_slot){ .into = (void *)(base + row->into),
                                    .meta = meta,
                                    .place = quire_gguf_tensor_place(load->file, name) });
}

/* The tensors of the model: the output matrix may be the embedding once more. */
static int want_globals(weight_load *load)
{
    unsigned char *base = (unsigned char *)load->weights;
    const quire_tensor_row *r;

    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        if (r->where != QUIRE_TENSOR_OF_MODEL) {
            continue;
        }
        if (r->part == QUIRE_PART_OUTPUT && load->desc->has_tied_output) {
            const weight_slot tied = {
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

static int want_layer(weight_load *load, uint32_t il)
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

/* ---- pass 2: allocate ---- */

static int kinds_init(struct quire_weights_store *store, ggml_backend_dev_t device)
{
    ggml_backend_buffer_type_t *extra = quire_backend_extra_bufts();

    store->kinds[KIND_PLAIN].buft = ggml_backend_dev_buffer_type(quire_backend_cpu());
    store->kinds[KIND_DEVICE].buft = device != NULL ? ggml_backend_dev_buffer_type(device) : NULL;
    store->n_kinds = KIND_EXTRA;
    for (; extra != NULL && *extra != NULL && store->n_kinds < KINDS_MAX; extra++) {
        store->kinds[store->n_kinds++].buft = *extra;
    }
    return store->kinds[KIND_PLAIN].buft != NULL ? QUIRE_OK : QUIRE_UNSUPP;
}

static int files_map(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    const uint32_t n = quire_gguf_n_parts(load->file);

    store->files = calloc(n, sizeof *store->files);
    QUIRE_FAIL_IF(store->files == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n; i++) {
        QUIRE_TRY(quire_weights_map_open(&store->files[i], quire_gguf_part_path(load->file, i),
                                         quire_gguf_part_bytes(load->file, i), load->err));
        store->n_files++;
    }
    return QUIRE_OK;
}

/* Create the tensors of every kind in use. */
static int tensors_create(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    struct ggml_init_params params = { .mem_size = store->n_slots * ggml_tensor_overhead(),
                                       .no_alloc = true };

    for (uint32_t i = 0; i < store->n_slots; i++) {
        weight_slot *slot = &store->slots[i];
        weight_kind *kind = &store->kinds[slot->kind];

        if (kind->ctx == NULL) {
            kind->ctx = ggml_init(params);
            if (kind->ctx == NULL) {
                return QUIRE_NOMEM;
            }
        }
        *slot->into = ggml_dup_tensor(kind->ctx, slot->meta);
        ggml_set_name(*slot->into, ggml_get_name(slot->meta));
    }
    return QUIRE_OK;
}

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

/* One mapping for all panels. */
static int panels_create(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    unsigned char *at;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        if (store->slots[i].kind == KIND_PANELS) {
            store->panels_bytes += ggml_nbytes(store->slots[i].meta);
        }
    }
    if (store->panels_bytes == 0) {
        return QUIRE_OK;
    }
    store->maps = calloc(store->n_slots, sizeof *store->maps);
    store->joint = calloc(load->weights->n_layer, 2 * sizeof *store->joint);
    QUIRE_FAIL_IF(store->maps == NULL || store->joint == NULL, QUIRE_NOMEM);
    at =
        mmap(NULL, store->panels_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return quire_error_set_errno(load->err, errno, "%s: cannot map %zu bytes for weights",
                                     quire_gguf_path(load->file), store->panels_bytes);
    }
    store->panels = at;
    (void)madvise(at, store->panels_bytes, MADV_HUGEPAGE);
    for (uint32_t i = 0; i < store->n_slots; i++) {
        weight_slot *slot = &store->slots[i];

        if (slot->kind == KIND_PANELS) {
            store->maps[i] = quire_panels_weight(slot->meta, store->kernels);
            store->maps[i].panels = at;
            (*slot->into)->extra = &store->maps[i];
            at += ggml_nbytes(slot->meta);
        }
    }
    join_layers(load->weights);
    return QUIRE_OK;
}

static int no_memory(const weight_load *load)
{
    return quire_error_set(load->err, QUIRE_NOMEM, "%s: no memory for the weights",
                           quire_gguf_path(load->file));
}

/* The mapped files as buffers of the CPU backend. */
static int mapped_buffers_create(const weight_load *load, size_t tensor_bytes_max)
{
    const struct quire_weights_store *store = load->weights->store;

    for (uint32_t i = 0; i < store->n_files; i++) {
        quire_weights_map *file = &store->files[i];

        file->buffer = ggml_backend_dev_buffer_from_host_ptr(quire_backend_cpu(), file->base,
                                                             file->bytes, tensor_bytes_max);
        if (file->buffer == NULL) {
            return no_memory(load);
        }
        ggml_backend_buffer_set_usage(file->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    return QUIRE_OK;
}

static int buffers_create(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    size_t tensor_bytes_max = 0;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        size_t n = ggml_nbytes(store->slots[i].meta);

        tensor_bytes_max = n > tensor_bytes_max ? n : tensor_bytes_max;
    }
    for (uint32_t i = 0; i < store->n_kinds; i++) {
        weight_kind *kind = &store->kinds[i];

        if (kind->ctx == NULL || i == KIND_PANELS) {
            continue;
        }
        if (i == KIND_MAPPED) {
            QUIRE_TRY(mapped_buffers_create(load, tensor_bytes_max));
            continue;
        }
        kind->buffer = quire_backend_buffer_new(kind->ctx, kind->buft);
        if (kind->buffer == NULL) {
            return i == KIND_DEVICE ? quire_weights_device_full(load->weights, kind->ctx, load->err)
                                    : no_memory(load);
        }
        ggml_backend_buffer_set_usage(kind->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    return panels_create(load);
}

/* ---- pass 3: fill ---- */

/* The name of the memory from which the tensor is multiplied. */
static const char *place_of(const struct quire_weights_store *store, uint32_t kind)
{
    if (kind == KIND_PANELS) {
        return "panels";
    }
    return kind >= KIND_DEVICE ? ggml_backend_buft_name(store->kinds[kind].buft) : "plain";
}

static int tensors_fill(weight_load *load)
{
    quire_weights *weights = load->weights;
    struct quire_weights_store *store = weights->store;
    uint64_t total_bytes = 1, done_bytes = 0;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        total_bytes += ggml_nbytes(store->slots[i].meta);
    }
    for (uint32_t i = 0; i < store->n_slots; i++) {
        const weight_slot *slot = &store->slots[i];
        const size_t n_bytes = ggml_nbytes(slot->meta);
        const quire_weights_map *file = &store->files[slot->place.part];
        const uint64_t offset = slot->place.offset;
        char *source = (char *)file->base + offset;

        QUIRE_CHECK(offset <= file->bytes && n_bytes <= file->bytes - offset);
        quire_weights_digest_add(weights->digest, slot->meta, place_of(store, slot->kind), source);
        if (slot->kind == KIND_MAPPED) {
            if (ggml_backend_tensor_alloc(file->buffer, *slot->into, source) !=
                GGML_STATUS_SUCCESS) {
                return QUIRE_NOMEM;
            }
            weights->mapped_bytes += n_bytes;
        } else {
            if (slot->kind == KIND_PANELS) {
                quire_matmul_weight_pack(&store->maps[i], source);
            } else {
                QUIRE_TRY(quire_weights_device_write(*slot->into, source, load->err));
            }
            quire_weights_map_drop(file, offset, n_bytes);
            *(slot->kind == KIND_DEVICE ? &weights->device_bytes : &weights->repacked_bytes) +=
                n_bytes;
        }
        done_bytes += n_bytes;
        if (load->opts->progress != NULL) {
            load->opts->progress(load->opts->progress_ctx,
                                 (float)((double)done_bytes / (double)total_bytes));
        }
    }
    return QUIRE_OK;
}

/* ---- */

/* Pass 1: the slots of all wanted tensors. load->weights stays the caller's, also on failure. */
static int weights_place(weight_load *load)
{
    const quire_model_desc *desc = load->desc;
    quire_weights *weights = load->weights;
    struct quire_weights_store *store = calloc(1, sizeof *store);

    weights->store = store;
    weights->n_layer = desc->n_layer;
    weights->layers = calloc(desc->n_layer, sizeof *weights->layers);
    QUIRE_FAIL_IF(weights->layers == NULL || store == NULL, QUIRE_NOMEM);
    quire_weights_device_choose(weights, load->opts);
    store->kernels = load->opts->no_repack ? NULL : quire_matmul_kernels_find(NULL);
    store->n_slots_max = (desc->n_layer + 1) * SLOTS_MAX;
    store->slots = calloc(store->n_slots_max, sizeof *store->slots);
    QUIRE_FAIL_IF(store->slots == NULL, QUIRE_NOMEM);
    QUIRE_TRY(kinds_init(store, weights->device));
    QUIRE_TRY(want_globals(load));
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        QUIRE_TRY(want_layer(load, il));
    }
    return QUIRE_OK;
}

/* Set a message for the failure if no other function has set one. */
static int fail_load(const weight_load *load, int rc)
{
    if (rc < 0 && load->err != NULL && load->err->status == QUIRE_OK) {
        quire_error_set(load->err, rc, "%s: cannot load the weights: %s",
                        quire_gguf_path(load->file), quire_status_text(rc));
    }
    return rc;
}

int quire_weights_load(quire_weights **out, const quire_gguf *file, const quire_model_desc *desc,
                       const quire_model_opts *opts, quire_error *err)
{
    weight_load load = { .file = file, .desc = desc, .opts = opts, .err = err };
    int rc = QUIRE_NOMEM;

    *out = NULL;
    load.weights = calloc(1, sizeof *load.weights);
    if (load.weights == NULL) {
        return fail_load(&load, rc);
    }
    if ((rc = weights_place(&load)) < 0 || (rc = files_map(&load)) < 0 ||
        (rc = tensors_create(&load)) < 0 || (rc = buffers_create(&load)) < 0 ||
        (rc = tensors_fill(&load)) < 0 ||
        (rc = quire_weights_latent_make(load.weights, desc)) < 0) {
        quire_weights_destroy(load.weights);
        return fail_load(&load, rc);
    }
    *out = load.weights;
    return QUIRE_OK;
}

int quire_weights_resident_bytes(quire_weights_bytes *out, const quire_gguf *file,
                                 const quire_model_desc *desc, const quire_model_opts *opts,
                                 quire_error *err)
{
    weight_load load = { .file = file, .desc = desc, .opts = opts, .err = err };
    quire_gguf_place embd = { UINT32_MAX, 0 };
    int rc = QUIRE_NOMEM;

    *out = (quire_weights_bytes){ 0 };
    load.weights = calloc(1, sizeof *load.weights);
    if (load.weights != NULL && (rc = weights_place(&load)) == QUIRE_OK) {
        const struct quire_weights_store *store = load.weights->store;

        for (uint32_t i = 0; i < store->n_slots; i++) {
            const weight_slot *slot = &store->slots[i];

            /* A tied output matrix that is used in place is the embedding's own bytes. */
            if (slot->kind != KIND_MAPPED || slot->place.part != embd.part ||
                slot->place.offset != embd.offset) {
                *(slot->kind == KIND_DEVICE ? &out->device : &out->host) += ggml_nbytes(slot->meta);
            }
            embd = i == 0 && slot->kind == KIND_MAPPED ? slot->place : embd;
        }
    }
    out->host += rc == QUIRE_OK ? quire_weights_latent_bytes(file, desc) : 0;
    quire_weights_destroy(load.weights);
    return fail_load(&load, rc);
}

bool quire_weights_device_holds(const quire_weights *weights, const struct ggml_tensor *tensor)
{
    struct ggml_context *ctx = weights->store->kinds[KIND_DEVICE].ctx;
    const char *at = (const char *)tensor;
    const char *begin = ctx != NULL ? ggml_get_mem_buffer(ctx) : NULL;

    return begin != NULL && at >= begin && at < begin + ggml_get_mem_size(ctx);
}

void quire_weights_destroy(quire_weights *weights)
{
    struct quire_weights_store *store;

    if (weights == NULL) {
        return;
    }
    quire_weights_latent_free(weights->latent);
    store = weights->store;
    if (store != NULL) {
        for (uint32_t i = 0; i < store->n_kinds; i++) {
            ggml_backend_buffer_free(store->kinds[i].buffer);
            ggml_free(store->kinds[i].ctx);
        }
        for (uint32_t i = 0; i < store->n_files; i++) {
            quire_weights_map_close(&store->files[i]);
        }
        free(store->files);
        if (store->panels != NULL) {
            (void)munmap(store->panels, store->panels_bytes);
        }
        ggml_free(store->cuts);
        free(store->joint);
        free(store->maps);
        free(store->slots);
    }
    free(store);
    free(weights->layers);
    free(weights);
}
