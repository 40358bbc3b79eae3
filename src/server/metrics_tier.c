/* metrics_tier.c - the table of metrics of pages below memory.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics_internal.h"

static double degraded(const quire_engine_stats *engine)
{
    return engine->tier.store.state == QUIRE_STORE_DEGRADED ? 1.0 : 0.0;
}

#define RESULT(name, symbol)                                                                       \
    ENGINE("result=\"" name "\"", VALUE_U64, tier.store.results_total[QUIRE_STORE_##symbol])
#define FETCH(name, field) ENGINE("result=\"" name "\"", VALUE_U64, tier.field)

/* clang-format off */
static const quire_metric_family families[] = {
    { "quire_tier_fetches_total", "counter", "fetches",
      "`result`: `begun`, `slow`, `short`, `skipped`",
      "Requests that asked the store below memory for pages: begun; of these, given up because "
      "pages came too slowly (slow), and ended because memory was short (short). skipped counts "
      "requests that did not ask, because computing costs less or because the store had failed.",
      SAMPLES(FETCH("begun", fetches_total), FETCH("slow", slow_total),
              FETCH("short", short_total), FETCH("skipped", skipped_total)) },
    { "quire_tier_fetching", "gauge", "requests", NULL,
      "Requests that wait for pages from the store now.", ONE(VALUE_U32, tier.fetching) },
    { "quire_tier_fetched_tokens_total", "counter", "tokens", NULL,
      "Tokens whose KV was read from the store instead of being computed.",
      ONE(VALUE_U64, tier.fetched_tokens_total) },
    { "quire_tier_fetch_seconds", "histogram", "seconds", NULL,
      "Time from the first question of a request to its last page.",
      ONE(VALUE_HISTOGRAM, tier.fetch) },
    { "quire_tier_copied_pages_total", "counter", "pages", "`result`: `durable`, `refused`",
      "Pages that were given to the store: durable on disk, or not kept.",
      SAMPLES(FETCH("durable", copied_pages_total), FETCH("refused", refused_pages_total)) },
    { "quire_tier_reads_total", "counter", "records",
      "`result`: `ok`, `absent`, `checksum`, `format`, `identity`, `tokens`, `io`",
      "Records that were asked for, by result. All results but ok count as misses: absent, not "
      "stored; checksum, damaged; format, from another version; identity, of another model, KV "
      "format or tenant; tokens, another text; io, the disk failed.",
      SAMPLES(RESULT("ok", OK), RESULT("absent", ABSENT), RESULT("checksum", CHECKSUM),
              RESULT("format", FORMAT), RESULT("identity", IDENTITY), RESULT("tokens", TOKENS),
              RESULT("io", IO)) },
    { "quire_tier_read_bytes_total", "counter", "bytes", NULL, "Bytes read from the store.",
      ONE(VALUE_U64, tier.store.read_bytes_total) },
    { "quire_tier_written_bytes_total", "counter", "bytes", "`what`: `records`, `all`",
      "Bytes written to the store: of records that became durable, and all bytes, with records "
      "carried forward and with headers.",
      SAMPLES(ENGINE("what=\"records\"", VALUE_U64, tier.store.put_bytes_total),
              ENGINE("what=\"all\"", VALUE_U64, tier.store.written_bytes_total)) },
    { "quire_tier_records", "gauge", "records", NULL, "Records in the store now.",
      ONE(VALUE_U64, tier.store.records) },
    { "quire_tier_bytes", "gauge", "bytes", "`what`: `records`, `stored`, `capacity`",
      "Bytes of the records, bytes taken from the disk, and the most that may be taken.",
      SAMPLES(ENGINE("what=\"records\"", VALUE_U64, tier.store.record_bytes),
              ENGINE("what=\"stored\"", VALUE_U64, tier.store.stored_bytes),
              ENGINE("what=\"capacity\"", VALUE_U64, tier.store.capacity_bytes)) },
    { "quire_tier_evicted_records_total", "counter", "records", NULL,
      "Records that left the store because its space was full.",
      ONE(VALUE_U64, tier.store.evicted_total) },
    { "quire_tier_dropped_records_total", "counter", "records", NULL,
      "Records that left the store because their texts were invalidated.",
      ONE(VALUE_U64, tier.store.dropped_total) },
    { "quire_tier_degraded", "gauge", "1 or 0", NULL,
      "Whether the store takes no pages at present because its disk fails.",
      SAMPLES(DERIVED(NULL, degraded)) },
};
/* clang-format on */

const quire_metric_table quire_metrics_tier = { families, sizeof(families) / sizeof(families[0]) };
