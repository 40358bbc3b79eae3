/* test_cache_command.c - quire cache end to end: its lists, checks and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "served.h"
#include "stored_dirs.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INTERRUPTED 130

/* ---- ls, stats ---- */

#define LONG_S (3 * 3600)

/* The file was written long ago. */
static void make_old(const char *path)
{
    const struct timespec times[] = { { .tv_nsec = UTIME_OMIT },
                                      { .tv_sec = time(NULL) - LONG_S } };

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void ls_lists_the_texts(void **state)
{
    const char *dir = stored_dir_new("ls-cache");
    const json_int_t n_river = stored_put(dir, stored_river, "f16");
    const json_int_t n_letter = stored_put(dir, stored_letter, "q8");
    const time_t from = time(NULL);
    json_t *document;
    const json_t *text;
    program_result result;

    (void)state;
    stored_dir_each(dir, make_old);
    document = program_json(PROGRAM("cache", "ls", dir, "-m", program_model(), "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 2);
    assert_int_equal(stored_number(document, "orphans"), 0);
    text = json_array_get(json_object_get(document, "texts"), 0); /* the newest */
    assert_int_equal(stored_number(text, "tokens"), n_letter);
    assert_memory_equal(strstr(stored_string(text, "first_words"), "dear"), "dear friend, today",
                        18);
    text = json_array_get(json_object_get(document, "texts"), 1);
    assert_int_equal(stored_number(text, "tokens"), n_river);
    assert_memory_equal(strstr(stored_string(text, "first_words"), "the"), "the river ran", 13);
    assert_string_equal(stored_string(text, "tenant"), "");
    assert_string_equal(stored_string(text, "first_record"), "ok");
    assert_in_range(stored_number(text, "age_s"), LONG_S, LONG_S + (time(NULL) - from));
    assert_true(stored_number(text, "bytes") >= (n_river + 63) / 64 * STORED_BLOCK);
    assert_int_equal(json_array_size(json_object_get(text, "first_tokens")), 24);
    json_decref(document);

    result = program_expect(0, PROGRAM("cache", "ls", dir));
    assert_says(result.out, "first tokens");
    assert_says(result.out, " 3 h ");
    assert_says(result.err, "2 texts in ");
    program_free(&result);
    result = program_expect(0, PROGRAM("cache", "ls", dir, "-m", program_model()));
    assert_says(result.out, "the river ran");
    assert_says(result.out, "dear friend");
    program_free(&result);
    stored_dir_remove(dir);
}

/* A text that goes on from a stored one is one text; uses count. */
static void ls_follows_a_text(void **state)
{
    const char *dir = stored_dir_new("chain-cache");
    char longer[512];
    json_t *document;
    const json_t *text;
    json_int_t n;

    (void)state;
    (void)stored_put(dir, stored_river, "q4"); /* sealed: full pages only */
    (void)snprintf(longer, sizeof longer, "%s, and %s", stored_river, stored_letter);
    n = stored_put(dir, longer, "q4");
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 1);
    text = json_array_get(json_object_get(document, "texts"), 0);
    assert_int_equal(stored_number(text, "tokens"), n / 64 * 64);
    assert_int_equal(stored_number(document, "records"), n / 64);
    json_decref(document);
    stored_dir_remove(dir);
}

static void stats_sums_up(void **state)
{
    const char *dir = stored_dir_new("stats-cache");
    const json_int_t n = stored_put(dir, stored_river, "f16");
    json_t *document;
    program_result result;

    (void)state;
    (void)stored_put(dir, stored_river, "q8");
    document = program_json(PROGRAM("cache", "stats", dir, "--json"));
    assert_int_equal(stored_number(document, "texts"), 2);
    assert_int_equal(stored_number(document, "roots"), 2);
    assert_int_equal(stored_number(document, "records"), 2 * ((n + 63) / 64));
    assert_int_equal(stored_number(document, "orphans"), 0);
    assert_int_equal(stored_number(document, "orphan_bytes"), 0);
    assert_int_equal(stored_number(document, "segments"), 2); /* one per process that wrote */
    assert_true(stored_number(document, "record_bytes") >=
                stored_number(document, "records") * STORED_BLOCK);
    assert_true(stored_number(document, "segment_bytes") > stored_number(document, "record_bytes"));
    assert_true(stored_number(document, "free_bytes") > 0);
    json_decref(document);
    result = program_expect(0, PROGRAM("cache", "stats", dir));
    assert_says(result.out, "texts      2, of 2 combinations");
    program_free(&result);
    stored_dir_remove(dir);
}

/* A damaged first record is said, not hidden; the record stays in its place. */
static void ls_says_what_it_cannot_read(void **state)
{
    const char *dir = stored_dir_new("damaged-cache");
    json_t *document;
    program_result result;

    (void)state;
    (void)stored_put(dir, stored_river, "f16");
    stored_dir_each(dir, stored_segment_damage);
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_string_equal(
        stored_string(json_array_get(json_object_get(document, "texts"), 0), "first_record"),
        "checksum");
    json_decref(document);
    result = program_expect(0, PROGRAM("cache", "ls", dir));
    assert_says(result.out, "cannot be read: checksum");
    program_free(&result);
    stored_dir_remove(dir);
}

/* ---- verify ---- */

static void verify_finds_damage(void **state)
{
    const char *dir = stored_dir_new("verify-cache");
    const json_int_t n = (stored_put(dir, stored_river, "f16") + 63) / 64;
    program_result result;
    json_t *document;
    const json_t *broken;
    char text[1100];

    (void)state;
    document = program_json(PROGRAM("cache", "verify", dir, "--json"));
    assert_int_equal(stored_number(document, "records"), n);
    assert_int_equal(stored_number(document, "fine"), n);
    assert_int_equal(json_array_size(json_object_get(document, "broken")), 0);
    json_decref(document);

    stored_dir_each(dir, stored_segment_damage);
    result = program_expect(1, PROGRAM("cache", "verify", dir));
    (void)snprintf(text, sizeof text, "%s: offset %lld: checksum (key ", stored_damaged_path(),
                   (long long)STORED_BLOCK);
    assert_says(result.out, text);
    (void)snprintf(text, sizeof text, "%lld of %lld records are fine, 1 broken", (long long)n - 1,
                   (long long)n);
    assert_says(result.out, text);
    program_free(&result);

    result = program_expect(1, PROGRAM("cache", "verify", dir, "--json"));
    document = json_loads(result.out, 0, NULL);
    broken = json_array_get(json_object_get(document, "broken"), 0);
    assert_int_equal(stored_number(document, "fine"), n - 1);
    assert_string_equal(stored_string(broken, "file"), stored_damaged_path());
    assert_int_equal(stored_number(broken, "offset"), STORED_BLOCK);
    assert_string_equal(stored_string(broken, "reason"), "checksum");
    assert_int_equal(strlen(stored_string(broken, "key")), 32);
    json_decref(document);
    program_free(&result);
    stored_dir_remove(dir);
}

/* Ctrl-C at a record: exit status 130, and the figures of the records so far. */
static void verify_interrupted_tells_the_records_so_far(void **state)
{
    const char *dir = stored_dir_new("interrupted-cache");
    const json_int_t n = (stored_put(dir, stored_river, "f16") + 63) / 64 +
                         (stored_put(dir, stored_letter, "f16") + 63) / 64;
    program_result result;
    json_t *document;
    char text[100];

    (void)state;
    assert_true(n > 3);
    assert_int_equal(setenv("MOCK_INTERRUPT_AT", "2", 1), 0);
    result = program_expect(INTERRUPTED, PROGRAM("cache", "verify", dir, "--json"));
    document = json_loads(result.out, 0, NULL);
    assert_int_equal(stored_number(document, "records"), n);
    assert_int_equal(stored_number(document, "fine"), 2);
    assert_int_equal(json_array_size(json_object_get(document, "broken")), 0);
    json_decref(document);
    program_free(&result);
    result = program_expect(INTERRUPTED, PROGRAM("cache", "verify", dir));
    (void)snprintf(text, sizeof text, "2 of %lld records are fine, 0 broken", (long long)n);
    assert_says(result.out, text);
    program_free(&result);
    assert_int_equal(unsetenv("MOCK_INTERRUPT_AT"), 0);
    stored_dir_remove(dir);
}

/* Ctrl-C while the file is verified: not even the directory is made. Later: exit status 130, and
 * the records so far. */
static void import_interrupted_tells_the_records_so_far(void **state)
{
    const char *from = stored_dir_new("begun-cache");
    const char *to = stored_dir_new("unmade-cache");
    const char *file = program_path("begun.qkvx");
    const json_int_t n = (stored_put(from, stored_river, "f16") + 63) / 64;
    program_result result;
    char text[100];

    (void)state;
    result = program_expect(0, PROGRAM("cache", "export", from, "-m", program_model(), "-t", "1",
                                       "-p", stored_river, "-o", file));
    program_free(&result);
    assert_true(n > 1);
    assert_int_equal(setenv("MOCK_INTERRUPT_AT", "1", 1), 0);
    result = program_expect(INTERRUPTED, PROGRAM("cache", "import", to, file));
    assert_says(result.err, "nothing is imported: interrupted");
    program_free(&result);
    assert_int_not_equal(access(to, F_OK), 0);

    (void)snprintf(text, sizeof text, "%lld", (long long)n + 1);
    assert_int_equal(setenv("MOCK_INTERRUPT_AT", text, 1), 0);
    result = program_expect(INTERRUPTED, PROGRAM("cache", "import", to, file));
    (void)snprintf(text, sizeof text, ": interrupted: 1 of %lld records, ", (long long)n);
    assert_says(result.err, text);
    assert_says(result.err, "; 1 are new, 0 were there");
    program_free(&result);
    assert_int_equal(unsetenv("MOCK_INTERRUPT_AT"), 0);
    stored_file_remove(file);
    stored_dir_remove(from);
    stored_dir_remove(to);
}

/* A list without the first words of its texts is none. */
static void ls_interrupted_prints_no_part(void **state)
{
    const char *dir = stored_dir_new("interrupted-ls");
    program_result result;

    (void)state;
    (void)stored_put(dir, stored_river, "f16");
    (void)stored_put(dir, stored_letter, "f16");
    assert_int_equal(setenv("MOCK_INTERRUPT_AT", "1", 1), 0);
    result = program_expect(INTERRUPTED, PROGRAM("cache", "ls", dir, "--json"));
    assert_says(result.err, "the list is not complete");
    assert_string_equal(result.out, "");
    program_free(&result);
    assert_int_equal(unsetenv("MOCK_INTERRUPT_AT"), 0);
    stored_dir_remove(dir);
}

/* More records than are read at once. */
static void verify_reads_many(void **state)
{
    static const char *const formats[] = { "f32", "f16", "bf16", "q8" };
    const char *dir = stored_dir_new("many-cache");
    char longer[512];
    json_int_t n = 0;
    json_t *document;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        n += (stored_put(dir, stored_river, formats[i]) + 63) / 64 +
             (stored_put(dir, stored_letter, formats[i]) + 63) / 64;
    }
    (void)snprintf(longer, sizeof longer, "%s and %s", stored_letter, stored_river);
    n += (stored_put(dir, longer, "f16") + 63) / 64 - 1; /* the first page is there */
    assert_true(n > 16);
    document = program_json(PROGRAM("cache", "verify", dir, "--json"));
    assert_int_equal(stored_number(document, "records"), n);
    assert_int_equal(stored_number(document, "fine"), n);
    assert_int_equal(json_array_size(json_object_get(document, "broken")), 0);
    json_decref(document);
    stored_dir_remove(dir);
}

/* A terminal sees how far it is. */
static void verify_shows_progress(void **state)
{
    const char *dir = stored_dir_new("progress-cache");
    program_result result;

    (void)state;
    (void)stored_put(dir, stored_river, "f16");
    result = program_run_on_terminal(PROGRAM("cache", "verify", dir));
    assert_int_equal(result.exit_status, 0);
    assert_says(result.err, "records checked");
    program_free(&result);
    stored_dir_remove(dir);
}

/* ---- beside a server, and refusals ---- */

static void a_server_may_run(void **state)
{
    const char *dir = stored_dir_new("used-cache");
    program_running running;
    program_result result;
    json_t *document;
    char pid[64];

    (void)state;
    (void)stored_put(dir, stored_river, "f32");
    running = program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0",
                                    "--cache-dir", dir, "--cache-disk", "512MiB", "--log-level",
                                    "errors"));
    free(program_line_with(running.out, "ready: "));
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 1);
    json_decref(document);
    document = program_json(PROGRAM("cache", "stats", dir, "--json"));
    assert_int_equal(stored_number(document, "texts"), 1);
    json_decref(document);
    document = program_json(PROGRAM("cache", "verify", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "broken")), 0);
    json_decref(document);
    result = program_expect(
        1, PROGRAM("cache", "warm", dir, "-m", program_model(), program_file("w.txt", "a b", 3)));
    (void)snprintf(pid, sizeof pid, "is in use by process %d", (int)running.pid);
    assert_says(result.err, pid);
    program_free(&result);
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);
    stored_dir_remove(dir);
}

static json_int_t retaining_serve(const char *dir, char *text, size_t text_bytes)
{
    program_running running = program_start(
        PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0", "--cache-dir", dir,
                "--cache-disk", "512MiB", "--log-level", "errors", "--retain",
                "keydiff:0.5,recent=16", "--retain-chunk", "64", "--store-all"));
    const json_int_t n_cached = served_complete(served_port(&running), text, text_bytes);

    served_end(&running, SIGTERM);
    return n_cached;
}

/* Texts that a server condensed are there after a restart. The command lists them as condensed,
 * verifies them, and counts none of them as an orphan. */
static void condensed_texts_are_texts(void **state)
{
    const char *dir = stored_dir_new("condensed-cache");
    char first[256], again[256];
    json_t *document;
    size_t i, n_condensed = 0;
    const json_t *text;

    (void)state;
    assert_int_equal(retaining_serve(dir, first, sizeof first), 0);
    assert_true(retaining_serve(dir, again, sizeof again) > 128);
    assert_string_equal(first, again);
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(stored_number(document, "orphans"), 0);
    json_array_foreach(json_object_get(document, "texts"), i, text)
    {
        n_condensed += json_is_true(json_object_get(text, "condensed"));
    }
    assert_true(n_condensed >= 2);
    assert_true(json_array_size(json_object_get(document, "texts")) > n_condensed);
    json_decref(document);
    document = program_json(PROGRAM("cache", "verify", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "broken")), 0);
    json_decref(document);
    document = program_json(PROGRAM("cache", "gc", dir, "--json"));
    assert_int_equal(stored_number(document, "dropped"), 0);
    json_decref(document);
    stored_dir_remove(dir);
}

static char hidden[1024]; /* the first segment's path */

static void segment_find(const char *path)
{
    const char *name = strrchr(path, '/');

    if (strstr(name, "segment-") != NULL && (hidden[0] == '\0' || strcmp(path, hidden) < 0)) {
        (void)snprintf(hidden, sizeof hidden, "%s", path);
    }
}

/* Records behind those of a segment that cannot be read are no orphans: gc leaves them, and they
 * are found when it can be read again. */
static void gc_wants_all_segments(void **state)
{
    const char *dir = stored_dir_new("unread-cache");
    program_result result;
    char text[2048], aside[1040];
    json_int_t n_before;

    (void)state;
    (void)snprintf(text, sizeof text, "%s%s", stored_river, stored_letter);
    (void)stored_put(dir, stored_river, "f16");
    (void)stored_put(dir, text, "f16");
    n_before = stored_found(dir, text, "f16");
    assert_true(n_before > stored_found(dir, stored_river, "f16"));
    hidden[0] = '\0';
    stored_dir_each(dir, segment_find);
    (void)snprintf(aside, sizeof aside, "%s.aside", hidden);
    assert_int_equal(rename(hidden, aside), 0);
    assert_int_equal(symlink(hidden, hidden), 0); /* opening it fails, also for root */
    result = program_expect(1, PROGRAM("cache", "gc", dir));
    assert_says(result.err, "1 segment cannot be read");
    assert_says(result.err, "nothing is dropped");
    assert_string_equal(result.out, "");
    program_free(&result);
    assert_int_equal(rename(aside, hidden), 0);
    assert_int_equal(stored_found(dir, text, "f16"), n_before);
    stored_dir_remove(dir);
}

static void file_make(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    (void)close(fd);
}

static void bad_uses_are_named(void **state)
{
    char other[512];
    const char *file = program_file("plain.txt", "x", 1);
    const char *dir = stored_dir_new("foreign");
    const struct {
        int exit_status;
        program_args args;
        const char *says;
    } cases[] = {
        { 2, PROGRAM("cache"), "quire cache needs a command" },
        { 2, PROGRAM("cache", "lss", dir), "did you mean cache ls?" },
        { 2, PROGRAM("cache", "everything", dir), "'quire cache --help' lists them" },
        { 2, PROGRAM("cache", "ls"), "--cache-dir DIR is missing" },
        { 2, PROGRAM("cache", "ls", dir, "more"), "unexpected 'more'" },
        { 2, PROGRAM("cache", "stats", dir, "--bogus"), "'quire cache stats --help' lists them" },
        { 2, PROGRAM("cache", "warm", dir, "-m", "x"), "no text given" },
        { 2, PROGRAM("cache", "warm", dir, "y"), "-m FILE is missing" },
        { 2, PROGRAM("cache", "import", dir), "no file given" },
        { 2, PROGRAM("cache", "import", dir, "a", "b"), "one file at a time" },
        { 2, PROGRAM("cache", "export", dir, "-m", "x", "-o", "y"), "no text given" },
        { 2, PROGRAM("cache", "export", dir, "-m", "x", "-o", "y", "-p", "a", "-f", "b"),
          "use one" },
        { 2, PROGRAM("cache", "export", dir, "-m", "x", "-p", "a"), "-o FILE is missing" },
        { 1, PROGRAM("cache", "import", dir, "/nowhere/x"), "cannot open /nowhere/x" },
        { 1, PROGRAM("cache", "export", "/nowhere/x", "-m", program_model(), "-p", "a", "-o", "y"),
          "no such directory: /nowhere/x" },
        { 1, PROGRAM("cache", "gc", "/nowhere/x"), "no such directory: /nowhere/x" },
        { 1, PROGRAM("cache", "verify", "/nowhere/x"), "no such directory: /nowhere/x" },
        { 1, PROGRAM("cache", "warm", dir, "-m", program_model(), "y"),
          "is not a cache directory" },
        { 1, PROGRAM("cache", "ls", "/nowhere/x"), "no such directory: /nowhere/x" },
        { 1, PROGRAM("cache", "stats", file), "is a file, not a cache directory" },
        { 1, PROGRAM("cache", "stats", dir), "is not a cache directory" },
    };

    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    (void)snprintf(other, sizeof other, "%s/something", dir);
    file_make(other);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program_result result = program_expect(cases[i].exit_status, cases[i].args);

        assert_says(result.err, cases[i].says);
        assert_string_equal(result.out, "");
        program_free(&result);
    }
    stored_dir_remove(dir);
}

static void each_has_help(void **state)
{
    static const char *const subs[] = { "ls", "stats", "verify", "warm", "export", "import", "gc" };
    program_result all = program_expect(0, PROGRAM("cache", "--help"));

    (void)state;
    for (size_t i = 0; i < sizeof subs / sizeof subs[0]; i++) {
        program_result one = program_expect(0, PROGRAM("cache", subs[i], "--help"));
        char usage[64];

        (void)snprintf(usage, sizeof usage, "usage: quire cache %s DIR", subs[i]);
        assert_says(one.out, usage);
        assert_says(all.out, subs[i]);
        program_free(&one);
    }
    program_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ls_lists_the_texts),
        cmocka_unit_test(ls_follows_a_text),
        cmocka_unit_test(stats_sums_up),
        cmocka_unit_test(ls_says_what_it_cannot_read),
        cmocka_unit_test(verify_finds_damage),
        cmocka_unit_test(verify_shows_progress),
        cmocka_unit_test(verify_reads_many),
        cmocka_unit_test(condensed_texts_are_texts),
        cmocka_unit_test(gc_wants_all_segments),
        cmocka_unit_test(verify_interrupted_tells_the_records_so_far),
        cmocka_unit_test(import_interrupted_tells_the_records_so_far),
        cmocka_unit_test(ls_interrupted_prints_no_part),
        cmocka_unit_test(a_server_may_run),
        cmocka_unit_test(bad_uses_are_named),
        cmocka_unit_test(each_has_help),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
