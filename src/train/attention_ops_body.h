/* attention_ops_body.h - attention over packed documents, in one precision; see ops.h.
 *
 * A block of queries of one head multiplies all keys that one of them sees; the scores of a block
 * stay in scratch. The way back computes the weights again from the scores and the kept logarithm
 * of their sum (Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4).
 *
 * SPDX-License-Identifier: MIT */
#include "train/parts.h"

#include <math.h>
#include <string.h>

#define QUERY_BLOCK 128u

size_t QT(attention_scratch)(uint32_t n_tokens)
{
    return ((size_t)3 * QUERY_BLOCK + 1) * n_tokens;
}

typedef struct attention_run {
    const QT(compute) * c;
    const QT(attention) * o;
    const real *dout;
    real *const *gradients;
} attention_run;

/* One block of queries of one head: where it lies, and the keys [key, key_end) that it needs. */
typedef struct query_block {
    uint32_t row;
    uint32_t head;
    uint32_t first;
    uint32_t end;
    uint32_t key;
    uint32_t key_end;
    size_t q_at;  /* of q and out: the first query */
    size_t kv_at; /* of k and v: the first key */
    real *scores; /* [end - first][key_end - key] */
    /* Scratch of the way back. */
    real *dscores;    /* likewise */
    real *theirs;     /* likewise, of a guide */
    real *difference; /* [n_tokens] of logits, of a guide */
} query_block;

/* The first token of the row that token t sees. */
static uint32_t first_seen(const QT(attention) * o, uint32_t row, uint32_t t)
{
    uint32_t first = (uint32_t)o->first[(size_t)row * o->n_tokens + t];
    uint32_t behind = o->window > 0 && t >= o->window ? t - o->window + 1 : 0;

    return first > behind ? first : behind;
}

static void block_place(const QT(attention) * o, query_block *b)
{
    size_t token = (size_t)b->row * o->n_tokens;
    uint32_t kv_head = b->head / (o->n_head / o->n_kv_head);

    b->end = o->n_tokens - b->first < QUERY_BLOCK ? o->n_tokens : b->first + QUERY_BLOCK;
    b->key = first_seen(o, b->row, b->first);
    b->key_end = b->end;
    b->q_at = ((token + b->first) * o->n_head + b->head) * o->d;
    b->kv_at = ((token + b->key) * o->n_kv_head + kv_head) * o->d;
}

/* scores[queries][keys] = x y^T, x by query (q or dout), y by key (k or v). */
static void block_scores(const attention_run *run, const query_block *b, const real *x,
                         const real *y, real *scores)
{
    const QT(attention) *o = run->o;

    run->c->product(&(QT(product)){ .m = b->end - b->first,
                                    .n = b->key_end - b->key,
                                    .k = o->d,
                                    .a = x + b->q_at,
                                    .lda = o->n_head * o->d,
                                    .b = y + b->kv_at,
                                    .ldb = o->n_kv_head * o->d,
                                    .is_b_transposed = true,
                                    .c = scores,
                                    .ldc = b->key_end - b->key });
}

/* by query (out or dq) = scores y, y by key (v or k). */
static void block_by_query(const attention_run *run, const query_block *b, const real *scores,
                           const real *y, real *to)
{
    const QT(attention) *o = run->o;

    run->c->product(&(QT(product)){ .m = b->end - b->first,
                                    .n = o->d,
                                    .k = b->key_end - b->key,
                                    .a = scores,
                                    .lda = b->key_end - b->key,
                                    .b = y + b->kv_at,
                                    .ldb = o->n_kv_head * o->d,
                                    .c = to + b->q_at,
                                    .ldc = o->n_head * o->d });
}

/* by key (dk or dv) += scores^T x, x by query (q or dout). */
static void block_by_key(const attention_run *run, const query_block *b, const real *scores,
                         const real *x, real *to)
{
    const QT(attention) *o = run->o;

    run->c->product(&(QT(product)){ .m = b->key_end - b->key,
                                    .n = o->d,
                                    .k = b->end - b->first,
                                    .a = scores,
                                    .lda = b->key_end - b->key,
                                    .is_a_transposed = true,
                                    .b = x + b->q_at,
                                    .ldb = o->n_head * o->d,
                                    .c = to + b->kv_at,
                                    .ldc = o->n_kv_head * o->d,
                                    .is_added = true });
}

static real *block_lse(const QT(attention) * o, const query_block *b)
{
    return o->lse + ((size_t)b->row * o->n_head + b->head) * o->n_tokens;
}

/* Scores of the guide's queries and keys. */
static void guide_scores(const attention_run *run, const query_block *b)
{
    const QT(attention) *o = run->o;
    const QT(guide) *g = o->guide;
    size_t token = (size_t)b->row * o->n_tokens;
    uint32_t kv_head = b->head / (o->n_head / g->n_kv_head);

    run->c->product(&(QT(product)){ .m = b->end - b->first,
                                    .n = b->key_end - b->key,
                                    .k = g->d,
                                    .a = g->q + ((token + b->first) * o->n_head + b->head) * g->d,
                                    .lda = o->n_head * g->d,
                                    .b = g->k + ((token + b->key) * g->n_kv_head + kv_head) * g->d,
                                    .ldb = g->n_kv_head * g->d,
                                    .is_b_transposed = true,
                                    .c = b->theirs,
                                    .ldc = b->key_end - b->key });
}

/* Zeros where the query t does not see; returns the n scores of keys that it sees. */
static real *mask_row(const QT(attention) * o, const query_block *b, uint32_t t, real *scores,
                      uint32_t *n)
{
    uint32_t n_keys = b->key_end - b->key;
    real *row = scores + (size_t)(t - b->first) * n_keys;
    uint32_t hidden = first_seen(o, b->row, t) - b->key;

    *n = t + 1 - b->key - hidden;
    memset(row, 0, hidden * sizeof(real));
    memset(row + hidden + *n, 0, (n_keys - hidden - *n) * sizeof(real));
    return row + hidden;
}

static void block_forward(const attention_run *run, query_block *b)
{
    const QT(attention) *o = run->o;
    real *lse = block_lse(o, b);
    real scale = (real)(1.0 / sqrt((double)o->d));

    block_scores(run, b, o->q, o->k, b->scores);
    for (uint32_t t = b->first; t < b->end; t++) {
        uint32_t n;
        real *row = mask_row(o, b, t, b->scores, &n);

        lse[t] = run->c->rows->softmax(row, scale, n);
    }
    block_by_query(run, b, b->scores, o->v, o->out);
}

static real *block_divergences(const QT(attention) * o, const query_block *b)
{
    return o->guide->divergences + ((size_t)b->row * o->n_head + b->head) * o->n_tokens;
}

static bool is_guided(const QT(attention) * o, const query_block *b, uint32_t t)
{
    return o->guide != NULL &&
           o->guide->targets[(size_t)b->row * o->n_tokens + t] != QUIRE_TRAIN_NO_TARGET;
}

/* The guide's scores of a query become its weights. Returns the divergence without this model's
 * logarithm of the sum: with logits u of the guide and s, sum p (u - s) - log sum exp u. */
static real guide_begin(const attention_run *run, const query_block *b, const real *scores,
                        real *theirs, uint32_t n)
{
    real scale = (real)(1.0 / sqrt((double)run->o->d));
    real their_scale = (real)(1.0 / sqrt((double)run->o->guide->d)), lse;

    for (uint32_t j = 0; j < n; j++) {
        b->difference[j] = theirs[j] * their_scale - scores[j] * scale;
    }
    lse = run->c->rows->softmax(theirs, their_scale, n);
    return run->c->rows->dot(theirs, b->difference, n) - lse;
}

/* The gradient of the divergence by the logits is w - p. */
static void guide_back(const QT(attention) * o, const real *weights, const real *theirs, real *ds,
                       uint32_t n)
{
    real scale = (real)(1.0 / sqrt((double)o->d)) * o->guide->factor * o->guide->scale;

    for (uint32_t j = 0; j < n; j++) {
        ds[j] += scale * (weights[j] - theirs[j]);
    }
}

/* With p the weights and d = dout . out by query: dv += p^T dout, ds = p (dout v^T - d) scale,
 * dq = ds k, dk += ds^T q. */
static void block_back(const attention_run *run, query_block *b)
{
    const QT(attention) *o = run->o;
    const QT(rows) *rows = run->c->rows;
    real *ds = b->dscores;
    const real *lse = block_lse(o, b);
    real scale = (real)(1.0 / sqrt((double)o->d));

    block_scores(run, b, o->q, o->k, b->scores);
    block_scores(run, b, run->dout, o->v, ds);
    if (o->guide != NULL) {
        guide_scores(run, b);
    }
    for (uint32_t t = b->first; t < b->end; t++) {
        size_t at = b->q_at + (size_t)(t - b->first) * o->n_head * o->d;
        uint32_t n;
        real *p = mask_row(o, b, t, b->scores, &n);
        real *row = mask_row(o, b, t, ds, &n), *theirs = NULL;

        if (is_guided(o, b, t)) {
            theirs = mask_row(o, b, t, b->theirs, &n);
            block_divergences(o, b)[t] +=
                o->guide->factor * (guide_begin(run, b, p, theirs, n) + lse[t]);
        }
        rows->softmax_again(p, scale, lse[t], n);
        rows->softmax_back(row, p, rows->dot(run->dout + at, o->out + at, o->d), scale, n);
        if (theirs != NULL) {
            guide_back(o, p, theirs, row, n);
        }
    }
    block_by_key(run, b, b->scores, run->dout, run->gradients[2]);
    block_by_query(run, b, ds, o->k, run->gradients[0]);
    block_by_key(run, b, ds, o->q, run->gradients[1]);
}

/* A part: one query head of one row. */
static void head_forward(void *ctx, uint32_t part, uint32_t member)
{
    attention_run *run = ctx;
    const QT(attention) *o = run->o;
    query_block b = { .row = part / o->n_head,
                      .head = part % o->n_head,
                      .scores = run->c->scratch + member * run->c->scratch_max };

    for (b.first = 0; b.first < o->n_tokens; b.first += QUERY_BLOCK) {
        block_place(o, &b);
        block_forward(run, &b);
    }
}

/* A part: one KV head of one row, because its query heads add to the same dk and dv. */
static void head_back(void *ctx, uint32_t part, uint32_t member)
{
    attention_run *run = ctx;
    const QT(attention) *o = run->o;
    uint32_t group = o->n_head / o->n_kv_head;
    size_t size = (size_t)QUERY_BLOCK * o->n_tokens;
    real *scratch = run->c->scratch + member * run->c->scratch_max;
    query_block b = { .row = part / o->n_kv_head,
                      .scores = scratch,
                      .dscores = scratch + size,
                      .theirs = scratch + 2 * size,
                      .difference = scratch + 3 * size };

    for (uint32_t i = 0; i < group; i++) {
        b.head = part % o->n_kv_head * group + i;
        for (b.first = 0; b.first < o->n_tokens; b.first += QUERY_BLOCK) {
            block_place(o, &b);
            block_back(run, &b);
        }
    }
}

void QT(attention_forward)(QT(compute) * c, const QT(attention) * o)
{
    attention_run run = { .c = c, .o = o };

    QUIRE_CHECK(c->scratch_max >= QT(attention_scratch)(o->n_tokens));
    quire_parts_run(c->team, o->n_rows * o->n_head, head_forward, &run);
}

void QT(attention_back)(QT(compute) * c, const QT(attention) * o, const real *dout,
                        real *const gradients[3])
{
    attention_run run = { c, o, dout, gradients };

    QUIRE_CHECK(c->scratch_max >= QT(attention_scratch)(o->n_tokens));
    quire_parts_run(c->team, o->n_rows * o->n_kv_head, head_back, &run);
}
