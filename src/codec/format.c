/* format.c - names and sizes of the tile formats.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/sealed.h"

#include <string.h>

static const char *const format_names[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_FORMAT_MAP(X)
#undef X
};

const char *quire_format_name(quire_format format)
{
    return (unsigned)format < QUIRE_FORMAT_COUNT ? format_names[format] : "unknown";
}

int quire_format_parse(const char *name, quire_format *out)
{
    for (unsigned i = 0; i < QUIRE_FORMAT_COUNT; i++) {
        if (strcmp(name, format_names[i]) == 0) {
            *out = (quire_format)i;
            return QUIRE_OK;
        }
    }
    return QUIRE_INVAL;
}

bool quire_format_is_sealed(quire_format format)
{
    return (unsigned)format >= QUIRE_FORMATS_DIRECT && format < QUIRE_FORMAT_COUNT;
}

size_t quire_tile_bytes(quire_format format, quire_side side, uint32_t d)
{
    if (d == 0 || d > QUIRE_HEAD_DIM_MAX || d % QUIRE_HEAD_DIM_MULTIPLE != 0) {
        return 0;
    }
    switch (format) {
    case QUIRE_FORMAT_F32:
        return (size_t)QUIRE_TILE_TOKENS * d * 4u;
    case QUIRE_FORMAT_F16:
    case QUIRE_FORMAT_BF16:
        return (size_t)QUIRE_TILE_TOKENS * d * 2u;
    case QUIRE_FORMAT_Q8:
        return (size_t)QUIRE_TILE_TOKENS * (d + 2u);
    case QUIRE_FORMAT_Q6:
    case QUIRE_FORMAT_Q5:
    case QUIRE_FORMAT_Q4:
    case QUIRE_FORMAT_Q3:
        return quire_sealed_tile_bytes(format, side, d);
    case QUIRE_FORMAT_COUNT:
        break;
    }
    return 0;
}

double quire_format_bits(quire_format format, quire_side side, uint32_t d)
{
    return d == 0
               ? 0.0
               : (double)quire_tile_bytes(format, side, d) * 8.0 / (QUIRE_TILE_TOKENS * (double)d);
}
