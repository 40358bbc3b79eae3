/* unsupported.h - known but unsupported fields of OpenAI's, vLLM's and llama-server's requests.
 *
 * Ignoring such a field would silently give the client another answer than requested. So a request
 * with one of them is refused, with the field's name, unless the value has no effect: null, or one
 * of the accepted values. docs/server.md contains the same table; a test compares the two.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_UNSUPPORTED_H
#define QUIRE_SERVER_UNSUPPORTED_H

#include "base/bytes.h"
#include "server/fields.h"

/* The kinds of completions that a row applies to. */
typedef enum quire_unsupported_in {
    QUIRE_UNSUPPORTED_ALWAYS,
    QUIRE_UNSUPPORTED_IN_CHAT,
    QUIRE_UNSUPPORTED_IN_TEXT,  /* those in llama-server's form too */
    QUIRE_UNSUPPORTED_IN_OPENAI /* all but those in llama-server's form */
} quire_unsupported_in;

/* The kinds of requests. */
typedef enum quire_unsupported_kind {
    QUIRE_UNSUPPORTED_OF_CHAT,
    QUIRE_UNSUPPORTED_OF_TEXT,
    QUIRE_UNSUPPORTED_OF_LLAMA /* text, in llama-server's form: /completion, /infill */
} quire_unsupported_kind;

/* Why stream_options.include_obfuscation is refused. */
#define QUIRE_NO_OBFUSCATION "events have no padding against a guess of their text by their length"

typedef struct quire_unsupported {
    const char *name;
    const char *accepted; /* JSON values, comma-separated; "" = null alone */
    const char *why;      /* the same text in neighbouring rows: one row of the documentation */
    quire_unsupported_in in;
} quire_unsupported;

extern const quire_unsupported quire_unsupported_list[];
extern const size_t quire_unsupported_n;

/* Refuse the first unsupported field whose value has an effect. Errors: fields->err. */
void quire_unsupported_refuse(quire_fields *fields, quire_unsupported_kind kind);

/* The table of docs/server.md. Errors: QUIRE_NOMEM. */
int quire_unsupported_document(quire_bytes *out);

#endif /* QUIRE_SERVER_UNSUPPORTED_H */
