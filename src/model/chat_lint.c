/* chat_lint.c - see chat_lint.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_lint.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

#define TOOL(name)                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name                                        \
    "\",\"description\":\"Looks up\",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\":"   \
    "{\"type\":\"string\"}},\"required\":[\"q\"]}}}"
#define CALL                                                                                       \
    "\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":\"look\"," \
    "\"arguments\":\"{\\\"q\\\": \\\"x\\\"}\"}}]"
#define RESULT  "{\"tool_call_id\":\"call00001\",\"name\":\"look\"}"
#define THOUGHT "\"reasoning_content\":\"Some thoughts come first.\""

static const char one_tool[] = "[" TOOL("look") "]";
static const char two_tools[] = "[" TOOL("look") "," TOOL("find") "]";

static const quire_chat_message plain[] = {
    { "system", "Be brief.", NULL },         { "user", "First question?", NULL },
    { "assistant", "First answer.", NULL },  { "user", "Second question?", NULL },
    { "assistant", "Second answer.", NULL }, { "user", "Third question?", NULL },
};
static const quire_chat_message thoughts[] = {
    { "user", "First question?", NULL },  { "assistant", "First answer.", "{" THOUGHT "}" },
    { "user", "Second question?", NULL }, { "assistant", "Second answer.", "{" THOUGHT "}" },
    { "user", "Third question?", NULL },
};
static const quire_chat_message calls[] = {
    { "user", "First question?", NULL },  { "assistant", "", "{" CALL "}" },
    { "tool", "found", RESULT },          { "assistant", "First answer.", NULL },
    { "user", "Second question?", NULL },
};
static const quire_chat_message thoughtful_calls[] = {
    { "user", "First question?", NULL },  { "assistant", "", "{" CALL "," THOUGHT "}" },
    { "tool", "found", RESULT },          { "assistant", "First answer.", "{" THOUGHT "}" },
    { "user", "Second question?", NULL },
};

/* A prompt and a later prompt of the same chat. The first prompt ends behind its last message. The
 * beginning of an answer is left out, because templates choose its form by the later messages. */
typedef struct pair {
    const char *name, *what;
    quire_chat_ask before, after;
    bool needs_tools, needs_thinking;
} pair;

#define ASK(list, n, ...)                                                                          \
    {                                                                                              \
        .messages = list, .n_messages = n, __VA_ARGS__                                             \
    }
#define END .omits_generation_prompt = true, .is_text_only = true

/* clang-format off */
static const pair pairs[QUIRE_CHAT_LINT_CASES] = {
    { "answer", "the next question comes",
      ASK(plain, 3, END), ASK(plain, 4, END), false, false },
    { "earlier answers", "one more turn comes",
      ASK(plain, 5, END), ASK(plain, 6, END), false, false },
    { "thoughts", "the next question comes",
      ASK(thoughts, 2, END), ASK(thoughts, 3, END), false, true },
    { "earlier thoughts", "one more turn comes",
      ASK(thoughts, 4, END), ASK(thoughts, 5, END), false, true },
    { "call", "its result comes",
      ASK(calls, 2, .tools = one_tool, END), ASK(calls, 3, .tools = one_tool, END), true, false },
    { "call with thoughts", "its result comes",
      ASK(thoughtful_calls, 2, .tools = one_tool, END),
      ASK(thoughtful_calls, 3, .tools = one_tool, END), true, true },
    { "finished calls", "the next question comes",
      ASK(thoughtful_calls, 4, .tools = one_tool, END),
      ASK(thoughtful_calls, 5, .tools = one_tool, END), true, false },
    { "tools", "a tool is added",
      ASK(plain, 4, .tools = one_tool, END), ASK(plain, 4, .tools = two_tools, END), true, false },
    { "thinking", "thinking is switched off",
      ASK(plain, 4, .thinking = QUIRE_CHAT_ON, END),
      ASK(plain, 4, .thinking = QUIRE_CHAT_OFF, END), false, true },
};
/* clang-format on */

/* A part of a text as one printable line. */
static void show_place(char *out, quire_chat_text text, size_t at)
{
    size_t n = 0;

    for (size_t i = at; i < text.n && n < QUIRE_CHAT_LINT_PLACE; i++) {
        const char c = text.data[i];

        out[n++] = (char)((unsigned char)c < ' ' ? ' ' : c);
    }
    while (n > 0 && ((unsigned char)out[n - 1] & 0x80u) != 0) {
        n--; /* rather than half a character */
    }
    out[n] = '\0';
}

static void compare(quire_chat_lint_case *out, const quire_chat_prompt *before,
                    const quire_chat_prompt *after)
{
    quire_chat_rules a, b;

    quire_chat_prompt_rules(before, &a);
    quire_chat_prompt_rules(after, &b);
    out->n_before = a.text.n;
    while (out->n_same < a.text.n && out->n_same < b.text.n &&
           a.text.data[out->n_same] == b.text.data[out->n_same]) {
        out->n_same++;
    }
    out->verdict = out->n_same == a.text.n ? QUIRE_CHAT_LINT_KEEPS : QUIRE_CHAT_LINT_BREAKS;
    show_place(out->before, a.text, out->n_same);
    show_place(out->after, b.text, out->n_same);
}

static int refused(quire_chat_lint_case *out, const quire_error *cause, quire_error *err)
{
    if (cause->status != QUIRE_INVAL && cause->status != QUIRE_UNSUPP) {
        return quire_error_set(err, cause->status, "%s", cause->message);
    }
    out->verdict = QUIRE_CHAT_LINT_REFUSED;
    (void)snprintf(out->reason, sizeof out->reason, "%s", cause->message);
    return QUIRE_OK;
}

static int lint_pair(const quire_chat_format *format, const pair *p, quire_chat_lint_case *out,
                     quire_error *err)
{
    quire_chat_prompt *before = NULL;
    quire_chat_prompt *after = NULL;
    quire_error cause = QUIRE_ERROR_INIT;
    int rc = quire_chat_format_apply(format, &p->before, &before, &cause);

    if (rc == QUIRE_OK) {
        rc = quire_chat_format_apply(format, &p->after, &after, &cause);
    }
    if (rc == QUIRE_OK) {
        compare(out, before, after);
    } else {
        rc = refused(out, &cause, err);
    }
    quire_chat_prompt_destroy(before);
    quire_chat_prompt_destroy(after);
    return rc;
}

int quire_chat_lint(const quire_chat_format *format, quire_chat_lint_case *cases, quire_error *err)
{
    quire_chat_abilities has;

    quire_chat_format_abilities(format, &has);
    for (size_t i = 0; i < QUIRE_CHAT_LINT_CASES; i++) {
        cases[i] = (quire_chat_lint_case){ .name = pairs[i].name,
                                           .what = pairs[i].what,
                                           .verdict = QUIRE_CHAT_LINT_NONE };
        if ((pairs[i].needs_tools && !has.has_tools) ||
            (pairs[i].needs_thinking && !has.has_thinking)) {
            continue;
        }
        QUIRE_TRY(lint_pair(format, &pairs[i], &cases[i], err));
    }
    return QUIRE_OK;
}

bool quire_chat_lint_has_date(const quire_chat_format *format)
{
    const char *text = quire_chat_format_template(format);

    return text != NULL &&
           (strstr(text, "strftime_now") != NULL || strstr(text, "date_string") != NULL ||
            strstr(text, "datetime") != NULL);
}
