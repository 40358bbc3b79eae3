/* test_server_embeddings.c - /v1/embeddings: fields, forms of the reply, refusals; the engine is a
 * double with the vector (3, 0, 4, 0).
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/base64.h"
#include "server/handlers.h"
#include "server_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EMBED "/v1/embeddings"

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

static void expect_numbers(json_t *vector, const double *numbers, size_t n)
{
    assert_int_equal(json_array_size(vector), n);
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs(json_number_value(json_array_get(vector, i)) - numbers[i]) < 1e-6);
    }
}

static void a_text_has_a_unit_vector(void **state)
{
    static const double unit[] = { 0.6, 0.0, 0.8, 0.0 };
    static const double short_one[] = { 1.0, 0.0 };
    static const double plain[] = { 3.0, 0.0, 4.0, 0.0 };
    json_t *root = http_post_json(f.port, EMBED, "{\"input\":\"a b\",\"model\":\"m\"}", 200);
    engine_seen seen = engine_double_seen(f.engine);

    (void)state;
    assert_string_equal(json_string_at(root, "object"), "list");
    assert_string_equal(json_string_at(root, "data.0.object"), "embedding");
    assert_int_equal(json_int_at(root, "data.0.index"), 0);
    expect_numbers(json_at(root, "data.0.embedding"), unit, 4);
    assert_int_equal(json_int_at(root, "usage.prompt_tokens"), seen.params.n_tokens);
    assert_int_equal(json_int_at(root, "usage.total_tokens"), seen.params.n_tokens);
    assert_int_equal(seen.params.pooling, QUIRE_POOLING_LAST);
    assert_true(seen.params.is_uncached);
    json_decref(root);
    root = http_post_json(
        f.port, "/embeddings",
        "{\"input\":\"a\",\"dimensions\":2,\"pooling\":\"mean\",\"cache_prompt\":true}", 200);
    expect_numbers(json_at(root, "data.0.embedding"), short_one, 2);
    seen = engine_double_seen(f.engine);
    assert_int_equal(seen.params.pooling, QUIRE_POOLING_MEAN);
    assert_false(seen.params.is_uncached);
    json_decref(root);
    root = http_post_json(f.port, EMBED,
                          "{\"input\":[5,6],\"normalize\":false,\"pooling\":\"cls\"}", 200);
    expect_numbers(json_at(root, "data.0.embedding"), plain, 4);
    seen = engine_double_seen(f.engine);
    assert_int_equal(seen.params.pooling, QUIRE_POOLING_CLS);
    assert_int_equal(seen.params.n_tokens, 2);
    assert_int_equal(seen.tokens[1], 6);
    json_decref(root);
}

static void vectors_come_as_base64(void **state)
{
    static const float unit[] = { 0.6f, 0.0f, 0.8f, 0.0f };
    quire_bytes text = { 0 };
    json_t *root =
        http_post_json(f.port, EMBED, "{\"input\":\"a\",\"encoding_format\":\"base64\"}", 200);

    (void)state;
    assert_int_equal(quire_base64_add(&text, unit, sizeof unit), QUIRE_OK);
    assert_string_equal(json_string_at(root, "data.0.embedding"), text.data);
    quire_bytes_fini(&text);
    json_decref(root);
}

static void base64_is_as_rfc_4648_says(void **state)
{
    static const char *const cases[][2] = {
        { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" }, { "foo", "Zm9v" }, { "foobar", "Zm9vYmFy" }
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_bytes text = { 0 };

        assert_int_equal(quire_base64_add(&text, cases[i][0], strlen(cases[i][0])), QUIRE_OK);
        assert_string_equal(text.data != NULL ? text.data : "", cases[i][1]);
        quire_bytes_fini(&text);
    }
}

/* More inputs than are in the engine at once. */
static void many_inputs_keep_their_order(void **state)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)state;
    (void)quire_bytes_addf(&body, "{\"input\":[");
    for (int i = 0; i < 100; i++) {
        (void)quire_bytes_addf(&body, "%s\"text %d\"", i > 0 ? "," : "", i);
    }
    (void)quire_bytes_addf(&body, "]}");
    root = http_post_json(f.port, EMBED, body.data, 200);
    assert_int_equal(json_array_size(json_at(root, "data")), 100);
    assert_int_equal(json_int_at(root, "data.99.index"), 99);
    json_decref(root);
    quire_bytes_fini(&body);
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 100);
    assert_int_equal(engine_double_seen(f.engine).n_released, 100);
}

static void wrong_fields_are_named(void **state)
{
    static const char *const cases[][2] = {
        { "{}", "input" },
        { "{\"input\":\"\"}", "input" },
        { "{\"input\":[]}", "input" },
        { "{\"input\":[\"a\",\"\"]}", "input[1]" },
        { "{\"input\":[\"a\",true]}", "input[1]" },
        { "{\"input\":[[1],[\"x\"]]}", "input[1]" },
        { "{\"input\":{}}", "input" },
        { "{\"input\":\"a\",\"dimensions\":0}", "dimensions" },
        { "{\"input\":\"a\",\"dimensions\":100000}", "dimensions" },
        { "{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format" },
        { "{\"input\":\"a\",\"pooling\":\"rank\"}", "pooling" },
        { "{\"input\":\"a\",\"embd_normalize\":-1}", "embd_normalize" },
        { "{\"input\":\"a\",\"add_special_tokens\":false}", "add_special_tokens" },
        { "{\"input\":\"a\",\"truncate_prompt_tokens\":5}", "truncate_prompt_tokens" },
        { "{\"input\":\"a\",\"service_tier\":\"none\"}", "service_tier" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = http_post_json(f.port, EMBED, cases[i][0], 400);

        assert_string_equal(json_string_at(root, "error.param"), cases[i][1]);
        json_decref(root);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

static void more_inputs_than_the_limit_are_refused(void **state)
{
    quire_bytes body = { 0 };
    json_t *root;

    (void)state;
    (void)quire_bytes_addf(&body, "{\"input\":[\"a\"");
    for (unsigned i = 0; i < QUIRE_EMBEDDING_INPUTS_MAX; i++) {
        (void)quire_bytes_addf(&body, ",\"a\"");
    }
    (void)quire_bytes_addf(&body, "]}");
    root = http_post_json(f.port, EMBED, body.data, 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "2049 inputs, at most 2048"));
    json_decref(root);
    quire_bytes_fini(&body);
}

static void errors_of_the_engine_are_replies(void **state)
{
    static const struct {
        int status, http;
        const char *code;
    } cases[] = { { QUIRE_LIMIT, 429, "queue_full" },
                  { QUIRE_RANGE, 400, "context_length_exceeded" },
                  { QUIRE_AGAIN, 503, "draining" },
                  { QUIRE_NOMEM, 503, "out_of_memory" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_script script = engine_script_hello;
        json_t *root;

        script.submit_status = cases[i].status;
        script.submit_message = "the script says so";
        engine_double_script(f.engine, &script);
        root = http_post_json(f.port, EMBED, "{\"input\":\"a\"}", cases[i].http);
        assert_string_equal(json_string_at(root, "error.code"), cases[i].code);
        json_decref(root);
    }
    engine_double_script(f.engine,
                         &(engine_script){ .finish = QUIRE_FINISH_ERROR, .status = QUIRE_NOPAGES });
    json_decref(http_post_json(f.port, EMBED, "{\"input\":\"a\"}", 429));
}

static void errors_about_a_text_name_the_input(void **state)
{
    engine_script script = engine_script_hello;
    json_t *root;

    (void)state;
    script.submit_status = QUIRE_INVAL;
    script.submit_message = "prompt: token 0 is 9, the vocabulary has 5";
    script.submit_refused_from = 1;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, EMBED, "{\"input\":[\"a\",[9]]}", 400);
    assert_string_equal(json_string_at(root, "error.message"),
                        "input[1]: token 0 is 9, the vocabulary has 5");
    assert_string_equal(json_string_at(root, "error.param"), "input[1]");
    json_decref(root);
    script.submit_status = QUIRE_RANGE;
    script.submit_refused_from = 0;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, EMBED, "{\"input\":[9]}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "input");
    json_decref(root);
}

static void misspelt_fields_are_named(void **state)
{
    http_reply reply = http_post(f.port, EMBED, "{\"input\":\"a\",\"dimension\":2}");

    (void)state;
    assert_int_equal(reply.status, 200);
    assert_true(http_has_header(&reply, "X-Ignored-Fields", "dimension"));
    http_reply_free(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_text_has_a_unit_vector, start, stop),
        cmocka_unit_test_setup_teardown(vectors_come_as_base64, start, stop),
        cmocka_unit_test(base64_is_as_rfc_4648_says),
        cmocka_unit_test_setup_teardown(many_inputs_keep_their_order, start, stop),
        cmocka_unit_test_setup_teardown(wrong_fields_are_named, start, stop),
        cmocka_unit_test_setup_teardown(more_inputs_than_the_limit_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(errors_of_the_engine_are_replies, start, stop),
        cmocka_unit_test_setup_teardown(errors_about_a_text_name_the_input, start, stop),
        cmocka_unit_test_setup_teardown(misspelt_fields_are_named, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
