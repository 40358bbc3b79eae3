/* test_server_messages.c - Anthropic's Messages API: blocks, tools, events, counting, breakpoints
 * as pins, refusals; with scripted answers.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "chat_fixture.h"
#include "server_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES "/v1/messages"
#define COUNT    "/v1/messages/count_tokens"
#define MODEL    "\"model\":\"m\",\"max_tokens\":64,"
#define HI       "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define ADD_TOOL                                                                                   \
    "{\"name\":\"add\",\"description\":\"Adds\",\"input_schema\":{\"type\":\"object\","            \
    "\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}}}}"

static server_fixture f;
static char *chat_template;

static int start(void **state)
{
    quire_server_opts opts = server_fixture_opts();

    (void)state;
    chat_template = chat_fixture_template("Qwen-Qwen3-0.6B");
    opts.chat_template = chat_template;
    server_fixture_start(&f, &opts);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    free(chat_template);
    return 0;
}

static const char *const call_pieces[] = {
    "<think>\nTwo",
    " numbers.\n</think>\n\n",
    "I add.\n",
    "<tool_call>\n{\"name\": \"add\"",
    ", \"arguments\": {\"a\": 2, ",
    "\"b\": 3}}\n</tool_call>",
};
static const engine_script call_script = { .pieces = call_pieces,
                                           .n_pieces = sizeof call_pieces / sizeof call_pieces[0],
                                           .finish = QUIRE_FINISH_STOP,
                                           .tail = "" };

static json_t *ask(const char *fields, int status)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)quire_bytes_addf(&body, "{" MODEL "%s}", fields);
    root = http_post_json(f.port, MESSAGES, body.data, status);
    quire_bytes_fini(&body);
    return root;
}

/* ---- whole replies ---- */

static void a_message_has_a_block_of_text(void **state)
{
    json_t *root = ask("\"system\":\"Be brief.\"," HI, 200);

    (void)state;
    assert_string_equal(json_string_at(root, "type"), "message");
    assert_string_equal(json_string_at(root, "role"), "assistant");
    assert_string_equal(json_string_at(root, "model"), "tiny");
    assert_int_equal(json_array_size(json_at(root, "content")), 1);
    assert_string_equal(json_string_at(root, "content.0.type"), "text");
    assert_string_equal(json_string_at(root, "content.0.text"), "Hello there");
    assert_string_equal(json_string_at(root, "stop_reason"), "end_turn");
    assert_true(json_is_null(json_at(root, "stop_sequence")));
    assert_int_equal(json_int_at(root, "usage.output_tokens"), 2);
    assert_int_equal(json_int_at(root, "usage.input_tokens") +
                         json_int_at(root, "usage.cache_read_input_tokens") +
                         json_int_at(root, "usage.cache_creation_input_tokens"),
                     engine_double_seen(f.engine).params.n_tokens);
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 64);
    json_decref(root);
}

static void a_call_is_a_block(void **state)
{
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &call_script);
    root = ask("\"tools\":[" ADD_TOOL "]," HI, 200);
    assert_string_equal(json_string_at(root, "stop_reason"), "tool_use");
    assert_string_equal(json_string_at(root, "content.0.type"), "thinking");
    assert_non_null(strstr(json_string_at(root, "content.0.thinking"), "Two numbers."));
    assert_string_equal(json_string_at(root, "content.1.type"), "text");
    assert_string_equal(json_string_at(root, "content.2.type"), "tool_use");
    assert_string_equal(json_string_at(root, "content.2.name"), "add");
    assert_int_equal(json_int_at(root, "content.2.input.a"), 2);
    assert_int_equal(json_int_at(root, "content.2.input.b"), 3);
    json_decref(root);
}

static void ends_have_their_names(void **state)
{
    static const char *const pieces[] = { "one", "two", "three" };
    engine_script script = {
        .pieces = pieces, .n_pieces = 3, .finish = QUIRE_FINISH_STOP, .tail = ""
    };
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, MESSAGES, "{\"model\":\"m\",\"max_tokens\":2," HI "}", 200);
    assert_string_equal(json_string_at(root, "stop_reason"), "max_tokens");
    json_decref(root);
    script.stops_at_first = true;
    engine_double_script(f.engine, &script);
    root = ask("\"stop_sequences\":[\"END\",\"x\"]," HI, 200);
    assert_string_equal(json_string_at(root, "stop_reason"), "stop_sequence");
    assert_string_equal(json_string_at(root, "stop_sequence"), "END");
    assert_string_equal(engine_double_seen(f.engine).stops[0], "END");
    json_decref(root);
}

/* ---- requests ---- */

/* The number of tokens of a prompt. */
static int64_t count(const char *fields)
{
    quire_bytes body = { 0 };
    json_t *root;
    int64_t n;

    (void)quire_bytes_addf(&body, "{\"model\":\"m\",%s}", fields);
    root = http_post_json(f.port, COUNT, body.data, 200);
    n = json_int_at(root, "input_tokens");
    json_decref(root);
    quire_bytes_fini(&body);
    return n;
}

static void counting_computes_nothing(void **state)
{
    const int64_t plain = count(HI);

    (void)state;
    assert_true(plain > 0);
    assert_true(count("\"system\":\"Be brief.\"," HI) > plain);
    assert_true(count("\"tools\":[" ADD_TOOL "]," HI) > plain + 20);
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
    json_decref(ask(HI, 200));
    assert_int_equal(engine_double_seen(f.engine).params.n_tokens, plain);
}

/* Blocks say the same as a string; parts of the system prompt are lines. */
static void blocks_and_strings_are_the_same(void **state)
{
    (void)state;
    assert_int_equal(count("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                           "\"text\":\"hi\"}]}]"),
                     count(HI));
    assert_int_equal(count("\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                           "\"text\":\"b\"}]," HI),
                     count("\"system\":\"a\\nb\"," HI));
    /* A coding agent's line for billing differs each time, and is left out. */
    assert_int_equal(count("\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
                           "cc_version=1; cch=abc;\"},{\"type\":\"text\",\"text\":\"a\"}]," HI),
                     count("\"system\":\"a\"," HI));
}

static void results_become_messages_of_tools(void **state)
{
    static const char calls[] =
        "\"tools\":[" ADD_TOOL "],\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"Hm.\","
        "\"signature\":\"\"},{\"type\":\"text\",\"text\":\"I add.\"},{\"type\":\"tool_use\","
        "\"id\":\"t1\",\"name\":\"add\",\"input\":{\"a\":2,\"b\":3}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\","
        "\"content\":[{\"type\":\"text\",\"text\":\"5\"}]},{\"type\":\"text\",\"text\":\"And "
        "now?\"}]}]";

    (void)state;
    assert_true(count(calls) > count("\"tools\":[" ADD_TOOL "]," HI) + 20);
}

static void thinking_and_choices_are_translated(void **state)
{
    (void)state;
    assert_true(count("\"thinking\":{\"type\":\"disabled\"}," HI) > count(HI)); /* empty thoughts */
    assert_int_equal(count("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," HI),
                     count(HI));
    json_decref(ask("\"tools\":[" ADD_TOOL "],\"tool_choice\":{\"type\":\"any\"}," HI, 200));
    json_decref(ask("\"tools\":[" ADD_TOOL "],\"tool_choice\":{\"type\":\"tool\",\"name\":\"add\","
                    "\"disable_parallel_tool_use\":true}," HI,
                    200));
    json_decref(ask("\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
                    "\"content\":\"Well, \"}]",
                    200));
}

/* Agents allow thoughts for every model. A template without thoughts accepts the field, on or off,
 * and gives none. */
static void a_model_without_thoughts_may_have_some(void **state)
{
    static const char *const names[] = { "Qwen-Qwen2.5-7B-Instruct", NULL }; /* NULL = built in */

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        server_fixture other;
        quire_server_opts opts = server_fixture_opts();
        char *text = names[i] != NULL ? chat_fixture_template(names[i]) : strdup("chatml");

        opts.chat_template = text;
        server_fixture_start(&other, &opts);
        json_decref(http_post_json(other.port, MESSAGES,
                                   "{\"model\":\"m\",\"max_tokens\":8,\"thinking\":{\"type\":"
                                   "\"enabled\",\"budget_tokens\":1024}," HI "}",
                                   200));
        json_decref(http_post_json(
            other.port, MESSAGES,
            "{\"model\":\"m\",\"max_tokens\":8,\"thinking\":{\"type\":\"disabled\"}," HI "}", 200));
        /* Asked for by the chat's own field it is refused, as everywhere. */
        json_decref(http_post_json(other.port, CHAT,
                                   "{\"model\":\"m\",\"enable_thinking\":true," HI "}", 400));
        server_fixture_stop(&other);
        free(text);
    }
}

static void wrong_requests_are_named(void **state)
{
    static const char *const cases[][2] = {
        { "\"x\":1", "messages" },
        { "\"messages\":[]", "at least one message" },
        { "\"messages\":[{\"role\":\"system\",\"content\":\"x\"}]", "messages[0].role" },
        { "\"messages\":[{\"role\":\"user\"}]", "messages[0].content" },
        { "\"messages\":[{\"role\":\"user\",\"content\":3}]", "messages[0].content" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]",
          "messages[0].content[0].type" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\"}]}]",
          "messages[0].content[0].type" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]",
          "tool_use_id" },
        { "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\"}]}]", "id" },
        { "\"system\":7," HI, "system" },
        { "\"system\":[{\"type\":\"image\"}]," HI, "system[0].type" },
        { "\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]," HI,
          "tools[0].type" },
        { "\"tools\":[{}]," HI, "tools[0].name" },
        { "\"tool_choice\":{\"type\":\"some\"}," HI, "tool_choice.type" },
        { "\"thinking\":{\"type\":\"loud\"}," HI, "thinking.type" },
        { "\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}," HI, "thinking.display" },
        { "\"output_config\":{\"task_budget\":{\"total\":5}}," HI, "output_config.task_budget" },
        { "\"tools\":[{\"name\":\"a\",\"defer_loading\":true}]," HI, "tools[0].defer_loading" },
        { "\"tools\":[{\"name\":\"a\",\"allowed_callers\":[\"code_execution_20250825\"]}]," HI,
          "tools[0].allowed_callers" },
        { "\"tools\":[{\"name\":\"a\",\"input_examples\":[{}]}]," HI, "tools[0].input_examples" },
        { "\"context_management\":{\"edits\":[]}," HI, "context_management" },
        { "\"container\":\"c\"," HI, "container" },
        { "\"inference_geo\":\"eu\"," HI, "inference_geo" },
        { "\"speed\":\"fast\"," HI, "speed" },
        { "\"mcp_servers\":[{}]," HI, "mcp_servers" },
        { "\"output_format\":{}," HI, "output_format.type: is required" },
        { "\"output_format\":{\"type\":\"json_schema\"}," HI, "output_format.schema: is required" },
        { "\"output_config\":{\"format\":{\"type\":\"json_schema\"}}," HI,
          "output_config.format.schema: is required" },
        { "\"output_format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"x\"}}," HI,
          "output_format: json_schema, #" },
        { "\"n\":2," HI, "n:" },
        { "\"guided_grammar\":\"x\"," HI, "guided_grammar" },
        { "\"stop_sequences\":\"x\"," HI, "stop_sequences: expected an array" },
        { "\"stop_sequences\":[\"x\",\"\"]," HI, "stop_sequences: element 1" },
        { "\"stop_sequences\":[3]," HI, "stop_sequences: element 0" },
        { "\"cache_control\":{\"type\":\"eternal\"}," HI, "cache_control.type: must" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
          "\"cache_control\":{\"type\":\"eternal\"}}]}]",
          "cache_control.type" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
          "\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"2h\"}}]}]",
          "cache_control.ttl" },
    };
    json_t *root;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        root = ask(cases[i][0], 400);
        assert_string_equal(json_string_at(root, "type"), "error");
        assert_string_equal(json_string_at(root, "error.type"), "invalid_request_error");
        if (strstr(json_string_at(root, "error.message"), cases[i][1]) == NULL ||
            strstr(json_string_at(root, "error.message"), "request.") != NULL) {
            fail_msg("%s: %s", cases[i][0], json_string_at(root, "error.message"));
        }
        json_decref(root);
    }
    root = http_post_json(f.port, MESSAGES, "{\"model\":\"m\"," HI "}", 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "max_tokens"));
    json_decref(root);
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

static void more_breakpoints_than_four_are_refused(void **state)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)state;
    (void)quire_bytes_addf(&body, "\"messages\":[{\"role\":\"user\",\"content\":[");
    for (int i = 0; i < 5; i++) {
        (void)quire_bytes_addf(&body,
                               "%s{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":"
                               "\"ephemeral\"}}",
                               i > 0 ? "," : "");
    }
    (void)quire_bytes_addf(&body, "]}]");
    root = ask(body.data, 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "more than 4 breakpoints"));
    json_decref(root);
    quire_bytes_fini(&body);
}

/* ---- breakpoints ---- */

static void a_breakpoint_becomes_a_pin(void **state)
{
    static const char fields[] =
        "\"system\":[{\"type\":\"text\",\"text\":\"A long prompt of a system.\",\"cache_control\":"
        "{\"type\":\"ephemeral\",\"ttl\":\"1h\"}}]," HI;
    engine_memory *memory = engine_double_memory(f.engine);
    json_t *root = ask(fields, 200);
    const uint32_t n = memory->created.n_tokens;

    (void)state;
    assert_int_equal(memory->n_pins, 1);
    assert_int_equal(memory->created.ttl_s, 3600);
    assert_true(memory->created.is_background);
    assert_true(n > 4 && n < engine_double_seen(f.engine).params.n_tokens);
    assert_memory_equal(memory->tokens, engine_double_seen(f.engine).tokens, n * sizeof(int32_t));
    assert_int_equal(strncmp(memory->pins[0].name, "cache_control:", 14), 0);
    /* The double says that half of the prompt was cached. */
    assert_int_equal(json_int_at(root, "usage.cache_creation_input_tokens"),
                     n - json_int_at(root, "usage.cache_read_input_tokens") > n
                         ? 0
                         : (int64_t)n - json_int_at(root, "usage.cache_read_input_tokens"));
    assert_int_equal(json_int_at(root, "usage.cache_creation.ephemeral_5m_input_tokens"), 0);
    json_decref(root);
    /* A request with the same text renews the pin. */
    root = ask(fields, 200);
    assert_int_equal(memory->n_pins, 1);
    assert_int_equal(json_int_at(root, "usage.cache_creation_input_tokens"), 0);
    json_decref(root);
}

/* A result's texts are blocks too. */
static void a_breakpoint_in_a_result_becomes_a_pin(void **state)
{
    engine_memory *memory = engine_double_memory(f.engine);

    (void)state;
    json_decref(
        ask("\"messages\":[{\"role\":\"user\",\"content\":\"add\"},{\"role\":\"assistant\","
            "\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"add\",\"input\":{}}]},"
            "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\","
            "\"content\":[{\"type\":\"text\",\"text\":\"three\",\"cache_control\":{\"type\":"
            "\"ephemeral\"}}]},{\"type\":\"text\",\"text\":\"go on\"}]}]",
            200));
    assert_int_equal(memory->n_pins, 1);
    assert_int_equal(memory->created.ttl_s, 300);
    assert_true(memory->created.n_tokens < engine_double_seen(f.engine).params.n_tokens);
    assert_memory_equal(memory->tokens, engine_double_seen(f.engine).tokens,
                        memory->created.n_tokens * sizeof(int32_t));
}

/* A conversation has one pin: the longer one replaces the shorter. */
static void pins_grow_with_a_conversation(void **state)
{
    engine_memory *memory = engine_double_memory(f.engine);
    uint32_t n_first;

    (void)state;
    json_decref(ask("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                    "\"one two three\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]",
                    200));
    assert_int_equal(memory->n_pins, 1);
    assert_int_equal(memory->created.ttl_s, 300);
    n_first = memory->created.n_tokens;
    json_decref(ask("\"messages\":[{\"role\":\"user\",\"content\":\"one two three\"},"
                    "{\"role\":\"assistant\",\"content\":\"Four.\"},{\"role\":\"user\",\"content\":"
                    "[{\"type\":\"text\",\"text\":\"five six\",\"cache_control\":{\"type\":"
                    "\"ephemeral\"}}]}]",
                    200));
    assert_int_equal(memory->n_pins, 1);
    assert_true(memory->created.n_tokens > n_first);
    assert_int_equal(memory->n_dropped, 1);
}

static void a_pin_without_memory_is_not_made(void **state)
{
    engine_memory *memory = engine_double_memory(f.engine);
    json_t *root;

    (void)state;
    memory->create_status = QUIRE_NOPAGES;
    memory->create_message = "no room";
    root = ask("\"cache_control\":{\"type\":\"ephemeral\"}," HI, 200);
    assert_int_equal(json_int_at(root, "usage.cache_creation_input_tokens"), 0);
    json_decref(root);
}

/* ---- streams ---- */

typedef struct heard {
    char types[1024]; /* of the events, in order */
    char thinking[128], text[128], json[128], stop[32];
    int64_t last_index, output_tokens;
} heard;

static void append_at(char *buffer, size_t size, json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    if (text != NULL) {
        text_append(buffer, size, text);
    }
}

static void hear(void *ctx, const char *data)
{
    heard *h = ctx;
    json_t *root = json_loads(data, 0, NULL);
    json_t *delta = json_object_get(root, "delta");

    assert_non_null(root);
    append_at(h->types, sizeof h->types, root, "type");
    append_at(h->types, sizeof h->types, json_object_get(root, "content_block"), "type");
    text_append(h->types, sizeof h->types, " ");
    append_at(h->thinking, sizeof h->thinking, delta, "thinking");
    append_at(h->text, sizeof h->text, delta, "text");
    append_at(h->json, sizeof h->json, delta, "partial_json");
    append_at(h->stop, sizeof h->stop, delta, "stop_reason");
    if (json_object_get(root, "index") != NULL) {
        h->last_index = json_integer_value(json_object_get(root, "index"));
    }
    if (delta != NULL && json_object_get(root, "usage") != NULL) {
        h->output_tokens =
            json_integer_value(json_object_get(json_object_get(root, "usage"), "output_tokens"));
    }
    json_decref(root);
}

static void a_stream_has_blocks(void **state)
{
    heard h = { .types = "" };
    http_reply reply;
    json_t *input;

    (void)state;
    engine_double_script(f.engine, &call_script);
    reply =
        http_post(f.port, MESSAGES, "{" MODEL "\"stream\":true,\"tools\":[" ADD_TOOL "]," HI "}");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "event: message_start\ndata: {"));
    (void)http_events(&reply, hear, &h);
    assert_int_equal(strncmp(h.types, "message_start content_block_startthinking ", 42), 0);
    assert_non_null(strstr(h.types, "content_block_stop content_block_starttext "));
    assert_non_null(strstr(h.types, "content_block_stop content_block_starttool_use "));
    assert_non_null(strstr(h.types, "content_block_stop message_delta message_stop "));
    assert_non_null(strstr(h.thinking, "Two numbers."));
    assert_non_null(strstr(h.text, "I add."));
    assert_string_equal(h.stop, "tool_use");
    assert_int_equal(h.last_index, 2);
    assert_int_equal(h.output_tokens, 6);
    input = json_loads(h.json, 0, NULL);
    assert_int_equal(json_int_at(input, "a"), 2);
    json_decref(input);
    http_reply_free(&reply);
}

static void an_error_in_a_stream_is_an_event(void **state)
{
    static const char *const pieces[] = { "one" };
    const engine_script script = { .pieces = pieces,
                                   .n_pieces = 1,
                                   .finish = QUIRE_FINISH_ERROR,
                                   .status = QUIRE_NOMEM,
                                   .tail = "" };
    http_reply reply;

    (void)state;
    engine_double_script(f.engine, &script);
    reply = http_post(f.port, MESSAGES, "{" MODEL "\"stream\":true," HI "}");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "event: error\ndata: {\"type\":\"error\",\"error\":"));
    assert_null(strstr(reply.body, "message_stop"));
    http_reply_free(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_message_has_a_block_of_text, start, stop),
        cmocka_unit_test_setup_teardown(a_call_is_a_block, start, stop),
        cmocka_unit_test_setup_teardown(ends_have_their_names, start, stop),
        cmocka_unit_test_setup_teardown(counting_computes_nothing, start, stop),
        cmocka_unit_test_setup_teardown(blocks_and_strings_are_the_same, start, stop),
        cmocka_unit_test_setup_teardown(results_become_messages_of_tools, start, stop),
        cmocka_unit_test_setup_teardown(thinking_and_choices_are_translated, start, stop),
        cmocka_unit_test(a_model_without_thoughts_may_have_some),
        cmocka_unit_test_setup_teardown(wrong_requests_are_named, start, stop),
        cmocka_unit_test_setup_teardown(more_breakpoints_than_four_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(a_breakpoint_in_a_result_becomes_a_pin, start, stop),
        cmocka_unit_test_setup_teardown(a_breakpoint_becomes_a_pin, start, stop),
        cmocka_unit_test_setup_teardown(pins_grow_with_a_conversation, start, stop),
        cmocka_unit_test_setup_teardown(a_pin_without_memory_is_not_made, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_has_blocks, start, stop),
        cmocka_unit_test_setup_teardown(an_error_in_a_stream_is_an_event, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
