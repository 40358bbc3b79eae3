/* logits_file.c - reads and writes llama-perplexity's log-probability files.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/logits_file.h"

#include "base/check.h"
#include "cli/settings/args.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC      "_logits_"
#define HEAD_BYTES 20u

uint32_t quire_logits_rows(uint32_t n_ctx, uint32_t score_from)
{
    return n_ctx - 1 - (score_from != 0 ? score_from : n_ctx / 2);
}

static int fail_read(const quire_logits_file *file, quire_error *err)
{
    if (ferror(file->file)) {
        return quire_error_set_errno(err, errno, "cannot read %s", file->path);
    }
    return quire_error_set(err, QUIRE_CORRUPT, "%s: ends early", file->path);
}

static uint64_t expected_bytes(const quire_logits_file *file)
{
    /* n_ctx <= 2^20, n_chunks < 2^31, a row under 2^33 bytes: checked before, fits 64 bits only
     * when the rows are few, so the product is guarded by check_head(). */
    uint64_t n_tokens = (uint64_t)file->n_chunks * file->n_ctx;
    uint64_t n_rows = (uint64_t)file->n_chunks * quire_logits_rows(file->n_ctx, file->score_from);

    return HEAD_BYTES + n_tokens * sizeof(int32_t) + n_rows * quire_coded_row_bytes(file->n_vocab);
}

static int check_head(const quire_logits_file *file, uint32_t n_vocab, quire_error *err)
{
    struct stat status;

    if (file->n_vocab != n_vocab) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s was made with a vocabulary of %u tokens, this model has %u",
                               file->path, file->n_vocab, n_vocab);
    }
    if (file->n_ctx < 4 || file->n_ctx > QUIRE_TOKENS_MAX || file->n_chunks == 0 ||
        file->n_chunks > INT32_MAX / file->n_ctx || file->score_from >= file->n_ctx - 1) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: %u chunks of %u tokens cannot be",
                               file->path, file->n_chunks, file->n_ctx);
    }
    if (fstat(fileno(file->file), &status) != 0) {
        return quire_error_set_errno(err, errno, "cannot read %s", file->path);
    }
    if (S_ISREG(status.st_mode) && (uint64_t)status.st_size != expected_bytes(file)) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: has %lld bytes, its header calls for %llu",
                               file->path, (long long)status.st_size,
                               (unsigned long long)expected_bytes(file));
    }
    return QUIRE_OK;
}

static int read_tokens(quire_logits_file *file, quire_error *err)
{
    size_t n = (size_t)file->n_chunks * file->n_ctx;

    file->tokens = malloc(n * sizeof(*file->tokens));
    if (file->tokens == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: no memory for its %zu tokens", file->path, n);
    }
    if (fread(file->tokens, sizeof(*file->tokens), n, file->file) != n) {
        return fail_read(file, err);
    }
    for (size_t i = 0; i < n; i++) {
        if (file->tokens[i] < 0 || (uint32_t)file->tokens[i] >= file->n_vocab) {
            return quire_error_set(err, QUIRE_CORRUPT, "%s: token %zu is %d, outside 0 to %u",
                                   file->path, i, file->tokens[i], file->n_vocab - 1);
        }
    }
    return QUIRE_OK;
}

static int read_head(quire_logits_file *file, uint32_t n_vocab, quire_error *err)
{
    char magic[8];
    uint32_t sizes[3];

    if (fread(magic, 1, sizeof(magic), file->file) != sizeof(magic) ||
        memcmp(magic, MAGIC, sizeof(magic)) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: not a file of log-probabilities (it would begin with " MAGIC
                               "; --save-logits writes one)",
                               file->path);
    }
    if (fread(sizes, sizeof(sizes[0]), 3, file->file) != 3) {
        return fail_read(file, err);
    }
    file->n_ctx = sizes[0];
    file->n_vocab = sizes[1];
    file->n_chunks = sizes[2];
    QUIRE_TRY(check_head(file, n_vocab, err));
    return read_tokens(file, err);
}

static int set_path(quire_logits_file *file, const char *path, quire_error *err)
{
    memset(file, 0, sizeof(*file));
    if (strlen(path) >= sizeof(file->path)) {
        return quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", path);
    }
    memcpy(file->path, path, strlen(path) + 1);
    return QUIRE_OK;
}

int quire_logits_file_open(quire_logits_file *out, const char *path, uint32_t n_vocab,
                           uint32_t score_from, quire_error *err)
{
    int rc;

    QUIRE_TRY(set_path(out, path, err));
    out->score_from = score_from;
    out->file = fopen(path, "rb");
    if (out->file == NULL) {
        return quire_error_set_errno(err, errno, "cannot open %s", path);
    }
    rc = read_head(out, n_vocab, err);
    if (rc < 0) {
        quire_logits_file_close(out);
    }
    return rc;
}

int quire_logits_file_read(quire_logits_file *file, quire_coded_row *row, quire_error *err)
{
    size_t n_bytes = (size_t)quire_coded_row_bytes(file->n_vocab);

    if (fread(row, 1, n_bytes, file->file) != n_bytes) {
        return fail_read(file, err);
    }
    if (!isfinite(row->scale) || row->scale < 0 || !isfinite(row->min)) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: a row has scale %g and minimum %g",
                               file->path, (double)row->scale, (double)row->min);
    }
    return QUIRE_OK;
}

int quire_logits_file_create(quire_logits_file *out, const char *path,
                             const quire_logits_head *head, quire_error *err)
{
    uint32_t sizes[3] = { head->n_ctx, head->n_vocab, head->n_chunks };
    size_t n_tokens = (size_t)head->n_chunks * head->n_ctx;
    FILE *stream;

    QUIRE_TRY(set_path(out, path, err));
    QUIRE_TRY(quire_new_file_open(&out->new_file, path, err));
    out->n_ctx = head->n_ctx;
    out->n_vocab = head->n_vocab;
    out->n_chunks = head->n_chunks;
    out->score_from = head->score_from;
    stream = out->new_file.stream;
    errno = 0;
    if (fwrite(MAGIC, 1, 8, stream) != 8 || fwrite(sizes, sizeof(sizes[0]), 3, stream) != 3 ||
        fwrite(head->tokens, sizeof(int32_t), n_tokens, stream) != n_tokens) {
        (void)quire_new_file_fail(&out->new_file, err);
        quire_logits_file_close(out);
        return err->status;
    }
    return QUIRE_OK;
}

int quire_logits_file_write(quire_logits_file *file, const quire_coded_row *row, quire_error *err)
{
    size_t n_bytes = (size_t)quire_coded_row_bytes(file->n_vocab);

    errno = 0;
    return fwrite(row, 1, n_bytes, file->new_file.stream) == n_bytes
               ? QUIRE_OK
               : quire_new_file_fail(&file->new_file, err);
}

int quire_logits_file_finish(quire_logits_file *file, quire_error *err)
{
    return quire_new_file_finish(&file->new_file, err);
}

void quire_logits_file_close(quire_logits_file *file)
{
    if (file->file != NULL) {
        (void)fclose(file->file);
        file->file = NULL;
    }
    quire_new_file_discard(&file->new_file);
    free(file->tokens);
    file->tokens = NULL;
}
