/* opened_overflow.h - texts of a command that are larger than the KV budget: their pages go to a
 * file, or from a device to the host's memory (engine/overflow.h); for opened.c.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPENED_OVERFLOW_H
#define QUIRE_CLI_OPENED_OVERFLOW_H

#include "cli/commands/opened.h"

/* Whether --kv-overflow-attend has pages to choose for: of a device, with this model. Errors:
 * QUIRE_INVAL, QUIRE_UNSUPP. */
int quire_opened_overflow_check(const quire_opened *session, const quire_common_args *args,
                                quire_error *err);

/* Set overflow_dir and overflow_host as the arguments and the model of the session allow. */
void quire_opened_overflow_want(const quire_opened *session, const quire_common_args *args,
                                quire_opened_want *want);

/* Settle before the plan whether the host has memory for the pages of a device:
 * want->overflow_host_bytes, or overflow_host off with a word on stderr; and where generated tokens
 * attend such pages. Errors: quire_opened_overflow_bytes(). */
int quire_opened_overflow_settle(quire_opened *session, const quire_common_args *args,
                                 quire_opened_want *want, quire_error *err);

/* Open session->offload where the runtime may need it; on an error the runtime is closed. Errors:
 * quire_overflow_open(). */
int quire_opened_overflow_open(quire_opened *session, const quire_opened_want *want,
                               quire_error *err);

/* The last failures of the places of such pages, for the end of a message: "; overflow file in
 * --cache-dir: write: No space left on device"; empty: none. Returns buffer. */
#define QUIRE_OVERFLOW_TROUBLE_MAX 400u
char *quire_opened_overflow_trouble(const quire_opened *session, char *buffer, size_t buffer_bytes);

#endif /* QUIRE_CLI_OPENED_OVERFLOW_H */
