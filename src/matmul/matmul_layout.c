/* matmul_layout.c - weights from GGUF's blocks into panels (matmul.h has the layouts).
 *
 * A block of 32 is unpacked into its codes (one byte each, four in a word), and packed again in the
 * layout of panels.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_grids.h"

#include "base/check.h"

#include <string.h>

#define HALF_BYTES 2u /* of an f16 */
#define LOW_FOUR   0x0f0f0f0fu
#define LOW_TWO    0x03030303u
#define LOW_ONE    0x01010101u

enum {
    PANEL = QUIRE_MATMUL_PANEL,
    WORDS = QUIRE_MATMUL_BLOCK / 4,
    SUPER = 256 /* inputs of a K-quant's block */
};

/* Offsets in GGUF's blocks. */
enum {
    Q4_1_CODES = 4,
    Q5_0_HIGH = 2,
    Q5_1_HIGH = 4,
    K_SCALES = 4, /* of Q4_K and Q5_K: 3 words */
    K_SCALE_WORDS = 3,
    Q4_K_CODES = 16,
    Q5_K_HIGH = 16,
    Q5_K_CODES = 48,
    Q6_K_HIGH = 128,
    Q6_K_SCALES = 192,
    Q6_K_D = 208,
    Q2_K_CODES = 16,
    Q2_K_D = 80,
    Q2_K_MIN = 82,
    Q3_K_CODES = 32,
    Q3_K_SCALES = 96,
    Q3_K_D = 108,
    IQ4_XS_HIGH = 2,
    IQ4_XS_LOW = 4,
    IQ4_XS_CODES = 8,
    IQ2_S_SIGNS = 34,
    IQ3_XXS_SIGNS = 66,
    IQ3_S_SIGNS = 74,
    IQ_S_HIGH = 66, /* of IQ2_S and IQ3_S */
    IQ2_XS_SCALES = 66,
    IQ2_S_SCALES = 74,
    IQ3_S_SCALES = 106,
    IQ1_S_HIGH = 34,
    IQ1_M_HIGH = 32,
    IQ1_M_SCALES = 48
};

const uint8_t quire_matmul_iq4_nl[16] = { 1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241 };
const uint8_t quire_matmul_mxfp4[16] = { 128, 129, 130, 131, 132, 134, 136, 140,
                                         128, 127, 126, 125, 124, 122, 120, 116 };

/* ---- sizes ---- */

bool quire_matmul_takes(quire_matmul_type type, uint64_t n_in, uint64_t n_out)
{
    return n_in > 0 && n_in % quire_matmul_layouts[type].group == 0 && n_out > 0 &&
           n_out % PANEL == 0 && n_in <= UINT32_MAX && n_out <= UINT32_MAX;
}

size_t quire_matmul_panel_bytes(quire_matmul_type type, uint32_t n_in)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];

    return (size_t)n_in / l->group * PANEL * l->gguf_bytes;
}

size_t quire_matmul_weight_bytes(quire_matmul_type type, uint32_t n_in, uint32_t n_out)
{
    return n_out / PANEL * quire_matmul_panel_bytes(type, n_in);
}

/* ---- out of GGUF's blocks ---- */

static uint32_t word_at(const unsigned char *bytes, uint32_t i)
{
    uint32_t word;

    memcpy(&word, bytes + (size_t)4 * i, sizeof word);
    return word;
}

static uint32_t half_at(const unsigned char *bytes, uint32_t i)
{
    return bytes[2 * i] | (uint32_t)bytes[2 * i + 1] << 8;
}

static void nibbles_read(const unsigned char *from, uint32_t words[WORDS])
{
    for (uint32_t k = 0; k < WORDS / 2; k++) {
        const uint32_t word = word_at(from, k);

        words[k] = word & LOW_FOUR;
        words[k + WORDS / 2] = word >> 4 & LOW_FOUR;
    }
}

/* Nibbles and, by input, a word of fifth bits before them. */
static void fives_read(const unsigned char *high, uint32_t words[WORDS])
{
    const uint32_t bits = word_at(high, 0);

    nibbles_read(high + sizeof bits, words);
    for (uint32_t k = 0; k < WORDS; k++) {
        /* Four bits to the lowest of four bytes. */
        words[k] |= ((bits >> (4 * k) & 15) * 0x00204081u & LOW_ONE) << 4;
    }
}

/* Block b of Q4_K's or Q5_K's nibbles: two blocks share 32 bytes. */
static void k_nibbles_read(const unsigned char *from, uint32_t b, uint32_t words[WORDS])
{
    for (uint32_t k = 0; k < WORDS; k++) {
        words[k] =
            word_at(from + (size_t)b / 2 * QUIRE_MATMUL_BLOCK, k) >> (4 * (b % 2)) & LOW_FOUR;
    }
}

/* Block b of Q6_K: four blocks share 64 bytes of nibbles and 32 of upper bits. */
static void q6_k_read(const unsigned char *block, uint32_t b, uint32_t words[WORDS])
{
    const unsigned char *low = block + (size_t)b / 4 * 64 + (size_t)b % 2 * 32;
    const unsigned char *high = block + Q6_K_HIGH + (size_t)b / 4 * 32;

    for (uint32_t k = 0; k < WORDS; k++) {
        words[k] = (word_at(low, k) >> (4 * (b % 4 / 2)) & LOW_FOUR) |
                   (word_at(high, k) >> (2 * (b % 4)) & LOW_TWO) << 4;
    }
}

/* Block b of Q2_K's or Q3_K's codes of two bits: four blocks share 32 bytes. */
static void twos_read(const unsigned char *from, uint32_t b, uint32_t words[WORDS])
{
    for (uint32_t k = 0; k < WORDS; k++) {
        words[k] = word_at(from + (size_t)b / 4 * QUIRE_MATMUL_BLOCK, k) >> (2 * (b % 4)) & LOW_TWO;
    }
}

/* Codes of the 32 inputs b of a block of GGUF's. */
static void codes_read(quire_matmul_type type, const unsigned char *block, uint32_t b,
                       uint32_t words[WORDS])
{
    switch (type) {
    case QUIRE_MATMUL_Q8_0:
        for (uint32_t k = 0; k < WORDS; k++) {
            words[k] = word_at(block + HALF_BYTES, k) ^ 0x80808080u;
        }
        break;
    case QUIRE_MATMUL_Q4_0:
    case QUIRE_MATMUL_IQ4_NL:
        nibbles_read(block + HALF_BYTES, words);
        break;
    case QUIRE_MATMUL_Q4_1:
        nibbles_read(block + Q4_1_CODES, words);
        break;
    case QUIRE_MATMUL_MXFP4:
        nibbles_read(block + (size_t)b * QUIRE_MATMUL_MXFP4_BYTES + 1, words);
        break;
    case QUIRE_MATMUL_Q5_0:
        fives_read(block + Q5_0_HIGH, words);
        break;
    case QUIRE_MATMUL_Q5_1:
        fives_read(block + Q5_1_HIGH, words);
        break;
    case QUIRE_MATMUL_Q4_K:
        k_nibbles_read(block + Q4_K_CODES, b, words);
        break;
    case QUIRE_MATMUL_Q5_K:
        k_nibbles_read(block + Q5_K_CODES, b, words);
        for (uint32_t k = 0; k < WORDS; k++) {
            words[k] |= (word_at(block + Q5_K_HIGH, k) >> b & LOW_ONE) << 4;
        }
        break;
    case QUIRE_MATMUL_Q2_K:
        twos_read(block + Q2_K_CODES, b, words);
        break;
    case QUIRE_MATMUL_Q3_K:
        twos_read(block + Q3_K_CODES, b, words);
        for (uint32_t k = 0; k < WORDS; k++) {
            words[k] |= (word_at(block, k) >> b & LOW_ONE) << 2;
        }
        break;
    case QUIRE_MATMUL_IQ4_XS:
        nibbles_read(block + IQ4_XS_CODES + (size_t)b * QUIRE_MATMUL_BLOCK / 2, words);
        break;
    case QUIRE_MATMUL_Q6_K:
    default:
        q6_k_read(block, b, words);
        break;
    }
}

/* ---- into panels ---- */

static void word_put(unsigned char *lane, uint32_t line, uint32_t word)
{
    memcpy(lane + (size_t)line * 4 * PANEL, &word, sizeof word);
}

/* Codes of two bits; a third one in a line of its own. */
static void twos_write(quire_matmul_type type, const uint32_t words[WORDS], unsigned char *lane)
{
    uint32_t twos[2] = { 0, 0 };
    uint32_t third = 0;

    for (uint32_t k = 0; k < WORDS; k++) {
        twos[k / 4] |= (words[k] & LOW_TWO) << (2 * (k % 4));
        third |= (words[k] >> 2 & LOW_ONE) << k;
    }
    word_put(lane, 0, twos[0]);
    word_put(lane, 1, twos[1]);
    if (type == QUIRE_MATMUL_Q3_K) {
        word_put(lane, 2, third);
    }
}

static void codes_write(quire_matmul_type type, const uint32_t words[WORDS], unsigned char *lane)
{
    const uint32_t n_lines = quire_matmul_layouts[type].code_bytes / (4 * PANEL);
    uint32_t high[2] = { 0, 0 };

    if (type == QUIRE_MATMUL_Q8_0) {
        for (uint32_t k = 0; k < WORDS; k++) {
            word_put(lane, k, words[k]);
        }
        return;
    }
    if (type == QUIRE_MATMUL_Q2_K || type == QUIRE_MATMUL_Q3_K) {
        twos_write(type, words, lane);
        return;
    }
    for (uint32_t k = 0; k < WORDS / 2; k++) {
        word_put(lane, k, (words[k] & LOW_FOUR) | (words[k + WORDS / 2] & LOW_FOUR) << 4);
    }
    for (uint32_t k = 0; k < WORDS; k++) {
        if (type == QUIRE_MATMUL_Q6_K) {
            high[k / 4] |= (words[k] >> 4 & LOW_TWO) << (2 * (k % 4));
        } else {
            high[0] |= (words[k] >> 4 & LOW_ONE) << k;
        }
    }
    for (uint32_t line = WORDS / 2; line < n_lines; line++) {
        word_put(lane, line, high[line - WORDS / 2]);
    }
}

/* Four bytes of eight, one of each two. */
static uint32_t evens_at(const unsigned char *from)
{
    return from[0] | (uint32_t)from[2] << 8 | (uint32_t)from[4] << 16 | (uint32_t)from[6] << 24;
}

/* Upper bits of four indices, n each: bit p of each to word p of the output's side. Outputs come in
 * ascending order. */
static void high_write(uint32_t bits, uint32_t n, unsigned char *high, uint32_t lane)
{
    for (uint32_t p = 0; p < n; p++) {
        unsigned char *byte = high + (size_t)8 * (lane / 16 * n + p) + lane % 16 / 2;
        const uint32_t some = bits >> p;
        const uint32_t four = (some & 1) | (some >> (n - 1) & 2) | (some >> (2 * n - 2) & 4) |
                              (some >> (3 * n - 3) & 8);

        *byte = (unsigned char)(lane % 2 == 0 ? four : *byte | four << 4);
    }
}

/* The 32 inputs b of a block of a type with a grid, to a panel's group. */
static void grid_write(quire_matmul_type type, const unsigned char *block, uint32_t b,
                       unsigned char *head, uint32_t lane)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const unsigned char *eight = block + HALF_BYTES + (size_t)8 * b;
    unsigned char *to = head + l->head_bytes + (size_t)b * l->code_bytes + (size_t)4 * lane;
    unsigned char *high = head + quire_matmul_high_at(type, b);
    const uint32_t n_high = quire_matmul_high_words(type);
    uint32_t word;

    switch (type) {
    case QUIRE_MATMUL_IQ2_XS:
        word_put(to, 0, evens_at(eight));
        word = evens_at(eight + 1); /* the ninth bit of an index, seven signs */
        word_put(to, 1, (word >> 1 & 0x7f7f7f7fu) | (word & LOW_ONE) << 7);
        break;
    case QUIRE_MATMUL_IQ2_S:
        word_put(to, 0, word_at(block + HALF_BYTES, b));
        word_put(to, 1, word_at(block + IQ2_S_SIGNS, b));
        high_write(block[IQ_S_HIGH + b], n_high, high, lane);
        break;
    case QUIRE_MATMUL_IQ1_S:
        word_put(to, 0, word_at(block + HALF_BYTES, b));
        high_write(half_at(block + IQ1_S_HIGH, b), n_high, high, lane);
        break;
    case QUIRE_MATMUL_IQ1_M:
        word_put(to, 0, word_at(block, b));
        high_write(half_at(block + IQ1_M_HIGH, b), n_high, high, lane);
        break;
    case QUIRE_MATMUL_IQ3_XXS:
    case QUIRE_MATMUL_IQ3_S:
        word_put(to, 0, evens_at(eight));
        word_put(to, 1, evens_at(eight + 1));
        if (type == QUIRE_MATMUL_IQ3_XXS) {
            word_put(to, 2, word_at(block + IQ3_XXS_SIGNS, b));
        } else {
            word_put(to, 2, word_at(block + IQ3_S_SIGNS, b));
            high_write(block[IQ_S_HIGH + b], n_high, high, lane);
        }
        break;
    case QUIRE_MATMUL_IQ2_XXS:
    default:
        word_put(to, 0, word_at(eight, 0));
        word_put(to, 1, word_at(eight, 1));
        break;
    }
}

/* n words of GGUF's, of an output, to lines that begin at `lines`. */
static void words_write(const unsigned char *from, uint32_t n, unsigned char *lines, uint32_t lane)
{
    for (uint32_t i = 0; i < n; i++) {
        word_put(lines + (size_t)lane * 4, i, word_at(from, i));
    }
}

/* Heads of Q2_K, Q3_K and IQ4_XS. */
static void low_head_write(quire_matmul_type type, const unsigned char *block, unsigned char *head,
                           uint32_t lane)
{
    unsigned char *scale = head + (size_t)lane * HALF_BYTES;
    unsigned char *second = scale + (size_t)PANEL * HALF_BYTES;
    unsigned char *behind_two = head + (size_t)2 * PANEL * HALF_BYTES;

    if (type == QUIRE_MATMUL_Q3_K) {
        memcpy(scale, block + Q3_K_D, HALF_BYTES);
        words_write(block + Q3_K_SCALES, K_SCALE_WORDS, head + (size_t)PANEL * HALF_BYTES, lane);
    } else if (type == QUIRE_MATMUL_Q2_K) {
        memcpy(scale, block + Q2_K_D, HALF_BYTES);
        memcpy(second, block + Q2_K_MIN, HALF_BYTES);
        words_write(block, SUPER / 16 / 4, behind_two, lane);
    } else {
        memcpy(scale, block, HALF_BYTES);
        memcpy(second, block + IQ4_XS_HIGH, HALF_BYTES);
        words_write(block + IQ4_XS_LOW, 1, behind_two, lane);
    }
}

/* Heads of types with grids, but for upper bits of indices. */
static void grid_head_write(quire_matmul_type type, const unsigned char *block, unsigned char *head,
                            uint32_t lane)
{
    unsigned char *scales = head + QUIRE_MATMUL_GRID_SCALES;
    uint32_t nibbles = 0;

    if (type == QUIRE_MATMUL_IQ1_M) { /* has its f16 in them */
        words_write(block + IQ1_M_SCALES, 2, head, lane);
        return;
    }
    memcpy(head + (size_t)lane * HALF_BYTES, block, HALF_BYTES);
    if (type == QUIRE_MATMUL_IQ2_XS) {
        words_write(block + IQ2_XS_SCALES, 2, scales, lane);
    } else if (type == QUIRE_MATMUL_IQ2_S) {
        words_write(block + IQ2_S_SCALES, 2, scales, lane);
    } else if (type == QUIRE_MATMUL_IQ3_S) {
        words_write(block + IQ3_S_SCALES, 1, scales, lane);
    } else if (type == QUIRE_MATMUL_IQ1_S) {
        for (uint32_t b = 0; b < SUPER / QUIRE_MATMUL_BLOCK; b++) {
            nibbles |= half_at(block + IQ1_S_HIGH, b) >> 12 << (4 * b);
        }
        word_put(scales + (size_t)4 * lane, 0, nibbles);
    }
}

static void head_write(quire_matmul_type type, const unsigned char *block, unsigned char *head,
                       uint32_t lane)
{
    unsigned char *scale = head + (size_t)lane * HALF_BYTES;
    unsigned char *min = scale + (size_t)PANEL * HALF_BYTES;

    if (type == QUIRE_MATMUL_MXFP4) {
        head[lane] = block[0];
        head[PANEL + lane] = block[QUIRE_MATMUL_MXFP4_BYTES];
        return;
    }
    if (quire_matmul_has_grid(type)) {
        grid_head_write(type, block, head, lane);
        return;
    }
    if (type == QUIRE_MATMUL_Q2_K || type == QUIRE_MATMUL_Q3_K || type == QUIRE_MATMUL_IQ4_XS) {
        low_head_write(type, block, head, lane);
        return;
    }
    if (type == QUIRE_MATMUL_Q6_K) {
        memcpy(scale, block + Q6_K_D, HALF_BYTES);
        for (uint32_t i = 0; i < SUPER / 16; i++) {
            head[PANEL * HALF_BYTES + i * PANEL + lane] = block[Q6_K_SCALES + i];
        }
        return;
    }
    memcpy(scale, block, HALF_BYTES);
    if (quire_matmul_layouts[type].head_bytes > PANEL * HALF_BYTES) {
        memcpy(min, block + HALF_BYTES, HALF_BYTES);
    }
    if (type == QUIRE_MATMUL_Q4_K || type == QUIRE_MATMUL_Q5_K) {
        for (uint32_t i = 0; i < K_SCALE_WORDS; i++) {
            word_put(head + (size_t)lane * 4, i + 1, word_at(block + K_SCALES, i));
        }
    }
}

void quire_matmul_weight_pack(const quire_matmul_weight *weight, const void *rows)
{
    const quire_matmul_type type = weight->type;
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const size_t panel_bytes = quire_matmul_panel_bytes(type, weight->n_in);
    const unsigned char *block = rows;

    QUIRE_CHECK(quire_matmul_takes(type, weight->n_in, weight->n_out));
    for (uint32_t out = 0; out < weight->n_out; out++) {
        const uint32_t lane = out % PANEL;
        unsigned char *head = weight->panels + out / PANEL * panel_bytes;

        for (uint32_t g = 0; g < weight->n_in / l->group; g++) {
            unsigned char *codes = head + l->head_bytes + (size_t)lane * 4;

            head_write(type, block, head, lane);
            for (uint32_t b = 0; b < l->group / QUIRE_MATMUL_BLOCK; b++) {
                uint32_t words[WORDS];

                if (quire_matmul_has_grid(type)) {
                    grid_write(type, block, b, head, lane);
                    continue;
                }
                codes_read(type, block, b, words);
                codes_write(type, words, codes + (size_t)b * l->code_bytes);
            }
            block += l->gguf_bytes;
            head += (size_t)PANEL * l->gguf_bytes;
        }
    }
}
