/* test_server_sessions.c - conversations over several turns, truncation, invalidation; the real
 * engine.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_server.h"
#include "model/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX 1024
/* A model with random weights says bytes that are no text; these are. */
#define GREEDY                                                                                     \
    "\"temperature\":0,\"max_tokens\":8,\"ignore_eos\":true,\"grammar\":\"root ::= [a-z ]+\""
#define SYSTEM "{\"role\":\"system\",\"content\":\"You tell short stories about the sea.\"}"
#define USER_1 "{\"role\":\"user\",\"content\":\"Tell me about a boat that could not sink.\"}"
#define USER_2 "{\"role\":\"user\",\"content\":\"And then what did it do?\"}"
#define USER_3 "{\"role\":\"user\",\"content\":\"And what came after?\"}"

static engine_server s;

static int start(void **state)
{
    (void)state;
    engine_server_start(&s, N_CTX, NULL, 0);
    return 0;
}

static int start_with_keys(void **state)
{
    (void)state;
    engine_server_start_with_tenants(&s, N_CTX);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    engine_server_stop(&s);
    return 0;
}

/* ---- turns ---- */

static json_t *turn(const char *messages)
{
    char body[2048];

    (void)snprintf(body, sizeof body, "{\"session_id\":\"one\",\"messages\":[%s]," GREEDY "}",
                   messages);
    return post(&s, 200, CHAT, body);
}

/* The number of tokens with KV that a turn leaves: all but the last chosen token. */
static int64_t kept_tokens(json_t *reply)
{
    return prompt_tokens(reply) + completion_tokens(reply) - 1;
}

static void a_turn_computes_only_what_is_new(void **state)
{
    json_t *first = turn(SYSTEM "," USER_1);
    json_t *second = turn(USER_2);
    json_t *third = turn(USER_3);

    (void)state;
    assert_int_equal(cached_tokens(first), 0);
    assert_int_equal(cached_tokens(second), kept_tokens(first));
    assert_int_equal(cached_tokens(third), kept_tokens(second));
    assert_string_equal(json_string_at(second, "quire.session_id"), "one");
    assert_true(json_is_true(json_at(second, "quire.session_kept")));
    assert_int_equal(json_int_at(second, "quire.dropped_turns"), 0);
    json_decref(first);
    json_decref(second);
    json_decref(third);
}

/* The history comes back as clients without sessions send it. */
static void a_history_that_is_sent_again_is_recognised(void **state)
{
    json_t *first = turn(SYSTEM "," USER_1);
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "system", "content",
                  "You tell short stories about the sea.", "role", "user", "content",
                  "Tell me about a boat that could not sink.", "role", "assistant", "content",
                  json_string_at(first, "choices.0.message.content"), "role", "user", "content",
                  "And then what did it do?");
    char *text = json_dumps(messages, 0);
    json_t *second;
    json_t *again;

    (void)state;
    text[strlen(text) - 1] = '\0';
    second = turn(text + 1);
    assert_int_equal(cached_tokens(second), kept_tokens(first));
    again = turn(USER_3);
    assert_int_equal(cached_tokens(again), kept_tokens(second));
    json_decref(again);
    json_decref(second);
    json_decref(messages);
    json_decref(first);
    free(text);
}

static void take_event(void *ctx, const char *data)
{
    json_t **last = ctx;
    json_t *root = json_loads(data, 0, NULL);

    if (root != NULL) {
        json_decref(*last);
        *last = root;
    }
}

static void a_stream_is_a_turn_too(void **state)
{
    http_reply reply =
        http_post(s.port, CHAT,
                  "{\"session_id\":\"one\",\"stream\":true,\"stream_options\":"
                  "{\"include_usage\":true},\"messages\":[" SYSTEM "," USER_1 "]," GREEDY "}");
    json_t *last = NULL;
    json_t *second;

    (void)state;
    (void)http_events(&reply, take_event, &last);
    second = turn(USER_2);
    assert_int_equal(cached_tokens(second), kept_tokens(last));
    json_decref(second);
    json_decref(last);
    http_reply_free(&reply);
}

static int32_t nul_token(void)
{
    char byte = 'x';

    for (int32_t token = 0; token < (int32_t)s.bench.n_vocab; token++) {
        if (quire_model_token_text(s.bench.model, token, true, &byte, 1) == 1 && byte == '\0') {
            return token;
        }
    }
    fail_msg("the vocabulary has no NUL");
    return -1;
}

/* The texts of a session end at a NUL, so it would lose words. */
static void an_answer_with_a_nul_is_not_kept(void **state)
{
    json_t *first = turn(SYSTEM "," USER_1);
    json_t *reply;
    char body[512];

    (void)state;
    (void)snprintf(body, sizeof body,
                   "{\"session_id\":\"one\",\"messages\":[" USER_2 "],\"temperature\":0,"
                   "\"max_tokens\":2,\"logit_bias\":{\"%d\":100}}",
                   nul_token());
    reply = post(&s, 200, CHAT, body);
    assert_int_equal(json_string_length(json_at(reply, "choices.0.message.content")), 2);
    assert_true(json_is_false(json_at(reply, "quire.session_kept")));
    json_decref(reply);
    reply = get(&s, 200, "/v1/cache/sessions/one");
    assert_int_equal(json_int_at(reply, "turns"), 1);
    json_decref(reply);
    json_decref(first);
}

static void a_text_goes_on(void **state)
{
    json_t *first =
        post(&s, 200, TEXT, "{\"session_id\":\"t\",\"prompt\":\"Once upon a time\"," GREEDY "}");
    json_t *second =
        post(&s, 200, TEXT, "{\"session_id\":\"t\",\"prompt\":\" and so on\"," GREEDY "}");
    json_t *error;

    (void)state;
    assert_int_equal(cached_tokens(second), kept_tokens(first));
    assert_true(prompt_tokens(second) > kept_tokens(first));
    error = post(&s, 400, CHAT, "{\"session_id\":\"t\",\"messages\":[" USER_1 "]," GREEDY "}");
    assert_string_equal(json_string_at(error, "error.code"), "session_kind");
    json_decref(error);
    json_decref(turn(USER_1));
    error = post(&s, 400, TEXT, "{\"session_id\":\"one\",\"prompt\":\"Once\"}");
    assert_string_equal(json_string_at(error, "error.code"), "session_kind");
    json_decref(error);
    json_decref(first);
    json_decref(second);
}

/* ---- overflow ---- */

/* 600 characters, others for each turn. */
static void make_words(char words[601], int turn)
{
    for (int i = 0; i < 600; i += 2) {
        words[i] = (char)('a' + (turn + i) % 26);
        words[i + 1] = ' ';
    }
    words[600] = '\0';
}

static json_t *long_turn(int status, int i, int max_tokens)
{
    char body[2048];
    char words[601];

    make_words(words, i);
    (void)snprintf(body, sizeof body,
                   "{\"session_id\":\"long\",\"context_overflow\":\"truncate_turns\","
                   "\"max_tokens\":%d,"
                   "\"ignore_eos\":true,\"messages\":[" SYSTEM
                   ",{\"role\":\"user\",\"content\":\"%s\"}]}",
                   max_tokens, words);
    return post(&s, status, CHAT, body);
}

static void old_turns_are_dropped_when_asked(void **state)
{
    int64_t n_dropped = 0;
    json_t *reply;

    (void)state;
    for (int i = 0; i < 8; i++) {
        reply = long_turn(200, i, 8);
        assert_true(prompt_tokens(reply) + 8 <= N_CTX);
        n_dropped += json_int_at(reply, "quire.dropped_turns");
        if (json_int_at(reply, "quire.dropped_turns") > 0) {
            assert_int_equal(json_int_at(reply, "quire.dropped_messages"),
                             2 * json_int_at(reply, "quire.dropped_turns"));
        }
        json_decref(reply);
    }
    assert_true(n_dropped > 0);
    /* A single turn that is too long: no other turn can be dropped. */
    reply = long_turn(400, 8, N_CTX);
    assert_string_equal(json_string_at(reply, "error.code"), "context_length_exceeded");
    assert_string_equal(json_string_at(reply, "error.param"), "messages");
    json_decref(reply);
}

static void a_full_session_refuses_when_asked(void **state)
{
    json_t *reply = NULL;
    int n = 0;

    (void)state;
    for (; n < 8; n++) {
        char words[601];
        char body[2048];
        http_reply raw;

        make_words(words, n);
        (void)snprintf(body, sizeof body,
                       "{\"session_id\":\"full\",\"max_tokens\":8,\"ignore_eos\":true,"
                       "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                       words);
        raw = http_post(s.port, CHAT, body);
        if (raw.status != 200) {
            assert_int_equal(raw.status, 400);
            reply = json_loads(raw.body, 0, NULL);
        }
        http_reply_free(&raw);
        if (reply != NULL) {
            break;
        }
    }
    assert_true(n > 0 && n < 8);
    assert_string_equal(json_string_at(reply, "error.code"), "context_length_exceeded");
    json_decref(reply);
    /* A refused request is no turn: the session is unchanged. */
    reply = get(&s, 200, "/v1/cache/sessions/full");
    assert_int_equal(json_int_at(reply, "turns"), n);
    assert_false(json_is_true(json_at(reply, "in_use")));
    json_decref(reply);
}

/* ---- administration ---- */

static void sessions_are_listed_and_closed(void **state)
{
    json_t *reply;

    (void)state;
    json_decref(turn(SYSTEM "," USER_1));
    reply = get(&s, 200, "/v1/cache/sessions");
    assert_int_equal(json_int_at(reply, "total"), 1);
    assert_string_equal(json_string_at(reply, "data.0.id"), "one");
    assert_int_equal(json_int_at(reply, "data.0.turns"), 1);
    assert_int_equal(json_int_at(reply, "data.0.messages"), 3);
    assert_true(json_int_at(reply, "data.0.kv_bytes") > 0);
    assert_int_equal(json_int_at(reply, "data.0.own_kv_bytes"),
                     json_int_at(reply, "data.0.kv_bytes"));
    json_decref(reply);
    reply = drop(&s, 200, "/v1/cache/sessions/one");
    assert_true(json_is_true(json_at(reply, "deleted")));
    assert_true(json_int_at(reply, "dropped.freed_bytes") > 0);
    json_decref(reply);
    json_decref(drop(&s, 404, "/v1/cache/sessions/one"));
    json_decref(get(&s, 404, "/v1/cache/sessions/one"));
    reply = turn(SYSTEM "," USER_1);
    assert_int_equal(cached_tokens(reply), 0);
    json_decref(reply);
}

/* More tokens than the list looks at in one go (16Ki). Memory is short, but the page in which their
 * texts part is there for all. */
static void many_sessions_are_measured(void **state)
{
    enum {
        N_SESSIONS = 20,
        N_WORDS = 900
    };
    char words[N_WORDS + 1];
    char body[2 * N_WORDS];
    json_t *reply;

    (void)state;
    memset(words, 'q', N_WORDS);
    words[N_WORDS] = '\0';
    for (int i = 0; i < N_SESSIONS; i++) {
        (void)snprintf(body, sizeof body,
                       "{\"session_id\":\"%d\",\"prompt\":\"%c%s\",\"max_tokens\":2,"
                       "\"ignore_eos\":true,\"grammar\":\"root ::= [a-z]+\"}",
                       i, 'a' + i, words);
        json_decref(post(&s, 200, TEXT, body));
    }
    reply = get(&s, 200, "/v1/cache/sessions?limit=100");
    assert_int_equal(json_int_at(reply, "total"), N_SESSIONS);
    for (size_t i = 0; i < N_SESSIONS; i++) {
        json_t *session = json_array_get(json_at(reply, "data"), i);

        assert_true(json_int_at(session, "tokens") > N_WORDS);
        assert_true(json_int_at(session, "kv_bytes") > 0);
    }
    json_decref(reply);
}

static void sessions_are_their_tenants(void **state)
{
    json_t *reply;

    (void)state;
    json_decref(turn(SYSTEM "," USER_1));
    s.key = KEY_OF_B;
    reply = get(&s, 200, "/v1/cache/sessions");
    assert_int_equal(json_array_size(json_at(reply, "data")), 0);
    json_decref(reply);
    json_decref(get(&s, 404, "/v1/cache/sessions/one"));
    json_decref(drop(&s, 404, "/v1/cache/sessions/one"));
    reply = turn(USER_2); /* the same name is another session */
    assert_int_equal(cached_tokens(reply), 0);
    json_decref(reply);
    s.key = KEY_OF_ADMIN;
    reply = get(&s, 200, "/v1/cache/sessions");
    assert_int_equal(json_array_size(json_at(reply, "data")), 2);
    json_decref(reply);
    reply = get(&s, 200, "/v1/cache/sessions?limit=1");
    assert_int_equal(json_array_size(json_at(reply, "data")), 1);
    assert_int_equal(json_int_at(reply, "total"), 2);
    json_decref(get(&s, 400, "/v1/cache/sessions?limit=0"));
    json_decref(reply);
    json_decref(drop(&s, 404, "/v1/cache/sessions/one?tenant=&cache_salt="));
    json_decref(drop(&s, 200, "/v1/cache/sessions/one?tenant=b&cache_salt="));
    s.key = KEY_OF_A;
    reply = get(&s, 200, "/v1/cache/sessions/one");
    assert_string_equal(json_string_at(reply, "tenant"), "a");
    json_decref(reply);
    json_decref(drop(&s, 404, "/v1/cache/sessions/one?cache_salt=other"));
    json_decref(drop(&s, 200, "/v1/cache/sessions/one"));
}

static int64_t closed_by(const char *key, const char *query)
{
    char path[80];
    int64_t n;
    json_t *reply;

    s.key = key;
    (void)snprintf(path, sizeof path, "/v1/cache/sessions%s", query);
    reply = drop(&s, 200, path);
    n = json_int_at(reply, "deleted");
    assert_true((n > 0) == (json_int_at(reply, "dropped.freed_bytes") > 0));
    json_decref(reply);
    return n;
}

static void all_sessions_of_a_key_are_closed_at_once(void **state)
{
    (void)state;
    json_decref(turn(SYSTEM "," USER_1));
    json_decref(
        post(&s, 200, TEXT, "{\"session_id\":\"two\",\"prompt\":\"Once upon\"," GREEDY "}"));
    s.key = KEY_OF_B;
    json_decref(turn(USER_1));
    assert_int_equal(closed_by(KEY_OF_A, "?tenant=b"), 2); /* its own all the same */
    json_decref(get(&s, 404, "/v1/cache/sessions/one"));
    assert_int_equal(closed_by(KEY_OF_A, ""), 0);
    assert_int_equal(closed_by(KEY_OF_ADMIN, "?tenant=a"), 0);
    assert_int_equal(closed_by(KEY_OF_ADMIN, "?cache_salt=other"), 0);
    assert_int_equal(closed_by(KEY_OF_ADMIN, ""), 1);
    s.key = KEY_OF_B;
    json_decref(get(&s, 404, "/v1/cache/sessions/one"));
}

static int64_t cached_now(void)
{
    json_t *reply = post(&s, 200, CHAT, "{\"messages\":[" SYSTEM "," USER_1 "]," GREEDY "}");
    const int64_t n = cached_tokens(reply);

    json_decref(reply);
    return n;
}

static void invalidation_has_taken_effect_when_it_returns(void **state)
{
    static const struct {
        const char *body;
        int64_t left_max; /* tokens in the pages before */
    } hits[] = {
        { "{\"all\":true}", 0 },
        { "{\"prefix\":[" SYSTEM "]}", 63 },
        { "{\"prefix\":[" SYSTEM "," USER_1 "]}", 128 },
        { "{\"prefix\":\"<|im_start|>system\\nYou tell short\"}", 0 },
        { "{\"tenant\":\"\"}", 0 },
        { "{\"tenant\":\"\",\"cache_salt\":\"\"}", 0 },
    };
    json_t *reply;
    int64_t n;

    (void)state;
    assert_int_equal(cached_now(), 0);
    assert_true(cached_now() > 0);
    for (size_t i = 0; i < sizeof hits / sizeof hits[0]; i++) {
        reply = post(&s, 200, "/v1/cache/invalidate", hits[i].body);
        if (json_int_at(reply, "dropped.pages") == 0) {
            fail_msg("%s drops nothing", hits[i].body);
        }
        json_decref(reply);
        n = cached_now();
        if (n > hits[i].left_max) {
            fail_msg("%s leaves %d tokens", hits[i].body, (int)n);
        }
        assert_true(cached_now() > 0);
    }
    reply = post(&s, 200, "/v1/cache/invalidate", "{\"prefix\":\"Something else entirely\"}");
    assert_int_equal(json_int_at(reply, "dropped.pages"), 0);
    json_decref(reply);
    reply = post(&s, 200, "/v1/cache/invalidate", "{\"tenant\":\"nobody\"}");
    assert_int_equal(json_int_at(reply, "dropped.pages"), 0);
    json_decref(reply);
    assert_true(cached_now() > 0);
    json_decref(turn(USER_1));
    json_decref(post(&s, 200, "/v1/cache/invalidate", "{\"session\":\"one\"}"));
    json_decref(post(&s, 404, "/v1/cache/invalidate", "{\"session\":\"one\"}"));
}

/* All cache salts of a tenant, and nobody else's. */
static void invalidating_a_tenant_takes_all_its_salts(void **state)
{
    static const char *const salts[] = { "", "x", "y" };
    char body[1024];
    json_t *reply;

    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int key = 0; key < 2; key++) {
            s.key = key == 0 ? KEY_OF_A : KEY_OF_B;
            for (int i = 0; i < 3; i++) {
                (void)snprintf(body, sizeof body,
                               "{\"messages\":[" SYSTEM "," USER_1 "],\"cache_salt\":\"%s\"," GREEDY
                               "}",
                               salts[i]);
                reply = post(&s, 200, CHAT, body);
                assert_int_equal(cached_tokens(reply) > 0, round > 0 && key == 1);
                json_decref(reply);
            }
        }
        s.key = KEY_OF_ADMIN;
        json_decref(post(&s, 400, "/v1/cache/invalidate", "{\"prefix\":\"x\"}"));
        json_decref(post(&s, 200, "/v1/cache/invalidate", "{\"tenant\":\"a\"}"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_turn_computes_only_what_is_new, start, stop),
        cmocka_unit_test_setup_teardown(a_history_that_is_sent_again_is_recognised, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_is_a_turn_too, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_with_a_nul_is_not_kept, start, stop),
        cmocka_unit_test_setup_teardown(a_text_goes_on, start, stop),
        cmocka_unit_test_setup_teardown(old_turns_are_dropped_when_asked, start, stop),
        cmocka_unit_test_setup_teardown(a_full_session_refuses_when_asked, start, stop),
        cmocka_unit_test_setup_teardown(sessions_are_listed_and_closed, start, stop),
        cmocka_unit_test_setup_teardown(many_sessions_are_measured, start, stop),
        cmocka_unit_test_setup_teardown(sessions_are_their_tenants, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(all_sessions_of_a_key_are_closed_at_once, start_with_keys,
                                        stop),
        cmocka_unit_test_setup_teardown(invalidation_has_taken_effect_when_it_returns, start, stop),
        cmocka_unit_test_setup_teardown(invalidating_a_tenant_takes_all_its_salts, start_with_keys,
                                        stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
