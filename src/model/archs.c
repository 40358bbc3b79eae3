/* archs.c - see archs.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/archs_rows.h"

#include <string.h>

#include "base/check.h"

const quire_arch_row *quire_arch_row_get(quire_arch arch)
{
    QUIRE_CHECK((unsigned)arch < QUIRE_ARCH_COUNT);
    return quire_archs_plain[arch].name != NULL ? &quire_archs_plain[arch]
                                                : &quire_archs_mixed[arch];
}

quire_arch quire_arch_find(const char *name)
{
    unsigned i = 0;

    while (i < QUIRE_ARCH_COUNT && strcmp(quire_arch_row_get((quire_arch)i)->name, name) != 0) {
        i++;
    }
    return (quire_arch)i;
}

/* ---- the nearest name ---- */

#define NAME_MAX_CHARS 32u
#define EDITS_MAX      2u
#define COMMON_MIN     4u

static size_t common_prefix(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] != '\0' && a[n] == b[n]) {
        n++;
    }
    return n;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, delete or replace (Levenshtein's distance). */
static size_t edits(const char *a, const char *b)
{
    size_t row[NAME_MAX_CHARS + 1];
    const size_t n = strlen(b);

    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t before = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t replaced = before + (a[i - 1] != b[j - 1] ? 1 : 0);

            before = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

const char *quire_arch_nearest(const char *name)
{
    const char *best = NULL;
    size_t best_common = 0, best_edits = SIZE_MAX;

    if (strlen(name) > NAME_MAX_CHARS) {
        return NULL;
    }
    for (size_t i = 0; i < QUIRE_ARCH_COUNT; i++) {
        const size_t common = common_prefix(name, quire_arch_row_get((quire_arch)i)->name);
        const size_t distance = edits(name, quire_arch_row_get((quire_arch)i)->name);
        const bool is_near = common >= COMMON_MIN || distance <= EDITS_MAX;

        if (is_near && (common > best_common || (common == best_common && distance < best_edits))) {
            best = quire_arch_row_get((quire_arch)i)->name;
            best_common = common;
            best_edits = distance;
        }
    }
    return best;
}
