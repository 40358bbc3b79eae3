/* grammar.h - a client's grammar: its text checked, and compiled for grammar_match.h.
 *
 * The language is GBNF as llama.cpp has it: rules "name ::= alternatives", literals, character
 * sets, ".", groups, and the repetitions * + ? {m} {m,} {m,n}. References to tokens (<name>,
 * <[id]>) are refused, because control tokens are no part of the text; so are rules defined twice,
 * empty sets, and rules that can begin with themselves.
 *
 * A compiled grammar is a list of rules; a rule is a list of alternatives; an alternative is a row
 * of elements, closed by QUIRE_GRAMMAR_END. Groups and repetitions are rules as well:
 *
 *   x{2,4}  ->  x x r2    r2 ::= x r1 |    r1 ::= x |
 *   x{2,}   ->  x x r     r  ::= x r |
 *
 * Thread: any; a compiled grammar does not change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAMMAR_H
#define QUIRE_MODEL_GRAMMAR_H

#include <stdint.h>

#include "quire/error.h"

#define QUIRE_GRAMMAR_BYTES_MAX  (256u << 10)
#define QUIRE_GRAMMAR_RULES_MAX  8192u /* named ones and groups */
#define QUIRE_GRAMMAR_DEPTH_MAX  128u  /* groups within groups; rules that begin rules */
#define QUIRE_GRAMMAR_REPEAT_MAX 2000u /* as in llama.cpp */
#define QUIRE_GRAMMAR_ELEMENTS_MAX                                                                 \
    (256u << 10) /* characters and references, repetitions unrolled: bounds the memory */

typedef enum quire_grammar_kind {
    QUIRE_GRAMMAR_END,  /* of an alternative */
    QUIRE_GRAMMAR_CHAR, /* value: the character */
    QUIRE_GRAMMAR_SET,  /* value: an index of sets */
    QUIRE_GRAMMAR_RULE, /* value: an index of rules */
    QUIRE_GRAMMAR_OR    /* between alternatives that are being read; in no compiled grammar */
} quire_grammar_kind;

typedef struct quire_grammar_element {
    quire_grammar_kind kind;
    uint32_t value;
} quire_grammar_element;

typedef struct quire_grammar_rule {
    uint32_t first, n; /* of alternatives */
} quire_grammar_rule;

typedef struct quire_grammar_range {
    uint32_t low, high; /* characters, both included */
} quire_grammar_range;

typedef struct quire_grammar_set {
    uint32_t first, n; /* of ranges, which ascend and do not touch */
    uint64_t ascii[2]; /* a bit for each character below 128 */
} quire_grammar_set;

typedef struct quire_grammar {
    quire_grammar_rule *rules;
    quire_grammar_element *elements;
    uint32_t *alternatives; /* their first elements */
    quire_grammar_set *sets;
    quire_grammar_range *ranges;
    uint32_t n_rules, n_elements, n_alternatives, n_sets, n_ranges;
    uint32_t root;
} quire_grammar;

/* Errors: QUIRE_INVAL (err names the place and the reason), QUIRE_LIMIT (err names the bound),
 * QUIRE_NOMEM. Memory: quire_grammar_destroy(). */
int quire_grammar_create(quire_grammar **out, const char *gbnf, quire_error *err);
void quire_grammar_destroy(quire_grammar *grammar);

/* Whether the text is a grammar. Errors: as quire_grammar_create(). */
int quire_grammar_check(const char *gbnf, quire_error *err);

#endif /* QUIRE_MODEL_GRAMMAR_H */
