/* block_file.h - files of quire_block_state: --save-block-state and --resume-block-state.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_BLOCK_FILE_H
#define QUIRE_CLI_BLOCK_FILE_H

#include "cli/commands/new_file.h"
#include "cli/commands/opened.h"
#include "quire/block_state.h"

/* Read a state. Errors: QUIRE_IO, QUIRE_NOMEM, those of quire_block_state_parse(); err names the
 * file. Memory: quire_block_state_free(), on errors too. */
int quire_block_file_read(quire_block_state *out, const char *path, quire_error *err);

/* Write the state of the session's text, `tokens`, and finish the file. Errors: QUIRE_IO,
 * QUIRE_NOMEM, QUIRE_LIMIT. */
int quire_block_file_write(quire_new_file *file, const quire_opened *session, const int32_t *tokens,
                           quire_error *err);

#endif /* QUIRE_CLI_BLOCK_FILE_H */
