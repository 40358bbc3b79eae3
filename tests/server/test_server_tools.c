/* test_server_tools.c - tools, thoughts and templates of chats, with scripted answers.
 *
 * The linker redirects strdup() here (--wrap), so that the copies of a request's texts can fail.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "chat_fixture.h"
#include "doze.h"
#include "server_fixture.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADD_TOOL                                                                                   \
    "{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"Adds\","              \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":"      \
    "{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}}}"
#define ASK_ADD "\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"}],\"tools\":[" ADD_TOOL "]"
#define HI      "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static server_fixture f;
static char *chat_template;

static _Thread_local bool is_test; /* the test's own thread: its calls never fail */
static atomic_uint n_copies;
static atomic_uint fail_at; /* the call of strdup() that fails, from 1; 0 = none */

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    const unsigned at = atomic_load(&fail_at);

    return !is_test && at > 0 && atomic_fetch_add(&n_copies, 1) + 1 == at ? NULL
                                                                          : __real_strdup(text);
}

static int start_with(const char *name)
{
    quire_server_opts opts = server_fixture_opts();

    is_test = true;
    chat_template = chat_fixture_template(name);
    opts.chat_template = chat_template;
    server_fixture_start(&f, &opts);
    return 0;
}

static int start(void **state)
{
    (void)state;
    return start_with("Qwen-Qwen3-0.6B");
}

/* A format with a stop text of its own. */
static int start_laguna(void **state)
{
    (void)state;
    return start_with("poolside-Laguna-XS.2");
}

static int start_without_tools(void **state)
{
    (void)state;
    return start_with("google-gemma-2-2b-it");
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    free(chat_template);
    return 0;
}

static const char *const call_pieces[] = {
    "<think>",     "\nTwo ",         "numbers",
    ".\n</th",     "ink>\n\n<tool_", "call>\n{\"na",
    "me\": \"add", "\", \"argum",    "ents\": {\"a\": 2, ",
    "\"b\": 3}}",  "\n</tool_call>",
};
static const engine_script call_script = {
    .pieces = call_pieces,
    .n_pieces = sizeof call_pieces / sizeof call_pieces[0],
    .finish = QUIRE_FINISH_STOP,
    .tail = "",
    .n_thought_tokens = 3,
};

/* ---- answers ---- */

static void expect_sum(const char *arguments)
{
    json_t *root = json_loads(arguments, 0, NULL);

    assert_int_equal(json_integer_value(json_object_get(root, "a")), 2);
    assert_int_equal(json_integer_value(json_object_get(root, "b")), 3);
    json_decref(root);
}

static void a_call_is_a_part_of_the_message(void **state)
{
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &call_script);
    root = http_post_json(f.port, CHAT, "{" ASK_ADD "}", 200);
    assert_string_equal(json_string_at(root, "choices.0.finish_reason"), "tool_calls");
    assert_true(json_is_null(json_at(root, "choices.0.message.content")));
    assert_string_equal(json_string_at(root, "choices.0.message.reasoning_content"),
                        "Two numbers.\n");
    assert_string_equal(json_string_at(root, "choices.0.message.tool_calls.0.type"), "function");
    assert_string_equal(json_string_at(root, "choices.0.message.tool_calls.0.function.name"),
                        "add");
    expect_sum(json_string_at(root, "choices.0.message.tool_calls.0.function.arguments"));
    assert_true(strlen(json_string_at(root, "choices.0.message.tool_calls.0.id")) > 8);
    assert_int_equal(json_int_at(root, "usage.completion_tokens_details.reasoning_tokens"), 3);
    json_decref(root);
    root = http_post_json(f.port, CHAT, "{\"n\":2," ASK_ADD "}", 200);
    assert_int_equal(json_int_at(root, "usage.completion_tokens_details.reasoning_tokens"), 6);
    json_decref(root);
}

typedef struct heard {
    char reasoning[256], content[256], arguments[256], name[64], finish[32];
    unsigned n_ids;
} heard;

static void append_field(char *buffer, size_t size, json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);

    if (json_is_string(value)) {
        text_append(buffer, size, json_string_value(value));
    }
}

static void hear(void *ctx, const char *data)
{
    heard *h = ctx;
    json_t *root = json_loads(data, 0, NULL);
    json_t *choice, *delta, *call, *function;

    if (root == NULL) {
        return; /* [DONE] */
    }
    choice = json_array_get(json_object_get(root, "choices"), 0);
    delta = json_object_get(choice, "delta");
    call = json_array_get(json_object_get(delta, "tool_calls"), 0);
    function = json_object_get(call, "function");
    append_field(h->reasoning, sizeof h->reasoning, delta, "reasoning_content");
    append_field(h->content, sizeof h->content, delta, "content");
    append_field(h->arguments, sizeof h->arguments, function, "arguments");
    append_field(h->name, sizeof h->name, function, "name");
    append_field(h->finish, sizeof h->finish, choice, "finish_reason");
    h->n_ids += json_object_get(call, "id") != NULL;
    json_decref(root);
}

static void deltas_of_a_stream_make_up_the_answer(void **state)
{
    http_reply reply;
    heard h = { 0 };

    (void)state;
    engine_double_script(f.engine, &call_script);
    reply = http_post(f.port, CHAT, "{\"stream\":true," ASK_ADD "}");
    assert_int_equal(reply.status, 200);
    (void)http_events(&reply, hear, &h);
    http_reply_free(&reply);
    assert_string_equal(h.reasoning, "Two numbers.\n");
    assert_string_equal(h.content, "");
    assert_string_equal(h.name, "add");
    assert_string_equal(h.finish, "tool_calls");
    assert_int_equal(h.n_ids, 1);
    expect_sum(h.arguments);
}

static const char *finish_with_stop(const engine_script *script)
{
    static char finish[32];
    json_t *root;

    engine_double_script(f.engine, script);
    root = http_post_json(f.port, CHAT, "{" ASK_ADD ",\"stop\":[\"END\"]}", 200);
    assert_int_equal(json_array_size(json_at(root, "choices.0.message.tool_calls")), 1);
    (void)snprintf(finish, sizeof finish, "%s", json_string_at(root, "choices.0.finish_reason"));
    json_decref(root);
    return finish;
}

/* A client runs the calls of an answer that ends with tool_calls. */
static void a_stop_text_inside_a_call_is_no_end_by_calls(void **state)
{
    engine_script script = call_script;

    (void)state;
    script.stops_at_first = true;
    assert_string_equal(finish_with_stop(&script), "tool_calls"); /* behind the call */
    script.n_pieces -= 2;                                         /* inside the arguments */
    assert_string_equal(finish_with_stop(&script), "stop");
}

static void thoughts_can_stay_in_the_content(void **state)
{
    static const char *const pieces[] = { "<think>\nWhy", "?\n</think>\n\n", "Hi." };
    const engine_script script = {
        .pieces = pieces, .n_pieces = 3, .finish = QUIRE_FINISH_STOP, .tail = ""
    };
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{" HI "}", 200);
    assert_string_equal(json_string_at(root, "choices.0.message.content"), "Hi.");
    assert_string_equal(json_string_at(root, "choices.0.message.reasoning_content"), "Why?\n");
    assert_string_equal(json_string_at(root, "choices.0.finish_reason"), "stop");
    json_decref(root);
    root = http_post_json(f.port, CHAT, "{\"reasoning_format\":\"none\"," HI "}", 200);
    assert_string_equal(json_string_at(root, "choices.0.message.content"),
                        "<think>\nWhy?\n</think>\n\nHi.");
    json_decref(root);
}

static void a_cut_call_is_no_end_by_calls(void **state)
{
    const engine_script script = {
        .pieces = call_pieces, .n_pieces = 9, .finish = QUIRE_FINISH_LENGTH, .tail = ""
    };
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{" ASK_ADD "}", 200);
    assert_string_equal(json_string_at(root, "choices.0.finish_reason"), "length");
    assert_string_equal(json_string_at(root, "choices.0.message.reasoning_content"),
                        "Two numbers.\n");
    json_decref(root);
}

/* No template can write half a call, so a later turn does without it. */
static void a_session_goes_on_behind_a_cut_call(void **state)
{
    engine_script script = call_script;
    json_t *root;

    (void)state;
    script.n_pieces -= 2;
    script.finish = QUIRE_FINISH_LENGTH;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{\"session_id\":\"s\"," ASK_ADD "}", 200);
    assert_non_null(json_at(root, "choices.0.message.tool_calls.0"));
    assert_true(json_is_true(json_at(root, "quire.session_kept")));
    json_decref(root);
    engine_double_script(f.engine, &engine_script_hello);
    json_decref(http_post_json(f.port, CHAT, "{\"session_id\":\"s\"," HI "}", 200));
}

#define CALL_OF(arguments)                                                                         \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"},{\"role\":\"assistant\",\"tool_"      \
    "calls\":[{"                                                                                   \
    "\"id\":\"1\",\"function\":{\"name\":\"add\",\"arguments\":\"" arguments                       \
    "\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"no JSON\"}]}"

/* A client sends a cut call back, and what its tool says about it. */
static void a_client_goes_on_behind_a_cut_call(void **state)
{
    static const char *const cases[][2] = {
        { CALL_OF("{\\\"a\\\": 2, \\\"b\\\": "), CALL_OF("{\\\"a\\\": 2}") },
        { CALL_OF("{\\\"a\\\": \\\"x y"), CALL_OF("{\\\"a\\\": \\\"x y\\\"}") },
        { CALL_OF(""), CALL_OF("{}") },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *cut = http_post_json(f.port, "/apply-template", cases[i][0], 200);
        json_t *whole = http_post_json(f.port, "/apply-template", cases[i][1], 200);

        assert_string_equal(json_string_at(cut, "prompt"), json_string_at(whole, "prompt"));
        json_decref(cut);
        json_decref(whole);
    }
}

/* ---- schemas behind thoughts ---- */

/* A request with a text in it is taken, and a part of the engine's grammar is as said. */
static void expect_in_grammar(const char *format, const char *text, const char *part)
{
    const char *at = strstr(format, "%s");
    char body[1024];

    (void)snprintf(body, sizeof body, "%.*s%s%s", (int)(at - format), format, text, at + 2);
    json_decref(http_post_json(f.port, CHAT, body, 200));
    if (strstr(engine_double_seen(f.engine).rules_grammar, part) == NULL) {
        fail_msg("%s: %s", text, engine_double_seen(f.engine).rules_grammar);
    }
}

static void schemas_of_any_value_are_schemas(void **state)
{
    static const char *const schemas[] = {
        "true",
        "{}",
        "\"true\"",
        "{\"properties\":{\"a\":true},\"required\":[\"a\"]}",
        "{\"type\":\"array\",\"items\":true}",
        "{\"anyOf\":[{\"$ref\":\"#/$defs/x\"}],\"$defs\":{\"x\":true}}",
        "{\"additionalProperties\":{\"type\":\"array\",\"prefixItems\":[true,{}]}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        expect_in_grammar("{\"json_schema\":%s," HI "}", schemas[i], "value");
    }
}

/* The library of chat formats reads none of these; the grammars are ours. */
static void schemas_beyond_the_library_constrain(void **state)
{
    static const char *const schemas[] = {
        "{\"$ref\":\"#/$defs/My%20Type\",\"$defs\":{\"My Type\":{\"const\":\"only\"}}}",
        "{\"items\":{\"$ref\":\"#/$defs/a~1b\"},\"$defs\":{\"a/b\":{\"const\":\"only\"}}}",
        "{\"properties\":{\"a\":{\"const\":\"only\"},\"b\":{\"$ref\":\"#\"}}}",
        "{\"anyOf\":[false,{\"const\":\"only\"}]}",
        "{\"type\":\"string\",\"anyOf\":[{\"const\":\"only\"},false]}",
        "{\"anyOf\":[false,{\"const\":\"only\"},{\"items\":{\"$ref\":\"#/anyOf/2\"}}]}",
        "{\"prefixItems\":[{\"const\":\"only\"}],\"items\":false}",
        "{\"items\":[true,{\"const\":\"only\"}]}",
    };
    static const char *const parameters[] = {
        "\"properties\":{\"a\":{\"$ref\":\"#/$defs/My%20Type\"}},"
        "\"$defs\":{\"My Type\":{\"const\":\"only\"}}",
        "\"properties\":{\"a\":{\"items\":{\"$ref\":\"#/$defs/a~1b\"}}},"
        "\"$defs\":{\"a/b\":{\"const\":\"only\"}}",
        "\"properties\":{\"a\":{\"const\":\"only\"},\"b\":{\"$ref\":\"#\"}}",
        "\"properties\":{\"a\":{\"anyOf\":[false,{\"const\":\"only\"}]},\"b\":true}",
        "\"properties\":{\"a\":{\"const\":\"only\"},\"b\":{\"items\":[true]}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        expect_in_grammar("{\"json_schema\":%s," HI "}", schemas[i], "only");
    }
    for (size_t i = 0; i < sizeof parameters / sizeof parameters[0]; i++) {
        expect_in_grammar("{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"t\","
                          "\"parameters\":{\"type\":\"object\",%s}}}]," HI "}",
                          parameters[i], "only");
    }
}

static void large_integers_in_tools_are_numbers(void **state)
{
    (void)state;
    expect_in_grammar("{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"t\","
                      "\"parameters\":{\"properties\":{\"a\":%s}}}}]," HI "}",
                      "{\"type\":\"integer\",\"minimum\":17,\"maximum\":18446744073709551615}",
                      "[1-9] [0-9]{2");
    json_decref(http_post_json(
        f.port, CHAT,
        "{\"tools\":[" ADD_TOOL "],\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
        "\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":9223372036854775808}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"y\"}]}",
        200));
}

/* ---- requests ---- */

static void expect_error(const char *body, const char *code, const char *words)
{
    json_t *root = http_post_json(f.port, CHAT, body, 400);

    assert_string_equal(json_string_at(root, "error.code"), code);
    if (strstr(json_string_at(root, "error.message"), words) == NULL) {
        fail_msg("%s: %s", body, json_string_at(root, "error.message"));
    }
    json_decref(root);
}

static void refuses_tools_that_are_none(void **state)
{
    static const char *const cases[][3] = {
        { "{" HI ",\"tools\":{}}", "invalid_value", "tools" },
        { "{" HI ",\"tools\":[1]}", "invalid_value", "element 0" },
        { "{" HI ",\"tools\":[{\"type\":\"web_search\"}]}", "invalid_value", "\"function\"" },
        { "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}",
          "invalid_value", "function.name" },
        { "{" HI ",\"tools\":[" ADD_TOOL "," ADD_TOOL "]}", "invalid_value", "two functions" },
        { "{" HI ",\"tool_choice\":\"required\"}", "invalid_value", "needs tools" },
        { "{" ASK_ADD ",\"tool_choice\":\"sometimes\"}", "invalid_value", "tool_choice" },
        { "{" ASK_ADD ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}}",
          "invalid_value", "tool_choice: tools has no function \"sub\"" },
        { "{" ASK_ADD ",\"grammar\":\"root ::= [a]\"}", "invalid_value", "not together" },
        { "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":true,"
          "\"parameters\":{\"properties\":{\"b\":{\"not\":{}}}}}}]}",
          "invalid_value", "#/properties/b: not supported is the keyword \"not\"" },
        { "{" HI ",\"reasoning_format\":\"loud\"}", "invalid_value", "reasoning_format" },
        { "{" HI ",\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}}", "invalid_value",
          "enable_thinking" },
        { "{" HI ",\"continue_final_message\":true}", "invalid_value", "assistant" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]}",
          "unsupported_parameter", "tool_calls" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"a\","
          "\"arguments\":{}}}]}]}",
          "invalid_value", "string of JSON" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"a\","
          "\"arguments\":\"{oops\"}}]}]}",
          "invalid_value", "element 0: function.arguments is no JSON: line 1, column" },
        { "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]}",
          "invalid_value", "function.strict" },
        { "{\"messages\":[{\"role\":\"function\",\"content\":\"x\"}]}", "invalid_value", "role" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_error(cases[i][0], cases[i][1], cases[i][2]);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

/* The answer would not show that the prompt lacks them. */
static void a_template_without_tools_refuses_them(void **state)
{
    (void)state;
    expect_error("{" ASK_ADD "}", "unsupported_parameter",
                 "tools: the model's chat template has no tools");
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
    json_decref(http_post_json(f.port, CHAT, "{" ASK_ADD ",\"tool_choice\":\"none\"}", 200));
    json_decref(http_post_json(f.port, CHAT, "{" HI ",\"tools\":[]}", 200));
}

/* The number of tokens of a request's prompt. */
static uint32_t prompt_of(const char *body)
{
    json_decref(http_post_json(f.port, CHAT, body, 200));
    return engine_double_seen(f.engine).params.n_tokens;
}

static void the_prompt_has_what_the_request_says(void **state)
{
    const uint32_t plain = prompt_of("{" HI "}");

    (void)state;
    assert_true(prompt_of("{\"tools\":[" ADD_TOOL "]," HI "}") > plain + 20);
    assert_true(prompt_of("{\"enable_thinking\":false," HI "}") > plain);
    assert_int_equal(prompt_of("{\"chat_template_kwargs\":{\"enable_thinking\":false}," HI "}"),
                     prompt_of("{\"reasoning_effort\":\"none\"," HI "}"));
    assert_true(prompt_of("{\"add_generation_prompt\":false," HI "}") < plain);
    assert_true(prompt_of("{\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"},{\"role\":"
                          "\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"x\",\"type\":"
                          "\"function\",\"function\":{\"name\":\"add\",\"arguments\":\"{}\"}}]},"
                          "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"5\"}]}") >
                plain + 20);
}

/* The tokens that a full context keeps, as text. Memory: free(). */
static char *kept_text(const char *body)
{
    quire_bytes text = { 0 };
    engine_seen seen;

    json_decref(http_post_json(f.port, CHAT, body, 200));
    seen = engine_double_seen(f.engine);
    assert_true(seen.params.context_keep <= seen.params.n_tokens);
    assert_true(seen.params.context_keep <= SEEN_TOKENS_MAX);
    for (uint32_t i = 0; i < seen.params.context_keep; i++) {
        char piece[64];
        const int64_t n =
            quire_model_token_text(f.model, seen.tokens[i], true, piece, sizeof piece);

        assert_true(n >= 0 && n <= (int64_t)sizeof piece);
        assert_int_equal(quire_bytes_add(&text, piece, (size_t)n), QUIRE_OK);
    }
    assert_int_equal(quire_bytes_add(&text, "", 1), QUIRE_OK);
    return text.data;
}

/* A context that is condensed keeps the definitions of tools, with instructions before them and
 * without. */
static void condense_keeps_the_tools(void **state)
{
    static const char condense[] = "\"context_overflow\":\"condense\",\"max_tokens\":8000,";
    char body[1024];
    char *text;

    (void)state;
    (void)snprintf(body, sizeof body, "{%s" ASK_ADD "}", condense);
    text = kept_text(body);
    assert_non_null(strstr(text, "\"description\": \"Adds\""));
    assert_non_null(strstr(text, "\"required\": [\"a\", \"b\"]"));
    assert_null(strstr(text, "2+3?"));
    free(text);
    (void)snprintf(body, sizeof body,
                   "{%s\"tools\":[" ADD_TOOL "],\"messages\":[{\"role\":\"system\",\"content\":"
                   "\"Be brief.\"},{\"role\":\"user\",\"content\":\"2+3?\"}]}",
                   condense);
    text = kept_text(body);
    assert_non_null(strstr(text, "Be brief."));
    assert_non_null(strstr(text, "\"description\": \"Adds\""));
    assert_null(strstr(text, "2+3?"));
    free(text);
}

static void an_answer_goes_on_with_the_last_message(void **state)
{
    json_t *root;

    (void)state;
    root = http_post_json(f.port, CHAT,
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
                          "\"assistant\",\"content\":\"Well, \"}],\"continue_final_message\":true}",
                          200);
    assert_string_equal(json_string_at(root, "choices.0.message.content"), "Hello there");
    json_decref(root);
}

/* ---- stop texts of the format ---- */

/* Ask with n stop texts. */
static http_reply ask_with_stops(unsigned n)
{
    char body[512] = "{" ASK_ADD ",\"stop\":[";

    for (unsigned i = 0; i < n; i++) {
        text_append(body, sizeof body, i > 0 ? ",\"END\"" : "\"END\"");
    }
    text_append(body, sizeof body, "]}");
    return http_post(f.port, CHAT, body);
}

static void the_formats_stops_follow_the_requests(void **state)
{
    http_reply reply;
    engine_seen seen;

    (void)state;
    reply = ask_with_stops(2);
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    seen = engine_double_seen(f.engine);
    assert_int_equal(seen.params.n_stops, 3);
    assert_string_equal(seen.stops[1], "END");
    assert_string_equal(seen.stops[2], "</assistant>");
    reply = ask_with_stops(QUIRE_STOPS_MAX - 1);
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    assert_int_equal(engine_double_seen(f.engine).params.n_stops, QUIRE_STOPS_MAX);
    reply = ask_with_stops(QUIRE_STOPS_MAX);
    assert_int_equal(reply.status, 400);
    assert_non_null(strstr(reply.body, "stop: the chat format has 1 texts of its own, which "
                                       "leaves 15"));
    http_reply_free(&reply);
}

/* A request whose texts cannot all be copied is refused for want of memory; the next one is not. */
static void texts_without_memory_are_refused(void **state)
{
    unsigned n_refused = 0;

    (void)state;
    for (unsigned at = 1;; at++) {
        http_reply reply;

        atomic_store(&n_copies, 0);
        atomic_store(&fail_at, at);
        reply = ask_with_stops(1);
        while (!quire_server_is_idle(f.server)) { /* its memory is released */
            test_doze();
        }
        atomic_store(&fail_at, 0);
        if (reply.status != 200 && reply.status != 503) {
            fail_msg("copy %u: status %d, %s", at, reply.status, reply.body);
        }
        n_refused += reply.status == 503;
        http_reply_free(&reply);
        if (atomic_load(&n_copies) < at) {
            break;
        }
    }
    assert_true(n_refused >= 3); /* the stop text, the grammar, the shown tokens at least */
    assert_int_equal(engine_double_seen(f.engine).params.n_stops, 2);
}

/* ---- the history ---- */

/* A history is asked for with its explanation. */
static json_t *ask_on(const char *answer)
{
    char body[1024];

    (void)snprintf(body, sizeof body,
                   "{\"explain_cache\":true,\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"},"
                   "%s,{\"role\":\"user\",\"content\":\"And 4?\"}]}",
                   answer);
    return http_post_json(f.port, CHAT, body, 200);
}

/* Thoughts of earlier turns: Qwen3's template leaves them out, and the explanation says so. */
static void the_template_is_the_reason_of_a_miss(void **state)
{
    static const char *const pieces[] = { "<think>\nEasy.\n</think>\n\n", "5." };
    const engine_script script = {
        .pieces = pieces, .n_pieces = 2, .finish = QUIRE_FINISH_STOP, .tail = ""
    };
    static const char thoughtful[] = "{\"role\":\"assistant\",\"content\":\"5.\","
                                     "\"reasoning_content\":\"Easy.\\n\"}";
    json_t *root;

    (void)state;
    engine_double_script(f.engine, &script);
    json_decref(http_post_json(f.port, CHAT,
                               "{\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"}]}", 200));
    root = ask_on(thoughtful);
    assert_true(json_is_true(json_at(root, "quire.template.rewrites_answer")));
    assert_int_equal(json_int_at(root, "quire.template.kept_answers"), 0);
    assert_true(json_int_at(root, "quire.template.rewritten_at_byte") > 0);
    assert_non_null(strstr(json_string_at(root, "quire.template.reason"), "the chat template"));
    json_decref(root);
}

/* An answer that the template writes with other blanks stays as the model said it. */
static void the_models_own_answer_stays(void **state)
{
    static const char *const pieces[] = {
        "<think>\nTwo numbers.\n</think>\n\n",
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":2,  \"b\":3}}\n</tool_call>",
    };
    const engine_script script = {
        .pieces = pieces, .n_pieces = 2, .finish = QUIRE_FINISH_STOP, .tail = ""
    };
    char body[2048];
    json_t *root;
    char *text;

    (void)state;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{" ASK_ADD "}", 200);
    text = json_dumps(json_at(root, "choices.0.message"), JSON_COMPACT);
    assert_non_null(text);
    (void)snprintf(body, sizeof body,
                   "{\"explain_cache\":true,\"tools\":[" ADD_TOOL
                   "],\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"},%s,{\"role\":"
                   "\"tool\",\"tool_call_id\":\"x\",\"content\":\"5\"}]}",
                   text);
    free(text);
    json_decref(root);
    root = http_post_json(f.port, CHAT, body, 200);
    assert_int_equal(json_int_at(root, "quire.template.kept_answers"), 1);
    assert_false(json_is_true(json_at(root, "quire.template.rewrites_answer")));
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_is_a_part_of_the_message, start, stop),
        cmocka_unit_test_setup_teardown(deltas_of_a_stream_make_up_the_answer, start, stop),
        cmocka_unit_test_setup_teardown(thoughts_can_stay_in_the_content, start, stop),
        cmocka_unit_test_setup_teardown(a_cut_call_is_no_end_by_calls, start, stop),
        cmocka_unit_test_setup_teardown(a_stop_text_inside_a_call_is_no_end_by_calls, start, stop),
        cmocka_unit_test_setup_teardown(a_session_goes_on_behind_a_cut_call, start, stop),
        cmocka_unit_test_setup_teardown(a_client_goes_on_behind_a_cut_call, start, stop),
        cmocka_unit_test_setup_teardown(schemas_of_any_value_are_schemas, start, stop),
        cmocka_unit_test_setup_teardown(schemas_beyond_the_library_constrain, start, stop),
        cmocka_unit_test_setup_teardown(large_integers_in_tools_are_numbers, start, stop),
        cmocka_unit_test_setup_teardown(refuses_tools_that_are_none, start, stop),
        cmocka_unit_test_setup_teardown(a_template_without_tools_refuses_them, start_without_tools,
                                        stop),
        cmocka_unit_test_setup_teardown(the_prompt_has_what_the_request_says, start, stop),
        cmocka_unit_test_setup_teardown(condense_keeps_the_tools, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_goes_on_with_the_last_message, start, stop),
        cmocka_unit_test_setup_teardown(the_formats_stops_follow_the_requests, start_laguna, stop),
        cmocka_unit_test_setup_teardown(texts_without_memory_are_refused, start_laguna, stop),
        cmocka_unit_test_setup_teardown(the_template_is_the_reason_of_a_miss, start, stop),
        cmocka_unit_test_setup_teardown(the_models_own_answer_stays, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
