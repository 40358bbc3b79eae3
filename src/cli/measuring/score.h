/* score.h - how well rows of logits predict tokens, alone and against a second model's rows.
 *
 *   nll   = log(sum_i exp(x_i)) - x_token                        of one row x, natural logarithm
 *   ppl   = exp(mean nll)                          stderr(ppl) = ppl * stderr(mean nll)
 *   kld   = sum_i p_base(i) * (log p_base(i) - log p(i))         Kullback-Leibler, base first
 *   d     = nll - nll_base, paired: both models see the same tokens, so its standard error is far
 *           below that of either perplexity
 *
 * Standard errors take the rows as independent, sqrt(variance / (n - 1)), as llama-perplexity does.
 *
 * Thread: any; a tally belongs to one thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SCORE_H
#define QUIRE_CLI_SCORE_H

#include <stdbool.h>
#include <stdint.h>

/* The values of one row needed by every figure above. */
typedef struct quire_row {
    double log_sum; /* log(sum exp(x)) */
    double nll;
    double nll_max; /* the largest nll this row can tell apart; INFINITY unless it was coded */
    int32_t top;    /* index of the first largest logit */
} quire_row;

/* logits: [n_vocab], finite; 0 <= token < n_vocab. */
void quire_row_read(const float *logits, uint32_t n_vocab, int32_t token, quire_row *out);

/* row.nll - base.nll. A coded base is limited to nll_max. Beyond this limit both count as nll_max,
 * so that the file's coding does not create a difference for rare tokens. */
double quire_row_nll_difference(const quire_row *row, const quire_row *base);

/* KL divergence of base from row, both with n_vocab logits. */
double quire_row_kld(const float *base_logits, const quire_row *base, const float *logits,
                     const quire_row *row, uint32_t n_vocab);

/* A row of log-probabilities in 16 bits, as llama-perplexity's --kl-divergence-base files keep
 * them: log p(i) = scale * code[i] + min. Logits more than 16 below the largest get code 0. */
typedef struct quire_coded_row {
    float scale;
    float min;
    uint16_t code[]; /* [n_vocab], then one of padding when n_vocab is odd */
} quire_coded_row;

/* Bytes of a coded row. */
uint64_t quire_coded_row_bytes(uint32_t n_vocab);

void quire_row_encode(const float *logits, uint32_t n_vocab, quire_coded_row *out);

/* Tokens below exp(-16) count as absent, as in llama-perplexity. */
double quire_coded_row_kld(const quire_coded_row *base, const float *logits, const quire_row *row,
                           uint32_t n_vocab);
/* nll and top of a coded row; log_sum is 0, since its values are normalised. */
void quire_coded_row_read(const quire_coded_row *base, uint32_t n_vocab, int32_t token,
                          quire_row *out);

/* Mean and standard error of a stream of values. */
typedef struct quire_mean {
    uint64_t n;
    double sum;
    double sum_squares;
} quire_mean;

void quire_mean_add(quire_mean *mean, double value);
double quire_mean_value(const quire_mean *mean);  /* 0 for none */
double quire_mean_stderr(const quire_mean *mean); /* 0 below two values */

/* Half the width of a 95 % interval, in standard errors. */
#define QUIRE_INTERVAL_95 1.96

/* Sort values and return the q-quantile (0..1), interpolated. n > 0. */
double quire_quantile(double *values, uint64_t n, double q);

#endif /* QUIRE_CLI_SCORE_H */
