/* test_said.c - answers as the model said them, in later prompts.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/said.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static quire_said *said;

static int create(void **state)
{
    (void)state;
    return quire_said_create(&said, 4096) == 0 ? 0 : -1;
}

static int destroy(void **state)
{
    (void)state;
    quire_said_destroy(said);
    return 0;
}

/* Look a prompt up, and check the text that comes of it; NULL = the prompt itself. */
static quire_said_prompt look(const char *salt, const char *prompt, const char *expected)
{
    quire_said_prompt p;

    assert_int_equal(quire_said_apply(said, salt, strlen(salt), prompt, strlen(prompt), &p), 0);
    if (expected == NULL) {
        assert_int_equal(p.n_answers, 0);
        assert_int_equal(p.text.n, 0);
    } else {
        assert_int_equal(p.text.n, strlen(expected));
        assert_memory_equal(p.text.data, expected, p.text.n);
    }
    return p;
}

/* Keep "PROMPT ANSWER END", where the model wrote `text` for ANSWER. */
static void keep(const char *salt, const char *prompt, const char *written, const char *end,
                 const char *text)
{
    static const int32_t tokens[] = { 1, 2, 3 };
    char rendered[512];
    quire_said_prompt p;
    quire_said_turn turn;

    assert_int_equal(quire_said_apply(said, salt, strlen(salt), prompt, strlen(prompt), &p), 0);
    (void)snprintf(rendered, sizeof rendered, "%s%s%s", prompt, written, end);
    turn = (quire_said_turn){ p.place,        rendered,        strlen(rendered),
                              strlen(prompt), strlen(written), text,
                              strlen(text),   tokens,          3 };
    quire_said_keep(said, &turn);
    quire_said_prompt_fini(&p);
}

static void puts_the_model_s_words_in(void **state)
{
    quire_said_prompt p;

    (void)state;
    keep("t", "Q1 A:", "{\"a\": 1}", ".", "{\"a\":1}");
    p = look("t", "Q1 A:{\"a\": 1}. Q2 A:", "Q1 A:{\"a\":1}. Q2 A:");
    assert_int_equal(p.n_answers, 1);
    assert_int_equal(p.n_tokens, 3);
    assert_false(p.is_rewritten);
    quire_said_prompt_fini(&p);

    keep("t", "Q1 A:{\"a\": 1}. Q2 A:", "two ", ".", "two");
    p = look("t", "Q1 A:{\"a\": 1}. Q2 A:two . Q3", "Q1 A:{\"a\":1}. Q2 A:two. Q3");
    assert_int_equal(p.n_answers, 2);
    assert_int_equal(p.n_tokens, 3);
    quire_said_prompt_fini(&p);
    /* The shorter history is known still; its tokens are the longer one's. */
    p = look("t", "Q1 A:{\"a\": 1}. Q9", "Q1 A:{\"a\":1}. Q9");
    assert_int_equal(p.n_tokens, 0);
    quire_said_prompt_fini(&p);
}

static void tells_a_history_that_is_written_otherwise(void **state)
{
    quire_said_prompt p;

    (void)state;
    keep("t", "Q1 A:", "<think>x</think>yes", ".", "<think>x</think>yes");
    p = look("t", "Q1 A:yes. Q2", NULL);
    assert_true(p.is_rewritten);
    assert_int_equal(p.rewritten_at, 5);
    quire_said_prompt_fini(&p);
    p = look("t", "Q7 A:", NULL);
    assert_false(p.is_rewritten);
    quire_said_prompt_fini(&p);
    p = look("u", "Q1 A:<think>x</think>yes. Q2", NULL); /* another tenant */
    assert_false(p.is_rewritten);
    quire_said_prompt_fini(&p);
}

static void forgets_the_oldest(void **state)
{
    char prompt[64];
    quire_said_prompt p;

    (void)state;
    for (unsigned i = 0; i < 2 * QUIRE_SAID_ENTRIES_MAX; i++) {
        (void)snprintf(prompt, sizeof prompt, "Q%u A:", i);
        keep("t", prompt, "b ", ".", "b");
    }
    p = look("t", "Q0 A:b .", NULL);
    quire_said_prompt_fini(&p);
    (void)snprintf(prompt, sizeof prompt, "Q%u A:b .", 2 * QUIRE_SAID_ENTRIES_MAX - 1);
    assert_int_equal(quire_said_apply(said, "t", 1, prompt, strlen(prompt), &p), 0);
    assert_int_equal(p.n_answers, 1);
    quire_said_prompt_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(puts_the_model_s_words_in, create, destroy),
        cmocka_unit_test_setup_teardown(tells_a_history_that_is_written_otherwise, create, destroy),
        cmocka_unit_test_setup_teardown(forgets_the_oldest, create, destroy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
