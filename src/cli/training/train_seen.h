/* train_seen.h - the tokens that documents have.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_SEEN_H
#define QUIRE_CLI_TRAIN_SEEN_H

#include "train/text_docs.h"

typedef struct quire_train_seen {
    int32_t *tokens; /* [n], ascending */
    uint32_t n;
} quire_train_seen;

/* One pass over the documents for training; options: with a path, a tokenizer and no tasks. Errors:
 * those of quire_text_docs_open() and of its reader; QUIRE_CANCELED (Ctrl-C); QUIRE_NOMEM. Memory:
 * quire_train_seen_close(), also after an error. */
int quire_train_seen_read(quire_train_seen *out, const quire_text_docs_options *options,
                          quire_error *err);
void quire_train_seen_close(quire_train_seen *seen);

#endif /* QUIRE_CLI_TRAIN_SEEN_H */
