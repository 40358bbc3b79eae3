/* redis_kit.h - servers of Redis or Valkey for tests, and a shared store with calls that wait for
 * the result.
 *
 * A server listens on a free port of the loopback interface and keeps nothing on disk. It ends with
 * the test, also when the test dies.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_STORE_REDIS_KIT_H
#define QUIRE_TESTS_STORE_REDIS_KIT_H

#include "store_support.h"

#include <sys/types.h>

#include "store/valkey/valkey_store.h"

typedef struct redis_server {
    pid_t pid;
    uint16_t port;
    bool is_tls; /* redis_ask() cannot speak with it */
    char dir[32];
    char bus[8]; /* of a cluster: the port between its nodes */
    char url[64];
} redis_server;

/* Skips the test, by name, where no server is installed. */
void redis_need(void);
/* Start with more words of a command line, NULL at the end (may be NULL). */
void redis_start(redis_server *server, const char *const *words);
/* Start again on the same port; everything is forgotten. */
void redis_restart(redis_server *server, const char *const *words);
/* SIGKILL, SIGSTOP or SIGCONT. After SIGKILL the process has gone. */
void redis_signal(redis_server *server, int signal);
void redis_stop(redis_server *server);
/* A free port. */
uint16_t redis_port(void);

/* Send a command; the words end with NULL. The reply as text: a string, a number, "(nil)", an error
 * with its words, the elements of an array in lines. Memory: static, until the next call. */
const char *redis_ask(const redis_server *server, const char *const *words);
#define REDIS_ASK(server, ...) redis_ask((server), (const char *const[]){ __VA_ARGS__, NULL })

/* ---- shared stores ---- */

/* Options for a server: one secret for all tests, long timeouts for busy machines, the identity of
 * test_text_make(), and tenants with names that end at the first '/' of a salt. */
quire_valkey_store_opts redis_opts(const redis_server *server);
quire_store *redis_open(const quire_valkey_store_opts *opts);
/* Close, and free the returned transfers. */
void redis_close(quire_store *store);
/* Wait for the state. */
void redis_await(const quire_store *store, quire_store_state state);
quire_store_stats redis_stats(const quire_store *store);

/* Wait for a transfer. */
quire_transfer *redis_wait(quire_store *store);
quire_store_result redis_put(quire_store *store, const quire_page_text *page);
quire_store_result redis_put_version(quire_store *store, const quire_page_text *page,
                                     uint32_t version);
/* Get, and compare every byte: fails the test when wrong bytes come as OK. */
quire_store_result redis_get(quire_store *store, const quire_page_text *page);
quire_store_result redis_get_version(quire_store *store, const quire_page_text *page,
                                     uint32_t version);
quire_store_result redis_query(quire_store *store, const quire_page_text *page);
/* All pages of a text. */
void redis_put_all(quire_store *store, const test_text *text);
/* How many pages of a text are there. */
uint32_t redis_count(quire_store *store, const test_text *text);
void redis_drop_text(quire_store *store, const quire_page_text *page, quire_store_drop_what what);
void redis_drop_salt(quire_store *store, const char *salt, quire_store_drop_what what);

/* The path of the secret; made by the first call, removed by redis_kit_end(). */
const char *redis_secret(void);
int redis_kit_end(void **state);

#endif /* QUIRE_TESTS_STORE_REDIS_KIT_H */
