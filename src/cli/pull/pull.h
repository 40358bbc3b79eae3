/* pull.h - fetch a model by name: all files of its set, verified, then named.
 *
 *   1. the list of files: the hub's, or HEAD of a URL
 *   2. the lock of the first file; another pull of the model is waited for
 *   3. nothing to do if files of these sizes and hashes are here already
 *   4. room on the disk for the missing bytes
 *   5. each file into its partial file (fetch_file.h)
 *   6. names: an older first file goes first, the new first file comes last; then the record
 *
 * Thread: the main thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PULL_H
#define QUIRE_CLI_PULL_H

#include <stdbool.h>

#include "cli/commands/places.h"
#include "cli/pull/hub.h"
#include "cli/pull/model_name.h"

typedef struct quire_pulled {
    char path[QUIRE_PLACE_MAX]; /* of the first file */
    char sha256[QUIRE_SHA256_TEXT_MAX];
    char commit[64];
    uint64_t bytes; /* of all files */
    uint64_t fetched_bytes;
    uint32_t n_files;
    bool was_here;
} quire_pulled;

/* sha256: the hash that the caller expects of a single file, NULL = any. Errors:
 * quire_transfer_run(), quire_fetch_run(), quire_fetch_space(), quire_model_files_choose(),
 * QUIRE_INVAL (sha256 for a set of several files, or another hash than the hub's). */
int quire_pull(const quire_model_name *name, const char *sha256, const quire_hub_opts *opts,
               quire_pulled *out, quire_error *err);

#endif /* QUIRE_CLI_PULL_H */
