/* test_server_fields.c - every field of a request: values passed to the engine, and refusals by
 * name.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/text.h"
#include "server_fixture.h"

#include "base/bytes.h"
#include "server/json_schema.h"
#include "server/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static server_fixture f;

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

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

/* ---- refusals ---- */

typedef struct refusal {
    const char *path;
    const char *fields;
    const char *param;
} refusal;

static const refusal refusals[] = {
    { CHAT, "\"model\":\"m\"", "messages" },
    { CHAT, "\"messages\":\"hi\"", "messages" },
    { CHAT, "\"messages\":[]", "messages" },
    { CHAT, "\"messages\":[1]", "messages[0]" },
    { CHAT, "\"messages\":[{\"content\":\"x\"}]", "messages[0].role" },
    { CHAT, "\"messages\":[{\"role\":7,\"content\":\"x\"}]", "messages[0].role" },
    { CHAT, "\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]", "messages[0].role" },
    { CHAT, "\"messages\":[{\"role\":\"user\"}]", "messages[0].content" },
    { CHAT, "\"messages\":[{\"role\":\"user\",\"content\":5}]", "messages[0].content" },
    { CHAT, "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
      "messages[0].content" },
    { CHAT, "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]",
      "messages[0].content" },
    { CHAT, "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]",
      "messages[0].tool_calls" },
    { CHAT, HI ",\"temperature\":\"hot\"", "temperature" },
    { CHAT, HI ",\"temperature\":2.5", "temperature" },
    { CHAT, HI ",\"top_p\":-1", "top_p" },
    { CHAT, HI ",\"top_k\":1.5", "top_k" },
    { CHAT, HI ",\"min_p\":2", "min_p" },
    { CHAT, HI ",\"frequency_penalty\":3", "frequency_penalty" },
    { CHAT, HI ",\"presence_penalty\":-3", "presence_penalty" },
    { CHAT, HI ",\"repeat_penalty\":0", "repeat_penalty" },
    { CHAT, HI ",\"seed\":\"x\"", "seed" },
    { CHAT, HI ",\"max_tokens\":0", "max_tokens" },
    { CHAT, HI ",\"max_tokens\":\"many\"", "max_tokens" },
    { CHAT, HI ",\"max_tokens\":-2", "max_tokens" },
    { CHAT, HI ",\"max_completion_tokens\":0", "max_completion_tokens" },
    { CHAT, HI ",\"max_completion_tokens\":-2", "max_completion_tokens" },
    { CHAT, HI ",\"n\":17", "n" },
    { CHAT, HI ",\"n\":2,\"session_id\":\"s\"", "n" },
    { CHAT, HI ",\"stream\":1", "stream" },
    { CHAT, HI ",\"stream_options\":{}", "stream_options" },
    { CHAT, HI ",\"stream\":true,\"stream_options\":{\"include_usage\":1}",
      "stream_options.include_usage" },
    { CHAT, HI ",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}",
      "stream_options.continuous_usage_stats" },
    { CHAT, HI ",\"stop\":5", "stop" },
    { CHAT, HI ",\"stop\":[5]", "stop" },
    { CHAT, HI ",\"stop\":\"\"", "stop" },
    { CHAT, HI ",\"stop\":[\"\"]", "stop" },
    { CHAT,
      HI ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\","
         "\"d\",\"e\",\"f\",\"g\",\"h\"]",
      "stop" },
    { CHAT, HI ",\"logprobs\":3", "logprobs" },
    { CHAT, HI ",\"logprobs\":true,\"top_logprobs\":21", "top_logprobs" },
    { CHAT, HI ",\"top_logprobs\":2", "top_logprobs" },
    { CHAT, HI ",\"logit_bias\":[]", "logit_bias" },
    { CHAT, HI ",\"logit_bias\":{\"x\":1}", "logit_bias" },
    { CHAT, HI ",\"logit_bias\":{\"512\":1}", "logit_bias" },
    { CHAT, HI ",\"logit_bias\":{\"5\":101}", "logit_bias" },
    { CHAT, HI ",\"logit_bias\":{\"5\":\"much\"}", "logit_bias" },
    { CHAT, HI ",\"grammar\":1", "grammar" },
    { CHAT, HI ",\"response_format\":\"json\"", "response_format" },
    { CHAT, HI ",\"response_format\":{}", "response_format.type" },
    { CHAT, HI ",\"response_format\":{\"type\":\"xml\"}", "response_format.type" },
    { CHAT, HI ",\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema" },
    { CHAT, HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}",
      "response_format.json_schema.schema" },
    { CHAT,
      HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{"
         "\"type\":\"string\",\"pattern\":\"^(?=a)b$\"}}}",
      "response_format" },
    { CHAT, HI ",\"response_format\":{\"type\":\"json_object\"},\"grammar\":\"root ::= [a]\"",
      "response_format" },
    { CHAT, HI ",\"cache_salt\":1", "cache_salt" },
    { CHAT, HI ",\"prompt_cache_key\":1", "prompt_cache_key" },
    { CHAT, HI ",\"session_id\":1", "session_id" },
    { CHAT, HI ",\"session_id\":\"\"", "session_id" },
    { CHAT, HI ",\"priority\":3000000000", "priority" },
    { CHAT, HI ",\"cache_prompt\":\"no\"", "cache_prompt" },
    { CHAT, HI ",\"explain_cache\":\"no\"", "explain_cache" },
    { CHAT, HI ",\"ignore_eos\":0", "ignore_eos" },
    { CHAT, HI ",\"context_overflow\":\"compress\"", "context_overflow" },
    { CHAT, HI ",\"context_overflow\":\"condense\",\"context_keep\":-1", "context_keep" },
    { CHAT, HI ",\"context_overflow\":\"condense\",\"retain\":\"none\"", "retain" },
    { TEXT, "\"prompt\":\"a\",\"context_overflow\":\"condense\",\"retain\":\"best\"", "retain" },
    { CHAT, HI ",\"context_overflow\":\"shift\",\"context_keep\":-1", "context_keep" },
    { CHAT, HI ",\"attend\":\"top\"", "attend" },
    { CHAT, HI ",\"attend\":\"top:0\"", "attend" },
    { TEXT, "\"prompt\":\"a\",\"attend\":\"top:1.5\"", "attend" },
    { TEXT, "\"prompt\":\"a\",\"attend\":0.5", "attend" },
    { CHAT, HI ",\"context_keep\":64", "context_keep" },
    { CHAT, HI ",\"context_overflow\":\"truncate_turns\",\"context_keep\":64", "context_keep" },
    { TEXT, "\"model\":\"m\"", "prompt" },
    { TEXT, "\"prompt\":5", "prompt" },
    { TEXT, "\"prompt\":[]", "prompt" },
    { TEXT, "\"prompt\":[\"a\",-5]", "prompt" },
    { TEXT, "\"prompt\":[5,true]", "prompt" },
    { TEXT, "\"prompt\":[512]", "prompt" },
    { TEXT, "\"prompt\":[[-1]]", "prompt" },
    { TEXT, "\"prompt\":[\"a\"],\"session_id\":\"s\"", "prompt" },
    { TEXT, "\"prompt\":\"a\",\"best_of\":3", "best_of" },
    { CHAT, HI ",\"n\":2,\"best_of\":3", "best_of" },
    { TEXT, "\"prompt\":\"a\",\"logprobs\":true", "logprobs" },
    { TEXT, "\"prompt\":\"a\",\"logprobs\":21", "logprobs" },
    { TEXT, "\"prompt\":\"a\",\"context_overflow\":\"truncate_turns\"", "context_overflow" },
    { TEXT, "\"prompt\":[\"a\",\"b\",\"c\"],\"n\":6", "n" },
    { "/tokenize", "\"content\":5", "content" },
    { "/tokenize", "\"text\":\"\"", "content" },
    { "/tokenize", "\"content\":\"a\",\"with_pieces\":1", "with_pieces" },
    { "/detokenize", "\"tokens\":\"a\"", "tokens" },
    { "/detokenize", "\"tokens\":[512]", "tokens" },
    { "/v1/cache/invalidate", "\"x\":1", "all" },
    { "/v1/cache/invalidate", "\"all\":true,\"session\":\"s\"", "all" },
    { "/v1/cache/invalidate", "\"all\":1", "all" },
    { "/v1/cache/invalidate", "\"prefix\":{}", "prefix" },
    { "/v1/cache/invalidate", "\"prefix\":[1,\"a\"]", "prefix" },
    { "/v1/cache/invalidate", "\"prefix\":[{\"role\":1}]", "prefix[0].role" },
};

static void names_the_field_it_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        char body[1024];
        json_t *root;
        char name[80];

        (void)snprintf(body, sizeof body, "{%s}", r->fields);
        root = http_post_json(f.port, r->path, body, 400);
        if (!json_is_string(json_at(root, "error.param")) ||
            strcmp(json_string_at(root, "error.param"), r->param) != 0) {
            fail_msg("%s: %s, not %s", body, json_string_at(root, "error.message"), r->param);
        }
        /* The message says it too, up to an element's index. */
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(r->param, "["), r->param);
        if (strstr(json_string_at(root, "error.message"), name) == NULL) {
            fail_msg("%s: \"%s\" does not name %s", body, json_string_at(root, "error.message"),
                     name);
        }
        assert_string_equal(json_string_at(root, "error.type"), "invalid_request_error");
        json_decref(root);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

static void bounds_what_is_long(void **state)
{
    static const struct {
        const char *name;
        uint32_t n_max;
        const char *message; /* when one byte more is sent */
    } limits[] = {
        { "cache_salt", 120, "cache_salt: 121 bytes, at most 120" },
        { "session_id", 128, "session_id: 129 bytes, at most 128" },
        { "stop", 256, "stop: texts of 1 .. 256 bytes, not 257" },
    };
    char text[258];

    (void)state;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        for (uint32_t more = 0; more < 2; more++) {
            quire_bytes body = { 0 };
            json_t *root;

            (void)quire_bytes_addf(&body, "{" HI ",\"%s\":\"%.*s\"}", limits[i].name,
                                   (int)(limits[i].n_max + more), text);
            root = http_post_json(f.port, CHAT, body.data, more == 0 ? 200 : 400);
            if (more > 0) {
                assert_string_equal(json_string_at(root, "error.param"), limits[i].name);
                assert_string_equal(json_string_at(root, "error.message"), limits[i].message);
            }
            json_decref(root);
            quire_bytes_fini(&body);
        }
    }
}

/* ---- fields that reach the engine ---- */

static void passes_every_field_on(void **state)
{
    quire_tenant_salt salt;
    engine_seen seen;

    (void)state;
    json_decref(http_post_json(
        f.port, CHAT,
        "{" HI ",\"model\":\"any\",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,"
        "\"frequency_penalty\":0.5,\"presence_penalty\":-0.5,\"repeat_penalty\":1.5,\"seed\":42,"
        "\"max_tokens\":9,\"stop\":[\"one\",\"two\"],\"logit_bias\":{\"5\":-100,\"6\":2.5},"
        "\"logprobs\":true,\"top_logprobs\":2,\"ignore_eos\":true,\"cache_prompt\":false,"
        "\"priority\":-3,\"grammar\":\"root ::= [a-z]\",\"cache_salt\":\"pepper\","
        "\"prompt_cache_key\":\"k\",\"user\":\"somebody\",\"unknown\":{\"a\":1}}",
        200));
    seen = engine_double_seen(f.engine);
    assert_float_equal(seen.params.sampler.temperature, 0.5f, 0.0);
    assert_float_equal(seen.params.sampler.top_p, 0.25f, 0.0);
    assert_int_equal(seen.params.sampler.top_k, 7);
    assert_float_equal(seen.params.sampler.min_p, 0.125f, 0.0);
    assert_float_equal(seen.params.sampler.frequency_penalty, 0.5f, 0.0);
    assert_float_equal(seen.params.sampler.presence_penalty, -0.5f, 0.0);
    assert_float_equal(seen.params.sampler.repeat_penalty, 1.5f, 0.0);
    assert_int_equal(seen.params.sampler.seed, 42);
    assert_int_equal(seen.params.max_tokens, 9);
    assert_int_equal(seen.params.n_stops, 2);
    assert_string_equal(seen.stops[0], "one");
    assert_string_equal(seen.stops[1], "two");
    assert_int_equal(seen.params.sampler.n_bias, 2);
    assert_int_equal(seen.bias[0].token, 5);
    assert_float_equal(seen.bias[0].bias, -100.0f, 0.0);
    assert_true(seen.params.has_logprobs);
    assert_int_equal(seen.params.n_top_logprobs, 2);
    assert_true(seen.params.sampler.forbids_eog);
    assert_true(seen.params.is_uncached);
    assert_int_equal(seen.params.priority, -3);
    assert_string_equal(seen.grammar, "root ::= [a-z]");
    assert_memory_equal(seen.id, "chatcmpl-", 9);
    quire_tenant_salt_make(&salt, "", "pepper");
    assert_int_equal(seen.params.tenant_bytes, salt.n);
    assert_memory_equal(seen.tenant, salt.bytes, salt.n);
}

static void formats_become_grammars(void **state)
{
    (void)state;
    json_decref(http_post_json(f.port, CHAT,
                               "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", 200));
    assert_string_equal(engine_double_seen(f.engine).grammar, quire_json_object_grammar());
    json_decref(http_post_json(f.port, CHAT,
                               "{" HI ",\"response_format\":{\"type\":\"json_schema\","
                               "\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":"
                               "\"boolean\"}}}}",
                               200));
    assert_non_null(strstr(engine_double_seen(f.engine).grammar, "true"));
    json_decref(
        http_post_json(f.port, CHAT, "{" HI ",\"response_format\":{\"type\":\"text\"}}", 200));
    assert_string_equal(engine_double_seen(f.engine).grammar, "");
}

static void null_is_absent(void **state)
{
    quire_sampler_opts defaults = QUIRE_SAMPLER_OPTS_INIT;
    engine_seen seen;

    (void)state;
    json_decref(http_post_json(
        f.port, CHAT,
        "{" HI ",\"temperature\":null,\"top_p\":null,\"max_tokens\":null,\"stop\":null,\"n\":null,"
        "\"logit_bias\":null,\"logprobs\":null,\"tools\":null,\"response_format\":null,"
        "\"stream\":null,\"stream_options\":null,\"seed\":null,\"session_id\":null}",
        200));
    seen = engine_double_seen(f.engine);
    assert_float_equal(seen.params.sampler.temperature, defaults.temperature, 0.0);
    assert_int_equal(seen.params.max_tokens, 0);
    assert_int_equal(seen.params.n_stops, 0);
    assert_false(seen.params.has_logprobs);
    assert_false(seen.params.is_uncached);
}

static void takes_the_smaller_of_two_limits(void **state)
{
    (void)state;
    json_decref(
        http_post_json(f.port, CHAT, "{" HI ",\"max_tokens\":9,\"max_completion_tokens\":5}", 200));
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 5);
    json_decref(http_post_json(f.port, CHAT, "{" HI ",\"max_completion_tokens\":7}", 200));
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 7);
    json_decref(http_post_json(f.port, CHAT,
                               "{" HI ",\"max_tokens\":-1,\"max_completion_tokens\":6}", 200));
    assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 6);
}

/* -1 is llama-server's word for "as many as the context holds". */
static void minus_one_is_no_limit(void **state)
{
    static const char *const names[] = { "max_tokens", "max_completion_tokens" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char body[128];

        (void)snprintf(body, sizeof body, "{" HI ",\"%s\":-1}", names[i]);
        json_decref(http_post_json(f.port, CHAT, body, 200));
        assert_int_equal(engine_double_seen(f.engine).params.max_tokens, 0);
    }
}

static void seeds_differ_unless_given(void **state)
{
    uint32_t first;

    (void)state;
    json_decref(http_post_json(f.port, CHAT, "{" HI "}", 200));
    first = engine_double_seen(f.engine).params.sampler.seed;
    json_decref(http_post_json(f.port, CHAT, "{" HI "}", 200));
    assert_int_not_equal(first, engine_double_seen(f.engine).params.sampler.seed);
    json_decref(http_post_json(f.port, CHAT, "{" HI ",\"seed\":7,\"n\":3}", 200));
    assert_int_equal(engine_double_seen(f.engine).params.sampler.seed, 9); /* the third answer */
}

static void joins_text_parts(void **state)
{
    engine_seen one;
    engine_seen two;

    (void)state;
    json_decref(http_post_json(f.port, CHAT,
                               "{\"messages\":[{\"role\":\"user\",\"content\":\"a cat\"}]}", 200));
    one = engine_double_seen(f.engine);
    json_decref(http_post_json(f.port, CHAT,
                               "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                               "\"text\":\"a \"},{\"type\":\"text\",\"text\":\"cat\"}]}]}",
                               200));
    two = engine_double_seen(f.engine);
    assert_int_equal(one.params.n_tokens, two.params.n_tokens);
    assert_memory_equal(one.tokens, two.tokens, one.params.n_tokens * sizeof one.tokens[0]);
}

static void takes_prompts_in_every_shape(void **state)
{
    engine_seen seen;
    json_t *root;

    (void)state;
    json_decref(http_post_json(f.port, TEXT, "{\"prompt\":[5,6,7]}", 200));
    seen = engine_double_seen(f.engine);
    assert_int_equal(seen.params.n_tokens, 3);
    assert_int_equal(seen.tokens[2], 7);
    assert_memory_equal(seen.id, "cmpl-", 5);
    root = http_post_json(f.port, TEXT, "{\"prompt\":[\"a\",\"b\"],\"n\":2}", 200);
    assert_int_equal(json_array_size(json_at(root, "choices")), 4);
    assert_int_equal(json_int_at(root, "choices.3.index"), 3);
    assert_string_equal(json_string_at(root, "choices.3.text"), "Hello there");
    assert_int_equal(json_int_at(root, "usage.completion_tokens"), 8);
    json_decref(root);
    root = http_post_json(f.port, TEXT, "{\"prompt\":[[5,6],[7]]}", 200);
    assert_int_equal(json_array_size(json_at(root, "choices")), 2);
    assert_int_equal(json_int_at(root, "usage.prompt_tokens"), 3);
    json_decref(root);
}

/* ---- replies ---- */

static void replies_have_figures(void **state)
{
    json_t *root = http_post_json(f.port, TEXT, "{\"prompt\":[5,6,7,8]}", 200);

    (void)state;
    assert_string_equal(json_string_at(root, "object"), "text_completion");
    assert_int_equal(json_int_at(root, "usage.prompt_tokens"), 4);
    assert_int_equal(json_int_at(root, "usage.completion_tokens"), 2);
    assert_int_equal(json_int_at(root, "usage.total_tokens"), 6);
    assert_int_equal(json_int_at(root, "usage.prompt_tokens_details.cached_tokens"), 2);
    assert_int_equal(json_int_at(root, "timings.cache_n"), 2);
    assert_int_equal(json_int_at(root, "timings.prompt_n"), 2);
    assert_int_equal(json_int_at(root, "timings.predicted_n"), 2);
    assert_true(json_number_value(json_at(root, "timings.prompt_ms")) == 2.0);
    assert_true(json_number_value(json_at(root, "timings.predicted_per_second")) == 500.0);
    assert_null(json_object_get(root, "quire"));
    json_decref(root);
}

static void explains_when_asked(void **state)
{
    json_t *root = http_post_json(f.port, CHAT, "{" HI ",\"explain_cache\":true}", 200);

    (void)state;
    assert_string_equal(json_string_at(root, "quire.cache.end"), "diverged");
    assert_string_equal(json_string_at(root, "quire.cache.cut_by"), "window");
    assert_int_equal(json_int_at(root, "quire.cache.prompt_token.id"), 70);
    assert_true(strlen(json_string_at(root, "quire.cache.cached_token.text")) > 0);
    assert_int_equal(json_int_at(root, "quire.dropped_turns"), 0);
    assert_string_equal(json_string_at(root, "quire.request_id"), json_string_at(root, "id"));
    json_decref(root);
}

static void chat_logprobs_have_their_shape(void **state)
{
    json_t *root =
        http_post_json(f.port, CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":2}", 200);
    json_t *content = json_at(root, "choices.0.logprobs.content");

    (void)state;
    assert_int_equal(json_array_size(content), 2);
    assert_true(json_number_value(json_at(content, "1.logprob")) == -0.5);
    assert_true(json_array_size(json_at(content, "0.bytes")) > 0);
    assert_int_equal(json_array_size(json_at(content, "0.top_logprobs")), 2);
    assert_true(json_number_value(json_at(content, "0.top_logprobs.1.logprob")) == -1.5);
    json_decref(root);
    root = http_post_json(f.port, CHAT, "{" HI "}", 200);
    assert_true(json_is_null(json_at(root, "choices.0.logprobs")));
    json_decref(root);
}

static void text_logprobs_have_their_shape(void **state)
{
    json_t *root = http_post_json(f.port, TEXT, "{\"prompt\":\"a\",\"logprobs\":1}", 200);
    json_t *logprobs = json_at(root, "choices.0.logprobs");

    (void)state;
    assert_int_equal(json_array_size(json_at(logprobs, "tokens")), 2);
    assert_int_equal(json_array_size(json_at(logprobs, "token_logprobs")), 2);
    assert_int_equal(json_object_size(json_at(logprobs, "top_logprobs.0")), 1);
    assert_int_equal(json_int_at(logprobs, "text_offset.0"), 0);
    assert_int_equal(json_int_at(logprobs, "text_offset.1"), 5);
    json_decref(root);
}

static void tokenizes_and_back(void **state)
{
    json_t *root = http_post_json(f.port, "/tokenize", "{\"content\":\"a cat\"}", 200);
    char *tokens = json_dumps(json_at(root, "tokens"), 0);
    char body[512];

    (void)state;
    assert_true(json_array_size(json_at(root, "tokens")) > 0);
    (void)snprintf(body, sizeof body, "{\"tokens\":%s}", tokens);
    json_decref(root);
    free(tokens);
    root = http_post_json(f.port, "/detokenize", body, 200);
    assert_non_null(strstr(json_string_at(root, "content"), "a cat"));
    json_decref(root);
    root =
        http_post_json(f.port, "/tokenize",
                       "{\"content\":\"\xc3\xa9\",\"with_pieces\":true,\"add_special\":true}", 200);
    assert_int_equal(json_int_at(root, "tokens.0.id"), 1); /* BOS */
    /* No token of the generated vocabulary is this letter: its bytes are. */
    assert_true(json_is_array(json_at(root, "tokens.2.piece")));
    json_decref(root);
    root = http_post_json(f.port, "/tokenize", "{\"content\":\"\"}", 200);
    assert_int_equal(json_array_size(json_at(root, "tokens")), 0);
    json_decref(root);
}

/* ---- turns that are dropped ---- */

/* The first n tokens of the prompt that the engine got, as text. Memory: free(). */
static char *first_text(uint32_t n_tokens)
{
    const engine_seen seen = engine_double_seen(f.engine);
    quire_bytes text = { 0 };

    assert_true(n_tokens <= seen.params.n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++) {
        char piece[64];
        const int64_t n =
            quire_model_token_text(f.model, seen.tokens[i], true, piece, sizeof piece);

        assert_true(n >= 0 && n <= (int64_t)sizeof piece);
        assert_int_equal(quire_bytes_add(&text, piece, (size_t)n), QUIRE_OK);
    }
    return text.data;
}

static char *prompt_text(void)
{
    return first_text(engine_double_seen(f.engine).params.n_tokens);
}

/* Turns of about 50 tokens each. */
static char *conversation(const char *role, int n_turns, const char *fields)
{
    quire_bytes body = { 0 };

    (void)quire_bytes_addf(&body, "{%s\"messages\":[{\"role\":\"%s\",\"content\":\"be brief\"}",
                           fields, role);
    for (int i = 0; i < n_turns; i++) {
        (void)quire_bytes_addf(&body,
                               ",{\"role\":\"user\",\"content\":\"ask %c\"}"
                               ",{\"role\":\"assistant\",\"content\":\"say %c\"}",
                               'a' + i, 'a' + i);
    }
    (void)quire_bytes_addf(&body, ",{\"role\":\"user\",\"content\":\"the end\"}]}");
    assert_int_equal(body.status, QUIRE_OK);
    return body.data;
}

static void full_contexts_go_on(void **state)
{
    static const struct {
        const char *path;
        const char *body;
        quire_context_overflow overflow;
        uint32_t keep;
    } cases[] = {
        { CHAT, "{" HI "}", QUIRE_CONTEXT_REFUSE, 64 },
        { CHAT, "{" HI ",\"context_overflow\":\"shift\"}", QUIRE_CONTEXT_SHIFT, 64 },
        { TEXT, "{\"prompt\":\"a\",\"context_overflow\":\"sinks\",\"context_keep\":0}",
          QUIRE_CONTEXT_SINKS, 0 },
        { TEXT, "{\"prompt\":\"a\",\"context_overflow\":\"shift\",\"context_keep\":4294967295}",
          QUIRE_CONTEXT_SHIFT, UINT32_MAX },
        { CHAT, "{" HI ",\"context_overflow\":\"condense\"}", QUIRE_CONTEXT_CONDENSE, 64 },
        { TEXT, "{\"prompt\":\"a\",\"context_overflow\":\"condense\",\"retain\":\"stride:0.3\"}",
          QUIRE_CONTEXT_CONDENSE, 64 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_seen seen;

        json_decref(http_post_json(f.port, cases[i].path, cases[i].body, 200));
        seen = engine_double_seen(f.engine);
        assert_int_equal(seen.params.context_overflow, cases[i].overflow);
        assert_int_equal(seen.params.context_keep, cases[i].keep);
    }
}

#define INSTRUCTION                                                                                \
    "Be brief and answer in the language of the question, with the date of each source you name"

/* A chat's context_keep covers its first instructions, unless the request gives the number. */
static void condense_keeps_the_instructions(void **state)
{
    static const struct {
        const char *fields;
        bool keeps;
        uint32_t keep; /* else */
    } cases[] = {
        { "\"context_overflow\":\"condense\"", true, 0 },
        { "\"context_overflow\":\"condense\",\"max_tokens\":250", true, 0 },
        { "\"context_overflow\":\"condense\",\"max_tokens\":4", false, 64 }, /* it fits */
        { "\"context_overflow\":\"condense\",\"context_keep\":70", false, 70 },
        { "\"context_overflow\":\"shift\"", false, 64 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        engine_seen seen;
        char *text;

        (void)snprintf(body, sizeof body,
                       "{%s,\"messages\":[{\"role\":\"system\",\"content\":\"" INSTRUCTION
                       "\"},{\"role\":\"user\",\"content\":\"Why is that?\"}]}",
                       cases[i].fields);
        json_decref(http_post_json(f.port, CHAT, body, 200));
        seen = engine_double_seen(f.engine);
        if (!cases[i].keeps) {
            assert_int_equal(seen.params.context_keep, cases[i].keep);
            continue;
        }
        text = first_text(seen.params.context_keep);
        assert_non_null(strstr(text, INSTRUCTION));
        assert_null(strstr(text, "Why"));
        free(text);
    }
}

static void drop_turns_behind(const char *role)
{
    static const char truncate[] = "\"context_overflow\":\"truncate_turns\",\"max_tokens\":20,";
    char *body = conversation(role, 1, truncate);
    json_t *reply = http_post_json(f.port, CHAT, body, 200);
    char *text;

    assert_null(json_object_get(reply, "quire"));
    json_decref(reply);
    free(body);
    body = conversation(role, 12, truncate);
    reply = http_post_json(f.port, CHAT, body, 200);
    text = prompt_text();
    assert_non_null(strstr(text, "be brief"));
    assert_non_null(strstr(text, "the end"));
    assert_non_null(strstr(text, "say l"));
    assert_null(strstr(text, "ask a"));
    assert_null(strstr(text, "say a"));
    assert_true(json_int_at(reply, "usage.prompt_tokens") + 20 <= 256);
    /* No more than needed: one more turn of 50 tokens would not have fitted. */
    assert_true(json_int_at(reply, "usage.prompt_tokens") + 20 + 60 > 256);
    assert_int_equal(json_int_at(reply, "quire.dropped_messages"),
                     2 * json_int_at(reply, "quire.dropped_turns"));
    free(text);
    json_decref(reply);
    free(body);
    body = conversation(role, 0, "\"context_overflow\":\"truncate_turns\",\"max_tokens\":255,");
    reply = http_post_json(f.port, CHAT, body, 400);
    assert_string_equal(json_string_at(reply, "error.code"), "context_length_exceeded");
    json_decref(reply);
    free(body);
}

static void drops_the_oldest_turns(void **state)
{
    (void)state;
    drop_turns_behind("system");
    drop_turns_behind("developer");
}

/* ---- errors of the engine ---- */

static void tells_the_engines_errors(void **state)
{
    static const struct {
        int status;
        const char *message;
        int http;
        const char *code;
        const char *param;
    } errors[] = {
        { QUIRE_RANGE, "the prompt has 300 tokens, the context 256", 400, "context_length_exceeded",
          "messages" },
        { QUIRE_INVAL, "grammar: line 1: no rule", 400, "invalid_value", "grammar" },
        /* A limit that the request is beyond, not the server: it must not be tried again. */
        { QUIRE_LIMIT, "grammar: more than 8192 rules", 400, "invalid_value", "grammar" },
        { QUIRE_LIMIT, "grammar, line 1, column 9: too many groups", 400, "invalid_value",
          "grammar" },
        { QUIRE_LIMIT, "the queue is full", 429, "queue_full", NULL },
        { QUIRE_AGAIN, "draining", 503, "draining", NULL },
        { QUIRE_NOMEM, "out of memory", 503, "out_of_memory", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        engine_script script = engine_script_hello;
        json_t *root;

        script.submit_status = errors[i].status;
        script.submit_message = errors[i].message;
        engine_double_script(f.engine, &script);
        root = http_post_json(f.port, CHAT, "{" HI "}", errors[i].http);
        assert_string_equal(json_string_at(root, "error.code"), errors[i].code);
        if (errors[i].param != NULL) {
            assert_string_equal(json_string_at(root, "error.param"), errors[i].param);
        }
        json_decref(root);
    }
}

static void a_full_queue_says_when(void **state)
{
    engine_script script = engine_script_hello;
    http_reply reply;

    (void)state;
    script.submit_status = QUIRE_LIMIT;
    script.submit_message = "the queue is full";
    script.submit_refused_from = 2;
    engine_double_script(f.engine, &script);
    reply = http_post(f.port, CHAT, "{" HI ",\"n\":3}");
    assert_int_equal(reply.status, 429);
    assert_non_null(strstr(reply.body, "rate_limit_error"));
    /* 1.5 s a request, two at a time, a quarter of 8 waiting and one more: 2.25 s. */
    assert_true(http_has_header(&reply, "Retry-After", "3"));
    http_reply_free(&reply);
    server_fixture_wait_log(&f, "status=429");
    assert_int_equal(engine_double_seen(f.engine).n_released, 2); /* none stays behind */
}

/* An ignored field is named if it looks misspelt, and the answer comes all the same. */
static void misspelt_fields_are_named(void **state)
{
    static const struct {
        const char *path;
        const char *body;
        const char *ignored; /* NULL: no such header */
    } cases[] = {
        { CHAT, "{" HI ",\"temprature\":0,\"user\":\"u\",\"metadata\":{}}", "temprature" },
        { CHAT, "{" HI ",\"max_token\":5,\"topP\":1,\"seeed\":1,\"steam\":true}",
          "max_token,topP,seeed" },
        { CHAT, "{" HI ",\"tempera\\nture\":0,\"stream\":true}", "tempera?ture" },
        { TEXT, "{\"prompt\":\"hi\",\"num_predict\":1,\"keep_alive\":1}", "num_predict" },
        { "/v1/responses", "{\"input\":\"hi\",\"max_output_token\":5,\"temprature\":0}",
          "max_output_token,temprature" },
        { "/v1/messages", "{" HI ",\"max_tokens\":5,\"stop_sequence\":[]}", "stop_sequence" },
        { "/v1/messages", "{" HI ",\"max_tokens\":5,\"top_k\":1,\"metadata\":{}}", NULL },
        { CHAT, "{" HI ",\"temperature\":0,\"temprature\":0,\"max_token\":null,\"tpo\":1}", NULL },
        { CHAT, "{" HI ",\"user\":\"u\",\"safety_identifier\":\"s\",\"extra_body\":{},\"id\":1}",
          NULL },
    };
    char said[80];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        http_reply reply = http_post(f.port, cases[i].path, cases[i].body);

        print_message("%s\n", cases[i].body);
        assert_int_equal(reply.status, 200);
        assert_int_equal(strstr(reply.headers, "X-Ignored-Fields:") != NULL,
                         cases[i].ignored != NULL);
        if (cases[i].ignored != NULL) {
            assert_true(http_has_header(&reply, "X-Ignored-Fields", cases[i].ignored));
            (void)snprintf(said, sizeof said, " ignored=%s\n", cases[i].ignored);
            server_fixture_wait_log(&f, said);
        }
        http_reply_free(&reply);
    }
}

static void an_engines_failure_is_a_server_error(void **state)
{
    static const char line[] = "POST " CHAT " status=500";
    engine_script script = engine_script_hello;
    json_t *root;

    (void)state;
    script.finish = QUIRE_FINISH_ERROR;
    script.status = QUIRE_NOPAGES;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{" HI "}", 429);
    assert_string_equal(json_string_at(root, "error.message"), "the script says so");
    assert_string_equal(json_string_at(root, "error.code"), "out_of_pages");
    json_decref(root);
    script.status = QUIRE_IO;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{" HI "}", 500);
    assert_string_equal(json_string_at(root, "error.type"), "server_error");
    json_decref(root);
    server_fixture_wait_log(&f, line);
    assert_non_null(strstr(strstr(f.log, line), " finish=error"));
    assert_null(strstr(strstr(f.log, line), " finish=cancelled"));
    json_decref(http_post_json(f.port, "/v1/cache/invalidate", "{\"all\":true}", 503));
    json_decref(http_get_json(f.port, "/v1/cache/pages", 503));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_field_it_refuses),
        cmocka_unit_test(bounds_what_is_long),
        cmocka_unit_test(passes_every_field_on),
        cmocka_unit_test(formats_become_grammars),
        cmocka_unit_test(null_is_absent),
        cmocka_unit_test(misspelt_fields_are_named),
        cmocka_unit_test(takes_the_smaller_of_two_limits),
        cmocka_unit_test(minus_one_is_no_limit),
        cmocka_unit_test(seeds_differ_unless_given),
        cmocka_unit_test(joins_text_parts),
        cmocka_unit_test(takes_prompts_in_every_shape),
        cmocka_unit_test(replies_have_figures),
        cmocka_unit_test(explains_when_asked),
        cmocka_unit_test(chat_logprobs_have_their_shape),
        cmocka_unit_test(text_logprobs_have_their_shape),
        cmocka_unit_test(tokenizes_and_back),
        cmocka_unit_test(full_contexts_go_on),
        cmocka_unit_test(condense_keeps_the_instructions),
        cmocka_unit_test(drops_the_oldest_turns),
        cmocka_unit_test(tells_the_engines_errors),
        cmocka_unit_test(a_full_queue_says_when),
        cmocka_unit_test(an_engines_failure_is_a_server_error),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
