/* test_measures.c - quire perplexity and quire bench, end to end.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/text.h"
#include "model_fixture.h"
#include "program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        fail_msg("no integer '%s'", key);
    }
    return json_integer_value(value);
}

static double real(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value)) {
        fail_msg("no number '%s'", key);
    }
    return json_number_value(value);
}

/* ---- perplexity ---- */

static void perplexity_counts(void **state)
{
    const char *text = program_text("text.txt", 4000);
    json_t *all = program_json(
        PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "65", "--json"));
    json_t *some = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "65",
                                        "--chunks", "3", "--json", "-b", "7"));
    json_t *chunks = json_object_get(all, "chunks");
    json_int_t n_chunks = integer(all, "n_chunks");

    (void)state;
    assert_int_equal(n_chunks, integer(all, "n_text_tokens") / 65);
    assert_int_equal(integer(all, "n_tokens"), n_chunks * 65);
    assert_int_equal(integer(all, "n_scored"), n_chunks * (65 - 1 - 32));
    assert_int_equal(json_array_size(chunks), n_chunks);
    assert_true(fabs(json_number_value(json_array_get(chunks, (size_t)n_chunks - 1)) -
                     real(all, "ppl")) < 1e-9 * real(all, "ppl"));
    assert_true(fabs(exp(real(all, "nll")) - real(all, "ppl")) < 1e-6 * real(all, "ppl"));
    assert_true(real(all, "ppl_stderr") > 0);
    assert_null(json_object_get(all, "base"));

    /* Fewer chunks, smaller steps: the same running value (steps of another size may round the
     * linear maps differently). */
    assert_int_equal(integer(some, "n_chunks"), 3);
    assert_true(fabs(real(some, "ppl") / json_number_value(json_array_get(chunks, 2)) - 1) < 1e-4);
    assert_int_equal(integer(json_object_get(some, "kv"), "live_peak_bytes"), 2 * 64 * 64);
    json_decref(all);
    json_decref(some);
}

/* --score-from: the rows behind N, and files of log-probabilities with as many. */
static void perplexity_scores_from(void **state)
{
    const char *text = program_text("text.txt", 4000);
    const char *logits = program_path("from.logits");
    json_t *half = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                        "--chunks", "3", "--kv", "f32", "--json"));
    json_t *same =
        program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                             "--chunks", "3", "--kv", "f32", "--score-from", "32", "--json"));
    json_t *late = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                        "--chunks", "3", "--kv", "f32", "--score-from", "50",
                                        "--save-logits", logits, "--json"));
    json_t *again =
        program_json(PROGRAM("perplexity", "-m", program_model(), "-c", "64", "--kv", "f32",
                             "--score-from", "50", "--logits-base", logits, "--json"));
    program_result other = program_expect(
        1, PROGRAM("perplexity", "-m", program_model(), "-c", "64", "--logits-base", logits));
    program_result none = program_expect(1, PROGRAM("perplexity", "-m", program_model(), "-f", text,
                                                    "-c", "64", "--score-from", "63"));

    (void)state;
    assert_true(real(half, "ppl") == real(same, "ppl"));
    assert_int_equal(integer(late, "n_scored"), 3 * (64 - 1 - 50));
    assert_true(real(late, "ppl") != real(half, "ppl"));
    assert_true(real(json_object_get(again, "base"), "top1_agreement") == 1.0);
    assert_true(real(json_object_get(json_object_get(again, "base"), "kld"), "mean") < 1e-3);
    assert_says(other.err, "its header calls for");
    assert_says(none.err, "--score-from 63 leaves nothing to score of a context of 64");
    json_decref(half);
    json_decref(same);
    json_decref(late);
    json_decref(again);
    program_free(&other);
    program_free(&none);
}

/* --attend: the context reads all pages and scored tokens choose theirs, in steps of any size. */
static void perplexity_reads_a_share(void **state)
{
    static const char *const shares[] = { "top:1", "top:0.25" };
    const char *model = program_data("stories260K-f32.gguf");
    const char *text = program_data("fables.txt");

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        json_t *read = program_json(PROGRAM("perplexity", "-m", model, "-f", text, "-c", "512",
                                            "--chunks", "1", "--score-from", "448", "--attend",
                                            shares[i], "--kld", "--json"));
        const json_t *kld = json_object_get(json_object_get(read, "base"), "kld");
        double share = real(json_object_get(json_object_get(read, "kv"), "retained"), "read_share");

        assert_int_equal(integer(read, "n_scored"), 512 - 1 - 448);
        assert_true(i == 0 ? share == 1 : share < 0.6);
        assert_true(i == 0 ? fabs(real(kld, "mean")) < 1e-6 : real(kld, "mean") > 1e-4);
        json_decref(read);
    }
}

static void perplexity_against_itself(void **state)
{
    const char *text = program_text("text.txt", 4000);
    json_t *document = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                            "64", "--kv", "f16", "--kld-against", "f16", "--json"));
    json_t *base = json_object_get(document, "base");

    (void)state;
    assert_true(real(base, "ppl") == real(document, "ppl"));
    assert_true(real(base, "top1_agreement") == 1.0);
    assert_true(real(json_object_get(base, "nll_difference"), "mean") == 0.0);
    assert_true(fabs(real(json_object_get(base, "kld"), "max")) == 0.0);
    json_decref(document);
}

static void perplexity_against_f32(void **state)
{
    const char *text = program_text("text.txt", 4000);
    json_t *f32 = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                       "--kv", "f32", "--json"));
    json_t *q8 = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                      "--kv", "q8", "--kld-against", "f32", "--json"));
    json_t *base = json_object_get(q8, "base");
    json_t *difference = json_object_get(base, "nll_difference");
    json_t *kld = json_object_get(base, "kld");

    (void)state;
    /* The base has the perplexity of a separate run, and the difference is that of the means. */
    assert_true(fabs(real(base, "ppl") - real(f32, "ppl")) < 1e-9 * real(f32, "ppl"));
    assert_true(fabs(real(q8, "nll") - real(f32, "nll") - real(difference, "mean")) < 1e-9);
    assert_true(real(kld, "mean") > 0);
    assert_true(real(kld, "median") <= real(kld, "p99"));
    assert_true(real(kld, "p99") <= real(kld, "max"));
    assert_true(real(kld, "mean") < 0.05);
    assert_true(real(base, "top1_agreement") > 0.8);
    json_decref(f32);
    json_decref(q8);
}

/* --kld is the comparison with f16, in text with its intervals. */
static void perplexity_kld(void **state)
{
    const char *text = program_text("text.txt", 4000);
    json_t *named = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                         "64", "--kv", "q8", "--kld-against", "f16", "--json"));
    json_t *brief = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                         "64", "--kv", "q8", "--kld", "--json"));
    program_result result = program_expect(0, PROGRAM("perplexity", "-m", program_model(), "-f",
                                                      text, "-c", "64", "--kv", "q8", "--kld"));
    json_t *sealed = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                          "256", "--kv", "q4", "--kv-recent", "64", "--json"));
    const json_t *base = json_object_get(brief, "base");
    const json_t *interval = json_object_get(json_object_get(base, "kld"), "interval_95");
    double mean = real(json_object_get(base, "kld"), "mean");

    (void)state;
    assert_true(json_equal(base, json_object_get(named, "base")));
    assert_string_equal(json_string_value(json_object_get(base, "name")), "KV f16");
    assert_true(json_number_value(json_array_get(interval, 0)) < mean);
    assert_true(json_number_value(json_array_get(interval, 1)) > mean);
    assert_says(result.out, "against KV f16:");
    assert_says(result.out, "KL divergence");
    assert_says(result.out, "same top token");
    assert_says(result.out, "95 % interval");
    assert_null(strstr(result.err, "compared with"));
    assert_true(real(json_object_get(brief, "kv"), "hot_pair_share") == 0.0); /* q8 has one form */
    /* Queries 128..255 see 24,640 keys; those of the last tile read one tile sealed. */
    assert_true(fabs(real(json_object_get(sealed, "kv"), "hot_pair_share") -
                     (1 - 64 * 64 / 24640.0)) < 1e-12);
    json_decref(named);
    json_decref(brief);
    json_decref(sealed);
    program_free(&result);
    result = program_expect(
        0, PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64", "--kld"));
    assert_says(result.err,
                "the KV format is the one that it is compared with: --kv names another");
    program_free(&result);
}

/* A part of the memory need of 64 tokens, as computed by quire info. */
static json_int_t need_bytes(const char *kv, const char *part)
{
    json_t *document =
        program_json(PROGRAM("info", program_model(), "-c", "64", "--kv", kv, "--json"));
    const json_int_t bytes = integer(json_object_get(document, "need"), part);

    json_decref(document);
    return bytes;
}

/* The limit covers both runtimes, which share their weights. */
static void perplexity_kld_within_memory(void **state)
{
    const char *text = program_text("text.txt", 4000);
    const json_int_t both = need_bytes("q8", "total_bytes") + need_bytes("f32", "kv_bytes") +
                            need_bytes("f32", "buffers_bytes");
    char limit[24];
    program_result r;

    (void)state;
    (void)snprintf(limit, sizeof(limit), "%lld", (long long)both);
    r = program_expect(0, PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                  "--kv", "q8", "--kld-against", "f32", "--memory-limit", limit));
    program_free(&r);
    (void)snprintf(limit, sizeof(limit), "%lld", (long long)both - 1);
    r = program_expect(1, PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                  "--kv", "q8", "--kld-against", "f32", "--memory-limit", limit));
    assert_says(r.err, "beside KV q8, 64 tokens of KV f32 need ");
    program_free(&r);
    r = program_expect(0, PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64",
                                  "--kv", "f32", "--memory-limit", limit));
    program_free(&r);
}

static void perplexity_through_a_file(void **state)
{
    const char *model = program_model();
    const char *text = program_text("text.txt", 4000);
    const char *path = program_path("base.logits");
    json_t *saved = program_json(PROGRAM("perplexity", "-m", model, "-f", text, "-c", "64",
                                         "--chunks", "4", "--save-logits", path, "--json"));
    /* Without -f and -c both come from the file; with them they are checked against it. */
    json_t *same =
        program_json(PROGRAM("perplexity", "-m", model, "--logits-base", path, "--json"));
    json_t *checked = program_json(PROGRAM("perplexity", "-m", model, "-f", text, "-c", "64",
                                           "--chunks", "2", "--logits-base", path, "--json"));
    json_t *base = json_object_get(same, "base");

    (void)state;
    assert_int_equal(integer(same, "n_chunks"), 4);
    assert_int_equal(integer(checked, "n_chunks"), 2);
    assert_true(real(same, "ppl") == real(saved, "ppl"));
    /* 16-bit log-probabilities: off by at most 16 / 65535 / 2 each. */
    assert_true(fabs(real(base, "ppl") / real(same, "ppl") - 1) < 2e-4);
    assert_true(fabs(real(json_object_get(base, "kld"), "mean")) < 1e-4);
    assert_true(real(base, "top1_agreement") > 0.98);
    json_decref(saved);
    json_decref(same);
    json_decref(checked);
}

static void perplexity_refuses(void **state)
{
    const char *model = program_model();
    const char *text = program_text("text.txt", 4000);
    static const char words[] = "bound and bound and numbered, bound and bound and what it read: a "
                                "quire of pages holds what it read, and what it read it holds, and "
                                "bound and numbered it holds what a quire of pages read. It holds, "
                                "and what it holds it read.";
    const char *other = program_file("other.txt", words, sizeof(words) - 1);
    const char *path = program_path("refused.logits");
    program_result r;

    (void)state;
    r = program_expect(0, PROGRAM("perplexity", "-m", model, "-f", text, "-c", "64", "--chunks",
                                  "2", "--save-logits", path));
    assert_says(r.out, "perplexity ");
    program_free(&r);

    r = program_expect(1, PROGRAM("perplexity", "-m", model, "--logits-base", path, "-c", "32"));
    assert_says(r.err, "was made with -c 64, not -c 32");
    program_free(&r);

    r = program_expect(1, PROGRAM("perplexity", "-m", model, "-f", text, "-c", "5000"));
    assert_says(r.err, "needs at least 10000");
    program_free(&r);

    r = program_expect(1, PROGRAM("perplexity", "-m", model, "-f", "/none"));
    assert_says(r.err, "/none: No such file");
    program_free(&r);

    r = program_expect(1, PROGRAM("perplexity", "-m", model, "--logits-base", text));
    assert_says(r.err, "not a file of log-probabilities");
    program_free(&r);

    r = program_expect(
        1, PROGRAM("perplexity", "-m", model, "-f", text, "-c", "64", "--save-logits", "/none/x"));
    assert_says(r.err, "/none/x");
    program_free(&r);

    /* Another text than the base's, found by its tokens. */
    r = program_expect(1, PROGRAM("perplexity", "-m", model, "-f", other, "--logits-base", path));
    assert_says(r.err, "was made from another text");
    program_free(&r);
}

static void progress_is_for_terminals(void **state)
{
    const char *text = program_text("text.txt", 4000);
    program_args args = PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "64");
    program_result shown = program_run_on_terminal(args);
    program_result plain = program_expect(0, args);

    (void)state;
    assert_int_equal(shown.exit_status, 0);
    assert_says(shown.err, "tokenizing ");
    assert_says(shown.err, "chunk 1 of ");
    assert_null(strstr(shown.err, "perplexity 1.0000")); /* nothing is scored yet */
    assert_says(shown.err, "\r\033[Kquire: ");           /* erased before the lasting message */
    assert_string_equal(shown.out, plain.out);
    assert_null(strstr(plain.err, "chunk 1 of "));
    assert_null(strchr(plain.err, '\r'));
    program_free(&shown);
    program_free(&plain);
}

static void perplexity_is_llamas(void **state)
{
    const char *model = program_data("stories260K-f32.gguf");
    const char *path = program_data("fables.txt");
    char *text = calloc(1, 1 << 16);
    FILE *file = fopen(path, "rb");
    json_t *document = program_json(PROGRAM("perplexity", "-m", model, "-f", path, "-c", "512",
                                            "--chunks", "8", "--kv", "f32", "--json"));
    double expected;

    (void)state;
    assert_true(text != NULL && file != NULL);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    expected = fixture_peer_perplexity(model, text, 512, 8);
    assert_int_equal(integer(document, "n_scored"), 8 * 255);
    if (fabs(real(document, "ppl") / expected - 1) > 0.0005) {
        fail_msg("perplexity %.5f, libllama's %.5f", real(document, "ppl"), expected);
    }
    json_decref(document);
    free(text);
}

/* A real model whose layers share K and V: formats lose little of its quality. */
static void perplexity_of_shared_layers(void **state)
{
    static const char *const formats[] = { "f32", "q8", "q4" };
    const double losses_max[] = { 0, 0.01, 0.1 };
    double first = 0;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        json_t *document =
            program_json(PROGRAM("perplexity", "-m", program_data("quire-stories.gguf"), "-f",
                                 program_data("fables.txt"), "-c", "256", "--chunks", "4", "--kv",
                                 formats[i], "--kv-recent", "0", "--kv-sinks", "0", "--json"));
        double ppl = real(document, "ppl");

        first = i == 0 ? ppl : first;
        /* A model that guesses has 1024, the size of the vocabulary. */
        if (ppl > 500 || fabs(ppl / first - 1) > losses_max[i]) {
            fail_msg("%s: perplexity %.4f, f32 %.4f", formats[i], ppl, first);
        }
        json_decref(document);
    }
}

/* ---- bench ---- */

static const json_t *find_row(const json_t *rows, const char *test, const char *kv,
                              json_int_t depth)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);

        if (strcmp(json_string_value(json_object_get(row, "test")), test) == 0 &&
            strcmp(json_string_value(json_object_get(row, "kv")), kv) == 0 &&
            integer(row, "depth") == depth) {
            return row;
        }
    }
    fail_msg("no row %s %s %d", test, kv, (int)depth);
    return NULL;
}

static void bench_measures_each_depth(void **state)
{
    json_t *rows = program_json(PROGRAM("bench", "-m", program_model(), "-p", "32", "-n", "4", "-d",
                                        "0,100", "--kv", "f16,q8", "-r", "2", "--json"));
    static const struct {
        const char *kv;
        json_int_t token_bytes;
    } formats[] = { { "f16", 64 }, { "q8", 40 } };

    (void)state;
    assert_int_equal(json_array_size(rows), 8);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);

        assert_true(real(row, "tokens_per_second") > 0);
        assert_int_equal(json_array_size(json_object_get(row, "repeats")), 2);
        assert_true(real(row, "attention_share") >= 0 && real(row, "attention_share") <= 1);
        assert_true(integer(row, "threads") >= 1);
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = find_row(rows, "decode", formats[i].kv, 100);

        assert_int_equal(integer(row, "kv_computed_bytes"), 104 * formats[i].token_bytes);
        assert_int_equal(integer(row, "kv_bytes"), 2 * 64 * formats[i].token_bytes);
        assert_true(integer(row, "kv_extent_bytes") >= integer(row, "kv_bytes"));
        assert_true(real(row, "roofline_share") > 0);
        assert_true(real(row, "attention_roofline_share") > 0);
        assert_true(integer(row, "resident_peak_bytes") > 1 << 20);
        assert_true(json_is_null(
            json_object_get(find_row(rows, "prefill", formats[i].kv, 0), "roofline_share")));
    }
    json_decref(rows);
}

/* Sealed formats: a depth inside a page is filled again for each repeat; the output shows the
 * formats that auto chose.
 */
static void bench_of_sealed_formats(void **state)
{
    json_t *rows = program_json(PROGRAM("bench", "-m", program_model(), "-p", "200", "-n", "4",
                                        "-d", "100", "--kv", "auto:7.5,q6:q4", "--kv-recent", "0",
                                        "--kv-sinks", "0", "-r", "2", "--json"));
    const json_t *row = find_row(rows, "prefill", "auto:7.5", 100);
    program_result text = program_expect(
        0, PROGRAM("bench", "-m", program_model(), "-p", "0", "-n", "2", "--kv", "q8,auto:7.5"));

    (void)state;
    assert_int_equal(json_array_size(rows), 4);
    assert_true(real(row, "kv_bits_per_value") > 7 && real(row, "kv_bits_per_value") <= 7.5);
    assert_int_equal(integer(row, "kv_computed_bytes"),
                     (json_int_t)(300 * 4 * real(row, "kv_bits_per_value")));
    row = find_row(rows, "decode", "q6:q4", 100);
    assert_true(real(row, "tokens_per_second") > 0);
    assert_says(text.out, "KV auto 7.50 -> 7.");
    program_free(&text);
    json_decref(rows);
}

static void bench_compares_caches(void **state)
{
    static const struct {
        const char *cache;
        const char *fill;
        json_int_t kv_bytes;
    } cases[] = {
        { "paged", "compute", 2 * 64 * 64 },
        { "contiguous", "compute", 8 * 64 * 64 }, /* -c 512: all of it, from the start */
        { "none", "fast", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *rows = program_json(PROGRAM("bench", "-m", program_model(), "-p", "0", "-n", "4",
                                            "-d", "100", "-c", "512", "-r", "1", "--cache",
                                            cases[i].cache, "--fill", cases[i].fill, "--json"));

        assert_int_equal(json_array_size(rows), 1);
        assert_int_equal(integer(json_array_get(rows, 0), "kv_bytes"), cases[i].kv_bytes);
        json_decref(rows);
    }
}

/* Four sequences share 100 tokens: a whole page once, and of the partly filled one a copy each. */
static void bench_shares_a_prefix(void **state)
{
    json_t *rows =
        program_json(PROGRAM("bench", "-m", program_model(), "-n", "4", "-d", "0,30", "--sequences",
                             "4", "--shared-prefix", "100", "--kv", "f16,q8", "-r", "2", "--json"));
    json_t *apart = program_json(PROGRAM("bench", "-m", program_model(), "-n", "4", "--sequences",
                                         "4", "--shared-prefix", "100", "--kv", "q4", "-r", "1",
                                         "--no-cascade", "--json"));
    program_result refused;

    (void)state;
    assert_true(json_is_true(json_object_get(json_array_get(rows, 0), "cascade")));
    assert_true(json_is_false(json_object_get(json_array_get(apart, 0), "cascade")));
    json_decref(apart);
    assert_int_equal(json_array_size(rows), 4); /* no prefill */
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_int_t token_bytes = i < 2 ? 64 : 40;
        const json_int_t depth = i % 2 == 0 ? 0 : 30;

        assert_string_equal(json_string_value(json_object_get(row, "test")), "decode");
        assert_int_equal(integer(row, "sequences"), 4);
        assert_int_equal(integer(row, "shared_prefix"), 100);
        assert_int_equal(integer(row, "depth"), depth);
        assert_true(real(row, "tokens_per_second") > 0);
        assert_int_equal(integer(row, "kv_computed_bytes"), (100 + 4 * (depth + 4)) * token_bytes);
        assert_int_equal(integer(row, "kv_bytes"),
                         (1 + 4 * (depth == 0 ? 1 : 2)) * 64 * token_bytes);
    }
    json_decref(rows);
    refused = program_expect(
        2, PROGRAM("bench", "-m", program_model(), "--sequences", "2", "--cache", "none"));
    assert_says(refused.err, "need --cache paged");
    program_free(&refused);
    refused =
        program_expect(2, PROGRAM("bench", "-m", program_model(), "--sequences", "9", "-b", "8"));
    assert_says(refused.err, "larger than a step");
    program_free(&refused);
    refused =
        program_expect(2, PROGRAM("bench", "-m", program_model(), "--sequences", "2", "-n", "0"));
    assert_says(refused.err, "a decode test");
    program_free(&refused);
}

static void bench_as_text(void **state)
{
    program_result result = program_expect(
        0, PROGRAM("bench", "-m", program_model(), "-p", "8", "-n", "2", "-r", "1", "-d", "64"));
    program_result poor = program_expect(
        1, PROGRAM("bench", "-m", program_model(), "-p", "8", "-n", "2", "--kv-budget", "1k"));

    (void)state;
    assert_says(result.out, "prefill ");
    assert_says(result.out, "decode ");
    assert_says(result.out, "roofline");
    assert_string_equal(result.err, ""); /* no progress where no terminal is */
    assert_string_equal(poor.out, "");
    program_free(&result);
    program_free(&poor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perplexity_counts),
        cmocka_unit_test(perplexity_scores_from),
        cmocka_unit_test(perplexity_reads_a_share),
        cmocka_unit_test(perplexity_against_itself),
        cmocka_unit_test(perplexity_against_f32),
        cmocka_unit_test(perplexity_kld),
        cmocka_unit_test(perplexity_kld_within_memory),
        cmocka_unit_test(perplexity_through_a_file),
        cmocka_unit_test(perplexity_refuses),
        cmocka_unit_test(progress_is_for_terminals),
        cmocka_unit_test(perplexity_is_llamas),
        cmocka_unit_test(perplexity_of_shared_layers),
        cmocka_unit_test(bench_measures_each_depth),
        cmocka_unit_test(bench_of_sealed_formats),
        cmocka_unit_test(bench_compares_caches),
        cmocka_unit_test(bench_as_text),
        cmocka_unit_test(bench_shares_a_prefix),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
