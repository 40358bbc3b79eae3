/* template_audit.c - see template_audit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/template_audit.h"

#include <stdio.h>
#include <string.h>

#define BLOCKS_MAX 64u
#define TEXT_MAX   1024u
/* A string in {% set %} counts as text that the template writes if it looks like a sentence. */
#define SENTENCE_BYTES_MIN 16u

typedef enum truth {
    TRUTH_NO,
    TRUTH_YES,
    TRUTH_UNKNOWN
} truth;

typedef struct block {
    bool was_active; /* outside of it */
    bool is_decided; /* a branch of it is taken for certain */
} block;

typedef struct audit {
    const char *rendered;
    block blocks[BLOCKS_MAX];
    size_t n_blocks;
    bool is_active;
    char *extra;
    size_t extra_bytes;
    bool has_extra;
} audit;

typedef struct span {
    const char *begin, *end;
} span;

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static span trimmed(span s)
{
    while (s.begin < s.end && is_space(*s.begin)) {
        s.begin++;
    }
    while (s.end > s.begin && is_space(s.end[-1])) {
        s.end--;
    }
    return s;
}

/* ---- texts ---- */

/* Look for a text in the rendering. */
static void text_look(audit *a, span text)
{
    char wanted[TEXT_MAX];
    size_t n;

    text = trimmed(text);
    n = (size_t)(text.end - text.begin);
    if (n == 0 || !a->is_active || a->has_extra) {
        return;
    }
    n = n < sizeof(wanted) ? n : sizeof(wanted) - 1;
    memcpy(wanted, text.begin, n);
    wanted[n] = '\0';
    if (strstr(a->rendered, wanted) != NULL) {
        return;
    }
    a->has_extra = true;
    (void)snprintf(a->extra, a->extra_bytes, "%s", wanted);
    for (char *c = a->extra; *c != '\0'; c++) {
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
    }
}

/* Read the string that begins at the quote, without its escapes; returns the place behind it. */
static const char *string_read(span in, char *out, size_t out_bytes, size_t *n_out)
{
    const char quote = *in.begin++;
    size_t n = 0;

    while (in.begin < in.end && *in.begin != quote) {
        char c = *in.begin++;

        if (c == '\\' && in.begin < in.end) {
            c = *in.begin++;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        if (n < out_bytes) {
            out[n++] = c;
        }
    }
    *n_out = n;
    return in.begin < in.end ? in.begin + 1 : in.end;
}

/* Whether a string is part of a comparison, judged by the characters before and behind it. */
static bool is_compared(span in, const char *begin, const char *behind)
{
    static const char *const operators[] = { "==", "!=", "in", "<", ">" };
    const span before = trimmed((span){ in.begin, begin });
    const span after = trimmed((span){ behind, in.end });

    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        const size_t n = strlen(operators[i]);

        if (((size_t)(before.end - before.begin) >= n &&
             memcmp(before.end - n, operators[i], n) == 0) ||
            ((size_t)(after.end - after.begin) >= n && memcmp(after.begin, operators[i], n) == 0)) {
            return true;
        }
    }
    return false;
}

/* The place behind the bracket that closes the bracket at begin. */
static const char *bracket_skip(span in)
{
    size_t depth = 0;

    while (in.begin < in.end) {
        const char c = *in.begin;
        char none[1];
        size_t n;

        if (c == '\'' || c == '"') {
            in.begin = string_read(in, none, 0, &n);
            continue;
        }
        depth += c == '(' || c == '[' || c == '{';
        depth -= c == ')' || c == ']' || c == '}';
        in.begin++;
        if (depth == 0) {
            break;
        }
    }
    return in.begin;
}

/* Look at the strings that an expression writes; strings in calls, indices and comparisons are left
 * out. */
static void expression_look(audit *a, span in, bool is_set)
{
    const char *at = in.begin;

    while (at < in.end) {
        const span rest = { at, in.end };
        const span before = trimmed((span){ in.begin, at });
        const bool is_argument =
            before.end > before.begin &&
            (is_word(before.end[-1]) || before.end[-1] == ')' || before.end[-1] == ']');

        if (*at == '\'' || *at == '"') {
            char text[TEXT_MAX];
            size_t n;
            const char *behind = string_read(rest, text, sizeof(text), &n);

            if (!is_compared(in, at, behind) &&
                (!is_set || (n >= SENTENCE_BYTES_MIN && memchr(text, ' ', n) != NULL))) {
                text_look(a, (span){ text, text + n });
            }
            at = behind;
        } else if (*at == '{' || ((*at == '(' || *at == '[') && is_argument)) {
            at = bracket_skip(rest);
        } else {
            at++;
        }
    }
}

/* ---- conditions ---- */

/* Names of inputs that no request of Quire has. */
static bool is_absent_name(const char *word, size_t n)
{
    static const char *const names[] = {
        "tools",
        "tool",
        "tool_calls",
        "tool_call",
        "tool_responses",
        "functions",
        "function",
        "documents",
        "builtin_tools",
        "custom_tools",
        "xml_tools",
        "image",
        "image_url",
        "video",
        "audio",
        "ipython",
        "developer",
        "thinking",
        "enable_thinking",
        "reasoning_content",
        "reasoning",
        "json_tools",
        "python_tools",
        "reasoning_effort",
        "add_vision_id",
        "tool_results",
        "function_call",
        "available_tools",
        "citation_options",
        "json_schema",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i]) == n && memcmp(names[i], word, n) == 0) {
            return true;
        }
    }
    return false;
}

static bool ends_with(span s, const char *text)
{
    const size_t n = strlen(text);

    return (size_t)(s.end - s.begin) >= n && memcmp(s.end - n, text, n) == 0;
}

static bool begins_with(span s, const char *text)
{
    const size_t n = strlen(text);

    return (size_t)(s.end - s.begin) >= n && memcmp(s.begin, text, n) == 0;
}

/* Whether a condition is true because the input named at word is missing: "not tools", "tools is
 * none", "role != 'tool'". */
static bool is_denied(span in, const char *word, size_t n)
{
    span before = { in.begin, word };
    span after = trimmed((span){ word + n, in.end });

    while (before.end > before.begin &&
           (is_word(before.end[-1]) || strchr(".['\"]", before.end[-1]) != NULL)) {
        before.end--;
    }
    before = trimmed(before);
    return ends_with(before, "not") || ends_with(before, "!=") || begins_with(after, "is none") ||
           begins_with(after, "is not defined") || begins_with(after, "is undefined") ||
           begins_with(after, "== none");
}

static bool has_word(span in, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = in.begin; at + n <= in.end; at++) {
        if (memcmp(at, word, n) == 0 && (at == in.begin || !is_word(at[-1])) &&
            (at + n == in.end || !is_word(at[n]))) {
            return true;
        }
    }
    return false;
}

static truth condition_truth(span in)
{
    bool is_asserted = false, has_denied = false;

    for (const char *at = in.begin; at < in.end;) {
        size_t n = 0;

        while (at + n < in.end && is_word(at[n])) {
            n++;
        }
        if (n > 0 && is_absent_name(at, n)) {
            if (is_denied(in, at, n)) {
                has_denied = true;
            } else {
                is_asserted = true;
            }
        }
        at += n > 0 ? n : 1;
    }
    if (is_asserted) {
        return has_word(in, "or") ? TRUTH_UNKNOWN : TRUTH_NO;
    }
    return has_denied && !has_word(in, "or") && !has_word(in, "and") ? TRUTH_YES : TRUTH_UNKNOWN;
}

/* ---- statements ---- */

static void block_begin(audit *a, truth holds)
{
    if (a->n_blocks < BLOCKS_MAX) {
        a->blocks[a->n_blocks] = (block){ a->is_active, holds == TRUTH_YES };
    }
    a->n_blocks++;
    a->is_active = a->is_active && holds != TRUTH_NO;
}

static void block_branch(audit *a, truth holds)
{
    block *b = a->n_blocks > 0 && a->n_blocks <= BLOCKS_MAX ? &a->blocks[a->n_blocks - 1] : NULL;

    if (b != NULL) {
        a->is_active = b->was_active && !b->is_decided && holds != TRUTH_NO;
        b->is_decided = b->is_decided || holds == TRUTH_YES;
    }
}

static void block_end(audit *a)
{
    if (a->n_blocks > 0) {
        a->n_blocks--;
        a->is_active = a->n_blocks < BLOCKS_MAX && a->blocks[a->n_blocks].was_active;
    }
}

static void statement_read(audit *a, span in)
{
    const char *equals;
    span word;

    in = trimmed(in);
    word = (span){ in.begin, in.begin };
    while (word.end < in.end && is_word(*word.end)) {
        word.end++;
    }
    in.begin = word.end;
    equals = memchr(in.begin, '=', (size_t)(in.end - in.begin));
    if (begins_with(word, "end")) {
        block_end(a);
    } else if (begins_with(word, "if") || begins_with(word, "for")) {
        block_begin(a, condition_truth(in));
    } else if (begins_with(word, "elif")) {
        block_branch(a, condition_truth(in));
    } else if (begins_with(word, "else")) {
        block_branch(a, TRUTH_UNKNOWN);
    } else if (begins_with(word, "macro") || begins_with(word, "call")) {
        block_begin(a, TRUTH_NO);
    } else if (begins_with(word, "set") && equals != NULL) {
        expression_look(a, (span){ equals + 1, in.end }, true);
    } else if (begins_with(word, "set") || begins_with(word, "filter") ||
               begins_with(word, "generation")) {
        block_begin(a, TRUTH_UNKNOWN);
    }
}

/* The content of the tag at begin, and its end. */
static const char *tag_read(audit *a, const char *begin, const char *end)
{
    const char kind = begin[1];
    const char close[3] = { kind == '{' ? '}' : kind, '}', '\0' };
    const char *at = begin + 2;
    span in;

    while (at < end && strncmp(at, close, 2) != 0) {
        char none[1];
        size_t n;

        at = kind != '#' && (*at == '\'' || *at == '"')
                 ? string_read((span){ at, end }, none, 0, &n)
                 : at + 1;
    }
    in = (span){ begin + 2, at < end ? at : end };
    in.begin += in.begin < in.end && (*in.begin == '-' || *in.begin == '+');
    in.end -= in.end > in.begin && in.end[-1] == '-';
    if (kind == '{') {
        expression_look(a, in, false);
    } else if (kind == '%') {
        statement_read(a, in);
    }
    return at < end ? at + 2 : end;
}

bool quire_template_has_extra(const char *chat_template, const char *rendered, char *extra,
                              size_t extra_bytes)
{
    audit a = {
        .rendered = rendered, .is_active = true, .extra = extra, .extra_bytes = extra_bytes
    };
    const char *end = chat_template + strlen(chat_template);
    const char *at = chat_template;

    while (at < end) {
        const char *tag = at;

        while (tag < end && (*tag != '{' || strchr("{%#", tag[1]) == NULL || tag[1] == '\0')) {
            tag++;
        }
        text_look(&a, (span){ at, tag });
        at = tag < end ? tag_read(&a, tag, end) : end;
    }
    return a.has_extra;
}
