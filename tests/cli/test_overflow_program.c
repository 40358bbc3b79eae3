/* test_overflow_program.c - --context-overflow of quire run and quire chat: texts longer than their
 * context.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <stdlib.h>
#include <string.h>

static int64_t count(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        fail_msg("no count '%s'", key);
    }
    return json_integer_value(value);
}

static json_t *write_on(const char *overflow, const char *kv)
{
    return program_json(PROGRAM("run", "-m", program_model(), "-p", "abc", "-c", "384", "-n", "700",
                                "--temp", "0", "--ignore-eos", "--context-overflow", overflow,
                                "--kv", kv, "--json"));
}

static void texts_go_on(void **state)
{
    static const char *const cases[][2] = { { "shift", "f16" },   { "shift", "q8" },
                                            { "shift", "q6:q3" }, { "shift", "f16:q4" },
                                            { "sinks", "f16" },   { "sinks", "f32" },
                                            { "sinks", "f16:q4" } };
    json_t *refused = write_on("refuse", "f16");

    (void)state;
    assert_string_equal(json_string_value(json_object_get(refused, "stop")), "context");
    assert_int_equal(count(refused, "dropped_tokens"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *longer = write_on(cases[i][0], cases[i][1]);
        const int64_t dropped = count(longer, "dropped_tokens");
        const int64_t n = count(longer, "prompt_tokens") + count(longer, "output_tokens") - 1;

        assert_string_equal(json_string_value(json_object_get(longer, "stop")), "limit");
        assert_int_equal(count(longer, "output_tokens"), 700);
        assert_int_equal(dropped % 64, 0);
        assert_true(n - dropped <= 384);
        /* Half of the tokens behind the first 64 go at once, or 64. */
        assert_true(n - dropped > (i < 4 ? 384 - 192 : 384 - 64));
        json_decref(longer);
    }
    json_decref(refused);
}

/* Up to the end of the context all is as without. */
static void same_text_before(void **state)
{
    json_t *refused = write_on("refuse", "f16");
    json_t *longer = write_on("shift", "f16");
    const char *a = json_string_value(json_object_get(refused, "text"));
    const char *b = json_string_value(json_object_get(longer, "text"));

    (void)state;
    if (a != NULL && b != NULL) { /* random bytes may be no UTF-8 */
        assert_true(strncmp(a, b, strlen(a)) == 0);
    }
    json_decref(longer);
    json_decref(refused);
}

/* Twice and more, by the default policy and by another. */
static void contexts_are_condensed(void **state)
{
    static const char *const policies[] = { "keydiff:0.5", "window:0.25" };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        json_t *longer = program_json(PROGRAM(
            "run", "-m", program_model(), "-p", "abc", "-c", "384", "-n", "700", "--temp", "0",
            "--ignore-eos", "--context-overflow", "condense", "--retain", policies[i], "--json"));
        const int64_t dropped = count(longer, "dropped_tokens");
        const int64_t n = count(longer, "prompt_tokens") + count(longer, "output_tokens") - 1;

        assert_int_equal(count(longer, "output_tokens"), 700);
        assert_true(count(longer, "condensings") > 1);
        assert_int_equal(dropped % 64, 0);
        assert_true(n - dropped <= 384);
        json_decref(longer);
    }
}

/* A prompt of more tokens than the context: they leave while it is read. */
static void prompts_go_on(void **state)
{
    static const char *const overflows[] = { "shift", "sinks", "condense" };
    char text[1500];

    (void)state;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof text; i += 7) {
        text[i] = (char)('b' + i % 23);
    }
    text[sizeof text - 1] = '\0';
    for (size_t i = 0; i < sizeof overflows / sizeof overflows[0]; i++) {
        json_t *run = program_json(PROGRAM("run", "-m", program_model(), "-p", text, "-c", "384",
                                           "-n", "20", "--temp", "0", "--ignore-eos",
                                           "--context-overflow", overflows[i], "--json"));
        const int64_t n = count(run, "prompt_tokens") + count(run, "output_tokens") - 1;

        assert_true(count(run, "prompt_tokens") > 384);
        assert_int_equal(count(run, "output_tokens"), 20);
        assert_true(n - count(run, "dropped_tokens") <= 384);
        json_decref(run);
    }
}

#define CHAT(lines, overflow, kv)                                                                  \
    chat_of(lines,                                                                                 \
            PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c", "384", "-n", \
                    "150", "--temp", "0", "--ignore-eos", "--context-overflow", overflow, "--kv",  \
                    kv, "--kv-recent", "0", "--json"))

static json_t *chat_of(const char *lines, program_args args)
{
    program_result result = program_run_with(lines, args);
    json_t *document = json_loads(result.out, 0, NULL);

    if (result.exit_status != 0 || document == NULL) {
        fail_msg("%d: %s", result.exit_status, result.err);
    }
    program_free(&result);
    return document;
}

static int64_t turn_count(const json_t *chat, size_t i, const char *key)
{
    return count(json_array_get(json_object_get(chat, "turns"), i), key);
}

/* Tokens of the conversation up to turn i that left the context. */
static int64_t dropped_until(const json_t *chat, size_t i)
{
    int64_t n = 0;

    for (size_t k = 0; k <= i; k++) {
        n += turn_count(chat, k, "dropped_tokens");
    }
    return n;
}

/* Turns go on beyond the context. A repeated chat and a chat that begins anew give the same answer
 * (test_writer.c counts the tokens computed again). */
static void chats_go_on(void **state)
{
    static const char *const cases[][2] = {
        { "shift", "f16" }, { "sinks", "f16" }, { "condense", "f16" }, { "shift", "q4" }
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *chat = CHAT("abc\ndef\nghi\njkl\n/retry\n/reset\nabc\n", cases[i][0], cases[i][1]);
        const json_t *turns = json_object_get(chat, "turns");

        assert_int_equal(json_array_size(turns), 6);
        for (size_t t = 0; t < 6; t++) {
            assert_int_equal(turn_count(chat, t, "output_tokens"), 150);
            assert_string_equal(
                json_string_value(json_object_get(json_array_get(turns, t), "stop")), "limit");
        }
        assert_int_equal(turn_count(chat, 0, "dropped_tokens"), 0);
        assert_true(turn_count(chat, 3, "prompt_tokens") > 384);
        assert_true(dropped_until(chat, 3) >= turn_count(chat, 3, "prompt_tokens") + 150 - 1 - 384);
        assert_int_equal(turn_count(chat, 3, "condensings") > 0, i == 2);
        assert_int_equal(turn_count(chat, 4, "prompt_tokens"),
                         turn_count(chat, 3, "prompt_tokens"));
        assert_true(json_equal(json_object_get(json_array_get(turns, 4), "assistant"),
                               json_object_get(json_array_get(turns, 3), "assistant")));
        assert_true(json_equal(json_object_get(json_array_get(turns, 5), "assistant"),
                               json_object_get(json_array_get(turns, 0), "assistant")));
        json_decref(chat);
    }
}

/* Turns that do not fit leave the prompt for good, the system message stays, and a prompt has room
 * for its answer. */
static void oldest_turns_leave(void **state)
{
    json_t *chat = chat_of("abc\ndef\nghi\njkl\n/retry\n",
                           PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c",
                                   "384", "-n", "90", "--temp", "0", "--ignore-eos", "--system",
                                   "be brief", "--context-overflow", "truncate_turns", "--json"));
    int64_t n_left = 0;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(chat, "turns")), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(turn_count(chat, i, "output_tokens"), 90);
        assert_int_equal(turn_count(chat, i, "dropped_tokens"), 0);
        assert_true(turn_count(chat, i, "prompt_tokens") <= 384 - 90);
        assert_int_equal(turn_count(chat, i, "dropped_messages") % 2, 0); /* whole turns */
        assert_true(turn_count(chat, i, "dropped_messages") >= n_left);
        n_left = turn_count(chat, i, "dropped_messages");
    }
    assert_true(n_left > 0);
    /* The same prompt again: only its last token is computed. */
    assert_true(turn_count(chat, 4, "reused_tokens") >= turn_count(chat, 4, "prompt_tokens") - 1);
    json_decref(chat);
}

/* A turn that would not fit by itself is refused, and changes nothing: neither the messages, nor
 * which of them left, nor the tokens that stay. */
static void long_turns_change_nothing(void **state)
{
    static const char *const same[] = { "prompt_tokens", "reused_tokens", "dropped_messages",
                                        "assistant" };
    const char *const before = "abc\ndef\nghi\njkl\n";
    const size_t n_before = strlen(before);
    const program_args args =
        PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c", "384", "-n", "90",
                "--temp", "0", "--ignore-eos", "--context-overflow", "truncate_turns", "--json");
    char lines[700];
    program_result result;
    json_t *without, *with;

    (void)state;
    (void)snprintf(lines, sizeof lines, "%smno\n", before);
    without = chat_of(lines, args);
    memset(lines, 'x', sizeof lines);
    memcpy(lines, before, n_before);
    memcpy(lines + 620, "\nmno\n", 6);
    result = program_run_with(lines, args);
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "with 90 for the answer that is more than the context of 384");
    assert_says(result.err, "a smaller -n");
    with = json_loads(result.out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(with, "turns")), 5);
    assert_true(turn_count(without, 3, "dropped_messages") > 0);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_true(json_equal(
            json_object_get(json_array_get(json_object_get(with, "turns"), 4), same[i]),
            json_object_get(json_array_get(json_object_get(without, "turns"), 4), same[i])));
    }
    json_decref(without);
    json_decref(with);
    program_free(&result);
}

/* -n beyond the context leaves half of it to the prompt. */
static void answers_take_half_of_the_context(void **state)
{
    json_t *chat =
        chat_of("abc\ndef\n", PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml",
                                      "-c", "384", "-n", "384", "--temp", "0", "--ignore-eos",
                                      "--context-overflow", "truncate_turns", "--json"));

    (void)state;
    assert_int_equal(json_array_size(json_object_get(chat, "turns")), 2);
    assert_true(turn_count(chat, 0, "output_tokens") > 192);
    assert_int_equal(turn_count(chat, 1, "dropped_messages"), 2);
    assert_true(turn_count(chat, 1, "output_tokens") > 192);
    json_decref(chat);
}

/* The system message stays, or the program refuses one that is too long to stay. */
static void condensing_keeps_the_system_message(void **state)
{
    char system[230];
    program_result result;
    json_t *chat;

    (void)state;
    memset(system, 's', sizeof system);
    for (size_t i = 0; i < sizeof system; i += 3) {
        system[i] = (char)('a' + i % 13);
    }
    system[60] = '\0';
    chat = chat_of("abc\ndef\nghi\n",
                   PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c", "384",
                           "-n", "150", "--temp", "0", "--ignore-eos", "--context-overflow",
                           "condense", "--system", system, "--context-keep", "0", "--json"));
    assert_true(turn_count(chat, 2, "prompt_tokens") > 384);
    assert_true(dropped_until(chat, 2) > 0);
    json_decref(chat);
    /* With the policy of --retain fewer tokens stay. */
    chat = chat_of("abc\ndef\nghi\n",
                   PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c", "384",
                           "-n", "150", "--temp", "0", "--ignore-eos", "--context-overflow",
                           "condense", "--retain", "window:0.1", "--json"));
    assert_true(turn_count(chat, 2, "condensings") > 0);
    json_decref(chat);
    system[60] = 's';
    system[sizeof system - 1] = '\0';
    result = program_run_with("abc\n", PROGRAM("chat", "-m", program_model(), "--chat-template",
                                               "chatml", "-c", "384", "--context-overflow",
                                               "condense", "--system", system));
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "tokens kept needs a context of at least");
    program_free(&result);
}

/* Without it the message is refused, as before. */
static void chats_end_by_default(void **state)
{
    program_result result = program_run_with(
        "abc\ndef\nghi\n", PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c",
                                   "384", "-n", "150", "--temp", "0", "--ignore-eos"));

    (void)state;
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "--context-overflow goes on");
    program_free(&result);
}

static void refuse(int status, const char *says, program_args args)
{
    program_result result = program_expect(status, args);

    assert_says(result.err, says);
    program_free(&result);
}

static void bad_combinations(void **state)
{
    const char *model = program_model();

    (void)state;
    refuse(
        2, "--context-overflow shift and --retain",
        PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "shift", "--retain", "snap"));
    refuse(
        2, "--context-overflow sinks and --cache-dir",
        PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "sinks", "--cache-dir", "x"));
    refuse(1, "sinks turns K every 64 tokens: in q4 each time adds an error",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "sinks", "--kv", "q4:f16"));
    refuse(
        1, "condense keeps single tokens: V in q4 is coded by 64",
        PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "condense", "--kv", "f16:q4"));
    refuse(1,
           "--context-overflow shift works with models whose layers see the whole text and turn "
           "K alike",
           PROGRAM("run", "-m", program_model_latent(), "-p", "a", "--context-overflow", "shift"));
    refuse(1, "in q8 each time adds an error",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "sinks", "--kv", "q8"));
    refuse(1, "with 128 tokens kept needs a context of at least 384 tokens",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "shift", "--context-keep",
                   "65", "-c", "320"));
    refuse(2, "compress", PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "compress"));
    refuse(2, "--context-overflow condense by snap needs more than keys and positions",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "condense", "--retain",
                   "snap"));
    refuse(2, "--context-overflow condense and --attend",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "condense", "--attend",
                   "top:0.5"));
    refuse(2, "--context-overflow condense and --save-block-state",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "condense", "--retain",
                   "keydiff", "--save-block-state", "x"));
    refuse(1, "condense turns K again and again: in q8 each time adds an error",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "condense", "--kv", "q8"));
    refuse(1, "condense with 64 first tokens kept and the last 300 (recent of keydiff)",
           PROGRAM("run", "-m", model, "-p", "a", "-c", "384", "--context-overflow", "condense",
                   "--retain", "keydiff,recent=300"));
    refuse(2, "--context-overflow condense by snap needs more than keys",
           PROGRAM("chat", "-m", model, "--context-overflow", "condense", "--retain", "snap"));
    refuse(2, "--context-overflow truncate_turns and --retain",
           PROGRAM("chat", "-m", model, "--context-overflow", "truncate_turns", "--retain",
                   "keydiff"));
    refuse(2, "--context-overflow truncate_turns and --context-keep",
           PROGRAM("chat", "-m", model, "--context-overflow", "truncate_turns", "--context-keep",
                   "64"));
    refuse(2, "truncate_turns", /* a text has no turns */
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "truncate_turns"));
    refuse(2, "--context-overflow shift and --cache-dir",
           PROGRAM("chat", "-m", model, "--context-overflow", "shift", "--cache-dir", "x"));
    refuse(1, "condense turns K again and again: in q4 each time adds an error",
           PROGRAM("chat", "-m", model, "--chat-template", "chatml", "--context-overflow",
                   "condense", "--kv", "q4"));
    refuse(1, "with 128 tokens kept needs a context of at least 384 tokens",
           PROGRAM("chat", "-m", model, "--chat-template", "chatml", "--context-overflow", "shift",
                   "--context-keep", "65", "-c", "320"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_go_on),
        cmocka_unit_test(same_text_before),
        cmocka_unit_test(contexts_are_condensed),
        cmocka_unit_test(prompts_go_on),
        cmocka_unit_test(chats_go_on),
        cmocka_unit_test(oldest_turns_leave),
        cmocka_unit_test(long_turns_change_nothing),
        cmocka_unit_test(answers_take_half_of_the_context),
        cmocka_unit_test(condensing_keeps_the_system_message),
        cmocka_unit_test(chats_end_by_default),
        cmocka_unit_test(bad_combinations),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
