/* precache_book.c - see precache_book.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/precache_book.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

#define GAP_WEIGHT   0.3 /* of the newest gap in the mean */
#define GAP_US_MIN   1000000u
#define AGE_GAPS_MAX 4u /* mean gaps without a use after which a text is dropped */
#define PAUSE_US     (60u * 1000000u)
#define PAUSE_SHIFTS 10u /* most doublings of the pause: 17 hours */

/* An owned copy of a text. */
typedef struct text_copy {
    int32_t *tokens; /* the allocation: tokens, then the tenant's bytes */
    const void *tenant;
    uint32_t n_tokens;
    uint32_t tenant_bytes;
} text_copy;

typedef struct reused {
    text_copy text;
    uint64_t hash;
    uint64_t used_us;
    uint64_t gap_us; /* 0 = used once since it was noted */
} reused;

typedef struct computed {
    text_copy text;
    uint32_t begin; /* tokens [begin, text.n_tokens) are not judged yet */
    uint64_t made_us;
} computed;

struct quire_precache_book {
    quire_precache_book_opts opts;
    reused *texts; /* [n_texts] */
    uint32_t n_texts;
    uint64_t n_text_tokens;
    computed computed[QUIRE_PRECACHE_COMPUTED_MAX]; /* [n_computed] */
    uint32_t n_computed;
    quire_precache_accounts accounts;
    uint64_t gain_before; /* gain at the end of the last pause, the start of this period */
    uint64_t waste_before;
    uint64_t pause_until_us;
    uint32_t n_shifts;
};

int quire_precache_book_create(quire_precache_book **out, const quire_precache_book_opts *opts)
{
    quire_precache_book *book;

    *out = NULL;
    QUIRE_FAIL_IF(opts->texts_max == 0 || opts->page_tokens == 0, QUIRE_INVAL);
    book = calloc(1, sizeof *book);
    QUIRE_FAIL_IF(book == NULL, QUIRE_NOMEM);
    book->opts = *opts;
    book->texts = calloc(opts->texts_max, sizeof *book->texts);
    if (book->texts == NULL) {
        free(book);
        return QUIRE_NOMEM;
    }
    *out = book;
    return QUIRE_OK;
}

void quire_precache_book_destroy(quire_precache_book *book)
{
    if (book == NULL) {
        return;
    }
    quire_precache_book_forget(book, NULL, 0);
    free(book->texts);
    free(book);
}

/* ---- texts ---- */

static int text_copy_make(text_copy *copy, const quire_precache_text *text)
{
    const size_t n_bytes = (size_t)text->n_tokens * sizeof *text->tokens;

    copy->tokens = malloc(n_bytes + text->tenant_bytes + 1);
    QUIRE_FAIL_IF(copy->tokens == NULL, QUIRE_NOMEM);
    memcpy(copy->tokens, text->tokens, n_bytes);
    if (text->tenant_bytes > 0) {
        memcpy(copy->tokens + text->n_tokens, text->tenant, text->tenant_bytes);
    }
    copy->tenant = copy->tokens + text->n_tokens;
    copy->n_tokens = text->n_tokens;
    copy->tenant_bytes = text->tenant_bytes;
    return QUIRE_OK;
}

static quire_precache_text text_of(const text_copy *copy)
{
    return (quire_precache_text){
        .tenant = copy->tenant,
        .tenant_bytes = copy->tenant_bytes,
        .tokens = copy->tokens,
        .n_tokens = copy->n_tokens,
    };
}

static bool is_tenants(const text_copy *copy, const void *tenant, uint32_t tenant_bytes)
{
    return copy->tenant_bytes == tenant_bytes &&
           (tenant_bytes == 0 || memcmp(copy->tenant, tenant, tenant_bytes) == 0);
}

static bool begins_with(const quire_precache_text *text, const text_copy *copy)
{
    return copy->n_tokens <= text->n_tokens && is_tenants(copy, text->tenant, text->tenant_bytes) &&
           memcmp(copy->tokens, text->tokens, copy->n_tokens * sizeof *copy->tokens) == 0;
}

static void reused_remove(quire_precache_book *book, uint32_t i)
{
    book->n_text_tokens -= book->texts[i].text.n_tokens;
    free(book->texts[i].text.tokens);
    book->texts[i] = book->texts[--book->n_texts];
}

static void computed_remove(quire_precache_book *book, uint32_t i)
{
    free(book->computed[i].text.tokens);
    book->computed[i] = book->computed[--book->n_computed];
}

static void use(reused *r, uint64_t now_us)
{
    const uint64_t gap_us = quire_max_u64(now_us - r->used_us, 1);

    r->gap_us =
        r->gap_us == 0
            ? gap_us
            : (uint64_t)((double)r->gap_us + ((double)gap_us - (double)r->gap_us) * GAP_WEIGHT);
    r->used_us = now_us;
}

/* Make room for a text of n tokens: drop the texts unused longest. */
static void make_room(quire_precache_book *book, uint32_t n_tokens)
{
    while (book->n_texts > 0 && (book->n_texts == book->opts.texts_max ||
                                 book->n_text_tokens + n_tokens > QUIRE_PRECACHE_TOKENS_MAX)) {
        uint32_t oldest = 0;

        for (uint32_t i = 1; i < book->n_texts; i++) {
            oldest = book->texts[i].used_us < book->texts[oldest].used_us ? i : oldest;
        }
        reused_remove(book, oldest);
    }
}

void quire_precache_book_note(quire_precache_book *book, const quire_precache_text *text,
                              uint64_t now_us)
{
    quire_precache_text whole = *text;
    reused new = { .used_us = now_us };
    bool is_known = false;

    whole.n_tokens -= whole.n_tokens % book->opts.page_tokens;
    for (uint32_t i = 0; i < book->n_texts; i++) {
        if (begins_with(&whole, &book->texts[i].text)) {
            use(&book->texts[i], now_us);
            is_known = is_known || book->texts[i].text.n_tokens == whole.n_tokens;
        }
    }
    if (is_known || whole.n_tokens == 0 || whole.n_tokens > QUIRE_PRECACHE_TOKENS_MAX / 4) {
        return;
    }
    make_room(book, whole.n_tokens);
    if (text_copy_make(&new.text, &whole) == QUIRE_OK) {
        book->texts[book->n_texts++] = new;
        book->n_text_tokens += whole.n_tokens;
    }
}

void quire_precache_book_forget(quire_precache_book *book, const void *tenant,
                                uint32_t tenant_bytes)
{
    for (uint32_t i = book->n_texts; i > 0; i--) {
        if (tenant == NULL || is_tenants(&book->texts[i - 1].text, tenant, tenant_bytes)) {
            reused_remove(book, i - 1);
        }
    }
    for (uint32_t i = book->n_computed; i > 0; i--) {
        if (tenant == NULL || is_tenants(&book->computed[i - 1].text, tenant, tenant_bytes)) {
            computed_remove(book, i - 1);
        }
    }
}

double quire_precache_hope(uint64_t gap_us, uint64_t age_us)
{
    const uint64_t gap = quire_max_u64(gap_us, GAP_US_MIN);

    if (gap_us == 0 || age_us > AGE_GAPS_MAX * gap) {
        return 0.0;
    }
    return age_us > gap ? (double)gap / (double)age_us : 1.0;
}

int quire_precache_book_visit(const quire_precache_book *book, uint64_t now_us,
                              int (*visit)(void *ctx, const quire_precache_text *text, double hope),
                              void *ctx)
{
    int rc = 0;

    for (uint32_t i = 0; i < book->n_texts && rc == 0; i++) {
        const reused *r = &book->texts[i];
        const double hope = quire_precache_hope(r->gap_us, now_us - r->used_us);
        const quire_precache_text text = text_of(&r->text);

        if (hope > 0.0) {
            rc = visit(ctx, &text, hope);
        }
    }
    return rc;
}

/* ---- computed texts ---- */

bool quire_precache_book_has_room(const quire_precache_book *book)
{
    return book->n_computed < QUIRE_PRECACHE_COMPUTED_MAX;
}

int quire_precache_book_enter(quire_precache_book *book, const quire_precache_text *text,
                              uint32_t begin_token, uint64_t now_us)
{
    computed new = { .begin = begin_token, .made_us = now_us };

    QUIRE_FAIL_IF(!quire_precache_book_has_room(book), QUIRE_LIMIT);
    QUIRE_TRY(text_copy_make(&new.text, text));
    book->computed[book->n_computed++] = new;
    return QUIRE_OK;
}

static uint32_t same_tokens(const text_copy *copy, const quire_precache_text *text, uint32_t n_max)
{
    const uint32_t n = quire_min_u32(n_max, quire_min_u32(copy->n_tokens, text->n_tokens));
    uint32_t i = 0;

    while (i < n && copy->tokens[i] == text->tokens[i]) {
        i++;
    }
    return i;
}

void quire_precache_book_hit(quire_precache_book *book, const quire_precache_text *prompt,
                             uint32_t n_hit)
{
    for (uint32_t i = book->n_computed; i > 0; i--) {
        computed *c = &book->computed[i - 1];
        uint32_t n;

        if (n_hit <= c->begin || !is_tenants(&c->text, prompt->tenant, prompt->tenant_bytes)) {
            continue;
        }
        n = same_tokens(&c->text, prompt, n_hit);
        if (n > c->begin) {
            book->accounts.gain_tokens_total += n - c->begin;
            c->begin = n;
        }
        if (c->begin == c->text.n_tokens) {
            computed_remove(book, i - 1);
        }
    }
}

void quire_precache_book_judge(quire_precache_book *book, uint64_t now_us,
                               uint32_t (*n_cached)(void *ctx, const quire_precache_text *text),
                               void *ctx)
{
    for (uint32_t i = book->n_computed; i > 0; i--) {
        computed *c = &book->computed[i - 1];
        const quire_precache_text text = text_of(&c->text);
        uint32_t n = c->begin;

        if (now_us - c->made_us < book->opts.judge_us) {
            const uint32_t n_now = n_cached(ctx, &text);

            n = n_now > c->begin ? quire_min_u32(n_now, c->text.n_tokens) : c->begin;
        }
        book->accounts.waste_tokens_total += c->text.n_tokens - n;
        c->text.n_tokens = n;
        if (n == c->begin) {
            computed_remove(book, i - 1);
        }
    }
}

/* ---- verdicts ---- */

quire_precache_verdict quire_precache_book_verdict(quire_precache_book *book, uint64_t now_us)
{
    quire_precache_accounts *a = &book->accounts;
    const uint64_t gain = a->gain_tokens_total - book->gain_before;
    const uint64_t waste = a->waste_tokens_total - book->waste_before;

    if (a->is_pausing) {
        if (now_us < book->pause_until_us) {
            return QUIRE_PRECACHE_AS_BEFORE;
        }
        a->is_pausing = false;
        book->gain_before = a->gain_tokens_total;
        book->waste_before = a->waste_tokens_total;
        return QUIRE_PRECACHE_RESUME;
    }
    if (gain > waste + book->opts.slack_tokens) {
        book->n_shifts = 0;
    }
    if (waste <= gain + book->opts.slack_tokens) {
        return QUIRE_PRECACHE_AS_BEFORE;
    }
    a->is_pausing = true;
    a->pauses_total++;
    a->pause_us = (uint64_t)PAUSE_US << book->n_shifts;
    book->pause_until_us = now_us + a->pause_us;
    book->n_shifts += book->n_shifts < PAUSE_SHIFTS;
    return QUIRE_PRECACHE_PAUSE;
}

void quire_precache_book_accounts(const quire_precache_book *book, quire_precache_accounts *out)
{
    *out = book->accounts;
    out->texts = book->n_texts;
    out->computed = book->n_computed;
}
