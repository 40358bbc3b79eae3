/* fuzz_http.c - a client sends any bytes: the server answers in HTTP or not at all.
 *
 * SPDX-License-Identifier: MIT */
#include "http_exercise.h"

#include "base/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    size_t n;

    if (size_bytes <= HTTP_EXERCISE_BYTES_MAX) {
        const char *reply = http_exercise(data, size_bytes, false, &n);

        QUIRE_CHECK(n == 0 || strncmp(reply, "HTTP/1.1 ", 9) == 0 ||
                    strncmp(reply, "HTTP/1.0 ", 9) == 0);
    }
    return 0;
}
