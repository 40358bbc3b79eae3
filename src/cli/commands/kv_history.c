/* kv_history.c - writes a cache's statistics and events as JSON Lines.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/kv_history.h"

#include "base/check.h"
#include "cli/commands/talk.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* clang-format off */
#define FIGURE(member) { #member, offsetof(quire_cache_stats, member) }
static const struct {
    const char *name;
    size_t offset; /* of a uint64_t */
} figures[] = {
    FIGURE(budget_bytes), FIGURE(extent_bytes), FIGURE(live_bytes), FIGURE(cached_bytes),
    FIGURE(free_bytes), FIGURE(tail_bytes), FIGURE(locked_bytes), FIGURE(slack_bytes),
    FIGURE(charged_bytes), FIGURE(charged_peak_bytes), FIGURE(extent_peak_bytes),
    FIGURE(pages_live), FIGURE(pages_free), FIGURE(pages_peak), FIGURE(allocs_total),
    FIGURE(frees_total), FIGURE(alloc_failures_total), FIGURE(page_copies_total),
    FIGURE(page_moves_total), FIGURE(watermark_pages),
};
/* clang-format on */

/* Returns false when a write failed. */
static bool write_stats(FILE *stream, const quire_cache *cache)
{
    quire_cache_stats stats;

    quire_cache_stats_get(cache, &stats);
    if (fputs("{\"type\": \"stats\"", stream) < 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        uint64_t value;

        memcpy(&value, (const char *)&stats + figures[i].offset, sizeof(value));
        if (fprintf(stream, ", \"%s\": %" PRIu64, figures[i].name, value) < 0) {
            return false;
        }
    }
    return fprintf(stream,
                   ", \"seqs_open\": %" PRIu32 ", \"extents\": %" PRIu32
                   ", \"extents_empty\": %" PRIu32 ", \"external_fragmentation\": %.6f}\n",
                   stats.seqs_open, stats.extents, stats.extents_empty,
                   stats.external_fragmentation) > 0;
}

/* A visitor: non-zero when the write failed. */
static int write_event(void *ctx, const quire_history_event *event)
{
    int n = fprintf(ctx,
                    "{\"type\": \"event\", \"number\": %" PRIu64 ", \"time_us\": %" PRIu64
                    ", \"kind\": \"%s\", \"page\": %" PRIu32 ", \"seq\": %" PRIu32
                    ", \"group\": %" PRIu16 ", \"region\": %" PRIu16 ", \"extent\": %" PRIu32 "}\n",
                    event->number, event->time_us, quire_history_kind_name(event->kind),
                    event->page, event->seq, event->group, event->region, event->extent);

    return n < 0;
}

static int finish(quire_kv_history *history, quire_error *err)
{
    FILE *stream = history->file.stream;

    errno = 0;
    if (!write_stats(stream, history->cache) ||
        quire_cache_history_visit(history->cache, write_event, stream) != 0) {
        (void)quire_new_file_fail(&history->file, err);
        quire_new_file_discard(&history->file);
        return err->status;
    }
    return quire_new_file_finish(&history->file, err);
}

int quire_kv_history_open(quire_kv_history *out, const quire_cache *cache, const char *path,
                          quire_error *err)
{
    memset(out, 0, sizeof(*out));
    if (path == NULL) {
        return QUIRE_OK;
    }
    if (strcmp(path, "-") == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--kv-history cannot go to stdout: name a file (./- for one called "
                               "-)");
    }
    QUIRE_TRY(quire_new_file_open(&out->file, path, err));
    out->cache = cache;
    return QUIRE_OK;
}

int quire_kv_history_close(quire_kv_history *history, int exit_status)
{
    quire_error err = QUIRE_ERROR_INIT;

    if (history->cache != NULL && finish(history, &err) < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    history->cache = NULL;
    return exit_status;
}
