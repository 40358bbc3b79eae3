/* runtime_recurrent.c - the states of a runtime's sequences, and the data of recurrent layers.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_internal.h"

#include "base/check.h"
#include "core/cache/state_spare.h"
#include "model/model_internal.h"
#include "model/runtime_states.h"

#include <stdlib.h>
#include <string.h>

/* A layer's factors by tap, so that neighbouring numbers belong to neighbouring columns. */
static int kernel_fill(const struct ggml_tensor *conv, const quire_recurrent_desc *r, float *out)
{
    const struct ggml_type_traits *traits = ggml_get_type_traits(conv->type);
    float *row = malloc(r->conv_taps * sizeof *row);

    QUIRE_FAIL_IF(row == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < r->conv_width; i++) {
        const void *from = (const char *)conv->data + i * conv->nb[1];

        if (conv->type == GGML_TYPE_F32) {
            memcpy(row, from, r->conv_taps * sizeof *row);
        } else {
            traits->to_float(from, row, r->conv_taps);
        }
        for (uint32_t k = 0; k < r->conv_taps; k++) {
            out[(size_t)k * r->conv_width + i] = row[k];
        }
    }
    free(row);
    return QUIRE_OK;
}

static int layers_fill(quire_runtime *rt)
{
    const quire_model_desc *desc = &rt->model->desc;
    const quire_recurrent_desc *r = &desc->recurrent;
    const size_t kernel_floats = (size_t)r->conv_taps * r->conv_width;
    size_t n = 0;

    rt->recurrent = calloc(desc->n_layer, sizeof *rt->recurrent);
    rt->conv_kernels = calloc(r->n_layers * kernel_floats, sizeof *rt->conv_kernels);
    QUIRE_FAIL_IF(rt->recurrent == NULL || rt->conv_kernels == NULL, QUIRE_NOMEM);
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        if (!quire_mixer_recurs(desc->mixer[il])) {
            continue;
        }
        rt->recurrent[il] = (quire_graph_recurrent){ .states = rt->states,
                                                     .offset = n * quire_state_layer_floats(desc),
                                                     .kernel = rt->conv_kernels + n * kernel_floats,
                                                     .taps = r->conv_taps,
                                                     .width = r->conv_width,
                                                     .shape = r,
                                                     .eps = desc->rms_eps };
        if (desc->mixer[il] == QUIRE_MIXER_DELTA_NET) {
            const quire_layer_weights *l = &rt->weights->layers[il];

            rt->recurrent[il].dt = l->delta_dt->data;
            rt->recurrent[il].decay = l->delta_decay->data;
            rt->recurrent[il].norm = l->delta_norm->data;
        }
        if (quire_mixer_is_mamba(desc->mixer[il])) {
            const quire_layer_weights *l = &rt->weights->layers[il];

            rt->recurrent[il].dt = l->delta_dt->data;
            rt->recurrent[il].decay = l->delta_decay->data;
            rt->recurrent[il].skip = l->mamba_skip->data;
            rt->recurrent[il].bias = l->conv_b->data;
        }
        QUIRE_TRY(
            kernel_fill(rt->weights->layers[il].conv, r, rt->conv_kernels + n * kernel_floats));
        n++;
    }
    return QUIRE_OK;
}

int quire_runtime_recurrent_open(quire_runtime *rt, quire_error *err)
{
    const quire_model_desc *desc = &rt->model->desc;
    int rc;

    if (desc->recurrent.n_layers == 0) {
        return QUIRE_OK;
    }
    if (rt->opts.kv_elsewhere_bytes != 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s has recurrent layers: texts that keep a share of their tokens "
                               "(--retain) are not supported with them",
                               desc->arch_name);
    }
    rc = quire_states_create(&rt->states, desc, rt->cache, rt->opts.n_seqs_max);
    if (rc == QUIRE_OK) {
        rc = layers_fill(rt);
    }
    return rc < 0 ? quire_error_set(err, rc, "no memory for the states of %u sequences",
                                    rt->opts.n_seqs_max)
                  : QUIRE_OK;
}

void quire_runtime_recurrent_close(quire_runtime *rt)
{
    free(rt->conv_kernels);
    free(rt->recurrent);
    quire_states_destroy(rt->states);
}

int quire_runtime_recurrent_begin(quire_runtime *rt, const quire_slice *slices, uint32_t n_slices)
{
    if (rt->states == NULL) {
        return QUIRE_OK;
    }
    quire_states_begin(rt->states);
    for (uint32_t i = 0; i < n_slices; i++) {
        QUIRE_TRY(quire_states_add(rt->states, slices[i].seq,
                                   quire_seq_tokens(rt->cache, slices[i].seq), slices[i].n_tokens));
    }
    return QUIRE_OK;
}

int quire_runtime_recurrent_clear(quire_runtime *rt, quire_seq_id seq)
{
    return rt->states != NULL ? quire_states_set(rt->states, seq, quire_seq_tokens(rt->cache, seq),
                                                 QUIRE_FORMAT_F32, NULL)
                              : QUIRE_OK;
}

void quire_runtime_state_end(quire_runtime *rt, quire_seq_id seq)
{
    const float *state = rt->states != NULL ? quire_states_get(rt->states, seq) : NULL;

    if (state != NULL) {
        quire_seq_state_spare_drop(rt->cache, seq, state);
    }
}

size_t quire_runtime_state_bytes(const quire_runtime *rt)
{
    return quire_state_page_bytes(&rt->model->desc, rt->opts.state_format);
}

int quire_runtime_state_reserve(quire_runtime *rt, quire_seq_id seq)
{
    return rt->states != NULL ? quire_states_reserve(rt->states, seq) : QUIRE_OK;
}

void quire_runtime_state_save(const quire_runtime *rt, quire_seq_id seq, void *to)
{
    const float *state = quire_states_get(rt->states, seq);
    const size_t size = quire_state_numbers_bytes(&rt->model->desc, rt->opts.state_format);

    QUIRE_CHECK(quire_states_has(rt->states, seq, quire_seq_tokens(rt->cache, seq)) &&
                state != NULL);
    quire_state_encode(rt->opts.state_format, state, quire_state_floats(&rt->model->desc), to);
    memset((unsigned char *)to + size, 0, quire_runtime_state_bytes(rt) - size);
}

int quire_runtime_state_load(quire_runtime *rt, quire_seq_id seq, const void *from)
{
    return quire_states_set(rt->states, seq, quire_seq_tokens(rt->cache, seq),
                            rt->opts.state_format, from);
}

bool quire_runtime_is_recurrent(const quire_runtime *rt)
{
    return rt->states != NULL;
}

uint32_t quire_runtime_keepable(const quire_runtime *rt, quire_seq_id seq, uint32_t n_tokens)
{
    const uint32_t n = quire_seq_truncatable(rt->cache, seq, n_tokens);

    return rt->states == NULL || quire_states_has(rt->states, seq, n) ? n : 0;
}

int quire_runtime_fork(quire_runtime *rt, quire_seq_id seq, quire_seq_id *out)
{
    const uint32_t n_tokens = quire_seq_tokens(rt->cache, seq);
    int rc = quire_seq_fork(rt->cache, seq, out);

    /* A fork of a sequence that cannot be continued has no state either. */
    if (rc == QUIRE_OK && rt->states != NULL && n_tokens > 0 &&
        quire_states_has(rt->states, seq, n_tokens)) {
        /* Pages may be taken, but none moves. */
        rc = quire_states_set(rt->states, *out, n_tokens, QUIRE_FORMAT_F32,
                              quire_states_get(rt->states, seq));
        if (rc < 0) {
            (void)quire_seq_close(rt->cache, *out);
            *out = QUIRE_SEQ_NULL;
        }
    }
    return rc;
}
