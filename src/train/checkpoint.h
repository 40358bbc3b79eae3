/* checkpoint.h - the state of a run as one file.
 *
 *    0    8  magic
 *    8    8  version of the layout
 *   16    8  number of parameters
 *   24   56  identities: hashes of all that the run's numbers depend on, by parts
 *   80    8  steps done
 *   88    8  tokens read
 *   96   16  two real numbers of the loss's watch
 *  112    8  level of the data
 *  120   64  place in the data
 *  184   16  XXH3-128 of bytes 0 to 183 and the arrays
 *  200       parameters, first and second moments, float each
 *
 * Numbers are little-endian. Versions up to 3 had places in files that were read one after another,
 * version 4 had none in the share of tasks; files of other versions are refused. A file appears
 * under its name when it is complete and on the disk, so there is always one good checkpoint after
 * the first.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_CHECKPOINT_H
#define QUIRE_TRAIN_CHECKPOINT_H

#include "train/pack.h"

#define QUIRE_CHECKPOINT_VERSION    5u
#define QUIRE_CHECKPOINT_HEAD_BYTES 200u
#define QUIRE_CHECKPOINT_ARRAYS     3u /* parameters, first and second moments */

/* The parts that define a run. Of parts that differ, a message names the first. */
typedef enum quire_checkpoint_part {
    QUIRE_PART_TOKENIZER,
    QUIRE_PART_TEACHER,
    QUIRE_PART_MODEL,
    QUIRE_PART_BATCH,
    QUIRE_PART_OPTIMIZER,
    QUIRE_PART_SEED,
    QUIRE_PART_DATA,
    QUIRE_PART_COUNT
} quire_checkpoint_part;

typedef struct quire_checkpoint {
    uint64_t n_parameters;
    uint64_t identities[QUIRE_PART_COUNT];
    uint64_t n_steps;
    uint64_t n_tokens;
    double watch[2];
    uint64_t level;
    uint64_t place[QUIRE_PACK_PLACE];
    float *arrays; /* [3][n_parameters], the caller's */
} quire_checkpoint;

/* Write path.partial, flush it to the disk, rename it, flush the directory. Errors: QUIRE_IO; an
 * earlier checkpoint under the name stays. */
int quire_checkpoint_write(const char *path, const quire_checkpoint *c, quire_error *err);

/* Read into c, whose n_parameters, identities and arrays the caller has set. Errors: QUIRE_NOTFOUND
 * (no such file), QUIRE_IO, QUIRE_CORRUPT (damaged, or no checkpoint), QUIRE_INVAL (of another
 * run, with the part that differs, or of another version); c is then undefined. */
int quire_checkpoint_read(const char *path, quire_checkpoint *c, quire_error *err);

#endif /* QUIRE_TRAIN_CHECKPOINT_H */
