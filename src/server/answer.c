/* answer.c - answers as OpenAI's JSON: whole and in events.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"
#include "server/token_text.h"

#include <inttypes.h>
#include <string.h>

#define CHAT_ENTRIES 0u /* of a choice's elements */

/* ---- log-probabilities ---- */

/* {"id", "token", "logprob", "bytes"}, left open for top_logprobs. */
static void logprob_begin(quire_json_out *json, const quire_model *model, int32_t token,
                          double logprob, bool with_id)
{
    quire_token_text text;

    quire_token_text_get(model, token, &text);
    quire_json_object(json, NULL);
    if (with_id) {
        quire_json_i64(json, "id", token);
    }
    quire_json_text(json, "token", text.text, text.n);
    quire_json_number(json, "logprob", logprob);
    quire_json_array(json, "bytes");
    for (size_t i = 0; i < text.n; i++) {
        quire_json_u64(json, NULL, (unsigned char)text.text[i]);
    }
    quire_json_array_end(json);
}

void quire_answer_logprob_add(const quire_generation *gen, quire_bytes *out,
                              const quire_request_token *token, bool with_ids)
{
    const quire_model *model = quire_engine_model(gen->http->engine);
    quire_json_out json = { out, out->n > 0 };

    logprob_begin(&json, model, token->token, (double)token->logprob, with_ids);
    quire_json_array(&json, "top_logprobs");
    for (uint32_t i = 0; i < token->n_tops; i++) {
        logprob_begin(&json, model, token->tops[i].token, (double)token->tops[i].logprob, with_ids);
        quire_json_object_end(&json);
    }
    quire_json_array_end(&json);
    quire_json_object_end(&json);
}

static void take_chat_logprobs(quire_generation *gen, quire_choice *choice,
                               const quire_request_token *token)
{
    quire_answer_logprob_add(gen, &choice->logprobs[CHAT_ENTRIES], token, false);
}

void quire_choice_take(quire_generation *gen, quire_choice *choice,
                       const quire_request_token *token)
{
    if (gen->form->take != NULL) {
        gen->form->take(gen, choice, token);
    } else if (gen->params.has_logprobs && gen->is_chat) {
        take_chat_logprobs(gen, choice, token);
    } else if (gen->params.has_logprobs) {
        quire_text_logprobs_take(gen, choice, token);
    }
    quire_choice_chars_add(choice, token->text, token->text_bytes);
}

void quire_answer_elements_write(quire_json_out *json, const char *key, quire_bytes *elements)
{
    quire_json_array(json, key);
    if (elements->n > 0) {
        quire_json_raw(json, NULL, elements->data, elements->n);
    }
    quire_json_array_end(json);
    if (elements->status < 0) {
        json->bytes->status = elements->status;
    }
    quire_bytes_clear(elements);
}

static void add_logprobs(quire_json_out *json, const quire_generation *gen, quire_choice *choice)
{
    static const char *const names[] = { "tokens", "token_logprobs", "top_logprobs",
                                         "text_offset" };

    if (!gen->params.has_logprobs || (gen->is_stream && choice->logprobs[0].n == 0)) {
        quire_json_null(json, "logprobs");
        return;
    }
    quire_json_object(json, "logprobs");
    if (gen->is_chat) {
        quire_answer_elements_write(json, "content", &choice->logprobs[CHAT_ENTRIES]);
        quire_json_null(json, "refusal");
    } else {
        for (unsigned i = 0; i < 4; i++) {
            quire_answer_elements_write(json, names[i], &choice->logprobs[i]);
        }
    }
    quire_json_object_end(json);
}

/* ---- figures ---- */

void quire_answer_usage_get(const quire_generation *gen, quire_answer_usage *out)
{
    *out = (quire_answer_usage){ 0 };
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        const quire_request_result *result = gen->choices[i].result;

        out->generated_tokens += result->n_generated_tokens;
        out->thought_tokens += result->n_thought_tokens;
        if (i % gen->n_per_prompt == 0) {
            out->prompt_tokens += result->n_prompt_tokens;
            out->cached_tokens += result->n_cached_tokens;
        }
    }
}

static void add_usage(quire_json_out *json, const quire_generation *gen)
{
    quire_answer_usage usage;

    quire_answer_usage_get(gen, &usage);
    quire_json_object(json, "usage");
    quire_json_u64(json, "prompt_tokens", usage.prompt_tokens);
    quire_json_u64(json, "completion_tokens", usage.generated_tokens);
    quire_json_u64(json, "total_tokens", usage.prompt_tokens + usage.generated_tokens);
    quire_json_object(json, "prompt_tokens_details");
    quire_json_u64(json, "cached_tokens", usage.cached_tokens);
    quire_json_object_end(json);
    quire_json_object(json, "completion_tokens_details");
    quire_json_u64(json, "reasoning_tokens", usage.thought_tokens);
    quire_json_object_end(json);
    quire_json_object_end(json);
}

static void add_rate(quire_json_out *json, const char *const names[4], uint32_t n, double ms)
{
    quire_json_u64(json, names[0], n);
    quire_json_number(json, names[1], ms);
    quire_json_number(json, names[2], n > 0 ? ms / n : 0.0);
    quire_json_number(json, names[3], ms > 0.0 ? n * 1000.0 / ms : 0.0);
}

/* The first token belongs to the prompt's last step, so predicted_ms excludes it. */
void quire_answer_timings_write(quire_json_out *json, const quire_request_result *result)
{
    static const char *const prompt[] = { "prompt_n", "prompt_ms", "prompt_per_token_ms",
                                          "prompt_per_second" };
    static const char *const predicted[] = { "predicted_n", "predicted_ms",
                                             "predicted_per_token_ms", "predicted_per_second" };

    quire_json_object(json, "timings");
    quire_json_u64(json, "cache_n", result->n_cached_tokens);
    add_rate(json, prompt, result->n_prompt_tokens - result->n_cached_tokens,
             (double)result->prefill_us / 1000.0);
    add_rate(json, predicted, result->n_generated_tokens, (double)result->decode_us / 1000.0);
    quire_json_number(json, "queue_ms", (double)result->queue_us / 1000.0);
    quire_json_number(json, "ttft_ms", (double)result->ttft_us / 1000.0);
    quire_json_object_end(json);
}

/* How the chat template has written the history: answers as the model said them, and the first one
 * that the template writes otherwise, so that the cached text ends there. */
static void add_template(quire_json_out *json, const quire_generation *gen)
{
    const quire_said_prompt *said = &gen->said_before;

    if (!gen->is_chat || gen->http->server->said == NULL) {
        return;
    }
    quire_json_object(json, "template");
    quire_json_u64(json, "kept_answers", said->n_answers);
    quire_json_bool(json, "rewrites_answer", said->is_rewritten);
    if (said->is_rewritten) {
        quire_json_u64(json, "rewritten_at_byte", said->rewritten_at);
        quire_json_string(json, "reason",
                          "the chat template, or the client, writes an earlier answer otherwise "
                          "than the model said it (thoughts left out, calls in another form)");
    }
    quire_json_object_end(json);
}

void quire_answer_quire_write(quire_json_out *json, const quire_generation *gen,
                              const quire_choice *choice)
{
    quire_explanation explanation;

    if (!gen->has_explanation && gen->session_id[0] == '\0' && gen->n_dropped_messages == 0 &&
        choice->result->n_dropped_tokens == 0) {
        return;
    }
    quire_json_object(json, "quire");
    quire_json_string(json, "request_id", gen->http->id);
    if (gen->session_id[0] != '\0') {
        quire_json_string(json, "session_id", gen->session_id);
        quire_json_bool(json, "session_kept", gen->is_session_kept);
    }
    quire_json_u64(json, "dropped_turns", gen->n_dropped_turns);
    quire_json_u64(json, "dropped_messages", gen->n_dropped_messages);
    quire_json_u64(json, "dropped_tokens", choice->result->n_dropped_tokens);
    quire_json_u64(json, "condensings", choice->result->n_condensings);
    quire_json_u64(json, "preemptions", choice->result->n_preemptions);
    if (gen->has_explanation && quire_request_explain(choice->request, &explanation) == QUIRE_OK) {
        quire_explanation_write(json, "cache", quire_engine_model(gen->http->engine), &explanation);
        add_template(json, gen);
    }
    quire_json_object_end(json);
}

/* ---- documents ---- */

static void begin_document(quire_json_out *json, const quire_generation *gen)
{
    const char *chat = gen->is_stream ? "chat.completion.chunk" : "chat.completion";

    quire_json_object(json, NULL);
    quire_json_string(json, "id", gen->http->id);
    quire_json_string(json, "object", gen->is_chat ? chat : "text_completion");
    quire_json_i64(json, "created", gen->created_s);
    quire_json_string(json, "model", gen->http->server->opts.model_name);
    if (gen->tier.reply != NULL) {
        quire_json_string(json, "service_tier", gen->tier.reply);
    }
    quire_json_array(json, "choices");
}

static void add_call(quire_json_out *json, const quire_chat_call *call)
{
    quire_json_object(json, NULL);
    quire_json_text(json, "id", call->id.data, call->id.n);
    quire_json_string(json, "type", "function");
    quire_json_object(json, "function");
    quire_json_text(json, "name", call->name.data, call->name.n);
    quire_json_text(json, "arguments", call->arguments.data, call->arguments.n);
    quire_json_object_end(json);
    quire_json_object_end(json);
}

static void add_message(quire_json_out *json, const quire_choice *choice)
{
    quire_chat_answer answer;

    quire_chat_reader_answer(choice->reader, &answer);
    quire_json_object(json, "message");
    quire_json_string(json, "role", "assistant");
    if (answer.reasoning.n > 0) {
        quire_json_text(json, "reasoning_content", answer.reasoning.data, answer.reasoning.n);
    }
    if (answer.n_calls > 0 && answer.content.n == 0) {
        quire_json_null(json, "content");
    } else {
        quire_json_text(json, "content", answer.content.data, answer.content.n);
    }
    if (answer.n_calls > 0) {
        quire_json_array(json, "tool_calls");
        for (uint32_t i = 0; i < answer.n_calls; i++) {
            add_call(json, &answer.calls[i]);
        }
        quire_json_array_end(json);
    }
    quire_json_null(json, "refusal");
    quire_json_object_end(json);
}

static void write_whole(quire_bytes *out, quire_generation *gen)
{
    quire_json_out json = { out, false };

    begin_document(&json, gen);
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        quire_choice *choice = &gen->choices[i];

        quire_json_object(&json, NULL);
        quire_json_u64(&json, "index", i);
        if (gen->is_chat) {
            add_message(&json, choice);
        } else {
            quire_json_text(&json, "text", choice->text.data, choice->text.n);
        }
        add_logprobs(&json, gen, choice);
        quire_json_string(&json, "finish_reason", quire_choice_finish(gen, choice));
        if (!gen->is_chat) {
            quire_prompt_logprobs_write(&json, gen, choice);
        }
        quire_json_object_end(&json);
        if (choice->text.status < 0) {
            out->status = choice->text.status;
        }
    }
    quire_json_array_end(&json);
    if (gen->is_chat) { /* all choices have one prompt */
        quire_prompt_logprobs_write(&json, gen, &gen->choices[0]);
    }
    add_usage(&json, gen);
    quire_answer_timings_write(&json, gen->choices[0].result);
    quire_answer_quire_write(&json, gen, &gen->choices[0]);
    quire_json_object_end(&json);
}

/* The parts of OpenAI's delta. */
static void add_delta(quire_json_out *json, const quire_chat_delta *delta)
{
    switch (delta->kind) {
    case QUIRE_CHAT_DELTA_REASONING:
        quire_json_text(json, "reasoning_content", delta->text.data, delta->text.n);
        return;
    case QUIRE_CHAT_DELTA_CONTENT:
        quire_json_text(json, "content", delta->text.data, delta->text.n);
        return;
    default:
        break;
    }
    quire_json_array(json, "tool_calls");
    quire_json_object(json, NULL);
    quire_json_u64(json, "index", delta->call);
    if (delta->kind == QUIRE_CHAT_DELTA_CALL) {
        quire_json_text(json, "id", delta->id.data, delta->id.n);
        quire_json_string(json, "type", "function");
    }
    quire_json_object(json, "function");
    if (delta->kind == QUIRE_CHAT_DELTA_CALL) {
        quire_json_text(json, "name", delta->name.data, delta->name.n);
    }
    quire_json_text(json, "arguments", delta->text.data, delta->text.n);
    quire_json_object_end(json);
    quire_json_object_end(json);
    quire_json_array_end(json);
}

static void chunk_begin(quire_json_out *json, const quire_generation *gen,
                        const quire_choice *choice)
{
    begin_document(json, gen);
    quire_json_object(json, NULL);
    quire_json_u64(json, "index", (uint64_t)(choice - gen->choices));
}

static void chunk_end(quire_json_out *json, quire_generation *gen, quire_choice *choice,
                      const char *finish)
{
    choice->is_begun = true;
    add_logprobs(json, gen, choice);
    quire_json_string(json, "finish_reason", finish);
    quire_json_object_end(json);
    quire_json_array_end(json);
    if (gen->has_usage_event) {
        quire_json_null(json, "usage");
    }
    if (finish != NULL && choice == &gen->choices[0]) {
        quire_answer_timings_write(json, choice->result);
        quire_answer_quire_write(json, gen, choice);
    }
    quire_json_object_end(json);
}

/* The next part of an answer with its unsent log-probabilities. */
static void add_part(quire_generation *gen, quire_choice *choice, const quire_chat_delta *delta)
{
    quire_json_out json = { &gen->pending, false };

    quire_event_begin(gen, NULL);
    chunk_begin(&json, gen, choice);
    quire_json_object(&json, "delta");
    add_delta(&json, delta);
    quire_json_object_end(&json);
    chunk_end(&json, gen, choice, NULL);
    quire_event_end(gen);
}

/* The next text, likewise; the first event of a chat has the role. finish NULL = not the end. */
static void add_chunk(quire_generation *gen, quire_choice *choice, const char *text, size_t n,
                      const char *finish)
{
    quire_json_out json = { &gen->pending, false };

    quire_event_begin(gen, NULL);
    chunk_begin(&json, gen, choice);
    if (gen->is_chat) {
        quire_json_object(&json, "delta");
        if (!choice->is_begun) {
            quire_json_string(&json, "role", "assistant");
            quire_json_text(&json, "content", text, n);
        }
        quire_json_object_end(&json);
    } else {
        quire_json_text(&json, "text", text, n);
    }
    chunk_end(&json, gen, choice, finish);
    quire_event_end(gen);
}

/* ---- streams ---- */

static void begin_chat(quire_generation *gen)
{
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        add_chunk(gen, &gen->choices[i], "", 0, NULL);
    }
}

static void add_text(quire_generation *gen, quire_choice *choice, const char *text, size_t n)
{
    add_chunk(gen, choice, text, n, NULL);
}

static void end_choice(quire_generation *gen, quire_choice *choice)
{
    add_chunk(gen, choice, "", 0, quire_choice_finish(gen, choice));
}

/* The final events: empty choices and usage, then [DONE]. */
static void end_all(quire_generation *gen)
{
    quire_json_out json = { &gen->pending, false };

    if (gen->has_usage_event) {
        quire_event_begin(gen, NULL);
        begin_document(&json, gen);
        quire_json_array_end(&json);
        add_usage(&json, gen);
        quire_json_object_end(&json);
        quire_event_end(gen);
    }
    quire_event_begin(gen, NULL);
    (void)quire_bytes_add(&gen->pending, "[DONE]", 6);
    quire_event_end(gen);
}

/* The stream ends without [DONE], which would declare the answer complete. */
static void add_error(quire_generation *gen)
{
    quire_event_begin(gen, NULL);
    quire_api_error_write(&gen->pending, &gen->http->err, QUIRE_ERROR_OPENAI);
    quire_event_end(gen);
}

const quire_answer_form quire_form_chat = { .is_chat = true,
                                            .has_prompt_logprobs = true,
                                            .id_prefix = "chatcmpl",
                                            .whole = write_whole,
                                            .begin = begin_chat,
                                            .delta = add_part,
                                            .choice_end = end_choice,
                                            .end = end_all,
                                            .error = add_error };
const quire_answer_form quire_form_text = { .has_prompt_logprobs = true,
                                            .id_prefix = "cmpl",
                                            .whole = write_whole,
                                            .text = add_text,
                                            .choice_end = end_choice,
                                            .end = end_all,
                                            .error = add_error };
