/* stored_ls.c - quire cache ls: the texts of a cache directory.
 *
 * SPDX-License-Identifier: MIT */
#include "base/bytes.h"
#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_args.h"
#include "model/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define BEGIN_TOKENS 24u /* of a text that are kept */
#define SHOWN_TOKENS 8u  /* of those that a line shows without a model */
#define SHOWN_CHARS  60u /* of its words that a line shows */
#define PIECE_MAX    256u

/* How a text begins. */
typedef struct beginning {
    uint32_t n;
    int32_t tokens[BEGIN_TOKENS];
    quire_store_result result; /* of reading its first record */
} beginning;

typedef struct ls {
    const quire_stored_args *args;
    quire_stored stored;
    quire_opened session; /* model NULL: none was named */
    const quire_stored_record **ends;
    uint32_t n_ends;
    beginning *beginnings; /* [stored.n]: of the records that begin texts */
    uint32_t n_orphans;
    uint32_t age_segment; /* whose time is known */
    int64_t age_s;
} ls;

/* ---- collect ---- */

static int newest_first(const void *a, const void *b)
{
    const quire_stored_record *x = *(const quire_stored_record *const *)a;
    const quire_stored_record *y = *(const quire_stored_record *const *)b;

    if (x->segment != y->segment) {
        return x->segment < y->segment ? 1 : -1;
    }
    return x->offset < y->offset ? 1 : -(x->offset > y->offset);
}

static bool keep_beginning(void *ctx, const quire_stored_record *record,
                           const quire_transfer *transfer)
{
    ls *l = ctx;
    beginning *b = &l->beginnings[record - l->stored.records];
    int32_t tokens[QUIRE_PAGE_TOKENS_MAX];

    b->result = transfer->result;
    if (b->result == QUIRE_STORE_OK) {
        quire_page_record_tokens(&transfer->found, tokens);
        b->n = quire_min_u32(transfer->found.text.n_tokens, BEGIN_TOKENS);
        memcpy(b->tokens, tokens, b->n * sizeof tokens[0]);
    }
    return true;
}

/* Read the first records of all texts. */
static int read_beginnings(ls *l)
{
    const quire_stored_record **firsts = malloc((l->stored.n + 1) * sizeof(*firsts));
    uint32_t n = 0;
    int rc;

    QUIRE_FAIL_IF(firsts == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < l->stored.n; i++) {
        const quire_stored_record *r = &l->stored.records[i];

        if (r->first == r && !r->is_orphan) {
            firsts[n++] = r;
        }
    }
    rc = quire_stored_read(&l->stored, firsts, n, keep_beginning, l);
    free(firsts);
    return rc;
}

static int collect(ls *l, quire_error *err)
{
    int rc;

    QUIRE_TRY(quire_stored_list(&l->stored, err));
    l->ends = malloc((l->stored.n + 1) * sizeof(*l->ends));
    l->beginnings = calloc(l->stored.n + 1, sizeof(*l->beginnings));
    if (l->ends == NULL || l->beginnings == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the list of texts");
    }
    for (uint32_t i = 0; i < l->stored.n; i++) {
        l->n_orphans += l->stored.records[i].is_orphan;
        if (l->stored.records[i].is_end && !l->stored.records[i].is_orphan) {
            l->ends[l->n_ends++] = &l->stored.records[i];
        }
    }
    qsort(l->ends, l->n_ends, sizeof(*l->ends), newest_first);
    rc = read_beginnings(l);
    return rc < 0 ? quire_error_set(err, rc, "the list is not complete: %s", quire_status_text(rc))
                  : QUIRE_OK;
}

/* ---- show ---- */

/* Seconds since the segment of a record was written to; 0 when its file has gone. */
static int64_t age_of(ls *l, const quire_stored_record *record)
{
    char path[4096];
    struct stat info;

    if (l->age_segment != record->segment) {
        l->age_segment = record->segment;
        l->age_s = 0;
        (void)quire_file_store_path(l->stored.store, record->segment, path, sizeof(path));
        if (stat(path, &info) == 0) {
            l->age_s = (int64_t)time(NULL) - info.st_mtime;
            l->age_s = l->age_s > 0 ? l->age_s : 0;
        }
    }
    return l->age_s;
}

static const char *age_text(int64_t seconds, char *buffer, size_t buffer_bytes)
{
    static const struct {
        int64_t seconds;
        const char *unit;
    } units[] = { { 86400, "d" }, { 3600, "h" }, { 60, "min" }, { 1, "s" } };
    size_t i = 0;

    while (i < 3 && seconds < 2 * units[i].seconds) {
        i++;
    }
    (void)snprintf(buffer, buffer_bytes, "%lld %s", (long long)(seconds / units[i].seconds),
                   units[i].unit);
    return buffer;
}

/* The first words as JSON makes them: valid UTF-8. NULL: out of memory. */
static json_t *words_json(const ls *l, const beginning *b)
{
    quire_bytes bytes = { 0 };
    json_t *words = NULL;
    int rc = QUIRE_OK;

    for (uint32_t i = 0; i < b->n && rc == QUIRE_OK; i++) {
        char piece[PIECE_MAX];
        int64_t n = -1;

        if (b->tokens[i] >= 0 && (uint32_t)b->tokens[i] < l->session.desc->n_vocab) {
            n = quire_model_token_text(l->session.model, b->tokens[i], true, piece, sizeof(piece));
        }
        if (n < 0 || n > (int64_t)sizeof(piece)) {
            n = snprintf(piece, sizeof(piece), "[%d]", (int)b->tokens[i]);
        }
        rc = quire_bytes_add(&bytes, piece, (size_t)n);
    }
    if (rc == QUIRE_OK) {
        words = quire_json_bytes(bytes.n > 0 ? bytes.data : "", bytes.n);
    }
    quire_bytes_fini(&bytes);
    return words;
}

/* Words on one line, cut between characters. */
static void print_words(const ls *l, const beginning *b)
{
    json_t *words = words_json(l, b);
    const char *at = words != NULL ? json_string_value(words) : "";

    for (uint32_t n = 0; *at != '\0'; at++) {
        const unsigned char c = (unsigned char)*at;

        if ((c & 0xC0) != 0x80 && n++ == SHOWN_CHARS) {
            printf("...");
            break;
        }
        (void)putchar(c < 0x20 || c == 0x7F ? ' ' : c);
    }
    json_decref(words);
}

static void print_beginning(const ls *l, const beginning *b)
{
    if (b->result != QUIRE_STORE_OK) {
        printf("(the first record cannot be read: %s)", quire_store_result_name(b->result));
    } else if (l->session.model != NULL) {
        print_words(l, b);
    } else {
        for (uint32_t i = 0; i < b->n && i < SHOWN_TOKENS; i++) {
            printf("%s%d", i > 0 ? " " : "", (int)b->tokens[i]);
        }
        printf("%s", b->n > SHOWN_TOKENS ? " ..." : "");
    }
}

/* "-" for the tenant of quire run, and of quire serve without keys. */
static void print_tenant(const ls *l, const quire_stored_record *end)
{
    quire_tenant_names names;
    char text[sizeof(names.tenant) + sizeof(names.cache_salt) + 1];

    if (!quire_stored_names(&l->stored, end, &names)) {
        (void)snprintf(text, sizeof(text), "?");
    } else if (names.tenant[0] == '\0' && names.cache_salt[0] == '\0') {
        (void)snprintf(text, sizeof(text), "-");
    } else {
        (void)snprintf(text, sizeof(text), "%s%s%s", names.tenant,
                       names.cache_salt[0] != '\0' ? "/" : "", names.cache_salt);
    }
    for (char *at = text; *at != '\0'; at++) {
        *at = (unsigned char)*at < 0x20 || *at == 0x7F ? '?' : *at;
    }
    printf("  %-12s  ", text);
}

static int print_text(ls *l)
{
    if (l->n_ends > 0) {
        printf("%8s  %9s  %4s  %7s  %-12s  %s\n", "tokens", "bytes", "uses", "age", "tenant",
               l->session.model != NULL ? "first words" : "first tokens");
    }
    for (uint32_t i = 0; i < l->n_ends; i++) {
        const quire_stored_record *end = l->ends[i];
        char bytes[16], age[32];

        printf("%8u  %9s  %4u  %7s", end->first_token + end->n_tokens,
               quire_format_bytes(end->text_bytes, bytes, sizeof(bytes)), end->uses,
               age_text(age_of(l, end), age, sizeof(age)));
        print_tenant(l, end);
        printf("%s", end->is_condensed ? "(condensed) " : "");
        print_beginning(l, &l->beginnings[end->first - l->stored.records]);
        (void)putchar('\n');
    }
    quire_say("%u text%s in %u record%s%s", l->n_ends, l->n_ends == 1 ? "" : "s", l->stored.n,
              l->stored.n == 1 ? "" : "s",
              l->n_ends > 0 ? "; bytes of pages that texts share count for each of them" : "");
    if (l->n_orphans > 0) {
        quire_say("%u records belong to no text: a record before them is gone", l->n_orphans);
    }
    return QUIRE_EXIT_OK;
}

static json_t *tokens_json(const beginning *b)
{
    json_t *tokens = json_array();

    for (uint32_t i = 0; tokens != NULL && i < b->n; i++) {
        json_array_append_new(tokens, json_integer(b->tokens[i]));
    }
    return tokens;
}

static json_t *text_json(ls *l, const quire_stored_record *end)
{
    const beginning *b = &l->beginnings[end->first - l->stored.records];
    quire_tenant_names names = { "", "" };
    const bool has_names = quire_stored_names(&l->stored, end, &names);
    json_t *text = json_pack("{s:I, s:b, s:I, s:i, s:I, s:s, s:o}", "tokens",
                             (json_int_t)end->first_token + end->n_tokens, "condensed",
                             end->is_condensed, "bytes", (json_int_t)end->text_bytes, "uses",
                             (int)end->uses, "age_s", (json_int_t)age_of(l, end), "first_record",
                             quire_store_result_name(b->result), "first_tokens", tokens_json(b));

    if (text != NULL) {
        json_object_set_new(text, "tenant",
                            has_names ? quire_json_bytes(names.tenant, strlen(names.tenant))
                                      : json_null());
        json_object_set_new(text, "cache_salt",
                            has_names ? quire_json_bytes(names.cache_salt, strlen(names.cache_salt))
                                      : json_null());
        if (l->session.model != NULL) {
            json_object_set_new(text, "first_words", words_json(l, b));
        }
    }
    return text;
}

static int print_json(ls *l)
{
    json_t *texts = json_array();

    for (uint32_t i = 0; texts != NULL && i < l->n_ends; i++) {
        json_array_append_new(texts, text_json(l, l->ends[i]));
    }
    return quire_stdout_json(json_pack("{s:o, s:I, s:I}", "texts", texts, "records",
                                       (json_int_t)l->stored.n, "orphans",
                                       (json_int_t)l->n_orphans));
}

/* ---- the command ---- */

static int run(void *opaque)
{
    static const quire_stored_want only_read = { 0 };
    ls l = { .args = opaque };
    quire_error err = QUIRE_ERROR_INIT;
    int exit_status;
    int rc;

    quire_interrupt_catch();
    rc = quire_stored_open(&l.stored, l.args->common.cache_dir, &only_read, &err);
    if (rc == QUIRE_OK && l.args->common.model != NULL) {
        rc = quire_opened_describe(&l.session, &l.args->common, &err);
    }
    if (rc == QUIRE_OK) {
        rc = collect(&l, &err);
    }
    if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        exit_status = l.args->common.is_json ? print_json(&l) : print_text(&l);
    }
    free(l.ends);
    free(l.beginnings);
    quire_opened_close(&l.session);
    quire_stored_close(&l.stored);
    return exit_status;
}

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_STORED_DIR,
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .is_model = true, .unit = "FILE",
      .offset = offsetof(quire_common_args, model),
      .help = "show first words, by the tokenizer of this model file (GGUF), instead of token "
              "ids" },
    QUIRE_ROW_JSON,
};
/* clang-format on */

const quire_command quire_stored_ls = {
    .name = "cache ls",
    .usage = "DIR [-m FILE] [--json]",
    .summary = "Lists the texts of a cache directory, the newest first.",
    .notes =
        "A line stands for a text that nothing in the directory continues. Columns: its tokens,\n"
        "the bytes of its records, how often its last record was used since it was written, the\n"
        "time since its file was written to, the tenant (with / and the cache_salt).\n"
        "A server may use the directory meanwhile.\n\n"
        "example: quire cache ls ~/.quire -m model.gguf",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--cache-dir",
    .args_bytes = sizeof(quire_stored_args),
    .run = run,
};
