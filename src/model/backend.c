/* backend.c - see backend.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/backend.h"

#include "model/backend_calls.h"
#include "model/model.h"
#include "model/openmp.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <llama.h>

#define LOG_LINE_BYTES 256

typedef struct ggml_threadpool *(*threadpool_new_fn)(struct ggml_threadpool_params *params);
typedef void (*threadpool_free_fn)(struct ggml_threadpool *pool);
typedef void (*threadpool_set_fn)(ggml_backend_t backend, struct ggml_threadpool *pool);

static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static ggml_backend_dev_t cpu_device;

/* Per thread, because loads on two threads must not mix their reasons up. */
static _Thread_local char log_first_line[LOG_LINE_BYTES];

const char *quire_model_ggml_version(void)
{
    return ggml_version();
}

void quire_backend_log_note(const char *text)
{
    size_t n = strcspn(text, "\n");

    if (n >= sizeof log_first_line) {
        n = sizeof log_first_line - 1;
    }
    memcpy(log_first_line, text, n);
    log_first_line[n] = '\0';
}

static void log_swallow(enum ggml_log_level level, const char *text, void *user_data)
{
    (void)user_data;
    if (level == GGML_LOG_LEVEL_ERROR && text[0] != '\n' && text[0] != '\0' &&
        log_first_line[0] == '\0') {
        quire_backend_log_note(text);
    }
}

static void init_process(void)
{
    llama_log_set(log_swallow, NULL);
    llama_backend_init();
    cpu_device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu_device == NULL) {
        /* The call searches for shared objects, also in the working directory. It is made only
         * where the backends are shared objects, which the user installed. */
        ggml_backend_load_all();
        cpu_device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
}

int quire_backend_init(quire_error *err)
{
    pthread_once(&init_once, init_process);
    if (cpu_device == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "ggml has no CPU backend here; reinstall ggml with its CPU backend");
    }
    return QUIRE_OK;
}

ggml_backend_dev_t quire_backend_cpu(void)
{
    return cpu_device;
}

/* Function pointers travel as void * through ggml's registry; memcpy converts without the cast
 * that ISO C does not define. */
static void proc_get(const char *name, void *fn, size_t fn_bytes)
{
    void *address =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu_device), name);

    memcpy(fn, &address, fn_bytes);
}

ggml_backend_buffer_type_t *quire_backend_extra_bufts(void)
{
    ggml_backend_dev_get_extra_bufts_t get;

    proc_get("ggml_backend_dev_get_extra_bufts", &get, sizeof get);
    return get != NULL ? get(cpu_device) : NULL;
}

/* A product of 512 rows. */
#define ASKED_ROWS 512

static struct ggml_tensor *asked_product(struct ggml_context *ctx, struct ggml_tensor *w,
                                         bool is_of_experts)
{
    struct ggml_tensor *x, *ids;

    if (!is_of_experts) {
        return ggml_mul_mat(ctx, w,
                            ggml_new_tensor_3d(ctx, GGML_TYPE_F32, w->ne[0], ASKED_ROWS, w->ne[2]));
    }
    x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, w->ne[0], 1, ASKED_ROWS);
    ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, ASKED_ROWS);
    return ggml_mul_mat_id(ctx, w, x, ids);
}

bool quire_backend_multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t buft,
                              const struct ggml_tensor *matrix, bool is_of_experts)
{
    struct ggml_init_params params = { .mem_size = 4 * ggml_tensor_overhead(), .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor w = *matrix;
    bool takes = false;

    if (ctx == NULL) {
        return false;
    }
    /* A buffer of no bytes: the device only looks at its type. */
    w.buffer = ggml_backend_buft_alloc_buffer(buft, 0);
    if (w.buffer != NULL) {
        takes = quire_backend_takes(device, asked_product(ctx, &w, is_of_experts));
        ggml_backend_buffer_free(w.buffer);
    }
    ggml_free(ctx);
    return takes;
}

void quire_backend_kernels(char *text, size_t text_bytes)
{
    ggml_backend_get_features_t get;
    const struct ggml_backend_feature *features;
    size_t n = (size_t)snprintf(text, text_bytes, "%s", ggml_version());

    proc_get("ggml_backend_get_features", &get, sizeof get);
    features = get != NULL ? get(ggml_backend_dev_backend_reg(cpu_device)) : NULL;
    for (; features != NULL && features->name != NULL && n < text_bytes; features++) {
        if (strcmp(features->name, "OPENMP") != 0) { /* waiting changes no bit */
            n += (size_t)snprintf(text + n, text_bytes - n, " %s=%s", features->name,
                                  features->value);
        }
    }
}

int quire_backend_open(quire_backend *backend, uint32_t n_threads)
{
    ggml_backend_set_n_threads_t set_n_threads;
    threadpool_new_fn pool_new;
    threadpool_set_fn pool_set;
    struct ggml_threadpool_params params;

    *backend = (quire_backend){ 0 };
    backend->ggml = ggml_backend_dev_init(cpu_device, NULL);
    if (backend->ggml == NULL) {
        return QUIRE_NOMEM;
    }
    proc_get("ggml_backend_set_n_threads", &set_n_threads, sizeof set_n_threads);
    proc_get("ggml_threadpool_new", &pool_new, sizeof pool_new);
    proc_get("ggml_backend_cpu_set_threadpool", &pool_set, sizeof pool_set);
    if (set_n_threads != NULL) {
        set_n_threads(backend->ggml, (int)n_threads);
    }
    if (pool_new != NULL && pool_set != NULL) {
        ggml_threadpool_params_init(&params, (int)n_threads);
        backend->pool = pool_new(&params);
        if (backend->pool == NULL) {
            quire_backend_close(backend);
            return QUIRE_NOMEM;
        }
        pool_set(backend->ggml, backend->pool);
    }
    if (QUIRE_OWN_THREADS && quire_team_create(&backend->team, n_threads) < 0) {
        quire_backend_close(backend);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

typedef struct graph_call {
    ggml_backend_t ggml;
    struct ggml_cgraph *cgraph;
    enum ggml_status status;
} graph_call;

static void compute(void *opaque)
{
    graph_call *call = opaque;

    call->status = ggml_backend_graph_compute(call->ggml, call->cgraph);
}

enum ggml_status quire_backend_compute(const quire_backend *backend, struct ggml_cgraph *cgraph)
{
    graph_call call = { .ggml = backend->ggml, .cgraph = cgraph };

    if (QUIRE_OWN_THREADS) {
        quire_openmp_run(backend->team, compute, &call);
    } else {
        compute(&call);
    }
    return call.status;
}

/* ---- working memory ---- */

#define WORK_LINE_BYTES 64u /* of a counter of one thread, and between the threads' parts */

/* The type to which ggml rounds the other factor of a product with a matrix of this type. */
static enum ggml_type product_type(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
        return type;
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_1:
        return GGML_TYPE_Q8_1;
    default: /* blocks of 32 numbers, and of 256 */
        return ggml_blck_size(type) < ggml_blck_size(GGML_TYPE_Q8_K) ? GGML_TYPE_Q8_0
                                                                     : GGML_TYPE_Q8_K;
    }
}

/* The rounded rows of a product. */
static uint64_t rows_bytes(const struct ggml_tensor *product)
{
    const enum ggml_type type = product_type(product->src[0]->type);
    const struct ggml_tensor *x = product->src[1];

    return x->type != type ? ggml_row_size(type, ggml_nelements(x)) : 0;
}

/* Beside the rows each expert has a counter, a line, and a list of as many rows as there are. */
static uint64_t experts_bytes(const struct ggml_tensor *product)
{
    const uint64_t n_experts = (uint64_t)product->src[0]->ne[2];
    const uint64_t n_pairs = (uint64_t)ggml_nelements(product->src[2]);
    const uint64_t of_expert = sizeof(int64_t) + WORK_LINE_BYTES + 2 * sizeof(int32_t) * n_pairs;

    return rows_bytes(product) + n_experts * of_expert + 4 * WORK_LINE_BYTES;
}

uint64_t quire_backend_work_bytes(struct ggml_cgraph *cgraph, const int *ids, uint32_t n_threads)
{
    uint64_t most = 0;

    for (int i = 0; i < ggml_graph_n_nodes(cgraph); i++) {
        const struct ggml_tensor *node = ggml_graph_node(cgraph, i);
        uint64_t bytes = 0;

        if (ids != NULL && ids[i] != 0) {
            continue;
        }
        if (node->op == GGML_OP_MUL_MAT) {
            bytes = rows_bytes(node);
        } else if (node->op == GGML_OP_MUL_MAT_ID) {
            bytes = experts_bytes(node);
        } else if (node->op == GGML_OP_ROPE) {
            bytes = sizeof(float) * (uint64_t)node->ne[0] * n_threads;
        }
        most = bytes > most ? bytes : most;
    }
    return most + (uint64_t)WORK_LINE_BYTES * n_threads;
}

bool quire_backend_gives_up(const quire_backend *backend)
{
    return backend->abort != NULL && backend->abort(backend->abort_ctx);
}

bool quire_backend_abort_set(quire_backend *backend, ggml_abort_callback abort, void *ctx)
{
    ggml_backend_set_abort_callback_t set;

    proc_get("ggml_backend_set_abort_callback", &set, sizeof set);
    if (set != NULL) {
        set(backend->ggml, abort, ctx);
        backend->abort = abort;
        backend->abort_ctx = ctx;
    }
    return set != NULL;
}

void quire_backend_close(quire_backend *backend)
{
    threadpool_free_fn pool_free;

    ggml_backend_free(backend->ggml);
    quire_team_destroy(backend->team);
    if (backend->pool != NULL) {
        proc_get("ggml_threadpool_free", &pool_free, sizeof pool_free);
        if (pool_free != NULL) {
            pool_free(backend->pool);
        }
    }
    *backend = (quire_backend){ 0 };
}

void quire_backend_log_clear(void)
{
    log_first_line[0] = '\0';
}

void quire_backend_log_first(char *line, size_t line_bytes)
{
    size_t n = strlen(log_first_line);

    if (n >= line_bytes) {
        n = line_bytes - 1;
    }
    memcpy(line, log_first_line, n);
    line[n] = '\0';
}
