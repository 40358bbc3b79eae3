/* llama_amx.h - included first in llama.cpp's C++ files on CPUs with AMX (scripts/llama.sh).
 *
 * gcc 12's _tile_loadconfig() tells the compiler that the instruction reads 8 bytes. It reads 64,
 * so a configuration that is made on the stack right before, as ggml's is, goes without the rest:
 * the instruction faults, and llama.cpp ends with SIGSEGV at its first product.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_LLAMA_AMX_H
#define QUIRE_LLAMA_AMX_H

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config)                                                                   \
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(config)))
#endif

#endif /* QUIRE_LLAMA_AMX_H */
