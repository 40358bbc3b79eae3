/* test_precache_book.c - candidates and accounts of pre-caching: each token counts once, pauses
 * grow, bounds hold.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/adapt/precache_book.h"
#include "seed.h"

#include <string.h>

#define PAGE     64u
#define S        1000000u /* a second */
#define JUDGE_US ((uint64_t)600 * S)
#define SLACK    1000u

static quire_precache_book *book_open(uint32_t texts_max)
{
    const quire_precache_book_opts opts = {
        .texts_max = texts_max, .page_tokens = PAGE, .judge_us = JUDGE_US, .slack_tokens = SLACK
    };
    quire_precache_book *book;

    assert_int_equal(quire_precache_book_create(&book, &opts), QUIRE_OK);
    return book;
}

/* n tokens of a text of its own for each number; valid until the next call with the same number's
 * parity. */
static quire_precache_text text_make(int32_t number, uint32_t n)
{
    static int32_t tokens[2][64 * PAGE];
    int32_t *at = tokens[number & 1];

    for (uint32_t i = 0; i < n; i++) {
        at[i] = number * 1000 + (int32_t)(i % 97);
    }
    return (quire_precache_text){ .tenant = "t", .tenant_bytes = 1, .tokens = at, .n_tokens = n };
}

static quire_precache_accounts accounts_of(const quire_precache_book *book)
{
    quire_precache_accounts accounts;

    quire_precache_book_accounts(book, &accounts);
    return accounts;
}

typedef struct seen {
    uint32_t n;
    uint32_t n_tokens; /* of the last */
    double hope;
} seen;

static int see(void *ctx, const quire_precache_text *text, double hope)
{
    seen *s = ctx;

    s->n++;
    s->n_tokens = text->n_tokens;
    s->hope = hope;
    assert_int_equal(text->tenant_bytes, 1);
    return 0;
}

static seen candidates(const quire_precache_book *book, uint64_t now_us)
{
    seen s = { 0 };

    assert_int_equal(quire_precache_book_visit(book, now_us, see, &s), 0);
    return s;
}

static void test_what_was_used_again_may_return(void **state)
{
    quire_precache_book *book = book_open(8);
    const quire_precache_text text = text_make(1, 3 * PAGE + 5);

    (void)state;
    quire_precache_book_note(book, &text, 100u * S);
    assert_int_equal(candidates(book, 100u * S).n, 0); /* no gap is known */
    quire_precache_book_note(book, &text, 110u * S);
    assert_int_equal(accounts_of(book).texts, 1);
    assert_int_equal(candidates(book, 115u * S).n, 1);
    assert_int_equal(candidates(book, 115u * S).n_tokens, 3 * PAGE);
    assert_true(candidates(book, 115u * S).hope >= 1.0);
    assert_true(candidates(book, 130u * S).hope < 0.6);
    assert_int_equal(candidates(book, 151u * S).n, 0);
    quire_precache_book_forget(book, "other", 5);
    assert_int_equal(accounts_of(book).texts, 1);
    quire_precache_book_forget(book, "t", 1);
    assert_int_equal(accounts_of(book).texts, 0);
    quire_precache_book_destroy(book);
}

static void test_a_longer_text_is_a_use_of_its_beginning(void **state)
{
    quire_precache_book *book = book_open(8);
    quire_precache_text text = text_make(1, 4 * PAGE);

    (void)state;
    text.n_tokens = 2 * PAGE;
    quire_precache_book_note(book, &text, 100u * S);
    text.n_tokens = 4 * PAGE;
    quire_precache_book_note(book, &text, 110u * S);
    assert_int_equal(accounts_of(book).texts, 2);
    assert_int_equal(candidates(book, 111u * S).n, 1);
    assert_int_equal(candidates(book, 111u * S).n_tokens, 2 * PAGE);
    text.n_tokens = PAGE - 1;
    quire_precache_book_note(book, &text, 112u * S);
    assert_int_equal(accounts_of(book).texts, 2);
    quire_precache_book_destroy(book);
}

static void test_texts_are_bounded(void **state)
{
    quire_precache_book *book = book_open(4);
    quire_precache_text text;

    (void)state;
    for (int32_t i = 0; i < 10; i++) {
        text = text_make(i, PAGE);
        quire_precache_book_note(book, &text, (uint64_t)i * S);
    }
    assert_int_equal(accounts_of(book).texts, 4);
    text = text_make(9, PAGE);
    quire_precache_book_note(book, &text, 11u * S);
    assert_int_equal(candidates(book, 11u * S).n, 1);
    text = text_make(5, PAGE); /* long gone */
    quire_precache_book_note(book, &text, 12u * S);
    assert_int_equal(candidates(book, 12u * S).n, 1);
    assert_int_equal(accounts_of(book).texts, 4);
    quire_precache_book_destroy(book);
}

static uint32_t some_cached(void *ctx, const quire_precache_text *text)
{
    (void)text;
    return *(const uint32_t *)ctx;
}

static void test_each_token_is_gain_or_waste_once(void **state)
{
    quire_precache_book *book = book_open(4);
    const quire_precache_text text = text_make(1, 10 * PAGE);
    quire_precache_text other = text_make(2, 10 * PAGE);
    uint32_t n_cached = 10 * PAGE;

    (void)state;
    assert_int_equal(quire_precache_book_enter(book, &text, 2 * PAGE, S), QUIRE_OK);
    quire_precache_book_hit(book, &text, 2 * PAGE); /* was there before */
    assert_int_equal(accounts_of(book).gain_tokens_total, 0);
    quire_precache_book_hit(book, &other, 10 * PAGE);
    other = text;
    other.tenant = "x";
    quire_precache_book_hit(book, &other, 10 * PAGE);
    assert_int_equal(accounts_of(book).gain_tokens_total, 0);
    quire_precache_book_hit(book, &text, 4 * PAGE + 7);
    quire_precache_book_hit(book, &text, 4 * PAGE);
    assert_int_equal(accounts_of(book).gain_tokens_total, 2 * PAGE + 7);
    quire_precache_book_judge(book, 2 * S, some_cached, &n_cached);
    assert_int_equal(accounts_of(book).waste_tokens_total, 0);
    n_cached = 8 * PAGE; /* its end was evicted */
    quire_precache_book_judge(book, 2 * S, some_cached, &n_cached);
    quire_precache_book_judge(book, 2 * S, some_cached, &n_cached);
    assert_int_equal(accounts_of(book).waste_tokens_total, 2 * PAGE);
    assert_int_equal(accounts_of(book).computed, 1);
    quire_precache_book_judge(book, S + JUDGE_US, some_cached, &n_cached); /* too old */
    assert_int_equal(accounts_of(book).computed, 0);
    assert_int_equal(accounts_of(book).waste_tokens_total, 2 * PAGE + 4 * PAGE - 7);
    assert_int_equal(accounts_of(book).gain_tokens_total + accounts_of(book).waste_tokens_total,
                     8 * PAGE);
    quire_precache_book_destroy(book);
}

static void test_there_is_room_for_so_many(void **state)
{
    quire_precache_book *book = book_open(4);

    (void)state;
    for (uint32_t i = 0; i < QUIRE_PRECACHE_COMPUTED_MAX; i++) {
        const quire_precache_text text = text_make((int32_t)i, PAGE);

        assert_true(quire_precache_book_has_room(book));
        assert_int_equal(quire_precache_book_enter(book, &text, 0, S), QUIRE_OK);
    }
    assert_false(quire_precache_book_has_room(book));
    assert_int_equal(quire_precache_book_enter(book, &(quire_precache_text){ 0 }, 0, S),
                     QUIRE_LIMIT);
    quire_precache_book_destroy(book);
}

static void waste(quire_precache_book *book, uint32_t n_tokens, uint64_t now_us)
{
    const quire_precache_text text = text_make(1, n_tokens);
    uint32_t n_cached = 0;

    assert_int_equal(quire_precache_book_enter(book, &text, 0, now_us), QUIRE_OK);
    quire_precache_book_judge(book, now_us, some_cached, &n_cached);
}

static void test_waste_makes_it_pause_longer_each_time(void **state)
{
    quire_precache_book *book = book_open(4);
    const quire_precache_text text = text_make(1, 3000);
    uint64_t now_us = S, pause_us = 60u * S;

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        waste(book, SLACK, now_us);
        assert_int_equal(quire_precache_book_verdict(book, now_us), QUIRE_PRECACHE_AS_BEFORE);
        waste(book, 1, now_us);
        assert_int_equal(quire_precache_book_verdict(book, now_us), QUIRE_PRECACHE_PAUSE);
        assert_true(accounts_of(book).is_pausing);
        assert_int_equal(accounts_of(book).pause_us, pause_us);
        now_us += pause_us - 1;
        assert_int_equal(quire_precache_book_verdict(book, now_us), QUIRE_PRECACHE_AS_BEFORE);
        now_us += 1;
        assert_int_equal(quire_precache_book_verdict(book, now_us), QUIRE_PRECACHE_RESUME);
        assert_false(accounts_of(book).is_pausing);
        pause_us *= 2;
    }
    assert_int_equal(accounts_of(book).pauses_total, 5);
    /* A period that gained: the next pause is short again. */
    assert_int_equal(quire_precache_book_enter(book, &text, 0, now_us), QUIRE_OK);
    quire_precache_book_hit(book, &text, 3000);
    assert_int_equal(quire_precache_book_verdict(book, now_us), QUIRE_PRECACHE_AS_BEFORE);
    waste(book, 3000, now_us);
    waste(book, SLACK + 1, now_us);
    assert_int_equal(quire_precache_book_verdict(book, now_us), QUIRE_PRECACHE_PAUSE);
    assert_int_equal(accounts_of(book).pause_us, 60u * S);
    quire_precache_book_destroy(book);
}

/* Anything in any order: nothing is counted twice, nothing leaks, bounds hold. */
static void test_random_calls(void **state)
{
    quire_precache_book *book = book_open(16);
    quire_rng rng = test_rng(1);
    uint64_t n_entered = 0, now_us = S;

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        const quire_precache_text text =
            text_make((int32_t)quire_rng_below(&rng, 30), 1 + quire_rng_below(&rng, 20 * PAGE));
        uint32_t n = quire_rng_below(&rng, text.n_tokens);

        now_us += quire_rng_below(&rng, 5 * S);
        switch (quire_rng_below(&rng, 5)) {
        case 0:
            quire_precache_book_note(book, &text, now_us);
            break;
        case 1:
            n_entered += quire_precache_book_enter(book, &text, n, now_us) == QUIRE_OK
                             ? text.n_tokens - n
                             : 0;
            break;
        case 2:
            quire_precache_book_hit(book, &text, n);
            break;
        case 3:
            quire_precache_book_judge(book, now_us, some_cached, &n);
            break;
        default:
            (void)quire_precache_book_verdict(book, now_us);
            (void)candidates(book, now_us);
        }
        assert_true(accounts_of(book).texts <= 16);
        assert_true(accounts_of(book).computed <= QUIRE_PRECACHE_COMPUTED_MAX);
    }
    quire_precache_book_judge(book, now_us + JUDGE_US, some_cached, &(uint32_t){ 0 });
    assert_int_equal(accounts_of(book).gain_tokens_total + accounts_of(book).waste_tokens_total,
                     n_entered);
    quire_precache_book_destroy(book);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_used_again_may_return),
        cmocka_unit_test(test_a_longer_text_is_a_use_of_its_beginning),
        cmocka_unit_test(test_texts_are_bounded),
        cmocka_unit_test(test_each_token_is_gain_or_waste_once),
        cmocka_unit_test(test_there_is_room_for_so_many),
        cmocka_unit_test(test_waste_makes_it_pause_longer_each_time),
        cmocka_unit_test(test_random_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
