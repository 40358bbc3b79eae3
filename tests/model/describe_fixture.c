/* describe_fixture.c - see describe_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "describe_fixture.h"

#include "model/gguf_file.h"

#include <string.h>

int describe_file(quire_model_desc *desc, quire_error *err)
{
    quire_gguf *file = NULL;
    int rc;

    *err = (quire_error)QUIRE_ERROR_INIT;
    if (quire_gguf_open(&file, gguf_edit_path(), err) != QUIRE_OK) {
        fail_msg("%s", err->message);
    }
    rc = quire_gguf_describe(file, desc, err);
    quire_gguf_close(file);
    return rc;
}

static bool is_as_expected(const char *message, const char *needle)
{
    return strstr(message, needle) != NULL && strchr(message, '\n') == NULL &&
           strncmp(message, gguf_edit_path(), strlen(gguf_edit_path())) == 0;
}

void describe_expect(const gguf_edit *edit, int status, const char *needle)
{
    static quire_model_desc desc;
    quire_error err;
    int rc;

    gguf_edit_save(edit, gguf_edit_path());
    rc = describe_file(&desc, &err);
    if (rc != status || (needle != NULL && !is_as_expected(err.message, needle))) {
        fail_msg("status %d, message '%s'; expected %d and '%s'", rc, err.message, status,
                 needle != NULL ? needle : "");
    }
}

void describe_keys_check(const describe_key_case *cases, size_t n,
                         gguf_gen_opts (*small)(const char *arch))
{
    for (size_t i = 0; i < n; i++) {
        const gguf_gen_opts opts = small(cases[i].arch);
        gguf_edit edit;

        gguf_edit_open(&edit, &opts);
        gguf_edit_apply(&edit, &cases[i].change);
        describe_expect(&edit, cases[i].status, cases[i].needle);
        gguf_edit_close(&edit);
    }
}

void describe_tensor_check(const describe_tensor_case *c, const gguf_gen_opts *opts)
{
    struct ggml_tensor *tensor;
    gguf_edit edit;

    gguf_edit_open(&edit, opts);
    tensor = gguf_edit_tensor(&edit, c->tensor);
    if (c->columns > 0) {
        gguf_edit_reshape(tensor, c->type, c->columns, c->rows);
    }
    if (c->rename != NULL) {
        ggml_set_name(tensor, c->rename);
    }
    describe_expect(&edit, c->status, c->needle);
    gguf_edit_close(&edit);
}
