/* test_response_store.c - chains of responses, their owners, and their bounds.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "quire/status.h"
#include "server/response_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static quire_tenant_salt salt_a, salt_b;

static quire_response_store *store_of(uint32_t n_max, size_t bytes_max)
{
    const quire_response_limits limits = { n_max, bytes_max };
    quire_response_store *store;

    quire_tenant_salt_make(&salt_a, "a", "");
    quire_tenant_salt_make(&salt_b, "b", "");
    assert_int_equal(quire_response_store_create(&store, &limits), QUIRE_OK);
    return store;
}

/* A turn of one message. */
static int add(quire_response_store *store, const char *id, const char *previous_id,
               const char *text)
{
    json_t *messages = json_pack("[s]", text);
    const quire_response response = { id, previous_id, &salt_a, messages, "{}" };
    const int rc = quire_response_store_add(store, &response);

    json_decref(messages);
    return rc;
}

/* The messages of a chain, joined; "" when there is none. */
static const char *chain(quire_response_store *store, const quire_tenant_salt *salt, const char *id)
{
    static char joined[256];
    json_t *messages;

    joined[0] = '\0';
    if (quire_response_store_chain(store, salt, id, &messages) == QUIRE_OK) {
        for (size_t i = 0; i < json_array_size(messages); i++) {
            const size_t n = strlen(joined);

            (void)snprintf(joined + n, sizeof joined - n, "%s",
                           json_string_value(json_array_get(messages, i)));
        }
        json_decref(messages);
    }
    return joined;
}

static void test_chains(void **state)
{
    quire_response_store *store = store_of(10, 10000);
    char *reply;

    (void)state;
    assert_int_equal(add(store, "r1", NULL, "a"), QUIRE_OK);
    assert_int_equal(add(store, "r2", "r1", "b"), QUIRE_OK);
    assert_int_equal(add(store, "r3", "r2", "c"), QUIRE_OK);
    assert_int_equal(add(store, "r4", "r1", "d"), QUIRE_OK); /* another continuation */
    assert_string_equal(chain(store, &salt_a, "r3"), "abc");
    assert_string_equal(chain(store, &salt_a, "r4"), "ad");
    assert_string_equal(chain(store, &salt_b, "r3"), "");
    assert_int_equal(add(store, "r5", "none", "e"), QUIRE_NOTFOUND);
    assert_int_equal(quire_response_store_get(store, &salt_a, "r3", &reply), QUIRE_OK);
    assert_string_equal(reply, "{}");
    free(reply);
    assert_int_equal(quire_response_store_get(store, &salt_b, "r3", &reply), QUIRE_NOTFOUND);
    quire_response_store_destroy(store);
}

/* A turn stays as long as a later response needs it. */
/* A small model may write a byte of zero. */
static void test_zero_byte(void **state)
{
    quire_response_store *store = store_of(10, 10000);
    json_t *messages = json_pack("[s%]", "a\0b", (size_t)3);
    const quire_response response = { "r1", NULL, &salt_a, messages, "{}" };

    (void)state;
    assert_int_equal(quire_response_store_add(store, &response), QUIRE_OK);
    json_decref(messages);
    assert_int_equal(quire_response_store_chain(store, &salt_a, "r1", &messages), QUIRE_OK);
    assert_int_equal(json_string_length(json_array_get(messages, 0)), 3);
    json_decref(messages);
    quire_response_store_destroy(store);
}

static void test_deleting(void **state)
{
    quire_response_store *store = store_of(10, 10000);

    (void)state;
    assert_int_equal(add(store, "r1", NULL, "a"), QUIRE_OK);
    assert_int_equal(add(store, "r2", "r1", "b"), QUIRE_OK);
    assert_int_equal(quire_response_store_drop(store, &salt_b, "r1"), QUIRE_NOTFOUND);
    assert_int_equal(quire_response_store_drop(store, &salt_a, "r1"), QUIRE_OK);
    assert_int_equal(quire_response_store_drop(store, &salt_a, "r1"), QUIRE_NOTFOUND);
    assert_string_equal(chain(store, &salt_a, "r1"), "");
    assert_string_equal(chain(store, &salt_a, "r2"), "ab");
    assert_int_equal(quire_response_store_drop(store, &salt_a, "r2"), QUIRE_OK);
    assert_int_equal(quire_response_store_bytes(store), 0);
    quire_response_store_destroy(store);
}

static void test_bounds(void **state)
{
    quire_response_store *store = store_of(3, 100000);
    char id[16], previous[16] = "";
    char text[600];
    size_t bytes;

    (void)state;
    for (int i = 0; i < 6; i++) {
        (void)snprintf(id, sizeof id, "r%d", i);
        assert_int_equal(add(store, id, i > 0 ? previous : NULL, id + 1), QUIRE_OK);
        memcpy(previous, id, sizeof id);
    }
    assert_int_equal(quire_response_store_count(store), 3);
    assert_string_equal(chain(store, &salt_a, "r0"), "");
    assert_string_equal(chain(store, &salt_a, "r5"), "012345");
    quire_response_store_destroy(store);
    /* The store is full by bytes. */
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    store = store_of(100, 4000);
    for (int i = 0; i < 20; i++) {
        (void)snprintf(id, sizeof id, "s%d", i);
        assert_int_equal(add(store, id, NULL, text), QUIRE_OK);
        bytes = quire_response_store_bytes(store);
        assert_true(bytes <= 4000 + sizeof text + 600);
    }
    assert_true(quire_response_store_count(store) >= 1);
    assert_true(quire_response_store_count(store) < 6);
    quire_response_store_destroy(store);
    /* Turns that a chain keeps. */
    store = store_of(100, 4000);
    for (int i = 0; i < 20; i++) {
        (void)snprintf(id, sizeof id, "t%d", i);
        (void)add(store, id, i > 0 ? previous : NULL, text);
        memcpy(previous, id, sizeof id);
        assert_true(quire_response_store_bytes(store) <= 4000);
    }
    quire_response_store_destroy(store);
    store = store_of(100, 500);
    assert_int_equal(add(store, "big", NULL, text), QUIRE_LIMIT);
    assert_int_equal(quire_response_store_bytes(store), 0);
    quire_response_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_zero_byte),
        cmocka_unit_test(test_deleting),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
