/* json_in.c - see json_in.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_in.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS  "9223372036854775807"
#define MIN_DIGITS  "9223372036854775808" /* behind a minus */
#define LIMIT_CHARS (sizeof MAX_DIGITS - 1)

static bool is_large(const char *digits, size_t n, bool is_negative)
{
    return n > LIMIT_CHARS ||
           (n == LIMIT_CHARS && memcmp(digits, is_negative ? MIN_DIGITS : MAX_DIGITS, n) > 0);
}

/* Write the integer as a real in as many characters, so that places in errors stay right: its last
 * two digits become an exponent. They are beyond a double's precision. */
static void number_shorten(char *number, size_t n)
{
    const size_t n_sign = number[0] == '-' ? 1 : 0;
    size_t n_digits = 0;

    while (n_sign + n_digits < n && isdigit((unsigned char)number[n_sign + n_digits])) {
        n_digits++;
    }
    if (n_sign + n_digits == n && is_large(number + n_sign, n_digits, n_sign > 0)) {
        memcpy(number + n - 2, "e2", 2);
    }
}

static size_t string_chars(const char *text, size_t n)
{
    size_t i = 1;

    while (i < n && text[i] != '"') {
        i += text[i] == '\\' ? 2 : 1;
    }
    return i < n ? i + 1 : n;
}

static size_t number_chars(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && text[i] != '\0' && strchr("+-.0123456789Ee", text[i]) != NULL) {
        i++;
    }
    return i;
}

static void integers_shorten(char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (text[i] == '"') {
            i += string_chars(text + i, n - i);
        } else if (text[i] == '-' || isdigit((unsigned char)text[i])) {
            const size_t n_number = number_chars(text + i, n - i);

            number_shorten(text + i, n_number);
            i += n_number;
        } else {
            i++;
        }
    }
}

json_t *quire_json_read(const char *text, size_t n, size_t flags, json_error_t *error)
{
    json_t *root = json_loadb(text, n, flags, error);
    char *copy;

    if (root != NULL || text == NULL || json_error_code(error) != json_error_numeric_overflow) {
        return root;
    }
    copy = malloc(n);
    if (copy == NULL) {
        error->text[0] = '\0'; /* as jansson without memory */
        return NULL;
    }
    memcpy(copy, text, n);
    integers_shorten(copy, n);
    root = json_loadb(copy, n, flags, error);
    free(copy);
    return root;
}
