/* places.h - files that commands find by themselves.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PLACES_H
#define QUIRE_CLI_PLACES_H

#include <stddef.h>

#include "quire/error.h"

#define QUIRE_PLACE_MAX 4096u

/* The path of a name in Quire's cache folder, ${XDG_CACHE_HOME:-~/.cache}/quire. Errors:
 * QUIRE_NOTFOUND (no such folder is named), QUIRE_LIMIT. */
int quire_place_cached(char buffer[QUIRE_PLACE_MAX], const char *name, quire_error *err);

/* The model of a command that is given none: the default model if scripts/fetch-model.sh has
 * fetched it into the cache folder, else the small model of stories that comes with the program
 * (PREFIX/share/quire, or tests/data beside a build folder). Says on stderr which of them. Errors:
 * QUIRE_NOTFOUND. */
int quire_place_model(char buffer[QUIRE_PLACE_MAX], quire_error *err);

/* The same for chats, which the model of stories cannot do. */
int quire_place_chat_model(char buffer[QUIRE_PLACE_MAX], quire_error *err);

/* Names of the two; the first is also in scripts/env.sh. */
#define QUIRE_PLACE_FETCHED "tinyllama-1.1b-chat-iq2_xxs.gguf"
#define QUIRE_PLACE_STORIES "quire-stories.gguf"

#endif /* QUIRE_CLI_PLACES_H */
