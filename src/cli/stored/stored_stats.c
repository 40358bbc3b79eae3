/* stored_stats.c - quire cache stats: the contents of a cache directory in numbers.
 *
 * SPDX-License-Identifier: MIT */
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"

#include <sys/statvfs.h>

typedef struct sums {
    uint64_t record_bytes;
    uint64_t orphan_bytes;
    uint64_t free_bytes; /* that the file system has left */
    uint32_t n_roots;
    uint32_t n_texts;
    uint32_t n_orphans;
} sums;

static sums sum_up(const quire_stored *stored)
{
    struct statvfs fs;
    sums s = { 0 };

    for (uint32_t i = 0; i < stored->n; i++) {
        const quire_stored_record *r = &stored->records[i];

        s.record_bytes += r->n_bytes;
        s.n_texts += r->is_end && !r->is_orphan;
        s.n_orphans += r->is_orphan;
        s.orphan_bytes += r->is_orphan ? r->n_bytes : 0;
    }
    for (uint32_t i = 0; i < stored->n_roots; i++) {
        s.n_roots += stored->roots[i].n_records > 0;
    }
    if (statvfs(stored->dir, &fs) == 0) {
        s.free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    return s;
}

static int print_json(const quire_stored *stored, const sums *s)
{
    return quire_stdout_json(json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "records", (json_int_t)stored->n,
        "record_bytes", (json_int_t)s->record_bytes, "segments", (json_int_t)stored->n_segments,
        "segment_bytes", (json_int_t)stored->file_bytes, "free_bytes", (json_int_t)s->free_bytes,
        "roots", (json_int_t)s->n_roots, "texts", (json_int_t)s->n_texts, "orphans",
        (json_int_t)s->n_orphans, "orphan_bytes", (json_int_t)s->orphan_bytes));
}

static int print_text(const quire_stored *stored, const sums *s)
{
    char bytes[16];

    printf("records    %u of %s\n", stored->n,
           quire_format_bytes(s->record_bytes, bytes, sizeof(bytes)));
    printf("segments   %u of %s\n", stored->n_segments,
           quire_format_bytes(stored->file_bytes, bytes, sizeof(bytes)));
    printf("disk       %s free\n", quire_format_bytes(s->free_bytes, bytes, sizeof(bytes)));
    printf("texts      %u, of %u combinations of model, KV format and tenant\n", s->n_texts,
           s->n_roots);
    printf("orphans    %u of %s\n", s->n_orphans,
           quire_format_bytes(s->orphan_bytes, bytes, sizeof(bytes)));
    return QUIRE_EXIT_OK;
}

static int run(void *opaque)
{
    static const quire_stored_want only_read = { 0 };
    const quire_stored_args *args = opaque;
    quire_error err = QUIRE_ERROR_INIT;
    quire_stored stored;
    int exit_status;
    int rc = quire_stored_open(&stored, args->common.cache_dir, &only_read, &err);

    if (rc == QUIRE_OK) {
        rc = quire_stored_list(&stored, &err);
    }
    if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        const sums s = sum_up(&stored);

        exit_status = args->common.is_json ? print_json(&stored, &s) : print_text(&stored, &s);
    }
    quire_stored_close(&stored);
    return exit_status;
}

static const quire_opt options[] = { QUIRE_ROW_STORED_DIR, QUIRE_ROW_JSON };

const quire_command quire_stored_stats = {
    .name = "cache stats",
    .usage = "DIR [--json]",
    .summary = "Sums up a cache directory: records, bytes, texts, orphans.",
    .notes = "An orphan is a record whose text cannot be reached, because a record before it is\n"
             "gone. Segments also take the bytes of records that ended. Free space is the file\n"
             "system's. A server may use the directory meanwhile.\n\n"
             "example: quire cache stats ~/.quire --json",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .args_bytes = sizeof(quire_stored_args),
    .run = run,
};
