/* options_internal.h - functions common to the parser, the help text and settings.c.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPTIONS_INTERNAL_H
#define QUIRE_CLI_OPTIONS_INTERNAL_H

#include "cli/settings/options.h"

#define QUIRE_OPTIONS_MAX          128u /* rows of one table */
#define QUIRE_OPTIONS_ACCEPTED_MAX 160u

/* The accepted values of an option, for a message: "a whole number from 1 to 512", "f32, f16, bf16,
 * q8, or two of them as K:V". */
void quire_options_accepted(const quire_opt *opt, char *buffer, size_t buffer_bytes);
/* Purpose, range and default of an option, for --help and the documentation. */
void quire_options_describe(const quire_opt *opt, char *buffer, size_t buffer_bytes);
#define QUIRE_OPTIONS_DESCRIBED_MAX 512u

/* The last of an option's names: "--ctx-size". Memory: static. */
const char *quire_options_long_name(const quire_opt *opt);

/* One value into args; text NULL for a flag without one. name: the option's name in messages.
 * Errors: QUIRE_INVAL, QUIRE_RANGE. */
int quire_options_store(const quire_opt *opt, const char *name, const char *text, void *args,
                        quire_error *err);

/* quire_options_parse() in its two parts. texts: [n_options], gets the last value of each option
 * that was given, as it was written ("true" for a flag); may be NULL. */
int quire_options_words(const quire_command *command, int argc, char *const *argv, void *args,
                        const char **texts, quire_error *err);
int quire_options_check(const quire_command *command, const void *args, quire_error *err);

#endif /* QUIRE_CLI_OPTIONS_INTERNAL_H */
