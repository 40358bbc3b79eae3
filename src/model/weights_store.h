/* weights_store.h - the tensors that a model wants, where each lies, and their memory; for
 * weights.c, weights_place.c and weights_outline.c only.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_STORE_H
#define QUIRE_MODEL_WEIGHTS_STORE_H

#include "model/weights.h"
#include "model/weights_map.h"

/* The buffers that hold tensors: the mapped files, a plain one of the CPU, panels, devices' from
 * QUIRE_KIND_DEVICE on, and the CPU's extra types from QUIRE_KIND_EXTRA on. */
#define QUIRE_KIND_MAPPED 0u
#define QUIRE_KIND_PLAIN  1u
#define QUIRE_KIND_PANELS 2u
#define QUIRE_KIND_DEVICE 3u
#define QUIRE_KIND_EXTRA  (QUIRE_KIND_DEVICE + QUIRE_MODEL_DEVICES_MAX)
#define QUIRE_KINDS_MAX   (QUIRE_KIND_EXTRA + 8u)

static inline bool quire_kind_is_device(uint32_t kind)
{
    return kind >= QUIRE_KIND_DEVICE && kind < QUIRE_KIND_EXTRA;
}

typedef struct quire_weight_kind {
    ggml_backend_buffer_type_t buft; /* NULL for the mapping and for panels */
    struct ggml_context *ctx;        /* its tensors; NULL while it has none */
    ggml_backend_buffer_t buffer;
} quire_weight_kind;

/* One wanted tensor. */
typedef struct quire_weight_slot {
    struct ggml_tensor **into;
    struct ggml_tensor *meta; /* in the file's context, or in that of cuts */
    quire_gguf_place place;
    uint32_t kind;
} quire_weight_slot;

struct quire_weights_store {
    quire_weights_map *files; /* [n_files], one for each part of the model */
    uint32_t n_files;
    quire_weight_kind kinds[QUIRE_KINDS_MAX];
    uint32_t n_kinds;
    quire_weight_slot *slots;
    uint32_t n_slots;
    uint32_t n_slots_max;
    struct ggml_context *cuts; /* shapes of the pieces of tensors that hold several matrices */
    const quire_matmul_kernels *kernels; /* NULL: no panels */
    quire_matmul_weight *maps;           /* [n_slots], of those in panels */
    quire_matmul_weight *joint;          /* [n_layer][2] */
    unsigned char *panels;
    size_t panels_bytes;
};

/* The state that loaders share. */
typedef struct quire_weight_load {
    quire_weights *weights;
    const quire_gguf *file;
    const quire_model_desc *desc;
    const quire_model_opts *opts;
    uint32_t set;                   /* of opts->devices */
    const quire_model_split *split; /* in place of them; NULL: none */
    const quire_weights *has; /* the set whose tensors of the host this one shares; NULL: this one
                                 has its own */
    uint32_t n_done;          /* sets loaded before */
    quire_error *err;
} quire_weight_load;

/* The slots of all wanted tensors, each with the kind of its buffer. load->weights stays the
 * caller's, also on failure. Errors: QUIRE_NOMEM, QUIRE_UNSUPP (weights_device.h). */
int quire_weights_place(quire_weight_load *load);

/* The tensors of all slots, without memory. Errors: QUIRE_NOMEM. */
int quire_weights_tensors_create(quire_weight_load *load);

/* Give the panels of all slots their addresses, one behind the other from `at` on, and join those
 * that are one matrix. Without panels nothing happens. Errors: QUIRE_NOMEM. */
int quire_weights_panels_place(quire_weight_load *load, uintptr_t at);

/* Set a message for the failure if no other function has set one. Returns rc. */
int quire_weights_load_fail(const quire_weight_load *load, int rc);

#endif /* QUIRE_MODEL_WEIGHTS_STORE_H */
