/* fields_near.c - fields of a request whose names are nearly those of others; see fields.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/fields.h"

#include "base/parse.h"

#include <string.h>

#define EDITS_MAX 2u
#define FIELD_MIN 4u /* bytes: shorter names are like too many others */
#define FIELD_MAX 32u
#define LOOKS_MAX 64u /* unknown fields that are compared: a body may have many */

static bool is_asked(const quire_fields_asked *asked, const char *name)
{
    for (uint32_t i = 0; i < asked->n; i++) {
        if (strcmp(asked->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* The names that were asked for and are not there. Returns their number. */
static uint32_t absent_list(const quire_fields *fields, const char *out[QUIRE_FIELDS_ASKED_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < fields->asked->n; i++) {
        if (json_object_get(fields->object, fields->asked->names[i]) == NULL) {
            out[n++] = fields->asked->names[i];
        }
    }
    return n;
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static void add(char out[QUIRE_FIELDS_NEAR_BYTES], const char *name)
{
    size_t n = strlen(out);

    if (n > 0) {
        out[n++] = ',';
    }
    for (; *name != '\0'; name++) {
        out[n++] = is_plain(*name) ? *name : '?';
    }
    out[n] = '\0';
}

void quire_fields_near(const quire_fields *fields, char out[QUIRE_FIELDS_NEAR_BYTES])
{
    const char *absent[QUIRE_FIELDS_ASKED_MAX];
    uint32_t n_absent = 0, n_looks = 0, n = 0;
    const char *name;
    json_t *value;

    _Static_assert(QUIRE_FIELDS_NEAR_MAX * (FIELD_MAX + 1) <= QUIRE_FIELDS_NEAR_BYTES, "room");
    out[0] = '\0';
    json_object_foreach(fields->object, name, value)
    {
        const size_t n_bytes = strlen(name);

        if (n == QUIRE_FIELDS_NEAR_MAX || n_looks == LOOKS_MAX || json_is_null(value) ||
            n_bytes < FIELD_MIN || n_bytes > FIELD_MAX || is_asked(fields->asked, name)) {
            continue;
        }
        n_absent = n_looks++ > 0 ? n_absent : absent_list(fields, absent);
        if (quire_nearest_within(name, absent, n_absent, EDITS_MAX) != NULL) {
            add(out, name);
            n++;
        }
    }
}
