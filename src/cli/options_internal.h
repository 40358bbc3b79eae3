/* options_internal.h - what the parser and the help text share.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPTIONS_INTERNAL_H
#define QUIRE_CLI_OPTIONS_INTERNAL_H

#include "cli/options.h"

#define QUIRE_OPTIONS_MAX          48u /* rows of one table */
#define QUIRE_OPTIONS_ACCEPTED_MAX 160u

/* What an option takes, for a message: "a whole number from 1 to 512", "f32, f16, bf16, q8, or two
 * of them as K:V". */
void quire_options_accepted(const quire_opt *opt, char *buffer, size_t buffer_bytes);

#endif /* QUIRE_CLI_OPTIONS_INTERNAL_H */
