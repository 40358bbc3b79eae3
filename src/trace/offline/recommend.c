/* recommend.c - chooses values and says why.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/recommend.h"

#include "base/check.h"
#include "base/parse.h"
#include "trace/duration.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PAGE_COST_MAX    0.02 /* of hits and memory together, for the sake of fewer pages */
#define MOST_HITS        0.9  /* of those of endless memory */
#define PINNED_HEADROOM  1.1
#define PINNED_SHARE_MAX 0.8
#define POLICY_TIE       0.98 /* share of the best hits with which the default policy wins */
#define TTL_PER_GAP      2u
#define GAPS_PER_SPAN    4u /* longer gaps than a span over this are seen too seldom to judge */
#define LINE_COLUMNS     96u
#define MEGABYTE         1000000u
#define GIGABYTE         1000000000ull

/* ---- sizes ---- */

static uint32_t choose_page(const quire_analysis *a)
{
    uint32_t best = 0;

    for (uint32_t p = 1; p < QUIRE_ANALYZE_PAGES; p++) {
        if (a->pages[p].lost_share + a->pages[p].unused_share <= PAGE_COST_MAX) {
            best = p;
        }
    }
    return a->pages[best].page_tokens;
}

/* The knee, or the capacity for most of the hits if the curve bends late. */
static uint64_t worth_it(const quire_mrc *mrc)
{
    const uint64_t knee = quire_mrc_knee(mrc);
    const uint64_t most = quire_mrc_capacity_for(mrc, MOST_HITS);

    return knee > most ? knee : most;
}

/* The windows and states of a request are shared out among the blocks that it adds. */
double quire_recommend_block_bytes(const quire_recommend_ask *ask)
{
    const double block_tokens = ask->analysis->block_tokens;
    const double n_blocks = quire_dist_mean(&ask->analysis->fresh) / block_tokens;

    return ask->token_bytes * block_tokens + ask->text_bytes / (n_blocks > 1.0 ? n_blocks : 1.0);
}

static double live_bytes_of(const quire_recommend_ask *ask, uint64_t live_tokens)
{
    return ask->token_bytes * (double)live_tokens +
           ask->running_bytes * (double)quire_dist_quantile(&ask->analysis->load.running, 0.99);
}

static uint32_t devices_of(const quire_recommend_ask *ask)
{
    return ask->n_devices != 0 ? ask->n_devices : 1;
}

/* The memory of each device: room for its share of the running requests, and beside them for
 * capacity_blocks, or for fewer blocks if the device's memory holds fewer. */
static void choose_memory(const quire_recommend_ask *ask, uint64_t capacity_blocks,
                          quire_recommend_sizes *out)
{
    const double block_bytes = quire_recommend_block_bytes(ask);
    const double live_bytes = live_bytes_of(ask, out->live_tokens) / devices_of(ask);
    const double room_bytes = (double)ask->memory_bytes - live_bytes;

    out->capacity_blocks = capacity_blocks;
    if (block_bytes > 0.0 && ask->memory_bytes > 0 &&
        (double)out->capacity_blocks * block_bytes > room_bytes) {
        out->capacity_blocks = room_bytes > 0.0 ? (uint64_t)(room_bytes / block_bytes) : 0;
    }
    if (out->capacity_blocks == 0) {
        out->capacity_blocks = 1;
    }
    if (block_bytes > 0.0) {
        out->memory_bytes = (uint64_t)((double)out->capacity_blocks * block_bytes + live_bytes);
        if (ask->memory_bytes > 0 && out->memory_bytes > ask->memory_bytes) {
            out->memory_bytes = ask->memory_bytes; /* some of the running requests will queue */
        }
    }
}

/* A page in memory has a copy on the disk. So the disk needs room for all pages worth keeping, not
 * only for those that memory has lost. */
static void choose_disk(const quire_recommend_ask *ask, quire_recommend_sizes *out)
{
    const double block_bytes = quire_recommend_block_bytes(ask);
    uint64_t room_blocks;

    if (ask->disk_bytes == 0 || block_bytes <= 0.0) {
        return;
    }
    room_blocks = (uint64_t)((double)ask->disk_bytes / block_bytes);
    out->disk_blocks = worth_it(ask->mrc);
    if (out->disk_blocks > room_blocks) {
        out->disk_blocks = room_blocks;
    }
    out->disk_bytes = (uint64_t)((double)out->disk_blocks * block_bytes);
}

static uint64_t held_tokens(const quire_recommend_ask *ask, uint32_t class_index)
{
    return quire_dist_quantile(&ask->analysis->load.held_class_tokens[class_index], 0.99);
}

static void choose_pinned(const quire_recommend_ask *ask, quire_recommend_sizes *out)
{
    const double live = out->live_tokens > 0 ? (double)out->live_tokens : 1.0;
    double share, need, most;

    if (ask->pinned_class == QUIRE_RECOMMEND_NO_CLASS || out->memory_bytes == 0) {
        return;
    }
    share = (double)held_tokens(ask, ask->pinned_class) / live;
    need = PINNED_HEADROOM * share * live_bytes_of(ask, out->live_tokens) / devices_of(ask);
    most = PINNED_SHARE_MAX * (double)out->memory_bytes;
    out->pinned_bytes = (uint64_t)(need < most ? need : most);
}

void quire_recommend_sizes_each(const quire_recommend_ask *ask, uint64_t capacity_blocks,
                                double hit_rate, quire_recommend_sizes *sizes)
{
    choose_memory(ask, capacity_blocks, sizes);
    choose_pinned(ask, sizes);
    sizes->hit_rate = hit_rate;
}

void quire_recommend_sizes_find(const quire_recommend_ask *ask, quire_recommend_sizes *out)
{
    const uint32_t n = devices_of(ask);

    *out = (quire_recommend_sizes){
        .page_tokens = choose_page(ask->analysis),
        .n_devices = n,
        .live_tokens = quire_dist_quantile(&ask->analysis->load.held_tokens, 0.99),
        .hit_rate_infinite = quire_mrc_hit_rate(ask->mrc, UINT64_MAX),
    };
    choose_memory(ask, (worth_it(ask->mrc) + n - 1) / n, out);
    choose_pinned(ask, out);
    choose_disk(ask, out);
    out->total_blocks = n > 1 ? n * out->capacity_blocks : out->capacity_blocks;
    out->hit_rate = quire_mrc_hit_rate(ask->mrc, out->total_blocks);
}

/* ---- items ---- */

static quire_recommend_item *add_item(quire_recommendation *r, const char *key)
{
    quire_recommend_item *item = &r->items[r->n_items++];

    QUIRE_CHECK(r->n_items <= QUIRE_RECOMMEND_ITEMS_MAX);
    *item = (quire_recommend_item){ .key = key };
    return item;
}

__attribute__((format(printf, 2, 3))) static void say_value(quire_recommend_item *item,
                                                            const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(item->value, sizeof(item->value), format, args);
    va_end(args);
}

/* Append to the reason. */
__attribute__((format(printf, 2, 3))) static void say_why(quire_recommend_item *item,
                                                          const char *format, ...)
{
    const size_t n = strlen(item->reason);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(item->reason + n, sizeof(item->reason) - n, format, args);
    va_end(args);
}

/* Bytes as a setting: whole megabytes, of much memory whole gigabytes; rounded up, but not above
 * what there is (0: not known). */
static void say_bytes(quire_recommend_item *item, uint64_t bytes, uint64_t most_bytes)
{
    const bool is_much = bytes >= 100 * GIGABYTE;
    const uint64_t unit = is_much ? GIGABYTE : MEGABYTE;
    const uint64_t n = (bytes + unit - 1) / unit;

    if (most_bytes == 0 || n <= most_bytes / unit) {
        say_value(item, "%" PRIu64 "%s", n, is_much ? "GB" : "MB");
    } else if (most_bytes < unit) {
        say_value(item, "%" PRIu64, bytes);
    } else {
        say_value(item, "%" PRIu64 "%s", most_bytes / unit, is_much ? "GB" : "MB");
    }
}

static void add_page(const quire_recommend_ask *ask, quire_recommendation *r)
{
    quire_recommend_item *item = add_item(r, "page_tokens");
    const quire_analyze_page *page = ask->analysis->pages;

    while (page->page_tokens != r->sizes.page_tokens) {
        page++;
    }
    say_value(item, "%u", page->page_tokens);
    if (ask->analysis->repeated_tokens > 0) {
        say_why(item,
                "Where hits end at full pages (6 bits and less) such pages lose %.1f %% of them; "
                "last pages leave %.1f %% of the memory unused.",
                100.0 * page->lost_share, 100.0 * page->unused_share);
    } else {
        say_why(item, "Last pages leave %.1f %% of the memory unused.", 100.0 * page->unused_share);
    }
    if (page + 1 < ask->analysis->pages + QUIRE_ANALYZE_PAGES) {
        say_why(item, " Pages of %u: %.1f %% and %.1f %%.", page[1].page_tokens,
                100.0 * page[1].lost_share, 100.0 * page[1].unused_share);
    }
}

/* Explain the number of blocks, besides those held by running requests. */
static void say_capacity(const quire_recommend_ask *ask, const quire_recommend_sizes *s,
                         quire_recommend_item *item)
{
    char text[16];

    if (s->hit_rate_infinite <= 0.0) {
        say_why(item, "Nothing in the trace is known to be asked for twice.");
        return;
    }
    if (s->n_devices > 1) {
        say_why(item, "Each of %u devices has such a budget. ", s->n_devices);
    }
    say_why(item,
            "%" PRIu64 " blocks of %u tokens (%.3g million tokens)%s serve %.1f %% of the prompts' "
            "blocks under LRU, %.0f %% of the share with endless memory",
            s->capacity_blocks, ask->analysis->block_tokens,
            (double)s->capacity_blocks * ask->analysis->block_tokens * 1e-6,
            s->n_devices > 1 ? " on each" : "", 100.0 * s->hit_rate,
            100.0 * s->hit_rate / s->hit_rate_infinite);
    if (s->total_blocks < worth_it(ask->mrc)) {
        say_why(item, "; more would be worth it until %" PRIu64 " blocks%s, but %s %s.",
                worth_it(ask->mrc), s->n_devices > 1 ? " in all" : "",
                s->n_devices > 1 ? "each has" : "there is",
                quire_format_bytes(ask->memory_bytes, text, sizeof(text)));
    } else if (s->n_devices > 1) {
        say_why(item, "; one cache needs %" PRIu64 " blocks for that.", s->total_blocks);
    } else {
        say_why(item, "; beyond, each block more brings less than the average one.");
    }
}

static void add_memory(const quire_recommend_ask *ask, quire_recommendation *r)
{
    const quire_recommend_sizes *s = &r->sizes;
    quire_recommend_item *item = add_item(r, "kv_budget");

    if (s->memory_bytes > 0) {
        say_bytes(item, s->memory_bytes, ask->memory_bytes);
    } else {
        say_value(item, "BYTES");
        item->is_comment = true;
    }
    say_capacity(ask, s, item);
    say_why(item, " Requests that run at once hold %" PRIu64 " tokens besides (p99)%s.",
            s->live_tokens, s->n_devices > 1 ? ", shared out equally among the devices" : "");
    if (ask->text_bytes > 0.0) {
        char text[16];
        char running[16];

        say_why(item, " A cached request has %s of windows and states, a running one %s.",
                quire_format_bytes((uint64_t)ask->text_bytes, text, sizeof(text)),
                quire_format_bytes((uint64_t)ask->running_bytes, running, sizeof(running)));
    }
    if (s->memory_bytes == 0) {
        say_why(item, " How many bytes that is depends on the model: give --model.");
    }
}

static void add_pinned(const quire_recommend_ask *ask, quire_recommendation *r)
{
    quire_recommend_item *item;

    if (r->sizes.pinned_bytes == 0) {
        return;
    }
    item = add_item(r, "pinned");
    say_bytes(item, r->sizes.pinned_bytes, r->sizes.memory_bytes);
    say_why(item,
            "Class %s holds %" PRIu64 " tokens at once (p99); with %.0f %% on top that is a share "
            "of %.2f of kv_budget.",
            ask->class_name, held_tokens(ask, ask->pinned_class), 100.0 * (PINNED_HEADROOM - 1.0),
            (double)r->sizes.pinned_bytes / (double)r->sizes.memory_bytes);
    if (strcmp(ask->class_name, "realtime") != 0) {
        say_why(item, " List it in classes with pinned: true.");
    }
}

static double rate_of(const quire_recommend_policies *policies, quire_evict_policy policy)
{
    for (uint32_t i = 0; i < policies->n; i++) {
        if (policies->policies[i] == policy) {
            return policies->hit_rates[i];
        }
    }
    return 0.0;
}

static void add_policy(const quire_recommend_policies *policies, quire_recommendation *r)
{
    quire_recommend_item *item = add_item(r, "cache_policy");
    double best = 0.0;

    r->policy = QUIRE_EVICT_DEFAULT;
    for (uint32_t i = 0; i < policies->n; i++) {
        if (policies->hit_rates[i] > best) {
            best = policies->hit_rates[i];
            r->policy = policies->policies[i];
        }
    }
    if (rate_of(policies, QUIRE_EVICT_DEFAULT) >= POLICY_TIE * best) {
        r->policy = QUIRE_EVICT_DEFAULT;
    }
    r->policy_hit_rate = rate_of(policies, r->policy);
    say_value(item, "%s", quire_evict_policy_name(r->policy));
    if (best > 0.0) {
        say_why(item, "With %" PRIu64 " blocks%s, served:", r->sizes.capacity_blocks,
                r->sizes.n_devices > 1 ? " on each device" : "");
        for (uint32_t i = 0; i < policies->n; i++) {
            say_why(item, "%s %s %.1f %%", i > 0 ? "," : "",
                    quire_evict_policy_name(policies->policies[i]), 100.0 * policies->hit_rates[i]);
        }
        say_why(item, ".");
    } else {
        say_why(item, "Not simulated, or nothing repeats.");
    }
}

static void add_disk(const quire_recommend_ask *ask, const quire_recommend_policies *policies,
                     quire_recommendation *r)
{
    const quire_recommend_sizes *s = &r->sizes;
    quire_recommend_item *item;

    if (s->disk_blocks == 0) {
        return;
    }
    item = add_item(r, "cache_disk");
    say_bytes(item, s->disk_bytes, ask->disk_bytes);
    say_why(item, "Needs a cache_dir. ");
    if (policies->disk_all_hit_rate <= 0.0) {
        say_why(item, "%" PRIu64 " blocks. Not simulated, or nothing repeats.", s->disk_blocks);
        return;
    }
    say_why(item,
            "Memory alone serves %.1f %% with the default policy. With %" PRIu64
            " blocks on disk besides it is %.1f %%, and %.1f %% with store_all, if the disk can be "
            "written as fast as prompts are computed. The disk keeps its blocks over a restart.",
            100.0 * rate_of(policies, QUIRE_EVICT_DEFAULT), s->disk_blocks,
            100.0 * policies->disk_hit_rate, 100.0 * policies->disk_all_hit_rate);
}

static void add_ttl(const quire_analysis *a, quire_recommendation *r)
{
    const uint64_t gap_us = quire_dist_quantile(&a->gap_us, 0.99);
    quire_recommend_item *item = add_item(r, "cache_ttl");
    char gap[QUIRE_DURATION_TEXT_MAX];
    char span[QUIRE_DURATION_TEXT_MAX];
    char ttl[QUIRE_DURATION_TEXT_MAX];

    (void)quire_duration_text(gap_us, gap);
    (void)quire_duration_text(a->span_us, span);
    if (gap_us == 0) {
        say_why(item, "Nothing repeats in the trace: it says nothing about this.");
    } else if (gap_us > a->span_us / GAPS_PER_SPAN) {
        say_why(item,
                "99 %% of reused blocks are used again within %s, but the trace is %s "
                "long: too short to know the blocks that never return. Eviction decides.",
                gap, span);
    } else {
        r->ttl_us = quire_duration_round_up(TTL_PER_GAP * gap_us);
        say_why(item,
                "99 %% of reused blocks are used again within %s: a block that was not "
                "used for twice as long can go.",
                gap);
    }
    say_value(item, "%s", quire_duration_text(r->ttl_us, ttl));
}

void quire_recommend_settings(const quire_recommend_ask *ask, const quire_recommend_sizes *sizes,
                              const quire_recommend_policies *policies, quire_recommendation *out)
{
    memset(out, 0, sizeof(*out));
    out->sizes = *sizes;
    add_page(ask, out);
    add_memory(ask, out);
    add_pinned(ask, out);
    add_policy(policies, out);
    add_disk(ask, policies, out);
    add_ttl(ask->analysis, out);
}

/* ---- a file ---- */

/* A text as comments of bounded width. Characters that would end a line become blanks: names may
 * come from a trace. */
static void add_comment(quire_bytes *out, const char *text)
{
    size_t column = 0;

    while (*text != '\0') {
        const size_t n = strcspn(text, " \n\r\t");

        if (column == 0 || column + 1 + n > LINE_COLUMNS) {
            (void)quire_bytes_addf(out, column == 0 ? "#" : "\n#");
            column = 1;
        }
        (void)quire_bytes_add(out, " ", 1);
        for (size_t i = 0; i < n; i++) {
            (void)quire_bytes_add(out, (unsigned char)text[i] < ' ' ? "?" : text + i, 1);
        }
        column += 1 + n;
        text += n;
        text += strspn(text, " \n\r\t");
    }
    (void)quire_bytes_addf(out, "\n");
}

int quire_recommend_yaml(const quire_recommendation *recommendation, const char *title,
                         quire_bytes *out)
{
    add_comment(out, title);
    add_comment(out, "For quire serve --config. Made by quire analyze.");
    for (uint32_t i = 0; i < recommendation->n_items; i++) {
        const quire_recommend_item *item = &recommendation->items[i];

        (void)quire_bytes_addf(out, "\n");
        add_comment(out, item->reason);
        (void)quire_bytes_addf(out, "%s%s: %s\n", item->is_comment ? "# " : "", item->key,
                               item->value);
    }
    return out->status;
}
