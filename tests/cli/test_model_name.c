/* test_model_name.c - names of models, the choice among files, and headers of answers.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/pull/file_digest.h"
#include "cli/pull/http_head.h"
#include "cli/pull/model_files.h"
#include "cli/pull/model_folder.h"
#include "cli/pull/model_name.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void names_are_read(void **state)
{
    static const struct {
        const char *text;
        const char *same; /* quire_model_name_text() */
    } cases[] = {
        { "hf:a/b", "hf:a/b" },
        { "a/b", "hf:a/b" },
        { "a/b:Q4_K_M", "hf:a/b:Q4_K_M" },
        { "hf:a/b@v1.0:x/y z.gguf", "hf:a/b@v1.0:x/y z.gguf" },
        { "qwen3-4b:q8_0", "hf:Qwen/Qwen3-4B-GGUF:q8_0" },
        { "https://huggingface.co/a/b/resolve/main/c/d.gguf?download=true", "hf:a/b:c/d.gguf" },
        { "https://huggingface.co/a/b/blob/v2/d.gguf", "hf:a/b@v2:d.gguf" },
        { "https://example.com/d.gguf", "https://example.com/d.gguf" },
        { "https://huggingface.co/a/b/tree/main/d.gguf",
          "https://huggingface.co/a/b/tree/main/d.gguf" },
    };
    char text[QUIRE_NAME_URL_MAX];

    (void)state;
    unsetenv("QUIRE_HUB");
    unsetenv("HF_ENDPOINT");
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_model_name name;

        if (quire_model_name_parse(cases[i].text, &name, &err) != QUIRE_OK) {
            fail_msg("%s: %s", cases[i].text, err.message);
        }
        assert_string_equal(quire_model_name_text(&name, text, sizeof(text)), cases[i].same);
    }
}

static void what_is_no_name_is_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        { "", QUIRE_NOTFOUND },
        { "nothing-like-it", QUIRE_NOTFOUND },
        { "/a/b", QUIRE_NOTFOUND },
        { "../a/b", QUIRE_NOTFOUND },
        { "a/b/c", QUIRE_NOTFOUND },
        { "hf:a", QUIRE_INVAL },
        { "hf:a/", QUIRE_INVAL },
        { "hf:/b", QUIRE_INVAL },
        { "hf:a/b@", QUIRE_INVAL },
        { "hf:a/b:", QUIRE_INVAL },
        { "hf:a/b:../c.gguf", QUIRE_INVAL },
        { "hf:a/b:c//d.gguf", QUIRE_INVAL },
        { "hf:a/b:.c.gguf", QUIRE_INVAL },
        { "hf:a/b?x", QUIRE_INVAL },
        { "hf:../b", QUIRE_INVAL },
        { "hf:a/-b", QUIRE_INVAL },
        { "qwen3-4b:%2e%2e", QUIRE_INVAL },
        { "https://example.com/d.bin", QUIRE_INVAL },
        { "https://me@example.com/d.gguf", QUIRE_INVAL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_model_name name;

        if (quire_model_name_parse(cases[i].text, &name, &err) != cases[i].status) {
            fail_msg("%s: %s", cases[i].text, err.message);
        }
        assert_true(err.message[0] != '\0');
    }
}

/* Every name that is read consists of parts that are safe in paths. */
static void random_texts_have_safe_parts_or_none(void **state)
{
    static const char letters[] = "ab/.:@-_hf:%?# \n\\Q4";
    quire_rng rng = test_rng(7);
    size_t n_read = 0;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[24] = "hf:";
        const size_t n = quire_rng_below(&rng, 16);
        quire_error err = QUIRE_ERROR_INIT;
        quire_model_name name;

        for (size_t i = 0; i < n; i++) {
            text[3 + i] = letters[quire_rng_below(&rng, sizeof(letters) - 1)];
        }
        if (quire_model_name_parse(text, &name, &err) == QUIRE_OK) {
            n_read++;
            assert_true(quire_model_file_is_safe(name.owner) && strchr(name.owner, '/') == NULL);
            assert_true(quire_model_file_is_safe(name.repo) && strchr(name.repo, '/') == NULL);
            assert_true(name.selector[0] == '\0' || quire_model_file_is_safe(name.selector));
        }
    }
    assert_true(n_read > 0);
}

static void the_table_is_sound(void **state)
{
    (void)state;
    for (size_t i = 0; i < quire_n_short_names; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_model_name name;

        assert_int_equal(quire_model_name_parse(quire_short_names[i].name, &name, &err), QUIRE_OK);
        assert_string_equal(name.owner, quire_short_names[i].owner);
        assert_string_equal(name.repo, quire_short_names[i].repo);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(strcasecmp(quire_short_names[i].name, quire_short_names[j].name),
                                 0);
        }
    }
}

static void parts_of_sets_are_known_by_their_names(void **state)
{
    char path[] = "x/m-00001-of-00012.gguf";

    (void)state;
    assert_int_equal(quire_model_parts("m.gguf"), 1);
    assert_int_equal(quire_model_parts(path), 12);
    quire_model_part_set(path, 10);
    assert_string_equal(path, "x/m-00010-of-00012.gguf");
    assert_int_equal(quire_model_parts(path), 0);
    assert_int_equal(quire_model_parts("m-00000-of-00012.gguf"), 1);
    assert_int_equal(quire_model_parts("m-00001-of-99999.gguf"), 0); /* too many */
    assert_int_equal(quire_model_parts("-00001-of-00002.gguf"), 1);
}

static void files_are_chosen(void **state)
{
    static const char *const paths[] = { "m-Q8_0.gguf",
                                         "m-Q4_K_M.gguf",
                                         "UD/m-UD-Q4_K_M.gguf",
                                         "m-IQ4_XS.gguf",
                                         "mmproj-f16.gguf",
                                         "m-imatrix.gguf",
                                         "a/m-F32.gguf",
                                         "b/m-F32.gguf",
                                         "m-Q6_K-00001-of-00002.gguf",
                                         "m-Q6_K-00002-of-00002.gguf" };
    static const struct {
        const char *selector;
        const char *path; /* NULL: refused */
    } cases[] = {
        { "", "m-Q4_K_M.gguf" },
        { "q4_k_m", "m-Q4_K_M.gguf" },
        { "UD-Q4_K_M", "UD/m-UD-Q4_K_M.gguf" },
        { "m-UD-Q4_K_M.gguf", "UD/m-UD-Q4_K_M.gguf" },
        { "Q6_K", "m-Q6_K-00001-of-00002.gguf" },
        { "Q4_XS", NULL },
        { "f16", NULL },
        { "F32", NULL }, /* two of them */
        { "a/m-F32.gguf", "a/m-F32.gguf" },
        { "m-Q6_K-00002-of-00002.gguf", NULL },
    };
    quire_model_files files = { .list = NULL };

    (void)state;
    for (size_t i = 0; i < COUNT(paths); i++) {
        assert_non_null(quire_model_files_add(&files, paths[i]));
    }
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_error err = QUIRE_ERROR_INIT;
        size_t chosen = 0;
        const int rc = quire_model_files_choose(&files, cases[i].selector, "here", &chosen, &err);

        if ((rc == QUIRE_OK) != (cases[i].path != NULL)) {
            fail_msg("'%s': %s", cases[i].selector, err.message);
        }
        if (rc == QUIRE_OK) {
            assert_string_equal(files.list[chosen].path, cases[i].path);
        }
    }
    quire_model_files_fini(&files);
}

static void line(quire_transfer_head *head, const char *text)
{
    quire_transfer_head_line(head, text, strlen(text));
}

static void headers_are_read(void **state)
{
    quire_transfer_head head;

    (void)state;
    quire_transfer_head_clear(&head);
    line(&head, "HTTP/1.1 302 Found\r\n");
    line(&head, "x-linked-etag: \"abc\"\r\n");
    line(&head, "X-Linked-Size: 12\r\n");
    line(&head, "X-Repo-Commit: 0123abcd\r\n");
    line(&head, "Content-Length: 99\r\n");
    line(&head, "HTTP/2 206\r\n");
    assert_int_equal(head.status, 206);
    assert_true(head.length == QUIRE_TRANSFER_UNKNOWN);
    line(&head, "Content-Range: bytes 5-11/12\r\n");
    line(&head, "ETag: W/\"weak\"\r\n");
    line(&head, "X-Linked-Etag: \"other\"\r\n");
    line(&head, "Link: <http://a/1>; rel=\"prev\", <http://a/2>; rel=\"next\"\r\n");
    line(&head, "Retry-After: 7\r\n");
    assert_string_equal(head.linked_etag, "abc");
    assert_string_equal(head.commit, "0123abcd");
    assert_int_equal(head.linked_size, 12);
    assert_int_equal(head.range_from, 5);
    assert_int_equal(head.range_total, 12);
    assert_string_equal(head.etag, "");
    assert_string_equal(head.next, "http://a/2");
    assert_int_equal(head.retry_after_s, 7);
    line(&head, "Content-Length: -1\r\n");
    line(&head, "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n");
    line(&head, "no colon\r\n");
    line(&head, "HTTP/1.1\r\n");
    assert_int_equal(head.status, 0);
}

static void hashes_are_those_of_others(void **state)
{
    quire_digest *sha256 = quire_digest_new(false, 0);
    quire_digest *blob = quire_digest_new(true, 6);
    char text[65];

    (void)state;
    assert_non_null(sha256);
    assert_non_null(blob);
    for (int round = 0; round < 2; round++) {
        assert_true(quire_digest_add(sha256, "abc", 3) && quire_digest_text(sha256, text));
        /* FIPS 180-2, appendix B.1. */
        assert_string_equal(text,
                            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_true(quire_digest_add(blob, "hello\n", 6) && quire_digest_text(blob, text));
        /* printf 'hello\n' | git hash-object --stdin */
        assert_string_equal(text, "ce013625030ba8dba906f756967f9e9ca394464a");
    }
    quire_digest_free(sha256);
    quire_digest_free(blob);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_read),
        cmocka_unit_test(what_is_no_name_is_refused),
        cmocka_unit_test(random_texts_have_safe_parts_or_none),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(parts_of_sets_are_known_by_their_names),
        cmocka_unit_test(files_are_chosen),
        cmocka_unit_test(headers_are_read),
        cmocka_unit_test(hashes_are_those_of_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
