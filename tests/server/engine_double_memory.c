/* engine_double_memory.c - pins.h, tuning.h and events from a table.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_double.h"

#include <stdio.h>
#include <string.h>

static quire_engine_pin *find(engine_memory *m, const quire_engine_pin_name *name)
{
    for (uint32_t i = 0; i < m->n_pins; i++) {
        quire_engine_pin *pin = &m->pins[i];

        if (strcmp(pin->name, name->name) == 0 && pin->tenant_bytes == name->tenant_bytes &&
            memcmp(pin->tenant, name->tenant, name->tenant_bytes) == 0) {
            return pin;
        }
    }
    return NULL;
}

static void forget(engine_memory *m, quire_engine_pin *pin)
{
    *pin = m->pins[--m->n_pins];
    m->n_dropped++;
}

int quire_engine_pin_create(quire_engine *engine, const quire_engine_pin_params *params,
                            quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err)
{
    engine_memory *m = engine_double_memory(engine);
    const quire_engine_pin_name name = { params->tenant, params->tenant_bytes, params->name };
    quire_engine_pin *pin;

    m->created = *params;
    for (uint32_t i = 0; i < params->n_tokens && i < 256; i++) {
        m->tokens[i] = params->tokens[i];
    }
    if (m->create_status < 0) {
        if (missing_bytes != NULL) {
            *missing_bytes = m->missing_bytes;
        }
        return quire_error_set(err, m->create_status, "%s", m->create_message);
    }
    if (find(m, &name) != NULL) {
        return quire_error_set(err, QUIRE_AGAIN, "name: taken");
    }
    if (m->n_pins == DOUBLE_PINS_MAX) {
        forget(m, &m->pins[0]);
    }
    pin = &m->pins[m->n_pins++];
    *pin = (quire_engine_pin){
        .tenant_bytes = params->tenant_bytes,
        .state = m->n_looks > 0 ? QUIRE_ENGINE_PIN_COMPUTING : QUIRE_ENGINE_PIN_HELD,
        .class_index = params->class_index,
        .n_tokens = params->n_tokens,
        .n_held_tokens = m->n_looks > 0 ? 0 : params->n_tokens,
        .bytes = 100u * params->n_tokens,
        .ttl_s = params->ttl_s,
        .left_s = params->ttl_s,
    };
    memcpy(pin->tenant, params->tenant, params->tenant_bytes);
    (void)snprintf(pin->name, sizeof pin->name, "%s", params->name);
    *out = *pin;
    return QUIRE_OK;
}

bool quire_engine_is_lost(const quire_engine *engine)
{
    return engine_double_memory((quire_engine *)(uintptr_t)engine)->is_lost;
}

int quire_engine_pin_get(quire_engine *engine, const quire_engine_pin_name *name,
                         quire_engine_pin *out)
{
    engine_memory *m = engine_double_memory(engine);
    quire_engine_pin *pin = find(m, name);

    if (pin != NULL && m->vanishes) {
        forget(m, pin);
        pin = NULL;
    }
    if (pin == NULL) {
        return QUIRE_NOTFOUND;
    }
    if (m->n_looks > 0 && m->n_looks != UINT32_MAX && --m->n_looks == 0) {
        pin->state = QUIRE_ENGINE_PIN_HELD;
        pin->n_held_tokens = pin->n_tokens;
    }
    *out = *pin;
    return QUIRE_OK;
}

int quire_engine_pin_renew(quire_engine *engine, const quire_engine_pin_name *name, uint64_t ttl_s,
                           quire_engine_pin *out)
{
    quire_engine_pin *pin = find(engine_double_memory(engine), name);

    if (pin == NULL) {
        return QUIRE_NOTFOUND;
    }
    pin->ttl_s = pin->left_s = ttl_s;
    *out = *pin;
    return QUIRE_OK;
}

int quire_engine_pin_drop(quire_engine *engine, const quire_engine_pin_name *name)
{
    engine_memory *m = engine_double_memory(engine);
    quire_engine_pin *pin = find(m, name);

    if (pin == NULL) {
        return QUIRE_NOTFOUND;
    }
    forget(m, pin);
    return QUIRE_OK;
}

int quire_engine_pins_list(quire_engine *engine, const void *tenant, uint32_t tenant_bytes,
                           uint32_t skip, quire_engine_pin *out, uint32_t n, uint32_t *n_all)
{
    const engine_memory *m = engine_double_memory(engine);

    uint32_t n_found = 0;

    assert_int_equal(skip, 0);
    assert_true(n >= m->n_pins);
    for (uint32_t i = 0; i < m->n_pins; i++) {
        if (tenant == NULL || (m->pins[i].tenant_bytes == tenant_bytes &&
                               memcmp(m->pins[i].tenant, tenant, tenant_bytes) == 0)) {
            out[n_found++] = m->pins[i];
        }
    }
    if (n_all != NULL) {
        *n_all = n_found;
    }
    return (int)n_found;
}

int quire_engine_tune(quire_engine *engine, const quire_engine_tune_opts *opts,
                      quire_engine_tuning *out)
{
    engine_memory *m = engine_double_memory(engine);

    m->tuned_with = *opts;
    if (m->tune_status < 0) {
        return m->tune_status;
    }
    for (uint32_t i = 0; i < m->tuning.n_changes; i++) {
        m->tuning.is_applied[i] = opts->is_applied && m->tuning.changes[i].is_applicable;
    }
    *out = m->tuning;
    return QUIRE_OK;
}

void quire_engine_tuning_get(quire_engine *engine, quire_engine_tuning *out)
{
    *out = engine_double_memory(engine)->tuning;
}

/* Five of them. */
uint32_t quire_engine_events(const quire_engine *engine, uint64_t after, quire_event *out,
                             uint32_t n)
{
    uint32_t n_out = 0;

    (void)engine;
    for (uint64_t number = after + 1; number <= 5 && n_out < n; number++) {
        out[n_out] = (quire_event){ .number = number,
                                    .time_us = 1000000 * number,
                                    .kind = QUIRE_EVENT_SPILLED };
        (void)snprintf(out[n_out].text, sizeof out[n_out].text, "event \"%u\"", (unsigned)number);
        n_out++;
    }
    return n_out;
}
