/* grammar_match.c - characters of a text, and the states behind them: see grammar_match.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/grammar_match_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

typedef quire_match_thread thread;
typedef quire_match_partial partial;
typedef quire_match_level level;

/* ---- characters ---- */

/* Take a byte into a character. False when no character goes on so (Unicode Standard, table
 * 3-7). */
static bool partial_take(partial *p, unsigned char byte)
{
    if (p->n_left > 0) {
        if (byte < p->low || byte > p->high) {
            return false;
        }
        *p = (partial){ p->value << 6 | (byte & 0x3fu), (uint8_t)(p->n_left - 1), 0x80, 0xbf };
        return true;
    }
    *p = (partial){ byte, 0, 0x80, 0xbf };
    if (byte < 0x80) {
        return byte != 0;
    }
    if (byte < 0xc2 || byte > 0xf4) {
        return false;
    }
    p->n_left = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    p->value = byte & (0x3fu >> p->n_left);
    p->low = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
    p->high = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    return true;
}

/* The characters that a partial one can become. */
static quire_grammar_range partial_range(const partial *p)
{
    quire_grammar_range range = { p->value, p->value };

    if (p->n_left > 0) {
        const uint32_t shift = 6u * (p->n_left - 1u);

        range.low = (p->value << 6 | (p->low & 0x3fu)) << shift;
        range.high = (p->value << 6 | (p->high & 0x3fu)) << shift | ((1u << shift) - 1);
    }
    return range;
}

static bool set_takes(const quire_grammar *g, const quire_grammar_set *set,
                      quire_grammar_range wanted)
{
    uint32_t begin = set->first, end = set->first + set->n;

    if (wanted.high < 128) { /* one character */
        return (set->ascii[wanted.low / 64] >> (wanted.low % 64) & 1) != 0;
    }
    while (begin < end) { /* the first range that does not end before */
        const uint32_t middle = begin + (end - begin) / 2;

        if (g->ranges[middle].high < wanted.low) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin < set->first + set->n && g->ranges[begin].low <= wanted.high;
}

static bool element_takes(const quire_grammar *g, uint32_t element, quire_grammar_range wanted)
{
    const quire_grammar_element e = g->elements[element];

    return e.kind == QUIRE_GRAMMAR_CHAR ? wanted.low <= e.value && e.value <= wanted.high
                                        : set_takes(g, &g->sets[e.value], wanted);
}

/* ---- levels ---- */

/* Whether a character that a level begins with `p` can follow it. */
static int level_begins(quire_grammar_match *m, const level *from, partial p, level *to)
{
    const quire_grammar_range wanted = partial_range(&p);

    QUIRE_TRY(quire_match_spend(m, from->n_threads));
    *to = *from;
    to->partial = p;
    for (uint32_t i = 0; i < from->n_threads; i++) {
        if (element_takes(m->grammar, m->threads[from->first + i].element, wanted)) {
            return 1;
        }
    }
    return 0;
}

/* The level behind a byte: 1, 0 (it cannot follow), or an error. */
static int level_take(quire_grammar_match *m, const level *from, unsigned char byte, level *to)
{
    const uint32_t first = from->first + from->n_threads;
    quire_grammar_range wanted;
    partial p = from->partial;

    if (!partial_take(&p, byte)) {
        return 0;
    }
    if (p.n_left > 0) {
        return level_begins(m, from, p, to);
    }
    wanted = partial_range(&p);
    QUIRE_TRY(quire_match_spend(m, from->n_threads));
    quire_match_column_begin(m, first, from->n_nodes, from->n_edges);
    for (uint32_t i = 0; i < from->n_threads; i++) {
        const thread t = m->threads[from->first + i]; /* the array may move */

        if (element_takes(m->grammar, t.element, wanted)) {
            QUIRE_TRY(quire_match_go_on(m, t.element + 1, t.node));
        }
    }
    return quire_match_column_end(m, first, to);
}

int quire_grammar_match_test(quire_grammar_match *m, const char *text, size_t n, size_t n_shared)
{
    QUIRE_ASSERT(n > 0 && n <= QUIRE_GRAMMAR_TEXT_MAX && n_shared <= n);
    if (n_shared > m->n_walked) {
        return 0; /* it begins with what could not follow */
    }
    for (m->n_walked = n_shared; m->n_walked < n; m->n_walked++) {
        const size_t i = m->n_walked;
        const int rc = level_take(m, &m->levels[i], (unsigned char)text[i], &m->levels[i + 1]);

        if (rc <= 0) {
            return rc;
        }
    }
    return 1;
}

/* ---- the state ---- */

/* Make a level the state. */
static int state_set(quire_grammar_match *m, level state)
{
    if (state.n_threads > 0) {
        memmove(m->threads, m->threads + state.first, state.n_threads * sizeof *m->threads);
    }
    m->n_threads = state.n_threads;
    m->n_nodes = state.n_nodes;
    m->n_edges = state.n_edges;
    m->n_walked = 0;
    quire_match_renumber(m);
    QUIRE_TRY(quire_match_intern(m));
    QUIRE_TRY(quire_match_collect(m));
    state.first = 0;
    state.n_threads = m->n_threads;
    state.n_nodes = m->n_nodes;
    state.n_edges = m->n_edges;
    m->levels[0] = state;
    return QUIRE_OK;
}

int quire_grammar_match_feed(quire_grammar_match *m, const char *text, size_t n)
{
    for (size_t done = 0; done < n;) {
        const size_t n_now = n - done < QUIRE_GRAMMAR_TEXT_MAX ? n - done : QUIRE_GRAMMAR_TEXT_MAX;
        const int rc = quire_grammar_match_test(m, text + done, n_now, 0);

        if (rc <= 0) {
            return rc;
        }
        QUIRE_TRY(state_set(m, m->levels[n_now]));
        done += n_now;
    }
    return 1;
}

bool quire_grammar_match_is_whole(const quire_grammar_match *m)
{
    return m->levels[0].is_whole && m->levels[0].partial.n_left == 0;
}

/* ---- life ---- */

int quire_grammar_match_reset(quire_grammar_match *m)
{
    level state;

    quire_grammar_match_refill(m);
    quire_match_forget(m);
    quire_match_column_begin(m, 0, 1, 0);
    QUIRE_TRY(quire_match_rule_begin(m, m->grammar->root, QUIRE_MATCH_BOTTOM));
    QUIRE_TRY(quire_match_column_end(m, 0, &state));
    return state_set(m, state);
}

void quire_grammar_match_refill(quire_grammar_match *m)
{
    m->n_steps = 0;
}

int quire_grammar_match_create(quire_grammar_match **out, const quire_grammar *grammar)
{
    quire_grammar_match *m = calloc(1, sizeof *m);
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (m != NULL) {
        m->grammar = grammar;
        m->seen_cap = 64;
        m->seen = calloc(m->seen_cap, sizeof *m->seen);
        m->calls = calloc(grammar->n_elements, sizeof *m->calls);
        m->nodes = quire_grammar_room(NULL, &m->nodes_cap, 0, sizeof *m->nodes);
        if (m->seen != NULL && m->calls != NULL && m->nodes != NULL) {
            rc = quire_grammar_match_reset(m);
        }
    }
    if (rc < 0) {
        quire_grammar_match_destroy(m);
        return rc;
    }
    *out = m;
    return QUIRE_OK;
}

void quire_grammar_match_destroy(quire_grammar_match *m)
{
    if (m == NULL) {
        return;
    }
    free(m->threads);
    free(m->work);
    free(m->nodes);
    free(m->edges);
    free(m->calls);
    free(m->seen);
    free(m->interned);
    free(m->names);
    free(m->parents);
    free(m);
}

quire_grammar_match_counts quire_grammar_match_count(const quire_grammar_match *m)
{
    return (quire_grammar_match_counts){ m->n_steps, m->levels[0].n_nodes, m->levels[0].n_edges,
                                         m->levels[0].n_threads };
}
