/* serve_signals.c - see serve_signals.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static int signal_pipe[2] = { -1, -1 };

static void on_signal(int number)
{
    const int before = errno;
    const char byte = (char)number;
    ssize_t n = write(signal_pipe[1], &byte, 1);

    (void)n; /* a full pipe already holds signals */
    errno = before;
}

int quire_signals_catch(quire_error *err)
{
    /* Waits of other threads go on. */
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    if (signal_pipe[0] >= 0) {
        return QUIRE_OK; /* of the start before */
    }
    if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        return quire_error_set_errno(err, errno, "cannot make a pipe for signals");
    }
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    return QUIRE_OK;
}

void quire_signals_release(void)
{
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    for (int i = 0; i < 2; i++) {
        if (signal_pipe[i] >= 0) {
            (void)close(signal_pipe[i]);
        }
        signal_pipe[i] = -1;
    }
}

int quire_signal_next(int timeout_ms)
{
    struct pollfd ready = { .fd = signal_pipe[0], .events = POLLIN };
    char byte;

    do {
        if (read(signal_pipe[0], &byte, 1) == 1) {
            return byte;
        }
    } while (poll(&ready, 1, timeout_ms) > 0 || timeout_ms < 0);
    return 0;
}
