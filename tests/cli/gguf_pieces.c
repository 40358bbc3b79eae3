/* gguf_pieces.c - see gguf_pieces.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_pieces.h"

#include <stdlib.h>
#include <string.h>

#define DATA_BYTES_MAX (16u << 20)

void *piece_alloc(piece_arena *arena, size_t n_bytes)
{
    void *place = arena->bytes + arena->n;

    arena->n += (n_bytes + 15) / 16 * 16;
    assert_true(arena->n <= arena->cap);
    return place;
}

size_t piece_number_bytes(uint32_t type)
{
    static const uint8_t bytes[GGUF_TYPE_COUNT] = {
        [GGUF_TYPE_UINT8] = 1,   [GGUF_TYPE_INT8] = 1,    [GGUF_TYPE_UINT16] = 2,
        [GGUF_TYPE_INT16] = 2,   [GGUF_TYPE_UINT32] = 4,  [GGUF_TYPE_INT32] = 4,
        [GGUF_TYPE_FLOAT32] = 4, [GGUF_TYPE_BOOL] = 1,    [GGUF_TYPE_UINT64] = 8,
        [GGUF_TYPE_INT64] = 8,   [GGUF_TYPE_FLOAT64] = 8,
    };

    return type < GGUF_TYPE_COUNT ? bytes[type] : 0;
}

bool piece_array_get(const piece_key *key, piece_array *out)
{
    if (key->type != GGUF_TYPE_ARRAY) {
        return false;
    }
    memcpy(&out->type, key->value, sizeof(out->type));
    memcpy(&out->n, key->value + sizeof(out->type), sizeof(out->n));
    out->first = key->value + sizeof(out->type) + sizeof(out->n);
    return true;
}

/* ---- reading ---- */

typedef struct cursor {
    const uint8_t *at;
    const uint8_t *end;
} cursor;

static const uint8_t *take(cursor *c, size_t n)
{
    const uint8_t *at = c->at;

    assert_true(n <= (size_t)(c->end - at));
    c->at += n;
    return at;
}

static uint32_t take_u32(cursor *c)
{
    uint32_t value;

    memcpy(&value, take(c, sizeof(value)), sizeof(value));
    return value;
}

static uint64_t take_u64(cursor *c)
{
    uint64_t value;

    memcpy(&value, take(c, sizeof(value)), sizeof(value));
    return value;
}

static const char *take_name(cursor *c, piece_arena *arena)
{
    const size_t n = (size_t)take_u64(c);
    char *name = piece_alloc(arena, n + 1);

    memcpy(name, take(c, n), n);
    name[n] = '\0';
    return name;
}

static void take_value(cursor *c, uint32_t type)
{
    if (type == GGUF_TYPE_STRING) {
        (void)take(c, (size_t)take_u64(c));
    } else if (type == GGUF_TYPE_ARRAY) {
        const uint32_t element = take_u32(c);
        const uint64_t n = take_u64(c);

        for (uint64_t i = 0; i < n; i++) {
            take_value(c, element);
        }
    } else {
        (void)take(c, piece_number_bytes(type));
    }
}

static void take_key(cursor *c, piece_arena *arena, piece_key *key)
{
    key->name = take_name(c, arena);
    key->type = take_u32(c);
    key->value = c->at;
    take_value(c, key->type);
    key->value_bytes = (size_t)(c->at - key->value);
}

/* The offset goes to moved. */
static void take_tensor(cursor *c, piece_arena *arena, piece_tensor *tensor)
{
    tensor->name = take_name(c, arena);
    tensor->n_dims = take_u32(c);
    assert_true(tensor->n_dims <= PIECES_DIMS_MAX);
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        tensor->dims[i] = take_u64(c);
    }
    tensor->type = take_u32(c);
    tensor->moved = take_u64(c);
}

static size_t aligned(size_t n, uint32_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

/* Bytes of a shape; 0: it has no size, or too large a one. */
static size_t shape_bytes(const piece_tensor *t)
{
    uint64_t n = 1;

    if (t->type >= GGML_TYPE_COUNT || ggml_blck_size((enum ggml_type)t->type) <= 0) {
        return 0;
    }
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (__builtin_mul_overflow(n, t->dims[i], &n) || n > DATA_BYTES_MAX) {
            return 0;
        }
    }
    n = n / (uint64_t)ggml_blck_size((enum ggml_type)t->type) *
        ggml_type_size((enum ggml_type)t->type);
    return n <= DATA_BYTES_MAX ? (size_t)n : 0;
}

void gguf_pieces_read(gguf_pieces *out, piece_arena *arena, const uint8_t *file, size_t n)
{
    cursor c = { file, file + n };
    const uint8_t *data;

    memset(out, 0, sizeof(*out));
    out->magic = take_u32(&c);
    out->version = take_u32(&c);
    out->n_tensors = (uint32_t)take_u64(&c);
    out->n_keys = (uint32_t)take_u64(&c);
    out->alignment = GGUF_DEFAULT_ALIGNMENT;
    assert_true(out->n_tensors <= PIECES_TENSORS_MAX && out->n_keys <= PIECES_KEYS_MAX);
    for (uint32_t i = 0; i < out->n_keys; i++) {
        take_key(&c, arena, &out->keys[i]);
    }
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        take_tensor(&c, arena, &out->tensors[i]);
    }
    data = file + aligned((size_t)(c.at - file), out->alignment);
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        piece_tensor *t = &out->tensors[i];

        t->data = data + t->moved;
        t->data_bytes = shape_bytes(t);
        t->moved = 0;
        assert_true(t->data + t->data_bytes <= file + n);
    }
}

piece_key *gguf_pieces_key(gguf_pieces *pieces, const char *name)
{
    for (uint32_t i = 0; i < pieces->n_keys; i++) {
        if (strcmp(pieces->keys[i].name, name) == 0) {
            return &pieces->keys[i];
        }
    }
    return NULL;
}

piece_tensor *gguf_pieces_tensor(gguf_pieces *pieces, const char *name)
{
    for (uint32_t i = 0; i < pieces->n_tensors; i++) {
        if (strcmp(pieces->tensors[i].name, name) == 0) {
            return &pieces->tensors[i];
        }
    }
    return NULL;
}

/* ---- writing ---- */

static size_t pieces_bytes(const gguf_pieces *p)
{
    size_t n = 64 + 2 * (size_t)p->alignment;

    for (uint32_t i = 0; i < p->n_keys; i++) {
        n += 12 + strlen(p->keys[i].name) + p->keys[i].value_bytes;
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        n += 64 + 8 * PIECES_DIMS_MAX + strlen(p->tensors[i].name);
        n += shape_bytes(&p->tensors[i]) + p->alignment;
    }
    return n;
}

static void put(uint8_t **at, const void *bytes, size_t n)
{
    if (n > 0) {
        memcpy(*at, bytes, n);
    }
    *at += n;
}

static void put_u32(uint8_t **at, uint32_t value)
{
    put(at, &value, sizeof(value));
}

static void put_u64(uint8_t **at, uint64_t value)
{
    put(at, &value, sizeof(value));
}

static void put_name(uint8_t **at, const char *name)
{
    put_u64(at, strlen(name));
    put(at, name, strlen(name));
}

static void put_header(uint8_t **at, const gguf_pieces *p)
{
    uint64_t offset = 0;

    put_u32(at, p->magic);
    put_u32(at, p->version);
    put_u64(at, p->n_tensors + p->n_tensors_more);
    put_u64(at, p->n_keys + p->n_keys_more);
    for (uint32_t i = 0; i < p->n_keys; i++) {
        put_name(at, p->keys[i].name);
        put_u32(at, p->keys[i].type);
        put(at, p->keys[i].value, p->keys[i].value_bytes);
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const piece_tensor *t = &p->tensors[i];

        put_name(at, t->name);
        put_u32(at, t->n_dims);
        put(at, t->dims, t->n_dims * sizeof(t->dims[0]));
        put_u32(at, t->type);
        put_u64(at, offset + t->moved);
        offset += aligned(shape_bytes(t), p->alignment);
    }
}

uint8_t *gguf_pieces_write(const gguf_pieces *p, size_t *n)
{
    uint8_t *bytes = calloc(1, pieces_bytes(p));
    uint8_t *at = bytes;

    assert_non_null(bytes);
    put_header(&at, p);
    at = bytes + aligned((size_t)(at - bytes), p->alignment);
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const piece_tensor *t = &p->tensors[i];
        const size_t size = shape_bytes(t);

        if (size > 0 && t->data_bytes > 0) {
            memcpy(at, t->data, size < t->data_bytes ? size : t->data_bytes);
        }
        at += aligned(size, p->alignment);
    }
    *n = (size_t)(at - bytes);
    *n -= p->cut_bytes < *n ? p->cut_bytes : *n;
    return bytes;
}
