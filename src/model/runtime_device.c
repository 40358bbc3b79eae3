/* runtime_device.c - see runtime_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_device.h"

#include "base/check.h"

#include <string.h>

bool quire_runtime_has_device(const quire_runtime_opts *o)
{
    return o->device != NULL && strcmp(o->device, "cpu") != 0;
}

/* The option, as a phrase, that needs pages in the host's memory; NULL: none of these options. */
static const char *missing(const quire_runtime_opts *o)
{
    if (o->kv_elsewhere_bytes != 0 || o->has_bounds) {
        return "texts that keep a share of their tokens (--retain, --attend)";
    }
    return o->lock_memory ? "locked memory (--lock-memory)" : NULL;
}

int quire_runtime_device_check(const quire_runtime_opts *o, quire_error *err)
{
    const char *what = quire_runtime_has_device(o) ? missing(o) : NULL;

    return what != NULL
               ? quire_error_set(err, QUIRE_UNSUPP, "device %s: %s are not possible on devices yet",
                                 o->device, what)
               : QUIRE_OK;
}

bool quire_runtime_is_lost(const quire_runtime *rt)
{
    return rt->memory_device != NULL && quire_device_is_lost(rt->memory_device);
}

int quire_runtime_device_open(quire_runtime *rt, quire_error *err)
{
    const quire_runtime_opts *o = &rt->opts;
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;

    QUIRE_TRY(quire_runtime_device_check(o, err));
    if (!quire_runtime_has_device(o)) {
        return QUIRE_OK;
    }
    opts.attn = quire_runtime_attn_opts(&rt->model->desc, o);
    QUIRE_TRY((o->device_open != NULL ? o->device_open : quire_device_open)(&rt->memory_device,
                                                                            o->device, &opts, err));
    quire_device_info_get(rt->memory_device, &rt->device_info);
    rt->page_memory = quire_device_page_memory(rt->memory_device);
    return QUIRE_OK;
}
