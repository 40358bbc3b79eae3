/* model_pass_body.h - passes in one precision: the way forward; see model_pass.h. After
 * model_memory_body.h.
 *
 * SPDX-License-Identifier: MIT */

#define SIDE_K 0u
#define SIDE_V 1u

/* ---- K and V by the map ---- */

static const int32_t *side_sources(const QT(pass) * p, uint32_t layer, uint32_t side)
{
    return side == SIDE_K ? p->shape.source_k[layer] : p->shape.source_v[layer];
}

static bool side_is_gated(const QT(pass) * p, uint32_t layer, uint32_t side)
{
    return side == SIDE_K ? p->shape.is_gated_k[layer] : p->shape.is_gated_v[layer];
}

static const size_t *side_gates(const QT(pass) * p, uint32_t layer, uint32_t side)
{
    const quire_train_block *b = &p->layout.blocks[layer];

    return side == SIDE_K ? b->k_gate : b->v_gate;
}

static real *side_stored(const QT(pass) * p, int32_t layer, uint32_t side)
{
    return side == SIDE_K ? p->layers[layer].k : p->layers[layer].v;
}

static real *side_gradient(const QT(pass) * p, int32_t layer, uint32_t side)
{
    return side == SIDE_K ? p->layers[layer].dk : p->layers[layer].dv;
}

/* The gate's number for element j of a row of K or V. */
static uint32_t gate_index(const quire_train_shape *s, uint32_t j)
{
    return j % quire_train_gate_size(s);
}

/* The inputs of a layer's fusion: its sources, and its gates spread over all heads. */
static QT(fuse) side_fuse(QT(pass) * p, const real *parameters, uint32_t layer, uint32_t side)
{
    const int32_t *sources = side_sources(p, layer, side);
    QT(fuse) o = { .n = p->n, .d = p->kv_size, .n_sources = sources[1] >= 0 ? 2 : 1 };

    for (uint32_t i = 0; i < o.n_sources; i++) {
        const real *gate = parameters + side_gates(p, layer, side)[i];

        for (uint32_t j = 0; j < p->kv_size; j++) {
            p->gates[side][i][j] = gate[gate_index(&p->shape, j)];
        }
        o.x[i] = side_stored(p, sources[i], side);
        o.gates[i] = p->gates[side][i];
    }
    return o;
}

/* K or V that a layer reads: a layer's own or another's as it is, or fused into scratch. */
static const real *side_read(QT(pass) * p, const real *parameters, uint32_t layer, uint32_t side)
{
    if (side_is_gated(p, layer, side)) {
        QT(fuse) o = side_fuse(p, parameters, layer, side);

        QT(fuse_forward)(&p->compute, &o, p->fused[side]);
        return p->fused[side];
    }
    return side_stored(p, side_sources(p, layer, side)[0], side);
}

static bool side_is_mixed(const QT(pass) * p, uint32_t layer, uint32_t side)
{
    return side == SIDE_K ? p->shape.is_mixed_k[layer] : p->shape.is_mixed_v[layer];
}

static size_t side_mix(const QT(pass) * p, uint32_t layer, uint32_t side)
{
    const quire_train_block *b = &p->layout.blocks[layer];

    return side == SIDE_K ? b->k_mix : b->v_mix;
}

/* The inputs of a stored mix, as gates whose numbers are all equal. */
static QT(fuse) mix_fuse(QT(pass) * p, const real *parameters, uint32_t layer, uint32_t side)
{
    const real *factors = parameters + side_mix(p, layer, side);
    const pass_layer *l = &p->layers[layer];
    QT(fuse) o = { .n = p->n, .d = p->kv_size, .n_sources = 2 };

    o.x[0] = side_stored(p, 0, side);
    o.x[1] = side == SIDE_K ? l->k_own : l->v_own;
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < p->kv_size; j++) {
            p->gates[side][i][j] = factors[i];
        }
        o.gates[i] = p->gates[side][i];
    }
    return o;
}

static void mix_forward(QT(pass) * p, const real *parameters, uint32_t layer, uint32_t side)
{
    if (side_is_mixed(p, layer, side)) {
        QT(fuse) o = mix_fuse(p, parameters, layer, side);

        QT(fuse_forward)(&p->compute, &o, side_stored(p, (int32_t)layer, side));
    }
}

/* ---- pieces that both ways use ---- */

static QT(rope) pass_rope(const QT(pass) * p, uint32_t n_head)
{
    return (QT(rope)){ p->n, n_head, p->shape.d_head, p->positions, p->cos, p->sin };
}

static QT(linear) pass_linear(const QT(pass) * p, const real *weight, uint32_t n_in, uint32_t n_out)
{
    return (QT(linear)){ p->n, n_in, n_out, weight };
}

static QT(norm) stream_norm(const QT(pass) * p, const real *x, const real *weight, real *inv)
{
    return (QT(norm)){ p->n, p->shape.d_model, (real)p->shape.norm_epsilon, x, weight, inv };
}

static QT(norm)
    head_norm(const QT(pass) * p, uint32_t n_head, const real *x, const real *weight, real *inv)
{
    return (
        QT(norm)){ p->n * n_head, p->shape.d_head, (real)p->shape.norm_epsilon, x, weight, inv };
}

static QT(attention) pass_attention(QT(pass) * p, const quire_train_batch *batch,
                                    const real *parameters, uint32_t layer)
{
    const quire_train_shape *s = &p->shape;

    return (QT(attention)){ .n_rows = p->n_rows,
                            .n_tokens = p->n_tokens,
                            .n_head = s->n_head,
                            .n_kv_head = s->n_kv_head,
                            .d = s->d_head,
                            .window = s->window[layer],
                            .first = batch->first,
                            .q = p->layers[layer].q,
                            .k = side_read(p, parameters, layer, SIDE_K),
                            .v = side_read(p, parameters, layer, SIDE_V),
                            .out = p->layers[layer].heads,
                            .lse = p->layers[layer].lse };
}

/* ---- forward ---- */

/* Places of the weights of Q, K or V. */
typedef struct side_weights {
    size_t map;
    size_t bias;
    size_t norm;
} side_weights;

static side_weights weights_of(const quire_train_block *b, char side)
{
    return side == 'q'   ? (side_weights){ b->q, b->q_bias, b->q_norm }
           : side == 'k' ? (side_weights){ b->k, b->k_bias, b->k_norm }
                         : (side_weights){ b->v, b->v_bias, QUIRE_TRAIN_ABSENT };
}

/* Q, K or V of `size` elements as the linear map and its bias give it. */
static void raw_forward(QT(pass) * p, const real *parameters, const real *x,
                        const side_weights *weights, uint32_t size, real *raw)
{
    QT(linear) map = pass_linear(p, parameters + weights->map, p->shape.d_model, size);

    QT(linear_forward)(&p->compute, &map, x, raw, false);
    if (p->shape.has_qkv_bias) {
        QT(bias_add)(&p->compute, p->n, size, parameters + weights->bias, raw);
    }
}

/* Heads of Q or K: linear map, norm of heads where there is one, RoPE. */
static void heads_forward(QT(pass) * p, const real *parameters, const pass_layer *l,
                          const side_weights *weights, bool is_q)
{
    uint32_t n_head = is_q ? p->shape.n_head : p->shape.n_kv_head;
    QT(rope) rope = pass_rope(p, n_head);
    real *raw = is_q ? l->q_raw : l->k_raw;
    real *to = is_q ? l->q : l->k_own;

    raw_forward(p, parameters, l->attn_x, weights, n_head * p->shape.d_head, raw);
    if (p->shape.has_qk_norm) {
        QT(norm)
        norm = head_norm(p, n_head, raw, parameters + weights->norm, is_q ? l->q_inv : l->k_inv);

        QT(norm_forward)(&p->compute, &norm, to);
    }
    QT(rope_apply)(&p->compute, &rope, to, false);
}

static void attention_forward(QT(pass) * p, const real *parameters, const quire_train_batch *batch,
                              uint32_t layer)
{
    const quire_train_block *b = &p->layout.blocks[layer];
    pass_layer *l = &p->layers[layer];
    QT(norm) norm = stream_norm(p, l->x, parameters + b->attn_norm, l->attn_inv);
    QT(linear) out_map = pass_linear(p, parameters + b->out, p->q_size, p->shape.d_model);
    side_weights q = weights_of(b, 'q'), k = weights_of(b, 'k'), v = weights_of(b, 'v');
    QT(attention) attention;

    QT(norm_forward)(&p->compute, &norm, l->attn_x);
    heads_forward(p, parameters, l, &q, true);
    if (l->k != NULL) {
        heads_forward(p, parameters, l, &k, false);
    }
    if (l->v != NULL) {
        raw_forward(p, parameters, l->attn_x, &v, p->kv_size, l->v_own);
    }
    mix_forward(p, parameters, layer, SIDE_K);
    mix_forward(p, parameters, layer, SIDE_V);
    attention = pass_attention(p, batch, parameters, layer);
    QT(attention_forward)(&p->compute, &attention);
    memcpy(l->middle, l->x, (size_t)p->n * p->shape.d_model * sizeof(real));
    QT(linear_forward)(&p->compute, &out_map, l->heads, l->middle, true);
}

static void ffn_forward(QT(pass) * p, const real *parameters, uint32_t layer, real *above)
{
    const quire_train_shape *s = &p->shape;
    const quire_train_block *b = &p->layout.blocks[layer];
    pass_layer *l = &p->layers[layer];
    QT(norm) norm = stream_norm(p, l->middle, parameters + b->ffn_norm, l->ffn_inv);
    QT(linear) gate = pass_linear(p, parameters + b->gate, s->d_model, s->d_ff);
    QT(linear) up = pass_linear(p, parameters + b->up, s->d_model, s->d_ff);
    QT(linear) down = pass_linear(p, parameters + b->down, s->d_ff, s->d_model);
    const real *const gate_up[2] = { l->gate_up[0], l->gate_up[1] };

    QT(norm_forward)(&p->compute, &norm, l->ffn_x);
    QT(linear_forward)(&p->compute, &gate, l->ffn_x, l->gate_up[0], false);
    QT(linear_forward)(&p->compute, &up, l->ffn_x, l->gate_up[1], false);
    QT(swiglu_forward)(&p->compute, p->n, s->d_ff, gate_up, p->act);
    memcpy(above, l->middle, (size_t)p->n * s->d_model * sizeof(real));
    QT(linear_forward)(&p->compute, &down, p->act, above, true);
}

static real *stream_above(const QT(pass) * p, uint32_t layer)
{
    return layer + 1 < p->shape.n_layer ? p->layers[layer + 1].x : p->top;
}

static void pass_forward(QT(pass) * p, const real *parameters, const quire_train_batch *batch)
{
    const quire_train_shape *s = &p->shape;
    QT(embed) embed = { batch->tokens, p->n, s->d_model };
    QT(norm) norm = stream_norm(p, p->top, parameters + p->layout.out_norm, p->top_inv);

    for (uint32_t i = 0; i < p->n; i++) {
        p->positions[i] = (int32_t)(i % p->n_tokens) - batch->first[i];
    }
    QT(embed_forward)(&p->compute, &embed, parameters + p->layout.embedding, p->layers[0].x);
    for (uint32_t layer = 0; layer < s->n_layer; layer++) {
        attention_forward(p, parameters, batch, layer);
        ffn_forward(p, parameters, layer, stream_above(p, layer));
    }
    QT(norm_forward)(&p->compute, &norm, p->top_x);
}
