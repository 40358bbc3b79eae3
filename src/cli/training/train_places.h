/* train_places.h - where the files of a run may lie.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_PLACES_H
#define QUIRE_CLI_TRAIN_PLACES_H

#include "cli/training/train_args.h"
#include "quire/error.h"

/* Refuse a model in the place of the checkpoint or of the text, and files of the run among the
 * texts: the run would read them as text, and would not go on. The folders of the files exist.
 * Errors: QUIRE_INVAL. */
int quire_train_places_check(const train_args *args, quire_error *err);

#endif /* QUIRE_CLI_TRAIN_PLACES_H */
