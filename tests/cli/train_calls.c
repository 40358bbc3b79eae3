/* train_calls.c - see train_calls.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "train_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define READ_MAX ((size_t)1 << 22)

const char *train_file(const char *run, const char *ending)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s%s", program_path(run), ending);
    return path;
}

void train_remove(const char *run)
{
    (void)unlink(train_file(run, ".checkpoint"));
    (void)unlink(train_file(run, ".checkpoint.tokenizer.gguf"));
    (void)unlink(train_file(run, ".gguf"));
}

char *train_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *bytes = malloc(READ_MAX);

    assert_non_null(f);
    assert_non_null(bytes);
    *n = fread(bytes, 1, READ_MAX, f);
    assert_int_equal(fclose(f), 0);
    return bytes;
}

double train_perplexity(const char *path)
{
    json_t *said = program_json(PROGRAM("perplexity", "-m", path, "-f", program_data("fables.txt"),
                                        "-c", "64", "--chunks", "12", "--kv", "f32", "--json"));
    double ppl = json_number_value(json_object_get(said, "ppl"));

    json_decref(said);
    return ppl;
}
