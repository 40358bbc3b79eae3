/* panels.c - see panels.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/panels.h"

#include "base/check.h"
#include "model/float_maps.h"

#include <stdio.h>
#include <string.h>

/* The types whose products are faster here than in ggml for 1, 8 and 512 rows (docs/matmul.md). */
static bool type_of(enum ggml_type type, quire_matmul_type *out)
{
    static const struct {
        enum ggml_type ggml;
        quire_matmul_type ours;
    } types[QUIRE_MATMUL_TYPES] = {
        { GGML_TYPE_Q8_0, QUIRE_MATMUL_Q8_0 },       { GGML_TYPE_Q4_0, QUIRE_MATMUL_Q4_0 },
        { GGML_TYPE_Q4_1, QUIRE_MATMUL_Q4_1 },       { GGML_TYPE_Q5_0, QUIRE_MATMUL_Q5_0 },
        { GGML_TYPE_Q5_1, QUIRE_MATMUL_Q5_1 },       { GGML_TYPE_Q4_K, QUIRE_MATMUL_Q4_K },
        { GGML_TYPE_Q5_K, QUIRE_MATMUL_Q5_K },       { GGML_TYPE_Q6_K, QUIRE_MATMUL_Q6_K },
        { GGML_TYPE_IQ4_NL, QUIRE_MATMUL_IQ4_NL },   { GGML_TYPE_MXFP4, QUIRE_MATMUL_MXFP4 },
        { GGML_TYPE_Q2_K, QUIRE_MATMUL_Q2_K },       { GGML_TYPE_Q3_K, QUIRE_MATMUL_Q3_K },
        { GGML_TYPE_IQ4_XS, QUIRE_MATMUL_IQ4_XS },   { GGML_TYPE_IQ2_XXS, QUIRE_MATMUL_IQ2_XXS },
        { GGML_TYPE_IQ2_XS, QUIRE_MATMUL_IQ2_XS },   { GGML_TYPE_IQ2_S, QUIRE_MATMUL_IQ2_S },
        { GGML_TYPE_IQ3_XXS, QUIRE_MATMUL_IQ3_XXS }, { GGML_TYPE_IQ3_S, QUIRE_MATMUL_IQ3_S },
        { GGML_TYPE_IQ1_S, QUIRE_MATMUL_IQ1_S },     { GGML_TYPE_IQ1_M, QUIRE_MATMUL_IQ1_M },
    };

    for (uint32_t i = 0; i < QUIRE_MATMUL_TYPES; i++) {
        if (types[i].ggml == type) {
            *out = types[i].ours;
            return true;
        }
    }
    return false;
}

bool quire_panels_take(const struct ggml_tensor *matrix, const quire_matmul_kernels *kernels)
{
    quire_matmul_type type;

    return type_of(matrix->type, &type) && quire_matmul_is_fast(kernels, type) &&
           quire_matmul_takes(type, (uint64_t)matrix->ne[0], (uint64_t)matrix->ne[1]);
}

/* The same for the matrices of all experts together. */
static bool takes_all(const struct ggml_tensor *matrices, const quire_matmul_kernels *kernels)
{
    return quire_panels_take(matrices, kernels) && matrices->ne[1] * matrices->ne[2] <= UINT32_MAX;
}

bool quire_panels_take_experts(struct ggml_context *tensors, const struct ggml_tensor *matrices,
                               const quire_matmul_kernels *kernels)
{
    static const char *const kinds[] = { "gate", "up", "gate_up", "down" };
    const char *rest = strstr(matrices->name, "ffn_");
    char name[GGML_MAX_NAME];
    uint32_t n = 0;

    QUIRE_CHECK(rest != NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct ggml_tensor *t;

        (void)snprintf(name, sizeof name, "%.*sffn_%s_exps.weight", (int)(rest - matrices->name),
                       matrices->name, kinds[i]);
        t = ggml_get_tensor(tensors, name);
        if (t != NULL && !takes_all(t, kernels) && !quire_float_map_takes(t)) {
            return false;
        }
        n += t != NULL;
    }
    /* The description has checked which of them are there. */
    return n > 1 && takes_all(matrices, kernels);
}

quire_matmul_weight quire_panels_weight(const struct ggml_tensor *matrix,
                                        const quire_matmul_kernels *kernels)
{
    quire_matmul_weight weight = { .kernels = kernels,
                                   .n_in = (uint32_t)matrix->ne[0],
                                   .n_out = (uint32_t)(matrix->ne[1] * matrix->ne[2]) };

    QUIRE_CHECK(type_of(matrix->type, &weight.type));
    return weight;
}
