/* test_server_unsupported.c - fields that are known and not supported: refused by name when they
 * ask for something, accepted when they do not, and all of them documented.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "document.h"
#include "server_fixture.h"

#include "server/unsupported.h"

#include <stdio.h>
#include <stdlib.h>
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

/* A request with a few fields more. */
static json_t *post(bool is_chat, const char *fields, int status)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)quire_bytes_addf(&body, "{%s,%s}",
                           is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                                   : "\"prompt\":\"a\"",
                           fields);
    assert_int_equal(body.status, QUIRE_OK);
    root = http_post_json(f.port, is_chat ? CHAT : TEXT, body.data, status);
    quire_bytes_fini(&body);
    return root;
}

static void expect_refusal(bool is_chat, const char *name, const char *value)
{
    char fields[256];
    json_t *root;

    (void)snprintf(fields, sizeof fields, "\"%s\":%s", name, value);
    root = post(is_chat, fields, 400);
    assert_string_equal(json_string_at(root, "error.param"), name);
    assert_string_equal(json_string_at(root, "error.code"), "unsupported_parameter");
    assert_non_null(strstr(json_string_at(root, "error.message"), name));
    json_decref(root);
}

/* Fields that clients send, one by one. */
static void constraints_are_not_dropped(void **state)
{
    static const char *const fields[][2] = {
        { "guided_grammar", "\"root ::= [a]\"" },
        { "guided_decoding_backend", "\"xgrammar\"" },
        { "guided_whitespace_pattern", "\" \"" },
        { "adaptive_target", "0.5" },
        { "adaptive_decay", "0.5" },
        { "backend_sampling", "true" },
        { "modalities", "[\"text\",\"audio\"]" },
        { "reasoning_effort", "\"low\"" },
        { "chat_template_kwargs", "{\"enable_thinking\":false}" },
        { "tfs_z", "0.9" },
        { "top_a", "0.1" },
        { "skip_special_tokens", "false" },
        { "web_search_options", "{}" },
        { "store", "true" },
        { "functions", "[{}]" },
        { "audio", "{\"voice\":\"x\"}" },
        { "prediction", "{\"type\":\"content\"}" },
        { "suffix", "\"b\"" },
    };

    /* A chat has these, see test_server_tools.c. */
    static const char *const of_chats[][2] = {
        { "tools", "[{}]" },
        { "tool_choice", "\"required\"" },
        { "tool_choice", "{\"type\":\"function\"}" },
        { "parallel_tool_calls", "false" },
        { "add_generation_prompt", "false" },
        { "continue_final_message", "true" },
        { "enable_thinking", "true" },
        { "reasoning_budget", "100" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        expect_refusal(true, fields[i][0], fields[i][1]);
        expect_refusal(false, fields[i][0], fields[i][1]);
    }
    for (size_t i = 0; i < sizeof of_chats / sizeof of_chats[0]; i++) {
        expect_refusal(false, of_chats[i][0], of_chats[i][1]);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

/* Fields inside others, and llama-server's name for n. */
static void inner_fields_are_not_dropped(void **state)
{
    static const char *const inner[][2] = {
        { "\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}",
          "stream_options.include_obfuscation" },
        { "\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}",
          "stream_options.continuous_usage_stats" },
        { "\"n_cmpl\":\"2\"", "n_cmpl" },
        { "\"n_cmpl\":0", "n_cmpl" },
    };
    json_t *root;

    (void)state;
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        root = post(true, inner[i][0], 400);
        assert_string_equal(json_string_at(root, "error.param"), inner[i][1]);
        json_decref(root);
    }
    root = post(true, "\"n_cmpl\":2", 200);
    assert_int_equal(json_array_size(json_object_get(root, "choices")), 2);
    json_decref(root);
}

/* Fields of which a value is refused, and parts of content. */
static void values_of_known_fields_are_not_supported(void **state)
{
    static const struct {
        const char *body, *param, *said;
    } cases[] = {
        { "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"best_of\":3", "best_of",
          "(accepted: null, 1)" },
        { "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"best_of\":3,\"n\":2", "best_of",
          "(accepted: null, 2)" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
          "messages[0].content", "\"image_url\"" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[256];
        json_t *root;

        (void)snprintf(body, sizeof body, "{%s}", cases[i].body);
        root = http_post_json(f.port, CHAT, body, 400);
        assert_string_equal(json_string_at(root, "error.param"), cases[i].param);
        assert_string_equal(json_string_at(root, "error.code"), "unsupported_parameter");
        assert_non_null(strstr(json_string_at(root, "error.message"), cases[i].said));
        json_decref(root);
    }
    json_decref(post(true, "\"best_of\":2,\"n\":2", 200));
}

/* The same of the other APIs: blocks, items and tools that Quire has none of. */
static void blocks_and_items_are_not_supported(void **state)
{
    static const char *const cases[][3] = {
        { "/v1/messages",
          "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]"
          "}",
          "\"image\"" },
        { "/v1/messages",
          "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
          "\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]}",
          "\"bash_20250124\"" },
        { "/v1/responses", "{\"input\":[{\"type\":\"item_reference\"}]}", "\"item_reference\"" },
        { "/v1/responses",
          "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\"}]}]}",
          "\"input_file\"" },
        { "/v1/responses", "{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}",
          "\"web_search\"" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = http_post_json(f.port, cases[i][0], cases[i][1], 400);

        assert_string_equal(json_string_at(root, "error.code"), "unsupported_parameter");
        assert_non_null(strstr(json_string_at(root, "error.message"), cases[i][2]));
        json_decref(root);
    }
}

/* No row accepts this. */
static const char asks[] = "[\"something\"]";

static void every_row_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < quire_unsupported_n; i++) {
        const quire_unsupported *row = &quire_unsupported_list[i];

        if (row->in != QUIRE_UNSUPPORTED_IN_TEXT) {
            expect_refusal(true, row->name, asks);
        }
        if (row->in != QUIRE_UNSUPPORTED_IN_CHAT) {
            expect_refusal(false, row->name, asks);
        }
    }
}

/* null and the accepted values of every row, one after the other. */
static void values_that_ask_for_nothing_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < quire_unsupported_n; i++) {
        const quire_unsupported *row = &quire_unsupported_list[i];
        char text[256];
        json_t *values;

        (void)snprintf(text, sizeof text, "[null%s%s]", row->accepted[0] != '\0' ? "," : "",
                       row->accepted);
        values = json_loads(text, 0, NULL);
        assert_non_null(values);
        for (size_t v = 0; v < json_array_size(values); v++) {
            char *value = json_dumps(json_array_get(values, v), JSON_ENCODE_ANY);

            assert_non_null(value);
            (void)snprintf(text, sizeof text, "\"%s\":%s", row->name, value);
            json_decref(post(row->in != QUIRE_UNSUPPORTED_IN_TEXT, text, 200));
            free(value);
        }
        json_decref(values);
    }
}

static void numbers_are_compared_by_value(void **state)
{
    (void)state;
    json_decref(post(true, "\"top_a\":0.0,\"tfs_z\":1.0,\"adaptive_decay\":0.90", 200));
}

static void tools_that_must_not_be_called_change_nothing(void **state)
{
    json_t *root;

    (void)state;
    json_decref(post(true,
                     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
                     "\"tool_choice\":\"none\"",
                     200));
    json_decref(post(true, "\"tools\":[]", 200));
    json_decref(post(true, "\"tools\":[],\"tool_choice\":\"auto\"", 200));
    root = post(true, "\"tools\":\"all\",\"tool_choice\":\"none\"", 400);
    assert_string_equal(json_string_at(root, "error.param"), "tools");
    json_decref(root);
    root = post(true,
                "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
                "\"tool_choice\":\"auto\"",
                400);
    assert_string_equal(json_string_at(root, "error.param"), "tools");
    json_decref(root);
}

static void unknown_fields_are_ignored(void **state)
{
    json_t *with =
        post(true, "\"seed\":9,\"no_such_field\":1,\"user\":\"u\",\"metadata\":{\"a\":\"b\"}", 200);
    const engine_seen seen_with = engine_double_seen(f.engine);
    json_t *without = post(true, "\"seed\":9", 200);
    const engine_seen seen = engine_double_seen(f.engine);

    (void)state;
    assert_int_equal(seen.n_submitted, seen_with.n_submitted + 1);
    assert_int_equal(seen.params.n_tokens, seen_with.params.n_tokens);
    assert_memory_equal(seen.tokens, seen_with.tokens, sizeof seen.tokens);
    assert_int_equal(seen.params.max_tokens, seen_with.params.max_tokens);
    assert_int_equal(seen.params.n_stops, seen_with.params.n_stops);
    assert_int_equal(seen.params.tenant_bytes, seen_with.params.tenant_bytes);
    assert_memory_equal(seen.tenant, seen_with.tenant, sizeof seen.tenant);
    assert_int_equal(seen.params.sampler.seed, seen_with.params.sampler.seed);
    assert_int_equal(json_object_size(with), json_object_size(without));
    assert_true(json_equal(json_at(with, "choices"), json_at(without, "choices")));
    assert_true(json_equal(json_at(with, "usage"), json_at(without, "usage")));
    json_decref(with);
    json_decref(without);
}

/* ---- documentation ---- */

static void the_documentation_lists_them(void **state)
{
    quire_bytes made = { 0 };

    (void)state;
    assert_int_equal(quire_unsupported_document(&made), QUIRE_OK);
    document_part("server.md", "refused fields", &made);
    quire_bytes_fini(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constraints_are_not_dropped),
        cmocka_unit_test(inner_fields_are_not_dropped),
        cmocka_unit_test(values_of_known_fields_are_not_supported),
        cmocka_unit_test(blocks_and_items_are_not_supported),
        cmocka_unit_test(every_row_is_refused),
        cmocka_unit_test(values_that_ask_for_nothing_are_accepted),
        cmocka_unit_test(numbers_are_compared_by_value),
        cmocka_unit_test(tools_that_must_not_be_called_change_nothing),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(the_documentation_lists_them),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
