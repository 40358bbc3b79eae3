/* precache.c - computing in advance, one page at a time: see precache.h.
 *
 * The engine's thread does so instead of waiting. A run has its own sequence, acquires a prefix of
 * the tree like a request, and publishes after each step. So the work done before a request arrives
 * is kept.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt_object.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

#define STEP_US   50000.0 /* bound on the predicted time of a step */
#define US_PER_MS 1000u

/* ---- choosing a text ---- */

typedef struct search {
    quire_adapt *adapt;
    uint64_t now_us;
    uint32_t n_sessions;
    bool is_fetch;        /* for a text to fetch; else for one to compute */
    uint64_t id, changed; /* of the best one: see fetched[] */
    double best;          /* expected tokens saved */
} search;

typedef struct candidate {
    quire_precache_text text;
    double hope;
    uint64_t owner;       /* of a session; 0 = a shared text */
    uint64_t id, changed; /* see fetched[] */
} candidate;

/* Whether the missing tokens were evicted or expired, rather than invalidated. */
static bool may_come_back(const quire_prefix_match *match)
{
    return match->end == QUIRE_PREFIX_END_EVICTED &&
           (match->gone == QUIRE_PREFIX_GONE_MEMORY || match->gone == QUIRE_PREFIX_GONE_TTL ||
            match->gone == QUIRE_PREFIX_GONE_LOW_TRAFFIC);
}

/* Whether memory is free for tokens [n_cached, n_tokens), and for a page to copy a partly filled
 * one. */
static bool has_free(const quire_adapt *adapt, uint32_t n_cached, uint32_t n_tokens)
{
    const uint64_t need =
        quire_loop_need_bytes(adapt->loop, n_tokens) - quire_loop_need_bytes(adapt->loop, n_cached);
    quire_region_stats region;

    return quire_region_stats_get(adapt->parts->cache, QUIRE_REGION_DYNAMIC, &region) == QUIRE_OK &&
           region.charged_bytes + need + adapt->parts->page_bytes +
                   quire_loop_text_states_bytes(adapt->loop, n_cached, n_tokens) <=
               region.budget_bytes;
}

static int run_take(quire_precache_run *run, const quire_precache_text *text, uint64_t owner)
{
    if (run->tokens_capacity < text->n_tokens) {
        int32_t *tokens = realloc(run->tokens, text->n_tokens * sizeof *tokens);

        QUIRE_FAIL_IF(tokens == NULL, QUIRE_NOMEM);
        run->tokens = tokens;
        run->tokens_capacity = text->n_tokens;
    }
    memcpy(run->tokens, text->tokens, text->n_tokens * sizeof *run->tokens);
    run->n_tokens = text->n_tokens;
    run->owner = owner;
    run->tenant_bytes = text->tenant_bytes;
    if (text->tenant_bytes > 0) {
        memcpy(run->tenant, text->tenant, text->tenant_bytes);
    }
    return QUIRE_OK;
}

/* Whether a session was fetched, or tried, after its last turn; or a text since it went. */
static bool is_tried(const quire_adapt *adapt, uint64_t id, uint64_t changed)
{
    for (uint32_t i = 0; i < adapt->fetched_max; i++) {
        if (adapt->fetched[i].id == id && adapt->fetched[i].changed == changed) {
            return true;
        }
    }
    return false;
}

/* Whether a session is due soon, or is late. */
static bool is_near(uint64_t gap_us, uint64_t age_us)
{
    return age_us + quire_max_u64(gap_us / 2, QUIRE_PRECACHE_NEAR_US) >= gap_us;
}

/* Whether a text may be fetched: it lacks a full page, the store should have it, and it was not
 * tried since it went. All devices know all sessions: the one where the next turn should come reads
 * its pages. */
static bool may_fetch(const search *s, const candidate *c, const quire_prefix_key *key,
                      const quire_prefix_match *match)
{
    const uint32_t page_tokens = s->adapt->parts->runtime_opts->page_tokens;

    if (match->n_tokens / page_tokens >= c->text.n_tokens / page_tokens) {
        return false;
    }
    return c->owner != 0 ? quire_loop_is_home(s->adapt->loop, key, c->text.tokens, c->text.n_tokens)
                         : match->end == QUIRE_PREFIX_END_EVICTED && match->is_gone_stored &&
                               !is_tried(s->adapt, c->id, match->gone_us);
}

static void consider(search *s, const candidate *c)
{
    const quire_precache_text *text = &c->text;
    const quire_prefix_key key = quire_loop_key(s->adapt->loop, text->tenant, text->tenant_bytes);
    quire_prefix_match match;
    double worth;

    quire_prefix_lookup(s->adapt->parts->tree, &key, text->tokens, text->n_tokens, &match);
    worth = c->hope * (double)(text->n_tokens - match.n_tokens);
    if (worth > s->best && (s->is_fetch ? may_fetch(s, c, &key, &match) : may_come_back(&match)) &&
        has_free(s->adapt, match.n_tokens, text->n_tokens) &&
        run_take(&s->adapt->run, text, c->owner) == QUIRE_OK) {
        s->best = worth;
        s->id = c->id;
        s->changed = c->owner != 0 ? c->changed : match.gone_us;
    }
}

static int consider_text(void *ctx, const quire_precache_text *text, double hope)
{
    const candidate c = { .text = *text,
                          .hope = hope,
                          .id = quire_hash_add(QUIRE_HASH_INIT, text->tokens,
                                               text->n_tokens * sizeof *text->tokens) };

    consider(ctx, &c);
    return 0;
}

/* A session is likely to continue until it is idle for much longer than between its turns. */
static int consider_session(void *ctx, const quire_session_info *info)
{
    search *s = ctx;
    const uint32_t page_tokens = s->adapt->parts->runtime_opts->page_tokens;
    const uint64_t age_us = quire_session_age_us(info->used_us, s->now_us);
    candidate c = {
        .text = { .tenant = info->tenant,
                  .tenant_bytes = info->tenant_bytes,
                  .tokens = info->tokens,
                  .n_tokens = s->adapt->parts->is_page_exact
                                  ? info->n_tokens - info->n_tokens % page_tokens
                                  : info->n_tokens },
        .owner = info->owner,
        .id = info->owner,
        .changed = info->changed,
    };

    if (!info->is_in_use && info->n_turns > 1 && c.text.n_tokens > 0) {
        const uint64_t gap_us = (info->used_us - info->created_us) / (info->n_turns - 1);

        c.hope = quire_precache_hope(gap_us, age_us);
        if (c.hope > 0.0 &&
            (!s->is_fetch || (is_near(gap_us, age_us) && !is_tried(s->adapt, c.id, c.changed)))) {
            consider(s, &c);
        }
    }
    return ++s->n_sessions >= QUIRE_PRECACHE_SESSIONS;
}

/* ---- one text ---- */

static bool is_running(const quire_adapt *adapt)
{
    return adapt->run.seq != QUIRE_SEQ_NULL;
}

static void run_close(quire_adapt *adapt)
{
    quire_precache_run *run = &adapt->run;

    if (run->ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(adapt->parts->tree, run->ref, quire_loop_now_us(adapt->loop));
    }
    (void)quire_seq_close(adapt->parts->cache, run->seq);
    run->ref = QUIRE_PREFIX_REF_NULL;
    run->seq = QUIRE_SEQ_NULL;
    quire_loop_released(adapt->loop);
}

static quire_loop_text_at run_at(const quire_precache_run *run)
{
    return (quire_loop_text_at){ .seq = run->seq, .ref = run->ref, .n_tokens = run->n_tokens };
}

static void run_end(quire_adapt *adapt)
{
    quire_precache_run *run = &adapt->run;
    const quire_precache_text text = {
        .tenant = run->tenant,
        .tenant_bytes = run->tenant_bytes,
        .tokens = run->tokens,
        .n_tokens = run->n_computed,
    };
    const quire_loop_text_at at = run_at(run);

    quire_loop_text_states_leave(adapt->loop, &at, run->n_computed, true);
    run_close(adapt);
    if (run->n_computed > run->n_begin) {
        /* Tokens that cannot be entered count neither as gain nor as waste. */
        (void)quire_precache_book_enter(adapt->book, &text, run->n_begin,
                                        quire_loop_now_us(adapt->loop));
    }
}

static bool run_begin(quire_adapt *adapt)
{
    quire_precache_run *run = &adapt->run;
    const quire_prefix_key key = quire_loop_key(adapt->loop, run->tenant, run->tenant_bytes);
    const quire_prefix_acquire_opts opts = {
        .tokens_max = run->n_tokens,
        .owner = run->owner,
        .now_us = quire_loop_now_us(adapt->loop),
        .account = quire_loop_account(adapt->loop, run->tenant, run->tenant_bytes),
        .is_uncounted = true,
    };
    quire_loop_text_at at;
    quire_prefix_match match;

    if (quire_seq_open(adapt->parts->cache, QUIRE_REGION_DYNAMIC, &run->seq) < 0) {
        return false;
    }
    if (quire_prefix_acquire(adapt->parts->tree, &key, run->seq, run->tokens, run->n_tokens, &opts,
                             &match, &run->ref) < 0) {
        run->ref = QUIRE_PREFIX_REF_NULL;
        run_close(adapt);
        return false;
    }
    run->n_begin = match.n_tokens;
    run->n_computed = match.n_tokens;
    at = run_at(run);
    if (quire_loop_text_states_begin(adapt->loop, &at, match.n_tokens) < 0) {
        run_close(adapt);
        return false;
    }
    adapt->figures.precache.runs_total++;
    return true;
}

/* Rows of the next step: at most a page, and no more than fit into STEP_US. */
static uint32_t step_rows(const quire_adapt *adapt)
{
    const quire_precache_run *run = &adapt->run;
    const uint32_t n_max =
        quire_min_u32(adapt->parts->runtime_opts->page_tokens, adapt->parts->runtime_opts->n_batch);
    const quire_loop_text_at at = run_at(run);
    const uint32_t n_left = quire_loop_text_states_until(
        adapt->loop, &at, run->n_computed, quire_min_u32(n_max, run->n_tokens - run->n_computed));
    const quire_cost_step none = { 0 };
    const uint32_t n_fit =
        quire_cost_prefill_fit(adapt->parts->cost, &none, run->n_computed, n_left, STEP_US);

    return n_left > 0 && n_fit == 0 ? 1 : n_fit;
}

/* Compute one step; an arriving request interrupts it (quire_loop_qos_gives_up()). Returns whether
 * it succeeded. */
static bool run_step(quire_adapt *adapt)
{
    quire_precache_run *run = &adapt->run;
    const quire_slice slice = {
        .seq = run->seq,
        .tokens = run->tokens + run->n_computed,
        .n_tokens = step_rows(adapt),
        .logits = QUIRE_LOGITS_NONE,
    };
    quire_loop_text_at at;
    int rc = QUIRE_INVAL;

    if (slice.n_tokens > 0) {
        rc = quire_loop_compute(adapt->loop, &slice);
    }
    if (rc == QUIRE_CANCELED) {
        return true; /* the run ends when the loop admits the request */
    }
    if (rc < 0) {
        run_end(adapt);
        return false;
    }
    run->n_computed += slice.n_tokens;
    adapt->figures.precache.tokens_total += slice.n_tokens;
    if (quire_prefix_publish(adapt->parts->tree, run->ref, run->tokens, run->n_computed,
                             quire_loop_now_us(adapt->loop)) < 0 ||
        run->n_computed == run->n_tokens) {
        run_end(adapt);
        return true;
    }
    at = run_at(run);
    quire_loop_text_states_leave(adapt->loop, &at, run->n_computed, false);
    return true;
}

/* ---- when ---- */

/* Pause or resume by the accounts, and report it. */
static bool is_allowed(quire_adapt *adapt, uint64_t now_us)
{
    quire_precache_book *book = adapt->book;
    const quire_precache_verdict verdict = quire_precache_book_verdict(book, now_us);
    quire_precache_accounts a;

    quire_precache_book_accounts(book, &a);
    if (verdict == QUIRE_PRECACHE_PAUSE) {
        (void)quire_events_add(
            adapt->events, quire_loop_uptime_us(adapt->loop), QUIRE_EVENT_PRECACHE_OFF,
            "pre-caching pauses for %llu s: %llu tokens computed in advance were of use, %llu not",
            (unsigned long long)(a.pause_us / 1000000u), (unsigned long long)a.gain_tokens_total,
            (unsigned long long)a.waste_tokens_total);
    } else if (verdict == QUIRE_PRECACHE_RESUME) {
        (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop),
                               QUIRE_EVENT_PRECACHE_ON, "pre-caching goes on after %llu s",
                               (unsigned long long)(a.pause_us / 1000000u));
    }
    return !a.is_pausing;
}

static bool next_begin(quire_adapt *adapt, uint64_t now_us)
{
    search s = { .adapt = adapt, .now_us = now_us };

    if (!quire_precache_book_has_room(adapt->book)) {
        return false;
    }
    (void)quire_precache_book_visit(adapt->book, now_us, consider_text, &s);
    (void)quire_sessions_visit(adapt->parts->sessions, NULL, 0, consider_session, &s);
    return s.best > 0.0 && run_begin(adapt);
}

/* Fetch the session that is most likely to continue soon, or a shared text that was evicted and is
 * stored. Returns whether there was one. */
static bool fetch_next(quire_adapt *adapt, uint64_t now_us)
{
    search s = { .adapt = adapt, .now_us = now_us, .is_fetch = true };
    const quire_precache_run *run = &adapt->run;
    quire_precache_tried *tried = &adapt->fetched[adapt->n_fetched % adapt->fetched_max];

    if (!quire_loop_can_fetch(adapt->loop)) {
        return false;
    }
    (void)quire_precache_book_visit(adapt->book, now_us, consider_text, &s);
    (void)quire_sessions_visit(adapt->parts->sessions, NULL, 0, consider_session, &s);
    if (s.best <= 0.0) {
        return false;
    }
    *tried = (quire_precache_tried){ s.id, s.changed };
    adapt->n_fetched++;
    (void)quire_loop_fetch_ahead(adapt->loop, &(quire_loop_text){ .tenant = run->tenant,
                                                                  .tenant_bytes = run->tenant_bytes,
                                                                  .tokens = run->tokens,
                                                                  .n_tokens = run->n_tokens,
                                                                  .owner = run->owner });
    return true;
}

uint32_t quire_precache_idle(quire_adapt *adapt, uint32_t idle_ms)
{
    const uint64_t now_us = quire_loop_now_us(adapt->loop);
    const uint64_t idle_us = now_us - adapt->busy_us;

    if (adapt->book == NULL) {
        return idle_ms;
    }
    if (idle_us < adapt->precache_idle_us) {
        const uint64_t left_us = adapt->precache_idle_us - idle_us;

        return (uint32_t)quire_min_u64(left_us / US_PER_MS + 1, idle_ms);
    }
    if (!is_running(adapt) && fetch_next(adapt, now_us)) {
        return 0;
    }
    if (!is_running(adapt) && (!is_allowed(adapt, now_us) || !next_begin(adapt, now_us))) {
        return idle_ms;
    }
    return run_step(adapt) ? 0 : idle_ms;
}

void quire_precache_yield(quire_adapt *adapt)
{
    adapt->busy_us = quire_loop_now_us(adapt->loop);
    quire_loop_fetch_ahead_end(adapt->loop);
    if (is_running(adapt)) {
        adapt->figures.precache.aborted_runs_total++;
        run_end(adapt);
    }
}

void quire_precache_forget(quire_adapt *adapt)
{
    quire_loop_fetch_ahead_end(adapt->loop);
    if (is_running(adapt)) {
        run_close(adapt);
    }
}

static uint32_t n_cached(void *ctx, const quire_precache_text *text)
{
    const quire_adapt *adapt = ctx;
    const quire_prefix_key key = quire_loop_key(adapt->loop, text->tenant, text->tenant_bytes);
    quire_prefix_match match;

    quire_prefix_lookup(adapt->parts->tree, &key, text->tokens, text->n_tokens, &match);
    return match.n_tokens;
}

void quire_precache_judge(quire_adapt *adapt)
{
    if (adapt->book != NULL) {
        quire_precache_book_judge(adapt->book, quire_loop_now_us(adapt->loop), n_cached, adapt);
    }
}

void quire_precache_count(quire_adapt *adapt)
{
    quire_precache_stats *s = &adapt->figures.precache;
    quire_precache_accounts a;

    if (adapt->book == NULL) {
        return;
    }
    quire_precache_book_accounts(adapt->book, &a);
    s->is_on = !a.is_pausing;
    s->gain_tokens_total = a.gain_tokens_total;
    s->waste_tokens_total = a.waste_tokens_total;
    s->pauses_total = a.pauses_total;
}
