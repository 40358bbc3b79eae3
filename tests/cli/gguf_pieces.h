/* gguf_pieces.h - a model file as a list of keys and a list of tensors, to be damaged and written
 * again.
 *
 * The writer of gguf.h writes valid files only. The writer here writes wrong counts, names that
 * occur twice, tensors at wrong offsets and unknown types, too. A copy of the lists is cheap: the
 * copy points to the values and data of the file until a damage replaces a pointer.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_GGUF_PIECES_H
#define QUIRE_TESTS_GGUF_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <gguf.h>

#define PIECES_KEYS_MAX    128u
#define PIECES_TENSORS_MAX 1024u
#define PIECES_DIMS_MAX    6u

typedef struct piece_key {
    const char *name;
    uint32_t type;        /* GGUF_TYPE_*, or a number that is none */
    const uint8_t *value; /* as in the file, behind the type */
    size_t value_bytes;
} piece_key;

typedef struct piece_tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[PIECES_DIMS_MAX];
    uint32_t type;
    const uint8_t *data; /* in the file: cut, or followed by zeros, when the shape is another */
    size_t data_bytes;
    uint64_t moved; /* added to the offset that is written, not to the place of the data */
} piece_tensor;

typedef struct gguf_pieces {
    uint32_t magic;
    uint32_t version;
    piece_key keys[PIECES_KEYS_MAX];
    piece_tensor tensors[PIECES_TENSORS_MAX];
    uint32_t n_keys, n_tensors;
    uint64_t n_keys_more, n_tensors_more; /* added to the counts that are written */
    uint32_t alignment;                   /* of the data, whatever the key says */
    uint64_t cut_bytes;                   /* so many bytes of the end are missing */
} gguf_pieces;

/* Memory that values and names of one damage lie in. */
typedef struct piece_arena {
    uint8_t *bytes;
    size_t n, cap;
} piece_arena;
void *piece_alloc(piece_arena *arena, size_t n_bytes);

/* Take the bytes of a whole file apart. Fails the test when they are no GGUF file. Names are copied
 * to the arena. Values and data stay in file, which outlives the pieces. */
void gguf_pieces_read(gguf_pieces *out, piece_arena *arena, const uint8_t *file, size_t n);

/* The bytes of a file. Data of a shape that has no size, or more than 16 MiB, are left out.
 * Memory: free(). */
uint8_t *gguf_pieces_write(const gguf_pieces *pieces, size_t *n);

/* The key or the tensor of that name; NULL when there is none. */
piece_key *gguf_pieces_key(gguf_pieces *pieces, const char *name);
piece_tensor *gguf_pieces_tensor(gguf_pieces *pieces, const char *name);

/* An array: its type, its length, and where its elements begin. */
typedef struct piece_array {
    uint32_t type;
    uint64_t n;
    const uint8_t *first;
} piece_array;
#define PIECE_ARRAY_HEAD 12u /* bytes of type and length */
bool piece_array_get(const piece_key *key, piece_array *out);

/* Bytes of a number of that type; 0: no number. */
size_t piece_number_bytes(uint32_t type);

#endif /* QUIRE_TESTS_GGUF_PIECES_H */
