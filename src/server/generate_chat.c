/* generate_chat.c - a chat format between a request and its answers.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"
#include "server/schema_graft.h"

#include <stdlib.h>
#include <string.h>

/* The texts at which a format ends an answer, beside the request's. */
static int add_stops(quire_generation *gen, const quire_chat_rules *rules)
{
    for (uint32_t i = 0; i < rules->n_stops; i++) {
        char *stop;

        if (gen->params.n_stops == QUIRE_STOPS_MAX) {
            return quire_api_error_set(&gen->http->err, 400, "invalid_value", "stop",
                                       "stop: the chat format has %u texts of its own, which "
                                       "leaves %u",
                                       rules->n_stops, QUIRE_STOPS_MAX - rules->n_stops);
        }
        stop = strdup(rules->stops[i]);
        if (stop == NULL) {
            return quire_api_error_nomem(&gen->http->err);
        }
        gen->stops[gen->params.n_stops++] = stop;
    }
    return QUIRE_OK;
}

/* The rules of the chat prompt, with our grammars of schemas in the format's grammar. */
static int rules_create(quire_generation *gen, quire_chat_rules *rules)
{
    quire_bytes grafted = { 0 };
    quire_error cause = QUIRE_ERROR_INIT;
    int rc = QUIRE_OK;

    if (rules->grammar != NULL) {
        rc = quire_schema_graft(rules->grammar, gen->chat.tools, gen->schema, &grafted, &cause);
        rules->grammar = grafted.data;
    }
    if (rc == QUIRE_INVAL || rc == QUIRE_LIMIT) {
        rc = quire_api_error_set(&gen->http->err, 400, "invalid_value", "tools", "%s",
                                 cause.message);
    } else if (rc < 0 ||
               (rc = quire_answer_rules_create(&gen->rules, quire_engine_model(gen->http->engine),
                                               rules, gen->chat.thinking_tokens, &cause)) < 0) {
        rc = quire_api_error_from(&gen->http->err, &cause);
    }
    quire_bytes_fini(&grafted);
    return rc;
}

int quire_generation_prompt_obey(quire_generation *gen)
{
    quire_chat_rules rules;

    quire_chat_prompt_rules(gen->chat_prompt, &rules);
    gen->n_request_stops = gen->params.n_stops;
    QUIRE_TRY(add_stops(gen, &rules));
    if (gen->grammar != NULL && rules.grammar != NULL && gen->chat.n_tools > 0) {
        return quire_api_error_set(&gen->http->err, 400, "invalid_value", "tools",
                                   "tools: not together with grammar or response_format, unless "
                                   "tool_choice is \"none\"");
    }
    if (rules.grammar == NULL && rules.n_shown_tokens == 0 && rules.thinking_end == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(rules_create(gen, &rules));
    gen->params.sampler.rules = gen->rules;
    return QUIRE_OK;
}

int quire_choice_read(quire_generation *gen, quire_choice *choice, const char *text, size_t n,
                      bool is_last)
{
    quire_error cause = QUIRE_ERROR_INIT;

    if (choice->reader == NULL) {
        return QUIRE_OK;
    }
    return quire_chat_reader_feed(choice->reader, text, n, is_last, &cause) < 0
               ? quire_api_error_from(&gen->http->err, &cause)
               : QUIRE_OK;
}

/* Whether a stop text of the request ended the answer within a call. */
static bool is_call_stopped(const quire_generation *gen, const quire_choice *choice,
                            const quire_chat_answer *answer)
{
    const int32_t stop = choice->result->stop_index;

    return stop >= 0 && (uint32_t)stop < gen->n_request_stops && !answer->is_whole;
}

const char *quire_choice_finish(const quire_generation *gen, const quire_choice *choice)
{
    quire_chat_answer answer = { 0 };

    if (choice->reader != NULL) {
        quire_chat_reader_answer(choice->reader, &answer);
    }
    return answer.n_calls > 0 && choice->result->finish == QUIRE_FINISH_STOP &&
                   !is_call_stopped(gen, choice, &answer)
               ? "tool_calls"
               : quire_finish_name(choice->result->finish);
}
