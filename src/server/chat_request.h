/* chat_request.h - the contents of a chat request, the same for all APIs; for src/server only.
 *
 * An API reads its own JSON into this structure. Rendering, sampling, sessions and the reading of
 * the answer take the structure, never the API's JSON. model/chat_format.h defines the meaning of
 * the values.
 *
 *   body -> quire_chat_request -> quire_chat_ask -> prompt;  answer -> quire_chat_reader -> reply
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_CHAT_REQUEST_H
#define QUIRE_SERVER_CHAT_REQUEST_H

#include "model/chat_format.h"
#include "server/fields.h"
#include "server/http.h"
#include "server/messages.h"

typedef struct quire_chat_request {
    quire_messages messages;
    char *tools;       /* JSON array, OpenAI's form; NULL = none. Owned */
    char *plain_tools; /* the same by quire_tools_plain(). Owned */
    uint32_t n_tools;
    quire_tool_choice tool_choice;
    char *tool_name; /* owned */
    quire_chat_switch parallel_calls;
    quire_chat_switch thinking;
    quire_reasoning_format reasoning;
    char *reasoning_effort;  /* owned */
    char *kwargs;            /* JSON object; owned */
    int32_t thinking_tokens; /* budget; -1 = none, 0 = thoughts end at once */
    bool omits_generation_prompt;
    bool continues_final;
    bool is_text_only; /* no request's: no answer will follow */
} quire_chat_request;

#define QUIRE_CHAT_REQUEST_INIT                                                                    \
    {                                                                                              \
        .thinking_tokens = -1                                                                      \
    }

/* OpenAI's fields: messages (in `field`), tools, tool_choice, parallel_tool_calls,
 * reasoning_effort, reasoning_format, enable_thinking, thinking budgets, chat_template_kwargs,
 * add_generation_prompt, continue_final_message. Errors: fields->err. Memory:
 * quire_chat_request_fini(). */
int quire_chat_request_read(quire_chat_request *request, quire_fields *fields, const char *field);
void quire_chat_request_fini(quire_chat_request *request);

/* The tools of an API that has read them itself: an array in OpenAI's form. Checks names, sizes and
 * schemas. Errors: fields->err, by `name`. */
int quire_chat_request_tools(quire_chat_request *request, quire_fields *fields, const char *name,
                             json_t *tools);

/* The question to the format for messages [n], which are borrowed. */
void quire_chat_request_ask(const quire_chat_request *request, const quire_chat_message *messages,
                            size_t n, quire_chat_ask *out);
/* Render messages, which may be others than the request's, with all that the request says about
 * tools and thoughts. schema: JSON Schema of the content, NULL = none. Memory:
 * quire_chat_prompt_destroy(). Errors: http->err. */
int quire_chat_request_apply(quire_http *http, const quire_chat_request *request,
                             const quire_chat_message *messages, size_t n, const char *schema,
                             quire_chat_prompt **out);

#endif /* QUIRE_SERVER_CHAT_REQUEST_H */
