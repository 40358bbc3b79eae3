/* grammar.c - reads GBNF as libllama does, and refuses grammars that harm libllama; see grammar.h.
 *
 * Groups are rules without a name. A repetition is not unrolled: its item has the number of
 * repetitions, and the cost of unrolling in libllama is added up.
 *
 * SPDX-License-Identifier: MIT */
#include "model/grammar.h"

#include "base/check.h"
#include "base/hash.h"
#include "model/model.h"
#include "model/text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE       UINT32_MAX
#define SLOTS      (2 * QUIRE_GRAMMAR_RULES_MAX)
#define NAME_SHOWN 64 /* bytes of a name in a message */

typedef enum item_kind {
    ITEM_CHARS, /* characters, at least one */
    ITEM_RULE,
    ITEM_OR /* between alternatives */
} item_kind;

typedef struct item {
    item_kind kind;
    uint32_t rule;
    bool is_optional;
    uint32_t copies; /* that unrolling makes of it */
    uint32_t next;   /* in its rule; NONE at the end */
} item;

typedef enum visit_state {
    VISIT_NEW,
    VISIT_BEGUN,
    VISIT_DONE
} visit_state;

typedef struct rule {
    const char *name; /* not terminated; NULL for a group */
    size_t name_bytes;
    const char *used_at; /* first reference */
    uint32_t first, last;
    bool is_defined;
    bool is_nullable;
    visit_state visit;
    uint64_t steps; /* libllama's, to look at all that it can begin with */
} rule;

typedef struct grammar {
    const char *text;
    const char *at;
    quire_error *err;
    rule rules[QUIRE_GRAMMAR_RULES_MAX];
    uint32_t n_rules;
    uint32_t slots[SLOTS]; /* rule + 1 by the hash of its name */
    item *items;
    uint32_t n_items, items_cap;
    uint64_t n_symbols;  /* rules as libllama numbers them, unrolled ones too */
    uint64_t n_elements; /* as it unrolls them */
    uint32_t depth;
} grammar;

/* The part that a repetition repeats: the last one of a sequence. */
typedef struct repeated {
    uint32_t item;       /* NONE: nothing there to be repeated */
    uint64_t n_elements; /* of one copy */
    uint64_t n_rules;    /* the rules of one copy, as libllama counts them to bound repetitions */
} repeated;

static int refuse(const grammar *g, int status, const char *where, const char *what)
{
    uint32_t line = 1, column = 1;

    for (const char *p = g->text; p < where; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    return quire_error_set(g->err, status, "grammar, line %" PRIu32 ", column %" PRIu32 ": %s",
                           line, column, what);
}

static int refuse_rule(const grammar *g, int status, const rule *r, const char *what)
{
    const int n = r->name_bytes < NAME_SHOWN ? (int)r->name_bytes : NAME_SHOWN;

    return quire_error_set(g->err, status, "grammar: %s \"%.*s\" %s",
                           r->name != NULL ? "rule" : "a group of rule", n,
                           r->name != NULL ? r->name : "", what);
}

/* ---- rules and items ---- */

static int rule_add(grammar *g, const char *name, size_t name_bytes, uint32_t *index)
{
    if (g->n_rules == QUIRE_GRAMMAR_RULES_MAX) {
        return quire_error_set(g->err, QUIRE_LIMIT, "grammar: more than %u rules and groups",
                               QUIRE_GRAMMAR_RULES_MAX);
    }
    *index = g->n_rules++;
    g->rules[*index] = (rule){ name, name_bytes, g->at, NONE, NONE, false, false, VISIT_NEW, 0 };
    g->n_symbols++;
    return QUIRE_OK;
}

static int rule_by_name(grammar *g, const char *name, size_t name_bytes, uint32_t *index)
{
    uint32_t slot = (uint32_t)(quire_hash_add(QUIRE_HASH_INIT, name, name_bytes) % SLOTS);

    for (; g->slots[slot] != 0; slot = (slot + 1) % SLOTS) {
        const rule *r = &g->rules[g->slots[slot] - 1];

        if (r->name_bytes == name_bytes && memcmp(r->name, name, name_bytes) == 0) {
            *index = g->slots[slot] - 1;
            return QUIRE_OK;
        }
    }
    QUIRE_TRY(rule_add(g, name, name_bytes, index));
    g->slots[slot] = *index + 1;
    return QUIRE_OK;
}

static int item_add(grammar *g, uint32_t owner, item_kind kind, uint32_t target)
{
    rule *r = &g->rules[owner];

    if (g->n_items == g->items_cap) {
        const uint32_t cap = g->items_cap > 0 ? 2 * g->items_cap : 256;
        item *items = realloc(g->items, cap * sizeof(*items));

        if (items == NULL) {
            return quire_error_set(g->err, QUIRE_NOMEM, "no memory for a grammar");
        }
        g->items = items;
        g->items_cap = cap;
    }
    g->items[g->n_items] = (item){ kind, target, false, 1, NONE };
    if (r->last == NONE) {
        r->first = g->n_items;
    } else {
        g->items[r->last].next = g->n_items;
    }
    r->last = g->n_items++;
    return QUIRE_OK;
}

static int elements_add(grammar *g, uint64_t n)
{
    g->n_elements += n;
    if (g->n_elements > QUIRE_GRAMMAR_ELEMENTS_MAX) {
        return refuse(g, QUIRE_LIMIT, g->at, "the grammar is too large with repetitions unrolled");
    }
    return QUIRE_OK;
}

/* ---- text ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c);
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void skip_space(grammar *g, bool over_lines)
{
    for (;; g->at++) {
        if (*g->at == '#') {
            g->at += strcspn(g->at, "\r\n");
        }
        if (*g->at != ' ' && *g->at != '\t' &&
            (!over_lines || (*g->at != '\r' && *g->at != '\n'))) {
            return;
        }
    }
}

static size_t name_length(const grammar *g)
{
    size_t n = 0;

    while (is_name_char(g->at[n])) {
        n++;
    }
    return n;
}

/* One character of a literal or set. The text is UTF-8, checked before. */
static int take_char(grammar *g)
{
    const unsigned char lead = (unsigned char)*g->at;
    int n_hex;

    if (lead == '\0') {
        return refuse(g, QUIRE_INVAL, g->at, "a literal or a set does not end");
    }
    if (lead != '\\') {
        g->at += lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        return QUIRE_OK;
    }
    if (g->at[1] == '\0' || strchr("xuUtrn\\\"[]-", g->at[1]) == NULL) {
        return refuse(g, QUIRE_INVAL, g->at, "this escape is unknown");
    }
    n_hex = g->at[1] == 'x' ? 2 : g->at[1] == 'u' ? 4 : g->at[1] == 'U' ? 8 : 0;
    g->at += 2;
    for (int i = 0; i < n_hex; i++, g->at++) {
        if (!is_hex(*g->at)) {
            return refuse(g, QUIRE_INVAL, g->at, "a hexadecimal digit is missing");
        }
    }
    return QUIRE_OK;
}

static int take_number(grammar *g, uint64_t *number)
{
    if (!is_digit(*g->at)) {
        return refuse(g, QUIRE_INVAL, g->at, "a number is missing");
    }
    *number = 0;
    for (const char *start = g->at; is_digit(*g->at); g->at++) {
        if (g->at - start >= 9) {
            return refuse(g, QUIRE_INVAL, start, "this number is too large");
        }
        *number = 10 * *number + (uint64_t)(*g->at - '0');
    }
    return QUIRE_OK;
}

/* ---- sequences ---- */

static int take_literal(grammar *g, uint64_t *n_elements)
{
    for (g->at++; *g->at != '"'; (*n_elements)++) {
        QUIRE_TRY(take_char(g));
    }
    g->at++;
    return QUIRE_OK;
}

static int take_set(grammar *g, uint64_t *n_elements)
{
    const char *start = g->at++;

    g->at += *g->at == '^';
    while (*g->at != ']') {
        QUIRE_TRY(take_char(g));
        ++*n_elements;
        if (g->at[0] == '-' && g->at[1] != ']') {
            g->at++;
            QUIRE_TRY(take_char(g));
            ++*n_elements;
        }
    }
    g->at++;
    return *n_elements > 0 ? QUIRE_OK : refuse(g, QUIRE_INVAL, start, "this set is empty");
}

static int take_alternatives(grammar *g, uint32_t owner, bool is_group);

static int take_group(grammar *g, uint32_t *group, uint64_t *n_rules)
{
    const char *start = g->at++;
    const uint64_t n_before = g->n_symbols;

    if (g->depth == QUIRE_GRAMMAR_DEPTH_MAX) {
        return refuse(g, QUIRE_LIMIT, start, "too many groups within groups");
    }
    skip_space(g, true);
    QUIRE_TRY(rule_add(g, NULL, 0, group));
    g->rules[*group].is_defined = true;
    g->depth++;
    QUIRE_TRY(take_alternatives(g, *group, true));
    g->depth--;
    if (*g->at != ')') {
        return refuse(g, QUIRE_INVAL, start, "this group has no end, or something before it");
    }
    g->at++;
    *n_rules = g->n_symbols - n_before;
    return QUIRE_OK;
}

/* The bounds of a repetition; *max UINT64_MAX = none. */
static int take_bounds(grammar *g, bool is_group, uint64_t *min, uint64_t *max)
{
    const char *start = g->at;
    const char kind = *g->at++;

    *min = kind == '+';
    *max = kind == '?' ? 1 : UINT64_MAX;
    if (kind == '{') {
        skip_space(g, is_group);
        QUIRE_TRY(take_number(g, min));
        skip_space(g, is_group);
        *max = *min;
        if (*g->at == ',') {
            g->at++;
            skip_space(g, is_group);
            *max = UINT64_MAX;
            if (is_digit(*g->at)) {
                QUIRE_TRY(take_number(g, max));
                skip_space(g, is_group);
            }
        }
        if (*g->at != '}') {
            return refuse(g, QUIRE_INVAL, g->at, "'}' is missing");
        }
        g->at++;
    }
    if (*max < *min) {
        return refuse(g, QUIRE_INVAL, start, "the larger bound comes first");
    }
    if (*min > QUIRE_GRAMMAR_REPEAT_MAX ||
        (*max != UINT64_MAX && *max > QUIRE_GRAMMAR_REPEAT_MAX)) {
        return refuse(g, QUIRE_LIMIT, start, "more than 2000 repetitions");
    }
    return QUIRE_OK;
}

static int take_repetition(grammar *g, bool is_group, repeated *what)
{
    const char *start = g->at;
    uint64_t min, max, total, n_rest;
    item *repeated_item;

    QUIRE_TRY(take_bounds(g, is_group, &min, &max));
    if (what->item == NONE) {
        return refuse(g, QUIRE_INVAL, start, "there is nothing to repeat");
    }
    if (max == 0) {
        return refuse(g, QUIRE_INVAL, start, "a repetition of nothing at all");
    }
    total = max != UINT64_MAX ? max : min > 0 ? min : 1;
    if (what->n_rules * total > QUIRE_GRAMMAR_REPEAT_MAX) {
        return refuse(g, QUIRE_LIMIT, start, "repetitions of what has repetitions: too many");
    }
    n_rest = max == UINT64_MAX ? 1 : max - min;
    g->n_symbols += n_rest;
    QUIRE_TRY(elements_add(g, (min > 0 ? min - 1 : 0) * what->n_elements +
                                  n_rest * (what->n_elements + 3) + 1));
    repeated_item = &g->items[what->item];
    repeated_item->is_optional = repeated_item->is_optional || min == 0;
    repeated_item->copies *= (uint32_t)(max == UINT64_MAX ? min + 1 : max);
    if (repeated_item->copies > QUIRE_GRAMMAR_ELEMENTS_MAX) { /* "a+++++" doubles with each */
        repeated_item->copies = QUIRE_GRAMMAR_ELEMENTS_MAX;
    }
    what->n_elements = (min * what->n_elements) + (n_rest > 0);
    what->n_rules *= total;
    return QUIRE_OK;
}

/* Parse one part that is no repetition. */
static int take_item(grammar *g, uint32_t owner, repeated *what)
{
    uint32_t target = NONE;

    *what = (repeated){ NONE, 0, 1 };
    if (*g->at == '"') {
        QUIRE_TRY(take_literal(g, &what->n_elements));
    } else if (*g->at == '[') {
        QUIRE_TRY(take_set(g, &what->n_elements));
    } else if (*g->at == '.') {
        g->at++;
        what->n_elements = 1;
    } else {
        what->n_elements = 1;
        if (*g->at == '(') {
            QUIRE_TRY(take_group(g, &target, &what->n_rules));
        } else {
            const size_t n = name_length(g);

            QUIRE_TRY(rule_by_name(g, g->at, n, &target));
            g->at += n;
        }
    }
    if (what->n_elements > 0) {
        QUIRE_TRY(item_add(g, owner, target == NONE ? ITEM_CHARS : ITEM_RULE, target));
        what->item = g->n_items - 1;
    }
    return elements_add(g, what->n_elements);
}

static int take_sequence(grammar *g, uint32_t owner, bool is_group)
{
    repeated what = { NONE, 0, 1 };

    for (;; skip_space(g, is_group)) {
        const char c = *g->at;

        if (c == '*' || c == '+' || c == '?' || c == '{') {
            QUIRE_TRY(take_repetition(g, is_group, &what));
        } else if (c == '"' || c == '[' || c == '.' || c == '(' || is_name_char(c)) {
            QUIRE_TRY(take_item(g, owner, &what));
        } else if (c == '<' || c == '!') {
            return refuse(g, QUIRE_INVAL, g->at, "references to tokens are not supported");
        } else {
            return QUIRE_OK;
        }
    }
}

static int take_alternatives(grammar *g, uint32_t owner, bool is_group)
{
    QUIRE_TRY(take_sequence(g, owner, is_group));
    while (*g->at == '|') {
        QUIRE_TRY(item_add(g, owner, ITEM_OR, NONE));
        g->at++;
        skip_space(g, true);
        QUIRE_TRY(take_sequence(g, owner, is_group));
    }
    return elements_add(g, 1);
}

static int take_rule(grammar *g)
{
    const char *start = g->at;
    const size_t n = name_length(g);
    uint32_t index = 0;

    if (n == 0) {
        return refuse(g, QUIRE_INVAL, start, "the name of a rule is missing (letters, digits, -)");
    }
    QUIRE_TRY(rule_by_name(g, start, n, &index));
    g->at += n;
    skip_space(g, false);
    if (strncmp(g->at, "::=", 3) != 0) {
        return refuse(g, QUIRE_INVAL, g->at, "'::=' is missing");
    }
    if (g->rules[index].is_defined) {
        return refuse(g, QUIRE_INVAL, start, "this rule is there already");
    }
    g->rules[index].is_defined = true;
    g->at += 3;
    skip_space(g, true);
    QUIRE_TRY(take_alternatives(g, index, false));
    if (*g->at != '\0' && *g->at != '\r' && *g->at != '\n') {
        return refuse(g, QUIRE_INVAL, g->at, "this is not understood");
    }
    skip_space(g, true);
    return QUIRE_OK;
}

static int grammar_parse(grammar *g)
{
    static const char root[] = "root";
    uint32_t index = 0;

    for (skip_space(g, true); *g->at != '\0';) {
        QUIRE_TRY(take_rule(g));
    }
    QUIRE_TRY(rule_by_name(g, root, strlen(root), &index));
    if (!g->rules[index].is_defined) {
        return quire_error_set(g->err, QUIRE_INVAL, "grammar: there is no rule \"root\"");
    }
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (!g->rules[i].is_defined) {
            return refuse(g, QUIRE_INVAL, g->rules[i].used_at, "this rule is nowhere defined");
        }
    }
    return QUIRE_OK;
}

/* ---- beginnings of rules ---- */

/* Set is_nullable and steps of a rule and of all rules that it can begin with. A rule that is met
 * again on the way is left-recursive, because every rule before it on the way can be empty
 * there. */
static int rule_visit(grammar *g, uint32_t index, uint32_t depth)
{
    rule *r = &g->rules[index];
    bool is_beginning = true;

    if (r->visit == VISIT_DONE) {
        return QUIRE_OK;
    }
    if (r->visit == VISIT_BEGUN) {
        return refuse_rule(g, QUIRE_INVAL, r, "can begin with itself (left recursion)");
    }
    if (depth == QUIRE_GRAMMAR_DEPTH_MAX) {
        return refuse_rule(g, QUIRE_LIMIT, r, "is behind too many rules that begin rules");
    }
    r->visit = VISIT_BEGUN;
    r->steps = 1;
    for (uint32_t i = r->first; i != NONE; i = g->items[i].next) {
        const item it = g->items[i];

        if (it.kind == ITEM_OR) {
            r->is_nullable = r->is_nullable || is_beginning;
            is_beginning = true;
        } else if (is_beginning && it.kind == ITEM_RULE) {
            const rule *target = &g->rules[it.rule];

            QUIRE_TRY(rule_visit(g, it.rule, depth + 1));
            r->steps += target->steps * (target->is_nullable ? it.copies : 1);
            is_beginning = it.is_optional || target->is_nullable;
        } else if (it.kind == ITEM_CHARS) {
            is_beginning = is_beginning && it.is_optional;
        }
        if (r->steps > QUIRE_GRAMMAR_STEPS_MAX) {
            return refuse_rule(g, QUIRE_LIMIT, r, "can begin in too many ways");
        }
    }
    r->is_nullable = r->is_nullable || is_beginning;
    r->visit = VISIT_DONE;
    return QUIRE_OK;
}

/* libllama begins at each rule that it has not met, including the unrolled rules of repetitions. */
static int grammar_judge(grammar *g)
{
    uint64_t steps = 0;

    for (uint32_t i = 0; i < g->n_rules; i++) {
        QUIRE_TRY(rule_visit(g, i, 0));
        steps += g->rules[i].steps;
    }
    for (uint32_t i = 0; i < g->n_items && steps <= QUIRE_GRAMMAR_STEPS_MAX; i++) {
        const item *it = &g->items[i];

        if (it->kind == ITEM_RULE && it->copies > 1) {
            const uint64_t n = g->rules[it->rule].is_nullable
                                   ? ((uint64_t)it->copies * it->copies + it->copies) / 2
                                   : it->copies;

            steps += n * g->rules[it->rule].steps;
        }
    }
    if (steps > QUIRE_GRAMMAR_STEPS_MAX) {
        return quire_error_set(g->err, QUIRE_LIMIT,
                               "grammar: its rules can begin in too many ways");
    }
    return QUIRE_OK;
}

int quire_grammar_check(const char *gbnf, quire_error *err)
{
    quire_utf8_stream utf8 = { 0 };
    const size_t n = strnlen(gbnf, QUIRE_GRAMMAR_BYTES_MAX + 1);
    grammar *g;
    int rc;

    if (n > QUIRE_GRAMMAR_BYTES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "grammar: more than %u bytes",
                               QUIRE_GRAMMAR_BYTES_MAX);
    }
    if (!quire_utf8_stream_skip(&utf8, gbnf, n) || utf8.n_held > 0) {
        return quire_error_set(err, QUIRE_INVAL, "grammar: the text is not UTF-8");
    }
    g = calloc(1, sizeof(*g));
    if (g == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a grammar");
    }
    g->text = g->at = gbnf;
    g->err = err;
    rc = grammar_parse(g);
    if (rc == QUIRE_OK) {
        rc = grammar_judge(g);
    }
    free(g->items);
    free(g);
    return rc;
}
