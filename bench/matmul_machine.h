/* matmul_machine.h - the machine's limits that bench_matmul measures.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_MATMUL_MACHINE_H
#define QUIRE_BENCH_MATMUL_MACHINE_H

#include <stdint.h>

/* n rounds of independent integer dot products in registers; returns the multiply-adds of a round,
 * 0 where the CPU has none of the kind. */
uint32_t matmul_machine_dots(uint64_t n);

#endif /* QUIRE_BENCH_MATMUL_MACHINE_H */
