/* model_choice_body.h - passes in one precision: the loss among a part of the vocabulary; see
 * model_pass.h. After model_memory_body.h.
 *
 * The rows of the output's weights that belong to the choices, and to the other tokens of a turn,
 * are copied into one short matrix. The loss knows no other vocabulary then, and the gradient of
 * the short matrix goes back to the rows. A logit of a token of a turn is raised by the logarithm
 * of the number of turns, so that the token counts as often in the sum of softmax.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>

void QT(pass_turn)(QT(pass) * p, uint64_t turn)
{
    uint32_t n_others = p->shape.n_vocab - p->n_choices, n = p->n_choices;

    if (p->n_choices == 0 || p->n_turns == 0) {
        return;
    }
    for (uint32_t i = (uint32_t)(turn % p->n_turns); i < n_others; i += p->n_turns) {
        p->short_bias[n] = (real)log(p->n_turns);
        p->shorts[n++] = p->choices[p->n_choices + i];
    }
    p->n_short = n;
}

/* The rows of `weight` that p predicts among, to to[n_short][d]. */
static const real *short_rows(const QT(pass) * p, const real *weight, real *to, size_t d)
{
    for (uint32_t i = 0; i < p->n_short; i++) {
        memcpy(to + i * d, weight + (size_t)p->shorts[i] * d, d * sizeof(real));
    }
    return to;
}

/* Tokens whose target is no choice count as tokens without a target. */
static const int32_t *short_targets(QT(pass) * p, const int32_t *targets)
{
    for (uint32_t i = 0; i < p->n; i++) {
        p->short_target[i] =
            targets[i] == QUIRE_TRAIN_NO_TARGET ? QUIRE_TRAIN_NO_TARGET : p->choice_of[targets[i]];
    }
    return p->short_target;
}

/* loss_run() with gradients, among the pass's choices and the tokens of its turn. */
static double loss_among(QT(pass) * p, const QT(loss) * all, const QT(lesson) * lesson, real scale,
                         real *dweight)
{
    size_t d = p->shape.d_model;
    QT(loss) loss = *all;
    QT(teacher) teacher;
    double sum;

    loss.n_vocab = p->n_short;
    loss.chunk = QT(loss_chunk)(p->n, p->n_short);
    loss.weight = short_rows(p, all->weight, p->short_weight, d);
    loss.targets = short_targets(p, all->targets);
    loss.bias = p->n_short > p->n_choices ? p->short_bias : NULL;
    if (lesson != NULL) {
        teacher = *all->teacher;
        teacher.weight = short_rows(p, all->teacher->weight, lesson->teacher->short_weight,
                                    lesson->teacher->shape.d_model);
        loss.teacher = &teacher;
    }
    memset(p->short_gradient, 0, p->n_short * d * sizeof(real));
    sum = QT(loss_run)(&p->compute, &loss, scale, p->dnorm, p->short_gradient);
    for (uint32_t i = 0; i < p->n_short; i++) {
        p->compute.rows->add(dweight + (size_t)p->shorts[i] * d, p->short_gradient + i * d, d);
    }
    return sum;
}
