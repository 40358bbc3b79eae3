/* blas.c - opening OpenBLAS; see blas.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The name that Debian's alternatives lead from, whichever variant is installed. */
#define LIBRARY "libopenblas.so.0"

static struct {
    pthread_once_t once;
    quire_error error;
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
    char name[128];
} blas = { .once = PTHREAD_ONCE_INIT, .error = QUIRE_ERROR_INIT };

/* ISO C has no conversion from void * to a function pointer; POSIX says that the bits are equal. */
static bool find(void *library, const char *symbol, void *function, size_t bytes)
{
    void *at = dlsym(library, symbol);

    memcpy(function, &at, bytes);
    if (at == NULL) {
        (void)quire_error_set(&blas.error, QUIRE_UNSUPP,
                              "%s has no %s: install libopenblas0-pthread", LIBRARY, symbol);
    }
    return at != NULL;
}

static void open_library(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    __typeof__(openblas_set_num_threads) *set_threads;
    __typeof__(openblas_get_config) *config;

    if (library == NULL) {
        (void)quire_error_set(&blas.error, QUIRE_UNSUPP,
                              "training needs OpenBLAS (package libopenblas0-pthread): %s",
                              dlerror());
        return;
    }
    if (!find(library, "openblas_set_num_threads", &set_threads, sizeof(set_threads)) ||
        !find(library, "openblas_get_config", &config, sizeof(config)) ||
        !find(library, "cblas_sgemm", &blas.sgemm, sizeof(blas.sgemm)) ||
        !find(library, "cblas_dgemm", &blas.dgemm, sizeof(blas.dgemm))) {
        return;
    }
    set_threads(1);
    (void)snprintf(blas.name, sizeof(blas.name), "%s", config());
}

int quire_blas_open(quire_error *err)
{
    (void)pthread_once(&blas.once, open_library);
    if (blas.error.status != QUIRE_OK && err != NULL) {
        *err = blas.error;
    }
    return blas.error.status;
}

const char *quire_blas_name(void)
{
    return blas.name;
}

#define TRANSPOSED(is) ((is) ? CblasTrans : CblasNoTrans)

void quire_f32_product_run(const quire_f32_product *p)
{
    blas.sgemm(CblasRowMajor, TRANSPOSED(p->is_a_transposed), TRANSPOSED(p->is_b_transposed),
               (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0F, p->a, (blasint)p->lda, p->b,
               (blasint)p->ldb, p->beta, p->c, (blasint)p->ldc);
}

void quire_f64_product_run(const quire_f64_product *p)
{
    blas.dgemm(CblasRowMajor, TRANSPOSED(p->is_a_transposed), TRANSPOSED(p->is_b_transposed),
               (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0, p->a, (blasint)p->lda, p->b,
               (blasint)p->ldb, p->beta, p->c, (blasint)p->ldc);
}
