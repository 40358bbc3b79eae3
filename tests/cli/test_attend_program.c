/* test_attend_program.c - --attend of quire run, chat and serve, end to end.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "retained.h"

#include <stdio.h>
#include <string.h>

/* --attend drops nothing, and generated tokens read a share of the pages. The last token of a
 * prompt reads all pages, also where it has a step of its own. */
static void pages_that_matter(void **state)
{
    const char *text = text_file();
    const char *model = program_model_deep();
    json_t *all = program_json(PROGRAM("run", "-m", model, "-f", text, "-n", "20", "--temp", "0",
                                       "--ignore-eos", "--json"));
    json_t *one = program_json(PROGRAM("run", "-m", model, "-f", text, "-n", "20", "--temp", "0",
                                       "--ignore-eos", "--attend", "top:1", "--json"));
    json_t *some = program_json(PROGRAM("run", "-m", model, "-f", text, "-n", "20", "--temp", "0",
                                        "--ignore-eos", "--attend", "top:0.25", "--json"));
    const json_t *retained = retained_of(some);
    char batch[16];
    json_t *apart;

    (void)state;
    (void)snprintf(batch, sizeof batch, "%.0f", number(some, "prompt_tokens") - 1);
    apart = program_json(PROGRAM("run", "-m", model, "-f", text, "-n", "20", "--temp", "0", "-b",
                                 batch, "--ignore-eos", "--attend", "top:0.25", "--json"));
    assert_true(json_equal(retained_of(apart), retained));
    assert_true(json_equal(json_object_get(apart, "text"), json_object_get(some, "text")));
    json_decref(apart);
    assert_true(json_equal(json_object_get(all, "text"), json_object_get(one, "text")));
    assert_true(number(retained_of(one), "read_share") == 1);
    assert_true(number(retained, "share") == 1);
    assert_true(number(retained, "read_share") < 0.3);
    assert_true(number(some, "output_tokens") == 20);
    json_decref(some);
    json_decref(one);
    json_decref(all);
}

/* A text that is only read in part is not condensed, and no message says so. */
static void reading_is_not_condensing(void **state)
{
    program_result result =
        program_expect(0, PROGRAM("run", "-m", program_model_deep(), "-p", "a short text", "-n",
                                  "4", "--ignore-eos", "--attend", "top:0.25"));

    (void)state;
    assert_says(result.err, " tokens are kept; KV at most ");
    assert_null(strstr(result.err, "condensed"));
    assert_null(strstr(result.err, "window"));
    program_free(&result);
}

/* Layers with windows read them; the others choose. */
static void windows_are_read(void **state)
{
    const char *const formats[] = { "f16", "q4" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
#define SLIDING(...)                                                                               \
    PROGRAM("run", "-m", program_model_sliding(), "-f", text_file(), "-c", "4096", "-n", "20",     \
            "--temp", "0", "--ignore-eos", "--json", "--kv", formats[i], __VA_ARGS__)
        json_t *all = program_json(SLIDING("--kv-recent", "64"));
        json_t *one = program_json(SLIDING("--kv-recent", "64", "--attend", "top:1"));
        json_t *some = program_json(SLIDING("--kv-recent", "64", "--attend", "top:0.25"));

        assert_same_text(one, all);
        assert_true(number(retained_of(some), "share") == 1);
        assert_true(number(retained_of(some), "read_share") < 0.3);
        assert_true(number(retained_of(some), "peak_bytes") ==
                    number(retained_of(one), "peak_bytes"));
        json_decref(some);
        json_decref(one);
        json_decref(all);
    }
}

#define RUN(format, ...)                                                                           \
    PROGRAM("run", "-m", program_model_deep(), "-f", text_file(), "-n", "20", "--temp", "0",       \
            "--ignore-eos", "--json", "--kv", format, __VA_ARGS__)

/* Formats that are coded by 64 tokens: a share that leaves no page out gives the text of a run
 * without, and pages take as much less memory as the format says. */
static void run_in_few_bits(void **state)
{
    static const char *const formats[] = { "q6", "q3", "q8:q4" };
    json_t *half = program_json(RUN("f16", "--attend", "top:0.25"));

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        json_t *all = program_json(RUN(formats[i], "--kv-recent", "64"));
        json_t *one = program_json(RUN(formats[i], "--kv-recent", "64", "--attend", "top:1"));
        json_t *some = program_json(RUN(formats[i], "--kv-recent", "64", "--attend", "top:0.25"));
        const json_t *retained = retained_of(some);

        assert_same_text(one, all);
        assert_true(number(some, "output_tokens") == 20);
        assert_true(number(retained, "share") == 1);
        assert_true(number(retained, "read_share") < 0.3);
        assert_true(number(retained, "peak_bytes") <= number(retained, "budget_bytes"));
        assert_true(number(retained, "peak_bytes") < 0.7 * number(retained_of(half), "peak_bytes"));
        json_decref(some);
        json_decref(one);
        json_decref(all);
    }
    json_decref(half);
}

/* A conversation with 40 tokens an answer, in four bits; attend NULL: without. */
static json_t *chat_of(const char *attend)
{
    program_result result = program_run_with(
        "abc\ndef\nghi\n/undo\n/undo\njkl\n/retry\nmno\n",
        PROGRAM("chat", "-m", program_model_deep(), "--chat-template", "chatml", "-c", "1024", "-n",
                "40", "--temp", "0", "--ignore-eos", "--json", "--kv", "q4", "--kv-recent", "64",
                attend != NULL ? "--attend" : NULL, attend));
    json_t *document = json_loads(result.out, 0, NULL);

    if (result.exit_status != 0 || document == NULL) {
        fail_msg("%d: %s", result.exit_status, result.err);
    }
    program_free(&result);
    return document;
}

/* Also behind cuts: where the 8-bit form of the last tile is gone, tokens are computed again. */
static void chat_in_four_bits(void **state)
{
    json_t *all = chat_of(NULL), *one = chat_of("top:1");
    const json_t *turns = json_object_get(all, "turns");
    size_t i;
    const json_t *turn;

    (void)state;
    assert_int_equal(json_array_size(turns), 6);
    json_array_foreach(turns, i, turn)
    {
        const json_t *other = json_array_get(json_object_get(one, "turns"), i);

        assert_true(
            json_equal(json_object_get(other, "assistant"), json_object_get(turn, "assistant")));
        assert_true(number(other, "reused_tokens") == number(turn, "reused_tokens"));
    }
    json_decref(one);
    json_decref(all);
}

static void bad_combinations(void **state)
{
    const char *model = program_model();

    (void)state;
    refuse(2, "--attend bottom: top:SHARE is wanted",
           PROGRAM("run", "-m", model, "-p", "a", "--attend", "bottom"));
    refuse(2, "--attend top:0: top:SHARE is wanted",
           PROGRAM("run", "-m", model, "-p", "a", "--attend", "top:0"));
    refuse(2, "--attend and --cache-dir",
           PROGRAM("run", "-m", model, "-p", "a", "--attend", "top:0.5", "--cache-dir", "x"));
    refuse(1, "K or V that it does not store",
           PROGRAM("run", "-m", program_model_shared(), "-p", "a", "--attend", "top:0.5"));
    refuse(2, "--attend bottom: top:SHARE is wanted",
           PROGRAM("serve", "-m", model, "--port", "0", "--attend", "bottom"));
    refuse(
        2, "--attend and --retain",
        PROGRAM("serve", "-m", model, "--port", "0", "--attend", "top:0.5", "--retain", "keydiff"));
    refuse(1, "layers share K and V",
           PROGRAM("serve", "-m", program_model_shared(), "--port", "0", "--attend", "top:0.5"));
    refuse(2, "--context-overflow condense and --attend",
           PROGRAM("chat", "-m", model, "--attend", "top:0.5", "--context-overflow", "condense"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_matter), cmocka_unit_test(reading_is_not_condensing),
        cmocka_unit_test(windows_are_read),  cmocka_unit_test(run_in_few_bits),
        cmocka_unit_test(chat_in_four_bits), cmocka_unit_test(bad_combinations),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
