/* responses.h - requests of OpenAI's Responses API as chat requests; for src/server only.
 *
 * The body becomes a body of a chat completion, as in anthropic.h: items become messages, functions
 * become tools, and the messages of previous_response_id come before the new ones. The functions of
 * a namespace become tools like others, and calls of them name it again. Fields without a place in
 * a chat are refused by name: tools of OpenAI's servers, items that are no text, background.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_RESPONSES_H
#define QUIRE_SERVER_RESPONSES_H

#include <stdbool.h>

#include <jansson.h>

#include "server/fields.h"
#include "server/response_store.h"

typedef struct quire_responses {
    json_t *chat;     /* the body of a chat completion; owned */
    json_t *messages; /* the new messages of this turn, without instructions; owned */
    json_t *echo;     /* fields of the request that the reply repeats; owned */
    json_t *spaces;   /* names of functions -> the namespaces that the request had them in; owned */
    char previous_id[QUIRE_RESPONSE_ID_MAX]; /* "" = none */
    bool is_stored;
} quire_responses;

/* Memory: quire_responses_fini(), also after an error. Errors: fields->err. */
int quire_responses_read(quire_responses *out, quire_fields *fields);
/* Put the messages of earlier turns between the instructions and the new ones. Errors:
 * fields->err. */
int quire_responses_continue(quire_responses *request, quire_fields *fields, json_t *earlier);
void quire_responses_fini(quire_responses *request);

#endif /* QUIRE_SERVER_RESPONSES_H */
