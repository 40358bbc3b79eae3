/* runtime_internal.h - the parts of a runtime; for src/model/runtime*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_INTERNAL_H
#define QUIRE_MODEL_RUNTIME_INTERNAL_H

#include "model/backend.h"
#include "model/graph.h"
#include "model/model_internal.h"
#include "model/runtime.h"

struct quire_runtime {
    const quire_model *model;
    const quire_weights *weights; /* the model's set that the options name */
    quire_runtime_opts opts;      /* with the defaults filled in */
    quire_kv_pair *pairs;         /* [n_stored]; opts.kv_pairs is this */
    quire_kv_form form;
    quire_kv_groups groups;
    quire_cache *cache;
    uint64_t created_ns;             /* the history counts from here */
    quire_attn_workspace *workspace; /* of the CPU's kernels; NULL with a device */
    quire_device *memory_device;     /* of opts.device; NULL without one */
    quire_device_split *split;       /* of opts.split; NULL without one */
    quire_device_joint *joint;       /* with opts.attends_host, beside the device; or NULL */
    char *rounding; /* of the device or of the split, for the identity of KV; NULL without one */
    quire_page_memory page_memory; /* the device's, or the split's */
    quire_attn_device device;      /* that steps go to: the workspace's or the device's */
    bool queues;       /* the last step's layers on the device were queued (quire_attn_device) */
    bool never_queues; /* ggml does not tell where rows are */
    quire_backend backend;
    quire_backend_device layers_backends[QUIRE_MODEL_DEVICES_MAX]; /* of weights->devices */
    quire_graph_op *ops;                                           /* [n_layer] */
    quire_graphs graphs;
    quire_states *states;             /* NULL in a model without recurrent layers */
    quire_graph_recurrent *recurrent; /* [n_layer], or NULL */
    float *conv_kernels;              /* of all recurrent layers: quire_graph_recurrent.kernel */
    float *v_gates; /* [gates][n_kv_head][d_v], of all layers; NULL when there are none */
    quire_graph_exit exit;
    quire_attn_seq *attn_seqs; /* [n_seqs_max], the batch of the step at hand */
    quire_attn_seq *exit_seqs; /* [n_seqs_max], the batch behind the early exit */
    uint32_t *before_tokens;   /* [n_seqs_max], length of each slice's sequence before the step */
    const float *hidden;       /* of the last step */
    uint64_t steps_total;
    uint64_t step_ns;
};

/* Whether pages lie in the memory of a device, or of the devices of a split. */
static inline bool quire_runtime_is_on_device(const quire_runtime *runtime)
{
    return runtime->memory_device != NULL || runtime->split != NULL;
}

/* The backend of layers on a device that was lost; NULL: none was. */
static inline const quire_backend_device *quire_runtime_layers_lost(const quire_runtime *runtime)
{
    for (uint32_t i = 0; i < runtime->weights->n_devices; i++) {
        if (runtime->layers_backends[i].is_lost) {
            return &runtime->layers_backends[i];
        }
    }
    return NULL;
}

/* Whether the context is longer than the one that the model was first trained for. */
static inline bool quire_runtime_is_long(const quire_runtime *runtime)
{
    return runtime->opts.n_ctx > runtime->model->desc.rope.ctx_orig;
}

/* Make room for n more tokens of a sequence, or for n_ctx tokens when every sequence takes the
 * whole context. */
int quire_runtime_reserve(quire_runtime *runtime, quire_seq_id seq, uint32_t n_tokens);

/* The recurrent layers; see recurrent.h. open: errors QUIRE_NOMEM, QUIRE_UNSUPP. begin: the states
 * of a step's sequences, before the sequences grow; errors: quire_states_add(). clear: a state of
 * zeros; errors: quire_states_set(). */
int quire_runtime_recurrent_open(quire_runtime *runtime, quire_error *err);
void quire_runtime_recurrent_close(quire_runtime *runtime);
int quire_runtime_recurrent_begin(quire_runtime *runtime, const quire_slice *slices,
                                  uint32_t n_slices);
int quire_runtime_recurrent_clear(quire_runtime *runtime, quire_seq_id seq);

/* Release the sequence's hot pages from token `from` on that no later token can read. */
void quire_runtime_release_hot(quire_runtime *runtime, quire_seq_id seq, uint32_t from_token);

/* The same for pages of the window group. */
void quire_runtime_release_window(quire_runtime *runtime, quire_seq_id seq, uint32_t from_token);

#endif /* QUIRE_MODEL_RUNTIME_INTERNAL_H */
