/* cpu.c - CPU feature detection.
 *
 * The compiler's __builtin_cpu_supports checks the OS's saved state too (XGETBV). gcc 12 knows no
 * name for AVX-VNNI, so that one bit is read from CPUID leaf 7.1. On AArch64 the kernel reports the
 * features beyond the baseline.
 *
 * SPDX-License-Identifier: MIT */
#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static quire_cpu cpu;
static bool is_amx_allowed;
static pthread_once_t amx_once = PTHREAD_ONCE_INIT;
static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;

/* As far as the C library knows. */
static uint32_t l1d_bytes(void)
{
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);

    return bytes > 0 && bytes <= UINT32_MAX ? (uint32_t)bytes : 0;
#else
    return 0;
#endif
}

#if defined(__x86_64__)

#define AMD_FAMILY_ZEN3_ZEN4 0x19u

/* Of an AMD processor; 0: another maker's. Families from 15 on are the sum of two fields. */
static uint32_t amd_family(void)
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;

    if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) {
        return 0;
    }
    return (a >> 8 & 15) + (a >> 20 & 255);
}

/* Bits of CPUID leaf 7.0, EDX. */
#define AMX_BF16 (1u << 22)
#define AMX_TILE (1u << 24)
#define AMX_INT8 (1u << 25)

static bool has_amx(void)
{
    const unsigned all = AMX_BF16 | AMX_TILE | AMX_INT8;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all;
}

#endif

static void detect(void)
{
#if defined(__x86_64__)
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;

    __builtin_cpu_init();
    cpu.has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("bmi2") && __get_cpuid(1, &a, &b, &c, &d) &&
                   (c & bit_F16C) != 0;
    if (cpu.has_avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        cpu.has_avx_vnni = (a & (1u << 4)) != 0;
    }
    cpu.has_avx512 = cpu.has_avx2 && __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("avx512dq");
    cpu.has_avx512_vnni = cpu.has_avx512 && __builtin_cpu_supports("avx512vnni");
    cpu.has_avx512_vbmi = cpu.has_avx512_vnni && __builtin_cpu_supports("avx512vbmi");
    cpu.has_avx512_bf16 = cpu.has_avx512_vbmi && __builtin_cpu_supports("avx512bf16");
    cpu.has_amx = cpu.has_avx512_bf16 && has_amx();
    /* Zen 3, of Zen 4's family, has no AVX-512. */
    cpu.reads_ahead = cpu.has_avx512 && amd_family() == AMD_FAMILY_ZEN3_ZEN4;
    cpu.prefetch_to_l2 = cpu.reads_ahead || cpu.has_amx;
#elif defined(__aarch64__)
    cpu.has_neon = true;
#if defined(__linux__)
    cpu.has_neon_dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
#endif
    cpu.l1d_bytes = l1d_bytes();
}

const quire_cpu *quire_cpu_get(void)
{
    (void)pthread_once(&cpu_once, detect);
    return &cpu;
}

/* A system that does not know AMX does not know the call. */
static void amx_ask(void)
{
#if defined(__x86_64__) && defined(__linux__) && defined(SYS_arch_prctl)
    const long ask = 0x1023; /* ARCH_REQ_XCOMP_PERM, which older headers do not name */
    const long tile_data = 18;

    is_amx_allowed = quire_cpu_get()->has_amx && syscall(SYS_arch_prctl, ask, tile_data) == 0;
#endif
}

bool quire_cpu_amx_allow(void)
{
    (void)pthread_once(&amx_once, amx_ask);
    return is_amx_allowed;
}

uint32_t quire_cpus_usable(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}
