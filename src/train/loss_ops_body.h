/* loss_ops_body.h - the last linear map and the loss, in one precision; see ops.h.
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

/* Logits of some tokens become the gradient of scale times the loss; losses[] gets the loss. */
static void loss_rows(void *ctx, uint32_t part, uint32_t member)
{
    loss_part *run = ctx;
    const QT(loss) *o = run->o;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, LOSS_ROWS, run->n, &i, &end);
    for (; i < end; i++) {
        int32_t target = o->targets[run->first + i];
        real *row = o->logits + (size_t)i * o->n_vocab;

        o->losses[run->first + i] = 0;
        if (target == QUIRE_TRAIN_NO_TARGET) {
            memset(row, 0, o->n_vocab * sizeof(real));
            continue;
        }
        {
            real logit = row[target];

            o->losses[run->first + i] = run->c->rows->softmax(row, 1, o->n_vocab) - logit;
        }
        if (run->has_gradient) {
            row[target] -= 1;
            for (uint32_t j = 0; j < o->n_vocab; j++) {
                row[j] *= run->scale;
            }
        }
    }
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
