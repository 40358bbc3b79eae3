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
    /* Of a teacher: it keeps the stream above each layer from the taught pass's first reader of K
     * or V of others on, for lessons about it. Memory: n_rows n_tokens d_model reals for each of
     * these layers but the last. */
    bool keeps_hidden;
    /* Of a teacher: it keeps the queries of these layers, for lessons about attention. Memory:
     * n_rows n_tokens n_head d_head reals for each layer. */
    bool keeps_attention;
    /* Runs with gradients predict among these tokens alone, as if the vocabulary had no others:
     * ascending, copied; n_choices 0: all tokens. A teacher has those of the taught pass. */
    const int32_t *choices;
    uint32_t n_choices;
    /* The other tokens take turns of this number: see pass_turn(). 0: they have none. */
    uint32_t n_turns;
    /* Of all matrices, those of attention too; NULL: the rows' own. A teacher has the taught
     * pass's. */
    QT(product_fn) * product;
} QT(pass_options);

/* Errors: those of quire_train_shape_check() and compute_init(); QUIRE_INVAL (a batch of no tokens
 * or of more than QUIRE_TRAIN_BATCH_TOKENS_MAX; a teacher with another vocabulary or batch;
 * hidden states of a teacher with another width or number of layers, attention of one with another
 * number of heads or layers, or either with no layer to compare;
 * choices that do not ascend or are no tokens); QUIRE_NOMEM, with the bytes asked for. */
int QT(pass_create)(QT(pass) * *out, const QT(pass_options) * options, quire_error *err);
void QT(pass_destroy)(QT(pass) * pass);

/* With choices and turns: runs from now on predict among the choices and the other tokens of turn
 * `turn` modulo n_turns. Each token that is no choice has one of n_turns turns and then counts
 * n_turns times in the sums of softmax, so that these sums are those of the whole vocabulary on
 * average. Without turns the logits of other tokens would drift, as nothing holds them. Before the
 * first call: turn 0. The source of the estimate: the sampled softmax of arXiv 1412.2007, here
 * without chance. */
void QT(pass_turn)(QT(pass) * pass, uint64_t turn);

const quire_train_layout *QT(pass_layout)(const QT(pass) * pass);
const QT(compute) * QT(pass_compute)(const QT(pass) * pass);

/* The sum of the losses of all tokens with a target. With gradients: adds the gradient of scale
 * times this sum, and the losses are those among the choices and those of the turn; a token whose
 * target is no choice
 * does not count. Without gradients the losses are those among all tokens. Cost: 2 (forward) or 6
 * FLOP per parameter and token, and attention; of the output, rows of choices alone count. */
double QT(pass_run)(QT(pass) * pass, const real *parameters, const quire_train_batch *batch,
                    real scale, real *gradients);

/* The same with a teacher, which runs forward over the batch first: gradients are those of scale
 * times (1 - share) losses + share divergences + hidden distances + attention times the divergences
 * of attention. The result is the sum of the losses alone. */
typedef struct QT(lesson) {
    QT(pass) * teacher;
    const real *parameters; /* the teacher's */
    real share;             /* 0 to 1 */
    real hidden;            /* at least 0; more needs a teacher that keeps hidden states */
    real attention;         /* at least 0; more needs a teacher that keeps attention */
} QT(lesson);
double QT(pass_run_taught)(QT(pass) * pass, const real *parameters, const quire_train_batch *batch,
                           const QT(lesson) * lesson, real scale, real *gradients);

/* Divergences of the last lesson by token [n_rows * n_tokens]: see ops_decl.h. Of the teacher. */
const real *QT(pass_divergences)(const QT(pass) * teacher);

/* Distances of the last lesson about hidden states by token [n_rows * n_tokens]: the mean of those
 * of ops_decl.h over the layers that the teacher keeps. Of the teacher. */
const real *QT(pass_distances)(const QT(pass) * teacher);

/* The sum over the tokens with a target of the divergences of attention of the last lesson with
 * gradients: means over heads, and over the layers from the first reader on. Of the teacher. */
double QT(pass_attentions)(const QT(pass) * teacher);

/* Losses of the last run by token [n_rows * n_tokens], 0 where there is no target. */
const real *QT(pass_losses)(const QT(pass) * pass);
