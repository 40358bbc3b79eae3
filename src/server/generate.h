/* generate.h - a request for tokens, from its fields to its answer; for src/server only.
 *
 * One generation is one HTTP request: one or several prompts, each answered n times. http->work
 * owns the generation, so the connection's thread releases it after the reply was sent or lost;
 * unfinished requests are cancelled then.
 *
 *   fields -> prompts (tokens) -> submit all or none -> tokens -> JSON, or SSE events -> commit
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_GENERATE_H
#define QUIRE_SERVER_GENERATE_H

#include "model/answer_rules.h"
#include "model/text.h"
#include "server/cache_mark.h"
#include "server/chat_request.h"
#include "server/http.h"

typedef struct quire_prompt {
    int32_t *tokens; /* owned */
    uint32_t n_tokens;
    quire_bytes text; /* with keeps_prompts, or echo */
} quire_prompt;

typedef struct quire_choice {
    quire_request *request;
    const quire_prompt *prompt;
    uint32_t n_taken;          /* tokens */
    quire_bytes text;          /* the whole answer as the model wrote it, if it is kept */
    quire_chat_reader *reader; /* chat: the answer's parts; NULL = text */
    size_t text_chars;         /* shown so far */
    /* Elements of JSON arrays to be sent. Chat uses the first; completions use all: tokens,
     * token_logprobs, top_logprobs, text_offset; llama-server's form uses two:
     * completion_probabilities, tokens. */
    quire_bytes logprobs[4];
    const quire_request_result *result; /* when done */
    bool is_begun;                      /* stream: its role was sent */
    int block_kind;                     /* stream in blocks: the open one, of the form's kinds */
    uint32_t n_blocks;                  /* begun so far */
    uint32_t block_call;                /* the call of the open block */
    quire_bytes block_text;             /* the text that its events have sent; and of a call: */
    quire_bytes block_id, block_name;
    bool is_echoed; /* the log-probabilities of its prompt were noted */
    bool is_ended;  /* stream: its finish_reason was sent */
} quire_choice;

/* n bytes of UTF-8 are shown: their characters count. */
static inline void quire_choice_chars_add(quire_choice *choice, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        choice->text_chars += ((unsigned char)text[i] & 0xc0u) != 0x80u;
    }
}

typedef struct quire_generation quire_generation;

/* A field of a chat that is made of another field of the request. */
typedef struct quire_field_alias {
    const char *made, *from;
} quire_field_alias;
#define QUIRE_FIELD_ALIASES_MAX 32u

/* The form of an API's answers. Functions of streams append events to gen->pending. */
typedef struct quire_answer_form {
    bool is_chat;             /* the prompt is made of messages; answers have parts */
    bool keeps_prompts;       /* the reply needs the texts of the prompts */
    const char *id_prefix;    /* of http->id */
    bool is_llama;            /* the request may have `n_probs` and `return_tokens` */
    bool has_prompt_logprobs; /* it may have `prompt_logprobs` */
    /* Errors about a field that was made of another name that one. */
    const quire_field_alias *aliases; /* [n_aliases] */
    uint32_t n_aliases;               /* at most QUIRE_FIELD_ALIASES_MAX */
    /* Note a token's log-probabilities for the reply; NULL = as OpenAI's forms show them. */
    void (*take)(quire_generation *gen, quire_choice *choice, const quire_request_token *token);
    /* The whole reply. */
    void (*whole)(quire_bytes *out, quire_generation *gen);
    /* Before the first token; NULL = nothing. */
    void (*begin)(quire_generation *gen);
    /* More of an answer: text, n > 0; of a chat the next piece of a part. */
    void (*text)(quire_generation *gen, quire_choice *choice, const char *text, size_t n);
    void (*delta)(quire_generation *gen, quire_choice *choice, const quire_chat_delta *delta);
    /* The end of an answer, then the end of all. */
    void (*choice_end)(quire_generation *gen, quire_choice *choice);
    void (*end)(quire_generation *gen);
    /* http->err, in place of the rest. */
    void (*error)(quire_generation *gen);
} quire_answer_form;

struct quire_generation {
    quire_http *http;
    const quire_answer_form *form;
    bool is_chat;         /* form's */
    uint32_t made_fields; /* bits of the form's aliases: the request itself lacks the field */
    bool is_stream;
    bool has_usage_event; /* stream_options.include_usage */
    bool has_explanation; /* explain_cache */
    bool truncates_turns;
    bool returns_tokens;          /* llama-server's form: with the tokens' numbers */
    bool keeps_instructions;      /* context_keep covers the first instruction and the tools */
    bool has_echo;                /* text completions: the answer begins with the prompt */
    bool shows_prompt_logprobs;   /* the reply has `prompt_logprobs`, */
    uint32_t n_shown_prompt_tops; /* with so many alternatives */
    quire_request_params params;  /* of all choices, except prompt, seed and id */
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
    const char *constraint; /* the field that the grammar is of; static. NULL = none */
    char *stops[QUIRE_STOPS_MAX];
    uint32_t n_request_stops; /* the first ones are the request's, further ones the chat format's */
    quire_logit_bias *bias;
    int32_t stop_tokens[QUIRE_STOP_TOKENS_MAX];
    char dry_breakers[QUIRE_DRY_BREAKERS_MAX][QUIRE_DRY_BREAKER_BYTES + 1];
    const char *dry_breaker_list[QUIRE_DRY_BREAKERS_MAX];
    quire_retain_spec retain;
    /* session */
    char session_id[QUIRE_SESSION_ID_MAX + 1]; /* "" = none */
    quire_session_ref session;
    quire_chat_request chat; /* of the request */
    quire_chat_prompt *chat_prompt;
    quire_answer_rules *rules;
    quire_said_prompt said_before;     /* the history's answers that the model said */
    char *schema;                      /* of response_format, for the chat format; NULL = none */
    char *plain_schema;                /* the same by quire_library_schema() */
    quire_cache_mark mark;             /* a breakpoint of the request */
    struct quire_responses *responses; /* of /v1/responses; owned */
    quire_bytes said;                  /* text completions: the new text of the session */
    quire_chat_message *history;
    size_t n_history;     /* messages rendered; fewer than all when turns were dropped */
    bool is_session_kept; /* the session contains this turn */
    uint32_t n_dropped_turns;
    uint32_t n_dropped_messages;
    /* stream.c */
    quire_bytes pending; /* events that MHD has not read yet */
    size_t n_pending_taken;
    uint32_t next_choice;
    uint64_t n_events; /* with numbers */
    bool is_over;
};

/* ---- generate.c ---- */

/* Answer a request for text: parse the body, let `read` fill the generation from it, submit, reply.
 * http->work owns the generation. Errors: http->err. */
int quire_generation_answer(quire_http *http, const quire_answer_form *form,
                            int (*read)(quire_generation *gen, quire_fields *fields));
/* Parse the body and let `read` fill a generation from it, which http->work owns. Errors:
 * http->err.
 */
int quire_generation_read(quire_http *http, const quire_answer_form *form,
                          int (*read)(quire_generation *gen, quire_fields *fields),
                          quire_generation **out);
/* Reply with the number of tokens of the prompt, and compute nothing: {"input_tokens"}. Errors:
 * http->err. */
int quire_generation_count(quire_http *http, const quire_answer_form *form,
                           int (*read)(quire_generation *gen, quire_fields *fields));
/* Add a prompt; takes over the memory of tokens. Errors: http->err. */
int quire_generation_prompt_add(quire_generation *gen, int32_t *tokens, uint32_t n_tokens);
/* Tokenize a prompt's text, reusing the session's tokens. Errors: QUIRE_RANGE (longer than the
 * context) and others. http->err is not filled: see quire_http_tokenize_error(). */
int quire_generation_tokenize(quire_generation *gen, const char *text, size_t n,
                              quire_joined_tokens *out, quire_error *cause);
/* Begin to use session_id, unless it is "". Errors: http->err. */
int quire_generation_session_enter(quire_generation *gen);
/* Make the request obey its chat prompt, and read the answers by it. Errors: http->err. */
int quire_generation_prompt_obey(quire_generation *gen);
/* Take in the next text of an answer; is_last: its end. Errors: http->err. */
int quire_choice_read(quire_generation *gen, quire_choice *choice, const char *text, size_t n,
                      bool is_last);
/* The text of a rendered prompt with the model's own earlier answers in it. Errors: http->err. */
int quire_generation_said_apply(quire_generation *gen, const quire_chat_rules *rules,
                                quire_chat_text *text);
/* Keep the answer for later histories. */
void quire_generation_said_keep(quire_generation *gen);
/* The text that a template writes behind an answer; NULL = not found. Memory: free(). */
char *quire_chat_end_find(const quire_chat_format *format);
/* The messages of a finished turn: the history and the answer. messages has room for one more than
 * the history. Memory: *content and *extra are the caller's to free. Returns their number, 0
 * without memory. */
size_t quire_generation_messages(quire_generation *gen, quire_chat_message *messages,
                                 char **content, char **extra);
/* Wait at most timeout_ms for the next token of a choice, or for its end. Returns 1 with *token, 0
 * when the choice is done, QUIRE_AGAIN after the timeout. Other errors fill http->err; the caller
 * then gives up the choice. */
int quire_generation_wait(quire_generation *gen, quire_choice *choice, uint32_t timeout_ms,
                          quire_request_token *token);
/* Cancel the requests and leave the session; within one step no request uses the session any more.
 * To be called before the client learns of an error, because it may retry at once. */
void quire_generation_give_up(quire_generation *gen);
/* After all choices: store the new turn in the session, leave the session, and set the figures for
 * the log. To be called before the client learns of the end, because its next turn may follow at
 * once. */
void quire_generation_finish(quire_generation *gen);
/* ---- note.c ---- */

/* Record the request if the server records: one line per answer. */
void quire_generation_note(const quire_generation *gen);

/* ---- generate_fields.c ---- */

/* All fields but the prompt. Errors: http->err. */
int quire_generation_fields(quire_generation *gen, quire_fields *fields);

/* ---- sampling_fields.c ---- */

/* The fields that choose tokens, but logit_bias. Errors: fields->err. */
void quire_sampling_read(quire_generation *gen, quire_fields *fields);

/* ---- api_completions.c ---- */

/* Keep the text of the prompt added last if the reply needs it. text NULL: of its tokens. Errors:
 * http->err. */
int quire_generation_prompt_keep(quire_generation *gen, const char *text, size_t n);

/* ---- api_chat.c ---- */

/* Read the body of a chat completion: fields, messages, prompt. Errors: http->err. */
int quire_generation_chat_read(quire_generation *gen, quire_fields *fields);

/* ---- api_responses.c ---- */

/* Store a response whose reply is complete, if its request asks for that. */
void quire_response_keep(quire_generation *gen, const quire_bytes *reply);

/* ---- constraint_fields.c ---- */

/* The fields that constrain the answer's text, at most one of which may be set: grammar,
 * response_format, and their names in other servers. Sets gen->grammar, or gen->schema for a chat
 * whose model thinks first. Errors: fields->err. */
void quire_constraint_read(quire_generation *gen, quire_fields *fields);

/* ---- stream.c ---- */

/* Errors: http->err. */
int quire_generation_stream(quire_generation *gen);
/* Begin and end an event in gen->pending; between them its data is appended. name NULL = an event
 * without a name. */
void quire_event_begin(quire_generation *gen, const char *name);
void quire_event_end(quire_generation *gen);

/* ---- answer.c ---- */

extern const quire_answer_form quire_form_chat; /* OpenAI's */
extern const quire_answer_form quire_form_text;
extern const quire_answer_form quire_form_llama;     /* answer_llama.c: /completion, /infill */
extern const quire_answer_form quire_form_anthropic; /* answer_anthropic.c: /v1/messages */
extern const quire_answer_form quire_form_responses; /* answer_responses.c: /v1/responses */

/* Add a token's text and log-probabilities to a choice. */
void quire_choice_take(quire_generation *gen, quire_choice *choice,
                       const quire_request_token *token);
/* The word for the end of a choice: "tool_calls" when the answer calls tools and ended by itself,
 * or by a stop text behind the calls. */
const char *quire_choice_finish(const quire_generation *gen, const quire_choice *choice);
/* Append a token's log-probabilities: {"token", "logprob", "bytes", "top_logprobs"}, with_ids: each
 * with its "id". */
void quire_answer_logprob_add(const quire_generation *gen, quire_bytes *out,
                              const quire_request_token *token, bool with_ids);
/* The array `key` of the elements noted so far; forgets them. */
void quire_answer_elements_write(quire_json_out *json, const char *key, quire_bytes *elements);
/* Quire's own fields, if the request asks for them. */
void quire_answer_quire_write(quire_json_out *json, const quire_generation *gen,
                              const quire_choice *choice);
/* Timings in the format of llama.cpp's server. */
void quire_answer_timings_write(quire_json_out *json, const quire_request_result *result);
/* Values of sampling as an object, in llama-server's names. */
void quire_answer_sampling_write(quire_json_out *json, const char *key,
                                 const quire_sampler_opts *sampler);
/* Sums over all answers; a prompt counts once for all of its answers. */
typedef struct quire_answer_usage {
    uint64_t prompt_tokens;
    uint64_t cached_tokens;
    uint64_t generated_tokens;
    uint64_t thought_tokens; /* of the generated ones */
} quire_answer_usage;
void quire_answer_usage_get(const quire_generation *gen, quire_answer_usage *out);

/* ---- text_logprobs.c ---- */

/* Note a token's log-probabilities in the arrays of text completions. */
void quire_text_logprobs_take(quire_generation *gen, quire_choice *choice,
                              const quire_request_token *token);
/* Note those of the prompt before the first token's, once, if the answer begins with the prompt and
 * its request has them. */
void quire_text_logprobs_echo(quire_generation *gen, quire_choice *choice);
/* Whether the request of a choice has the values of the prompt: in a stream each has. Otherwise the
 * first one of a prompt has them for all. */
bool quire_choice_scores_prompt(const quire_generation *gen, uint32_t i);
/* `prompt_logprobs` of a choice's prompt, if the request asks for it. */
void quire_prompt_logprobs_write(quire_json_out *json, const quire_generation *gen,
                                 const quire_choice *choice);

/* ---- explain_out.c ---- */

/* An explanation as a JSON object, with the texts of the two tokens. */
void quire_explanation_write(quire_json_out *json, const char *key, const quire_model *model,
                             const quire_explanation *explanation);

#endif /* QUIRE_SERVER_GENERATE_H */
