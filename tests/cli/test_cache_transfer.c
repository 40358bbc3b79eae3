/* test_cache_transfer.c - quire cache end to end: warm, export, import and gc.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "stored_dirs.h"

#include "base/hash128.h"
#include "store/page_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- warm ---- */

static void warm_stores_texts(void **state)
{
    const char *dir = stored_dir_new("warm-cache");
    const char *files[2] = { program_file("river.txt", stored_river, strlen(stored_river)),
                             program_file("letter.txt", stored_letter, strlen(stored_letter)) };
    json_t *document;
    const json_t *text;
    program_result result;
    json_int_t n[2];

    (void)state;
    document = program_json(PROGRAM("cache", "warm", dir, "-m", program_model(), "-t", "1", "--kv",
                                    "q8", "--json", files[0], files[1]));
    for (size_t i = 0; i < 2; i++) {
        text = json_array_get(json_object_get(document, "texts"), i);
        assert_string_equal(stored_string(text, "file"), files[i]);
        assert_int_equal(stored_number(text, "stored_tokens"), 0);
        n[i] = stored_number(text, "tokens");
        assert_true(n[i] > 64);
    }
    json_decref(document);
    document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    assert_int_equal(json_array_size(json_object_get(document, "texts")), 2);
    json_decref(document);
    assert_int_equal(stored_found(dir, stored_river, "q8"),
                     n[0] - 1); /* the last token is always computed */
    assert_int_equal(stored_found(dir, stored_letter, "q8"), n[1] - 1);

    /* The command reads the other files when one is missing. */
    result = program_expect(1, PROGRAM("cache", "warm", dir, "-m", program_model(), "-t", "1",
                                       "--kv", "q8", "/nowhere/text", files[0]));
    assert_says(result.err, "/nowhere/text");
    assert_says(result.err, "tokens, ");
    program_free(&result);
    stored_dir_remove(dir);
}

/* ---- export, import ---- */

static void a_text_travels(void **state)
{
    const char *from = stored_dir_new("export-cache");
    const char *to = stored_dir_new("import-cache");
    const char *file = program_path("text.qkvx");
    const json_int_t n = stored_put(from, stored_river, "q8");
    json_t *document;

    (void)state;
    (void)stored_put(from, stored_letter, "q8");
    document = program_json(PROGRAM("cache", "export", from, "-m", program_model(), "-t", "1",
                                    "--kv", "q8", "-p", stored_river, "-o", file, "--json"));
    assert_int_equal(stored_number(document, "tokens"), n);
    assert_int_equal(stored_number(document, "exported_tokens"), n);
    assert_int_equal(stored_number(document, "records"), (n + 63) / 64);
    json_decref(document);

    for (json_int_t again = 0; again < 2; again++) {
        document = program_json(PROGRAM("cache", "import", to, file, "--json"));
        assert_int_equal(stored_number(document, "records"), (n + 63) / 64);
        assert_int_equal(stored_number(document, again ? "known" : "new"), (n + 63) / 64);
        assert_int_equal(stored_number(document, again ? "new" : "known"), 0);
        json_decref(document);
    }
    document = program_json(PROGRAM("cache", "verify", to, "--json"));
    assert_int_equal(stored_number(document, "fine"), (n + 63) / 64);
    json_decref(document);
    assert_int_equal(stored_found(to, stored_river, "q8"), n - 1);
    assert_int_equal(stored_found(to, stored_letter, "q8"), 0); /* only the one text was carried */
    stored_file_remove(file);
    stored_dir_remove(from);
    stored_dir_remove(to);
}

/* A longer text than the stored one: its stored beginning is exported. */
static void export_takes_the_beginning(void **state)
{
    const char *dir = stored_dir_new("begin-cache");
    const char *file = program_path("begin.qkvx");
    const json_int_t n =
        stored_put(dir, stored_river, "q4") / 64 * 64; /* sealed: full pages only */
    char longer[512];
    json_t *document;
    program_result result;

    (void)state;
    (void)snprintf(longer, sizeof longer, "%s, and %s", stored_river, stored_letter);
    document = program_json(
        PROGRAM("cache", "export", dir, "-m", program_model(), "-t", "1", "--kv", "q4", "-f",
                program_file("longer.txt", longer, strlen(longer)), "-o", file, "--json"));
    assert_int_equal(stored_number(document, "exported_tokens"), n);
    assert_true(stored_number(document, "tokens") > n);
    json_decref(document);
    stored_file_remove(file);

    result = program_expect(1, PROGRAM("cache", "export", dir, "-m", program_model(), "-t", "1",
                                       "--kv", "q8", "-p", stored_river, "-o", file));
    assert_says(result.err, "has nothing of this text");
    program_free(&result);
    stored_dir_each(dir, stored_segment_damage);
    result = program_expect(1, PROGRAM("cache", "export", dir, "-m", program_model(), "-t", "1",
                                       "--kv", "q4", "-p", stored_river, "-o", file));
    assert_says(result.err, "the record of tokens 0 to 63 cannot be read: checksum");
    program_free(&result);
    assert_int_not_equal(access(file, F_OK), 0); /* no half file */
    stored_dir_remove(dir);
}

/* Every kind of damage is refused by name, and the directory is not even made. */
static void damaged_files_are_refused(void **state)
{
    const char *from = stored_dir_new("whole-cache");
    const char *to = stored_dir_new("refusing-cache");
    const char *file = program_path("damaged.qkvx");
    const json_int_t n = (stored_put(from, stored_river, "f16") + 63) / 64;
    const struct {
        int64_t flipped; /* offset; -1 = none */
        int64_t cut;     /* bytes taken off the end; negative: added */
        const char *says;
    } cases[] = {
        { 0, 0, "not a file of quire cache export" },
        { 4, 0, "this program reads 1" },
        { 8, 0, "the head is damaged" },
        { STORED_BLOCK, 0, "record 1 at offset 4096 is damaged: format" },
        { STORED_BLOCK + 3000, 0, "record 1 at offset 4096 is damaged: checksum" },
        { -1, STORED_BLOCK, "is damaged: the file ends" },
        { -1, 100, "is damaged: the file ends" },
        { -1, -1, "its length is not the one that its head says" },
    };
    json_t *document = program_json(PROGRAM("cache", "export", from, "-m", program_model(), "-t",
                                            "1", "-p", stored_river, "-o", file, "--json"));
    const json_int_t n_bytes = stored_number(document, "bytes");

    (void)state;
    assert_int_equal(stored_number(document, "records"), n);
    json_decref(document);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *copy = program_path("copy.qkvx");
        program_result result;
        char command[1024];

        (void)snprintf(command, sizeof command, "cp %s %s", file, copy);
        assert_int_equal(system(command), 0);
        if (cases[i].flipped >= 0) {
            stored_flip(copy, cases[i].flipped);
        }
        assert_int_equal(truncate(copy, n_bytes - cases[i].cut), 0);
        result = program_expect(1, PROGRAM("cache", "import", to, copy));
        assert_says(result.err, copy);
        assert_says(result.err, cases[i].says);
        program_free(&result);
        assert_int_not_equal(access(to, F_OK), 0);
        stored_file_remove(copy);
    }
    stored_file_remove(file);
    stored_dir_remove(from);
}

/* Store a text of more pages than are written at once, and export it. Returns its records. */
static json_int_t export_long(const char *dir, const char *file)
{
    const char *prompt = program_text("long.txt", 1600);
    json_t *document = program_json(PROGRAM("cache", "warm", dir, "-m", program_model_deep(), "-t",
                                            "1", "--kv", "q8", "--json", prompt));
    json_int_t n;

    json_decref(document);
    document = program_json(PROGRAM("cache", "export", dir, "-m", program_model_deep(), "-t", "1",
                                    "--kv", "q8", "-f", prompt, "-o", file, "--json"));
    n = stored_number(document, "records");
    assert_true(n > 16);
    json_decref(document);
    return n;
}

static void assert_records(const char *dir, json_int_t n)
{
    json_t *document = program_json(PROGRAM("cache", "verify", dir, "--json"));

    assert_int_equal(stored_number(document, "fine"), n);
    json_decref(document);
}

static void many_records_are_imported(void **state)
{
    const char *from = stored_dir_new("long-cache");
    const char *to = stored_dir_new("filled-cache");
    const char *file = program_path("long.qkvx");
    const json_int_t n = export_long(from, file);
    program_result result = program_expect(0, PROGRAM("cache", "import", to, file));
    char text[80];

    (void)state;
    (void)snprintf(text, sizeof text, "long.qkvx: %lld records, ", (long long)n);
    assert_says(result.err, text);
    (void)snprintf(text, sizeof text, "; %lld are new, 0 were there\n", (long long)n);
    assert_says(result.err, text);
    program_free(&result);
    assert_records(to, n);
    stored_file_remove(file);
    stored_dir_remove(from);
    stored_dir_remove(to);
}

/* Write a file of quire cache export with one record, whose part has n_bytes. */
static void export_one(const char *file, size_t n_bytes)
{
    static const int32_t token = 7;
    const quire_prefix_key prefix = { .identity = { 1, 2 } };
    const size_t capacity = quire_page_record_bytes(1, 0, 1, &n_bytes);
    unsigned char head[QUIRE_PAGE_RECORD_ALIGN] = "QKVX";
    unsigned char *record = aligned_alloc(QUIRE_PAGE_RECORD_ALIGN, capacity);
    unsigned char *parts[QUIRE_GROUPS_MAX];
    quire_page_text text = { .n_tokens = 1, .tokens = &token };
    FILE *stream = fopen(file, "wb");

    assert_non_null(record);
    assert_non_null(stream);
    quire_prefix_key_root(&prefix, &text.root);
    text.parent = text.root;
    quire_prefix_key_add(&text.parent, &token, 1, &text.key);
    assert_int_equal(quire_page_record_begin(record, capacity, &text, 1, &n_bytes, parts),
                     QUIRE_OK);
    memset(parts[0], 1, n_bytes);
    quire_page_record_seal(record, 1);
    (void)quire_le_put(head + 4, 1, 4); /* version, number of records, their bytes */
    (void)quire_le_put(head + 8, 1, 4);
    (void)quire_le_put(head + 16, capacity, 8);
    quire_hash128(head, 24, head + 24);
    assert_int_equal(fwrite(head, sizeof head, 1, stream), 1);
    assert_int_equal(fwrite(record, capacity, 1, stream), 1);
    assert_int_equal(fclose(stream), 0);
    free(record);
}

/* A server makes its segments as large as the records of its model need; so does an import. */
static void a_large_record_is_imported(void **state)
{
    const char *to = stored_dir_new("large-cache");
    const char *file = program_path("large.qkvx");
    program_result result;

    (void)state;
    export_one(file, (size_t)46 << 20);
    result = program_expect(0, PROGRAM("cache", "import", to, file));
    assert_says(result.err, "; 1 are new, 0 were there\n");
    program_free(&result);
    assert_records(to, 1);
    stored_file_remove(file);
    stored_dir_remove(to);
}

/* ulimit -f: a record that cannot be stored ends the import, with the cause. */
static void a_failed_import_tells_why(void **state)
{
    const char *from = stored_dir_new("source-cache");
    const char *to = stored_dir_new("limited-cache");
    const char *file = program_path("unstored.qkvx");
    struct rlimit before, limit;
    program_result result;

    (void)state;
    (void)export_long(from, file);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 16384;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    result = program_run(PROGRAM("cache", "import", to, file));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, " records could not be stored: ");
    assert_says(result.err, "File too large");
    assert_null(strstr(result.err, " are new"));
    program_free(&result);
    stored_file_remove(file);
    stored_dir_remove(from);
    stored_dir_remove(to);
}

/* ---- gc ---- */

static void remove_first_segment(const char *path)
{
    if (strstr(path, "segment-0000000000000001") != NULL) {
        stored_file_remove(path);
    }
}

static void gc_drops_orphans(void **state)
{
    const char *dir = stored_dir_new("gc-cache");
    char longer[512];
    json_t *document;
    json_int_t n_orphans;

    (void)state;
    (void)stored_put(dir, stored_river, "q4");
    (void)snprintf(longer, sizeof longer, "%s, and %s", stored_river, stored_letter);
    (void)stored_put(dir, longer, "q4");        /* its later pages: segment 2 */
    (void)stored_put(dir, stored_letter, "q4"); /* the commands below leave this text alone */
    stored_dir_each(dir, remove_first_segment);

    document = program_json(PROGRAM("cache", "stats", dir, "--json"));
    n_orphans = stored_number(document, "orphans");
    assert_true(n_orphans > 0);
    assert_int_equal(stored_number(document, "texts"), 1);
    json_decref(document);
    document = program_json(PROGRAM("cache", "gc", dir, "--json"));
    assert_int_equal(stored_number(document, "dropped"), n_orphans);
    assert_int_equal(stored_number(document, "left"), 0);
    json_decref(document);
    document = program_json(PROGRAM("cache", "stats", dir, "--json")); /* after a new start */
    assert_int_equal(stored_number(document, "orphans"), 0);
    assert_int_equal(stored_number(document, "texts"), 1);
    json_decref(document);
    document = program_json(PROGRAM("cache", "gc", dir, "--json"));
    assert_int_equal(stored_number(document, "dropped"), 0);
    json_decref(document);
    assert_true(stored_found(dir, stored_letter, "q4") >= 64);
    stored_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_stores_texts),          cmocka_unit_test(a_text_travels),
        cmocka_unit_test(export_takes_the_beginning), cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(many_records_are_imported),  cmocka_unit_test(a_failed_import_tells_why),
        cmocka_unit_test(gc_drops_orphans),           cmocka_unit_test(a_large_record_is_imported),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
