/* logits_file.h - files of log-probabilities, in the format that llama-perplexity writes with
 * --kl-divergence-base, so that either program can be measured against the other.
 *
 *   offset  type                what
 *   0       char[8]             "_logits_"
 *   8       u32                 n_ctx
 *   12      u32                 n_vocab
 *   16      u32                 n_chunks
 *   20      i32[n_chunks*n_ctx] tokens, as tokenized (a BOS put at a chunk's start is not in here)
 *   ...     coded rows          n_rows = n_ctx - 1 - n_ctx / 2 per chunk (score.h), chunk by chunk
 *
 * With --score-from N a chunk has n_ctx - 1 - N rows. The header does not say so: the reader gives
 * the same N, and the file's length tells another one. llama-perplexity cannot read such a file.
 *
 * Little-endian, as that program writes it on every machine we run on. Source of the format:
 * llama.cpp v0.5.0, tools/perplexity/perplexity.cpp.
 *
 * A file is untrusted: open checks the header against the model and the file's length, and each
 * read checks the values that it returns.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_LOGITS_FILE_H
#define QUIRE_CLI_LOGITS_FILE_H

#include <stdint.h>
#include <stdio.h>

#include "cli/commands/new_file.h"
#include "cli/measuring/score.h"
#include "quire/error.h"

typedef struct quire_logits_file {
    FILE *file;              /* reading */
    char path[4096];         /* as given */
    quire_new_file new_file; /* writing */
    uint32_t n_ctx;
    uint32_t n_vocab;
    uint32_t n_chunks;
    uint32_t score_from; /* first position of a chunk that has a row */
    int32_t *tokens;     /* reading: [n_chunks][n_ctx]; NULL when writing */
} quire_logits_file;

/* Rows that are scored in a chunk: from score_from on, short of its last token. 0: from the half
 * on. */
uint32_t quire_logits_rows(uint32_t n_ctx, uint32_t score_from);

/* Open for reading and check the header; score_from as the file was made with. Errors: QUIRE_IO,
 * QUIRE_CORRUPT, QUIRE_INVAL (made with another vocabulary), QUIRE_NOMEM. Memory:
 * quire_logits_file_close(). */
int quire_logits_file_open(quire_logits_file *out, const char *path, uint32_t n_vocab,
                           uint32_t score_from, quire_error *err);

/* The next row, in file order. Errors: QUIRE_IO, QUIRE_CORRUPT. */
int quire_logits_file_read(quire_logits_file *file, quire_coded_row *row, quire_error *err);

/* The fields of a new file's header, and its tokens. */
typedef struct quire_logits_head {
    uint32_t n_ctx;
    uint32_t n_vocab;
    uint32_t n_chunks;
    const int32_t *tokens; /* [n_chunks][n_ctx] */
    uint32_t score_from;   /* 0: the half */
} quire_logits_head;

/* Begin a file, which appears under its name when it is finished. Errors: QUIRE_IO, QUIRE_INVAL
 * (the name is that of a directory, device or pipe). */
int quire_logits_file_create(quire_logits_file *out, const char *path,
                             const quire_logits_head *head, quire_error *err);

/* Append a row. Errors: QUIRE_IO. */
int quire_logits_file_write(quire_logits_file *file, const quire_coded_row *row, quire_error *err);

/* Write the buffered data and give the file its name. Errors: QUIRE_IO. */
int quire_logits_file_finish(quire_logits_file *file, quire_error *err);

/* Close; an unfinished file is removed. Zeros are fine. */
void quire_logits_file_close(quire_logits_file *file);

#endif /* QUIRE_CLI_LOGITS_FILE_H */
