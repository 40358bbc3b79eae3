/* test_page_curve.c - quire tune-pages: the choice of a size, and the program.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/measuring/page_curve.h"
#include "program.h"
#include "served.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- the choice ---- */

/* Rates by size; NULL = none of this kind. */
static quire_page_curve curve_of(const double *in, const double *out, const double *attention)
{
    quire_page_curve curve = { .choice = 0 };

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        curve.points[i] = (quire_page_point){ .page_tokens = 64u << i,
                                              .in = in[i],
                                              .out = out[i],
                                              .attention = attention != NULL ? attention[i] : 0.0 };
    }
    return curve;
}

static uint32_t choice_of(const double *in, const double *out, const double *attention,
                          bool expected)
{
    const quire_page_curve curve = curve_of(in, out, attention);
    bool has_share;
    const uint32_t choice = quire_page_curves_choose(&curve, 1, &has_share);

    assert_int_equal(has_share, expected);
    return choice;
}

static const double flat[] = { 10, 10, 10, 10, 10 };
static const double rising[] = { 2, 5, 8.9, 9, 10 };
static const double peak[] = { 9.1, 9.2, 10, 8, 7 };
static const double slow[] = { 1, 1, 1, 1, 10 };

static void test_choice(void **state)
{
    (void)state;
    assert_int_equal(choice_of(flat, flat, flat, true), 0);
    assert_int_equal(choice_of(flat, flat, NULL, true), 0);
    assert_int_equal(choice_of(rising, flat, flat, true), 3); /* 90 % are enough */
    assert_int_equal(choice_of(flat, rising, flat, true), 3);
    assert_int_equal(choice_of(flat, flat, rising, true), 3);
    assert_int_equal(choice_of(peak, flat, NULL, true), 0);
    assert_int_equal(choice_of(peak, slow, flat, false), 4); /* 70 % */
}

/* The size for several memories is no maximum of the sizes for each. */
static void test_choice_of_several(void **state)
{
    const quire_page_curve apart[] = { curve_of(peak, flat, NULL), curve_of(rising, flat, flat) };
    const quire_page_curve alike[] = { curve_of(flat, flat, NULL), curve_of(rising, flat, flat) };
    bool has_share;

    (void)state;
    assert_int_equal(quire_page_curves_choose(apart, 2, &has_share), 2); /* 100 % and 89 % */
    assert_false(has_share);
    assert_int_equal(quire_page_curves_choose(alike, 2, &has_share), 3);
    assert_true(has_share);
}

/* ---- the program ---- */

static void check_memory(const json_t *memory, const char *name, bool has_attention)
{
    const json_t *curve = json_object_get(memory, "curve");
    const json_int_t choice = json_integer_value(json_object_get(memory, "page_tokens"));
    bool has_choice = false;

    assert_string_equal(json_string_value(json_object_get(memory, "memory")), name);
    assert_int_equal(json_array_size(curve), QUIRE_PAGE_POINTS);
    for (size_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        const json_t *p = json_array_get(curve, i);
        const json_int_t page_tokens = json_integer_value(json_object_get(p, "page_tokens"));

        assert_int_equal(page_tokens, 64 << i);
        /* One layer: 8 heads of 128, K and V; on a disk of eight pages. */
        assert_true(json_integer_value(json_object_get(p, "piece_bytes")) >=
                    page_tokens * 8 * 2 * 64);
        assert_true(json_real_value(json_object_get(p, "in_bytes_per_second")) > 0);
        assert_true(json_real_value(json_object_get(p, "out_bytes_per_second")) > 0);
        assert_int_equal(json_is_null(json_object_get(p, "attention_bytes_per_second")),
                         !has_attention);
        has_choice |= choice == page_tokens;
    }
    assert_true(has_choice);
    assert_true(json_is_boolean(json_object_get(memory, "has_share")));
}

static void test_json(void **state)
{
    json_t *root = program_json(PROGRAM("tune-pages", "--device", "cpu", "--tokens", "1024",
                                        "--format", "q4", "--dir", program_path("."), "--json"));
    const json_t *memories = json_object_get(root, "memories");

    (void)state;
    assert_string_equal(json_string_value(json_object_get(root, "format")), "q4");
    assert_int_equal(json_array_size(memories), 2);
    assert_true(json_is_boolean(json_object_get(root, "has_share")));
    check_memory(json_array_get(memories, 0), "host", true);
    check_memory(json_array_get(memories, 1), "disk", false);
    json_decref(root);
}

static void test_text(void **state)
{
    program_result r =
        program_expect(0, PROGRAM("tune-pages", "--device", "cpu", "--tokens", "1024"));

    (void)state;
    assert_says(r.out, "host         64");
    assert_says(r.out, "\n           1024");
    assert_true(strchr(r.out, '*') != NULL || strchr(r.out, '?') != NULL);
    assert_says(r.out, "\n--page-tokens ");
    program_free(&r);
}

static void test_refusals(void **state)
{
    program_result r = program_expect(
        1, PROGRAM("tune-pages", "--device", "cpu", "--tokens", "1024", "--dir", "/nonexistent"));

    (void)state;
    assert_says(r.err, "cannot make a file in /nonexistent");
    assert_string_equal(r.out, ""); /* refused before any memory is measured */
    program_free(&r);
    r = program_expect(2, PROGRAM("tune-pages", "--device", "cpu", "--dir", ""));
    assert_says(r.err, "--dir: an empty name");
    program_free(&r);
    r = program_expect(1, PROGRAM("tune-pages", "--device", "tpu0"));
    assert_says(r.err, "there is no device 'tpu0'");
    program_free(&r);
}

/* ---- the server ---- */

#define CURVE                                                                                      \
    "{\"page_tokens\":256,\"memories\":[{\"memory\":\"host\",\"page_tokens\":256,\"curve\":[]}]}"

static void test_shown(void **state)
{
    const char *file = program_file("curve.json", CURVE, strlen(CURVE));
    program_running running =
        program_start(PROGRAM("serve", program_model(), "--port", "0", "--page-curve", file));
    const uint16_t port = served_port(&running);

    (void)state;
    free(program_line_with(running.err, "warning: pages have 64 tokens; 256 suit the memories that "
                                        "page_curve has measured (--page-tokens)"));
    assert_says(served_ask(port, "GET", "/v1/cache/regions", ""),
                "\"page_tokens\":64,\"page_curve\":" CURVE);
    served_end(&running, SIGTERM);
    running = program_start(PROGRAM("serve", program_model(), "--port", "0"));
    assert_says(served_ask(served_port(&running), "GET", "/v1/cache/regions", ""),
                "\"page_tokens\":64,\"page_curve\":null");
    served_end(&running, SIGTERM);
}

static void test_shown_refusals(void **state)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"page_tokens\": 64}",
        "{\"page_tokens\": 64, \"memories\": [{}]}",
        "{\"page_tokens\": 64, \"memories\": [{\"memory\": \"host\", \"curve\": {}}]}",
        "{\"page_tokens\": 64, \"memories\": [{\"memory\": \"host\", \"curve\": [null]}]}",
        "{\"page_tokens\": 64, \"memories\": [{\"memory\": \"host\", \"curve\": [{}]}]}",
    };
    program_result r;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *file = program_file("curve.json", texts[i], strlen(texts[i]));

        r = program_expect(
            2, PROGRAM("serve", program_model(), "--check-config", "--page-curve", file));
        assert_says(r.err, "curve.json is not what quire tune-pages --json prints");
        program_free(&r);
    }
    r = program_expect(2, PROGRAM("serve", program_model(), "--check-config", "--page-curve",
                                  program_path("none.json")));
    assert_says(r.err, "none.json");
    program_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),         cmocka_unit_test(test_choice_of_several),
        cmocka_unit_test(test_json),           cmocka_unit_test(test_text),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_shown),
        cmocka_unit_test(test_shown_refusals),
    };

    return cmocka_run_group_tests(tests, program_no_cache, program_clean);
}
