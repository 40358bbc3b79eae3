/* serve_signals.h - signals that end a server: a handler writes to a pipe, the main thread reads
 * it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_SIGNALS_H
#define QUIRE_CLI_SERVE_SIGNALS_H

#include "quire/error.h"

/* Catch SIGTERM and SIGINT from now on; a second call changes nothing. Errors: QUIRE_IO. */
int quire_signals_catch(quire_error *err);
void quire_signals_release(void);
/* The next signal; 0 after timeout_ms without one (-1 = wait for ever). Thread: main. */
int quire_signal_next(int timeout_ms);

#endif /* QUIRE_CLI_SERVE_SIGNALS_H */
