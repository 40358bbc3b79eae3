/* test_client_watch.c - the time that a client may take for headers and for a reply.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/client_watch.h"

#include <sys/socket.h>
#include <unistd.h>

#define SECOND_US UINT64_C(1000000)

/* Limits that the watch's own thread does not reach. */
#define HEADERS_S 1000u
#define REQUEST_S 5000u

static bool is_shut(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void slow_clients_are_shut_down(void **state)
{
    const uint64_t now_us = quire_clock_ns() / 1000;
    quire_client a, b;
    quire_client_watch *watch;
    int of_a[2], of_b[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, of_a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, of_b), 0);
    assert_int_equal(quire_client_watch_start(&watch, HEADERS_S, REQUEST_S, NULL), QUIRE_OK);
    quire_client_watch_add(watch, &a, of_a[0], now_us);
    quire_client_watch_add(watch, &b, of_b[0], now_us);
    quire_client_watch_turn(watch, &b, true, now_us);
    quire_client_watch_look(watch, now_us + HEADERS_S * SECOND_US);
    assert_false(is_shut(of_a[1]));
    quire_client_watch_look(watch, now_us + HEADERS_S * SECOND_US + 1);
    assert_true(is_shut(of_a[1]));
    assert_false(is_shut(of_b[1]));
    quire_client_watch_remove(watch, &a);
    /* A reply begins the time for the next headers. */
    quire_client_watch_turn(watch, &b, false, now_us + REQUEST_S * SECOND_US);
    quire_client_watch_turn(watch, &b, true, now_us + REQUEST_S * SECOND_US);
    quire_client_watch_look(watch, now_us + 2 * REQUEST_S * SECOND_US);
    assert_false(is_shut(of_b[1]));
    quire_client_watch_look(watch, now_us + 2 * REQUEST_S * SECOND_US + 1);
    assert_true(is_shut(of_b[1]));
    quire_client_watch_remove(watch, &b);
    quire_client_watch_stop(watch);
    for (int i = 0; i < 2; i++) {
        (void)close(of_a[i]);
        (void)close(of_b[i]);
    }
}

static void without_limits_nothing_is_shut_down(void **state)
{
    quire_client w;
    quire_client_watch *watch;
    int fds[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(quire_client_watch_start(&watch, 0, 0, NULL), QUIRE_OK);
    quire_client_watch_add(watch, &w, fds[0], 0);
    quire_client_watch_look(watch, UINT64_MAX);
    quire_client_watch_turn(watch, &w, true, 0);
    quire_client_watch_look(watch, UINT64_MAX);
    assert_false(is_shut(fds[1]));
    quire_client_watch_remove(watch, &w);
    quire_client_watch_stop(watch);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_clients_are_shut_down),
        cmocka_unit_test(without_limits_nothing_is_shut_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
