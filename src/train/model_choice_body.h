/* model_choice_body.h - passes in one precision: the loss among a part of the vocabulary; see
 * model_pass.h. After model_memory_body.h.
 *
 * The rows of the output's weights that belong to the choices are copied into one short matrix. The
 * loss knows no other vocabulary then, and the gradient of the short matrix goes back to the rows.
 *
 * SPDX-License-Identifier: MIT */

static real *short_rows(QT(pass) * p, const real *weight)
{
    size_t d = p->shape.d_model;

    for (uint32_t i = 0; i < p->n_choices; i++) {
        memcpy(p->short_weight + i * d, weight + (size_t)p->choices[i] * d, d * sizeof(real));
    }
    return p->short_weight;
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

/* loss_run() with gradients, among the pass's choices. */
static double loss_among(QT(pass) * p, const QT(loss) * all, const QT(lesson) * lesson, real scale,
                         real *dweight)
{
    size_t d = p->shape.d_model;
    QT(loss) loss = *all;
    QT(teacher) teacher;
    double sum;

    loss.n_vocab = p->n_choices;
    loss.chunk = QT(loss_chunk)(p->n, p->n_choices);
    loss.weight = short_rows(p, all->weight);
    loss.targets = short_targets(p, all->targets);
    if (lesson != NULL) {
        teacher = *all->teacher;
        teacher.weight = short_rows(lesson->teacher, all->teacher->weight);
        loss.teacher = &teacher;
    }
    memset(p->short_gradient, 0, p->n_choices * d * sizeof(real));
    sum = QT(loss_run)(&p->compute, &loss, scale, p->dnorm, p->short_gradient);
    for (uint32_t i = 0; i < p->n_choices; i++) {
        p->compute.rows->add(dweight + (size_t)p->choices[i] * d, p->short_gradient + i * d, d);
    }
    return sum;
}
