/* api_chat.c - POST /v1/chat/completions.
 *
 * SPDX-License-Identifier: MIT */
#include "model/text.h"
#include "server/handlers.h"

#include "server/generate.h"
#include "server/prompt_tokens.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* Tokens reserved for the answer when turns are dropped and the request sets no limit: this, or a
 * quarter of the context if that is less. */
#define ANSWER_TOKENS 256u

static int read_fields(quire_generation *gen, quire_fields *fields)
{
    QUIRE_TRY(quire_generation_fields(gen, fields));
    return quire_chat_request_read(&gen->chat, fields, "messages");
}

/* ---- the prompt ---- */

/* A conversation, the beginnings of its turns, and the messages kept. */
typedef struct history {
    const quire_chat_message *all;
    size_t n_all;
    size_t *turns; /* indices of user messages */
    size_t n_turns;
    quire_chat_message *kept; /* [n_all] */
    size_t n_kept;
    int32_t *tokens;
    uint32_t n_tokens;
} history;

static bool is_role(const quire_chat_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

/* Keep the system messages and all messages from turn `first` on. */
static int make_prompt(quire_generation *gen, history *h, size_t first)
{
    const size_t cut = first > 0 ? h->turns[first] : 0;
    quire_http *http = gen->http;
    quire_error cause = QUIRE_ERROR_INIT;
    quire_joined_tokens joined;
    quire_chat_rules rules;
    quire_chat_text text;

    h->n_kept = 0;
    for (size_t i = 0; i < h->n_all; i++) {
        if (i >= cut || quire_chat_message_instructs(&h->all[i])) {
            h->kept[h->n_kept++] = h->all[i];
        }
    }
    free(h->tokens);
    h->tokens = NULL;
    quire_chat_prompt_destroy(gen->chat_prompt);
    QUIRE_TRY(quire_chat_request_apply(http, &gen->chat, h->kept, h->n_kept, gen->plain_schema,
                                       &gen->chat_prompt));
    quire_chat_prompt_rules(gen->chat_prompt, &rules);
    QUIRE_TRY(quire_generation_said_apply(gen, &rules, &text));
    if (quire_generation_tokenize(gen, text.data, text.n, &joined, &cause) == QUIRE_OK) {
        h->tokens = joined.tokens;
        h->n_tokens = joined.n;
        return QUIRE_OK;
    }
    if (cause.status == QUIRE_RANGE && gen->truncates_turns) {
        h->n_tokens = UINT32_MAX; /* longer than the context: turns are dropped */
        return QUIRE_OK;
    }
    return quire_http_tokenize_error(http, "messages", &cause);
}

/* Drop the fewest turns that make the prompt at most tokens_max long, by binary search: each
 * dropped turn shortens the prompt. Returns the number of the first turn kept. */
static int drop_turns(quire_generation *gen, history *h, uint32_t tokens_max, size_t *first)
{
    size_t low = 1;
    size_t high = h->n_turns - 1; /* the last turn is the question */

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        QUIRE_TRY(make_prompt(gen, h, middle));
        if (h->n_tokens <= tokens_max) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    *first = low;
    return make_prompt(gen, h, low);
}

static int fit(quire_generation *gen, history *h)
{
    const uint32_t n_ctx = quire_engine_n_ctx(gen->http->engine);
    const uint32_t reserve = n_ctx / 4 < ANSWER_TOKENS ? n_ctx / 4 : ANSWER_TOKENS;
    const uint32_t answer = gen->params.max_tokens > 0 ? gen->params.max_tokens : reserve;
    const uint32_t tokens_max = answer < n_ctx ? n_ctx - answer : 0;
    /* Leave room for further turns of a session; otherwise each turn would drop turns and recompute
     * the whole prompt. */
    const uint32_t target =
        gen->session != 0 && tokens_max > n_ctx / 4 ? tokens_max - n_ctx / 4 : tokens_max;
    size_t first = 0;

    QUIRE_TRY(make_prompt(gen, h, 0));
    if (!gen->truncates_turns || h->n_tokens <= tokens_max) {
        return QUIRE_OK; /* too long without truncation: the engine reports by how much */
    }
    if (h->n_turns > 1) {
        QUIRE_TRY(drop_turns(gen, h, target, &first));
    }
    if (h->n_tokens > tokens_max) {
        return quire_api_error_set(
            &gen->http->err, 400, "context_length_exceeded", "messages",
            "messages: the last turn has %s%u tokens, with %u for the answer "
            "that is more than the context of %u",
            h->tokens == NULL ? "more than " : "", h->tokens == NULL ? n_ctx : h->n_tokens, answer,
            n_ctx);
    }
    for (size_t i = 0; first > 0 && i < h->turns[first]; i++) {
        gen->n_dropped_messages += !quire_chat_message_instructs(&h->all[i]);
        gen->n_dropped_turns += is_role(&h->all[i], "user");
    }
    return QUIRE_OK;
}

/* ---- tokens that a condensed context keeps ---- */

/* Whether the text can be longer than the context. */
static bool may_overflow(const quire_generation *gen, uint32_t n_tokens)
{
    const uint32_t n_ctx = quire_engine_n_ctx(gen->http->engine);

    return gen->params.max_tokens == 0 ||
           (uint64_t)n_tokens + gen->params.max_tokens > (uint64_t)n_ctx;
}

/* Tokens of n messages, with all that the request says about tools and thoughts. Errors: http->err;
 * none, and no tokens, when the template refuses these messages. */
static int tokens_of(const quire_generation *gen, const quire_chat_message *messages, size_t n,
                     quire_piece_tokens *out)
{
    quire_http *http = gen->http;
    quire_error cause = QUIRE_ERROR_INIT;
    quire_chat_prompt *prompt = NULL;
    quire_tokenize_opts opts;
    quire_chat_rules rules;
    quire_chat_ask ask;
    int rc;

    quire_chat_request_ask(&gen->chat, messages, n, &ask);
    ask.schema = gen->plain_schema;
    rc = quire_chat_format_apply(http->server->chat, &ask, &prompt, &cause);
    if (rc < 0) {
        return rc == QUIRE_NOMEM ? quire_api_error_nomem(&http->err) : QUIRE_OK;
    }
    quire_chat_prompt_rules(prompt, &rules);
    quire_http_tokenize_opts(http, 0, &opts);
    opts.add_special = true;
    opts.parse_special = true;
    rc = quire_model_tokenize_all(quire_engine_model(http->engine), rules.text.data, rules.text.n,
                                  &opts, &out->tokens, &out->n, &cause);
    quire_chat_prompt_destroy(prompt);
    return rc < 0 ? quire_http_tokenize_error(http, "messages", &cause) : QUIRE_OK;
}

/* Tokens of the leading instructions and the tools, with another question behind them; none without
 * such. Errors: http->err. */
static int other_prompt(const quire_generation *gen, const history *h, quire_piece_tokens *out)
{
    quire_chat_message *messages;
    size_t n = 0;
    int rc;

    while (n < h->n_all && quire_chat_message_instructs(&h->all[n])) {
        n++;
    }
    if (n == h->n_all || (n == 0 && gen->chat.n_tools == 0)) {
        return QUIRE_OK;
    }
    messages = calloc(n + 1, sizeof *messages);
    if (messages == NULL) {
        return quire_api_error_nomem(&gen->http->err);
    }
    if (n > 0) {
        memcpy(messages, h->all, n * sizeof *messages);
    }
    messages[n] = (quire_chat_message){ .role = "user", .content = "x" };
    rc = tokens_of(gen, messages, n + 1, out);
    free(messages);
    return rc;
}

/* Raise context_keep to the instructions and tools at the prompt's beginning: the common tokens of
 * this prompt and a prompt with another question, and the next token. */
static int keep_instructions(quire_generation *gen, const history *h)
{
    quire_piece_tokens other = { 0 };
    uint32_t n = 0;

    if (!gen->keeps_instructions || !may_overflow(gen, h->n_tokens)) {
        return QUIRE_OK;
    }
    QUIRE_TRY(other_prompt(gen, h, &other));
    while (n < h->n_tokens && n < other.n && h->tokens[n] == other.tokens[n]) {
        n++;
    }
    free(other.tokens);
    if (n > 0 && n + 1 > gen->params.context_keep) {
        gen->params.context_keep = n + 1;
    }
    return QUIRE_OK;
}

static int history_begin(quire_generation *gen, history *h)
{
    quire_error cause = QUIRE_ERROR_INIT;

    h->all = gen->chat.messages.list;
    h->n_all = gen->chat.messages.n;
    if (gen->session != 0) {
        quire_chat_message *all;

        cause.status =
            quire_sessions_history(quire_engine_sessions(gen->http->engine), gen->session,
                                   gen->chat.messages.list, gen->chat.messages.n, &all, &h->n_all);
        if (cause.status == QUIRE_LIMIT) {
            return quire_api_error_set(&gen->http->err, 400, "session_too_long", "session_id",
                                       "session_id: the session has reached its limit of messages");
        }
        if (cause.status < 0) {
            return quire_api_error_from(&gen->http->err, &cause);
        }
        gen->history = all; /* its array is reused for the kept messages */
        h->all = all;
    }
    for (size_t i = 0; i < h->n_all; i++) {
        if (is_role(&h->all[i], "text")) {
            return quire_api_error_set(&gen->http->err, 400, "session_kind", "session_id",
                                       "session_id: the session holds a text, not a chat");
        }
    }
    h->turns = calloc(h->n_all, sizeof h->turns[0]);
    h->kept = calloc(h->n_all, sizeof h->kept[0]);
    if (h->turns == NULL || h->kept == NULL) {
        return quire_api_error_nomem(&gen->http->err);
    }
    for (size_t i = 0; i < h->n_all; i++) {
        if (is_role(&h->all[i], "user")) {
            h->turns[h->n_turns++] = i;
        }
    }
    return QUIRE_OK;
}

static int add_prompt(quire_generation *gen)
{
    history h = { 0 };
    int rc = history_begin(gen, &h);

    if (rc == QUIRE_OK) {
        rc = fit(gen, &h);
    }
    if (rc == QUIRE_OK) {
        rc = quire_generation_prompt_obey(gen);
    }
    if (rc == QUIRE_OK) {
        rc = keep_instructions(gen, &h);
    }
    if (rc == QUIRE_OK) {
        rc = quire_generation_prompt_add(gen, h.tokens, h.n_tokens);
        h.tokens = NULL;
        free(gen->history);
        gen->history = h.kept;
        gen->n_history = h.n_kept;
        h.kept = NULL;
    }
    free(h.tokens);
    free(h.kept);
    free(h.turns);
    return rc;
}

int quire_generation_chat_read(quire_generation *gen, quire_fields *fields)
{
    QUIRE_TRY(read_fields(gen, fields));
    QUIRE_TRY(quire_generation_session_enter(gen));
    return add_prompt(gen);
}

int quire_api_chat(quire_http *http)
{
    return quire_generation_answer(http, &quire_form_chat, quire_generation_chat_read);
}

int quire_api_chat_count(quire_http *http)
{
    return quire_generation_count(http, &quire_form_chat, quire_generation_chat_read);
}
