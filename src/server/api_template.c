/* api_template.c - POST /apply-template: the prompt that a chat request becomes.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "server/chat_request.h"

int quire_api_template(quire_http *http)
{
    quire_fields fields = { NULL, NULL, &http->err };
    quire_chat_request request = QUIRE_CHAT_REQUEST_INIT;
    quire_chat_prompt *prompt = NULL;
    quire_chat_rules rules;
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    int rc;

    QUIRE_TRY(quire_http_json(http, &fields.object));
    rc = quire_chat_request_read(&request, &fields, "messages");
    quire_http_json_release(http, fields.object);
    if (rc == QUIRE_OK) {
        rc = quire_chat_request_apply(http, &request, request.messages.list, request.messages.n,
                                      NULL, &prompt);
    }
    if (rc == QUIRE_OK) {
        quire_chat_prompt_rules(prompt, &rules);
        quire_json_object(&json, NULL);
        quire_json_text(&json, "prompt", rules.text.data, rules.text.n);
        quire_json_object_end(&json);
        rc = quire_http_reply_json(http, 200, &body);
    }
    quire_chat_prompt_destroy(prompt);
    quire_chat_request_fini(&request);
    return rc;
}
