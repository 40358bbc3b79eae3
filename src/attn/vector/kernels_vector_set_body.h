/* vector/kernels_vector_set_body.h - the functions of a kernel set that choose by format, and the
 * packing of queries for q8: for AVX2 and NEON.
 *
 * The including file has defined:
 *
 *   VECTOR(name)       the functions of its instruction set
 *   VECTOR_Q8_START    the start of a sum of q8, per unit of the sum of the query row: it cancels
 *                      the offset of the stored K codes
 *
 * SPDX-License-Identifier: MIT */

static size_t q_bytes(quire_format format, uint32_t d)
{
    return quire_format_is_sealed(format) ? VECTOR(sealed_q_bytes)(d) : VECTOR(q_bytes)(format, d);
}

/* For each 4 dimensions the pairs (0, 2), (1, 3). */
static void q_pack_q8(uint32_t d, float scale, const float *q, void *packed)
{
    VECTOR(q8_header) *header = packed;
    int16_t *pairs = (int16_t *)(void *)((char *)packed + sizeof(*header));
    int32_t sum = 0;

    header->scale = quire_q8_pack_q(d, scale, q, pairs);
    for (uint32_t i = 0; i < d; i += 4) {
        int16_t second = pairs[i + 1];

        sum += pairs[i] + pairs[i + 1] + pairs[i + 2] + pairs[i + 3];
        pairs[i + 1] = pairs[i + 2];
        pairs[i + 2] = second;
    }
    header->start = VECTOR_Q8_START * sum;
}

static void qk(const quire_attn_qk *args)
{
    if (args->format == QUIRE_FORMAT_Q8) {
        VECTOR(qk_q8)(args);
    } else if (quire_format_is_sealed(args->format)) {
        VECTOR(qk_sealed)(args);
    } else {
        VECTOR(qk_float)(args);
    }
}

static void pv(const quire_attn_pv *args)
{
    if (args->format == QUIRE_FORMAT_Q8) {
        VECTOR(pv_q8)(args);
    } else if (quire_format_is_sealed(args->format)) {
        VECTOR(pv_sealed)(args);
    } else {
        VECTOR(pv_float)(args);
    }
}
