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

/* Open, parse and check the container: magic, version, counts, every tensor's type, shape, offset
 * and extent within the file. Errors: QUIRE_IO, QUIRE_CORRUPT, QUIRE_UNSUPP, QUIRE_NOMEM.
 * Memory: close with quire_gguf_close(). */
int quire_gguf_open(quire_gguf **out, const char *path, quire_error *err);
void quire_gguf_close(quire_gguf *file);

/* Borrowed views, valid while the file is open. */
struct gguf_context *quire_gguf_context(const quire_gguf *file);
struct ggml_context *quire_gguf_meta(const quire_gguf *file); /* no_alloc tensors by name */
const char *quire_gguf_path(const quire_gguf *file);
uint64_t quire_gguf_file_bytes(const quire_gguf *file);
/* Byte offset of a tensor's data from the start of the file; the tensor must exist. */
uint64_t quire_gguf_tensor_offset(const quire_gguf *file, const char *name);

/* Fill *desc from the keys and the tensor table, and check that every tensor the architecture needs
 * is there with the right shape and a type ggml can multiply with, and that no value is out of
 * bounds. Errors: QUIRE_CORRUPT, QUIRE_UNSUPP. */
int quire_gguf_describe(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Check the tokenizer section so that libllama's vocab-only load cannot abort on it.
 * Errors: QUIRE_CORRUPT, QUIRE_UNSUPP. */
int quire_gguf_check_vocab(const quire_gguf *file, const quire_model_desc *desc, quire_error *err);

#endif /* QUIRE_MODEL_GGUF_FILE_H */
