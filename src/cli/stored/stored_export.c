/* stored_export.c - quire cache export: the stored pages of one text as a file.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "cli/commands/kv_disk.h"
#include "cli/commands/new_file.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"
#include "cli/stored/stored_file.h"
#include "store/page_io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct export
{
    const quire_stored_args *args;
    quire_stored stored;
    quire_opened session;
    int32_t *tokens; /* of the text */
    size_t n_tokens;
    const quire_stored_record **records; /* [n], in the order of the text */
    uint32_t n;
    uint64_t n_bytes;
    uint64_t n_covered; /* tokens of the text that they hold */
    quire_new_file file;
    quire_error *err;
}
export;

static int text_read(export *x)
{
    quire_error cause = QUIRE_ERROR_INIT;
    const char *text = x->args->prompt;
    char *from_file = NULL;
    size_t text_bytes;
    int rc;

    if (x->args->text_file != NULL) {
        QUIRE_TRY(quire_read_file(x->args->text_file, &from_file, &text_bytes, x->err));
        text = from_file;
        text_bytes -= text_bytes > 0 && text[text_bytes - 1] == '\n';
    } else {
        text_bytes = strlen(text);
    }
    rc = quire_opened_tokenize(&x->session, text, text_bytes, true, &x->tokens, &x->n_tokens,
                               &cause);
    free(from_file);
    return rc < 0 ? quire_error_set(x->err, rc, "cannot tokenize the text: %s", cause.message)
                  : QUIRE_OK;
}

/* The record of the page whose first token is tokens[first]: the full page, or a stored beginning
 * of it. NULL: neither. */
static const quire_stored_record *page_find(const export *x, const quire_page_key *parent,
                                            size_t first, uint32_t page_tokens)
{
    const quire_stored_record *record = NULL;
    quire_page_key key;

    if (x->n_tokens - first >= page_tokens) {
        quire_prefix_key_add(parent, x->tokens + first, page_tokens, &key);
        record = quire_stored_find(&x->stored, &key);
    }
    if (record == NULL) {
        quire_page_record_slot(parent, x->tokens[first], &key);
        record = quire_stored_find(&x->stored, &key);
    }
    return record;
}

/* Follow the text from its beginning as far as the directory has it. */
static int pages_find(export *x)
{
    const uint32_t page_tokens = quire_runtime_opts_get(x->session.runtime)->page_tokens;
    const quire_stored_record *record = NULL;
    quire_tenant_salt salt;
    quire_page_key parent;

    quire_kv_disk_names(&x->session, &salt, &parent);
    x->records = malloc((x->n_tokens / page_tokens + 1) * sizeof(*x->records));
    if (x->records == NULL) {
        return quire_error_set(x->err, QUIRE_NOMEM, "no memory for the list of records");
    }
    for (size_t first = 0; first < x->n_tokens; first += page_tokens) {
        record = page_find(x, &parent, first, page_tokens);
        if (record == NULL) {
            break;
        }
        x->records[x->n++] = record;
        x->n_bytes += record->n_bytes;
        if (record->n_tokens < page_tokens) {
            break;
        }
        parent = record->key;
    }
    return x->n > 0 ? QUIRE_OK
                    : quire_error_set(x->err, QUIRE_INVAL,
                                      "%s has nothing of this text for this model and --kv "
                                      "(quire cache ls lists its texts)",
                                      x->stored.dir);
}

static bool record_write(void *ctx, const quire_stored_record *record,
                         const quire_transfer *transfer)
{
    export *x = ctx;

    if (transfer->result != QUIRE_STORE_OK) {
        (void)quire_error_set(x->err, QUIRE_CORRUPT,
                              "the record of tokens %u to %u cannot be read: %s (quire cache "
                              "verify checks all)",
                              record->first_token, record->first_token + record->n_tokens - 1,
                              quire_store_result_name(transfer->result));
        return false;
    }
    x->n_covered += quire_page_same(&transfer->found, x->tokens + record->first_token,
                                    (uint32_t)(x->n_tokens - record->first_token));
    errno = 0;
    if (fwrite(transfer->record, record->n_bytes, 1, x->file.stream) != 1) {
        (void)quire_new_file_fail(&x->file, x->err);
        return false;
    }
    return true;
}

static int file_write(export *x)
{
    const quire_stored_file_head head = { x->n, x->n_bytes };
    unsigned char block[QUIRE_STORED_FILE_HEAD_BYTES];
    int rc;

    QUIRE_TRY(quire_new_file_open(&x->file, x->args->out, x->err));
    quire_stored_file_head_write(block, &head);
    errno = 0;
    if (fwrite(block, sizeof(block), 1, x->file.stream) != 1) {
        return quire_new_file_fail(&x->file, x->err);
    }
    rc = quire_stored_read(&x->stored, x->records, x->n, record_write, x);
    if (rc < 0) {
        return x->err->status < 0 ? x->err->status
                                  : quire_error_set(x->err, rc, "%s is not written: %s",
                                                    x->args->out, quire_status_text(rc));
    }
    return quire_new_file_finish(&x->file, x->err);
}

static int export_text(export *x)
{
    static const quire_stored_want only_read = { 0 };

    QUIRE_TRY(quire_stored_open(&x->stored, x->args->common.cache_dir, &only_read, x->err));
    QUIRE_TRY(quire_stored_list(&x->stored, x->err));
    QUIRE_TRY(quire_opened_open(&x->session, &x->args->common, x->err));
    quire_interrupt_catch();
    QUIRE_TRY(text_read(x));
    QUIRE_TRY(pages_find(x));
    return file_write(x);
}

static int print_result(const export *x)
{
    char bytes[16];

    if (x->args->common.is_json) {
        return quire_stdout_json(json_pack(
            "{s:o, s:I, s:I, s:I, s:I}", "file",
            quire_json_bytes(x->args->out, strlen(x->args->out)), "records", (json_int_t)x->n,
            "bytes", (json_int_t)(x->n_bytes + QUIRE_STORED_FILE_HEAD_BYTES), "tokens",
            (json_int_t)x->n_tokens, "exported_tokens", (json_int_t)x->n_covered));
    }
    quire_say("%s: %llu of the text's %zu tokens in %u records, %s", x->args->out,
              (unsigned long long)x->n_covered, x->n_tokens, x->n,
              quire_format_bytes(x->n_bytes, bytes, sizeof(bytes)));
    return QUIRE_EXIT_OK;
}

static int check(const void *opaque, quire_error *err)
{
    const quire_stored_args *args = opaque;

    if ((args->prompt == NULL) == (args->text_file == NULL)) {
        return quire_error_set(err, QUIRE_INVAL, "%s",
                               args->prompt == NULL ? "no text given: -p TEXT or -f FILE"
                                                    : "-p and -f both give a text: use one");
    }
    return quire_common_check(args, err);
}

static int run(void *opaque)
{
    quire_error err = QUIRE_ERROR_INIT;
    export x = { .args = opaque, .err = &err };
    int exit_status;

    exit_status = export_text(&x) < 0 ? quire_say_error(&err, QUIRE_EXIT_FAILED) : print_result(&x);
    quire_new_file_discard(&x.file);
    free(x.records);
    free(x.tokens);
    quire_opened_close(&x.session);
    quire_stored_close(&x.stored);
    return exit_status;
}

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_STORED_DIR,
    { .names = { "-p", "--prompt" }, .type = QUIRE_OPT_TEXT, .unit = "TEXT",
      .offset = offsetof(quire_stored_args, prompt), .help = "the text" },
    { .names = { "-f", "--text", "--file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(quire_stored_args, text_file),
      .help = "read the text from a file, as quire run does; -: stdin" },
    { .names = { "-o", "--output" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "FILE",
      .offset = offsetof(quire_stored_args, out), .help = "the file to be written" },
    QUIRE_ROWS_STORED_RUNTIME,
    QUIRE_ROW_JSON,
};
/* clang-format on */

const quire_command quire_stored_export = {
    .name = "cache export",
    .usage = "DIR -m FILE (-p TEXT | -f FILE) -o FILE [options]",
    .summary = "Writes the longest stored beginning of a text to a file, for quire cache import.",
    .notes =
        "The file holds the records of the text's pages as they are, with token ids: it can be\n"
        "read by who has the file. Found are pages of quire run, chat and of quire serve\n"
        "without API keys, with the same --kv. Another machine can use them if it has the\n"
        "same model and a CPU for which Quire and ggml choose the same kernels. The last record\n"
        "may hold tokens that do not belong to the text. A server may use the directory\n"
        "meanwhile.\n\n"
        "example: quire cache export ~/.quire -m model.gguf --kv q8 -f manual.txt -o manual.qkvx",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .args_bytes = sizeof(quire_stored_args),
    .check = check,
    .run = run,
};
