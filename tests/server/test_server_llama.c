/* test_server_llama.c - llama-server's paths: /completion, /apply-template, /slots, /props and the
 * aliases; and echo of text completions.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include <string.h>

#define COMPLETION "/completion"

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

static void a_completion_has_content(void **state)
{
    json_t *root = http_post_json(f.port, COMPLETION, "{\"prompt\":\"a b\",\"n_predict\":7}", 200);

    (void)state;
    assert_string_equal(json_string_at(root, "content"), "Hello there");
    assert_true(json_is_true(json_at(root, "stop")));
    assert_string_equal(json_string_at(root, "stop_type"), "eos");
    assert_string_equal(json_string_at(root, "stopping_word"), "");
    assert_string_equal(json_string_at(root, "prompt"), "a b");
    assert_string_equal(json_string_at(root, "model"), "tiny");
    assert_int_equal(json_int_at(root, "tokens_predicted"), 2);
    assert_int_equal(json_int_at(root, "tokens_evaluated"),
                     engine_double_seen(f.engine).params.n_tokens);
    assert_true(json_is_object(json_at(root, "timings")));
    assert_true(json_is_number(json_at(root, "generation_settings.temperature")));
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 7);
    json_decref(root);
    root = http_post_json(f.port, "/completions", "{\"prompt\":\"a\",\"n_predict\":1}", 200);
    assert_string_equal(json_string_at(root, "stop_type"), "limit");
    json_decref(root);
    root = http_post_json(f.port, COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", 200);
    assert_int_equal(json_array_size(root), 2);
    assert_string_equal(json_string_at(root, "1.prompt"), "b");
    json_decref(root);
}

static void a_stop_text_is_the_stopping_word(void **state)
{
    engine_script script = engine_script_hello;
    json_t *root;

    (void)state;
    script.stops_at_first = true;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, COMPLETION, "{\"prompt\":\"a\",\"stop\":[\"END\"]}", 200);
    assert_string_equal(json_string_at(root, "stop_type"), "word");
    assert_string_equal(json_string_at(root, "stopping_word"), "END");
    json_decref(root);
}

typedef struct heard {
    char text[64];
    unsigned n, n_ends;
} heard;

static void hear(void *ctx, const char *data)
{
    heard *h = ctx;
    json_t *root = json_loads(data, 0, NULL);

    assert_non_null(root);
    text_append(h->text, sizeof h->text, json_string_at(root, "content"));
    h->n++;
    h->n_ends += json_is_true(json_at(root, "stop"));
    json_decref(root);
}

static void a_stream_ends_with_the_figures(void **state)
{
    heard h = { .n = 0 };
    http_reply reply = http_post(f.port, COMPLETION, "{\"prompt\":\"a\",\"stream\":true}");

    (void)state;
    assert_int_equal(reply.status, 200);
    (void)http_events(&reply, hear, &h);
    assert_string_equal(h.text, "Hello there");
    assert_int_equal(h.n_ends, 1);
    assert_null(strstr(reply.body, "[DONE]"));
    assert_non_null(strstr(reply.body, "\"tokens_predicted\":2"));
    http_reply_free(&reply);
}

static void an_answer_may_begin_with_the_prompt(void **state)
{
    json_t *root = http_post_json(f.port, TEXT, "{\"prompt\":\"a b\",\"echo\":true,\"n\":2}", 200);
    http_reply reply;

    (void)state;
    assert_string_equal(json_string_at(root, "choices.0.text"), "a bHello there");
    assert_string_equal(json_string_at(root, "choices.1.text"), "a bHello there");
    json_decref(root);
    reply = http_post(f.port, TEXT, "{\"prompt\":\"a b\",\"echo\":true,\"stream\":true}");
    assert_non_null(strstr(reply.body, "\"text\":\"a b\""));
    http_reply_free(&reply);
    root = http_post_json(f.port, TEXT, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "echo");
    json_decref(root);
    root =
        http_post_json(f.port, TEXT, "{\"prompt\":\"a\",\"echo\":true,\"session_id\":\"s\"}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "echo");
    json_decref(root);
}

static void a_template_is_applied(void **state)
{
    json_t *root = http_post_json(f.port, "/apply-template",
                                  "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200);

    (void)state;
    assert_string_equal(json_string_at(root, "prompt"),
                        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    json_decref(root);
    root = http_post_json(f.port, "/apply-template", "{\"messages\":3}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "messages");
    json_decref(root);
}

static void slots_and_properties(void **state)
{
    json_t *root = http_get_json(f.port, "/slots", 200);

    (void)state;
    assert_int_equal(json_array_size(root), 4);
    assert_int_equal(json_int_at(root, "3.id"), 3);
    assert_int_equal(json_int_at(root, "0.n_ctx"), 256);
    assert_true(json_is_boolean(json_at(root, "0.is_processing")));
    json_decref(root);
    root = http_get_json(f.port, "/props", 200);
    assert_int_equal(json_int_at(root, "total_slots"), 4);
    assert_true(json_is_false(json_at(root, "modalities.vision")));
    assert_true(json_is_string(json_at(root, "bos_token")));
    assert_true(json_is_number(json_at(root, "default_generation_settings.params.top_k")));
    json_decref(root);
}

static void aliases_are_the_same(void **state)
{
    json_t *root = http_get_json(f.port, "/models", 200);

    (void)state;
    assert_string_equal(json_string_at(root, "data.0.id"), "tiny");
    json_decref(root);
    root = http_post_json(f.port, "/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200);
    assert_string_equal(json_string_at(root, "object"), "chat.completion");
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_completion_has_content, start, stop),
        cmocka_unit_test_setup_teardown(a_stop_text_is_the_stopping_word, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_ends_with_the_figures, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_may_begin_with_the_prompt, start, stop),
        cmocka_unit_test_setup_teardown(a_template_is_applied, start, stop),
        cmocka_unit_test_setup_teardown(slots_and_properties, start, stop),
        cmocka_unit_test_setup_teardown(aliases_are_the_same, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
