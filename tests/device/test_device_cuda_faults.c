/* test_device_cuda_faults.c - a CUDA device whose driver refuses calls, whose memory is used up,
 * whose card faults; by fake_cuda/.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/cuda_driver.h"
#include "device/device_work.h"
#include "device/fake_cuda/fake_cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int open_cuda(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    return quire_device_open(out, "cuda0", opts, err);
}

/* ---- tests ---- */

/* The list has cards that can be used. Nothing is left when a device is closed. */
static void test_cards(void **state)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *devices[2];
    quire_device_info info;
    quire_device *none;
    quire_error err;

    (void)state;
    opts.attn = fixture_small_opts();
    assert_int_equal(quire_device_open(&devices[0], "cuda0", &opts, NULL), QUIRE_OK);
    assert_int_equal(quire_device_open(&devices[1], "cuda1", &opts, NULL), QUIRE_OK);
    assert_int_equal(quire_device_open(&none, "cuda2", &opts, &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "'cuda2': CUDA lists 3 devices, 2 of which have"));
    assert_int_equal(quire_device_open(&none, "cuda10", &opts, &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "'cuda10' (cuda0 to cuda9)"));
    quire_device_info_get(devices[1], &info);
    assert_string_equal(info.name, "cuda1");
    assert_string_equal(info.description, "emulated card 2");
    assert_string_equal(info.isa, "cuda");
    assert_string_equal(info.card_rounding, "emulated card 2, 9.0, driver 12040");
    assert_int_equal(info.card, 2);
    assert_int_equal(info.memory_bytes, FAKE_CUDA_MEMORY_BYTES);
    assert_true(info.free_bytes < info.memory_bytes && info.free_bytes > info.memory_bytes / 2);
    quire_device_close(devices[0]);
    quire_device_close(devices[1]);
    assert_int_equal(fake_cuda_seen().n_pieces, 0);
    assert_int_equal(fake_cuda_seen().n_errors, 0);
}

/* A card's device takes an owner of work beside its own, the CPU's does not. */
static void test_owner(void **state)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device;
    int owner, before, behind;

    (void)state;
    opts.attn = fixture_small_opts();
    assert_int_equal(quire_device_open(&device, "cpu", &opts, NULL), QUIRE_OK);
    assert_int_equal(quire_device_queue_share(device, &owner, &before, &behind), QUIRE_UNSUPP);
    quire_device_close(device);
    assert_int_equal(quire_device_open(&device, "cuda0", &opts, NULL), QUIRE_OK);
    assert_null(quire_device_queue_owner(device));
    assert_null(quire_device_attention(device).queue);
    assert_int_equal(quire_device_queue_share(device, &owner, &before, &behind), QUIRE_OK);
    assert_ptr_equal(quire_device_queue_owner(device), &owner);
    assert_non_null(quire_device_attention(device).queue);
    quire_device_close(device);
}

/* Without a driver, and with a driver without cards. */
static void test_no_driver(void **state)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device;
    quire_error err;

    (void)state;
    opts.attn = fixture_small_opts();
    fake_cuda_fail("cuInit", 0, QUIRE_CUDA_NO_DEVICE);
    assert_int_equal(quire_device_open(&device, "cuda0", &opts, &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "CUDA has no driver here (CUDA_ERROR_NO_DEVICE)"));
    fake_cuda_fail("cuDeviceGetCount", 0, QUIRE_CUDA_NO_DEVICE);
    assert_int_equal(quire_device_open(&device, "cuda0", &opts, &err), QUIRE_NOTFOUND);
    fake_cuda_fail("cuDevicePrimaryCtxRetain", 0, QUIRE_CUDA_OUT_OF_MEMORY);
    assert_int_equal(quire_device_open(&device, "cuda0", &opts, &err), QUIRE_NOMEM);
    assert_null(device);
    fake_cuda_repair();
}

/* Each call of the driver fails once, wherever it is made. There is an error, or the result is
 * right. Nothing is left, and the next device works. */
static void check_call(const char *call, int result)
{
    bool has_failed = true;

    for (uint32_t n = 0; has_failed && n < 200; n++) {
        const int rc = (fake_cuda_fail(call, n, result), device_work_do());

        has_failed = fake_cuda_has_failed();
        if (rc != QUIRE_OK && rc != QUIRE_NOMEM && rc != QUIRE_IO && rc != QUIRE_LOST &&
            rc != QUIRE_NOTFOUND) {
            fail_msg("%s, call %u: %s", call, n, quire_status_text(rc));
        }
        fake_cuda_repair();
        if (fake_cuda_seen().n_errors != 0) {
            fail_msg("after a failure of %s, call %u, the driver was called wrongly", call, n);
        }
        assert_int_equal(device_work_do(), QUIRE_OK);
        assert_int_equal(fake_cuda_seen().n_pieces, 0);
    }
    assert_false(has_failed);
}

static void test_calls(void **state)
{
    static const char *const calls[] = {
        "cuInit",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuModuleLoadData",
        "cuMemHostGetDevicePointer_v2",
        "cuLaunchKernel",
        "cuModuleGetFunction",
        "cuMemcpyAsync",
        "cuCtxSetCurrent",
        "cuDeviceGetName",
        "cuMemGetInfo_v2",
    };

    (void)state;
    assert_int_equal(device_work_do(), QUIRE_OK);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        check_call(calls[i], QUIRE_CUDA_OUT_OF_MEMORY);
        check_call(calls[i], QUIRE_CUDA_INVALID_VALUE);
    }
}

/* A launch that is refused is reported once; the next step is right. */
static void test_launch(void **state)
{
    device_work w;

    (void)state;
    assert_int_equal(device_work_open(&w), QUIRE_OK);
    assert_int_equal(device_work_pages_take(&w), QUIRE_OK);
    for (uint32_t n = 0; n < 4; n++) {
        fake_cuda_fail("cuLaunchKernel", n, QUIRE_CUDA_LAUNCH_OUT_OF_RESOURCES);
        assert_int_equal(device_work_step(&w), QUIRE_IO);
        assert_int_equal(device_work_step(&w), QUIRE_OK);
        device_work_check(&w);
    }
    fake_cuda_repair();
    device_work_close(&w);
}

/* Memory that is used up is an ordinary error. */
static void test_memory(void **state)
{
    quire_device_memory more;
    device_work w;

    (void)state;
    assert_int_equal(device_work_open(&w), QUIRE_OK);
    fake_cuda_limit(1 << 20);
    assert_int_equal(quire_device_alloc(w.device, QUIRE_DEVICE_PAGES, 2 << 20, &more), QUIRE_NOMEM);
    assert_false(quire_device_is_lost(w.device));
    fake_cuda_limit(0);
    assert_int_equal(device_work_pages_take(&w), QUIRE_OK);
    assert_int_equal(device_work_step(&w), QUIRE_OK);
    device_work_check(&w);
    device_work_close(&w);
}

/* A fault in any piece of work loses the device. It takes the release of its memory, and another
 * one works when the card does. */
static void test_loss(void **state)
{
    uint32_t n_lost = 0;

    (void)state;
    for (uint32_t n = 0;; n++, n_lost++) {
        quire_device_event event;
        device_work w;
        int rc;

        assert_int_equal(device_work_open(&w), QUIRE_OK);
        fake_cuda_fault(n, n % 2 == 0 ? QUIRE_CUDA_LAUNCH_FAILED : QUIRE_CUDA_ILLEGAL_ADDRESS);
        rc = device_work_pages_take(&w);
        rc = rc < 0 ? rc : device_work_step(&w);
        if (rc == QUIRE_OK) {
            device_work_close(&w);
            break;
        }
        assert_int_equal(rc, QUIRE_LOST);
        assert_true(quire_device_is_lost(w.device));
        assert_int_equal(device_work_step(&w), QUIRE_LOST);
        assert_int_equal(quire_device_record(w.device, &event), QUIRE_LOST);
        device_work_close(&w);
        assert_int_equal(fake_cuda_seen().n_pieces, 0);
        fake_cuda_repair();
        assert_int_equal(device_work_do(), QUIRE_OK);
    }
    assert_true(n_lost >= 6); /* copies of pages, of a plan, of rows and back; kernels */
    fake_cuda_repair();
}

/* A copy to a page is under way beside a step, and the driver reports its failure to the next plan:
 * the device is lost, since no step could tell that the page holds garbage. */
static void test_late_copy(void **state)
{
    quire_page_memory memory;
    unsigned char *page;
    device_work w;

    (void)state;
    device_work_late_copy(&w, &memory, &page);
    fake_cuda_fail("cuEventSynchronize", 0, QUIRE_CUDA_INVALID_VALUE);
    assert_int_equal(device_work_step(&w), QUIRE_LOST);
    assert_true(fake_cuda_has_failed());
    assert_true(quire_device_is_lost(w.device));
    memory.unmap(memory.ctx, page, DEVICE_WORK_LATE_BYTES);
    device_work_close(&w);
    assert_int_equal(fake_cuda_seen().n_pieces, 0);
    assert_int_equal(fake_cuda_seen().n_errors, 0); /* no memory was freed that a copy uses */
    fake_cuda_repair();
}

/* Pages are copied in a stream of their own. The step that reads them is behind these copies, or a
 * call on the way has failed and there is no result. */
static void test_beside(void **state)
{
    static const char *const calls[] = { "cuInit", "cuStreamWaitEvent", "cuEventRecord",
                                         "cuMemcpyAsync", "cuEventSynchronize" };

    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        bool has_failed = true;

        for (uint32_t n = 0; has_failed; n++) {
            device_work w;
            int rc;

            assert_int_equal(device_work_open(&w), QUIRE_OK);
            fake_cuda_fail(calls[i], n, QUIRE_CUDA_INVALID_VALUE);
            rc = device_work_pages_come(&w);
            rc = rc == QUIRE_OK ? device_work_step(&w) : rc;
            has_failed = fake_cuda_has_failed();
            assert_true(rc == QUIRE_OK || has_failed);
            if (rc == QUIRE_OK) {
                device_work_check(&w);
            }
            device_work_close(&w);
            fake_cuda_repair();
            assert_int_equal(fake_cuda_seen().n_pieces, 0);
            assert_int_equal(fake_cuda_seen().n_errors, 0);
        }
    }
}

/* More copies under way than there are events of the driver's. */
static void test_events(void **state)
{
    enum {
        N = 40
    };
    quire_device_event events[N];
    device_work w;

    (void)state;
    assert_int_equal(device_work_open(&w), QUIRE_OK);
    assert_int_equal(device_work_pages_take(&w), QUIRE_OK);
    for (uint32_t i = 0; i < N; i++) {
        const quire_device_piece piece = {
            .to = &w.pages, .to_offset = 64 * i, .from = &w.pinned, .bytes = 64
        };

        memset(w.pinned.host + 64 * i, (int)i, 64);
        assert_int_equal(quire_device_copy(w.device, &piece, 1), QUIRE_OK);
        assert_int_equal(quire_device_record(w.device, &events[i]), QUIRE_OK);
        assert_int_equal(quire_device_wait(w.device, events[i / 2]), QUIRE_OK);
    }
    assert_int_equal(quire_device_wait(w.device, events[N - 1]), QUIRE_OK);
    assert_int_equal(quire_device_wait(w.device, events[3]), QUIRE_OK);
    device_work_close(&w);
    assert_int_equal(fake_cuda_seen().n_errors, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cards),     cmocka_unit_test(test_owner),
        cmocka_unit_test(test_no_driver), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_launch),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_loss),      cmocka_unit_test(test_events),
        cmocka_unit_test(test_late_copy), cmocka_unit_test(test_beside),
    };
    const conformance_device device = { .name = "cuda", .open = open_cuda };
    int rc;

    device_work_make(&device);
    device_work_expect();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_work_unmake();
    return rc;
}
