/* api_template.c - POST /apply-template: the prompt that a chat request becomes.
 *
 * The body is read as a chat completion's, so both have the same prompt: a schema of the answer may
 * be part of the prompt, and fields that a chat completion refuses are refused here too.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "server/generate.h"

#include "base/check.h"

static int read_request(quire_generation *gen, quire_fields *fields)
{
    QUIRE_TRY(quire_generation_fields(gen, fields));
    if (gen->session_id[0] != '\0') {
        quire_field_error(fields, "session_id", "the turns of a session are not written here");
        return QUIRE_INVAL;
    }
    QUIRE_TRY(quire_chat_request_read(&gen->chat, fields, "messages"));
    gen->chat.is_text_only = true;
    return QUIRE_OK;
}

int quire_api_template(quire_http *http)
{
    quire_generation *gen;
    quire_chat_rules rules;
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };

    QUIRE_TRY(quire_generation_read(http, &quire_form_chat, read_request, &gen));
    QUIRE_TRY(quire_chat_request_apply(http, &gen->chat, gen->chat.messages.list,
                                       gen->chat.messages.n, gen->plain_schema, &gen->chat_prompt));
    quire_chat_prompt_rules(gen->chat_prompt, &rules);
    quire_json_object(&json, NULL);
    quire_json_text(&json, "prompt", rules.text.data, rules.text.n);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}
