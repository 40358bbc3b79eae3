/* model_damage.c - see model_damage.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_damage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list)  (sizeof(list) / sizeof((list)[0]))
#define LONG_LETTERS 5000u

void damage_say(model_damage *d, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(d->what, sizeof(d->what), format, ap);
    va_end(ap);
}

/* ---- values ---- */

uint8_t *damage_string(model_damage *d, const char *text, size_t *n)
{
    const uint64_t length = strlen(text);
    uint8_t *value = piece_alloc(&d->arena, sizeof(length) + length);

    memcpy(value, &length, sizeof(length));
    memcpy(value + sizeof(length), text, length);
    *n = sizeof(length) + length;
    return value;
}

char *damage_letters(model_damage *d, size_t n)
{
    char *text = piece_alloc(&d->arena, n + 1);

    memset(text, 'x', n);
    text[n] = '\0';
    return text;
}

static void value_set(model_damage *d, piece_key *key, uint32_t type, const void *value, size_t n)
{
    uint8_t *copy = piece_alloc(&d->arena, n);

    memcpy(copy, value, n);
    key->type = type;
    key->value = copy;
    key->value_bytes = n;
}

static void text_set(model_damage *d, piece_key *key, const char *text)
{
    key->type = GGUF_TYPE_STRING;
    key->value = damage_string(d, text, &key->value_bytes);
}

void damage_key_set(model_damage *d, const char *name, uint32_t type, const void *value, size_t n)
{
    piece_key *key = gguf_pieces_key(&d->pieces, name);

    if (key == NULL) {
        assert_true(d->pieces.n_keys < PIECES_KEYS_MAX);
        key = &d->pieces.keys[d->pieces.n_keys++];
        key->name = name;
    }
    value_set(d, key, type, value, n);
}

void damage_key_set_u32(model_damage *d, const char *name, uint32_t value)
{
    damage_key_set(d, name, GGUF_TYPE_UINT32, &value, sizeof(value));
}

void damage_key_set_str(model_damage *d, const char *name, const char *text)
{
    size_t n;
    const uint8_t *value = damage_string(d, text, &n);

    damage_key_set(d, name, GGUF_TYPE_STRING, value, n);
}

/* ---- arrays ---- */

static size_t element_bytes(uint32_t type, const uint8_t *at)
{
    uint64_t length;

    if (type != GGUF_TYPE_STRING) {
        return piece_number_bytes(type);
    }
    memcpy(&length, at, sizeof(length));
    return sizeof(length) + length;
}

/* Begin the bytes of an array of n elements with room for n_bytes of them. */
static uint8_t *array_begin(model_damage *d, uint32_t type, uint64_t n, size_t n_bytes)
{
    uint8_t *value = piece_alloc(&d->arena, sizeof(type) + sizeof(n) + n_bytes);

    memcpy(value, &type, sizeof(type));
    memcpy(value + sizeof(type), &n, sizeof(n));
    return value;
}

bool damage_array_resize(model_damage *d, piece_key *key, uint64_t n)
{
    piece_array a;
    const uint8_t *from;
    uint8_t *value, *at;

    if (key == NULL || !piece_array_get(key, &a) || a.n == 0 || a.n == n) {
        return false;
    }
    value = array_begin(d, a.type, n, key->value_bytes + n * element_bytes(a.type, a.first));
    at = value + PIECE_ARRAY_HEAD;
    from = a.first;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *element = i < a.n ? from : a.first;
        const size_t bytes = element_bytes(a.type, element);

        memcpy(at, element, bytes);
        at += bytes;
        from += i < a.n ? bytes : 0;
    }
    key->value = value;
    key->value_bytes = (size_t)(at - value);
    return true;
}

bool damage_array_text_set(model_damage *d, piece_key *key, uint64_t i, const char *text)
{
    piece_array a;
    const uint8_t *from;
    uint8_t *value;
    size_t before, gone, n;
    const uint8_t *string;

    if (key == NULL || !piece_array_get(key, &a) || a.type != GGUF_TYPE_STRING || i >= a.n) {
        return false;
    }
    from = a.first;
    for (uint64_t k = 0; k < i; k++) {
        from += element_bytes(a.type, from);
    }
    before = (size_t)(from - key->value);
    gone = element_bytes(a.type, from);
    string = damage_string(d, text, &n);
    value = piece_alloc(&d->arena, key->value_bytes - gone + n);
    memcpy(value, key->value, before);
    memcpy(value + before, string, n);
    memcpy(value + before + n, from + gone, key->value_bytes - before - gone);
    key->value = value;
    key->value_bytes = key->value_bytes - gone + n;
    return true;
}

/* ---- numbers ---- */

typedef enum extreme {
    ZERO,
    HUGE_ONE,
    NEGATIVE,
    NOT_A_NUMBER
} extreme;

/* Write a number of a type. False: the type has none such. */
static bool number_write(uint8_t *at, uint32_t type, extreme e)
{
    static const float floats[] = { 0.0f, 3e38f, -1.0f, NAN };
    static const double doubles[] = { 0.0, 1e308, -1.0, NAN };
    const size_t n = piece_number_bytes(type);
    const bool is_signed = type == GGUF_TYPE_INT8 || type == GGUF_TYPE_INT16 ||
                           type == GGUF_TYPE_INT32 || type == GGUF_TYPE_INT64;

    if (type == GGUF_TYPE_FLOAT32) {
        memcpy(at, &floats[e], n);
        return true;
    }
    if (type == GGUF_TYPE_FLOAT64) {
        memcpy(at, &doubles[e], n);
        return true;
    }
    memset(at, e == ZERO ? 0 : 0xff, n);
    if (e == HUGE_ONE && is_signed) {
        at[n - 1] = 0x7f;
    }
    return n > 0 && (e == ZERO || e == HUGE_ONE || (e == NEGATIVE && is_signed));
}

static bool array_extreme(model_damage *d, piece_key *key, extreme e, bool is_last_only)
{
    piece_array a;
    size_t bytes;
    uint8_t *value;
    bool is_done = false;

    if (!piece_array_get(key, &a) || a.n == 0) {
        return false;
    }
    if (a.type == GGUF_TYPE_STRING) {
        return damage_array_text_set(d, key, is_last_only ? a.n - 1 : 0,
                                     e == HUGE_ONE ? damage_letters(d, LONG_LETTERS) : "");
    }
    bytes = piece_number_bytes(a.type);
    value = array_begin(d, a.type, a.n, a.n * bytes);
    memcpy(value, key->value, key->value_bytes);
    for (uint64_t i = is_last_only ? a.n - 1 : 0; i < a.n; i++) {
        is_done = number_write(value + PIECE_ARRAY_HEAD + i * bytes, a.type, e);
    }
    key->value = value;
    return is_done;
}

static bool key_extreme(model_damage *d, piece_key *key, uint32_t e)
{
    const int32_t minus = -1;
    uint8_t number[8];

    if (key->type == GGUF_TYPE_ARRAY) {
        return array_extreme(d, key, (extreme)e, false);
    }
    if (key->type == GGUF_TYPE_STRING) {
        text_set(d, key, e == HUGE_ONE ? damage_letters(d, LONG_LETTERS) : "");
        return e == ZERO || e == HUGE_ONE;
    }
    if (number_write(number, key->type, (extreme)e)) {
        value_set(d, key, key->type, number, key->value_bytes);
        return true;
    }
    value_set(d, key, GGUF_TYPE_INT32, &minus, sizeof(minus));
    return e == NEGATIVE;
}

typedef enum nudge {
    MORE,
    LESS,
    MANY_TIMES,
    HALF
} nudge;

/* A whole number or a float, changed a little; half of a float is infinity. */
static bool key_nudge(model_damage *d, piece_key *key, uint32_t how)
{
    uint32_t whole;
    float real;

    if (key->type == GGUF_TYPE_UINT32 || key->type == GGUF_TYPE_INT32) {
        memcpy(&whole, key->value, sizeof(whole));
        whole = how == MORE         ? whole + 1
                : how == LESS       ? whole - 1
                : how == MANY_TIMES ? whole * 2
                                    : whole / 2;
        value_set(d, key, key->type, &whole, sizeof(whole));
        return true;
    }
    if (key->type == GGUF_TYPE_FLOAT32) {
        memcpy(&real, key->value, sizeof(real));
        real = how == MORE         ? real + 1.0f
               : how == LESS       ? real - 1.0f
               : how == MANY_TIMES ? real * 1e6f
                                   : INFINITY;
        value_set(d, key, key->type, &real, sizeof(real));
        return true;
    }
    return false;
}

/* ---- keys ---- */

/* Another type with a value of it. */
static bool key_retype(model_damage *d, piece_key *key, uint32_t type)
{
    static const float real = 1.5f;
    static const uint64_t number = 1;
    const bool is_same = key->type == type;

    if (type == GGUF_TYPE_STRING) {
        text_set(d, key, "x");
    } else if (type == GGUF_TYPE_FLOAT32) {
        value_set(d, key, type, &real, sizeof(real));
    } else {
        value_set(d, key, type, &number, piece_number_bytes(type));
    }
    return !is_same;
}

static bool key_type_only(model_damage *d, piece_key *key, uint32_t type)
{
    (void)d;
    key->type = type;
    return true;
}

/* An array of one element: the value, or a zero of another type. */
static bool key_to_array(model_damage *d, piece_key *key, uint32_t type)
{
    uint8_t *value;
    size_t n;

    if (key->type == GGUF_TYPE_ARRAY) {
        return false;
    }
    n = key->value_bytes;
    value = array_begin(d, type == GGUF_TYPE_COUNT ? key->type : type, 1, 64 + n);
    if (type == GGUF_TYPE_COUNT) {
        memcpy(value + PIECE_ARRAY_HEAD, key->value, n);
    } else {
        n = piece_number_bytes(type);
        memset(value + PIECE_ARRAY_HEAD, 0, n);
    }
    key->type = GGUF_TYPE_ARRAY;
    key->value = value;
    key->value_bytes = PIECE_ARRAY_HEAD + n;
    return true;
}

/* The elements' bytes as those of elements of another type. */
static bool array_retype(model_damage *d, piece_key *key, uint32_t type)
{
    piece_array a;
    uint8_t *value;

    if (!piece_array_get(key, &a)) {
        return false;
    }
    value = array_begin(d, type, a.n, key->value_bytes);
    memcpy(value + PIECE_ARRAY_HEAD, a.first, key->value_bytes - PIECE_ARRAY_HEAD);
    key->value = value;
    return true;
}

typedef enum length {
    HALF_AS_LONG,
    ONE_SHORTER,
    ONE_LONGER,
    TWICE_AS_LONG,
    EMPTY
} length;

static bool array_length_change(model_damage *d, piece_key *key, uint32_t how)
{
    piece_array a;

    if (!piece_array_get(key, &a)) {
        return false;
    }
    return damage_array_resize(d, key,
                               how == HALF_AS_LONG    ? a.n / 2
                               : how == ONE_SHORTER   ? a.n - 1
                               : how == ONE_LONGER    ? a.n + 1
                               : how == TWICE_AS_LONG ? 2 * a.n
                                                      : 0);
}

static bool array_end_extreme(model_damage *d, piece_key *key, uint32_t e)
{
    return array_extreme(d, key, (extreme)e, true);
}

static const char *name_longer(model_damage *d, const char *name)
{
    char *longer = piece_alloc(&d->arena, strlen(name) + 3);

    (void)snprintf(longer, strlen(name) + 3, "%s_x", name);
    return longer;
}

typedef enum in_list {
    REMOVED,
    RENAMED,
    TWICE
} in_list;

static bool key_in_list(model_damage *d, piece_key *key, uint32_t how)
{
    gguf_pieces *p = &d->pieces;

    if (how == RENAMED) {
        key->name = name_longer(d, key->name);
    } else if (how == TWICE) {
        assert_true(p->n_keys < PIECES_KEYS_MAX);
        p->keys[p->n_keys++] = *key;
    } else {
        p->n_keys--;
        memmove(key, key + 1, (size_t)(p->keys + p->n_keys - key) * sizeof(*key));
    }
    return true;
}

static const struct {
    const char *what;
    bool (*apply)(model_damage *d, piece_key *key, uint32_t how);
    uint32_t how;
} key_damages[] = {
    { "removed", key_in_list, REMOVED },
    { "renamed", key_in_list, RENAMED },
    { "there twice", key_in_list, TWICE },
    { "a string", key_retype, GGUF_TYPE_STRING },
    { "u32", key_retype, GGUF_TYPE_UINT32 },
    { "f32", key_retype, GGUF_TYPE_FLOAT32 },
    { "bool", key_retype, GGUF_TYPE_BOOL },
    { "i64", key_retype, GGUF_TYPE_INT64 },
    { "u8", key_retype, GGUF_TYPE_UINT8 },
    { "of no type", key_type_only, 99 },
    { "an array of it", key_to_array, GGUF_TYPE_COUNT },
    { "an array of a u32", key_to_array, GGUF_TYPE_UINT32 },
    { "an array of an f32", key_to_array, GGUF_TYPE_FLOAT32 },
    { "zero", key_extreme, ZERO },
    { "huge", key_extreme, HUGE_ONE },
    { "negative", key_extreme, NEGATIVE },
    { "not a number", key_extreme, NOT_A_NUMBER },
    { "one more", key_nudge, MORE },
    { "one less", key_nudge, LESS },
    { "many times as much", key_nudge, MANY_TIMES },
    { "half or endless", key_nudge, HALF },
    { "half as long", array_length_change, HALF_AS_LONG },
    { "one shorter", array_length_change, ONE_SHORTER },
    { "one longer", array_length_change, ONE_LONGER },
    { "twice as long", array_length_change, TWICE_AS_LONG },
    { "empty", array_length_change, EMPTY },
    { "zero at its end", array_end_extreme, ZERO },
    { "huge at its end", array_end_extreme, HUGE_ONE },
    { "an array of arrays", array_retype, GGUF_TYPE_ARRAY },
    { "an array of i32", array_retype, GGUF_TYPE_INT32 },
};

static uint32_t keys_count(const gguf_pieces *whole)
{
    return whole->n_keys * (uint32_t)COUNT(key_damages);
}

static bool keys_apply(model_damage *d, uint32_t i)
{
    piece_key *key = &d->pieces.keys[i / COUNT(key_damages)];
    const uint32_t which = i % (uint32_t)COUNT(key_damages);

    d->at = key->name;
    damage_say(d, "key %s: %s", d->at, key_damages[which].what);
    return key_damages[which].apply(d, key, key_damages[which].how);
}

/* ---- tensors ---- */

static bool tensor_in_list(model_damage *d, piece_tensor *t, uint64_t how)
{
    gguf_pieces *p = &d->pieces;

    if (how == RENAMED) {
        t->name = name_longer(d, t->name);
    } else if (how == TWICE) {
        assert_true(p->n_tensors < PIECES_TENSORS_MAX);
        p->tensors[p->n_tensors++] = *t;
    } else {
        p->n_tensors--;
        memmove(t, t + 1, (size_t)(p->tensors + p->n_tensors - t) * sizeof(*t));
    }
    return true;
}

/* The data become zeros: bytes of another type could be any numbers. */
static bool tensor_retype(model_damage *d, piece_tensor *t, uint64_t type)
{
    const bool is_same = t->type == type;

    (void)d;
    t->type = (uint32_t)type;
    t->data_bytes = 0;
    return !is_same;
}

static bool tensor_swap(model_damage *d, piece_tensor *t, uint64_t how)
{
    const uint64_t columns = t->dims[0];

    (void)d, (void)how;
    t->dims[0] = t->dims[t->n_dims - 1];
    t->dims[t->n_dims - 1] = columns;
    return t->dims[0] != columns;
}

static bool tensor_columns(model_damage *d, piece_tensor *t, uint64_t n)
{
    (void)d;
    t->dims[0] = n;
    return true;
}

static bool tensor_rows(model_damage *d, piece_tensor *t, uint64_t n)
{
    (void)d;
    t->dims[t->n_dims - 1] = n;
    return true;
}

static bool tensor_columns_nudge(model_damage *d, piece_tensor *t, uint64_t how)
{
    return tensor_columns(d, t, how == LESS ? t->dims[0] - 1 : 2 * t->dims[0]);
}

static bool tensor_rows_nudge(model_damage *d, piece_tensor *t, uint64_t how)
{
    const uint64_t n = t->dims[t->n_dims - 1];

    (void)tensor_rows(d, t, how == LESS ? n - 1 : how == MORE ? n + 1 : n / 2);
    return t->n_dims > 1;
}

static bool tensor_one_number(model_damage *d, piece_tensor *t, uint64_t how)
{
    (void)d, (void)how;
    t->n_dims = 1;
    t->dims[0] = 1;
    return true;
}

static bool tensor_dimension_add(model_damage *d, piece_tensor *t, uint64_t n)
{
    (void)d;
    t->dims[t->n_dims++] = n;
    return true;
}

static bool tensor_dimensions(model_damage *d, piece_tensor *t, uint64_t n)
{
    (void)d;
    for (uint32_t k = t->n_dims; k < n; k++) {
        t->dims[k] = 1;
    }
    t->n_dims = (uint32_t)n;
    return true;
}

static bool tensor_move(model_damage *d, piece_tensor *t, uint64_t bytes)
{
    (void)d;
    t->moved = bytes;
    return true;
}

/* The file ends in the middle of the tensor. */
static bool tensor_cut(model_damage *d, piece_tensor *t, uint64_t how)
{
    gguf_pieces *p = &d->pieces;

    (void)how;
    p->cut_bytes = t->data_bytes / 2 + 1;
    for (const piece_tensor *next = t + 1; next < p->tensors + p->n_tensors; next++) {
        p->cut_bytes += next->data_bytes;
    }
    p->cut_bytes += (uint64_t)p->alignment * (uint64_t)(p->tensors + p->n_tensors - t);
    return true;
}

static const struct {
    const char *what;
    bool (*apply)(model_damage *d, piece_tensor *t, uint64_t how);
    uint64_t how;
} tensor_damages[] = {
    { "removed", tensor_in_list, REMOVED },
    { "renamed", tensor_in_list, RENAMED },
    { "there twice", tensor_in_list, TWICE },
    { "f16", tensor_retype, GGML_TYPE_F16 },
    { "bf16", tensor_retype, GGML_TYPE_BF16 },
    { "q8_0", tensor_retype, GGML_TYPE_Q8_0 },
    { "q4_0", tensor_retype, GGML_TYPE_Q4_0 },
    { "i32", tensor_retype, GGML_TYPE_I32 },
    { "f64", tensor_retype, GGML_TYPE_F64 },
    { "of an unknown type", tensor_retype, 999 },
    { "of a type that ggml no longer has", tensor_retype, 4 },
    { "with its dimensions swapped", tensor_swap, 0 },
    { "without columns", tensor_columns, 0 },
    { "without rows", tensor_rows, 0 },
    { "with one column less", tensor_columns_nudge, LESS },
    { "with twice the columns", tensor_columns_nudge, MANY_TIMES },
    { "with one row less", tensor_rows_nudge, LESS },
    { "with one row more", tensor_rows_nudge, MORE },
    { "with half the rows", tensor_rows_nudge, HALF },
    { "with huge rows", tensor_rows, 1ull << 40 },
    { "with a size beyond 64 bits", tensor_columns, 1ull << 62 },
    { "of one number", tensor_one_number, 0 },
    { "with one more dimension of 1", tensor_dimension_add, 1 },
    { "with one more dimension of 2", tensor_dimension_add, 2 },
    { "without dimensions", tensor_dimensions, 0 },
    { "of five dimensions", tensor_dimensions, 5 },
    { "32 bytes behind its place", tensor_move, 32 },
    { "one byte behind its place", tensor_move, 1 },
    { "at a huge place", tensor_move, 1ull << 62 },
    { "before its place", tensor_move, UINT64_MAX - 31 },
    { "cut off by the end of the file", tensor_cut, 0 },
};

static uint32_t tensors_count(const gguf_pieces *whole)
{
    return whole->n_tensors * (uint32_t)COUNT(tensor_damages);
}

static bool tensors_apply(model_damage *d, uint32_t i)
{
    piece_tensor *t = &d->pieces.tensors[i / COUNT(tensor_damages)];
    const uint32_t which = i % (uint32_t)COUNT(tensor_damages);

    d->at = t->name;
    damage_say(d, "tensor %s: %s", d->at, tensor_damages[which].what);
    return tensor_damages[which].apply(d, t, tensor_damages[which].how);
}

/* ---- the file ---- */

typedef struct file_damage {
    const char *what;
    uint32_t version; /* 0: stays */
    uint32_t alignment;
    uint64_t n_keys_more, n_tensors_more;
    uint64_t cut_bytes;
    bool is_moved; /* the data lie by the new alignment */
} file_damage;

static const file_damage file_damages[] = {
    { .what = "version 1", .version = 1 },
    { .what = "version 4", .version = 4 },
    { .what = "version of the other byte order", .version = 0x03000000 },
    { .what = "a huge version", .version = UINT32_MAX },
    { .what = "one key more in the count", .n_keys_more = 1 },
    { .what = "one key less in the count", .n_keys_more = UINT64_MAX },
    { .what = "a huge count of keys", .n_keys_more = 1ull << 40 },
    { .what = "one tensor more in the count", .n_tensors_more = 1 },
    { .what = "one tensor less in the count", .n_tensors_more = UINT64_MAX },
    { .what = "a huge count of tensors", .n_tensors_more = 1ull << 40 },
    { .what = "alignment 1", .alignment = 1 },
    { .what = "alignment 3", .alignment = 3 },
    { .what = "alignment 33", .alignment = 33 },
    { .what = "alignment 4096 of data aligned to 32", .alignment = 4096 },
    { .what = "alignment 64 of data aligned to 32", .alignment = 64 },
    { .what = "alignment 65536", .alignment = 65536, .is_moved = true },
    { .what = "alignment 2^31", .alignment = 1u << 31 },
    { .what = "one byte missing", .cut_bytes = 64 },
    { .what = "the data missing", .cut_bytes = 64 << 20 },
};

static uint32_t file_count(const gguf_pieces *whole)
{
    /* The end of the file behind each key and each tensor's header; no magic; two of no keys, no
     * tensors. */
    return (uint32_t)COUNT(file_damages) + whole->n_keys + whole->n_tensors + 3;
}

static bool file_table_damage(model_damage *d, const file_damage *f)
{
    gguf_pieces *p = &d->pieces;

    damage_say(d, "file: %s", f->what);
    p->version = f->version != 0 ? f->version : p->version;
    p->n_keys_more = f->n_keys_more;
    p->n_tensors_more = f->n_tensors_more;
    p->cut_bytes = f->cut_bytes;
    if (f->alignment != 0) {
        damage_key_set_u32(d, "general.alignment", f->alignment);
        p->alignment = f->is_moved ? f->alignment : p->alignment;
    }
    return true;
}

static bool file_apply(model_damage *d, uint32_t i)
{
    gguf_pieces *p = &d->pieces;

    if (i < COUNT(file_damages)) {
        return file_table_damage(d, &file_damages[i]);
    }
    i -= (uint32_t)COUNT(file_damages);
    if (i < p->n_keys + p->n_tensors) { /* the counts stay */
        const uint32_t n_keys = i < p->n_keys ? i : p->n_keys;
        const uint32_t n_tensors = i < p->n_keys ? 0 : i - p->n_keys;

        damage_say(d, "file: ends behind %u keys and %u tensors", n_keys, n_tensors);
        p->n_keys_more = p->n_keys - n_keys;
        p->n_tensors_more = p->n_tensors - n_tensors;
        p->n_keys = n_keys;
        p->n_tensors = n_tensors;
        return true;
    }
    i -= p->n_keys + p->n_tensors;
    damage_say(d, "file: %s", i == 0 ? "no magic" : i == 1 ? "no keys" : "no tensors");
    p->magic ^= i == 0 ? 0x20 : 0;
    p->n_keys = i == 1 ? 0 : p->n_keys;
    p->n_tensors = i == 2 ? 0 : p->n_tensors;
    return true;
}

/* ---- all ---- */

static const damage_group groups[] = {
    { keys_count, keys_apply },
    { tensors_count, tensors_apply },
    { file_count, file_apply },
};

uint32_t model_damages(const gguf_pieces *whole)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < COUNT(groups); g++) {
        n += groups[g].count(whole);
    }
    for (uint32_t g = 0; g < n_damage_groups_vocab; g++) {
        n += damage_groups_vocab[g].count(whole);
    }
    return n;
}

bool model_damage_apply(model_damage *d, const gguf_pieces *whole, uint32_t i)
{
    const damage_group *group = groups;
    uint32_t g = 0, n;

    d->pieces = *whole;
    d->arena.n = 0;
    d->at = NULL;
    while (i >= (n = group->count(whole))) {
        i -= n;
        g++;
        group = g < COUNT(groups) ? &groups[g] : &damage_groups_vocab[g - COUNT(groups)];
        assert_true(g < COUNT(groups) + n_damage_groups_vocab);
    }
    return group->apply(d, i);
}
