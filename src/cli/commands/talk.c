/* talk.c - stderr, stdout and Ctrl-C.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/talk.h"

#include "base/clock.h"
#include "model/model.h"
#include "model/text.h"
#include "quire/status.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* State of the program's only terminal and stdout. */
static bool progress_is_shown;
static int stdout_errno; /* of the first write that failed */
static volatile sig_atomic_t interrupt_flag;
static int interrupt_pipe[2] = { -1, -1 }; /* a byte for each signal: poll() cannot miss it */

void quire_say(const char *format, ...)
{
    va_list ap;

    quire_progress_end();
    fputs("quire: ", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

int quire_say_error(const quire_error *err, int exit_status)
{
    quire_say("%s", err->message[0] != '\0' ? err->message : quire_status_text(err->status));
    return exit_status;
}

int quire_say_nomem(void)
{
    quire_say("out of memory");
    return QUIRE_EXIT_FAILED;
}

void quire_progress(const char *format, ...)
{
    va_list ap;

    if (!isatty(STDERR_FILENO)) {
        return;
    }
    fputs("\r\033[K", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fflush(stderr);
    progress_is_shown = true;
}

void quire_progress_end(void)
{
    if (progress_is_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        progress_is_shown = false;
    }
}

/* Without these three the next file that is opened would get one of their numbers, and messages or
 * results would go into it. /dev/null is opened the wrong way round: reads and writes fail as on a
 * closed descriptor. */
static void keep_standard_numbers(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

void quire_stdout_open(void)
{
    keep_standard_numbers();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static bool keep_stdout_error(bool is_ok)
{
    if (!is_ok && stdout_errno == 0) {
        stdout_errno = errno != 0 ? errno : EIO;
    }
    return is_ok;
}

bool quire_stdout_write(const char *text, size_t text_bytes)
{
    if (stdout_errno != 0) {
        return false;
    }
    errno = 0;
    return keep_stdout_error(fwrite(text, 1, text_bytes, stdout) == text_bytes &&
                             fflush(stdout) == 0);
}

bool quire_stdout_is_lost(void)
{
    return stdout_errno != 0;
}

static int print_json(json_t *document, size_t layout)
{
    int rc;

    if (document == NULL) {
        return quire_say_nomem();
    }
    errno = 0;
    /* 12 digits: more than the precision of any figure here, and 0.1 stays 0.1. */
    rc = json_dumpf(document, stdout, layout | JSON_REAL_PRECISION(12));
    json_decref(document);
    if (rc != 0 && errno == 0 && !ferror(stdout)) {
        return quire_say_nomem();
    }
    (void)keep_stdout_error(rc == 0);
    return quire_stdout_write("\n", 1) ? QUIRE_EXIT_OK : QUIRE_EXIT_FAILED;
}

int quire_stdout_json(json_t *document)
{
    return print_json(document, JSON_INDENT(2));
}

int quire_stdout_json_line(json_t *document)
{
    return print_json(document, 0);
}

int quire_stdout_close(int exit_status)
{
    bool is_written;

    /* After a write inside of printf() has failed, the flush fails once more and says why. */
    errno = 0;
    is_written = fflush(stdout) == 0;
    (void)keep_stdout_error(is_written && !ferror(stdout));
    errno = 0;
    (void)keep_stdout_error(fclose(stdout) == 0);
    if (stdout_errno != 0) {
        quire_say("cannot write to standard output: %s", strerror(stdout_errno));
        return QUIRE_EXIT_FAILED;
    }
    return exit_status;
}

json_t *quire_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *quire_json_bytes(const char *text, size_t text_bytes)
{
    quire_utf8_stream stream = { .n_held = 0 };
    char *clean = malloc(3 * (text_bytes + 3) + 3);
    json_t *string = NULL;
    size_t n;

    if (clean == NULL) {
        return NULL;
    }
    n = quire_utf8_stream_feed(&stream, text, text_bytes, clean);
    n += quire_utf8_stream_flush(&stream, clean + n);
    string = json_stringn(clean, n);
    free(clean);
    return string;
}

static void on_interrupt(int signal_number)
{
    const int kept = errno;

    if (interrupt_flag) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    interrupt_flag = 1;
    (void)!write(interrupt_pipe[1], "", 1);
    errno = kept;
}

void quire_interrupt_catch(void)
{
    struct sigaction action = { .sa_handler = on_interrupt }; /* no SA_RESTART: reads must return */

    if (interrupt_pipe[0] < 0 && pipe2(interrupt_pipe, O_CLOEXEC | O_NONBLOCK) < 0) {
        return; /* no descriptor left: Ctrl-C ends the program at once */
    }
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool quire_interrupt_seen(void)
{
    return interrupt_flag != 0;
}

void quire_interrupt_clear(void)
{
    char bytes[16];

    interrupt_flag = 0;
    while (read(interrupt_pipe[0], bytes, sizeof(bytes)) > 0) {
    }
}

bool quire_interrupt_wait_stdin(void)
{
    struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN },
                            { .fd = interrupt_pipe[0], .events = POLLIN } };

    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    return !quire_interrupt_seen();
}

double quire_now_s(void)
{
    return 1e-9 * (double)quire_clock_ns();
}

double quire_rate(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}
