/* stored_verify.c - quire cache verify: reads every record of a cache directory and checks it.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES   4096u
#define KEY_TEXT_MAX (2u * QUIRE_PAGE_KEY_BYTES + 1u)
#define PROGRESS_S   0.1

typedef struct verify {
    const quire_stored_args *args;
    quire_stored stored;
    const quire_stored_record **records; /* [stored.n], as they lie on disk */
    json_t *broken;                      /* with --json: the list */
    uint32_t n_fine, n_broken, n_gone;
    uint64_t n_bytes;
    double shown_s; /* when the line of progress was written */
} verify;

static int by_place(const void *a, const void *b)
{
    const quire_stored_record *x = *(const quire_stored_record *const *)a;
    const quire_stored_record *y = *(const quire_stored_record *const *)b;

    if (x->segment != y->segment) {
        return x->segment < y->segment ? -1 : 1;
    }
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static const char *key_text(const quire_page_key *key, char *buffer)
{
    for (size_t i = 0; i < QUIRE_PAGE_KEY_BYTES; i++) {
        (void)snprintf(buffer + 2 * i, 3, "%02x", key->bytes[i]);
    }
    return buffer;
}

static void tell_broken(verify *v, const quire_stored_record *record, const char *path,
                        const char *reason)
{
    char key[KEY_TEXT_MAX];

    v->n_broken++;
    (void)key_text(&record->key, key);
    if (v->args->common.is_json) {
        json_array_append_new(v->broken,
                              json_pack("{s:o, s:I, s:s, s:s}", "file",
                                        quire_json_bytes(path, strlen(path)), "offset",
                                        (json_int_t)record->offset, "key", key, "reason", reason));
    } else {
        quire_progress_end();
        printf("%s: offset %llu: %s (key %s)\n", path, (unsigned long long)record->offset, reason,
               key);
    }
}

static void show_progress(verify *v)
{
    const double now_s = quire_now_s();
    const uint32_t n = v->n_fine + v->n_broken + v->n_gone;
    char bytes[16];

    if (n == 1 || now_s - v->shown_s >= PROGRESS_S) {
        v->shown_s = now_s;
        quire_progress("%u of %u records checked, %s", n, v->stored.n,
                       quire_format_bytes(v->n_bytes, bytes, sizeof(bytes)));
    }
}

static bool check_one(void *ctx, const quire_stored_record *record, const quire_transfer *transfer)
{
    verify *v = ctx;
    const quire_store_result result = transfer->result;
    char path[PATH_BYTES];

    (void)quire_file_store_path(v->stored.store, record->segment, path, sizeof(path));
    v->n_bytes += record->n_bytes;
    if (result == QUIRE_STORE_OK && quire_stored_is_own_key(&transfer->found)) {
        v->n_fine++;
    } else if (result == QUIRE_STORE_OK) {
        tell_broken(v, record, path, "key");
    } else if (access(path, F_OK) != 0 && errno == ENOENT) {
        v->n_gone++; /* a server that writes took the file away meanwhile */
    } else {
        tell_broken(v, record, path, quire_store_result_name(result));
    }
    show_progress(v);
    return !quire_stdout_is_lost();
}

static int check_all(verify *v, quire_error *err)
{
    int rc;

    QUIRE_TRY(quire_stored_list(&v->stored, err));
    v->records = malloc((v->stored.n + 1) * sizeof(*v->records));
    v->broken = json_array();
    if (v->records == NULL || v->broken == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the list of records");
    }
    for (uint32_t i = 0; i < v->stored.n; i++) {
        v->records[i] = &v->stored.records[i];
    }
    qsort(v->records, v->stored.n, sizeof(*v->records), by_place);
    rc = quire_stored_read(&v->stored, v->records, v->stored.n, check_one, v);
    quire_progress_end();
    return rc == QUIRE_NOMEM ? quire_error_set(err, rc, "no memory for records to read") : rc;
}

/* Also when Ctrl-C ended the check. */
static int print_result(const verify *v)
{
    char bytes[16];

    if (v->args->common.is_json) {
        return quire_stdout_json(json_pack("{s:I, s:I, s:I, s:I, s:O}", "records",
                                           (json_int_t)v->stored.n, "bytes", (json_int_t)v->n_bytes,
                                           "fine", (json_int_t)v->n_fine, "gone",
                                           (json_int_t)v->n_gone, "broken", v->broken));
    }
    printf("%u of %u records are fine, %u broken; %s read\n", v->n_fine, v->stored.n, v->n_broken,
           quire_format_bytes(v->n_bytes, bytes, sizeof(bytes)));
    if (v->n_gone > 0) {
        quire_say("%u records went with their file during the check", v->n_gone);
    }
    return QUIRE_EXIT_OK;
}

static int run(void *opaque)
{
    static const quire_stored_want only_read = { 0 };
    verify v = { .args = opaque };
    quire_error err = QUIRE_ERROR_INIT;
    int exit_status;
    int rc;

    quire_interrupt_catch();
    rc = quire_stored_open(&v.stored, v.args->common.cache_dir, &only_read, &err);
    if (rc == QUIRE_OK) {
        rc = check_all(&v, &err);
    }
    if (rc < 0 && rc != QUIRE_CANCELED) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        exit_status = print_result(&v);
        exit_status = v.n_broken > 0 ? QUIRE_EXIT_FAILED : exit_status;
    }
    json_decref(v.broken);
    free(v.records);
    quire_stored_close(&v.stored);
    return exit_status;
}

static const quire_opt options[] = { QUIRE_ROW_STORED_DIR, QUIRE_ROW_JSON };

const quire_command quire_stored_verify = {
    .name = "cache verify",
    .usage = "DIR [--json]",
    .summary = "Reads and checks every record of a cache directory, and names the broken ones.",
    .notes =
        "Checked are the checksum, the fields, and the key, which is a hash of the tokens. A "
        "broken\n"
        "record is named by file and offset; the exit status is then 1. Such a record does no "
        "harm:\n"
        "who needs it computes instead. What was torn by a crash is not in the index, and not\n"
        "counted. A server may use the directory meanwhile.\n\n"
        "example: quire cache verify ~/.quire",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .args_bytes = sizeof(quire_stored_args),
    .run = run,
};
