/* attn_machine.c - which comparisons this CPU runs.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_machine.h"

#include "base/cpu.h"

#include <stddef.h>

const attn_machine *attn_machine_get(void)
{
#if defined(__x86_64__)
    if (quire_cpu_get()->has_avx512) {
        return attn_machine_avx512();
    }
    if (quire_cpu_get()->has_avx2) {
        return attn_machine_avx2();
    }
#endif
    return NULL;
}
