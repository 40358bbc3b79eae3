/* chat_turn.c - see chat.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/chat.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/num.h"
#include "cli/commands/talk.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Room for an answer when turns are left out: -n, or half of the context if that is less; without
 * -n this, or a quarter of the context if that is less. */
#define ANSWER_TOKENS 256u

#define DIM   "\x1b[2m"
#define PLAIN "\x1b[0m"

/* ---- messages ---- */

/* content and extra (or NULL) are taken over. */
static int push_message(quire_chat *c, const char *role, char *content, char *extra)
{
    if (content != NULL && c->n_messages == c->cap_messages) {
        size_t cap = c->cap_messages > 0 ? 2 * c->cap_messages : 16;
        quire_chat_message *larger = realloc(c->messages, cap * sizeof *larger);

        c->cap_messages = larger != NULL ? cap : c->cap_messages;
        c->messages = larger != NULL ? larger : c->messages;
    }
    if (content == NULL || c->n_messages == c->cap_messages) {
        free(content);
        free(extra);
        return QUIRE_NOMEM;
    }
    c->messages[c->n_messages++] = (quire_chat_message){ role, content, extra };
    return QUIRE_OK;
}

static void message_free(const quire_chat_message *message)
{
    /* The pointers are const for readers of messages; the bytes came from malloc. */
    free((void *)(uintptr_t)message->content);
    free((void *)(uintptr_t)message->extra);
}

void quire_chat_drop(quire_chat *c, size_t n_kept)
{
    while (c->n_messages > n_kept) {
        message_free(&c->messages[--c->n_messages]);
    }
    if (c->n_left_out >= c->n_messages) {
        c->n_left_out = 0;
    }
}

size_t quire_chat_last_turn(const quire_chat *c)
{
    for (size_t n = c->n_messages; n > 0; n--) {
        if (strcmp(c->messages[n - 1].role, "user") == 0) {
            return n - 1;
        }
    }
    return c->n_messages;
}

int quire_chat_begin(quire_chat *c)
{
    quire_chat_drop(c, 0);
    quire_writer_reset(c->writer);
    return c->system != NULL ? push_message(c, "system", strdup(c->system), NULL) : QUIRE_OK;
}

void quire_chat_fini(quire_chat *c)
{
    quire_chat_drop(c, 0);
    free(c->messages);
    free(c->template_text);
    free(c->system);
    quire_writer_destroy(c->writer);
    quire_answer_rules_release(c->rules);
    quire_chat_format_destroy(c->format);
}

/* ---- prompts ---- */

int quire_chat_format_open(quire_chat *c, quire_error *err)
{
    const quire_chat_args *args = c->args;
    const char *own = args->chat_template;
    size_t n;

    if (own != NULL && args->chat_template_file != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--chat-template and --chat-template-file: take one of them");
    }
    if (args->chat_template_file != NULL) {
        QUIRE_TRY(quire_read_file(args->chat_template_file, &c->template_text, &n, err));
        own = c->template_text;
    }
    if (own == NULL && quire_model_chat_template(c->session.model) == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s has no chat template (tokenizer.chat_template): --chat-template "
                               "NAME gives one, such as chatml, or use quire run",
                               args->common.model);
    }
    QUIRE_TRY(quire_chat_format_create(&c->format, c->session.model, own, err));
    if (quire_chat_format_warning(c->format)[0] != '\0') {
        quire_say("warning: %s", quire_chat_format_warning(c->format));
    }
    return QUIRE_OK;
}

typedef struct rendered {
    quire_chat_prompt *prompt;
    int32_t *tokens;
    size_t n_tokens;
} rendered;

static void rendered_fini(rendered *r)
{
    quire_chat_prompt_destroy(r->prompt);
    free(r->tokens);
}

/* The prompt of some messages. out is empty, and filled as far as it went. */
static int render(const quire_chat *c, const quire_chat_message *messages, size_t n, rendered *out,
                  quire_error *err)
{
    const quire_chat_ask ask = {
        .messages = messages,
        .n_messages = n,
        .thinking = c->thinking,
        .reasoning_effort = c->args->reasoning_effort,
    };
    quire_chat_rules rules;

    QUIRE_TRY(quire_chat_format_apply(c->format, &ask, &out->prompt, err));
    quire_chat_prompt_rules(out->prompt, &rules);
    return quire_opened_tokenize(&c->session, rules.text.data, rules.text.n, true, &out->tokens,
                                 &out->n_tokens, err);
}

/* Condensing keeps the system message, as in quire serve: the tokens that the first prompt shares
 * with that of another question, and the next one. */
static int keep_instructions(quire_chat *c, const rendered *first, quire_error *err)
{
    const quire_chat_message messages[] = { c->messages[0], { .role = "user", .content = "x" } };
    uint32_t keep = (uint32_t)c->args->overflow.keep;
    rendered other = { .prompt = NULL };
    uint32_t n = 0;
    int rc = render(c, messages, 2, &other, err);

    while (rc == QUIRE_OK && n < first->n_tokens && n < other.n_tokens &&
           first->tokens[n] == other.tokens[n]) {
        n++;
    }
    keep = n + 1 > keep ? n + 1 : keep;
    rendered_fini(&other);
    return rc < 0 ? rc : quire_writer_overflow_set(c->writer, QUIRE_CONTEXT_CONDENSE, keep, err);
}

/* The prompt of the conversation without the messages that are left out. */
static int render_kept(const quire_chat *c, rendered *out, quire_error *err)
{
    const size_t n_system = c->system != NULL;
    quire_chat_message *kept;
    size_t n = 0;
    int rc;

    if (c->n_left_out <= n_system) {
        return render(c, c->messages, c->n_messages, out, err);
    }
    kept = calloc(c->n_messages, sizeof *kept);
    QUIRE_FAIL_IF(kept == NULL, QUIRE_NOMEM);
    for (size_t i = 0; i < c->n_messages; i++) {
        if (i < n_system || i >= c->n_left_out) {
            kept[n++] = c->messages[i];
        }
    }
    rc = render(c, kept, n, out, err);
    free(kept);
    return rc;
}

/* Leave out one turn more. Returns false when only the last one is left. */
static bool leave_out(quire_chat *c)
{
    const size_t last = quire_chat_last_turn(c);
    const size_t begin = c->n_left_out > 0 ? c->n_left_out : c->system != NULL;

    for (size_t i = begin + 1; i <= last && last < c->n_messages; i++) {
        if (strcmp(c->messages[i].role, "user") == 0) {
            c->n_left_out = i;
            return true;
        }
    }
    return false;
}

/* Leave out the oldest turns where the prompt and an answer do not fit the context. The whole
 * prompt behind the system message is computed again whenever turns leave, so the next turns get
 * room as well. */
static int fit_turns(quire_chat *c, rendered *out, quire_error *err)
{
    const uint32_t n_ctx = c->session.n_ctx, spare = n_ctx / 4;
    const int64_t n_predict = c->args->sampling.n_predict;
    const uint32_t answer = n_predict > 0 ? (uint32_t)quire_min_u64((uint64_t)n_predict, n_ctx / 2)
                                          : quire_min_u32(spare, ANSWER_TOKENS);
    const uint32_t most = n_ctx - answer;
    uint32_t limit = most;

    while (out->n_tokens > limit && leave_out(c)) {
        limit = most > spare ? most - spare : most;
        rendered_fini(out);
        *out = (rendered){ .prompt = NULL };
        QUIRE_TRY(render_kept(c, out, err));
    }
    return out->n_tokens <= most
               ? QUIRE_OK
               : quire_error_set(
                     err, QUIRE_LIMIT,
                     "the message would take %zu tokens, with %u for the answer that is "
                     "more than the context of %u; it was not added (-c raises it, and a smaller "
                     "-n leaves more room)",
                     out->n_tokens, answer, n_ctx);
}

/* The prompt after which the assistant is to speak. Memory: rendered_fini(). */
static int make_prompt(quire_chat *c, rendered *out, quire_error *err)
{
    const bool is_first = c->system != NULL && c->n_messages == 2;
    quire_chat_rules rules;

    QUIRE_TRY(render_kept(c, out, err));
    if (c->args->overflow.how == QUIRE_OVERFLOW_TURNS) {
        QUIRE_TRY(fit_turns(c, out, err));
    }
    if (is_first && c->args->overflow.how == QUIRE_CONTEXT_CONDENSE) {
        QUIRE_TRY(keep_instructions(c, out, err));
    }
    quire_chat_prompt_rules(out->prompt, &rules);
    quire_writer_show(c->writer, NULL, 0);
    QUIRE_TRY(quire_writer_stops_set(c->writer, rules.stops, rules.n_stops));
    quire_answer_rules_release(c->rules);
    c->rules = NULL;
    QUIRE_TRY(quire_answer_rules_create(&c->rules, c->session.model, &rules, -1, err));
    quire_writer_show(c->writer, c->rules->shown.items, c->rules->shown.n);
    if (out->n_tokens > c->session.n_ctx && c->args->overflow.how == QUIRE_CONTEXT_REFUSE) {
        return quire_error_set(
            err, QUIRE_LIMIT,
            "the conversation would take %zu tokens, the context holds %u; the "
            "last message was not added (/reset starts anew, -c raises it, --context-overflow "
            "goes on)",
            out->n_tokens, c->session.n_ctx);
    }
    return QUIRE_OK;
}

/* ---- answers ---- */

typedef struct answer_sink {
    quire_chat_reader *reader;
    bool is_streamed;
    bool has_color;
    bool is_in_thoughts;
    quire_error *err;
} answer_sink;

static bool say(const char *text)
{
    return quire_stdout_write(text, strlen(text));
}

static bool show_delta(answer_sink *sink, const quire_chat_delta *delta)
{
    const bool is_thought = delta->kind == QUIRE_CHAT_DELTA_REASONING;

    if (delta->kind > QUIRE_CHAT_DELTA_CONTENT) {
        return true; /* no tools were offered */
    }
    if (is_thought != sink->is_in_thoughts) {
        sink->is_in_thoughts = is_thought;
        if (!say(is_thought ? (sink->has_color ? DIM : "[thinks] ")
                            : (sink->has_color ? PLAIN "\n" : "\n[says] "))) {
            return false;
        }
    }
    return quire_stdout_write(delta->text.data, delta->text.n);
}

static bool show_deltas(answer_sink *sink)
{
    quire_chat_delta delta;

    while (quire_chat_reader_delta(sink->reader, &delta)) {
        if (sink->is_streamed && !show_delta(sink, &delta)) {
            return false;
        }
    }
    return true;
}

/* A quire_text_sink. */
static bool take_text(void *ctx, const char *text, size_t n)
{
    answer_sink *sink = ctx;

    return quire_chat_reader_feed(sink->reader, text, n, false, sink->err) == QUIRE_OK &&
           show_deltas(sink);
}

/* Without the system's. */
static size_t n_left_out(const quire_chat *c)
{
    const size_t n_system = c->system != NULL;

    return c->n_left_out > n_system ? c->n_left_out - n_system : 0;
}

static int record_turn(quire_chat *c, const char *user, const quire_chat_answer *answer,
                       const quire_writer_result *result)
{
    json_t *turn;

    if (c->turns == NULL) {
        quire_say("%u tokens read (%u kept from before), %u written, %.1f tokens/s%s%s",
                  result->n_prompt - result->n_reused, result->n_reused, result->n_output,
                  quire_rate(result->n_steps, result->decode_s),
                  result->stop == QUIRE_STOP_END ? "" : "; stopped: ",
                  result->stop == QUIRE_STOP_END ? "" : quire_stop_text(result->stop));
        if (result->n_dropped > 0) {
            quire_say("%u tokens left the context", result->n_dropped);
        }
        if (n_left_out(c) > 0) {
            quire_say("the oldest %zu messages are in the prompt no more", n_left_out(c));
        }
        return QUIRE_OK;
    }
    turn =
        json_pack("{s:o, s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "user",
                  quire_json_bytes(user, strlen(user)), "assistant",
                  json_stringn(answer->content.data, answer->content.n), "stop",
                  quire_stop_word(result->stop), "prompt_tokens", (int)result->n_prompt,
                  "reused_tokens", (int)result->n_reused, "output_tokens", (int)result->n_output,
                  "dropped_tokens", (int)result->n_dropped, "dropped_messages", (int)n_left_out(c),
                  "condensings", (int)result->n_condensings, "decode_tokens_per_second",
                  quire_json_real(quire_rate(result->n_steps, result->decode_s)), "ttft_ms",
                  quire_json_real(1e3 * result->first_s));
    if (answer->reasoning.n > 0) {
        (void)json_object_set_new(turn, "reasoning",
                                  json_stringn(answer->reasoning.data, answer->reasoning.n));
    }
    return json_array_append_new(c->turns, turn) == 0 ? QUIRE_OK : QUIRE_NOMEM;
}

/* Keep the answer as a message. */
static int keep_answer(quire_chat *c, const quire_chat_answer *answer)
{
    char *content = strndup(answer->content.data, answer->content.n);
    char *extra = NULL;

    if (quire_chat_answer_extra(answer, &extra) < 0) {
        free(content);
        return QUIRE_NOMEM;
    }
    return push_message(c, "assistant", content, extra);
}

static int speak(quire_chat *c, const char *user, const rendered *r, quire_error *err)
{
    answer_sink sink = { .is_streamed = c->turns == NULL,
                         .has_color = isatty(STDOUT_FILENO),
                         .err = err };
    quire_writer_result result;
    quire_chat_answer answer;
    int rc = quire_chat_reader_create(&sink.reader, r->prompt, err);

    if (rc == QUIRE_OK) {
        quire_writer_sink_set(c->writer, take_text, &sink);
        rc = quire_writer_run(c->writer, r->tokens, r->n_tokens, &result, err);
    }
    rc = rc == QUIRE_OK ? err->status : rc; /* the sink's */
    if (rc == QUIRE_OK) {
        rc = quire_chat_reader_feed(sink.reader, "", 0, true, err);
    }
    if (rc == QUIRE_OK) {
        (void)show_deltas(&sink);
        if (sink.is_streamed) {
            (void)say(sink.is_in_thoughts && sink.has_color ? PLAIN "\n" : "\n");
        }
        quire_chat_reader_answer(sink.reader, &answer);
        rc = keep_answer(c, &answer);
    }
    if (rc == QUIRE_OK) {
        rc = record_turn(c, user, &answer, &result);
    }
    quire_chat_reader_destroy(sink.reader);
    return rc;
}

/* The text as UTF-8: a template is given nothing else. */
static char *clean_text(const char *text)
{
    const size_t n = strlen(text);
    quire_utf8_stream stream = { { 0 }, 0 };
    char *clean = malloc(3 * (n + 3) + 4);
    size_t n_clean;

    if (clean != NULL) {
        n_clean = quire_utf8_stream_feed(&stream, text, n, clean);
        n_clean += quire_utf8_stream_flush(&stream, clean + n_clean);
        clean[n_clean] = '\0';
    }
    return clean;
}

int quire_chat_answer_to(quire_chat *c, const char *text, quire_error *err)
{
    const size_t n_before = c->n_messages, n_left_before = c->n_left_out;
    rendered r = { .prompt = NULL };
    int rc = push_message(c, "user", clean_text(text), NULL);

    if (rc == QUIRE_OK) {
        rc = make_prompt(c, &r, err);
    }
    if (rc == QUIRE_OK) {
        rc = speak(c, text, &r, err);
    }
    if (rc < 0) {
        c->n_left_out = n_left_before;
        quire_chat_drop(c, n_before);
        if (err->status == QUIRE_OK) {
            (void)quire_error_set(err, rc, "%s", quire_status_text(rc));
        }
    }
    rendered_fini(&r);
    return rc;
}

int quire_chat_answer_again(quire_chat *c, quire_error *err)
{
    const size_t n_before = quire_chat_last_turn(c), n_turn = c->n_messages - n_before;
    const size_t n_left_before = c->n_left_out;
    quire_chat_message *turn = calloc(n_turn, sizeof *turn);
    int rc;

    if (turn == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    memcpy(turn, c->messages + n_before, n_turn * sizeof *turn);
    c->n_messages = n_before; /* without the contents, which are the turn's now */
    quire_chat_drop(c, n_before);
    rc = quire_chat_answer_to(c, turn[0].content, err);
    for (size_t i = 0; rc == QUIRE_OK && i < n_turn; i++) {
        message_free(&turn[i]);
    }
    if (rc < 0) {
        memcpy(c->messages + n_before, turn, n_turn * sizeof *turn); /* the room is still there */
        c->n_messages += n_turn;
        c->n_left_out = n_left_before;
    }
    free(turn);
    return rc;
}

void quire_chat_say_failure(quire_chat *c, const quire_error *err)
{
    c->is_over = c->is_over || err->status == QUIRE_LOST;
    c->has_failed = c->has_failed || !c->is_terminal || err->status == QUIRE_LOST;
    (void)quire_say_error(err, QUIRE_EXIT_FAILED);
}
