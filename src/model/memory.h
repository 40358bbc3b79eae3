/* memory.h - the memory need of a model with its KV cache, computed before anything is loaded.
 *
 *   need = weights, as they will be resident (repacked copies included)
 *        + KV pages of the whole context
 *        + buffers of a step (activations, logits, attention's workspace), and the caller's
 *        + the program itself
 *
 * KV on a device (quire/device.h) is no need of the host, unless the device's memory is the host's,
 * or the model has recurrent layers: pages with states lie in the host's memory, and may become as
 * many as the budget of KV holds.
 *
 *   need of a device = weights of layers there + KV pages
 *                    + buffers of a step (rows, partial results, activations of these layers)
 *
 * Weights, KV and attention's workspace are exact. The figure of the other buffers is an upper
 * estimate of the bytes that graph.c reserves. The figure of the program is an allowance for code,
 * vocabulary and tables. Tests compare the need with the memory of a runtime.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_MEMORY_H
#define QUIRE_MODEL_MEMORY_H

#include "model/runtime.h"

typedef struct quire_memory_need {
    uint32_t n_ctx; /* tokens that kv_bytes is for */
    uint64_t weights_bytes;
    uint64_t kv_bytes;
    uint64_t buffers_bytes;
    uint64_t program_bytes;
    uint64_t total_bytes;  /* of the above */
    uint64_t device_bytes; /* upper estimate of a device's buffers, beside KV and weights */
    uint64_t device_weights_bytes;
    bool has_states; /* of recurrent layers */
} quire_memory_need;

/* The device that KV lies on. */
typedef struct quire_memory_place {
    const char *name;
    uint64_t bytes; /* the device's memory; UINT64_MAX: not known */
    bool is_hosts;  /* that is the host's, as lavapipe's: KV and buffers count in both */
} quire_memory_place;

/* The need of a runtime with these options; zeros in opts stand for the runtime's defaults. */
void quire_memory_need_get(const quire_model_desc *desc, const quire_runtime_opts *opts,
                           quire_memory_need *out);

/* Whether the host has to have room for KV. place: here and below, NULL = KV is in the host's
 * memory. */
bool quire_memory_kv_is_hosts(const quire_memory_need *need, const quire_memory_place *place);

/* Bytes of a need that the host has to have. */
uint64_t quire_memory_host_bytes(const quire_memory_need *need, const quire_memory_place *place);

/* The longest context with which the need stays within limit_bytes, and within the device, in whole
 * pages and at most tokens_max; 0 when not even one page fits. opts->n_ctx and
 * opts->kv_budget_bytes are not looked at. */
uint32_t quire_memory_tokens_max(const quire_model_desc *desc, const quire_runtime_opts *opts,
                                 uint64_t limit_bytes, const quire_memory_place *place,
                                 uint32_t tokens_max);

/* Refuse a need of the host above the limit, or one of the device above its memory: the message
 * names the need, the limit, the difference and options to change. Errors: QUIRE_NOMEM. */
int quire_memory_check(const quire_model_desc *desc, const quire_runtime_opts *opts,
                       uint64_t limit_bytes, const quire_memory_place *place, quire_error *err);

/* Bytes that this process may still take without swapping: the available memory of the system, or
 * less if a control group (version 1 or 2) allows less. UINT64_MAX when the system does not say. */
uint64_t quire_memory_available(void);

/* The same, read below a folder instead of "/"; for tests. */
uint64_t quire_memory_available_in(const char *root);

/* The peak of this process's resident memory (VmHWM), mapped files included; 0 when the
 * system does not say. */
uint64_t quire_memory_resident_peak(void);

#endif /* QUIRE_MODEL_MEMORY_H */
