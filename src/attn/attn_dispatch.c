/* attn_dispatch.c - which kernel set this machine runs.
 *
 * QUIRE_ATTN_HAS_* say which kernel files are in this build (src/attn/CMakeLists.txt).
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels.h"
#include "base/cpu.h"
#include "base/text_buffer.h"
#include "quire/attn.h"

#include <stdlib.h>
#include <string.h>

#define NAMES_BYTES 64u /* of all sets */

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
#if defined(QUIRE_ATTN_HAS_AVX2)
    if (quire_cpu_get()->has_avx512) {
        return quire_attn_kernels_avx512();
    }
#endif
    return NULL;
}

static const quire_attn_kernels *find_avx512_bf16(void)
{
#if defined(QUIRE_ATTN_HAS_AVX2)
    return quire_attn_kernels_avx512_bf16();
#else
    return NULL;
#endif
}

static const quire_attn_kernels *find_amx(void)
{
#if defined(QUIRE_ATTN_HAS_AVX2)
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

static const struct {
    const char *name;
    const quire_attn_kernels *(*find)(void);
} sets[] = {
    { "portable", quire_attn_kernels_portable },
    { "avx2", find_avx2 },
    { "avx512", find_avx512 },
    { "avx512+bf16", find_avx512_bf16 },
    { "avx512+amx", find_amx },
    { "neon", find_neon },
};

const quire_attn_kernels *quire_attn_kernels_find(const char *name)
{
    if (name == NULL) {
        name = getenv("QUIRE_ISA");
    }
    if (name == NULL || name[0] == '\0') {
        return find_fastest();
    }
    if (strcmp(name, "ref") == 0) {
        return quire_attn_kernels_portable();
    }
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (strcmp(name, sets[i].name) == 0) {
            return sets[i].find();
        }
    }
    return NULL;
}

int quire_attn_isa_check(quire_error *err)
{
    char names[NAMES_BYTES] = "";
    quire_text list = { names, sizeof names, 0 };

    if (quire_attn_kernels_find(NULL) != NULL) {
        return QUIRE_OK;
    }
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].find() != NULL) {
            quire_text_add(&list, "%s%s", list.n > 0 ? ", " : "", sets[i].name);
        }
    }
    return quire_error_set(err, QUIRE_UNSUPP,
                           "QUIRE_ISA is '%.40s': this machine has the kernels %s; without "
                           "QUIRE_ISA the fastest are used",
                           getenv("QUIRE_ISA"), names);
}

const char *quire_attn_isa(void)
{
    const quire_attn_kernels *kernels = quire_attn_kernels_find(NULL);

    return kernels != NULL ? kernels->isa : "none";
}
