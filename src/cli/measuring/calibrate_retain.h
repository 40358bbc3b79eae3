/* calibrate_retain.h - quire calibrate --retain: fit the maps of the retention policy `predict` to
 * a user's text (retain/predictor.h).
 *
 * The text is read in chunks. The model computes a chunk, then repeats it in parts; hidden states
 * of the first and attention of the second are the samples. The last chunks are not fitted: their
 * correlation between predicted and measured scores says how good the maps are.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CALIBRATE_RETAIN_H
#define QUIRE_CLI_CALIBRATE_RETAIN_H

#include "cli/settings/args.h"

#define QUIRE_FIT_CHUNKS_DEFAULT 16u
#define QUIRE_FIT_CTX_DEFAULT    1024u /* KVzap: prompts of 750 to 1,250 tokens */
#define QUIRE_FIT_CTX_MIN        64u

typedef struct quire_calibrate_retain_args {
    const quire_common_args *common;
    const char *file;  /* the text */
    const char *out;   /* NULL = the cache folder */
    uint32_t n_chunks; /* 0 = the default */
} quire_calibrate_retain_args;

/* The whole command. Returns its exit status. */
int quire_calibrate_retain(const quire_calibrate_retain_args *args);

#endif /* QUIRE_CLI_CALIBRATE_RETAIN_H */
