/* attn_fixture.c - see attn_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STRIDE_PAD 8u /* rows are not dense: strides must be used */

fixture_opts fixture_defaults(void)
{
    return (fixture_opts){ .n_head = 8,
                           .n_kv_head = 2,
                           .d_k = 64,
                           .d_v = 64,
                           .k_format = QUIRE_FORMAT_F32,
                           .v_format = QUIRE_FORMAT_F32,
                           .n_k = 1,
                           .n_v = 1,
                           .has_keys = true,
                           .recent_tiles = 1,
                           .page_tokens = 64,
                           .n_seqs = 1,
                           .n_tokens = { 100 },
                           .n_rows = { 1 } };
}

static uint32_t random_rotation(quire_rng *rng, uint32_t d)
{
    return quire_rng_below(rng, 2) != 0 ? quire_hadamard_block(d) : 0;
}

void fixture_vary(fixture_opts *opts, quire_rng *rng)
{
    static const uint32_t windows[] = { 0, 1, 2, 63, 64, 65, 127, 128, 129, 200, 500, 5000 };
    static const float softcaps[] = { 0.0f, 0.0f, 3.0f, 50.0f };

    opts->window = windows[quire_rng_below(rng, sizeof(windows) / sizeof(windows[0]))];
    opts->has_chunks = opts->window != 0 && quire_rng_below(rng, 3) == 0;
    opts->softcap = softcaps[quire_rng_below(rng, sizeof(softcaps) / sizeof(softcaps[0]))];
    opts->has_sinks = quire_rng_below(rng, 2) != 0;
    opts->rotate_k = random_rotation(rng, opts->d_k);
    opts->rotate_v = random_rotation(rng, opts->d_v);
    opts->is_mixed = quire_rng_below(rng, 3) != 0;
    opts->k_format_2 = (quire_format)quire_rng_below(rng, QUIRE_FORMAT_COUNT);
    opts->v_format_2 = (quire_format)quire_rng_below(rng, QUIRE_FORMAT_COUNT);
    opts->rotate_k_2 = random_rotation(rng, opts->d_k);
    opts->rotate_v_2 = random_rotation(rng, opts->d_v);
    opts->has_two_groups = (opts->n_k > 1 || opts->n_v > 1) && quire_rng_below(rng, 2) != 0;
}

void *fixture_take(size_t bytes)
{
    const quire_allocator *allocator = quire_allocator_default();
    void *p = allocator->alloc(allocator->ctx, bytes > 0 ? bytes : 1);

    assert_non_null(p);
    return p;
}

/* About normal, by the sum of four uniform numbers (most of a test's time would go into the
 * logarithms of a better one). */
static float *random_floats(quire_rng *rng, size_t n, double scale)
{
    float *x = fixture_take(n * sizeof(float));

    for (size_t i = 0; i < n; i++) {
        uint64_t bits = quire_rng_next(rng);
        uint32_t sum = 0;

        for (uint32_t k = 0; k < 4; k++) {
            sum += (uint32_t)(bits >> 16 * k) & 0xffffu;
        }
        x[i] = (float)(((double)sum / 65536.0 - 2.0) * sqrt(3.0) * scale);
    }
    return x;
}

/* Lanes of one source, a part of its group's pages: all heads, tile after tile. *page_bytes: the
 * bytes that the sources laid out so far take in each of the group's pages. */
static void lay_out(const fixture_opts *o, quire_side side, quire_format format, uint32_t d,
                    size_t *page_bytes, quire_attn_lane *lane)
{
    lane->offset = *page_bytes * FIXTURE_EXTENT_PAGES;
    lane->tile_stride = quire_tile_bytes(format, side, d);
    lane->head_stride = lane->tile_stride * (o->page_tokens / QUIRE_TILE_TOKENS);
    lane->page_stride = lane->head_stride * o->n_kv_head;
    *page_bytes += lane->page_stride;
}

static quire_format format_of(const fixture_opts *o, quire_side side, uint32_t i)
{
    if (i > 0 && o->is_mixed) {
        return side == QUIRE_SIDE_K ? o->k_format_2 : o->v_format_2;
    }
    return side == QUIRE_SIDE_K ? o->k_format : o->v_format;
}

static uint32_t rotate_of(const fixture_opts *o, quire_side side, uint32_t i)
{
    if (i > 0 && o->is_mixed) {
        return side == QUIRE_SIDE_K ? o->rotate_k_2 : o->rotate_v_2;
    }
    return side == QUIRE_SIDE_K ? o->rotate_k : o->rotate_v;
}

/* Whether tables of hot groups are brought. */
static bool has_hot(const fixture_opts *o)
{
    bool is_any = o->has_two_groups;

    for (uint32_t i = 0; i < o->n_k; i++) {
        is_any = is_any || quire_format_is_sealed(format_of(o, QUIRE_SIDE_K, i));
    }
    for (uint32_t i = 0; i < o->n_v; i++) {
        is_any = is_any || quire_format_is_sealed(format_of(o, QUIRE_SIDE_V, i));
    }
    return is_any;
}

static void init_source(const fixture_opts *o, quire_side side, uint32_t i,
                        size_t page_bytes[QUIRE_GROUPS_MAX], quire_attn_source *source)
{
    const uint32_t group = i > 0 && o->has_two_groups ? 2 : 0;
    const uint32_t d = side == QUIRE_SIDE_K ? o->d_k : o->d_v;

    source->format = format_of(o, side, i);
    source->rotate = rotate_of(o, side, i);
    source->group = group;
    lay_out(o, side, source->format, d, &page_bytes[group], &source->lane);
    if (quire_format_is_sealed(source->format)) {
        source->hot_group = group + 1;
        lay_out(o, side, QUIRE_FORMAT_HOT, d, &page_bytes[group + 1], &source->hot_lane);
    }
}

/* Pages of all groups are of one size, that of the largest. */
static void init_sources(fixture *f)
{
    const fixture_opts *o = &f->opts;
    quire_attn_layer *layer = &f->layer;
    size_t page_bytes[QUIRE_GROUPS_MAX] = { 0 };

    for (uint32_t i = 0; i < o->n_k; i++) {
        init_source(o, QUIRE_SIDE_K, i, page_bytes, &layer->k[i]);
    }
    for (uint32_t i = 0; i < o->n_v; i++) {
        init_source(o, QUIRE_SIDE_V, i, page_bytes, &layer->v[i]);
    }
    layer->k_store = layer->k[0];
    layer->v_store = layer->v[0];
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) {
        f->page_bytes = f->page_bytes > page_bytes[g] ? f->page_bytes : page_bytes[g];
    }
}

static void init_layer(fixture *f)
{
    const fixture_opts *o = &f->opts;
    double logit_scale = o->logit_scale != 0.0f ? (double)o->logit_scale : 2.0;
    double k_scale = o->k_scale != 0.0f ? (double)o->k_scale : 1.0;
    quire_attn_layer *layer = &f->layer;

    *layer = (quire_attn_layer){ .n_head = o->n_head,
                                 .n_kv_head = o->n_kv_head,
                                 .d_k = o->d_k,
                                 .d_v = o->d_v,
                                 .n_k = o->n_k,
                                 .n_v = o->n_v,
                                 .v_prefix_of_k = o->n_v == 0,
                                 .window = o->window,
                                 .has_chunks = o->has_chunks,
                                 .softcap = o->softcap,
                                 .recent_tiles = o->recent_tiles,
                                 .sink_tiles = o->sink_tiles,
                                 .q_stride = (size_t)o->n_head * o->d_k + STRIDE_PAD,
                                 .out_stride = (size_t)o->n_head * o->d_v + STRIDE_PAD };
    layer->scale = (float)(logit_scale / k_scale / sqrt((double)o->d_k * o->n_k));
    init_sources(f);
}

static void init_data(fixture *f, quire_rng *rng)
{
    const fixture_opts *o = &f->opts;
    quire_attn_layer *layer = &f->layer;
    double k_scale = o->k_scale != 0.0f ? (double)o->k_scale : 1.0;
    double v_scale = o->v_scale != 0.0f ? (double)o->v_scale : 1.0;

    for (uint32_t i = 0; i < o->n_k; i++) {
        f->q[i] = random_floats(rng, f->n_rows * layer->q_stride, 1.0);
        f->k[i] = random_floats(rng, (size_t)f->n_tokens * o->n_kv_head * o->d_k, k_scale);
        layer->q[i] = f->q[i];
    }
    if (o->has_keys) {
        layer->k_new_stride = (size_t)o->n_kv_head * o->d_k + STRIDE_PAD;
        f->keys = random_floats(rng, f->n_rows * layer->k_new_stride, k_scale);
        layer->k_new = f->keys;
    }
    for (uint32_t i = 0; i < o->n_v; i++) {
        f->v[i] = random_floats(rng, (size_t)f->n_tokens * o->n_kv_head * o->d_v, v_scale);
    }
    for (uint32_t i = 0; o->has_gates && i < QUIRE_ATTN_SOURCES_MAX; i++) {
        f->gate[i] = random_floats(rng, (size_t)o->n_kv_head * o->d_v, 1.0);
        layer->v_gate[i] = f->gate[i];
    }
    if (o->has_sinks) {
        f->sinks = random_floats(rng, o->n_head, 2.0);
        layer->sinks = f->sinks;
    }
}

/* The next entry's slots, for n_left positions at most. */
static uint32_t next_entry(const fixture_opts *o, uint32_t n_left, quire_rng *rng,
                           quire_page_entry *entry)
{
    uint32_t unit = has_hot(o) ? QUIRE_TILE_TOKENS : 1;
    uint32_t n_units = o->page_tokens / unit;
    uint32_t first = o->is_ragged ? quire_rng_below(rng, n_units) : 0;
    uint32_t n = n_units - first;

    n = o->is_ragged ? 1 + quire_rng_below(rng, n) : n;
    n = n * unit < n_left ? n * unit : n_left;
    *entry = (quire_page_entry){ .first_slot = (uint16_t)(first * unit), .n_tokens = (uint16_t)n };
    return n;
}

/* Give the entry a list of positions from `pos` on, with gaps, that ends before `end`; returns the
 * position after it. An entry that would not fit stays as it is: then `pos` comes back. */
static uint32_t drop_some(fixture *f, quire_page_entry *entry, uint32_t pos, uint32_t end,
                          quire_rng *rng)
{
    const uint32_t n = entry->n_tokens;

    if (end < pos + 3 * n + 2u * QUIRE_TILE_TOKENS || quire_rng_below(rng, 2) == 0 ||
        (has_hot(&f->opts) && n % QUIRE_TILE_TOKENS != 0)) {
        return pos;
    }
    pos += quire_rng_below(rng, QUIRE_TILE_TOKENS);
    entry->first_pos = (int32_t)pos;
    entry->positions = f->n_positions;
    for (uint32_t i = 0; i < n; i++) {
        f->positions[f->n_positions++] = (int32_t)pos;
        pos += 1 + quire_rng_below(rng, 3);
    }
    pos = (uint32_t)f->positions[f->n_positions - 1] + 1;
    if (has_hot(&f->opts)) {
        pos = (pos + QUIRE_TILE_TOKENS - 1) / QUIRE_TILE_TOKENS * QUIRE_TILE_TOKENS;
    }
    return pos;
}

static uint32_t n_leaves_of(const quire_attn_table *table)
{
    return (table->n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
}

quire_page_entry *fixture_entry(const quire_attn_table *table, uint32_t i)
{
    return (quire_page_entry *)(uintptr_t)&table
        ->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

uint32_t fixture_position(const fixture *f, const quire_page_entry *entry, uint32_t i)
{
    return entry->positions != 0 ? (uint32_t)f->positions[entry->positions + i]
                                 : (uint32_t)entry->first_pos + i;
}

float fixture_bias(const fixture *f, const quire_page_entry *entry, uint32_t i)
{
    return f->biases != NULL && entry->positions != 0 ? f->biases[entry->positions + i] : 0.0f;
}

uint32_t fixture_entry_end(const fixture *f, const quire_page_entry *entry)
{
    return fixture_position(f, entry, entry->n_tokens - 1u) + 1;
}

static quire_attn_table new_table(uint32_t n_entries)
{
    quire_attn_table table = { .n_entries = n_entries };
    const quire_page_entry **leaves = fixture_take(n_leaves_of(&table) * sizeof(*leaves));

    for (uint32_t i = 0; i < n_leaves_of(&table); i++) {
        leaves[i] = fixture_take(QUIRE_LEAF_ENTRIES * sizeof(quire_page_entry));
    }
    table.leaves = leaves;
    return table;
}

static void free_table(const quire_attn_table *table, uint32_t n_leaves)
{
    for (uint32_t i = 0; table->leaves != NULL && i < n_leaves; i++) {
        free((void *)(uintptr_t)table->leaves[i]);
    }
    free((void *)(uintptr_t)table->leaves);
}

/* The entries of one sequence; returns their number. */
static uint32_t init_entries(fixture *f, uint32_t s, quire_page_entry *entries, quire_rng *rng)
{
    const uint32_t n_tokens = f->opts.n_tokens[s];
    const uint32_t first_row = n_tokens - f->opts.n_rows[s];
    uint32_t n_entries = 0;

    for (uint32_t pos = 0; pos < n_tokens; n_entries++) {
        quire_page_entry *entry = &entries[n_entries];
        const uint32_t n = next_entry(&f->opts, n_tokens - pos, rng, entry);
        const uint32_t end = f->opts.has_drops ? drop_some(f, entry, pos, first_row, rng) : pos;

        if (entry->positions == 0) {
            entry->first_pos = (int32_t)pos;
            pos += n;
        } else {
            pos = end;
        }
    }
    return n_entries;
}

/* The tables of one sequence, pages in order of use. */
static void init_tables(fixture *f, uint32_t s, quire_rng *rng)
{
    uint32_t n_tokens = f->opts.n_tokens[s];
    quire_page_entry *entries =
        fixture_take(n_tokens * sizeof(*entries)); /* at least a token each */
    const uint32_t n_entries = init_entries(f, s, entries, rng);
    quire_attn_seq *seq = &f->seqs[s];

    *seq = (quire_attn_seq){ .n_tokens = n_tokens,
                             .first_row = f->n_rows,
                             .n_rows = f->opts.n_rows[s] };
    for (uint32_t g = 0; g < f->n_groups; g++) {
        seq->tables[g] = new_table(n_entries);
    }
    for (uint32_t i = 0; i < n_entries; i++) {
        for (uint32_t g = 0; g < f->n_groups; g++) {
            entries[i].page = ++f->n_pages;
            *fixture_entry(&seq->tables[g], i) = entries[i];
        }
    }
    free(entries);
    f->first_token[s] = f->n_tokens;
    f->n_rows += f->opts.n_rows[s];
    f->n_tokens += n_tokens;
}

/* Make holes of the entries [1, 1 + n) of hot tables, of the second one of fewer, as far as no new
 * row is in them. */
static void punch(const fixture *f, const quire_attn_seq *seq, uint32_t n)
{
    for (uint32_t g = 1; g < f->n_groups; g += 2) {
        const quire_attn_table *table = &seq->tables[g];
        const uint32_t n_holes = g == 1 ? n : n / 2;

        for (uint32_t i = 1; i <= n_holes && i < table->n_entries; i++) {
            quire_page_entry *entry = fixture_entry(table, i);

            if (fixture_entry_end(f, entry) <= seq->n_tokens - seq->n_rows) {
                entry->page = QUIRE_PAGE_NULL;
            }
        }
    }
}

void fixture_let_go(const fixture *f, uint32_t s)
{
    const quire_attn_seq *seq = &f->seqs[s];
    const uint32_t first = seq->n_tokens - seq->n_rows;
    const uint32_t seen = first >= f->opts.window ? first - f->opts.window + 1 : 0;

    for (uint32_t g = 0; g < f->n_groups; g += 2) {
        for (uint32_t i = 0; i < seq->tables[g].n_entries; i++) {
            quire_page_entry *entry = fixture_entry(&seq->tables[g], i);

            if (fixture_entry_end(f, entry) <= seen) {
                entry->page = QUIRE_PAGE_NULL;
            }
        }
    }
}

quire_attn_seq fixture_truncated(const fixture *f, const quire_attn_seq *seq, uint32_t n_tokens)
{
    quire_attn_seq t = *seq;

    t.n_tokens = n_tokens;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const quire_attn_table *from = &seq->tables[g];

        t.tables[g] = new_table(from->n_entries);
        t.tables[g].n_entries = 0;
        for (uint32_t i = 0; i < from->n_entries; i++) {
            quire_page_entry *entry = fixture_entry(&t.tables[g], i);

            *entry = *fixture_entry(from, i);
            if ((uint32_t)entry->first_pos >= n_tokens) {
                break;
            }
            while (fixture_position(f, entry, entry->n_tokens - 1u) >= n_tokens) {
                entry->n_tokens--;
            }
            t.tables[g].n_entries++;
        }
    }
    return t;
}

void fixture_free_seq(const quire_attn_seq *seq, const quire_attn_seq *truncated)
{
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) {
        free_table(&truncated->tables[g], n_leaves_of(&seq->tables[g]));
    }
}

/* Give page ids first, first + step, ... places in extents from *store on, in shuffled order, so
 * nothing may rely on neighbours. */
static void place_pages(fixture *f, uint32_t first, uint32_t step, unsigned char **store,
                        quire_rng *rng)
{
    uint32_t n = 0;

    for (uint32_t id = first; id <= f->n_pages; id += step, n++) {
        uint32_t other = first + quire_rng_below(rng, n + 1) * step;
        uint32_t slot = n % FIXTURE_EXTENT_PAGES;

        f->page_addr[id] = f->page_addr[other];
        f->page_addr[other] =
            (quire_page_addr){ .extent = *store + (n - slot) * f->page_bytes, .slot = slot };
    }
    *store += (n + FIXTURE_EXTENT_PAGES - 1) / FIXTURE_EXTENT_PAGES * FIXTURE_EXTENT_PAGES *
              f->page_bytes;
}

/* Pages of a group lie in extents of their own: parts differ. */
static void init_pages(fixture *f, quire_rng *rng)
{
    unsigned char *end;

    f->store = fixture_take((f->n_pages + f->n_groups * FIXTURE_EXTENT_PAGES) * f->page_bytes);
    f->page_addr = fixture_take((f->n_pages + 1u) * sizeof(*f->page_addr));
    f->page_addr[0] = (quire_page_addr){ .extent = NULL };
    end = f->store;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        place_pages(f, 1 + g, f->n_groups, &end, rng); /* see init_tables() */
    }
    f->store_bytes = (size_t)(end - f->store);
    fixture_wipe(f);
}

void fixture_wipe(fixture *f)
{
    memset(f->store, 0xff, f->store_bytes);
    memset(f->n_stored, 0, sizeof(f->n_stored));
}

void fixture_init(fixture *f, const fixture_opts *opts, quire_rng *rng)
{
    uint32_t n_tokens = 0;

    *f = (fixture){ .opts = *opts, .n_positions = 1 };
    f->n_groups = opts->has_two_groups ? 4 : has_hot(opts) ? 2 : 1;
    for (uint32_t s = 0; s < opts->n_seqs; s++) {
        n_tokens += opts->n_tokens[s];
    }
    f->positions = fixture_take((n_tokens + 1u) * sizeof(*f->positions));
    f->biases = opts->has_biases ? fixture_take((n_tokens + 1u) * sizeof(*f->biases)) : NULL;
    for (uint32_t i = 0; f->biases != NULL && i < n_tokens + 1u; i++) {
        f->biases[i] = (float)quire_rng_normal(rng);
    }
    for (uint32_t s = 0; s < opts->n_seqs; s++) {
        init_tables(f, s, rng);
    }
    init_layer(f);
    init_data(f, rng);
    init_pages(f, rng);
    f->batch = (quire_attn_batch){ .seqs = f->seqs,
                                   .n_seqs = opts->n_seqs,
                                   .page_tokens = opts->page_tokens,
                                   .page_addr = f->page_addr,
                                   .positions = f->positions,
                                   .biases = f->biases };
    for (uint32_t s = 0; s < opts->n_seqs; s++) {
        fixture_store(f, s, 0, opts->n_tokens[s]);
        punch(f, &f->seqs[s], opts->n_punched);
        if (opts->has_holes && opts->window != 0) {
            fixture_let_go(f, s);
        }
    }
}

void fixture_free(fixture *f)
{
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        fixture_free_seq(&f->seqs[s], &f->seqs[s]);
    }
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        free(f->q[i]);
        free(f->k[i]);
        free(f->v[i]);
        free(f->gate[i]);
    }
    free(f->sinks);
    free(f->positions);
    free(f->biases);
    free(f->keys);
    free(f->page_addr);
    free(f->store);
}
