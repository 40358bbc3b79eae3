/* test_grammar_same.c - the matcher against libllama's grammar sampler, on random small grammars
 * and texts; the order of tokens.
 *
 * libllama keeps each way to read a text as a stack of its own, so texts are short here. Two
 * differences are intended. A negated set takes the beginning of a character when one of its
 * characters fits; libllama refuses the beginning when one does not fit. And a text does not end
 * within a character.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/chat_internal.h"
#include "model/grammar_match.h"
#include "model/model_internal.h"
#include "model/text.h"
#include "model/token_order.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#define ROUNDS    3000u
#define TOKENS    7   /* of a text */
#define VOCAB_MAX 400 /* tokens */
#define TEXT_MAX  4096

static quire_model *model;
static const struct llama_vocab *vocab;
static uint32_t n_vocab;

static int setup(void **state)
{
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = VOCAB_MAX;
    opts.vocab = GGUF_GEN_VOCAB_BPE;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    vocab = llama_model_get_vocab(quire_model_llama(model));
    n_vocab = quire_model_desc_get(model)->n_vocab;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

/* ---- random grammars ---- */

typedef struct text {
    char data[TEXT_MAX];
    size_t n;
} text;

static void add(text *t, const char *part)
{
    const size_t n = strlen(part);

    if (t->n + n < TEXT_MAX) {
        memcpy(t->data + t->n, part, n + 1);
        t->n += n;
    }
}

static void add_alternatives(text *t, quire_rng *rng, uint32_t depth);

static void add_part(text *t, quire_rng *rng, uint32_t depth)
{
    static const char *const chars[] = { "\"a\"",       "\"b\"",
                                         "\"ab\"",      "[ab]",
                                         "[^a]",        ".",
                                         "\"\\u00e9\"", "[\xc3\xa0-\xc3\xbf]",
                                         "[^b\\u00e9]", "\"\xe2\x82\xac\"",
                                         "\"\"",        "[a-c]",
                                         "\"c\"",       "[\\u0800-\\uffff]",
                                         "\"a\"" };
    static const char *const names[] = { "root", "x", "y", "z" };
    static const char *const repetitions[] = { "*", "+", "?", "{2}", "{0,2}", "{1,2}", "{1,}" };
    const uint32_t kind = quire_rng_below(rng, depth > 1 ? 7 : 10);

    if (kind < 6) {
        add(t, chars[quire_rng_below(rng, sizeof chars / sizeof chars[0])]);
    } else if (kind < 8) {
        add(t, names[quire_rng_below(rng, 4)]);
    } else {
        add(t, "(");
        add_alternatives(t, rng, depth + 1);
        add(t, ")");
    }
    if (quire_rng_below(rng, 4) == 0) {
        add(t, repetitions[quire_rng_below(rng, sizeof repetitions / sizeof repetitions[0])]);
    }
}

static void add_alternatives(text *t, quire_rng *rng, uint32_t depth)
{
    for (uint32_t i = quire_rng_below(rng, 3) + 1; i > 0; i--) {
        for (uint32_t k = quire_rng_below(rng, 4); k > 0; k--) {
            add_part(t, rng, depth);
            add(t, " ");
        }
        add(t, i > 1 ? "| " : "");
    }
}

static void add_grammar(text *t, quire_rng *rng)
{
    static const char *const heads[] = { "root ::= ", "\nx ::= ", "\ny ::= ", "\nz ::= " };

    t->n = 0;
    for (uint32_t i = 0; i < 4; i++) {
        add(t, heads[i]);
        add_alternatives(t, rng, 0);
    }
}

/* ---- the same tokens ---- */

static size_t text_of(int32_t token, char *piece)
{
    const int64_t n = quire_model_token_text(model, token, false, piece, 64);

    return n > 0 && n <= 64 ? (size_t)n : 0;
}

/* A token that both let follow, or -1. Each token is asked for. */
static int32_t compare_tokens(const char *gbnf, struct llama_sampler *theirs,
                              quire_grammar_match *ours, const quire_utf8_stream *utf8,
                              quire_rng *rng)
{
    static llama_token_data data[VOCAB_MAX];
    llama_token_data_array list = { data, n_vocab, -1, false };
    int32_t chosen = -1;
    uint32_t n_allowed = 0;

    for (uint32_t i = 0; i < n_vocab; i++) {
        data[i] = (llama_token_data){ (int32_t)i, 0.0f, 0.0f };
    }
    llama_sampler_apply(theirs, &list);
    for (uint32_t i = 0; i < n_vocab; i++) {
        const bool is_theirs = data[i].logit > -INFINITY;
        quire_utf8_stream after = *utf8;
        char piece[64];
        size_t n;
        bool is_ours;

        if (quire_model_is_eog(model, (int32_t)i)) {
            if (utf8->n_held == 0) {
                assert_int_equal(quire_grammar_match_is_whole(ours), is_theirs);
            }
            continue;
        }
        n = text_of((int32_t)i, piece);
        if (n == 0 || memchr(piece, '\0', n) != NULL || !quire_utf8_stream_skip(&after, piece, n)) {
            continue;
        }
        quire_grammar_match_refill(ours);
        is_ours = quire_grammar_match_test(ours, piece, n, 0) == 1;
        if (is_ours != is_theirs && !(after.n_held > 0 && is_ours && strchr(gbnf, '^') != NULL)) {
            fail_msg("token %u \"%.*s\": %d, libllama says %d, of\n%s", i, (int)n, piece, is_ours,
                     is_theirs, gbnf);
        }
        if (is_ours && is_theirs && quire_rng_below(rng, ++n_allowed) == 0) {
            chosen = (int32_t)i;
        }
    }
    return chosen;
}

/* Follow a random text. Returns the number of its tokens. */
static uint32_t follow(const char *gbnf, quire_rng *rng, uint32_t *n_refused)
{
    struct llama_sampler *theirs = llama_sampler_init_grammar(vocab, gbnf, "root");
    quire_utf8_stream utf8 = { 0 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_grammar_match *ours;
    quire_grammar *grammar;
    uint32_t n = 0;

    assert_int_equal(quire_grammar_create(&grammar, gbnf, &err), QUIRE_OK);
    assert_int_equal(quire_grammar_match_create(&ours, grammar), QUIRE_OK);
    if (theirs == NULL) { /* an endless repetition of a rule that can be empty */
        ++*n_refused;
    }
    for (; theirs != NULL && n < TOKENS; n++) {
        const int32_t token = compare_tokens(gbnf, theirs, ours, &utf8, rng);
        char piece[64];
        size_t n_piece;

        if (token < 0) {
            break;
        }
        n_piece = text_of(token, piece);
        llama_sampler_accept(theirs, token);
        assert_int_equal(quire_grammar_match_feed(ours, piece, n_piece), 1);
        assert_true(quire_utf8_stream_skip(&utf8, piece, n_piece));
    }
    llama_sampler_free(theirs);
    quire_grammar_match_destroy(ours);
    quire_grammar_destroy(grammar);
    return n;
}

static void the_same_tokens_follow(void **state)
{
    const uint32_t n_rounds = (uint32_t)test_ops(ROUNDS);
    quire_rng rng = test_rng(41);
    uint32_t n_followed = 0, n_tokens = 0, n_refused = 0;
    quire_error err = QUIRE_ERROR_INIT;
    static text gbnf;

    (void)state;
    for (uint32_t i = 0; i < n_rounds; i++) {
        add_grammar(&gbnf, &rng);
        if (quire_grammar_check(gbnf.data, &err) == QUIRE_OK) {
            n_tokens += follow(gbnf.data, &rng, &n_refused);
            n_followed++;
        }
    }
    (void)printf("%u grammars, %u tokens, %u grammars refused by libllama\n", n_followed, n_tokens,
                 n_refused);
    assert_true(n_followed > n_rounds / 8 && n_tokens > n_followed);
    assert_true(n_refused < n_followed / 4);
}

/* ---- the order of tokens ---- */

static void tokens_are_ordered_by_text(void **state)
{
    quire_token_order *order;
    uint32_t n_ends = 0, n_unranked = 0;

    (void)state;
    assert_int_equal(quire_token_order_create(&order, vocab), QUIRE_OK);
    assert_int_equal(order->n_vocab, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) {
        const uint32_t rank = order->ranks[i];
        char piece[64];
        const size_t n = text_of((int32_t)i, piece);

        if (rank == QUIRE_TOKEN_ENDS) {
            assert_true(quire_model_is_eog(model, (int32_t)i));
            n_ends++;
        } else if (rank == QUIRE_TOKEN_UNRANKED) {
            assert_int_equal(n, 0);
            n_unranked++;
        } else {
            assert_int_equal(order->tokens[rank], i);
            assert_int_equal(quire_token_order_bytes(order, rank), n);
            assert_memory_equal(quire_token_order_text(order, rank), piece, n);
        }
    }
    assert_int_equal(order->n + n_ends + n_unranked, n_vocab);
    assert_true(n_ends > 0 && order->n > 256);
    for (uint32_t i = 1; i < order->n; i++) {
        const char *a = quire_token_order_text(order, i - 1), *b = quire_token_order_text(order, i);
        const size_t n_a = quire_token_order_bytes(order, i - 1);
        const size_t n_b = quire_token_order_bytes(order, i);
        const size_t n_shared = order->shared[i];

        assert_memory_equal(a, b, n_shared);
        assert_true(n_shared <= n_a && n_shared <= n_b);
        assert_true(n_shared == n_a ||
                    (n_shared < n_b && (unsigned char)a[n_shared] < (unsigned char)b[n_shared]));
    }
    quire_token_order_destroy(order);
}

static void *get_order(void *arg)
{
    const quire_token_order **order = arg;

    return quire_tokenizer_order(model->tokenizer, order) == QUIRE_OK ? arg : NULL;
}

/* Threads that ask at once get the same order. */
static void a_model_has_one_order(void **state)
{
    const quire_token_order *orders[4] = { NULL };
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, get_order, &orders[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *done = NULL;

        assert_int_equal(pthread_join(threads[i], &done), 0);
        assert_non_null(done);
    }
    for (int i = 0; i < 4; i++) {
        assert_non_null(orders[i]);
        assert_ptr_equal(orders[i], orders[0]);
    }
    assert_int_equal(orders[0]->n_vocab, n_vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens_follow),
        cmocka_unit_test(tokens_are_ordered_by_text),
        cmocka_unit_test(a_model_has_one_order),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
