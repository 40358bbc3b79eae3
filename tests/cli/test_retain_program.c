/* test_retain_program.c - --retain of quire run and quire perplexity, end to end.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_file(void)
{
    static char text[4000];

    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = "the quire keeps what it needs. "[i * 7 % 31];
    }
    return program_file("retain.txt", text, sizeof text);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value)) {
        fail_msg("no number '%s'", key);
    }
    return json_number_value(value);
}

/* All tokens kept: the figures of a run without. A share: less memory, and the base keeps all. */
static void perplexity_with_a_share(void **state)
{
    const char *text = text_file();
    json_t *full = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                        "512", "--chunks", "2", "--json"));
    json_t *all = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "512",
                                       "--chunks", "2", "--retain", "window:1", "--prefill-chunk",
                                       "128", "--json"));
    json_t *some = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                        "512", "--chunks", "2", "--retain", "snap:0.25,recent=16",
                                        "--prefill-chunk", "128", "--kld", "--json"));
    const json_t *kv = json_object_get(some, "kv");
    const json_t *retained = json_object_get(kv, "retained");

    (void)state;
    assert_null(json_object_get(json_object_get(full, "kv"), "retained"));
    assert_true(number(full, "ppl") == number(all, "ppl"));
    assert_true(number(json_object_get(some, "base"), "ppl") == number(full, "ppl"));
    assert_true(number(some, "ppl") != number(full, "ppl"));
    assert_true(number(retained, "generations") == 3);
    assert_true(number(retained, "peak_bytes") == number(kv, "live_peak_bytes"));
    assert_true(number(retained, "peak_bytes") <=
                number(json_object_get(full, "kv"), "live_peak_bytes") / 8 * 5);
    assert_true(number(retained, "share") < 0.5);
    assert_true(strncmp(json_string_value(json_object_get(retained, "policy")), "snap:0.25,sinks=4",
                        17) == 0);
    json_decref(some);
    json_decref(all);
    json_decref(full);
}

static void run_with_a_share(void **state)
{
    const char *text = text_file();
    program_result result = program_expect(
        0, PROGRAM("run", "-m", program_model_deep(), "-f", text, "-n", "20", "--temp", "0",
                   "--ignore-eos", "--retain", "entropy:0.4,recent=64", "--prefill-chunk", "256"));

    (void)state;
    assert_says(result.err, " tokens by entropy:0.4,sinks=4,recent=64,");
    assert_says(result.err, "KV at most ");
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
    refuse(2, "--retain snapp: there is no retention policy \"snapp\"",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snapp"));
    refuse(2, "a share of \"0\"", PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap:0"));
    refuse(2, "give --retain too",
           PROGRAM("run", "-m", model, "-p", "a", "--prefill-chunk", "512"));
    refuse(2, "--retain and --cache-dir",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--cache-dir", "x"));
    refuse(2, "--retain and --kv-history",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv-history", "x"));
    refuse(2, "instead of --kv auto",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv", "auto"));
    refuse(2, "instead of --kv-layers",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv-layers", "*=q8"));
    refuse(1, "tokens in q4 cannot leave their tile",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv", "q4"));
    refuse(1, "layers kept whole",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "entropy:0.1"));
    refuse(1, "K or V that it does not store",
           PROGRAM("run", "-m", program_model_shared(), "-p", "a", "--retain", "snap"));
    refuse(2, "'quire run' and 'quire perplexity' can drop tokens",
           PROGRAM("serve", "-m", model, "--retain", "snap"));
    refuse(2, "'quire run' and 'quire perplexity' can drop tokens",
           PROGRAM("chat", "-m", model, "--retain", "snap"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perplexity_with_a_share),
        cmocka_unit_test(run_with_a_share),
        cmocka_unit_test(bad_combinations),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
