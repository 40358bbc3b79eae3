/* train_calls.h - the files of runs of `quire train`.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_TRAIN_CALLS_H
#define QUIRE_TESTS_TRAIN_CALLS_H

#include <stddef.h>

/* A path of a run that program_clean() does not know. Memory: static until the fourth next call. */
const char *train_file(const char *run, const char *ending);

/* The perplexity that `quire perplexity` gives a file, on 12 chunks of the fables, with KV in f32.
 */
double train_perplexity(const char *path);
/* Remove the checkpoint, the tokenizer and the model of a run. Files may be missing. */
void train_remove(const char *run);
/* The first 4 MiB of a file. Memory: free(). */
char *train_read(const char *path, size_t *n);

#endif /* QUIRE_TESTS_TRAIN_CALLS_H */
