/* utf8.c - holding back incomplete UTF-8 while text streams; see model.h.
 *
 * Tokens of byte-level vocabularies end inside characters. Invalid input is replaced as Unicode
 * recommends (The Unicode Standard 3.9, "substitution of maximal subparts"): one U+FFFD for each
 * longest run that begins a valid character but does not complete one, or for a byte that begins
 * none.
 *
 * SPDX-License-Identifier: MIT */
#include "model/model.h"
#include "model/text.h"

#include <string.h>

/* Whether `byte` may be at place `i` (1..3) of a character that starts with `lead`. Table 3-7 of
 * the standard excludes overlong forms, surrogates and values beyond U+10FFFF. */
static bool continues(unsigned char lead, uint32_t i, unsigned char byte)
{
    unsigned char low = 0x80, high = 0xbf;

    if (i == 1) {
        low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    }
    return byte >= low && byte <= high;
}

/* Bytes of the character that lead starts, 0 when it starts none. */
static uint32_t length(unsigned char lead)
{
    return lead < 0x80                    ? 1
           : lead >= 0xc2 && lead <= 0xdf ? 2
           : lead >= 0xe0 && lead <= 0xef ? 3
           : lead >= 0xf0 && lead <= 0xf4 ? 4
                                          : 0;
}

static size_t put(char *out, const void *bytes, size_t n)
{
    memcpy(out, bytes, n);
    return n;
}

static size_t put_replacement(char *out)
{
    return put(out, "\xef\xbf\xbd", 3);
}

size_t quire_utf8_stream_feed(quire_utf8_stream *stream, const char *bytes, size_t n, char *out)
{
    size_t written = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)bytes[i];

        if (stream->n_held > 0) {
            if (continues(stream->held[0], stream->n_held, byte)) {
                stream->held[stream->n_held++] = byte;
                if (stream->n_held == length(stream->held[0])) {
                    written += put(out + written, stream->held, stream->n_held);
                    stream->n_held = 0;
                }
                continue;
            }
            written += put_replacement(out + written);
            stream->n_held = 0;
        }
        if (length(byte) == 1) {
            out[written++] = (char)byte;
        } else if (length(byte) == 0) {
            written += put_replacement(out + written);
        } else {
            stream->held[stream->n_held++] = byte;
        }
    }
    return written;
}

bool quire_utf8_stream_skip(quire_utf8_stream *stream, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)bytes[i];

        if (stream->n_held > 0 ? !continues(stream->held[0], stream->n_held, byte)
                               : length(byte) == 0) {
            return false;
        }
        stream->held[stream->n_held++] = byte;
        if (stream->n_held == length(stream->held[0])) {
            stream->n_held = 0;
        }
    }
    return true;
}

size_t quire_utf8_stream_flush(quire_utf8_stream *stream, char *out)
{
    const bool is_broken = stream->n_held > 0;

    stream->n_held = 0;
    return is_broken ? put_replacement(out) : 0;
}
