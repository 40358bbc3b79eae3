/* sampler_order.c - see sampler_order.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_order.h"

#include "base/check.h"

#include <ctype.h>
#include <string.h>

#define NAME_MAX_BYTES 32u

/* Computed nowhere, and without effect as long as its own settings are off. */
#define NOTHING (-1)

typedef struct spelling {
    const char *name; /* without '_' and '-' */
    int kind;
} spelling;

static const spelling spellings[] = {
    { "penalties", QUIRE_SAMPLER_PENALTIES },
    { "dry", QUIRE_SAMPLER_DRY },
    { "topnsigma", QUIRE_SAMPLER_TOP_N_SIGMA },
    { "topk", QUIRE_SAMPLER_TOP_K },
    { "typp", QUIRE_SAMPLER_TYPICAL_P },
    { "typ", QUIRE_SAMPLER_TYPICAL_P },
    { "typicalp", QUIRE_SAMPLER_TYPICAL_P },
    { "topp", QUIRE_SAMPLER_TOP_P },
    { "nucleus", QUIRE_SAMPLER_TOP_P },
    { "minp", QUIRE_SAMPLER_MIN_P },
    { "xtc", QUIRE_SAMPLER_XTC },
    { "temperature", QUIRE_SAMPLER_TEMPERATURE },
    { "temp", QUIRE_SAMPLER_TEMPERATURE },
    { "adaptivep", NOTHING },
};

static const char *const names[QUIRE_SAMPLER_KINDS] = { "penalties", "dry",   "top_n_sigma",
                                                        "top_k",     "typ_p", "top_p",
                                                        "min_p",     "xtc",   "temperature" };

/* In the order of quire_sampler_kind. */
static const char letters[] = "edskypmxt";
static const char letter_of_nothing = 'a';

const char *quire_sampler_kind_name(quire_sampler_kind kind)
{
    return names[kind];
}

bool quire_sampler_order_has(const quire_sampler_order *order, quire_sampler_kind kind)
{
    return memchr(order->kinds, (int)kind, order->n) != NULL;
}

static int add(quire_sampler_order *order, quire_sampler_kind kind, quire_error *err)
{
    const quire_sampler_kind last =
        order->n > 0 ? order->kinds[order->n - 1] : QUIRE_SAMPLER_PENALTIES;

    if (quire_sampler_order_has(order, kind)) {
        return quire_error_set(err, QUIRE_INVAL, "\"%s\" is there twice", names[kind]);
    }
    if (kind <= QUIRE_SAMPLER_DRY && kind < last) {
        return quire_error_set(err, QUIRE_INVAL,
                               "\"%s\" behind \"%s\"; \"penalties\" come first, then \"dry\", then "
                               "the others in any order",
                               names[kind], names[last]);
    }
    order->kinds[order->n++] = (uint8_t)kind;
    return QUIRE_OK;
}

/* The name in small letters, without '_' and '-'. */
static void name_plain(const char *name, size_t n, char out[NAME_MAX_BYTES])
{
    size_t n_out = 0;

    for (size_t i = 0; i < n && n_out + 1 < NAME_MAX_BYTES; i++) {
        if (name[i] != '_' && name[i] != '-') {
            out[n_out++] = (char)tolower((unsigned char)name[i]);
        }
    }
    out[n_out] = '\0';
}

int quire_sampler_order_add(quire_sampler_order *order, const char *name, size_t n,
                            quire_error *err)
{
    char plain[NAME_MAX_BYTES];

    name_plain(name, n, plain);
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        if (n < NAME_MAX_BYTES && strcmp(plain, spellings[i].name) == 0) {
            return spellings[i].kind == NOTHING
                       ? QUIRE_OK
                       : add(order, (quire_sampler_kind)spellings[i].kind, err);
        }
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "\"%.*s\" is none of penalties, dry, top_n_sigma, top_k, typ_p, top_p, "
                           "min_p, xtc, temperature",
                           n < NAME_MAX_BYTES ? (int)n : (int)NAME_MAX_BYTES, name);
}

int quire_sampler_order_names(quire_sampler_order *out, const char *text, quire_error *err)
{
    out->n = 0;
    while (*text != '\0') {
        const size_t n = strcspn(text, ";");

        if (n > 0) {
            QUIRE_TRY(quire_sampler_order_add(out, text, n, err));
        }
        text += n;
        text += *text == ';';
    }
    return QUIRE_OK;
}

int quire_sampler_order_letters(quire_sampler_order *out, const char *text, quire_error *err)
{
    out->n = 0;
    for (; *text != '\0'; text++) {
        const char *at = strchr(letters, *text);

        if (at != NULL) {
            QUIRE_TRY(add(out, (quire_sampler_kind)(at - letters), err));
        } else if (*text != letter_of_nothing) {
            return quire_error_set(err, QUIRE_INVAL, "'%c' is none of the letters %s", *text,
                                   letters);
        }
    }
    return QUIRE_OK;
}
