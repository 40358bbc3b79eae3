/* generate.h - a request for tokens, from its fields to its answer; for src/server only.
 *
 * One generation is one HTTP request: one or several prompts, each answered n times. It lives as
 * http->work, so that it is released after the reply was sent or lost, on the connection's thread;
 * what still runs is cancelled then.
 *
 *   fields -> prompts (tokens) -> submit all or none -> tokens -> JSON, or SSE events -> commit
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_GENERATE_H
#define QUIRE_SERVER_GENERATE_H

#include "model/text.h"
#include "server/http.h"
#include "server/messages.h"

typedef struct quire_prompt {
    int32_t *tokens; /* owned */
    uint32_t n_tokens;
} quire_prompt;

typedef struct quire_choice {
    quire_request *request;
    const quire_prompt *prompt;
    uint32_t n_taken;  /* tokens */
    quire_bytes text;  /* the whole answer, where it is kept */
    size_t text_chars; /* shown so far */
    /* Elements of JSON arrays, waiting to be sent: chat uses the first; completions tokens,
     * token_logprobs, top_logprobs, text_offset. */
    quire_bytes logprobs[4];
    const quire_request_result *result; /* when done */
    bool is_begun;                      /* stream: its role was sent */
    bool is_ended;                      /* stream: its finish_reason was sent */
} quire_choice;

typedef struct quire_generation {
    quire_http *http;
    bool is_chat;
    bool is_stream;
    bool has_usage_event; /* stream_options.include_usage */
    bool has_explanation; /* explain_cache */
    bool truncates_turns;
    quire_request_params params; /* of every choice but prompt, seed and id */
    quire_tier tier;
    uint32_t n_per_prompt; /* n */
    quire_prompt prompts[QUIRE_SERVER_CHOICES_MAX];
    uint32_t n_prompts;
    quire_choice choices[QUIRE_SERVER_CHOICES_MAX];
    uint32_t n_choices;
    int64_t created_s;
    quire_tenant_salt salt;
    /* memory behind params */
    char *grammar;
    char *stops[QUIRE_STOPS_MAX];
    quire_logit_bias *bias;
    /* session */
    char session_id[QUIRE_SESSION_ID_MAX + 1]; /* "" = none */
    quire_session_ref session;
    quire_messages messages; /* of the request */
    quire_bytes said;        /* text completions: what the session's text becomes */
    quire_chat_message *history;
    size_t n_history;     /* what was rendered: a part of it when turns were dropped */
    bool is_session_kept; /* this turn is part of it now */
    uint32_t n_dropped_turns;
    uint32_t n_dropped_messages;
    /* stream.c */
    quire_bytes pending; /* events not taken by MHD yet */
    size_t n_pending_taken;
    uint32_t next_choice;
    bool is_over;
} quire_generation;

/* ---- generate.c ---- */

/* Answer a request for text: its body as JSON, which read takes into the generation, then submit
 * and reply. The generation is http->work meanwhile. Errors: http->err. */
int quire_generation_answer(quire_http *http, bool is_chat,
                            int (*read)(quire_generation *gen, quire_fields *fields));
/* Room for a prompt; takes the memory of tokens. Errors: http->err. */
int quire_generation_prompt_add(quire_generation *gen, int32_t *tokens, uint32_t n_tokens);
/* The tokens of a prompt's text, the session's first. Errors: QUIRE_RANGE (more than the context),
 * and others; none is in http->err yet: quire_http_tokenize_error(). */
int quire_generation_tokenize(quire_generation *gen, const char *text, size_t n,
                              quire_joined_tokens *out, quire_error *cause);
/* Begin to use session_id, if there is one. Errors: http->err. */
int quire_generation_session_enter(quire_generation *gen);
/* Wait for the next token of a choice, or its end, for timeout_ms at most. Returns 1 with *token,
 * 0 when it is done, QUIRE_AGAIN; other errors: http->err, the choice is to be given up. */
int quire_generation_wait(quire_generation *gen, quire_choice *choice, uint32_t timeout_ms,
                          quire_request_token *token);
/* Cancel what runs and leave the session, which no request uses any more then: within one step.
 * Before the client learns of an error, because it may try again at once. */
void quire_generation_give_up(quire_generation *gen);
/* All choices are done: keep the session's new turn and leave it, note figures for the log. Before
 * the client learns of the end, because its next turn may follow at once. */
void quire_generation_finish(quire_generation *gen);
/* ---- note.c ---- */

/* Write down what was asked, where the server records: a line for each answer. */
void quire_generation_note(const quire_generation *gen);

/* ---- generate_fields.c ---- */

/* All fields but the prompt. Errors: http->err. */
int quire_generation_fields(quire_generation *gen, quire_fields *fields);

/* ---- stream.c ---- */

/* Errors: http->err. */
int quire_generation_stream(quire_generation *gen);

/* ---- answer.c ---- */

/* Take note of a token: its text and log-probabilities. */
void quire_choice_take(quire_generation *gen, quire_choice *choice,
                       const quire_request_token *token);
/* The whole reply. */
void quire_answer_write(quire_bytes *out, quire_generation *gen);
/* An event's JSON: text that follows (chat: with the role when nothing was sent yet), with the
 * log-probabilities that wait; finish NULL = not the end. */
void quire_answer_chunk_write(quire_bytes *out, quire_generation *gen, quire_choice *choice,
                              const char *text, size_t n, const char *finish);
/* The event behind the last: choices empty, usage. */
void quire_answer_usage_write(quire_bytes *out, quire_generation *gen);

/* ---- explain_out.c ---- */

/* An explanation as a JSON object, with the texts of the two tokens. */
void quire_explanation_write(quire_json_out *json, const char *key, const quire_model *model,
                             const quire_explanation *explanation);

#endif /* QUIRE_SERVER_GENERATE_H */
