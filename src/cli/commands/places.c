/* places.c - see places.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/places.h"

#include "base/check.h"
#include "cli/commands/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int quire_place_cached(char buffer[QUIRE_PLACE_MAX], const char *name, quire_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *below = "";
    int n;

    /* The specification of these folders has relative ones ignored. */
    if (cache == NULL || cache[0] != '/') {
        cache = getenv("HOME");
        below = "/.cache";
    }
    if (cache == NULL || cache[0] != '/') {
        return quire_error_set(err, QUIRE_NOTFOUND,
                               "neither XDG_CACHE_HOME nor HOME names a folder");
    }
    n = snprintf(buffer, QUIRE_PLACE_MAX, "%s%s/quire/%s", cache, below, name);
    if (n < 0 || n >= (int)QUIRE_PLACE_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", cache);
    }
    return QUIRE_OK;
}

/* A file at a place relative to the folder of the program: installed and moved, or in a build
 * folder. Returns whether it is there. */
static bool beside_program(char buffer[QUIRE_PLACE_MAX], const char *name)
{
    ssize_t n = readlink("/proc/self/exe", buffer, QUIRE_PLACE_MAX - 1);
    char *end;

    if (n <= 0) {
        return false;
    }
    buffer[n] = '\0';
    end = strrchr(buffer, '/');
    if (end == NULL || (size_t)(end - buffer) + strlen(name) + 2 > QUIRE_PLACE_MAX) {
        return false;
    }
    memcpy(end + 1, name, strlen(name) + 1);
    return access(buffer, R_OK) == 0;
}

static bool is_fetched(char buffer[QUIRE_PLACE_MAX])
{
    if (quire_place_cached(buffer, "models/" QUIRE_PLACE_FETCHED, NULL) < 0 ||
        access(buffer, R_OK) != 0) {
        return false;
    }
    quire_say("no -m: the model is %s", buffer);
    return true;
}

int quire_place_chat_model(char buffer[QUIRE_PLACE_MAX], quire_error *err)
{
    return is_fetched(buffer) ? QUIRE_OK
                              : quire_error_set(err, QUIRE_NOTFOUND,
                                                "no model: -m FILE names one, `make run` and "
                                                "'quire pull' fetch one");
}

int quire_place_model(char buffer[QUIRE_PLACE_MAX], quire_error *err)
{
    if (is_fetched(buffer)) {
        return QUIRE_OK;
    }
    if (beside_program(buffer, "../share/quire/" QUIRE_PLACE_STORIES) ||
        beside_program(buffer, "../tests/data/" QUIRE_PLACE_STORIES)) {
        quire_say("no -m: the model is %s, which knows little stories only; `make run` fetches a "
                  "chat model",
                  buffer);
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_NOTFOUND, "no model: -m FILE names one");
}
