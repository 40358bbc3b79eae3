/* pack.c - see pack.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/pack.h"

#include "base/check.h"
#include "train/ops.h"

#include <string.h>

void quire_packer_init(quire_packer *p, const quire_doc_reader *reader)
{
    memset(p, 0, sizeof(*p));
    p->reader = reader;
    reader->tell(reader->ctx, p->place);
}

/* A document of one token has nothing to predict. */
static bool is_used_up(const quire_packer *p)
{
    return p->offset + 1 >= p->doc.n;
}

/* The next document with a target; has_ended when there is none. */
static int next_doc(quire_packer *p, quire_error *err)
{
    while (is_used_up(p) && !p->has_ended) {
        int rc;

        p->reader->tell(p->reader->ctx, p->place);
        p->offset = 0;
        rc = p->reader->next(p->reader->ctx, &p->doc, err);
        if (rc == QUIRE_NOTFOUND) {
            p->has_ended = true;
            p->doc.n = 0;
        } else {
            QUIRE_TRY(rc);
        }
    }
    return QUIRE_OK;
}

/* Put tokens of the document at `at` of a row until one of both ends; returns how many. */
static uint32_t put_piece(quire_packer *p, quire_packed *to, size_t row, uint32_t at)
{
    uint64_t left = p->doc.n - 1 - p->offset;
    uint32_t n = left < to->n_tokens - at ? (uint32_t)left : to->n_tokens - at;

    for (uint32_t i = 0; i < n; i++) {
        size_t t = row * to->n_tokens + at + i;
        bool counts = p->doc.counts == NULL || p->doc.counts[p->offset + i + 1];

        to->tokens[t] = p->doc.tokens[p->offset + i];
        to->targets[t] = counts ? p->doc.tokens[p->offset + i + 1] : QUIRE_TRAIN_NO_TARGET;
        to->first[t] = (int32_t)at;
        to->n_targets += counts;
    }
    p->offset += n;
    return n;
}

/* A whole document that fits in a row, but not in the rest of this one. */
static bool must_wait(const quire_packer *p, const quire_packed *to, uint32_t at)
{
    uint64_t n = p->doc.n - 1;

    return p->doc.is_whole && p->offset == 0 && n <= to->n_tokens && n > to->n_tokens - at;
}

/* Each token of padding is a document of its own. */
static void put_padding(quire_packed *to, size_t row, uint32_t at)
{
    for (; at < to->n_tokens; at++) {
        size_t t = row * to->n_tokens + at;

        to->tokens[t] = 0;
        to->targets[t] = QUIRE_TRAIN_NO_TARGET;
        to->first[t] = (int32_t)at;
    }
}

int quire_packer_fill(quire_packer *p, quire_packed *to, quire_error *err)
{
    to->n_targets = 0;
    for (uint32_t row = 0; row < to->n_rows; row++) {
        uint32_t at = 0;

        while (at < to->n_tokens) {
            QUIRE_TRY(next_doc(p, err));
            if (p->has_ended || must_wait(p, to, at)) {
                break;
            }
            at += put_piece(p, to, row, at);
        }
        put_padding(to, row, at);
    }
    return QUIRE_OK;
}

void quire_packer_tell(const quire_packer *p, uint64_t place[QUIRE_PACK_PLACE])
{
    memcpy(place, p->place, sizeof(p->place));
    place[QUIRE_DOC_PLACE] = p->offset;
}

int quire_packer_seek(quire_packer *p, const uint64_t place[QUIRE_PACK_PLACE], quire_error *err)
{
    uint64_t offset = place[QUIRE_DOC_PLACE];

    QUIRE_TRY(p->reader->seek(p->reader->ctx, place, err));
    quire_packer_init(p, p->reader);
    /* Now, and not with the next batch, before which the reader's level may change. */
    QUIRE_TRY(next_doc(p, err));
    if (offset > 0 && offset >= p->doc.n) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the data has changed: a document of %zu tokens where token %llu of "
                               "one was read",
                               p->doc.n, (unsigned long long)offset);
    }
    p->offset = offset;
    return QUIRE_OK;
}
