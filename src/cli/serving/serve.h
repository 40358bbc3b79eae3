/* serve.h - start, run and end a server from its settings.
 *
 *   check settings, describe model -> listen (503) -> weights, runtime -> engine -> ready
 *   SIGTERM, SIGINT: drain -> end; a second one: end
 *
 * Before the server is ready a signal ends the program directly: no work is lost.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_H
#define QUIRE_CLI_SERVE_H

/* quire_command.run of quire serve; args: quire_serve_args after quire_settings_read(). */
int quire_serve_run(void *args);

#endif /* QUIRE_CLI_SERVE_H */
