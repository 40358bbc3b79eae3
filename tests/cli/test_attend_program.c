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
        cmocka_unit_test(pages_that_matter),
        cmocka_unit_test(reading_is_not_condensing),

        cmocka_unit_test(bad_combinations),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
