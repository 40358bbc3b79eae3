/* text_docs.c - see text_docs.h.
 *
 * A place is {file, byte offset in it, passes over all files, documents handed out, level}.
 *
 * SPDX-License-Identifier: MIT */
#include "train/text_docs.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/hash128.h"
#include "base/rng.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE_BYTES 4096u
#define SHARES      1000000u /* shares are compared in millionths */
#define FOLDERS_MAX 16u      /* folders within folders; also ends circles of links */

struct quire_text_docs {
    quire_text_docs_options options;
    quire_doc_reader reader;
    char **files; /* [n_files], in the order of their names */
    size_t n_files;
    FILE *stream; /* of `file`; NULL: to be opened */
    uint64_t file;
    uint64_t offset;
    uint64_t n_passes;
    uint64_t n_docs;
    uint64_t n_since_pass; /* documents of this pass; of a resumed pass at least 1 */
    uint64_t level;
    quire_bytes text;
    quire_task_answers answers; /* of the text; n 0: it is no task */
    int32_t *tokens;            /* of the document at hand */
    bool *counts;
};

/* ---- files ---- */

static int add_file(quire_text_docs *d, const char *path, quire_error *err)
{
    char **files;

    if (d->n_files == QUIRE_DOC_FILES_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%s: more than %u files", d->options.path,
                               QUIRE_DOC_FILES_MAX);
    }
    files = realloc(d->files, (d->n_files + 1) * sizeof(*files));
    if (files == NULL || (d->files = files, files[d->n_files] = strdup(path)) == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    d->n_files++;
    return QUIRE_OK;
}

static int add_path(quire_text_docs *d, const char *path, uint32_t depth, quire_error *err);

static int add_folder(quire_text_docs *d, const char *path, uint32_t depth, quire_error *err)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, alphasort);
    int rc = QUIRE_OK;

    if (n < 0) {
        return quire_error_set_errno(err, errno, "cannot read the folder %s", path);
    }
    for (int i = 0; i < n; i++) {
        char below[PIECE_BYTES];

        if (rc == QUIRE_OK && entries[i]->d_name[0] != '.') {
            int length = snprintf(below, sizeof(below), "%s/%s", path, entries[i]->d_name);

            rc = length < (int)sizeof(below)
                     ? add_path(d, below, depth + 1, err)
                     : quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", below);
        }
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int add_path(quire_text_docs *d, const char *path, uint32_t depth, quire_error *err)
{
    struct stat status;

    if (stat(path, &status) != 0) {
        return quire_error_set_errno(err, errno, "cannot read %s", path);
    }
    if (S_ISDIR(status.st_mode)) {
        return depth < FOLDERS_MAX
                   ? add_folder(d, path, depth, err)
                   : quire_error_set(err, QUIRE_INVAL, "%s: more than %u folders within each other",
                                     path, FOLDERS_MAX);
    }
    return S_ISREG(status.st_mode) ? add_file(d, path, err) : QUIRE_OK;
}

/* ---- a document of text ---- */

static void next_file(quire_text_docs *d)
{
    if (d->stream != NULL) {
        (void)fclose(d->stream);
        d->stream = NULL;
    }
    d->file++;
    d->offset = 0;
}

static int open_file(quire_text_docs *d, quire_error *err)
{
    const char *path = d->files[d->file];

    if (d->stream != NULL) {
        return QUIRE_OK;
    }
    errno = 0;
    d->stream = fopen(path, "rb");
    if (d->stream == NULL || fseeko(d->stream, (off_t)d->offset, SEEK_SET) != 0) {
        return quire_error_set_errno(err, errno, "cannot read %s", path);
    }
    return QUIRE_OK;
}

static bool is_separator(const char *line)
{
    size_t n = strlen(QUIRE_DOC_SEPARATOR);

    return strncmp(line, QUIRE_DOC_SEPARATOR, n) == 0 && line[n + strspn(line + n, "\r\n")] == '\0';
}

/* Append the next piece of a line to the text. *ends: the document ends here. A piece has no zero
 * byte behind which something is lost: getc reads bytes one by one. */
static int read_piece(quire_text_docs *d, bool *ends, quire_error *err)
{
    char piece[PIECE_BYTES];
    size_t n = 0;
    int c = EOF;

    while (n + 1 < sizeof(piece) && (c = getc_unlocked(d->stream)) != EOF) {
        piece[n++] = (char)c;
        if (c == '\n') {
            break;
        }
    }
    if (c == EOF && ferror(d->stream)) {
        return quire_error_set_errno(err, errno, "cannot read %s", d->files[d->file]);
    }
    piece[n] = '\0';
    d->offset += n;
    *ends = n == 0 || (is_separator(piece) && memchr(piece, '\0', n) == NULL);
    if (!*ends && quire_bytes_add(&d->text, piece, n) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (n == 0) {
        next_file(d);
    }
    *ends =
        *ends || (d->text.n >= d->options.doc_bytes_max && (c == '\n' || n + 1 == sizeof(piece)));
    return QUIRE_OK;
}

/* Whether the bytes at hand are held out, by their hash. */
static bool text_is_held(const quire_text_docs *d)
{
    unsigned char hash[QUIRE_HASH128_BYTES];

    quire_hash128(d->text.data, d->text.n, hash);
    return (double)(quire_le_get(hash, 8) % SHARES) < d->options.held_share * SHARES;
}

/* At the end of the files: begin again, or QUIRE_NOTFOUND. */
static int next_pass(quire_text_docs *d, quire_error *err)
{
    if (d->options.is_held) {
        return QUIRE_NOTFOUND;
    }
    if (d->n_since_pass == 0) {
        return quire_error_set(err, QUIRE_NOTFOUND, "%s: no text in %zu files", d->options.path,
                               d->n_files);
    }
    d->file = 0;
    d->n_passes++;
    d->n_since_pass = 0;
    return QUIRE_OK;
}

static int next_text(quire_text_docs *d, quire_error *err)
{
    for (;;) {
        bool ends = false;

        quire_bytes_clear(&d->text);
        if (d->file == d->n_files) {
            QUIRE_TRY(next_pass(d, err));
        }
        while (!ends) {
            QUIRE_TRY(open_file(d, err));
            QUIRE_TRY(read_piece(d, &ends, err));
        }
        if (d->text.n > 0 && text_is_held(d) == d->options.is_held) {
            d->n_since_pass++;
            return QUIRE_OK;
        }
    }
}

/* ---- tasks ---- */

/* A number for document n that depends on nothing else than the seed; validation has others. */
static uint64_t doc_seed(const quire_text_docs *d, uint64_t n)
{
    quire_rng rng = { d->options.seed ^ (d->options.is_held ? 0x5851f42d4c957f2du : 0) };

    rng.state += n * 0xd1342543de82ef95u;
    return quire_rng_next(&rng);
}

static quire_task pick_task(const quire_text_docs *d, quire_rng *rng)
{
    uint32_t n = quire_rng_below(rng, (uint32_t)__builtin_popcount(d->options.tasks));
    uint32_t task = 0;

    for (;; task++) {
        if ((d->options.tasks >> task & 1u) != 0 && n-- == 0) {
            return (quire_task)task;
        }
    }
}

size_t quire_text_docs_task_bytes(const quire_text_docs *d)
{
    size_t most = d->options.task_bytes, n = d->options.task_bytes_first;

    for (uint64_t i = 0; i < d->level && n < most; i++) {
        n *= 2;
    }
    return n == 0 || n > most ? most : n;
}

void quire_text_docs_level_set(quire_text_docs *d, uint64_t level)
{
    d->level = level;
}

/* A length between the shortest and the longest. Octaves are as frequent as each other, so that a
 * model that learns short tasks first has them. */
static size_t pick_bytes(const quire_text_docs *d, quire_rng *rng)
{
    size_t most = quire_text_docs_task_bytes(d), least = d->options.task_bytes_min;

    if (least == 0 || least >= most) {
        return most;
    }
    return (size_t)((double)least * pow((double)most / (double)least, quire_rng_unit(rng)));
}

/* ---- the reader ---- */

/* How many tokens of the text's first bytes are also the first tokens of the whole. */
static int tokens_before(const quire_text_docs *d, size_t n_bytes, const int32_t *tokens, size_t n,
                         size_t *n_before, quire_error *err)
{
    const quire_train_tokenizer *by = d->options.tokenizer;
    int32_t *first = NULL;
    size_t n_first;

    QUIRE_TRY(by->encode(by->ctx, d->text.data, n_bytes, &first, &n_first, err));
    *n_before = 0;
    while (*n_before < n_first && *n_before < n && first[*n_before] == tokens[*n_before]) {
        (*n_before)++;
    }
    free(first);
    return QUIRE_OK;
}

/* counts[n] of the text's n tokens: those with bytes of an answer. */
static int count_answers(const quire_text_docs *d, const int32_t *tokens, size_t n, bool *counts,
                         quire_error *err)
{
    for (uint32_t i = 0; i < d->answers.n; i++) {
        size_t first, end;

        QUIRE_TRY(tokens_before(d, d->answers.at[i], tokens, n, &first, err));
        QUIRE_TRY(tokens_before(d, d->answers.end[i], tokens, n, &end, err));
        for (size_t j = first; j < end; j++) {
            counts[j] = true;
        }
    }
    return QUIRE_OK;
}

/* The text as tokens, with those that begin and end a document. */
static int tokens_out(quire_text_docs *d, quire_doc *out, quire_error *err)
{
    const quire_train_tokenizer *by = d->options.tokenizer;
    size_t n_begin = by->begin >= 0, n;
    bool is_task = d->answers.n > 0;
    int32_t *tokens = NULL;
    int rc = QUIRE_OK;

    free(d->tokens);
    free(d->counts);
    d->tokens = NULL;
    d->counts = NULL;
    QUIRE_TRY(by->encode(by->ctx, d->text.data, d->text.n, &tokens, &n, err));
    d->tokens = malloc((n + 2) * sizeof(*d->tokens));
    d->counts = calloc(n + 2, sizeof(*d->counts));
    if (d->tokens == NULL || d->counts == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "out of memory");
    } else if (is_task) {
        rc = count_answers(d, tokens, n, d->counts + n_begin, err);
    }
    if (rc == QUIRE_OK) {
        d->tokens[0] = by->begin;
        if (n > 0) {
            memcpy(d->tokens + n_begin, tokens, n * sizeof(*tokens));
        }
        d->tokens[n_begin + n] = by->end;
        d->counts[n_begin + n] = true;
        *out = (quire_doc){ d->tokens, n_begin + n + (by->end >= 0), is_task ? d->counts : NULL,
                            is_task };
    }
    free(tokens);
    return rc;
}

static int docs_next(void *ctx, quire_doc *out, quire_error *err)
{
    quire_text_docs *d = ctx;
    quire_rng rng = { doc_seed(d, d->n_docs) };

    d->answers.n = 0;
    if (quire_rng_unit(&rng) < d->options.task_share) {
        quire_task task = pick_task(d, &rng);
        size_t n_bytes = pick_bytes(d, &rng);

        if (d->options.is_held && d->files == NULL && d->n_docs >= d->options.n_tasks) {
            return QUIRE_NOTFOUND;
        }
        if (quire_task_write(task, n_bytes, quire_rng_next(&rng), &d->text, &d->answers) < 0) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
    } else {
        QUIRE_TRY(next_text(d, err));
    }
    d->n_docs++;
    return tokens_out(d, out, err);
}

static void docs_tell(void *ctx, uint64_t place[QUIRE_DOC_PLACE])
{
    const quire_text_docs *d = ctx;

    place[0] = d->file;
    place[1] = d->offset;
    place[2] = d->n_passes;
    place[3] = d->n_docs;
    place[4] = d->level;
}

static int docs_seek(void *ctx, const uint64_t place[QUIRE_DOC_PLACE], quire_error *err)
{
    quire_text_docs *d = ctx;

    if (place[0] > d->n_files || place[1] > INT64_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the data has changed: file %llu was read, now there are %zu files",
                               (unsigned long long)place[0] + 1, d->n_files);
    }
    if (d->stream != NULL) {
        (void)fclose(d->stream);
        d->stream = NULL;
    }
    d->file = place[0];
    d->offset = place[1];
    d->n_passes = place[2];
    d->n_docs = place[3];
    d->level = place[4];
    d->n_since_pass = d->n_docs > 0;
    return QUIRE_OK;
}

static int options_check(const quire_text_docs_options *o, quire_error *err)
{
    if (o->path != NULL &&
        (o->doc_bytes_max < QUIRE_DOC_BYTES_MIN || o->doc_bytes_max > QUIRE_DOC_BYTES_MAX)) {
        return quire_error_set(err, QUIRE_INVAL, "documents of %zu bytes: %u to %zu are possible",
                               o->doc_bytes_max, QUIRE_DOC_BYTES_MIN, QUIRE_DOC_BYTES_MAX);
    }
    if (!(o->held_share >= 0 && o->held_share <= 0.5) ||
        !(o->task_share >= 0 && o->task_share <= 1)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "shares: held out %g (0 to 0.5 is possible), tasks %g (0 to 1)",
                               o->held_share, o->task_share);
    }
    if (o->path == NULL && o->task_share < 1) {
        return quire_error_set(err, QUIRE_INVAL, "no text is given, and tasks are not all");
    }
    if (o->task_share > 0 &&
        ((o->tasks & ((1u << QUIRE_TASK_COUNT) - 1)) == 0 || o->tasks >> QUIRE_TASK_COUNT != 0 ||
         o->task_bytes < QUIRE_TASK_BYTES_MIN || o->task_bytes > QUIRE_TASK_BYTES_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "tasks of %zu bytes: at least one task, and %u to %zu bytes",
                               o->task_bytes, QUIRE_TASK_BYTES_MIN, QUIRE_TASK_BYTES_MAX);
    }
    if (o->task_share > 0 && o->task_bytes_min != 0 &&
        (o->task_bytes_min < QUIRE_TASK_BYTES_MIN || o->task_bytes_min > o->task_bytes)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "shortest task of %zu bytes: %u to %zu, the longest, are possible",
                               o->task_bytes_min, QUIRE_TASK_BYTES_MIN, o->task_bytes);
    }
    if (o->task_share > 0 && o->task_bytes_first != 0 &&
        (o->task_bytes_first < QUIRE_TASK_BYTES_MIN || o->task_bytes_first > o->task_bytes)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "longest task of %zu bytes at first: %u to %zu, the longest of all, "
                               "are possible",
                               o->task_bytes_first, QUIRE_TASK_BYTES_MIN, o->task_bytes);
    }
    return QUIRE_OK;
}

int quire_text_docs_open(quire_text_docs **out, const quire_text_docs_options *options,
                         quire_error *err)
{
    quire_text_docs *d;
    int rc;

    QUIRE_TRY(options_check(options, err));
    d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    d->options = *options;
    if (d->options.tokenizer == NULL) {
        d->options.tokenizer = quire_byte_tokenizer();
    }
    d->reader = (quire_doc_reader){ d, docs_next, docs_tell, docs_seek };
    rc = options->path != NULL ? add_path(d, options->path, 0, err) : QUIRE_OK;
    if (rc == QUIRE_OK && options->path != NULL && d->n_files == 0) {
        rc = quire_error_set(err, QUIRE_INVAL, "%s has no files", options->path);
    }
    if (rc < 0) {
        quire_text_docs_close(d);
        return rc;
    }
    *out = d;
    return QUIRE_OK;
}

void quire_text_docs_close(quire_text_docs *d)
{
    if (d == NULL) {
        return;
    }
    if (d->stream != NULL) {
        (void)fclose(d->stream);
    }
    for (size_t i = 0; i < d->n_files; i++) {
        free(d->files[i]);
    }
    free(d->files);
    free(d->tokens);
    free(d->counts);
    quire_bytes_fini(&d->text);
    free(d);
}

uint64_t quire_text_docs_identity(const quire_text_docs_options *o)
{
    const uint64_t counts[] = { o->path != NULL, o->doc_bytes_max,
                                (uint64_t)(o->held_share * SHARES) };

    return quire_hash_add(QUIRE_HASH_INIT, counts, sizeof(counts));
}

const quire_doc_reader *quire_text_docs_reader(const quire_text_docs *d)
{
    return &d->reader;
}
