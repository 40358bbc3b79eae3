/* saver.h - the engine's state that outlives a restart: options and figures.
 *
 *   sessions   names, messages, tokens, times: a conversation goes on with the same id, and its
 *              pages are fetched when its next turn comes (tier.h)
 *   pins       names, texts, classes, ends: set aside again at the start, then fetched or computed
 *              as new pins are
 *   reuse      the eviction policy's model of the time between uses
 *
 * Each part can be left out. The saver removes the items of such a part from the directory, so that
 * no old copy comes back when the part is kept again.
 *
 * Where. Items as files in the directory of the store (store/state/state_dir.h), by identity:
 * models, KV formats and devices of different kinds do not share state (replicas.h). Tenants are
 * part of an item's name and of its content.
 *
 * When. Twice a second, the saver's thread compares the state with the files, and writes the items
 * that differ: a turn that has ended is on disk within about a second, and so is the end of a
 * session or a pin. The part `reuse` is written once a minute. All parts are written at the end.
 * The thread copies at most QUIRE_SAVER_COPY_BYTES, or one item, at a time: sessions under their
 * table's lock, pins and `reuse` in a call between two steps. It never holds a lock while it
 * writes.
 *
 * Bound: bytes_max on disk. Pins come first, then sessions from the one used last; items that do
 * not fit are left out, and counted.
 *
 * Trouble. An item that is damaged, foreign, cut short, or of another version is refused by name:
 * in the log, and by reason in the figures. The rest is used. A write that fails is tried again
 * every QUIRE_SAVER_RETRY_US; the file keeps its older item.
 *
 * Thread: see engine.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SAVER_H
#define QUIRE_ENGINE_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/file/file_ops.h"
#include "store/state/state_item.h"

#define QUIRE_SAVER_BYTES      ((uint64_t)64 << 20) /* default of bytes_max */
#define QUIRE_SAVER_COPY_BYTES ((size_t)1 << 20)
#define QUIRE_SAVER_ROUND_US   500000u
#define QUIRE_SAVER_REUSE_US   60000000u /* between two copies of the learned reuse model */
#define QUIRE_SAVER_RETRY_US   5000000u
#define QUIRE_SAVER_LINES_MAX  16u /* lines that name refused items; more are counted in one */

typedef struct quire_saver_opts {
    const char *dir; /* exists; NULL = nothing is kept. Read by create only */
    bool is_readonly;
    bool keeps[QUIRE_STATE_KIND_COUNT];
    uint64_t bytes_max; /* 0 = default */
    uint64_t round_us;  /* 0 = QUIRE_SAVER_ROUND_US */
    /* A line about something refused or failing, without newline. From the thread that creates the
     * engine, and the saver's. NULL = nobody listens. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
    const quire_file_ops *ops;      /* NULL = the operating system's */
    uint64_t (*wall_us)(void *ctx); /* microseconds since 1970, for tests; NULL = the system's */
    void *wall_ctx;
} quire_saver_opts;

typedef struct quire_saver_stats {
    bool is_on;
    uint64_t restored_total[QUIRE_STATE_KIND_COUNT];
    uint64_t refused_total[QUIRE_STATE_RESULT_COUNT]; /* by reason, at the start; [OK] is 0 */
    uint64_t written_total;                           /* items */
    uint64_t written_bytes_total;
    uint64_t failures_total; /* of writing or removing an item */
    uint64_t items;          /* on disk now */
    uint64_t bytes;          /* that they take */
    uint64_t bytes_max;
    uint64_t left_out; /* items that do not fit now */
} quire_saver_stats;

#endif /* QUIRE_ENGINE_SAVER_H */
