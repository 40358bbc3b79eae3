/* test_pull_faults.c - quire pull when the network, the hub or the disk fails: its messages, and
 * that no partial file is taken for a model.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pull_kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define FILE_HERE "some/stories-GGUF/stories-Q4_K_M.gguf"

static int start(void **state)
{
    pull_kit *kit = malloc(sizeof(*kit));

    assert_non_null(kit);
    pull_kit_start(kit);
    *state = kit;
    return 0;
}

static int stop(void **state)
{
    pull_kit_stop(*state);
    free(*state);
    return 0;
}

static void expect(int status, const char *said, program_args args)
{
    program_result result = program_expect(status, args);

    assert_says(result.err, said);
    program_free(&result);
}

/* A failed pull leaves no model. */
static void expect_none(const pull_kit *kit, const char *said, program_args args)
{
    expect(1, said, args);
    pull_kit_has_not(kit, FILE_HERE);
    expect(1, "is not here yet", PROGRAM("info", KIT_NAME));
}

static void cut(pull_kit *kit, uint32_t n, size_t bytes)
{
    hub_entry file = pull_kit_file(kit);

    file.n_cut = n;
    file.cut_bytes = bytes;
    hub_double_change(kit->hub, KIT_Q4, file);
}

static void cut_connections_are_resumed(void **state)
{
    pull_kit *kit = *state;

    cut(kit, 3, 5000);
    expect(0, "verified", PULL(KIT_NAME, "--retries", "1"));
    pull_kit_has(kit, FILE_HERE);
    pull_kit_asked(kit, "GET " KIT_Q4 " range=5000-", 1);
    pull_kit_asked(kit, "GET " KIT_Q4 " range=15000-", 1);
}

static void tries_are_bounded(void **state)
{
    pull_kit *kit = *state;

    cut(kit, 100, 0);
    expect_none(kit, "127.0.0.1", PULL(KIT_NAME, "--retries", "3"));
    pull_kit_asked(kit, "GET " KIT_Q4, 4);
    assert_int_equal(pull_kit_partial(kit), 0);
    setenv("QUIRE_HUB", "http://127.0.0.1:1", 1);
    expect(1, "127.0.0.1: ", PULL(KIT_NAME, "--retries", "1"));
}

static void a_later_pull_goes_on(void **state)
{
    pull_kit *kit = *state;

    cut(kit, 1, 7000);
    expect_none(kit, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    assert_int_equal(pull_kit_partial(kit), 7000);
    expect(0, "of which 7.00 kB are here", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4 " range=7000-", 1);
    pull_kit_has(kit, FILE_HERE);
    assert_int_equal(pull_kit_partial(kit), 0);
}

static void a_server_may_ignore_ranges(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);

    file.ignores_ranges = true;
    file.n_cut = 1;
    file.cut_bytes = 7000;
    hub_double_change(kit->hub, KIT_Q4, file);
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_has(kit, FILE_HERE);
    file.ignores_ranges = false;
    file.has_wrong_range = true;
    file.n_cut = 1;
    hub_double_change(kit->hub, KIT_Q4, file);
    expect(0, "removed", PROGRAM("rm", KIT_NAME));
    /* Bytes of another place are never taken. */
    expect(0, "the server sent other bytes than were asked for", PULL(KIT_NAME));
    pull_kit_has(kit, FILE_HERE);
}

/* All bytes are counted that have come, also when those that were here are of no use. */
static void what_is_fetched_is_counted(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);
    json_t *json;

    cut(kit, 1, 7000);
    expect_none(kit, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    file.ignores_ranges = true;
    hub_double_change(kit->hub, KIT_Q4, file);
    json = program_json(PULL(KIT_NAME, "--json"));
    assert_int_equal(json_integer_value(json_object_get(json, "fetched_bytes")), kit->n_body);
    json_decref(json);
}

static void wrong_bytes_are_not_kept(void **state)
{
    pull_kit *kit = *state;

    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body, WRONG);
    expect_none(kit, "was promised: nothing is kept", PULL(KIT_NAME));
    assert_int_equal(pull_kit_partial(kit), 0);
    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body + 1, kit->sha256);
    expect_none(kit, "were promised", PULL(KIT_NAME));
    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body - 1, kit->sha256);
    expect_none(kit, "were promised", PULL(KIT_NAME));
    assert_int_equal(pull_kit_partial(kit), 0);
}

/* The partial file of an interrupted pull may be damaged. */
static void damaged_beginnings_are_fetched_anew(void **state)
{
    pull_kit *kit = *state;
    char command[600];

    cut(kit, 1, 7000);
    expect_none(kit, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    (void)snprintf(command, sizeof(command),
                   "printf XXXX | dd of=\"$(ls '%s'/some/stories-GGUF/*.partial)\" conv=notrunc "
                   "2>/dev/null",
                   kit->folder);
    assert_int_equal(system(command), 0);
    expect(0, "fetching it anew", PULL(KIT_NAME));
    pull_kit_has(kit, FILE_HERE);
    (void)snprintf(command, sizeof(command),
                   "rm '%s'/" FILE_HERE " && head -c 999999 /dev/zero > '%s/" FILE_HERE
                   ".%.16s.partial'",
                   kit->folder, kit->folder, kit->sha256);
    assert_int_equal(system(command), 0);
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_has(kit, FILE_HERE);
}

static void another_content_does_not_continue_an_old_one(void **state)
{
    pull_kit *kit = *state;

    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body, WRONG);
    cut(kit, 1, 7000);
    expect_none(kit, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body, kit->sha256);
    hub_double_log_clear(kit->hub);
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4, 1);
    assert_int_equal(pull_kit_partial(kit), 0);
}

/* ---- refusals of the hub ---- */

static void refusals_are_explained(void **state)
{
    static const struct {
        int status;
        bool has_token;
        const char *said;
    } cases[] = {
        { 401, false, "asks for a token (401)" },
        { 401, true, "refuses the token (401)" },
        { 403, false, "give a token of this account by HF_TOKEN" },
        { 403, true, "with the account of this token" },
        { 404, false, "has no such repository, revision or file (404)" },
        { 418, false, "refuses (418)" },
    };
    pull_kit *kit = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        hub_double_change(kit->hub, KIT_LIST, (hub_entry){ .status = cases[i].status });
        if (cases[i].has_token) {
            setenv("HF_TOKEN", "hf_secret", 1);
        } else {
            unsetenv("HF_TOKEN");
        }
        hub_double_log_clear(kit->hub);
        expect_none(kit, cases[i].said, PULL(KIT_NAME));
        pull_kit_asked(
            kit, cases[i].has_token ? "GET " KIT_LIST " auth=Bearer hf_secret" : "GET " KIT_LIST,
            1);
    }
}

/* No token goes to a plain URL, thus none is the remedy. */
static void refusals_of_an_url_name_no_token(void **state)
{
    static const struct {
        int status;
        const char *said;
    } cases[] = {
        { 401, "refuses (401): the file is not for everybody" },
        { 403, "refuses (403): the file is not for everybody" },
        { 404, "has no such file (404)" },
        { 429, "gets too many requests from here (429): try again later" },
    };
    pull_kit *kit = *state;
    char url[200];

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/a.gguf", hub_double_port(kit->hub));
    setenv("HF_TOKEN", "hf_secret", 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_result result;

        hub_double_change(kit->hub, "/a.gguf", (hub_entry){ .status = cases[i].status });
        result = program_expect(1, PULL(url, "--retries", "0"));
        assert_non_null(strstr(result.err, cases[i].said));
        assert_null(strstr(result.err, "HF_TOKEN"));
        assert_null(strstr(result.err, "repository"));
        program_free(&result);
    }
}

static void the_token_is_never_said(void **state)
{
    pull_kit *kit = *state;
    program_result result;

    setenv("HF_TOKEN", "hf_secret", 1);
    hub_double_change(kit->hub, KIT_Q4, (hub_entry){ .status = 401 });
    result = program_expect(1, PULL(KIT_NAME));
    assert_null(strstr(result.err, "hf_secret"));
    assert_null(strstr(result.out, "hf_secret"));
    program_free(&result);
}

static void a_busy_hub_is_asked_again(void **state)
{
    pull_kit *kit = *state;
    hub_entry list = {
        .body = kit->list, .n_body = strlen(kit->list), .n_busy = 2, .busy_status = 503
    };
    hub_entry file = pull_kit_file(kit);

    hub_double_change(kit->hub, KIT_LIST, list);
    file.n_busy = 2;
    file.busy_status = 429;
    hub_double_change(kit->hub, KIT_Q4, file);
    expect(0, "is in trouble (503): try again later; trying again", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_LIST, 3);
    pull_kit_asked(kit, "GET " KIT_Q4, 3);
    file.n_busy = 9;
    hub_double_change(kit->hub, KIT_Q4, file);
    expect(0, "removed", PROGRAM("rm", KIT_NAME));
    expect_none(kit, "too many requests from here (429)", PULL(KIT_NAME, "--retries", "2"));
    /* Nobody waits an hour in a terminal. */
    file.n_busy = 9;
    file.headers = "Retry-After: 3600\r\n";
    hub_double_change(kit->hub, KIT_Q4, file);
    hub_double_log_clear(kit->hub);
    expect_none(kit, "(429)", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4, 1);
}

static void redirects_are_bounded(void **state)
{
    pull_kit *kit = *state;

    hub_double_change(kit->hub, KIT_Q4,
                      (hub_entry){ .status = 302, .headers = "Location: " KIT_Q4 "\r\n" });
    expect_none(kit, "redirects more than 10 times", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4, 11);
    hub_double_change(kit->hub, KIT_Q4,
                      (hub_entry){ .status = 302, .headers = "Location: file:///etc/passwd\r\n" });
    expect_none(kit, "", PULL(KIT_NAME));
    hub_double_change(kit->hub, KIT_Q4, (hub_entry){ .status = 302 });
    expect_none(kit, "refuses (302)", PULL(KIT_NAME));
}

static void a_body_that_stands_still_is_given_up(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);

    file.is_held = true;
    file.cut_bytes = 7000;
    hub_double_change(kit->hub, KIT_Q4, file);
    expect_none(kit, "127.0.0.1", PULL(KIT_NAME, "--stall", "1s", "--retries", "0"));
    assert_int_equal(pull_kit_partial(kit), 7000);
    hub_double_release(kit->hub);
    expect(0, "verified", PULL(KIT_NAME));
}

/* ---- the disk ---- */

static void room_is_checked_before(void **state)
{
    pull_kit *kit = *state;

    pull_kit_list(kit, "stories-Q4_K_M.gguf", 1ull << 58, kit->sha256);
    expect_none(kit, "no room in ", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4, 0);
}

static void a_full_disk_keeps_what_has_come(void **state)
{
    pull_kit *kit = *state;
    struct rlimit before;
    struct rlimit small;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 20000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_none(kit, "the disk is full: 20.0 kB of", PULL(KIT_NAME));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(pull_kit_partial(kit), 20000);
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4 " range=20000-", 1);
}

static void a_folder_that_cannot_be_written_is_named(void **state)
{
    pull_kit *kit = *state;
    char below[300];

    (void)snprintf(below, sizeof(below), "%s/below", program_file("plain", "x", 1));
    setenv("QUIRE_MODELS", below, 1);
    expect(1, "(QUIRE_MODELS names another)", PULL(KIT_NAME));
    setenv("QUIRE_MODELS", "/proc/self/models", 1);
    expect(1, "/proc/self/models", PULL(KIT_NAME));
    setenv("QUIRE_MODELS", kit->folder, 1);
    if (geteuid() != 0) {
        assert_int_equal(setenv("QUIRE_MODELS", "/usr/models", 1), 0);
        expect(1, "/usr/models", PULL(KIT_NAME));
    }
}

/* ---- two at once, and Ctrl-C ---- */

static void a_second_pull_waits_for_the_first(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);
    program_running first;
    program_running second;

    file.is_held = true;
    file.cut_bytes = 7000;
    hub_double_change(kit->hub, KIT_Q4, file);
    first = program_start(PULL(KIT_NAME));
    free(program_line_with(first.err, "fetching"));
    second = program_start(PULL(KIT_NAME));
    free(program_line_with(second.err, "another process is at work on"));
    hub_double_release(kit->hub);
    free(program_line_with(first.err, "verified"));
    free(program_line_with(second.err, "it is here already"));
    assert_int_equal(program_end(&first), 0);
    assert_int_equal(program_end(&second), 0);
    pull_kit_asked(kit, "GET " KIT_Q4, 1);
    pull_kit_has(kit, FILE_HERE);
}

static void an_interrupted_pull_goes_on_later(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);
    program_result result;
    char range[200];

    file.is_held = true;
    file.cut_bytes = 7000;
    hub_double_change(kit->hub, KIT_Q4, file);
    result = program_interrupt_at(" of ", PULL(KIT_NAME));
    assert_int_equal(result.exit_status, 130);
    assert_says(result.err, "interrupted");
    program_free(&result);
    hub_double_release(kit->hub);
    pull_kit_has_not(kit, FILE_HERE);
    (void)snprintf(range, sizeof(range), "GET " KIT_Q4 " range=%zu-", pull_kit_partial(kit));
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_asked(kit, range, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cut_connections_are_resumed, start, stop),
        cmocka_unit_test_setup_teardown(tries_are_bounded, start, stop),
        cmocka_unit_test_setup_teardown(a_later_pull_goes_on, start, stop),
        cmocka_unit_test_setup_teardown(a_server_may_ignore_ranges, start, stop),
        cmocka_unit_test_setup_teardown(what_is_fetched_is_counted, start, stop),
        cmocka_unit_test_setup_teardown(wrong_bytes_are_not_kept, start, stop),
        cmocka_unit_test_setup_teardown(damaged_beginnings_are_fetched_anew, start, stop),
        cmocka_unit_test_setup_teardown(another_content_does_not_continue_an_old_one, start, stop),
        cmocka_unit_test_setup_teardown(refusals_are_explained, start, stop),
        cmocka_unit_test_setup_teardown(refusals_of_an_url_name_no_token, start, stop),
        cmocka_unit_test_setup_teardown(the_token_is_never_said, start, stop),
        cmocka_unit_test_setup_teardown(a_busy_hub_is_asked_again, start, stop),
        cmocka_unit_test_setup_teardown(redirects_are_bounded, start, stop),
        cmocka_unit_test_setup_teardown(a_body_that_stands_still_is_given_up, start, stop),
        cmocka_unit_test_setup_teardown(room_is_checked_before, start, stop),
        cmocka_unit_test_setup_teardown(a_full_disk_keeps_what_has_come, start, stop),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_written_is_named, start, stop),
        cmocka_unit_test_setup_teardown(a_second_pull_waits_for_the_first, start, stop),
        cmocka_unit_test_setup_teardown(an_interrupted_pull_goes_on_later, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
