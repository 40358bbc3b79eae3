/* chat_format.h - conversations as a model reads them, and answers as a model writes them.
 *
 * A chat format belongs to a model and a template. It renders messages, tools and switches into the
 * text of a prompt, names the rules of the answer (a grammar, stop texts, tokens that count as
 * text), and reads an answer back: thoughts, content, calls of tools.
 *
 *   quire_chat_ask -> quire_chat_format_apply() -> quire_chat_prompt -> tokens, sampler
 *                                                        |
 *   text of the answer, piece by piece -> quire_chat_reader -> quire_chat_answer, deltas
 *
 * This is the one representation of messages, tools and answers in Quire: OpenAI's chat endpoint,
 * other APIs, sessions and `quire chat` convert from and to the types here. Roles are "system",
 * "developer", "user", "assistant" and "tool". All JSON in these types is text in OpenAI's form.
 *
 * Two engines render. The library `common` of llama.cpp runs the Jinja template of the model or of
 * a file, and knows the formats of tool calls and thoughts (chat_*.cpp are its only users; C++
 * exceptions end there). Without this library, and for a template given by NAME, libllama's
 * built-in templates render plain messages (chat_templates.h), and tools are refused.
 *
 * Bounds. A template is untrusted: it comes with a model file. It runs on a thread of its own with
 * a stack of QUIRE_CHAT_STACK_BYTES, and is stopped by an error after QUIRE_CHAT_TIME_MAX_S, at
 * QUIRE_CHAT_MEMORY_MAX, and at QUIRE_CHAT_STACK_BYTES_MAX of recursion. Each failure is a status
 * with a message.
 *
 * Thread: a format and a prompt are read by any thread. A reader: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_FORMAT_H
#define QUIRE_MODEL_CHAT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/model.h"
#include "model/text.h"
#include "quire/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_CHAT_TEMPLATE_BYTES_MAX ((size_t)256 << 10)
#define QUIRE_CHAT_PROMPT_BYTES_MAX   ((size_t)64 << 20)
#define QUIRE_CHAT_TIME_MAX_S         10u
#define QUIRE_CHAT_MEMORY_MAX         ((size_t)256 << 20)
#define QUIRE_CHAT_STACK_BYTES        ((size_t)256 << 20) /* address space; memory as it is used */
#define QUIRE_CHAT_STACK_BYTES_MAX    ((size_t)8 << 20)   /* of parsing and running a template */
#define QUIRE_CHAT_TOOLS_MAX          256u
#define QUIRE_CHAT_CALLS_MAX          128u /* of tools, in one message */

typedef struct quire_chat_format quire_chat_format;
typedef struct quire_chat_prompt quire_chat_prompt;
typedef struct quire_chat_reader quire_chat_reader;

/* ---- the format of a model ---- */

/* Whether this program can run Jinja templates: it was built with llama.cpp's common library. */
bool quire_chat_format_runs_jinja(void);

/* chat_template: the text of a Jinja template, the name of a built-in template, or NULL for the
 * model's own. The model's own template is rendered by a built-in one when it cannot be run and
 * libllama recognises it: see quire_chat_format_warning(). model: borrowed. Errors:
 * QUIRE_UNSUPP (the model has no template, or one that can neither be run nor recognised; err says
 * why), QUIRE_LIMIT (a bound above), QUIRE_NOMEM. */
int quire_chat_format_create(quire_chat_format **out, const quire_model *model,
                             const char *chat_template, quire_error *err);
void quire_chat_format_destroy(quire_chat_format *format);

/* A sentence for the operator when messages are not rendered by the model's own template, or can
 * lose text of the template; "" if there is nothing to say. */
const char *quire_chat_format_warning(const quire_chat_format *format);
/* The text of the template; a name for a built-in one. */
const char *quire_chat_format_template(const quire_chat_format *format);

typedef struct quire_chat_abilities {
    bool has_jinja;      /* the template is run, not imitated by a built-in one */
    bool has_tools;      /* the template describes tools and writes calls */
    bool has_parallel;   /* several calls in one message */
    bool has_thinking;   /* thinking can be switched on and off */
    bool keeps_thoughts; /* thoughts of earlier answers stay in the prompt */
} quire_chat_abilities;
void quire_chat_format_abilities(const quire_chat_format *format, quire_chat_abilities *out);

/* ---- prompts ---- */

typedef enum quire_tool_choice {
    QUIRE_TOOL_CHOICE_AUTO,
    QUIRE_TOOL_CHOICE_NONE, /* tools are described; no call is read */
    QUIRE_TOOL_CHOICE_REQUIRED,
    QUIRE_TOOL_CHOICE_NAMED /* required, of tool_name */
} quire_tool_choice;

typedef enum quire_chat_switch {
    QUIRE_CHAT_DEFAULT, /* the template's */
    QUIRE_CHAT_ON,
    QUIRE_CHAT_OFF
} quire_chat_switch;

/* The place of thoughts in an answer. */
typedef enum quire_reasoning_format {
    QUIRE_REASONING_AUTO, /* reasoning_content */
    QUIRE_REASONING_NONE, /* in the content, with their tags */
} quire_reasoning_format;

typedef struct quire_chat_ask {
    const quire_chat_message *messages; /* [n_messages]; text.h */
    size_t n_messages;
    const char *tools;       /* JSON array [{"type": "function", "function": {"name", "description",
                                "parameters"}}]; NULL or "" = none */
    const char *plain_tools; /* the same tools, in the same order, with schemas of a simple form:
                                the library's grammar and reader of calls are made of them, and the
                                prompt where the template fails for `tools`; NULL = tools */
    quire_tool_choice tool_choice;
    const char *tool_name;            /* of QUIRE_TOOL_CHOICE_NAMED */
    quire_chat_switch parallel_calls; /* default: as the template supports them */
    quire_chat_switch thinking;       /* enable_thinking */
    quire_reasoning_format reasoning;
    const char *reasoning_effort; /* "low", "medium", "high", ...; "none" = thinking off; NULL */
    const char *kwargs;           /* JSON object: chat_template_kwargs; NULL = none */
    bool omits_generation_prompt; /* the prompt ends behind the last message */
    bool is_text_only; /* the text of the prompt is wanted, not the rules of an answer: no grammar,
                          and an answer read by this prompt is all content */
    bool continues_final; /* the answer goes on with the last message (assistant) */
    const char *schema;   /* JSON Schema of the content; NULL = none. Not together with tools that
                             may be called */
} quire_chat_ask;

/* Render. Errors: QUIRE_INVAL (the template refuses the messages; a tool is not valid; err has the
 * reason), QUIRE_UNSUPP (tools or thinking without Jinja), QUIRE_LIMIT, QUIRE_NOMEM. Blocks for the
 * milliseconds that it takes. */
int quire_chat_format_apply(const quire_chat_format *format, const quire_chat_ask *ask,
                            quire_chat_prompt **out, quire_error *err);
void quire_chat_prompt_destroy(quire_chat_prompt *prompt);

typedef struct quire_chat_text {
    const char *data; /* terminated */
    size_t n;
} quire_chat_text;

/* A text or pattern of the answer at which a lazy grammar begins. */
typedef struct quire_chat_trigger {
    const char *text;
    bool is_pattern; /* ECMAScript; the grammar begins at the first group that matches */
} quire_chat_trigger;

/* All pointers live as long as the prompt. Tokenize `text` with special tokens parsed and with the
 * vocabulary's BOS. */
typedef struct quire_chat_rules {
    quire_chat_text text;
    const char *grammar;  /* GBNF of the answer; NULL = none */
    bool is_grammar_lazy; /* the grammar holds from a trigger on */
    const quire_chat_trigger *triggers;
    uint32_t n_triggers;
    const char *must_begin;   /* a trigger that has to come, behind thoughts at most: a call is
                                 required; NULL = none */
    const char *const *stops; /* texts that end the answer, none of them empty */
    uint32_t n_stops;
    const char *const *shown_tokens; /* special tokens that the reader needs as text */
    uint32_t n_shown_tokens;
    const char *thinking_begin; /* such as "<think>"; NULL = the format has no thoughts */
    const char *thinking_end;
    bool begins_thinking;     /* the prompt ends inside of thoughts */
    const char *answer_begin; /* the end of the prompt that belongs to the answer */
} quire_chat_rules;
void quire_chat_prompt_rules(const quire_chat_prompt *prompt, quire_chat_rules *out);

/* ---- answers ---- */

typedef struct quire_chat_call {
    quire_chat_text id; /* the model's, or a new one */
    quire_chat_text name;
    quire_chat_text arguments; /* JSON */
} quire_chat_call;

typedef struct quire_chat_answer {
    quire_chat_text reasoning;
    quire_chat_text content;
    const quire_chat_call *calls;
    uint32_t n_calls;
    bool is_whole; /* the answer has ended, and has no calls or keeps to the format up to its end */
} quire_chat_answer;

/* New text of an answer. One field per delta; `call` counts from 0, and its first delta has id and
 * name, without arguments. */
typedef enum quire_chat_delta_kind {
    QUIRE_CHAT_DELTA_REASONING,
    QUIRE_CHAT_DELTA_CONTENT,
    QUIRE_CHAT_DELTA_CALL,     /* id, name */
    QUIRE_CHAT_DELTA_ARGUMENTS /* text */
} quire_chat_delta_kind;

typedef struct quire_chat_delta {
    quire_chat_delta_kind kind;
    uint32_t call;
    quire_chat_text id, name;
    quire_chat_text text;
} quire_chat_delta;

/* The reader keeps a reference to the prompt's rules: the prompt may be destroyed before. */
int quire_chat_reader_create(quire_chat_reader **out, const quire_chat_prompt *prompt,
                             quire_error *err);
void quire_chat_reader_destroy(quire_chat_reader *reader);

/* Take in more text of the answer; is_last: the answer has ended (n may be 0). Reading takes time
 * proportional to the whole answer, so a long answer is not read at each call; at the end it is. An
 * answer that does not keep to the format is content from the place on where it leaves the format.
 * Errors: QUIRE_NOMEM, QUIRE_LIMIT. */
int quire_chat_reader_feed(quire_chat_reader *reader, const char *text, size_t n, bool is_last,
                           quire_error *err);
/* The answer so far. Pointers live until the next feed. */
void quire_chat_reader_answer(const quire_chat_reader *reader, quire_chat_answer *out);
/* The text of the answer so far, as the model wrote it. */
quire_chat_text quire_chat_reader_text(const quire_chat_reader *reader);
/* The next piece that no call has returned yet; false when there is none. The texts of all deltas
 * of a field, joined, are the field of the final answer. */
bool quire_chat_reader_delta(quire_chat_reader *reader, quire_chat_delta *out);

/* The answer as a message of the history: role "assistant", content, and `extra` (text.h) for
 * thoughts and calls. Memory: *extra by free(); NULL = none. Errors: QUIRE_NOMEM. */
int quire_chat_answer_extra(const quire_chat_answer *answer, char **extra);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_MODEL_CHAT_FORMAT_H */
