/* regex_grammar.c - see regex_grammar.h.
 *
 * One pass from left to right: each part of the expression is written as it is read, and its length
 * in characters is known when it ends.
 *
 * SPDX-License-Identifier: MIT */
#include "server/regex_grammar.h"

#include "base/check.h"
#include "server/char_set.h"

#include <inttypes.h>
#include <string.h>

#define UNBOUNDED UINT32_MAX

/* Lengths in characters. */
typedef struct size_range {
    uint32_t min, max;
} size_range;

/* The parts of the expression that stand in no group, and the one whose length is not fixed. */
typedef struct parts {
    uint32_t n, n_alternatives, n_variable;
    uint32_t variable; /* its place */
    uint32_t unit;     /* characters of what it repeats; 0: not fixed, or no repetition */
    uint32_t min, max; /* repetitions */
} parts;

typedef struct regex {
    const char *at;
    const quire_regex_opts *opts;
    quire_bytes *out;
    quire_regex_result *result;
    uint32_t depth;
    parts top;
    const parts *fit; /* of the first reading, with the bounds of its repetition; NULL = none */
} regex;

static int fail(regex *x, int status, const char *at, const char *why)
{
    x->result->why = why;
    x->result->at = at;
    return status;
}

static uint32_t sum(uint32_t a, uint32_t b)
{
    return a > UNBOUNDED - b ? UNBOUNDED : a + b;
}

static uint32_t product(uint32_t a, uint32_t b)
{
    return a != 0 && b > UNBOUNDED / a ? UNBOUNDED : a * b;
}

static int write_set(regex *x, quire_char_set *set, const char *at)
{
    const int rc = quire_char_set_write(set, x->opts->is_json, x->out);

    return rc == QUIRE_INVAL ? fail(x, rc, at, "no character of a text is in") : rc;
}

/* ---- characters ---- */

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef0123456789ABCDEF";
    const char *found = c != '\0' ? strchr(digits, c) : NULL;

    return found != NULL ? (int)((found - digits) % 16) : -1;
}

/* Read n hexadecimal digits, or with n = 0 the ones within braces. */
static int take_hex(regex *x, uint32_t n, uint32_t *c)
{
    const char *begin = x->at;
    const bool is_braced = n == 0;
    uint32_t i = 0;

    x->at += is_braced;
    for (*c = 0; i < (is_braced ? 6 : n) && hex_digit(*x->at) >= 0; i++, x->at++) {
        *c = 16 * *c + (uint32_t)hex_digit(*x->at);
    }
    if (i == 0 || (!is_braced && i < n) || (is_braced && *x->at++ != '}') || *c > QUIRE_CHAR_MAX) {
        return fail(x, QUIRE_INVAL, begin, "no character is");
    }
    return QUIRE_OK;
}

/* The character of an escape; x->at is behind the backslash. */
static int take_escape(regex *x, uint32_t *c)
{
    static const char letters[] = "tnrfv0", values[] = "\t\n\r\f\v";
    const char *begin = x->at - 1;
    const char letter = *x->at;
    const char *found = letter != '\0' ? strchr(letters, letter) : NULL;

    if (letter == '\0') {
        return fail(x, QUIRE_INVAL, begin, "nothing follows");
    }
    x->at++;
    if (found != NULL && letter != '0') {
        *c = (unsigned char)values[found - letters];
        return QUIRE_OK;
    }
    if (letter == 'x') {
        return take_hex(x, 2, c);
    }
    if (letter == 'u') {
        return take_hex(x, *x->at == '{' ? 0 : 4, c);
    }
    if (hex_digit(letter) >= 0 || (letter >= 'a' && letter <= 'z') ||
        (letter >= 'A' && letter <= 'Z')) {
        return fail(x, QUIRE_INVAL, begin, "not supported is the escape");
    }
    *c = (unsigned char)letter; /* punctuation stands for itself */
    return QUIRE_OK;
}

/* One character of the pattern, which is valid UTF-8. */
static uint32_t take_char(regex *x)
{
    const unsigned char lead = (unsigned char)*x->at++;
    uint32_t c = lead < 0x80   ? lead
                 : lead < 0xe0 ? lead & 0x1fu
                 : lead < 0xf0 ? lead & 0xfu
                               : lead & 7u;

    while (((unsigned char)*x->at & 0xc0u) == 0x80u) {
        c = c << 6 | ((unsigned char)*x->at++ & 0x3fu);
    }
    return c;
}

static bool is_class_letter(char c)
{
    return c != '\0' && strchr("dDwWsS", c) != NULL;
}

/* One member of a class: a character in *c, or a class of an escape, which is added. */
static int take_member(regex *x, quire_char_set *set, bool *is_class, uint32_t *c)
{
    *is_class = false;
    if (*x->at != '\\') {
        *c = take_char(x);
        return QUIRE_OK;
    }
    x->at++;
    if (is_class_letter(*x->at)) {
        *is_class = true;
        return quire_char_set_add_class(set, *x->at++);
    }
    if (*x->at == 'b') { /* within a class a backspace */
        x->at++;
        *c = '\b';
        return QUIRE_OK;
    }
    if (*x->at == '-') {
        x->at++;
        *c = '-';
        return QUIRE_OK;
    }
    return take_escape(x, c);
}

static int take_class(regex *x)
{
    const char *begin = x->at++;
    const bool is_inverted = *x->at == '^';
    quire_char_set set = { .n = 0 };

    x->at += is_inverted;
    while (*x->at != ']') {
        bool is_class, is_last_class = false;
        uint32_t first, last;

        if (*x->at == '\0') {
            return fail(x, QUIRE_INVAL, begin, "no ] ends");
        }
        QUIRE_TRY(take_member(x, &set, &is_class, &first));
        last = first;
        if (!is_class && x->at[0] == '-' && x->at[1] != ']' && x->at[1] != '\0') {
            x->at++;
            QUIRE_TRY(take_member(x, &set, &is_last_class, &last));
            if (is_last_class || last < first) {
                return fail(x, QUIRE_INVAL, begin, "a range of characters is wrong in");
            }
        }
        if (!is_class && quire_char_set_add(&set, first, last) < 0) {
            return fail(x, QUIRE_LIMIT, begin, "more than 128 ranges has");
        }
    }
    x->at++;
    if (is_inverted && quire_char_set_invert(&set) < 0) {
        return fail(x, QUIRE_LIMIT, begin, "more than 128 ranges has");
    }
    return write_set(x, &set, begin);
}

static int any_add(quire_char_set *set, bool has_line_ends)
{
    if (has_line_ends) {
        return quire_char_set_add(set, 1, QUIRE_CHAR_MAX);
    }
    QUIRE_TRY(quire_char_set_add(set, '\n', '\n'));
    QUIRE_TRY(quire_char_set_add(set, '\r', '\r'));
    QUIRE_TRY(quire_char_set_add(set, 0x2028, 0x2029));
    return quire_char_set_invert(set);
}

/* ---- parts ---- */

static int take_alternatives(regex *x, bool is_top, size_range *size);

static int take_group(regex *x, size_range *size)
{
    const char *begin = x->at++;

    if (x->depth == QUIRE_REGEX_DEPTH_MAX) {
        return fail(x, QUIRE_LIMIT, begin, "more than 32 groups within groups has");
    }
    if (x->at[0] == '?' && x->at[1] == ':') {
        x->at += 2;
    } else if (x->at[0] == '?' && x->at[1] == '<' && x->at[2] != '=' && x->at[2] != '!' &&
               strchr(x->at, '>') != NULL) {
        x->at = strchr(x->at, '>') + 1;
    } else if (x->at[0] == '?') {
        return fail(x, QUIRE_INVAL, begin, "not supported is the group");
    }
    x->depth++;
    QUIRE_TRY(take_alternatives(x, false, size));
    x->depth--;
    if (*x->at != ')') {
        return fail(x, QUIRE_INVAL, begin, "no ) ends");
    }
    x->at++;
    return QUIRE_OK;
}

/* One part without its repetition. */
static int take_part(regex *x, size_range *size)
{
    const char *begin = x->at;
    quire_char_set set = { .n = 0 };
    bool is_class = false;
    uint32_t c = 0;

    *size = (size_range){ 1, 1 };
    switch (*x->at) {
    case '(':
        return take_group(x, size);
    case '[':
        return take_class(x);
    case '.':
        x->at++;
        QUIRE_TRY(any_add(&set, false));
        return write_set(x, &set, begin);
    case '^':
        return fail(x, QUIRE_INVAL, begin, "only at the beginning of the pattern is supported");
    case '$':
        return fail(x, QUIRE_INVAL, begin, "only at the end of the pattern is supported");
    case '*':
    case '+':
    case '?':
        return fail(x, QUIRE_INVAL, begin, "there is nothing to repeat at");
    case '\\':
        if (is_class_letter(x->at[1])) {
            x->at += 2;
            is_class = true;
            QUIRE_TRY(quire_char_set_add_class(&set, x->at[-1]));
        } else {
            x->at++;
            QUIRE_TRY(take_escape(x, &c));
        }
        break;
    default:
        c = take_char(x);
    }
    if (!is_class) {
        QUIRE_TRY(quire_char_set_add(&set, c, c));
    }
    return write_set(x, &set, begin);
}

static bool take_number(regex *x, uint32_t *n)
{
    const char *begin = x->at;

    for (*n = 0; *x->at >= '0' && *x->at <= '9'; x->at++) {
        *n = *n < QUIRE_REGEX_REPEAT_MAX * 10 ? 10 * *n + (uint32_t)(*x->at - '0') : *n;
    }
    return x->at > begin;
}

/* The bounds of a repetition at x->at. False when there is none; a brace without numbers stands for
 * itself. */
static bool take_bounds(regex *x, uint32_t *min, uint32_t *max)
{
    const char *begin = x->at;

    *min = *x->at == '+';
    *max = *x->at == '?' ? 1 : UNBOUNDED;
    if (*x->at == '*' || *x->at == '+' || *x->at == '?') {
        x->at++;
        return true;
    }
    if (*x->at != '{') {
        return false;
    }
    x->at++;
    if (take_number(x, min)) {
        *max = *min;
        if (*x->at == ',') {
            x->at++;
            *max = UNBOUNDED;
            (void)(*x->at != '}' && take_number(x, max));
        }
        if (*x->at == '}') {
            x->at++;
            return true;
        }
    }
    x->at = begin;
    return false;
}

/* Note a repetition outside of groups; in the second reading its bounds are those that fit. */
static void note_repetition(regex *x, const size_range *unit, uint32_t *min, uint32_t *max)
{
    if (x->depth > 0 || *min == *max) {
        return;
    }
    x->top.variable = x->top.n;
    x->top.unit = unit->min == unit->max ? unit->min : 0;
    x->top.min = *min;
    x->top.max = *max;
    if (x->fit != NULL && x->fit->variable == x->top.n) {
        *min = x->fit->min;
        *max = x->fit->max;
    }
}

/* A part and its repetition. */
static int take_repeated(regex *x, size_range *size)
{
    const size_t n_before = x->out->n;
    const char *begin;
    uint32_t min, max;

    QUIRE_TRY(take_part(x, size));
    begin = x->at;
    if (!take_bounds(x, &min, &max)) {
        return quire_bytes_add(x->out, " ", 1);
    }
    x->at += *x->at == '?'; /* lazy: the same texts */
    if (*x->at == '*' || *x->at == '+' || *x->at == '?') {
        return fail(x, QUIRE_INVAL, x->at, "there is nothing to repeat at");
    }
    if (min > QUIRE_REGEX_REPEAT_MAX || (max != UNBOUNDED && max > QUIRE_REGEX_REPEAT_MAX)) {
        return fail(x, QUIRE_LIMIT, begin, "more than 2000 repetitions are");
    }
    if (max < min) {
        return fail(x, QUIRE_INVAL, begin, "the larger bound comes first in");
    }
    note_repetition(x, size, &min, &max);
    size->min = product(size->min, min);
    size->max = product(size->max, max);
    if (max == 0 && x->out->status == QUIRE_OK) {
        x->out->n = n_before;
        return quire_bytes_addf(x->out, "\"\" ");
    }
    if (max == UNBOUNDED) {
        return quire_bytes_addf(x->out, "{%" PRIu32 ",} ", min);
    }
    return quire_bytes_addf(x->out, "{%" PRIu32 ",%" PRIu32 "} ", min, max);
}

/* Any characters before or behind the pattern, unless ^ or $ stands there. */
static int pad(regex *x, size_range *size)
{
    quire_char_set set = { .n = 0 };

    if (x->opts->is_whole) {
        return QUIRE_OK;
    }
    size->max = UNBOUNDED;
    x->result->is_open = true;
    QUIRE_TRY(any_add(&set, true));
    QUIRE_TRY(write_set(x, &set, x->at));
    return quire_bytes_addf(x->out, "* ");
}

static int take_sequence(regex *x, bool is_top, size_range *size)
{
    bool ends = false;

    *size = (size_range){ 0, 0 };
    x->top.n_alternatives += is_top;
    if (is_top && *x->at == '^') {
        x->at++;
    } else if (is_top) {
        QUIRE_TRY(pad(x, size));
    }
    while (*x->at != '\0' && *x->at != '|' && *x->at != ')') {
        size_range part;

        if (is_top && x->at[0] == '$' && (x->at[1] == '\0' || x->at[1] == '|')) {
            x->at++;
            ends = true;
            break;
        }
        QUIRE_TRY(take_repeated(x, &part));
        x->top.n_variable += is_top && part.min != part.max;
        x->top.n += is_top;
        size->min = sum(size->min, part.min);
        size->max = sum(size->max, part.max);
    }
    (void)quire_bytes_addf(x->out, "\"\"");
    return is_top && !ends ? pad(x, size) : x->out->status;
}

static int take_alternatives(regex *x, bool is_top, size_range *size)
{
    (void)quire_bytes_addf(x->out, "(");
    QUIRE_TRY(take_sequence(x, is_top, size));
    while (*x->at == '|') {
        size_range other;

        x->at++;
        (void)quire_bytes_addf(x->out, " | ");
        QUIRE_TRY(take_sequence(x, is_top, &other));
        size->min = other.min < size->min ? other.min : size->min;
        size->max = other.max > size->max ? other.max : size->max;
    }
    return quire_bytes_addf(x->out, ")");
}

/* Read the expression once. */
static int expression_add(regex *x, const char *pattern)
{
    size_range size = { 0, 0 };
    int rc;

    *x->result = (quire_regex_result){ .at = pattern };
    x->at = pattern;
    x->top = (parts){ .unit = 0 };
    rc = take_alternatives(x, true, &size);
    if (rc == QUIRE_OK && *x->at == ')') {
        rc = fail(x, QUIRE_INVAL, x->at, "no ( begins what ends with");
    }
    if (rc == QUIRE_LIMIT && x->result->why == NULL) {
        x->result->why = "more than 128 ranges has";
    }
    x->result->chars_min = size.min;
    x->result->chars_max = size.max;
    return rc;
}

/* Bound the only repetition by the lengths of a text. False: there is nothing to bound, or it
 * cannot be bounded so. */
static bool fit(regex *x, parts *out)
{
    const quire_regex_opts *o = x->opts;
    const quire_regex_result *r = x->result;
    uint32_t fixed, least, most;

    *out = x->top;
    if (r->is_open || out->n_alternatives != 1 || out->n_variable != 1 || out->unit == 0 ||
        (r->chars_min >= o->length_min && r->chars_max <= o->length_max)) {
        return false;
    }
    fixed = r->chars_min - product(out->unit, out->min);
    if (o->length_max < fixed) {
        return false;
    }
    most = (o->length_max - fixed) / out->unit;
    least = o->length_min > fixed ? (o->length_min - fixed + out->unit - 1) / out->unit : 0;
    out->min = least > out->min ? least : out->min;
    out->max = most < out->max ? most : out->max;
    out->max = out->max != UNBOUNDED && out->max > QUIRE_REGEX_REPEAT_MAX ? QUIRE_REGEX_REPEAT_MAX
                                                                          : out->max;
    return out->min <= out->max && out->min <= QUIRE_REGEX_REPEAT_MAX;
}

int quire_regex_grammar(const char *pattern, const quire_regex_opts *opts, quire_bytes *gbnf,
                        quire_regex_result *result)
{
    regex x = { .at = pattern, .opts = opts, .out = gbnf, .result = result };
    const size_t n_before = gbnf->n;
    parts fitting;
    int rc;

    *result = (quire_regex_result){ .at = pattern };
    if (strlen(pattern) > QUIRE_REGEX_BYTES_MAX) {
        return fail(&x, QUIRE_LIMIT, pattern, "more than 4096 bytes has");
    }
    rc = expression_add(&x, pattern);
    if (rc == QUIRE_OK && opts->length_max > 0 && fit(&x, &fitting)) {
        gbnf->n = n_before;
        x.fit = &fitting;
        rc = expression_add(&x, pattern);
    }
    return rc;
}

static void escaped_add(quire_bytes *gbnf, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '\n':
            (void)quire_bytes_addf(gbnf, "\\n");
            break;
        case '\r':
            (void)quire_bytes_addf(gbnf, "\\r");
            break;
        case '"':
        case '\\':
            (void)quire_bytes_addf(gbnf, "\\");
            /* fall through */
        default:
            (void)quire_bytes_add(gbnf, text, 1);
        }
    }
}

int quire_grammar_literal_add(quire_bytes *gbnf, const char *quote, const char *text)
{
    (void)quire_bytes_addf(gbnf, "\"");
    escaped_add(gbnf, quote);
    escaped_add(gbnf, text);
    escaped_add(gbnf, quote);
    return quire_bytes_addf(gbnf, "\"");
}
