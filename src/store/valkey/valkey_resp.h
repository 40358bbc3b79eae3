/* valkey_resp.h - the reader of the protocol's replies: hiredis, or libvalkey where there is one.
 *
 * The store uses the reader of these libraries, not their connections: hiredis 0.14 (Debian 12) has
 * no TLS, copies every value that is sent, and moves the rest after each partial write, so that
 * a pipeline of large values costs time quadratic in its bytes. The store's own connections
 * (valkey_link.h) never wait, send values from where they lie, and stop by their own clock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_RESP_H
#define QUIRE_STORE_VALKEY_RESP_H

#include <stdbool.h>

#ifdef QUIRE_HAS_LIBVALKEY
#include <valkey/valkey.h>

typedef valkeyReader quire_resp_reader;
typedef valkeyReply quire_resp;

#define QUIRE_RESP_STRING  VALKEY_REPLY_STRING
#define QUIRE_RESP_ARRAY   VALKEY_REPLY_ARRAY
#define QUIRE_RESP_INTEGER VALKEY_REPLY_INTEGER
#define QUIRE_RESP_STATUS  VALKEY_REPLY_STATUS
#define QUIRE_RESP_ERROR   VALKEY_REPLY_ERROR

#define quire_resp_reader_free(reader)    valkeyReaderFree(reader)
#define quire_resp_feed(reader, bytes, n) valkeyReaderFeed(reader, bytes, n)
#define quire_resp_next(reader, reply)    valkeyReaderGetReply(reader, reply)
#else
#include <hiredis/hiredis.h>

typedef redisReader quire_resp_reader;
typedef redisReply quire_resp;

#define QUIRE_RESP_STRING  REDIS_REPLY_STRING
#define QUIRE_RESP_ARRAY   REDIS_REPLY_ARRAY
#define QUIRE_RESP_INTEGER REDIS_REPLY_INTEGER
#define QUIRE_RESP_STATUS  REDIS_REPLY_STATUS
#define QUIRE_RESP_ERROR   REDIS_REPLY_ERROR

#define quire_resp_reader_free(reader)    redisReaderFree(reader)
#define quire_resp_feed(reader, bytes, n) redisReaderFeed(reader, bytes, n)
#define quire_resp_next(reader, reply)    redisReaderGetReply(reader, reply)
#endif

#define quire_resp_free(reply) freeReplyObject(reply)

/* Most elements of an array that a server may send: a map of all slots has 16384. */
#define QUIRE_RESP_ELEMENTS_MAX 65536u

/* A reader that refuses arrays above the bound. NULL: out of memory. */
quire_resp_reader *quire_resp_reader_new(void);
/* Whether a reply is this status, "OK" for instance. */
bool quire_resp_is_status(const quire_resp *reply, const char *status);

#endif /* QUIRE_STORE_VALKEY_RESP_H */
