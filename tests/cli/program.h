/* program.h - runs the built quire program and keeps its output.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_PROGRAM_H
#define QUIRE_TESTS_PROGRAM_H

#include <jansson.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct program_result {
    int exit_status; /* 128 + signal when one ended it */
    char *out;       /* a zero byte follows out_bytes */
    size_t out_bytes;
    char *err;
} program_result;

/* Words of a command line, the program's name left out. */
typedef struct program_args {
    const char *words[32]; /* NULL ends them */
} program_args;

#define PROGRAM(...) ((program_args){ { __VA_ARGS__, NULL } })

/* Run to the end. input: the text on its stdin, NULL for nothing. */
program_result program_run_with(const char *input, program_args args);
program_result program_run_with_bytes(const char *input, size_t n_bytes, program_args args);
program_result program_run(program_args args);

/* With stdout going to a file; out stays empty. */
program_result program_run_to(const char *path, program_args args);

/* Run with stdout connected to a pipe without a reader. */
program_result program_run_unread(program_args args);

/* Send SIGINT once the first byte has come out of its stdout, then wait for it. */
program_result program_run_interrupted(const char *input, program_args args);

/* With stderr on a terminal; err is the text that the terminal would have shown. */
program_result program_run_on_terminal(program_args args);

/* The same, with SIGINT once the terminal has shown a text. */
program_result program_interrupt_at(const char *shown, program_args args);

void program_free(program_result *result);

/* A program that runs beside the test. */
typedef struct program_running {
    pid_t pid;
    int out; /* ends of pipes */
    int err;
    int in; /* of a terminal; 0 = none */
} program_running;

program_running program_start(program_args args);
/* With a terminal for its stdin: lines are written to running.in. */
program_running program_start_on_terminal(program_args args);
/* With one terminal for its stdin and its stderr: reading running.in gives the terminal's text. */
program_running program_start_on_whole_terminal(program_args args);
/* Read until a character has come. */
void program_await(int fd, char awaited);
/* The next line of a stream without its newline; fails the test at the end of the stream.
 * Memory: free(). */
char *program_line(int fd);
/* Read lines until one holds part. Memory: free(). */
char *program_line_with(int fd, const char *part);
/* Wait for its end and close the pipes. Returns the exit status as program_result has it. */
int program_end(program_running *running);

/* Run, expect this exit status and nothing of a crash, and return the result. */
program_result program_expect(int exit_status, program_args args);

/* Run with exit status 0 and parse its stdout as one JSON document. */
json_t *program_json(program_args args);

/* Fails the test unless text holds part. */
void assert_says(const char *text, const char *part);

/* A model with random weights, made once per process: 2 layers, 16 wide, 268 tokens in the
 * vocabulary, trained context 512. Memory: static. */
const char *program_model(void);

/* The generated model with 16 layers and a trained context of 4,096 tokens. */
const char *program_model_deep(void);

/* The first with 4 layers, of which 2 store K and V: the scheme fusedkv-lite. */
const char *program_model_shared(void);
/* With 16 layers, of which 8 store K and V: the scheme fusedkv, and a trained context of 4,096. */
const char *program_model_shared_deep(void);
/* The first with 4 layers, each with a window of 64 tokens. */
const char *program_model_narrow(void);
/* That with the scheme yoco, whose layer 0 has a window of 64 tokens. */
const char *program_model_windows(void);

/* The first with 4 layers, as gemma2: every other one has a window of 300 tokens. */
const char *program_model_sliding(void);

/* The first with 4 layers, as smollm3: the last one does not turn K by its position. */
const char *program_model_unturned(void);

/* A model with latent attention: 3 layers with rows of 160 values, the first 128 of which are V. */
const char *program_model_latent(void);

/* A small model of a family of arch_cases.h, with a trained context of 512 tokens. */
const char *program_model_family(const char *name);

/* A path in the tests' folder of temporary files, removed at exit. Memory: static per name. */
const char *program_path(const char *name);

/* Write a file at program_path(name) and return the path. */
const char *program_file(const char *name, const void *bytes, size_t n_bytes);

/* A text of about n_bytes with words, lines and some UTF-8. */
const char *program_text(const char *name, size_t n_bytes);

/* Path of a file in tests/data. Memory: static, until the second next call. */
const char *program_data(const char *name);

/* Programs that run from now on have no cache folder: they read and write nothing of the user's. A
 * cmocka group setup. */
int program_no_cache(void **state);

/* Remove the temporary files. A cmocka group teardown. */
int program_clean(void **state);

#endif /* QUIRE_TESTS_PROGRAM_H */
