/* model_option.h - options that name a model, in one place for all commands.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_MODEL_OPTION_H
#define QUIRE_CLI_MODEL_OPTION_H

#include "cli/settings/options.h"

/* Replace the value of each option that is_model by the path of the model it means
 * (quire_model_resolve()). Paths stay as they were written. Call after parsing, before run(). The
 * main thread only; paths live until the next call. Errors: those of quire_model_resolve(). */
int quire_model_options_resolve(const quire_command *command, void *args, quire_error *err);

#endif /* QUIRE_CLI_MODEL_OPTION_H */
