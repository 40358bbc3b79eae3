/* weights_device.c - see weights_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights_device.h"

#include "base/parse.h"
#include "model/backend.h"
#include "model/backend_calls.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

void quire_weights_device_choose(quire_weights *weights, const quire_model_opts *opts, uint32_t set,
                                 const quire_model_split *split)
{
    const uint32_t n_all = weights->n_layer + 1;
    const uint32_t n = opts->n_device_layers < n_all ? opts->n_device_layers : n_all;

    if (n > 0 && split != NULL) {
        weights->n_devices = split->n;
        memcpy(weights->devices, split->devices, sizeof weights->devices);
        memcpy(weights->layer_device, split->of, sizeof weights->layer_device);
    } else if (n > 0 && opts->devices[set] != NULL) {
        weights->n_devices = 1;
        weights->devices[0] = opts->devices[set];
    }
    weights->device_from = weights->n_devices > 0 ? n_all - n : n_all;
}

/* The tensors of a layer that Quire's own operations read, and those whose products are inputs of
 * these operations. */
static bool is_hosts(const quire_tensor_row *row)
{
    static const size_t fields[] = {
        offsetof(quire_layer_weights, sinks),
        offsetof(quire_layer_weights, v_gate[0]),
        offsetof(quire_layer_weights, v_gate[1]),
        offsetof(quire_layer_weights, wkv_b),
        /* The state of a recurrent layer is the host's. */
        offsetof(quire_layer_weights, conv),
        offsetof(quire_layer_weights, conv_b),
        offsetof(quire_layer_weights, delta_dt),
        offsetof(quire_layer_weights, delta_decay),
        offsetof(quire_layer_weights, delta_norm),
        offsetof(quire_layer_weights, mamba_skip),
        offsetof(quire_layer_weights, stream_router),
        offsetof(quire_layer_weights, stream_router_norm),
        offsetof(quire_layer_weights, stream_predict),
        offsetof(quire_layer_weights, stream_correct),
    };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (row->cuts[0].rows == QUIRE_DIM_ONE && row->into == fields[i]) {
            return true;
        }
    }
    return false;
}

/* The tensors of the model behind the last layer. */
static bool is_of_output(const quire_tensor_row *row)
{
    return row->into == offsetof(quire_weights, output) ||
           row->into == offsetof(quire_weights, output_b) ||
           row->into == offsetof(quire_weights, output_norm) ||
           row->into == offsetof(quire_weights, output_norm_b);
}

bool quire_weights_device_takes(const quire_weights *weights, const quire_tensor_row *row,
                                uint32_t il)
{
    if (row->where == QUIRE_TENSOR_OF_MODEL) {
        return weights->device_from <= weights->n_layer && row->cuts[0].rows == QUIRE_DIM_ONE &&
               is_of_output(row);
    }
    return il >= weights->device_from && !is_hosts(row);
}

uint32_t quire_weights_device_of(const quire_weights *weights, const quire_tensor_row *row,
                                 uint32_t il)
{
    return weights->layer_device[row->where == QUIRE_TENSOR_OF_MODEL ? weights->n_layer : il];
}

int quire_weights_device_check(ggml_backend_dev_t device, const quire_tensor_row *row,
                               const struct ggml_tensor *meta, quire_error *err)
{
    const bool is_of_experts = row->depth == QUIRE_DIM_EXPERTS;

    if (row->rows == QUIRE_DIM_ONE ||
        quire_backend_multiplies(device, ggml_backend_dev_buffer_type(device), meta,
                                 is_of_experts)) {
        return QUIRE_OK;
    }
    return quire_error_set(
        err, QUIRE_UNSUPP,
        "%s: ggml's device %s does not multiply with %s of the type %s: leave its "
        "layer to the CPU (a smaller -ngl)",
        meta->name, ggml_backend_dev_name(device), is_of_experts ? "experts" : "matrices",
        ggml_type_name(meta->type));
}

int quire_weights_device_full(ggml_backend_dev_t device, struct ggml_context *ctx, quire_error *err)
{
    char wanted[16], free_text[16], total_text[16], room[64] = "";
    size_t n = 0, n_free, n_total;

    for (struct ggml_tensor *t = ggml_get_first_tensor(ctx); t != NULL;
         t = ggml_get_next_tensor(ctx, t)) {
        n += ggml_nbytes(t);
    }
    quire_backend_memory(device, &n_free, &n_total);
    if (n_total > 0) {
        (void)snprintf(room, sizeof room, " (%s of its %s are free)",
                       quire_format_bytes(n_free, free_text, sizeof free_text),
                       quire_format_bytes(n_total, total_text, sizeof total_text));
    }
    return quire_error_set(err, QUIRE_NOMEM,
                           "ggml's device %s has no memory for %s of weights%s: leave more layers "
                           "to the CPU (a smaller -ngl)",
                           ggml_backend_dev_name(device),
                           quire_format_bytes(n, wanted, sizeof wanted), room);
}

int quire_weights_device_write(struct ggml_tensor *to, const void *from, quire_error *err)
{
    char why[QUIRE_BACKEND_WHY_BYTES];

    if (quire_backend_tensor_write(to, from)) {
        return QUIRE_OK;
    }
    quire_backend_log_first(why, sizeof why);
    return quire_error_set(err, QUIRE_IO, "%s: ggml cannot write it to %s: %s", to->name,
                           ggml_backend_buffer_name(to->buffer), why);
}
