/* kv_history.h - --kv-history: events of the KV cache as JSON Lines, to find causes of
 * fragmentation.
 *
 * First a line {"type": "stats", ...} with the members of quire_cache_stats at that moment, then
 * one line {"type": "event", "number", "time_us", "kind", "page", "seq", "group", "region",
 * "extent"} for each event that the cache's ring still holds, oldest first. The first number tells
 * how many older events the ring has dropped. quire/cache.h defines the members.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_KV_HISTORY_H
#define QUIRE_CLI_KV_HISTORY_H

#include "cli/commands/new_file.h"
#include "quire/cache.h"

typedef struct quire_kv_history {
    const quire_cache *cache; /* NULL when no file was requested */
    quire_new_file file;
} quire_kv_history;

/* Begin the file, so that an unwritable name is reported before the work. path NULL: no file is
 * requested, and close() does nothing. cache must live until close(). Errors: as
 * quire_new_file_open(), QUIRE_INVAL ("-"). */
int quire_kv_history_open(quire_kv_history *out, const quire_cache *cache, const char *path,
                          quire_error *err);

/* Write and finish the file, even after a failed run; a zeroed struct is allowed. Reports a failure
 * on stderr. Returns QUIRE_EXIT_FAILED after a failure, else the given exit status. */
int quire_kv_history_close(quire_kv_history *history, int exit_status);

#endif /* QUIRE_CLI_KV_HISTORY_H */
