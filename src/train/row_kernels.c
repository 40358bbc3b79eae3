/* row_kernels.c - which row functions this CPU runs; see row_kernels.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/row_kernels.h"

#include "base/cpu.h"

#include <stdlib.h>
#include <string.h>

const quire_f32_rows *quire_f32_rows_find(const char *name)
{
    if (strcmp(name, "portable") == 0) {
        return &quire_f32_rows_portable;
    }
#ifdef QUIRE_TRAIN_HAS_X86
    if (strcmp(name, "avx2") == 0 && quire_cpu_get()->has_avx2) {
        return &quire_f32_rows_avx2;
    }
    if (strcmp(name, "avx512") == 0 && quire_cpu_get()->has_avx512) {
        return &quire_f32_rows_avx512;
    }
#endif
    return NULL;
}

const quire_f32_rows *quire_f32_rows_best(void)
{
    static const char *const names[] = { "avx512", "avx2" };
    const char *asked = getenv("QUIRE_ISA");
    const quire_f32_rows *rows = asked != NULL ? quire_f32_rows_find(asked) : NULL;

    for (size_t i = 0; rows == NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        rows = quire_f32_rows_find(names[i]);
    }
    return rows != NULL ? rows : &quire_f32_rows_portable;
}

const quire_f64_rows *quire_f64_rows_best(void)
{
    return &quire_f64_rows_portable;
}
