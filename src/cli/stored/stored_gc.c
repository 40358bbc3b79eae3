/* stored_gc.c - quire cache gc: drops the records that no request can reach.
 *
 * Such a record would be of use again if the text before it were computed and stored once more.
 * Nobody knows whether that will be.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"

#include <stdlib.h>

/* Drops between two openings. A store that has too many at once makes them one that ends all
 * (QUIRE_FILE_DROPS_MAX). */
#define DROPS_MAX 256u

typedef struct gc {
    const quire_stored_args *args;
    uint32_t n_dropped;
    uint64_t n_bytes; /* of these */
    uint32_t n_left;  /* orphans that are still there */
} gc;

static uint32_t count_orphans(const quire_stored *stored, uint64_t *n_bytes)
{
    uint32_t n = 0;

    *n_bytes = 0;
    for (uint32_t i = 0; i < stored->n; i++) {
        n += stored->records[i].is_orphan;
        *n_bytes += stored->records[i].is_orphan ? stored->records[i].n_bytes : 0;
    }
    return n;
}

/* A drop for each root with orphans: dropping one orphan ends all orphans of its root, because the
 * beginnings of their texts are unknown (file_index.h). */
static int drop_orphans(const quire_stored *stored, quire_error *err)
{
    bool *is_dropped = calloc(stored->n_roots + 1, sizeof *is_dropped);
    uint32_t n_drops = 0;
    int rc = is_dropped != NULL ? QUIRE_OK : QUIRE_NOMEM;

    for (uint32_t i = 0; i < stored->n && n_drops < DROPS_MAX && rc == QUIRE_OK; i++) {
        const quire_stored_record *r = &stored->records[i];
        const quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT,
                                        .key = r->key,
                                        .root = r->root };

        if (r->is_orphan && !is_dropped[r->root_id]) {
            is_dropped[r->root_id] = true;
            n_drops++;
            rc = stored->store->ops->drop(stored->store, &drop);
        }
    }
    free(is_dropped);
    return rc < 0 ? quire_error_set(err, rc, "%s: records could not be dropped: %s", stored->dir,
                                    quire_status_text(rc))
                  : QUIRE_OK;
}

/* Records behind those of an unread segment look like orphans, and are none once the segment can be
 * read. */
static int all_read(const quire_stored *stored, quire_error *err)
{
    const uint32_t n = quire_file_store_unread(stored->store);

    return n == 0
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_IO,
                                 "%s: %u %s cannot be read, so records may look as if none could "
                                 "reach them: nothing is dropped. If the files are lost, remove "
                                 "them first",
                                 stored->dir, n, n == 1 ? "segment" : "segments");
}

/* Open the directory and drop orphans of at most DROPS_MAX roots. */
static int pass(gc *g, quire_error *err)
{
    static const quire_stored_want want = { .is_writer = true };
    quire_stored stored;
    uint64_t before_bytes = 0, after_bytes = 0;
    uint32_t n_before = 0;
    int rc = quire_stored_open(&stored, g->args->common.cache_dir, &want, err);

    if (rc == QUIRE_OK) {
        rc = all_read(&stored, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_stored_list(&stored, err);
    }
    if (rc == QUIRE_OK) {
        n_before = count_orphans(&stored, &before_bytes);
        rc = drop_orphans(&stored, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_stored_list(&stored, err);
    }
    if (rc == QUIRE_OK) {
        g->n_left = count_orphans(&stored, &after_bytes);
        g->n_dropped += n_before - g->n_left;
        g->n_bytes += before_bytes - after_bytes;
    }
    quire_stored_close(&stored);
    return rc;
}

static int run(void *opaque)
{
    gc g = { .args = opaque };
    quire_error err = QUIRE_ERROR_INIT;
    uint32_t n_before;
    char bytes[16];
    int rc;

    quire_interrupt_catch();
    do {
        n_before = g.n_dropped;
        rc = pass(&g, &err);
    } while (rc == QUIRE_OK && g.n_left > 0 && g.n_dropped > n_before && !quire_interrupt_seen());
    if (rc < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (g.args->common.is_json) {
        return quire_stdout_json(json_pack("{s:I, s:I, s:I}", "dropped", (json_int_t)g.n_dropped,
                                           "bytes", (json_int_t)g.n_bytes, "left",
                                           (json_int_t)g.n_left));
    }
    quire_say("%u records of %s dropped; the space returns when their segments go", g.n_dropped,
              quire_format_bytes(g.n_bytes, bytes, sizeof(bytes)));
    return QUIRE_EXIT_OK;
}

static const quire_opt options[] = { QUIRE_ROW_STORED_DIR, QUIRE_ROW_JSON };

const quire_command quire_stored_gc = {
    .name = "cache gc",
    .usage = "DIR [--json]",
    .summary = "Drops the records that no request can reach: a record before them is gone.",
    .notes =
        "A record could be reached again after the text before it was computed and stored once\n"
        "more; gc is for directories where that is not expected. Dropped records are not carried\n"
        "forward when a segment goes. Segments are not written again: the disk space returns\n"
        "when the segments are the oldest. No other process may write to the directory\n"
        "meanwhile. With a segment that cannot be read, gc drops nothing.\n\n"
        "example: quire cache gc ~/.quire",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .args_bytes = sizeof(quire_stored_args),
    .run = run,
};
