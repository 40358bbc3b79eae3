/* service_tier.c - see service_tier.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/service_tier.h"

#include "base/check.h"
#include "base/text_buffer.h"

#include <string.h>

#define STANDARD "standard"

static uint32_t rank_of(const quire_tiers *tiers, uint32_t class_index)
{
    return tiers->classes.items[class_index].rank;
}

static uint32_t extreme(const quire_tiers *tiers, bool is_highest)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < tiers->classes.n; i++) {
        if ((rank_of(tiers, i) > rank_of(tiers, best)) == is_highest) {
            best = i;
        }
    }
    return best;
}

/* "realtime, standard, batch" */
static const char *list_names(const quire_tiers *tiers, char *buffer, size_t buffer_bytes)
{
    quire_text text = { buffer, buffer_bytes, 0 };

    buffer[0] = '\0';
    for (uint32_t i = 0; i < tiers->classes.n; i++) {
        quire_text_add(&text, "%s%s", i > 0 ? ", " : "", tiers->classes.items[i].name);
    }
    return buffer;
}

/* ---- set-up ---- */

#define NAMES_BYTES (QUIRE_CLASSES_MAX * (QUIRE_CLASS_NAME_MAX + 2))

int quire_tiers_init(quire_tiers *tiers, const quire_classes *classes, const char *default_name,
                     quire_error *err)
{
    char names[NAMES_BYTES];
    int found;

    tiers->classes = *classes;
    QUIRE_TRY(quire_classes_resolve(&tiers->classes, err));
    found = quire_classes_find(&tiers->classes, default_name != NULL ? default_name : STANDARD);
    if (found < 0 && default_name != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "default_class '%.40s' is no class: there are %s",
                               default_name, list_names(tiers, names, sizeof names));
    }
    tiers->default_index = found >= 0 ? (uint32_t)found : extreme(tiers, false);
    return QUIRE_OK;
}

static int find(const quire_tiers *tiers, const char *what, const char *field, const char *name,
                quire_error *err)
{
    const int found = quire_classes_find(&tiers->classes, name);
    char names[NAMES_BYTES];

    if (found < 0) {
        return quire_error_set(err, QUIRE_INVAL, "%s: %s '%.40s' is no class: there are %s", what,
                               field, name, list_names(tiers, names, sizeof names));
    }
    return found;
}

int quire_tiers_limit(const quire_tiers *tiers, const char *what, const quire_server_key *key,
                      quire_caller *caller, quire_error *err)
{
    int found;

    caller->class_max = extreme(tiers, true);
    if (key->max_class != NULL) {
        found = find(tiers, what, "max_class", key->max_class, err);
        QUIRE_TRY(found);
        caller->class_max = (uint32_t)found;
    }
    if (key->default_class == NULL) {
        caller->class_default =
            rank_of(tiers, tiers->default_index) > rank_of(tiers, caller->class_max)
                ? caller->class_max
                : tiers->default_index;
        return QUIRE_OK;
    }
    found = find(tiers, what, "default_class", key->default_class, err);
    QUIRE_TRY(found);
    caller->class_default = (uint32_t)found;
    if (rank_of(tiers, caller->class_default) > rank_of(tiers, caller->class_max)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: default_class '%.40s' is higher than max_class '%.40s'", what,
                               key->default_class, key->max_class);
    }
    return QUIRE_OK;
}

/* ---- a request ---- */

typedef enum tier_word {
    WORD_NONE, /* a class's name */
    WORD_AUTO,
    WORD_DEFAULT,
    WORD_FLEX,
    WORD_PRIORITY,
    WORD_SCALE /* OpenAI's word for throughput bought in advance */
} tier_word;

static const char *const words[] = { NULL, "auto", "default", "flex", "priority", "scale" };

static tier_word word_of(const char *text)
{
    for (int i = WORD_AUTO; i <= WORD_SCALE; i++) {
        if (strcmp(words[i], text) == 0) {
            return (tier_word)i;
        }
    }
    return WORD_NONE;
}

/* The word of OpenAI's that fits the class best. */
static const char *reply_word(const quire_tiers *tiers, uint32_t class_index)
{
    if (class_index == tiers->default_index) {
        return words[WORD_DEFAULT];
    }
    return rank_of(tiers, class_index) > rank_of(tiers, tiers->default_index) ? words[WORD_PRIORITY]
                                                                              : words[WORD_FLEX];
}

static void choose(const quire_tiers *tiers, const quire_caller *caller, quire_fields *fields,
                   const char *field, const char *text, quire_tier *out)
{
    const int named = quire_classes_find(&tiers->classes, text);
    const tier_word word = named < 0 ? word_of(text) : WORD_NONE;
    char names[NAMES_BYTES];

    if (named < 0 && word == WORD_NONE) {
        quire_field_error(fields, field,
                          "\"%.40s\" is no class: there are %s, and auto, default, flex, priority",
                          text, list_names(tiers, names, sizeof names));
        return;
    }
    switch (word) {
    case WORD_NONE:
        out->class_index = (uint32_t)named;
        break;
    case WORD_AUTO:
        out->class_index = caller->class_default;
        break;
    case WORD_DEFAULT:
        out->class_index = tiers->default_index;
        break;
    case WORD_FLEX:
        out->class_index = extreme(tiers, false);
        break;
    case WORD_PRIORITY:
    case WORD_SCALE:
        out->class_index = extreme(tiers, true);
        break;
    }
    if (rank_of(tiers, out->class_index) > rank_of(tiers, caller->class_max)) {
        out->class_index = caller->class_max;
    }
    out->reply = word == WORD_NONE ? tiers->classes.items[out->class_index].name
                                   : reply_word(tiers, out->class_index);
}

void quire_tier_read(const quire_tiers *tiers, const quire_caller *caller, quire_fields *fields,
                     quire_tier *out)
{
    const char *tier = quire_field_string(fields, "service_tier", QUIRE_TIER_TEXT_MAX);
    json_t *priority = quire_field(fields, "priority");
    quire_tier other = { 0 };

    *out = (quire_tier){ caller->class_default, NULL };
    if (tier != NULL) {
        choose(tiers, caller, fields, "service_tier", tier, out);
    }
    if (!json_is_string(priority)) {
        return;
    }
    choose(tiers, caller, fields, "priority", json_string_value(priority), &other);
    if (tier != NULL && other.class_index != out->class_index) {
        quire_field_error(fields, "priority", "names another class than service_tier");
    }
    if (tier == NULL) {
        out->class_index = other.class_index;
        out->reply = other.reply;
    }
}

int quire_tier_of_pin(const quire_tiers *tiers, const quire_caller *caller, const char *name,
                      uint32_t *class_index, quire_api_error *err)
{
    char names[NAMES_BYTES];
    int found;

    *class_index = caller->class_default;
    if (name == NULL) {
        return QUIRE_OK;
    }
    found = quire_classes_find(&tiers->classes, name);
    if (found < 0) {
        return quire_api_error_set(err, 400, "invalid_value", "class",
                                   "class: \"%.40s\" is no class: there are %s", name,
                                   list_names(tiers, names, sizeof names));
    }
    if (rank_of(tiers, (uint32_t)found) > rank_of(tiers, caller->class_max)) {
        return quire_api_error_set(err, 403, "class_not_allowed", "class",
                                   "class: this key may ask for %s at most",
                                   tiers->classes.items[caller->class_max].name);
    }
    *class_index = (uint32_t)found;
    return QUIRE_OK;
}
