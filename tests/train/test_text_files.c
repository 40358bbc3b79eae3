/* test_text_files.c - files of a folder mixed in proportion to their lengths: shares of files after
 * any number of documents, files of one document, more files than a process may open, held-out
 * documents of every file, places, and data that changed.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/text_docs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOC_BYTES 400u
#define FILES_MAX 600u

static char dir[] = "/tmp/quire-files-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static FILE *create(const char *name)
{
    FILE *f = fopen(path_of(name), "wb");

    assert_non_null(f);
    return f;
}

/* A file whose lines say its letter and their numbers, with a separator after each n_each of them;
 * 0: none. */
static void write_lines(const char *name, char letter, uint32_t n_lines, uint32_t n_each)
{
    FILE *f = create(name);

    for (uint32_t i = 0; i < n_lines; i++) {
        (void)fprintf(f, "%c %06u\n", letter, i);
        if (n_each > 0 && (i + 1) % n_each == 0) {
            (void)fprintf(f, "%s\n", QUIRE_DOC_SEPARATOR);
        }
    }
    assert_int_equal(fclose(f), 0);
}

/* A folder of its own for each test. */
static int make_folder(void **state)
{
    (void)state;
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char command[300];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r '%s'", dir);
    return system(command);
}

static quire_text_files *open_files(void)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_text_files *files = NULL;

    if (quire_text_files_open(&files, dir, DOC_BYTES, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return files;
}

/* The share of all text, and that of each letter's, that documents so far had. */
typedef struct read_shares {
    double read[256], all[256];
    double n, n_all;
} read_shares;

static void note(read_shares *s, const quire_bytes *text)
{
    if (text->n > 0) {
        s->read[(unsigned char)text->data[0]] += (double)text->n;
        s->n += (double)text->n;
    }
}

static void write_mixed(read_shares *s)
{
    *s = (read_shares){ .all = { ['a'] = 9.0 * 8000, ['b'] = 9.0 * 3000, ['c'] = 9.0 * 60 } };
    s->n_all = s->all['a'] + s->all['b'] + s->all['c'];
    write_lines("a.txt", 'a', 8000, 0);
    write_lines("b.txt", 'b', 3000, 3);
    write_lines("c.txt", 'c', 60, 5);
    assert_int_equal(fclose(create("empty.txt")), 0);
}

/* A long file, one of short documents, a short file: after any document the share of each that was
 * read is that of all text, but for a stretch of the file. */
static void test_proportions(void **state)
{
    quire_text_files *files;
    quire_bytes text = { 0 };
    uint32_t n_docs = 0, n_next[256] = { 0 };
    read_shares s;
    int rc;

    (void)state;
    write_mixed(&s);
    files = open_files();
    assert_int_equal(quire_text_files_count(files), 4);
    while ((rc = quire_text_files_next(files, &text, NULL)) == QUIRE_OK) {
        note(&s, &text);
        if (text.n > 0) { /* documents of a file come in its order */
            uint32_t *next = &n_next[(unsigned char)text.data[0]];

            assert_int_equal(strtoul(text.data + 2, NULL, 10), *next);
            *next += (uint32_t)(text.n / 9);
            n_docs++;
        }
        for (const char *letter = "abc"; *letter != '\0'; letter++) {
            double share = s.read[(unsigned char)*letter] / s.all[(unsigned char)*letter];
            double slack = 1.5 * DOC_BYTES / s.all[(unsigned char)*letter];

            assert_true(fabs(share - s.n / s.n_all) < (slack < 1 ? slack + 0.02 : 1));
        }
    }
    assert_int_equal(rc, QUIRE_NOTFOUND);
    assert_true(s.n == s.n_all);
    assert_in_range(n_docs, 1000 + 12 + 8000 * 9 / (DOC_BYTES + 9),
                    1000 + 12 + 8000 * 9 / DOC_BYTES);
    quire_text_files_close(files);
    quire_bytes_fini(&text);
}

/* Files of one document each: those of a first and of a last folder are mixed as well. More files
 * than the process may have open. */
static void test_many_files(void **state)
{
    struct rlimit before, few;
    quire_bytes text = { 0 };
    quire_text_files *files;
    uint32_t n_first = 0;
    char name[64];

    (void)state;
    assert_int_equal(mkdir(path_of("first"), 0700), 0);
    assert_int_equal(mkdir(path_of("last"), 0700), 0);
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        bool is_last = i >= FILES_MAX / 3;

        (void)snprintf(name, sizeof(name), "%s/%03u.txt", is_last ? "last" : "first", i);
        write_lines(name, is_last ? 'l' : 'f', 4, 0);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ .rlim_cur = 24, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    files = open_files();
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        assert_int_equal(quire_text_files_next(files, &text, NULL), QUIRE_OK);
        n_first += text.data[0] == 'f';
        /* A third, within five deviations. */
        assert_true(fabs(n_first - (i + 1) / 3.0) < 5 * sqrt((i + 1) * 2 / 9.0));
    }
    assert_int_equal(quire_text_files_next(files, &text, NULL), QUIRE_NOTFOUND);
    assert_int_equal(n_first, FILES_MAX / 3);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    quire_text_files_close(files);
    quire_bytes_fini(&text);
}

/* From the place after each document, a reader that was anywhere goes on with the same ones. */
static void test_places(void **state)
{
    quire_text_files *files, *other;
    quire_bytes text = { 0 }, again = { 0 };
    uint32_t n = 0;
    read_shares s;
    int rc;

    (void)state;
    write_mixed(&s);
    files = open_files();
    other = open_files();
    do {
        uint64_t file, offset;

        quire_text_files_tell(files, &file, &offset);
        if (n++ % 29 == 0 || file == 2) {
            assert_int_equal(quire_text_files_seek(other, file, offset, NULL), QUIRE_OK);
        }
        rc = quire_text_files_next(files, &text, NULL);
        assert_int_equal(quire_text_files_next(other, &again, NULL), rc);
        if (rc == QUIRE_OK) {
            assert_int_equal(again.n, text.n);
            assert_memory_equal(again.data, text.data, text.n);
        }
    } while (rc == QUIRE_OK);
    quire_text_files_close(files);
    quire_text_files_close(other);
    quire_bytes_fini(&text);
    quire_bytes_fini(&again);
}

/* A tenth of the documents is held out. The first hundred of these are of all files, as the first
 * hundred for training are, and in both a packer goes on from a place. */
static void check_side(bool is_held)
{
    const quire_text_docs_options o = {
        .path = dir, .doc_bytes_max = DOC_BYTES, .held_share = 0.1, .is_held = is_held
    };
    quire_text_docs *docs[2] = { NULL };
    quire_packer packers[2];
    uint64_t place[QUIRE_PACK_PLACE];
    int32_t tokens[2][64], targets[64], first[64];
    uint32_t n_of[256] = { 0 };

    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(quire_text_docs_open(&docs[i], &o, NULL), QUIRE_OK);
        quire_packer_init(&packers[i], quire_text_docs_reader(docs[i]));
    }
    for (uint32_t i = 0; i < 400; i++) {
        quire_packed rows[2] = { { 1, 64, tokens[0], targets, first, 0 },
                                 { 1, 64, tokens[1], targets, first, 0 } };

        if (i % 37 == 0) {
            quire_packer_tell(&packers[0], place);
            assert_int_equal(quire_packer_seek(&packers[1], place, NULL), QUIRE_OK);
        }
        assert_int_equal(quire_packer_fill(&packers[0], &rows[0], NULL), QUIRE_OK);
        assert_int_equal(quire_packer_fill(&packers[1], &rows[1], NULL), QUIRE_OK);
        assert_memory_equal(tokens[0], tokens[1], sizeof(tokens[0]));
        for (uint32_t j = 0; j < 64; j++) {
            n_of[(tokens[0][j] - QUIRE_BYTE_FIRST) & 255]++;
        }
    }
    assert_in_range(n_of['a'], 1000, 2600);
    assert_in_range(n_of['b'], 300, 1300);
    assert_in_range(n_of['d'], 300, 1300);
    quire_text_docs_close(docs[0]);
    quire_text_docs_close(docs[1]);
}

static void test_held(void **state)
{
    (void)state;
    write_lines("a.txt", 'a', 40000, 5);
    write_lines("b.txt", 'b', 16000, 5);
    write_lines("d.txt", 'd', 16000, 5);
    check_side(false);
    check_side(true);
}

/* Places in files that are shorter, gone, or others; with a place of a reader the message says that
 * the data has changed, and the reader still works. */
static void test_changed(void **state)
{
    const quire_text_docs_options o = { .path = dir, .doc_bytes_max = DOC_BYTES };
    static const uint64_t beginning[QUIRE_DOC_PLACE];
    uint64_t places[2][QUIRE_DOC_PLACE]; /* before the first document, and behind it */
    quire_error err = QUIRE_ERROR_INIT;
    const quire_doc_reader *reader;
    quire_text_files *files;
    quire_text_docs *docs = NULL;
    quire_bytes text = { 0 };
    quire_doc doc;
    read_shares s;

    (void)state;
    write_mixed(&s);
    files = open_files();
    assert_int_equal(quire_text_files_seek(files, 4, 0, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "the data has changed: byte 0 of file 5"));
    assert_int_equal(quire_text_files_seek(files, 2, 1000000, &err), QUIRE_INVAL);
    assert_int_equal(quire_text_files_seek(files, 0, 1, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "no document ends at byte 1 of"));
    quire_text_files_rewind(files);
    assert_int_equal(quire_text_files_next(files, &text, NULL), QUIRE_OK);
    assert_int_equal(unlink(path_of("a.txt")), 0);
    assert_int_equal(quire_text_files_seek(files, 0, 9, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "cannot read"));
    quire_text_files_close(files);
    quire_bytes_fini(&text);

    assert_int_equal(quire_text_docs_open(&docs, &o, NULL), QUIRE_OK);
    reader = quire_text_docs_reader(docs);
    reader->tell(reader->ctx, places[0]);
    assert_int_equal(reader->next(reader->ctx, &doc, NULL), QUIRE_OK);
    reader->tell(reader->ctx, places[1]);
    quire_text_docs_close(docs);
    write_lines("c.txt", 'c', 61, 5);
    assert_int_equal(quire_text_docs_open(&docs, &o, NULL), QUIRE_OK);
    reader = quire_text_docs_reader(docs);
    for (size_t i = 0; i < 2; i++) {
        err = (quire_error)QUIRE_ERROR_INIT;
        assert_int_equal(reader->seek(reader->ctx, places[i], &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, "the data has changed: files have come, gone"));
    }
    assert_int_equal(reader->seek(reader->ctx, beginning, NULL), QUIRE_OK);
    quire_text_docs_close(docs);
}

/* A file that loses bytes after open() ends there; bytes that it gains are not read. */
static void test_other_lengths(void **state)
{
    quire_bytes text = { 0 };
    quire_text_files *files;
    size_t n = 0;

    (void)state;
    write_lines("a.txt", 'a', 100, 1);
    write_lines("b.txt", 'b', 100, 1);
    files = open_files();
    assert_int_equal(truncate(path_of("a.txt"), 0), 0);
    write_lines("b.txt", 'b', 200, 1);
    while (quire_text_files_next(files, &text, NULL) == QUIRE_OK) {
        n += text.n;
    }
    assert_int_equal(n, 900);
    quire_text_files_close(files);
    quire_bytes_fini(&text);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_proportions), IN_FOLDER(test_many_files), IN_FOLDER(test_places),
        IN_FOLDER(test_held),        IN_FOLDER(test_changed),    IN_FOLDER(test_other_lengths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
