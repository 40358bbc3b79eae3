/* ops_body.h - operations without structure in time, in one precision; see ops.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_EACH    64u  /* tokens in a part of work by rows */
#define PRODUCT_ROWS 256u /* tokens in a part of a product by tokens */
#define PRODUCT_TILE 128u /* outputs or inputs in a part of a gradient of weights */

int QT(compute_init)(QT(compute) * c, uint32_t n_threads, uint32_t sum_max, size_t scratch_max,
                     quire_error *err)
{
    int rc;

    memset(c, 0, sizeof(*c));
    c->n_threads = n_threads;
    c->sum_max = sum_max;
    c->scratch_max = scratch_max;
    c->rows = QT(rows_best)();
    c->product = c->rows->product;
    c->sums = calloc((size_t)QUIRE_TRAIN_SUM_PARTS * sum_max + 1, sizeof(real));
    rc = quire_team_create(&c->team, n_threads);
    if (rc == QUIRE_OK) {
        c->scratch = calloc(n_threads * scratch_max + 1, sizeof(real));
    }
    if (rc == QUIRE_OK && (c->sums == NULL || c->scratch == NULL)) {
        rc = QUIRE_NOMEM;
    }
    if (rc < 0) {
        QT(compute_fini)(c);
        return quire_error_set(err, rc, "%u threads for training: %s", n_threads,
                               quire_status_text(rc));
    }
    return QUIRE_OK;
}

void QT(compute_fini)(QT(compute) * c)
{
    quire_team_destroy(c->team);
    free(c->sums);
    free(c->scratch);
    memset(c, 0, sizeof(*c));
}

/* ---- embedding ---- */

typedef struct embed_run {
    const QT(compute) * c;
    const QT(embed) * e;
    const real *from;
    real *to;
} embed_run;

static void embed_rows(void *ctx, uint32_t part, uint32_t member)
{
    embed_run *run = ctx;
    const QT(embed) *e = run->e;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, ROWS_EACH, e->n, &i, &end);
    for (; i < end; i++) {
        memcpy(run->to + (size_t)i * e->d, run->from + (size_t)e->tokens[i] * e->d,
               e->d * sizeof(real));
    }
}

void QT(embed_forward)(QT(compute) * c, const QT(embed) * e, const real *table, real *x)
{
    embed_run run = { c, e, table, x };

    quire_parts_run(c->team, quire_parts_count(e->n, ROWS_EACH), embed_rows, &run);
}

/* Columns of the table, not tokens: a token may occur anywhere. */
static void embed_back_columns(void *ctx, uint32_t part, uint32_t member)
{
    embed_run *run = ctx;
    const QT(embed) *e = run->e;
    uint32_t first, end;

    (void)member;
    quire_part_range(part, ROWS_EACH, e->d, &first, &end);
    for (uint32_t i = 0; i < e->n; i++) {
        run->c->rows->add(run->to + (size_t)e->tokens[i] * e->d + first,
                          run->from + (size_t)i * e->d + first, end - first);
    }
}

void QT(embed_back)(QT(compute) * c, const QT(embed) * e, const real *dx, real *dtable)
{
    embed_run run = { c, e, dx, dtable };

    quire_parts_run(c->team, quire_parts_count(e->d, ROWS_EACH), embed_back_columns, &run);
}

/* ---- sums of vectors over tokens ---- */

/* Tokens in a part, so that there are at most QUIRE_TRAIN_SUM_PARTS. */
static uint32_t sum_rows_each(uint32_t n)
{
    uint32_t each = quire_parts_count(n, QUIRE_TRAIN_SUM_PARTS);

    return each > ROWS_EACH ? each : ROWS_EACH;
}

/* total[d] += the partial sums, in the order of the parts; then they are zero again. */
static void sum_parts(QT(compute) * c, uint32_t n_parts, uint32_t d, real *total)
{
    for (uint32_t part = 0; part < n_parts; part++) {
        real *sum = c->sums + (size_t)part * c->sum_max;

        c->rows->add(total, sum, d);
        memset(sum, 0, d * sizeof(real));
    }
}

/* ---- RMSNorm ---- */

typedef struct norm_run {
    const QT(compute) * c;
    const QT(norm) * o;
    const real *dy;
    real *to;
    uint32_t each;
} norm_run;

static void norm_rows(void *ctx, uint32_t part, uint32_t member)
{
    norm_run *run = ctx;
    const QT(norm) *o = run->o;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, run->each, o->n, &i, &end);
    for (; i < end; i++) {
        size_t at = (size_t)i * o->d;

        o->inv[i] = run->c->rows->norm(run->to + at, o->x + at, o->weight, o->epsilon, o->d);
    }
}

void QT(norm_forward)(QT(compute) * c, const QT(norm) * o, real *y)
{
    norm_run run = { .c = c, .o = o, .to = y, .each = ROWS_EACH };

    quire_parts_run(c->team, quire_parts_count(o->n, run.each), norm_rows, &run);
}

static void norm_back_rows(void *ctx, uint32_t part, uint32_t member)
{
    norm_run *run = ctx;
    const QT(norm) *o = run->o;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, run->each, o->n, &i, &end);
    for (; i < end; i++) {
        size_t at = (size_t)i * o->d;
        real *const gradients[2] = { run->to + at, run->c->sums + (size_t)part * run->c->sum_max };

        run->c->rows->norm_back(gradients, o->x + at, o->weight, o->inv[i], run->dy + at, o->d);
    }
}

void QT(norm_back)(QT(compute) * c, const QT(norm) * o, const real *dy, real *dx, real *dweight)
{
    norm_run run = { .c = c, .o = o, .dy = dy, .to = dx, .each = sum_rows_each(o->n) };
    uint32_t n_parts = quire_parts_count(o->n, run.each);

    QUIRE_CHECK(o->d <= c->sum_max);
    quire_parts_run(c->team, n_parts, norm_back_rows, &run);
    sum_parts(c, n_parts, o->d, dweight);
}

/* ---- linear ---- */

typedef struct linear_run {
    const QT(linear) * o;
    const real *x;
    const real *dy;
    real *to;
    QT(product_fn) * product;
    bool is_added;
    uint32_t out_each;
    uint32_t in_each;
} linear_run;

static void linear_rows(void *ctx, uint32_t part, uint32_t member)
{
    linear_run *run = ctx;
    const QT(linear) *o = run->o;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, PRODUCT_ROWS, o->n, &i, &end);
    run->product(&(QT(product)){ .m = end - i,
                                 .n = o->n_out,
                                 .k = o->n_in,
                                 .a = run->x + (size_t)i * o->n_in,
                                 .lda = o->n_in,
                                 .b = o->weight,
                                 .ldb = o->n_in,
                                 .is_b_transposed = true,
                                 .c = run->to + (size_t)i * o->n_out,
                                 .ldc = o->n_out,
                                 .is_added = run->is_added });
}

void QT(linear_forward)(QT(compute) * c, const QT(linear) * o, const real *x, real *y,
                        bool is_added)
{
    linear_run run = { .o = o, .x = x, .to = y, .product = c->product, .is_added = is_added };

    quire_parts_run(c->team, quire_parts_count(o->n, PRODUCT_ROWS), linear_rows, &run);
}

static void linear_back_rows(void *ctx, uint32_t part, uint32_t member)
{
    linear_run *run = ctx;
    const QT(linear) *o = run->o;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, PRODUCT_ROWS, o->n, &i, &end);
    run->product(&(QT(product)){ .m = end - i,
                                 .n = o->n_in,
                                 .k = o->n_out,
                                 .a = run->dy + (size_t)i * o->n_out,
                                 .lda = o->n_out,
                                 .b = o->weight,
                                 .ldb = o->n_in,
                                 .c = run->to + (size_t)i * o->n_in,
                                 .ldc = o->n_in,
                                 .is_added = run->is_added });
}

void QT(linear_back_input)(QT(compute) * c, const QT(linear) * o, const real *dy, real *dx,
                           bool is_added)
{
    linear_run run = { .o = o, .dy = dy, .to = dx, .product = c->product, .is_added = is_added };

    quire_parts_run(c->team, quire_parts_count(o->n, PRODUCT_ROWS), linear_back_rows, &run);
}

static void linear_back_tile(void *ctx, uint32_t part, uint32_t member)
{
    linear_run *run = ctx;
    const QT(linear) *o = run->o;
    uint32_t across = quire_parts_count(o->n_in, run->in_each);
    uint32_t out, out_end, in, in_end;

    (void)member;
    quire_part_range(part / across, run->out_each, o->n_out, &out, &out_end);
    quire_part_range(part % across, run->in_each, o->n_in, &in, &in_end);
    run->product(&(QT(product)){ .m = out_end - out,
                                 .n = in_end - in,
                                 .k = o->n,
                                 .a = run->dy + out,
                                 .lda = o->n_out,
                                 .is_a_transposed = true,
                                 .b = run->x + in,
                                 .ldb = o->n_in,
                                 .c = run->to + (size_t)out * o->n_in + in,
                                 .ldc = o->n_in,
                                 .is_added = true });
}

/* Tiles of outputs, or of inputs where the outputs alone would be one tile. */
void QT(linear_back_weight)(QT(compute) * c, const QT(linear) * o, const real *x, const real *dy,
                            real *dweight)
{
    linear_run run = { .product = c->product, .o = o, .x = x, .dy = dy, .to = dweight };
    bool is_by_outputs = o->n_out > PRODUCT_TILE;

    run.out_each = is_by_outputs ? PRODUCT_TILE : o->n_out;
    run.in_each = is_by_outputs ? o->n_in : PRODUCT_TILE;
    quire_parts_run(c->team,
                    quire_parts_count(o->n_out, run.out_each) *
                        quire_parts_count(o->n_in, run.in_each),
                    linear_back_tile, &run);
}

/* ---- biases ---- */

typedef struct bias_run {
    const QT(compute) * c;
    uint32_t n;
    uint32_t d;
    const real *from; /* the bias, or rows of gradients */
    real *y;          /* NULL: the partial sums */
    uint32_t each;
} bias_run;

static void bias_rows(void *ctx, uint32_t part, uint32_t member)
{
    bias_run *run = ctx;
    real *sum = run->c->sums + (size_t)part * run->c->sum_max;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, run->each, run->n, &i, &end);
    for (; i < end; i++) {
        if (run->y != NULL) {
            run->c->rows->add(run->y + (size_t)i * run->d, run->from, run->d);
        } else {
            run->c->rows->add(sum, run->from + (size_t)i * run->d, run->d);
        }
    }
}

void QT(bias_add)(QT(compute) * c, uint32_t n, uint32_t d, const real *bias, real *y)
{
    bias_run run = { c, n, d, bias, y, ROWS_EACH };

    quire_parts_run(c->team, quire_parts_count(n, run.each), bias_rows, &run);
}

void QT(bias_back)(QT(compute) * c, uint32_t n, uint32_t d, const real *dy, real *dbias)
{
    bias_run run = { c, n, d, dy, NULL, sum_rows_each(n) };
    uint32_t n_parts = quire_parts_count(n, run.each);

    QUIRE_CHECK(d <= c->sum_max);
    quire_parts_run(c->team, n_parts, bias_rows, &run);
    sum_parts(c, n_parts, d, dbias);
}

/* ---- RoPE ---- */

typedef struct rope_run {
    const QT(compute) * c;
    const QT(rope) * o;
    real *x;
    real sign;
} rope_run;

static void rope_rows(void *ctx, uint32_t part, uint32_t member)
{
    rope_run *run = ctx;
    const QT(rope) *o = run->o;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, ROWS_EACH, o->n, &i, &end);
    for (; i < end; i++) {
        size_t at = (size_t)o->positions[i] * (o->d / 2);

        for (uint32_t h = 0; h < o->n_head; h++) {
            run->c->rows->rope(run->x + ((size_t)i * o->n_head + h) * o->d, o->cos + at,
                               o->sin + at, run->sign, o->d);
        }
    }
}

void QT(rope_apply)(QT(compute) * c, const QT(rope) * o, real *x, bool is_back)
{
    rope_run run = { c, o, x, is_back ? (real)-1 : (real)1 };

    quire_parts_run(c->team, quire_parts_count(o->n, ROWS_EACH), rope_rows, &run);
}

void QT(rope_tables)(real *cos_table, real *sin_table, const QT(rope_angles) * o)
{
    uint32_t half = o->d / 2;

    for (uint32_t i = 0; i < o->n_positions; i++) {
        for (uint32_t j = 0; j < half; j++) {
            double angle = i * pow(o->base, -2.0 * j / o->d);

            angle /= o->factors != NULL ? (double)o->factors[j] : 1;
            cos_table[(size_t)i * half + j] = (real)cos(angle);
            sin_table[(size_t)i * half + j] = (real)sin(angle);
        }
    }
}

/* ---- K and V out of other layers' ---- */

typedef struct fuse_run {
    const QT(compute) * c;
    const QT(fuse) * o;
    const real *dy;
    real *y;
    real *dx; /* of the source at hand */
    uint32_t source;
    uint32_t each;
} fuse_run;

static void fuse_rows(void *ctx, uint32_t part, uint32_t member)
{
    fuse_run *run = ctx;
    const QT(fuse) *o = run->o;
    const QT(rows) *rows = run->c->rows;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, ROWS_EACH, o->n, &i, &end);
    for (; i < end; i++) {
        size_t at = (size_t)i * o->d;

        rows->mul(run->y + at, o->x[0] + at, o->gates[0], o->d);
        if (o->n_sources > 1) {
            rows->mul_add(run->y + at, o->x[1] + at, o->gates[1], o->d);
        }
    }
}

void QT(fuse_forward)(QT(compute) * c, const QT(fuse) * o, real *y)
{
    fuse_run run = { .c = c, .o = o, .y = y };

    quire_parts_run(c->team, quire_parts_count(o->n, ROWS_EACH), fuse_rows, &run);
}

static void fuse_back_rows(void *ctx, uint32_t part, uint32_t member)
{
    fuse_run *run = ctx;
    const QT(fuse) *o = run->o;
    const QT(rows) *rows = run->c->rows;
    real *sum = run->c->sums + (size_t)part * run->c->sum_max;
    uint32_t i, end;

    (void)member;
    quire_part_range(part, run->each, o->n, &i, &end);
    for (; i < end; i++) {
        size_t at = (size_t)i * o->d;

        rows->mul_add(run->dx + at, run->dy + at, o->gates[run->source], o->d);
        rows->mul_add(sum, run->dy + at, o->x[run->source] + at, o->d);
    }
}

void QT(fuse_back)(QT(compute) * c, const QT(fuse) * o, const real *dy, real *const dx[2],
                   real *const dgates[2])
{
    fuse_run run = { .c = c, .o = o, .dy = dy, .each = sum_rows_each(o->n) };
    uint32_t n_parts = quire_parts_count(o->n, run.each);

    QUIRE_CHECK(o->d <= c->sum_max);
    for (uint32_t s = 0; s < o->n_sources; s++) {
        run.source = s;
        run.dx = dx[s];
        quire_parts_run(c->team, n_parts, fuse_back_rows, &run);
        sum_parts(c, n_parts, o->d, dgates[s]);
    }
}

/* ---- SwiGLU, sums of streams ---- */

typedef struct swiglu_run {
    const QT(compute) * c;
    uint32_t n;
    uint32_t d;
    real *const *gate_up_y;
    const real *const *gate_up;
    const real *dy;
    real *y;
} swiglu_run;

static void swiglu_rows(void *ctx, uint32_t part, uint32_t member)
{
    swiglu_run *run = ctx;
    uint32_t i, end;
    size_t at;

    (void)member;
    quire_part_range(part, ROWS_EACH, run->n, &i, &end);
    at = (size_t)i * run->d;
    if (run->dy == NULL) {
        run->c->rows->swiglu(run->y + at, run->gate_up[0] + at, run->gate_up[1] + at,
                             (size_t)(end - i) * run->d);
    } else {
        run->c->rows->swiglu_back(run->gate_up_y[0] + at, run->gate_up_y[1] + at,
                                  run->gate_up_y[2] + at, run->dy + at, (size_t)(end - i) * run->d);
    }
}

void QT(swiglu_forward)(QT(compute) * c, uint32_t n, uint32_t d, const real *const gate_up[2],
                        real *y)
{
    swiglu_run run = { .c = c, .n = n, .d = d, .gate_up = gate_up, .y = y };

    quire_parts_run(c->team, quire_parts_count(n, ROWS_EACH), swiglu_rows, &run);
}

void QT(swiglu_back)(QT(compute) * c, uint32_t n, uint32_t d, real *const gate_up_y[3],
                     const real *dy)
{
    swiglu_run run = { .c = c, .n = n, .d = d, .gate_up_y = gate_up_y, .dy = dy };

    quire_parts_run(c->team, quire_parts_count(n, ROWS_EACH), swiglu_rows, &run);
}

void QT(add)(QT(compute) * c, size_t n, const real *x, real *y)
{
    c->rows->add(y, x, n);
}
