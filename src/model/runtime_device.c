/* runtime_device.c - see runtime_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_device.h"

#include "base/check.h"
#include "model/runtime_split.h"

#include <stdio.h>
#include <string.h>

bool quire_runtime_has_device(const quire_runtime_opts *o)
{
    return o->split.n > 0 || (o->device != NULL && strcmp(o->device, "cpu") != 0);
}

/* The option, as a phrase, that needs pages in the host's memory; NULL: none of these options. */
static const char *missing(const quire_runtime_opts *o)
{
    if (o->kv_elsewhere_bytes != 0 && o->elsewhere_limits.struct_bytes == 0) {
        return "texts that keep a share of their tokens (--retain)";
    }
    return o->lock_memory ? "locked memory (--lock-memory)" : NULL;
}

/* The same of options that need the pages of a layer in one memory with those of all others. */
static const char *missing_split(const quire_runtime_opts *o)
{
    if (o->has_bounds) {
        return "texts that read a share of their pages (--attend)";
    }
    if (o->attends_host) {
        return "attention on pages in the host's memory (--kv-overflow-attend)";
    }
    return o->kv_overflows ? "texts larger than the KV budget (--kv-overflow tier; of quire bench "
                             "--cache-dir)"
                           : NULL;
}

int quire_runtime_device_check(const quire_runtime_opts *o, quire_error *err)
{
    const char *what = quire_runtime_has_device(o) ? missing(o) : NULL;

    if (what != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "device %s: %s are not possible on devices yet",
                               o->device, what);
    }
    what = o->split.n > 0 ? missing_split(o) : NULL;
    return what != NULL ? quire_error_set(err, QUIRE_UNSUPP,
                                          "device %s: %s cannot go together with layers on several "
                                          "devices (--split-mode layer)",
                                          o->device, what)
                        : QUIRE_OK;
}

bool quire_runtime_is_lost(const quire_runtime *rt)
{
    return quire_runtime_layers_lost(rt) != NULL ||
           (rt->split != NULL && quire_device_split_lost(rt->split) != NULL) ||
           (rt->memory_device != NULL && quire_device_is_lost(rt->memory_device));
}

/* The name of the card of a split whose layers ggml has lost. */
static const char *lost_layers_name(const quire_runtime *rt)
{
    const quire_backend_device *lost = quire_runtime_layers_lost(rt);
    const quire_runtime_split *split = &rt->opts.split;
    const quire_weights *w = rt->weights;

    for (uint32_t il = w->device_from; lost != NULL && il <= w->n_layer; il++) {
        if (lost == &rt->layers_backends[w->layer_device[il]]) {
            return split->names[quire_split_card_of(split, il < w->n_layer ? il : il - 1)];
        }
    }
    return NULL;
}

const char *quire_runtime_lost_name(const quire_runtime *rt)
{
    if (rt->split == NULL) {
        return quire_runtime_is_lost(rt) ? rt->opts.device : NULL;
    }
    for (uint32_t i = 0; i < rt->opts.split.n; i++) {
        if (quire_device_is_lost(quire_device_split_device(rt->split, i))) {
            return rt->opts.split.names[i];
        }
    }
    return lost_layers_name(rt);
}

char *quire_runtime_lost_why(const quire_runtime *rt, char *text, size_t text_bytes)
{
    const quire_backend_device *lost = quire_runtime_layers_lost(rt);

    if (lost != NULL) {
        (void)snprintf(text, text_bytes, " (ggml: %s)", lost->why);
    } else {
        text[0] = '\0';
    }
    return text;
}

static int open_one(quire_device **out, const quire_runtime *rt, const char *name, quire_error *err)
{
    const quire_runtime_opts *o = &rt->opts;
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;

    opts.attn = quire_runtime_attn_opts(&rt->model->desc, o);
    return (o->device_open != NULL ? o->device_open : quire_device_open)(out, name, &opts, err);
}

static int split_open(quire_runtime *rt, quire_error *err)
{
    const quire_runtime_split *split = &rt->opts.split;
    quire_device_split_opts opts = QUIRE_DEVICE_SPLIT_OPTS_INIT;
    int rc = QUIRE_OK;

    QUIRE_TRY(quire_split_check(&rt->model->desc, &rt->opts, err));
    quire_split_ends(&rt->form, &rt->groups, split, &opts);
    for (uint32_t i = 0; i < split->n && rc == QUIRE_OK; i++) {
        rc = open_one(&opts.devices[i], rt, split->names[i], err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_device_split_open(&rt->split, &opts, err);
    }
    for (uint32_t i = 0; i < split->n && rc < 0; i++) {
        quire_device_close(opts.devices[i]);
    }
    return rc;
}

/* As quire_split_rounding_of(). */
static char *rounding_get(const quire_runtime *rt)
{
    const bool has_layers = rt->weights->n_devices > 0;
    char text[QUIRE_SPLIT_ROUNDING_BYTES];

    return rt->split != NULL ? quire_split_rounding(rt->split, &rt->opts.split, has_layers)
                             : strdup(quire_split_rounding_of(rt->memory_device, has_layers, text));
}

int quire_runtime_device_open(quire_runtime *rt, quire_error *err)
{
    const quire_runtime_opts *o = &rt->opts;

    QUIRE_TRY(quire_runtime_device_check(o, err));
    if (!quire_runtime_has_device(o)) {
        return QUIRE_OK;
    }
    if (o->split.n > 0) {
        QUIRE_TRY(split_open(rt, err));
        rt->page_memory = quire_device_split_page_memory(rt->split);
    } else {
        QUIRE_TRY(open_one(&rt->memory_device, rt, o->device, err));
        rt->page_memory = quire_device_page_memory(rt->memory_device);
    }
    rt->rounding = rounding_get(rt);
    return rt->rounding != NULL ? QUIRE_OK : quire_error_set(err, QUIRE_NOMEM, "out of memory");
}
