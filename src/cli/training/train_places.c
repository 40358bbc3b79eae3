/* train_places.c - see train_places.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_places.h"

#include "base/check.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The path of a file without links, ".", and ".." above its name; the file may be missing. Returns
 * false where its folder is missing. */
static bool place_of(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    char above[PATH_MAX], folder[PATH_MAX];
    int n = snprintf(above, sizeof(above), "%.*s", slash != NULL ? (int)(name - path) : 1,
                     slash != NULL ? path : ".");

    if (n < 0 || n >= (int)sizeof(above) || realpath(above, folder) == NULL) {
        return false;
    }
    n = snprintf(out, PATH_MAX, "%s/%s", strcmp(folder, "/") != 0 ? folder : "", name);
    return n > 0 && n < PATH_MAX;
}

static bool is_same(const char *a, const char *b)
{
    char place_a[PATH_MAX], place_b[PATH_MAX];

    return place_of(a, place_a) && place_of(b, place_b) && strcmp(place_a, place_b) == 0;
}

/* Whether a file is in a folder or below it, where no dot hides it. */
static bool is_below(const char *path, const char *folder)
{
    char place[PATH_MAX], root[PATH_MAX];
    size_t n;

    if (!place_of(path, place) || realpath(folder, root) == NULL) {
        return false;
    }
    n = strcmp(root, "/") != 0 ? strlen(root) : 0;
    return strncmp(place, root, n) == 0 && place[n] == '/' && strstr(place + n, "/.") == NULL;
}

static int text_check(const char *name, const char *path, const char *data, quire_error *err)
{
    if (is_below(path, data)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s %s is in the folder %s, whose files are the text: the run would "
                               "read it, too, and could not go on. Name another place",
                               name, path, data);
    }
    return QUIRE_OK;
}

int quire_train_places_check(const train_args *args, quire_error *err)
{
    if (args->out != NULL && is_same(args->out, args->checkpoint)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--checkpoint and --output are both %s: the model would replace the "
                               "checkpoint",
                               args->out);
    }
    if (args->data == NULL) {
        return QUIRE_OK;
    }
    if (args->out != NULL && is_same(args->out, args->data)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--data and --output are both %s: the model would replace the text",
                               args->out);
    }
    QUIRE_TRY(text_check("--checkpoint", args->checkpoint, args->data, err));
    return args->out != NULL ? text_check("--output", args->out, args->data, err) : QUIRE_OK;
}
