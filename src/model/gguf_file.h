/* gguf_file.h - a GGUF file whose every field has been checked.
 *
 * gguf.h does the parsing; ggml aborts on misuse, so nothing of the file reaches ggml or libllama
 * before these checks have passed: sizes and offsets against the file's length, types, array
 * lengths, tensor shapes against the hyper-parameters, the vocabulary (unique tokens, id ranges).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GGUF_FILE_H
#define QUIRE_MODEL_GGUF_FILE_H

#include "model/model.h"

#include <gguf.h>

typedef struct quire_gguf quire_gguf;

/* Parts of a model that a file's name may count: NAME-00001-of-00512.gguf. */
#define QUIRE_GGUF_PARTS_MAX 512u

/* Open, parse and check the container: magic, version, counts, every tensor's type, shape, offset
 * and extent within the file. If it is the first part of a model in parts, do the same with the
 * others, which lie beside it under the names that llama.cpp gives them: NAME-00002-of-00003.gguf.
 * Keys count in the first part only. Errors: QUIRE_IO, QUIRE_CORRUPT, QUIRE_UNSUPP, QUIRE_NOMEM.
 * Memory: close with quire_gguf_close(). */
int quire_gguf_open(quire_gguf **out, const char *path, quire_error *err);
void quire_gguf_close(quire_gguf *file);

/* Borrowed views, valid while the file is open. */
struct gguf_context *quire_gguf_context(const quire_gguf *file); /* of the first part: its keys */
struct ggml_context *quire_gguf_meta(const quire_gguf *file);    /* no_alloc tensors of all parts */
const char *quire_gguf_path(const quire_gguf *file);             /* of the first part */
uint64_t quire_gguf_file_bytes(const quire_gguf *file);          /* of all parts together */
uint32_t quire_gguf_n_parts(const quire_gguf *file);
const char *quire_gguf_part_path(const quire_gguf *file, uint32_t part);
uint64_t quire_gguf_part_bytes(const quire_gguf *file, uint32_t part);

/* Where a tensor's data begin: bytes from the start of a part. The tensor must exist. */
typedef struct quire_gguf_place {
    uint32_t part;
    uint64_t offset;
} quire_gguf_place;
quire_gguf_place quire_gguf_tensor_place(const quire_gguf *file, const char *name);

/* Fill *desc from the keys and the tensor table, and check that every tensor the architecture needs
 * is there with the right shape and a type ggml can multiply with, and that no value is out of
 * bounds. Errors: QUIRE_CORRUPT, QUIRE_UNSUPP. */
int quire_gguf_describe(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Check the tokenizer section so that libllama's vocab-only load cannot abort on it.
 * Errors: QUIRE_CORRUPT, QUIRE_UNSUPP. */
int quire_gguf_check_vocab(const quire_gguf *file, const quire_model_desc *desc, quire_error *err);

#endif /* QUIRE_MODEL_GGUF_FILE_H */
