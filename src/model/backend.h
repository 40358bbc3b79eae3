/* backend.h - the process-wide side of ggml and libllama: start-up, the CPU device, their logs.
 *
 * No function of ggml-cpu.h is called by name: in a build with dynamic backends (distributions)
 * these functions cannot be linked. They are found through the registry's proc addresses.
 *
 * Both libraries log through one process-wide callback. Quire drops their messages but keeps the
 * last error line, because this line is the only reason that libllama gives when it refuses a file.
 *
 * Thread: any, except where noted.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_BACKEND_H
#define QUIRE_MODEL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "quire/error.h"

#include <ggml-backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Start ggml and libllama once per process and silence their logs.
 * Errors: QUIRE_UNSUPP when there is no CPU backend. */
int quire_backend_init(quire_error *err);

/* The CPU device; quire_backend_init() must have succeeded. */
ggml_backend_dev_t quire_backend_cpu(void);

/* The CPU device's extra (repacking) buffer types, NULL-terminated; NULL if it has none. */
ggml_backend_buffer_type_t *quire_backend_extra_bufts(void);

/* Whether a device of ggml multiplies with the matrix from a buffer of this type; of experts, if
 * is_of_experts: several matrices, of which each row of the other factor names some. */
bool quire_backend_multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t buft,
                              const struct ggml_tensor *matrix, bool is_of_experts);

/* Write the facts on which the bits of ggml's own operations depend: ggml's version, and the CPU
 * features that ggml was built for or found. The text is cut where the buffer is full;
 * QUIRE_BACKEND_KERNELS_BYTES are enough. quire_backend_init() must have succeeded. */
#define QUIRE_BACKEND_KERNELS_BYTES 768u
void quire_backend_kernels(char *text, size_t text_bytes);

/* A CPU backend with threads of its own. Thread: owner. Errors: QUIRE_NOMEM. */
typedef struct quire_backend {
    ggml_backend_t ggml;
    struct ggml_threadpool *pool; /* NULL when this ggml offers none: then ggml starts threads */
    quire_team *team; /* NULL when ggml keeps the threads it was built with (cmake/openmp.cmake) */
    ggml_abort_callback abort; /* of abort_set(), or NULL */
    void *abort_ctx;
} quire_backend;
int quire_backend_open(quire_backend *backend, uint32_t n_threads);
void quire_backend_close(quire_backend *backend);
enum ggml_status quire_backend_compute(const quire_backend *backend, struct ggml_cgraph *cgraph);

/* Bytes of working memory that ggml's CPU backend takes for a graph, and keeps: rows rounded for a
 * product, places of rows by expert, angles. Computed from ggml's rules, as ggml tells no figure.
 * ids: [nodes], 0 of those that this backend computes; NULL: all. */
uint64_t quire_backend_work_bytes(struct ggml_cgraph *cgraph, const int *ids, uint32_t n_threads);

/* Set a function that ggml calls between the nodes of a graph; when the function returns true, the
 * computation ends with GGML_STATUS_ABORTED. Returns false when this ggml cannot do so. */
bool quire_backend_abort_set(quire_backend *backend, ggml_abort_callback abort, void *ctx);
/* Ask that function. */
bool quire_backend_gives_up(const quire_backend *backend);

/* Copy this thread's first error line of ggml or libllama since quire_backend_log_clear(), or the
 * line noted last; "" if there was none. */
void quire_backend_log_clear(void);
void quire_backend_log_note(const char *text);
void quire_backend_log_first(char *line, size_t line_bytes);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_MODEL_BACKEND_H */
