/* valkey_resp.c - see valkey_resp.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_resp.h"

#include <pthread.h>
#include <string.h>

#if !defined(QUIRE_HAS_LIBVALKEY) && HIREDIS_MAJOR < 1
/* This version allocates as many elements as the server announces. */
static redisReplyObjectFunctions whole;   /* the library's */
static redisReplyObjectFunctions bounded; /* these, with the function below */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *array_new_bounded(const redisReadTask *task, int n)
{
    return n >= 0 && (unsigned)n <= QUIRE_RESP_ELEMENTS_MAX ? whole.createArray(task, n) : NULL;
}

static void functions_get(void)
{
    redisReader *reader = redisReaderCreate();

    if (reader != NULL) {
        whole = *reader->fn;
        bounded = whole;
        bounded.createArray = array_new_bounded;
        redisReaderFree(reader);
    }
}

quire_resp_reader *quire_resp_reader_new(void)
{
    (void)pthread_once(&once, functions_get);
    return whole.createArray != NULL ? redisReaderCreateWithFunctions(&bounded) : NULL;
}
#else
quire_resp_reader *quire_resp_reader_new(void)
{
#ifdef QUIRE_HAS_LIBVALKEY
    quire_resp_reader *reader = valkeyReaderCreate();
#else
    quire_resp_reader *reader = redisReaderCreate();
#endif

    if (reader != NULL) {
        reader->maxelements = QUIRE_RESP_ELEMENTS_MAX;
    }
    return reader;
}
#endif

bool quire_resp_is_status(const quire_resp *reply, const char *status)
{
    return reply != NULL && reply->type == QUIRE_RESP_STATUS && strcmp(reply->str, status) == 0;
}
