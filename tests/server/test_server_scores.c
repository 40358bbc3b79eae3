/* test_server_scores.c - the server with the real engine: log-probabilities of prompts, as
 * evaluation programs ask for them.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_server.h"

#include "base/bytes.h"
#include "retain/policy.h"

#include <math.h>
#include <string.h>

#define N_CTX    512u
#define TEXT     "/v1/completions"
#define CHAT     "/v1/chat/completions"
#define N_TOKENS 150u

static engine_server s;
static int32_t tokens[N_TOKENS];

static int start(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;

    (void)state;
    opts.n_contexts = 4;
    opts.engine.chunk_tokens = 64;
    engine_server_start_with(&s, N_CTX, &opts);
    tokens_make(tokens, N_TOKENS, 3);
    return 0;
}

/* Texts keep half of their tokens, and full contexts drop some. */
static int start_dropping(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    opts.n_contexts = 4;
    opts.engine.retain_chunk = 128;
    opts.server.context_overflow = QUIRE_CONTEXT_CONDENSE;
    assert_int_equal(quire_retain_parse("keydiff:0.5,recent=32", &opts.server.retain, &err),
                     QUIRE_OK);
    engine_server_start_with(&s, N_CTX, &opts);
    tokens_make(tokens, N_TOKENS, 3);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    engine_server_stop(&s);
    return 0;
}

/* {"prompt":[tokens first .. end],fields} */
static json_t *ask(uint32_t first, uint32_t end, const char *fields, int status)
{
    quire_bytes body = { 0 };
    json_t *reply;

    (void)quire_bytes_addf(&body, "{\"prompt\":[");
    for (uint32_t i = first; i < end; i++) {
        (void)quire_bytes_addf(&body, "%s%d", i > first ? "," : "", tokens[i]);
    }
    assert_int_equal(quire_bytes_addf(&body, "],\"temperature\":0,\"ignore_eos\":true,%s}", fields),
                     QUIRE_OK);
    reply = post(&s, status, TEXT, body.data);
    quire_bytes_fini(&body);
    return reply;
}

static double at(json_t *list, size_t i)
{
    assert_true(json_is_number(json_array_get(list, i)));
    return json_number_value(json_array_get(list, i));
}

/* What the engine's own loop says. */
static void values_are_the_models(void **state)
{
    json_t *reply = ask(0, N_TOKENS, "\"echo\":true,\"logprobs\":1,\"max_tokens\":1", 200);
    json_t *list = json_at(reply, "choices.0.logprobs.token_logprobs");
    quire_runtime_opts opts = *quire_runtime_opts_get(s.bench.runtime);
    quire_runtime *runtime;
    const float *logits;

    (void)state;
    opts.n_seqs_max = 1;
    opts.kv_budget_bytes = 0;
    runtime = fixture_runtime(s.bench.model, &opts);
    logits = fixture_step(runtime, fixture_seq(runtime), tokens, N_TOKENS, QUIRE_LOGITS_ALL);
    assert_int_equal(json_array_size(list), N_TOKENS + 1);
    assert_true(json_is_null(json_array_get(list, 0)));
    for (uint32_t i = 1; i < N_TOKENS; i++) {
        const float want = quire_logits_logprob(logits + (size_t)(i - 1) * s.bench.n_vocab,
                                                s.bench.n_vocab, tokens[i], NULL, 0);

        assert_true(fabs(at(list, i) - (double)want) < 1e-4);
    }
    quire_runtime_destroy(runtime);
    json_decref(reply);
}

/* An answer has the same values when it comes back as a part of the prompt, where its tokens are
 * the likeliest ones: what a program that scores choices looks at. */
static void an_answer_is_scored_alike(void **state)
{
    enum {
        N_ANSWER = 12
    };
    json_t *reply = ask(0, 100, "\"prompt_logprobs\":0,\"logprobs\":1,\"max_tokens\":12", 200);
    json_t *of_answer = json_incref(json_at(reply, "choices.0.logprobs.token_logprobs"));
    int32_t answer[N_ANSWER];
    json_t *list;

    (void)state;
    json_decref(reply);
    (void)reference(&s.bench, tokens, 100, answer, N_ANSWER);
    memcpy(tokens + 100, answer, sizeof answer);
    reply = ask(0, 100 + N_ANSWER, "\"echo\":true,\"logprobs\":1,\"max_tokens\":0", 200);
    list = json_at(reply, "choices.0.logprobs.token_logprobs");
    assert_int_equal(json_array_size(list), 100 + N_ANSWER);
    assert_int_equal(cached_tokens(reply), 0);
    assert_int_equal(completion_tokens(reply), 0);
    for (uint32_t i = 0; i < N_ANSWER; i++) {
        json_t *tops = json_array_get(json_at(reply, "choices.0.logprobs.top_logprobs"), 100 + i);
        const double value = at(list, 100 + i);

        assert_true(fabs(value - at(of_answer, i)) < 1e-4);
        assert_int_equal(json_object_size(tops), 1);
        assert_true(
            fabs(json_number_value(json_object_iter_value(json_object_iter(tops))) - value) <= 0.0);
    }
    json_decref(reply);
    json_decref(of_answer);
    /* The same text is cached now, for others. */
    reply = ask(0, 100 + N_ANSWER, "\"max_tokens\":1", 200);
    assert_true(cached_tokens(reply) > 0);
    json_decref(reply);
}

static void a_text_and_a_chat(void **state)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"Once upon a time, a boat\",\"echo\":true,\"logprobs\":2,\"max_tokens\":0}",
        "{\"prompt\":[\"Once upon\",\"a boat\"],\"echo\":true,\"logprobs\":2,\"max_tokens\":1,"
        "\"n\":2}",
    };
    json_t *reply;

    (void)state;
    reply = post(&s, 200, TEXT, bodies[0]);
    assert_string_equal(json_string_at(reply, "choices.0.text"), "Once upon a time, a boat");
    assert_int_equal(json_array_size(json_at(reply, "choices.0.logprobs.tokens")),
                     prompt_tokens(reply));
    json_decref(reply);
    reply = post(&s, 200, TEXT, bodies[1]);
    assert_int_equal(json_array_size(json_at(reply, "choices")), 4);
    assert_true(json_equal(json_array_get(json_at(reply, "choices.2.logprobs.token_logprobs"), 1),
                           json_array_get(json_at(reply, "choices.3.logprobs.token_logprobs"), 1)));
    json_decref(reply);
    reply = post(&s, 200, CHAT,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"prompt_logprobs\":1,"
                 "\"max_tokens\":0}");
    assert_int_equal(json_array_size(json_at(reply, "prompt_logprobs")), prompt_tokens(reply));
    assert_string_equal(json_string_at(reply, "choices.0.message.content"), "");
    assert_string_equal(json_string_at(reply, "choices.0.finish_reason"), "length");
    json_decref(reply);
}

/* The server's defaults drop tokens. A request for log-probabilities of its prompt keeps all
 * tokens; a request that names such a setting itself is refused. */
static void whole_texts_are_scored(void **state)
{
    json_t *reply = ask(0, N_TOKENS, "\"echo\":true,\"logprobs\":1,\"max_tokens\":1", 200);

    (void)state;
    assert_int_equal(json_array_size(json_at(reply, "choices.0.logprobs.token_logprobs")),
                     N_TOKENS + 1);
    assert_null(json_object_get(reply, "quire")); /* no token was dropped */
    json_decref(reply);
    reply = ask(0, 20, "\"prompt_logprobs\":1,\"context_overflow\":\"shift\"", 400);
    assert_string_equal(json_string_at(reply, "error.param"), "context_overflow");
    json_decref(reply);
    reply = ask(0, 20, "\"prompt_logprobs\":1,\"retain\":\"keydiff:0.5\"", 400);
    assert_string_equal(json_string_at(reply, "error.param"), "retain");
    json_decref(reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(values_are_the_models, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_is_scored_alike, start, stop),
        cmocka_unit_test_setup_teardown(a_text_and_a_chat, start, stop),
        cmocka_unit_test_setup_teardown(whole_texts_are_scored, start_dropping, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
