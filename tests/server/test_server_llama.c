/* test_server_llama.c - llama-server's paths: /completion, /infill, /apply-template, /slots, /props
 * and the aliases; and echo of text completions.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include "model/text.h"

#include <stdio.h>
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

static void a_prompt_of_texts_and_tokens(void **state)
{
    json_t *root = http_post_json(f.port, COMPLETION, "{\"prompt\":[300,\"a\",301]}", 200);
    const engine_seen seen = engine_double_seen(f.engine);

    (void)state;
    assert_true(json_is_object(root));
    assert_int_equal(seen.tokens[0], 300);
    assert_int_equal(seen.tokens[seen.params.n_tokens - 1], 301);
    json_decref(root);
    root = http_post_json(f.port, COMPLETION, "{\"prompt\":[\"a\",-1]}", 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "element 1 is no token"));
    json_decref(root);
    root = http_post_json(f.port, COMPLETION, "{\"prompt\":\"a\",\"input_prefix\":\"b\"}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "input_prefix");
    json_decref(root);
}

/* ---- /infill ---- */

#define INFILL "/infill"

/* With tokens for filling in. */
static int start_infill(void **state)
{
    gguf_gen_opts shape;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &shape));
    shape.vocab = GGUF_GEN_VOCAB_BPE;
    shape.has_fim = true;
    server_fixture_start_shape(&f, NULL, &shape);
    return 0;
}

static void a_gap_is_filled_in(void **state)
{
    json_t *root = http_post_json(
        f.port, INFILL, "{\"input_prefix\":\"x = \",\"input_suffix\":\";\\n\",\"n_predict\":8}",
        200);

    (void)state;
    assert_string_equal(json_string_at(root, "content"), "Hello there");
    assert_string_equal(json_string_at(root, "prompt"),
                        "<|repo_name|>myproject\n<|file_sep|>filename\n"
                        "<|fim_prefix|>x = <|fim_suffix|>;\n<|fill|>");
    json_decref(root);
    root =
        http_post_json(f.port, INFILL,
                       "{\"input_prefix\":[\"a\",98],\"input_suffix\":\"<|fim_middle|>\","
                       "\"prompt\":\"c<|fill|>\",\"input_extra\":[{\"filename\":\"b.c\",\"text\":"
                       "\"int b;\"},{\"text\":\"t\"}]}",
                       200);
    assert_non_null(strstr(json_string_at(root, "prompt"),
                           "<|repo_name|>myproject\n<|file_sep|>b.c\nint b;<|file_sep|>tmp\nt"
                           "<|file_sep|>filename\n<|fim_prefix|>a"));
    assert_non_null(strstr(json_string_at(root, "prompt"), "c<|fill|><|fim_suffix|>"));
    json_decref(root);
}

/* The texts are those of the token numbers, not of control tokens: only "prompt" has such. */
static void the_middle_comes_last(void **state)
{
    http_reply reply = http_post(f.port, INFILL,
                                 "{\"input_prefix\":\"<|fill|>\",\"input_suffix\":\"<|fill|>\","
                                 "\"n_predict\":8,\"stream\":true}");
    const engine_seen seen = engine_double_seen(f.engine);
    quire_fim_tokens fim;
    unsigned n = 0;

    (void)state;
    quire_model_fim(f.model, &fim);
    assert_int_equal(reply.status, 200);
    assert_int_equal(seen.tokens[seen.params.n_tokens - 1], fim.middle);
    for (uint32_t i = 0; i < seen.params.n_tokens; i++) {
        n += seen.tokens[i] == fim.middle;
    }
    assert_int_equal(n, 1);
    http_reply_free(&reply);
}

/* Texts beyond the context of 256: their ends at the gap stay. */
static void texts_are_cut_to_the_context(void **state)
{
    static const char *const extras[] = { "[]", "[{\"text\":\"%s\"}]" };
    char text[801] = "";
    char extra[1024];
    char body[4096];

    (void)state;
    memset(text, '1', sizeof text - 1);
    for (unsigned i = 0; i < 2; i++) {
        json_t *root;
        engine_seen seen;

        (void)snprintf(extra, sizeof extra, extras[i], text);
        (void)snprintf(body, sizeof body,
                       "{\"input_prefix\":\"%s2\",\"input_suffix\":\"3%s\",\"n_predict\":32,"
                       "\"input_extra\":%s}",
                       i == 0 ? text : "", i == 0 ? text : "", extra);
        root = http_post_json(f.port, INFILL, body, 200);
        seen = engine_double_seen(f.engine);
        assert_in_range(seen.params.n_tokens, 160, 256 - 32);
        assert_non_null(strstr(json_string_at(root, "prompt"), "2<|fim_suffix|>3"));
        json_decref(root);
    }
    (void)snprintf(body, sizeof body,
                   "{\"input_prefix\":\"\",\"input_suffix\":\"\",\"prompt\":\"%s\"}", text);
    json_decref(http_post_json(f.port, INFILL, body, 400));
}

static void infill_is_refused_by_name(void **state)
{
    static const struct {
        const char *body;
        const char *param;
    } cases[] = {
        { "{\"input_suffix\":\"a\"}", "input_prefix" },
        { "{\"input_prefix\":\"a\"}", "input_suffix" },
        { "{\"input_prefix\":3,\"input_suffix\":\"a\"}", "input_prefix" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":[true]}", "input_suffix" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"prompt\":[1]}", "prompt" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"input_extra\":\"b\"}", "input_extra" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"input_extra\":[3]}", "input_extra" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"input_extra\":[{\"filename\":\"b\"}]}",
          "input_extra[0].text" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"echo\":true}", "echo" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"session_id\":\"s\"}", "session_id" },
        { "{\"input_prefix\":\"a\",\"input_suffix\":\"\",\"samplers\":[\"infill\"]}", "samplers" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = http_post_json(f.port, INFILL, cases[i].body, 400);

        assert_string_equal(json_string_at(root, "error.param"), cases[i].param);
        json_decref(root);
    }
}

static void a_model_without_such_tokens_says_so(void **state)
{
    json_t *root =
        http_post_json(f.port, INFILL, "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", 501);

    (void)state;
    assert_string_equal(json_string_at(root, "error.code"), "no_infill_tokens");
    assert_non_null(strstr(json_string_at(root, "error.message"),
                           "fim_pre_token_id, fim_suf_token_id, fim_mid_token_id"));
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

/* Numbers, texts, and log-probabilities of tokens, each only if asked for. */
static void an_answer_has_probabilities_and_tokens(void **state)
{
    json_t *root = http_post_json(f.port, COMPLETION,
                                  "{\"prompt\":\"a\",\"n_probs\":2,\"return_tokens\":true}", 200);
    json_t *entries = json_at(root, "completion_probabilities");

    (void)state;
    assert_int_equal(json_array_size(entries), 2);
    assert_int_equal(json_array_size(json_at(root, "tokens")), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *entry = json_array_get(entries, i);

        assert_int_equal(json_int_at(entry, "id"),
                         json_integer_value(json_array_get(json_at(root, "tokens"), i)));
        assert_true(json_is_string(json_at(entry, "token")));
        assert_true(json_is_number(json_at(entry, "logprob")));
        assert_true(json_is_array(json_at(entry, "bytes")));
        assert_int_equal(json_array_size(json_at(entry, "top_logprobs")), 2);
        assert_true(json_is_integer(json_at(entry, "top_logprobs.1.id")));
    }
    json_decref(root);
    root = http_post_json(f.port, COMPLETION, "{\"prompt\":\"a\",\"n_probs\":0}", 200);
    assert_null(json_object_get(root, "completion_probabilities"));
    assert_int_equal(json_array_size(json_at(root, "tokens")), 0);
    json_decref(root);
    root = http_post_json(f.port, COMPLETION, "{\"prompt\":\"a\",\"n_probs\":21}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "n_probs");
    json_decref(root);
}

typedef struct counted {
    size_t n_tokens, n_entries;
} counted;

static void count(void *ctx, const char *data)
{
    counted *c = ctx;
    json_t *root = json_loads(data, 0, NULL);

    c->n_tokens += json_array_size(json_at(root, "tokens"));
    c->n_entries += json_array_size(json_object_get(root, "completion_probabilities"));
    json_decref(root);
}

/* Each event holds the log-probabilities of its own tokens, each token once. */
static void a_stream_has_them_too(void **state)
{
    counted c = { 0 };
    http_reply reply =
        http_post(f.port, COMPLETION,
                  "{\"prompt\":\"a\",\"stream\":true,\"n_probs\":1,\"return_tokens\":true}");

    (void)state;
    assert_int_equal(reply.status, 200);
    (void)http_events(&reply, count, &c);
    assert_int_equal(c.n_tokens, 2);
    assert_int_equal(c.n_entries, 2);
    http_reply_free(&reply);
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
    root =
        http_post_json(f.port, COMPLETION, "{\"prompt\":\"a\",\"echo\":true,\"n_probs\":1}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "echo");
    json_decref(root);
    root =
        http_post_json(f.port, TEXT, "{\"prompt\":\"a\",\"echo\":true,\"session_id\":\"s\"}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "echo");
    json_decref(root);
}

static void a_template_is_applied(void **state)
{
    /* Fields that a chat request refuses are refused here, since they would change the prompt. */
    static const struct {
        const char *field;
        const char *param;
    } refused[] = {
        { "\"chat_template\":\"{{ 1 }}\"", "chat_template" },
        { "\"response_format\":{\"type\":\"xml\"}", "response_format.type" },
        { "\"json_schema\":{\"type\":3}", "json_schema" },
        { "\"session_id\":\"s\"", "session_id" },
    };
    json_t *root = http_post_json(f.port, "/apply-template",
                                  "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200);

    (void)state;
    assert_string_equal(json_string_at(root, "prompt"),
                        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    json_decref(root);
    root = http_post_json(f.port, "/apply-template", "{\"messages\":3}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "messages");
    json_decref(root);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char body[256];

        (void)snprintf(body, sizeof body,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}",
                       refused[i].field);
        root = http_post_json(f.port, "/apply-template", body, 400);
        assert_string_equal(json_string_at(root, "error.param"), refused[i].param);
        json_decref(root);
    }
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

static void tokens_of_a_chat_are_counted(void **state)
{
    static const char *const paths[] = { "/v1/chat/completions/input_tokens",
                                         "/chat/completions/input_tokens" };
    static const char hi[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    json_t *root;
    int64_t n;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        root = http_post_json(f.port, paths[i], hi, 200);
        n = json_int_at(root, "input_tokens");
        json_decref(root);
        assert_int_equal(engine_double_seen(f.engine).n_submitted, i);
        json_decref(http_post_json(f.port, CHAT, hi, 200));
        assert_int_equal(engine_double_seen(f.engine).params.n_tokens, n);
    }
    json_decref(http_post_json(f.port, paths[0], "{\"messages\":[]}", 400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_completion_has_content, start, stop),
        cmocka_unit_test_setup_teardown(a_prompt_of_texts_and_tokens, start, stop),
        cmocka_unit_test_setup_teardown(a_gap_is_filled_in, start_infill, stop),
        cmocka_unit_test_setup_teardown(the_middle_comes_last, start_infill, stop),
        cmocka_unit_test_setup_teardown(texts_are_cut_to_the_context, start_infill, stop),
        cmocka_unit_test_setup_teardown(infill_is_refused_by_name, start_infill, stop),
        cmocka_unit_test_setup_teardown(a_model_without_such_tokens_says_so, start, stop),
        cmocka_unit_test_setup_teardown(a_stop_text_is_the_stopping_word, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_has_probabilities_and_tokens, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_has_them_too, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_ends_with_the_figures, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_may_begin_with_the_prompt, start, stop),
        cmocka_unit_test_setup_teardown(a_template_is_applied, start, stop),
        cmocka_unit_test_setup_teardown(slots_and_properties, start, stop),
        cmocka_unit_test_setup_teardown(aliases_are_the_same, start, stop),
        cmocka_unit_test_setup_teardown(tokens_of_a_chat_are_counted, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
