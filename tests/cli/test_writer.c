/* test_writer.c - a writer keeps what a new prompt shares with the last one, as far as its pages
 * can still be written on.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/writer.h"

#include "cli/commands/commands.h"
#include "cli/commands/kv_disk.h"
#include "gguf_gen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_FIRST  400u
#define N_SHARED 150u
#define N_SECOND 250u
#define N_WRITE  20

typedef struct written {
    char text[4096];
    size_t n;
} written;

static bool collect(void *ctx, const char *text, size_t text_bytes)
{
    written *w = ctx;

    assert_true(w->n + text_bytes < sizeof(w->text));
    memcpy(w->text + w->n, text, text_bytes);
    w->n += text_bytes;
    return true;
}

/* window: tokens of --kv-recent and of --kv-sinks. */
static quire_writer *writer_on(quire_opened *session, const char *path, const char *kv,
                               const char *const window[2], quire_common_args *args)
{
    const char *const words[] = { "-m",          path,      "-p",         "x",       "--kv", kv,
                                  "--kv-recent", window[0], "--kv-sinks", window[1], "-t",   "1" };
    quire_sampling_args sampling = { .temperature = 0, .top_p = 1, .n_predict = N_WRITE };
    char kept[12][256];
    char *argv[12];
    quire_error err = QUIRE_ERROR_INIT;
    quire_writer *writer;

    for (size_t i = 0; i < 12; i++) {
        (void)snprintf(kept[i], sizeof(kept[i]), "%s", words[i]);
        argv[i] = kept[i];
    }
    quire_options_init(&quire_command_run, args);
    assert_int_equal(quire_options_parse(&quire_command_run, 12, argv, args, &err), QUIRE_OK);
    sampling.ignores_eos = true;
    assert_int_equal(quire_opened_open(session, args, &err), QUIRE_OK);
    assert_int_equal(quire_writer_create(&writer, session, &sampling, &err), QUIRE_OK);
    return writer;
}

/* Run a prompt; returns how much of it was kept from before. */
static uint32_t write_on(quire_writer *writer, const int32_t *tokens, uint32_t n, written *out)
{
    quire_writer_result result;
    quire_error err = QUIRE_ERROR_INIT;

    out->n = 0;
    quire_writer_sink_set(writer, collect, out);
    assert_int_equal(quire_writer_run(writer, tokens, n, &result, &err), QUIRE_OK);
    assert_int_equal(result.n_prompt, n);
    assert_int_equal(result.n_output, N_WRITE);
    return result.n_reused;
}

/* A stop text ends what is written, and is no part of it; without stop texts all is as before. */
static void stop_text_ends_it(void **state)
{
    static const char *const window[2] = { "0", "0" };
    const char *dir = getenv("TMPDIR");
    void *args = malloc(quire_command_run.args_bytes);
    quire_writer_result result;
    quire_error err = QUIRE_ERROR_INIT;
    quire_opened session;
    quire_writer *writer;
    gguf_gen_opts gen;
    written whole, cut;
    int32_t tokens[8];
    char stop[4] = "";
    const char *stops[] = { "none of this model's", stop };
    char path[200];

    (void)state;
    assert_non_null(args);
    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(path, sizeof(path), "%s/quire-test-stop-%ld.gguf", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    assert_int_equal(gguf_gen_write(&gen, path, NULL), QUIRE_OK);
    for (int32_t i = 0; i < 8; i++) {
        tokens[i] = 300 + i;
    }
    writer = writer_on(&session, path, "f16", window, args);
    (void)write_on(writer, tokens, 8, &whole);
    assert_true(whole.n >= 6);
    memcpy(stop, whole.text + whole.n / 2, 3); /* letters of two tokens at least */
    whole.text[whole.n] = '\0';
    assert_int_equal(quire_writer_stops_set(writer, stops, 2), QUIRE_OK);
    cut.n = 0;
    quire_writer_sink_set(writer, collect, &cut);
    assert_int_equal(quire_writer_run(writer, tokens, 8, &result, &err), QUIRE_OK);
    assert_int_equal(result.stop, QUIRE_STOP_END);
    assert_true(result.n_output < N_WRITE);
    assert_int_equal(cut.n, (size_t)(strstr(whole.text, stop) - whole.text));
    assert_memory_equal(cut.text, whole.text, cut.n);
    assert_int_equal(quire_writer_stops_set(writer, NULL, 0), QUIRE_OK);
    (void)write_on(writer, tokens, 8, &cut);
    assert_int_equal(cut.n, whole.n);
    quire_writer_destroy(writer);
    quire_opened_close(&session);
    (void)unlink(path);
    free(args);
}

/* 150 tokens are shared. With sealed formats those behind token 128 are in a page that cannot be
 * written on any more: they are computed again. The text is the same where nothing was kept hot;
 * else it may part, since tokens that were read hot are read sealed (test_runtime_sealed bounds by
 * how much). */
static void prompt_goes_back(void **state)
{
    static const struct {
        const char *kv;
        const char *window[2];
        uint32_t n_reused;
        bool is_same;
    } cases[] = {
        { "f16", { "0", "0" }, N_SHARED, true }, { "q8", { "128", "64" }, N_SHARED, true },
        { "q4", { "0", "0" }, 128, true },       { "q8:q3", { "0", "0" }, 128, true },
        { "q4", { "128", "64" }, 128, false },   { "q8:q3", { "128", "64" }, 128, false },
    };
    const char *dir = getenv("TMPDIR");
    void *args = malloc(quire_command_run.args_bytes);
    int32_t first[N_FIRST];
    int32_t second[N_SECOND];
    gguf_gen_opts gen;
    char path[200];

    (void)state;
    assert_non_null(args);
    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(path, sizeof(path), "%s/quire-test-writer-%ld.gguf", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    assert_int_equal(gguf_gen_write(&gen, path, NULL), QUIRE_OK);
    for (uint32_t i = 0; i < N_FIRST; i++) {
        first[i] = (int32_t)(3 + i * 7 % 200);
    }
    for (uint32_t i = 0; i < N_SECOND; i++) {
        second[i] = i < N_SHARED ? first[i] : (int32_t)(4 + i * 11 % 200);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        quire_opened session;
        quire_writer *writer = writer_on(&session, path, cases[i].kv, cases[i].window, args);
        written kept, fresh;

        assert_int_equal(write_on(writer, first, N_FIRST, &kept), 0);
        assert_int_equal(write_on(writer, second, N_SECOND, &kept), cases[i].n_reused);
        quire_writer_reset(writer);
        assert_int_equal(write_on(writer, second, N_SECOND, &fresh), 0);
        assert_true(kept.n > 0 && fresh.n > 0);
        if (cases[i].is_same) {
            assert_int_equal(kept.n, fresh.n);
            assert_memory_equal(kept.text, fresh.text, fresh.n);
        }
        quire_writer_destroy(writer);
        quire_opened_close(&session);
    }
    (void)unlink(path);
    free(args);
}

/* A model with recurrent layers goes on at the end of its text or begins again. */
static void recurrent_prompt_goes_on_or_begins_again(void **state)
{
    static const char *const window[2] = { "0", "0" };
    const char *dir = getenv("TMPDIR");
    quire_common_args *args = malloc(quire_command_run.args_bytes);
    int32_t tokens[N_FIRST];
    quire_error err = QUIRE_ERROR_INIT;
    quire_kv_disk *disk;
    quire_opened session;
    quire_writer *writer;
    gguf_gen_opts gen;
    written kept, fresh;
    uint32_t n_held;
    char path[200];

    (void)state;
    assert_non_null(args);
    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(gen.arch, sizeof(gen.arch), "lfm2");
    gen.vocab = GGUF_GEN_VOCAB_BPE;
    gen.attention_every = 2;
    gen.conv_taps = 3;
    (void)snprintf(path, sizeof(path), "%s/quire-test-writer-%ld.gguf", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    assert_int_equal(gguf_gen_write(&gen, path, NULL), QUIRE_OK);
    for (uint32_t i = 0; i < N_FIRST; i++) {
        tokens[i] = (int32_t)(3 + i * 7 % 200);
    }
    writer = writer_on(&session, path, "f16", window, args);
    assert_int_equal(write_on(writer, tokens, N_SHARED, &kept), 0);
    n_held = quire_writer_tokens(writer);
    assert_true(n_held >= N_SHARED);
    /* Other words behind the shared ones. */
    assert_int_equal(write_on(writer, tokens, N_SECOND, &kept), 0);
    quire_writer_reset(writer);
    assert_int_equal(write_on(writer, tokens, N_SECOND, &fresh), 0);
    assert_int_equal(kept.n, fresh.n);
    assert_memory_equal(kept.text, fresh.text, fresh.n);
    quire_writer_destroy(writer);
    args->cache_dir = "/nowhere";
    assert_int_equal(quire_kv_disk_open(&disk, args, &session, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "lfm2 has recurrent layers, whose states are not stored: "
                                        "leave out --cache-dir"));
    quire_opened_close(&session);
    (void)unlink(path);
    free(args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_text_ends_it),
        cmocka_unit_test(prompt_goes_back),
        cmocka_unit_test(recurrent_prompt_goes_on_or_begins_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
