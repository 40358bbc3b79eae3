/* base64.c - see base64.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/base64.h"

int quire_base64_add(quire_bytes *out, const void *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const unsigned group = (unsigned)bytes[i] << 16 |
                               (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                               (left > 2 ? bytes[i + 2] : 0);
        const char text[4] = { digits[group >> 18], digits[group >> 12 & 63],
                               (char)(left > 1 ? digits[group >> 6 & 63] : '='),
                               (char)(left > 2 ? digits[group & 63] : '=') };

        (void)quire_bytes_add(out, text, sizeof text);
    }
    return out->status;
}
