/* kv_publisher.c - the thread and the sockets of kv_events.h.
 *
 * Messages of PUB: [topic, sequence number, batch]; numbers are 8 bytes, most significant first,
 * from 0. Replay: a request [empty, number] to the ROUTER socket is answered by [empty, number,
 * batch] for every batch kept from that number on, and [empty, -1, empty] at the end.
 *
 * A batch is one piece of memory that the sockets' queues share.
 *
 * SPDX-License-Identifier: MIT */
#include "server/kv_events/kv_events.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/kv_events/kv_endpoint.h"
#include "server/kv_events/kv_news.h"
#include "server/kv_events/kv_pack.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define REQUEST_MAX  64  /* bytes of a frame that a client may send */
#define REQUESTS_MAX 100 /* requests that wait */
#define ANSWERS_MAX  2u  /* whole answers that wait for a client; more are lost */
#define NUMBER_BYTES 8u

/* A batch, as long as the replay ring or a socket has it. */
typedef struct batch {
    atomic_uint n_users;
    size_t n;
    char bytes[];
} batch;

typedef struct kept {
    uint64_t number;
    batch *batch;
} kept;

/* The state of a device's watcher. */
typedef struct told {
    quire_kv_events *events;
    uint8_t rank;
    atomic_bool wants_again;
} told;

struct quire_kv_events {
    quire_kv_news news;
    told ranks[QUIRE_KV_EVENTS_RANKS_MAX]; /* [n_ranks] */
    uint32_t n_ranks;
    char endpoint[QUIRE_KV_EVENTS_ENDPOINT_MAX];
    char replay_endpoint[QUIRE_KV_EVENTS_ENDPOINT_MAX]; /* "" = no replay */
    char topic[QUIRE_KV_EVENTS_TOPIC_MAX + 1];
    uint64_t again_us;
    void *zmq;
    void *pub;
    void *router; /* NULL = no replay */
    int wake_fd;
    pthread_t thread;
    bool has_thread;
    /* The publisher's. */
    quire_bytes packed;
    uint64_t next_number;
    kept *ring; /* [ring_capacity], oldest at ring_first */
    uint32_t ring_capacity;
    uint32_t ring_first;
    uint32_t ring_n;
    size_t ring_bytes;
    uint64_t again_at_us; /* replay requests cause no further telling before */
    /* Shared. */
    atomic_bool is_stopping;
    _Atomic uint64_t stored_total, removed_total, cleared_total, batches_total, lost_total,
        replays_total, replayed_total;
};

/* ---- batches ---- */

static batch *batch_new(const quire_bytes *from)
{
    batch *b = malloc(sizeof *b + from->n);

    if (b != NULL) {
        atomic_init(&b->n_users, 1);
        b->n = from->n;
        memcpy(b->bytes, from->data, from->n);
    }
    return b;
}

static void batch_leave(void *data, void *hint)
{
    batch *b = hint;

    (void)data;
    if (atomic_fetch_sub(&b->n_users, 1) == 1) {
        free(b);
    }
}

/* Send a batch as the last frame of a message. */
static void batch_send(void *socket, batch *b)
{
    zmq_msg_t message;

    atomic_fetch_add(&b->n_users, 1);
    if (zmq_msg_init_data(&message, b->bytes, b->n, batch_leave, b) != 0) {
        batch_leave(NULL, b);
        (void)zmq_send(socket, "", 0, ZMQ_DONTWAIT);
    } else if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&message);
    }
}

static void number_write(uint64_t number, unsigned char bytes[NUMBER_BYTES])
{
    for (uint32_t i = 0; i < NUMBER_BYTES; i++) {
        bytes[i] = (unsigned char)(number >> 8 * (NUMBER_BYTES - 1 - i));
    }
}

static uint64_t number_read(const unsigned char bytes[NUMBER_BYTES])
{
    uint64_t number = 0;

    for (uint32_t i = 0; i < NUMBER_BYTES; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

/* ---- replay ---- */

static void ring_drop_oldest(quire_kv_events *e)
{
    batch *b = e->ring[e->ring_first].batch;

    e->ring_first = (e->ring_first + 1) % e->ring_capacity;
    e->ring_n--;
    e->ring_bytes -= b->n;
    batch_leave(NULL, b);
}

static void ring_add(quire_kv_events *e, uint64_t number, batch *b)
{
    while (e->ring_n > 0 &&
           (e->ring_n == e->ring_capacity || e->ring_bytes + b->n > QUIRE_KV_EVENTS_REPLAY_BYTES)) {
        ring_drop_oldest(e);
    }
    atomic_fetch_add(&b->n_users, 1);
    e->ring[(e->ring_first + e->ring_n) % e->ring_capacity] = (kept){ number, b };
    e->ring_n++;
    e->ring_bytes += b->n;
}

static void replay_send(quire_kv_events *e, const zmq_msg_t *client, uint64_t number, batch *b)
{
    unsigned char bytes[NUMBER_BYTES];

    number_write(number, bytes);
    (void)zmq_send(e->router, zmq_msg_data((zmq_msg_t *)(uintptr_t)client), zmq_msg_size(client),
                   ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(e->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(e->router, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (b != NULL) {
        batch_send(e->router, b);
    } else {
        (void)zmq_send(e->router, "", 0, ZMQ_DONTWAIT);
    }
}

static void all_again(quire_kv_events *e)
{
    for (uint32_t i = 0; i < e->n_ranks; i++) {
        atomic_store(&e->ranks[i].wants_again, true);
    }
}

/* Batches before the oldest one are gone: the client gets everything again by the stream. */
static void again_ask(quire_kv_events *e)
{
    const uint64_t now_us = quire_clock_ns() / 1000u;

    if (now_us >= e->again_at_us) {
        e->again_at_us = now_us + e->again_us;
        all_again(e);
    }
}

static void replay(quire_kv_events *e, const zmq_msg_t *client, uint64_t from)
{
    const uint64_t oldest = e->next_number - e->ring_n;

    for (uint32_t i = 0; i < e->ring_n; i++) {
        const kept *k = &e->ring[(e->ring_first + i) % e->ring_capacity];

        if (k->number >= from) {
            replay_send(e, client, k->number, k->batch);
            atomic_fetch_add(&e->replayed_total, 1);
        }
    }
    replay_send(e, client, UINT64_MAX, NULL);
    atomic_fetch_add(&e->replays_total, 1);
    if (from < oldest) {
        again_ask(e);
    }
}

/* ---- publishing ---- */

static void publish_packed(quire_kv_events *e, const quire_kv_packed *packed)
{
    unsigned char bytes[NUMBER_BYTES];
    batch *b = e->packed.status == QUIRE_OK ? batch_new(&e->packed) : NULL;

    if (b == NULL) { /* out of memory: these events are lost, so all is told again */
        e->packed.status = QUIRE_OK;
        atomic_fetch_add(&e->lost_total, 1);
        atomic_store(&e->ranks[packed->rank].wants_again, true);
        return;
    }
    number_write(e->next_number, bytes);
    (void)zmq_send(e->pub, e->topic, strlen(e->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(e->pub, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    batch_send(e->pub, b);
    if (e->router != NULL) {
        ring_add(e, e->next_number, b);
    }
    e->next_number++;
    batch_leave(NULL, b);
    atomic_fetch_add(&e->stored_total, packed->stored);
    atomic_fetch_add(&e->removed_total, packed->removed);
    atomic_fetch_add(&e->cleared_total, packed->cleared);
    atomic_fetch_add(&e->batches_total, 1);
}

static double wall_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Returns whether there was anything. */
static bool publish_queued(quire_kv_events *e)
{
    const unsigned char *bytes;
    const size_t n = quire_kv_news_take(&e->news, &bytes);
    const double seconds = wall_seconds();

    for (size_t at = 0; at < n;) {
        quire_kv_packed packed;

        quire_bytes_clear(&e->packed);
        at = quire_kv_pack(&e->packed, bytes, n, at, QUIRE_KV_EVENTS_BATCH_PAGES, seconds, &packed);
        publish_packed(e, &packed);
    }
    return n > 0;
}

/* ---- the thread ---- */

/* Receive one message, and answer it if it is a request: frames [client, empty, number]. Returns
 * false if there was no message. */
static bool request_serve(quire_kv_events *e)
{
    zmq_msg_t client, frame;
    unsigned char number[NUMBER_BYTES];
    uint32_t n_frames = 1;
    bool is_right = true;

    (void)zmq_msg_init(&client);
    if (zmq_msg_recv(&client, e->router, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&client);
        return false;
    }
    for (bool has_more = zmq_msg_more(&client) != 0; has_more; n_frames++) {
        (void)zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, e->router, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&frame);
            break;
        }
        is_right = is_right && zmq_msg_size(&frame) == (n_frames == 2 ? NUMBER_BYTES : 0);
        if (is_right && n_frames == 2) {
            memcpy(number, zmq_msg_data(&frame), NUMBER_BYTES);
        }
        has_more = zmq_msg_more(&frame) != 0;
        (void)zmq_msg_close(&frame);
    }
    if (is_right && n_frames == 3) {
        (void)publish_queued(e); /* an answer has everything that was told before its request */
        replay(e, &client, number_read(number));
    }
    (void)zmq_msg_close(&client);
    return true;
}

static void *thread_main(void *ctx)
{
    quire_kv_events *e = ctx;
    zmq_pollitem_t items[2] = { { .fd = e->wake_fd, .events = ZMQ_POLLIN },
                                { .socket = e->router, .events = ZMQ_POLLIN } };
    uint64_t count;

    while (!atomic_load(&e->is_stopping)) {
        (void)zmq_poll(items, e->router != NULL ? 2 : 1, -1);
        (void)!read(e->wake_fd, &count, sizeof count);
        (void)publish_queued(e);
        while (e->router != NULL && request_serve(e)) {
        }
    }
    while (publish_queued(e)) {
    }
    return NULL;
}

static void thread_wake(const quire_kv_events *e)
{
    const uint64_t one = 1;

    (void)!write(e->wake_fd, &one, sizeof one);
}

/* ---- the watchers: the engine's threads ---- */

static bool put(const told *of, quire_kv_news_item item)
{
    quire_kv_events *e = of->events;
    bool was_empty, is_put;

    item.rank = of->rank;
    is_put = quire_kv_news_put(&e->news, &item, &was_empty);

    if (is_put && was_empty) {
        thread_wake(e);
    }
    if (!is_put && item.kind == QUIRE_KV_REMOVED) {
        atomic_fetch_add(&e->lost_total, 1);
    }
    return is_put;
}

static uint64_t hash_of(const quire_page_key *key)
{
    return number_read(key->bytes);
}

static bool told_cleared(void *ctx)
{
    return put(ctx, (quire_kv_news_item){ .kind = QUIRE_KV_CLEARED });
}

static bool told_stored(void *ctx, const quire_prefix_page *page)
{
    const quire_kv_news_item item = { .kind = QUIRE_KV_STORED,
                                      .hash = hash_of(page->key),
                                      .parent = hash_of(page->parent),
                                      .is_first = page->first_token == 0,
                                      .n_tokens = page->n_tokens,
                                      .tokens = page->tokens,
                                      .salt = page->salt,
                                      .salt_bytes = page->salt_bytes };

    return put(ctx, item);
}

static bool told_removed(void *ctx, const quire_page_key *key)
{
    return put(ctx, (quire_kv_news_item){ .kind = QUIRE_KV_REMOVED, .hash = hash_of(key) });
}

static bool told_again(void *ctx)
{
    told *of = ctx;

    return atomic_load(&of->wants_again) && atomic_exchange(&of->wants_again, false);
}

void quire_kv_events_watcher(quire_kv_events *events, uint32_t rank, quire_prefix_watcher *out)
{
    *out = (quire_prefix_watcher){ .cleared = told_cleared,
                                   .stored = told_stored,
                                   .removed = told_removed,
                                   .again = told_again,
                                   .ctx = &events->ranks[rank] };
}

/* ---- life ---- */

static void option_set(void *socket, int option, int value)
{
    (void)zmq_setsockopt(socket, option, &value, sizeof value);
}

/* Make a socket and bind it. bound[QUIRE_KV_EVENTS_ENDPOINT_MAX] gets the endpoint with its port.
 */
static int socket_open(const quire_kv_events *e, void **socket, int type, const char *name,
                       const char *endpoint, char *bound, quire_error *err)
{
    quire_kv_endpoint parts;
    size_t n = QUIRE_KV_EVENTS_ENDPOINT_MAX;

    QUIRE_TRY(quire_kv_endpoint_read(&parts, name, endpoint, err));
    *socket = zmq_socket(e->zmq, type);
    if (*socket == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: %s", name, zmq_strerror(zmq_errno()));
    }
    option_set(*socket, ZMQ_IPV6, parts.is_ipv6);
    option_set(*socket, ZMQ_LINGER, (int)QUIRE_KV_EVENTS_CLOSE_MS);
    option_set(*socket, ZMQ_RCVHWM, REQUESTS_MAX);
    option_set(*socket, ZMQ_SNDHWM,
               type == ZMQ_PUB ? (int)QUIRE_KV_EVENTS_HWM
                               : (int)(ANSWERS_MAX * e->ring_capacity + REQUESTS_MAX));
    if (type == ZMQ_ROUTER) {
        const int64_t most = REQUEST_MAX;

        (void)zmq_setsockopt(*socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    }
    if (zmq_bind(*socket, endpoint) != 0) {
        return quire_error_set(err, QUIRE_IO, "%s: %s: %s", name, endpoint,
                               zmq_errno() == EADDRINUSE ? "another program uses this address"
                                                         : zmq_strerror(zmq_errno()));
    }
    (void)zmq_getsockopt(*socket, ZMQ_LAST_ENDPOINT, bound, &n);
    return QUIRE_OK;
}

static int sockets_open(quire_kv_events *e, const quire_kv_events_opts *opts, quire_error *err)
{
    e->zmq = zmq_ctx_new();
    if (e->zmq == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "kv_events: %s", zmq_strerror(zmq_errno()));
    }
    QUIRE_TRY(socket_open(e, &e->pub, ZMQ_PUB, "kv_events", opts->endpoint, e->endpoint, err));
    if (opts->replay_endpoint == NULL) {
        return QUIRE_OK;
    }
    return socket_open(e, &e->router, ZMQ_ROUTER, "kv_events_replay", opts->replay_endpoint,
                       e->replay_endpoint, err);
}

static int memory_take(quire_kv_events *e, const quire_kv_events_opts *opts)
{
    QUIRE_TRY(quire_kv_news_init(&e->news, opts->queue_bytes != 0 ? opts->queue_bytes
                                                                  : QUIRE_KV_EVENTS_QUEUE_BYTES));
    e->ring_capacity =
        opts->replay_batches != 0 ? opts->replay_batches : QUIRE_KV_EVENTS_REPLAY_BATCHES;
    e->ring = calloc(e->ring_capacity, sizeof *e->ring);
    e->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    e->n_ranks = opts->n_ranks != 0 ? opts->n_ranks : 1;
    for (uint32_t i = 0; i < e->n_ranks; i++) {
        e->ranks[i].events = e;
        e->ranks[i].rank = (uint8_t)i;
    }
    return e->ring != NULL && e->wake_fd >= 0 ? QUIRE_OK : QUIRE_NOMEM;
}

int quire_kv_events_check(const quire_kv_events_opts *opts, quire_error *err)
{
    quire_kv_endpoint parts;

    if (opts->n_ranks > QUIRE_KV_EVENTS_RANKS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "kv_events: at most %u devices are possible",
                               QUIRE_KV_EVENTS_RANKS_MAX);
    }
    if (opts->topic != NULL && strlen(opts->topic) > QUIRE_KV_EVENTS_TOPIC_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "kv_events_topic: at most %u bytes are possible",
                               QUIRE_KV_EVENTS_TOPIC_MAX);
    }
    QUIRE_TRY(quire_kv_endpoint_read(&parts, "kv_events", opts->endpoint, err));
    return opts->replay_endpoint != NULL
               ? quire_kv_endpoint_read(&parts, "kv_events_replay", opts->replay_endpoint, err)
               : QUIRE_OK;
}

int quire_kv_events_start(quire_kv_events **out, const quire_kv_events_opts *opts, quire_error *err)
{
    quire_kv_events *e;
    int rc;

    *out = NULL;
    QUIRE_TRY(quire_kv_events_check(opts, err));
    e = calloc(1, sizeof *e);
    if (e == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "kv_events: no memory");
    }
    e->wake_fd = -1;
    e->again_us = opts->again_us != 0 ? opts->again_us : QUIRE_KV_EVENTS_AGAIN_US;
    if (opts->topic != NULL) {
        memcpy(e->topic, opts->topic, strlen(opts->topic));
    }
    rc = memory_take(e, opts);
    if (rc < 0) {
        (void)quire_error_set(err, rc, "kv_events: no memory");
    }
    if (rc == QUIRE_OK) {
        rc = sockets_open(e, opts, err);
    }
    if (rc == QUIRE_OK) {
        e->has_thread = pthread_create(&e->thread, NULL, thread_main, e) == 0;
        rc = e->has_thread ? QUIRE_OK
                           : quire_error_set(err, QUIRE_NOMEM, "kv_events: no thread can be begun");
    }
    if (rc < 0) {
        quire_kv_events_stop(e);
        return rc;
    }
    *out = e;
    return QUIRE_OK;
}

const char *quire_kv_events_endpoint(const quire_kv_events *events)
{
    return events->endpoint;
}

const char *quire_kv_events_replay_endpoint(const quire_kv_events *events)
{
    return events->replay_endpoint[0] != '\0' ? events->replay_endpoint : NULL;
}

void quire_kv_events_stats_get(const quire_kv_events *e, quire_kv_events_stats *out)
{
    *out = (quire_kv_events_stats){ 0 };
    if (e != NULL) {
        *out = (quire_kv_events_stats){ .stored_total = atomic_load(&e->stored_total),
                                        .removed_total = atomic_load(&e->removed_total),
                                        .cleared_total = atomic_load(&e->cleared_total),
                                        .batches_total = atomic_load(&e->batches_total),
                                        .lost_total = atomic_load(&e->lost_total),
                                        .replays_total = atomic_load(&e->replays_total),
                                        .replayed_total = atomic_load(&e->replayed_total) };
    }
}

/* The last events: nothing is cached any more. The queue may be full, so wait for the thread to
 * empty it, for a moment at most. */
static void say_end(quire_kv_events *e)
{
    const struct timespec ms = { .tv_nsec = 1000000 };
    uint32_t rank = 0;

    for (uint32_t i = 0; i < QUIRE_KV_EVENTS_CLOSE_MS && rank < e->n_ranks; i++) {
        while (rank < e->n_ranks && told_cleared(&e->ranks[rank])) {
            rank++;
        }
        if (rank < e->n_ranks) {
            (void)nanosleep(&ms, NULL);
        }
    }
    atomic_store(&e->is_stopping, true);
    thread_wake(e);
    (void)pthread_join(e->thread, NULL);
}

void quire_kv_events_stop(quire_kv_events *e)
{
    if (e == NULL) {
        return;
    }
    if (e->has_thread) {
        say_end(e);
    }
    if (e->pub != NULL) {
        (void)zmq_close(e->pub);
    }
    if (e->router != NULL) {
        (void)zmq_close(e->router);
    }
    if (e->zmq != NULL) {
        (void)zmq_ctx_term(e->zmq);
    }
    while (e->ring_n > 0) {
        ring_drop_oldest(e);
    }
    if (e->wake_fd >= 0) {
        (void)close(e->wake_fd);
    }
    free(e->ring);
    quire_bytes_fini(&e->packed);
    quire_kv_news_fini(&e->news);
    free(e);
}
