/* test_grammar_match.c - texts under compiled grammars; steps and nodes are counted.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/grammar_match.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAMMAR_MAX 65536

static quire_grammar *grammar;
static quire_grammar_match *match;

static void begin(const char *gbnf)
{
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_grammar_create(&grammar, gbnf, &err) != QUIRE_OK) {
        fail_msg("%s\n%s", err.message, gbnf);
    }
    assert_int_equal(quire_grammar_match_create(&match, grammar), QUIRE_OK);
}

static void end(void)
{
    quire_grammar_match_destroy(match);
    quire_grammar_destroy(grammar);
}

static int test(const char *text)
{
    return quire_grammar_match_test(match, text, strlen(text), 0);
}

static int feed(const char *text)
{
    return quire_grammar_match_feed(match, text, strlen(text));
}

static uint64_t steps(void)
{
    return quire_grammar_match_count(match).n_steps;
}

/* ---- texts ---- */

static const struct {
    const char *grammar, *text;
    int result; /* 0: refused; 1: a beginning; 2: whole */
} texts[] = {
    { "root ::= \"yes\" | \"no\"", "yes", 2 },
    { "root ::= \"yes\" | \"no\"", "n", 1 },
    { "root ::= \"yes\" | \"no\"", "nos", 0 },
    { "root ::= ", "", 2 },
    { "root ::= ", "a", 0 },
    { "root ::= \"\" | \"a\"", "", 2 },
    { "root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\r\\\\\\\"\\[\\]\\-\"",
      "A\xc3\xa9\xf0\x9f\x98\x80\n\t\r\\\"[]-", 2 },
    /* sets */
    { "root ::= [a-c-x]+", "abc-x", 2 },
    { "root ::= [a-c-x]+", "d", 0 },
    { "root ::= [-+]+", "+-", 2 },
    { "root ::= [a-]+", "-a", 2 },
    { "root ::= [z-a]", "m", 0 },
    { "root ::= [^z-a]", "m", 2 },
    { "root ::= [^a-c\\x80-\\U0010FFFF]+", "dz~", 2 },
    { "root ::= [^a-c\\x80-\\U0010FFFF]+", "\xc3\xa9", 0 },
    { "root ::= [^a]", "a", 0 },
    { "root ::= [^a]", "\xf4\x8f\xbf\xbf", 2 },
    { "root ::= [\\U00000000-\\UFFFFFFFF]+", "a\xe2\x82\xac\xf4\x8f\xbf\xbf", 2 },
    { "root ::= [ac-eb]+", "abcde", 2 },
    { "root ::= \"\\UFFFFFFFF\" | \"\\uD800\"", "\xef\xbf\xbf", 0 },
    { "root ::= .", "\xe2\x82\xac", 2 },
    { "root ::= .*", "\xff", 0 },
    { "root ::= .*", "\xc0\x80", 0 },
    { "root ::= .*", "\xed\xa0\x80", 0 },
    { "root ::= .*", "\xf4\x90\x80\x80", 0 },
    /* repetitions */
    { "root ::= \"ab\"{2,3}", "ab", 1 },
    { "root ::= \"ab\"{2,3}", "abab", 2 },
    { "root ::= \"ab\"{2,3}", "ababab", 2 },
    { "root ::= \"ab\"{2,3}", "abababa", 0 },
    { "root ::= \"a\"{2,} \"b\"?", "aaaaab", 2 },
    { "root ::= \"x\"{2,}{0,3}", "x", 1 },
    { "root ::= \"x\"{2,}{0,3}", "xxxxxxxxx", 2 },
    { "root ::= (\"a\" | \"bc\")* \"d\"", "abcabcd", 2 },
    { "root ::= (\"x\" | )*", "xxx", 2 },
    { "root ::= ((\"x\"*)*)* \"y\"", "xxxxxxxy", 2 },
    { "root ::= (\"a\"? \"b\"?){3} \"c\"", "babac", 2 },
    { "root ::= (\"a\"? \"b\"?){3} \"c\"", "abababc", 2 },
    { "root ::= (\"a\"? \"b\"?){3} \"c\"", "bababac", 0 },
    /* recursion, with rules that can be empty */
    { "root ::= \"(\" root \")\" root |", "(()())()", 2 },
    { "root ::= \"(\" root \")\" root |", "(()", 1 },
    { "root ::= \"(\" root \")\" root |", "())", 0 },
    { "root ::= e \"a\" e e\ne ::= f f\nf ::= \"b\" |", "babbb", 2 },
    { "root ::= e \"a\" e e\ne ::= f f\nf ::= \"b\" |", "babbbbb", 0 },
    { "root ::= a \"x\" | a \"y\"\na ::= b b\nb ::= \"\" | \"q\"", "qy", 2 },
    { "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"x\"", "aaaxbcb", 2 },
    { "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"x\"", "aaaxbcbc", 0 },
};

static void texts_are_taken_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int result;

        begin(texts[i].grammar);
        result = feed(texts[i].text) == 1 ? 1 : 0;
        result += result > 0 && quire_grammar_match_is_whole(match);
        if (result != texts[i].result) {
            fail_msg("%s\n\"%s\": %d, not %d", texts[i].grammar, texts[i].text, result,
                     texts[i].result);
        }
        end();
    }
}

static void a_zero_byte_is_refused(void **state)
{
    (void)state;
    begin("root ::= .* [\\x00]* \"\\x00\"*");
    assert_int_equal(quire_grammar_match_test(match, "\0", 1, 0), 0);
    assert_int_equal(quire_grammar_match_test(match, "a\0b", 3, 0), 0);
    assert_int_equal(test("ab"), 1);
    end();
}

/* A test changes nothing; a refused text neither; a reset forgets the text. */
static void tests_change_nothing(void **state)
{
    (void)state;
    begin("root ::= \"a\" root \"b\" | \"c\"");
    assert_int_equal(feed("aa"), 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(test("acbbb"), 1);
        assert_int_equal(test("cbbb"), 0);
        assert_int_equal(feed("cbbb"), 0);
        assert_int_equal(test("cbb"), 1);
        assert_false(quire_grammar_match_is_whole(match));
    }
    assert_int_equal(feed("cbb"), 1);
    assert_true(quire_grammar_match_is_whole(match));
    assert_int_equal(test("b"), 0);
    assert_int_equal(quire_grammar_match_reset(match), QUIRE_OK);
    assert_int_equal(test("b"), 0);
    assert_int_equal(feed("c"), 1);
    assert_true(quire_grammar_match_is_whole(match));
    end();
}

/* ---- characters in parts ---- */

static const char *const char_grammars[] = {
    "root ::= [^a-z \\x00-\\x40]*",
    "root ::= [\xc3\xa0-\xc3\xbf\xe2\x82\xac\\U0001F600-\\U0001F64F]*",
    "root ::= (\"\xe4\xb8\xad\" | \"\xe4\xb9\x8b\" | [^\\x01-\\U0000FFFD])*",
    "root ::= [^\xc3\xa9]*",
    "root ::= .*",
    "root ::= [\\x01-\\x7f\\uD000-\\uDFFF]*",
};

/* Whether any character with these first bytes fits; each such character is tested. */
static bool some_fits(const char *bytes, size_t n, size_t n_whole)
{
    char text[5];

    if (n == n_whole) {
        quire_grammar_match_refill(match);
        return quire_grammar_match_test(match, bytes, n, 0) == 1;
    }
    memcpy(text, bytes, n);
    for (int c = 0x80; c < 0xc0; c++) {
        text[n] = (char)c;
        if (some_fits(text, n + 1, n_whole)) {
            return true;
        }
    }
    return false;
}

/* The beginning of a character fits if and only if one of its characters does. */
static void a_part_of_a_character_is_as_good_as_its_characters(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof char_grammars / sizeof char_grammars[0]; i++) {
        uint32_t n_fit = 0;

        begin(char_grammars[i]);
        for (int lead = 0x80; lead < 0xf6; lead++) {
            const char bytes[1] = { (char)lead };
            const size_t n_whole = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
            const bool fits = quire_grammar_match_test(match, bytes, 1, 0) == 1;

            quire_grammar_match_refill(match);
            assert_int_equal(fits, lead >= 0xc0 && some_fits(bytes, 1, n_whole));
            n_fit += fits;
            for (int c = 0x80; c < 0xc0 && n_whole > 2; c++) {
                const char two[2] = { (char)lead, (char)c };

                quire_grammar_match_refill(match);
                assert_int_equal(quire_grammar_match_test(match, two, 2, 0) == 1,
                                 some_fits(two, 2, n_whole));
            }
        }
        assert_true(n_fit > 0);
        end();
    }
}

static void a_character_is_fed_in_parts(void **state)
{
    (void)state;
    begin("root ::= \"a\" \"\xe2\x82\xac\"*");
    assert_int_equal(feed("a\xe2"), 1);
    assert_false(quire_grammar_match_is_whole(match)); /* within a character */
    assert_int_equal(test("\x83"), 0);
    assert_int_equal(test("a"), 0);
    assert_int_equal(feed("\x82"), 1);
    assert_int_equal(test("\xac\xe2\x82"), 1);
    assert_int_equal(test("\xac\xe2\x83"), 0);
    assert_int_equal(feed("\xac"), 1);
    assert_true(quire_grammar_match_is_whole(match));
    end();
}

/* ---- texts in order ---- */

static int compare_texts(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Texts that share the work on their beginnings have the results of texts by themselves. */
static void texts_in_order_share_their_beginnings(void **state)
{
    static char list[2000][12];
    quire_rng rng = test_rng(31);
    uint32_t n_taken = 0;
    uint64_t n_alone = 0, n_shared_steps = 0;

    (void)state;
    begin("root ::= (\"ab\" | \"b\" root \"aa\" | \"\xc3\xa9\" \"a\"? \"b\")*");
    assert_int_equal(feed("ab"), 1);
    for (int i = 0; i < 2000; i++) {
        size_t n = 0;

        for (uint32_t k = 1 + quire_rng_below(&rng, 5); k > 0; k--) {
            const char *part = quire_rng_below(&rng, 8) == 0   ? "\xc3\xa9"
                               : quire_rng_below(&rng, 2) == 0 ? "a"
                                                               : "b";

            n += (size_t)snprintf(list[i] + n, sizeof list[i] - n, "%s", part);
        }
        list[i][n - quire_rng_below(&rng, 2)] = '\0'; /* also in the middle of a character */
        if (list[i][0] == '\0') {
            list[i][0] = 'b';
        }
    }
    qsort(list, 2000, sizeof list[0], compare_texts);
    for (int i = 0; i < 2000; i++) {
        const char *last = i > 0 ? list[i - 1] : "";
        size_t n_shared = 0;
        int result;

        while (last[n_shared] != '\0' && last[n_shared] == list[i][n_shared]) {
            n_shared++;
        }
        if (i > 0) {
            (void)test(last);
        }
        quire_grammar_match_refill(match);
        result = quire_grammar_match_test(match, list[i], strlen(list[i]), n_shared);
        n_shared_steps += steps();
        quire_grammar_match_refill(match);
        assert_int_equal(result, test(list[i]));
        n_alone += steps();
        n_taken += result == 1;
    }
    assert_in_range(n_taken, 200, 1900);
    assert_true(n_shared_steps < n_alone / 4);
    end();
}

/* ---- steps ---- */

/* Steps to test and feed a text of n times `part`, and `tail`. */
static uint64_t steps_of(const char *gbnf, const char *part, int n, const char *tail)
{
    uint64_t most = 0;

    begin(gbnf);
    for (int i = 0; i < n; i++) {
        quire_grammar_match_refill(match);
        assert_int_equal(test(part), 1);
        assert_int_equal(feed(part), 1);
        most = steps() > most ? steps() : most;
    }
    quire_grammar_match_refill(match);
    assert_int_equal(feed(tail), 1);
    most = steps() > most ? steps() : most;
    end();
    return most;
}

static void ambiguous_grammars_take_few_steps(void **state)
{
    char tail[256];

    (void)state;
    /* 2^n ways to read n characters. */
    assert_in_range(
        steps_of("root ::= \"-\" root \"b\" | \"-\" root \"c\" | \"-\"", "----------------", 1, ""),
        1, 2000);
    memset(tail, 'b', 200);
    tail[199] = '\0';
    assert_in_range(
        steps_of("root ::= \"-\" root \"b\" | \"-\" root \"c\" | \"-\"", "-", 200, tail), 1, 10000);
    /* A text that is refused at its end. */
    begin("root ::= \"-\" root \"b\" | \"-\" root \"c\" | \"-\"");
    assert_int_equal(test("--------------------------------\n"), 0);
    assert_in_range(steps(), 1, 2000);
    end();
    /* As many ways as there are trees: the steps of a character grow with the square of the
     * text's length. */
    assert_in_range(steps_of("root ::= \"a\" root root |", "a", 200, ""), 1, 200 * 200 * 4);
    /* All splits of a text into words. */
    assert_in_range(
        steps_of("root ::= (\"a\" | \"aa\" | \"aaa\")* | (\"a\"+)+", "aaaaaaaa", 100, ""), 1, 2000);
}

/* Rules that begin with two calls of the next one, each of which can be empty: the steps grow with
 * the square of the number of rules. */
static void towers_of_rules_take_few_steps(void **state)
{
    static const char *const links[] = { "\na%d ::= | a%d a%d", "\na%d ::= a%d | a%d" };
    char text[GRAMMAR_MAX];

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        size_t n = (size_t)snprintf(text, sizeof text, "root ::= a0 \"y\"");

        for (int i = 0; i < 100; i++) {
            n += (size_t)snprintf(text + n, sizeof text - n, links[k], i, i + 1, i + 1);
        }
        (void)snprintf(text + n, sizeof text - n, "\na100 ::= \"x\" | \"\"");
        begin(text);
        assert_in_range(steps(), 100, 100 * 100 * 4);
        end();
        assert_in_range(steps_of(text, "x", k == 0 ? 20 : 1, "y"), 1, 400000);
    }
}

/* A grammar that costs more than the budget: an error, and a new beginning. */
static void a_budget_ends(void **state)
{
    int rc = 1, n = 0;

    (void)state;
    begin("root ::= s\ns ::= \"a\" s{200} |");
    for (; rc == 1 && n < 100; n++) {
        quire_grammar_match_refill(match);
        rc = feed("a");
    }
    assert_int_equal(rc, QUIRE_LIMIT);
    assert_in_range(n, 3, 30);
    assert_true(steps() <= QUIRE_GRAMMAR_STEPS_MAX + QUIRE_GRAMMAR_NODES_MAX);
    assert_int_equal(quire_grammar_match_reset(match), QUIRE_OK);
    assert_int_equal(feed("a"), 1);
    end();
}

/* Alternatives that no budget reaches the end of. */
static void a_beginning_has_a_budget(void **state)
{
    const size_t cap = QUIRE_GRAMMAR_BYTES_MAX + 1;
    char *text = malloc(cap);
    quire_error err = QUIRE_ERROR_INIT;
    size_t n;

    (void)state;
    assert_non_null(text);
    /* Each call of "a" is one of many to return from, with an edge to each caller. */
    n = (size_t)snprintf(text, cap, "root ::= b \"x\"\nb ::= \"\"");
    for (int i = 0; i < 1000; i++) {
        n += (size_t)snprintf(text + n, cap - n, " | c%d \"y\"", i % 100);
    }
    for (int i = 0; i < 100; i++) {
        n += (size_t)snprintf(text + n, cap - n, "\nc%d ::= \"\"", i);
        for (int k = 0; k < 300; k++) {
            n += (size_t)snprintf(text + n, cap - n, " | d d");
        }
    }
    n += (size_t)snprintf(text + n, cap - n, "\nd ::= \"\"");
    for (int k = 0; k < 1000; k++) {
        n += (size_t)snprintf(text + n, cap - n, " | \"z\"");
    }
    assert_true(n < cap - 1);
    assert_int_equal(quire_grammar_create(&grammar, text, &err), QUIRE_OK);
    assert_int_equal(quire_grammar_match_create(&match, grammar), QUIRE_LIMIT);
    assert_null(match);
    quire_grammar_destroy(grammar);
    free(text);
}

/* ---- memory ---- */

static const struct {
    const char *grammar, *part;
    uint32_t nodes_max;
} loops[] = {
    { "root ::= [a-z ]*", "some words ", 4200 },
    { "root ::= (\"a\" | \"b\" [c]+ )*", "abccc", 4200 },
    { "root ::= item\nitem ::= \"x\" (\",\" item)?", "x,", 4200 },
    { "root ::= \"[\" v (\",\" v)*\nv ::= s | \"[\" v \"]\"\ns ::= \"'\" c* \"'\"\nc ::= [^'] | "
      "\"\\\\\" .",
      "", 0 },
};

/* Nodes of the past are forgotten. */
static void long_texts_take_no_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        const char *part = loops[i].part[0] != '\0' ? loops[i].part : "'text, with \\' signs',";
        const uint32_t nodes_max = loops[i].nodes_max > 0 ? loops[i].nodes_max : 4400;
        quire_grammar_match_counts counts;

        begin(loops[i].grammar);
        if (loops[i].nodes_max == 0) {
            assert_int_equal(feed("["), 1);
        }
        for (int k = 0; k < 5000; k++) {
            quire_grammar_match_refill(match);
            assert_int_equal(feed(part), 1);
            counts = quire_grammar_match_count(match);
            assert_in_range(counts.n_nodes, 1, nodes_max);
            assert_in_range(counts.n_edges, 0, nodes_max);
            assert_in_range(counts.n_threads, 1, 20);
        }
        end();
    }
}

/* Nodes that are needed survive a collection: as many brackets are closed as were opened. */
static void brackets_are_remembered(void **state)
{
    (void)state;
    begin("root ::= \"(\" root* \")\"");
    for (int i = 0; i < 20000; i++) {
        quire_grammar_match_refill(match);
        assert_int_equal(feed("(()"), 1);
    }
    for (int i = 0; i < 20000; i++) {
        quire_grammar_match_refill(match);
        assert_false(quire_grammar_match_is_whole(match));
        assert_int_equal(feed(")"), 1);
    }
    assert_true(quire_grammar_match_is_whole(match));
    assert_int_equal(test(")"), 0);
    assert_true(quire_grammar_match_count(match).n_nodes < 90000);
    end();
    /* More than the bound of nodes. */
    begin("root ::= \"(\" root* \")\"");
    {
        int rc = 1;
        uint32_t n = 0;

        for (; rc == 1 && n <= QUIRE_GRAMMAR_NODES_MAX; n++) {
            quire_grammar_match_refill(match);
            rc = feed("(");
        }
        assert_int_equal(rc, QUIRE_LIMIT);
        assert_true(n > QUIRE_GRAMMAR_NODES_MAX / 4);
    }
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_taken_or_refused),
        cmocka_unit_test(a_zero_byte_is_refused),
        cmocka_unit_test(tests_change_nothing),
        cmocka_unit_test(a_part_of_a_character_is_as_good_as_its_characters),
        cmocka_unit_test(a_character_is_fed_in_parts),
        cmocka_unit_test(texts_in_order_share_their_beginnings),
        cmocka_unit_test(ambiguous_grammars_take_few_steps),
        cmocka_unit_test(towers_of_rules_take_few_steps),
        cmocka_unit_test(a_budget_ends),
        cmocka_unit_test(a_beginning_has_a_budget),
        cmocka_unit_test(long_texts_take_no_memory),
        cmocka_unit_test(brackets_are_remembered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
