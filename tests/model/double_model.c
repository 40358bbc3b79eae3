/* double_model.c - see double_model.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "double_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gguf.h>

#define RMS_EPS 1e-5

typedef struct model {
    const gguf_gen_opts *o;
    struct ggml_context *tensors;
    uint32_t n;                             /* tokens */
    double *stored[GGUF_GEN_LAYERS_MAX][2]; /* [n][n_kv_head][d] K and V; NULL: none */
} model;

static double *zeros(size_t n)
{
    double *x = calloc(n, sizeof *x);

    assert_non_null(x);
    return x;
}

static const struct ggml_tensor *find(const model *m, uint32_t layer, const char *suffix)
{
    char name[GGML_MAX_NAME];

    (void)snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    return ggml_get_tensor(m->tensors, name);
}

static const float *values(const struct ggml_tensor *tensor)
{
    assert_non_null(tensor);
    return ggml_get_data_f32(tensor);
}

/* y[rows] = W x[columns] */
static void product(const struct ggml_tensor *w, const double *x, double *y)
{
    const float *a = values(w);

    for (int64_t r = 0; r < w->ne[1]; r++) {
        y[r] = 0.0;
        for (int64_t c = 0; c < w->ne[0]; c++) {
            y[r] += (double)a[r * w->ne[0] + c] * x[c];
        }
    }
}

static void norm(const struct ggml_tensor *weight, const double *x, uint32_t n, double *y)
{
    const float *w = values(weight);
    double squares = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        squares += x[i] * x[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(squares / n + RMS_EPS) * (double)w[i];
    }
}

/* A bias, where the model has one. */
static void add(const struct ggml_tensor *bias, double *y)
{
    for (int64_t i = 0; bias != NULL && i < bias->ne[0]; i++) {
        y[i] += (double)values(bias)[i];
    }
}

/* Heads of one token: normalised if the model does that, then turned by pairs (i, i + d / 2). */
static void heads_finish(const model *m, const struct ggml_tensor *weight, uint32_t position,
                         uint32_t n_heads, double *x)
{
    const uint32_t half = m->o->d_head / 2;
    const struct ggml_tensor *factors = ggml_get_tensor(m->tensors, "rope_freqs.weight");

    for (uint32_t h = 0; h < n_heads; h++, x += m->o->d_head) {
        if (weight != NULL) {
            norm(weight, x, m->o->d_head, x);
        }
        for (uint32_t i = 0; i < half; i++) {
            const double angle = position * pow((double)m->o->rope_base, -2.0 * i / m->o->d_head) /
                                 (factors != NULL ? (double)values(factors)[i] : 1.0);
            const double a = x[i], b = x[i + half];

            x[i] = a * cos(angle) - b * sin(angle);
            x[i + half] = a * sin(angle) + b * cos(angle);
        }
    }
}

/* The gate at dimension i of KV head g. */
static double gate_at(const struct ggml_tensor *gate, uint32_t g, uint32_t i)
{
    if (gate == NULL) {
        return 1.0;
    }
    return (double)values(gate)[(gate->ne[1] > 1 ? g * gate->ne[0] : 0) + i % gate->ne[0]];
}

/* K or V of all tokens as a layer reads it, [n][n_kv_head][d]. */
static double *fused(const model *m, uint32_t layer, bool is_k)
{
    const uint32_t d = m->o->d_head, n_heads = m->o->n_kv_head;
    const int32_t own[2] = { (int32_t)layer, -1 };
    const int32_t *sources = !m->o->has_map ? own
                             : is_k         ? m->o->k_sources[layer]
                                            : m->o->v_sources[layer];
    double *out = zeros((size_t)m->n * n_heads * d);

    for (uint32_t s = 0; s < 2 && sources[s] >= 0; s++) {
        const double *x = m->stored[sources[s]][is_k ? 0 : 1];
        char name[32];
        const struct ggml_tensor *gate;

        (void)snprintf(name, sizeof name, "attn_%c_gate.%u", is_k ? 'k' : 'v', s);
        gate = find(m, layer, name);
        for (size_t i = 0; i < (size_t)m->n * n_heads * d; i++) {
            out[i] += gate_at(gate, (uint32_t)(i / d % n_heads), (uint32_t)(i % d)) * x[i];
        }
    }
    return out;
}

/* One head of one token over the tokens from `first` up to it. */
static void attend(const model *m, uint32_t first, uint32_t token, const double *q, const double *k,
                   const double *v, double *out)
{
    const uint32_t d = m->o->d_head;
    const size_t stride = (size_t)m->o->n_kv_head * d;
    double *p = zeros(token + 1), most = -INFINITY, sum = 0.0;

    for (uint32_t t = first; t <= token; t++) {
        for (uint32_t i = 0; i < d; i++) {
            p[t] += q[i] * k[t * stride + i];
        }
        p[t] /= sqrt(d);
        most = p[t] > most ? p[t] : most;
    }
    for (uint32_t t = first; t <= token; t++) {
        p[t] = exp(p[t] - most);
        sum += p[t];
    }
    memset(out, 0, d * sizeof *out);
    for (uint32_t t = first; t <= token; t++) {
        for (uint32_t i = 0; i < d; i++) {
            out[i] += p[t] / sum * v[t * stride + i];
        }
    }
    free(p);
}

/* A layer may store a weighted sum of layer 0's K or V and its own. */
static void mix(model *m, uint32_t layer, bool is_k)
{
    const struct ggml_tensor *factors = find(m, layer, is_k ? "attn_k_mix" : "attn_v_mix");
    const size_t n = (size_t)m->n * m->o->n_kv_head * m->o->d_head;
    const double *first = m->stored[0][is_k ? 0 : 1];
    double *own = m->stored[layer][is_k ? 0 : 1];

    for (size_t i = 0; factors != NULL && i < n; i++) {
        own[i] = (double)values(factors)[0] * first[i] + (double)values(factors)[1] * own[i];
    }
}

static void store(model *m, uint32_t layer, const double *x)
{
    const gguf_gen_opts *o = m->o;
    const size_t width = (size_t)o->n_kv_head * o->d_head;
    double *h = zeros(o->n_embd);

    m->stored[layer][0] = zeros(m->n * width);
    m->stored[layer][1] = zeros(m->n * width);
    for (uint32_t t = 0; t < m->n; t++) {
        double *k = m->stored[layer][0] + t * width;

        norm(find(m, layer, "attn_norm.weight"), x + (size_t)t * o->n_embd, o->n_embd, h);
        product(find(m, layer, "attn_k.weight"), h, k);
        add(find(m, layer, "attn_k.bias"), k);
        heads_finish(m, find(m, layer, "attn_k_norm.weight"), t, o->n_kv_head, k);
        product(find(m, layer, "attn_v.weight"), h, m->stored[layer][1] + t * width);
        add(find(m, layer, "attn_v.bias"), m->stored[layer][1] + t * width);
    }
    mix(m, layer, true);
    mix(m, layer, false);
    free(h);
}

static void attention(const model *m, uint32_t layer, double *x)
{
    const gguf_gen_opts *o = m->o;
    const uint32_t group = o->n_head / o->n_kv_head;
    const uint32_t window = (uint32_t)o->windows[layer];
    double *h = zeros(o->n_embd);
    double *q = zeros((size_t)o->n_head * o->d_head), *y = zeros((size_t)o->n_head * o->d_head);
    double *k = fused(m, layer, true), *v = fused(m, layer, false);

    for (uint32_t t = 0; t < m->n; t++, x += o->n_embd) {
        norm(find(m, layer, "attn_norm.weight"), x, o->n_embd, h);
        product(find(m, layer, "attn_q.weight"), h, q);
        add(find(m, layer, "attn_q.bias"), q);
        heads_finish(m, find(m, layer, "attn_q_norm.weight"), t, o->n_head, q);
        for (uint32_t i = 0; i < o->n_head; i++) {
            const size_t kv = (size_t)(i / group) * o->d_head, at = (size_t)i * o->d_head;

            attend(m, window != 0 && t >= window ? t - window + 1 : 0, t, q + at, k + kv, v + kv,
                   y + at);
        }
        product(find(m, layer, "attn_output.weight"), y, h);
        for (uint32_t i = 0; i < o->n_embd; i++) {
            x[i] += h[i];
        }
    }
    free(v);
    free(k);
    free(y);
    free(q);
    free(h);
}

static void feed_forward(const model *m, uint32_t layer, double *x)
{
    const gguf_gen_opts *o = m->o;
    double *h = zeros(o->n_embd), *gate = zeros(o->n_ff), *up = zeros(o->n_ff);

    for (uint32_t t = 0; t < m->n; t++, x += o->n_embd) {
        norm(find(m, layer, "ffn_norm.weight"), x, o->n_embd, h);
        product(find(m, layer, "ffn_gate.weight"), h, gate);
        product(find(m, layer, "ffn_up.weight"), h, up);
        for (uint32_t i = 0; i < o->n_ff; i++) {
            up[i] *= gate[i] / (1.0 + exp(-gate[i]));
        }
        product(find(m, layer, "ffn_down.weight"), up, h);
        for (uint32_t i = 0; i < o->n_embd; i++) {
            x[i] += h[i];
        }
    }
    free(up);
    free(gate);
    free(h);
}

static float *logits_of(const model *m, const double *x)
{
    const gguf_gen_opts *o = m->o;
    const struct ggml_tensor *output =
        ggml_get_tensor(m->tensors, o->is_tied ? "token_embd.weight" : "output.weight");
    float *out = malloc((size_t)m->n * o->n_vocab * sizeof *out);
    double *h = zeros(o->n_embd), *y = zeros(o->n_vocab);

    assert_non_null(out);
    for (uint32_t t = 0; t < m->n; t++) {
        norm(ggml_get_tensor(m->tensors, "output_norm.weight"), x + (size_t)t * o->n_embd,
             o->n_embd, h);
        product(output, h, y);
        for (uint32_t i = 0; i < o->n_vocab; i++) {
            out[(size_t)t * o->n_vocab + i] = (float)y[i];
        }
    }
    free(y);
    free(h);
    return out;
}

float *double_model_logits(const char *path, const gguf_gen_opts *opts, const int32_t *tokens,
                           uint32_t n)
{
    model m = { .o = opts, .n = n };
    struct gguf_init_params params = { .ctx = &m.tensors };
    struct gguf_context *gguf = gguf_init_from_file(path, params);
    double *x = zeros((size_t)n * opts->n_embd);
    const float *embd;
    float *logits;

    assert_non_null(gguf);
    embd = values(ggml_get_tensor(m.tensors, "token_embd.weight"));
    for (size_t i = 0; i < (size_t)n * opts->n_embd; i++) {
        x[i] = (double)embd[(size_t)tokens[i / opts->n_embd] * opts->n_embd + i % opts->n_embd];
    }
    for (uint32_t l = 0; l < opts->n_layer; l++) {
        if (find(&m, l, "attn_k.weight") != NULL) {
            store(&m, l, x);
        }
        attention(&m, l, x);
        feed_forward(&m, l, x);
    }
    logits = logits_of(&m, x);
    for (uint32_t l = 0; l < opts->n_layer; l++) {
        free(m.stored[l][0]);
        free(m.stored[l][1]);
    }
    free(x);
    gguf_free(gguf);
    ggml_free(m.tensors);
    return logits;
}
