/* evaluate.h - perplexity of a text, and its distance from a base.
 *
 * The text's tokens are cut into chunks of n_ctx; each chunk is computed from an empty context,
 * with BOS in place of its first token if the model uses BOS. The predictions of its second half
 * are scored (the first half is context), as in llama-perplexity, or those from score_from on.
 *
 * The base is a second runtime that computes the same steps (exact), a file of log-probabilities
 * (16 bit), or logits that an earlier evaluation kept (exact).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_EVALUATE_H
#define QUIRE_CLI_EVALUATE_H

#include "cli/commands/opened.h"
#include "cli/measuring/logits_file.h"
#include "cli/measuring/score.h"

typedef struct quire_evaluation {
    uint32_t n_chunks; /* done */
    quire_mean nll;
    double *chunk_ppl; /* [n_chunks] perplexity up to and including each chunk */
    bool has_base;
    quire_mean nll_base;
    quire_mean nll_difference; /* ours less the base's, row by row */
    quire_mean kld;
    double *kld_values; /* [kld.n] */
    double kld_max;
    uint64_t n_same_top;
    double compute_s; /* in steps of our runtime */
} quire_evaluation;

typedef struct quire_evaluate_opts {
    quire_opened *session;
    quire_opened *base_session;   /* NULL = none; same n_ctx and n_batch */
    quire_logits_file *base_file; /* NULL = none; at its first row */
    const float *base_logits;     /* NULL = none; [n_chunks][quire_logits_rows()][n_vocab] */
    quire_logits_file *save_file; /* NULL = none; rows are appended */
    float *keep_logits;           /* NULL = none; gets the logits, shaped like base_logits */
    uint32_t score_from;          /* first position of a chunk that is scored; 0 = its half */
    const char *progress;         /* begins the progress line; NULL = nothing before the chunk */
    const int32_t *tokens;        /* [n_chunks][n_ctx] */
    uint32_t n_ctx;
    uint32_t n_chunks;
} quire_evaluate_opts;

/* Tokens of a text file ("-" = stdin), with progress. Memory: free(*tokens). Errors: as
 * quire_read_file() and quire_opened_tokenize(). */
int quire_evaluate_text(const quire_opened *session, const char *path, int32_t **tokens,
                        size_t *n_tokens, quire_error *err);

/* Memory: quire_evaluation_fini(out), also after a failure. Errors: as quire_runtime_step(),
 * QUIRE_CANCELED after Ctrl-C, QUIRE_IO and QUIRE_CORRUPT of the files; err tells. */
int quire_evaluate(quire_evaluation *out, const quire_evaluate_opts *opts, quire_error *err);

void quire_evaluation_fini(quire_evaluation *evaluation);

/* exp(mean nll) and its standard error. */
double quire_perplexity(const quire_mean *nll);
double quire_perplexity_stderr(const quire_mean *nll);

/* A mean as JSON, with its standard error and the 95 % interval; NULL when out of memory. */
json_t *quire_interval_json(double mean, double std_err);

#endif /* QUIRE_CLI_EVALUATE_H */
