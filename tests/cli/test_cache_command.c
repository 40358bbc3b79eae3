/* test_cache_command.c - quire cache end to end: what it lists, checks and refuses.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096

static const char river[] = "the river ran to the sea and the tree saw it all the long day, and a "
                            "dog and a cat ran by the old house";
static const char letter[] = "dear friend, today there is little to say about the weather, so this "
                             "letter speaks of the garden and of its stones";

/* ---- directories ---- */

static const char *new_dir(const char *name)
{
    const char *path = program_path(name);
    struct stat info;

    assert_int_not_equal(stat(path, &info), 0);
    return path;
}

/* Call each() for the path of every file. */
static void each_file(const char *dir, void (*each)(const char *path))
{
    DIR *d = opendir(dir);
    struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char path[1024];

        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') {
            each(path);
        }
    }
    (void)closedir(d);
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void remove_dir(const char *dir)
{
    each_file(dir, remove_file);
    assert_int_equal(rmdir(dir), 0);
}

/* Store a text's pages; nothing is generated. Returns its tokens. */
static json_int_t store(const char *dir, const char *text, const char *kv)
{
    json_t *document =
        program_json(PROGRAM("run", "-m", program_model(), "-t", "1", "-p", text, "-n", "0",
                             "--temp", "0", "--kv", kv, "--cache-dir", dir, "--json"));
    const json_int_t n = json_integer_value(json_object_get(document, "prompt_tokens"));

    json_decref(document);
    assert_true(n > 64);
    return n;
}

static json_int_t number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_integer(value)) {
        fail_msg("no number %s", name);
    }
    return json_integer_value(value);
}

static const char *string(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_string(value)) {
        fail_msg("no string %s", name);
    }
    return json_string_value(value);
}

/* ---- damage ---- */

static int64_t damage_offset; /* set by damage() */
static char damage_path[1024];

/* Flip a bit in the middle of a block. */
static void flip(const char *path, int64_t offset)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    (void)close(fd);
}

/* Damage the first record of a segment, behind its head. */
static void damage_segment(const char *path)
{
    if (strstr(path, "segment-") != NULL) {
        damage_offset = BLOCK;
        (void)snprintf(damage_path, sizeof damage_path, "%s", path);
        flip(path, BLOCK + 2000);
    }
}

/* ---- ls, stats ---- */

static void ls_lists_the_texts(void **state)
{
    const char *dir = new_dir("ls-cache");
    const json_int_t n_river = store(dir, river, "f16");
    const json_int_t n_letter = store(dir, letter, "q8");
    json_t *document;
    const json_t *text;
    program_result result;

    (void)state;
    document = program_json(PROGRAM("cache", "ls", dir, "-m", program_model(), "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 2);
    assert_int_equal(number(document, "orphans"), 0);
    text = json_array_get(json_object_get(document, "texts"), 0); /* the newest */
    assert_int_equal(number(text, "tokens"), n_letter);
    assert_memory_equal(strstr(string(text, "first_words"), "dear"), "dear friend, today", 18);
    text = json_array_get(json_object_get(document, "texts"), 1);
    assert_int_equal(number(text, "tokens"), n_river);
    assert_memory_equal(strstr(string(text, "first_words"), "the"), "the river ran", 13);
    assert_string_equal(string(text, "tenant"), "");
    assert_string_equal(string(text, "first_record"), "ok");
    assert_true(number(text, "age_s") >= 0);
    assert_true(number(text, "bytes") >= (n_river + 63) / 64 * BLOCK);
    assert_int_equal(json_array_size(json_object_get(text, "first_tokens")), 24);
    json_decref(document);

    result = program_expect(0, PROGRAM("cache", "ls", dir));
    assert_says(result.out, "first tokens");
    assert_says(result.err, "2 texts in ");
    program_free(&result);
    result = program_expect(0, PROGRAM("cache", "ls", dir, "-m", program_model()));
    assert_says(result.out, "the river ran");
    assert_says(result.out, "dear friend");
    program_free(&result);
    remove_dir(dir);
}

/* A text that goes on from a stored one is one text; uses count. */
static void ls_follows_a_text(void **state)
{
    const char *dir = new_dir("chain-cache");
    char longer[512];
    json_t *document;
    const json_t *text;
    json_int_t n;

    (void)state;
    (void)store(dir, river, "q4"); /* sealed: full pages only */
    (void)snprintf(longer, sizeof longer, "%s, and %s", river, letter);
    n = store(dir, longer, "q4");
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 1);
    text = json_array_get(json_object_get(document, "texts"), 0);
    assert_int_equal(number(text, "tokens"), n / 64 * 64);
    assert_int_equal(number(document, "records"), n / 64);
    json_decref(document);
    remove_dir(dir);
}

static void stats_sums_up(void **state)
{
    const char *dir = new_dir("stats-cache");
    const json_int_t n = store(dir, river, "f16");
    json_t *document;
    program_result result;

    (void)state;
    (void)store(dir, river, "q8");
    document = program_json(PROGRAM("cache", "stats", dir, "--json"));
    assert_int_equal(number(document, "texts"), 2);
    assert_int_equal(number(document, "roots"), 2);
    assert_int_equal(number(document, "records"), 2 * ((n + 63) / 64));
    assert_int_equal(number(document, "orphans"), 0);
    assert_int_equal(number(document, "orphan_bytes"), 0);
    assert_int_equal(number(document, "segments"), 2); /* one per process that wrote */
    assert_true(number(document, "record_bytes") >= number(document, "records") * BLOCK);
    assert_true(number(document, "segment_bytes") > number(document, "record_bytes"));
    assert_true(number(document, "free_bytes") > 0);
    json_decref(document);
    result = program_expect(0, PROGRAM("cache", "stats", dir));
    assert_says(result.out, "texts      2, of 2 combinations");
    program_free(&result);
    remove_dir(dir);
}

/* A damaged first record is said, not hidden; the record stays in its place. */
static void ls_says_what_it_cannot_read(void **state)
{
    const char *dir = new_dir("damaged-cache");
    json_t *document;
    program_result result;

    (void)state;
    (void)store(dir, river, "f16");
    each_file(dir, damage_segment);
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_string_equal(
        string(json_array_get(json_object_get(document, "texts"), 0), "first_record"), "checksum");
    json_decref(document);
    result = program_expect(0, PROGRAM("cache", "ls", dir));
    assert_says(result.out, "cannot be read: checksum");
    program_free(&result);
    remove_dir(dir);
}

/* ---- verify ---- */

static void verify_finds_damage(void **state)
{
    const char *dir = new_dir("verify-cache");
    const json_int_t n = (store(dir, river, "f16") + 63) / 64;
    program_result result;
    json_t *document;
    const json_t *broken;
    char text[1100];

    (void)state;
    document = program_json(PROGRAM("cache", "verify", dir, "--json"));
    assert_int_equal(number(document, "records"), n);
    assert_int_equal(number(document, "fine"), n);
    assert_int_equal(json_array_size(json_object_get(document, "broken")), 0);
    json_decref(document);

    each_file(dir, damage_segment);
    result = program_expect(1, PROGRAM("cache", "verify", dir));
    (void)snprintf(text, sizeof text, "%s: offset %lld: checksum (key ", damage_path,
                   (long long)damage_offset);
    assert_says(result.out, text);
    (void)snprintf(text, sizeof text, "%lld of %lld records are fine, 1 broken", (long long)n - 1,
                   (long long)n);
    assert_says(result.out, text);
    program_free(&result);

    result = program_expect(1, PROGRAM("cache", "verify", dir, "--json"));
    document = json_loads(result.out, 0, NULL);
    broken = json_array_get(json_object_get(document, "broken"), 0);
    assert_int_equal(number(document, "fine"), n - 1);
    assert_string_equal(string(broken, "file"), damage_path);
    assert_int_equal(number(broken, "offset"), damage_offset);
    assert_string_equal(string(broken, "reason"), "checksum");
    assert_int_equal(strlen(string(broken, "key")), 32);
    json_decref(document);
    program_free(&result);
    remove_dir(dir);
}

/* A terminal sees how far it is. */
static void verify_shows_progress(void **state)
{
    const char *dir = new_dir("progress-cache");
    program_result result;

    (void)state;
    (void)store(dir, river, "f16");
    result = program_run_on_terminal(PROGRAM("cache", "verify", dir));
    assert_int_equal(result.exit_status, 0);
    assert_says(result.err, "records checked");
    program_free(&result);
    remove_dir(dir);
}

/* ---- warm ---- */

/* What quire run finds of a text. */
static json_int_t found(const char *dir, const char *text, const char *kv)
{
    json_t *document =
        program_json(PROGRAM("run", "-m", program_model(), "-t", "1", "-p", text, "-n", "0",
                             "--temp", "0", "--kv", kv, "--cache-dir", dir, "--json"));
    const json_int_t n = number(document, "stored_tokens");

    json_decref(document);
    return n;
}

static void warm_stores_texts(void **state)
{
    const char *dir = new_dir("warm-cache");
    const char *files[2] = { program_file("river.txt", river, strlen(river)),
                             program_file("letter.txt", letter, strlen(letter)) };
    json_t *document;
    const json_t *text;
    program_result result;
    json_int_t n[2];

    (void)state;
    document = program_json(PROGRAM("cache", "warm", dir, "-m", program_model(), "-t", "1", "--kv",
                                    "q8", "--json", files[0], files[1]));
    for (size_t i = 0; i < 2; i++) {
        text = json_array_get(json_object_get(document, "texts"), i);
        assert_string_equal(string(text, "file"), files[i]);
        assert_int_equal(number(text, "stored_tokens"), 0);
        n[i] = number(text, "tokens");
        assert_true(n[i] > 64);
    }
    json_decref(document);
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 2);
    json_decref(document);
    assert_int_equal(found(dir, river, "q8"), n[0] - 1); /* the last token is always computed */
    assert_int_equal(found(dir, letter, "q8"), n[1] - 1);

    /* What is there is read; a missing file does not keep the others from it. */
    result = program_expect(1, PROGRAM("cache", "warm", dir, "-m", program_model(), "-t", "1",
                                       "--kv", "q8", "/nowhere/text", files[0]));
    assert_says(result.err, "/nowhere/text");
    assert_says(result.err, "tokens, ");
    program_free(&result);
    remove_dir(dir);
}

/* ---- beside a server, and refusals ---- */

static void a_server_may_run(void **state)
{
    const char *dir = new_dir("used-cache");
    program_running running;
    program_result result;
    json_t *document;
    char pid[64];

    (void)state;
    (void)store(dir, river, "f32");
    running = program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0",
                                    "--cache-dir", dir, "--cache-disk", "512MiB", "--log-level",
                                    "errors"));
    free(program_line_with(running.out, "ready: "));
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 1);
    json_decref(document);
    document = program_json(PROGRAM("cache", "stats", dir, "--json"));
    assert_int_equal(number(document, "texts"), 1);
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
    remove_dir(dir);
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
    const char *dir = new_dir("foreign");
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
    remove_dir(dir);
}

static void each_has_help(void **state)
{
    static const char *const subs[] = { "ls", "stats", "verify", "warm" };
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
        cmocka_unit_test(ls_lists_the_texts),  cmocka_unit_test(ls_follows_a_text),
        cmocka_unit_test(stats_sums_up),       cmocka_unit_test(ls_says_what_it_cannot_read),
        cmocka_unit_test(verify_finds_damage), cmocka_unit_test(verify_shows_progress),
        cmocka_unit_test(warm_stores_texts),   cmocka_unit_test(a_server_may_run),
        cmocka_unit_test(bad_uses_are_named),  cmocka_unit_test(each_has_help),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
