/* chat_ended.c - see chat_ended.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_ended.h"

#include <string.h>

#define INSTRUCTIONS_MAX 2u

/* Instructions, the question, the earlier answer, the messages between, the answer. */
typedef struct short_talk {
    quire_chat_message messages[QUIRE_CHAT_ENDED_MESSAGES_MAX + INSTRUCTIONS_MAX + 1];
    size_t n;
    size_t n_asked; /* up to the question */
} short_talk;

static bool is_answer(const quire_chat_message *message)
{
    return strcmp(message->role, "assistant") == 0;
}

/* The user's last message before the message `at`. Its number counts from 1; 0 = none. */
static size_t question_before(const quire_chat_message *all, size_t at)
{
    while (at > 0 && strcmp(all[at - 1].role, "user") != 0) {
        at--;
    }
    return at;
}

static void talk_add(short_talk *talk, const quire_chat_message *messages, size_t n)
{
    memcpy(talk->messages + talk->n, messages, n * sizeof messages[0]);
    talk->n += n;
}

/* False without an earlier answer that is near and shows how the template writes this one. */
static bool talk_find(const quire_chat_ask *ask, short_talk *talk)
{
    const quire_chat_message *all = ask->messages;
    const size_t last = ask->n_messages - 1;
    size_t n_instructions = 0;
    size_t answer = last;
    size_t question;

    while (n_instructions < last && quire_chat_message_instructs(&all[n_instructions])) {
        n_instructions++;
    }
    while (answer > 0 && !is_answer(&all[answer - 1])) {
        answer--;
    }
    question = answer > 0 ? question_before(all, answer - 1) : 0;
    if (question == 0 || n_instructions > INSTRUCTIONS_MAX ||
        last - answer + 2 > QUIRE_CHAT_ENDED_MESSAGES_MAX ||
        (quire_chat_message_has_calls(&all[last]) &&
         !quire_chat_message_has_calls(&all[answer - 1]))) {
        return false;
    }
    talk->n = 0;
    talk_add(talk, all, n_instructions);
    talk_add(talk, &all[question - 1], 1);
    talk->n_asked = talk->n;
    talk_add(talk, &all[answer - 1], last - answer + 2);
    return true;
}

static int render(const quire_chat_format *format, const quire_chat_ask *ask, size_t n,
                  bool is_ended, quire_bytes *out, quire_error *err)
{
    quire_chat_ask one = *ask;
    quire_chat_prompt *prompt = NULL;
    quire_chat_rules rules;
    int rc;

    one.n_messages = n;
    one.omits_generation_prompt = is_ended;
    one.is_text_only = true;
    rc = quire_chat_format_apply(format, &one, &prompt, err);
    if (rc == QUIRE_OK) {
        quire_chat_prompt_rules(prompt, &rules);
        rc = quire_bytes_add(out, rules.text.data, rules.text.n);
        quire_chat_prompt_destroy(prompt);
    }
    return rc;
}

static size_t same_end(const quire_bytes *a, quire_chat_text b)
{
    size_t n = 0;

    while (n < a->n && n < b.n && a->data[a->n - 1 - n] == b.data[b.n - 1 - n]) {
        n++;
    }
    return n;
}

/* Put the end of the short conversation behind the begin of the prompt. question, asked, ended: the
 * short conversation up to its question, to its prompt, to its answer. The prompt must end as
 * `asked` does from the earlier answer on, and `ended` may differ from `asked` behind it alone. */
static bool splice(const quire_bytes *question, const quire_bytes *asked, const quire_bytes *ended,
                   quire_chat_text prompt, quire_bytes *out)
{
    const size_t n_same = same_end(asked, prompt);
    const size_t from = asked->n - n_same;

    return quire_bytes_same(question->data, question->n, asked->data, asked->n) >= from &&
           quire_bytes_same(asked->data, asked->n, ended->data, ended->n) > from &&
           quire_bytes_add(out, prompt.data, prompt.n - n_same) == QUIRE_OK &&
           quire_bytes_add(out, ended->data + from, ended->n - from) == QUIRE_OK;
}

static bool render_short(const quire_chat_format *format, const quire_chat_ask *ask,
                         quire_chat_text prompt, quire_bytes *out)
{
    short_talk talk;
    quire_chat_ask one = *ask;
    quire_bytes question = { 0 };
    quire_bytes asked = { 0 };
    quire_bytes ended = { 0 };
    bool is_done;

    if (!talk_find(ask, &talk)) {
        return false;
    }
    one.messages = talk.messages;
    one.tools = NULL;
    one.tool_choice = QUIRE_TOOL_CHOICE_AUTO;
    one.tool_name = NULL;
    is_done = render(format, &one, talk.n_asked, true, &question, NULL) == QUIRE_OK &&
              render(format, &one, talk.n - 1, false, &asked, NULL) == QUIRE_OK &&
              render(format, &one, talk.n, true, &ended, NULL) == QUIRE_OK &&
              splice(&question, &asked, &ended, prompt, out);
    quire_bytes_fini(&question);
    quire_bytes_fini(&asked);
    quire_bytes_fini(&ended);
    return is_done;
}

int quire_chat_ended_render(const quire_chat_format *format, const quire_chat_ask *ask,
                            quire_chat_text prompt, quire_bytes *out, bool *is_short,
                            quire_error *err)
{
    const bool is_done = render_short(format, ask, prompt, out);

    if (is_short != NULL) {
        *is_short = is_done;
    }
    if (is_done) {
        return QUIRE_OK;
    }
    quire_bytes_clear(out);
    return render(format, ask, ask->n_messages, true, out, err);
}
