/* test_device_cuda.c - the first CUDA device: the suite, cascades, and bits that are the same on
 * all cards. In CTest the device is that of fake_cuda/, whose kernels the CPU runs;
 * scripts/gpu-check.sh runs the program on a card. Skipped where there is no device.
 *
 * SPDX-License-Identifier: MIT */
#include "base/hash.h"
#include "device/card/card.h"
#include "device/conformance.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SKIPPED 77

static int open_cuda(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    return quire_device_open(out, "cuda0", opts, err);
}

static int finish(void)
{
    (void)printf("splits read once for several rows: %llu\n",
                 (unsigned long long)quire_card_shared_splits());
    return quire_card_shared_splits() == 0;
}

/* ---- bits ---- */

/* A hash of appended rows' attention, with what layers may have, in a format. */
static uint64_t bits_in(quire_format format)
{
    fixture_opts opts = fixture_defaults();
    quire_rng rng = { .state = 1 + (uint64_t)format };
    uint64_t hash;
    device_pages p;
    fixture f;
    float *out;

    opts.k_format = opts.v_format = format;
    opts.d_v = 80;
    opts.rotate_k = 64;
    opts.rotate_v = 16;
    opts.softcap = format % 2 == 0 ? 15.0f : 0.0f;
    opts.has_sinks = format % 3 == 0;
    opts.window = format == QUIRE_FORMAT_F16 ? 100 : 0;
    opts.split_entries = 2;
    opts.sink_tiles = 1;
    opts.n_seqs = 2;
    opts.n_tokens[0] = 300;
    opts.n_rows[0] = 40;
    opts.n_tokens[1] = 130;
    opts.n_rows[1] = 1;
    fixture_init(&f, &opts, &rng);
    out = fixture_take(fixture_out_floats(&f) * sizeof(float));
    device_pages_open(&p, &f, NULL);
    device_pages_attend(&p, true, out);
    device_pages_close(&p);
    hash = quire_hash_add(QUIRE_HASH_INIT, out, fixture_out_floats(&f) * sizeof(float));
    free(out);
    fixture_free(&f);
    return hash;
}

/* Other bits are another rounding: KERNELS of cuda_device.c is then another number, too. */
static void test_bits(void **state)
{
    static const uint64_t expected[QUIRE_FORMAT_COUNT] = {
        0x2358fb2740fb1d66u, 0xa66644275faf2e25u, 0xd7b44fd353c7272cu, 0x1337870a26615276u,
        0x4f6e1a1595512af5u, 0x0529a849f62b7972u, 0x9c25c713ff18db3du, 0xab90be78b60022f8u,
    };
    bool is_equal = true;

    (void)state;
    for (unsigned f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        const uint64_t hash = bits_in((quire_format)f);

        if (hash != expected[f]) {
            print_message("%s: 0x%016" PRIx64 "u\n", quire_format_name((quire_format)f), hash);
            is_equal = false;
        }
    }
    assert_true(is_equal);
}

/* The bits of a row of 1,500 tokens with so many entries per partial. */
static uint64_t bits_of_splits(uint32_t page_tokens, uint32_t split_entries)
{
    fixture_opts opts = fixture_defaults();
    quire_rng rng = { .state = 7 };
    uint64_t hash;
    device_pages p;
    fixture f;
    float *out;

    opts.n_tokens[0] = 1500;
    opts.page_tokens = page_tokens;
    opts.split_entries = split_entries;
    fixture_init(&f, &opts, &rng);
    out = fixture_take(fixture_out_floats(&f) * sizeof(float));
    device_pages_open(&p, &f, NULL);
    device_pages_attend(&p, false, out);
    device_pages_close(&p);
    hash = quire_hash_add(QUIRE_HASH_INIT, out, fixture_out_floats(&f) * sizeof(float));
    free(out);
    fixture_free(&f);
    return hash;
}

/* Without a choice of the owner's a split has QUIRE_DEVICE_SPLIT_TOKENS, or one page. */
static void test_splits(void **state)
{
    static const uint32_t page_tokens[] = { 64, 128, 512 };

    (void)state;
    for (size_t i = 0; i < sizeof(page_tokens) / sizeof(page_tokens[0]); i++) {
        const uint32_t n = page_tokens[i];
        const uint32_t entries = n < QUIRE_DEVICE_SPLIT_TOKENS ? QUIRE_DEVICE_SPLIT_TOKENS / n : 1;

        assert_true(bits_of_splits(n, 0) == bits_of_splits(n, entries));
        assert_true(bits_of_splits(n, 0) != bits_of_splits(n, 2 * entries));
    }
}

int main(void)
{
    const struct CMUnitTest bits[] = { cmocka_unit_test(test_bits), cmocka_unit_test(test_splits) };
    conformance_device device = {
        .name = "cuda", .open = open_cuda, .finish = finish, .rounds_as_cpu = true
    };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *first; /* stays open, so that all share its kernels */
    quire_device_info info;
    quire_error err;
    int rc;

    opts.attn = fixture_small_opts();
    rc = open_cuda(&first, &opts, &err);
    if (rc == QUIRE_NOTFOUND) {
        (void)printf("skipped: %s\n", err.message);
        return SKIPPED;
    }
    if (rc < 0) {
        (void)printf("%s\n", err.message);
        return 1;
    }
    quire_device_info_get(first, &info);
    device.is_software = strstr(info.description, "emulated") != NULL;
    (void)printf("%s: %s\n", info.name, info.description);
    rc = conformance_run(&device);
    rc = rc != 0 ? rc : cmocka_run_group_tests_name("bits", bits, NULL, NULL);
    quire_device_close(first);
    return rc;
}
