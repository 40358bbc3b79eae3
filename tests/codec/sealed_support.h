/* sealed_support.h - a sealed tile under test: its input, its bytes, and the decoded values.
 *
 * Codes are read here by the formula of quire/codec.h, one by one, so that encoder and decoder
 * cannot agree on a wrong layout.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SEALED_SUPPORT_H
#define QUIRE_TESTS_SEALED_SUPPORT_H

#include "codec/codec_support.h"
#include "codec/sealed.h"

typedef struct sealed_fixture {
    quire_format format;
    quire_side side;
    quire_tile_rows rows;
    float *x;
    float *y;
    unsigned char *tile;
    size_t tile_bytes;
} sealed_fixture;

sealed_fixture sealed_take(quire_format format, quire_side side, uint32_t d, uint32_t stride);
void sealed_release(sealed_fixture *f);

/* x of all rows, and between them; the kinds of codec_random_value(). */
void sealed_fill(sealed_fixture *f, quire_rng *rng, uint32_t kind);

void sealed_tile_encode(const quire_codec *codec, sealed_fixture *f);
void sealed_tile_decode(const quire_codec *codec, sealed_fixture *f);

/* x to the tile to y, with the codec of this machine. */
void sealed_round_trip(sealed_fixture *f);

float *sealed_row(const sealed_fixture *f, uint32_t t);
float *sealed_decoded(const sealed_fixture *f, uint32_t t);

uint16_t sealed_scale_bits(const sealed_fixture *f, uint32_t t);
double sealed_scale(const sealed_fixture *f, uint32_t t);

/* 0 where the tile has none. */
double sealed_mean(const sealed_fixture *f, uint32_t i);

/* The b bits of dimension i, slot t in a plane, as quire/codec.h draws it. */
uint32_t sealed_plane_bits(const sealed_fixture *f, const unsigned char *plane, uint32_t b,
                           const uint32_t at[2]);

/* Code and level of dimension i, slot t. */
uint32_t sealed_code(const sealed_fixture *f, uint32_t i, uint32_t t);
int sealed_level(const sealed_fixture *f, uint32_t i, uint32_t t);

/* Run a check for every sealed format and side. */
typedef void (*sealed_check)(quire_format format, quire_side side);
void sealed_for_each(sealed_check run);

#endif /* QUIRE_TESTS_SEALED_SUPPORT_H */
