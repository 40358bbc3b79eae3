/* fuzz_cache.c - bytes become operations on a cache, checked by validate and by a model of stamps.
 *
 *   byte 0      groups - 1 (2 bits), page tokens (2 bits), watermark on (1), history on (1)
 *   byte 1, 2   page size class of groups 0 and 1 (2 bits each: 0 = metadata only), budget in pages
 *   then        operation, argument; operation, argument; ...
 *
 * The input also says which allocations and extents fail. The first word of each token's slot holds
 * a stamp that no other token ever has. After any operation every sequence must find the stamps of
 * its own tokens. The model also keeps the released pages of each group, as read from the tables
 * right after the release.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "core/cache/cache_internal.h"
#include "quire/cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SEQS_MAX   6u
#define TOKENS_MAX 2048u
#define GROUPS_MAX 4u
#define OPS_MAX    600u /* bounds the time of one input */

typedef struct faults {
    uint32_t n_allocs; /* that succeed before one fails; 0 = none fails */
    uint32_t n_maps;
} faults;

typedef struct model_seq {
    quire_seq_id id;
    uint32_t n_tokens;
    uint32_t stamps[TOKENS_MAX];
    bool is_hole[GROUPS_MAX][TOKENS_MAX / QUIRE_PAGE_TOKENS_MIN]; /* by page; false from the end */
} model_seq;

typedef struct fuzz {
    quire_cache *cache;
    faults faults;
    model_seq seqs[SEQS_MAX];
    uint32_t n_seqs;
    uint32_t next_stamp;
} fuzz;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static bool is_due(uint32_t *countdown)
{
    return *countdown > 0 && --*countdown == 0;
}

static void *fuzz_alloc(void *ctx, size_t size_bytes)
{
    faults *f = ctx;

    return is_due(&f->n_allocs) ? NULL : quire_allocator_default()->alloc(NULL, size_bytes);
}

static void fuzz_free(void *ctx, void *ptr)
{
    (void)ctx;
    quire_allocator_default()->free(NULL, ptr);
}

static void *fuzz_map(void *ctx, size_t size_bytes)
{
    faults *f = ctx;

    return is_due(&f->n_maps) ? NULL : quire_extent_source_os()->map(NULL, size_bytes);
}

static void fuzz_unmap(void *ctx, void *base, size_t size_bytes)
{
    (void)ctx;
    quire_extent_source_os()->unmap(NULL, base, size_bytes);
}

static bool fuzz_lock(void *ctx, void *base, size_t size_bytes)
{
    (void)ctx;
    (void)base;
    return size_bytes % 3 == 0;
}

static const quire_page_entry *entry_of(const fuzz *f, const model_seq *seq, quire_group_id group,
                                        uint32_t index)
{
    quire_seq_table table;

    QUIRE_CHECK(quire_seq_table_get(f->cache, seq->id, group, &table) == QUIRE_OK);
    QUIRE_CHECK(index < table.n_entries && table.n_tokens == seq->n_tokens);
    return &table.leaves[index / QUIRE_LEAF_ENTRIES][index % QUIRE_LEAF_ENTRIES];
}

/* The stamp's place of a token in group 0; NULL without payload and in a hole. */
static unsigned char *stamp_at(const fuzz *f, const model_seq *seq, uint32_t token)
{
    uint32_t page_tokens = f->cache->opts.page_tokens;
    const quire_page_entry *entry = entry_of(f, seq, 0, token / page_tokens);
    const quire_page_addr addr = quire_cache_page_addrs(f->cache)[entry->page];
    const size_t page_bytes = f->cache->opts.page_bytes[0];
    size_t at = token % page_tokens * (page_bytes / page_tokens);

    QUIRE_CHECK(token % page_tokens < entry->n_tokens);
    if (addr.extent == NULL) {
        return NULL;
    }
    if (f->cache->opts.n_parts[0] == 2) { /* halves */
        at += at >= page_bytes / 2
                  ? (quire_cache_extent_pages(page_bytes, 2) - 1) * (page_bytes / 2)
                  : 0;
        return addr.extent + addr.slot * (page_bytes / 2) + at;
    }
    return addr.extent + addr.slot * page_bytes + at;
}

static void check_holes(const fuzz *f, const model_seq *seq)
{
    for (uint32_t g = 0; g < f->cache->opts.n_groups; g++) {
        for (uint32_t i = 0; i * f->cache->opts.page_tokens < seq->n_tokens; i++) {
            quire_page_id page = entry_of(f, seq, (quire_group_id)g, i)->page;

            QUIRE_CHECK((page == QUIRE_PAGE_NULL) == seq->is_hole[g][i]);
        }
    }
}

static void check_stamps(const fuzz *f)
{
    for (uint32_t s = 0; s < f->n_seqs; s++) {
        const model_seq *seq = &f->seqs[s];

        QUIRE_CHECK(quire_seq_tokens(f->cache, seq->id) == seq->n_tokens);
        check_holes(f, seq);
        for (uint32_t i = 0; i < seq->n_tokens; i++) {
            const unsigned char *at = stamp_at(f, seq, i);

            QUIRE_CHECK(at == NULL || memcmp(at, &seq->stamps[i], sizeof(uint32_t)) == 0);
        }
    }
}

static void op_open(fuzz *f)
{
    quire_seq_id id;

    if (f->n_seqs < SEQS_MAX && quire_seq_open(f->cache, QUIRE_REGION_DYNAMIC, &id) == QUIRE_OK) {
        f->seqs[f->n_seqs].id = id;
        f->seqs[f->n_seqs].n_tokens = 0;
        memset(f->seqs[f->n_seqs].is_hole, 0, sizeof(f->seqs[f->n_seqs].is_hole));
        f->n_seqs++;
    }
}

static void op_fork(fuzz *f, model_seq *seq)
{
    quire_seq_id id;

    if (f->n_seqs < SEQS_MAX && quire_seq_fork(f->cache, seq->id, &id) == QUIRE_OK) {
        f->seqs[f->n_seqs] = *seq;
        f->seqs[f->n_seqs].id = id;
        f->n_seqs++;
    }
}

static void op_append(fuzz *f, model_seq *seq, uint32_t n)
{
    n = n < TOKENS_MAX - seq->n_tokens ? n : TOKENS_MAX - seq->n_tokens;
    if (quire_seq_append(f->cache, seq->id, n) != QUIRE_OK) {
        return;
    }
    seq->n_tokens += n;
    for (uint32_t i = seq->n_tokens - n; i < seq->n_tokens; i++) {
        unsigned char *at = stamp_at(f, seq, i);

        seq->stamps[i] = ++f->next_stamp;
        if (at != NULL) {
            memcpy(at, &seq->stamps[i], sizeof(uint32_t));
        }
    }
}

/* Whether a truncation to n would cut into a hole. */
static bool cuts_hole(const fuzz *f, const model_seq *seq, uint32_t n)
{
    uint32_t page_tokens = f->cache->opts.page_tokens;

    for (uint32_t g = 0; g < f->cache->opts.n_groups; g++) {
        if (n % page_tokens != 0 && seq->is_hole[g][n / page_tokens]) {
            return true;
        }
    }
    return false;
}

static void op_truncate(fuzz *f, model_seq *seq, uint32_t n)
{
    uint32_t page_tokens = f->cache->opts.page_tokens;
    bool is_cut = cuts_hole(f, seq, n);
    uint32_t most = is_cut ? n / page_tokens * page_tokens : n;

    QUIRE_CHECK(quire_seq_truncatable(f->cache, seq->id, n) == most);
    if (is_cut) {
        QUIRE_CHECK(quire_seq_truncate(f->cache, seq->id, n) == QUIRE_RANGE);
    }
    if (quire_seq_truncate(f->cache, seq->id, most) == QUIRE_OK) {
        seq->n_tokens = most;
        for (uint32_t g = 0; g < GROUPS_MAX; g++) {
            for (uint32_t i = most / page_tokens; i < TOKENS_MAX / page_tokens; i++) {
                seq->is_hole[g][i] = false;
            }
        }
    }
}

/* In a group, from a page on, up to a number of tokens before the end, all out of one byte. */
static void op_release(fuzz *f, model_seq *seq, uint8_t arg)
{
    quire_group_id group = (quire_group_id)(arg % f->cache->opts.n_groups);
    uint32_t page_tokens = f->cache->opts.page_tokens;
    uint32_t begin = arg / 4 % 4 * page_tokens;
    uint32_t end = seq->n_tokens * (arg / 16) / 15;
    uint32_t n_pages = seq->n_tokens / page_tokens; /* full ones */
    uint32_t n_new = 0;
    uint32_t n = 0;

    QUIRE_CHECK(quire_seq_release(f->cache, seq->id, group, begin, end, &n) ==
                (begin <= end ? QUIRE_OK : QUIRE_INVAL));
    for (uint32_t i = 0; i < n_pages; i++) {
        bool is_hole = entry_of(f, seq, group, i)->page == QUIRE_PAGE_NULL;

        if (is_hole && !seq->is_hole[group][i]) {
            QUIRE_CHECK(i * page_tokens >= begin && (i + 1) * page_tokens <= end);
            seq->is_hole[group][i] = true;
            n_new++;
        }
    }
    QUIRE_CHECK(n == n_new);
}

static void op_close(fuzz *f, model_seq *seq)
{
    QUIRE_CHECK(quire_seq_close(f->cache, seq->id) == QUIRE_OK);
    f->n_seqs--;
    if (seq != &f->seqs[f->n_seqs]) {
        *seq = f->seqs[f->n_seqs];
    }
}

static void one_op(fuzz *f, uint8_t op, uint8_t arg)
{
    model_seq *seq = f->n_seqs > 0 ? &f->seqs[(op >> 4) % f->n_seqs] : NULL;

    switch (op % 16) {
    case 0:
        op_open(f);
        break;
    case 11:
        quire_cache_maintain(f->cache);
        break;
    case 12:
        (void)quire_cache_coalesce(f->cache, arg);
        break;
    case 13:
        (void)quire_cache_trim(f->cache, (uint64_t)arg << 20);
        break;
    case 14:
        f->faults.n_allocs = arg % 8;
        f->faults.n_maps = arg / 8 % 4;
        break;
    case 15:
        (void)quire_region_budget_set(f->cache, QUIRE_REGION_DYNAMIC,
                                      f->cache->opts.budget_bytes / 64 * (arg % 65));
        break;
    default:
        if (seq == NULL) {
            op_open(f);
        } else if (op % 16 <= 3) {
            op_append(f, seq, arg % 8);
        } else if (op % 16 == 4) {
            op_append(f, seq, arg * 3u);
        } else if (op % 16 == 5) {
            (void)quire_seq_reserve(f->cache, seq->id, arg);
        } else if (op % 16 <= 7) {
            op_fork(f, seq);
        } else if (op % 16 == 8) {
            op_truncate(f, seq, seq->n_tokens * (arg % 17) / 16);
        } else if (op % 16 == 9) {
            op_release(f, seq, arg);
        } else {
            op_close(f, seq);
        }
        break;
    }
}

static bool fuzz_create(fuzz *f, const uint8_t *head)
{
    static const size_t sizes[] = { 0, 64 * 64, 64 * 512, 64 * 80 };
    quire_allocator allocator = { fuzz_alloc, fuzz_free, &f->faults };
    quire_extent_source source = { fuzz_map, fuzz_unmap, fuzz_lock, &f->faults };
    quire_cache_env env = { &source, QUIRE_PAGES_MAX, 40 };
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;
    size_t halves[2];

    opts.allocator = &allocator;
    opts.n_groups = 1 + head[0] % 4;
    opts.page_tokens = QUIRE_PAGE_TOKENS_MIN << (head[0] >> 2) % 4;
    opts.watermark_pages_max = (head[0] & 16) != 0 ? 10 : 0;
    opts.history_events = (head[0] & 32) != 0 ? 7 : 0;
    opts.lock_memory = (head[0] & 64) != 0;
    opts.page_bytes[0] = sizes[head[1] % 4];
    opts.page_bytes[1] = sizes[head[1] / 4 % 4];
    opts.page_bytes[3] = opts.page_bytes[0];
    if ((head[1] & 64) != 0) {
        halves[0] = opts.page_bytes[0] / 2;
        halves[1] = opts.page_bytes[0] / 2;
        opts.n_parts[0] = 2;
        opts.part_bytes[0] = halves;
    }
    opts.charge_bytes[0] = 16;
    opts.charge_bytes[1] = 5;
    opts.budget_bytes = head[2] * 16u;
    opts.seqs_max = SEQS_MAX;
    opts.seq_tokens_max = TOKENS_MAX;
    return quire_cache_create_in(&f->cache, &opts, &env) == QUIRE_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static fuzz f; /* too large for a stack */
    uint32_t n_ops = 0;

    if (size_bytes < 3) {
        return 0;
    }
    f.n_seqs = 0;
    f.next_stamp = 0;
    f.faults = (faults){ 0, 0 };
    if (!fuzz_create(&f, data)) {
        return 0;
    }
    for (size_t at = 3; at + 1 < size_bytes && n_ops < OPS_MAX; at += 2, n_ops++) {
        one_op(&f, data[at], data[at + 1]);
        if (n_ops % 4 == 0) {
            quire_cache_validate(f.cache);
        }
    }
    quire_cache_validate(f.cache);
    check_stamps(&f);
    quire_cache_destroy(f.cache);
    return 0;
}
