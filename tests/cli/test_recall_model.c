/* test_recall_model.c - tests/data/quire-recall.gguf answers the tasks it was trained on: the
 * values of keys, a number in filler, an instruction at the beginning.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "program.h"
#include "train/text_docs.h"

#include <stdio.h>
#include <string.h>

#define TEXTS 4u /* of a task and a length */

/* Whether the program's answer to the last question of a text is the text's. */
static bool answers_text(quire_task task, size_t n_bytes, uint64_t seed)
{
    quire_task_answers answers;
    quire_bytes text = { 0 };
    const char *path, *said;
    json_t *document;
    size_t at;
    bool is_right;

    assert_int_equal(quire_task_write(task, n_bytes, seed, &text, &answers), QUIRE_OK);
    at = answers.at[answers.n - 1];
    path = program_file("question.txt", text.data, at);
    document = program_json(PROGRAM("run", "-m", program_data("quire-recall.gguf"), "-f", path,
                                    "-n", "20", "--temp", "0", "--json"));
    said = json_string_value(json_object_get(document, "text"));
    assert_non_null(said);
    is_right = strncmp(said, text.data + at, text.n - at) == 0;
    json_decref(document);
    quire_bytes_fini(&text);
    return is_right;
}

static void check(quire_task task, size_t n_bytes, uint32_t n_wrong_max)
{
    uint32_t n_wrong = 0;

    for (uint64_t seed = 1; seed <= TEXTS; seed++) {
        n_wrong += !answers_text(task, n_bytes, 1000 * n_bytes + seed);
    }
    if (n_wrong > n_wrong_max) {
        fail_msg("%s of %zu bytes: %u of %u wrong", quire_task_names()[task], n_bytes, n_wrong,
                 TEXTS);
    }
}

/* Lengths within those of the training; bench/results/recall.md has shares of many texts. */
static void test_answers(void **state)
{
    static const quire_task tasks[] = { QUIRE_TASK_RECALL, QUIRE_TASK_PASSKEY,
                                        QUIRE_TASK_INSTRUCTION };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        check(tasks[i], 256, 1);
        check(tasks[i], 2048, 1);
        check(tasks[i], 4096, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
