/* valkey_breaker.h - when a server is left alone, and when it is tried again.
 *
 *              a failure, or replies that are too slow
 *     closed -----------------------------------------> open: nothing is sent
 *       ^                                                |  the pause is over
 *       |                  probe succeeds                v
 *       '---------------------------------------------- half open: one probe
 *                                                        |  probe fails: open, the pause doubles
 *
 * Too slow is a mean of the measured latencies above latency_max_us. The pause begins at
 * pause_min_us, doubles up to pause_max_us, and begins again at pause_min_us only after
 * QUIRE_BREAKER_TRUST good replies: a server that answers a probe and then hangs gains nothing.
 *
 * Time comes from the caller. Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_BREAKER_H
#define QUIRE_STORE_VALKEY_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_BREAKER_TRUST  32u /* good replies after which the pause is short again */
#define QUIRE_BREAKER_KNOWN  8u  /* replies before the mean of latencies counts */
#define QUIRE_BREAKER_WEIGHT 0.1 /* of a new latency in the mean */

typedef enum quire_breaker_state {
    QUIRE_BREAKER_CLOSED,
    QUIRE_BREAKER_OPEN,
    QUIRE_BREAKER_HALF_OPEN
} quire_breaker_state;

typedef struct quire_breaker {
    uint64_t latency_max_us; /* 0 = latency does not count */
    uint64_t pause_min_us;
    uint64_t pause_max_us;
    quire_breaker_state state;
    uint64_t pause_us; /* of the next failure; 0 = pause_min_us */
    uint64_t until_us; /* OPEN */
    double latency_us; /* mean */
    uint32_t n_known;  /* latencies in the mean, up to QUIRE_BREAKER_KNOWN */
    uint32_t n_good;   /* since the last failure */
    uint64_t opened_total;
} quire_breaker;

/* A good reply. Returns false when it opened the breaker, because replies are too slow. */
bool quire_breaker_good(quire_breaker *breaker, uint64_t now_us, uint64_t latency_us);
/* A failure: no reply in time, a lost connection, a reply that makes no sense. */
void quire_breaker_failed(quire_breaker *breaker, uint64_t now_us);
/* Whether requests may be sent. */
bool quire_breaker_is_closed(const quire_breaker *breaker);
/* Whether a probe is due; then the breaker is half open, and the answer is good() or failed(). */
bool quire_breaker_probe(quire_breaker *breaker, uint64_t now_us);
/* When a probe is due; UINT64_MAX while the breaker is not open. */
uint64_t quire_breaker_due_us(const quire_breaker *breaker);

#endif /* QUIRE_STORE_VALKEY_BREAKER_H */
