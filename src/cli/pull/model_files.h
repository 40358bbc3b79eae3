/* model_files.h - the files of a repository or of a folder, and which of them a selector means.
 *
 * A model is one file, or a set NAME-00001-of-000NN.gguf to NAME-000NN-of-000NN.gguf, whose first
 * file stands for all. Files that go with models and are none (mmproj*, *imatrix*) are not chosen.
 *
 * Without a selector the model is the only one, or the first of a list of quantisations that is
 * there (Q4_K_M first). A quantisation ends the file's name, in any case of letters; of several
 * such files the one with the shortest path is meant (Q4_K_M rather than UD-Q4_K_M).
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_MODEL_FILES_H
#define QUIRE_CLI_MODEL_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

#define QUIRE_MODEL_FILES_MAX 10000u /* of one repository */
#define QUIRE_MODEL_PARTS_MAX 999u   /* of one model */
#define QUIRE_SHA256_TEXT_MAX 65u    /* 64 hexadecimal digits */
#define QUIRE_SHA1_TEXT_MAX   41u

typedef struct quire_model_file {
    char *path; /* relative, safe (quire_model_file_is_safe()) */
    uint64_t bytes;
    char sha256[QUIRE_SHA256_TEXT_MAX]; /* lower case; empty: not known */
    char git_sha1[QUIRE_SHA1_TEXT_MAX]; /* of a git blob, for small files; empty: not known */
} quire_model_file;

typedef struct quire_model_files {
    quire_model_file *list;
    size_t n;
    size_t capacity;
} quire_model_files;

/* Append; path is copied. Returns the entry to fill in, NULL when out of memory or when there are
 * QUIRE_MODEL_FILES_MAX already. */
quire_model_file *quire_model_files_add(quire_model_files *files, const char *path);
void quire_model_files_fini(quire_model_files *files);

/* The number of files of the set whose first file has this path; 1 for a file that is no set, 0 for
 * a file that is another one of a set. */
uint32_t quire_model_parts(const char *path);
/* Turn the path of the first file of a set into that of file i, 1 being the first. */
void quire_model_part_set(char *path, uint32_t i);

/* The index of the model that selector means; place names the files in messages. Errors:
 * QUIRE_NOTFOUND (nothing: *out is unchanged or files->n; or a part of the set at *out is missing),
 * QUIRE_INVAL (more than one). */
int quire_model_files_choose(const quire_model_files *files, const char *selector,
                             const char *place, size_t *out, quire_error *err);
/* The entry with exactly this path, NULL if there is none. */
const quire_model_file *quire_model_files_find(const quire_model_files *files, const char *path);

#endif /* QUIRE_CLI_MODEL_FILES_H */
