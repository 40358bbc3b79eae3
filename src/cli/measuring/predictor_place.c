/* predictor_place.c - see predictor_place.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/predictor_place.h"

#include "base/check.h"
#include "cli/commands/opened.h"
#include "cli/commands/places.h"
#include "cli/measuring/calibration_place.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

quire_predictor_shape quire_predictor_shape_of(const quire_model_desc *desc)
{
    return (quire_predictor_shape){ .n_layers = desc->n_layer,
                                    .n_kv_head = desc->n_kv_head,
                                    .n_hidden = desc->n_embd,
                                    .fingerprint = desc->fingerprint };
}

/* The path in the cache folder. */
static int cached_path(const quire_model_desc *desc, char buffer[QUIRE_PLACE_MAX], quire_error *err)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "calibration/%016" PRIx64 QUIRE_PREDICTOR_BESIDE,
                   desc->fingerprint);
    return quire_place_cached(buffer, name, err);
}

int quire_predictor_begin(quire_new_file *out, const char *path, const quire_model_desc *desc,
                          quire_error *err)
{
    char cached[QUIRE_PLACE_MAX];

    memset(out, 0, sizeof(*out));
    if (path == NULL) {
        QUIRE_TRY(cached_path(desc, cached, err));
        QUIRE_TRY(quire_calibration_folders(cached, err));
        path = cached;
    }
    return quire_new_file_open(out, path, err);
}

int quire_predictor_save(const quire_predictor *predictor, quire_new_file *file, quire_error *err)
{
    void *bytes = NULL;
    size_t n_bytes = 0;
    int rc = quire_predictor_format(predictor, &bytes, &n_bytes);

    if (rc < 0) {
        quire_error_set(err, rc, "out of memory");
    }
    errno = 0;
    if (rc == QUIRE_OK && fwrite(bytes, 1, n_bytes, file->stream) != n_bytes) {
        rc = quire_new_file_fail(file, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_new_file_finish(file, err);
    }
    quire_new_file_discard(file);
    free(bytes);
    return rc;
}

/* A pipe would block. */
static bool is_file(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

static int load(quire_predictor **out, const char *path, const quire_model_desc *desc,
                quire_error *err)
{
    const quire_predictor_shape shape = quire_predictor_shape_of(desc);
    quire_error why = QUIRE_ERROR_INIT;
    char *bytes = NULL;
    size_t n_bytes = 0;
    int rc;

    QUIRE_TRY(quire_read_file(path, &bytes, &n_bytes, err));
    rc = quire_predictor_parse(out, bytes, n_bytes, &shape, &why);
    free(bytes);
    return rc < 0 ? quire_error_set(err, rc,
                                    "%s cannot be used: %s; remove it, or write it again with "
                                    "quire calibrate --retain",
                                    path, why.message)
                  : QUIRE_OK;
}

int quire_predictor_find(quire_predictor **out, const char *model_path,
                         const quire_model_desc *desc, quire_error *err)
{
    char path[QUIRE_PLACE_MAX];
    const int n = snprintf(path, sizeof(path), "%s" QUIRE_PREDICTOR_BESIDE, model_path);

    *out = NULL;
    if (n > 0 && n < (int)sizeof(path) && is_file(path)) {
        return load(out, path, desc, err);
    }
    if (cached_path(desc, path, NULL) == QUIRE_OK && is_file(path)) {
        return load(out, path, desc, err);
    }
    return quire_error_set(err, QUIRE_NOTFOUND,
                           "the policy predict has learned nothing about this model: quire "
                           "calibrate --retain -m %s -f TEXT comes first",
                           model_path);
}
