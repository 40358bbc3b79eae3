/* test_server_sampling.c - the fields of samplers: the same on every endpoint that generates, with
 * their ranges, their defaults, and shown again where llama-server shows them.
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
    quire_server_opts opts = server_fixture_opts();

    (void)state;
    opts.sampler.xtc_threshold = 0.25f; /* defaults of requests */
    opts.sampler.dry_tokens = 33;
    server_fixture_start(&f, &opts);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* Endpoints, and a request without sampling. */
static const char *const endpoints[][2] = {
    { CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" },
    { TEXT, "\"prompt\":\"a\"" },
    { "/completion", "\"prompt\":\"a\"" },
    { "/v1/messages", "\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" },
    { "/v1/responses", "\"input\":\"hi\"" },
};
#define ENDPOINTS (sizeof endpoints / sizeof endpoints[0])

static json_t *post(size_t endpoint, const char *fields, int status)
{
    char body[1024];

    (void)snprintf(body, sizeof body, "{%s%s%s}", endpoints[endpoint][1],
                   fields[0] != '\0' ? "," : "", fields);
    return http_post_json(f.port, endpoints[endpoint][0], body, status);
}

static const char all[] =
    "\"typical_p\":0.75,\"top_n_sigma\":1.5,\"xtc_probability\":0.5,\"xtc_threshold\":0.125,"
    "\"min_keep\":3,\"dynatemp_range\":0.25,\"dynatemp_exponent\":2,\"mirostat\":2,"
    "\"mirostat_tau\":4,\"mirostat_eta\":0.5,\"dry_multiplier\":0.5,\"dry_base\":2,"
    "\"dry_allowed_length\":4,\"dry_penalty_last_n\":-1,\"dry_sequence_breakers\":[\"x\",\"yy\"],"
    "\"repeat_last_n\":20,\"repetition_penalty\":1.25,\"samplers\":[\"penalties\",\"dry\","
    "\"temperature\",\"top_k\"]";

static void every_endpoint_has_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENDPOINTS; i++) {
        quire_sampler_opts s;

        json_decref(post(i, all, 200));
        s = engine_double_seen(f.engine).params.sampler;
        assert_true(s.typical_p == 0.75f && s.top_n_sigma == 1.5f);
        assert_true(s.xtc_probability == 0.5f && s.xtc_threshold == 0.125f);
        assert_true(s.dynatemp_range == 0.25f && s.dynatemp_exponent == 2.0f);
        assert_int_equal(s.min_keep, 3);
        assert_int_equal(s.mirostat, 2);
        assert_true(s.mirostat_tau == 4.0f && s.mirostat_eta == 0.5f);
        assert_true(s.dry_multiplier == 0.5f && s.dry_base == 2.0f);
        assert_int_equal(s.dry_allowed_length, 4);
        assert_int_equal(s.dry_tokens, quire_engine_n_ctx(f.engine));
        assert_int_equal(s.n_dry_breakers, 2);
        assert_int_equal(s.penalty_tokens, 20);
        assert_true(s.repetition_penalty == 1.25f);
        assert_int_equal(s.order.n, 4);
        assert_int_equal(s.order.kinds[2], QUIRE_SAMPLER_TEMPERATURE);
    }
}

static void absent_fields_have_the_defaults_of_the_server(void **state)
{
    const quire_sampler_opts usual = QUIRE_SAMPLER_OPTS_INIT;

    (void)state;
    for (size_t i = 0; i < ENDPOINTS; i++) {
        quire_sampler_opts s;

        json_decref(
            post(i, "\"mirostat\":null,\"samplers\":null,\"dry_sequence_breakers\":null", 200));
        s = engine_double_seen(f.engine).params.sampler;
        assert_true(s.xtc_threshold == 0.25f);
        assert_int_equal(s.dry_tokens, 33);
        assert_int_equal(s.n_dry_breakers, QUIRE_DRY_BREAKERS);
        assert_true(s.dry_breakers == quire_dry_breakers);
        assert_memory_equal(&s.order, &usual.order, sizeof s.order);
        assert_true(s.typical_p == 1.0f && s.repetition_penalty == 1.0f);
        assert_int_equal(s.penalty_tokens, 64);
    }
}

static void other_spellings(void **state)
{
    quire_sampler_opts s;

    (void)state;
    json_decref(post(1, "\"typ_p\":0.5,\"samplers\":\"ekt\",\"repeat_last_n\":-1", 200));
    s = engine_double_seen(f.engine).params.sampler;
    assert_true(s.typical_p == 0.5f);
    assert_int_equal(s.order.n, 3);
    assert_int_equal(s.penalty_tokens, quire_engine_n_ctx(f.engine));
    json_decref(post(1, "\"samplers\":[],\"dry_sequence_breakers\":[]", 200));
    s = engine_double_seen(f.engine).params.sampler;
    assert_int_equal(s.order.n, 0);
    assert_int_equal(s.n_dry_breakers, 0);
}

/* What several clients send for every request: the usual values. */
static void usual_values_are_accepted(void **state)
{
    (void)state;
    json_decref(post(0,
                     "\"mirostat\":0,\"mirostat_tau\":5,\"mirostat_eta\":0.1,\"typical_p\":1,"
                     "\"typ_p\":1,\"tfs_z\":1,\"dry_multiplier\":0,\"dry_base\":1.75,"
                     "\"dry_allowed_length\":2,\"dry_penalty_last_n\":0,\"xtc_probability\":0,"
                     "\"xtc_threshold\":0.1,\"dynatemp_range\":0,\"dynatemp_exponent\":1,"
                     "\"top_n_sigma\":0,\"min_keep\":0,\"repeat_last_n\":64,"
                     "\"dry_sequence_breakers\":[\"\\n\",\":\",\"\\\"\",\"*\"],"
                     "\"samplers\":[\"penalties\",\"dry\",\"top_n_sigma\",\"top_k\",\"typ_p\","
                     "\"top_p\",\"min_p\",\"xtc\",\"temperature\",\"adaptive_p\"]",
                     200));
}

static void errors_name_the_field(void **state)
{
    static const char *const list[][2] = {
        { "\"typical_p\":1.5", "typical_p" },
        { "\"typ_p\":-1", "typ_p" },
        { "\"top_n_sigma\":-2", "top_n_sigma" },
        { "\"xtc_probability\":2", "xtc_probability" },
        { "\"xtc_threshold\":\"x\"", "xtc_threshold" },
        { "\"min_keep\":-1", "min_keep" },
        { "\"dynatemp_range\":-0.5", "dynatemp_range" },
        { "\"dynatemp_exponent\":1e9", "dynatemp_exponent" },
        { "\"mirostat\":3", "mirostat" },
        { "\"mirostat_tau\":-1", "mirostat_tau" },
        { "\"mirostat_eta\":100", "mirostat_eta" },
        { "\"dry_multiplier\":-1", "dry_multiplier" },
        { "\"dry_base\":0.5", "dry_base" },
        { "\"dry_allowed_length\":-1", "dry_allowed_length" },
        { "\"dry_penalty_last_n\":65537", "dry_penalty_last_n" },
        { "\"repeat_last_n\":-2", "repeat_last_n" },
        { "\"repetition_penalty\":0", "repetition_penalty" },
        { "\"dry_sequence_breakers\":\"x\"", "dry_sequence_breakers" },
        { "\"dry_sequence_breakers\":[1]", "dry_sequence_breakers" },
        { "\"dry_sequence_breakers\":[\"\"]", "dry_sequence_breakers" },
        { "\"dry_sequence_breakers\":[\"12345678901234567890123456789012345678901\"]",
          "dry_sequence_breakers" },
        { "\"samplers\":7", "samplers" },
        { "\"samplers\":[7]", "samplers" },
        { "\"samplers\":[\"top_k\",\"infill\"]", "samplers" },
        { "\"samplers\":[\"top_k\",\"dry\"]", "samplers" },
        { "\"samplers\":\"kk\"", "samplers" },
    };
    const uint32_t n_before = engine_double_seen(f.engine).n_submitted;

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            json_t *root = post(k, list[i][0], 400);

            assert_string_equal(json_string_at(root, "error.param"), list[i][1]);
            assert_non_null(strstr(json_string_at(root, "error.message"), list[i][1]));
            json_decref(root);
        }
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, n_before);
}

static void settings_are_shown(void **state)
{
    json_t *root = post(2, all, 200);
    json_t *settings = json_object_get(root, "generation_settings");

    (void)state;
    assert_int_equal(json_int_at(settings, "mirostat"), 2);
    assert_int_equal(json_int_at(settings, "repeat_last_n"), 20);
    assert_int_equal(json_int_at(settings, "dry_allowed_length"), 4);
    assert_true(json_number_value(json_at(settings, "dry_multiplier")) == 0.5);
    assert_string_equal(json_string_at(settings, "dry_sequence_breakers.1"), "yy");
    assert_string_equal(json_string_at(settings, "samplers.2"), "temperature");
    json_decref(root);
    root = http_get_json(f.port, "/props", 200);
    settings = json_at(root, "default_generation_settings.params");
    assert_true(json_number_value(json_at(settings, "xtc_threshold")) == 0.25);
    assert_int_equal(json_int_at(settings, "dry_penalty_last_n"), 33);
    assert_string_equal(json_string_at(settings, "dry_sequence_breakers.0"), "\n");
    assert_string_equal(json_string_at(settings, "samplers.4"), "typ_p");
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_endpoint_has_them),
        cmocka_unit_test(absent_fields_have_the_defaults_of_the_server),
        cmocka_unit_test(other_spellings),
        cmocka_unit_test(usual_values_are_accepted),
        cmocka_unit_test(errors_name_the_field),
        cmocka_unit_test(settings_are_shown),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
