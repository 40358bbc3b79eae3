/* metrics_tier.c - the table of metrics of pages below memory, and of state that outlives a
 * restart.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics_internal.h"

#define RESULT(name, symbol)                                                                       \
    STORE("result=\"" name "\"", VALUE_U64, results_total[QUIRE_STORE_##symbol])
#define PART(name, kind)                                                                           \
    ENGINE("part=\"" name "\"", VALUE_U64, saver.restored_total[QUIRE_STATE_##kind])
#define REFUSED(name, symbol)                                                                      \
    ENGINE(REASON(name), VALUE_U64, saver.refused_total[QUIRE_STATE_##symbol##_RESULT])
#define FETCH(name, field) ENGINE("result=\"" name "\"", VALUE_U64, tier.field)

/* clang-format off */
static const quire_metric_family families[] = {
    { "quire_tier_fetches_total", "counter", "fetches",
      "`result`: `begun`, `slow`, `short`, `skipped`, `ahead`",
      "Requests that asked the store below memory for pages: begun; of these, given up because "
      "pages came too slowly (slow), and ended because memory was short (short). skipped counts "
      "requests that did not ask, because computing costs less or because the store had failed. "
      "ahead counts sessions whose pages were asked for in idle time, before their next turn.",
      SAMPLES(FETCH("begun", fetches_total), FETCH("slow", slow_total),
              FETCH("short", short_total), FETCH("skipped", skipped_total),
              FETCH("ahead", ahead_total)) },
    { "quire_tier_fetching", "gauge", "requests", NULL,
      "Requests that wait for pages from the store now.", ONE(VALUE_U32, tier.fetching) },
    { "quire_tier_fetched_tokens_total", "counter", "tokens", NULL,
      "Tokens whose KV was read from the store instead of being computed.",
      ONE(VALUE_U64, tier.fetched_tokens_total) },
    { "quire_tier_fetch_seconds", "histogram", "seconds", NULL,
      "Time from the first question of a request to its last page.",
      ONE(VALUE_HISTOGRAM, tier.fetch) },
    { "quire_tier_copied_pages_total", "counter", "pages", "`result`: `durable`, `refused`",
      "Pages that were given to the store and taken (durable: a disk takes a page when it has "
      "written it durably), or not taken. The host's memory may drop a page that it has taken at "
      "once, and counts it as evicted then.",
      SAMPLES(FETCH("durable", copied_pages_total), FETCH("refused", refused_pages_total)) },
    { "quire_tier_reads_total", "counter", "records",
      "`store`; `result`: `ok`, `absent`, `checksum`, `format`, `identity`, `tokens`, `io`, "
      "`closed`",
      "Reads of records from a store below memory, by result. With two stores, the far one is read "
      "when the near one does not have the record. All results but ok count as misses: absent, not "
      "stored; checksum, damaged; format, from another version; identity, of another model, KV "
      "format or tenant; tokens, another text; io, the disk or the server failed; closed, no "
      "server is there, or it is left alone for a while.",
      SAMPLES(RESULT("ok", OK), RESULT("absent", ABSENT), RESULT("checksum", CHECKSUM),
              RESULT("format", FORMAT), RESULT("identity", IDENTITY), RESULT("tokens", TOKENS),
              RESULT("io", IO), RESULT("closed", CLOSED)) },
    { "quire_tier_read_bytes_total", "counter", "bytes", "`store`", "Bytes read from the store.",
      SAMPLES(STORE(NULL, VALUE_U64, read_bytes_total)) },
    { "quire_tier_written_bytes_total", "counter", "bytes", "`store`; `what`: `records`, `all`",
      "Bytes written to the store: of records that became durable, and all bytes, with records "
      "carried forward and with headers.",
      SAMPLES(STORE("what=\"records\"", VALUE_U64, put_bytes_total),
              STORE("what=\"all\"", VALUE_U64, written_bytes_total)) },
    { "quire_tier_records", "gauge", "records", "`store`", "Records in the store now.",
      SAMPLES(STORE(NULL, VALUE_U64, records)) },
    { "quire_tier_bytes", "gauge", "bytes", "`store`; `what`: `records`, `stored`, `capacity`",
      "Bytes of the records, bytes taken from the disk, and the most that may be taken.",
      SAMPLES(STORE("what=\"records\"", VALUE_U64, record_bytes),
              STORE("what=\"stored\"", VALUE_U64, stored_bytes),
              STORE("what=\"capacity\"", VALUE_U64, capacity_bytes)) },
    { "quire_tier_evicted_records_total", "counter", "records", "`store`",
      "Records that left the store because its space was full.",
      SAMPLES(STORE(NULL, VALUE_U64, evicted_total)) },
    { "quire_tier_dropped_records_total", "counter", "records", "`store`",
      "Records that left the store because their texts were invalidated.",
      SAMPLES(STORE(NULL, VALUE_U64, dropped_total)) },
    { "quire_tier_passed_records_total", "counter", "records",
      "`store`; `result`: `kept`, `lost`",
      "With two stores: records that were put into or found in the other store, and copied into "
      "this store (kept) or not (lost: the memory for copies was used up, or this store refused "
      "the copy).",
      SAMPLES(STORE("result=\"kept\"", VALUE_U64, passed_total),
              STORE("result=\"lost\"", VALUE_U64, unpassed_total)) },
    { "quire_tier_degraded", "gauge", "1 or 0", "`store`",
      "Whether the store takes no pages at present because its disk or its server fails.",
      SAMPLES(STORE(NULL, VALUE_STATE, state)) },
    { "quire_kv_overflow_requests_total", "counter", "requests", NULL,
      "Requests larger than the KV budget that began.",
      ONE(VALUE_U64, overflow.requests_total) },
    { "quire_kv_overflow_lost_total", "counter", "requests", NULL,
      "Requests that were computed again because offloaded pages could not be read.",
      ONE(VALUE_U64, overflow.lost_total) },
    { "quire_kv_offloaded_bytes", "gauge", "bytes", "`what`: `used`, `capacity`, `buffers`",
      "The file for offloaded pages, or with KV on a device the host's memory for them: bytes in "
      "use, and the most. Memory of the buffers that these pages are read to, and of their bounds "
      "(attend), a part of the KV budget.",
      SAMPLES(ENGINE("what=\"used\"", VALUE_U64, overflow.offload.file.used_bytes),
              ENGINE("what=\"capacity\"", VALUE_U64, overflow.offload.file.capacity_bytes),
              ENGINE("what=\"buffers\"", VALUE_U64, overflow.offload.buffer_bytes)) },
    { "quire_kv_offload_pages_total", "counter", "pages", "`direction`: `out`, `back`",
      "Pages that moved to the place for offloaded pages, and back.",
      SAMPLES(ENGINE("direction=\"out\"", VALUE_U64, overflow.offload.pages_out_total),
              ENGINE("direction=\"back\"", VALUE_U64, overflow.offload.pages_back_total)) },
    { "quire_kv_offload_io_bytes_total", "counter", "bytes", "`direction`: `read`, `written`",
      "Bytes read from and written to the place for offloaded pages.",
      SAMPLES(ENGINE("direction=\"read\"", VALUE_U64, overflow.offload.file.read_bytes_total),
              ENGINE("direction=\"written\"", VALUE_U64,
                     overflow.offload.file.written_bytes_total)) },
    { "quire_kv_offload_file_bytes", "gauge", "bytes", "`what`: `used`, `capacity`",
      "With KV on a device, the file behind the host's memory for offloaded pages: bytes in use, "
      "and the most.",
      SAMPLES(ENGINE("what=\"used\"", VALUE_U64, overflow.offload.below.file.used_bytes),
              ENGINE("what=\"capacity\"", VALUE_U64, overflow.offload.below.file.capacity_bytes)) },
    { "quire_kv_offload_file_pages_total", "counter", "pages", "`direction`: `down`, `up`",
      "Pages that moved from the host's memory to that file, and from there to the host's memory.",
      SAMPLES(ENGINE("direction=\"down\"", VALUE_U64, overflow.offload.below.pages_down_total),
              ENGINE("direction=\"up\"", VALUE_U64, overflow.offload.below.pages_up_total)) },
    { "quire_kv_offload_file_io_bytes_total", "counter", "bytes", "`direction`: `read`, `written`",
      "Bytes read from and written to that file.",
      SAMPLES(ENGINE("direction=\"read\"", VALUE_U64,
                     overflow.offload.below.file.read_bytes_total),
              ENGINE("direction=\"written\"", VALUE_U64,
                     overflow.offload.below.file.written_bytes_total)) },
    { "quire_kv_offload_file_failures_total", "counter", "failures", NULL,
      "Reads and writes of that file that failed, wrong checksums included.",
      ONE(VALUE_U64, overflow.offload.below.file.failures_total) },
    { "quire_kv_offload_file_wait_seconds_total", "counter", "seconds", NULL,
      "Time that steps waited for pages in that file.",
      ONE(VALUE_US, overflow.offload.below.file.wait_us_total) },
    { "quire_kv_offload_attended_bytes_total", "counter", "bytes", NULL,
      "Bytes of pages in the host's memory below a device's that were read there by the CPU's "
      "kernels (--kv-overflow-attend).",
      ONE(VALUE_U64, overflow.offload.file.attended_bytes_total) },
    { "quire_kv_offload_chosen_total", "counter", "layers of pages", "`pages`: `read`, `left`",
      "In steps whose tokens all choose pages (attend): layers of offloaded pages that were read "
      "for them, and that were left in the file. The first two layers are read whole and not "
      "counted.",
      SAMPLES(ENGINE("pages=\"read\"", VALUE_U64, overflow.offload.file.chosen_total),
              ENGINE("pages=\"left\"", VALUE_U64, overflow.offload.file.left_total)) },
    { "quire_kv_offload_wait_seconds_total", "counter", "seconds", NULL,
      "Time that steps waited for offloaded pages.",
      ONE(VALUE_US, overflow.offload.file.wait_us_total) },
    { "quire_kv_offload_failures_total", "counter", "failures", NULL,
      "Reads, writes, copies and pins of the place for offloaded pages that failed, wrong "
      "checksums included.",
      ONE(VALUE_U64, overflow.offload.file.failures_total) },
    { "quire_state_restored_total", "counter", "items", "`part`: `session`, `pin`, `reuse`",
      "Sessions, pins and learned models of reuse that came back from the cache directory at the "
      "start.",
      SAMPLES(PART("session", SESSION), PART("pin", PIN), PART("reuse", REUSE)) },
    { "quire_state_refused_total", "counter", "items",
      "`reason`: `checksum`, `truncated`, `foreign`, `version`, `fields`, `io`, `limit`, `expired`",
      "Items of state that did not come back at the start: damaged (checksum), cut short "
      "(truncated), not such a file (foreign), of another version of the layout, with a field out "
      "of range, not readable (io), more than this server may have (limit), past their time to "
      "live (expired). The log names the files, except of expired items.",
      SAMPLES(REFUSED("checksum", CHECKSUM), REFUSED("truncated", TRUNCATED),
              REFUSED("foreign", FOREIGN), REFUSED("version", VERSION),
              REFUSED("fields", FIELDS), REFUSED("io", IO), REFUSED("limit", LIMIT),
              REFUSED("expired", EXPIRED)) },
    { "quire_state_written_total", "counter", "items", NULL,
      "Sessions, pins and learned models of reuse that were written to the cache directory.",
      ONE(VALUE_U64, saver.written_total) },
    { "quire_state_failures_total", "counter", "failures", NULL,
      "Writes and removals of such items that failed; they are tried again every 5 s.",
      ONE(VALUE_U64, saver.failures_total) },
    { "quire_state_items", "gauge", "items", NULL, "Items of state in the cache directory now.",
      ONE(VALUE_U64, saver.items) },
    { "quire_state_bytes", "gauge", "bytes", "`what`: `stored`, `capacity`",
      "Bytes that these items take from the disk, and the most that they may take.",
      SAMPLES(ENGINE("what=\"stored\"", VALUE_U64, saver.bytes),
              ENGINE("what=\"capacity\"", VALUE_U64, saver.bytes_max)) },
    { "quire_state_left_out", "gauge", "items", NULL,
      "Sessions and pins that are not in the cache directory because the items there may take no "
      "more bytes.",
      ONE(VALUE_U64, saver.left_out) },
};
/* clang-format on */

const quire_metric_table quire_metrics_tier = { families, sizeof(families) / sizeof(families[0]) };
