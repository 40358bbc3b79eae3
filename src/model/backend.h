/* backend.h - the process-wide side of ggml and libllama: start-up, the CPU device, their logs.
 *
 * Nothing of ggml-cpu.h is named: in a dynamic-backend build (distributions) it cannot be linked,
 * so what is needed from it comes through the registry's proc addresses.
 *
 * Both libraries log through one process-wide callback. We swallow what they say and keep the last
 * error line, because it is the only reason libllama gives when it refuses a file.
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

/* Start ggml and libllama once per process and silence their logs.
 * Errors: QUIRE_UNSUPP when there is no CPU backend. */
int quire_backend_init(quire_error *err);

/* The CPU device; quire_backend_init() must have succeeded. */
ggml_backend_dev_t quire_backend_cpu(void);

/* The CPU device's extra (repacking) buffer types, NULL-terminated; NULL if it has none. */
ggml_backend_buffer_type_t *quire_backend_extra_bufts(void);

/* What the bits of ggml's own operations depend on: its version, and the features of the CPU that
 * it was built for or found. Cut where the buffer is full; QUIRE_BACKEND_KERNELS_BYTES are enough.
 * quire_backend_init() must have succeeded. */
#define QUIRE_BACKEND_KERNELS_BYTES 768u
void quire_backend_kernels(char *text, size_t text_bytes);

/* A CPU backend with threads of its own. Thread: owner. Errors: QUIRE_NOMEM. */
typedef struct quire_backend {
    ggml_backend_t ggml;
    struct ggml_threadpool *pool; /* NULL when this ggml offers none: then ggml starts threads */
    quire_team *team; /* NULL when ggml keeps the threads it was built with (cmake/openmp.cmake) */
} quire_backend;
int quire_backend_open(quire_backend *backend, uint32_t n_threads);
void quire_backend_close(quire_backend *backend);
enum ggml_status quire_backend_compute(const quire_backend *backend, struct ggml_cgraph *cgraph);

/* Have a graph's computation ask, between its nodes, whether it shall end: it then gives
 * GGML_STATUS_ABORTED. Returns false when this ggml cannot. */
bool quire_backend_abort_set(const quire_backend *backend, ggml_abort_callback abort, void *ctx);

/* Copy this thread's last error line of ggml or libllama since quire_backend_log_clear(); "" if
 * there was none. */
void quire_backend_log_clear(void);
void quire_backend_log_first(char *line, size_t line_bytes);
void quire_backend_log_last(char *line, size_t line_bytes);

#endif /* QUIRE_MODEL_BACKEND_H */
