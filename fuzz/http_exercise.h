/* http_exercise.h - a server with the tests' double of the engine behind it, fed through socket
 * pairs: for fuzz targets.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_FUZZ_HTTP_EXERCISE_H
#define QUIRE_FUZZ_HTTP_EXERCISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_EXERCISE_BYTES_MAX (64u << 10) /* bytes sent, which fit a socket's buffer */
#define HTTP_EXERCISE_REPLY_MAX (1u << 20)

/* Send the bytes over a new connection, and read the reply until the server closes the connection.
 * When the bytes are no whole request, the client closes its side once the server waits for more. A
 * whole request must ask the server to close. Returns the reply, with a zero byte behind it, when
 * the connection is gone on the server's side too. Memory: static, until the next call. Aborts when
 * the reply is larger than HTTP_EXERCISE_REPLY_MAX. */
const char *http_exercise(const void *data, size_t size_bytes, bool is_whole, size_t *reply_bytes);

#endif /* QUIRE_FUZZ_HTTP_EXERCISE_H */
