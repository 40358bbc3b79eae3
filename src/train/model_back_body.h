/* model_back_body.h - passes in one precision: the way back; see model_pass.h. After
 * model_pass_body.h.
 *
 * SPDX-License-Identifier: MIT */

/* One run: the gradient of the stream is in dx all the way down. */
typedef struct back_run {
    QT(pass) * p;
    const real *parameters;
    const quire_train_batch *batch;
    const QT(lesson) * lesson; /* NULL: none */
    real scale;
    real *gradients;
} back_run;

/* A linear map's gradients: of its weights, and of its input. */
static void linear_back(const back_run *run, QT(linear) o, const real *const x_dy[2], real *dx,
                        bool is_added)
{
    QT(linear_back_weight)
    (&run->p->compute, &o, x_dy[0], x_dy[1], run->gradients + (o.weight - run->parameters));
    QT(linear_back_input)(&run->p->compute, &o, x_dy[1], dx, is_added);
}

static void ffn_back(const back_run *run, uint32_t layer)
{
    QT(pass) *p = run->p;
    const quire_train_shape *s = &p->shape;
    const quire_train_block *b = &p->layout.blocks[layer];
    pass_layer *l = &p->layers[layer];
    const real *w = run->parameters;
    QT(norm) norm = stream_norm(p, l->middle, w + b->ffn_norm, l->ffn_inv);
    QT(linear) down = pass_linear(p, w + b->down, s->d_ff, s->d_model);
    real *const gate_up_y[3] = { l->gate_up[0], l->gate_up[1], p->act };

    QT(linear_back_input)(&p->compute, &down, p->dx, p->dact, false);
    QT(swiglu_back)(&p->compute, p->n, s->d_ff, gate_up_y, p->dact);
    QT(linear_back_weight)(&p->compute, &down, p->act, p->dx, run->gradients + b->down);
    linear_back(run, pass_linear(p, w + b->gate, s->d_model, s->d_ff),
                (const real *const[2]){ l->ffn_x, l->gate_up[0] }, p->dnorm, false);
    linear_back(run, pass_linear(p, w + b->up, s->d_model, s->d_ff),
                (const real *const[2]){ l->ffn_x, l->gate_up[1] }, p->dnorm, true);
    QT(norm_back)(&p->compute, &norm, p->dnorm, p->dx, run->gradients + b->ffn_norm);
}

/* Where the gradient of K or V that a layer reads is added: to its source, or to scratch that
 * fuse_back() hands on. */
static real *side_gradient_read(const back_run *run, uint32_t layer, uint32_t side)
{
    QT(pass) *p = run->p;

    if (side_is_gated(p, layer, side)) {
        memset(p->dfused[side], 0, (size_t)p->n * p->kv_size * sizeof(real));
        return p->dfused[side];
    }
    return side_gradient(p, side_sources(p, layer, side)[0], side);
}

/* The gradient of fused K or V goes to the sources and to the gates. */
static void side_fuse_back(const back_run *run, uint32_t layer, uint32_t side)
{
    QT(pass) *p = run->p;
    const int32_t *sources = side_sources(p, layer, side);
    real *dx[2] = { NULL, NULL };
    QT(fuse) o;

    if (!side_is_gated(p, layer, side)) {
        return;
    }
    o = side_fuse(p, run->parameters, layer, side);
    for (uint32_t i = 0; i < o.n_sources; i++) {
        dx[i] = side_gradient(p, sources[i], side);
        memset(p->dgates[side][i], 0, p->kv_size * sizeof(real));
    }
    QT(fuse_back)(&p->compute, &o, p->dfused[side], dx, p->dgates[side]);
    for (uint32_t i = 0; i < o.n_sources; i++) {
        real *dgate = run->gradients + side_gates(p, layer, side)[i];

        for (uint32_t j = 0; j < p->kv_size; j++) {
            dgate[gate_index(&p->shape, j)] += p->dgates[side][i][j];
        }
    }
}

/* The gradient of a layer's stored K or V: of a mix it goes to layer 0, to the factors, and, in
 * scratch, to the layer's own side. All readers of the layer lie above and have had their turn. */
static real *mix_back(const back_run *run, uint32_t layer, uint32_t side)
{
    QT(pass) *p = run->p;
    real *stored = side_gradient(p, (int32_t)layer, side), *own = p->dfused[side];
    real *dfactors;
    QT(fuse) o;

    if (!side_is_mixed(p, layer, side)) {
        return stored;
    }
    dfactors = run->gradients + side_mix(p, layer, side);
    o = mix_fuse(p, run->parameters, layer, side);
    memset(own, 0, (size_t)p->n * p->kv_size * sizeof(real));
    for (uint32_t i = 0; i < 2; i++) {
        memset(p->dgates[side][i], 0, p->kv_size * sizeof(real));
    }
    QT(fuse_back)
    (&p->compute, &o, stored, (real *const[2]){ side_gradient(p, 0, side), own }, p->dgates[side]);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < p->kv_size; j++) {
            dfactors[i] += p->dgates[side][i][j];
        }
    }
    return own;
}

/* The gradient of Q, K or V before norm and RoPE goes to the bias, the map and dnorm. */
static void raw_back(const back_run *run, const pass_layer *l, const side_weights *weights,
                     uint32_t size, const real *draw, bool is_added)
{
    QT(pass) *p = run->p;

    if (p->shape.has_qkv_bias) {
        QT(bias_back)(&p->compute, p->n, size, draw, run->gradients + weights->bias);
    }
    linear_back(run, pass_linear(p, run->parameters + weights->map, p->shape.d_model, size),
                (const real *const[2]){ l->attn_x, draw }, p->dnorm, is_added);
}

/* The gradient of heads after RoPE goes to the norm of heads, the bias, the map and dnorm. */
static void heads_back(const back_run *run, const pass_layer *l, const side_weights *weights,
                       bool is_q, real *dheads)
{
    QT(pass) *p = run->p;
    uint32_t n_head = is_q ? p->shape.n_head : p->shape.n_kv_head;
    uint32_t size = n_head * p->shape.d_head;
    QT(rope) rope = pass_rope(p, n_head);

    QT(rope_apply)(&p->compute, &rope, dheads, true);
    if (p->shape.has_qk_norm) {
        QT(norm)
        norm = head_norm(p, n_head, is_q ? l->q_raw : l->k_raw, run->parameters + weights->norm,
                         is_q ? l->q_inv : l->k_inv);

        memset(p->draw, 0, (size_t)p->n * size * sizeof(real));
        QT(norm_back)(&p->compute, &norm, dheads, p->draw, run->gradients + weights->norm);
        dheads = p->draw;
    }
    raw_back(run, l, weights, size, dheads, !is_q);
}

/* The teacher's queries and keys of a layer, for lessons about attention. */
static bool attention_guide(const back_run *run, uint32_t layer, QT(guide) * guide)
{
    const QT(lesson) *lesson = run->lesson;
    QT(pass) *t = lesson != NULL ? lesson->teacher : NULL;
    QT(attention) theirs;

    if (t == NULL || !(lesson->attention > 0) || layer < t->kept_from) {
        return false;
    }
    theirs = pass_attention(t, run->batch, lesson->parameters, layer);
    *guide = (QT(guide)){ .n_kv_head = theirs.n_kv_head,
                          .d = theirs.d,
                          .q = theirs.q,
                          .k = theirs.k,
                          .targets = run->batch->targets,
                          .factor = 1 / (real)((t->shape.n_layer - t->kept_from) * theirs.n_head),
                          .scale = run->scale * lesson->attention,
                          .divergences = t->attentions };
    return true;
}

static void attention_back(const back_run *run, uint32_t layer)
{
    QT(pass) *p = run->p;
    const quire_train_block *b = &p->layout.blocks[layer];
    pass_layer *l = &p->layers[layer];
    const real *w = run->parameters;
    side_weights q = weights_of(b, 'q'), k = weights_of(b, 'k'), v = weights_of(b, 'v');
    QT(norm) norm = stream_norm(p, l->x, w + b->attn_norm, l->attn_inv);
    QT(attention) attention = pass_attention(p, run->batch, w, layer);
    real *const gradients[3] = { p->dq, side_gradient_read(run, layer, SIDE_K),
                                 side_gradient_read(run, layer, SIDE_V) };
    QT(guide) guide;

    attention.guide = attention_guide(run, layer, &guide) ? &guide : NULL;
    linear_back(run, pass_linear(p, w + b->out, p->q_size, p->shape.d_model),
                (const real *const[2]){ l->heads, p->dx }, p->dheads, false);
    QT(attention_back)(&p->compute, &attention, p->dheads, gradients);
    side_fuse_back(run, layer, SIDE_K);
    side_fuse_back(run, layer, SIDE_V);
    heads_back(run, l, &q, true, p->dq);
    if (l->k != NULL) {
        heads_back(run, l, &k, false, mix_back(run, layer, SIDE_K));
    }
    if (l->v != NULL) {
        raw_back(run, l, &v, p->kv_size, mix_back(run, layer, SIDE_V), true);
    }
    QT(norm_back)(&p->compute, &norm, p->dnorm, p->dx, run->gradients + b->attn_norm);
}

static void clear_stored(QT(pass) * p)
{
    size_t bytes = (size_t)p->n * p->kv_size * sizeof(real);

    for (uint32_t i = 0; i < p->shape.n_layer; i++) {
        if (p->layers[i].dk != NULL) {
            memset(p->layers[i].dk, 0, bytes);
        }
        if (p->layers[i].dv != NULL) {
            memset(p->layers[i].dv, 0, bytes);
        }
    }
}

/* The distance of the stream above a layer from the teacher's, and, with dx, its gradient there. */
static void hidden_back(const back_run *run, uint32_t layer, real *dx)
{
    const QT(lesson) *lesson = run->lesson;
    const QT(pass) *t = lesson != NULL ? lesson->teacher : NULL;
    QT(distance) o;

    if (t == NULL || !(lesson->hidden > 0) || layer < t->kept_from) {
        return;
    }
    o = (QT(distance)){ .n = run->p->n,
                        .d = run->p->shape.d_model,
                        .targets = run->batch->targets,
                        .x = stream_above(run->p, layer),
                        .theirs = stream_above(t, layer),
                        .factor = 1 / (real)(t->shape.n_layer - t->kept_from),
                        .distances = t->distances };
    QT(distance_run)(&run->p->compute, &o, run->scale * lesson->hidden, dx);
}

/* From the gradient of the last norm's result, which is in dnorm. */
static void pass_back(const back_run *run)
{
    QT(pass) *p = run->p;
    const quire_train_layout *layout = &p->layout;
    QT(embed) embed = { run->batch->tokens, p->n, p->shape.d_model };
    QT(norm) norm = stream_norm(p, p->top, run->parameters + layout->out_norm, p->top_inv);

    clear_stored(p);
    memset(p->dx, 0, (size_t)p->n * p->shape.d_model * sizeof(real));
    QT(norm_back)(&p->compute, &norm, p->dnorm, p->dx, run->gradients + layout->out_norm);
    for (uint32_t layer = p->shape.n_layer; layer-- > 0;) {
        hidden_back(run, layer, p->dx);
        ffn_back(run, layer);
        attention_back(run, layer);
    }
    QT(embed_back)(&p->compute, &embed, p->dx, run->gradients + layout->embedding);
}

double QT(pass_run_taught)(QT(pass) * p, const real *parameters, const quire_train_batch *batch,
                           const QT(lesson) * lesson, real scale, real *gradients)
{
    QT(loss)
    loss = { .n = p->n,
             .d = p->shape.d_model,
             .n_vocab = p->shape.n_vocab,
             .chunk = p->chunk,
             .weight = parameters + p->layout.output,
             .x = p->top_x,
             .targets = batch->targets,
             .logits = p->logits,
             .losses = p->losses };
    const back_run run = { p, parameters, batch, lesson, scale, gradients };
    QT(teacher) teacher;
    double sum;

    QUIRE_CHECK(!p->is_teacher);
    if (lesson != NULL) {
        QT(pass) *t = lesson->teacher;

        QUIRE_CHECK(!(lesson->hidden > 0) || t->keeps_hidden);
        QUIRE_CHECK(!(lesson->attention > 0) || t->keeps_attention);
        pass_forward(t, lesson->parameters, batch);
        memset(t->distances, 0, t->n * sizeof(real));
        if (t->keeps_attention) {
            memset(t->attentions, 0, (size_t)t->n * t->shape.n_head * sizeof(real));
        }
        teacher = (QT(teacher)){ .d = t->shape.d_model,
                                 .weight = lesson->parameters + t->layout.output,
                                 .x = t->top_x,
                                 .logits = t->logits,
                                 .spare = t->spare,
                                 .share = lesson->share,
                                 .divergences = t->divergences };
        loss.teacher = &teacher;
    }
    pass_forward(p, parameters, batch);
    if (gradients == NULL) {
        for (uint32_t layer = p->shape.n_layer; layer-- > 0;) {
            hidden_back(&run, layer, NULL);
        }
        return QT(loss_run)(&p->compute, &loss, scale, NULL, NULL);
    }
    if (p->n_choices > 0) {
        sum = loss_among(p, &loss, lesson, scale, gradients + p->layout.output);
    } else {
        sum = QT(loss_run)(&p->compute, &loss, scale, p->dnorm, gradients + p->layout.output);
    }
    pass_back(&run);
    return sum;
}

double QT(pass_run)(QT(pass) * p, const real *parameters, const quire_train_batch *batch,
                    real scale, real *gradients)
{
    return QT(pass_run_taught)(p, parameters, batch, NULL, scale, gradients);
}
