/* test_tokenize_same.c - the same tokens as libllama's, for vocabularies of every kind, made by
 * chance and real ones, and texts full of special tokens; texts that take libllama hours; bounds.
 *
 * The linker redirects clock_gettime here (--wrap), to let time pass, and llama_tokenize, to count
 * calls.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/tokenizer.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"
#include "vocab_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT_BYTES_MAX 400
#define N_TOKENS_MAX   (6 * TEXT_BYTES_MAX)
#define N_TEXTS        TEST_ROUNDS(100, 30)
#define N_SEEDS        TEST_ROUNDS(2, 1)
#define LONG_BYTES     TEST_ROUNDS((size_t)2 << 20, (size_t)1 << 19)
#define CANCEL_BYTES   ((size_t)1 << 19) /* long enough for more than five questions */

static uint64_t clock_ahead_s;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = __real_clock_gettime(clock, t);

    t->tv_sec += (time_t)clock_ahead_s;
    return rc;
}

static uint64_t n_llama_calls;

int32_t __real_llama_tokenize(const struct llama_vocab *vocab, const char *text, int32_t n_bytes,
                              llama_token *tokens, int32_t cap, bool adds, bool parses);
int32_t __wrap_llama_tokenize(const struct llama_vocab *vocab, const char *text, int32_t n_bytes,
                              llama_token *tokens, int32_t cap, bool adds, bool parses);

int32_t __wrap_llama_tokenize(const struct llama_vocab *vocab, const char *text, int32_t n_bytes,
                              llama_token *tokens, int32_t cap, bool adds, bool parses)
{
    n_llama_calls++;
    return __real_llama_tokenize(vocab, text, n_bytes, tokens, cap, adds, parses);
}

typedef struct canceling {
    uint32_t n_asked;
    uint32_t n_before;
    uint64_t seconds; /* that pass each time */
} canceling;

static bool is_canceled(void *ctx)
{
    canceling *c = ctx;

    clock_ahead_s += c->seconds;
    return c->n_asked++ >= c->n_before;
}

/* ---- texts ---- */

static const char *const units[] = {
    "a",
    "b",
    "c",
    "s",
    "Z",
    "1",
    "2",
    "123",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    ".",
    ",",
    "!",
    "/",
    "'s",
    "'",
    "\xc3\xa9",
    "\xe4\xb8\xad",
    "<",
    ">",
    "|",
    "<s>",
    "</s>",
    "aa a",
    "ab.",
    "\xcc\x81",
    "\xe3\x80\x82",
    "(",
    "_",
    "\xf0\x9f\x98\x80",
    "-",
    "word",
    "10",
    " a",
    "\xc2\xa0",
    "\xe3\x80\x80",
    "\xd0\x9a",
    ". ",
    "\xe2\x80\xa8",
    "a b",
    "\nb",
    "x\ny",
    "?",
    "\xe2\x96\x81",
    "\xd9\xa3",
    "\x01",
    "\xe1\x9a\x80",
    "<mask>",
};
#define N_UNITS (sizeof units / sizeof units[0])

/* Units, runs of them, and tokens of the vocabulary; now and then bytes that are no UTF-8. */
static size_t text_make(quire_rng *rng, const quire_model *model, char *text)
{
    const size_t want = quire_rng_below(rng, 8) == 0 ? quire_rng_below(rng, 8)
                                                     : quire_rng_below(rng, TEXT_BYTES_MAX);
    size_t n = 0;

    while (n < want) {
        const char *unit = units[quire_rng_below(rng, N_UNITS)];
        size_t repeat = quire_rng_below(rng, 6) == 0 ? 1 + quire_rng_below(rng, 40) : 1;

        if (quire_rng_below(rng, 3) == 0) {
            const uint32_t token = quire_rng_below(rng, model->desc.n_vocab);

            unit = llama_vocab_get_text(model->vocab, (int32_t)token);
        }
        if (quire_rng_below(rng, 40) == 0) {
            unit = quire_rng_below(rng, 2) == 0 ? "\xf0\x9f" : "\x80";
        }
        for (; repeat > 0 && n + strlen(unit) <= TEXT_BYTES_MAX; repeat--) {
            memcpy(text + n, unit, strlen(unit));
            n += strlen(unit);
        }
        n = n < want && n + strlen(unit) > TEXT_BYTES_MAX ? want : n;
    }
    return n < TEXT_BYTES_MAX ? n : TEXT_BYTES_MAX;
}

static void tokens_print(const char *name, const int32_t *tokens, int64_t n)
{
    print_message("%s:", name);
    for (int64_t i = 0; i < n; i++) {
        print_message(" %d", (int)tokens[i]);
    }
    print_message("\n");
}

static void same_check(const quire_model *model, const char *text, size_t n_bytes, bool add_special,
                       bool parse_special)
{
    static int32_t expected[N_TOKENS_MAX];
    static int32_t got[N_TOKENS_MAX];
    const int32_t n_expected = llama_tokenize(model->vocab, text, (int32_t)n_bytes, expected,
                                              N_TOKENS_MAX, add_special, parse_special);
    const int64_t n_got =
        quire_model_tokenize(model, text, n_bytes, add_special, parse_special, got, N_TOKENS_MAX);

    assert_in_range(n_expected, 0, N_TOKENS_MAX);
    if (n_got != n_expected || memcmp(got, expected, (size_t)n_got * sizeof got[0]) != 0) {
        print_message("text of %zu bytes:", n_bytes);
        for (size_t i = 0; i < n_bytes; i++) {
            print_message(text[i] >= ' ' && text[i] <= '~' ? "%c" : "\\x%02x",
                          (unsigned char)text[i]);
        }
        print_message("\n");
        tokens_print("libllama", expected, n_expected);
        tokens_print("quire", got, n_got);
        fail();
    }
}

static void texts_check(const quire_model *model, uint64_t seed, uint32_t n_texts)
{
    quire_rng rng = { seed };
    char text[TEXT_BYTES_MAX + 16];

    for (uint32_t i = 0; i < n_texts; i++) {
        const size_t n_bytes = text_make(&rng, model, text);

        for (unsigned flags = 0; flags < 4; flags++) {
            same_check(model, text, n_bytes, (flags & 1) != 0, (flags & 2) != 0);
        }
    }
}

static void test_generated(void **state)
{
    static const char *const pres[] = { "gpt-2", "jina-v2-de", "qwen2", "default" };
    const uint64_t seed = test_rng(1).state;

    (void)state;
    for (uint64_t i = 0; i < (uint64_t)VOCAB_GEN_KINDS * N_SEEDS; i++) {
        const vocab_gen_opts opts = {
            .kind = (vocab_gen_kind)(i % VOCAB_GEN_KINDS),
            .pre = pres[i / VOCAB_GEN_KINDS % 4],
            .n_pieces = 60 + 40 * (uint32_t)(i % 5),
            .n_specials = 16 * (uint32_t)(i / VOCAB_GEN_KINDS),
            .strips_right = i / VOCAB_GEN_KINDS % 3 == 1,
            .has_no_prefix = i / VOCAB_GEN_KINDS % 2 == 1,
            .seed = seed + i,
        };
        quire_model model;

        vocab_generate(&model, &opts);
        texts_check(&model, seed + i, N_TEXTS);
        vocab_close(&model);
    }
}

/* Special tokens of one length that overlap each other, in a vocabulary of few others. */
static void test_overlapping_specials(void **state)
{
    const uint64_t seed = test_rng(1).state;

    (void)state;
    for (uint64_t i = 0; i < N_SEEDS; i++) {
        const vocab_gen_opts opts = { .kind = (vocab_gen_kind)(i % VOCAB_GEN_KINDS),
                                      .pre = "gpt-2",
                                      .n_pieces = 20,
                                      .n_specials = 40 + 40 * (uint32_t)i,
                                      .strips_right = i % 3 == 1,
                                      .seed = seed + i };
        quire_model model;

        vocab_generate(&model, &opts);
        texts_check(&model, seed + i, N_TEXTS);
        vocab_close(&model);
    }
}

/* How often the split asks whether to go on, which it does after so many steps, for a text of all
 * special tokens of a vocabulary by turns. */
static uint32_t questions_of_split(const quire_model *model)
{
    canceling c = { .n_before = UINT32_MAX };
    const quire_tokenize_opts opts = { .parse_special = true,
                                       .is_canceled = is_canceled,
                                       .ctx = &c };
    const quire_tokenize_watch watch = { .opts = &opts };
    char *text = malloc(CANCEL_BYTES + 64);
    quire_specials *specials;
    quire_fragment *fragments;
    size_t n_fragments, n = 0;

    assert_non_null(text);
    for (uint32_t i = 0; n < CANCEL_BYTES; i++) {
        const int32_t token = (int32_t)(i % model->desc.n_vocab);

        if ((llama_vocab_get_attr(model->vocab, token) & LLAMA_TOKEN_ATTR_NORMAL) == 0) {
            n += (size_t)snprintf(text + n, 64, "%s", llama_vocab_get_text(model->vocab, token));
        }
    }
    assert_int_equal(quire_specials_create(&specials, model->vocab), QUIRE_OK);
    assert_int_equal(quire_specials_split(specials, text, n, &watch, &fragments, &n_fragments),
                     QUIRE_OK);
    free(fragments);
    quire_specials_destroy(specials);
    free(text);
    return c.n_asked;
}

/* A vocabulary of special tokens alone, which overlap. libllama searches each text for every
 * special token, so Quire bounds the texts in its questions to libllama. */
static void test_many_specials(void **state)
{
    const vocab_gen_opts opts = {
        .kind = VOCAB_GEN_BPE, .pre = "gpt-2", .n_pieces = 20, .n_specials = 3000, .seed = 5
    };
    quire_model model;

    (void)state;
    n_llama_calls = 0;
    vocab_generate(&model, &opts);
    assert_true(n_llama_calls > 1000 && n_llama_calls * opts.n_specials <= QUIRE_SPECIAL_WORK_MAX);
    /* Some steps for each byte and each length of special tokens; none for each special token. */
    assert_in_range(questions_of_split(&model), CANCEL_BYTES >> 16, CANCEL_BYTES >> 10);
    vocab_close(&model);
}

static void test_real(void **state)
{
    static const char *const names[] = {
        "llama-spm", "phi-3",    "baichuan",  "bert-bge",  "nomic-bert-moe", "gpt-2",
        "llama-bpe", "qwen2",    "starcoder", "command-r", "deepseek-coder", "deepseek-llm",
        "falcon",    "gpt-neox", "mpt",       "refact",    "qwen35",         "aquila",
    };
    bool is_any = false;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[64];
        const char *path;
        quire_model model;

        (void)snprintf(name, sizeof name, "ggml-vocab-%s.gguf", names[i]);
        path = fixture_vocab_path(name);
        if (path == NULL) {
            continue;
        }
        is_any = true;
        vocab_open(&model, path, "");
        texts_check(&model, test_rng(4).state + i, N_TEXTS);
        vocab_close(&model);
    }
    if (!is_any) {
        skip();
    }
}

/* ---- pieces ---- */

/* Cut at every place that can be cut: both sides apart give the tokens of the whole. */
static uint32_t cuts_check(const quire_model *model, const char *pre, const char *text,
                           size_t n_bytes)
{
    static int32_t whole[N_TOKENS_MAX];
    static int32_t parts[N_TOKENS_MAX];
    const int32_t n_whole =
        llama_tokenize(model->vocab, text, (int32_t)n_bytes, whole, N_TOKENS_MAX, false, false);
    uint32_t n_cuts = 0;
    quire_bpe_cut cut;

    quire_bpe_cut_init(&cut, pre);
    assert_in_range(n_whole, 0, N_TOKENS_MAX);
    for (size_t at = quire_bpe_cut_next(&cut, text, n_bytes, 0); at < n_bytes;
         at = quire_bpe_cut_next(&cut, text, n_bytes, at + 1)) {
        const int32_t n_left =
            llama_tokenize(model->vocab, text, (int32_t)at, parts, N_TOKENS_MAX, false, false);
        const int32_t n_right = llama_tokenize(model->vocab, text + at, (int32_t)(n_bytes - at),
                                               parts + n_left, N_TOKENS_MAX - n_left, false, false);

        if (n_left + n_right != n_whole ||
            memcmp(parts, whole, (size_t)n_whole * sizeof whole[0]) != 0) {
            print_message("%s, cut at %zu of %zu: ", pre, at, n_bytes);
            for (size_t i = 0; i < n_bytes; i++) {
                print_message(text[i] >= ' ' && text[i] <= '~' ? "%c" : "\\x%02x",
                              (unsigned char)text[i]);
            }
            print_message("\n");
            tokens_print("whole", whole, n_whole);
            tokens_print("parts", parts, n_left + n_right);
            fail();
        }
        n_cuts++;
    }
    return n_cuts;
}

static void test_cuts(void **state)
{
    const uint64_t seed = test_rng(1).state;

    (void)state;
    for (size_t i = 0; vocab_pre_name(i) != NULL; i++) {
        const vocab_gen_opts opts = {
            .kind = VOCAB_GEN_BPE, .pre = vocab_pre_name(i), .n_pieces = 400, .seed = seed + i
        };
        quire_rng rng = { seed + i };
        char text[TEXT_BYTES_MAX + 16];
        quire_bpe_cut cut;
        quire_model model;
        uint32_t n_cuts = 0;

        vocab_generate(&model, &opts);
        quire_bpe_cut_init(&cut, opts.pre);
        for (uint32_t k = 0; k < N_TEXTS / 3; k++) {
            const size_t n_bytes = text_make(&rng, &model, text);

            n_cuts += cuts_check(&model, opts.pre, text, n_bytes);
        }
        assert_true((n_cuts > 0) == cut.has_newline);
        vocab_close(&model);
    }
}

/* ---- texts for which libllama takes hours ---- */

static char *run_make(const char *unit, size_t n_bytes, size_t *n)
{
    const size_t n_unit = strlen(unit);
    char *text = malloc(n_bytes + n_unit);

    assert_non_null(text);
    for (*n = 0; *n < n_bytes; *n += n_unit) {
        memcpy(text + *n, unit, n_unit);
    }
    return text;
}

/* A run of `unit` has the tokens of one, over and over; those of text around it aside. */
static void long_run_check(const quire_model *model, const char *unit)
{
    const quire_tokenize_opts opts = { .parse_special = true };
    int32_t some[128];
    int32_t *tokens;
    size_t n_tokens, n_bytes;
    char *text = run_make(unit, 16 * strlen(unit), &n_bytes);
    const int64_t n_some = quire_model_tokenize(model, text, n_bytes, false, true, some, 128);
    const size_t n_one = (size_t)n_some / 16;
    const size_t n_before = (size_t)n_some % 16; /* a blank that was added */

    assert_in_range(n_some, 16, 128);
    free(text);
    text = run_make(unit, LONG_BYTES, &n_bytes);
    assert_int_equal(
        quire_model_tokenize_all(model, text, n_bytes, &opts, &tokens, &n_tokens, NULL), QUIRE_OK);
    assert_int_equal(n_tokens, n_before + n_one * (n_bytes / strlen(unit)));
    for (size_t i = 0; i < n_tokens; i++) {
        const size_t like = i < n_before ? i : n_before + (i - n_before) % n_one;

        assert_int_equal(tokens[i], some[like]);
    }
    free(tokens);
    free(text);
}

static void test_long_specials(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < VOCAB_GEN_KINDS; kind++) {
        const vocab_gen_opts opts = { .kind = (vocab_gen_kind)kind,
                                      .pre = "qwen2",
                                      .n_pieces = 50 };
        quire_model model;

        vocab_generate(&model, &opts);
        long_run_check(&model, "<s>");
        long_run_check(&model, "<s></s>");
        vocab_close(&model);
    }
}

/* Characters that are no tokens become their bytes, one token each. */
static void test_long_bytes(void **state)
{
    const vocab_gen_opts opts = { .kind = VOCAB_GEN_SPM, .n_pieces = 50 };
    quire_model model;

    (void)state;
    vocab_generate(&model, &opts);
    long_run_check(&model, "\n");
    long_run_check(&model, "\xf0\x9f\x98\x80");
    long_run_check(&model, "\xd9\xa3");
    vocab_close(&model);
}

/* ---- bounds ---- */

static int bounded(const quire_model *model, const char *unit, size_t n_bytes,
                   const quire_tokenize_opts *opts, quire_error *err)
{
    size_t n, n_tokens;
    char *text = run_make(unit, n_bytes, &n);
    int32_t *tokens = NULL;
    const int rc = quire_model_tokenize_all(model, text, n, opts, &tokens, &n_tokens, err);

    assert_true((rc == QUIRE_OK) == (tokens != NULL));
    assert_int_equal(err->status, rc);
    free(tokens);
    free(text);
    return rc;
}

static void model_of(quire_model *model, vocab_gen_kind kind, const char *pre)
{
    const vocab_gen_opts opts = { .kind = kind, .pre = pre, .n_pieces = 50 };

    vocab_generate(model, &opts);
}

static void test_tokens_max(void **state)
{
    static const char *const run[] = { "<s>", "a", "<s>a", "ab ", "\n" };

    (void)state;
    for (unsigned kind = VOCAB_GEN_SPM; kind <= VOCAB_GEN_BPE; kind++) {
        quire_model model;

        model_of(&model, (vocab_gen_kind)kind, "qwen2");
        for (size_t i = 0; i < sizeof run / sizeof run[0]; i++) {
            quire_tokenize_opts opts = { .add_special = true, .parse_special = true };
            quire_error err;
            char text[30];
            int64_t n;
            size_t n_bytes = 0;

            while (n_bytes + strlen(run[i]) <= sizeof text) {
                memcpy(text + n_bytes, run[i], strlen(run[i]));
                n_bytes += strlen(run[i]);
            }
            n = quire_model_tokenize(&model, text, n_bytes, true, true, NULL, 0);
            opts.tokens_max = (size_t)n;
            assert_int_equal(bounded(&model, run[i], n_bytes, &opts, &err), QUIRE_OK);
            opts.tokens_max--;
            assert_int_equal(bounded(&model, run[i], n_bytes, &opts, &err), QUIRE_RANGE);
            assert_non_null(strstr(err.message, "tokens"));
        }
        vocab_close(&model);
    }
}

/* Tokenization asks often whether to go on, for long texts of any kind, and ends when told to. */
static void test_cancel(void **state)
{
    static const struct {
        vocab_gen_kind kind;
        const char *unit;
    } cases[] = { { VOCAB_GEN_SPM, "a" },   { VOCAB_GEN_SPM, "word " }, { VOCAB_GEN_SPM, "<s>" },
                  { VOCAB_GEN_BPE, "<s>" }, { VOCAB_GEN_BPE, "word " }, { VOCAB_GEN_BPE, "x,\ny" },
                  { VOCAB_GEN_WPM, "<s>" }, { VOCAB_GEN_UGM, "<s>a" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        canceling c = { .n_before = UINT32_MAX };
        quire_tokenize_opts opts = { .parse_special = true, .is_canceled = is_canceled, .ctx = &c };
        quire_error err;
        quire_model model;

        model_of(&model, cases[i].kind, "qwen2");
        assert_int_equal(bounded(&model, cases[i].unit, CANCEL_BYTES, &opts, &err), QUIRE_OK);
        assert_in_range(c.n_asked, CANCEL_BYTES >> 16, UINT32_MAX);
        c = (canceling){ .n_before = c.n_asked / 2 };
        assert_int_equal(bounded(&model, cases[i].unit, CANCEL_BYTES, &opts, &err), QUIRE_CANCELED);
        assert_int_equal(c.n_asked, c.n_before + 1);
        /* A second passes each time. */
        c = (canceling){ .n_before = UINT32_MAX, .seconds = 1 };
        opts.time_max_s = 5;
        assert_int_equal(bounded(&model, cases[i].unit, CANCEL_BYTES, &opts, &err), QUIRE_LIMIT);
        assert_non_null(strstr(err.message, "in 5 s"));
        vocab_close(&model);
    }
}

static void test_long_pieces(void **state)
{
    const quire_tokenize_opts opts = { .time_max_s = 600 };
    const quire_tokenize_opts unbounded = { 0 };
    quire_error err;
    quire_model model;

    (void)state;
    model_of(&model, VOCAB_GEN_BPE, "qwen2");
    assert_int_equal(bounded(&model, "a", QUIRE_TOKENIZE_PIECE_BYTES_MAX, &opts, &err), QUIRE_OK);
    assert_int_equal(bounded(&model, "a", QUIRE_TOKENIZE_PIECE_BYTES_MAX + 1, &opts, &err),
                     QUIRE_LIMIT);
    assert_non_null(strstr(err.message, "without a blank or newline"));
    assert_int_equal(bounded(&model, "a", QUIRE_TOKENIZE_PIECE_BYTES_MAX + 1, &unbounded, &err),
                     QUIRE_OK);
    vocab_close(&model);
    model_of(&model, VOCAB_GEN_SPM, "");
    assert_int_equal(bounded(&model, "a", QUIRE_TOKENIZE_PIECE_BYTES_MAX + 1, &opts, &err),
                     QUIRE_OK);
    vocab_close(&model);
}

/* Runs that a pre-tokenizer looks at over and over, if they end as `end` says. */
static void test_slow_runs(void **state)
{
    static const struct {
        const char *pre, *unit, *end, *harmless_end;
        size_t n_max;
    } cases[] = { { "deepseek-llm", " ", "1", "", 8192 },
                  { "deepseek-llm", " ", "\xe4\xb8\xad", "a", 8192 },
                  { "deepseek-llm", "\xe3\x80\x80", "1", "\n", 8192 },
                  { "superbpe", "1", "", NULL, 8192 },
                  { "jais-2", " ", "", "\n", 185363 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const quire_tokenize_opts opts = { .time_max_s = 600 };
        quire_error err;
        quire_model model;
        quire_bpe_cut cut;
        char *text;
        size_t n;

        model_of(&model, VOCAB_GEN_BPE, cases[i].pre);
        quire_bpe_cut_init(&cut, cases[i].pre);
        for (size_t k = 0; k < 3; k++) {
            const char *end = k < 2 ? cases[i].end : cases[i].harmless_end;
            const size_t count = cases[i].n_max + (k > 0);
            const bool is_slow = k == 1;
            int32_t *tokens;
            size_t n_tokens;
            int rc;

            if (end == NULL) {
                continue;
            }
            text = run_make(cases[i].unit, count * strlen(cases[i].unit) + strlen(end), &n);
            memcpy(text + count * strlen(cases[i].unit), end, strlen(end));
            n = count * strlen(cases[i].unit) + strlen(end);
            assert_true((quire_bpe_cut_squares(&cut, text, n) > QUIRE_TOKENIZE_SQUARES_MAX) ==
                        is_slow);
            if (k > 0) {
                rc = quire_model_tokenize_all(&model, text, n, &opts, &tokens, &n_tokens, &err);
                assert_int_equal(rc, is_slow ? QUIRE_LIMIT : QUIRE_OK);
                assert_true((strstr(err.message, "squared") != NULL) == is_slow);
                free(tokens);
            }
            free(text);
        }
        vocab_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),     cmocka_unit_test(test_overlapping_specials),
        cmocka_unit_test(test_many_specials), cmocka_unit_test(test_real),
        cmocka_unit_test(test_cuts),          cmocka_unit_test(test_long_specials),
        cmocka_unit_test(test_long_bytes),    cmocka_unit_test(test_tokens_max),
        cmocka_unit_test(test_cancel),        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_slow_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
