/* train_seen.c - see train_seen.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_seen.h"

#include "base/check.h"
#include "cli/commands/talk.h"

#include <stdlib.h>
#include <string.h>

/* Mark the tokens of all documents of one pass. */
static int mark(bool *is_seen, quire_text_docs *docs, quire_error *err)
{
    const quire_doc_reader *reader = quire_text_docs_reader(docs);
    uint64_t place[QUIRE_DOC_PLACE] = { 0 };

    for (;;) {
        quire_doc doc;

        if (quire_interrupt_seen()) {
            return quire_error_set(err, QUIRE_CANCELED, "stopped while the tokens were counted");
        }
        QUIRE_TRY(reader->next(reader->ctx, &doc, err));
        reader->tell(reader->ctx, place);
        if (place[2] > 0) { /* a document of the next pass */
            return QUIRE_OK;
        }
        for (size_t i = 0; i < doc.n; i++) {
            is_seen[doc.tokens[i]] = true;
        }
    }
}

int quire_train_seen_read(quire_train_seen *out, const quire_text_docs_options *options,
                          quire_error *err)
{
    uint32_t n_vocab = options->tokenizer->n_vocab;
    bool *is_seen = calloc(n_vocab, sizeof(*is_seen));
    quire_text_docs *docs = NULL;
    int rc;

    *out = (quire_train_seen){ malloc(n_vocab * sizeof(*out->tokens)), 0 };
    if (is_seen == NULL || out->tokens == NULL) {
        free(is_seen);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = quire_text_docs_open(&docs, options, err);
    if (rc == QUIRE_OK) {
        rc = mark(is_seen, docs, err);
    }
    for (uint32_t i = 0; rc == QUIRE_OK && i < n_vocab; i++) {
        if (is_seen[i]) {
            out->tokens[out->n++] = (int32_t)i;
        }
    }
    quire_text_docs_close(docs);
    free(is_seen);
    return rc;
}

void quire_train_seen_close(quire_train_seen *seen)
{
    free(seen->tokens);
    *seen = (quire_train_seen){ NULL, 0 };
}
