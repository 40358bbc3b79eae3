/* model_memory_body.h - passes in one precision: creation and memory; see model_pass.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/parts.h"

#include <stdlib.h>
#include <string.h>

/* Activations of a layer, kept for the way back. */
typedef struct pass_layer {
    real *x;        /* [n][d_model] the stream below */
    real *attn_x;   /* [n][d_model] after the norm */
    real *attn_inv; /* [n] */
    real *q_raw;    /* [n][n_head d_head] before the norm of heads; q without one */
    real *q;
    real *q_inv; /* [n][n_head]; NULL without a norm of heads */
    real *k_raw; /* [n][n_kv_head d_head]; NULL, like the next four, when the layer stores no K */
    real *k;     /* K as readers of the layer see it */
    real *k_own; /* before the mix; k without one */
    real *k_inv;
    real *dk;
    real *v; /* NULL, like v_own and dv, when the layer stores no V */
    real *v_own;
    real *dv;
    real *heads;      /* [n][n_head d_head] attention's result */
    real *lse;        /* [n][n_head] */
    real *middle;     /* [n][d_model] the stream between attention and feed-forward */
    real *ffn_x;      /* [n][d_model] */
    real *ffn_inv;    /* [n] */
    real *gate_up[2]; /* [n][d_ff] */
} pass_layer;

struct QT(pass) {
    quire_train_shape shape;
    quire_train_layout layout;
    QT(compute) compute;
    bool is_teacher; /* forward only; the threads belong to another pass */
    /* Of teachers: the stream above this layer and the ones over it is kept; n_layer: none is. */
    uint32_t kept_from;
    bool keeps_hidden;
    bool keeps_attention; /* likewise the queries of this layer and the ones over it */
    uint32_t n_rows;
    uint32_t n_tokens;
    uint32_t n; /* tokens of a batch */
    uint32_t q_size;
    uint32_t kv_size;
    pass_layer *layers; /* [n_layer] */
    real *memory;       /* all below */
    int32_t *positions; /* [n] in the document */
    real *cos;          /* [n_tokens][d_head / 2] */
    real *sin;
    real *top;     /* [n][d_model] the stream above the last layer */
    real *top_x;   /* after the last norm */
    real *top_inv; /* [n] */
    real *logits;  /* [chunk][n_vocab] */
    real *losses;  /* [n] */
    uint32_t chunk;
    /* Choices, if there are any; see model_choice_body.h. Teachers have the first four alone. */
    uint32_t n_choices;    /* 0: the whole vocabulary */
    uint32_t n_turns;      /* 0: other tokens have none */
    uint32_t n_short_most; /* choices, and the other tokens of a turn */
    real *short_weight;    /* [n_short_most][d_model] */
    int32_t *choices;      /* [n_choices], then [n_vocab - n_choices] the others */
    uint32_t n_short;      /* now */
    int32_t *shorts;       /* [n_short_most] the choices, then the tokens of the turn */
    real *short_bias;      /* [n_short_most] */
    real *short_gradient;  /* [n_short_most][d_model] */
    int32_t *choice_of;    /* [n_vocab] the place of a token among the choices */
    int32_t *short_target; /* [n] */
    real *spare;           /* [n_threads][n_vocab]; of teachers, like the next */
    real *divergences;     /* [n] */
    real *distances;       /* [n] */
    real *attentions;      /* [n_rows][n_head][n_tokens]; NULL: queries are not kept */
    real *fused[2];        /* [n][kv_size] K and V of a layer that fuses */
    real *gates[2][2];     /* [kv_size] of its sides and sources, for all heads */
    real *dgates[2][2];    /* [kv_size] */
    /* The way back. */
    real *dx;        /* [n][d_model] gradient of the stream */
    real *dnorm;     /* [n][d_model] gradient of a norm's result */
    real *dq;        /* [n][q_size] */
    real *draw;      /* [n][q_size] before the norm of heads */
    real *dheads;    /* [n][q_size] */
    real *dfused[2]; /* [n][kv_size] */
    real *act;       /* [n][d_ff] */
    real *dact;      /* [n][d_ff] */
};

/* ---- memory ---- */

/* One array of all activations: the first walk counts, the second gives places. */
typedef struct arena {
    real *base; /* NULL while counting */
    size_t n;
} arena;

static void take(arena *a, real **to, size_t n)
{
    *to = a->base != NULL ? a->base + a->n : NULL;
    a->n += (n + 15) / 16 * 16; /* lines of the cache */
}

static void take_stored(QT(pass) * p, arena *a, uint32_t index)
{
    const quire_train_shape *s = &p->shape;
    pass_layer *l = &p->layers[index];
    size_t n = p->n;

    l->k = l->k_raw = l->k_own = l->v = l->v_own = NULL;
    if (quire_train_stores_k(s, index)) {
        take(a, &l->k_raw, n * p->kv_size);
        l->k_own = l->k_raw;
        if (s->has_qk_norm) {
            take(a, &l->k_own, n * p->kv_size);
            take(a, &l->k_inv, n * s->n_kv_head);
        }
        l->k = l->k_own;
        if (s->is_mixed_k[index]) {
            take(a, &l->k, n * p->kv_size);
        }
    }
    if (quire_train_stores_v(s, index)) {
        take(a, &l->v_own, n * p->kv_size);
        l->v = l->v_own;
        if (s->is_mixed_v[index]) {
            take(a, &l->v, n * p->kv_size);
        }
    }
    if (quire_train_stores_k(s, index) && !p->is_teacher) {
        take(a, &l->dk, n * p->kv_size);
    }
    if (quire_train_stores_v(s, index) && !p->is_teacher) {
        take(a, &l->dv, n * p->kv_size);
    }
}

/* Without a way back, layers have nothing of their own but K and V, and streams that are kept. */
static void take_layer(QT(pass) * p, arena *a, uint32_t index)
{
    const quire_train_shape *s = &p->shape;
    pass_layer *l = &p->layers[index];
    size_t n = p->n;

    if (p->is_teacher && index > 0) {
        *l = p->layers[0];
        if (p->keeps_hidden && index > p->kept_from) {
            take(a, &l->x, n * s->d_model);
        }
        if (p->keeps_attention && index >= p->kept_from) {
            take(a, &l->q, n * p->q_size);
            l->q_raw = s->has_qk_norm ? l->q_raw : l->q;
        }
        take_stored(p, a, index);
        return;
    }
    take(a, &l->x, n * s->d_model);
    take(a, &l->attn_x, n * s->d_model);
    take(a, &l->attn_inv, n);
    take(a, &l->q_raw, n * p->q_size);
    l->q = l->q_raw;
    if (s->has_qk_norm) {
        take(a, &l->q, n * p->q_size);
        take(a, &l->q_inv, n * s->n_head);
    }
    take_stored(p, a, index);
    take(a, &l->heads, n * p->q_size);
    take(a, &l->lse, n * s->n_head);
    take(a, &l->middle, n * s->d_model);
    take(a, &l->ffn_x, n * s->d_model);
    take(a, &l->ffn_inv, n);
    take(a, &l->gate_up[0], n * s->d_ff);
    take(a, &l->gate_up[1], n * s->d_ff);
}

/* The way back. */
static void take_back(QT(pass) * p, arena *a)
{
    const quire_train_shape *s = &p->shape;
    size_t n = p->n;

    for (uint32_t side = 0; side < 2; side++) {
        take(a, &p->dfused[side], n * p->kv_size);
        for (uint32_t i = 0; i < 2; i++) {
            take(a, &p->dgates[side][i], p->kv_size);
        }
    }
    take(a, &p->dx, n * s->d_model);
    take(a, &p->dnorm, n * s->d_model);
    take(a, &p->dq, n * p->q_size);
    take(a, &p->draw, n * p->q_size);
    take(a, &p->dheads, n * p->q_size);
    take(a, &p->dact, n * s->d_ff);
    take(a, &p->short_gradient, (size_t)p->n_short_most * s->d_model);
    take(a, &p->short_bias, p->n_short_most);
}

/* Logits of a chunk: those of the whole vocabulary, or those of more tokens among the choices. */
static size_t logits_size(const QT(pass) * p)
{
    size_t all = (size_t)p->chunk * p->shape.n_vocab, few;

    if (p->n_choices == 0) {
        return all;
    }
    few = (size_t)QT(loss_chunk)(p->n, p->n_choices) * p->n_short_most;
    return few > all ? few : all;
}

static void take_all(QT(pass) * p, arena *a)
{
    const quire_train_shape *s = &p->shape;
    size_t n = p->n;

    for (uint32_t i = 0; i < s->n_layer; i++) {
        take_layer(p, a, i);
    }
    take(a, &p->cos, (size_t)p->n_tokens * s->d_head / 2);
    take(a, &p->sin, (size_t)p->n_tokens * s->d_head / 2);
    take(a, &p->top, n * s->d_model);
    take(a, &p->top_x, n * s->d_model);
    take(a, &p->top_inv, n);
    take(a, &p->logits, logits_size(p));
    take(a, &p->short_weight, (size_t)p->n_short_most * s->d_model);
    take(a, &p->losses, n);
    for (uint32_t side = 0; side < 2; side++) {
        take(a, &p->fused[side], n * p->kv_size);
        for (uint32_t i = 0; i < 2; i++) {
            take(a, &p->gates[side][i], p->kv_size);
        }
    }
    take(a, &p->act, n * s->d_ff);
    if (p->is_teacher) {
        take(a, &p->spare, (size_t)p->compute.n_threads * s->n_vocab);
        take(a, &p->divergences, n);
        take(a, &p->distances, n);
        if (p->keeps_attention) {
            take(a, &p->attentions, n * s->n_head);
        }
    } else {
        take_back(p, a);
    }
}

static int pass_memory(QT(pass) * p, quire_error *err)
{
    arena a = { NULL, 0 };

    p->layers = calloc(p->shape.n_layer, sizeof(*p->layers));
    p->positions = calloc(p->n, sizeof(*p->positions));
    QUIRE_FAIL_IF(p->layers == NULL || p->positions == NULL, QUIRE_NOMEM);
    take_all(p, &a);
    p->memory = a.n < SIZE_MAX / sizeof(real) ? calloc(a.n, sizeof(real)) : NULL;
    if (p->memory == NULL) {
        return quire_error_set(err, QUIRE_NOMEM,
                               "%zu MiB for the activations of %u tokens: out of memory; use fewer "
                               "rows and more steps between updates",
                               a.n * sizeof(real) >> 20, p->n);
    }
    a = (arena){ p->memory, 0 };
    take_all(p, &a);
    return QUIRE_OK;
}

/* Copy the choices; behind them the other tokens, and where each token stands among the choices. */
static int pass_choice_places(QT(pass) * p, const int32_t *choices)
{
    uint32_t n_vocab = p->shape.n_vocab, n = p->n_choices;

    p->choices = malloc(n_vocab * sizeof(*p->choices));
    p->shorts = malloc(p->n_short_most * sizeof(*p->shorts));
    p->choice_of = malloc(n_vocab * sizeof(*p->choice_of));
    p->short_target = malloc(p->n * sizeof(*p->short_target));
    QUIRE_FAIL_IF(p->choices == NULL || p->shorts == NULL || p->choice_of == NULL ||
                      p->short_target == NULL,
                  QUIRE_NOMEM);
    memcpy(p->choices, choices, n * sizeof(*p->choices));
    memcpy(p->shorts, choices, n * sizeof(*p->shorts));
    for (uint32_t i = 0; i < n_vocab; i++) {
        p->choice_of[i] = QUIRE_TRAIN_NO_TARGET;
    }
    for (uint32_t i = 0; i < p->n_choices; i++) {
        p->choice_of[p->choices[i]] = (int32_t)i;
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (p->choice_of[i] == QUIRE_TRAIN_NO_TARGET) {
            p->choices[n++] = (int32_t)i;
        }
    }
    return QUIRE_OK;
}

/* The choices of the options, or those of the pass that a teacher teaches. */
static int pass_choices(QT(pass) * p, const QT(pass_options) * options, quire_error *err)
{
    const QT(pass) *taught = options->taught;
    const int32_t *from = options->choices;
    uint32_t n_vocab = p->shape.n_vocab;

    p->n_choices = taught != NULL ? taught->n_choices : options->n_choices;
    p->n_turns = taught != NULL ? taught->n_turns : options->n_turns;
    if (p->n_choices == 0) {
        return QUIRE_OK;
    }
    if (taught != NULL) {
        p->n_short_most = taught->n_short_most;
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < p->n_choices; i++) {
        if (from[i] < 0 || from[i] >= (int32_t)n_vocab || (i > 0 && from[i] <= from[i - 1])) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "choice %u of the predicted tokens is %d: choices ascend and "
                                   "lie below %u",
                                   i, from[i], n_vocab);
        }
    }
    p->n_short_most = p->n_choices;
    if (p->n_turns > 0) {
        p->n_short_most += quire_parts_count(n_vocab - p->n_choices, p->n_turns);
    }
    return pass_choice_places(p, from);
}

/* The layers whose streams or queries a teacher keeps. */
static int pass_kept(QT(pass) * p, const QT(pass_options) * options, quire_error *err)
{
    const quire_train_shape *s = &options->taught->shape;

    if (options->keeps_attention &&
        (s->n_layer != p->shape.n_layer || s->n_head != p->shape.n_head)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "attention of a teacher with %u layers of %u heads, not %u of %u",
                               p->shape.n_layer, p->shape.n_head, s->n_layer, s->n_head);
    }
    if (options->keeps_hidden &&
        (s->n_layer != p->shape.n_layer || s->d_model != p->shape.d_model)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "hidden states of a teacher with %u layers of width %u, not %u of "
                               "%u",
                               p->shape.n_layer, p->shape.d_model, s->n_layer, s->d_model);
    }
    p->kept_from = quire_train_first_reader(s);
    if (p->kept_from == s->n_layer) {
        return quire_error_set(err, QUIRE_INVAL,
                               "distillation of %s needs a model in which layers read K or V of "
                               "others, not one of %s",
                               options->keeps_hidden ? "hidden states" : "attention", s->scheme);
    }
    return QUIRE_OK;
}

/* Threads, or those of the pass that a teacher teaches. */
static int pass_compute(QT(pass) * p, const QT(pass_options) * options, quire_error *err)
{
    const QT(pass) *taught = options->taught;
    uint32_t d_model = p->shape.d_model;
    uint32_t heads = p->shape.has_qkv_bias ? p->q_size : p->kv_size;

    if (taught == NULL) {
        QUIRE_TRY(QT(compute_init)(&p->compute, options->n_threads,
                                   d_model > heads ? d_model : heads,
                                   QT(attention_scratch)(p->n_tokens), err));
        p->compute.product = options->product != NULL ? options->product : p->compute.product;
        return QUIRE_OK;
    }
    p->is_teacher = true;
    if (taught->shape.n_vocab != p->shape.n_vocab || taught->n_rows != p->n_rows ||
        taught->n_tokens != p->n_tokens) {
        return quire_error_set(err, QUIRE_INVAL,
                               "a teacher of %u tokens in %u rows of %u, not of %u in %u of %u",
                               p->shape.n_vocab, p->n_rows, p->n_tokens, taught->shape.n_vocab,
                               taught->n_rows, taught->n_tokens);
    }
    p->compute = taught->compute;
    p->keeps_hidden = options->keeps_hidden;
    p->keeps_attention = options->keeps_attention;
    return p->keeps_hidden || p->keeps_attention ? pass_kept(p, options, err) : QUIRE_OK;
}

int QT(pass_create)(QT(pass) * *out, const QT(pass_options) * options, quire_error *err)
{
    uint64_t n = (uint64_t)options->n_rows * options->n_tokens;
    const quire_train_shape *s = options->shape;
    QT(pass) * p;
    int rc;

    QUIRE_TRY(quire_train_shape_check(s, err));
    if (n == 0 || n > QUIRE_TRAIN_BATCH_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "a batch of %u rows of %u tokens: 1 to %u tokens "
                               "are possible",
                               options->n_rows, options->n_tokens, QUIRE_TRAIN_BATCH_TOKENS_MAX);
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    p->shape = *s;
    p->n_rows = options->n_rows;
    p->n_tokens = options->n_tokens;
    p->n = (uint32_t)n;
    p->q_size = s->n_head * s->d_head;
    p->kv_size = s->n_kv_head * s->d_head;
    p->chunk = QT(loss_chunk)(p->n, s->n_vocab);
    p->kept_from = s->n_layer;
    rc = pass_compute(p, options, err);
    if (rc == QUIRE_OK) {
        rc = pass_choices(p, options, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_train_layout_init(&p->layout, s);
    }
    if (rc == QUIRE_OK) {
        rc = pass_memory(p, err);
    }
    if (rc < 0) {
        QT(pass_destroy)(p);
        return rc;
    }
    p->n_short = p->n_choices;
    if (!p->is_teacher) {
        QT(pass_turn)(p, 0);
    }
    QT(rope_tables)
    (p->cos, p->sin,
     &(QT(rope_angles)){ p->n_tokens, s->d_head, s->rope_base, quire_train_rope_factors(s) });
    *out = p;
    return QUIRE_OK;
}

void QT(pass_destroy)(QT(pass) * p)
{
    if (p != NULL) {
        if (!p->is_teacher) {
            QT(compute_fini)(&p->compute);
        }
        quire_train_layout_fini(&p->layout);
        free(p->layers);
        free(p->choices);
        free(p->shorts);
        free(p->choice_of);
        free(p->short_target);
        free(p->positions);
        free(p->memory);
        free(p);
    }
}

const quire_train_layout *QT(pass_layout)(const QT(pass) * p)
{
    return &p->layout;
}

const QT(compute) * QT(pass_compute)(const QT(pass) * p)
{
    return &p->compute;
}

const real *QT(pass_losses)(const QT(pass) * p)
{
    return p->losses;
}

const real *QT(pass_divergences)(const QT(pass) * p)
{
    return p->divergences;
}

const real *QT(pass_distances)(const QT(pass) * p)
{
    return p->distances;
}

double QT(pass_attentions)(const QT(pass) * p)
{
    double sum = 0;

    for (size_t i = 0; p->attentions != NULL && i < (size_t)p->n * p->shape.n_head; i++) {
        sum += (double)p->attentions[i];
    }
    return sum;
}
