/* calibration_place.h - locations of calibration files, and lookup by model.
 *
 * MODEL.kv.yaml beside the model, for a calibration that travels with the file; else
 * ${XDG_CACHE_HOME:-~/.cache}/quire/calibration/FINGERPRINT.yaml, which serves every copy of the
 * model.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CALIBRATION_PLACE_H
#define QUIRE_CLI_CALIBRATION_PLACE_H

#include "cli/commands/new_file.h"
#include "model/calibration.h"

#define QUIRE_CALIBRATION_PATH_MAX 4096u
#define QUIRE_CALIBRATION_BESIDE   ".kv.yaml" /* after the model's path */

/* The path in the cache folder; buffer: QUIRE_CALIBRATION_PATH_MAX bytes. Errors: QUIRE_NOTFOUND
 * (no home folder is known), QUIRE_LIMIT (too long). */
int quire_calibration_path(const quire_model_desc *desc, char *buffer, quire_error *err);

/* Create the parent folders of a path; path is unchanged on return. Errors: QUIRE_IO and so on. */
int quire_calibration_folders(char *path, quire_error *err);

/* Begin a file; path NULL = the path in the cache folder, which is created. Errors: as
 * quire_calibration_path() and quire_new_file_open(). Memory: quire_new_file_discard() or
 * save(). */
int quire_calibration_create(quire_new_file *out, const char *path, const quire_model_desc *desc,
                             quire_error *err);

/* Write a calibration to a file begun with create() and give it its name; the file is closed either
 * way. Errors: QUIRE_IO, QUIRE_NOMEM. */
int quire_calibration_save(const quire_calibration *calibration, const quire_model_desc *desc,
                           quire_new_file *file, quire_error *err);

/* The calibration of the model at model_path, NULL when there is none. An unusable file causes a
 * warning and is ignored: beside the model, it does not hide the file in the cache folder. Memory:
 * quire_calibration_free(). */
quire_calibration *quire_calibration_find(const char *model_path, const quire_model_desc *desc);

/* Whether find() uses the file at `path`. taken: QUIRE_CALIBRATION_PATH_MAX bytes, gets the path of
 * the file that find() uses, "" for none. Warns as find() does. */
bool quire_calibration_is_taken(const char *model_path, const quire_model_desc *desc,
                                const char *path, char *taken);

/* NULL is fine. */
void quire_calibration_free(quire_calibration *calibration);

#endif /* QUIRE_CLI_CALIBRATION_PLACE_H */
