/* page_tune.c - see page_tune.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/page_tune.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/parse.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/talk.h"
#include "cli/measuring/page_curve_kept.h"
#include "model/memory.h"
#include "quire/cache.h"

#include <string.h>

#define WORK_LAYERS  4u                             /* so that no cache of the hardware holds one */
#define WORK_SECONDS 0.03                           /* of a round */
#define MEMORIES_MAX (QUIRE_PAGE_TUNE_DEVICES + 2u) /* the devices, the host, a disk */

typedef struct tuning {
    const quire_page_tune *tune;
    quire_attn_work work;
    quire_page_curve curves[MEMORIES_MAX]; /* [n] */
    uint32_t n;
    json_t *list;
    bool has_warned;
} tuning;

/* A memory of a document. */
typedef struct tuned_memory {
    const char *name;   /* in the document */
    const char *shown;  /* while it is measured */
    const char *device; /* NULL: a disk */
} tuned_memory;

/* ---- keys ---- */

static uint64_t text_add(uint64_t hash, const char *text)
{
    return quire_hash_add(hash, text, strlen(text) + 1);
}

/* No name of a device is part of it: names change with the order of the cards. */
static uint64_t key_of(const tuning *t, const quire_device_info *info)
{
    uint64_t key = text_add(QUIRE_HASH_INIT, quire_format_name(t->tune->format));

    if (info == NULL) {
        return text_add(text_add(key, "disk"), t->tune->dir);
    }
    key = quire_hash_add(key, &t->work.n_tokens, sizeof(t->work.n_tokens));
    return text_add(text_add(key, info->description), info->rounding);
}

static uint32_t tokens_of(const quire_page_tune *tune, const quire_device_info *info)
{
    if (tune->n_tokens != 0) {
        return tune->n_tokens;
    }
    return info->is_software && info->memory == QUIRE_MEMORY_DEVICE ? QUIRE_PAGE_TUNE_FEW
                                                                    : QUIRE_PAGE_TUNE_TOKENS;
}

/* The work for a memory, and its key. */
static int work_settle(tuning *t, const tuned_memory *place, uint64_t *key, quire_error *err)
{
    quire_device *device;
    quire_device_info info;

    t->work.device = place->device;
    if (place->device == NULL) {
        *key = key_of(t, NULL);
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_device_peek(&device, place->device, err));
    quire_device_info_get(device, &info);
    quire_device_close(device);
    t->work.n_tokens = tokens_of(t->tune, &info);
    *key = key_of(t, &info);
    return QUIRE_OK;
}

/* ---- one memory ---- */

static int memory_check(const tuning *t, quire_error *err)
{
    const uint64_t need = quire_page_curve_bytes(&t->work);
    const uint64_t have = quire_memory_available();
    char need_text[16], have_text[16];

    return need <= have ? QUIRE_OK
                        : quire_error_set(err, QUIRE_RANGE,
                                          "attention on %u tokens of %s needs %s of memory, %s are "
                                          "available",
                                          t->work.n_tokens, quire_format_name(t->tune->format),
                                          quire_format_bytes(need, need_text, sizeof(need_text)),
                                          quire_format_bytes(have, have_text, sizeof(have_text)));
}

static void keep(tuning *t, const char *memory, const quire_page_curve *curve, uint64_t key)
{
    quire_error why = QUIRE_ERROR_INIT;

    if (quire_page_curve_save(memory, curve, key, &why) < 0 && !t->has_warned) {
        quire_say("warning: measured page sizes cannot be kept: %s", why.message);
        t->has_warned = true;
    }
}

static int measure(tuning *t, const tuned_memory *place, quire_page_curve *out, quire_error *err)
{
    int rc;

    QUIRE_TRY(memory_check(t, err));
    quire_progress("measuring %s", place->shown);
    rc = place->device != NULL ? quire_page_curve_device(out, &t->work, err)
                               : quire_page_curve_disk(out, &t->work, t->tune->dir, err);
    quire_progress_end();
    return rc;
}

static int memory_get(tuning *t, const tuned_memory *place, quire_error *err)
{
    quire_page_curve *curve = &t->curves[t->n];
    const quire_page_tune *tune = t->tune;
    uint64_t key;

    QUIRE_TRY(work_settle(t, place, &key, err));
    if (tune->from == QUIRE_PAGE_TUNE_NEW || quire_page_curve_load(curve, key) < 0) {
        if (tune->from == QUIRE_PAGE_TUNE_KEPT) {
            return quire_error_set(err, QUIRE_NOTFOUND, "%s was not measured yet", place->name);
        }
        QUIRE_TRY(measure(t, place, curve, err));
        keep(t, place->name, curve, key);
    }
    t->n++;
    if (json_array_append_new(t->list, quire_page_curve_json(place->name, curve)) != 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (tune->got != NULL) {
        tune->got(tune->ctx, place->name, curve);
    }
    return QUIRE_OK;
}

/* ---- all memories ---- */

/* Whether a name before the i-th is the same. */
static bool is_again(const quire_page_tune *tune, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++) {
        if (strcmp(tune->devices[j], tune->devices[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int memories_get(tuning *t, quire_error *err)
{
    const quire_page_tune *tune = t->tune;

    for (uint32_t i = 0; i < tune->n_devices; i++) {
        const char *name = tune->devices[i];

        if (!quire_device_is_cpu(name) && !is_again(tune, i)) {
            QUIRE_TRY(memory_get(t, &(tuned_memory){ name, name, name }, err));
        }
    }
    QUIRE_TRY(memory_get(t, &(tuned_memory){ "host", "the host", "cpu" }, err));
    return tune->dir != NULL ? memory_get(t, &(tuned_memory){ "disk", tune->dir, NULL }, err)
                             : QUIRE_OK;
}

/* Takes t->list over. NULL when out of memory. */
static json_t *document_of(tuning *t)
{
    bool has_share;
    const uint32_t choice = quire_page_curves_choose(t->curves, t->n, &has_share);

    return json_pack(
        "{s:s, s:i, s:i, s:b, s:o}", "format", quire_format_name(t->tune->format), "tokens",
        (int)(t->tune->n_tokens != 0 ? t->tune->n_tokens : QUIRE_PAGE_TUNE_TOKENS), "page_tokens",
        (int)quire_page_point_tokens(choice), "has_share", (int)has_share, "memories", t->list);
}

int quire_page_tune_get(json_t **document, const quire_page_tune *tune, quire_error *err)
{
    tuning t = {
        .tune = tune,
        .work = { .format = tune->format, .n_layers = WORK_LAYERS, .seconds = WORK_SECONDS },
        .list = json_array()
    };
    int rc;

    QUIRE_CHECK(tune->n_devices <= QUIRE_PAGE_TUNE_DEVICES);
    *document = NULL;
    rc = t.list != NULL ? memories_get(&t, err) : QUIRE_NOMEM;
    if (rc == QUIRE_OK || (rc == QUIRE_CANCELED && t.n > 0)) {
        *document = document_of(&t);
        return *document != NULL ? rc : quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    json_decref(t.list);
    return t.list != NULL ? rc : quire_error_set(err, QUIRE_NOMEM, "out of memory");
}

int quire_page_tune_size(const json_t *document, uint32_t *page_tokens)
{
    const json_int_t n = json_integer_value(json_object_get(document, "page_tokens"));

    QUIRE_FAIL_IF(n <= 0 || n > QUIRE_PAGE_TOKENS_MAX || n % QUIRE_TILE_TOKENS != 0, QUIRE_INVAL);
    *page_tokens = (uint32_t)n;
    return QUIRE_OK;
}
