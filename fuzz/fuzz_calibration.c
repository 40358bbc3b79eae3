/* fuzz_calibration.c - bytes as a calibration file: refused with a message, or read, used for
 * choices, written and read again to the same.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/calibration.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void check_error(int rc, const quire_error *err)
{
    QUIRE_CHECK(rc < 0 && err->message[0] != '\0' && strchr(err->message, '\n') == NULL);
}

static void choose(const quire_calibration *c, const quire_model_desc *desc)
{
    quire_kv_pair *pairs = malloc(desc->n_stored * sizeof *pairs);
    quire_error err = QUIRE_ERROR_INIT;
    double bits;

    QUIRE_CHECK(pairs != NULL);
    for (double wanted = 3.0; wanted < 20.0; wanted *= 1.5) {
        const int rc = quire_calibration_choose(c, desc, wanted, pairs, &err);

        if (rc == QUIRE_OK) {
            QUIRE_CHECK(quire_calibration_sum(c, pairs) >= 0);
        } else {
            check_error(rc, &err);
        }
    }
    QUIRE_CHECK(quire_calibration_bits_for(c, desc, 0.01, &bits, &err) == QUIRE_OK);
    QUIRE_CHECK(bits > 0 && bits <= 16);
    free(pairs);
}

/* A written calibration is read back unchanged. */
static void write_and_read(const quire_calibration *c, const quire_model_desc *desc)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_calibration again;
    size_t n = 0;
    char *text;

    QUIRE_CHECK(quire_calibration_format(c, desc, &text, &n, &err) == QUIRE_OK);
    QUIRE_CHECK(quire_calibration_parse(&again, text, n, desc, &err) == QUIRE_OK);
    QUIRE_CHECK(strcmp(again.model, c->model) == 0 && strcmp(again.text, c->text) == 0);
    QUIRE_CHECK(again.measured == c->measured && again.uniform_wins == c->uniform_wins);
    QUIRE_CHECK(memcmp(again.pairs, c->pairs, c->n_stored * sizeof *c->pairs) == 0);
    quire_calibration_fini(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static const quire_model_desc desc = { .n_layer = 2,
                                           .n_stored = 2,
                                           .n_head = 4,
                                           .n_kv_head = 2,
                                           .d_k = 64,
                                           .d_v = 64,
                                           .fingerprint = 0x0123456789abcdef };
    quire_error err = QUIRE_ERROR_INIT;
    quire_calibration c;
    const int rc = quire_calibration_parse(&c, (const char *)data, size_bytes, &desc, &err);

    if (rc == QUIRE_OK) {
        choose(&c, &desc);
        write_and_read(&c, &desc);
        quire_calibration_fini(&c);
    } else {
        check_error(rc, &err);
    }
    return 0;
}
