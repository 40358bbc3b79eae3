/* backend_calls.cpp - see backend_calls.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/backend_calls.h"

#include "model/backend.h"
#ifdef QUIRE_HAS_GGML_VULKAN
#include "model/vulkan_loader.h"
#endif

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>

namespace
{

/* ---- exceptions ---- */

/* ggml's CUDA backend logs why a call failed, then aborts with this text behind file and line. */
constexpr char cuda_text[] = "CUDA error";

/* In place of the end of the process. */
class cuda_failure
{
};

thread_local bool catches; /* a call of returns() is under way in this thread */
std::atomic<bool> cuda_fails;

void on_abort(const char *message)
{
    const std::size_t n = std::strlen(message), n_text = sizeof cuda_text - 1;

    if (catches && n >= n_text && std::strcmp(message + n - n_text, cuda_text) == 0) {
        cuda_fails = true;
        throw cuda_failure();
    }
    (void)std::fprintf(stderr, "%s\n", message);
}

void cuda_note()
{
    char line[QUIRE_BACKEND_WHY_BYTES];

    quire_backend_log_first(line, sizeof line);
    if (line[0] == '\0') {
        quire_backend_log_note(cuda_text);
    }
}

/* Whether the call returns. Otherwise its exception is the thread's first error line. */
template <typename F> bool returns(const F &call) noexcept
{
    const bool outer = catches;

    catches = true;
    try {
        call();
        catches = outer;
        return true;
    } catch (const std::exception &e) {
        quire_backend_log_note(e.what());
    } catch (const cuda_failure &) {
        cuda_note();
    } catch (...) {
        quire_backend_log_note("an exception without a text");
    }
    catches = outer;
    return false;
}

template <typename F> void on_device(quire_backend_device *backend, const F &call) noexcept
{
    if (backend->is_lost) {
        return;
    }
    quire_backend_log_clear();
    if (!returns(call)) {
        backend->is_lost = true;
        quire_backend_log_first(backend->why, sizeof backend->why);
    }
}

/* Whether ggml cannot release what it has on a device. A call of the driver that fails in a
 * destructor ends the process, so the driver is asked before: a card may have been lost since
 * ggml's last call, or Quire's own device may have seen the loss first. */
bool keeps(ggml_backend_dev_t device)
{
    std::size_t free_bytes, total_bytes = 0;

    if (device == nullptr || !quire_backend_device_is_of(device, "CUDA")) {
        return false;
    }
    if (!cuda_fails) {
        const bool answers =
            returns([&] { ggml_backend_dev_memory(device, &free_bytes, &total_bytes); });

        if (!answers || total_bytes == 0) { /* ggml names none where the driver refuses to */
            cuda_fails = true;
        }
    }
    return cuda_fails;
}

/* ---- a backend ---- */

/* A graph without operations, for a device that submits work to a queue. */
void open_empty(quire_backend_device *backend, ggml_backend_dev_t device)
{
    const ggml_init_params params = { ggml_graph_overhead_custom(1, false), nullptr, true };

    if (quire_backend_device_is_of(device, "Vulkan")) {
        backend->empty_ctx = ggml_init(params);
        backend->empty = backend->empty_ctx != nullptr
                             ? ggml_new_graph_custom(backend->empty_ctx, 1, false)
                             : nullptr;
    }
}

void open_backend(quire_backend_device *backend, ggml_backend_dev_t device)
{
    ggml_backend_set_n_threads_t set_n_threads;
    void *address;

    backend->ggml = ggml_backend_dev_init(device, nullptr);
    if (backend->ggml == nullptr) {
        return;
    }
    address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                "ggml_backend_set_n_threads");
    std::memcpy(&set_n_threads, &address, sizeof set_n_threads);
    if (set_n_threads != nullptr) {
        set_n_threads(backend->ggml, 1);
    }
    backend->event = ggml_backend_event_new(device);
    open_empty(backend, device);
}

} // namespace

int quire_backend_device_open(quire_backend_device *backend, ggml_backend_dev_t device)
{
    *backend = quire_backend_device();
    on_device(backend, [&] { open_backend(backend, device); });
    if (backend->is_lost) {
        quire_backend_device_close(backend);
        return QUIRE_IO;
    }
    return backend->ggml != nullptr ? QUIRE_OK : QUIRE_NOMEM;
}

/* ggml waits for the card before it releases a backend, also for one that it has lost. Then nobody
 * uses the event. By CUDA a fault of queued work is an exception of the wait here; in the release
 * it would be the end of the process. */
void quire_backend_device_close(quire_backend_device *backend)
{
    ggml_backend_dev_t device = nullptr;

    if (backend->ggml != nullptr) {
        device = ggml_backend_get_device(backend->ggml);
        if (!cuda_fails && quire_backend_device_is_of(device, "CUDA")) {
            (void)returns([&] { ggml_backend_synchronize(backend->ggml); });
        }
    }
    if (device != nullptr && !keeps(device)) {
        (void)returns([&] { ggml_backend_free(backend->ggml); });
        for (ggml_backend_event_t event : { backend->event, backend->before, backend->behind }) {
            (void)returns([&] { ggml_backend_event_free(event); });
        }
    }
    ggml_free(backend->empty_ctx);
    *backend = quire_backend_device();
}

enum ggml_status quire_backend_device_compute(quire_backend_device *backend,
                                              struct ggml_cgraph *cgraph)
{
    enum ggml_status status = GGML_STATUS_FAILED;

    on_device(backend, [&] { status = ggml_backend_graph_compute_async(backend->ggml, cgraph); });
    backend->has_copies = false;
    return status;
}

/* ggml measures a part by the last graph that it was given: this one has no operations. */
void quire_backend_device_gather(quire_backend_device *backend)
{
    if (backend->empty != nullptr) {
        on_device(backend,
                  [&] { (void)ggml_backend_graph_compute_async(backend->ggml, backend->empty); });
    }
}

void quire_backend_device_set(quire_backend_device *backend, struct ggml_tensor *to,
                              const void *from)
{
    on_device(backend,
              [&] { ggml_backend_tensor_set_async(backend->ggml, to, from, 0, ggml_nbytes(to)); });
    backend->has_copies = true;
}

void quire_backend_device_get(quire_backend_device *backend, const struct ggml_tensor *from,
                              void *to)
{
    on_device(backend, [&] {
        ggml_backend_tensor_get_async(backend->ggml, from, to, 0, ggml_nbytes(from));
    });
}

void quire_backend_device_mark(quire_backend_device *backend)
{
    if (backend->event != nullptr) {
        on_device(backend, [&] { ggml_backend_event_record(backend->event, backend->ggml); });
        backend->has_copies = false;
    }
}

/* The driver's event: ggml's own header for the struct is not installed. */
struct event_parts {
    ggml_backend_dev_t device;
    void *of_driver;
};

static void *event_of_driver(ggml_backend_event_t event)
{
    event_parts parts;

    std::memcpy(&parts, static_cast<void *>(event), sizeof parts);
    return parts.of_driver;
}

bool quire_backend_device_share(quire_backend_device *backend, void **before, void **behind)
{
    on_device(backend, [&] {
        ggml_backend_dev_t device = ggml_backend_get_device(backend->ggml);

        backend->before = ggml_backend_event_new(device);
        backend->behind = ggml_backend_event_new(device);
    });
    if (backend->is_lost || backend->before == nullptr || backend->behind == nullptr) {
        return false;
    }
    *before = event_of_driver(backend->before);
    *behind = event_of_driver(backend->behind);
    return true;
}

void quire_backend_device_resume(quire_backend_device *backend)
{
    if (backend->behind != nullptr) {
        on_device(backend, [&] { ggml_backend_event_wait(backend->ggml, backend->behind); });
    }
}

/* ggml submits at marks, or when it waits. */
void quire_backend_device_submit(quire_backend_device *backend)
{
    if (backend->before != nullptr) {
        on_device(backend, [&] { ggml_backend_event_record(backend->before, backend->ggml); });
    } else if (backend->has_copies && backend->event != nullptr) {
        quire_backend_device_mark(backend);
    } else if (backend->has_copies) {
        quire_backend_device_finish(backend);
    }
}

/* A tensor's data is its address, for CUDA. Vulkan's queue tells no addresses, but a copy names its
 * buffer. */
bool quire_backend_device_shift(quire_backend_device *backend, const struct ggml_tensor *tensor,
                                void *host, ptrdiff_t *shift)
{
    uint64_t address = 0;

    *shift = 0;
    if (backend->is_lost || ggml_backend_buffer_is_host(tensor->buffer) ||
        quire_backend_device_is_of(ggml_backend_get_device(backend->ggml), "CUDA")) {
        return !backend->is_lost;
    }
#ifdef QUIRE_HAS_GGML_VULKAN
    quire_vulkan_loader_watch();
    on_device(backend, [&] {
        ggml_backend_tensor_get_async(backend->ggml, tensor, host, 0, sizeof(float));
        ggml_backend_synchronize(backend->ggml);
    });
    address = quire_vulkan_loader_watched(ggml_backend_get_device(backend->ggml));
#endif
    *shift = (ptrdiff_t)(address - (uint64_t)(uintptr_t)tensor->data);
    return address != 0 && !backend->is_lost;
}

void quire_backend_device_join(quire_backend_device *backend)
{
    if (backend->event == nullptr) {
        quire_backend_device_finish(backend);
        return;
    }
    on_device(backend, [&] { ggml_backend_event_synchronize(backend->event); });
    backend->waits_total++;
}

void quire_backend_device_finish(quire_backend_device *backend)
{
    on_device(backend, [&] { ggml_backend_synchronize(backend->ggml); });
    backend->has_copies = false;
    backend->waits_total++;
}

ggml_backend_dev_t quire_backend_device_at(ggml_backend_reg_t (*backend)(void), uint32_t i)
{
    ggml_backend_dev_t device = nullptr;
    const bool is_open = returns([&] {
        ggml_backend_reg_t cards = backend();

        if (cards != nullptr && i < ggml_backend_reg_dev_count(cards)) {
            device = ggml_backend_reg_dev_get(cards, i);
            (void)ggml_backend_dev_buffer_type(device);
        }
    });

    return is_open ? device : nullptr;
}

/* A sum. A call that the driver refuses for want of code leaves the card whole, so its failure is
 * not the loss of the card: closing asks the driver for that. */
static bool graph_computes(ggml_backend_dev_t device, struct ggml_cgraph *cgraph)
{
    const bool has_failed = cuda_fails;
    quire_backend_device backend;
    bool computes;

    if (quire_backend_device_open(&backend, device) < 0) {
        return false;
    }
    computes = quire_backend_device_compute(&backend, cgraph) == GGML_STATUS_SUCCESS;
    quire_backend_device_finish(&backend);
    computes = computes && !backend.is_lost;
    cuda_fails = has_failed;
    quire_backend_device_close(&backend);
    return computes;
}

bool quire_backend_device_computes(ggml_backend_dev_t device)
{
    constexpr std::size_t n_tensors = 2;
    const std::size_t bytes =
        n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false);
    struct ggml_context *ctx = ggml_init({ bytes, nullptr, true });
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph *cgraph;
    struct ggml_tensor *x;
    bool computes = false;

    if (ctx == nullptr) {
        return false;
    }
    x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 32);
    cgraph = ggml_new_graph_custom(ctx, n_tensors, false);
    ggml_build_forward_expand(cgraph, ggml_add(ctx, x, x));
    buffer = quire_backend_buffer_new(ctx, ggml_backend_dev_buffer_type(device));
    if (buffer != nullptr) {
        computes = graph_computes(device, cgraph);
        quire_backend_buffer_free(buffer);
    }
    ggml_free(ctx);
    return computes;
}

bool quire_backend_device_is_of(ggml_backend_dev_t device, const char *backend)
{
    return std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), backend) == 0;
}

/* ggml asks whether this variable is there when it computes first. */
#define NO_GRAPHS_VARIABLE "GGML_CUDA_DISABLE_GRAPHS"

bool quire_backend_cuda_begin(void)
{
    (void)ggml_set_abort_callback(on_abort);
    return std::getenv(NO_GRAPHS_VARIABLE) != nullptr || setenv(NO_GRAPHS_VARIABLE, "1", 1) == 0;
}

bool quire_backend_takes(ggml_backend_dev_t device, const struct ggml_tensor *op)
{
    bool takes = false;

    return returns([&] { takes = ggml_backend_dev_supports_op(device, op); }) && takes;
}

void quire_backend_memory(ggml_backend_dev_t device, size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = 0;
    (void)returns([&] { ggml_backend_dev_memory(device, free_bytes, total_bytes); });
}

ggml_backend_buffer_t quire_backend_buffer_new(struct ggml_context *ctx,
                                               ggml_backend_buffer_type_t buft)
{
    ggml_backend_buffer_t buffer = nullptr;

    (void)returns([&] { buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft); });
    return buffer;
}

void quire_backend_buffer_free(ggml_backend_buffer_t buffer)
{
    if (buffer != nullptr &&
        !keeps(ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer)))) {
        ggml_backend_buffer_free(buffer);
    }
}

void quire_backend_allocator_free(ggml_gallocr_t allocator, const ggml_backend_dev_t *devices,
                                  uint32_t n)
{
    bool stays = false;

    for (uint32_t i = 0; i < n; i++) {
        stays = stays || keeps(devices[i]);
    }
    if (!stays) {
        ggml_gallocr_free(allocator);
    }
}

bool quire_backend_tensor_write(struct ggml_tensor *to, const void *from)
{
    return returns([&] { ggml_backend_tensor_set(to, from, 0, ggml_nbytes(to)); });
}

bool quire_backend_reserve(ggml_gallocr_t allocator, struct ggml_cgraph *cgraph, const int *ids)
{
    bool has_room = false;

    return returns([&] {
               has_room = ids != nullptr ? ggml_gallocr_reserve_n(allocator, cgraph, ids, nullptr)
                                         : ggml_gallocr_reserve(allocator, cgraph);
           }) &&
           has_room;
}
