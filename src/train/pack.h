/* pack.h - documents one after another in the rows of a batch.
 *
 * A reader hands out documents as token ids; text, tokenizers and made-up tasks are behind that
 * interface. The packer fills rows with documents; a document that does not fit goes on in the next
 * row, where it does not see its beginning. A whole document begins the next row
 * instead, if it fits there. The last token of a document has no target.
 *
 * A place in the data is some numbers that a checkpoint keeps: after quire_packer_seek() the packer
 * goes on with the very next token.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_PACK_H
#define QUIRE_TRAIN_PACK_H

#include "quire/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_DOC_PLACE  7u                    /* numbers of a reader's place */
#define QUIRE_PACK_PLACE (QUIRE_DOC_PLACE + 1) /* numbers of a packer's */

typedef struct quire_doc {
    const int32_t *tokens; /* the reader's, until its next call */
    size_t n;
    const bool *counts; /* [n], the reader's likewise: the token is a target; NULL: each is */
    bool is_whole;      /* worth nothing without its beginning */
} quire_doc;

typedef struct quire_doc_reader {
    void *ctx;
    /* The next document. Errors: QUIRE_NOTFOUND (there is no more; readers for training begin
     * again instead), QUIRE_IO, QUIRE_NOMEM and others, with err filled in. */
    int (*next)(void *ctx, quire_doc *out, quire_error *err);
    /* The place before the next document; all zeros is the beginning. */
    void (*tell)(void *ctx, uint64_t place[QUIRE_DOC_PLACE]);
    /* Errors: QUIRE_INVAL (no such place), QUIRE_IO. */
    int (*seek)(void *ctx, const uint64_t place[QUIRE_DOC_PLACE], quire_error *err);
} quire_doc_reader;

typedef struct quire_packer {
    const quire_doc_reader *reader;
    quire_doc doc;   /* at hand */
    uint64_t offset; /* its first token that no row has; doc.n - 1 or more: used up */
    uint64_t place[QUIRE_DOC_PLACE]; /* before it */
    bool has_ended;
} quire_packer;

/* Begin where the reader is. The reader outlives the packer. */
void quire_packer_init(quire_packer *p, const quire_doc_reader *reader);

typedef struct quire_packed {
    uint32_t n_rows;
    uint32_t n_tokens; /* of a row */
    int32_t *tokens;   /* [n_rows n_tokens], like the next two; see quire_train_batch */
    int32_t *targets;  /* QUIRE_TRAIN_NO_TARGET at ends, given tokens and padding */
    int32_t *first;
    uint32_t n_targets; /* result: tokens that count */
} quire_packed;

/* Fill a batch. When the reader ends, the rest is padding (token 0, no target); n_targets 0 says
 * that nothing was left. Errors: the reader's. */
int quire_packer_fill(quire_packer *p, quire_packed *to, quire_error *err);

void quire_packer_tell(const quire_packer *p, uint64_t place[QUIRE_PACK_PLACE]);
/* Errors: the reader's; QUIRE_INVAL (the document there is shorter than the place says: the data
 * changed). */
int quire_packer_seek(quire_packer *p, const uint64_t place[QUIRE_PACK_PLACE], quire_error *err);

#endif /* QUIRE_TRAIN_PACK_H */
