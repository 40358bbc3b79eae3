/* sim_classes.c - parsing classes, and finding them in a trace.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/sim_classes.h"

#include "base/check.h"
#include "base/parse.h"

#include <stdio.h>
#include <string.h>

#define PARTS_MAX 4u
#define PART_MAX  64u

/* "a:b:c" into its parts; 0 when there are too many, or one is too long or empty. */
static uint32_t parts_split(const char *text, size_t n, char parts[PARTS_MAX][PART_MAX])
{
    uint32_t count = 0;
    const char *end = text + n;

    for (;;) {
        const char *colon = memchr(text, ':', (size_t)(end - text));
        size_t length = (size_t)((colon != NULL ? colon : end) - text);

        if (count == PARTS_MAX || length == 0 || length >= PART_MAX) {
            return 0;
        }
        memcpy(parts[count], text, length);
        parts[count][length] = '\0';
        count++;
        if (colon == NULL) {
            return count;
        }
        text = colon + 1;
    }
}

static int class_parse(quire_sim_class *out, const char *text, size_t n, quire_error *err)
{
    char parts[PARTS_MAX][PART_MAX];
    uint32_t n_parts = parts_split(text, n, parts);
    int64_t rank = 0;

    memset(out, 0, sizeof(*out));
    if (n_parts < 2 || quire_parse_i64(parts[1], 0, QUIRE_RANKS_MAX - 1, &rank) < 0 ||
        (n_parts > 2 && quire_parse_f64(parts[2], 0.0, 1.0, &out->pinned_share) < 0) ||
        (n_parts > 3 && quire_parse_duration(parts[3], &out->ttl_us) < 0)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--classes '%.*s': it takes NAME:RANK[:SHARE[:TTL]], a rank from 0 "
                               "to %u, a share from 0 to 1, a time such as 30s",
                               (int)(n < 80 ? n : 80), text, QUIRE_RANKS_MAX - 1);
    }
    (void)snprintf(out->name, sizeof(out->name), "%s", parts[0]);
    out->rank = (uint8_t)rank;
    return QUIRE_OK;
}

int quire_sim_classes_parse(quire_sim_classes *out, const char *text, quire_error *err)
{
    double shares = 0.0;

    memset(out, 0, sizeof(*out));
    while (text != NULL) {
        size_t n = strcspn(text, ",");

        if (out->n == QUIRE_TRACE_CLASSES_MAX) {
            return quire_error_set(err, QUIRE_LIMIT, "--classes: more than %u",
                                   QUIRE_TRACE_CLASSES_MAX);
        }
        QUIRE_TRY(class_parse(&out->list[out->n], text, n, err));
        shares += out->list[out->n].pinned_share;
        out->n++;
        text = text[n] == ',' ? text + n + 1 : NULL;
    }
    if (shares > 0.95) {
        return quire_error_set(err, QUIRE_RANGE,
                               "--classes: %.0f %% of the cache are reserved, at most 95 can be",
                               100.0 * shares);
    }
    return QUIRE_OK;
}

int quire_sim_classes_match(quire_sim_classes *classes, const quire_trace *trace, quire_error *err)
{
    quire_sim_classes given = *classes;

    if (given.n == 0) {
        return QUIRE_OK;
    }
    memset(classes, 0, sizeof(*classes));
    classes->n = trace->n_classes;
    for (uint32_t i = 0; i < classes->n; i++) {
        (void)snprintf(classes->list[i].name, sizeof(classes->list[i].name), "%s",
                       trace->class_names[i]);
    }
    for (uint32_t g = 0; g < given.n; g++) {
        uint32_t i = 0;

        while (i < classes->n && strcmp(classes->list[i].name, given.list[g].name) != 0) {
            i++;
        }
        if (i == classes->n) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "--classes: the trace has no class '%s'; recorded traces of a "
                                   "server with classes have",
                                   given.list[g].name);
        }
        classes->list[i] = given.list[g];
    }
    return QUIRE_OK;
}
