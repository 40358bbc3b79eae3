/* trainer.c - see trainer.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/trainer.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "train/bf16.h"
#include "train/parts.h"
#include "train/product_bf16.h"
#include "train/product_rate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UPDATE_EACH 65536u /* parameters in a part of an update */
#define SMOOTHING   0.9    /* of the loss that divergence is judged by */
/* Steps' worth of batches without targets at which the data counts as having none. */
#define EMPTY_BATCHES_MAX 10000u
#define PI                3.14159265358979323846
#define SHARES            1e9 /* shares are told apart in parts of this */

struct quire_trainer {
    quire_train_plan plan;
    quire_f32_pass *pass;
    quire_f32_pass *teacher; /* NULL: none */
    float *arrays;           /* [3][n_parameters]: parameters, moments */
    float *gradients;        /* [n_parameters] */
    double *norms;           /* partial sums of squares, one per part */
    int32_t *memory;         /* of the batches */
    quire_packed *batches;   /* [n_accumulate] */
    uint64_t n_steps;
    uint64_t n_tokens;
    double smooth_loss; /* 0 before the first step */
    double lowest_loss; /* since the level rose last; infinite before the next step */
    uint64_t level;
};

static size_t n_parameters(const quire_trainer *t)
{
    return quire_f32_pass_layout(t->pass)->n_parameters;
}

/* ---- creation ---- */

static int plan_check(const quire_train_plan *p, quire_error *err)
{
    const struct {
        const char *name;
        double value;
        double min;
        double max;
    } numbers[] = {
        { "batches in a step", p->n_accumulate, 1, QUIRE_TRAIN_ACCUMULATE_MAX },
        { "learning rate", p->rate, 0, 10 },
        { "last learning rate", p->rate_end, 0, p->rate },
        { "beta1", p->beta1, 0, 0.9999 },
        { "beta2", p->beta2, 0, 0.999999 },
        { "epsilon", p->epsilon, 1e-30, 1 },
        { "weight decay", p->decay, 0, 10 },
        { "gradient clipping", p->clip, 0, 1e9 },
        { "rise of the loss", p->rise_max, 0, 1e9 },
        { "loss of the next level", p->level_below, 0, 1e9 },
        { "steps of a level", (double)p->level_every, p->level_below > 0 ? 1 : 0, 1e9 },
        { "share of distillation", p->teacher.share, 0, 1 },
        { "weight of hidden states", p->teacher.hidden, 0, QUIRE_TRAIN_WEIGHT_MAX },
        { "weight of attention", p->teacher.attention, 0, QUIRE_TRAIN_WEIGHT_MAX },
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (!(numbers[i].value >= numbers[i].min && numbers[i].value <= numbers[i].max)) {
            return quire_error_set(err, QUIRE_INVAL, "%s: %g; %g to %g are possible",
                                   numbers[i].name, numbers[i].value, numbers[i].min,
                                   numbers[i].max);
        }
    }
    return QUIRE_OK;
}

static int batches_create(quire_trainer *t)
{
    const quire_train_plan *p = &t->plan;
    size_t n = (size_t)p->n_rows * p->n_tokens;

    t->memory = calloc(3 * n * p->n_accumulate, sizeof(*t->memory));
    t->batches = calloc(p->n_accumulate, sizeof(*t->batches));
    QUIRE_FAIL_IF(t->memory == NULL || t->batches == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < p->n_accumulate; i++) {
        int32_t *at = t->memory + 3 * n * i;

        t->batches[i] = (quire_packed){ p->n_rows, p->n_tokens, at, at + n, at + 2 * n, 0 };
    }
    return QUIRE_OK;
}

static int passes_create(quire_trainer *t, quire_error *err)
{
    const quire_train_plan *p = &t->plan;
    quire_f32_pass_options options = {
        .shape = &p->shape,
        .n_rows = p->n_rows,
        .n_tokens = p->n_tokens,
        .n_threads = p->n_threads,
        .choices = p->choices,
        .n_choices = p->n_choices,
        .n_turns = p->n_turns,
        .product = p->products == QUIRE_PRODUCTS_BF16 ? quire_bf16_product_best() : NULL,
    };

    QUIRE_TRY(quire_f32_pass_create(&t->pass, &options, err));
    if (quire_train_is_taught(&p->teacher)) {
        options.shape = p->teacher.shape;
        options.taught = t->pass;
        options.keeps_hidden = p->teacher.hidden > 0;
        options.keeps_attention = p->teacher.attention > 0;
        QUIRE_TRY(quire_f32_pass_create(&t->teacher, &options, err));
    }
    return QUIRE_OK;
}

int quire_trainer_create(quire_trainer **out, const quire_train_plan *plan, quire_error *err)
{
    quire_trainer *t;
    size_t n;
    int rc;

    QUIRE_TRY(plan_check(plan, err));
    if (plan->has_shift_heads && !quire_train_shift_heads_fit(&plan->shape)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "shift heads need a lowest layer and another one that read their "
                               "own K and V of the whole text, no qk-norm, no factors of RoPE, and "
                               "a width of two elements per head");
    }
    t = calloc(1, sizeof(*t));
    if (t == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    t->plan = *plan;
    t->lowest_loss = INFINITY;
    rc = passes_create(t, err);
    t->plan.choices = NULL;
    if (rc < 0) {
        quire_trainer_destroy(t);
        return rc;
    }
    n = n_parameters(t);
    t->arrays = calloc(QUIRE_CHECKPOINT_ARRAYS * n, sizeof(float));
    t->gradients = calloc(n, sizeof(float));
    t->norms = calloc(n / UPDATE_EACH + 1, sizeof(*t->norms));
    rc = batches_create(t);
    if (rc < 0 || t->arrays == NULL || t->gradients == NULL || t->norms == NULL) {
        quire_trainer_destroy(t);
        return quire_error_set(err, QUIRE_NOMEM, "%zu MiB for %zu parameters: out of memory",
                               (QUIRE_CHECKPOINT_ARRAYS + 1) * n * sizeof(float) >> 20, n);
    }
    quire_train_weights_init(quire_f32_pass_layout(t->pass), &t->plan.shape, plan->seed, t->arrays);
    if (plan->has_shift_heads) {
        quire_train_shift_heads(quire_f32_pass_layout(t->pass), &t->plan.shape, plan->seed,
                                t->arrays);
    }
    if (plan->start != NULL) {
        memcpy(t->arrays, plan->start, n * sizeof(float));
        t->plan.start = NULL;
    }
    if (plan->masters == QUIRE_MASTERS_BF16) {
        quire_bf16_round(t->arrays, n);
    }
    *out = t;
    return QUIRE_OK;
}

void quire_trainer_destroy(quire_trainer *t)
{
    if (t != NULL) {
        quire_f32_pass_destroy(t->teacher);
        quire_f32_pass_destroy(t->pass);
        free(t->arrays);
        free(t->gradients);
        free(t->norms);
        free(t->memory);
        free(t->batches);
        free(t);
    }
}

/* ---- a step ---- */

double quire_train_rate(const quire_train_plan *plan, uint64_t step)
{
    double done;

    if (step < plan->n_warmup) {
        return plan->rate * (double)(step + 1) / (double)plan->n_warmup;
    }
    if (step >= plan->n_steps || plan->n_steps <= plan->n_warmup) {
        return plan->rate_end;
    }
    done = (double)(step - plan->n_warmup) / (double)(plan->n_steps - plan->n_warmup);
    return plan->rate_end + (plan->rate - plan->rate_end) * 0.5 * (1 + cos(PI * done));
}

static void square_part(void *ctx, uint32_t part, uint32_t member)
{
    quire_trainer *t = ctx;
    size_t first = (size_t)part * UPDATE_EACH;
    size_t n = n_parameters(t) - first;

    (void)member;
    n = n < UPDATE_EACH ? n : UPDATE_EACH;
    t->norms[part] = (double)quire_f32_pass_compute(t->pass)->rows->dot(t->gradients + first,
                                                                        t->gradients + first, n);
}

static double gradient_norm(quire_trainer *t)
{
    uint32_t n_parts = (uint32_t)((n_parameters(t) + UPDATE_EACH - 1) / UPDATE_EACH);
    double sum = 0;

    quire_parts_run(quire_f32_pass_compute(t->pass)->team, n_parts, square_part, t);
    for (uint32_t i = 0; i < n_parts; i++) {
        sum += t->norms[i];
    }
    return sqrt(sum);
}

typedef struct update_run {
    quire_trainer *t;
    size_t at; /* of the tensor */
    size_t n;
    uint64_t seed; /* of rounding */
    quire_f32_adamw step;
} update_run;

static void update_part(void *ctx, uint32_t part, uint32_t member)
{
    update_run *run = ctx;
    quire_trainer *t = run->t;
    size_t first = (size_t)part * UPDATE_EACH;
    size_t n = run->n - first < UPDATE_EACH ? run->n - first : UPDATE_EACH;
    size_t at = run->at + first, all = n_parameters(t);
    float *moments[2] = { t->arrays + all + at, t->arrays + 2 * all + at };

    (void)member;
    quire_f32_pass_compute(t->pass)->rows->adamw(&run->step, t->arrays + at, t->gradients + at,
                                                 moments, n);
    if (t->plan.masters == QUIRE_MASTERS_BF16) {
        quire_bf16_round_by_chance(t->arrays + at, n, run->seed, at);
    }
}

/* Each step rounds by other chances. */
static uint64_t rounding_seed(const quire_trainer *t)
{
    quire_rng rng = { t->plan.seed };

    rng.state = quire_rng_next(&rng) + t->n_steps;
    return quire_rng_next(&rng);
}

/* All tensors; only matrices decay. */
static void update(quire_trainer *t, double rate, double scale)
{
    const quire_train_layout *layout = quire_f32_pass_layout(t->pass);
    const quire_train_plan *p = &t->plan;
    double n_steps = (double)(t->n_steps + 1);
    uint64_t seed = rounding_seed(t);

    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const quire_train_tensor *tensor = &layout->tensors[i];
        bool decays = tensor->kind == QUIRE_WEIGHT_MATRIX || tensor->kind == QUIRE_WEIGHT_RESIDUAL;
        update_run run = { .t = t, .at = tensor->at, .seed = seed };

        run.n = (size_t)tensor->n_rows * tensor->n_cols;
        run.step = (quire_f32_adamw){ .rate = (float)rate,
                                      .beta1 = (float)p->beta1,
                                      .beta2 = (float)p->beta2,
                                      .epsilon = (float)p->epsilon,
                                      .decay = decays ? (float)p->decay : 0,
                                      .gradient_scale = (float)scale,
                                      .correction1 = (float)(1 / (1 - pow(p->beta1, n_steps))),
                                      .correction2 = (float)(1 / (1 - pow(p->beta2, n_steps))) };
        quire_parts_run(quire_f32_pass_compute(t->pass)->team,
                        (uint32_t)((run.n + UPDATE_EACH - 1) / UPDATE_EACH), update_part, &run);
    }
}

static int watch(const quire_trainer *t, const quire_train_report *r, quire_error *err)
{
    if (!isfinite(r->loss) || !isfinite(r->gradient_norm)) {
        return quire_error_set(err, QUIRE_RANGE,
                               "step %llu: loss %g, norm of the gradient %g; the step was not "
                               "taken. A smaller learning rate or a longer warm-up may help",
                               (unsigned long long)r->step, r->loss, r->gradient_norm);
    }
    if (t->plan.rise_max > 0 && r->loss > t->lowest_loss + t->plan.rise_max) {
        return quire_error_set(err, QUIRE_RANGE,
                               "step %llu: loss %.4f, which is %.2f above the lowest so far "
                               "(%.4f): the run diverges; the step was not taken",
                               (unsigned long long)r->step, r->loss, r->loss - t->lowest_loss,
                               t->lowest_loss);
    }
    return QUIRE_OK;
}

/* The smoothed loss may remember shorter tasks, whose loss was lower: then the step's own counts.
 */
static void note_loss(quire_trainer *t, double loss)
{
    t->smooth_loss = t->n_steps == 0 ? loss : SMOOTHING * t->smooth_loss + (1 - SMOOTHING) * loss;
    t->lowest_loss = fmin(t->lowest_loss, fmax(t->smooth_loss, loss));
}

/* After the step was counted. A new level has other losses, which are no divergence. */
static void note_level(quire_trainer *t)
{
    const quire_train_plan *p = &t->plan;

    if (p->level_below > 0 && t->n_steps % p->level_every == 0 && t->smooth_loss < p->level_below) {
        t->level++;
        t->lowest_loss = INFINITY;
    }
}

static quire_train_batch batch_of(const quire_packed *b)
{
    return (quire_train_batch){ b->tokens, b->targets, b->first };
}

static int read_once(quire_trainer *t, quire_packer *data, uint64_t *n_targets, quire_error *err)
{
    *n_targets = 0;
    for (uint32_t i = 0; i < t->plan.n_accumulate; i++) {
        QUIRE_TRY(quire_packer_fill(data, &t->batches[i], err));
        *n_targets += t->batches[i].n_targets;
    }
    return QUIRE_OK;
}

/* Batches that lie inside of a long question have no targets: the step takes the next ones. */
static int read_batches(quire_trainer *t, quire_packer *data, uint64_t *n_targets, quire_error *err)
{
    uint32_t n_tries = 0;

    do {
        QUIRE_TRY(read_once(t, data, n_targets, err));
    } while (*n_targets == 0 && !data->has_ended && ++n_tries < EMPTY_BATCHES_MAX);
    if (*n_targets == 0) {
        return quire_error_set(err, QUIRE_NOTFOUND, "the data has no more tokens to predict");
    }
    return QUIRE_OK;
}

/* Forward and backward over a batch; adds up loss, divergence and hidden over its tokens. */
static void learn_batch(quire_trainer *t, const quire_train_batch *batch, float scale,
                        quire_train_report *sums)
{
    const quire_train_teacher *teacher = &t->plan.teacher;
    const quire_f32_lesson lesson = { t->teacher, teacher->parameters, (float)teacher->share,
                                      (float)teacher->hidden, (float)teacher->attention };

    if (t->teacher == NULL) {
        sums->loss += quire_f32_pass_run(t->pass, t->arrays, batch, scale, t->gradients);
        return;
    }
    sums->loss +=
        quire_f32_pass_run_taught(t->pass, t->arrays, batch, &lesson, scale, t->gradients);
    for (size_t i = 0; i < (size_t)t->plan.n_rows * t->plan.n_tokens; i++) {
        sums->divergence += (double)quire_f32_pass_divergences(t->teacher)[i];
        sums->hidden += (double)quire_f32_pass_distances(t->teacher)[i];
    }
    sums->attention += quire_f32_pass_attentions(t->teacher);
}

int quire_trainer_step(quire_trainer *t, quire_packer *data, quire_train_report *report,
                       quire_error *err)
{
    const quire_train_plan *p = &t->plan;
    quire_train_report sums = { 0 };
    double scale = 1;
    uint64_t n_targets;

    QUIRE_TRY(read_batches(t, data, &n_targets, err));
    memset(t->gradients, 0, n_parameters(t) * sizeof(float));
    quire_f32_pass_turn(t->pass, t->n_steps);
    for (uint32_t i = 0; i < p->n_accumulate; i++) {
        quire_train_batch batch = batch_of(&t->batches[i]);

        learn_batch(t, &batch, (float)(1.0 / (double)n_targets), &sums);
    }
    *report = (quire_train_report){ .step = t->n_steps + 1,
                                    .loss = sums.loss / (double)n_targets,
                                    .divergence = sums.divergence / (double)n_targets,
                                    .hidden = sums.hidden / (double)n_targets,
                                    .attention = sums.attention / (double)n_targets,
                                    .gradient_norm = gradient_norm(t),
                                    .rate = quire_train_rate(p, t->n_steps) };
    QUIRE_TRY(watch(t, report, err));
    if (p->clip > 0 && report->gradient_norm > p->clip) {
        scale = p->clip / report->gradient_norm;
    }
    update(t, report->rate, scale);
    note_loss(t, report->loss);
    t->n_steps++;
    note_level(t);
    t->n_tokens += (uint64_t)p->n_accumulate * p->n_rows * p->n_tokens;
    report->n_tokens = t->n_tokens;
    return QUIRE_OK;
}

int quire_trainer_evaluate(quire_trainer *t, quire_packer *data, uint64_t n_batches, double *loss,
                           uint64_t *n_targets, quire_error *err)
{
    quire_packed *packed = &t->batches[0];
    double sum = 0;

    *n_targets = 0;
    for (uint64_t i = 0; n_batches == 0 || i < n_batches; i++) {
        quire_train_batch batch;

        QUIRE_TRY(quire_packer_fill(data, packed, err));
        if (packed->n_targets == 0 && data->has_ended) {
            break;
        }
        batch = batch_of(packed);
        sum += quire_f32_pass_run(t->pass, t->arrays, &batch, 0, NULL);
        *n_targets += packed->n_targets;
    }
    *loss = *n_targets > 0 ? sum / (double)*n_targets : 0;
    return QUIRE_OK;
}

/* ---- checkpoints ---- */

static uint64_t model_identity(const quire_train_shape *s)
{
    const uint64_t counts[] = { s->n_vocab, s->n_layer, s->d_model,     s->n_head,  s->n_kv_head,
                                s->d_head,  s->d_ff,    s->has_qk_norm, s->is_tied, s->gate_form };
    const double reals[] = { s->rope_base, s->norm_epsilon };
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, counts, sizeof(counts));

    hash = quire_hash_add(hash, reals, sizeof(reals));
    for (uint32_t i = 0; i < s->n_layer; i++) {
        hash = quire_hash_add(hash, s->source_k[i], sizeof(s->source_k[i]));
        hash = quire_hash_add(hash, s->source_v[i], sizeof(s->source_v[i]));
        hash = quire_hash_add(hash, &s->is_gated_k[i], sizeof(s->is_gated_k[i]));
        hash = quire_hash_add(hash, &s->is_gated_v[i], sizeof(s->is_gated_v[i]));
        hash = quire_hash_add(hash, &s->is_mixed_k[i], sizeof(s->is_mixed_k[i]));
        hash = quire_hash_add(hash, &s->is_mixed_v[i], sizeof(s->is_mixed_v[i]));
        hash = quire_hash_add(hash, &s->window[i], sizeof(s->window[i]));
    }
    if (s->has_qkv_bias) { /* shapes without have the hash that they had before there were any */
        hash = quire_hash_add(hash, "bias", 4);
    }
    if (s->has_rope_factors) {
        hash = quire_hash_add(hash, s->rope_factors, s->d_head / 2 * sizeof(s->rope_factors[0]));
    }
    return hash;
}

static uint64_t teacher_identity(const quire_train_plan *p)
{
    const uint64_t start[] = { p->start_identity, p->has_shift_heads,
                               (uint64_t)(p->teacher.share * SHARES) };
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, start, sizeof(start));

    if (p->teacher.hidden > 0) { /* others have the hash that they had before there was one */
        hash = quire_hash_add(hash, &p->teacher.hidden, sizeof(p->teacher.hidden));
    }
    if (p->teacher.attention > 0) { /* likewise; no weight of hidden states has this hash */
        hash = quire_hash_add(hash, "attention", 9);
        hash = quire_hash_add(hash, &p->teacher.attention, sizeof(p->teacher.attention));
    }
    return hash;
}

static uint64_t optimizer_identity(const quire_train_plan *p)
{
    const double numbers[] = {
        p->beta1, p->beta2, p->epsilon, p->decay, p->clip, (double)p->masters
    };
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, numbers, sizeof(numbers));

    /* f32 has the hash that it had before there was a choice. */
    return p->products == QUIRE_PRODUCTS_F32 ? hash : quire_hash_add(hash, "products", 8);
}

/* Without the number of steps, the rates and the choices, which a resumed run may change, and
 * without threads. */
static quire_checkpoint checkpoint_of(const quire_trainer *t)
{
    const quire_train_plan *p = &t->plan;
    const uint64_t batch[] = { p->n_rows, p->n_tokens, p->n_accumulate };

    return (quire_checkpoint){ .n_parameters = n_parameters(t),
                               .identities = { [QUIRE_PART_TOKENIZER] = p->tokenizer_identity,
                                               [QUIRE_PART_TEACHER] = teacher_identity(p),
                                               [QUIRE_PART_MODEL] = model_identity(&p->shape),
                                               [QUIRE_PART_BATCH] = quire_hash_add(
                                                   QUIRE_HASH_INIT, batch, sizeof(batch)),
                                               [QUIRE_PART_OPTIMIZER] = optimizer_identity(p),
                                               [QUIRE_PART_SEED] = p->seed,
                                               [QUIRE_PART_DATA] = p->data_identity },
                               .n_steps = t->n_steps,
                               .n_tokens = t->n_tokens,
                               .watch = { t->smooth_loss, t->lowest_loss },
                               .level = t->level,
                               .arrays = t->arrays };
}

int quire_trainer_save_at(const quire_trainer *t, const uint64_t place[QUIRE_PACK_PLACE],
                          const char *path, quire_error *err)
{
    quire_checkpoint c = checkpoint_of(t);

    memcpy(c.place, place, sizeof(c.place));
    return quire_checkpoint_write(path, &c, err);
}

int quire_trainer_save(const quire_trainer *t, const quire_packer *data, const char *path,
                       quire_error *err)
{
    uint64_t place[QUIRE_PACK_PLACE];

    quire_packer_tell(data, place);
    return quire_trainer_save_at(t, place, path, err);
}

int quire_trainer_load(quire_trainer *t, quire_packer *data, const char *path, quire_error *err)
{
    quire_checkpoint c = checkpoint_of(t);

    QUIRE_TRY(quire_checkpoint_read(path, &c, err));
    QUIRE_TRY(quire_packer_seek(data, c.place, err));
    t->n_steps = c.n_steps;
    t->n_tokens = c.n_tokens;
    t->smooth_loss = c.watch[0];
    t->lowest_loss = c.watch[1];
    t->level = c.level;
    return QUIRE_OK;
}

/* ---- the state of a run ---- */

uint64_t quire_trainer_steps(const quire_trainer *t)
{
    return t->n_steps;
}

uint64_t quire_trainer_level(const quire_trainer *t)
{
    return t->level;
}

const float *quire_trainer_parameters(const quire_trainer *t)
{
    return t->arrays;
}

const quire_train_layout *quire_trainer_layout(const quire_trainer *t)
{
    return quire_f32_pass_layout(t->pass);
}

/* Tokens that a step predicts among. */
static double n_outputs(const quire_train_plan *p)
{
    double n = p->n_choices, n_others = p->shape.n_vocab - n;

    if (p->n_choices == 0) {
        return p->shape.n_vocab;
    }
    return p->n_turns > 0 ? n + n_others / p->n_turns : n;
}

/* Parameters that a product uses: the embedding is looked up, and of the output the predicted
 * tokens count. */
static double n_multiplied(const quire_train_plan *p, const quire_f32_pass *pass,
                           const quire_train_shape *s)
{
    double n_tables = s->is_tied ? 1 : 2;

    return (double)quire_f32_pass_layout(pass)->n_parameters - n_tables * s->n_vocab * s->d_model +
           n_outputs(p) * s->d_model;
}

double quire_train_flop_per_token(const quire_trainer *t)
{
    const quire_train_plan *p = &t->plan;
    double n = 6 * n_multiplied(p, t->pass, &p->shape);

    return t->teacher == NULL ? n : n + 2 * n_multiplied(p, t->teacher, p->teacher.shape);
}

double quire_trainer_product_rate(const quire_trainer *t)
{
    return quire_train_product_rate(quire_f32_pass_compute(t->pass));
}
