/* grammar.c - reads GBNF as llama.cpp does; see grammar.h.
 *
 * Groups are rules without a name. A repetition is one item, which says whether it can be empty,
 * and is unrolled in the compiled rules.
 *
 * SPDX-License-Identifier: MIT */
#include "model/grammar.h"
#include "model/grammar_internal.h"

#include "base/check.h"
#include "base/hash.h"
#include "model/model.h"
#include "model/text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE  QUIRE_GRAMMAR_NONE
#define SLOTS QUIRE_GRAMMAR_SLOTS

typedef quire_grammar_reader reader;

/* The part that a repetition repeats: the last one of a sequence. */
typedef struct repeated {
    uint32_t item;       /* NONE: nothing there to be repeated */
    uint64_t n_elements; /* of one copy */
    uint64_t n_rules;    /* the rules of one copy, as llama.cpp counts them to bound repetitions */
    uint32_t begin;      /* its first element among the open ones */
} repeated;

static int refuse(const reader *g, int status, const char *where, const char *what)
{
    uint32_t line = 1, column = 1;

    for (const char *p = g->text; p < where; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    return quire_error_set(g->err, status, "grammar, line %" PRIu32 ", column %" PRIu32 ": %s",
                           line, column, what);
}

/* ---- rules and items ---- */

static int rule_add(reader *g, const char *name, size_t name_bytes, uint32_t *index)
{
    quire_grammar_named *rule;

    if (g->n_rules == QUIRE_GRAMMAR_RULES_MAX) {
        return quire_error_set(g->err, QUIRE_LIMIT, "grammar: more than %u rules and groups",
                               QUIRE_GRAMMAR_RULES_MAX);
    }
    *index = g->n_rules++;
    rule = &g->rules[*index];
    *rule = (quire_grammar_named){
        .name = name, .name_bytes = name_bytes, .used_at = g->at, .first = NONE, .last = NONE
    };
    return quire_grammar_rule_new(g, &rule->compiled);
}

static int rule_by_name(reader *g, const char *name, size_t name_bytes, uint32_t *index)
{
    uint32_t slot = (uint32_t)(quire_hash_add(QUIRE_HASH_INIT, name, name_bytes) % SLOTS);

    for (; g->slots[slot] != 0; slot = (slot + 1) % SLOTS) {
        const quire_grammar_named *r = &g->rules[g->slots[slot] - 1];

        if (r->name_bytes == name_bytes && memcmp(r->name, name, name_bytes) == 0) {
            *index = g->slots[slot] - 1;
            return QUIRE_OK;
        }
    }
    QUIRE_TRY(rule_add(g, name, name_bytes, index));
    g->slots[slot] = *index + 1;
    return QUIRE_OK;
}

static int item_add(reader *g, uint32_t owner, quire_grammar_item_kind kind, uint32_t target)
{
    quire_grammar_named *rule = &g->rules[owner];
    void *items = quire_grammar_room(g->items, &g->items_cap, g->n_items, sizeof *g->items);

    QUIRE_FAIL_IF(items == NULL, QUIRE_NOMEM);
    g->items = items;
    g->items[g->n_items] = (quire_grammar_item){ kind, target, false, NONE };
    if (rule->last == NONE) {
        rule->first = g->n_items;
    } else {
        g->items[rule->last].next = g->n_items;
    }
    rule->last = g->n_items++;
    return QUIRE_OK;
}

static int elements_add(reader *g, uint64_t n)
{
    g->n_counted += n;
    if (g->n_counted > QUIRE_GRAMMAR_ELEMENTS_MAX) {
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

static void skip_space(reader *g, bool over_lines)
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

static size_t name_length(const reader *g)
{
    size_t n = 0;

    while (is_name_char(g->at[n])) {
        n++;
    }
    return n;
}

static uint32_t hex_value(char c)
{
    return is_digit(c) ? (uint32_t)(c - '0') : (uint32_t)((c | 0x20) - 'a') + 10;
}

static int take_escape(reader *g, uint32_t *c)
{
    static const char plain[] = "trn\\\"[]-", meant[] = "\t\r\n\\\"[]-";
    const char kind = g->at[1];
    const char *found = kind != '\0' ? strchr(plain, kind) : NULL;
    const int n_hex = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;

    if (found == NULL && n_hex == 0) {
        return refuse(g, QUIRE_INVAL, g->at, "this escape is unknown");
    }
    *c = found != NULL ? (uint32_t)meant[found - plain] : 0;
    g->at += 2;
    for (int i = 0; i < n_hex; i++, g->at++) {
        if (!is_hex(*g->at)) {
            return refuse(g, QUIRE_INVAL, g->at, "a hexadecimal digit is missing");
        }
        *c = *c << 4 | hex_value(*g->at);
    }
    return QUIRE_OK;
}

/* One character of a literal or set. The text is UTF-8, checked before. */
static int take_char(reader *g, uint32_t *c)
{
    const unsigned char lead = (unsigned char)*g->at;
    const int n_more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;

    if (lead == '\0') {
        return refuse(g, QUIRE_INVAL, g->at, "a literal or a set does not end");
    }
    if (lead == '\\') {
        return take_escape(g, c);
    }
    *c = n_more == 0 ? lead : lead & (0x3fu >> n_more);
    g->at++;
    for (int i = 0; i < n_more; i++, g->at++) {
        *c = *c << 6 | ((unsigned char)*g->at & 0x3fu);
    }
    return QUIRE_OK;
}

static int take_number(reader *g, uint64_t *number)
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

static int take_literal(reader *g, uint64_t *n_elements)
{
    uint32_t c = 0;

    for (g->at++; *g->at != '"'; (*n_elements)++) {
        QUIRE_TRY(take_char(g, &c));
        QUIRE_TRY(quire_grammar_open_add(g, QUIRE_GRAMMAR_CHAR, c));
    }
    g->at++;
    return QUIRE_OK;
}

static int set_add(reader *g, quire_grammar_range range)
{
    void *ranges = quire_grammar_room(g->set, &g->set_cap, g->n_set, sizeof *g->set);

    QUIRE_FAIL_IF(ranges == NULL, QUIRE_NOMEM);
    g->set = ranges;
    g->set[g->n_set++] = range;
    return QUIRE_OK;
}

static int take_set(reader *g, uint64_t *n_elements)
{
    const char *start = g->at++;
    const bool is_negated = *g->at == '^';

    g->at += is_negated;
    g->n_set = 0;
    while (*g->at != ']') {
        quire_grammar_range range = { 0, 0 };

        QUIRE_TRY(take_char(g, &range.low));
        range.high = range.low;
        ++*n_elements;
        if (g->at[0] == '-' && g->at[1] != ']') {
            g->at++;
            QUIRE_TRY(take_char(g, &range.high));
            ++*n_elements;
        }
        QUIRE_TRY(set_add(g, range));
    }
    g->at++;
    QUIRE_TRY(*n_elements > 0 ? QUIRE_OK : refuse(g, QUIRE_INVAL, start, "this set is empty"));
    return quire_grammar_open_add_set(g, is_negated);
}

static int take_any(reader *g, uint64_t *n_elements)
{
    g->at++;
    g->n_set = 0;
    *n_elements = 1;
    return quire_grammar_open_add_set(g, true); /* all but no character */
}

static int take_alternatives(reader *g, uint32_t owner, bool is_group);

static int take_group(reader *g, uint32_t *group, uint64_t *n_rules)
{
    const char *start = g->at++;
    const uint32_t n_before = g->out->n_rules;

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
    *n_rules = g->out->n_rules - n_before;
    return QUIRE_OK;
}

/* The bounds of a repetition; *max UINT64_MAX = none. */
static int take_bounds(reader *g, bool is_group, uint64_t *min, uint64_t *max)
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

static int take_repetition(reader *g, bool is_group, repeated *what)
{
    const char *start = g->at;
    uint64_t min, max, total, n_rest;
    quire_grammar_item *item;

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
    QUIRE_TRY(elements_add(g, (min > 0 ? min - 1 : 0) * what->n_elements +
                                  n_rest * (what->n_elements + 3) + 1));
    QUIRE_TRY(quire_grammar_open_repeat(g, what->begin, min, max));
    item = &g->items[what->item];
    item->is_optional = item->is_optional || min == 0;
    what->n_elements = (min * what->n_elements) + (n_rest > 0);
    what->n_rules *= total;
    return QUIRE_OK;
}

/* Parse one part that is no repetition. */
static int take_item(reader *g, uint32_t owner, repeated *what)
{
    uint32_t target = NONE;

    *what = (repeated){ NONE, 0, 1, g->n_open };
    if (*g->at == '"') {
        QUIRE_TRY(take_literal(g, &what->n_elements));
    } else if (*g->at == '[') {
        QUIRE_TRY(take_set(g, &what->n_elements));
    } else if (*g->at == '.') {
        QUIRE_TRY(take_any(g, &what->n_elements));
    } else {
        what->n_elements = 1;
        if (*g->at == '(') {
            QUIRE_TRY(take_group(g, &target, &what->n_rules));
        } else {
            const size_t n = name_length(g);

            QUIRE_TRY(rule_by_name(g, g->at, n, &target));
            g->at += n;
        }
        QUIRE_TRY(quire_grammar_open_add(g, QUIRE_GRAMMAR_RULE, g->rules[target].compiled));
    }
    if (what->n_elements > 0) {
        QUIRE_TRY(item_add(
            g, owner, target == NONE ? QUIRE_GRAMMAR_ITEM_CHARS : QUIRE_GRAMMAR_ITEM_RULE, target));
        what->item = g->n_items - 1;
    }
    return elements_add(g, what->n_elements);
}

static int take_sequence(reader *g, uint32_t owner, bool is_group)
{
    repeated what = { NONE, 0, 1, g->n_open };

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

static int take_alternatives(reader *g, uint32_t owner, bool is_group)
{
    const uint32_t begin = g->n_open;

    QUIRE_TRY(take_sequence(g, owner, is_group));
    while (*g->at == '|') {
        QUIRE_TRY(item_add(g, owner, QUIRE_GRAMMAR_ITEM_OR, NONE));
        QUIRE_TRY(quire_grammar_open_add(g, QUIRE_GRAMMAR_OR, 0));
        g->at++;
        skip_space(g, true);
        QUIRE_TRY(take_sequence(g, owner, is_group));
    }
    QUIRE_TRY(quire_grammar_rule_close(g, g->rules[owner].compiled, begin));
    return elements_add(g, 1);
}

static int take_rule(reader *g)
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

static int grammar_parse(reader *g)
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
    g->out->root = g->rules[index].compiled;
    return QUIRE_OK;
}

static int reader_run(reader *g, const char *gbnf, size_t n, quire_error *err)
{
    quire_utf8_stream utf8 = { 0 };

    if (!quire_utf8_stream_skip(&utf8, gbnf, n) || utf8.n_held > 0) {
        return quire_error_set(err, QUIRE_INVAL, "grammar: the text is not UTF-8");
    }
    g->text = g->at = gbnf;
    g->err = err;
    QUIRE_TRY(grammar_parse(g));
    return quire_grammar_judge(g);
}

int quire_grammar_create(quire_grammar **out, const char *gbnf, quire_error *err)
{
    const size_t n = strnlen(gbnf, QUIRE_GRAMMAR_BYTES_MAX + 1);
    reader *g;
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (n > QUIRE_GRAMMAR_BYTES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "grammar: more than %u bytes",
                               QUIRE_GRAMMAR_BYTES_MAX);
    }
    g = calloc(1, sizeof(*g));
    if (g != NULL) {
        g->out = calloc(1, sizeof(*g->out));
        rc = g->out != NULL ? reader_run(g, gbnf, n, err) : QUIRE_NOMEM;
        if (rc == QUIRE_OK) {
            *out = g->out;
        } else {
            quire_grammar_destroy(g->out);
        }
        free(g->items);
        free(g->open);
        free(g->set);
    }
    free(g);
    return rc != QUIRE_NOMEM ? rc : quire_error_set(err, rc, "no memory for a grammar");
}

void quire_grammar_destroy(quire_grammar *grammar)
{
    if (grammar == NULL) {
        return;
    }
    free(grammar->rules);
    free(grammar->elements);
    free(grammar->alternatives);
    free(grammar->sets);
    free(grammar->ranges);
    free(grammar);
}

int quire_grammar_check(const char *gbnf, quire_error *err)
{
    quire_grammar *grammar;
    const int rc = quire_grammar_create(&grammar, gbnf, err);

    quire_grammar_destroy(grammar);
    return rc;
}
