/* regex_grammar.h - regular expressions as grammars.
 *
 * The language is ECMA-262's without flags, as "pattern" of JSON Schema has it: literals, ".",
 * classes, groups (of all kinds the text alone counts), alternatives, the repetitions * + ? {m}
 * {m,} {m,n} (lazy ones too), ^ at the beginning and $ at the end of an alternative, and the
 * escapes \d \w \s \t \n \r \f \v \xHH \uHHHH \u{H}. Constructs that test more than the next
 * character are refused (look-ahead, look-behind, back references, \b), and so is \p.
 *
 * Characters are those of the text that a client gets. With is_json the grammar writes each as in a
 * JSON string: '"' and '\' with a backslash, line breaks as \n. U+0000 and surrogates never come.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_REGEX_GRAMMAR_H
#define QUIRE_SERVER_REGEX_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

#define QUIRE_REGEX_BYTES_MAX  4096u
#define QUIRE_REGEX_DEPTH_MAX  32u  /* groups within groups */
#define QUIRE_REGEX_RANGES_MAX 128u /* of one class */
#define QUIRE_REGEX_REPEAT_MAX 2000u

typedef struct quire_regex_opts {
    bool is_json;  /* the characters of a JSON string, without its quotes */
    bool is_whole; /* the text is one of the expression; else it contains one, between ^ and $ */
    /* Bounds of a text in characters; both 0 = none. They hold if a single repetition of the
     * expression can be bounded so; the lengths of the result tell. */
    uint32_t length_min, length_max;
} quire_regex_opts;

typedef struct quire_regex_result {
    uint32_t chars_min; /* of the shortest text */
    uint32_t chars_max; /* of the longest; UINT32_MAX = without bound */
    bool is_open;       /* a text may go on before or behind what the expression says */
    const char *why;    /* after an error: the reason, static; NULL after QUIRE_NOMEM */
    const char *at;     /* its place in the pattern */
} quire_regex_result;

/* Append an expression of the grammar, in brackets. Errors: QUIRE_INVAL, QUIRE_LIMIT, QUIRE_NOMEM.
 */
int quire_regex_grammar(const char *pattern, const quire_regex_opts *opts, quire_bytes *gbnf,
                        quire_regex_result *result);

/* Append a literal of the grammar: `quote`, the text, `quote`. Errors: QUIRE_NOMEM. */
int quire_grammar_literal_add(quire_bytes *gbnf, const char *quote, const char *text);

#endif /* QUIRE_SERVER_REGEX_GRAMMAR_H */
