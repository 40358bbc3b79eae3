/* valkey_key.c - see valkey_key.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_key.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CRC16_POLYNOMIAL 0x1021u /* x^16 + x^12 + x^5 + 1, the XMODEM form */

static uint16_t crc16(const char *bytes, size_t n)
{
    uint32_t crc = 0;

    for (size_t i = 0; i < n; i++) {
        crc ^= (uint32_t)(unsigned char)bytes[i] << 8;
        for (uint32_t bit = 0; bit < 8; bit++) {
            crc = (crc & 0x8000u) != 0 ? crc << 1 ^ CRC16_POLYNOMIAL : crc << 1;
        }
        crc &= 0xffffu;
    }
    return (uint16_t)crc;
}

uint16_t quire_valkey_slot(const char *key, size_t n)
{
    const char *open = memchr(key, '{', n);
    const char *close = open != NULL ? memchr(open, '}', n - (size_t)(open - key)) : NULL;

    if (close != NULL && close > open + 1) {
        return crc16(open + 1, (size_t)(close - open - 1)) % QUIRE_VALKEY_SLOTS;
    }
    return crc16(key, n) % QUIRE_VALKEY_SLOTS;
}

typedef struct hex {
    char digits[2 * QUIRE_PAGE_KEY_BYTES + 1];
} hex;

static hex hex_of(const quire_page_key *key)
{
    static const char digits[] = "0123456789abcdef";
    hex out = { { 0 } };

    for (uint32_t i = 0; i < QUIRE_PAGE_KEY_BYTES; i++) {
        out.digits[2 * i] = digits[key->bytes[i] >> 4];
        out.digits[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    return out;
}

__attribute__((format(printf, 2, 3))) static void set(quire_valkey_name *out, const char *format,
                                                      ...);
static void set(quire_valkey_name *out, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    out->n = (uint32_t)vsnprintf(out->text, sizeof out->text, format, list);
    va_end(list);
}

void quire_valkey_name_head(quire_valkey_name *out, const char *fleet, const quire_page_key *root,
                            const quire_page_key *key)
{
    set(out, "quire:%s:%s:{%s}:h", fleet, hex_of(root).digits, hex_of(key).digits);
}

void quire_valkey_name_chunk(quire_valkey_name *out, const char *fleet, const quire_page_key *root,
                             const quire_page_key *key, uint32_t chunk)
{
    set(out, "quire:%s:%s:{%s}:%" PRIu32, fleet, hex_of(root).digits, hex_of(key).digits, chunk);
}

void quire_valkey_name_epoch(quire_valkey_name *out, const char *fleet, char kind,
                             const quire_page_key *key)
{
    set(out, "quire:%s:%c:%s", fleet, kind, hex_of(key).digits);
}

void quire_valkey_name_quota(quire_valkey_name *out, const char *fleet,
                             const quire_page_key *tenant, uint64_t window)
{
    set(out, "quire:%s:q:%s:%" PRIu64, fleet, hex_of(tenant).digits, window);
}

void quire_valkey_name_channel(quire_valkey_name *out, const char *fleet)
{
    set(out, "quire:%s:drops", fleet);
}
