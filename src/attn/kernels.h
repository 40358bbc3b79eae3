/* kernels.h - the inner loops of attention, one table per ISA.
 *
 * The driver (attn_block.c, attn_run.c) walks tiles and owns masks, splits and the order of merges;
 * a kernel set does the arithmetic of one tile for a block of rows. A row is one query head of one
 * query token. The rows of a call of qk or pv share a kv head, so one pass over a tile serves all
 * heads of a GQA group and, in prefill, all query tokens of the block: both products are matrix
 * products in registers.
 *
 *   q_pack    query row -> the form that qk reads (f32, or integers and a scale)
 *   qk        S[r][0..63]  (+)= q_r . K_t         for the 64 slots of a tile
 *   cap       S becomes cap * tanh(S / cap), in layers with a softcap
 *   softmax   online update of (m, l) with S masked to each row's slots; S becomes P, and
 *             rescale[r] = exp(m_old - m_new) is the factor for o. m is a logit seen so far that no
 *             other exceeds by more than QUIRE_ATTN_RISE (the difference as a float): a set may
 *             leave m as it is until then, which spares most tiles the rescaling (as
 *             FlashAttention-4 does), or take the largest
 *   weigh     the weights of a sealed V as integers, in sets that have pv take them
 *   pv        o[r][0..d) = o[r] * rescale[r] + sum_t P[r][t] * V_t
 *   fold      two partial results of a row to one
 *
 * Every row's result is independent of the other rows of the block and of their number: the order
 * of additions for a row is fixed by the tile alone. Slots outside [slot_begin, slot_end) hold
 * anything, NaN included: softmax gives them P = 0 and pv must not let them through. slot_end
 * differs between the rows of one pv call only where V is finite (the driver looks), so P = 0 is
 * enough to keep a token that only later rows see out of the earlier ones. The same of slots that
 * only earlier rows see, because the others' windows end before them: there the driver has put
 * logits of -Inf.
 *
 * Damage shows: NaN in q, in a visible K or V becomes NaN in every output it touches. l carries it:
 * exp(NaN) is NaN and l = NaN stays. A logit of -Inf has weight 0, also when a row has no other yet
 * (m stays -Inf, l stays 0).
 *
 * Accuracy: against exact arithmetic over the same decoded tile, a kernel set stays within the
 * tolerances of tests/attn/tolerance.h. f32, f16 and bf16 tiles are widened to f32 and multiplied
 * with f32 q and P; the sets avx512+bf16 and avx512+amx have q and P in bf16 instead where the tile
 * is bf16, and add the exact products in f32, each in an order of its own; l is the sum of the
 * weights in bf16, so that the weights still add up to one. q8 stays in integers on both sides: q
 * in 8 bits, which adds an error to each logit about as large as that of K's stored codes
 * (docs/formats.md has the cost; attn_pack.c rounds q beforehand to lower this cost), P in 15 bits,
 * so that its rounding is negligible beside that of V's codes; all sums are exact, so every ISA has
 * the same integers:
 *
 *   q_pack  x = scale * q;  s = max|x| / QUIRE_ATTN_Q8_Q_MAX;  n_i = nearest(x_i / s), an int8
 *   qk      S_t = (float)(sum_i n_i * code_ti) * s * k_scale_t             sum exact in int32
 *   pv      w_t = P_t == 0 ? 0 : P_t * v_scale_t  (so garbage scales of unseen slots stay out);
 *           u = max|w| / QUIRE_ATTN_Q8_P_MAX;  n_t = nearest(w_t / u);
 *           o_i = o_i * rescale + (float)(sum_t n_t * code_ti) * u         sum exact in int32
 *   A max below QUIRE_ATTN_Q8_TINY counts as zero (s or u = 0 and all n = 0). A NaN or Inf among x
 *   or w makes s or u NaN, and with it the whole row.
 *
 * Sealed formats (q6 q5 q4 q3) multiply 8-bit integers: their codes' own error is far above the
 * error that 8 bits for q and P add. Levels are int8 (codec/sealed.h); again all sums are exact:
 *
 *   q_pack  x = scale * q;  s = max|x| / 127;  n_i = nearest(x_i / s), an int8; x stays as well
 *   qk      S_t = (float)(sum_i n_i * level_ti) * s * k_scale_t + sum_i x_i * mean_i
 *           (the last sum in float, in an order of the ISA's own)
 *   pv      w_t as above;  u = max w / 255;  n_t = nearest(w_t / u), a uint8;
 *           o_i = o_i * rescale + (float)(sum_t n_t * level_ti) * u
 *
 * P of q8 as int16: a pair of codes against a pair of int16 is one vpdpwssd (or vpmaddwd + vpaddd),
 * the same number of multiplications as two planes of bytes through vpdpbusd, with half the
 * accumulators; but codes must be spread for every block of rows, so AVX-512 VNNI and AMX take
 * planes where rows are many. The integers are the same.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_H
#define QUIRE_ATTN_KERNELS_H

#include "quire/codec.h"

#include "base/prefetch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 127 * 127 * 1024 dimensions < 2^31, and 32767 * 128 * 64 tokens < 2^31. */
#define QUIRE_ATTN_Q8_Q_MAX 127.0f
#define QUIRE_ATTN_Q8_P_MAX 32767.0f
#define QUIRE_ATTN_Q8_TINY  0x1p-100f

/* Bounds of the integers of sealed formats: 127 * 127 * 1024 dimensions and 255 * 127 * 64 tokens <
 * 2^31. */
#define QUIRE_ATTN_SEALED_Q_MAX 127.0f
#define QUIRE_ATTN_SEALED_P_MAX 255.0f

/* Weights are at most 256 (ln 256 = 5.545), far from any limit of f32 and bf16. */
#define QUIRE_ATTN_RISE 5.5f

/* A set may read so many rows behind the last of packed, of p and of weights: they are memory of
 * the caller's with anything in it. (A register of AMX has 16 rows.) */
#define QUIRE_ATTN_ROWS_BEHIND 15u

/* Logits of n_rows packed rows (q_bytes apart) against all slots of a K tile. P and S rows are
 * QUIRE_TILE_TOKENS floats, dense. All buffers are 64-byte aligned. */
typedef struct quire_attn_qk {
    quire_format format;
    uint32_t d;
    uint32_t n_rows;
    bool accumulate; /* add to s instead of overwriting it (second K source) */
    const void *packed;
    const void *k_tile;
    const void *next;       /* hint, may be NULL: a tile the caller reads soon, to prefetch */
    quire_prefetch next_to; /* hint: its cache */
    bool next_in_part;      /* hint: not the last quarter, which the caller prefetches */
    float *s;
} quire_attn_qk;

/* Weights of one row against one V tile of a sealed format, as a set that has `weigh` keeps them.
 */
typedef struct quire_attn_weights {
    _Alignas(64) uint8_t n[QUIRE_TILE_TOKENS];
    float unit;
} quire_attn_weights;

/* Slots as in quire_attn_pv. All rows see the same ones: an open tile is read hot. */
typedef struct quire_attn_weigh {
    uint32_t n_rows;
    uint32_t slot_begin;
    uint32_t slot_end;
    const float *p; /* as softmax left it */
    const void *v_tile;
    quire_attn_weights *weights; /* [n_rows] */
} quire_attn_weigh;

typedef struct quire_attn_pv {
    quire_format format;
    uint32_t d;
    uint32_t n_rows;
    uint32_t slot_begin;
    uint32_t slot_end; /* the largest slot_end of the block's rows */
    const float *p;    /* as softmax left it, or softmax_bf16; not read where weights are given */
    const float *rescale;
    const void *v_tile;
    const void *next; /* as in quire_attn_qk */
    quire_prefetch next_to;
    bool next_in_part;
    float *o;        /* n_rows rows; padding between d and the next multiple of 16 is scratch */
    size_t o_stride; /* floats: a multiple of 16, >= d rounded up to 16 */
    const quire_attn_weights *weights; /* [n_rows], of a set that has weigh and a sealed V */
} quire_attn_pv;

/* Row r sees slots [slot_begin, slot_end[r]); slot_end[r] <= slot_begin means none (then P = 0,
 * rescale = 1, m and l unchanged). m starts at -INFINITY, l at 0. NaN logits give NaN, not 0. */
typedef void quire_attn_softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end,
                                float *s, float *m, float *l, float *rescale);

/* The part of a CPU's state that a kernel set changes and restores. */
typedef struct quire_attn_cpu_state {
    _Alignas(64) uint8_t bytes[64];
} quire_attn_cpu_state;

typedef struct quire_attn_kernels {
    const char *isa;

    /* Before a thread's first call of qk or pv, and after its last; *before is the
     * thread's. NULL: nothing to do. (AMX has a configuration, which takes longer to load than a
     * tile to multiply, and ggml keeps one of its own in it.) */
    void (*enter)(quire_attn_cpu_state *before);
    void (*leave)(const quire_attn_cpu_state *before);

    /* Bytes of one packed query row, a multiple of 64. */
    size_t (*q_bytes)(quire_format format, uint32_t d);

    /* Pack one row; the logit scale is folded in (packed q = scale * q). */
    void (*q_pack)(quire_format format, uint32_t d, float scale, const float *q, void *packed);

    void (*qk)(const quire_attn_qk *args);

    /* s[i] = cap * tanh(s[i] / cap), within 4 ulp of that; NaN stays. n is a multiple of 16. */
    void (*cap)(size_t n, float cap, float *s);

    quire_attn_softmax *softmax;

    /* bf16 tiles for many rows: the work on a tile is so short that memory would idle during
     * softmax. The driver calls that for a few rows at a time, and prefetches a quarter of the next
     * tiles between those calls. */
    bool shares_ahead;

    /* For a V in bf16: the same with weights in bf16, which lie in the order of tokens at the
     * beginning of their row of s; the sums in l are those of the rounded weights. NULL: pv of bf16
     * wants floats like any other. */
    quire_attn_softmax *softmax_bf16;

    /* Make P the integers that pv multiplies, for a sealed V; NULL: pv does that itself. It is a
     * step of its own because it waits for itself, and several kv heads' wait side by side. */
    void (*weigh)(const quire_attn_weigh *args);

    void (*pv)(const quire_attn_pv *args);

    /* dst[i] = dst[i] * a + src[i] * b, each operation rounded: the same bits from every set. n is
     * a multiple of 16; dst and src do not overlap. */
    void (*fold)(size_t n, float a, float b, float *dst, const float *src);
} quire_attn_kernels;

static inline void quire_attn_kernels_enter(const quire_attn_kernels *kernels,
                                            quire_attn_cpu_state *before)
{
    if (kernels->enter != NULL) {
        kernels->enter(before);
    }
}

static inline void quire_attn_kernels_leave(const quire_attn_kernels *kernels,
                                            const quire_attn_cpu_state *before)
{
    if (kernels->leave != NULL) {
        kernels->leave(before);
    }
}

/* Compiled in by processor; run-time support is checked by quire_attn_kernels_find(). */
const quire_attn_kernels *quire_attn_kernels_portable(void);
#if defined(__x86_64__)
const quire_attn_kernels *quire_attn_kernels_avx2(void);   /* with AVX-VNNI if present */
const quire_attn_kernels *quire_attn_kernels_avx512(void); /* VNNI and VBMI if present */
/* Sets without the instructions that some of these CPUs lack; the same bits. The functions above
 * choose among them. */
const quire_attn_kernels *quire_attn_kernels_avx2_plain(void);
const quire_attn_kernels *quire_attn_kernels_avx512_plain(void);
const quire_attn_kernels *quire_attn_kernels_avx512_vnni(void); /* VNNI if present, never VBMI */
/* The set with products of bf16: other bits for bf16 tiles only; NULL: the CPU lacks them. */
const quire_attn_kernels *quire_attn_kernels_avx512_bf16(void);
/* The set with AMX: again other bits for bf16 tiles only; NULL: the CPU or the system lacks AMX. */
const quire_attn_kernels *quire_attn_kernels_amx(void);
#elif defined(__aarch64__)
const quire_attn_kernels *quire_attn_kernels_neon(void);       /* sdot if present */
const quire_attn_kernels *quire_attn_kernels_neon_plain(void); /* without it; the same bits */
#endif

/* The set of a named ISA ("portable", "avx2", "avx512", "avx512+bf16", "avx512+amx", "neon"); NULL
 * when this build, CPU or system lacks it. With name NULL: the set that QUIRE_ISA names, else the
 * fastest. An unknown QUIRE_ISA gives NULL too. */
const quire_attn_kernels *quire_attn_kernels_find(const char *name);

#endif /* QUIRE_ATTN_KERNELS_H */
