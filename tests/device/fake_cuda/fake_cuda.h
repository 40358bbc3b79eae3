/* fake_cuda.h - a libcuda.so.1 without a card: what tests tell it. The library has the functions of
 * the driver API that src/device/cuda calls, and runs the kernels of src/device/cuda/kernels,
 * compiled for the host (emulated_machine.h).
 *
 * It is stricter than a card:
 *   - Work is done as late as it may be: when the host waits for an event behind it. So a host that
 *     changes or reads bytes too early gets wrong bytes.
 *   - The card's memory has no access from the host, except while work is done.
 *   - A block's memory is NaN at first. Blocks and threads run in several orders.
 *   - A function is found in a module only if the module's PTX has an entry of that name.
 *   - Calls without the right context, and copies beyond a piece of memory, are errors.
 *
 * A program opens this library as libcuda.so.1 if the program is linked with the library, or if
 * LD_LIBRARY_PATH names the library's folder.
 *
 * Thread: any; one lock is around all of it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_FAKE_CUDA_H
#define QUIRE_TESTS_DEVICE_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_CUDA_CARDS        3u /* the second one is too old */
#define FAKE_CUDA_MEMORY_BYTES ((uint64_t)8 << 30)

/* The (n + 1)-th next call of a function returns `result`, and does nothing. call: "cuMemAlloc_v2"
 * and so on; NULL: none. */
void fake_cuda_fail(const char *call, uint32_t n, int result);
/* Whether that call was made. */
bool fake_cuda_has_failed(void);

/* The (n + 1)-th next piece of work (a copy, a kernel) faults: it is not done, and from then on all
 * calls of its card return `result`. */
void fake_cuda_fault(uint32_t n, int result);

/* Cards are whole again, and nothing fails. */
void fake_cuda_repair(void);

/* Kernels are done at once, in streams without functions of the host's (cuLaunchHostFunc()): too
 * early, unless the stream waits for an event. */
void fake_cuda_hurry(bool hurries);

/* The largest memory that a card gives, all together. 0: FAKE_CUDA_MEMORY_BYTES. */
void fake_cuda_limit(uint64_t bytes);

typedef struct fake_cuda_counts {
    uint64_t n_blocks;  /* that kernels ran */
    uint64_t n_kernels; /* that were done */
    uint64_t n_waits;   /* of the host, for work that was not done */
    uint32_t n_pieces;  /* of memory that was not freed; streams, events and modules, too */
    uint32_t n_errors;  /* calls that a right program does not make */
} fake_cuda_counts;
fake_cuda_counts fake_cuda_seen(void);

#endif /* QUIRE_TESTS_DEVICE_FAKE_CUDA_H */
