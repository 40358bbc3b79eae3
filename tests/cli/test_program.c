/* test_program.c - the program as a whole: help, exit statuses, messages, bad files, lost output,
 * quire info, states of texts.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_gen.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void help_and_version(void **state)
{
    static const char *const commands[] = {
        "run",   "chat",      "perplexity", "bench", "info",
        "cache", "calibrate", "serve",      "sim",   "analyze"
    };
    program_result all = program_expect(0, PROGRAM("--help"));
    program_result same = program_expect(0, PROGRAM("help"));
    program_result version = program_expect(0, PROGRAM("--version"));

    (void)state;
    assert_string_equal(all.out, same.out);
    assert_string_equal(all.err, "");
    assert_says(all.out, "130 interrupted by Ctrl-C, after the figures so far");
    assert_says(all.out, "Ctrl-C has quire serve finish the running requests and end with 0");
    assert_says(all.out, "at a terminal it ends an answer or a line, and the chat goes on");
    assert_says(version.out, "quire ");
    assert_says(version.out, "ggml ");
    for (size_t i = 0; i < COUNT(commands); i++) {
        program_result one = program_expect(0, PROGRAM(commands[i], "--help"));
        program_result other = program_expect(0, PROGRAM("help", commands[i]));

        assert_says(all.out, commands[i]);
        assert_says(one.out, "usage: quire ");
        assert_says(one.out, "--json");
        assert_string_equal(one.out, other.out);
        assert_string_equal(one.err, "");
        program_free(&one);
        program_free(&other);
    }
    program_free(&all);
    program_free(&same);
    program_free(&version);
}

static void version_as_json(void **state)
{
    json_t *document = program_json(PROGRAM("--version", "--json"));

    (void)state;
    assert_true(json_is_string(json_object_get(document, "version")));
    assert_true(json_is_string(json_object_get(document, "ggml")));
    assert_true(json_is_string(json_object_get(document, "isa")));
    json_decref(document);
}

/* Each wrong command line gives one line on stderr, nothing on stdout, and exit status 2. */
static void wrong_usage(void **state)
{
    static const struct {
        program_args args;
        const char *says;
    } cases[] = {
        { { { "rnu" } }, "unknown command 'rnu' (did you mean run?)" },
        { { { "help", "prplexity" } }, "did you mean perplexity?" },
        { { { "frobnicate" } }, "quire --help" },
        { { { "--version", "--jsno" } }, "unexpected '--jsno'" },
        { { { "run", "--kvv", "q8" } }, "unknown option --kvv (did you mean --kv?)" },
        { { { "run" } }, "no prompt given: -p TEXT or -f FILE" }, /* it has a model of its own */
        { { { "run", "-m", "x" } }, "no prompt given: -p TEXT or -f FILE" },
        { { { "run", "-m", "x", "-p", "a", "-f", "b" } }, "use one" },
        { { { "run", "-m", "x", "-p", "a", "b" } }, "unexpected 'b'" },
        { { { "run", "-m", "x", "-p", "a", "--temp", "warm" } }, "0 to 100" },
        { { { "run", "-m", "x", "-p", "a", "-t", "-1" } },
          "1 to 512; without it: all CPUs available\n" },
        { { { "run", "-m", "x", "-p", "a", "-c", "0" } },
          "1 to 1048576; without it: the context of the training" },
        { { { "run", "-m", "x", "-p", "a", "--kv", "f17" } }, "f32, f16, bf16, q8" },
        { { { "run", "-m", "x", "-p", "a", "--page-tokens", "65" } }, "a multiple of 64" },
        { { { "run", "-m", "x", "-p", "a", "--kv-budget", "lots" } }, "4GiB" },
        { { { "run", "-m", "x", "-p", "a", "--kv-budget", "0" } }, "out of range" },
        { { { "chat", "--sytem", "x" } }, "did you mean --system?" },
        { { { "perplexity", "-m", "x" } }, "no text given" },
        { { { "perplexity", "-m", "x", "-f", "y", "-c", "2" } }, "at least 4" },
        { { { "perplexity", "-m", "x", "-f", "y", "--kld-against", "f32", "--logits-base", "z" } },
          "use one" },
        { { { "perplexity", "-m", "x", "-f", "y", "--kld", "--logits-base", "z" } }, "use one" },
        { { { "perplexity", "-m", "x", "-f", "y", "--kld", "--kld-against", "f32" } }, "use one" },
        { { { "perplexity", "-m", "x", "-f", "y", "--save-logits", "z", "--kv-history", "z" } },
          "name two files" },
        { { { "bench", "-m", "x", "-p", "0", "-n", "0" } }, "nothing to measure" },
        { { { "bench", "-m", "x", "-d", "1M", "-p", "1M" } }, "over 1048576" },
        { { { "bench", "-m", "x", "--fill", "slow" } }, "fast, compute" },
        { { { "bench", "-m", "x", "-r", "101" } }, "1 to 100" },
        { { { "info" } }, "-m FILE is missing" },
        { { { "info", "x", "--memory", "16 GB" } }, "--memory '16 GB'" },
        { { { "info", "x", "y" } }, "'y' (quire info takes one FILE; a name with blanks needs" },
        { { { "info", "x", "-c4096" } }, "did you mean -c 4096?" },
        { { { "perplexity", "x", "y" } }, "unexpected 'y' (-f FILE names the text)" },
        { { { "devices", "x" } }, "unexpected 'x' ('quire devices --help' lists the options)" },
        { { { "devices", "--device", "cpu" } }, "--device is not an option of quire devices: " },
        { { { "sim", "x", "--memory", "much" } }, "--memory 'much' is invalid: it takes sizes" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        program_result result = program_expect(2, cases[i].args);

        assert_says(result.err, cases[i].says);
        assert_ptr_equal(strchr(result.err, '\n'), result.err + strlen(result.err) - 1);
        assert_memory_equal(result.err, "quire: ", 7);
        assert_string_equal(result.out, "");
        program_free(&result);
    }
}

static void no_arguments(void **state)
{
    program_result result = program_run((program_args){ { NULL } });

    (void)state;
    assert_int_equal(result.exit_status, 2);
    assert_says(result.err, "usage: quire COMMAND");
    assert_string_equal(result.out, "");
    program_free(&result);
}

/* All commands that read a model refuse a bad file with one line that names it. */
static void expect_refused(const char *path, const char *says)
{
    const program_args commands[] = {
        PROGRAM("info", path),        PROGRAM("run", "-m", path, "-p", "x"),
        PROGRAM("chat", "-m", path),  PROGRAM("perplexity", "-m", path, "-f", "/dev/null"),
        PROGRAM("bench", "-m", path), PROGRAM("calibrate", "-m", path, "-f", "/dev/null"),
    };

    for (size_t i = 0; i < COUNT(commands); i++) {
        program_result result = program_expect(1, commands[i]);

        assert_says(result.err, path);
        assert_says(result.err, says);
        assert_ptr_equal(strchr(result.err, '\n'), result.err + strlen(result.err) - 1);
        assert_string_equal(result.out, "");
        program_free(&result);
    }
}

static void bad_model_files(void **state)
{
    char *bytes = malloc(1 << 20);
    FILE *file = fopen(program_model(), "rb");
    size_t n_bytes;

    (void)state;
    assert_non_null(bytes);
    assert_non_null(file);
    n_bytes = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    assert_true(n_bytes > 10000);

    expect_refused("/nonexistent/model.gguf", "No such file");
    expect_refused("/", "");
    expect_refused(program_file("empty.gguf", "", 0), "");
    expect_refused(program_file("text.gguf", "# Not a model, but a text about one.\n", 37), "GGUF");
    expect_refused(program_file("half.gguf", bytes, n_bytes / 2), "");
    expect_refused(program_file("head.gguf", bytes, 100), "");
    free(bytes);
}

static void lost_output(void **state)
{
    const char *model = program_model();
    const program_args commands[] = {
        PROGRAM("--help"),
        PROGRAM("--version"),
        PROGRAM("run", "--help"),
        PROGRAM("info", model),
        PROGRAM("info", model, "--json"),
        PROGRAM("run", "-m", model, "-p", "a", "-n", "20", "--ignore-eos"),
        PROGRAM("run", "-m", model, "-p", "a", "-n", "20", "--json"),
        PROGRAM("bench", "-m", model, "-p", "8", "-n", "2", "-r", "1"),
    };

    (void)state;
    for (size_t i = 0; i < COUNT(commands); i++) {
        program_result unread = program_run_unread(commands[i]);

        assert_int_equal(unread.exit_status, 1);
        assert_says(unread.err, "cannot write to standard output: Broken pipe");
        program_free(&unread);
        if (access("/dev/full", W_OK) == 0) {
            program_result full = program_run_to("/dev/full", commands[i]);

            assert_int_equal(full.exit_status, 1);
            assert_says(full.err, "cannot write to standard output: No space left");
            program_free(&full);
        }
    }
}

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        fail_msg("no integer '%s'", key);
    }
    return json_integer_value(value);
}

static void info_counts_bytes(void **state)
{
    /* A token of the model: 2 layers x 1 kv head x (K + V) x 8 values; q8 adds 2 bytes a lane. */
    static const struct {
        const char *kv;
        json_int_t token_bytes;
    } formats[] = { { "f32", 128 }, { "f16", 64 }, { "bf16", 64 }, { "q8", 40 },
                    { "q6", 38 },   { "q5", 36 },  { "q4", 26 },   { "q3", 32 } };
    json_t *document =
        program_json(PROGRAM("info", program_model(), "-t", "2", "--memory", "64MiB", "--json"));
    json_t *kv = json_object_get(document, "kv");
    json_t *need = json_object_get(document, "need");
    json_int_t left = (64 << 20) - integer(need, "total_bytes") + integer(need, "kv_bytes");

    (void)state;
    assert_int_equal(integer(document, "n_layer"), 2);
    assert_int_equal(integer(document, "n_kv_head"), 1);
    assert_int_equal(integer(document, "d_k"), 8);
    assert_int_equal(integer(document, "n_vocab"), 268);
    assert_int_equal(integer(document, "n_ctx_train"), 512);
    assert_int_equal(integer(document, "memory_bytes"), 64 << 20);
    assert_int_equal(integer(need, "tokens"), 512);
    assert_int_equal(integer(need, "kv_bytes"), 512 * 64);
    assert_int_equal(integer(need, "total_bytes"),
                     integer(need, "weights_bytes") + integer(need, "kv_bytes") +
                         integer(need, "buffers_bytes") + integer(need, "program_bytes"));
    assert_true(json_is_true(json_object_get(need, "fits")));
    assert_int_equal(integer(need, "missing_bytes"), 0);
    assert_true(left > 0);
    assert_int_equal(json_array_size(kv), COUNT(formats));
    for (size_t i = 0; i < COUNT(formats); i++) {
        const json_t *row = json_array_get(kv, i);
        const json_t *contexts = json_object_get(row, "contexts");

        assert_string_equal(json_string_value(json_object_get(row, "kv")), formats[i].kv);
        assert_int_equal(integer(row, "bytes_per_token"), formats[i].token_bytes);
        assert_int_equal(integer(row, "train_context_bytes"), 512 * formats[i].token_bytes);
        /* Buffers grow a little with the context, so the longest context is slightly below the
         * quotient. */
        assert_true(integer(row, "longest_context_tokens") <= left / formats[i].token_bytes);
        assert_true(integer(row, "longest_context_tokens") > left / formats[i].token_bytes / 2);
        assert_int_equal(integer(json_array_get(contexts, 0), "tokens"), 512);
        for (size_t j = 0; j < json_array_size(contexts); j++) {
            const json_t *context = json_array_get(contexts, j);

            assert_int_equal(integer(context, "bytes"),
                             integer(context, "tokens") * formats[i].token_bytes);
        }
    }
    json_decref(document);
}

/* The longest context that info names fits, and one token more does not. The other commands refuse
 * such a context before loading. */
static void memory_limit_is_one(void **state)
{
    json_t *document =
        program_json(PROGRAM("info", program_model(), "-t", "2", "--memory", "64MiB", "--json"));
    json_int_t longest =
        integer(json_array_get(json_object_get(document, "kv"), 0), "longest_context_tokens");
    char fits[24];
    char more[24];
    program_result result;
    json_t *need;

    (void)state;
    (void)snprintf(fits, sizeof(fits), "%d", (int)longest);
    (void)snprintf(more, sizeof(more), "%d", (int)longest + 1);
    json_decref(document);
    document = program_json(PROGRAM("info", program_model(), "-t", "2", "--memory", "64MiB",
                                    "--json", "-c", fits, "--kv", "f32"));
    assert_true(json_is_true(json_object_get(json_object_get(document, "need"), "fits")));
    json_decref(document);
    document = program_json(PROGRAM("info", program_model(), "-t", "2", "--memory", "64MiB",
                                    "--json", "-c", more, "--kv", "f32"));
    need = json_object_get(document, "need");
    assert_true(json_is_false(json_object_get(need, "fits")));
    assert_true(integer(need, "missing_bytes") > 0);
    json_decref(document);

    result = program_expect(1, PROGRAM("run", "-m", program_model(), "-t", "2", "-p", "a",
                                       "--memory-limit", "64MiB", "-c", more, "--kv", "f32"));
    assert_says(result.err, "tokens of KV f32 need 67.1 MB (weights ");
    assert_says(result.err, "the limit is 67.1 MB");
    assert_says(result.err, "too much");
    assert_string_equal(result.out, "");
    program_free(&result);
    result = program_expect(1, PROGRAM("bench", "-m", program_model(), "--memory-limit", "1M"));
    assert_says(result.err, "the limit is 1.00 MB");
    assert_string_equal(result.out, "");
    program_free(&result);
}

/* Options of a run change the sum of info as they change that run's need. */
static void info_takes_a_runs_options(void **state)
{
    static const char *const options[][2] = { { "-t", "4" },
                                              { "-b", "64" },
                                              { "--page-tokens", "1024" } };
    json_int_t buffers[COUNT(options) + 1];
    json_int_t kv[COUNT(options) + 1];

    (void)state;
    for (size_t i = 0; i <= COUNT(options); i++) {
        json_t *document = program_json(PROGRAM("info", program_model(), "--json", "-t", "1",
                                                i == 0 ? NULL : options[i - 1][0],
                                                i == 0 ? NULL : options[i - 1][1]));
        const json_t *need = json_object_get(document, "need");

        buffers[i] = integer(need, "buffers_bytes");
        kv[i] = integer(need, "kv_bytes");
        json_decref(document);
    }
    assert_true(buffers[1] >= buffers[0] + 3 * (192 << 10)); /* scratch of three more threads */
    assert_true(buffers[2] < buffers[0]);
    assert_int_equal(kv[2], kv[0]);
    assert_int_equal(kv[3], 2 * kv[0]); /* 512 tokens, in one page */
}

/* One of the two stored layers has a window: beyond the window a longer context takes memory for
 * the other layer only. */
static void info_counts_windows(void **state)
{
    program_result text = program_expect(0, PROGRAM("info", program_model_windows()));
    json_t *document = program_json(PROGRAM("info", program_model_windows(), "--json"));
    const json_t *row = json_array_get(json_object_get(document, "kv"), 0);
    const json_t *contexts = json_object_get(row, "contexts");
    const json_int_t token_bytes = integer(row, "bytes_per_token");
    const size_t n = json_array_size(contexts);
    const json_t *last = json_array_get(contexts, n - 1);
    const json_t *before = json_array_get(contexts, n - 2);

    (void)state;
    assert_says(text.out, "1 of 4 layers see 64 tokens");
    assert_says(text.out, "beyond the windows");
    assert_int_equal(integer(last, "bytes") - integer(before, "bytes"),
                     token_bytes * (integer(last, "tokens") - integer(before, "tokens")));
    assert_in_range(integer(last, "bytes"), token_bytes * (integer(last, "tokens") + 64 + 512),
                    token_bytes * (integer(last, "tokens") + 64 + 512 + 128));
    json_decref(document);
    program_free(&text);
}

/* V that is a part of K takes nothing, and has no format of its own. */
static void latent_rows(void **state)
{
    json_t *document = program_json(PROGRAM("info", program_model_latent(), "--json"));
    program_result text = program_expect(0, PROGRAM("info", program_model_latent()));
    program_result pair = program_run(
        PROGRAM("run", "-m", program_model_latent(), "-p", "a", "-n", "1", "--kv", "q8:q4"));
    const json_t *f16 = json_array_get(json_object_get(document, "kv"), 1);

    (void)state;
    assert_int_equal(integer(f16, "bytes_per_token"), 3 * 160 * 2);
    assert_true(json_real_value(json_object_get(f16, "bits_per_value")) == 16.0);
    assert_says(text.out, "4 heads over one row of 160, V its first 128");
    assert_int_not_equal(pair.exit_status, 0);
    assert_says(pair.err, "V is a part of K and has its format; name one format");
    program_free(&pair);
    program_free(&text);
    json_decref(document);
}

/* Two of four layers store: a token takes the bytes of a token in a model of two layers. */
static void info_counts_stored_layers(void **state)
{
    json_t *plain = program_json(PROGRAM("info", program_model(), "--json"));
    json_t *shared = program_json(PROGRAM("info", program_model_shared(), "--json"));
    program_result text = program_expect(0, PROGRAM("info", program_model_shared()));

    (void)state;
    assert_int_equal(integer(shared, "n_layer"), 4);
    assert_int_equal(integer(shared, "n_stored_layers"), 2);
    assert_string_equal(json_string_value(json_object_get(shared, "kv_scheme")), "fusedkv-lite");
    assert_string_equal(json_string_value(json_object_get(plain, "kv_scheme")), "");
    assert_true(json_equal(json_object_get(json_object_get(plain, "need"), "kv_bytes"),
                           json_object_get(json_object_get(shared, "need"), "kv_bytes")));
    for (size_t i = 0; i < json_array_size(json_object_get(plain, "kv")); i++) {
        assert_int_equal(
            integer(json_array_get(json_object_get(shared, "kv"), i), "bytes_per_token"),
            integer(json_array_get(json_object_get(plain, "kv"), i), "bytes_per_token"));
    }
    assert_says(text.out, "4 layers (2 store KV: fusedkv-lite)");
    program_free(&text);
    json_decref(shared);
    json_decref(plain);
}

/* Pages of such a model are kept on disk and read again. Texts larger than memory run, but not
 * where each layer has a window. */
static void shared_kv_on_disk(void **state)
{
    const char *dir = program_path("shared-cache");
    json_t *first = program_json(PROGRAM("run", "-m", program_model_shared(), "-t", "1", "-p",
                                         "the cat and the dog", "-n", "4", "--temp", "0",
                                         "--cache-dir", dir, "--json"));
    json_t *again = program_json(PROGRAM("run", "-m", program_model_shared(), "-t", "1", "-p",
                                         "the cat and the dog", "-n", "4", "--temp", "0",
                                         "--cache-dir", dir, "--json"));
    program_result served =
        program_run(PROGRAM("serve", "-m", program_model_narrow(), "-t", "1", "--port", "0",
                            "--cache-dir", dir, "--kv-overflow", "tier"));

    (void)state;
    assert_int_equal(integer(first, "stored_tokens"), 0);
    assert_int_equal(integer(again, "stored_tokens"), integer(again, "prompt_tokens") - 1);
    assert_true(json_equal(json_object_get(first, "text"), json_object_get(again, "text")));
    assert_int_equal(served.exit_status, 1);
    assert_says(served.err, "no layer of this quire model reads the whole text");
    assert_says(served.err, "--kv-overflow refuse");
    program_free(&served);
    served = program_expect(
        0, PROGRAM("serve", "-m", program_model_narrow(), "--cache-dir", dir, "--check-config"));
    assert_says(served.out,
                "# no layer of this model reads the whole text, or one reads K and V of "
                "more than two layers, so requests larger than the KV budget are "
                "refused (kv_overflow)");
    program_free(&served);
    served = program_expect(
        0, PROGRAM("serve", "-m", program_model_shared(), "--cache-dir", dir, "--check-config"));
    assert_null(strstr(served.out, "are refused (kv_overflow)"));
    program_free(&served);
    json_decref(again);
    json_decref(first);
}

/* Where layers have windows, the same prompt and a text that goes on are found. */
static void windows_on_disk(void **state)
{
    const char *dir = program_path("windows-cache");
    char prompt[512];
    int n = snprintf(prompt, sizeof(prompt), "the cat and the dog");
    json_t *runs[3];

    (void)state;
    while (n < 300) {
        n += snprintf(prompt + n, sizeof(prompt) - (size_t)n, " and the bird in the tree");
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 2) {
            (void)snprintf(prompt + n, sizeof(prompt) - (size_t)n, " and more of it");
        }
        runs[i] = program_json(PROGRAM("run", "-m", program_model_windows(), "-t", "1", "-p",
                                       prompt, "-n", "40", "--temp", "0", "--ignore-eos",
                                       "--cache-dir", dir, "--json"));
    }
    assert_true(integer(runs[0], "prompt_tokens") > 130);
    assert_int_equal(integer(runs[0], "stored_tokens"), 0);
    assert_int_equal(integer(runs[1], "stored_tokens"), integer(runs[1], "prompt_tokens") - 1);
    assert_true(json_equal(json_object_get(runs[0], "text"), json_object_get(runs[1], "text")));
    assert_true(integer(runs[2], "stored_tokens") >= integer(runs[0], "prompt_tokens") - 64);
    for (uint32_t i = 0; i < 3; i++) {
        json_decref(runs[i]);
    }
}

/* The bytes of "1.05 MB" behind the pointer, which moves on; to three digits. */
static double bytes_behind(const char **at)
{
    static const char units[] = "kMG";
    const char *unit_at;
    char unit[8];
    double value;
    int n = 0;

    if (sscanf(*at, " %lf %7s%n", &value, unit, &n) != 2) {
        fail_msg("no bytes: '%.40s'", *at);
    }
    *at += n;
    unit_at = strchr(units, unit[0]);
    for (const char *u = units; unit_at != NULL && u <= unit_at; u++) {
        value *= 1000;
    }
    return value;
}

static void assert_near(double value, double expected)
{
    if (value < 0.99 * expected || value > 1.01 * expected) {
        fail_msg("%g, not %g", value, expected);
    }
}

/* The rows of texts that keep a share of their tokens are those of the document. */
static void info_of_a_share_as_text(void **state)
{
    program_result text = program_expect(
        0, PROGRAM("info", program_model(), "--retain", "keydiff:0.25", "--retain-chunk", "500"));
    json_t *document = program_json(PROGRAM("info", program_model(), "--retain", "keydiff:0.25",
                                            "--retain-chunk", "500", "--json"));
    const json_t *rows = json_object_get(json_object_get(document, "retained"), "kv");
    const char *at = strstr(text.out, "KV bytes with --retain keydiff:0.25");
    const json_t *row, *context;
    size_t i, k;

    (void)state;
    assert_says(at, ", every 512 tokens\n");
    at = strchr(at, '\n');
    assert_true(json_array_size(rows) > 4);
    json_array_foreach(rows, i, row)
    {
        const char *format = json_string_value(json_object_get(row, "kv"));
        const json_t *contexts = json_object_get(row, "contexts");

        assert_memory_equal(at, "\n  ", 3);
        assert_memory_equal(at + 3, format, strlen(format));
        at += 3 + strlen(format);
        json_array_foreach(contexts, k, context)
        {
            assert_near(bytes_behind(&at), (double)integer(context, "bytes"));
        }
        at = strstr(at, "\n    most on the way ");
        assert_non_null(at);
        at += strlen("\n    most on the way ");
        json_array_foreach(contexts, k, context)
        {
            assert_near(bytes_behind(&at), (double)integer(context, "most_bytes"));
        }
        at = strchr(at, '\n');
    }
    assert_says(at, "The kept tokens of the last place in whole pages");
    json_decref(document);
    program_free(&text);
}

/* A generated model of a shape. */
static const char *shape_write(const char *shape)
{
    const char *path = program_path(shape);
    quire_error err = QUIRE_ERROR_INIT;
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape(shape, &opts));
    if (gguf_gen_write(&opts, path, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return path;
}

/* Recurrent layers beside those with KV. */
static void info_tells_recurrent_layers(void **state)
{
    const char *model = shape_write("tiny-lfm2");
    program_result whole = program_expect(0, PROGRAM("info", model));
    program_result half = program_expect(0, PROGRAM("info", model, "--state-type", "f16"));
    const char *line = strstr(whole.out, "  recurrent   4 of 6 layers, a state of ");
    const char *end;
    double bytes, kept_bytes;

    (void)state;
    assert_non_null(line);
    end = strchr(line, '\n');
    line += strlen("  recurrent   4 of 6 layers, a state of ");
    bytes = bytes_behind(&line);
    assert_memory_equal(line, " beside the KV of a text\n", strlen(" beside the KV of a text\n"));
    assert_ptr_equal(line + strlen(" beside the KV of a text"), end);
    line = strstr(half.out, " beside the KV of a text, ");
    assert_non_null(line);
    line += strlen(" beside the KV of a text, ");
    kept_bytes = bytes_behind(&line);
    assert_near(kept_bytes, bytes / 2);
    assert_memory_equal(line, " where it is cached (f16)\n", 26);
    program_free(&half);
    program_free(&whole);
}

/* Layers whose heads differ in number and size, and windows. */
static void info_tells_layer_sizes(void **state)
{
    program_result text = program_expect(0, PROGRAM("info", shape_write("tiny-gemma4")));

    (void)state;
    assert_says(text.out, "4 heads, 2 kv heads, K 64 and V 64 wide");
    assert_says(text.out, "  layers      1 to 2 kv heads, K and V 32 to 64 wide\n");
    assert_says(text.out, "  windows     3 of 6 layers see 77 tokens\n");
    program_free(&text);
}

/* ---- states of texts ---- */

static void block_files_are_read_and_written_whole(void **state)
{
#define RETAINED                                                                                   \
    "run", "-m", program_model(), "-t", "1", "-n", "1", "--temp", "0", "-c", "512", "--retain",    \
        "snap:0.5,recent=16", "--prefill-chunk", "128", "-b", "64"
    const char *folder = program_data("");
    const char *saved = program_file("text.state", "before", 6);
    const char *prompt = program_text("block.txt", 400);
    struct rlimit before, limit;
    program_result result;
    char text[8];
    FILE *file;

    (void)state;
    result = program_expect(1, PROGRAM(RETAINED, "-f", prompt, "--resume-block-state", folder));
    assert_says(result.err, "cannot read ");
    assert_says(result.err, folder);
    program_free(&result);

    /* ulimit -f: the file stays as it was, without a part beside it. */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    result = program_run(PROGRAM(RETAINED, "-f", prompt, "--save-block-state", saved));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "cannot write ");
    assert_says(result.err, "text.state: File too large");
    program_free(&result);
    file = fopen(saved, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, "before");
    assert_int_not_equal(access(program_path("text.state.partial"), F_OK), 0);
#undef RETAINED
}

static void info_as_text(void **state)
{
    program_result result = program_expect(0, PROGRAM("info", program_model()));
    program_result small = program_expect(0, PROGRAM("info", program_model(), "--memory", "1k"));

    (void)state;
    assert_says(result.out, "2 layers");
    assert_says(result.out, "512 tokens in training");
    assert_says(result.out, "512*");
    assert_says(result.out, "q8");
    assert_says(result.out, "Memory for 512 tokens of KV f16");
    assert_says(result.out, "to spare");
    assert_says(small.out, "too much");
    assert_string_equal(result.err, "");
    assert_says(small.out, "weights do not fit");
    program_free(&result);
    program_free(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_and_version),
        cmocka_unit_test(version_as_json),
        cmocka_unit_test(wrong_usage),
        cmocka_unit_test(no_arguments),
        cmocka_unit_test(bad_model_files),
        cmocka_unit_test(lost_output),
        cmocka_unit_test(info_counts_bytes),
        cmocka_unit_test(memory_limit_is_one),
        cmocka_unit_test(info_takes_a_runs_options),
        cmocka_unit_test(info_counts_windows),
        cmocka_unit_test(windows_on_disk),
        cmocka_unit_test(info_counts_stored_layers),
        cmocka_unit_test(latent_rows),
        cmocka_unit_test(shared_kv_on_disk),
        cmocka_unit_test(info_as_text),
        cmocka_unit_test(info_of_a_share_as_text),
        cmocka_unit_test(info_tells_recurrent_layers),
        cmocka_unit_test(info_tells_layer_sizes),
        cmocka_unit_test(block_files_are_read_and_written_whole),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
