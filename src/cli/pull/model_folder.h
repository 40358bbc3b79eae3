/* model_folder.h - the folder where pulled models lie, and the models in it by name.
 *
 * The folder is QUIRE_MODELS, else quire/models in XDG_DATA_HOME or ~/.local/share: models are data
 * that users chose, no cache that may be emptied at any time.
 *
 *   OWNER/REPO/FILE             of the hub; OWNER/REPO@REVISION/FILE if the revision is not main
 *   @url/HOST/PATH              of a URL
 *   FILE.pulled.json            its record: source, hashes, time
 *   FILE.ID.partial             a download that has not ended; ID is of its content
 *   FILE.lock                   while a pull or rm of FILE is at work
 *
 * A file gets its name when all files of its set are complete and verified; the first file of a set
 * gets its name last. So a file with a model's name here belongs to a whole model.
 *
 * Thread: the main thread (environment, working directory).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_MODEL_FOLDER_H
#define QUIRE_CLI_MODEL_FOLDER_H

#include "cli/commands/places.h"
#include "cli/pull/model_files.h"
#include "cli/pull/model_name.h"
#include "quire/error.h"

#define QUIRE_MODEL_RECORD_SUFFIX  ".pulled.json"
#define QUIRE_MODEL_PARTIAL_SUFFIX ".partial"
#define QUIRE_MODEL_LOCK_SUFFIX    ".lock"
#define QUIRE_MODEL_DEPTH_MAX      8u /* folders below the folder of models */

/* The folder; it need not exist. Errors: QUIRE_NOTFOUND (nothing names one), QUIRE_LIMIT. */
int quire_models_folder(char buffer[QUIRE_PLACE_MAX], quire_error *err);

/* The path below the folder for a file of a name: of the repository's file, or of the URL (file is
 * not used). Errors: QUIRE_INVAL (a URL whose path cannot be one here), QUIRE_LIMIT. */
int quire_model_place(const quire_model_name *name, const char *file, char buffer[QUIRE_PLACE_MAX],
                      quire_error *err);

/* All files below a folder whose names end with suffix, as paths relative to it, sorted. A folder
 * that does not exist has none. Errors: QUIRE_IO, QUIRE_NOMEM, QUIRE_LIMIT. Memory:
 * quire_model_files_fini(). */
int quire_model_files_scan(const char *folder, const char *suffix, quire_model_files *out,
                           quire_error *err);

/* The path of the model that text means: text itself if that is a path of something, else the
 * pulled model of that name. A text that is no name comes back unchanged if it looks like a path.
 * Errors: QUIRE_NOTFOUND (no such name, or not pulled; err names the command to type), QUIRE_INVAL,
 * as quire_model_files_choose(). */
int quire_model_resolve(const char *text, char buffer[QUIRE_PLACE_MAX], quire_error *err);

/* The same for names alone: the first file of a pulled model. */
int quire_model_find(const quire_model_name *name, const char *text, char buffer[QUIRE_PLACE_MAX],
                     quire_error *err);

/* The lock of a model's file. Waits while another process holds it, after saying so once; makes the
 * folders above. Errors: QUIRE_IO, QUIRE_CANCELED (Ctrl-C). Returns the descriptor in *fd. */
int quire_model_lock(const char *path, int *fd, quire_error *err);
/* Removes the lock's file and lets go. */
void quire_model_unlock(const char *path, int fd);

/* Remove the files of a set, its record and partial downloads, then folders that are empty. path is
 * that of the first file, which goes first. Errors: QUIRE_IO. */
int quire_model_remove(const char *path, quire_error *err);
/* Remove partial downloads of a file but the one called keep (NULL: all). */
void quire_model_partials_remove(const char *path, const char *keep);

#endif /* QUIRE_CLI_MODEL_FOLDER_H */
