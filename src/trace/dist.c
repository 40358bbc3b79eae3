/* dist.c - buckets of a distribution.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/dist.h"

#include "base/check.h"

#define EXACT_BITS 6u
#define STEP_BITS  5u

_Static_assert(QUIRE_DIST_EXACT == 1u << EXACT_BITS && QUIRE_DIST_STEPS == 1u << STEP_BITS, "");
_Static_assert(EXACT_BITS + 58u == 64u, "every 64-bit value has a bucket");

static uint32_t bucket_of(uint64_t value)
{
    uint32_t top;

    if (value < QUIRE_DIST_EXACT) {
        return (uint32_t)value;
    }
    top = 63u - (uint32_t)__builtin_clzll(value);
    return QUIRE_DIST_EXACT + (top - EXACT_BITS) * QUIRE_DIST_STEPS +
           (uint32_t)(value >> (top - STEP_BITS) & (QUIRE_DIST_STEPS - 1u));
}

/* The least value of a bucket; of the one after the last, the greatest number. */
static uint64_t bucket_low(uint32_t bucket)
{
    const uint32_t above = bucket - QUIRE_DIST_EXACT;
    const uint32_t doubling = above / QUIRE_DIST_STEPS;

    if (bucket < QUIRE_DIST_EXACT) {
        return bucket;
    }
    if (bucket >= QUIRE_DIST_BUCKETS) {
        return UINT64_MAX;
    }
    return ((uint64_t)QUIRE_DIST_STEPS + above % QUIRE_DIST_STEPS)
           << (doubling + EXACT_BITS - STEP_BITS);
}

void quire_dist_add_n(quire_dist *dist, uint64_t value, uint64_t weight)
{
    if (weight == 0) {
        return;
    }
    if (dist->n == 0 || value < dist->min) {
        dist->min = value;
    }
    if (value > dist->max) {
        dist->max = value;
    }
    dist->n += weight;
    dist->sum += (double)value * (double)weight;
    dist->counts[bucket_of(value)] += weight;
}

void quire_dist_add(quire_dist *dist, uint64_t value)
{
    quire_dist_add_n(dist, value, 1);
}

/* The representative value of a bucket: its middle, limited to [least, most]. */
static uint64_t bucket_value(const quire_dist *dist, uint32_t bucket)
{
    const uint64_t low = bucket_low(bucket);
    uint64_t value = low + (bucket_low(bucket + 1) - low) / 2;

    if (bucket < QUIRE_DIST_EXACT) {
        value = low;
    }
    if (value < dist->min) {
        return dist->min;
    }
    return value > dist->max ? dist->max : value;
}

uint64_t quire_dist_quantile(const quire_dist *dist, double q)
{
    const double wanted = q * (double)dist->n;
    double below = 0.0;

    if (dist->n == 0) {
        return 0;
    }
    if (q >= 1.0) {
        return dist->max;
    }
    for (uint32_t i = 0; i < QUIRE_DIST_BUCKETS; i++) {
        below += (double)dist->counts[i];
        if (dist->counts[i] > 0 && below >= wanted) {
            return bucket_value(dist, i);
        }
    }
    return dist->max;
}

double quire_dist_mean(const quire_dist *dist)
{
    return dist->n > 0 ? dist->sum / (double)dist->n : 0.0;
}

/* End of the bar that begins with this bucket, with per_doubling bars in a doubling. Below 64 a
 * doubling has as many buckets as values. */
static uint32_t bar_end(uint32_t bucket, uint32_t per_doubling)
{
    uint64_t low = bucket_low(bucket);
    uint64_t step;

    if (bucket >= QUIRE_DIST_EXACT) {
        const uint32_t width = QUIRE_DIST_STEPS / per_doubling;

        return bucket - (bucket - QUIRE_DIST_EXACT) % width + width;
    }
    step = low / per_doubling;
    for (uint64_t power = 1; power <= low; power *= 2) {
        step = power / per_doubling;
    }
    return bucket + (uint32_t)(step > 0 ? step - low % step : 1);
}

static uint32_t make_bars(const quire_dist *dist, uint32_t per_doubling, quire_dist_bar *bars,
                          uint32_t max)
{
    const uint32_t last = bucket_of(dist->max);
    uint32_t n = 0;

    for (uint32_t i = bucket_of(dist->min), end; i <= last; i = end, n++) {
        end = bar_end(i, per_doubling);
        if (n == max) {
            return max + 1;
        }
        bars[n] = (quire_dist_bar){ bucket_low(i), bucket_low(end), 0 };
        for (uint32_t j = i; j < end && j < QUIRE_DIST_BUCKETS; j++) {
            bars[n].n += dist->counts[j];
        }
    }
    return n;
}

uint32_t quire_dist_bars(const quire_dist *dist, quire_dist_bar *bars, uint32_t max)
{
    QUIRE_CHECK(max > 0);
    if (dist->n == 0) {
        return 0;
    }
    for (uint32_t per_doubling = QUIRE_DIST_STEPS; per_doubling > 0; per_doubling /= 2) {
        const uint32_t n = make_bars(dist, per_doubling, bars, max);

        if (n <= max) {
            return n;
        }
    }
    bars[0] = (quire_dist_bar){ dist->min, dist->max + 1, dist->n };
    return 1;
}
