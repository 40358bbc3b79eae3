/* shift_heads.c - first weights with which two layers compare the preceding tokens; see shape.h.
 *
 * The stream is cut into slots of equal size. Embeddings lie in slot 0, whose first element is
 * equal for all tokens and large, so that linear maps have a constant.
 *
 * Layer 0, head h: from the constant, K is the same vector at each token, and Q that vector rotated
 * back by h + 1 positions. After RoPE the score depends on the distance alone and is highest there.
 * V is the embedding, and the result goes to slot h + 1: slot i has the token i positions before.
 *
 * Matching layer, the lowest other one that reads its own K and V: Q is a random map of slots 0, 1,
 * ... and K the same map of slots 1, 2, ...: the score is high for tokens that come after copies of
 * the query's token and of the tokens before it. V is the embedding, added to slot 0: tokens that
 * came after such copies become more probable. Pairs of elements that rotate fast are left out.
 *
 * SPDX-License-Identifier: MIT */
#include "train/shape.h"

#include "base/rng.h"

#include <math.h>

#define DEVIATION   0.02 /* of an embedding's elements */
#define ELSEWHERE   0.1  /* of it, outside of slot 0 */
#define CONSTANT    8.0  /* deviations */
#define SHIFT_PAIRS 4u   /* that a head of layer 0 compares: those that rotate fastest */
#define SHIFT_SCORE 60.0 /* of a pair at the distance, before the division by sqrt(d_head) */
#define MATCH       0.2  /* deviation of the maps to Q and K of the matching layer */
#define COPY        3.0  /* an embedding that all matching heads find, in embeddings */

typedef struct starter {
    const quire_train_layout *l;
    const quire_train_shape *s;
    float *parameters;
    uint32_t matching; /* a layer */
    uint32_t slot;     /* elements of one */
    uint32_t n_code;   /* of an embedding: a slot without the constant, at most a head */
} starter;

/* Elements of an embedding after the norm of a layer whose stream has n slots filled. */
static double normed(const starter *o, uint32_t n)
{
    return 1 / sqrt((n * o->n_code + CONSTANT * CONSTANT) / o->s->d_model);
}

/* The weight of a matrix [rows][d_model] of a layer's head. */
static float *weight_of(const starter *o, size_t matrix, uint32_t head, uint32_t row)
{
    return o->parameters + matrix + ((size_t)head * o->s->d_head + row) * o->s->d_model;
}

static void embeddings(const starter *o)
{
    for (uint32_t t = 0; t < o->s->n_vocab; t++) {
        float *x = o->parameters + o->l->embedding + (size_t)t * o->s->d_model;

        x[0] = (float)(CONSTANT * DEVIATION);
        for (uint32_t i = o->n_code + 1; i < o->s->d_model; i++) {
            x[i] *= (float)ELSEWHERE;
        }
    }
}

/* V of a head is the embedding; its result goes to a slot, `size` in normed elements. */
static void copy_code(const starter *o, uint32_t layer, uint32_t head, uint32_t slot, double size)
{
    const quire_train_block *b = &o->l->blocks[layer];
    uint32_t group = o->s->n_head / o->s->n_kv_head;
    size_t q_size = (size_t)o->s->n_head * o->s->d_head;

    for (uint32_t i = 0; i < o->n_code; i++) {
        float *v = weight_of(o, b->v, head / group, i);
        float *out = o->parameters + b->out + head * o->s->d_head + i;

        for (uint32_t j = 0; j < o->s->d_model; j++) {
            v[j] = j == 1 + i;
            out[j * q_size] = j == slot * o->slot + 1 + i ? (float)size : 0;
        }
    }
}

/* Weights of the constant in the rows of a pair (j, j + d/2) of a head, for an angle. */
static void pair_set(const starter *o, size_t matrix, const uint32_t head_pair[2], double angle)
{
    double size = sqrt(SHIFT_SCORE) / (CONSTANT * normed(o, 1));
    uint32_t j = head_pair[1];

    weight_of(o, matrix, head_pair[0], j)[0] = (float)(size * cos(angle));
    weight_of(o, matrix, head_pair[0], j + o->s->d_head / 2)[0] = (float)(size * sin(angle));
}

static void shift_heads(const starter *o)
{
    const quire_train_shape *s = o->s;
    const quire_train_block *b = &o->l->blocks[0];
    uint32_t group = s->n_head / s->n_kv_head;

    for (uint32_t h = 0; h < s->n_head; h++) {
        for (uint32_t j = 0; j < SHIFT_PAIRS && j < s->d_head / 2; j++) {
            double angle = (h + 1) * pow(s->rope_base, -2.0 * j / s->d_head);

            pair_set(o, b->q, (const uint32_t[2]){ h, j }, -angle);
            pair_set(o, b->k, (const uint32_t[2]){ h / group, j }, 0);
        }
        copy_code(o, 0, h, h + 1, DEVIATION / normed(o, 1));
    }
}

/* Row j of head h of Q, and of its K, by the map's numbers for the row. */
static void match_row(const starter *o, uint32_t h, uint32_t j, const quire_rng *numbers)
{
    const quire_train_block *b = &o->l->blocks[o->matching];
    uint32_t group = o->s->n_head / o->s->n_kv_head;
    quire_rng rng = *numbers;

    for (uint32_t slot = 0; slot < o->s->n_head; slot++) {
        for (uint32_t i = 0; i < o->n_code; i++) {
            float number = (float)(MATCH * quire_rng_normal(&rng));

            weight_of(o, b->q, h, j)[slot * o->slot + 1 + i] = number;
            weight_of(o, b->k, h / group, j)[(slot + 1) * o->slot + 1 + i] = number;
        }
    }
}

static void match_heads(const starter *o, uint64_t seed)
{
    const quire_train_shape *s = o->s;
    uint32_t group = s->n_head / s->n_kv_head, half = s->d_head / 2;
    double size = COPY * DEVIATION / (normed(o, s->n_head + 1) * s->n_head);

    for (uint32_t h = 0; h < s->n_head; h++) {
        for (uint32_t j = half / 2; j < half; j++) {
            quire_rng rng = { seed + ((uint64_t)(h / group) << 32) + j };

            match_row(o, h, j, &rng);
            (void)quire_rng_next(&rng);
            rng.state = quire_rng_next(&rng);
            match_row(o, h, j + half, &rng);
        }
        copy_code(o, o->matching, h, 0, size);
    }
}

/* Whether a layer stores the K and V that it reads, as it made them, and sees the whole text. */
static bool is_own(const quire_train_shape *s, uint32_t layer)
{
    return quire_train_stores_k(s, layer) && quire_train_stores_v(s, layer) &&
           !s->is_mixed_k[layer] && !s->is_mixed_v[layer] && s->window[layer] == 0;
}

/* The lowest layer above layer 0 that is its own; n_layer: none. */
static uint32_t matching_layer(const quire_train_shape *s)
{
    uint32_t layer = 1;

    while (layer < s->n_layer && !is_own(s, layer)) {
        layer++;
    }
    return layer;
}

bool quire_train_shift_heads_fit(const quire_train_shape *s)
{
    uint32_t slot = s->d_model / (s->n_head + 1);

    return !s->has_qk_norm && !s->has_rope_factors && is_own(s, 0) &&
           matching_layer(s) < s->n_layer && slot >= 2;
}

void quire_train_shift_heads(const quire_train_layout *l, const quire_train_shape *s, uint64_t seed,
                             float *parameters)
{
    starter o = { l, s, parameters, matching_layer(s), s->d_model / (s->n_head + 1), 0 };

    o.n_code = o.slot - 1 < s->d_head ? o.slot - 1 : s->d_head;
    embeddings(&o);
    shift_heads(&o);
    match_heads(&o, seed);
}
