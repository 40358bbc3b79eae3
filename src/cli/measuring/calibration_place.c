/* calibration_place.c - see calibration_place.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/calibration_place.h"

#include "base/check.h"
#include "cli/commands/opened.h"
#include "cli/commands/places.h"
#include "cli/commands/talk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int quire_calibration_path(const quire_model_desc *desc, char *buffer, quire_error *err)
{
    char name[64];
    int rc;

    (void)snprintf(name, sizeof(name), "calibration/%016" PRIx64 ".yaml", desc->fingerprint);
    rc = quire_place_cached(buffer, name, err);
    if (rc == QUIRE_NOTFOUND) {
        return quire_error_set(err, rc,
                               "neither XDG_CACHE_HOME nor HOME names a folder: -o says where to "
                               "write");
    }
    return rc;
}

int quire_calibration_folders(char *path, quire_error *err)
{
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        int result;

        *at = '\0';
        result = mkdir(path, 0777);
        if (result != 0 && errno != EEXIST) {
            return quire_error_set_errno(err, errno, "cannot make the folder %s", path);
        }
        *at = '/';
    }
    return QUIRE_OK;
}

int quire_calibration_create(quire_new_file *out, const char *path, const quire_model_desc *desc,
                             quire_error *err)
{
    char cached[QUIRE_CALIBRATION_PATH_MAX];

    memset(out, 0, sizeof(*out));
    if (path == NULL) {
        QUIRE_TRY(quire_calibration_path(desc, cached, err));
        QUIRE_TRY(quire_calibration_folders(cached, err));
        path = cached;
    }
    return quire_new_file_open(out, path, err);
}

int quire_calibration_save(const quire_calibration *calibration, const quire_model_desc *desc,
                           quire_new_file *file, quire_error *err)
{
    char *text = NULL;
    size_t text_bytes;
    int rc = quire_calibration_format(calibration, desc, &text, &text_bytes, err);

    errno = 0;
    if (rc == QUIRE_OK && fwrite(text, 1, text_bytes, file->stream) != text_bytes) {
        rc = quire_new_file_fail(file, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_new_file_finish(file, err);
    }
    quire_new_file_discard(file);
    free(text);
    return rc;
}

/* Read an existing file. NULL after a warning; `instead` is its text for the choice of --kv auto
 * without the file. */
static quire_calibration *load(const char *path, const quire_model_desc *desc, const char *instead)
{
    quire_calibration *calibration = calloc(1, sizeof(*calibration));
    quire_error err = QUIRE_ERROR_INIT;
    char *text = NULL;
    size_t text_bytes = 0;
    int rc = QUIRE_NOMEM;

    if (calibration == NULL) {
        quire_error_set(&err, rc, "out of memory");
    } else {
        rc = quire_read_file(path, &text, &text_bytes, &err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_calibration_parse(calibration, text, text_bytes, desc, &err);
    }
    free(text);
    if (rc < 0) {
        quire_say("warning: the calibration %s cannot be used, --kv auto goes by %s: %s", path,
                  instead, err.message);
        free(calibration);
        return NULL;
    }
    return calibration;
}

/* A pipe would block, and only a file is taken for a calibration. */
static bool is_file(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

/* find(), telling where; taken: "" when the result is NULL. */
static quire_calibration *find(const char *model_path, const quire_model_desc *desc, char *taken)
{
    char cached[QUIRE_CALIBRATION_PATH_MAX];
    const bool is_cached =
        quire_calibration_path(desc, cached, NULL) == QUIRE_OK && is_file(cached);
    quire_calibration *found = NULL;
    int n = snprintf(taken, QUIRE_CALIBRATION_PATH_MAX, "%s" QUIRE_CALIBRATION_BESIDE, model_path);

    if (n > 0 && n < (int)QUIRE_CALIBRATION_PATH_MAX && is_file(taken)) {
        found = load(taken, desc, is_cached ? cached : "general rules");
    }
    if (found == NULL && is_cached) {
        memcpy(taken, cached, strlen(cached) + 1);
        found = load(taken, desc, "general rules");
    }
    if (found == NULL) {
        taken[0] = '\0';
    }
    return found;
}

quire_calibration *quire_calibration_find(const char *model_path, const quire_model_desc *desc)
{
    char taken[QUIRE_CALIBRATION_PATH_MAX];

    return find(model_path, desc, taken);
}

bool quire_calibration_is_taken(const char *model_path, const quire_model_desc *desc,
                                const char *path, char *taken)
{
    struct stat a;
    struct stat b;

    quire_calibration_free(find(model_path, desc, taken));
    return taken[0] != '\0' && stat(path, &a) == 0 && stat(taken, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void quire_calibration_free(quire_calibration *calibration)
{
    if (calibration != NULL) {
        quire_calibration_fini(calibration);
        free(calibration);
    }
}
