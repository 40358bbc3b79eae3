/* sampling_fields.c - fields that choose tokens, in the names of OpenAI, llama-server and vLLM.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/num.h"

#include <stdint.h>
#include <string.h>
#include <sys/random.h>

/* Bounds of OpenAI and llama.cpp. */
#define TEMPERATURE_MAX    2.0
#define PENALTY_MAX        2.0
#define REPEAT_PENALTY_MIN 0.01
#define REPEAT_PENALTY_MAX 10.0

static const json_int_t SEED_RANDOM = -1;
static const json_int_t SEED_RANDOM_LLAMA = UINT32_MAX; /* as llama-server writes it */

static uint32_t seed_random(void)
{
    uint32_t seed;

    return getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed ? seed
                                                                       : (uint32_t)quire_clock_ns();
}

/* Seeds have 64 bits, signed or unsigned. Those from 2^63 on come as reals (json_in.h), so seeds
 * that are near to each other may be the same. */
static uint32_t read_seed(quire_fields *fields)
{
    const json_t *value = quire_field(fields, "seed");
    const double large = json_is_real(value) ? json_real_value(value) : 0.0;
    uint64_t seed;

    if (large >= 0x1p63 && large <= 0x1p64) {
        seed = large < 0x1p64 ? (uint64_t)large : UINT64_MAX;
    } else {
        const int64_t n = quire_field_int(fields, "seed", SEED_RANDOM, INT64_MIN, INT64_MAX);

        if (n == SEED_RANDOM || n == SEED_RANDOM_LLAMA) {
            return seed_random();
        }
        seed = (uint64_t)n;
    }
    return (uint32_t)(seed ^ seed >> 32);
}

/* ---- numbers ---- */

/* Bounds beyond OpenAI's: those of quire_sampler_opts_check(). */
typedef struct number {
    const char *name;
    size_t offset; /* of a float in quire_sampler_opts */
    double min, max;
} number;

#define AT(member) offsetof(quire_sampler_opts, member)

static const number numbers[] = {
    { "temperature", AT(temperature), 0.0, TEMPERATURE_MAX },
    { "top_p", AT(top_p), 0.0, 1.0 },
    { "min_p", AT(min_p), 0.0, 1.0 },
    { "frequency_penalty", AT(frequency_penalty), -PENALTY_MAX, PENALTY_MAX },
    { "presence_penalty", AT(presence_penalty), -PENALTY_MAX, PENALTY_MAX },
    { "repeat_penalty", AT(repeat_penalty), REPEAT_PENALTY_MIN, REPEAT_PENALTY_MAX },
    { "repetition_penalty", AT(repetition_penalty), REPEAT_PENALTY_MIN, REPEAT_PENALTY_MAX },
    { "dry_multiplier", AT(dry_multiplier), 0.0, 100.0 },
    { "dry_base", AT(dry_base), 1.0, 100.0 },
    { "top_n_sigma", AT(top_n_sigma), -1.0, 100.0 },
    { "typ_p", AT(typical_p), 0.0, 1.0 },
    { "typical_p", AT(typical_p), 0.0, 1.0 },
    { "xtc_probability", AT(xtc_probability), 0.0, 1.0 },
    { "xtc_threshold", AT(xtc_threshold), 0.0, 1.0 },
    { "dynatemp_range", AT(dynatemp_range), 0.0, 100.0 },
    { "dynatemp_exponent", AT(dynatemp_exponent), 0.0, 100.0 },
    { "mirostat_tau", AT(mirostat_tau), 0.0, 100.0 },
    { "mirostat_eta", AT(mirostat_eta), 0.0, 10.0 },
};

static void read_numbers(quire_sampler_opts *s, quire_fields *fields)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const number *row = &numbers[i];
        float *value = (float *)((char *)s + row->offset);

        *value = (float)quire_field_number(fields, row->name, *value, row->min, row->max);
    }
}

/* The number of last tokens that count; -1, of older versions of llama-server: the context. */
static uint32_t read_last_n(const quire_generation *gen, quire_fields *fields, const char *name,
                            uint32_t fallback)
{
    const int64_t n = quire_field_int(fields, name, fallback, -1, QUIRE_PENALTY_TOKENS_MAX);

    return n >= 0 ? (uint32_t)n
                  : quire_min_u32(quire_engine_n_ctx(gen->http->engine), QUIRE_PENALTY_TOKENS_MAX);
}

static void read_counts(quire_generation *gen, quire_fields *fields)
{
    quire_sampler_opts *s = &gen->params.sampler;

    s->seed = read_seed(fields);
    s->top_k = (int32_t)quire_field_int(fields, "top_k", s->top_k, -1, INT32_MAX);
    s->min_keep = (uint32_t)quire_field_int(fields, "min_keep", s->min_keep, 0, INT32_MAX);
    s->mirostat = (uint32_t)quire_field_int(fields, "mirostat", s->mirostat, 0, 2);
    s->penalty_tokens = read_last_n(gen, fields, "repeat_last_n", s->penalty_tokens);
    s->dry_tokens = read_last_n(gen, fields, "dry_penalty_last_n", s->dry_tokens);
    s->dry_allowed_length =
        (int32_t)quire_field_int(fields, "dry_allowed_length", s->dry_allowed_length, 0, INT32_MAX);
}

/* ---- lists ---- */

static void read_breakers(quire_generation *gen, quire_fields *fields)
{
    static const char name[] = "dry_sequence_breakers";
    json_t *list = quire_field_array(fields, name, QUIRE_DRY_BREAKERS_MAX);

    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *value = json_array_get(list, i);
        const size_t n = json_string_length(value);

        if (!json_is_string(value)) {
            quire_field_type_error(fields, name, "strings", value);
            return;
        }
        if (n == 0 || n > QUIRE_DRY_BREAKER_BYTES) {
            quire_field_error(fields, name, "texts of 1 .. %u bytes, not %zu",
                              QUIRE_DRY_BREAKER_BYTES, n);
            return;
        }
        memcpy(gen->dry_breakers[i], json_string_value(value), n + 1);
        gen->dry_breaker_list[i] = gen->dry_breakers[i];
    }
    if (list != NULL) {
        gen->params.sampler.dry_breakers = gen->dry_breaker_list;
        gen->params.sampler.n_dry_breakers = (uint32_t)json_array_size(list);
    }
}

/* llama-server's: names in an array, or a text of letters. */
static void read_order(quire_generation *gen, quire_fields *fields)
{
    static const char name[] = "samplers";
    quire_sampler_order order = { .n = 0 };
    quire_error err = QUIRE_ERROR_INIT;
    json_t *value = quire_field(fields, name);
    int rc = QUIRE_OK;

    if (value == NULL) {
        return;
    }
    if (json_is_string(value)) {
        rc = quire_sampler_order_letters(&order, json_string_value(value), &err);
    } else if (!json_is_array(value)) {
        quire_field_type_error(fields, name, "an array of names or a string of letters", value);
    }
    for (size_t i = 0; i < json_array_size(value) && rc == QUIRE_OK; i++) {
        json_t *item = json_array_get(value, i);

        if (!json_is_string(item)) {
            quire_field_type_error(fields, name, "names", item);
            return;
        }
        rc = quire_sampler_order_add(&order, json_string_value(item), json_string_length(item),
                                     &err);
    }
    if (rc < 0) {
        quire_field_error(fields, name, "%s", err.message);
    }
    gen->params.sampler.order = order;
}

void quire_sampling_read(quire_generation *gen, quire_fields *fields)
{
    read_numbers(&gen->params.sampler, fields);
    read_counts(gen, fields);
    read_breakers(gen, fields);
    read_order(gen, fields);
}
