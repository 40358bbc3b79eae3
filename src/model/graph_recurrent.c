/* graph_recurrent.c - the block of a recurrent layer.
 *
 * Gated convolution (LFM2): a row x gives three vectors b, c and u = in x. With z = b * u, element
 * by element, a row's result is c * sum over k of kernel[k] * z of the row taps - 1 - k before it;
 * the output projection follows. The state holds z of the last taps - 1 rows.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_conv.h"

#include "base/check.h"

/* Columns [begin, end) of a step. */
typedef struct conv_task {
    const quire_graph_recurrent *op;
    const struct ggml_tensor *x; /* b, c and u of all rows */
    struct ggml_tensor *out;
    uint32_t begin, end;
} conv_task;

/* Row r < 0 of a run: the row before its first one is the last one of the state. */
static const float *state_row(const conv_task *t, const float *state, int64_t r)
{
    const quire_graph_recurrent *op = t->op;

    return state + op->offset + (size_t)(r + (int64_t)op->taps - 1) * op->width;
}

static const float *input_row(const conv_task *t, const quire_state_run *run, uint32_t r)
{
    return (const float *)t->x->data + ((size_t)run->first_row + r) * 3 * t->op->width;
}

/* out += kernel[k] * z of row r. */
static void tap_add(const conv_task *t, const quire_state_run *run, uint32_t k, int64_t r,
                    float *out)
{
    const uint32_t width = t->op->width;
    const float *w = t->op->kernel + (size_t)k * width;

    if (r < 0) {
        const float *z = state_row(t, run->from, r);

        for (uint32_t i = t->begin; i < t->end; i++) {
            out[i] += w[i] * z[i];
        }
    } else {
        const float *b = input_row(t, run, (uint32_t)r);
        const float *u = b + 2 * (size_t)width;

        for (uint32_t i = t->begin; i < t->end; i++) {
            out[i] += w[i] * (b[i] * u[i]);
        }
    }
}

static void conv_row(const conv_task *t, const quire_state_run *run, uint32_t r)
{
    const quire_graph_recurrent *op = t->op;
    const float *c = input_row(t, run, r) + op->width;
    float *out = (float *)t->out->data + ((size_t)run->first_row + r) * op->width;

    for (uint32_t i = t->begin; i < t->end; i++) {
        out[i] = 0.0f;
    }
    for (uint32_t k = 0; k < op->taps; k++) {
        tap_add(t, run, k, (int64_t)r + (int64_t)k - (int64_t)op->taps + 1, out);
    }
    for (uint32_t i = t->begin; i < t->end; i++) {
        out[i] *= c[i];
    }
}

/* The state behind the first n_rows rows of a run. */
static void conv_state(const conv_task *t, const quire_state_run *run, uint32_t n_rows, float *to)
{
    const quire_graph_recurrent *op = t->op;

    for (uint32_t k = 0; k + 1 < op->taps; k++) {
        const int64_t r = (int64_t)n_rows + (int64_t)k - (int64_t)op->taps + 1;
        float *z = to + op->offset + (size_t)k * op->width;

        if (r < 0) {
            const float *old = state_row(t, run->from, r);

            for (uint32_t i = t->begin; i < t->end; i++) {
                z[i] = old[i];
            }
        } else {
            const float *b = input_row(t, run, (uint32_t)r);
            const float *u = b + 2 * (size_t)op->width;

            for (uint32_t i = t->begin; i < t->end; i++) {
                z[i] = b[i] * u[i];
            }
        }
    }
}

static void conv_run(const conv_task *t, const quire_state_run *run)
{
    for (uint32_t r = 0; r < run->n_rows; r++) {
        conv_row(t, run, r);
    }
    conv_state(t, run, run->n_rows, run->to);
}

/* Each thread has columns of its own. */
static void op_conv(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_recurrent *op = userdata;
    const quire_columns c = quire_columns_of(op->width, ith, nth);
    const conv_task task = {
        .op = op, .x = dst->src[0], .out = dst, .begin = c.begin, .end = c.end
    };

    for (uint32_t i = 0; i < quire_states_n_runs(op->states); i++) {
        conv_run(&task, quire_states_run(op->states, i));
    }
}

static struct ggml_tensor *conv_op_create(const quire_graph_build *b, struct ggml_tensor *x,
                                          uint32_t il)
{
    quire_graph_recurrent *op = &b->recurrent[il];
    struct ggml_tensor *args[] = { quire_graph_linear(b, b->weights->layers[il].conv_in, NULL, x) };
    struct ggml_tensor *y = ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32, op->width, b->n_rows, 1, 1,
                                           args, 1, op_conv, GGML_N_TASKS_MAX, op);

    ggml_build_forward_expand(b->graph->cgraph, y);
    return y;
}

struct ggml_tensor *quire_graph_recurrent_op(const quire_graph_build *b, struct ggml_tensor *x,
                                             uint32_t il)
{
    if (quire_mixer_is_mamba(b->desc->mixer[il])) {
        return quire_graph_mamba_op(b, x, il);
    }
    return b->desc->mixer[il] == QUIRE_MIXER_DELTA_NET ? quire_graph_delta_op(b, x, il)
                                                       : conv_op_create(b, x, il);
}
