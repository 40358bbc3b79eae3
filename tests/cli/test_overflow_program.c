/* test_overflow_program.c - --context-overflow of quire run: texts longer than their context.
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
    static const char *const cases[][2] = {
        { "shift", "f16" }, { "shift", "q8" }, { "sinks", "f16" }, { "sinks", "f32" }
    };
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
        assert_true(n - dropped > (i < 2 ? 384 - 192 : 384 - 64));
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
    refuse(1, "--context-overflow shift works with KV in f32, f16, bf16 and q8",
           PROGRAM("run", "-m", model, "-p", "a", "--context-overflow", "shift", "--kv", "q4"));
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_go_on),
        cmocka_unit_test(same_text_before),
        cmocka_unit_test(contexts_are_condensed),
        cmocka_unit_test(bad_combinations),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
