/* test_kv_history.c - --kv-history end to end: content of the file, and refused paths.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES (64 * 64) /* 64 tokens of the generated model in f16 */

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        fail_msg("no integer '%s'", key);
    }
    return json_integer_value(value);
}

/* Counts of a history file, which is checked line by line while reading. */
typedef struct history {
    json_t *stats;
    json_int_t n_events;
    json_int_t n_alloc;
    json_int_t n_free;
    json_int_t n_map;
    bool is_live[64]; /* by page id: allocated and not freed */
} history;

static void take_event(history *h, const json_t *event)
{
    static const char *const others[] = { "ref", "unref", "copy", "move", "unmap" };
    const char *kind = json_string_value(json_object_get(event, "kind"));
    json_int_t page = integer(event, "page");

    assert_non_null(kind);
    assert_int_equal(json_object_size(event), 9);
    assert_int_equal(integer(event, "number"), h->n_events); /* the ring has not wrapped */
    assert_int_equal(integer(event, "group"), 0);
    assert_int_equal(integer(event, "region"), 0);
    h->n_events++;
    h->n_map += strcmp(kind, "map") == 0;
    assert_true(h->n_map > 0);
    assert_in_range(integer(event, "extent"), 0, h->n_map - 1); /* one that has been mapped */
    if (strcmp(kind, "map") == 0) {
        assert_int_equal(integer(event, "seq"), 0);
        assert_int_equal(page, integer(event, "extent"));
    } else if (strcmp(kind, "alloc") == 0 || strcmp(kind, "free") == 0) {
        bool is_alloc = kind[0] == 'a';

        assert_in_range(page, 1, 63);
        assert_true(integer(event, "seq") > 0);
        assert_true(h->is_live[page] != is_alloc);
        h->is_live[page] = is_alloc;
        h->n_alloc += is_alloc;
        h->n_free += !is_alloc;
    } else {
        bool is_known = false;

        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            is_known = is_known || strcmp(kind, others[i]) == 0;
        }
        assert_true(is_known);
    }
}

/* Memory: json_decref(stats). */
static history history_read(const char *path)
{
    history h = { .stats = NULL };
    FILE *file = fopen(path, "r");
    char line[4096];
    json_int_t last_us = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        const char *type = json_string_value(json_object_get(object, "type"));

        assert_non_null(type);
        if (h.stats == NULL) {
            assert_string_equal(type, "stats");
            h.stats = object;
            continue;
        }
        assert_string_equal(type, "event");
        take_event(&h, object);
        assert_true(integer(object, "time_us") >= last_us);
        last_us = integer(object, "time_us");
        assert_true(last_us < (json_int_t)600 * 1000 * 1000); /* since the start, not since 1970 */
        json_decref(object);
    }
    assert_int_equal(fclose(file), 0);
    assert_non_null(h.stats);

    /* The events add up to the figures. */
    assert_int_equal(h.n_alloc, integer(h.stats, "allocs_total"));
    assert_int_equal(h.n_free, integer(h.stats, "frees_total"));
    assert_int_equal(h.n_alloc - h.n_free, integer(h.stats, "pages_live"));
    assert_int_equal(h.n_map, integer(h.stats, "extents"));
    assert_int_equal(integer(h.stats, "live_bytes"), integer(h.stats, "pages_live") * PAGE_BYTES);
    assert_int_equal(integer(h.stats, "live_bytes") + integer(h.stats, "cached_bytes") +
                         integer(h.stats, "free_bytes") + integer(h.stats, "tail_bytes"),
                     integer(h.stats, "extent_bytes"));
    assert_true(integer(h.stats, "charged_peak_bytes") >= integer(h.stats, "charged_bytes"));
    assert_true(json_is_real(json_object_get(h.stats, "external_fragmentation")));
    return h;
}

static void expect_no_work_file(const char *path)
{
    char work[4096];

    (void)snprintf(work, sizeof(work), "%s.partial", path);
    assert_int_not_equal(access(work, F_OK), 0);
}

/* One sequence that grows: a page each 64 tokens, all held when the run ends. */
static void run_writes_it(void **state)
{
    const char *path = program_file("run.jsonl", "what was there before\n", 22);
    program_result result =
        program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "a quire", "-n", "200",
                                  "--ignore-eos", "--kv-history", path));
    history h = history_read(path);

    (void)state;
    assert_in_range(h.n_alloc, 4, 5); /* 199 tokens and the prompt's */
    assert_int_equal(h.n_free, 0);
    assert_int_equal(integer(h.stats, "seqs_open"), 1);
    assert_true(integer(h.stats, "slack_bytes") > 0);
    expect_no_work_file(path);
    json_decref(h.stats);
    program_free(&result);
}

/* /reset lets the pages go; the next answer takes pages again. */
static void chat_writes_it(void **state)
{
    const char *path = program_path("chat.jsonl");
    program_result result = program_run_with(
        "a quire\n/reset\nof pages\n", PROGRAM("chat", "-m", program_model(), "--chat-template",
                                               "chatml", "-n", "4", "--kv-history", path));
    history h;

    (void)state;
    assert_int_equal(result.exit_status, 0);
    h = history_read(path);
    assert_true(h.n_free > 0);
    assert_true(h.n_alloc > h.n_free);
    json_decref(h.stats);
    program_free(&result);
}

/* Each chunk's pages are let go before the next one's are taken: in the end nothing is held. */
static void perplexity_writes_it(void **state)
{
    const char *text = program_text("text.txt", 4000);
    const char *path = program_path("perplexity.jsonl");
    program_result result =
        program_expect(0, PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "128",
                                  "--chunks", "3", "--kld-against", "q8", "--kv-history", path));
    history h = history_read(path);

    (void)state;
    assert_int_equal(h.n_alloc, 6);
    assert_int_equal(h.n_free, 6);
    assert_int_equal(integer(h.stats, "seqs_open"), 0);
    assert_int_equal(integer(h.stats, "charged_peak_bytes"), 2 * PAGE_BYTES);
    json_decref(h.stats);
    program_free(&result);
}

/* A run that fails or is interrupted is the one to look into. */
static void written_after_failure(void **state)
{
    const char *text = program_text("long.txt", 3000);
    const char *path = program_path("failed.jsonl");
    program_result result = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-f", text, "-c", "100", "--kv-history", path));
    history h = history_read(path);

    (void)state;
    assert_says(result.err, "the context holds 100");
    assert_int_equal(h.n_alloc, 0);
    json_decref(h.stats);
    program_free(&result);

    path = program_path("interrupted.jsonl");
    result =
        program_run_interrupted(NULL, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "3000",
                                              "-c", "3500", "--ignore-eos", "--kv-history", path));
    assert_int_equal(result.exit_status, 130);
    h = history_read(path);
    assert_true(h.n_alloc > 0);
    json_decref(h.stats);
    program_free(&result);
}

/* Refused before any text is written; the existing device or folder is unchanged. */
static void only_files_are_written(void **state)
{
    char folder[4096];
    const char *fifo = program_path("fifo.jsonl");
    const struct {
        const char *path;
        const char *says;
        mode_t type; /* 0 = there is nothing of that name */
    } cases[] = {
        { folder, "not a regular file", S_IFDIR },
        { fifo, "not a regular file", S_IFIFO },
        { "/dev/full", "not a regular file", S_IFCHR },
        { "/none/history.jsonl", "No such file", 0 },
        { "-", "name a file", 0 },
    };

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(fifo, '/') - fifo), fifo);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_result result;
        struct stat status;

        if (cases[i].type != 0 && stat(cases[i].path, &status) != 0) {
            continue; /* a machine without /dev/full */
        }
        result = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "4",
                                           "--kv-history", cases[i].path));
        assert_string_equal(result.out, "");
        assert_says(result.err, cases[i].says);
        assert_says(result.err, cases[i].path);
        if (cases[i].type != 0) {
            assert_int_equal(stat(cases[i].path, &status), 0);
            assert_int_equal(status.st_mode & S_IFMT, cases[i].type);
        } else {
            assert_int_not_equal(stat(cases[i].path, &status), 0);
        }
        program_free(&result);
    }
}

static void full_disk_is_told(void **state)
{
    const char *path = program_file("full.jsonl", "before\n", 7);
    char work[4096];
    char kept[16] = "";
    program_result result;
    FILE *file;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        print_message("/dev/full is missing\n");
        skip();
    }
    (void)snprintf(work, sizeof(work), "%s.partial", path);
    assert_int_equal(symlink("/dev/full", work), 0);
    result = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "4",
                                       "--ignore-eos", "--kv-history", path));
    assert_says(result.err, "No space left");
    assert_says(result.err, path);
    expect_no_work_file(path);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(kept, sizeof(kept), file));
    assert_string_equal(kept, "before\n");
    assert_int_equal(fclose(file), 0);
    program_free(&result);
}

static void help_tells_of_it(void **state)
{
    static const char *const commands[] = { "run", "chat", "perplexity" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        program_result result = program_expect(0, PROGRAM(commands[i], "--help"));

        assert_says(result.out, "--kv-history FILE");
        assert_says(result.out, "4096");
        program_free(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_writes_it),          cmocka_unit_test(chat_writes_it),
        cmocka_unit_test(perplexity_writes_it),   cmocka_unit_test(written_after_failure),
        cmocka_unit_test(only_files_are_written), cmocka_unit_test(full_disk_is_told),
        cmocka_unit_test(help_tells_of_it),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
