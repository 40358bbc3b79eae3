/* recurrent.c - see recurrent.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/recurrent.h"

#include "base/check.h"

#include <ggml.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HALF_MAX      65504.0f /* of f16 */
#define CHUNK_NUMBERS 1024u    /* of a state, at once */

/* The place of a sequence's state. */
typedef struct state_place {
    quire_seq_id seq; /* QUIRE_SEQ_NULL: free */
    uint32_t n_tokens;
    uint32_t n_tokens_next; /* behind the step at hand */
    bool is_second;         /* the page that counts */
    quire_page_id pages[2];
} state_place;

struct quire_states {
    quire_cache *cache;
    size_t n_floats;
    uint32_t n_places;
    uint32_t n_runs;
    uint32_t n_rows;       /* of the runs */
    state_place *places;   /* [n_places] */
    quire_state_run *runs; /* [n_places] */
    uint32_t *run_places;  /* [n_places] */
};

size_t quire_state_layer_floats(const quire_model_desc *desc)
{
    const quire_recurrent_desc *r = &desc->recurrent;

    return r->n_layers == 0 ? 0
                            : (size_t)(r->conv_taps - 1) * r->conv_width +
                                  (size_t)r->n_v_heads * r->d_state * r->d_head;
}

size_t quire_state_floats(const quire_model_desc *desc)
{
    return desc->recurrent.n_layers * quire_state_layer_floats(desc);
}

bool quire_state_format_known(quire_format format)
{
    return format == QUIRE_FORMAT_F32 || format == QUIRE_FORMAT_F16;
}

size_t quire_state_numbers_bytes(const quire_model_desc *desc, quire_format format)
{
    return quire_state_floats(desc) *
           (format == QUIRE_FORMAT_F16 ? sizeof(ggml_fp16_t) : sizeof(float));
}

size_t quire_state_page_bytes(const quire_model_desc *desc, quire_format format)
{
    return (quire_state_numbers_bytes(desc, format) + 63) / 64 * 64;
}

uint64_t quire_state_seq_bytes(const quire_model_desc *desc)
{
    return 2 * (uint64_t)quire_state_page_bytes(desc, QUIRE_FORMAT_F32);
}

void quire_state_encode(quire_format format, const float *from, size_t n, void *to)
{
    ggml_fp16_t *halves = to;
    float some[CHUNK_NUMBERS];

    if (format == QUIRE_FORMAT_F32) {
        memcpy(to, from, n * sizeof *from);
        return;
    }
    for (size_t at = 0; at < n; at += CHUNK_NUMBERS) {
        const size_t n_some = n - at < CHUNK_NUMBERS ? n - at : CHUNK_NUMBERS;

        for (size_t i = 0; i < n_some; i++) {
            const float x = from[at + i];

            some[i] = x > HALF_MAX ? HALF_MAX : x < -HALF_MAX ? -HALF_MAX : x; /* NaN stays */
        }
        ggml_fp32_to_fp16_row(some, halves + at, (int64_t)n_some);
    }
}

void quire_state_decode(quire_format format, const void *from, size_t n, float *to)
{
    if (format == QUIRE_FORMAT_F32) {
        memcpy(to, from, n * sizeof *to);
    } else {
        ggml_fp16_to_fp32_row(from, to, (int64_t)n);
    }
}

int quire_states_create(quire_states **out, const quire_model_desc *desc, quire_cache *cache,
                        uint32_t n_seqs_max)
{
    quire_states *s = calloc(1, sizeof *s);

    *out = NULL;
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    s->cache = cache;
    s->n_floats = quire_state_floats(desc);
    s->n_places = n_seqs_max;
    s->places = calloc(n_seqs_max, sizeof *s->places);
    s->runs = calloc(n_seqs_max, sizeof *s->runs);
    s->run_places = calloc(n_seqs_max, sizeof *s->run_places);
    if (s->places == NULL || s->runs == NULL || s->run_places == NULL) {
        quire_states_destroy(s);
        return QUIRE_NOMEM;
    }
    *out = s;
    return QUIRE_OK;
}

void quire_states_destroy(quire_states *s)
{
    if (s != NULL) {
        free(s->run_places);
        free(s->runs);
        free(s->places);
        free(s);
    }
}

/* Pages move between steps, so that addresses are asked for anew. */
static float *buffer_of(const quire_states *s, const state_place *place, bool is_second)
{
    return quire_cache_state(s->cache, place->pages[is_second ? 1 : 0]);
}

static bool is_open(const quire_states *s, quire_seq_id seq)
{
    quire_seq_table table;

    return quire_seq_table_get(s->cache, seq, 0, &table) == QUIRE_OK;
}

/* The place of a sequence, n_places without one. */
static uint32_t place_find(const quire_states *s, quire_seq_id seq)
{
    uint32_t i = 0;

    while (i < s->n_places && s->places[i].seq != seq) {
        i++;
    }
    return i;
}

/* A place for a sequence without one. The cache opens at most n_places sequences, so one place is
 * free or belongs to a closed sequence. */
static int place_take(quire_states *s, quire_seq_id seq, uint32_t *out)
{
    quire_page_id pages[2];
    uint32_t i = 0;

    QUIRE_TRY(quire_seq_states(s->cache, seq, pages));
    while (i < s->n_places && s->places[i].seq != QUIRE_SEQ_NULL && is_open(s, s->places[i].seq)) {
        i++;
    }
    QUIRE_CHECK(i < s->n_places);
    s->places[i] = (state_place){ .seq = seq, .pages = { pages[0], pages[1] } };
    *out = i;
    return QUIRE_OK;
}

static int place_get(quire_states *s, quire_seq_id seq, uint32_t *out)
{
    *out = place_find(s, seq);
    return *out < s->n_places ? QUIRE_OK : place_take(s, seq, out);
}

int quire_states_reserve(quire_states *s, quire_seq_id seq)
{
    uint32_t i;

    return place_get(s, seq, &i);
}

bool quire_states_has(const quire_states *s, quire_seq_id seq, uint32_t n_tokens)
{
    const uint32_t i = place_find(s, seq);

    return n_tokens == 0 || (i < s->n_places && s->places[i].n_tokens == n_tokens);
}

void quire_states_begin(quire_states *s)
{
    s->n_runs = 0;
    s->n_rows = 0;
}

int quire_states_add(quire_states *s, quire_seq_id seq, uint32_t n_tokens, uint32_t n_rows)
{
    state_place *place;
    uint32_t i;

    QUIRE_FAIL_IF(!quire_states_has(s, seq, n_tokens), QUIRE_INVAL);
    QUIRE_TRY(place_get(s, seq, &i));
    place = &s->places[i];
    if (n_tokens == 0) { /* a sequence begins with zeros */
        memset(buffer_of(s, place, place->is_second), 0, s->n_floats * sizeof(float));
        place->n_tokens = 0;
    }
    place->n_tokens_next = n_tokens + n_rows;
    s->run_places[s->n_runs] = i;
    s->runs[s->n_runs++] = (quire_state_run){ .from = buffer_of(s, place, place->is_second),
                                              .to = buffer_of(s, place, !place->is_second),
                                              .first_row = s->n_rows,
                                              .n_rows = n_rows };
    s->n_rows += n_rows;
    return QUIRE_OK;
}

uint32_t quire_states_n_runs(const quire_states *s)
{
    return s->n_runs;
}

const quire_state_run *quire_states_run(const quire_states *s, uint32_t i)
{
    return &s->runs[i];
}

void quire_states_commit(quire_states *s)
{
    for (uint32_t i = 0; i < s->n_runs; i++) {
        state_place *place = &s->places[s->run_places[i]];

        place->is_second = !place->is_second;
        place->n_tokens = place->n_tokens_next;
    }
    s->n_runs = 0;
}

const float *quire_states_get(const quire_states *s, quire_seq_id seq)
{
    const uint32_t i = place_find(s, seq);

    return i < s->n_places ? buffer_of(s, &s->places[i], s->places[i].is_second) : NULL;
}

int quire_states_set(quire_states *s, quire_seq_id seq, uint32_t n_tokens, quire_format format,
                     const void *state)
{
    uint32_t i;
    float *to;

    QUIRE_TRY(place_get(s, seq, &i));
    to = buffer_of(s, &s->places[i], s->places[i].is_second);
    s->places[i].n_tokens = n_tokens;
    if (state != NULL) {
        quire_state_decode(format, state, s->n_floats, to);
    } else {
        memset(to, 0, s->n_floats * sizeof(float));
    }
    return QUIRE_OK;
}
