/* cuda_context.c - opening a card by way of the driver's library; kernels. See cuda_context.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/cuda_context.h"

#include "base/check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPABILITY_MIN 7

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static quire_cuda_context *contexts;

static const char *result_name(const quire_cuda_context *c, quire_cuda_result result)
{
    const char *name = NULL;

    if (c->calls.GetErrorName(result, &name) != QUIRE_CUDA_SUCCESS || name == NULL) {
        return "an unknown error";
    }
    return name;
}

static int open_library(quire_cuda_context *c, quire_error *err)
{
    c->library = dlopen(QUIRE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (c->library == NULL) {
        return quire_error_set(err, QUIRE_NOTFOUND,
                               "there is no CUDA here: " QUIRE_CUDA_LIBRARY " was not found");
    }
#define X(name, symbol, parameters)                                                                \
    *(void **)&c->calls.name = dlsym(c->library, #symbol);                                         \
    if (c->calls.name == NULL) {                                                                   \
        return quire_error_set(err, QUIRE_UNSUPP, QUIRE_CUDA_LIBRARY " has no " #symbol);          \
    }
    QUIRE_CUDA_CALLS(X)
#undef X
    return QUIRE_OK;
}

/* Whether card `place` can be used; then it is the context's. */
static bool card_take(quire_cuda_context *c, int place)
{
    c->capability[0] = 0;
    return c->calls.DeviceGet(&c->ordinal, place) == QUIRE_CUDA_SUCCESS &&
           c->calls.DeviceGetAttribute(&c->capability[0], QUIRE_CUDA_CAPABILITY_MAJOR,
                                       c->ordinal) == QUIRE_CUDA_SUCCESS &&
           c->capability[0] >= CAPABILITY_MIN;
}

static int find_card(quire_cuda_context *c, quire_error *err)
{
    const quire_cuda_result result = c->calls.Init(0);
    uint32_t n_usable = 0;
    int n = 0;

    if (result != QUIRE_CUDA_SUCCESS) {
        return quire_error_set(err, QUIRE_NOTFOUND, "CUDA has no driver here (%s)",
                               result_name(c, result));
    }
    if (c->calls.DeviceGetCount(&n) != QUIRE_CUDA_SUCCESS) {
        n = 0;
    }
    for (int i = 0; i < n; i++) {
        if (card_take(c, i) && n_usable++ == c->index) {
            c->place = (uint32_t)i;
            return QUIRE_OK;
        }
    }
    return quire_error_set(err, QUIRE_NOTFOUND,
                           "there is no device 'cuda%u': CUDA lists %d devices, %u of which have "
                           "compute capability %d.0",
                           c->index, n, n_usable, CAPABILITY_MIN);
}

static int make_context(quire_cuda_context *c, quire_error *err)
{
    quire_cuda_result result;

    if (c->calls.DeviceGetName(c->name, sizeof(c->name), c->ordinal) != QUIRE_CUDA_SUCCESS) {
        (void)snprintf(c->name, sizeof(c->name), "a card without a name");
    }
    c->name[sizeof(c->name) - 1] = '\0';
    (void)c->calls.DeviceGetAttribute(&c->capability[1], QUIRE_CUDA_CAPABILITY_MINOR, c->ordinal);
    (void)c->calls.DriverGetVersion(&c->driver);
    (void)c->calls.DeviceTotalMem(&c->memory_bytes, c->ordinal);
    result = c->calls.DevicePrimaryCtxRetain(&c->ctx, c->ordinal);
    if (result != QUIRE_CUDA_SUCCESS) {
        c->ctx = NULL;
        return quire_error_set(err, result == QUIRE_CUDA_OUT_OF_MEMORY ? QUIRE_NOMEM : QUIRE_IO,
                               "cuda%u: the driver opens no context (%s)", c->index,
                               result_name(c, result));
    }
    return QUIRE_OK;
}

static void context_end(quire_cuda_context *c)
{
    if (c->ctx != NULL) {
        (void)quire_cuda_context_use(c);
        for (uint32_t i = 0; i < QUIRE_CUDA_MODULES; i++) {
            if (c->kernels[i].module != NULL) {
                (void)c->calls.ModuleUnload(c->kernels[i].module);
            }
        }
        (void)c->calls.CtxSetCurrent(NULL);
        (void)c->calls.DevicePrimaryCtxRelease(c->ordinal);
    }
    if (c->library != NULL) {
        (void)dlclose(c->library);
    }
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

static int context_make(quire_cuda_context *c, quire_error *err)
{
    QUIRE_TRY(open_library(c, err));
    QUIRE_TRY(find_card(c, err));
    return make_context(c, err);
}

static quire_cuda_context *context_find(uint32_t index)
{
    for (quire_cuda_context *c = contexts; c != NULL; c = c->next) {
        if (c->index == index) {
            return c;
        }
    }
    return NULL;
}

/* A new one, in the list. NULL: the reason is in *err. */
static quire_cuda_context *context_add(uint32_t index, quire_error *err, int *rc)
{
    quire_cuda_context *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        *rc = quire_error_set(err, QUIRE_NOMEM, "cuda%u: no memory", index);
        return NULL;
    }
    c->index = index;
    (void)pthread_mutex_init(&c->lock, NULL);
    *rc = context_make(c, err);
    if (*rc < 0) {
        context_end(c);
        return NULL;
    }
    c->next = contexts;
    contexts = c;
    return c;
}

int quire_cuda_context_get(quire_cuda_context **out, uint32_t index, quire_error *err)
{
    int rc = QUIRE_OK;

    (void)pthread_mutex_lock(&contexts_lock);
    *out = context_find(index);
    if (*out == NULL) {
        *out = context_add(index, err, &rc);
    }
    if (*out != NULL) {
        (*out)->n_users++;
    }
    (void)pthread_mutex_unlock(&contexts_lock);
    return rc;
}

void quire_cuda_context_release(quire_cuda_context *context)
{
    (void)pthread_mutex_lock(&contexts_lock);
    if (--context->n_users == 0) {
        quire_cuda_context **at = &contexts;

        while (*at != context) {
            at = &(*at)->next;
        }
        *at = context->next;
        context_end(context);
    }
    (void)pthread_mutex_unlock(&contexts_lock);
}

quire_cuda_result quire_cuda_context_use(const quire_cuda_context *context)
{
    return context->calls.CtxSetCurrent(context->ctx);
}

/* ---- kernels ---- */

typedef struct kernel_image {
    const char *name;
    const unsigned char *ptx;
} kernel_image;

static const kernel_image images[QUIRE_CUDA_MODULES] = {
    { "cuda_attn_1", quire_ptx_attn_1 },   { "cuda_attn_2", quire_ptx_attn_2 },
    { "cuda_attn_4", quire_ptx_attn_4 },   { "cuda_attn_8", quire_ptx_attn_8 },
    { "cuda_attn_16", quire_ptx_attn_16 }, { "cuda_merge", quire_ptx_merge },
    { "cuda_append", quire_ptx_append },   { "cuda_seal", quire_ptx_seal },
};

static uint32_t image_of(quire_card_kernel kernel, const quire_card_constants *constants)
{
    uint32_t i = 0;

    if (kernel != QUIRE_CARD_ATTN) {
        return 5u + (uint32_t)(kernel - QUIRE_CARD_MERGE);
    }
    while (1u << i < constants->at[0] * constants->at[3]) {
        i++;
    }
    QUIRE_CHECK(i < 5);
    return i;
}

quire_cuda_result quire_cuda_kernel_get(quire_cuda_context *context, quire_card_kernel kernel,
                                        const quire_card_constants *constants,
                                        quire_cuda_function *out)
{
    const uint32_t i = image_of(kernel, constants);
    quire_cuda_kernel *k = &context->kernels[i];
    quire_cuda_result result = QUIRE_CUDA_SUCCESS;

    (void)pthread_mutex_lock(&context->lock);
    if (k->module == NULL) {
        result = context->calls.ModuleLoadData(&k->module, images[i].ptx);
        if (result != QUIRE_CUDA_SUCCESS) {
            k->module = NULL;
        }
    }
    if (result == QUIRE_CUDA_SUCCESS && k->function == NULL) {
        result = context->calls.ModuleGetFunction(&k->function, k->module, images[i].name);
        if (result != QUIRE_CUDA_SUCCESS) {
            k->function = NULL;
        }
    }
    *out = k->function;
    (void)pthread_mutex_unlock(&context->lock);
    return result;
}
