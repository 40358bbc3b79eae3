/* test_grammar.c - grammars that are refused, and that samplers take the others.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/sampler.h"
#include "model_fixture.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX 8192

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

static void refused(const quire_sampler_opts *opts, int status, const char *part)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *s = NULL;

    assert_int_equal(quire_sampler_create(&s, model, opts, &err), status);
    assert_null(s);
    assert_int_equal(err.status, status);
    if (strstr(err.message, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, err.message);
    }
}

/* ---- grammars that are refused ---- */

static const struct {
    const char *grammar;
    int status;
    const char *part;
} refusals[] = {
    { "", QUIRE_INVAL, "\"root\"" },
    { "# nothing", QUIRE_INVAL, "\"root\"" },
    { "a ::= \"x\"", QUIRE_INVAL, "\"root\"" },
    { "root \"x\"", QUIRE_INVAL, "line 1, column 6: '::='" },
    { "root ::= \"x", QUIRE_INVAL, "column 12: a literal" },
    { "root ::= \"x\"\nroot ::= \"y\"", QUIRE_INVAL, "line 2, column 1: this rule is there" },
    { "root ::= [", QUIRE_INVAL, "does not end" },
    { "root ::= [a-", QUIRE_INVAL, "does not end" },
    { "root ::= []", QUIRE_INVAL, "column 10: this set is empty" },
    { "root ::= [^]", QUIRE_INVAL, "this set is empty" },
    { "root ::= \"\\q\"", QUIRE_INVAL, "column 11: this escape" },
    { "root ::= \"\\", QUIRE_INVAL, "this escape" },
    { "root ::= \"\\x4\"", QUIRE_INVAL, "hexadecimal" },
    { "root ::= \"\\U0001F60\"", QUIRE_INVAL, "hexadecimal" },
    { "root ::= (\"x\"", QUIRE_INVAL, "column 10: this group" },
    { "root ::= \"x\")", QUIRE_INVAL, "column 13: this is not understood" },
    { "root ::= a", QUIRE_INVAL, "column 10: this rule is nowhere" },
    { "root ::= *", QUIRE_INVAL, "nothing to repeat" },
    { "root ::= \"\"*", QUIRE_INVAL, "nothing to repeat" },
    { "root ::= \"x\"{", QUIRE_INVAL, "a number" },
    { "root ::= \"x\"{1", QUIRE_INVAL, "'}'" },
    { "root ::= \"x\"{1,2", QUIRE_INVAL, "'}'" },
    { "root ::= \"x\"{3,2}", QUIRE_INVAL, "the larger bound" },
    { "root ::= \"x\"{0}", QUIRE_INVAL, "of nothing" },
    { "root ::= \"x\"{9999999999}", QUIRE_INVAL, "too large" },
    { "root ::= \"x\"{2001}", QUIRE_LIMIT, "2000" },
    { "root ::= \"x\"{1,2001}", QUIRE_LIMIT, "2000" },
    { "root ::= \"x\"{100}{100}", QUIRE_LIMIT, "repetitions of what has" },
    { "root ::= (\"x\"{0,100} \"y\"){100}", QUIRE_LIMIT, "repetitions of what has" },
    { "root ::= <think>", QUIRE_INVAL, "tokens are not supported" },
    { "root ::= !<[1]>", QUIRE_INVAL, "tokens are not supported" },
    { "root ::= \"\xff\"", QUIRE_INVAL, "not UTF-8" },
    { "root ::= \"\xe4\xb8", QUIRE_INVAL, "not UTF-8" },
    { "root ::= root \"x\" | \"y\"", QUIRE_INVAL, "rule \"root\" can begin with itself" },
    { "root ::= (root \"x\")? \"y\"", QUIRE_INVAL, "can begin with itself" },
    { "root ::= a \"x\" | \"y\"\na ::= b root\nb ::= c\nc ::= \"z\"?", QUIRE_INVAL, "itself" },
    { "root ::= a\na ::= b\nb ::= a | \"x\"", QUIRE_INVAL, "\"a\" can begin with itself" },
};

static void test_grammars_refused(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;

    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        opts.grammar = refusals[i].grammar;
        refused(&opts, refusals[i].status, refusals[i].part);
    }
}

/* Grammars above the limits are refused before they are unrolled. */
static void test_grammars_too_large(void **state)
{
    const size_t cap = QUIRE_GRAMMAR_BYTES_MAX + 100;
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    char *text = malloc(cap);
    size_t n;

    (void)state;
    assert_non_null(text);
    opts.grammar = text;

    memset(text, 'x', cap - 1);
    text[cap - 1] = '\0';
    refused(&opts, QUIRE_LIMIT, "262144 bytes");

    /* Brackets: the reader recurses for each. */
    n = (size_t)snprintf(text, cap, "root ::= ");
    memset(text + n, '(', 200000);
    text[n + 200000] = '\0';
    refused(&opts, QUIRE_LIMIT, "groups within groups");

    /* A long literal, repeated. */
    memset(text + n, 'y', 1000);
    text[n] = text[n + 999] = '"';
    (void)snprintf(text + n + 1000, 100, "{2000}");
    refused(&opts, QUIRE_LIMIT, "unrolled");

    /* Rules: a long chain, too many. */
    n = (size_t)snprintf(text, cap, "root ::= a0\n");
    for (int i = 0; i < 1000; i++) {
        n += (size_t)snprintf(text + n, cap - n, "a%d ::= a%d\n", i, i + 1);
    }
    (void)snprintf(text + n, cap - n, "a1000 ::= \"x\"\n");
    refused(&opts, QUIRE_LIMIT, "begin rules");

    n = (size_t)snprintf(text, cap, "root ::= \"x\"");
    for (int i = 0; i < 10000; i++) {
        n += (size_t)snprintf(text + n, cap - n, " (\"y\")");
    }
    refused(&opts, QUIRE_LIMIT, "rules and groups");

    /* A grammar that doubles with each sign. */
    n = (size_t)snprintf(text, cap, "root ::= \"x\"");
    memset(text + n, '+', 10000);
    text[n + 10000] = '\0';
    refused(&opts, QUIRE_LIMIT, "unrolled");
    free(text);
}

/* ---- samplers take grammars that pass the check ---- */

static const char *const grammars[] = {
    "root ::= \"yes\" | \"no\"",
    "root ::= [0-9]+ (\".\" [0-9]{1,3})?",
    "# words\nroot ::= word (\" \" word){2,5} \".\"\nword ::= [a-z] [a-z]*\n",
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\U0001F600]{1,8} \"\\n\"\r\n",
    "root ::= (\n  \"a\" |\n  \"b\" root? ) # end\n",
    "root ::= \"\" \n",
    "root ::= ",
    "root ::= ws \"[\" ws (\"1\" (ws \",\" ws \"1\")*)? ws \"]\"\nws ::= [ \\t]*",
    "root ::= . . \"\\\"\" [\\]\\-a]? \"\\t\\r\\\\\" [-+] | \"\xc3\xa9\" [\xc3\xa0-\xc3\xbf]",
    "root ::= \"x\"{2,}{0,3} \"y\"{5} [ab]{,",
    "root ::= \"x\"{2,}{0,3} (\"y\"{5} [ab]{1,4})? \"z\"{3,3}",
};

/* Output on stderr is redirected to a file. */
typedef struct hush {
    int saved;
    FILE *file;
} hush;

static hush hush_begin(void)
{
    hush h = { dup(STDERR_FILENO), tmpfile() };

    assert_true(h.saved >= 0 && h.file != NULL);
    (void)fflush(stderr);
    assert_true(dup2(fileno(h.file), STDERR_FILENO) >= 0);
    return h;
}

/* Returns how many bytes were printed. */
static long hush_end(hush *h)
{
    long n;

    (void)fflush(stderr);
    (void)dup2(h->saved, STDERR_FILENO);
    (void)close(h->saved);
    (void)fseek(h->file, 0, SEEK_END);
    n = ftell(h->file);
    (void)fclose(h->file);
    return n;
}

static void test_the_others_are_taken(void **state)
{
    static const char bits[] = "()[]{}*+?|.,\"\\-^#<!:=\n\r ab01xuU";
    const uint32_t n_grammars = sizeof(grammars) / sizeof(grammars[0]);
    quire_rng rng = test_rng(14);
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    uint32_t n_passed = 0;
    hush h = hush_begin();
    int failed_rc = QUIRE_OK;
    char text[TEXT_MAX];

    (void)state;
    opts.grammar = text;
    for (int i = 0; i < 20000 && failed_rc == QUIRE_OK; i++) {
        const char *from = grammars[quire_rng_below(&rng, n_grammars)];
        size_t n = strlen(from);
        quire_sampler *s = NULL;
        quire_error err = QUIRE_ERROR_INIT;

        memcpy(text, from, n + 1);
        for (uint32_t j = quire_rng_below(&rng, 4); j > 0 && n > 0; j--) {
            const uint32_t at = quire_rng_below(&rng, (uint32_t)n);

            if (quire_rng_below(&rng, 2) == 0) { /* replace, or insert */
                text[at] = bits[quire_rng_below(&rng, sizeof(bits) - 1)];
            } else {
                memmove(text + at + 1, text + at, n - at + 1);
                text[at] = bits[quire_rng_below(&rng, sizeof(bits) - 1)];
                n++;
            }
        }
        if (quire_grammar_check(text, &err) == QUIRE_OK) {
            n_passed++;
            failed_rc = quire_sampler_create(&s, model, &opts, &err);
            quire_sampler_destroy(s);
        }
    }
    assert_int_equal(hush_end(&h), 0);
    if (failed_rc != QUIRE_OK) {
        fail_msg("the sampler refuses:\n%s", text);
    }
    (void)printf("%u of 20000 passed\n", n_passed);
    assert_true(n_passed > 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammars_refused),
        cmocka_unit_test(test_grammars_too_large),
        cmocka_unit_test(test_the_others_are_taken),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
