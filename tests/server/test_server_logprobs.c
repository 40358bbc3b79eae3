/* test_server_logprobs.c - log-probabilities of prompts: OpenAI's form with `echo`, vLLM's
 * `prompt_logprobs`, answers of no tokens, streams, refusals. The engine's double makes up the
 * values: -i for token i, whose rank is i + 2.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"
#define HI   "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

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

static json_t *ask(const char *path, const char *body, int status)
{
    return http_post_json(f.port, path, body, status);
}

static void equals(json_t *number, double value)
{
    assert_true(json_is_number(number));
    assert_true(json_number_value(number) >= value && json_number_value(number) <= value);
}

static void number_is(json_t *root, const char *path, double value)
{
    equals(json_at(root, path), value);
}

/* A token's values in an element of prompt_logprobs. */
static void token_is(json_t *root, const char *path, const char *token, double logprob, int rank)
{
    json_t *values = json_object_get(json_at(root, path), token);

    equals(json_object_get(values, "logprob"), logprob);
    equals(json_object_get(values, "rank"), rank);
    assert_true(json_is_string(json_object_get(values, "decoded_token")));
}

/* ---- echo ---- */

static void an_echo_has_the_prompts_values(void **state)
{
    json_t *root =
        ask(TEXT, "{\"prompt\":\"a b\",\"echo\":true,\"logprobs\":1,\"max_tokens\":1}", 200);
    const engine_seen seen = engine_double_seen(f.engine);
    json_t *list = json_at(root, "choices.0.logprobs.tokens");
    const size_t n = seen.params.n_tokens;

    (void)state;
    assert_true(seen.params.has_prompt_logprobs && !seen.params.is_prompt_only);
    assert_int_equal(seen.params.n_prompt_top_logprobs, 1);
    assert_int_equal(seen.params.max_tokens, 1);
    assert_int_equal(json_array_size(list), n + 1);
    assert_string_equal(json_string_at(root, "choices.0.text"), "a bHello");
    assert_string_equal(json_string_at(root, "choices.0.logprobs.tokens.0"), "<s>");
    assert_string_equal(json_string_at(root, "choices.0.logprobs.tokens.1"), " a");
    /* The first token has no values. The text has neither `<s>` nor the first blank. */
    assert_true(json_is_null(json_at(root, "choices.0.logprobs.token_logprobs.0")));
    assert_true(json_is_null(json_at(root, "choices.0.logprobs.top_logprobs.0")));
    number_is(root, "choices.0.logprobs.token_logprobs.1", -1.0);
    number_is(root, "choices.0.logprobs.token_logprobs.2", -2.0);
    number_is(root, "choices.0.logprobs.text_offset.0", 0);
    number_is(root, "choices.0.logprobs.text_offset.1", 0);
    number_is(root, "choices.0.logprobs.text_offset.2", 1);
    /* The likeliest token, and the prompt's own. */
    assert_int_equal(json_object_size(json_at(root, "choices.0.logprobs.top_logprobs.1")), 2);
    list = json_at(root, "choices.0.logprobs.text_offset");
    assert_int_equal(json_integer_value(json_array_get(list, n)), 3); /* behind "a b" */
    list = json_at(root, "choices.0.logprobs.token_logprobs");
    assert_true(json_number_value(json_array_get(list, n)) > -0.6);
    json_decref(root);
}

/* A token of the prompt that is one of the likeliest stands there once. */
static void likely_tokens_stand_once(void **state)
{
    json_t *root =
        ask(TEXT, "{\"prompt\":[100,100,7],\"echo\":true,\"logprobs\":2,\"max_tokens\":1}", 200);

    (void)state;
    assert_int_equal(json_object_size(json_at(root, "choices.0.logprobs.top_logprobs.1")), 2);
    assert_int_equal(json_object_size(json_at(root, "choices.0.logprobs.top_logprobs.2")), 3);
    json_decref(root);
    root = ask(TEXT, "{\"prompt\":[100,101],\"echo\":true,\"logprobs\":0,\"max_tokens\":1}", 200);
    assert_int_equal(json_object_size(json_at(root, "choices.0.logprobs.top_logprobs.1")), 1);
    json_decref(root);
}

/* As evaluation programs ask: several prompts of tokens, each with its own values. */
static void several_prompts(void **state)
{
    json_t *root = ask(TEXT,
                       "{\"prompt\":[[70,71,72,73],[80,81]],\"echo\":true,\"logprobs\":1,"
                       "\"max_tokens\":0,\"temperature\":0,\"seed\":1234}",
                       200);
    const engine_seen seen = engine_double_seen(f.engine);

    (void)state;
    assert_true(seen.params.is_prompt_only);
    assert_int_equal(json_array_size(json_at(root, "choices")), 2);
    assert_int_equal(json_array_size(json_at(root, "choices.0.logprobs.token_logprobs")), 4);
    assert_int_equal(json_array_size(json_at(root, "choices.1.logprobs.token_logprobs")), 2);
    number_is(root, "choices.0.logprobs.token_logprobs.3", -3.0);
    number_is(root, "choices.1.logprobs.token_logprobs.1", -1.0);
    number_is(root, "choices.1.logprobs.text_offset.0", 0);
    assert_string_equal(json_string_at(root, "choices.0.finish_reason"), "length");
    assert_int_equal(json_int_at(root, "usage.completion_tokens"), 0);
    assert_int_equal(json_int_at(root, "usage.prompt_tokens"), 6);
    json_decref(root);
}

/* The values of a prompt come from its first answer. */
static void several_answers(void **state)
{
    json_t *root = ask(TEXT,
                       "{\"prompt\":[[70,71,72],[80,81]],\"echo\":true,\"logprobs\":1,\"n\":2,"
                       "\"max_tokens\":1}",
                       200);

    (void)state;
    assert_false(engine_double_seen(f.engine).params.has_prompt_logprobs); /* the last one */
    assert_int_equal(json_array_size(json_at(root, "choices.1.logprobs.token_logprobs")), 4);
    number_is(root, "choices.1.logprobs.token_logprobs.2", -2.0);
    assert_int_equal(json_array_size(json_at(root, "choices.3.logprobs.token_logprobs")), 3);
    number_is(root, "choices.3.logprobs.token_logprobs.1", -1.0);
    json_decref(root);
}

static void an_echo_without_values_and_answer(void **state)
{
    json_t *root = ask(TEXT, "{\"prompt\":\"a b\",\"echo\":true,\"max_tokens\":0}", 200);

    (void)state;
    assert_false(engine_double_seen(f.engine).params.has_prompt_logprobs);
    assert_true(engine_double_seen(f.engine).params.is_prompt_only);
    assert_string_equal(json_string_at(root, "choices.0.text"), "a b");
    assert_true(json_is_null(json_at(root, "choices.0.logprobs")));
    json_decref(root);
}

/* The prompt's values come with its text, in the first event. */
static void a_stream_begins_with_them(void **state)
{
    http_reply reply = http_post(
        f.port, TEXT, "{\"prompt\":[70,71],\"echo\":true,\"logprobs\":1,\"stream\":true,\"n\":2}");
    const char *first = strstr(reply.body, "data: ");
    const char *end = strstr(first, "\n\n");
    char event[1024];
    json_t *root;

    (void)state;
    assert_true((size_t)(end - first) < sizeof event);
    (void)snprintf(event, sizeof event, "%.*s", (int)(end - first - 6), first + 6);
    root = json_loads(event, 0, NULL);
    assert_non_null(root);
    assert_int_equal(json_array_size(json_at(root, "choices.0.logprobs.token_logprobs")), 2);
    assert_true(json_string_length(json_at(root, "choices.0.text")) > 0);
    json_decref(root);
    first = strstr(reply.body, "[null,-1]");
    assert_non_null(first);
    assert_non_null(strstr(first + 1, "[null,-1]")); /* of the second answer */
    assert_null(strstr(strstr(first + 1, "[null,-1]") + 1, "[null,-1]"));
    assert_true(engine_double_seen(f.engine).params.has_prompt_logprobs);
    http_reply_free(&reply);
}

/* ---- prompt_logprobs ---- */

static void completions_have_vllms_form(void **state)
{
    json_t *root =
        ask(TEXT, "{\"prompt\":[70,71,101],\"prompt_logprobs\":2,\"max_tokens\":1,\"logprobs\":0}",
            200);
    const engine_seen seen = engine_double_seen(f.engine);

    (void)state;
    assert_true(seen.params.has_prompt_logprobs);
    assert_int_equal(seen.params.n_prompt_top_logprobs, 2);
    assert_int_equal(seen.params.n_top_logprobs, 0);
    assert_int_equal(json_array_size(json_at(root, "choices.0.prompt_logprobs")), 3);
    assert_true(json_is_null(json_at(root, "choices.0.prompt_logprobs.0")));
    assert_int_equal(json_object_size(json_at(root, "choices.0.prompt_logprobs.1")), 3);
    token_is(root, "choices.0.prompt_logprobs.1", "71", -1.0, 3);
    token_is(root, "choices.0.prompt_logprobs.1", "100", -0.25, 1);
    token_is(root, "choices.0.prompt_logprobs.1", "101", -1.5, 2);
    assert_int_equal(json_object_size(json_at(root, "choices.0.prompt_logprobs.2")), 2);
    assert_null(json_object_get(root, "prompt_logprobs"));
    assert_int_equal(json_array_size(json_at(root, "choices.0.logprobs.tokens")), 1);
    json_decref(root);
}

static void chats_have_it_at_the_top(void **state)
{
    json_t *root = ask(CHAT, "{" HI ",\"prompt_logprobs\":0,\"max_tokens\":0,\"n\":2}", 200);

    (void)state;
    assert_true(engine_double_seen(f.engine).params.is_prompt_only);
    assert_int_equal(json_array_size(json_at(root, "prompt_logprobs")),
                     json_int_at(root, "usage.prompt_tokens"));
    assert_true(json_is_null(json_at(root, "prompt_logprobs.0")));
    assert_int_equal(json_object_size(json_at(root, "prompt_logprobs.1")), 1);
    assert_null(json_object_get(json_at(root, "choices.0"), "prompt_logprobs"));
    json_decref(root);
    root = ask(CHAT, "{" HI ",\"prompt_logprobs\":null}", 200);
    assert_null(json_object_get(root, "prompt_logprobs"));
    json_decref(root);
    root = ask(CHAT, "{" HI ",\"prompt_logprobs\":false}", 200);
    assert_null(json_object_get(root, "prompt_logprobs"));
    json_decref(root);
}

static void both_forms_at_once(void **state)
{
    json_t *root = ask(TEXT,
                       "{\"prompt\":[70,71],\"prompt_logprobs\":2,\"echo\":true,\"logprobs\":1,"
                       "\"max_tokens\":0}",
                       200);

    (void)state;
    assert_int_equal(engine_double_seen(f.engine).params.n_prompt_top_logprobs, 2);
    assert_int_equal(json_object_size(json_at(root, "choices.0.prompt_logprobs.1")), 3);
    assert_int_equal(json_object_size(json_at(root, "choices.0.logprobs.top_logprobs.1")), 2);
    json_decref(root);
}

/* ---- refusals ---- */

static void refusals_name_the_field(void **state)
{
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        { TEXT, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens" },
        { TEXT, "{\"prompt\":\"a\",\"max_tokens\":0,\"logprobs\":1}", "max_tokens" },
        { TEXT, "{\"prompt\":\"a\",\"max_tokens\":0,\"echo\":true,\"min_tokens\":1}",
          "min_tokens" },
        { TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs" },
        { TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":21}", "prompt_logprobs" },
        { TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":-1}", "prompt_logprobs" },
        { TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":true}", "prompt_logprobs" },
        { TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":0,\"max_tokens\":0,\"session_id\":\"s\"}",
          "max_tokens" },
        { CHAT, "{" HI ",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs" },
        { CHAT, "{" HI ",\"max_tokens\":0}", "max_tokens" },
        { "/completion", "{\"prompt\":\"a\",\"prompt_logprobs\":1}", "prompt_logprobs" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = ask(cases[i].path, cases[i].body, 400);

        assert_string_equal(json_string_at(root, "error.param"), cases[i].param);
        json_decref(root);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

/* The values of all prompts together: each alone has room. */
static void memory_has_a_limit(void **state)
{
    static const struct {
        const char *fields, *param;
    } cases[] = {
        { "\"echo\":true,\"logprobs\":20", "logprobs" },
        { "\"prompt_logprobs\":20", "prompt_logprobs" },
    };
    quire_bytes prompt = { 0 };

    (void)state;
    for (uint32_t i = 0; i < 8000; i++) {
        (void)quire_bytes_addf(&prompt, "%s7", i > 0 ? "," : "[");
    }
    assert_int_equal(quire_bytes_addf(&prompt, "]"), QUIRE_OK);
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t n = 6; n <= 7; n++) {
            quire_bytes body = { 0 };
            json_t *root;

            (void)quire_bytes_addf(&body, "{%s,\"prompt\":[%s", cases[i].fields, prompt.data);
            for (uint32_t k = 1; k < n; k++) {
                (void)quire_bytes_addf(&body, ",%s", prompt.data);
            }
            assert_int_equal(quire_bytes_addf(&body, "]}"), QUIRE_OK);
            root = ask(TEXT, body.data, n == 6 ? 200 : 400);
            if (n == 7) {
                assert_string_equal(json_string_at(root, "error.param"), cases[i].param);
            }
            json_decref(root);
            quire_bytes_fini(&body);
        }
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 12);
    quire_bytes_fini(&prompt);
}

#define IT(test) cmocka_unit_test_setup_teardown(test, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IT(an_echo_has_the_prompts_values),
        IT(likely_tokens_stand_once),
        IT(several_prompts),
        IT(several_answers),
        IT(an_echo_without_values_and_answer),
        IT(a_stream_begins_with_them),
        IT(completions_have_vllms_form),
        IT(chats_have_it_at_the_top),
        IT(both_forms_at_once),
        IT(refusals_name_the_field),
        IT(memory_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
