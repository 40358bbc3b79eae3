/* layers_cuda.h - ggml's CUDA backend without a card: the backend of the CPU, whose work is in a
 * stream of the emulated card 0 (device/fake_cuda) as functions of the host's. As with the real
 * one, a tensor's data is its address for kernels of the card, each backend has a stream, its
 * events are the driver's, and a failed call of the driver ends in ggml_abort(), or, where memory
 * or a backend is released, in abort(). So the driver's library does all work as late as it may,
 * unless events order it.
 *
 * The calls of ggml are wrapped (the link option --wrap, CMakeLists.txt). Calls for the host's own
 * backend, which is of the same device, stay as they are.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_LAYERS_CUDA_H
#define QUIRE_TESTS_LAYERS_CUDA_H

#include <stdbool.h>
#include <stdint.h>

/* Backends that are opened from now on are such ones, on the card of the device cuda0. */
void layers_cuda_begin(void);
/* All have been closed. */
void layers_cuda_end(void);

/* Whether the device offers events. */
void layers_cuda_offer_events(bool offers);

/* Have ggml's calls leave out an order that Quire asks for: ggml's queue waits for no event of
 * others. For the test of the tests. */
void layers_cuda_ignore_waits(bool ignores);

/* Whether the device's backend has the name "CUDA". Quire then keeps what ggml has on the card,
 * until the process ends, once a call has failed. The device is then another one than ggml's first,
 * whose name is on pinned memory. */
void layers_cuda_name(bool names);

/* Bytes that were pinned so far; UINT64_MAX: this ggml has no header that describes memory. */
uint64_t layers_cuda_pinned(void);

/* The card faults, at work that is neither Quire's nor ggml's. */
void layers_cuda_lose(void);

#endif /* QUIRE_TESTS_LAYERS_CUDA_H */
