/* json_schema_formats.c - "format" and "pattern" of strings.
 *
 * A format is a regular expression here, whose texts are all of the format, though not conversely:
 * no leap second, no quoted local part of an e-mail address.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_schema_internal.h"

#include "base/check.h"
#include "server/regex_grammar.h"

#include <string.h>

/* Of all years, but for the 29th of February. */
#define DAY                                                                                        \
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"       \
    "02-(0[1-9]|1[0-9]|2[0-8]))"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
#define DATE "(" DAY "|" LEAP ")"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  BYTE "(\\." BYTE "){3}"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define SHORT "[a-zA-Z0-9]([a-zA-Z0-9-]{0,22}[a-zA-Z0-9])?"
/* At most 253 characters (RFC 1123, 2.1). */
#define HOST "(" LABEL "(\\." LABEL "){0,2}|" SHORT "(\\." SHORT "){3,9})"
/* All groups, or one pair of colons in place of groups. */
#define GROUP "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                       \
    "(" GROUP "(:" GROUP "){7}|::(" GROUP "(:" GROUP "){0,5})?|" GROUP ":(:" GROUP "){1,5}|"       \
    "(" GROUP ":){1,6}:)"
/* At most 64 characters (RFC 5321, 4.5.3.1.1). */
#define ATOM "[a-zA-Z0-9_+-]"
#define MAILBOX                                                                                    \
    "(" ATOM "{1,64}|" ATOM "{1,31}\\." ATOM "{1,32}|" ATOM "{1,20}(\\." ATOM "{1,20}){2}|" ATOM   \
    "{1,5}(\\." ATOM "{1,5}){3,9})"
/* Mail goes to a host with a domain, whose last label is a name (RFC 3696, 2). */
#define MAIL_HOST "((" LABEL "\\.){1,2}|(" SHORT "\\.){3,8})[a-zA-Z]([a-zA-Z0-9-]{0,22}[a-zA-Z])"
#define URI_CHAR  "([a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9a-fA-F]{2})"
#define URI_FIRST "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})" /* no slash */
#define URI_REST  "(\\?(" URI_CHAR "|\\?)*)?(#(" URI_CHAR "|\\?)*)?"
#define URI_TAIL  URI_CHAR "*" URI_REST
/* A user, a host and a port, or none before a path: RFC 3986, 3.2. A path begins with two slashes
 * behind these alone. The arguments are repetitions. */
#define URI_USER "([a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})"
#define URI(user, path, query, fragment)                                                           \
    "^[a-zA-Z][a-zA-Z0-9+.-]{0,15}:(//((" URI_USER user                                            \
    "@)?[a-zA-Z0-9._-]{1,253}(:[0-9]{1,5})?(/" URI_CHAR path ")?|/" URI_CHAR path                  \
    ")|/(" URI_FIRST URI_CHAR path ")?|" URI_FIRST URI_CHAR path ")(\\?(" URI_CHAR "|\\?)" query   \
    ")?(#(" URI_CHAR "|\\?)" fragment ")?$"
/* At most 2,037 characters; browsers and Pydantic take 2,048 or 2,083. */
#define URI_SHORT URI("{0,20}", "{0,300}", "{0,215}", "{0,50}")
#define NUMBER    "[0-9]{1,9}"
#define DAYS      "(" NUMBER "Y(" NUMBER "M)?(" NUMBER "D)?|" NUMBER "M(" NUMBER "D)?|" NUMBER "D)"
#define HOURS     "T(" NUMBER "H(" NUMBER "M)?(" NUMBER "S)?|" NUMBER "M(" NUMBER "S)?|" NUMBER "S)"
#define DURATION  "P(" NUMBER "W|" DAYS "(" HOURS ")?|" HOURS ")"

static const struct {
    const char *name, *regex;
} formats[] = {
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "date-time", "^" DATE "T" TIME "$" },
    { "duration", "^" DURATION "$" },
    { "email", "^" MAILBOX "@" MAIL_HOST "$" },
    { "hostname", "^" HOST "$" },
    { "ipv4", "^" IPV4 "$" },
    { "ipv6", "^" IPV6 "$" },
    { "uri", URI("*", "*", "*", "*") },
    { "uri-reference", "^([a-zA-Z][a-zA-Z0-9+.-]{0,15}:|/)?"
                       "[a-zA-Z0-9._~-]" URI_TAIL "$" },
    { "uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$" },
};

/* Formats of OpenAPI and Pydantic that any text has. */
static bool is_any_text(const char *format)
{
    static const char *const names[] = { "binary", "password", "path" };

    for (size_t i = 0; format != NULL && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], format) == 0) {
            return true;
        }
    }
    return false;
}

/* Patterns with look-ahead that libraries write, and expressions whose texts all match them. */
static const struct {
    const char *pattern, *regex;
} patterns[] = {
    /* Pydantic's Decimal */
    { "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "^[+-]?[0-9]{1,16}(\\.[0-9]{1,16})?$" },
};

static const char *pattern_regex(const char *pattern)
{
    for (size_t i = 0; pattern != NULL && i < sizeof patterns / sizeof patterns[0]; i++) {
        if (strcmp(patterns[i].pattern, pattern) == 0) {
            return patterns[i].regex;
        }
    }
    return pattern;
}

static const char *format_regex(const char *format)
{
    for (size_t i = 0; format != NULL && i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i].name, format) == 0) {
            return formats[i].regex;
        }
    }
    return NULL;
}

const char *quire_schema_regex(const json_t *schema)
{
    const json_t *pattern = json_object_get(schema, "pattern");

    return pattern != NULL ? pattern_regex(json_string_value(pattern))
                           : format_regex(json_string_value(json_object_get(schema, "format")));
}

static int refuse_regex(const schema_maker *m, const schema_place *p, int rc,
                        const quire_regex_result *result)
{
    quire_bytes what = { 0 };

    if (result->why == NULL) {
        return QUIRE_NOMEM;
    }
    (void)quire_bytes_addf(&what, "pattern: %s", result->why);
    rc = quire_schema_refuse(m, rc, p, what.data != NULL ? what.data : "", result->at);
    quire_bytes_fini(&what);
    return rc;
}

/* Whether a format may stand beside a pattern, which is compiled: a note, as zod writes it, beside
 * a pattern that says all of the text, or one that nobody knows. NULL: there is no format. */
static bool is_beside(const json_t *format, const quire_regex_result *pattern)
{
    return format == NULL ||
           (json_is_string(format) &&
            (!pattern->is_open || format_regex(json_string_value(format)) == NULL));
}

int quire_schema_pattern_add(schema_maker *m, const json_t *schema, const schema_place *p,
                             const char *key, const schema_bounds *length, quire_bytes *text)
{
    const quire_regex_opts opts = { .is_json = true,
                                    .length_min = length->min,
                                    .length_max = length->max };
    const char *value = json_string_value(json_object_get(schema, key));
    const bool is_pattern = strcmp(key, "pattern") == 0;
    const bool is_short = length->max != UINT32_MAX && value != NULL && strcmp(value, "uri") == 0;
    const char *regex = is_pattern ? pattern_regex(value)
                        : is_short ? URI_SHORT
                                   : format_regex(value);
    const json_t *format = is_pattern ? json_object_get(schema, "format") : NULL;
    quire_regex_result result;
    int rc;

    if (!is_pattern && is_any_text(value)) {
        return quire_schema_length_add(length, text);
    }
    if (regex == NULL) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not supported is the format",
                                   value != NULL ? value : "that is no string");
    }
    (void)quire_bytes_addf(text, "\"\\\"\" ");
    rc = quire_regex_grammar(regex, &opts, text, &result);
    if (rc < 0) {
        return refuse_regex(m, p, rc, &result);
    }
    if (!m->skips_unknown && !is_beside(format, &result)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "beside this pattern there cannot be",
                                   "format");
    }
    if (!m->skips_unknown && (result.chars_min < length->min || result.chars_max > length->max)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p,
                                   "minLength or maxLength forbids texts that it allows:", key);
    }
    return quire_bytes_addf(text, " \"\\\"\"");
}
