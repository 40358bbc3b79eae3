/* model_pass_decl.h - passes in one precision; see model_pass.h.
 *
 * SPDX-License-Identifier: MIT */

typedef struct QT(pass) QT(pass);

typedef struct QT(pass_options) {
    const quire_train_shape *shape; /* copied */
    uint32_t n_rows;
    uint32_t n_tokens;
    uint32_t n_threads;
    /* NULL: a pass that can run both ways, with threads of its own. Else the new pass is
     * the teacher of this one: it runs forward only, keeps little memory, and uses this pass's
     * threads. The teacher must be freed first. */
    const QT(pass) * taught;
} QT(pass_options);

/* Errors: those of quire_train_shape_check() and compute_init(); QUIRE_INVAL (a batch of no tokens
 * or of more than QUIRE_TRAIN_BATCH_TOKENS_MAX; a teacher with another vocabulary or batch);
 * QUIRE_NOMEM, with the bytes asked for. */
int QT(pass_create)(QT(pass) * *out, const QT(pass_options) * options, quire_error *err);
void QT(pass_destroy)(QT(pass) * pass);

const quire_train_layout *QT(pass_layout)(const QT(pass) * pass);
const QT(compute) * QT(pass_compute)(const QT(pass) * pass);

/* The sum of the losses of all tokens with a target. With gradients: adds the gradient of scale
 * times this sum. Cost: 2 (forward) or 6 FLOP per parameter and token, and attention. */
double QT(pass_run)(QT(pass) * pass, const real *parameters, const quire_train_batch *batch,
                    real scale, real *gradients);

/* The same with a teacher, which runs forward over the batch first: gradients are those of scale
 * times (1 - share) losses + share divergences. The result is the sum of the losses alone. */
typedef struct QT(lesson) {
    QT(pass) * teacher;
    const real *parameters; /* the teacher's */
    real share;             /* 0 to 1 */
} QT(lesson);
double QT(pass_run_taught)(QT(pass) * pass, const real *parameters, const quire_train_batch *batch,
                           const QT(lesson) * lesson, real scale, real *gradients);

/* Divergences of the last lesson by token [n_rows * n_tokens]: see ops_decl.h. Of the teacher. */
const real *QT(pass_divergences)(const QT(pass) * teacher);

/* Losses of the last run by token [n_rows * n_tokens], 0 where there is no target. */
const real *QT(pass_losses)(const QT(pass) * pass);
