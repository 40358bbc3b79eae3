/* classes.c - see classes.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/classes.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

static const quire_class standard = { .name = "standard", .rank = 1, .weight = 4 };

void quire_classes_default(quire_classes *out)
{
    *out = (quire_classes){
        .items = { { .name = "realtime", .rank = 2, .weight = 16 },
                   standard,
                   { .name = "batch", .rank = 0, .weight = 1 } },
        .n = 3,
    };
    for (uint32_t i = 0; i < out->n; i++) {
        out->items[i].stretch = QUIRE_CLASS_STRETCH;
    }
}

static bool is_name(const quire_class *c)
{
    const size_t n = strnlen(c->name, sizeof c->name);

    return n > 0 && n < sizeof c->name &&
           strspn(c->name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

static bool is_within(double x, double least, double most)
{
    return isfinite(x) && x >= least && x <= most;
}

static int check(const quire_class *c, quire_error *err)
{
    if (c->rank >= QUIRE_RANKS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "class '%s': rank %u, must be 0 to %u", c->name,
                               c->rank, QUIRE_RANKS_MAX - 1);
    }
    if (c->weight < 1 || c->weight > QUIRE_CLASS_WEIGHT_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "class '%s': weight %u, must be 1 to %u", c->name,
                               c->weight, QUIRE_CLASS_WEIGHT_MAX);
    }
    if (!is_within(c->ttft_target_ms, 0.0, QUIRE_CLASS_TARGET_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "class '%s': ttft target of %g ms, must be 0 to %g", c->name,
                               c->ttft_target_ms, QUIRE_CLASS_TARGET_MAX);
    }
    if (!is_within(c->tpot_target_ms, 0.0, QUIRE_CLASS_TARGET_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "class '%s': tpot target of %g ms, must be 0 to %g", c->name,
                               c->tpot_target_ms, QUIRE_CLASS_TARGET_MAX);
    }
    if (!is_within(c->stretch, 1.0, QUIRE_CLASS_STRETCH_MAX)) {
        return quire_error_set(err, QUIRE_INVAL, "class '%s': stretch of %g, must be 1 to %g",
                               c->name, c->stretch, QUIRE_CLASS_STRETCH_MAX);
    }
    return QUIRE_OK;
}

int quire_classes_resolve(quire_classes *classes, quire_error *err)
{
    if (classes->n > QUIRE_CLASSES_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u classes, at most %u are possible", classes->n,
                               QUIRE_CLASSES_MAX);
    }
    if (classes->n == 0) {
        classes->items[0] = standard;
        classes->n = 1;
    }
    for (uint32_t i = 0; i < classes->n; i++) {
        quire_class *c = &classes->items[i];

        if (!is_name(c)) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "class %u: the name must be 1 to %u of a-z, 0-9, _ and -", i + 1,
                                   QUIRE_CLASS_NAME_MAX - 1);
        }
        c->stretch = c->stretch == 0.0 ? QUIRE_CLASS_STRETCH : c->stretch;
        QUIRE_TRY(check(c, err));
        for (uint32_t j = 0; j < i; j++) {
            const quire_class *other = &classes->items[j];

            if (strcmp(other->name, c->name) == 0) {
                return quire_error_set(err, QUIRE_INVAL, "class '%s': there are two of them",
                                       c->name);
            }
            if (other->rank == c->rank) {
                return quire_error_set(err, QUIRE_INVAL, "classes '%s' and '%s' both have rank %u",
                                       other->name, c->name, c->rank);
            }
        }
    }
    return QUIRE_OK;
}

int quire_classes_find(const quire_classes *classes, const char *name)
{
    for (uint32_t i = 0; i < classes->n; i++) {
        if (strcmp(classes->items[i].name, name) == 0) {
            return (int)i;
        }
    }
    return QUIRE_NOTFOUND;
}

uint32_t quire_classes_of_rank(const quire_classes *classes, uint32_t rank)
{
    for (uint32_t i = 0; i < classes->n; i++) {
        if (classes->items[i].rank == rank) {
            return i;
        }
    }
    return QUIRE_CLASSES_MAX;
}
