/* counting_docs.h - documents made from their number, and batches that a packer fills with them,
 * for the tests of training.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_COUNTING_DOCS_H
#define QUIRE_TESTS_COUNTING_DOCS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/pack.h"

#include <string.h>

#define VOCAB   12u
#define DOC_MAX 40u

/* Documents made from their number: n, n+1, ... modulo VOCAB, lengths 1 to 40. */
typedef struct counting {
    uint64_t at;
    uint64_t n_docs;  /* 0: endless */
    uint32_t n_given; /* of each document's first tokens, which are no targets */
    bool is_whole;
    int32_t tokens[DOC_MAX];
    bool counts[DOC_MAX];
} counting;

static inline int counting_next(void *ctx, quire_doc *out, quire_error *err)
{
    counting *c = ctx;

    (void)err;
    if (c->n_docs > 0 && c->at >= c->n_docs) {
        return QUIRE_NOTFOUND;
    }
    *out = (quire_doc){ c->tokens, 1 + c->at * 7 % DOC_MAX, c->n_given > 0 ? c->counts : NULL,
                        c->is_whole };
    for (size_t i = 0; i < out->n; i++) {
        c->tokens[i] = (int32_t)((c->at + i) % VOCAB);
        c->counts[i] = i >= c->n_given;
    }
    c->at++;
    return QUIRE_OK;
}

static inline void counting_tell(void *ctx, uint64_t place[QUIRE_DOC_PLACE])
{
    memset(place, 0, QUIRE_DOC_PLACE * sizeof(*place));
    place[0] = ((counting *)ctx)->at;
}

static inline int counting_seek(void *ctx, const uint64_t place[QUIRE_DOC_PLACE], quire_error *err)
{
    counting *c = ctx;

    if (c->n_docs > 0 && place[0] > c->n_docs) {
        return quire_error_set(err, QUIRE_INVAL, "no document %llu", (unsigned long long)place[0]);
    }
    c->at = place[0];
    return QUIRE_OK;
}

static inline quire_doc_reader reader_of(counting *c)
{
    return (quire_doc_reader){ c, counting_next, counting_tell, counting_seek };
}

#define ROWS   3u
#define LENGTH 16u
#define TOKENS (ROWS * LENGTH)

typedef struct packed {
    int32_t tokens[TOKENS], targets[TOKENS], first[TOKENS];
    quire_packed p;
} packed;

static inline void fill(quire_packer *packer, packed *to)
{
    to->p = (quire_packed){ ROWS, LENGTH, to->tokens, to->targets, to->first, 0 };
    assert_int_equal(quire_packer_fill(packer, &to->p, NULL), QUIRE_OK);
}

#endif /* QUIRE_TESTS_COUNTING_DOCS_H */
