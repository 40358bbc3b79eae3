/* http_head.h - reads the headers of an answer, line by line.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRANSFER_HEAD_H
#define QUIRE_CLI_TRANSFER_HEAD_H

#include "cli/pull/http_transfer.h"

/* Forget everything: a new transfer. */
void quire_transfer_head_clear(quire_transfer_head *head);
/* One line without its end. A status line begins anew, but keeps the fields of the hub's own
 * headers: linked_etag, linked_size, commit. */
void quire_transfer_head_line(quire_transfer_head *head, const char *line, size_t n);

#endif /* QUIRE_CLI_TRANSFER_HEAD_H */
