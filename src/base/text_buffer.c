/* text_buffer.c - see text_buffer.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/text_buffer.h"

#include <stdarg.h>
#include <stdio.h>

void quire_text_add(quire_text *text, const char *format, ...)
{
    va_list ap;
    int n;

    va_start(ap, format);
    n = vsnprintf(text->buffer + text->n, text->size - text->n, format, ap);
    va_end(ap);
    if (n > 0) {
        text->n = text->n + (size_t)n < text->size ? text->n + (size_t)n : text->size - 1;
    }
}
