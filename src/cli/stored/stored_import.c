/* stored_import.c - quire cache import: puts the records of an exported file into a directory.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"
#include "cli/stored/stored_file.h"

#include <string.h>

#define PUTS_MAX   16u                   /* under way */
#define PUTS_BYTES ((uint64_t)128 << 20) /* of them */

typedef struct import {
    const quire_stored_args *args;
    const char *path;
    quire_stored_file file;
    quire_stored stored;
    uint64_t record_bytes_max; /* of the file */
    uint64_t n_away_bytes;
    uint32_t n_away;
    uint32_t n_failed;
    quire_store_result failure; /* of the first of these */
    quire_error *err;
} import;

/* Verify the whole file. Nothing is written before this has ended well. */
static int verify_all(import *m)
{
    int rc;

    QUIRE_TRY(quire_stored_file_open(&m->file, m->path, m->err));
    do {
        rc = quire_stored_file_next(&m->file, m->err);
        if (rc > 0) {
            m->record_bytes_max = quire_max_u64(m->record_bytes_max, m->file.found.record_bytes);
        }
        if (rc >= 0 && quire_interrupt_seen()) {
            return quire_error_set(m->err, QUIRE_CANCELED, "nothing is imported: interrupted");
        }
    } while (rc > 0);
    return rc;
}

static void put_end(import *m)
{
    quire_transfer *t = quire_stored_next(&m->stored);

    if (t->result != QUIRE_STORE_OK) {
        m->failure = m->n_failed++ == 0 ? t->result : m->failure;
    }
    m->n_away--;
    m->n_away_bytes -= t->capacity;
    quire_transfer_free(t);
}

static int put(import *m)
{
    const uint32_t n_bytes = m->file.found.record_bytes;
    quire_transfer *t;

    while (m->n_away == PUTS_MAX || (m->n_away > 0 && m->n_away_bytes + n_bytes > PUTS_BYTES)) {
        put_end(m);
    }
    t = quire_transfer_new(n_bytes, 0);
    if (t == NULL) {
        return quire_error_set(m->err, QUIRE_NOMEM, "%s: no memory for a record", m->path);
    }
    memcpy(t->record, m->file.record, n_bytes);
    m->n_away++;
    m->n_away_bytes += t->capacity;
    m->stored.store->ops->put(m->stored.store, &t, 1);
    return QUIRE_OK;
}

static int put_all(import *m)
{
    quire_store_stats stats;
    int rc = quire_stored_file_rewind(&m->file, m->err);

    while (rc == QUIRE_OK && m->n_failed == 0 && !quire_interrupt_seen()) {
        rc = quire_stored_file_next(&m->file, m->err);
        if (rc <= 0) {
            break;
        }
        rc = put(m);
    }
    while (m->n_away > 0) {
        put_end(m);
    }
    if (rc == QUIRE_OK && m->n_failed > 0) {
        m->stored.store->ops->stats(m->stored.store, &stats);
        rc = quire_error_set(
            m->err, QUIRE_IO, "%s: %u records could not be stored: %s", m->stored.dir, m->n_failed,
            stats.trouble[0] != '\0' ? stats.trouble : quire_store_result_name(m->failure));
    }
    return rc;
}

static int import_file(import *m)
{
    quire_stored_want want = { .is_writer = true,
                               .is_made = true,
                               .capacity_bytes = m->args->common.cache_disk_bytes };

    QUIRE_TRY(verify_all(m));
    want.added_bytes = m->file.head.n_bytes;
    want.record_bytes = m->record_bytes_max;
    QUIRE_TRY(quire_stored_open(&m->stored, m->args->common.cache_dir, &want, m->err));
    return put_all(m);
}

/* After Ctrl-C the records of the file are not all new or there. */
static int print_result(const import *m)
{
    quire_store_stats stats;
    char bytes[16], part[40] = "";

    m->stored.store->ops->stats(m->stored.store, &stats);
    if (m->args->common.is_json) {
        return quire_stdout_json(
            json_pack("{s:I, s:I, s:I}", "records", (json_int_t)m->file.head.n_records, "new",
                      (json_int_t)stats.puts_total, "known", (json_int_t)stats.known_total));
    }
    if (stats.puts_total + stats.known_total < m->file.head.n_records) {
        (void)snprintf(part, sizeof part, "interrupted: %llu of ",
                       (unsigned long long)(stats.puts_total + stats.known_total));
    }
    quire_say("%s: %s%u records, %s; %llu are new, %llu were there", m->path, part,
              m->file.head.n_records,
              quire_format_bytes(m->file.head.n_bytes, bytes, sizeof(bytes)),
              (unsigned long long)stats.puts_total, (unsigned long long)stats.known_total);
    return QUIRE_EXIT_OK;
}

static int run(void *opaque)
{
    quire_error err = QUIRE_ERROR_INIT;
import m = {.args = opaque, .err = & err };
    int exit_status;

    if (m.args->n_words != 1) {
        quire_say("%s", m.args->n_words == 0 ? "no file given: its name stands behind the directory"
                                             : "one file at a time: more than one is given");
        return QUIRE_EXIT_USAGE;
    }
    m.path = m.args->words[0];
    quire_interrupt_catch();
    exit_status = import_file(&m) < 0 ? quire_say_error(&err, QUIRE_EXIT_FAILED) : print_result(&m);
    quire_stored_close(&m.stored);
    quire_stored_file_close(&m.file);
    return exit_status;
}

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_STORED_DIR,
    QUIRE_ROW_STORED_DISK,
    QUIRE_ROW_JSON,
};
/* clang-format on */

const quire_command quire_stored_import = {
    .name = "cache import",
    .usage = "DIR FILE [options]",
    .summary = "Puts the pages of a file of quire cache export into a cache directory.",
    .notes =
        "The whole file is verified first: of a damaged file nothing is imported. Records that\n"
        "the directory has stay as they are. The checksums find damage; they do not tell who\n"
        "wrote the file, so import only files whose origin you trust. The directory is made if\n"
        "it is missing; no other process may write to it meanwhile.\n\n"
        "example: quire cache import ~/.quire manual.qkvx",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .take_word = quire_stored_word_take,
    .args_bytes = sizeof(quire_stored_args),
    .run = run,
};
