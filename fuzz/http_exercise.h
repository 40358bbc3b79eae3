/* http_exercise.h - a server with the tests' double of the engine behind it, fed through socket
 * pairs: for fuzz targets.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_FUZZ_HTTP_EXERCISE_H
#define QUIRE_FUZZ_HTTP_EXERCISE_H

#include <stddef.h>
#include <stdint.h>

#define HTTP_EXERCISE_BYTES_MAX (64u << 10) /* of what is sent, which fits a socket's buffer */
#define HTTP_EXERCISE_REPLY_MAX (256u << 10)

/* Send the bytes over a connection of its own, and take what comes until the server closes it.
 * Where the server waits for more, the connection's end is sent, so that it closes. Returns when
 * the connection is gone on the server's side too. Returns the reply, with a zero byte behind it.
 * Memory: static, until the next call. Aborts when the reply is larger than
 * HTTP_EXERCISE_REPLY_MAX. */
const char *http_exercise(const void *data, size_t size_bytes, size_t *reply_bytes);

#endif /* QUIRE_FUZZ_HTTP_EXERCISE_H */
