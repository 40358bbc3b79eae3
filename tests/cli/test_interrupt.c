/* test_interrupt.c - Ctrl-C: exit status 130, and the figures that were measured so far.
 *
 * The signal comes when the program's progress line says that something was measured, so no test
 * depends on how fast the machine is.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "rounds.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INTERRUPTED 130

static program_result interrupt(const char *shown, program_args args)
{
    program_result result = program_interrupt_at(shown, args);

    if (result.exit_status != INTERRUPTED) {
        fail_msg("exit status %d; stderr: %s", result.exit_status, result.err);
    }
    return result;
}

static const char *long_text(void)
{
    return program_text("long.txt", 200000);
}

/* ---- run ---- */

static void run_tells_how_far_it_read(void **state)
{
    program_result result =
        interrupt("reading 64 of",
                  PROGRAM("run", program_model(), "-f", long_text(), "-c", "300k", "-b", "16"));
    const char *says = strstr(result.err, "prompt ");

    (void)state;
    assert_non_null(says);
    assert_true(strtol(says + strlen("prompt "), NULL, 10) >= 64);
    assert_says(result.err, "stopped: interrupted");
    program_free(&result);
}

static void run_prints_its_document(void **state)
{
    program_result result =
        interrupt("reading 64 of", PROGRAM("run", program_model(), "-f", long_text(), "-c", "300k",
                                           "-b", "16", "--json"));
    json_t *document = json_loads(result.out, JSON_ALLOW_NUL, NULL);

    (void)state;
    assert_string_equal(json_string_value(json_object_get(document, "stop")), "interrupted");
    assert_true(json_integer_value(json_object_get(document, "prompt_tokens")) >= 64);
    assert_int_equal(json_integer_value(json_object_get(document, "output_tokens")), 0);
    json_decref(document);
    program_free(&result);
}

/* ---- chat ---- */

static void type(const program_running *chat, const char *line)
{
    assert_int_equal(write(chat->in, line, strlen(line)), (ssize_t)strlen(line));
}

/* At a terminal Ctrl-C ends an answer or a line, and the conversation goes on until /exit. */
static void chat_goes_on_until_it_is_left(void **state)
{
    program_running chat = program_start_on_terminal(PROGRAM(
        "chat", program_model(), "--chat-template", "chatml", "-c", "200k", "--ignore-eos"));
    char byte;

    (void)state;
    program_await(chat.err, '>');
    type(&chat, "a quire\n");
    assert_int_equal(read(chat.out, &byte, 1), 1);
    assert_int_equal(kill(chat.pid, SIGINT), 0);
    while (byte != '\n') { /* the line that ends the answer */
        assert_int_equal(read(chat.out, &byte, 1), 1);
    }
    free(program_line_with(chat.err, "stopped: interrupted"));
    program_await(chat.err, '>');
    type(&chat, "/help\n");
    free(program_line_with(chat.err, "tokens of context in use"));
    program_await(chat.err, '>');
    assert_int_equal(kill(chat.pid, SIGINT), 0);
    free(program_line_with(chat.err, "/exit or Ctrl-D leaves"));
    program_await(chat.err, '>');
    type(&chat, "/nothing\n");
    free(program_line_with(chat.err, "unknown command /nothing"));
    program_await(chat.err, '>');
    type(&chat, "/exit\n");
    assert_int_equal(program_end(&chat), 0);
}

/* ---- measuring ---- */

static void bench_prints_the_repeats_so_far(void **state)
{
    program_result result =
        interrupt("decode at depth 0, 2 of",
                  PROGRAM("bench", program_model(), "-p", "8", "-n", "256", "-r", "20", "--json"));
    json_t *rows = json_loads(result.out, 0, NULL);
    const json_t *decode = json_array_get(rows, 1);
    const size_t n = json_array_size(json_object_get(decode, "repeats"));

    (void)state;
    assert_int_equal(json_array_size(rows), 2);
    assert_int_equal(json_array_size(json_object_get(json_array_get(rows, 0), "repeats")), 20);
    assert_true(n >= 1 && n < 20);
    assert_true(json_number_value(json_object_get(decode, "tokens_per_second")) > 0);
    assert_says(result.err, "interrupted");
    json_decref(rows);
    program_free(&result);
}

static void perplexity_prints_the_chunks_so_far(void **state)
{
    program_result result = interrupt("chunk 3 of", PROGRAM("perplexity", program_model(), "-f",
                                                            long_text(), "-c", "256", "--json"));
    json_t *document = json_loads(result.out, 0, NULL);
    const json_int_t n = json_integer_value(json_object_get(document, "n_chunks"));

    (void)state;
    assert_true(n >= 2);
    assert_int_equal(json_array_size(json_object_get(document, "chunks")), n);
    assert_true(json_integer_value(json_object_get(document, "n_text_tokens")) > 256 * n);
    assert_says(result.err, "interrupted after");
    json_decref(document);
    program_free(&result);
}

/* An incomplete file of logits would be read as a complete one. */
static void perplexity_leaves_no_half_file(void **state)
{
    const char *path = program_path("logits.bin");
    program_result result =
        interrupt("chunk 2 of", PROGRAM("perplexity", program_model(), "-f", long_text(), "-c",
                                        "256", "--save-logits", path));

    (void)state;
    assert_says(result.out, "perplexity ");
    assert_int_not_equal(access(path, F_OK), 0);
    program_free(&result);
}

/* Run 1 is f16, run 2 is q8 everywhere, run 3 is the first layer's K. */
static void calibrate_prints_the_costs_so_far(void **state)
{
    const char *path = program_path("calibration.yaml");
    program_result result =
        interrupt("run 4 of", PROGRAM("calibrate", program_model(), "-f", long_text(), "-c", "256",
                                      "--chunks", "16", "--target", "7", "-o", path));

    (void)state;
    assert_says(result.out, "cost of q4 in  K          V\nlayer 0 ");
    assert_says(result.out, "layer 1");
    assert_says(result.out, "-\n"); /* V was not measured */
    assert_says(result.err, "no file is written");
    assert_int_not_equal(access(path, F_OK), 0);
    program_free(&result);
}

#define N_REQUESTS TEST_ROUNDS(20000, 3000)

static const char *trace(void)
{
    const char *path = program_path("trace.jsonl");
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    for (int i = 0; i < N_REQUESTS; i++) {
        (void)fprintf(file,
                      "{\"timestamp\": %d, \"input_length\": 2048, \"output_length\": 64, "
                      "\"hash_ids\": [%d, %d, %d, %d]}\n",
                      i * 10, i % 7, 100 + i % 701, 1000 + i % 5003, 10000 + i);
    }
    assert_int_equal(fclose(file), 0);
    return path;
}

static void sim_prints_the_simulations_so_far(void **state)
{
    const char *path = trace();
    program_result result =
        interrupt("simulation 2 of", PROGRAM("sim", path, "--policy", "lru,lfu,arc,gdsf",
                                             "--capacity", "100,1000,4000,8000", "-t", "1"));

    (void)state;
    assert_says(result.out, "hits, % of prompt blocks\n  lru ");
    assert_null(strstr(result.out, "belady"));
    assert_says(result.err, "interrupted after");
    program_free(&result);
}

/* No recommendation follows from some of the policies. */
static void analyze_prints_the_figures_so_far(void **state)
{
    const char *path = trace();
    program_result result =
        interrupt("simulation 2 of", PROGRAM("analyze", path, "-t", "1", "--json"));
    json_t *document = json_loads(result.out, 0, NULL);
    const size_t n = json_array_size(json_object_get(document, "policies"));

    (void)state;
    assert_int_equal(json_integer_value(json_object_get(document, "requests")), N_REQUESTS);
    assert_true(n >= 1 && n < 10);
    assert_true(json_is_null(json_object_get(document, "recommendation")));
    assert_says(result.err, "interrupted after");
    json_decref(document);
    program_free(&result);
}

static void tune_pages_prints_the_memories_so_far(void **state)
{
    const char *dir = program_path(".");
    char shown[512];
    program_result result;
    json_t *document;

    (void)state;
    assert_true(snprintf(shown, sizeof(shown), "measuring %s", dir) < (int)sizeof(shown));
    result = interrupt(shown, PROGRAM("tune-pages", "--device", "cpu", "--tokens", "1024", "--dir",
                                      dir, "--json"));
    document = json_loads(result.out, 0, NULL);
    assert_true(json_integer_value(json_object_get(document, "page_tokens")) >= 64);
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(document, "memories"), 0), "memory")),
                        "host");
    json_decref(document);
    program_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_tells_how_far_it_read),
        cmocka_unit_test(run_prints_its_document),
        cmocka_unit_test(chat_goes_on_until_it_is_left),
        cmocka_unit_test(bench_prints_the_repeats_so_far),
        cmocka_unit_test(perplexity_prints_the_chunks_so_far),
        cmocka_unit_test(perplexity_leaves_no_half_file),
        cmocka_unit_test(calibrate_prints_the_costs_so_far),
        cmocka_unit_test(sim_prints_the_simulations_so_far),
        cmocka_unit_test(analyze_prints_the_figures_so_far),
        cmocka_unit_test(tune_pages_prints_the_memories_so_far),
    };

    return cmocka_run_group_tests(tests, program_no_cache, program_clean);
}
