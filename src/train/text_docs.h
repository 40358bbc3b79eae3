/* text_docs.h - documents from text files and folders, and made-up tasks mixed in.
 *
 * text_files.h says where documents end and how files are mixed. Documents for training and those
 * that are held out come in this order alike.
 *
 * **Held out**: the hash of a document's bytes decides whether it is for validation, so a document
 * stays on its side when files are added, renamed or put in another order.
 *
 * **Tasks** have answers that can be found only in the text before them: recall (values of keys),
 * passkey (a number in filler text), copy (a text once more), instruction (the beginning says which
 * of the words at the end is asked for). Only answers and the end of the document count as targets.
 * A task is made from the seed, its number and the level alone.
 *
 * **Their share**: a task comes next while the tasks so far have less than their share of the
 * tokens. So documents and tasks alternate, and any part of the data has about the share.
 *
 * **The level** doubles the length of the longest task once for each step up, from task_bytes_first
 * to task_bytes. Its caller raises it when short tasks are learned.
 *
 * Texts become tokens by a tokenizer, whose begin and end stand around each document.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_TEXT_DOCS_H
#define QUIRE_TRAIN_TEXT_DOCS_H

#include "base/bytes.h"
#include "train/pack.h"
#include "train/text_files.h"
#include "train/tokens.h"

#define QUIRE_DOC_BYTES_MIN  64u
#define QUIRE_DOC_BYTES_MAX  ((size_t)16 << 20)
#define QUIRE_TASK_BYTES_MIN 64u
#define QUIRE_TASK_BYTES_MAX ((size_t)1 << 20)

typedef enum quire_task {
    QUIRE_TASK_RECALL,
    QUIRE_TASK_PASSKEY,
    QUIRE_TASK_COPY,
    QUIRE_TASK_INSTRUCTION,
    QUIRE_TASK_COUNT
} quire_task;

/* "recall", "passkey", "copy", "instruction", NULL. Memory: static. */
const char *const *quire_task_names(void);

typedef struct quire_text_docs_options {
    const char *path;     /* a file or a folder (with folders in it); NULL: tasks alone */
    size_t doc_bytes_max; /* QUIRE_DOC_BYTES_MIN .. MAX */
    double held_share;    /* of documents that are held out, 0 to 0.5 */
    bool is_held;         /* read those that are held out, once; else the others, again and again */
    double task_share;    /* of tokens that are those of tasks, 0 to 1; 1 when there is no path */
    unsigned tasks;       /* a bit for each quire_task */
    size_t task_bytes;    /* of a task, about; QUIRE_TASK_BYTES_MIN .. MAX */
    size_t task_bytes_min;   /* of the shortest task; 0: task_bytes. Lengths between are drawn so
                                that each octave is as frequent */
    size_t task_bytes_first; /* of the longest task at level 0; 0: task_bytes at all levels */
    uint64_t n_tasks;        /* when is_held and there is no path: how many */
    uint64_t seed;
    const quire_train_tokenizer *tokenizer; /* NULL: bytes; it outlives the docs */
} quire_text_docs_options;

typedef struct quire_text_docs quire_text_docs;

/* Errors: QUIRE_INVAL (options, no files, too many files), QUIRE_IO, QUIRE_NOMEM; err names path or
 * option. Memory: quire_text_docs_close(). */
int quire_text_docs_open(quire_text_docs **out, const quire_text_docs_options *options,
                         quire_error *err);
void quire_text_docs_close(quire_text_docs *docs);

/* A hash of the options that decide which documents there are: a place means nothing with others.
 * Tasks are not among them. */
uint64_t quire_text_docs_identity(const quire_text_docs_options *options);

/* Memory: the docs'. next() also fails with QUIRE_NOTFOUND when a whole pass over the files, read
 * again and again, has no document. */
const quire_doc_reader *quire_text_docs_reader(const quire_text_docs *docs);

/* The level of the documents after the one at hand. The beginning has level 0. */
void quire_text_docs_level_set(quire_text_docs *docs, uint64_t level);

/* Bytes of the longest task at the level. */
size_t quire_text_docs_task_bytes(const quire_text_docs *docs);

/* Answer i is the bytes [at[i], end[i]) of its text. The last one ends the text. */
#define QUIRE_TASK_ANSWERS_MAX 32u
typedef struct quire_task_answers {
    uint32_t n;
    size_t at[QUIRE_TASK_ANSWERS_MAX];
    size_t end[QUIRE_TASK_ANSWERS_MAX];
} quire_task_answers;

/* Write the text of a task: out is cleared first. It has at most n_bytes bytes, or as few as the
 * task allows. Errors: QUIRE_NOMEM. For the reader and for tests. */
int quire_task_write(quire_task task, size_t n_bytes, uint64_t seed, quire_bytes *out,
                     quire_task_answers *answers);

#endif /* QUIRE_TRAIN_TEXT_DOCS_H */
