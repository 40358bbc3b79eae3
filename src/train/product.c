/* product.c - which kernels of products this CPU runs; see product.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product.h"

#include "base/cpu.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

quire_f32_product_fn *quire_f32_product_find(const char *name)
{
    if (strcmp(name, "portable") == 0) {
        return quire_f32_product_portable;
    }
#ifdef QUIRE_TRAIN_HAS_X86
    if (strcmp(name, "avx2") == 0 && quire_cpu_get()->has_avx2) {
        return quire_f32_product_avx2;
    }
    if (strcmp(name, "avx512") == 0 && quire_cpu_get()->has_avx512) {
        return quire_f32_product_avx512;
    }
#endif
    return NULL;
}

quire_f32_product_fn *quire_f32_product_best(void)
{
    static const char *const names[] = { "avx512", "avx2" };
    const char *asked = getenv("QUIRE_ISA");
    quire_f32_product_fn *fn = asked != NULL ? quire_f32_product_find(asked) : NULL;

    for (size_t i = 0; fn == NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        fn = quire_f32_product_find(names[i]);
    }
    return fn != NULL ? fn : quire_f32_product_portable;
}

quire_f64_product_fn *quire_f64_product_best(void)
{
    return quire_f64_product_portable;
}
