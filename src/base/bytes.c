/* bytes.c - bytes that grow.
 *
 * SPDX-License-Identifier: MIT */
#include "base/bytes.h"

#include "quire/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 64u

static int fail(quire_bytes *bytes)
{
    bytes->status = QUIRE_NOMEM;
    return QUIRE_NOMEM;
}

/* Room for n more bytes and the zero after them. */
static int bytes_reserve(quire_bytes *bytes, size_t n)
{
    size_t capacity = bytes->capacity > 0 ? bytes->capacity : CAPACITY_MIN;
    char *data;

    if (n >= SIZE_MAX / 2 - bytes->n) {
        return fail(bytes);
    }
    while (capacity <= bytes->n + n) {
        capacity *= 2;
    }
    if (capacity == bytes->capacity) {
        return QUIRE_OK;
    }
    data = realloc(bytes->data, capacity);
    if (data == NULL) {
        return fail(bytes);
    }
    bytes->data = data;
    bytes->capacity = capacity;
    return QUIRE_OK;
}

int quire_bytes_add(quire_bytes *bytes, const void *data, size_t n)
{
    if (bytes->status < 0 || bytes_reserve(bytes, n) < 0) {
        return bytes->status;
    }
    if (n > 0) {
        memcpy(bytes->data + bytes->n, data, n);
    }
    bytes->n += n;
    bytes->data[bytes->n] = '\0';
    return QUIRE_OK;
}

int quire_bytes_addf(quire_bytes *bytes, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (bytes->status < 0 || n < 0 || bytes_reserve(bytes, (size_t)n) < 0) {
        return n < 0 ? fail(bytes) : bytes->status;
    }
    va_start(args, format);
    (void)vsnprintf(bytes->data + bytes->n, (size_t)n + 1, format, args);
    va_end(args);
    bytes->n += (size_t)n;
    return QUIRE_OK;
}

void quire_bytes_clear(quire_bytes *bytes)
{
    bytes->n = 0;
    bytes->status = QUIRE_OK;
    if (bytes->data != NULL) {
        bytes->data[0] = '\0';
    }
}

void quire_bytes_fini(quire_bytes *bytes)
{
    free(bytes->data);
    *bytes = (quire_bytes){ 0 };
}

size_t quire_bytes_same(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t n = 0;

    while (n < n_a && n < n_b && a[n] == b[n]) {
        n++;
    }
    return n;
}
