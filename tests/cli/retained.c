/* retained.c - see retained.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retained.h"

const char *text_file(void)
{
    static char text[4000];

    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = "the quire keeps what it needs. "[i * 7 % 31];
    }
    return program_file("retain.txt", text, sizeof text);
}

double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value)) {
        fail_msg("no number '%s'", key);
    }
    return json_number_value(value);
}

void refuse(int status, const char *says, program_args args)
{
    program_result result = program_expect(status, args);

    assert_says(result.err, says);
    program_free(&result);
}

const json_t *retained_of(const json_t *run)
{
    return json_object_get(json_object_get(run, "kv"), "retained");
}

void assert_same_text(const json_t *a, const json_t *b)
{
    assert_true(json_equal(json_object_get(a, "text"), json_object_get(b, "text")));
}
