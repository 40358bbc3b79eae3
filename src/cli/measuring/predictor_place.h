/* predictor_place.h - locations of the files of quire calibrate --retain, and lookup by model.
 *
 * MODEL.retain beside the model; else ${XDG_CACHE_HOME:-~/.cache}/quire/calibration/
 * FINGERPRINT.retain, which serves every copy of the model.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PREDICTOR_PLACE_H
#define QUIRE_CLI_PREDICTOR_PLACE_H

#include "cli/commands/new_file.h"
#include "model/model.h"
#include "retain/predictor.h"

#define QUIRE_PREDICTOR_BESIDE ".retain" /* after the model's path */

quire_predictor_shape quire_predictor_shape_of(const quire_model_desc *desc);

/* Begin a file; path NULL = the path in the cache folder, which is created. Errors and memory: as
 * quire_calibration_create(). */
int quire_predictor_begin(quire_new_file *out, const char *path, const quire_model_desc *desc,
                          quire_error *err);

/* Write to the file and give it its name; the file is closed either way. Errors: QUIRE_IO,
 * QUIRE_NOMEM. */
int quire_predictor_save(const quire_predictor *predictor, quire_new_file *file, quire_error *err);

/* The predictor of the model at model_path. Memory: quire_predictor_free(). Errors: QUIRE_NOTFOUND
 * (there is none; err says how to make one), those of quire_predictor_parse() with the file's
 * name. */
int quire_predictor_find(quire_predictor **out, const char *model_path,
                         const quire_model_desc *desc, quire_error *err);

#endif /* QUIRE_CLI_PREDICTOR_PLACE_H */
