/* foreign_options.h - options of llama.cpp's programs, and Quire's counterpart of each.
 *
 * A user of llama.cpp types its options by habit. The nearest name of Quire's is then rarely the
 * meant one (-fa is not -f), so these options get one line of help instead.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_FOREIGN_OPTIONS_H
#define QUIRE_CLI_FOREIGN_OPTIONS_H

#include <stddef.h>

/* The help for an option of llama.cpp's, as it was typed (n characters, dashes included); NULL when
 * llama.cpp has no such option. Memory: static. */
const char *quire_foreign_option(const char *word, size_t n);

#endif /* QUIRE_CLI_FOREIGN_OPTIONS_H */
