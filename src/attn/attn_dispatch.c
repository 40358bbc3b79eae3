/* attn_dispatch.c - which kernel set this machine runs.
 *
 * QUIRE_ATTN_HAS_* say which kernel files are in this build (src/attn/CMakeLists.txt).
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels.h"
#include "base/cpu.h"
#include "quire/attn.h"

#include <stdlib.h>
#include <string.h>

static const quire_attn_kernels *find_avx2(void)
{
#if defined(QUIRE_ATTN_HAS_AVX2)
    if (quire_cpu_get()->has_avx2) {
        return quire_attn_kernels_avx2();
    }
#endif
    return NULL;
}

static const quire_attn_kernels *find_avx512(void)
{
#if defined(QUIRE_ATTN_HAS_AVX512)
    if (quire_cpu_get()->has_avx512) {
        return quire_attn_kernels_avx512();
    }
#endif
    return NULL;
}

static const quire_attn_kernels *find_avx512_bf16(void)
{
#if defined(QUIRE_ATTN_HAS_AVX512)
    return quire_attn_kernels_avx512_bf16();
#else
    return NULL;
#endif
}

static const quire_attn_kernels *find_amx(void)
{
#if defined(QUIRE_ATTN_HAS_AVX512)
    return quire_attn_kernels_amx();
#else
    return NULL;
#endif
}

static const quire_attn_kernels *find_neon(void)
{
#if defined(QUIRE_ATTN_HAS_NEON)
    if (quire_cpu_get()->has_neon) {
        return quire_attn_kernels_neon();
    }
#endif
    return NULL;
}

static const quire_attn_kernels *find_fastest(void)
{
    const quire_attn_kernels *kernels = find_amx();

    kernels = kernels != NULL ? kernels : find_avx512_bf16();
    kernels = kernels != NULL ? kernels : find_avx512();
    kernels = kernels != NULL ? kernels : find_avx2();
    kernels = kernels != NULL ? kernels : find_neon();
    return kernels != NULL ? kernels : quire_attn_kernels_portable();
}

const quire_attn_kernels *quire_attn_kernels_find(const char *name)
{
    if (name == NULL) {
        name = getenv("QUIRE_ISA");
    }
    if (name == NULL || name[0] == '\0') {
        return find_fastest();
    }
    if (strcmp(name, "portable") == 0 || strcmp(name, "ref") == 0) {
        return quire_attn_kernels_portable();
    }
    if (strcmp(name, "avx2") == 0) {
        return find_avx2();
    }
    if (strcmp(name, "avx512") == 0) {
        return find_avx512();
    }
    if (strcmp(name, "avx512+bf16") == 0) {
        return find_avx512_bf16();
    }
    if (strcmp(name, "avx512+amx") == 0) {
        return find_amx();
    }
    return strcmp(name, "neon") == 0 ? find_neon() : NULL;
}

const char *quire_attn_isa(void)
{
    const quire_attn_kernels *kernels = quire_attn_kernels_find(NULL);

    return kernels != NULL ? kernels->isa : "none";
}
