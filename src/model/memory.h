/* memory.h - the memory need of a model with its KV cache, computed before anything is loaded.
 *
 *   need = weights, as they will be resident (repacked copies included)
 *        + KV pages of the whole context
 *        + buffers of a step (activations, logits, attention's workspace, graphs), and the caller's
 *        + the program itself
 *
 * KV on a device (quire/device.h) is no need of the host, unless the device's memory is the host's,
 * or the model has recurrent layers: pages with states lie in the host's memory, and may become as
 * many as the budget of KV holds.
 *
 *   need of a device = weights of layers there + KV pages
 *                    + buffers of a step (rows, partial results, activations of these layers)
 *
 * With a split each device has its share of KV, and buffers of its own. Devices of one name are
 * one memory.
 *
 * Weights, KV, attention's workspace and the compute buffer are exact (step_sizes.h). Kept graphs
 * count as many as the cache of graphs holds. The figure of the program is an allowance for code,
 * vocabulary and tables. A test compares the need of each architecture with the memory that a
 * runtime holds.
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
    uint64_t device_bytes; /* upper estimate of a device's buffers, beside KV and weights; of a
                              split without the activations of layers there */
    uint64_t device_weights_bytes; /* of one device */
    /* With a split, of each device of the model's weights: */
    uint64_t layers_weights_bytes[QUIRE_MODEL_DEVICES_MAX];
    uint64_t layers_buffers_bytes[QUIRE_MODEL_DEVICES_MAX];
    bool has_states; /* of recurrent layers */
    double
        shares[QUIRE_DEVICE_SPLIT_MAX]; /* of each device of a split in KV: quire_split_share() */
} quire_memory_need;

/* Bytes of a need in one memory. */
typedef struct quire_memory_use {
    uint64_t weights_bytes;
    uint64_t kv_bytes;
    uint64_t buffers_bytes;
} quire_memory_use;

static inline uint64_t quire_memory_use_sum(const quire_memory_use *use)
{
    return use->weights_bytes + use->kv_bytes + use->buffers_bytes;
}

/* The memory of one device. */
typedef struct quire_memory_part {
    char name[QUIRE_SPLIT_NAME_BYTES];
    uint64_t bytes;  /* UINT64_MAX: not known, or the CPU's */
    bool is_hosts;   /* that is the host's, as lavapipe's: KV and buffers count in both */
    bool is_cpu;     /* the host's without a count of its own */
    uint32_t layers; /* of the model: those of device layers - 1 of its split
                        (quire_model_split); 0: none */
} quire_memory_part;

/* The device that KV lies on, or the devices of a split. */
typedef struct quire_memory_place {
    const char *name; /* of all */
    uint64_t bytes;   /* as of a part, of one device */
    bool is_hosts;
    uint32_t n_parts; /* devices of a split, in the order of its layers; 0: one device */
    quire_memory_part parts[QUIRE_DEVICE_SPLIT_MAX];
    uint64_t kv_bytes_max; /* KV of a split is to be no larger; 0 = no such bound */
} quire_memory_place;

/* A share, 0 to 1, of some bytes. */
static inline uint64_t quire_memory_share(double share, uint64_t bytes)
{
    return share < 1.0 ? (uint64_t)(share * (double)bytes) : bytes;
}

/* The bytes that a share, above 0, of them comes from; UINT64_MAX: more than can be counted. */
static inline uint64_t quire_memory_whole(double share, uint64_t bytes)
{
    const double whole = (double)bytes / share;

    return share >= 1.0 ? bytes : whole < 18446744073709549568.0 ? (uint64_t)whole : UINT64_MAX;
}

/* The need of a runtime with these options; zeros in opts stand for the runtime's defaults. */
void quire_memory_need_get(const quire_model_desc *desc, const quire_runtime_opts *opts,
                           quire_memory_need *out);

/* Whether the host has to have room for KV. place: here and below, NULL = KV is in the host's
 * memory. */
bool quire_memory_kv_is_hosts(const quire_memory_need *need, const quire_memory_place *place);

/* Bytes of a need that the host has to have. */
uint64_t quire_memory_host_bytes(const quire_memory_need *need, const quire_memory_place *place);

/* The parts of these bytes, beside need->program_bytes: with weights, KV and buffers of devices
 * whose memory is the host's. */
quire_memory_use quire_memory_host_use(const quire_memory_need *need,
                                       const quire_memory_place *place);

/* Bytes of a need on the device, or on device i of a split: of a name that comes twice the weights
 * count at the first place. The buffers of the CPU as a device are the host's. */
quire_memory_use quire_memory_device_use(const quire_memory_need *need,
                                         const quire_memory_place *place, uint32_t i);

/* The most bytes that the host, with a limit, or a device lacks; 0: quire_memory_check() agrees. */
uint64_t quire_memory_missing(const quire_memory_need *need, uint64_t limit_bytes,
                              const quire_memory_place *place);

/* Where the weights of a layer lie, or with layer n_layer the last norm and the output matrix: 0
 * the host, 1 + i device i. set: of weights; 0 with a split. */
uint32_t quire_memory_layer_side(const quire_model_desc *desc, uint32_t set, uint32_t layer);

/* The share of KV that the host has to have room for, 0 to 1: that of devices of a split whose
 * memory is the host's, otherwise all or nothing. */
double quire_memory_host_share(const quire_memory_need *need, const quire_memory_place *place);

/* Bytes of KV for which the device, or each device of a split, has room beside weights and buffers;
 * 0 when not even these fit; UINT64_MAX: without bound. */
uint64_t quire_memory_device_room(const quire_memory_need *need, const quire_memory_place *place);

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
