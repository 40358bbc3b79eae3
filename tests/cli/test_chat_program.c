/* test_chat_program.c - quire chat at a terminal and its commands; quire chat-template check.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "program.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *user_of(const json_t *turns, size_t i)
{
    const char *user = json_string_value(json_object_get(json_array_get(turns, i), "user"));

    assert_non_null(user);
    return user;
}

/* ---- at a terminal ---- */

/* At the beginning of a line: where a line is drawn anew, a carriage return comes before. */
#define PROMPT    "\n> "
#define END_TRIES 120 /* a second each */

/* Read until a text has come. */
static void await_text(int fd, const char *text)
{
    size_t n = 0;
    char byte;

    while (n < strlen(text)) {
        assert_int_equal(read(fd, &byte, 1), 1);
        if (byte == text[n]) {
            n++;
        } else {
            n = byte == text[0];
        }
    }
}

/* Write keys when the program asks for a line. */
static void type_at(const program_running *chat, const char *prompt, const char *keys)
{
    await_text(chat->err, prompt);
    assert_int_equal(write(chat->in, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Wait for output; Ctrl-D is written again each second, because a key that comes while the terminal
 * changes its mode can be lost. */
static void await_end(const program_running *chat)
{
    struct pollfd out = { .fd = chat->out, .events = POLLIN };

    for (int i = 0; poll(&out, 1, 1000) == 0; i++) {
        assert_true(i < END_TRIES);
        (void)!write(chat->in, "\004", 1);
    }
}

/* The program's output until it ends, as JSON. */
static json_t *document_of(const program_running *chat)
{
    static char text[1 << 16];
    json_t *document;
    size_t n = 0;
    ssize_t got;

    await_end(chat);
    while ((got = read(chat->out, text + n, sizeof text - 1 - n)) > 0) {
        n += (size_t)got;
    }
    text[n] = '\0';
    document = json_loads(text, 0, NULL);
    if (document == NULL) {
        fail_msg("no JSON: %s", text);
    }
    return document;
}

static void lines_are_edited_and_pasted(void **state)
{
    program_running chat = program_start_on_whole_terminal(PROGRAM(
        "chat", program_model(), "--chat-template", "chatml", "-n", "2", "--temp", "0", "--json"));
    json_t *document, *turns;

    (void)state;
    await_text(chat.err, "tokens of context, KV f16; /help lists the commands");
    type_at(&chat, PROMPT, "a quirt\177e\n"); /* the key that deletes backwards */
#if QUIRE_HAS_EDIT
    type_at(&chat, PROMPT, "\020\n"); /* Ctrl-P: the line before */
#else
    type_at(&chat, PROMPT, "a quire\n");
#endif
    type_at(&chat, PROMPT, "one\ntwo\n\nthree\n"); /* pasted: all there at once */
    type_at(&chat, PROMPT, "bound \\\n");
    type_at(&chat, "\n... ", "in leather\n");
#if QUIRE_HAS_EDIT
    /* A Ctrl-D typed ahead: it must not make a literal character of the next one. */
    await_text(chat.err, PROMPT);
    assert_int_equal(write(chat.in, "\0\004", 2), 2);
#else
    type_at(&chat, PROMPT, "\004"); /* Ctrl-D */
#endif
    document = document_of(&chat);
    assert_int_equal(program_end(&chat), 0);
    turns = json_object_get(document, "turns");
    assert_int_equal(json_array_size(turns), 4);
    assert_string_equal(user_of(turns, 0), "a quire");
    assert_string_equal(user_of(turns, 1), "a quire");
    assert_string_equal(user_of(turns, 2), "one\ntwo\n\nthree");
    assert_string_equal(user_of(turns, 3), "bound \nin leather");
    json_decref(document);
}

/* ---- commands ---- */

static json_int_t prompt_of(const json_t *turns, size_t i)
{
    return json_integer_value(json_object_get(json_array_get(turns, i), "prompt_tokens"));
}

static void commands_do_what_help_says(void **state)
{
    static const char *const said[] = {
        "the last turn is taken back; 0 messages are left",
        "there is no turn to take back",
        "there is no turn to repeat",
        "the conversation is empty now, with this system message",
        "the chat template has no switch for thinking",
        "/reset takes no words behind it",
        "of 512 tokens of context in use, 3 messages",
        "/system [TEXT]   begin anew",
        "the conversation is empty now, without a system message",
        "the conversation is empty now\n",
        "unknown command /nothinglikeit: /help lists the commands, a blank before '/' sends the",
    };
    program_result result = program_run_with(
        "a quire\n/retry\n/undo\n/undo\n/retry\n/system be brief\na quire\n/think on\n/reset now\n"
        "/status\n/help\n/system\n /help\n/reset\n/nothinglikeit\n",
        PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-n", "2", "--temp",
                "0", "--json"));
    json_t *document = json_loads(result.out, 0, NULL);
    json_t *turns = json_object_get(document, "turns");

    (void)state;
    assert_int_equal(result.exit_status, 0);
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        assert_says(result.err, said[i]);
    }
    assert_int_equal(json_array_size(turns), 4);
    assert_string_equal(user_of(turns, 1), "a quire");
    assert_int_equal(prompt_of(turns, 1), prompt_of(turns, 0)); /* repeated, not appended */
    assert_true(prompt_of(turns, 2) > prompt_of(turns, 0));     /* by the system message */
    assert_string_equal(user_of(turns, 3), " /help");
    json_decref(document);
    program_free(&result);
}

/* A text in UTF-16: its messages would be cut at the first letter. */
static void nul_bytes_are_refused(void **state)
{
    static const char lines[] = "a\0 \0q\0\n\0a quire\n";
    program_result result = program_run_with_bytes(
        lines, sizeof lines - 1,
        PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-n", "2", "--json"));
    json_t *document = json_loads(result.out, 0, NULL);
    json_t *turns = json_object_get(document, "turns");

    (void)state;
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "the message holds a NUL byte and is not sent");
    assert_int_equal(json_array_size(turns), 0);
    json_decref(document);
    program_free(&result);
}

#if QUIRE_HAS_JINJA
/* Thoughts can be switched off, and a question behind a "first" cannot be answered with them. */
static const char *thinking_template(void)
{
    static const char text[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}<|im_end|>\n"
        "{% if m.content == 'first' and enable_thinking is defined and not enable_thinking %}"
        "{{ raise_exception('no answer without thoughts') }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}";

    return program_file("thinking.jinja", text, strlen(text));
}

static program_result chat_of(const char *lines)
{
    return program_run_with(lines,
                            PROGRAM("chat", program_model(), "--chat-template-file",
                                    thinking_template(), "-n", "2", "--temp", "0", "--json"));
}

static void thoughts_are_switched(void **state)
{
    program_result result = chat_of("a quire\n/think off\n/reset\na quire\n/think on\n/reset\n"
                                    "a quire\n/think hard\n/think\n");
    json_t *document = json_loads(result.out, 0, NULL);
    const json_t *turns = json_object_get(document, "turns");
    const char *unknown = strstr(result.err, "/think takes on or off");

    (void)state;
    assert_int_equal(result.exit_status, 0);
    assert_says(result.err, "thinking is off from the next answer on");
    assert_says(result.err, "thinking is on from the next answer on");
    assert_says(unknown, "on or off");
    assert_says(unknown + 1, "/think takes on or off");
    assert_int_equal(json_array_size(turns), 3);
    assert_true(prompt_of(turns, 1) > prompt_of(turns, 0)); /* the thoughts' end as well */
    assert_int_equal(prompt_of(turns, 2), prompt_of(turns, 0));
    json_decref(document);
    program_free(&result);
}

/* The turn stays, so that it can be answered after all, and a script learns of the failure. */
static void a_failed_retry_keeps_the_turn(void **state)
{
    program_result result =
        chat_of("first\n/think off\n/retry\n/status\n/think on\n/retry\n/undo\n");
    json_t *document = json_loads(result.out, 0, NULL);
    const json_t *turns = json_object_get(document, "turns");

    (void)state;
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "no answer without thoughts");
    assert_says(result.err, "context in use, 2 messages");
    assert_says(result.err, "the last turn is taken back; 0 messages are left");
    assert_int_equal(json_array_size(turns), 2);
    assert_string_equal(user_of(turns, 1), "first");
    assert_int_equal(prompt_of(turns, 1), prompt_of(turns, 0));
    json_decref(document);
    program_free(&result);
}
#endif

/* ---- chat-template check ---- */

static void wrong_words_are_refused(void **state)
{
    program_result none = program_expect(2, PROGRAM("chat-template"));
    program_result other = program_expect(2, PROGRAM("chat-template", "lint"));
    program_result without = program_expect(1, PROGRAM("chat-template", "check", program_model()));

    (void)state;
    assert_says(none.err, "check");
    assert_says(other.err, "check");
    assert_says(without.err, "has no chat template");
    program_free(&none);
    program_free(&other);
    program_free(&without);
}

static void a_built_in_template_keeps_its_turns(void **state)
{
    program_result result = program_expect(
        0, PROGRAM("chat-template", "check", program_model(), "--chat-template", "chatml"));

    (void)state;
    assert_says(result.out, "keeps    answer, when the next question comes\n");
    assert_says(result.out, "keeps    earlier answers, when one more turn comes\n");
    assert_says(result.out, "none     tools: the template has no such thing\n");
    program_free(&result);
}

#if QUIRE_HAS_JINJA
static const json_t *turn_named(const json_t *document, const char *name)
{
    const json_t *turns = json_object_get(document, "turns");

    for (size_t i = 0; i < json_array_size(turns); i++) {
        const json_t *turn = json_array_get(turns, i);

        if (strcmp(json_string_value(json_object_get(turn, "turn")), name) == 0) {
            return turn;
        }
    }
    fail_msg("no turn '%s'", name);
    return NULL;
}

/* Only the last message is marked: each answer is written anew when the next message comes. */
static void a_turn_that_breaks_is_shown(void **state)
{
    static const char chat[] = "{{ strftime_now('%Y') }}{% for m in messages %}[{{ m.role }}]"
                               "{{ m.content }}{% if loop.last %} (last){% endif %}{% endfor %}";
    const char *file = program_file("last.jinja", chat, strlen(chat));
    json_t *document = program_json(
        PROGRAM("chat-template", "check", program_model(), "--chat-template-file", file, "--json"));
    const json_t *turn = turn_named(document, "answer");
    program_result text = program_expect(
        0, PROGRAM("chat-template", "check", program_model(), "--chat-template-file", file));

    (void)state;
    assert_string_equal(json_string_value(json_object_get(turn, "verdict")), "breaks");
    assert_string_equal(json_string_value(json_object_get(turn, "was")), " (last)");
    assert_int_equal(json_integer_value(json_object_get(turn, "bytes_kept")) + 7,
                     json_integer_value(json_object_get(turn, "bytes")));
    assert_true(json_is_true(json_object_get(document, "has_date")));
    assert_says(text.out, "breaks   answer, when the next question comes: ");
    assert_says(text.out, "date     the template can write the date");
    json_decref(document);
    program_free(&text);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_edited_and_pasted),
        cmocka_unit_test(commands_do_what_help_says),
        cmocka_unit_test(nul_bytes_are_refused),
#if QUIRE_HAS_JINJA
        cmocka_unit_test(thoughts_are_switched),
        cmocka_unit_test(a_failed_retry_keeps_the_turn),
#endif
        cmocka_unit_test(wrong_words_are_refused),
        cmocka_unit_test(a_built_in_template_keeps_its_turns),
#if QUIRE_HAS_JINJA
        cmocka_unit_test(a_turn_that_breaks_is_shown),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
