/* retry.c - waiting between the tries of a transfer; see http_transfer.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "cli/commands/talk.h"
#include "cli/pull/http_transfer.h"

#include <errno.h>
#include <time.h>

/* Wait; Ctrl-C ends it. */
static bool sleep_us(uint64_t us)
{
    struct timespec left = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };

    while (!quire_interrupt_seen() && nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    return !quire_interrupt_seen();
}

int quire_retry_wait(quire_retry *retry, bool is_moving, const quire_transfer_head *head,
                     int status, quire_error *err)
{
    uint64_t us;

    if (is_moving) {
        retry->n_failed = 0;
        retry->delay_us = retry->first_us;
    }
    retry->n_failed++;
    retry->n_attempts++;
    if (status != QUIRE_AGAIN || retry->n_failed > retry->n_max ||
        retry->n_attempts >= QUIRE_ATTEMPTS_MAX) {
        return status;
    }
    us = retry->delay_us;
    if (head->retry_after_s > QUIRE_RETRY_AFTER_MAX_S) {
        return status;
    }
    if (us > 0 && (uint64_t)head->retry_after_s * 1000000 > us) {
        us = (uint64_t)head->retry_after_s * 1000000;
    }
    quire_say("%s; trying again%s", err->message, us >= 5000000 ? " soon" : "");
    retry->delay_us = 2 * retry->delay_us < QUIRE_RETRY_DELAY_MAX_US ? 2 * retry->delay_us
                                                                     : QUIRE_RETRY_DELAY_MAX_US;
    return sleep_us(us) ? QUIRE_OK : quire_error_set(err, QUIRE_CANCELED, "interrupted");
}
