/* json_complete.c - see json_complete.h.
 *
 * The text is cut behind its last whole part, and what is open there is closed. The scan looks at
 * no more than it needs for that: whether the result is JSON, the reader of JSON says.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_complete.h"

#include "base/bytes.h"
#include "base/check.h"
#include "server/json_in.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 256u
#define BLANKS    " \t\r\n"
#define NONE      SIZE_MAX

typedef struct scan {
    const char *text;
    size_t n, at;
    char closing[DEPTH_MAX]; /* of the open lists and objects */
    size_t cut[DEPTH_MAX];   /* behind the last whole member of each */
    unsigned depth;
    bool is_value; /* what comes next in an object is no name */
} scan;

static void part_end(scan *s)
{
    if (s->depth > 0 && (s->is_value || s->closing[s->depth - 1] == ']')) {
        s->cut[s->depth - 1] = s->at;
    }
}

/* The bytes of an escape at text[at], both halves of a pair together. 0: it is not whole. */
static size_t escape_bytes(const scan *s, size_t at)
{
    size_t n = s->text[at + 1 < s->n ? at + 1 : at] == 'u' ? 6 : 2;

    if (n == 6 && at + 4 <= s->n && strchr("dD", s->text[at + 2]) != NULL &&
        strchr("89abAB", s->text[at + 3]) != NULL) {
        n = 12;
    }
    return at + n <= s->n ? n : 0;
}

/* Read a string. False: it does not end; *end is behind its last whole escape or byte. */
static bool string_take(scan *s, size_t *end)
{
    for (s->at++; s->at < s->n && s->text[s->at] != '"';) {
        const size_t n = s->text[s->at] == '\\' ? escape_bytes(s, s->at) : 1;

        *end = s->at;
        if (n == 0) {
            return false;
        }
        s->at += n;
    }
    *end = s->at;
    s->at += s->at < s->n;
    return *end < s->n;
}

/* How much of a number or word at the end of the text is a value by itself; 0: nothing yet. NONE:
 * it begins no value. */
static size_t literal_whole(const char *text, size_t n)
{
    static const char *const words[] = { "true", "false", "null" };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (n <= strlen(words[i]) && memcmp(text, words[i], n) == 0) {
            return n == strlen(words[i]) ? n : 0;
        }
    }
    if (strchr("-0123456789", text[0]) == NULL) {
        return NONE;
    }
    while (n > 0 && (text[n - 1] < '0' || text[n - 1] > '9')) {
        n--;
    }
    return n;
}

static bool open_add(scan *s, char closing, size_t *end)
{
    if (s->depth == DEPTH_MAX) {
        *end = NONE;
        return false;
    }
    s->at++;
    s->closing[s->depth] = closing;
    s->cut[s->depth++] = s->at;
    s->is_value = false;
    return true;
}

/* Read the next part. False: the text ends in it; *end is where the text is to be cut, NONE: it is
 * no part; *closes how the part ends. */
static bool part_take(scan *s, size_t *end, const char **closes)
{
    const bool is_value = s->is_value || (s->depth > 0 && s->closing[s->depth - 1] == ']');
    const size_t begin = s->at, cut = s->depth > 0 ? s->cut[s->depth - 1] : 0;
    size_t n;

    switch (s->text[s->at]) {
    case '{':
        return open_add(s, '}', end);
    case '[':
        return open_add(s, ']', end);
    case '}':
    case ']':
        s->depth--;
        s->is_value = true; /* of the object around it */
        s->at++;
        part_end(s);
        return true;
    case ',':
    case ':':
        s->is_value = s->text[s->at++] == ':';
        return true;
    case '"':
        if (string_take(s, end)) {
            part_end(s);
            return true;
        }
        *closes = is_value ? "\"" : "";
        *end = is_value ? *end : cut;
        return false;
    default:
        s->at += strcspn(s->text + s->at, ",:{}[]\" \t\r\n");
        if (s->at < s->n) {
            part_end(s);
            return true;
        }
        n = is_value ? literal_whole(s->text + begin, s->n - begin) : NONE;
        *end = n == NONE ? NONE : n > 0 ? begin + n : cut;
        return false;
    }
}

char *quire_json_complete(const char *text)
{
    scan s = { .text = text, .n = strlen(text), .at = strspn(text, BLANKS), .is_value = true };
    const char *closes = "";
    quire_bytes out = { 0 };
    size_t end = 0;
    json_error_t error;
    json_t *value;

    if (s.at < s.n && text[s.at] != '{') {
        return NULL;
    }
    (void)quire_bytes_addf(&out, "%s", s.at == s.n ? "{}" : "");
    while (s.at < s.n && part_take(&s, &end, &closes)) {
        end = s.depth > 0 ? s.cut[s.depth - 1] : s.at;
        s.at += strspn(text + s.at, BLANKS);
        end = s.depth == 0 && s.at < s.n ? NONE : end; /* more behind the object */
        if (end == NONE) {
            break;
        }
    }
    if (end != NONE) {
        (void)quire_bytes_add(&out, text, end);
        (void)quire_bytes_addf(&out, "%s", closes);
    }
    while (s.depth > 0 && end != NONE) {
        (void)quire_bytes_addf(&out, "%c", s.closing[--s.depth]);
    }
    value =
        out.status == QUIRE_OK && out.n > 0 ? quire_json_read(out.data, out.n, 0, &error) : NULL;
    if (value == NULL) {
        quire_bytes_fini(&out);
        return NULL;
    }
    json_decref(value);
    return out.data;
}
