/* test_sessions.c - the table of sessions: use, turns, bounds, expiry, listing.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/sessions.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static quire_model *model;

static int setup(void **state)
{
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = 400;
    opts.vocab = GGUF_GEN_VOCAB_SPM;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

static quire_sessions *table(uint32_t sessions_max, uint64_t ttl_us)
{
    const quire_sessions_opts opts = { sessions_max, ttl_us };
    quire_sessions *t;

    assert_int_equal(quire_sessions_create(&t, model, &opts), QUIRE_OK);
    return t;
}

static int enter(quire_sessions *t, const char *tenant, const char *id, uint64_t now_us,
                 quire_session_ref *ref)
{
    quire_error err = QUIRE_ERROR_INIT;
    const int rc = quire_sessions_enter(t, tenant, (uint32_t)strlen(tenant), id, now_us, ref, &err);

    assert_int_equal(err.status, rc);
    assert_int_equal(*ref == 0, rc < 0);
    return rc;
}

static quire_session_ref entered(quire_sessions *t, const char *tenant, const char *id,
                                 uint64_t now_us)
{
    quire_session_ref ref;

    assert_int_equal(enter(t, tenant, id, now_us, &ref), QUIRE_OK);
    return ref;
}

/* Enter and leave at once. */
static uint64_t touch(quire_sessions *t, const char *tenant, const char *id, uint64_t now_us)
{
    const quire_session_ref ref = entered(t, tenant, id, now_us);
    const uint64_t owner = quire_sessions_owner(t, ref);

    quire_sessions_leave(t, ref, now_us);
    return owner;
}

/* Tokens for a session to keep. */
static int32_t *owned(const int32_t *tokens, uint32_t n)
{
    int32_t *copy = malloc(n * sizeof *copy);

    assert_non_null(copy);
    memcpy(copy, tokens, n * sizeof *copy);
    return copy;
}

static void test_one_request_at_a_time(void **state)
{
    quire_sessions *t = table(10, 0);
    const quire_session_ref a = entered(t, "x", "chat", 1);
    quire_session_ref b, again;

    (void)state;
    assert_int_equal(enter(t, "x", "chat", 2, &again), QUIRE_AGAIN);
    b = entered(t, "y", "chat", 2); /* another tenant's */
    assert_true(quire_sessions_owner(t, a) != 0);
    assert_true(quire_sessions_owner(t, a) != quire_sessions_owner(t, b));
    assert_int_equal(quire_sessions_count(t), 2);
    quire_sessions_leave(t, a, 3);
    again = entered(t, "x", "chat", 4);
    quire_sessions_leave(t, again, 5);
    quire_sessions_leave(t, b, 5);
    assert_int_equal(quire_sessions_count(t), 2);
    quire_sessions_destroy(t);
    quire_sessions_destroy(NULL);
}

static void test_names(void **state)
{
    quire_sessions *t = table(10, 0);
    char id[QUIRE_SESSION_ID_MAX + 2];
    quire_session_ref ref;

    (void)state;
    memset(id, 'i', sizeof(id));
    id[sizeof(id) - 1] = '\0';
    assert_int_equal(enter(t, "x", id, 1, &ref), QUIRE_INVAL);
    assert_int_equal(enter(t, "x", "", 1, &ref), QUIRE_INVAL);
    id[QUIRE_SESSION_ID_MAX] = '\0';
    ref = entered(t, "", id, 1);
    quire_sessions_leave(t, ref, 1);
    /* Tenant and id are apart: the same bytes cut elsewhere are others. */
    assert_int_not_equal(touch(t, "ab", "c", 1), touch(t, "a", "bc", 1));
    assert_int_equal(quire_sessions_count(t), 3);
    quire_sessions_destroy(t);
}

/* ---- turns ---- */

static const quire_chat_message hello[] = { { "system", "Be brief.", NULL },
                                            { "user", "Hello", NULL },
                                            { "assistant", "Hi.", NULL } };

static void expect_history(quire_sessions *t, quire_session_ref ref,
                           const quire_chat_message *messages, size_t n,
                           const quire_chat_message *expected, size_t n_expected)
{
    quire_chat_message *history;
    size_t n_history;

    assert_int_equal(quire_sessions_history(t, ref, messages, n, &history, &n_history), QUIRE_OK);
    assert_int_equal(n_history, n_expected);
    for (size_t i = 0; i < n_expected; i++) {
        assert_string_equal(history[i].role, expected[i].role);
        assert_string_equal(history[i].content, expected[i].content);
    }
    free(history);
}

static void test_history(void **state)
{
    static const quire_chat_message more = { "user", "More", NULL };
    static const quire_chat_message full[] = { { "system", "Be brief.", NULL },
                                               { "user", "Hello", NULL },
                                               { "assistant", "Hi.", NULL },
                                               { "user", "More", NULL } };
    static const quire_chat_message system_more[] = { { "system", "Be brief.", NULL },
                                                      { "user", "More", NULL } };
    static const quire_chat_message edited[] = { { "system", "Be brief.", NULL },
                                                 { "user", "Hello!", NULL },
                                                 { "assistant", "Hi.", NULL },
                                                 { "user", "More", NULL } };
    quire_sessions *t = table(10, 0);
    const quire_session_ref ref = entered(t, "x", "chat", 1);
    const int32_t tokens[] = { 1, 2, 3 };

    (void)state;
    expect_history(t, ref, hello, 2, hello, 2); /* a new session */
    assert_int_equal(quire_sessions_commit(t, ref, hello, 3, owned(tokens, 3), 3, 2), QUIRE_OK);
    expect_history(t, ref, &more, 1, full, 4);        /* only the new message */
    expect_history(t, ref, full, 4, full, 4);         /* everything */
    expect_history(t, ref, system_more, 2, full, 4);  /* the system message again */
    expect_history(t, ref, hello, 2, hello, 2);       /* the first turn again */
    expect_history(t, ref, edited, 4, edited, 4);     /* another past */
    expect_history(t, ref, system_more, 1, hello, 1); /* the system message alone */

    /* commit() may be given the session's own texts. */
    {
        quire_chat_message *history;
        size_t n;

        assert_int_equal(quire_sessions_history(t, ref, &more, 1, &history, &n), QUIRE_OK);
        assert_int_equal(quire_sessions_commit(t, ref, history, n, owned(tokens, 2), 2, 3),
                         QUIRE_OK);
        free(history);
    }
    expect_history(t, ref, full, 4, full, 4);
    quire_sessions_leave(t, ref, 4);
    quire_sessions_destroy(t);
}

/* A developer's message is a system message by another name. */
static void test_history_of_a_developer(void **state)
{
    static const quire_chat_message said[] = { { "developer", "Be brief.", NULL },
                                               { "user", "Hello", NULL },
                                               { "assistant", "Hi.", NULL },
                                               { "user", "More", NULL } };
    const quire_chat_message more[] = { said[0], said[3] };
    const int32_t tokens[] = { 1, 2, 3 };
    quire_sessions *t = table(10, 0);
    const quire_session_ref ref = entered(t, "x", "chat", 1);

    (void)state;
    assert_int_equal(quire_sessions_commit(t, ref, said, 3, owned(tokens, 3), 3, 2), QUIRE_OK);
    expect_history(t, ref, more, 2, said, 4);
    quire_sessions_leave(t, ref, 4);
    quire_sessions_destroy(t);
}

static void test_bounds_of_a_session(void **state)
{
    quire_sessions *t = table(10, 0);
    const quire_session_ref ref = entered(t, "x", "chat", 1);
    const size_t n_many = QUIRE_SESSION_MESSAGES_MAX + 1;
    quire_chat_message *many = malloc(n_many * sizeof(*many));
    char *long_text = malloc(QUIRE_SESSION_BYTES_MAX + 1);
    quire_chat_message long_message = { "user", long_text, NULL };
    quire_chat_message *history;
    size_t n;

    (void)state;
    assert_true(many != NULL && long_text != NULL);
    assert_int_equal(quire_sessions_commit(t, ref, hello, 3, NULL, 0, 2), QUIRE_OK);
    for (size_t i = 0; i < n_many; i++) {
        many[i] = (quire_chat_message){ "user", "x", NULL };
    }
    assert_int_equal(quire_sessions_commit(t, ref, many, n_many, NULL, 0, 2), QUIRE_LIMIT);
    assert_int_equal(quire_sessions_history(t, ref, many, n_many, &history, &n), QUIRE_LIMIT);
    assert_int_equal(quire_sessions_history(t, ref, many, n_many - 3, &history, &n), QUIRE_LIMIT);
    assert_null(history);
    memset(long_text, 'x', QUIRE_SESSION_BYTES_MAX);
    long_text[QUIRE_SESSION_BYTES_MAX] = '\0';
    assert_int_equal(quire_sessions_commit(t, ref, &long_message, 1, NULL, 0, 2), QUIRE_LIMIT);
    expect_history(
        t, ref, many, 1,
        (const quire_chat_message[]){ hello[0], hello[1], hello[2], { "user", "x", NULL } },
        4);                                        /* as before */
    long_text[QUIRE_SESSION_BYTES_MAX - 6] = '\0'; /* "user" and two zeros */
    assert_int_equal(quire_sessions_commit(t, ref, &long_message, 1, NULL, 0, 2), QUIRE_OK);
    quire_sessions_leave(t, ref, 3);
    quire_sessions_destroy(t);
    free(many);
    free(long_text);
}

static void test_tokens_are_kept(void **state)
{
    static const char text[] = "hello there";
    quire_sessions *t = table(10, 0);
    quire_session_ref ref = entered(t, "x", "chat", 1);
    quire_tokenize_opts opts = { 0 };
    quire_joined_tokens whole, joined;

    (void)state;
    assert_int_equal(quire_sessions_tokenize(t, 0, text, 11, &opts, &whole, NULL), QUIRE_OK);
    assert_int_equal(whole.n_kept, 0);
    assert_true(whole.n > 3);
    assert_int_equal(quire_sessions_commit(t, ref, NULL, 0, owned(whole.tokens, 3), 3, 2),
                     QUIRE_OK);
    quire_sessions_leave(t, ref, 2);
    ref = entered(t, "x", "chat", 3);
    assert_int_equal(quire_sessions_tokenize(t, ref, text, 11, &opts, &joined, NULL), QUIRE_OK);
    assert_int_equal(joined.n_kept, 3);
    assert_int_equal(joined.n, whole.n);
    assert_memory_equal(joined.tokens, whole.tokens, whole.n * sizeof(int32_t));
    free(joined.tokens);
    /* The kept tokens do not count towards tokens_max. */
    opts.tokens_max = whole.n - 3;
    assert_int_equal(quire_sessions_tokenize(t, ref, text, 11, &opts, &joined, NULL), QUIRE_OK);
    free(joined.tokens);
    assert_int_equal(quire_sessions_tokenize(t, 0, text, 11, &opts, &joined, NULL), QUIRE_RANGE);
    free(whole.tokens);
    quire_sessions_leave(t, ref, 3);
    quire_sessions_destroy(t);
}

/* ---- the end of sessions ---- */

static void test_eviction(void **state)
{
    quire_sessions *t = table(3, 0);
    quire_session_ref a, b, c, d;
    uint64_t owner_b;

    (void)state;
    a = entered(t, "x", "a", 1);
    owner_b = touch(t, "x", "b", 2);
    (void)touch(t, "x", "c", 3);
    (void)touch(t, "x", "d", 4); /* a is in use: b goes */
    assert_int_equal(quire_sessions_count(t), 3);
    assert_int_equal(quire_sessions_evictions_total(t), 1);
    assert_int_equal(quire_sessions_expire(t, 5), owner_b); /* the owner whose pages go */
    assert_int_equal(quire_sessions_expire(t, 5), 0);
    c = entered(t, "x", "c", 6);
    d = entered(t, "x", "d", 6);
    assert_int_equal(enter(t, "x", "b", 7, &b), QUIRE_LIMIT);
    quire_sessions_leave(t, d, 8);
    assert_int_equal(enter(t, "x", "b", 9, &b), QUIRE_OK);
    assert_int_not_equal(quire_sessions_owner(t, b), owner_b);
    quire_sessions_leave(t, a, 10);
    quire_sessions_leave(t, b, 10);
    quire_sessions_leave(t, c, 10);
    quire_sessions_destroy(t); /* one evicted is still there */
}

static void test_expiry(void **state)
{
    quire_sessions *t = table(10, 100);
    quire_session_ref ref;
    const uint64_t a = touch(t, "x", "a", 1000);
    const uint64_t b = touch(t, "x", "b", 1050);

    (void)state;
    ref = entered(t, "x", "c", 900); /* in use */
    assert_int_equal(quire_sessions_expire(t, 1099), 0);
    assert_int_equal(quire_sessions_expire(t, 1100), a);
    assert_int_equal(quire_sessions_expire(t, 1100), 0);
    (void)touch(t, "x", "b", 1140);
    assert_int_equal(quire_sessions_expire(t, 1200), 0);
    assert_int_equal(quire_sessions_expire(t, 1240), b);
    assert_int_equal(quire_sessions_evictions_total(t), 2);
    assert_int_equal(quire_sessions_commit(t, ref, hello, 3, NULL, 0, 1250), QUIRE_OK);
    quire_sessions_leave(t, ref, 1250);
    ref = entered(t, "x", "c", 1349);
    expect_history(t, ref, hello, 3, hello, 3);
    expect_history(t, ref, &hello[1], 1,
                   (const quire_chat_message[]){ hello[0], hello[1], hello[2], hello[1] }, 4);
    quire_sessions_leave(t, ref, 1349);
    ref = entered(t, "x", "c", 1449); /* expired, although expire() was not called */
    expect_history(t, ref, &hello[1], 1, &hello[1], 1);
    quire_sessions_leave(t, ref, 1449);
    assert_int_equal(quire_sessions_evictions_total(t), 3);
    quire_sessions_destroy(t);
}

static void test_close(void **state)
{
    quire_sessions *t = table(10, 0);
    const quire_session_ref ref = entered(t, "x", "a", 1);
    quire_session_ref again;
    uint64_t owner;

    (void)state;
    assert_int_equal(quire_sessions_close(t, "x", 1, "b", &owner), QUIRE_NOTFOUND);
    assert_int_equal(quire_sessions_close(t, "y", 1, "a", &owner), QUIRE_NOTFOUND);
    assert_int_equal(quire_sessions_commit(t, ref, hello, 3, NULL, 0, 2), QUIRE_OK);
    assert_int_equal(quire_sessions_close(t, "x", 1, "a", &owner), QUIRE_OK);
    assert_int_equal(owner, quire_sessions_owner(t, ref));
    assert_int_equal(quire_sessions_count(t), 0);
    /* The running request goes on with its history; a new request begins anew. */
    expect_history(t, ref, hello, 3, hello, 3);
    again = entered(t, "x", "a", 3);
    assert_int_not_equal(quire_sessions_owner(t, again), owner);
    assert_int_equal(quire_sessions_commit(t, ref, hello, 3, NULL, 0, 4), QUIRE_NOTFOUND);
    quire_sessions_leave(t, ref, 4);
    expect_history(t, again, &hello[1], 1, &hello[1], 1);
    quire_sessions_leave(t, again, 4);
    assert_int_equal(quire_sessions_close(t, "x", 1, "a", &owner), QUIRE_OK);
    assert_int_equal(quire_sessions_count(t), 0);
    quire_sessions_destroy(t);
}

/* ---- listing ---- */

typedef struct listing {
    char ids[64];
    uint32_t n_max;
    quire_session_info last;
} listing;

static int list_one(void *ctx, const quire_session_info *info)
{
    listing *l = ctx;

    const size_t n = strlen(l->ids);

    (void)snprintf(l->ids + n, sizeof(l->ids) - n, "%s", info->id);
    l->last = *info;
    return strlen(l->ids) >= l->n_max;
}

static void test_listing(void **state)
{
    quire_sessions *t = table(10, 0);
    const int32_t tokens[] = { 7, 8 };
    listing all = { .n_max = 64 }, of_y = { .n_max = 64 }, two = { .n_max = 2 };
    quire_session_ref ref;

    (void)state;
    (void)touch(t, "x", "a", 1);
    (void)touch(t, "y", "b", 2);
    (void)touch(t, "x", "c", 3);
    ref = entered(t, "y", "b", 4);
    assert_int_equal(quire_sessions_commit(t, ref, hello, 3, owned(tokens, 2), 2, 5), QUIRE_OK);
    assert_int_equal(quire_sessions_visit(t, NULL, 0, list_one, &all), 0);
    assert_string_equal(all.ids, "bca");
    assert_false(all.last.is_in_use);
    assert_int_equal(quire_sessions_visit(t, NULL, 0, list_one, &two), 1);
    assert_string_equal(two.ids, "bc");
    assert_int_equal(quire_sessions_visit(t, "y", 1, list_one, &of_y), 0);
    assert_string_equal(of_y.ids, "b");
    assert_true(of_y.last.is_in_use);
    assert_int_equal(of_y.last.owner, quire_sessions_owner(t, ref));
    assert_int_equal(of_y.last.created_us, 2);
    assert_int_equal(of_y.last.used_us, 5);
    assert_int_equal(of_y.last.n_turns, 1);
    assert_int_equal(of_y.last.n_messages, 3);
    assert_int_equal(of_y.last.n_tokens, 2);
    assert_int_equal(of_y.last.tokens[1], 8);
    assert_int_equal(of_y.last.text_bytes, sizeof("system") + sizeof("Be brief.") + sizeof("user") +
                                               sizeof("Hello") + sizeof("assistant") +
                                               sizeof("Hi."));
    quire_sessions_leave(t, ref, 6);
    quire_sessions_destroy(t);
}

/* ---- threads ---- */

typedef struct user {
    pthread_t thread;
    quire_sessions *sessions;
    quire_rng rng;
} user;

static void *use_at_random(void *arg)
{
    user *u = arg;
    quire_sessions *t = u->sessions;
    quire_rng rng = u->rng;

    for (uint64_t i = 0; i < 3000; i++) {
        const char id[2] = { (char)('a' + quire_rng_below(&rng, 12)), '\0' };
        quire_session_ref ref;
        uint64_t owner;

        if (quire_rng_below(&rng, 8) == 0) {
            (void)quire_sessions_close(t, "x", 1, id, &owner);
        } else if (quire_sessions_enter(t, "x", 1, id, i, &ref, NULL) == QUIRE_OK) {
            (void)quire_sessions_commit(t, ref, hello, 1 + quire_rng_below(&rng, 3), NULL, 0, i);
            quire_sessions_leave(t, ref, i);
        }
        (void)quire_sessions_expire(t, i);
        (void)quire_sessions_count(t);
    }
    return NULL;
}

static void test_threads(void **state)
{
    quire_sessions *t = table(8, 50);
    quire_rng rng = test_rng(41);
    user users[4];
    uint64_t owner;

    (void)state;
    for (size_t i = 0; i < N(users); i++) {
        users[i].sessions = t;
        users[i].rng.state = quire_rng_next(&rng);
        assert_int_equal(pthread_create(&users[i].thread, NULL, use_at_random, &users[i]), 0);
    }
    for (size_t i = 0; i < N(users); i++) {
        assert_int_equal(pthread_join(users[i].thread, NULL), 0);
    }
    assert_true(quire_sessions_count(t) <= 8);
    do {
        owner = quire_sessions_expire(t, 1000000);
    } while (owner != 0);
    assert_int_equal(quire_sessions_count(t), 0); /* none stayed in use */
    quire_sessions_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request_at_a_time),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_history_of_a_developer),
        cmocka_unit_test(test_bounds_of_a_session),
        cmocka_unit_test(test_tokens_are_kept),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_listing),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
