/* gguf_scan.h - walks the header of a GGUF file before gguf.h sees it.
 *
 * The walk allocates almost nothing and trusts no count: every length is checked against the rest
 * of the file before the length is used. The walk guarantees to the code that follows:
 *
 *   S1  magic, version 2 or 3, this machine's byte order
 *   S2  counts of keys, tensors and array elements bounded (constants below), so that gguf.h's
 *       copies and its quadratic searches for duplicates stay small
 *   S3  keys and tensor names are not empty, of bounded length, without zero bytes, and unique
 *   S4  array elements are scalars or strings
 *   S5  tensors have 1 to 4 dimensions, none zero, whole blocks per row, a size that does not
 *       overflow and a type ggml knows, and lie aligned one after the other
 *
 * The walk does not check whether the file has the data of all tensors; quire_gguf_open() does so,
 * and names the missing tensor.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GGUF_SCAN_H
#define QUIRE_MODEL_GGUF_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

/* About ten times the numbers of the largest models. */
#define QUIRE_GGUF_KEYS_MAX         4096u
#define QUIRE_GGUF_TENSORS_MAX      16384u     /* of all parts of a model together */
#define QUIRE_GGUF_STRINGS_MAX      (1u << 22) /* in all arrays together */
#define QUIRE_GGUF_HEADER_BYTES_MAX (1u << 28)
#define QUIRE_GGUF_KEY_BYTES_MAX    1024u
#define QUIRE_GGUF_ALIGNMENT_MIN    8u
#define QUIRE_GGUF_ALIGNMENT_MAX    (1u << 16)

/* Check the header of the open file fd of file_bytes bytes; path is for messages.
 * Errors: QUIRE_CORRUPT, QUIRE_UNSUPP, QUIRE_IO, QUIRE_NOMEM. */
int quire_gguf_scan(int fd, uint64_t file_bytes, const char *path, quire_error *err);

/* Bytes of a file as one readable line for a message: at most cap - 1 bytes, with '?' for each byte
 * that is not printable ASCII. Returns buffer. */
const char *quire_gguf_printable(char *buffer, size_t cap, const char *text, size_t text_bytes);

#endif /* QUIRE_MODEL_GGUF_SCAN_H */
