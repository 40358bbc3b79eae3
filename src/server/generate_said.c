/* generate_said.c - a chat's prompt with the model's own earlier answers; see said.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"
#include "model/chat_ended.h"

#include <stdlib.h>
#include <string.h>

#define MARK "quire-answer"

char *quire_chat_end_find(const quire_chat_format *format)
{
    static const quire_chat_message messages[] = { { "user", "1", NULL },
                                                   { "assistant", MARK, NULL } };
    const quire_chat_ask ask = {
        .messages = messages, .n_messages = 2, .omits_generation_prompt = true, .is_text_only = true
    };
    quire_chat_prompt *prompt = NULL;
    quire_chat_rules rules;
    char *end = NULL;

    if (quire_chat_format_apply(format, &ask, &prompt, NULL) == QUIRE_OK) {
        const char *mark;

        quire_chat_prompt_rules(prompt, &rules);
        mark = strstr(rules.text.data, MARK);
        end = mark != NULL ? strdup(mark + strlen(MARK)) : NULL;
    }
    quire_chat_prompt_destroy(prompt);
    return end;
}

/* ---- before the prompt ---- */

int quire_generation_said_apply(quire_generation *gen, const quire_chat_rules *rules,
                                quire_chat_text *text)
{
    quire_said *said = gen->http->server->said;

    *text = rules->text;
    quire_said_prompt_fini(&gen->said_before);
    if (said == NULL || gen->params.is_uncached) {
        return QUIRE_OK;
    }
    if (quire_said_apply(said, gen->salt.bytes, gen->salt.n, rules->text.data, rules->text.n,
                         &gen->said_before) < 0) {
        return quire_api_error_nomem(&gen->http->err);
    }
    if (gen->said_before.n_answers > 0) {
        *text = (quire_chat_text){ gen->said_before.text.data, gen->said_before.text.n };
    }
    return QUIRE_OK;
}

/* ---- behind the answer ---- */

/* Whether a rendered answer has the thoughts, where there are any. */
static bool has_thoughts(quire_chat_text rendered, size_t at, quire_chat_text thoughts)
{
    while (thoughts.n > 0 && strchr(" \n", thoughts.data[thoughts.n - 1]) != NULL) {
        thoughts.n--;
    }
    return thoughts.n == 0 ||
           memmem(rendered.data + at, rendered.n - at, thoughts.data, thoughts.n) != NULL;
}

/* Keep a rendered history whose last message is the answer. */
static void keep(quire_generation *gen, quire_chat_text rendered, const quire_chat_answer *answer)
{
    const char *end = gen->http->server->chat_end;
    const size_t n_end = strlen(end);
    quire_chat_text said = quire_chat_reader_text(gen->choices[0].reader);
    quire_said_turn turn = { .parent = gen->said_before.place,
                             .rendered = rendered.data,
                             .n = rendered.n };
    quire_bytes text = { 0 };
    int32_t *tokens = NULL;
    quire_chat_rules rules;

    quire_chat_prompt_rules(gen->chat_prompt, &rules);
    turn.at = quire_bytes_same(rules.text.data, rules.text.n, rendered.data, rendered.n);
    if (turn.at < turn.parent.n || turn.at + strlen(rules.answer_begin) < rules.text.n ||
        rendered.n < turn.at + n_end ||
        memcmp(rendered.data + rendered.n - n_end, end, n_end) != 0 ||
        !has_thoughts(rendered, turn.at, answer->reasoning)) {
        return; /* the template writes this history otherwise */
    }
    turn.n_written = rendered.n - n_end - turn.at;
    (void)quire_bytes_add(&text, rules.text.data + turn.at, rules.text.n - turn.at);
    (void)quire_bytes_add(&text, said.data, said.n);
    turn.text = text.data;
    turn.n_text = text.n;
    if (gen->session == 0) { /* a session keeps its tokens itself */
        tokens = quire_request_tokens_take(gen->choices[0].request, &turn.n_tokens);
        turn.tokens = tokens;
    }
    if (text.status == QUIRE_OK) {
        quire_said_keep(gen->http->server->said, &turn);
    }
    quire_bytes_fini(&text);
    free(tokens);
}

void quire_generation_said_keep(quire_generation *gen)
{
    const quire_choice *choice = &gen->choices[0];
    quire_bytes rendered = { 0 };
    quire_chat_message *messages;
    quire_chat_answer answer;
    quire_chat_rules rules;
    quire_chat_ask ask;
    char *content = NULL;
    char *extra = NULL;
    size_t n;

    if (gen->http->server->said == NULL || gen->n_choices != 1 || gen->chat.continues_final ||
        gen->chat.omits_generation_prompt || gen->params.is_uncached ||
        choice->result->finish != QUIRE_FINISH_STOP || choice->result->stop_index >= 0) {
        return;
    }
    messages = calloc(gen->n_history + 1, sizeof messages[0]);
    n = messages != NULL ? quire_generation_messages(gen, messages, &content, &extra) : 0;
    quire_chat_request_ask(&gen->chat, messages, n, &ask);
    quire_chat_prompt_rules(gen->chat_prompt, &rules);
    if (n > 0 && quire_chat_ended_render(gen->http->server->chat, &ask, rules.text, &rendered, NULL,
                                         NULL) == QUIRE_OK) {
        quire_chat_reader_answer(choice->reader, &answer);
        keep(gen, (quire_chat_text){ rendered.data, rendered.n }, &answer);
    }
    quire_bytes_fini(&rendered);
    free(messages);
    free(content);
    free(extra);
}
