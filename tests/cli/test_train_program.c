/* test_train_program.c - quire train end to end: a configuration, SIGTERM and going on with the
 * same bits, the written model in quire perplexity, a run that diverges, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cli/commands/talk.h"
#include "program.h"
#include "train_calls.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A configuration of a small model, with the scheme, the steps and the files of a run. */
static const char *write_config(const char *run, const char *scheme, unsigned n_steps)
{
    char text[1024], name[64];
    int n =
        snprintf(text, sizeof(text),
                 "data: %s\nscheme: %s\ncheckpoint: %s.checkpoint\noutput: %s.gguf\n"
                 "n_layer: 4\nd_model: 32\nn_head: 2\nd_head: 16\nd_ff: 48\nctx: 64\nrows: 4\n"
                 "steps: %u\nwarmup: 5\nrate: 0.005\nrate_end: 0.005\ndoc_bytes: 500\n"
                 "log_every: 5\nsave_every: 1000\nthreads: 2\n",
                 program_data("fables.txt"), scheme, program_path(run), program_path(run), n_steps);

    (void)snprintf(name, sizeof(name), "%s.yaml", run);
    return program_file(name, text, (size_t)n);
}

/* The perplexity of the written model is near the one that follows from the run's last loss. */
static void check_served(const char *run, double loss)
{
    program_result result = program_expect(0, PROGRAM("perplexity", "-m", train_file(run, ".gguf"),
                                                      "-f", program_data("fables.txt"), "-c", "64",
                                                      "--chunks", "100", "--kv", "f32"));
    const char *said = strstr(result.out, "perplexity ");

    assert_non_null(said);
    assert_true(fabs(log(strtod(said + strlen("perplexity "), NULL)) - loss) < 0.25);
    program_free(&result);
}

static void test_trains(void **state)
{
    static const char *const schemes[] = { "gqa", "fusedkv", "fusedkv-lite", "yoco++\nwindow: 8" };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const char *config = write_config("plain", schemes[i], 60);
        program_result result =
            program_expect(0, PROGRAM("train", config, "--n-kv-head", i == 0 ? "1" : "2"));
        const char *said = strstr(result.out, "validation loss ");

        assert_says(result.out, "step 60 of 60   loss ");
        assert_says(result.out, " tokens/s   ");
        assert_says(result.out, " % of sgemm   ");
        assert_says(result.out, " s left\n");
        assert_non_null(said);
        assert_true(strtod(said + strlen("validation loss "), NULL) < 3.5); /* log 260 = 5.56 */
        check_served("plain", strtod(said + strlen("validation loss "), NULL));
        program_free(&result);
        train_remove("plain");
    }
}

/* SIGTERM after some steps; the same command goes on, and the model has the bits of one run. */
static void test_terminated(void **state)
{
    const char *config = write_config("whole", "fusedkv", 300);
    program_result result = program_expect(0, PROGRAM("train", config));
    program_running running;
    size_t n_whole, n_parts;
    char *whole, *parts;

    (void)state;
    program_free(&result);
    config = write_config("parts", "fusedkv", 300);
    running = program_start(PROGRAM("train", config, "--log-every", "1"));
    free(program_line_with(running.out, "step 3 of"));
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);
    assert_int_equal(access(train_file("parts", ".gguf"), F_OK), -1);
    result = program_expect(0, PROGRAM("train", config, "--threads", "1"));
    assert_says(result.err, "going on from step ");
    program_free(&result);
    whole = train_read(train_file("whole", ".gguf"), &n_whole);
    parts = train_read(train_file("parts", ".gguf"), &n_parts);
    assert_int_equal(n_whole, n_parts);
    assert_memory_equal(whole, parts, n_whole);
    free(whole);
    free(parts);
    train_remove("whole");
    train_remove("parts");
}

/* A text that goes away during a run: the checkpoint has all steps before, and with the text back
 * the same command goes on. The file is opened anew with each pass over it. */
static void test_text_is_gone(void **state)
{
    const char *config = write_config("gone", "fusedkv", 100000);
    const char *text = program_path("gone.txt"), *away = program_path("gone.away");
    program_args args = PROGRAM("train", config, "--data", text, "--log-every", "20", "--held", "0",
                                "--held-every", "1000000");
    program_running running;
    char command[1200];
    char *line;

    (void)state;
    (void)snprintf(command, sizeof(command), "head -c 3000 '%s' >'%s'", program_data("fables.txt"),
                   text);
    assert_int_equal(system(command), 0);
    running = program_start(args);
    free(program_line_with(running.out, "step 20 of"));
    assert_int_equal(rename(text, away), 0);
    line = program_line_with(running.err, "cannot read ");
    assert_says(line, "gone.checkpoint has the state after step ");
    free(line);
    assert_int_equal(program_end(&running), 1);
    assert_int_equal(rename(away, text), 0);
    running = program_start(args);
    free(program_line_with(running.err, "going on from step "));
    assert_int_equal(kill(running.pid, SIGINT), 0);
    assert_int_equal(program_end(&running), 130);
    assert_int_equal(unlink(text), 0);
    train_remove("gone");
}

/* Ctrl-C: exit status 130, after a checkpoint from which the same command goes on. All lines of the
 * whole run would fit into the pipe, so the program never waits for a reader. */
static void test_interrupted(void **state)
{
    const char *config = write_config("stopped", "fusedkv", 100000);
    const program_args args =
        PROGRAM("train", config, "--log-every", "200", "--held-every", "1000000");
    program_running running = program_start(args);
    char said[128];
    char *line;
    long step;

    (void)state;
    free(program_line_with(running.out, "step 200 of"));
    assert_int_equal(kill(running.pid, SIGINT), 0);
    line = program_line_with(running.err, "stopped at step ");
    assert_says(line, "the same command goes on from ");
    step = strtol(strstr(line, "step ") + strlen("step "), NULL, 10);
    assert_true(step >= 200 && step < 100000);
    free(line);
    assert_int_equal(program_end(&running), 130);
    assert_int_equal(access(train_file("stopped", ".gguf"), F_OK), -1);
    running = program_start(args);
    (void)snprintf(said, sizeof(said), "going on from step %ld of ", step);
    free(program_line_with(running.err, said));
    assert_int_equal(kill(running.pid, SIGINT), 0);
    assert_int_equal(program_end(&running), 130);
    train_remove("stopped");
}

/* A second process is refused while the first one runs; the lock ends with the process. */
static void test_locked(void **state)
{
    const char *config = write_config("locked", "fusedkv", 100000);
    const program_args args =
        PROGRAM("train", config, "--log-every", "200", "--held-every", "1000000");
    program_running running = program_start(args);
    program_result result;

    (void)state;
    free(program_line_with(running.out, "step 200 of"));
    result = program_expect(1, PROGRAM("train", config, "--steps", "1"));
    assert_says(result.err, "another process trains with the checkpoint ");
    program_free(&result);
    assert_int_equal(kill(running.pid, SIGKILL), 0);
    assert_int_equal(program_end(&running), 128 + SIGKILL);
    result = program_expect(0, PROGRAM("train", config, "--steps", "1"));
    program_free(&result);
    assert_int_equal(access(train_file("locked", ".checkpoint.lock"), F_OK), -1);
    train_remove("locked");
}

/* The run stops at a step that is not taken. Its checkpoint, of more than n_before steps, has all
 * steps before: the same command fails at the same step with the same words, and changes no byte of
 * it. */
static void check_lost(const program_args args, const char *run, uint64_t n_before)
{
    program_result first = program_expect(1, args), again;
    size_t n_kept, n_after;
    char *kept = train_read(train_file(run, ".checkpoint"), &n_kept), *after;
    const char *said = strstr(first.err, ".checkpoint has the state after step ");
    unsigned long step;
    char words[64];

    assert_says(first.err, "the step was not taken");
    assert_non_null(said);
    step = strtoul(strstr(said, "step ") + strlen("step "), NULL, 10);
    assert_true(step > n_before);
    (void)snprintf(words, sizeof(words), "step %lu: loss ", step + 1);
    assert_says(first.err, words);
    again = program_expect(1, args);
    (void)snprintf(words, sizeof(words), "going on from step %lu of ", step);
    assert_says(again.err, words);
    assert_string_equal(strstr(again.err, ": loss "), strstr(first.err, ": loss "));
    after = train_read(train_file(run, ".checkpoint"), &n_after);
    assert_int_equal(n_after, n_kept);
    assert_memory_equal(after, kept, n_kept);
    assert_int_equal(access(train_file(run, ".gguf"), F_OK), -1);
    free(kept);
    free(after);
    program_free(&first);
    program_free(&again);
    train_remove(run);
}

/* A rate that is far too high. */
static void test_diverges(void **state)
{
    const char *config = write_config("lost", "fusedkv", 5);
    program_result result = program_expect(0, PROGRAM("train", config));

    (void)state;
    program_free(&result);
    assert_int_equal(unlink(train_file("lost", ".gguf")), 0);
    check_lost(PROGRAM("train", config, "--steps", "60", "--rate", "10", "--rate-end", "10",
                       "--rise-max", "1"),
               "lost", 5);
}

/* Weights that grow a hundredfold with each step, until they are no numbers. */
static void test_not_finite(void **state)
{
    (void)state;
    check_lost(PROGRAM("train", write_config("infinite", "mha", 200), "--rate", "10", "--rate-end",
                       "10", "--decay", "10", "--clip", "0", "--rise-max", "0"),
               "infinite", 1);
}

/* The rate does not rise at the end; the run says so where the user asked for it. */
static void test_rate_end(void **state)
{
    program_result result =
        program_expect(0, PROGRAM("train", write_config("falling", "mha", 1), "--rate", "0.001"));

    (void)state;
    assert_says(result.err, "--rate-end 0.005 is above --rate 0.001: the learning rate stays");
    program_free(&result);
    train_remove("falling");
    result = program_expect(0, PROGRAM("train", write_config("falling", "mha", 1)));
    assert_null(strstr(result.err, "--rate-end"));
    program_free(&result);
    train_remove("falling");
}

/* The longest context, in rows that a task fills. The rate counts all steps of the process: in the
 * whole time of the program it would have computed no fewer tokens. */
static void test_longest_context(void **state)
{
    const uint64_t start_ns = quire_clock_ns();
    program_result result = program_expect(
        0, PROGRAM("train", "--checkpoint", train_file("long", ".checkpoint"), "--n-layer", "2",
                   "--d-model", "16", "--n-head", "1", "--d-head", "8", "--d-ff", "16", "--rows",
                   "1", "-c", "8192", "--steps", "2", "--log-every", "2", "--held-batches", "1",
                   "--task-bytes", "8190", "--task-kinds", "copy", "--json"));
    const double seconds = (double)(quire_clock_ns() - start_ns) * 1e-9;
    json_t *line = json_loadb(result.out, strcspn(result.out, "\n"), 0, NULL);
    double loss = json_real_value(json_object_get(line, "loss"));

    (void)state;
    assert_int_equal(json_integer_value(json_object_get(line, "tokens")), 2 * 8192);
    assert_true(json_real_value(json_object_get(line, "tokens_per_s")) * seconds >= 2 * 8192);
    assert_true(fabs(loss - log(260)) < 0.5);
    json_decref(line);
    program_free(&result);
    train_remove("long");
}

/* Tasks without text, as lines of JSON: an object in each. */
static void test_json(void **state)
{
    program_result result = program_expect(
        0, PROGRAM("train", "--checkpoint", train_file("tasks", ".checkpoint"), "--n-layer", "2",
                   "--d-model", "16", "--d-ff", "16", "--rows", "2", "-c", "64", "--steps", "4",
                   "--log-every", "2", "--task-bytes", "64", "--json"));
    json_t *line = json_loadb(result.out, strcspn(result.out, "\n"), 0, NULL);

    (void)state;
    assert_true(strchr(result.out, '\n') > strchr(result.out, '}'));
    assert_int_equal(json_integer_value(json_object_get(line, "step")), 2);
    assert_true(json_real_value(json_object_get(line, "loss")) > 1);
    assert_int_equal(json_integer_value(json_object_get(line, "tokens")), 2 * 2 * 64);
    assert_true(json_real_value(json_object_get(line, "tokens_per_s")) > 0);
    assert_true(json_real_value(json_object_get(line, "product_share")) > 0);
    assert_true(json_real_value(json_object_get(line, "left_s")) > 0);
    json_decref(line);
    assert_says(result.out, "\"held_loss\"");
    program_free(&result);
    train_remove("tasks");
}

/* Settings of quire serve in the environment are none of quire train's; other names are refused. */
static void test_variables(void **state)
{
    const char *path = train_file("variables", ".checkpoint");
    program_result result;

    (void)state;
    assert_int_equal(setenv("QUIRE_KV", "q8", 1), 0);
    assert_int_equal(setenv("QUIRE_N_LAYER", "2", 1), 0);
    result = program_expect(0, PROGRAM("train", "--checkpoint", path, "--d-model", "16", "--d-ff",
                                       "16", "--rows", "2", "-c", "64", "--steps", "1"));
    program_free(&result);
    assert_int_equal(setenv("QUIRE_N_LAYERS", "2", 1), 0);
    result = program_expect(2, PROGRAM("train", "--checkpoint", path));
    assert_says(result.err, "QUIRE_N_LAYERS in the environment (did you mean QUIRE_N_LAYER?)");
    program_free(&result);
    assert_int_equal(unsetenv("QUIRE_KV"), 0);
    assert_int_equal(unsetenv("QUIRE_N_LAYER"), 0);
    assert_int_equal(unsetenv("QUIRE_N_LAYERS"), 0);
    train_remove("variables");
}

/* The tokens of a text are its bytes, and the begin and the end of a document. The first turn of
 * the others has 16, each of which counts 16 times. */
static void test_predict_seen(void **state)
{
    static const char text[] = "abba\n<|endoftext|>\nabc abba\n<|endoftext|>\n";
    const char *path = train_file("seen", ".checkpoint");
    const char *data = program_file("seen.txt", text, sizeof(text) - 1);
    program_result result = program_expect(
        0, PROGRAM("train", "--checkpoint", path, "--data", data, "--held", "0", "--n-layer", "2",
                   "--d-model", "16", "--d-ff", "16", "--rows", "2", "-c", "64", "--steps", "2",
                   "--log-every", "1", "--predict", "seen", "--json"));
    json_t *line = json_loadb(result.out, strcspn(result.out, "\n"), 0, NULL);

    (void)state;
    assert_says(result.err, "the data has 7 of 260 tokens");
    assert_true(fabs(json_real_value(json_object_get(line, "loss")) - log(7 + 16 * 16)) < 0.1);
    json_decref(line);
    program_free(&result);
    train_remove("seen");
    result = program_expect(2, PROGRAM("train", "--checkpoint", path, "--predict", "seen"));
    assert_says(result.err, "--predict seen needs --data and no --tasks");
    program_free(&result);
    result = program_expect(2, PROGRAM("train", "--checkpoint", path, "--data", data, "--tasks",
                                       "0.5", "--predict", "seen"));
    assert_says(result.err, "--predict seen needs --data and no --tasks");
    program_free(&result);
    result = program_expect(
        1, PROGRAM("train", "--checkpoint", path, "--data", "/nowhere", "--predict", "seen"));
    assert_says(result.err, "cannot read /nowhere");
    program_free(&result);
}

static void test_refused(void **state)
{
    const char *path = train_file("refused", ".checkpoint");
    program_result result =
        program_expect(1, PROGRAM("train", "--checkpoint", path, "--scheme", "fusedkv-light"));

    (void)state;
    assert_says(result.err, "is \"fusedkv-lite\" meant?");
    program_free(&result);
    result = program_expect(1, PROGRAM("train", "--checkpoint", path, "--data", "/nowhere"));
    assert_says(result.err, "cannot read /nowhere");
    program_free(&result);
    result = program_expect(1, PROGRAM("train", "--checkpoint", path, "--data",
                                       program_file("empty.txt", "", 0), "--n-layer", "2"));
    assert_says(result.err, "empty.txt has too little text to train on");
    program_free(&result);
    result = program_expect(1, PROGRAM("train", "--checkpoint", "/nowhere/x"));
    assert_says(result.err, "quire: cannot write /nowhere/x: "); /* before the first step */
    program_free(&result);
    result = program_expect(1, PROGRAM("train", "--checkpoint", path, "-o", "/nowhere/x"));
    assert_says(result.err, "quire: cannot write /nowhere/x: ");
    assert_string_equal(result.out, "");
    program_free(&result);
    assert_int_equal(access(path, F_OK), -1);
    result = program_expect(2, PROGRAM("train", "--checkpoint", path, "--ctx", "9000"));
    assert_says(result.err, "8192");
    program_free(&result);
    result = program_expect(
        1, PROGRAM("train", "--checkpoint", path, "--task-kinds", "copy,recal,passkey"));
    assert_says(result.err, "no task \"recal\"");
    program_free(&result);
    result = program_expect(2, PROGRAM("train"));
    assert_says(result.err, "--checkpoint");
    program_free(&result);
    result = program_expect(
        2, PROGRAM("train", program_file("bad.yaml", "n_layers: 4\n", 12), "--checkpoint", path));
    assert_says(result.err, "n_layer");
    program_free(&result);
}

/* A model in the place of the checkpoint or of the text, and files of the run among its texts. A
 * hidden file is no text. */
static void test_places(void **state)
{
    const char *folder = program_path("texts"), *path = train_file("places", ".checkpoint");
    const char *shape =
        program_file("places.yaml", "n_layer: 2\nd_model: 8\nctx: 32\nrows: 1\n", 38);
    char text[600], inside[600], hidden[600];
    program_result result;

    (void)state;
    assert_int_equal(mkdir(folder, 0700), 0);
    (void)snprintf(text, sizeof(text), "%s/a.txt", folder);
    (void)snprintf(inside, sizeof(inside), "%s/../texts/run", folder);
    (void)snprintf(hidden, sizeof(hidden), "%s/.run", folder);
    assert_int_equal(symlink(program_data("fables.txt"), text), 0);
#define REFUSED(...) program_expect(1, PROGRAM("train", shape, "--steps", "1", __VA_ARGS__))
    result = REFUSED("--checkpoint", path, "-o", path);
    assert_says(result.err, "--checkpoint and --output are both ");
    program_free(&result);
    result = REFUSED("--checkpoint", path, "--data", text, "-o", text);
    assert_says(result.err, "--data and --output are both ");
    program_free(&result);
    result = REFUSED("--checkpoint", inside, "--data", folder);
    assert_says(result.err, "/run is in the folder ");
    program_free(&result);
    result = REFUSED("--checkpoint", path, "--data", folder, "-o", inside);
    assert_says(result.err, "quire: --output ");
    program_free(&result);
#undef REFUSED
    assert_int_equal(access(inside, F_OK), -1);
    for (unsigned i = 1; i < 3; i++) {
        result = program_expect(0, PROGRAM("train", shape, "--checkpoint", hidden, "--data", folder,
                                           "--steps", i == 1 ? "1" : "2"));
        program_free(&result);
    }
    assert_int_equal(unlink(hidden), 0);
    assert_int_equal(unlink(text), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trains),       cmocka_unit_test(test_terminated),
        cmocka_unit_test(test_interrupted),  cmocka_unit_test(test_json),
        cmocka_unit_test(test_variables),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_diverges),     cmocka_unit_test(test_longest_context),
        cmocka_unit_test(test_predict_seen), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_text_is_gone), cmocka_unit_test(test_places),
        cmocka_unit_test(test_locked),       cmocka_unit_test(test_rate_end),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
