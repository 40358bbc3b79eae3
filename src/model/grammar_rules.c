/* grammar_rules.c - compiled rules, and rules that can begin with themselves: see
 * grammar_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/grammar_internal.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SHOWN 64 /* bytes of a name in a message */
/* The characters that a negated set is taken from; a text under a grammar has no zero byte. */
#define CHAR_FIRST 1u
#define CHAR_LAST  0x10ffffu

void *quire_grammar_room(void *items, uint32_t *cap, uint32_t n, size_t item_bytes)
{
    uint32_t new_cap = *cap > 0 ? *cap : 64;
    void *moved;

    if (n < *cap) {
        return items;
    }
    while (new_cap <= n) {
        new_cap *= 2;
    }
    moved = realloc(items, new_cap * item_bytes);
    if (moved != NULL) {
        *cap = new_cap;
    }
    return moved;
}

/* Set *slot to the place of a new last item of an array. */
#define APPEND(slot, items, cap, n)                                                                \
    do {                                                                                           \
        void *room_ = quire_grammar_room((items), &(cap), (n), sizeof *(items));                   \
        QUIRE_FAIL_IF(room_ == NULL, QUIRE_NOMEM);                                                 \
        (items) = room_;                                                                           \
        (slot) = &(items)[(n)++];                                                                  \
    } while (0)

/* ---- compiled rules ---- */

int quire_grammar_rule_new(quire_grammar_reader *r, uint32_t *compiled)
{
    quire_grammar *out = r->out;
    quire_grammar_rule *rule;

    *compiled = out->n_rules;
    APPEND(rule, out->rules, r->rules_cap, out->n_rules);
    *rule = (quire_grammar_rule){ 0, 0 };
    return QUIRE_OK;
}

int quire_grammar_open_add(quire_grammar_reader *r, quire_grammar_kind kind, uint32_t value)
{
    quire_grammar_element *element;

    APPEND(element, r->open, r->open_cap, r->n_open);
    *element = (quire_grammar_element){ kind, value };
    return QUIRE_OK;
}

/* Append a copy of n open elements, which begin at `begin`. */
static int open_copy(quire_grammar_reader *r, uint32_t begin, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const quire_grammar_element element = r->open[begin + i];

        QUIRE_TRY(quire_grammar_open_add(r, element.kind, element.value));
    }
    return QUIRE_OK;
}

static int element_add(quire_grammar_reader *r, quire_grammar_element element)
{
    quire_grammar *out = r->out;
    quire_grammar_element *slot;

    APPEND(slot, out->elements, r->elements_cap, out->n_elements);
    *slot = element;
    return QUIRE_OK;
}

static int alternative_add(quire_grammar_reader *r)
{
    quire_grammar *out = r->out;
    uint32_t *slot;

    APPEND(slot, out->alternatives, r->alternatives_cap, out->n_alternatives);
    *slot = out->n_elements;
    return QUIRE_OK;
}

int quire_grammar_rule_close(quire_grammar_reader *r, uint32_t compiled, uint32_t begin)
{
    static const quire_grammar_element end = { QUIRE_GRAMMAR_END, 0 };
    const uint32_t first = r->out->n_alternatives;

    QUIRE_TRY(alternative_add(r));
    for (uint32_t i = begin; i < r->n_open; i++) {
        if (r->open[i].kind == QUIRE_GRAMMAR_OR) {
            QUIRE_TRY(element_add(r, end));
            QUIRE_TRY(alternative_add(r));
        } else {
            QUIRE_TRY(element_add(r, r->open[i]));
        }
    }
    QUIRE_TRY(element_add(r, end));
    r->out->rules[compiled] = (quire_grammar_rule){ first, r->out->n_alternatives - first };
    r->n_open = begin;
    return QUIRE_OK;
}

/* A rule "body next |"; next: a rule, NONE = no rule, the rule itself if is_endless. */
static int rest_rule(quire_grammar_reader *r, uint32_t begin, uint32_t n_body, bool is_endless,
                     uint32_t *next)
{
    const uint32_t at = r->n_open;
    uint32_t compiled;

    QUIRE_TRY(quire_grammar_rule_new(r, &compiled));
    QUIRE_TRY(open_copy(r, begin, n_body));
    if (is_endless) {
        *next = compiled;
    }
    if (*next != QUIRE_GRAMMAR_NONE) {
        QUIRE_TRY(quire_grammar_open_add(r, QUIRE_GRAMMAR_RULE, *next));
    }
    QUIRE_TRY(quire_grammar_open_add(r, QUIRE_GRAMMAR_OR, 0));
    *next = compiled;
    return quire_grammar_rule_close(r, compiled, at);
}

int quire_grammar_open_repeat(quire_grammar_reader *r, uint32_t begin, uint64_t min, uint64_t max)
{
    const uint32_t n_body = r->n_open - begin;
    const bool is_endless = max == UINT64_MAX;
    uint32_t next = QUIRE_GRAMMAR_NONE;

    for (uint64_t i = 0; i < (is_endless ? 1 : max - min); i++) {
        QUIRE_TRY(rest_rule(r, begin, n_body, is_endless, &next));
    }
    if (min == 0) {
        r->n_open = begin;
    }
    for (uint64_t i = 1; i < min; i++) {
        QUIRE_TRY(open_copy(r, begin, n_body));
    }
    return next != QUIRE_GRAMMAR_NONE ? quire_grammar_open_add(r, QUIRE_GRAMMAR_RULE, next)
                                      : QUIRE_OK;
}

/* ---- sets ---- */

static int compare_ranges(const void *a, const void *b)
{
    const quire_grammar_range *left = a;
    const quire_grammar_range *right = b;

    return (left->low > right->low) - (left->low < right->low);
}

static int range_add(quire_grammar_reader *r, uint32_t low, uint32_t high)
{
    quire_grammar *out = r->out;
    quire_grammar_set *set = &out->sets[out->n_sets - 1];
    quire_grammar_range *range;

    APPEND(range, out->ranges, r->ranges_cap, out->n_ranges);
    *range = (quire_grammar_range){ low, high };
    set->n++;
    for (uint32_t c = low; c <= high && c < 128; c++) {
        set->ascii[c / 64] |= UINT64_C(1) << (c % 64);
    }
    return QUIRE_OK;
}

/* Put the ranges in order, joined where they touch. Returns their number. */
static uint32_t ranges_join(quire_grammar_range *ranges, uint32_t n)
{
    uint32_t n_joined = 0;

    if (n > 1) {
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    }
    for (uint32_t i = 0; i < n; i++) {
        quire_grammar_range *last = n_joined > 0 ? &ranges[n_joined - 1] : NULL;

        if (ranges[i].low > ranges[i].high) {
            continue; /* empty, as in llama.cpp */
        }
        if (last != NULL && (uint64_t)ranges[i].low <= (uint64_t)last->high + 1) {
            last->high = ranges[i].high > last->high ? ranges[i].high : last->high;
        } else {
            ranges[n_joined++] = ranges[i];
        }
    }
    return n_joined;
}

int quire_grammar_open_add_set(quire_grammar_reader *r, bool is_negated)
{
    quire_grammar *out = r->out;
    const uint32_t n = ranges_join(r->set, r->n_set);
    uint32_t low = CHAR_FIRST;
    quire_grammar_set *set;

    APPEND(set, out->sets, r->sets_cap, out->n_sets);
    *set = (quire_grammar_set){ out->n_ranges, 0, { 0, 0 } };
    for (uint32_t i = 0; i < n && low <= CHAR_LAST; i++) {
        const quire_grammar_range range = r->set[i];

        if (!is_negated) {
            QUIRE_TRY(range_add(r, range.low, range.high));
            continue;
        }
        if (range.low > low) {
            QUIRE_TRY(range_add(r, low, range.low - 1 < CHAR_LAST ? range.low - 1 : CHAR_LAST));
        }
        low = range.high < CHAR_LAST ? range.high + 1 : CHAR_LAST + 1;
    }
    if (is_negated && low <= CHAR_LAST) {
        QUIRE_TRY(range_add(r, low, CHAR_LAST));
    }
    r->n_set = 0;
    return quire_grammar_open_add(r, QUIRE_GRAMMAR_SET, out->n_sets - 1);
}

/* ---- beginnings of rules ---- */

static int refuse_rule(const quire_grammar_reader *r, int status, const quire_grammar_named *rule,
                       const char *what)
{
    const int n = rule->name_bytes < NAME_SHOWN ? (int)rule->name_bytes : NAME_SHOWN;

    return quire_error_set(r->err, status, "grammar: %s \"%.*s\" %s",
                           rule->name != NULL ? "rule" : "a group of rule", n,
                           rule->name != NULL ? rule->name : "", what);
}

/* Set is_nullable of a rule and of all rules that it can begin with. A rule that is met again on
 * the way is left-recursive, because every rule before it on the way can be empty there. */
static int rule_visit(quire_grammar_reader *r, uint32_t index, uint32_t depth)
{
    quire_grammar_named *rule = &r->rules[index];
    bool is_beginning = true;

    if (rule->visit == QUIRE_GRAMMAR_VISIT_DONE) {
        return QUIRE_OK;
    }
    if (rule->visit == QUIRE_GRAMMAR_VISIT_BEGUN) {
        return refuse_rule(r, QUIRE_INVAL, rule, "can begin with itself (left recursion)");
    }
    if (depth == QUIRE_GRAMMAR_DEPTH_MAX) {
        return refuse_rule(r, QUIRE_LIMIT, rule, "is behind too many rules that begin rules");
    }
    rule->visit = QUIRE_GRAMMAR_VISIT_BEGUN;
    for (uint32_t i = rule->first; i != QUIRE_GRAMMAR_NONE; i = r->items[i].next) {
        const quire_grammar_item item = r->items[i];

        if (item.kind == QUIRE_GRAMMAR_ITEM_OR) {
            rule->is_nullable = rule->is_nullable || is_beginning;
            is_beginning = true;
        } else if (is_beginning && item.kind == QUIRE_GRAMMAR_ITEM_RULE) {
            QUIRE_TRY(rule_visit(r, item.rule, depth + 1));
            is_beginning = item.is_optional || r->rules[item.rule].is_nullable;
        } else if (item.kind == QUIRE_GRAMMAR_ITEM_CHARS) {
            is_beginning = is_beginning && item.is_optional;
        }
    }
    rule->is_nullable = rule->is_nullable || is_beginning;
    rule->visit = QUIRE_GRAMMAR_VISIT_DONE;
    return QUIRE_OK;
}

int quire_grammar_judge(quire_grammar_reader *r)
{
    for (uint32_t i = 0; i < r->n_rules; i++) {
        QUIRE_TRY(rule_visit(r, i, 0));
    }
    return QUIRE_OK;
}
