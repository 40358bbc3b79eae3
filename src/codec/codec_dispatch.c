/* codec_dispatch.c - which codec this machine runs.
 *
 * All codecs write the same bytes, so falling back is always right: an ISA without a codec of its
 * own uses the next narrower one. An unknown QUIRE_ISA is refused where a workspace is created
 * (attn_dispatch.c), not here.
 *
 * SPDX-License-Identifier: MIT */
#include "base/cpu.h"
#include "codec/codec_internal.h"

#include <stdlib.h>
#include <string.h>

static const quire_codec *widest_codec(void)
{
#if defined(__x86_64__)
    if (quire_cpu_get()->has_avx2) {
        return quire_codec_avx2();
    }
#endif
    return quire_codec_ref();
}

const quire_codec *quire_codec_find(const char *isa)
{
    if (strcmp(isa, "ref") == 0 || strcmp(isa, "portable") == 0) {
        return quire_codec_ref();
    }
    if (strcmp(isa, "avx2") == 0 || strcmp(isa, "avx512") == 0 || strcmp(isa, "avx512+bf16") == 0 ||
        strcmp(isa, "avx512+amx") == 0) {
        const quire_codec *codec = widest_codec();

        return codec != quire_codec_ref() ? codec : NULL;
    }
#if defined(__aarch64__)
    if (strcmp(isa, "neon") == 0) {
        return quire_codec_ref();
    }
#endif
    return NULL;
}

const quire_codec *quire_codec_get(void)
{
    const char *isa = getenv("QUIRE_ISA");
    const quire_codec *codec = NULL;

    if (isa != NULL && isa[0] != '\0') {
        codec = quire_codec_find(isa);
    }
    return codec != NULL ? codec : widest_codec();
}
