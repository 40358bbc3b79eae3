/* cpu.h - features of this CPU, asked once.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_CPU_H
#define QUIRE_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire_cpu {
    bool has_avx2;     /* AVX2 + FMA + F16C + BMI2, with OS support */
    bool has_avx_vnni; /* VEX-encoded dot products */
    bool has_avx512;   /* F + BW + VL + DQ, with OS support */
    bool has_avx512_vnni;
    bool has_avx512_vbmi;  /* and VNNI */
    bool has_avx512_bf16;  /* and VBMI */
    bool has_amx;          /* tiles of bf16 and int8, and AVX-512 BF16; see quire_cpu_amx_allow() */
    bool has_neon;         /* AArch64 baseline */
    bool has_neon_dotprod; /* sdot and udot */
    bool reads_ahead; /* sequential data read once arrives fastest without software prefetches (AMD
                         Zen 4) */
    bool prefetch_to_l2; /* software prefetches pay most into the second cache: AMD Zen 4, and
                          * Intel with AMX, whose second cache has 2 MB */
    uint32_t l1d_bytes;  /* first-level data cache of a core; 0: unknown */
} quire_cpu;

/* Memory: static. Thread: any. */
const quire_cpu *quire_cpu_get(void);

/* Ask the system for AMX's registers, once; whether this process may use them. Linux saves them
 * only for processes that asked (arch_prctl(2), ARCH_REQ_XCOMP_PERM): their signal frames grow by 8
 * KB, so it is no part of looking at the CPU. Thread: any. */
bool quire_cpu_amx_allow(void);

/* CPUs that this process may use, at least 1. Thread: any. */
uint32_t quire_cpus_usable(void);

#endif /* QUIRE_BASE_CPU_H */
