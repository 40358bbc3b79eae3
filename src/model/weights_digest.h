/* weights_digest.h - tells models of the same shapes apart by samples of their weights.
 *
 * The digest covers for each tensor: its name, type and shape; the memory from which it is
 * multiplied, which tells the kernels; and windows of its bytes. A small tensor counts whole. Of a
 * larger tensor 16 windows of 4 KiB count, spread evenly from its first byte to its last. Training
 * changes nearly all weights of a matrix, so another fine-tune has another digest. A file in which
 * somebody changed a few rows of a matrix by hand may have the same digest. A digest of all bytes
 * would take as long as reading the file.
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

/* Add a tensor to the digest of the tensors before it; begin with zeros. `bytes` are the tensor's
 * ggml_nbytes() in the file, `place` is the name of its memory. */
void quire_weights_digest_add(unsigned char digest[QUIRE_HASH128_BYTES],
                              const struct ggml_tensor *tensor, const char *place,
                              const void *bytes);

#endif /* QUIRE_MODEL_WEIGHTS_DIGEST_H */
