/* kv_disk.h - KV pages of one sequence on disk, for quire run and quire chat with
 * --cache-dir.
 *
 * The pages are those of quire serve without API keys: each program finds the pages that the other
 * has stored.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_KV_DISK_H
#define QUIRE_CLI_KV_DISK_H

#include <stdbool.h>

#include "cli/commands/opened.h"
#include "server/tenant.h"
#include "store/store.h"

typedef struct quire_kv_disk quire_kv_disk;

/* Open the directory that args name; *out is NULL if they name none. Errors:
 * quire_file_store_create(), QUIRE_NOMEM. Memory: quire_kv_disk_close(). */
int quire_kv_disk_open(quire_kv_disk **out, const quire_common_args *args, quire_opened *session,
                       quire_error *err);
/* Waits until the pages are durable, within a bound. NULL is allowed. */
void quire_kv_disk_close(quire_kv_disk *disk);

/* Append stored pages to a sequence that holds the first tokens of a text, whole pages of it, up to
 * n_tokens. Returns the tokens that the sequence then holds. A missing or damaged page ends the
 * reading, not the program; Ctrl-C ends it too. */
uint32_t quire_kv_disk_read(quire_kv_disk *disk, quire_seq_id seq, const int32_t *tokens,
                            uint32_t n_tokens);

/* Store the pages of a sequence's tokens, the partly filled one included. Pages that are stored
 * already are not written again. */
void quire_kv_disk_write(quire_kv_disk *disk, quire_seq_id seq, const int32_t *tokens,
                         uint32_t n_tokens);

/* Whether layers of the model keep a window: then a text is found again up to a place only if it
 * was written when it ended there. */
bool quire_kv_disk_has_windows(const quire_kv_disk *disk);

/* The place in a prompt of n_tokens tokens at which a state of recurrent layers is to be stored:
 * the last end of a page at or below n_tokens; 0 without recurrent layers. Prompts are found at
 * places with a stored state alone. */
uint32_t quire_kv_disk_state_end(const quire_kv_disk *disk, uint32_t n_tokens);

/* The names under which a session's pages are kept: the tenant's salt and the key of the root. */
void quire_kv_disk_names(const quire_opened *session, quire_tenant_salt *salt,
                         quire_page_key *root);

/* The counters of the store. */
void quire_kv_disk_stats(const quire_kv_disk *disk, quire_store_stats *out);

#endif /* QUIRE_CLI_KV_DISK_H */
