/* grammar_internal.h - a grammar that is being read; for grammar*.c only.
 *
 * grammar.c reads the text. grammar_rules.c writes the compiled rules, and judges which rules can
 * be empty and which can begin with themselves.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAMMAR_INTERNAL_H
#define QUIRE_MODEL_GRAMMAR_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "model/grammar.h"

#define QUIRE_GRAMMAR_NONE  UINT32_MAX
#define QUIRE_GRAMMAR_SLOTS (2 * QUIRE_GRAMMAR_RULES_MAX)

/* ---- rules as they are written ---- */

typedef enum quire_grammar_item_kind {
    QUIRE_GRAMMAR_ITEM_CHARS, /* characters, at least one */
    QUIRE_GRAMMAR_ITEM_RULE,
    QUIRE_GRAMMAR_ITEM_OR /* between alternatives */
} quire_grammar_item_kind;

/* A part of an alternative; a repetition is one part, whose item says whether it can be empty. */
typedef struct quire_grammar_item {
    quire_grammar_item_kind kind;
    uint32_t rule;
    bool is_optional;
    uint32_t next; /* in its rule; NONE at the end */
} quire_grammar_item;

typedef enum quire_grammar_visit {
    QUIRE_GRAMMAR_VISIT_NEW,
    QUIRE_GRAMMAR_VISIT_BEGUN,
    QUIRE_GRAMMAR_VISIT_DONE
} quire_grammar_visit;

typedef struct quire_grammar_named {
    const char *name; /* not terminated; NULL for a group */
    size_t name_bytes;
    const char *used_at; /* first reference */
    uint32_t compiled;   /* its index in the compiled grammar */
    uint32_t first, last;
    bool is_defined;
    bool is_nullable;
    quire_grammar_visit visit;
} quire_grammar_named;

typedef struct quire_grammar_reader {
    const char *text;
    const char *at;
    quire_error *err;
    quire_grammar_named rules[QUIRE_GRAMMAR_RULES_MAX];
    uint32_t n_rules;
    uint32_t slots[QUIRE_GRAMMAR_SLOTS]; /* rule + 1 by the hash of its name */
    quire_grammar_item *items;
    uint32_t n_items, items_cap;
    uint64_t n_counted; /* elements, as llama.cpp unrolls them */
    uint32_t depth;
    /* The compiled grammar. Elements of rules that are not complete lie in `open`, those of the
     * innermost rule last. */
    quire_grammar *out;
    quire_grammar_element *open;
    uint32_t n_open, open_cap;
    uint32_t rules_cap, elements_cap, alternatives_cap, sets_cap, ranges_cap;
    quire_grammar_range *set; /* the ranges of a set that is being read */
    uint32_t n_set, set_cap;
} quire_grammar_reader;

/* ---- grammar_rules.c ---- */

/* Room for item n of an array, which may move. NULL without memory; the array then stays. */
void *quire_grammar_room(void *items, uint32_t *cap, uint32_t n, size_t item_bytes);

/* A rule without elements. Errors of this and the following functions: QUIRE_NOMEM. */
int quire_grammar_rule_new(quire_grammar_reader *r, uint32_t *compiled);
/* Append an element to the innermost rule. */
int quire_grammar_open_add(quire_grammar_reader *r, quire_grammar_kind kind, uint32_t value);
/* Append a set of the ranges in r->set. */
int quire_grammar_open_add_set(quire_grammar_reader *r, bool is_negated);
/* Repeat the elements from `begin` on: min to max times; UINT64_MAX = any number. */
int quire_grammar_open_repeat(quire_grammar_reader *r, uint32_t begin, uint64_t min, uint64_t max);
/* Complete a rule: its elements are the open ones from `begin` on. */
int quire_grammar_rule_close(quire_grammar_reader *r, uint32_t compiled, uint32_t begin);

/* Refuse rules that can begin with themselves. Errors: QUIRE_INVAL, QUIRE_LIMIT. */
int quire_grammar_judge(quire_grammar_reader *r);

#endif /* QUIRE_MODEL_GRAMMAR_INTERNAL_H */
