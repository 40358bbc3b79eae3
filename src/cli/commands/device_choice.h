/* device_choice.h - the device that --device names, and a line that names it for the user.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_DEVICE_CHOICE_H
#define QUIRE_CLI_DEVICE_CHOICE_H

#include "model/memory.h"
#include "model/runtime.h"
#include "quire/device.h"

#define QUIRE_DEVICES_MAX 10u /* of an interface: vulkan0 to vulkan9, cuda0 to cuda9 */

/* The interfaces of drivers for cards, in the order in which `auto` asks them. */
typedef enum quire_device_interface {
    QUIRE_DEVICES_OF_VULKAN,
    QUIRE_DEVICES_OF_CUDA,
    QUIRE_DEVICE_INTERFACES
} quire_device_interface;

/* "vulkan0" and so on. Memory: static. i < QUIRE_DEVICES_MAX. */
const char *quire_device_name(quire_device_interface interface, uint32_t i);

/* "Vulkan", "CUDA". */
const char *quire_device_interface_title(quire_device_interface interface);

/* Open a device for looking at it, with room for hardly any attention. Errors: as
 * quire_device_open(). Memory: quire_device_close(). */
int quire_device_peek(quire_device **out, const char *name, quire_error *err);

/* The memory of a device that is there. cpu is the host's memory. Errors:
 * quire_device_open(). */
int quire_device_memory_look(quire_memory_part *out, const char *name, quire_error *err);

/* The name for quire_runtime_opts.device: of "auto" the first card of Vulkan's that is not computed
 * by the CPU, else the first of CUDA's, else cpu. wanted: the value of --device; NULL = cpu. Lives
 * as long as `wanted`. An unknown name is returned as it is: opening it fails. */
const char *quire_device_choose(const char *wanted);

/* Whether the value of --device is certainly the CPU. */
bool quire_device_is_cpu(const char *wanted);

/* Put n_layers layers of a model on devices of KV: a set of weights for each name. names: [n],
 * different ones, up to QUIRE_MODEL_SETS_MAX; "cpu": the set has no device. With 0 layers there is
 * one set, without a device. Errors: QUIRE_INVAL (all are cpu), quire_device_open(),
 * quire_backend_devices_find(). */
int quire_device_layers(quire_model_opts *opts, const char *const *names, uint32_t n,
                        int64_t n_layers, quire_error *err);

/* Print the parts of the model that the device and the CPU run, if --device was given. */
void quire_device_say(const char *wanted, const quire_runtime *runtime);

#endif /* QUIRE_CLI_DEVICE_CHOICE_H */
