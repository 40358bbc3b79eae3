/* test_writer.c - a writer keeps the tokens that a new prompt shares with the last one, as far as
 * its pages can still be written on.
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
                               const char *const window[2], int n_predict, quire_common_args *args)
{
    const char *const words[] = { "-m",          path,      "-p",         "x",       "--kv", kv,
                                  "--kv-recent", window[0], "--kv-sinks", window[1], "-t",   "1" };
    quire_sampling_args sampling = QUIRE_SAMPLING_ARGS_INIT;
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
    sampling.n_predict = n_predict;
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

/* A stop text ends the written text and is no part of it. Without stop texts the output is the
 * whole text. */
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
    writer = writer_on(&session, path, "f16", window, N_WRITE, args);
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
        quire_writer *writer =
            writer_on(&session, path, cases[i].kv, cases[i].window, N_WRITE, args);
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

/* A small model with recurrent layers, and a text for it. */
static void recurrent_make(char *path, size_t path_bytes, int32_t *tokens)
{
    const char *dir = getenv("TMPDIR");
    gguf_gen_opts gen;

    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(gen.arch, sizeof(gen.arch), "lfm2");
    gen.vocab = GGUF_GEN_VOCAB_BPE;
    gen.attention_every = 2;
    gen.conv_taps = 3;
    (void)snprintf(path, path_bytes, "%s/quire-test-writer-%ld.gguf", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    assert_int_equal(gguf_gen_write(&gen, path, NULL), QUIRE_OK);
    for (uint32_t i = 0; i < N_FIRST; i++) {
        tokens[i] = (int32_t)(3 + i * 7 % 200);
    }
}

static void assert_same(const written *a, const written *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->text, b->text, b->n);
}

/* A model with recurrent layers goes on at the end of its text or begins again. */
static void recurrent_prompt_goes_on_or_begins_again(void **state)
{
    static const char *const window[2] = { "0", "0" };
    quire_common_args *args = malloc(quire_command_run.args_bytes);
    int32_t tokens[N_FIRST];
    quire_opened session;
    quire_writer *writer;
    written kept, fresh;
    char path[200];

    (void)state;
    assert_non_null(args);
    recurrent_make(path, sizeof(path), tokens);
    writer = writer_on(&session, path, "f16", window, N_WRITE, args);
    assert_int_equal(write_on(writer, tokens, N_SHARED, &kept), 0);
    assert_true(quire_writer_tokens(writer) >= N_SHARED);
    /* Other words behind the shared ones. */
    assert_int_equal(write_on(writer, tokens, N_SECOND, &kept), 0);
    quire_writer_reset(writer);
    assert_int_equal(write_on(writer, tokens, N_SECOND, &fresh), 0);
    assert_same(&kept, &fresh);
    quire_writer_destroy(writer);
    quire_opened_close(&session);
    (void)unlink(path);
    free(args);
}

/* One prompt in a new program. dir: the directory of pages, NULL = none. */
typedef struct anew {
    const char *path;
    const char *kv;
    const char *dir;
    int n_predict;
} anew;

/* Returns how much of the prompt was found in the directory. */
static uint32_t write_anew(const anew *a, const int32_t *tokens, uint32_t n, written *out)
{
    static const char *const window[2] = { "0", "0" };
    quire_common_args *args = malloc(quire_command_run.args_bytes);
    quire_error err = QUIRE_ERROR_INIT;
    quire_kv_disk *disk = NULL;
    quire_writer_result result;
    quire_opened session;
    quire_writer *writer;

    assert_non_null(args);
    writer = writer_on(&session, a->path, a->kv, window, a->n_predict, args);
    args->cache_dir = a->dir;
    assert_int_equal(quire_kv_disk_open(&disk, args, &session, &err), QUIRE_OK);
    quire_writer_disk_set(writer, disk);
    out->n = 0;
    quire_writer_sink_set(writer, collect, out);
    assert_int_equal(quire_writer_run(writer, tokens, n, &result, &err), QUIRE_OK);
    assert_int_equal(result.n_reused, result.n_stored);
    quire_writer_destroy(writer);
    quire_kv_disk_close(disk);
    quire_opened_close(&session);
    free(args);
    return result.n_stored;
}

/* n_found tokens are found, and the text is that of a program without the directory. */
static void expect_anew(const anew *a, const int32_t *tokens, uint32_t n, uint32_t n_found)
{
    anew alone = *a;
    written fresh, kept;

    alone.dir = NULL;
    assert_int_equal(write_anew(&alone, tokens, n, &fresh), 0);
    assert_int_equal(write_anew(a, tokens, n, &kept), n_found);
    assert_same(&kept, &fresh);
}

/* The states of recurrent layers are stored at the last end of a page before the last token of a
 * prompt, and at the end of a text where its last page can be stored. */
static void recurrent_text_is_found_again(void **state)
{
    static const char *const kv[] = { "f16", "q4" };
    int32_t tokens[N_FIRST];
    char path[200], dir[220], command[240];

    (void)state;
    recurrent_make(path, sizeof(path), tokens);
    (void)snprintf(dir, sizeof(dir), "%s.dir", path);
    (void)snprintf(command, sizeof(command), "rm -r %s", dir);
    for (size_t i = 0; i < 2; i++) {
        anew a = { .path = path, .kv = kv[i], .dir = dir, .n_predict = N_WRITE };

        expect_anew(&a, tokens, N_FIRST, 0);
        expect_anew(&a, tokens, N_FIRST, 384);
        /* A beginning of this text is found at the places of states alone. */
        expect_anew(&a, tokens, N_SHARED, 0);
        expect_anew(&a, tokens, N_SHARED, 128);
        expect_anew(&a, tokens, N_SECOND, 128);
        tokens[0]++;     /* another text */
        a.n_predict = 0; /* it ends with the prompt */
        expect_anew(&a, tokens, N_SECOND, 0);
        a.n_predict = N_WRITE;
        expect_anew(&a, tokens, N_FIRST, i == 0 ? N_SECOND : 192);
        assert_int_equal(system(command), 0);
    }
    (void)unlink(path);
}

#define N_CTX   512u
#define N_LONG  700u
#define N_KEPT  64u
#define N_OTHER 40u

/* A text beyond the context goes on from the tokens of an earlier text, unless the two texts differ
 * in a part that was dropped since. Either way the answer is that of a writer that begins with the
 * text. */
static void text_goes_on_beyond_its_context(void **state)
{
    static const char *const window[2] = { "0", "0" };
    static const quire_context_overflow overflows[] = { QUIRE_CONTEXT_SHIFT, QUIRE_CONTEXT_SINKS,
                                                        QUIRE_CONTEXT_CONDENSE };
    const char *dir = getenv("TMPDIR");
    quire_error err = QUIRE_ERROR_INIT;
    int32_t tokens[N_LONG + N_OTHER];
    gguf_gen_opts gen;
    char path[200];

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(path, sizeof(path), "%s/quire-test-long-%ld.gguf", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    assert_int_equal(gguf_gen_write(&gen, path, NULL), QUIRE_OK);
    for (size_t i = 0; i < sizeof overflows / sizeof overflows[0]; i++) {
        quire_common_args *args = malloc(quire_command_run.args_bytes);
        written kept, fresh;
        quire_opened session;
        quire_writer *writer;
        uint32_t n_reused;

        assert_non_null(args);
        writer = writer_on(&session, path, "f16", window, N_WRITE, args);
        assert_int_equal(session.n_ctx, N_CTX);
        assert_int_equal(quire_writer_overflow_set(writer, overflows[i], N_KEPT, &err), QUIRE_OK);
        for (uint32_t t = 0; t < N_LONG + N_OTHER; t++) {
            tokens[t] = (int32_t)(260 + t * t * 7 % 53);
        }
        assert_int_equal(write_on(writer, tokens, N_LONG, &kept), 0);
        assert_true(quire_writer_tokens(writer) <= N_CTX);
        assert_true(quire_writer_tokens(writer) < N_LONG);
        /* Behind the prompt: half of the context has left at token 512, and is full at 736 again;
         * sinks also leave at token 704, while it writes. */
        n_reused = write_on(writer, tokens, N_LONG + N_OTHER, &kept);
        assert_true(n_reused >= N_KEPT);
        assert_int_equal(n_reused >= N_LONG, i != 1);
        quire_writer_reset(writer);
        assert_int_equal(quire_writer_tokens(writer), 0);
        assert_int_equal(write_on(writer, tokens, N_LONG + N_OTHER, &fresh), 0);
        assert_same(&kept, &fresh);
        /* Within the context of then. */
        tokens[300] ^= 1;
        assert_int_equal(write_on(writer, tokens, N_LONG, &kept), N_KEPT);
        quire_writer_reset(writer);
        assert_int_equal(write_on(writer, tokens, N_LONG, &fresh), 0);
        assert_same(&kept, &fresh);
        quire_writer_destroy(writer);
        quire_opened_close(&session);
        free(args);
    }
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_text_ends_it),
        cmocka_unit_test(prompt_goes_back),
        cmocka_unit_test(text_goes_on_beyond_its_context),
        cmocka_unit_test(recurrent_prompt_goes_on_or_begins_again),
        cmocka_unit_test(recurrent_text_is_found_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
