/* loss_ops_body.h - the last linear map and the loss, and the distance of hidden states, in one
 * precision; see ops.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/parts.h"

#define LOSS_ROWS        16u
#define LOGITS_BYTES_MAX ((size_t)64 << 20)

uint32_t QT(loss_chunk)(uint32_t n, uint32_t n_vocab)
{
    size_t most = LOGITS_BYTES_MAX / sizeof(real) / n_vocab;

    most = most < LOSS_ROWS ? LOSS_ROWS : most;
    return most < n ? (uint32_t)most : n;
}

typedef struct loss_part {
    const QT(compute) * c;
    const QT(loss) * o;
    uint32_t first; /* token of the chunk */
    uint32_t n;
    real scale;
    bool has_gradient;
} loss_part;

/* The divergence of a row of logits from the teacher's, whose row becomes its probabilities. With
 * logits t and s of both: sum p (t - s) - log sum exp t + log sum exp s. The last term comes later.
 */
static real divergence_begin(const loss_part *run, uint32_t i, const real *row, uint32_t member)
{
    const QT(teacher) *teacher = run->o->teacher;
    size_t n = run->o->n_vocab;
    real *theirs = teacher->logits + i * n, *difference = teacher->spare + member * n;
    real lse;

    if (run->o->bias != NULL) {
        run->c->rows->add(theirs, run->o->bias, n);
    }
    for (size_t j = 0; j < n; j++) {
        difference[j] = theirs[j] - row[j];
    }
    lse = run->c->rows->softmax(theirs, 1, n);
    return run->c->rows->dot(theirs, difference, n) - lse;
}

/* Probabilities become the gradient: p - target, and of the teacher's share p - theirs. */
static void gradient_row(const loss_part *run, uint32_t i, int32_t target, real *row)
{
    const QT(teacher) *teacher = run->o->teacher;
    size_t n = run->o->n_vocab;
    real share = teacher != NULL ? teacher->share : 0;

    row[target] -= 1 - share;
    if (teacher != NULL) {
        const real *theirs = teacher->logits + i * n;

        for (size_t j = 0; j < n; j++) {
            row[j] -= share * theirs[j];
        }
    }
    for (size_t j = 0; j < n; j++) {
        row[j] *= run->scale;
    }
}

/* Logits of some tokens become the gradient of scale times the loss; losses[] gets the loss. */
static void loss_rows(void *ctx, uint32_t part, uint32_t member)
{
    loss_part *run = ctx;
    const QT(loss) *o = run->o;
    uint32_t i, end;

    quire_part_range(part, LOSS_ROWS, run->n, &i, &end);
    for (; i < end; i++) {
        uint32_t token = run->first + i;
        int32_t target = o->targets[token];
        real *row = o->logits + (size_t)i * o->n_vocab;
        real divergence = 0, logit, lse;

        o->losses[token] = 0;
        if (o->teacher != NULL) {
            o->teacher->divergences[token] = 0;
        }
        if (target == QUIRE_TRAIN_NO_TARGET) {
            memset(row, 0, o->n_vocab * sizeof(real));
            continue;
        }
        if (o->bias != NULL) {
            run->c->rows->add(row, o->bias, o->n_vocab);
        }
        if (o->teacher != NULL) {
            divergence = divergence_begin(run, i, row, member);
        }
        logit = row[target];
        lse = run->c->rows->softmax(row, 1, o->n_vocab);
        o->losses[token] = lse - logit;
        if (o->teacher != NULL) {
            o->teacher->divergences[token] = divergence + lse;
        }
        if (run->has_gradient) {
            gradient_row(run, i, target, row);
        }
    }
}

static void teacher_logits(QT(compute) * c, const QT(loss) * o, uint32_t first, uint32_t n)
{
    const QT(teacher) *teacher = o->teacher;
    QT(linear)
    map = { .n = n, .n_in = teacher->d, .n_out = o->n_vocab, .weight = teacher->weight };

    QT(linear_forward)
    (c, &map, teacher->x + (size_t)first * teacher->d, teacher->logits, false);
}

double QT(loss_run)(QT(compute) * c, const QT(loss) * o, real scale, real *dx, real *dweight)
{
    double sum = 0;

    for (uint32_t first = 0; first < o->n; first += o->chunk) {
        uint32_t n = o->n - first < o->chunk ? o->n - first : o->chunk;
        QT(linear) map = { .n = n, .n_in = o->d, .n_out = o->n_vocab, .weight = o->weight };
        loss_part run = { c, o, first, n, scale, dx != NULL };
        size_t at = (size_t)first * o->d;

        QT(linear_forward)(c, &map, o->x + at, o->logits, false);
        if (o->teacher != NULL) {
            teacher_logits(c, o, first, n);
        }
        quire_parts_run(c->team, quire_parts_count(n, LOSS_ROWS), loss_rows, &run);
        for (uint32_t i = 0; i < n; i++) {
            sum += (double)o->losses[first + i];
        }
        if (dx != NULL) {
            QT(linear_back_input)(c, &map, o->logits, dx + at, false);
            QT(linear_back_weight)(c, &map, o->x + at, o->logits, dweight);
        }
    }
    return sum;
}

/* ---- distances of streams ---- */

typedef struct distance_part {
    const QT(compute) * c;
    const QT(distance) * o;
    real scale;
    real *dx;
} distance_part;

static void distance_rows(void *ctx, uint32_t part, uint32_t member)
{
    const distance_part *run = ctx;
    const QT(distance) *o = run->o;
    size_t d = o->d;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, LOSS_ROWS, o->n, &i, &end);
    for (; i < end; i++) {
        const real *x = o->x + i * d;
        real *difference = o->theirs + i * d;
        real square = run->c->rows->dot(difference, difference, d), share;

        if (o->targets[i] == QUIRE_TRAIN_NO_TARGET || square == 0) {
            continue;
        }
        for (size_t j = 0; j < d; j++) {
            difference[j] = x[j] - difference[j];
        }
        share = o->factor / square;
        o->distances[i] += share * run->c->rows->dot(difference, difference, d);
        for (size_t j = 0; run->dx != NULL && j < d; j++) {
            run->dx[i * d + j] += 2 * run->scale * share * difference[j];
        }
    }
}

void QT(distance_run)(QT(compute) * c, const QT(distance) * o, real scale, real *dx)
{
    distance_part run = { c, o, scale, dx };

    quire_parts_run(c->team, quire_parts_count(o->n, LOSS_ROWS), distance_rows, &run);
}
