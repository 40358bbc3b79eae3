/* test_check.c - bugs abort with a place and a condition; operating errors return; sizes are
 * checked.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/ckd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MESSAGE_MAX 256

/* Run body in a child process and return its wait status. The child's stderr goes to text. */
static int run_in_child(void (*body)(void), char text[MESSAGE_MAX])
{
    const struct rlimit no_core = { 0, 0 };
    size_t length = 0;
    ssize_t n;
    int fds[2];
    int status = 0;
    pid_t pid;

    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setrlimit(RLIMIT_CORE, &no_core);
        (void)dup2(fds[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    (void)close(fds[1]);
    while (length < MESSAGE_MAX - 1 &&
           (n = read(fds[0], text + length, MESSAGE_MAX - 1 - length)) > 0) {
        length += (size_t)n;
    }
    text[length] = '\0';
    (void)close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static volatile int two = 2;

static void broken_check(void)
{
    QUIRE_CHECK(two == 3);
}

static void holding_check(void)
{
    QUIRE_CHECK(two == 2);
}

static void broken_assert(void)
{
    QUIRE_ASSERT(two == 3);
}

static void a_broken_check_aborts_and_says_where(void **state)
{
    char text[MESSAGE_MAX];
    int status = run_in_child(broken_check, text);

    (void)state;
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "test_check.c:"));
    assert_non_null(strstr(text, "two == 3"));
}

static void a_holding_check_does_nothing(void **state)
{
    char text[MESSAGE_MAX];
    int status = run_in_child(holding_check, text);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_string_equal(text, "");
}

static void asserts_are_on_in_checked_builds_only(void **state)
{
    char text[MESSAGE_MAX];
    int status = run_in_child(broken_assert, text);

    (void)state;
    if (QUIRE_DEBUG >= 1) {
        assert_true(WIFSIGNALED(status));
    } else {
        assert_true(WIFEXITED(status));
    }
}

static int n_steps;

static int step(int status)
{
    n_steps++;
    return status;
}

static int two_steps(int first, int second)
{
    QUIRE_TRY(step(first));
    QUIRE_TRY(step(second));
    return QUIRE_OK;
}

static int at_most_ten(int value)
{
    QUIRE_FAIL_IF(value > 10, QUIRE_RANGE);
    return value;
}

static void try_stops_at_the_first_failure(void **state)
{
    (void)state;
    n_steps = 0;
    assert_int_equal(two_steps(QUIRE_OK, QUIRE_OK), QUIRE_OK);
    assert_int_equal(n_steps, 2);
    assert_int_equal(two_steps(QUIRE_IO, QUIRE_OK), QUIRE_IO);
    assert_int_equal(n_steps, 3);
    assert_int_equal(two_steps(1, QUIRE_NOMEM), QUIRE_NOMEM); /* positive results are no failure */
    assert_int_equal(at_most_ten(10), 10);
    assert_int_equal(at_most_ten(11), QUIRE_RANGE);
}

static void checked_arithmetic_stops_at_the_edge(void **state)
{
    size_t out = 77;

    (void)state;
    assert_true(quire_ckd_mul(SIZE_MAX / 3, 3, &out));
    assert_true(out == SIZE_MAX / 3 * 3);
    out = 77;
    assert_false(quire_ckd_mul(SIZE_MAX / 3 + 1, 3, &out));
    assert_false(quire_ckd_mul(SIZE_MAX, SIZE_MAX, &out));
    assert_int_equal(out, 77);
    assert_true(quire_ckd_mul(SIZE_MAX, 0, &out));
    assert_int_equal(out, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_check_aborts_and_says_where),
        cmocka_unit_test(a_holding_check_does_nothing),
        cmocka_unit_test(asserts_are_on_in_checked_builds_only),
        cmocka_unit_test(try_stops_at_the_first_failure),
        cmocka_unit_test(checked_arithmetic_stops_at_the_edge),
    };

    return cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
