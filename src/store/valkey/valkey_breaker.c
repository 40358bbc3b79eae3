/* valkey_breaker.c - see valkey_breaker.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_breaker.h"

static void open_up(quire_breaker *b, uint64_t now_us)
{
    const uint64_t pause_us = b->pause_us > 0 ? b->pause_us : b->pause_min_us;

    b->state = QUIRE_BREAKER_OPEN;
    b->until_us = now_us + pause_us;
    b->pause_us = 2 * pause_us < b->pause_max_us ? 2 * pause_us : b->pause_max_us;
    b->latency_us = 0.0;
    b->n_known = 0;
    b->n_good = 0;
    b->opened_total++;
}

bool quire_breaker_good(quire_breaker *b, uint64_t now_us, uint64_t latency_us)
{
    const double weight = b->n_known == 0 ? 1.0 : QUIRE_BREAKER_WEIGHT;

    b->state = QUIRE_BREAKER_CLOSED;
    b->latency_us += ((double)latency_us - b->latency_us) * weight;
    b->n_known += b->n_known < QUIRE_BREAKER_KNOWN;
    if (b->latency_max_us > 0 && b->n_known == QUIRE_BREAKER_KNOWN &&
        b->latency_us > (double)b->latency_max_us) {
        open_up(b, now_us);
        return false;
    }
    if (b->n_good < QUIRE_BREAKER_TRUST && ++b->n_good == QUIRE_BREAKER_TRUST) {
        b->pause_us = 0;
    }
    return true;
}

void quire_breaker_failed(quire_breaker *b, uint64_t now_us)
{
    open_up(b, now_us);
}

bool quire_breaker_is_closed(const quire_breaker *b)
{
    return b->state == QUIRE_BREAKER_CLOSED;
}

bool quire_breaker_probe(quire_breaker *b, uint64_t now_us)
{
    if (b->state != QUIRE_BREAKER_OPEN || now_us < b->until_us) {
        return false;
    }
    b->state = QUIRE_BREAKER_HALF_OPEN;
    return true;
}

uint64_t quire_breaker_due_us(const quire_breaker *b)
{
    return b->state == QUIRE_BREAKER_OPEN ? b->until_us : UINT64_MAX;
}
