/* text_buffer.h - a text that grows in a buffer and is cut when the buffer is full.
 *
 * Start with { buffer, size, 0 } and buffer[0] = '\0'; size > 0. The text is terminated after every
 * call.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_TEXT_BUFFER_H
#define QUIRE_BASE_TEXT_BUFFER_H

#include <stddef.h>

typedef struct quire_text {
    char *buffer;
    size_t size;
    size_t n; /* characters so far */
} quire_text;

__attribute__((format(printf, 2, 3))) void quire_text_add(quire_text *text, const char *format,
                                                          ...);

#endif /* QUIRE_BASE_TEXT_BUFFER_H */
