/* char_set.h - sets of characters of a regular expression, and their grammar.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_CHAR_SET_H
#define QUIRE_SERVER_CHAR_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "server/regex_grammar.h"

#define QUIRE_CHAR_MAX 0x10ffffu

typedef struct quire_char_range {
    uint32_t first, last;
} quire_char_range;

typedef struct quire_char_set {
    quire_char_range ranges[QUIRE_REGEX_RANGES_MAX];
    uint32_t n;
} quire_char_set;

/* Add the characters first .. last. Errors: QUIRE_LIMIT. */
int quire_char_set_add(quire_char_set *set, uint32_t first, uint32_t last);
/* Add the characters of \d, \w or \s, or with a capital letter all other characters. Errors:
 * QUIRE_LIMIT. */
int quire_char_set_add_class(quire_char_set *set, char letter);
/* All other characters. Errors: QUIRE_LIMIT. */
int quire_char_set_invert(quire_char_set *set);
/* Append the grammar of one character of the set; see regex_grammar.h about is_json. Errors:
 * QUIRE_INVAL (the set is empty), QUIRE_NOMEM. */
int quire_char_set_write(quire_char_set *set, bool is_json, quire_bytes *gbnf);

#endif /* QUIRE_SERVER_CHAR_SET_H */
