/* unsupported.h - fields of OpenAI's, vLLM's and llama-server's requests that Quire knows and does
 * not support.
 *
 * An answer that leaves such a field out of account would be another answer than the client asked
 * for, and nobody would notice. So a request with one of them is refused by the field's name,
 * unless the field's value asks for nothing: null, or one of the accepted values. docs/server.md
 * holds the same table; a test compares the two.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_UNSUPPORTED_H
#define QUIRE_SERVER_UNSUPPORTED_H

#include "base/bytes.h"
#include "server/fields.h"

/* Which kinds of completions a row is about. */
typedef enum quire_unsupported_in {
    QUIRE_UNSUPPORTED_ALWAYS,
    QUIRE_UNSUPPORTED_IN_CHAT,
    QUIRE_UNSUPPORTED_IN_TEXT
} quire_unsupported_in;

typedef struct quire_unsupported {
    const char *name;
    const char *accepted; /* JSON values, comma-separated; "" = null alone */
    const char *why;      /* the same text in neighbouring rows: one row of the documentation */
    quire_unsupported_in in;
} quire_unsupported;

extern const quire_unsupported quire_unsupported_list[];
extern const size_t quire_unsupported_n;

/* Refuse the first field that asks for something. Errors: fields->err. */
void quire_unsupported_refuse(quire_fields *fields, bool is_chat);

/* The table of docs/server.md. Errors: QUIRE_NOMEM. */
int quire_unsupported_document(quire_bytes *out);

#endif /* QUIRE_SERVER_UNSUPPORTED_H */
