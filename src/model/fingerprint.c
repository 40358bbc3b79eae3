/* fingerprint.c - tells model files apart without reading their weights.
 *
 * The fingerprint covers the architecture and the model's name; layers, heads, widths, vocabulary,
 * the base and the scaling of rope; every tensor's name, type and shape, in file order; the length
 * of the file, or of all its parts. It does not cover the path, nor the bytes of weights and
 * tokenizer. A copy has the fingerprint of the original. Another quantisation has another
 * fingerprint, and so has another fine-tune unless name, shapes and length all agree. Data stored
 * under a fingerprint must therefore do no harm when they are used for such a twin.
 *
 * Numbers are hashed as decimal text, so that the result does not depend on the machine.
 *
 * SPDX-License-Identifier: MIT */
#include "model/describe_internal.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Lines are shorter than the buffer: at this point names of a GGUF file have at most 63 bytes.
 */
__attribute__((format(printf, 2, 3))) static void add(uint64_t *hash, const char *format, ...)
{
    char line[512];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    *hash = quire_hash_add(*hash, line, strlen(line));
}

uint64_t quire_fingerprint(const quire_gguf *file, const quire_model_desc *desc)
{
    struct ggml_context *meta = quire_gguf_meta(file);
    uint64_t hash = QUIRE_HASH_INIT;

    add(&hash, "%s\n%s\n", desc->arch_name, desc->name);
    add(&hash, "%u %u %u %u %u\n", desc->n_layer, desc->n_stored, desc->n_embd, desc->n_ff,
        desc->n_vocab);
    add(&hash, "%u %u %u %u\n", desc->n_head, desc->n_kv_head, desc->d_k, desc->d_v);
    add(&hash, "%a %a %d\n", (double)desc->rope.freq_base, (double)desc->rope.freq_scale,
        (int)desc->rope.scaling);
    for (struct ggml_tensor *t = ggml_get_first_tensor(meta); t != NULL;
         t = ggml_get_next_tensor(meta, t)) {
        add(&hash, "%s %s\n", t->name, ggml_type_name(t->type));
        for (int d = 0; d < GGML_MAX_DIMS; d++) {
            add(&hash, "%" PRId64 "\n", t->ne[d]);
        }
    }
    add(&hash, "%" PRIu64 "\n", quire_gguf_file_bytes(file));
    return hash;
}
