/* attend_kit.c - see attend_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "attend_kit.h"

void attended_make(const engine_bench *b, const setting *s, uint64_t seed, attended *t)
{
    setting plain = *s;

    plain.attend_share = 0;
    tokens_make(t->tokens, N_PROMPT, seed);
    expect(b, s, t->tokens, N_PROMPT, &t->some);
    expect(b, &plain, t->tokens, N_PROMPT, &t->all);
    assert_memory_not_equal(t->some.logprobs, t->all.logprobs, sizeof t->some.logprobs);
}

uint32_t check_some(const engine_bench *b, const attended *t)
{
    return answer_check(ask_attending(b, SHARE, t->tokens, N_PROMPT), &t->some);
}

uint32_t check_all(const engine_bench *b, const attended *t)
{
    return check(b, NULL, t->tokens, N_PROMPT, &t->all);
}

void attend_same_bits(const setting *s)
{
    static attended t;
    engine_bench b = condense_bench(s);
    quire_engine_stats stats;

    attended_make(&b, s, 1, &t);
    assert_int_equal(check_some(&b, &t), 0);
    stats = stats_now(b.engine);
    assert_true(stats.attend_read_pages_total > 0);
    /* 4 or 5 of the 10 or 11 tiles of a lane are read. */
    assert_true(stats.attend_left_pages_total > stats.attend_read_pages_total);
    /* The prompt's pages are those of all requests. */
    assert_int_equal(check_some(&b, &t), N_PROMPT - 1);
    assert_int_equal(check_all(&b, &t), N_PROMPT - 1);
    assert_int_equal(answer_check(ask_attending(&b, 1, t.tokens, N_PROMPT), &t.all), N_PROMPT - 1);
    validate(b.engine);
    bench_close(&b);
    /* Pages of a plain request have bounds as well. */
    b = condense_bench(s);
    assert_int_equal(check_all(&b, &t), 0);
    assert_int_equal(check_some(&b, &t), N_PROMPT - 1);
    bench_close(&b);
}
