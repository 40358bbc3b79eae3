/* weights_digest.h - tells models of the same shapes apart by samples of their weights.
 *
 * Each tensor counts with its name, type and shape, with the memory that it is multiplied from
 * (which says by whom), and with windows of its bytes: all of a small tensor; of a larger one 16
 * windows of 4 KiB, spread evenly from its first byte to its last. Training changes nearly all
 * weights of a matrix, so another fine-tune is seen; a file in which somebody changed a few rows of
 * a matrix by hand may not be. Reading everything would take as long as reading the file.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_DIGEST_H
#define QUIRE_MODEL_WEIGHTS_DIGEST_H

#include "base/hash128.h"

#include <ggml.h>

#define QUIRE_WEIGHTS_WINDOW_BYTES ((size_t)4096)
#define QUIRE_WEIGHTS_WINDOWS      16u

/* Add a tensor to the digest of those before it; begin with zeros. bytes are its ggml_nbytes() in
 * the file, place the name of the memory that it goes to. */
void quire_weights_digest_add(unsigned char digest[QUIRE_HASH128_BYTES],
                              const struct ggml_tensor *tensor, const char *place,
                              const void *bytes);

#endif /* QUIRE_MODEL_WEIGHTS_DIGEST_H */
