/* test_serve_lists.c - the lists that the file of quire serve may hold: classes, tenants, keys.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Classes, tenants and the rights of keys: a refusal names the entry and the accepted values. */
static void lists_are_checked(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        { "classes: [ { weight: 2 } ]\n", "lists.yaml: classes[1] needs a name" },
        { "classes: [ { name: a }, { name: a } ]\n", "classes: class 'a': there are two of them" },
        { "classes: [ { name: A } ]\n", "classes: class 1: the name must be" },
        { "classes: [ { name: a, weight: 0 } ]\n",
          "classes[1].weight '0' is out of range: it takes a whole number from 1 to 1000" },
        { "classes: [ { name: a, wieght: 1 } ]\n",
          "classes[1]: unknown key 'wieght' (did you mean weight?)" },
        { "classes: [ { name: a, pinned: maybe } ]\n", "classes[1].pinned 'maybe' is invalid" },
        { "classes: [ { name: a, ttft_target: soon } ]\n", "ttft_target 'soon' is invalid" },
        { "classes: [ { name: a }, { name: b }, { name: c }, { name: d }, { name: e }, { name: f },"
          " { name: g }, { name: h }, { name: i } ]\n",
          "lists.yaml: classes" },
        { "default_class: fast\n",
          "default_class 'fast' is no class: there are realtime, standard, batch" },
        { "tenants: [ { cache_quota: 1G } ]\n", "tenants[1] needs a name" },
        { "tenants: [ { name: a }, { name: a } ]\n", "tenants[2]: 'a' is given before" },
        { "tenants: [ { name: a, cache_quota: much } ]\n", "cache_quota 'much' is invalid" },
        { "api_keys: [ { key: a, max_class: gold } ]\n",
          "api_keys[1]: max_class 'gold' is no class: there are realtime, standard, batch" },
        { "api_keys: [ { key: a, max_class: batch, default_class: realtime } ]\n",
          "api_keys[1]: default_class 'realtime' is higher than max_class 'batch'" },
        { "api_keys: [ { key: a, admin: maybe } ]\n", "api_keys[1].admin 'maybe' is invalid" },
        { "tenants: [ { name: a } ]\napi_keys: [ { key: k, tenant: b }, { key: o, admin: true } "
          "]\n",
          "lists.yaml: tenants[1]: there is no key of a tenant 'a'" },
        { "classes: [ { name: a } ]\npinned: 1M\n", "lists.yaml: classes: none is pinned" },
        { "cache_policy: mru\n", "cache_policy 'mru' is invalid: it takes one of default, lru" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *file = program_file("lists.yaml", cases[i].text, strlen(cases[i].text));
        program_result result =
            program_expect(2, PROGRAM("serve", "-m", program_model(), "--config", file));

        assert_says(result.err, cases[i].says);
        assert_string_equal(result.out, "");
        program_free(&result);
    }
}

static void classes_are_shown(void **state)
{
    static const char text[] =
        "classes: [ { name: gold, weight: 3, pinned: true }, { name: tin } ]\n"
        "tenants: [ { name: a, cache_quota: 1M } ]\napi_keys: [ { key: k, tenant: a } ]\n";
    const char *file = program_file("classes.yaml", text, sizeof(text) - 1);
    program_result result = program_expect(
        0, PROGRAM("serve", "-m", program_model(), "--config", file, "--check-config"));
    json_t *document = program_json(
        PROGRAM("serve", "-m", program_model(), "--config", file, "--check-config", "--json"));
    json_t *classes = json_object_get(json_object_get(document, "effective"), "classes");

    (void)state;
    assert_says(result.out, "# classes: gold (weight 3, pinned), tin (weight 1, of requests that "
                            "name none); tenants with an account of their own: 1\n");
    assert_int_equal(json_array_size(classes), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(classes, 0), "name")),
                        "gold");
    assert_true(json_is_true(json_object_get(json_array_get(classes, 1), "is_default")));
    json_decref(document);
    program_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(classes_are_shown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
