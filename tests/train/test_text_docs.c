/* test_text_docs.c - documents out of files and folders: separators, long documents, the split into
 * training and held-out parts, large files, places, generated tasks, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "train/text_docs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/quire-docs-XXXXXX";
static char path_a[64], path_b[128], folder[64];

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static const quire_text_docs_options plain = { .path = dir, .doc_bytes_max = 1000 };

static quire_text_docs *open_docs(const quire_text_docs_options *options)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_text_docs *docs = NULL;

    if (quire_text_docs_open(&docs, options, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return docs;
}

/* The text of the next document; NULL at the end. Static memory. */
static const char *next_text(quire_text_docs *docs, quire_doc *doc)
{
    const quire_doc_reader *reader = quire_text_docs_reader(docs);
    static char text[65536];
    int rc = reader->next(reader->ctx, doc, NULL);

    if (rc == QUIRE_NOTFOUND) {
        return NULL;
    }
    assert_int_equal(rc, QUIRE_OK);
    assert_true(doc->n >= 2 && doc->n < sizeof(text));
    assert_int_equal(doc->tokens[0], QUIRE_BYTE_BOS);
    assert_int_equal(doc->tokens[doc->n - 1], QUIRE_BYTE_EOS);
    for (size_t i = 1; i + 1 < doc->n; i++) {
        assert_true(doc->tokens[i] >= QUIRE_BYTE_FIRST &&
                    doc->tokens[i] < (int32_t)QUIRE_BYTE_VOCAB);
        text[i - 1] = (char)(doc->tokens[i] - QUIRE_BYTE_FIRST);
    }
    text[doc->n - 2] = '\0';
    return text;
}

#define TEXT_A "one\n<|endoftext|>\ntwo\nlines\n<|endoftext|>\r\n<|endoftext|>\n<|endoftext|>x\n"
#define TEXT_B "last \xff\n"

/* a.txt has three documents, the folder's b.txt one. */
static void write_files(void)
{
    write_file(path_a, TEXT_A, sizeof(TEXT_A) - 1);
    write_file(path_b, TEXT_B, sizeof(TEXT_B) - 1);
}

static void test_separators(void **state)
{
    static const char *const want[] = { "last \xff\n", "one\n", "two\nlines\n",
                                        "<|endoftext|>x\n" };
    quire_text_docs *docs;
    quire_doc doc;

    (void)state;
    write_files();
    docs = open_docs(&plain);
    for (uint32_t i = 0; i < 9; i++) { /* again and again */
        assert_string_equal(next_text(docs, &doc), want[i % 4]);
        assert_null(doc.counts);
        assert_false(doc.is_whole);
    }
    quire_text_docs_close(docs);
}

/* Cut at the first line end after the bytes, or in a line that is longer than a piece. */
static void test_long(void **state)
{
    quire_text_docs_options o = plain;
    char *text = malloc(10000);
    quire_text_docs *docs;
    quire_doc doc;

    (void)state;
    assert_non_null(text);
    memset(text, 'x', 10000);
    for (uint32_t i = 50; i < 1000; i += 50) {
        text[i - 1] = '\n';
    }
    write_file(path_a, text, 10000);
    write_file(path_b, "", 0);
    o.doc_bytes_max = QUIRE_DOC_BYTES_MIN;
    docs = open_docs(&o);
    assert_int_equal(strlen(next_text(docs, &doc)), 100);
    for (uint32_t i = 1; i < 9; i++) {
        assert_int_equal(strlen(next_text(docs, &doc)), 100);
    }
    assert_int_equal(strlen(next_text(docs, &doc)), 50 + 4095);
    assert_int_equal(strlen(next_text(docs, &doc)), 4095);
    assert_int_equal(strlen(next_text(docs, &doc)), 10000 - 950 - 2 * 4095);
    assert_int_equal(strlen(next_text(docs, &doc)), 100); /* from the beginning */
    quire_text_docs_close(docs);
    free(text);
}

/* 400 documents: each on one side, about a fifth held out, the same ones when all lie in one file
 * after another. */
static void test_held(void **state)
{
    quire_text_docs_options o = plain;
    bool seen[400] = { false };
    uint32_t n_held = 0;
    quire_text_docs *docs;
    const char *text;
    quire_doc doc;
    FILE *f;

    (void)state;
    write_files();
    f = fopen(path_a, "wb");
    assert_non_null(f);
    for (uint32_t i = 0; i < 400; i++) {
        (void)fprintf(f, "%u\n" QUIRE_DOC_SEPARATOR "\n", i);
    }
    assert_int_equal(fclose(f), 0);
    write_file(path_b, "", 0);
    o.held_share = 0.2;
    o.is_held = true;
    docs = open_docs(&o);
    while ((text = next_text(docs, &doc)) != NULL) {
        seen[strtoul(text, NULL, 10)] = true;
        n_held++;
    }
    quire_text_docs_close(docs);
    assert_in_range(n_held, 50, 110);
    o.is_held = false;
    docs = open_docs(&o);
    for (uint32_t i = n_held; i < 400; i++) {
        unsigned long number = strtoul(next_text(docs, &doc), NULL, 10);

        assert_false(seen[number]);
        seen[number] = true;
    }
    quire_text_docs_close(docs);
}

/* From any place, other readers go on with the same documents, tasks among them. */
static void test_places(void **state)
{
    quire_text_docs_options o = plain;
    quire_text_docs *docs, *other;
    quire_doc doc;

    (void)state;
    write_files();
    o.task_share = 0.5;
    o.tasks = (1u << QUIRE_TASK_COUNT) - 1;
    o.task_bytes = 100;
    docs = open_docs(&o);
    other = open_docs(&o);
    for (uint32_t i = 0; i < 30; i++) {
        const quire_doc_reader *reader = quire_text_docs_reader(docs);
        const quire_doc_reader *resumed = quire_text_docs_reader(other);
        uint64_t place[QUIRE_DOC_PLACE];
        char text[2048];

        reader->tell(reader->ctx, place);
        (void)snprintf(text, sizeof(text), "%s", next_text(docs, &doc));
        assert_int_equal(resumed->seek(resumed->ctx, place, NULL), QUIRE_OK);
        assert_string_equal(next_text(other, &doc), text);
    }
    quire_text_docs_close(docs);
    quire_text_docs_close(other);
}

#define STREAMED_BYTES ((off_t)TEST_ROUNDS(256, 64) << 20)
#define STREAMED_KIB   (32 << 10) /* of memory, at most */

static long peak_kib(void)
{
    struct rusage usage;

    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* A large file: documents of its beginning come without the rest of it, and those of its end
 * without memory for it. The file is a hole on the disk, in pieces of 4,095 zero bytes. */
static void test_streamed(void **state)
{
    const quire_doc_reader *reader;
    const long before = peak_kib();
    uint64_t place[QUIRE_DOC_PLACE];
    quire_text_docs *docs;
    quire_doc doc;

    (void)state;
    write_file(path_a, TEXT_A, sizeof(TEXT_A) - 1);
    write_file(path_b, "", 0);
    assert_int_equal(truncate(path_a, STREAMED_BYTES), 0);
    docs = open_docs(&plain);
    assert_string_equal(next_text(docs, &doc), "one\n");
    for (uint32_t i = 0; i < 200; i++) {
        assert_non_null(next_text(docs, &doc));
    }
    reader = quire_text_docs_reader(docs);
    reader->tell(reader->ctx, place);
    place[1] += ((uint64_t)STREAMED_BYTES - place[1]) / 4095 * 4095 - 10 * 4095;
    assert_int_equal(reader->seek(reader->ctx, place, NULL), QUIRE_OK);
    for (uint32_t n = 0; strcmp(next_text(docs, &doc), "one\n") != 0; n++) {
        assert_in_range(n, 0, 11);
        assert_in_range(doc.n, 3, 4095 + 2);
    }
    quire_text_docs_close(docs);
    assert_in_range(peak_kib() - before, 0, STREAMED_KIB);
    write_files();
}

#define LONG_TOKENS 1502 /* of the long document */

/* A document of 1,500 bytes, and one of two. */
static void write_long_document(void)
{
    char text[1500];

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\n';
    write_file(path_a, text, sizeof(text));
    write_file(path_b, "y\n", 2);
}

/* A quarter of the tokens are of tasks, at any time, whatever the lengths of documents; each kind
 * comes as often as the others. A reader with another share goes on with it from a place. */
static void test_share_of_tasks(void **state)
{
    quire_text_docs_options o = plain;
    uint32_t n_tasks = 0, n_recall = 0;
    double n_text_tokens = 0, n_task_tokens = 0;
    const quire_doc_reader *reader;
    uint64_t place[QUIRE_DOC_PLACE];
    quire_text_docs *docs;
    quire_doc doc;

    (void)state;
    write_long_document();
    o.task_share = 0.25;
    o.tasks = (1u << QUIRE_TASK_COUNT) - 1;
    o.task_bytes = 100;
    docs = open_docs(&o);
    for (uint32_t i = 0; i < 4000; i++) {
        const char *text = next_text(docs, &doc);

        *(doc.counts != NULL ? &n_task_tokens : &n_text_tokens) += (double)doc.n;
        n_tasks += doc.counts != NULL;
        n_recall += doc.counts != NULL && strlen(text) > 3 && text[3] == '=';
        assert_true(n_task_tokens >= 0.25 * (n_text_tokens + n_task_tokens - LONG_TOKENS) - 1);
        assert_true(n_task_tokens < 0.25 * (n_text_tokens + n_task_tokens) + 250);
    }
    assert_in_range(n_tasks, 2000, 3990);
    assert_in_range(n_recall, n_tasks / 4 - 125, n_tasks / 4 + 125); /* five deviations */
    reader = quire_text_docs_reader(docs);
    reader->tell(reader->ctx, place);
    quire_text_docs_close(docs);
    o.task_share = 0.5;
    docs = open_docs(&o);
    reader = quire_text_docs_reader(docs);
    assert_int_equal(reader->seek(reader->ctx, place, NULL), QUIRE_OK);
    n_text_tokens = n_task_tokens = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        (void)next_text(docs, &doc);
        *(doc.counts != NULL ? &n_task_tokens : &n_text_tokens) += (double)doc.n;
    }
    assert_true(fabs(n_task_tokens - n_text_tokens) < 2.0 * LONG_TOKENS);
    quire_text_docs_close(docs);
    write_files();
}

/* The answer is the sentence of the kind that the beginning asks for. */
static void check_instruction(uint64_t seed, quire_bytes *text)
{
    quire_task_answers answers;
    char kind[16], line[64];

    assert_int_equal(quire_task_write(QUIRE_TASK_INSTRUCTION, 300, seed, text, &answers), QUIRE_OK);
    assert_int_equal(answers.n, 1);
    assert_int_equal(sscanf(text->data, "At the end, say the %15[a-z]. ", kind), 1);
    (void)snprintf(line, sizeof(line), "The%s. ", text->data + answers.at[0]);
    assert_non_null(strstr(text->data, line));
    assert_memory_equal(text->data + answers.at[0] + 1, kind, strlen(kind));
    assert_memory_equal(text->data + answers.at[0] - 30, "Do as I said at first: say the", 30);
    assert_in_range(text->n, 200, 300);
    assert_int_equal(answers.end[0], text->n);
}

/* Each question is a line of the pairs once more, and its value the answer. */
static void check_recall(size_t n_bytes, uint32_t n_answers, uint64_t seed, quire_bytes *text)
{
    quire_task_answers answers;

    assert_int_equal(quire_task_write(QUIRE_TASK_RECALL, n_bytes, seed, text, &answers), QUIRE_OK);
    assert_int_equal(answers.n, n_answers);
    assert_int_equal(answers.end[n_answers - 1], text->n);
    assert_int_equal(text->n, n_bytes / 8 * 8 - 1);
    for (uint32_t i = 0; i < answers.n; i++) {
        char line[16];
        const char *first;

        assert_int_equal(answers.end[i] - answers.at[i], 3);
        (void)snprintf(line, sizeof(line), "%.7s\n", text->data + answers.at[i] - 4);
        first = strstr(text->data, line);
        assert_non_null(first);
        assert_true(first < text->data + answers.at[0] - 4);
        assert_ptr_equal(strstr(first + 1, line),
                         i + 1 < answers.n ? text->data + answers.at[i] - 4 : NULL);
    }
}

/* Each task's answers stand in its text, where the task says. */
static void test_tasks(void **state)
{
    quire_task_answers answers;
    quire_bytes text = { 0 };

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        check_recall(64, 4, seed, &text);
        check_recall(203, 12, seed, &text);
        check_recall(8000, QUIRE_TASK_ANSWERS_MAX, seed, &text);
        assert_int_equal(quire_task_write(QUIRE_TASK_PASSKEY, 200, seed, &text, &answers),
                         QUIRE_OK);
        assert_int_equal(answers.n, 1);
        assert_int_equal(text.n, answers.at[0] + 5);
        assert_in_range(text.n, 130, 200);
        assert_memory_equal(strstr(text.data, "The pass key is ") + 16, text.data + answers.at[0],
                            5);
        assert_int_equal(quire_task_write(QUIRE_TASK_COPY, 200, seed, &text, &answers), QUIRE_OK);
        assert_int_equal(answers.at[0], 101);
        assert_int_equal(answers.end[0], 201);
        assert_memory_equal(text.data, text.data + answers.at[0], 100);
        check_instruction(seed, &text);
    }
    quire_bytes_fini(&text);
}

/* Tasks alone: only answers and the end count; validation has some of its own, once. */
static void test_task_docs(void **state)
{
    quire_text_docs_options o = { .task_share = 1,
                                  .tasks = 1u << QUIRE_TASK_RECALL,
                                  .task_bytes = 64,
                                  .n_tasks = 3,
                                  .is_held = true,
                                  .seed = 5 };
    quire_text_docs *docs = open_docs(&o);
    uint32_t n_counts = 0;
    char text[256];
    quire_doc doc;

    (void)state;
    (void)snprintf(text, sizeof(text), "%s", next_text(docs, &doc));
    assert_true(doc.is_whole);
    for (size_t i = 0; i < doc.n; i++) {
        bool is_digit = i > 0 && i + 1 < doc.n && text[i - 1] >= '0' && text[i - 1] <= '9';

        assert_true(!doc.counts[i] || is_digit || i + 1 == doc.n);
        n_counts += doc.counts[i];
    }
    assert_int_equal(n_counts, 4 * 3 + 1);
    assert_non_null(next_text(docs, &doc));
    assert_non_null(next_text(docs, &doc));
    assert_null(next_text(docs, &doc));
    quire_text_docs_close(docs);
    o.is_held = false;
    docs = open_docs(&o);
    for (uint32_t i = 0; i < 20; i++) {
        assert_string_not_equal(next_text(docs, &doc), text);
    }
    quire_text_docs_close(docs);
}

/* The longest task doubles with each level; a place has its level. */
static void test_levels(void **state)
{
    static const size_t longest[] = { 100, 200, 400, 500, 500 };
    quire_text_docs_options o = { .task_share = 1,
                                  .tasks = 1u << QUIRE_TASK_COPY,
                                  .task_bytes = 500,
                                  .task_bytes_first = 100,
                                  .seed = 5 };
    quire_text_docs *docs = open_docs(&o);
    const quire_doc_reader *reader = quire_text_docs_reader(docs);
    uint64_t place[QUIRE_DOC_PLACE];
    quire_doc doc;

    (void)state;
    for (uint64_t level = 0; level < 5; level++) {
        quire_text_docs_level_set(docs, level);
        if (level == 1) {
            reader->tell(reader->ctx, place);
        }
        assert_int_equal(quire_text_docs_task_bytes(docs), longest[level]);
        assert_int_equal(strlen(next_text(docs, &doc)), longest[level] + 1);
    }
    assert_int_equal(reader->seek(reader->ctx, place, NULL), QUIRE_OK);
    assert_int_equal(strlen(next_text(docs, &doc)), 201);
    quire_text_docs_close(docs);
    o.task_bytes_first = 0;
    docs = open_docs(&o);
    assert_int_equal(quire_text_docs_task_bytes(docs), 500);
    quire_text_docs_close(docs);
}

/* Lengths between the shortest and the longest task, in short and in long octaves. */
static void test_task_lengths(void **state)
{
    quire_text_docs_options o = { .task_share = 1,
                                  .tasks = 1u << QUIRE_TASK_COPY,
                                  .task_bytes = 1024,
                                  .task_bytes_min = 64,
                                  .seed = 5 };
    uint32_t n_octave[4] = { 0 };
    quire_text_docs *docs = open_docs(&o);
    quire_doc doc;

    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        size_t n = strlen(next_text(docs, &doc));

        assert_in_range(n, 63, 1025);
        n_octave[n < 128 ? 0 : n < 256 ? 1 : n < 512 ? 2 : 3]++;
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_in_range(n_octave[i], 70, 130);
    }
    quire_text_docs_close(docs);
}

static void refuse(const quire_text_docs_options *o, int status, const char *text)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_text_docs *docs = NULL;

    assert_int_equal(quire_text_docs_open(&docs, o, &err), status);
    if (strstr(err.message, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
    }
}

static void test_refused(void **state)
{
    quire_text_docs_options o = plain;

    (void)state;
    o.path = "/nowhere/at/all";
    refuse(&o, QUIRE_IO, "cannot read /nowhere/at/all");
    o = plain;
    o.doc_bytes_max = QUIRE_DOC_BYTES_MIN - 1;
    refuse(&o, QUIRE_INVAL, "documents of 63 bytes");
    o.doc_bytes_max = QUIRE_DOC_BYTES_MAX + 1;
    refuse(&o, QUIRE_INVAL, "documents of 16777217 bytes");
    o = plain;
    o.held_share = 0.6;
    refuse(&o, QUIRE_INVAL, "held out 0.6");
    o = plain;
    o.path = NULL;
    refuse(&o, QUIRE_INVAL, "no text is given");
    o = plain;
    o.task_share = 0.5;
    o.task_bytes = QUIRE_TASK_BYTES_MAX + 1;
    o.tasks = 1;
    refuse(&o, QUIRE_INVAL, "tasks of 1048577 bytes");
    o.task_bytes = 100;
    o.tasks = 0;
    refuse(&o, QUIRE_INVAL, "at least one task");
    o.tasks = 1u << QUIRE_TASK_COUNT;
    refuse(&o, QUIRE_INVAL, "at least one task");
    o.tasks = 1;
    o.task_bytes_min = QUIRE_TASK_BYTES_MIN - 1;
    refuse(&o, QUIRE_INVAL, "shortest task of 63 bytes");
    o.task_bytes_min = 101;
    refuse(&o, QUIRE_INVAL, "shortest task of 101 bytes");
    o.task_bytes_min = 0;
    o.task_bytes_first = 101;
    refuse(&o, QUIRE_INVAL, "longest task of 101 bytes at first");
}

/* A folder without files, and files without text. */
static void test_empty(void **state)
{
    quire_text_docs_options o = plain;
    const quire_doc_reader *reader;
    quire_error err = QUIRE_ERROR_INIT;
    quire_text_docs *docs;
    quire_doc doc;

    (void)state;
    write_file(path_a, "", 0);
    write_file(path_b, QUIRE_DOC_SEPARATOR "\n", 14);
    docs = open_docs(&plain);
    reader = quire_text_docs_reader(docs);
    assert_int_equal(reader->next(reader->ctx, &doc, &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "no text in 2 files"));
    quire_text_docs_close(docs);
    assert_int_equal(unlink(path_b), 0);
    o.path = folder;
    refuse(&o, QUIRE_INVAL, "has no files");
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(path_a, sizeof(path_a), "%s/a.txt", dir);
    (void)snprintf(folder, sizeof(folder), "%s/more", dir);
    (void)snprintf(path_b, sizeof(path_b), "%s/b.txt", folder);
    return mkdir(folder, 0700);
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(path_a);
    (void)unlink(path_b);
    (void)rmdir(folder);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_separators), cmocka_unit_test(test_long),
        cmocka_unit_test(test_held),       cmocka_unit_test(test_places),
        cmocka_unit_test(test_tasks),      cmocka_unit_test(test_task_docs),
        cmocka_unit_test(test_levels),     cmocka_unit_test(test_task_lengths),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_empty),
        cmocka_unit_test(test_streamed),   cmocka_unit_test(test_share_of_tasks),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
