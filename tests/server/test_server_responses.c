/* test_server_responses.c - OpenAI's Responses API: items, events, continuing, refusals; with
 * scripted answers.
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

#define RESPONSES "/v1/responses"
#define HI        "\"input\":\"hi\""
#define ADD_TOOL                                                                                   \
    "{\"type\":\"function\",\"name\":\"add\",\"description\":\"Adds\",\"parameters\":{\"type\":"   \
    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}}},"      \
    "\"strict\":true}"

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
                                           .tail = "",
                                           .n_thought_tokens = 2 };

static json_t *ask(const char *fields, int status)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)quire_bytes_addf(&body, "{\"model\":\"m\",%s}", fields);
    root = http_post_json(f.port, RESPONSES, body.data, status);
    quire_bytes_fini(&body);
    return root;
}

static uint32_t prompt_of(const char *fields)
{
    json_decref(ask(fields, 200));
    return engine_double_seen(f.engine).params.n_tokens;
}

/* ---- whole replies ---- */

static void a_response_has_a_message(void **state)
{
    json_t *root = ask("\"instructions\":\"Be brief.\",\"max_output_tokens\":32,"
                       "\"metadata\":{\"k\":\"v\"}," HI,
                       200);

    (void)state;
    assert_string_equal(json_string_at(root, "object"), "response");
    assert_string_equal(json_string_at(root, "status"), "completed");
    assert_string_equal(json_string_at(root, "output.0.type"), "message");
    assert_string_equal(json_string_at(root, "output.0.role"), "assistant");
    assert_string_equal(json_string_at(root, "output.0.content.0.type"), "output_text");
    assert_string_equal(json_string_at(root, "output.0.content.0.text"), "Hello there");
    assert_string_equal(json_string_at(root, "instructions"), "Be brief.");
    assert_string_equal(json_string_at(root, "metadata.k"), "v");
    assert_int_equal(json_int_at(root, "max_output_tokens"), 32);
    assert_true(json_is_null(json_at(root, "previous_response_id")));
    assert_int_equal(json_int_at(root, "usage.output_tokens"), 2);
    assert_int_equal(json_int_at(root, "usage.input_tokens"),
                     engine_double_seen(f.engine).params.n_tokens);
    assert_int_equal(json_int_at(root, "usage.input_tokens_details.cached_tokens"),
                     engine_double_seen(f.engine).params.n_tokens / 2);
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 32);
    json_decref(root);
}

static void parts_are_items(void **state)
{
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &call_script);
    root = ask("\"tools\":[" ADD_TOOL "]," HI, 200);
    assert_string_equal(json_string_at(root, "output.0.type"), "reasoning");
    assert_non_null(strstr(json_string_at(root, "output.0.content.0.text"), "Two numbers."));
    assert_string_equal(json_string_at(root, "output.1.type"), "message");
    assert_string_equal(json_string_at(root, "output.2.type"), "function_call");
    assert_string_equal(json_string_at(root, "output.2.name"), "add");
    assert_non_null(strstr(json_string_at(root, "output.2.arguments"), "\"b\""));
    assert_true(strlen(json_string_at(root, "output.2.call_id")) > 0);
    assert_string_equal(json_string_at(root, "tools.0.name"), "add");
    json_decref(root);
}

#define SPACED(tool) "{\"type\":\"namespace\",\"name\":\"sums\",\"tools\":[" tool "]}"

/* The functions of a namespace are tools like others, and calls say which namespace they are of. */
static void calls_name_their_namespace(void **state)
{
    json_t *root;
    http_reply reply;

    (void)state;
    assert_int_equal(prompt_of("\"tools\":[" SPACED(ADD_TOOL) "]," HI),
                     prompt_of("\"tools\":[" ADD_TOOL "]," HI));
    engine_double_script(f.engine, &call_script);
    root = ask("\"tools\":[" SPACED(ADD_TOOL) "]," HI, 200);
    assert_string_equal(json_string_at(root, "output.2.name"), "add");
    assert_string_equal(json_string_at(root, "output.2.namespace"), "sums");
    assert_string_equal(json_string_at(root, "tools.0.type"), "namespace");
    json_decref(root);
    engine_double_script(f.engine, &call_script);
    reply = http_post(f.port, RESPONSES,
                      "{\"model\":\"m\",\"stream\":true,\"tools\":[" SPACED(ADD_TOOL) "]," HI "}");
    assert_non_null(
        strstr(reply.body, "\"name\":\"add\",\"namespace\":\"sums\",\"arguments\":\"{"));
    http_reply_free(&reply);
    /* The client sends the call back as it got it. */
    json_decref(
        ask("\"tools\":[" SPACED(ADD_TOOL) "],\"input\":[{\"role\":\"user\",\"content\":\"2+3?\"},"
                                           "{\"type\":\"function_call\",\"call_id\":\"c1\","
                                           "\"name\":\"add\",\"namespace\":"
                                           "\"sums\",\"arguments\":\"{}\"},{\"type\":\"function_"
                                           "call_output\",\"call_id\":"
                                           "\"c1\",\"output\":\"5\"}]",
            200));
    engine_double_script(f.engine, &call_script);
    root = ask("\"tools\":[" ADD_TOOL "]," HI, 200);
    assert_null(json_object_get(json_at(root, "output.2"), "namespace"));
    json_decref(root);
}

static void numbers_are_repeated_as_they_were(void **state)
{
    http_reply reply =
        http_post(f.port, RESPONSES, "{\"model\":\"m\",\"temperature\":0.7,\"top_p\":1," HI "}");

    (void)state;
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "\"temperature\":0.7,"));
    assert_non_null(strstr(reply.body, "\"top_p\":1,"));
    http_reply_free(&reply);
}

static void a_cut_answer_is_incomplete(void **state)
{
    json_t *root = ask("\"max_output_tokens\":1," HI, 200);

    (void)state;
    assert_string_equal(json_string_at(root, "status"), "incomplete");
    assert_string_equal(json_string_at(root, "incomplete_details.reason"), "max_output_tokens");
    assert_string_equal(json_string_at(root, "output.0.status"), "incomplete");
    json_decref(root);
}

/* A client runs the calls that are completed. */
static void a_cut_call_is_incomplete(void **state)
{
    engine_script script = call_script;
    http_reply reply;
    json_t *root;

    (void)state;
    script.n_pieces--;
    script.finish = QUIRE_FINISH_LENGTH;
    engine_double_script(f.engine, &script);
    root = ask("\"tools\":[" ADD_TOOL "]," HI, 200);
    assert_string_equal(json_string_at(root, "output.1.status"), "completed");
    assert_string_equal(json_string_at(root, "output.2.type"), "function_call");
    assert_string_equal(json_string_at(root, "output.2.status"), "incomplete");
    json_decref(root);
    reply = http_post(f.port, RESPONSES,
                      "{\"model\":\"m\",\"stream\":true,\"tools\":[" ADD_TOOL "]," HI "}");
    assert_non_null(strstr(reply.body, "\"type\":\"function_call\",\"status\":\"incomplete\""));
    assert_null(strstr(reply.body, "\"type\":\"function_call\",\"status\":\"completed\""));
    http_reply_free(&reply);
    script.finish = QUIRE_FINISH_STOP;
    script.stops_at_first = true;
    engine_double_script(f.engine, &script);
    root = ask("\"stop\":[\"END\"],\"tools\":[" ADD_TOOL "]," HI, 200);
    assert_string_equal(json_string_at(root, "output.2.status"), "incomplete");
    json_decref(root);
}

/* ---- input ---- */

static void items_become_messages(void **state)
{
    const uint32_t plain = prompt_of(HI);

    (void)state;
    assert_int_equal(prompt_of("\"input\":[{\"role\":\"user\",\"content\":\"hi\"}]"), plain);
    assert_int_equal(prompt_of("\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":"
                               "[{\"type\":\"input_text\",\"text\":\"hi\"}]}]"),
                     plain);
    assert_int_equal(prompt_of("\"input\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                               "{\"role\":\"user\",\"content\":\"hi\"}]"),
                     prompt_of("\"instructions\":\"Be brief.\"," HI));
    assert_true(prompt_of("\"tools\":[" ADD_TOOL "]," HI) > plain + 20);
    assert_true(prompt_of("\"tools\":[" ADD_TOOL "],\"input\":[{\"role\":\"user\",\"content\":"
                          "\"2+3?\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":"
                          "\"reasoning_text\",\"text\":\"Hm.\"}]},{\"type\":\"function_call\","
                          "\"call_id\":\"c1\",\"name\":\"add\",\"arguments\":\"{}\"},{\"type\":"
                          "\"function_call_output\",\"call_id\":\"c1\",\"output\":\"5\"}]") >
                prompt_of("\"tools\":[" ADD_TOOL "]," HI) + 20);
    /* Thoughts that no answer follows are nobody's: a user's message is between. */
    assert_int_equal(
        prompt_of("\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":"
                  "\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":"
                  "\"Hm.\"}]},{\"role\":\"user\",\"content\":\"b\"},{\"role\":"
                  "\"assistant\",\"content\":\"c\"}]"),
        prompt_of("\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\","
                  "\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"}]"));
    json_decref(ask("\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":"
                    "{\"type\":\"object\"}}},\"reasoning\":{\"effort\":\"none\"}," HI,
                    200));
    json_decref(ask("\"tools\":[" ADD_TOOL "],\"tool_choice\":{\"type\":\"function\",\"name\":"
                    "\"add\"},\"include\":[\"reasoning.encrypted_content\"]," HI,
                    200));
}

static void wrong_requests_are_named(void **state)
{
    static const char *const cases[][2] = {
        { "\"x\":1", "input" },
        { "\"input\":[]", "input" },
        { "\"input\":3", "input" },
        { "\"input\":[3]", "input[0]" },
        { "\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]", "input[0].type" },
        { "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]",
          "input[0].content" },
        { "\"input\":[{\"role\":\"user\"}]", "input[0].content: is required" },
        { "\"input\":[{\"role\":\"boss\",\"content\":\"x\"}]", "input[0].role: must" },
        { "\"input\":[{\"type\":\"function_call\"}]", "input[0].call_id" },
        { "\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]", "input[0].output" },
        { "\"tools\":[{\"type\":\"web_search\"}]," HI, "tools[0].type" },
        { "\"tools\":[{\"type\":\"function\"}]," HI, "tools[0].name" },
        { "\"tools\":[{\"type\":\"namespace\",\"tools\":[]}]," HI, "tools[0].name" },
        { "\"tools\":[{\"type\":\"namespace\",\"name\":\"n\"}]," HI, "tools[0].tools" },
        { "\"tools\":[" SPACED("{\"type\":\"custom\",\"name\":\"a\"}") "]," HI,
          "tools[0].tools[0].type" },
        { "\"tools\":[" ADD_TOOL "," SPACED(ADD_TOOL) "]," HI, "tools[1].tools[0].name" },
        { "\"tool_choice\":{\"type\":\"allowed_tools\"}," HI, "tool_choice" },
        { "\"background\":true," HI, "background" },
        { "\"context_management\":[{\"type\":\"compaction\"}]," HI, "context_management" },
        { "\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}," HI,
          "stream_options.include_obfuscation" },
        { "\"tools\":[{\"type\":\"function\",\"name\":\"a\",\"defer_loading\":true}]," HI,
          "defer_loading" },
        { "\"conversation\":\"c\"," HI, "conversation" },
        { "\"include\":[\"message.output_text.logprobs\"]," HI, "include" },
        { "\"truncation\":\"some\"," HI, "truncation" },
        { "\"max_output_tokens\":0," HI, "max_output_tokens" },
        { "\"text\":{\"verbosity\":\"low\"}," HI, "text.verbosity" },
        { "\"n\":2," HI, "n" },
        { "\"text\":{\"format\":{\"type\":\"json_schema\"}}," HI,
          "text.format.schema: is required" },
        { "\"text\":{\"format\":{\"type\":\"x\"}}," HI, "text.format.type: must be" },
        { "\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"x\"}}}," HI,
          "text.format: json_schema, #" },
        { "\"response_format\":{\"type\":\"x\"}," HI, "response_format.type: must be" },
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

/* ---- stored responses ---- */

static json_t *continue_with(const char *id, const char *fields, int status)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)quire_bytes_addf(&body, "\"previous_response_id\":\"%s\",%s", id, fields);
    root = ask(body.data, status);
    quire_bytes_fini(&body);
    return root;
}

static void a_response_is_continued(void **state)
{
    json_t *first = ask("\"instructions\":\"Be brief.\"," HI, 200);
    const char *id = json_string_at(first, "id");
    const uint32_t whole =
        prompt_of("\"store\":false,\"input\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
                  "\"assistant\",\"content\":\"Hello there\"},{\"role\":\"user\",\"content\":"
                  "\"and?\"}]");
    json_t *second = continue_with(id, "\"input\":\"and?\"", 200);
    json_t *root;
    char path[128];

    (void)state;
    /* The instructions are of the first request alone. */
    assert_int_equal(engine_double_seen(f.engine).params.n_tokens, whole);
    assert_string_equal(json_string_at(second, "previous_response_id"), id);
    /* Twice from the same one, and on from the second. */
    json_decref(continue_with(id, "\"input\":\"and?\"", 200));
    assert_int_equal(engine_double_seen(f.engine).params.n_tokens, whole);
    json_decref(continue_with(json_string_at(second, "id"), "\"input\":\"and?\"", 200));
    assert_true(engine_double_seen(f.engine).params.n_tokens > whole);
    (void)snprintf(path, sizeof path, RESPONSES "/%s", id);
    root = http_get_json(f.port, path, 200);
    assert_true(json_equal(root, first));
    json_decref(root);
    root = http_json(f.port, &(http_call){ .method = "DELETE", .path = path }, 200);
    assert_true(json_is_true(json_at(root, "deleted")));
    json_decref(root);
    json_decref(http_get_json(f.port, path, 404));
    root = continue_with(id, "\"input\":\"and?\"", 404);
    assert_string_equal(json_string_at(root, "error.code"), "no_such_response");
    assert_string_equal(json_string_at(root, "error.param"), "previous_response_id");
    json_decref(root);
    json_decref(second);
    json_decref(first);
}

/* No template can write half a call, so the next turn does without it. */
static void an_answer_with_a_cut_call_is_continued(void **state)
{
    engine_script script = call_script;
    json_t *first;

    (void)state;
    script.n_pieces--;
    script.finish = QUIRE_FINISH_LENGTH;
    engine_double_script(f.engine, &script);
    first = ask("\"tools\":[" ADD_TOOL "]," HI, 200);
    assert_string_equal(json_string_at(first, "output.2.type"), "function_call");
    engine_double_script(f.engine, &engine_script_hello);
    json_decref(continue_with(json_string_at(first, "id"), "\"input\":\"and?\"", 200));
    json_decref(first);
}

static void an_answer_with_calls_is_continued(void **state)
{
    json_t *first, *second;
    char fields[512];
    uint32_t n;

    (void)state;
    engine_double_script(f.engine, &call_script);
    first = ask("\"tools\":[" ADD_TOOL "]," HI, 200);
    n = engine_double_seen(f.engine).params.n_tokens;
    (void)snprintf(fields, sizeof fields,
                   "\"tools\":[" ADD_TOOL "],\"input\":[{\"type\":\"function_call_output\","
                   "\"call_id\":\"%.64s\",\"output\":\"5\"}]",
                   json_string_at(first, "output.2.call_id"));
    engine_double_script(f.engine, &engine_script_hello);
    second = continue_with(json_string_at(first, "id"), fields, 200);
    assert_true(engine_double_seen(f.engine).params.n_tokens > n + 20);
    json_decref(second);
    json_decref(first);
}

static void what_is_not_stored_is_not_found(void **state)
{
    json_t *first = ask("\"store\":false," HI, 200);

    (void)state;
    assert_true(json_is_false(json_at(first, "store")));
    json_decref(continue_with(json_string_at(first, "id"), HI, 404));
    json_decref(first);
}

static void expect_words(const char *id, const char *words)
{
    json_t *root = continue_with(id, HI, 404);

    assert_string_equal(json_string_at(root, "error.code"), "no_such_response");
    assert_string_equal(json_string_at(root, "error.param"), "previous_response_id");
    assert_non_null(strstr(json_string_at(root, "error.message"), words));
    json_decref(root);
}

/* The error tells a response of an earlier run from one that this run has forgotten. */
static void a_restart_is_named_as_the_reason(void **state)
{
    json_t *first = ask("\"store\":false," HI, 200);
    char id[96];

    (void)state;
    (void)snprintf(id, sizeof id, "%s", json_string_at(first, "id"));
    json_decref(first);
    expect_words(id, "not stored, was deleted");
    expect_words("resp_of_somebody", "not stored, was deleted");
    id[6] = id[6] == '0' ? '1' : '0';
    expect_words(id, "a restart forgets stored responses; send the whole history");
}

static void counting_computes_nothing(void **state)
{
    json_t *root =
        http_post_json(f.port, RESPONSES "/input_tokens", "{\"model\":\"m\"," HI "}", 200);
    const int64_t n = json_int_at(root, "input_tokens");

    (void)state;
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
    assert_int_equal(prompt_of(HI), n);
    json_decref(root);
    root = http_post_json(f.port, "/responses/input_tokens", "{\"model\":\"m\"," HI "}", 200);
    assert_int_equal(json_int_at(root, "input_tokens"), n);
    json_decref(root);
}

/* ---- streams ---- */

typedef struct heard {
    char types[4096];
    char text[128], arguments[128], thoughts[128];
    int64_t n;
    json_t *response; /* of the last event */
} heard;

static void append_if(heard *h, json_t *root, const char *type, char *buffer, size_t size)
{
    if (strcmp(json_string_at(root, "type"), type) == 0) {
        text_append(buffer, size, json_string_at(root, "delta"));
    }
    (void)h;
}

static void hear(void *ctx, const char *data)
{
    heard *h = ctx;
    json_t *root = json_loads(data, 0, NULL);

    assert_non_null(root);
    assert_int_equal(json_int_at(root, "sequence_number"), h->n++);
    text_append(h->types, sizeof h->types, json_string_at(root, "type") + strlen("response."));
    text_append(h->types, sizeof h->types, " ");
    append_if(h, root, "response.output_text.delta", h->text, sizeof h->text);
    append_if(h, root, "response.reasoning_text.delta", h->thoughts, sizeof h->thoughts);
    append_if(h, root, "response.function_call_arguments.delta", h->arguments, sizeof h->arguments);
    if (json_object_get(root, "response") != NULL) {
        json_decref(h->response);
        h->response = json_incref(json_object_get(root, "response"));
    }
    json_decref(root);
}

static void a_stream_has_items(void **state)
{
    heard h = { .types = "" };
    http_reply reply;

    (void)state;
    engine_double_script(f.engine, &call_script);
    reply = http_post(f.port, RESPONSES,
                      "{\"model\":\"m\",\"stream\":true,\"tools\":[" ADD_TOOL "]," HI "}");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "event: response.created\ndata: {"));
    (void)http_events(&reply, hear, &h);
    assert_int_equal(strncmp(h.types,
                             "created in_progress output_item.added content_part.added "
                             "reasoning_text.delta ",
                             77),
                     0);
    assert_non_null(strstr(h.types, "reasoning_text.done content_part.done output_item.done "
                                    "output_item.added content_part.added output_text.delta "));
    assert_non_null(strstr(h.types, "output_text.done content_part.done output_item.done "
                                    "output_item.added function_call_arguments.delta "));
    assert_non_null(strstr(h.types, "function_call_arguments.done output_item.done completed "));
    assert_non_null(strstr(h.thoughts, "Two numbers."));
    assert_non_null(strstr(h.text, "I add."));
    assert_string_equal(json_string_at(h.response, "status"), "completed");
    assert_string_equal(json_string_at(h.response, "output.2.arguments"), h.arguments);
    assert_int_equal(json_int_at(h.response, "usage.output_tokens"), 6);
    assert_int_equal(json_int_at(h.response, "usage.output_tokens_details.reasoning_tokens"), 2);
    json_decref(continue_with(json_string_at(h.response, "id"), HI, 200));
    json_decref(h.response);
    http_reply_free(&reply);
}

/* An answer that is cut inside its thoughts has no message, whole and as a stream. */
static void thoughts_alone_are_one_item(void **state)
{
    engine_script script = call_script;
    heard h = { .types = "" };
    http_reply reply;
    json_t *root;

    (void)state;
    script.n_pieces = 1;
    script.finish = QUIRE_FINISH_LENGTH;
    engine_double_script(f.engine, &script);
    root = ask(HI, 200);
    assert_int_equal(json_array_size(json_at(root, "output")), 1);
    assert_string_equal(json_string_at(root, "output.0.type"), "reasoning");
    assert_string_equal(json_string_at(root, "output.0.status"), "incomplete");
    reply = http_post(f.port, RESPONSES, "{\"model\":\"m\",\"stream\":true," HI "}");
    (void)http_events(&reply, hear, &h);
    assert_string_equal(h.types, "created in_progress output_item.added content_part.added "
                                 "reasoning_text.delta reasoning_text.done content_part.done "
                                 "output_item.done incomplete ");
    assert_int_equal(json_array_size(json_at(h.response, "output")), 1);
    assert_string_equal(json_string_at(h.response, "output.0.status"), "incomplete");
    json_decref(h.response);
    json_decref(root);
    http_reply_free(&reply);
}

/* A call that the end of the answer makes text: its item ends as it was told. */
static void a_call_that_breaks_ends(void **state)
{
    static const char *const pieces[] = {
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": ", "2",
        "}}\n</tool_call> and <tool_call>\n{\"name\" nonsense"
    };
    const engine_script script = {
        .pieces = pieces, .n_pieces = 3, .finish = QUIRE_FINISH_STOP, .tail = ""
    };
    heard h = { .types = "" };
    http_reply reply;

    (void)state;
    engine_double_script(f.engine, &script);
    reply = http_post(f.port, RESPONSES,
                      "{\"model\":\"m\",\"stream\":true,\"tools\":[" ADD_TOOL "]," HI "}");
    assert_int_equal(reply.status, 200);
    (void)http_events(&reply, hear, &h);
    assert_non_null(strstr(h.types, "function_call_arguments.done output_item.done "
                                    "output_item.added content_part.added output_text.delta "));
    assert_non_null(
        strstr(h.types, "output_text.done content_part.done output_item.done completed "));
    assert_string_equal(h.arguments, "{\"a\": 2");
    assert_non_null(strstr(reply.body, "\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 2\"}"));
    assert_string_equal(json_string_at(h.response, "status"), "completed");
    assert_string_equal(json_string_at(h.response, "output.0.content.0.text"), h.text);
    json_decref(h.response);
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
    reply = http_post(f.port, RESPONSES, "{\"model\":\"m\",\"stream\":true," HI "}");
    assert_non_null(strstr(reply.body, "event: error\ndata: {\"type\":\"error\""));
    assert_null(strstr(reply.body, "response.completed"));
    http_reply_free(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_response_has_a_message, start, stop),
        cmocka_unit_test_setup_teardown(parts_are_items, start, stop),
        cmocka_unit_test_setup_teardown(calls_name_their_namespace, start, stop),
        cmocka_unit_test_setup_teardown(numbers_are_repeated_as_they_were, start, stop),
        cmocka_unit_test_setup_teardown(a_cut_answer_is_incomplete, start, stop),
        cmocka_unit_test_setup_teardown(a_cut_call_is_incomplete, start, stop),
        cmocka_unit_test_setup_teardown(items_become_messages, start, stop),
        cmocka_unit_test_setup_teardown(wrong_requests_are_named, start, stop),
        cmocka_unit_test_setup_teardown(a_response_is_continued, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_with_calls_is_continued, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_with_a_cut_call_is_continued, start, stop),
        cmocka_unit_test_setup_teardown(what_is_not_stored_is_not_found, start, stop),
        cmocka_unit_test_setup_teardown(a_restart_is_named_as_the_reason, start, stop),
        cmocka_unit_test_setup_teardown(counting_computes_nothing, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_has_items, start, stop),
        cmocka_unit_test_setup_teardown(thoughts_alone_are_one_item, start, stop),
        cmocka_unit_test_setup_teardown(a_call_that_breaks_ends, start, stop),
        cmocka_unit_test_setup_teardown(an_error_in_a_stream_is_an_event, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
