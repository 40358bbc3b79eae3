/* sim_cost.c - the cost model to and from JSON.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/sim_cost.h"

#include "base/check.h"
#include "cli/commands/talk.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#define COST_US_MAX 1e9

typedef struct cost_field {
    const char *name;
    size_t offset;
} cost_field;

#define FIELD(name)                                                                                \
    {                                                                                              \
#name, offsetof(quire_sim_cost, name)                                                      \
    }
static const cost_field fields[] = {
    FIELD(prefill_token_us), FIELD(prefill_token_depth_us), FIELD(decode_step_us),
    FIELD(decode_row_us),    FIELD(decode_row_depth_us),
};
#undef FIELD
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static int object_read(const json_t *object, const char *path, quire_sim_cost *out,
                       quire_error *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        double us = json_number_value(value);

        if (!json_is_number(value) || !(us >= 0.0 && us <= COST_US_MAX)) {
            return quire_error_set(err, QUIRE_INVAL, "%s: no %s, microseconds from 0 on", path,
                                   fields[i].name);
        }
        *(double *)(void *)((char *)out + fields[i].offset) = us;
    }
    return QUIRE_OK;
}

int quire_sim_cost_read(const char *path, quire_sim_cost *out, quire_error *err)
{
    json_error_t error;
    json_t *object;
    FILE *file;
    int rc;

    *out = (quire_sim_cost)QUIRE_SIM_COST_INIT;
    if (path == NULL) {
        return QUIRE_OK;
    }
    file = fopen(path, "rb");
    if (file == NULL) {
        return quire_error_set_errno(err, errno, "--cost %s: cannot be opened", path);
    }
    object = json_loadf(file, 0, &error);
    (void)fclose(file);
    if (object == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "--cost %s:%d: %s", path, error.line, error.text);
    }
    rc = object_read(object, path, out, err);
    json_decref(object);
    return rc;
}

json_t *quire_sim_cost_json(const quire_sim_cost *cost)
{
    json_t *object = json_object();

    for (size_t i = 0; i < N_FIELDS; i++) {
        double us = *(const double *)(const void *)((const char *)cost + fields[i].offset);

        if (json_object_set_new(object, fields[i].name, quire_json_real(us)) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}
