/* text_docs.c - see text_docs.h.
 *
 * A place is {file, byte offset in it, passes over all files, documents handed out, level, identity
 * of the files, bits of the due tokens}.
 *
 * SPDX-License-Identifier: MIT */
#include "train/text_docs.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/hash128.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHARES 1000000u /* shares are compared in millionths */

struct quire_text_docs {
    quire_text_docs_options options;
    quire_doc_reader reader;
    quire_text_files *files; /* NULL: tasks alone */
    uint64_t n_passes;
    uint64_t n_docs;
    uint64_t n_since_pass; /* documents of this pass; of a resumed pass at least 1 */
    uint64_t level;
    uint64_t identity; /* of the files; 0: tasks alone */
    double due;        /* tokens that tasks lack of their share so far; below 0: have above it */
    quire_bytes text;
    quire_task_answers answers; /* of the text; n 0: it is no task */
    int32_t *tokens;            /* of the document at hand */
    bool *counts;
};

/* ---- a document of text ---- */

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
                               quire_text_files_count(d->files));
    }
    quire_text_files_rewind(d->files);
    d->n_passes++;
    d->n_since_pass = 0;
    return QUIRE_OK;
}

static int next_text(quire_text_docs *d, quire_error *err)
{
    for (;;) {
        int rc = quire_text_files_next(d->files, &d->text, err);

        if (rc == QUIRE_NOTFOUND) {
            QUIRE_TRY(next_pass(d, err));
            continue;
        }
        QUIRE_TRY(rc);
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

/* Each document of text makes its share of tasks due, and each task takes its tokens off again. */
static void note_tokens(quire_text_docs *d, const quire_doc *doc)
{
    double share = d->options.task_share, n = (double)doc->n;

    d->due += d->answers.n > 0 ? -(1 - share) * n : share * n;
}

static int docs_next(void *ctx, quire_doc *out, quire_error *err)
{
    quire_text_docs *d = ctx;
    quire_rng rng = { doc_seed(d, d->n_docs) };

    /* Tasks are made from the numbers behind this one, as those of the committed models were. */
    (void)quire_rng_unit(&rng);
    d->answers.n = 0;
    if (d->options.task_share >= 1 || (d->options.task_share > 0 && d->due > 0)) {
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
    QUIRE_TRY(tokens_out(d, out, err));
    note_tokens(d, out);
    return QUIRE_OK;
}

static void docs_tell(void *ctx, uint64_t place[QUIRE_DOC_PLACE])
{
    const quire_text_docs *d = ctx;

    memset(place, 0, QUIRE_DOC_PLACE * sizeof(*place));
    if (d->files != NULL) {
        quire_text_files_tell(d->files, &place[0], &place[1]);
    }
    place[2] = d->n_passes;
    place[3] = d->n_docs;
    place[4] = d->level;
    place[5] = d->identity;
    memcpy(&place[6], &d->due, sizeof(d->due));
}

static int docs_seek(void *ctx, const uint64_t place[QUIRE_DOC_PLACE], quire_error *err)
{
    quire_text_docs *d = ctx;

    /* A place in the first document has an identity, too; only the beginning of all has none. */
    if (place[5] != 0 && place[5] != d->identity) {
        return quire_error_set(
            err, QUIRE_INVAL,
            "the data has changed: files have come, gone, or changed their names "
            "or lengths");
    }
    if (d->files != NULL) {
        QUIRE_TRY(quire_text_files_seek(d->files, place[0], place[1], err));
    }
    d->n_passes = place[2];
    d->n_docs = place[3];
    d->level = place[4];
    memcpy(&d->due, &place[6], sizeof(d->due));
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
    if (options->path != NULL) {
        rc = quire_text_files_open(&d->files, options->path, options->doc_bytes_max, err);
        if (rc < 0) {
            quire_text_docs_close(d);
            return rc;
        }
        d->identity = quire_text_files_identity(d->files);
    }
    *out = d;
    return QUIRE_OK;
}

void quire_text_docs_close(quire_text_docs *d)
{
    if (d == NULL) {
        return;
    }
    quire_text_files_close(d->files);
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
