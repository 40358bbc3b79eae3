/* stored_warm.c - quire cache warm: computes texts and stores their pages in a cache directory.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/commands/writer.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"

#include <stdlib.h>
#include <string.h>

typedef struct warm {
    quire_stored_args *args;
    quire_opened session;
    quire_kv_disk *disk;
    quire_writer *writer;
    json_t *texts;
    uint32_t n_failed;
} warm;

/* The tokens of a file, as quire run -f has them. */
static int tokens_read(const warm *w, const char *path, int32_t **tokens, size_t *n_tokens,
                       quire_error *err)
{
    quire_error cause = QUIRE_ERROR_INIT;
    char *text = NULL;
    size_t text_bytes;
    int rc;

    QUIRE_TRY(quire_read_file(path, &text, &text_bytes, err));
    if (text_bytes > 0 && text[text_bytes - 1] == '\n') {
        text_bytes--;
    }
    rc = quire_opened_tokenize(&w->session, text, text_bytes, true, tokens, n_tokens, &cause);
    free(text);
    return rc < 0 ? quire_error_set(err, rc, "%s: %s", path, cause.message) : QUIRE_OK;
}

/* Compute a text. The writer stores its pages; a page that the store refused is an error. */
static int text_warm(const warm *w, const char *path, quire_writer_result *result, quire_error *err)
{
    quire_error cause = QUIRE_ERROR_INIT;
    quire_store_stats before, after;
    int32_t *tokens = NULL;
    size_t n_tokens = 0;
    int rc;

    QUIRE_TRY(tokens_read(w, path, &tokens, &n_tokens, err));
    quire_kv_disk_stats(w->disk, &before);
    quire_writer_reset(w->writer);
    rc = quire_writer_run(w->writer, tokens, n_tokens, result, &cause);
    free(tokens);
    quire_kv_disk_stats(w->disk, &after);
    if (rc < 0) {
        return quire_error_set(err, rc, "%s: %s", path, cause.message);
    }
    if (after.refused_total > before.refused_total || after.puts_now > 0) {
        return quire_error_set(err, QUIRE_IO, "%s: not all pages could be stored%s%s", path,
                               after.trouble[0] != '\0' ? ": " : "", after.trouble);
    }
    return QUIRE_OK;
}

/* Returns false when out of memory. */
static bool tell(const warm *w, const char *path, const quire_writer_result *result)
{
    if (!w->args->common.is_json) {
        quire_say("%s: %u tokens, %u of them were stored before; %.1f tokens/s", path,
                  result->n_prompt, result->n_stored,
                  quire_rate(result->n_prompt - result->n_reused, result->prefill_s));
        return true;
    }
    return json_array_append_new(w->texts, json_pack("{s:o, s:i, s:i, s:o}", "file",
                                                     quire_json_bytes(path, strlen(path)), "tokens",
                                                     (int)result->n_prompt, "stored_tokens",
                                                     (int)result->n_stored, "seconds",
                                                     quire_json_real(result->prefill_s))) == 0;
}

/* A text that cannot be stored does not keep the others from it. */
static void warm_all(warm *w)
{
    for (uint32_t i = 0; i < w->args->n_words && !quire_interrupt_seen(); i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_writer_result result;
        int rc = text_warm(w, w->args->words[i], &result, &err);

        if (rc == QUIRE_OK && !tell(w, w->args->words[i], &result)) {
            rc = quire_error_set(&err, QUIRE_NOMEM, "out of memory");
        }
        if (rc < 0) {
            w->n_failed++;
            (void)quire_say_error(&err, QUIRE_EXIT_FAILED);
        }
    }
}

static int prepare(warm *w, quire_error *err)
{
    static const quire_sampling_args none = QUIRE_SAMPLING_ARGS_INIT;
    const quire_stored_want want = { .capacity_bytes = w->args->common.cache_disk_bytes };
    quire_stored directory;

    QUIRE_TRY(quire_stored_look(&directory, w->args->common.cache_dir, true, err));
    w->args->common.cache_disk_bytes = quire_stored_room(&directory, &want);
    w->texts = json_array();
    if (w->texts == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    QUIRE_TRY(quire_opened_open(&w->session, &w->args->common, err));
    quire_interrupt_catch();
    QUIRE_TRY(quire_kv_disk_open(&w->disk, &w->args->common, &w->session, err));
    QUIRE_TRY(quire_writer_create(&w->writer, &w->session, &none, err));
    quire_writer_disk_set(w->writer, w->disk);
    return QUIRE_OK;
}

static int check(const void *opaque, quire_error *err)
{
    const quire_stored_args *args = opaque;

    if (args->n_words == 0) {
        return quire_error_set(err, QUIRE_INVAL, "no text given: name files behind the directory");
    }
    return quire_common_check(args, err);
}

static int run(void *opaque)
{
    warm w = { .args = opaque };
    quire_error err = QUIRE_ERROR_INIT;
    int exit_status;

    if (prepare(&w, &err) < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        warm_all(&w);
        exit_status = QUIRE_EXIT_OK;
        if (w.args->common.is_json) {
            exit_status = quire_stdout_json(json_pack("{s:O}", "texts", w.texts));
        }
        exit_status = w.n_failed > 0 ? QUIRE_EXIT_FAILED : exit_status;
    }
    quire_writer_destroy(w.writer);
    quire_kv_disk_close(w.disk);
    quire_opened_close(&w.session);
    json_decref(w.texts);
    return exit_status;
}

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_STORED_DIR,
    QUIRE_ROW_STORED_DISK,
    QUIRE_ROWS_STORED_RUNTIME,
    QUIRE_ROW_JSON,
};
/* clang-format on */

const quire_command quire_stored_warm = {
    .name = "cache warm",
    .usage = "DIR -m FILE TEXT... [options]",
    .summary = "Computes texts and stores their pages, so that the first request finds them.",
    .notes =
        "Each TEXT is a file, read as quire run -f reads it. Pages that the directory has are\n"
        "not computed again. quire run, chat and serve find the pages if they use the same\n"
        "model and --kv (quire serve: q8, without API keys). The directory is made if it is\n"
        "missing; no other process may write to it meanwhile.\n\n"
        "example: quire cache warm ~/.quire -m model.gguf --kv q8 manual.txt prices.txt",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .take_word = quire_stored_word_take,
    .args_bytes = sizeof(quire_stored_args),
    .check = check,
    .run = run,
};
