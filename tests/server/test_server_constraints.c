/* test_server_constraints.c - the fields that constrain an answer, by their names in several
 * servers: the grammar that the engine gets, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include <stdio.h>
#include <string.h>

static server_fixture f;

static int start(void **state)
{
    (void)state;
    server_fixture_start(&f, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

static json_t *ask(const char *fields, int status)
{
    char body[1024];

    (void)snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", fields);
    return http_post_json(f.port, TEXT, body, status);
}

static void expect_grammar(const char *fields, const char *part)
{
    engine_seen seen;

    json_decref(ask(fields, 200));
    seen = engine_double_seen(f.engine);
    if (part == NULL ? seen.grammar[0] != '\0' : strstr(seen.grammar, part) == NULL) {
        fail_msg("%s: no \"%s\" in\n%s", fields, part != NULL ? part : "", seen.grammar);
    }
}

static void schemas_have_several_names(void **state)
{
    static const char *const fields[] = {
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%s}}",
        "\"response_format\":{\"type\":\"json_schema\",\"schema\":%s}",
        "\"response_format\":{\"type\":\"json_object\",\"schema\":%s}",
        "\"json_schema\":%s",
        "\"guided_json\":%s",
        "\"structured_outputs\":{\"json\":%s}",
    };
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        (void)snprintf(text, sizeof text, fields[i], "{\"const\":\"only\"}");
        expect_grammar(text, "only");
    }
    expect_grammar("\"guided_json\":\"{\\\"const\\\":\\\"only\\\"}\"", "only");
    expect_grammar("\"json_schema\":{}", "root ::= s-0");
}

static void other_constraints(void **state)
{
    (void)state;
    expect_grammar("\"guided_regex\":\"a|b+\"", "root ::= ([a] \"\" | [b]{1,} \"\")");
    expect_grammar("\"regex\":\"^[0-9]$\"", "[0-9]");
    expect_grammar("\"structured_outputs\":{\"regex\":\"x\"}", "[x]");
    expect_grammar("\"guided_choice\":[\"yes\",\"n\\\"o\\n\"]", "root ::= \"yes\" | \"n\\\"o\\n\"");
    expect_grammar("\"structured_outputs\":{\"choice\":[\"yes\"]}", "\"yes\"");
    expect_grammar("\"structured_outputs\":{\"json_object\":true}", "root ::= object");
    expect_grammar("\"guided_json_object\":true", "root ::= object");
    expect_grammar("\"response_format\":{\"type\":\"json_object\"}", "root ::= object");
}

static void nothing_is_asked_for(void **state)
{
    (void)state;
    expect_grammar("\"response_format\":{\"type\":\"text\"}", NULL);
    expect_grammar("\"json_schema\":false,\"guided_json\":\"\",\"guided_regex\":\"\","
                   "\"guided_choice\":[],\"structured_outputs\":{},\"guided_json_object\":false",
                   NULL);
    expect_grammar("\"response_format\":{\"type\":\"text\",\"json_schema\":null},"
                   "\"structured_outputs\":{\"disable_fallback\":true,\"jsn\":null}",
                   NULL);
}

static void wrong_ones_are_named(void **state)
{
    static const char *const cases[][2] = {
        { "\"grammar\":\"root ::= [a]\",\"guided_regex\":\"a\"", "guided_regex: not together with "
                                                                 "grammar" },
        { "\"json_schema\":{},\"guided_json\":{}", "guided_json: not together with json_schema" },
        { "\"structured_outputs\":{\"regex\":\"a\",\"json\":{}}",
          "structured_outputs.regex: not together with json" },
        { "\"guided_json\":\"{\"", "guided_json: the text is no JSON schema" },
        { "\"guided_json\":{\"not\":{}}", "guided_json: json_schema, #: not supported" },
        { "\"guided_regex\":\"(a\"", "guided_regex: no ) ends \"(a\"" },
        { "\"guided_regex\":3", "guided_regex: expected a string" },
        { "\"guided_choice\":[1]", "guided_choice: element 0" },
        { "\"guided_choice\":[\"\"]", "guided_choice: element 0" },
        { "\"structured_outputs\":{\"grammar\":\"x\"}", "structured_outputs.grammar" },
        { "\"structured_outputs\":3", "structured_outputs: expected an object" },
        { "\"response_format\":{\"type\":\"text\",\"schema\":{}}", "response_format.schema" },
        { "\"response_format\":{\"type\":\"xml\"}", "response_format.type" },
        { "\"response_format\":{\"type\":\"json_object\",\"json_schema\":{\"schema\":{}}}",
          "response_format.json_schema: needs the type" },
        { "\"response_format\":{\"type\":\"text\",\"json_schema\":{}}",
          "response_format.json_schema: needs the type" },
        { "\"structured_outputs\":{\"jsn\":{}}", "structured_outputs.jsn: is no member" },
        { "\"guided_grammar\":\"x\"", "guided_grammar" },
        { "\"stop_token_ids\":[-1]", "stop_token_ids: element 0" },
        { "\"stop_token_ids\":[999999]", "stop_token_ids: element 0" },
        { "\"stop_token_ids\":7", "stop_token_ids: expected an array" },
        { "\"min_tokens\":5,\"max_tokens\":4", "min_tokens" },
        { "\"min_tokens\":-1", "min_tokens" },
        { "\"n_predict\":0", "n_predict" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = ask(cases[i][0], 400);

        if (strstr(json_string_at(root, "error.message"), cases[i][1]) == NULL) {
            fail_msg("%s: %s", cases[i][0], json_string_at(root, "error.message"));
        }
        json_decref(root);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

/* When the engine refuses a grammar, the error names the client's field. */
static void grammars_of_other_fields_are_named(void **state)
{
    static const char *const cases[][3] = {
        { "\"regex\":\"()*\"", "regex", "regex: its grammar: left" },
        { "\"structured_outputs\":{\"regex\":\"a\"}", "structured_outputs",
          "structured_outputs: its grammar: left" },
        { "\"response_format\":{\"type\":\"json_object\"}", "response_format",
          "response_format: its grammar: left" },
        { "\"grammar\":\"root ::= root\"", "grammar", "grammar: left" },
    };
    engine_script script = engine_script_hello;

    (void)state;
    script.submit_status = QUIRE_INVAL;
    script.submit_message = "grammar: left recursion";
    engine_double_script(f.engine, &script);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = ask(cases[i][0], 400);

        assert_string_equal(json_string_at(root, "error.param"), cases[i][1]);
        assert_non_null(strstr(json_string_at(root, "error.message"), cases[i][2]));
        json_decref(root);
    }
}

static void ends_reach_the_engine(void **state)
{
    engine_seen seen;

    (void)state;
    json_decref(
        ask("\"min_tokens\":3,\"stop_token_ids\":[5,6],\"n_predict\":9,\"max_tokens\":12", 200));
    seen = engine_double_seen(f.engine);
    assert_int_equal(seen.params.max_tokens, 9);
    assert_int_equal(seen.params.sampler.min_tokens, 3);
    assert_int_equal(seen.params.sampler.n_stop_tokens, 2);
    json_decref(ask("\"max_tokens\":-1,\"n_predict\":-1", 200));
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 0);
}

static uint32_t seed_of(const char *seed)
{
    char field[64];

    (void)snprintf(field, sizeof field, "\"seed\":%s", seed);
    json_decref(ask(field, 200));
    return engine_double_seen(f.engine).params.sampler.seed;
}

/* jansson takes integers of 64 bits with a sign. */
static void large_integers_are_numbers(void **state)
{
    static const char *const taken[] = {
        "\"guided_json\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}",
        "\"guided_json\":\"{\\\"minimum\\\":-18446744073709551615}\"",
        "\"guided_json\":{\"type\":\"integer\",\"const\":18446744073709551616}",
        "\"user\":\"\\\"9223372036854775808\",\"metadata\":{\"id\":[9223372036854775808]}",
        "\"metadata\":-9223372036854775809",
    };
    json_t *root;

    (void)state;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        json_decref(ask(taken[i], 200));
    }
    assert_int_equal(seed_of("18446744073709551615"), seed_of("18446744073709551615"));
    assert_int_not_equal(seed_of("18446744073709551615"), seed_of("9223372036854775808"));
    assert_int_equal(seed_of("9223372036854775807"), 0x80000000u);
    /* UINT32_MAX would be another seed each time. */
    assert_int_not_equal(seed_of("-4294967296"), UINT32_MAX);
    assert_int_not_equal(seed_of("4294967294,\"n\":2"), UINT32_MAX);
    assert_int_not_equal(seed_of("4294967295"), seed_of("4294967295"));
    root = ask("\"seed\":18446744073709560000", 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "seed: 1.844674407370956"));
    json_decref(root);
    root = ask("\"max_tokens\":9223372036854775808", 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "max_tokens: 9.22337203"));
    json_decref(root);
    root = ask("\"seed\":9223372036854775808,\"a\" 1", 400); /* the place is the client's */
    assert_non_null(strstr(json_string_at(root, "error.message"), "column 46:"));
    json_decref(root);
    json_decref(ask("\"metadata\":1e999", 400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(schemas_have_several_names, start, stop),
        cmocka_unit_test_setup_teardown(other_constraints, start, stop),
        cmocka_unit_test_setup_teardown(nothing_is_asked_for, start, stop),
        cmocka_unit_test_setup_teardown(wrong_ones_are_named, start, stop),
        cmocka_unit_test_setup_teardown(grammars_of_other_fields_are_named, start, stop),
        cmocka_unit_test_setup_teardown(ends_reach_the_engine, start, stop),
        cmocka_unit_test_setup_teardown(large_integers_are_numbers, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
