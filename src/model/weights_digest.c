/* weights_digest.c - see weights_digest.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights_digest.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The digest so far and n_bytes more. */
static void add(unsigned char *digest, const void *bytes, size_t n_bytes)
{
    unsigned char buffer[QUIRE_HASH128_BYTES + QUIRE_WEIGHTS_WINDOW_BYTES];

    QUIRE_CHECK(n_bytes <= QUIRE_WEIGHTS_WINDOW_BYTES);
    memcpy(buffer, digest, QUIRE_HASH128_BYTES);
    memcpy(buffer + QUIRE_HASH128_BYTES, bytes, n_bytes);
    quire_hash128(buffer, QUIRE_HASH128_BYTES + n_bytes, digest);
}

/* Where window i of a tensor begins. */
static size_t window_begin(size_t n_bytes, uint32_t i)
{
    const size_t last = n_bytes - QUIRE_WEIGHTS_WINDOW_BYTES;

    return last / (QUIRE_WEIGHTS_WINDOWS - 1) * i +
           last % (QUIRE_WEIGHTS_WINDOWS - 1) * i / (QUIRE_WEIGHTS_WINDOWS - 1);
}

void quire_weights_digest_add(unsigned char digest[QUIRE_HASH128_BYTES],
                              const struct ggml_tensor *tensor, const char *place,
                              const void *bytes)
{
    const unsigned char *at = bytes;
    const size_t n_bytes = ggml_nbytes(tensor);
    char line[512];
    int n =
        snprintf(line, sizeof line, "%s %s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n",
                 ggml_get_name(tensor), ggml_type_name(tensor->type), place, tensor->ne[0],
                 tensor->ne[1], tensor->ne[2], tensor->ne[3]);

    QUIRE_CHECK(n > 0 && (size_t)n < sizeof line);
    add(digest, line, (size_t)n);
    if (n_bytes > QUIRE_WEIGHTS_WINDOWS * QUIRE_WEIGHTS_WINDOW_BYTES) {
        for (uint32_t i = 0; i < QUIRE_WEIGHTS_WINDOWS; i++) {
            add(digest, at + window_begin(n_bytes, i), QUIRE_WEIGHTS_WINDOW_BYTES);
        }
        return;
    }
    for (size_t begin = 0; begin < n_bytes; begin += QUIRE_WEIGHTS_WINDOW_BYTES) {
        const size_t rest = n_bytes - begin;

        add(digest, at + begin,
            rest < QUIRE_WEIGHTS_WINDOW_BYTES ? rest : QUIRE_WEIGHTS_WINDOW_BYTES);
    }
}
