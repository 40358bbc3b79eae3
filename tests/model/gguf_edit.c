/* gguf_edit.c - see gguf_edit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_edit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EXTRA_TENSORS 8u

const char *gguf_edit_path(void)
{
    static char path[256];
    const char *dir = getenv("TMPDIR");

    (void)snprintf(path, sizeof(path), "%s/quire-test-edit-%ld.gguf", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    return path;
}

gguf_gen_opts gguf_edit_small(const char *shape)
{
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape(shape, &opts));
    opts.type = GGML_TYPE_F32;
    opts.n_layer = 1;
    opts.n_embd = 16;
    opts.n_ff = 16;
    opts.n_head = 2;
    opts.n_kv_head = 1;
    opts.d_head = 8;
    opts.n_vocab = 268;
    return opts;
}

void gguf_edit_open(gguf_edit *edit, const gguf_gen_opts *opts)
{
    struct ggml_context *loaded = NULL;
    struct gguf_init_params params = { .no_alloc = true, .ctx = &loaded };
    struct ggml_init_params meta_params = { .no_alloc = true };
    quire_error err = QUIRE_ERROR_INIT;

    if (gguf_gen_write(opts, gguf_edit_path(), &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    edit->gguf = gguf_init_from_file(gguf_edit_path(), params);
    assert_non_null(edit->gguf);
    (void)unlink(gguf_edit_path());
    meta_params.mem_size =
        ((size_t)gguf_get_n_tensors(edit->gguf) + EXTRA_TENSORS) * ggml_tensor_overhead();
    edit->meta = ggml_init(meta_params);
    assert_non_null(edit->meta);
    for (struct ggml_tensor *t = ggml_get_first_tensor(loaded); t != NULL;
         t = ggml_get_next_tensor(loaded, t)) {
        ggml_set_name(ggml_dup_tensor(edit->meta, t), t->name);
    }
    ggml_free(loaded);
}

void gguf_edit_close(gguf_edit *edit)
{
    ggml_free(edit->meta);
    gguf_free(edit->gguf);
}

struct ggml_tensor *gguf_edit_tensor(const gguf_edit *edit, const char *name)
{
    struct ggml_tensor *tensor = ggml_get_tensor(edit->meta, name);

    if (tensor == NULL) {
        fail_msg("the generated model has no tensor %s", name);
    }
    return tensor;
}

void gguf_edit_reshape(struct ggml_tensor *tensor, enum ggml_type type, int64_t columns,
                       int64_t rows)
{
    tensor->type = type;
    tensor->ne[0] = columns;
    tensor->ne[1] = rows;
    tensor->nb[0] = ggml_type_size(type);
    tensor->nb[1] = ggml_row_size(type, columns);
    tensor->nb[2] = tensor->nb[3] = tensor->nb[1] * (size_t)rows;
}

void gguf_edit_add(gguf_edit *edit, const char *name, enum ggml_type type, int64_t columns,
                   int64_t rows)
{
    ggml_set_name(ggml_new_tensor_2d(edit->meta, type, columns, rows), name);
}

void gguf_edit_apply(gguf_edit *edit, const gguf_edit_key *c)
{
    struct gguf_context *gguf = edit->gguf;
    const char *text = c->text;
    uint32_t array[8];

    switch (c->op) {
    case EDIT_REMOVE:
        assert_true(gguf_remove_key(gguf, c->key) >= 0);
        break;
    case EDIT_U16:
        gguf_set_val_u16(gguf, c->key, (uint16_t)c->number);
        break;
    case EDIT_U32:
        gguf_set_val_u32(gguf, c->key, (uint32_t)c->number);
        break;
    case EDIT_I32:
        gguf_set_val_i32(gguf, c->key, (int32_t)c->number);
        break;
    case EDIT_U64:
        gguf_set_val_u64(gguf, c->key, (uint64_t)c->number);
        break;
    case EDIT_I64:
        gguf_set_val_i64(gguf, c->key, (int64_t)c->number);
        break;
    case EDIT_F32:
        gguf_set_val_f32(gguf, c->key, (float)c->number);
        break;
    case EDIT_F64:
        gguf_set_val_f64(gguf, c->key, c->number);
        break;
    case EDIT_BOOL:
        gguf_set_val_bool(gguf, c->key, c->number != 0.0);
        break;
    case EDIT_STR:
        gguf_set_val_str(gguf, c->key, c->text);
        break;
    case EDIT_U32_ARRAY:
        assert_true(c->n <= sizeof(array) / sizeof(array[0]));
        for (uint32_t i = 0; i < c->n; i++) {
            array[i] = (uint32_t)c->number;
        }
        gguf_set_arr_data(gguf, c->key, GGUF_TYPE_UINT32, array, c->n);
        break;
    case EDIT_STR_ARRAY:
        gguf_set_arr_str(gguf, c->key, &text, 1);
        break;
    }
}

void gguf_edit_save(const gguf_edit *edit, const char *path)
{
    struct gguf_context *out = gguf_init_empty();
    int64_t last;
    size_t end;

    gguf_set_kv(out, edit->gguf);
    for (struct ggml_tensor *t = ggml_get_first_tensor(edit->meta); t != NULL;
         t = ggml_get_next_tensor(edit->meta, t)) {
        if (t->name[0] != '\0') {
            gguf_add_tensor(out, t);
        }
    }
    last = gguf_get_n_tensors(out) - 1;
    end = gguf_get_meta_size(out) + gguf_get_tensor_offset(out, last) +
          gguf_get_tensor_size(out, last);
    assert_true(gguf_write_to_file(out, path, true));
    assert_int_equal(truncate(path, (off_t)end), 0);
    gguf_free(out);
}
