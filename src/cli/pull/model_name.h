/* model_name.h - names of models: the arguments of -m and `quire pull` besides paths.
 *
 *   hf:OWNER/REPO[@REVISION][:SELECTOR]   files of a repository of the hub
 *   OWNER/REPO[@REVISION][:SELECTOR]      the same, where no file has this path
 *   SHORT[:SELECTOR]                      a repository of the table in model_name_table.c
 *   http://... or https://...             one file
 *
 * A selector is the path of a file in the repository (it ends with .gguf) or a quantisation
 * (Q4_K_M, in any case), which ends the name of a file. An URL of a file of the hub
 * (HUB/OWNER/REPO/resolve/REVISION/FILE, or blob in place of resolve) is the same as its name.
 *
 * The parts of a name are checked here: they become parts of paths and of URLs. None is empty, none
 * begins with a dot, and none has a character outside of A-Z a-z 0-9 . _ - (files also: / + space).
 *
 * Thread: any; quire_hub_url() reads the environment.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_MODEL_NAME_H
#define QUIRE_CLI_MODEL_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "quire/error.h"

#define QUIRE_NAME_PART_MAX 97u   /* bytes of an owner, a repository or a revision, the zero too */
#define QUIRE_NAME_FILE_MAX 512u  /* of a file in a repository */
#define QUIRE_NAME_URL_MAX  2048u /* of a URL */
#define QUIRE_NAME_TEXT_MAX (3 * QUIRE_NAME_PART_MAX + QUIRE_NAME_FILE_MAX + 8)

#define QUIRE_HUB_DEFAULT "https://huggingface.co"

typedef struct quire_model_name {
    bool is_url;
    char owner[QUIRE_NAME_PART_MAX];
    char repo[QUIRE_NAME_PART_MAX];
    char revision[QUIRE_NAME_PART_MAX];
    char selector[QUIRE_NAME_FILE_MAX]; /* empty: none */
    char url[QUIRE_NAME_URL_MAX];
} quire_model_name;

/* The hub's address without a slash at its end: QUIRE_HUB, else HF_ENDPOINT, else the default.
 * Errors: QUIRE_INVAL (no http or https URL), QUIRE_LIMIT. */
int quire_hub_url(char buffer[QUIRE_NAME_URL_MAX], quire_error *err);

/* Read a name. Errors: QUIRE_NOTFOUND (text does not have the form of a name; err lists the forms),
 * QUIRE_INVAL (a part of the name is wrong). */
int quire_model_name_parse(const char *text, quire_model_name *out, quire_error *err);

/* The name with its hf: or the URL. Returns buffer. */
char *quire_model_name_text(const quire_model_name *name, char *buffer, size_t buffer_bytes);

/* Whether a path of a file in a repository is safe to become part of a path here: relative, of at
 * most QUIRE_NAME_FILE_MAX - 1 bytes, of parts as above. */
bool quire_model_file_is_safe(const char *path);

/* ---- the table of short names ---- */

typedef struct quire_short_name {
    const char *name;
    const char *owner;
    const char *repo;
    const char *about; /* size and purpose, for lists */
} quire_short_name;

extern const quire_short_name quire_short_names[];
extern const size_t quire_n_short_names;

#endif /* QUIRE_CLI_MODEL_NAME_H */
