/* test_kv_events.c - a subscriber of the events rebuilds exactly the set of cached pages.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "server/kv_events/kv_events.h"
#include "server/tenant.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "rounds.h"
#include "seed.h"

#define N_CTX    1024u /* the budget: 16 pages */
#define PAGE     64u
#define N_TEXTS  9u
#define N_PROMPT 290u
#define SET_MAX  64u
#define NUMBER   8u
#define TOPIC    "kv@test"

/* ---- a set of hashes ---- */

typedef struct hash_set {
    uint64_t hashes[SET_MAX];
    uint32_t n;
} hash_set;

static uint32_t set_find(const hash_set *set, uint64_t hash)
{
    uint32_t i = 0;

    while (i < set->n && set->hashes[i] != hash) {
        i++;
    }
    return i;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static bool is_same_set(hash_set a, hash_set b)
{
    qsort(a.hashes, a.n, sizeof a.hashes[0], compare);
    qsort(b.hashes, b.n, sizeof b.hashes[0], compare);
    return a.n == b.n && memcmp(a.hashes, b.hashes, a.n * sizeof a.hashes[0]) == 0;
}

/* ---- a subscriber ---- */

typedef struct peer {
    uint64_t rank; /* the device of the events that it follows */
    void *zmq;
    void *sub;
    void *dealer; /* asks for replays */
    uint64_t next;
    bool is_exact; /* it has seen an AllBlocksCleared */
    hash_set set;
    char extra_key[32]; /* the first one of the last BlockStored that had any */
    uint32_t n_cleared;
    uint32_t n_streamed; /* batches that came by the stream, in order */
} peer;

static void *socket_connect(peer *p, int type, const char *endpoint)
{
    const int wait_ms = 10, linger = 0;
    void *socket = zmq_socket(p->zmq, type);

    assert_non_null(socket);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    if (type == ZMQ_SUB) {
        assert_int_equal(zmq_setsockopt(socket, ZMQ_SUBSCRIBE, TOPIC, strlen(TOPIC)), 0);
    }
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static void peer_open(peer *p, const quire_kv_events *events)
{
    *p = (peer){ .zmq = zmq_ctx_new() };
    p->sub = socket_connect(p, ZMQ_SUB, quire_kv_events_endpoint(events));
    p->dealer = socket_connect(p, ZMQ_DEALER, quire_kv_events_replay_endpoint(events));
}

static void peer_close(peer *p)
{
    assert_int_equal(zmq_close(p->sub), 0);
    assert_int_equal(zmq_close(p->dealer), 0);
    assert_int_equal(zmq_ctx_term(p->zmq), 0);
}

static bool is_text(const msgpack_object *o, const char *text)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
           memcmp(o->via.str.ptr, text, o->via.str.size) == 0;
}

static const msgpack_object_array *array_of(const msgpack_object *o)
{
    assert_int_equal(o->type, MSGPACK_OBJECT_ARRAY);
    return &o->via.array;
}

static void apply_stored(peer *p, const msgpack_object_array *event)
{
    const msgpack_object_array *hashes = array_of(&event->ptr[1]);

    assert_true(event->size == 8 || event->size == 9);
    assert_int_equal(event->ptr[4].via.u64, PAGE);
    assert_int_equal(array_of(&event->ptr[3])->size, hashes->size * PAGE);
    if (event->ptr[2].type != MSGPACK_OBJECT_NIL && p->is_exact) {
        assert_true(set_find(&p->set, event->ptr[2].via.u64) < p->set.n);
    }
    for (uint32_t i = 0; i < hashes->size; i++) {
        const uint64_t hash = hashes->ptr[i].via.u64;

        if (p->is_exact) {
            assert_int_equal(set_find(&p->set, hash), p->set.n);
            assert_true(p->set.n < SET_MAX);
            p->set.hashes[p->set.n++] = hash;
        }
    }
    if (event->size == 9) {
        const msgpack_object *first = &array_of(&array_of(&event->ptr[8])->ptr[0])->ptr[0];

        assert_int_equal(array_of(&event->ptr[8])->size, hashes->size);
        assert_true(first->via.str.size < sizeof p->extra_key);
        memcpy(p->extra_key, first->via.str.ptr, first->via.str.size);
    }
}

static void apply_removed(peer *p, const msgpack_object_array *event)
{
    const msgpack_object_array *hashes = array_of(&event->ptr[1]);

    assert_int_equal(event->size, 3);
    for (uint32_t i = 0; i < hashes->size && p->is_exact; i++) {
        const uint32_t at = set_find(&p->set, hashes->ptr[i].via.u64);

        assert_true(at < p->set.n);
        p->set.hashes[at] = p->set.hashes[--p->set.n];
    }
}

static void apply_batch(peer *p, const void *data, size_t n)
{
    const msgpack_object_array *batch, *events;
    msgpack_unpacked unpacked;

    msgpack_unpacked_init(&unpacked);
    assert_int_equal(msgpack_unpack_next(&unpacked, data, n, NULL), MSGPACK_UNPACK_SUCCESS);
    batch = array_of(&unpacked.data);
    assert_int_equal(batch->size, 3);
    assert_true(batch->ptr[0].via.f64 > 1e9);
    events = array_of(&batch->ptr[1]);
    for (uint32_t i = 0; i < events->size && batch->ptr[2].via.u64 == p->rank; i++) {
        const msgpack_object_array *event = array_of(&events->ptr[i]);

        if (is_text(&event->ptr[0], "BlockStored")) {
            apply_stored(p, event);
        } else if (is_text(&event->ptr[0], "BlockRemoved")) {
            apply_removed(p, event);
        } else {
            assert_true(is_text(&event->ptr[0], "AllBlocksCleared"));
            p->set.n = 0;
            p->is_exact = true;
            p->n_cleared++;
        }
    }
    msgpack_unpacked_destroy(&unpacked);
}

/* Receive one frame of at most n_max bytes. Returns its length; -1: none came for a moment. */
static int frame_get(void *socket, void *data, size_t n_max)
{
    const int n = zmq_recv(socket, data, n_max, 0);

    assert_true(n <= (int)n_max);
    return n;
}

static uint64_t number_of(const unsigned char bytes[NUMBER])
{
    uint64_t number = 0;

    for (uint32_t i = 0; i < NUMBER; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

static char frame[1 << 20];

/* Ask for the batches from number `from` on; applies those that are new. */
static void replay(peer *p, uint64_t from)
{
    unsigned char number[NUMBER] = { 0 };
    char empty[1];

    for (uint32_t i = 0; i < NUMBER; i++) {
        number[i] = (unsigned char)(from >> 8 * (NUMBER - 1 - i));
    }
    (void)zmq_send(p->dealer, "", 0, ZMQ_SNDMORE);
    assert_int_equal(zmq_send(p->dealer, number, NUMBER, 0), (int)NUMBER);
    for (;;) {
        uint64_t seq;
        int n;

        while ((n = frame_get(p->dealer, empty, sizeof empty)) < 0) {
        }
        assert_int_equal(n, 0);
        assert_int_equal(frame_get(p->dealer, number, NUMBER), (int)NUMBER);
        seq = number_of(number);
        n = frame_get(p->dealer, frame, sizeof frame);
        if (seq == UINT64_MAX) {
            assert_int_equal(n, 0);
            return;
        }
        if (seq >= p->next) {
            if (seq > p->next) {
                p->is_exact = false; /* until the next AllBlocksCleared */
            }
            apply_batch(p, frame, (size_t)n);
            p->next = seq + 1;
        }
    }
}

/* Take one message of the stream, and ask for missed batches. Returns false when no message came.
 */
static bool listen_once(peer *p)
{
    unsigned char number[NUMBER];
    uint64_t seq;
    int n = frame_get(p->sub, frame, sizeof frame);

    if (n < 0) {
        return false;
    }
    assert_int_equal(n, strlen(TOPIC));
    assert_memory_equal(frame, TOPIC, (size_t)n);
    assert_int_equal(frame_get(p->sub, number, NUMBER), (int)NUMBER);
    seq = number_of(number);
    n = frame_get(p->sub, frame, sizeof frame);
    assert_true(n > 0);
    if (seq > p->next) {
        replay(p, p->next);
    } else if (seq == p->next) {
        apply_batch(p, frame, (size_t)n);
        p->next++;
        p->n_streamed++;
    }
    return true;
}

/* ---- pages of the engine ---- */

typedef struct kit {
    quire_kv_events *events;
    engine_bench b;
    int32_t texts[N_TEXTS][N_PROMPT];
} kit;

static int add_node(void *ctx, const quire_prefix_node_info *node)
{
    hash_set *set = ctx;

    if (node->n_tokens == PAGE) {
        assert_true(set->n < SET_MAX);
        set->hashes[set->n++] = number_of(node->key.bytes);
    }
    return 0;
}

/* On the engine's thread: tell the publisher the pages that it does not know yet, and list all
 * pages. */
static void list_nodes(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const struct timespec ms = { .tv_nsec = 1000000 };

    (void)cache;
    while (quire_prefix_watch_some(tree, UINT32_MAX)) {
        (void)nanosleep(&ms, NULL); /* the queue is full */
    }
    (void)quire_prefix_visit(tree, add_node, ctx);
}

/* Listen to everything that was told by now. */
static void catch_up(peer *p, const kit *k, hash_set *want)
{
    quire_kv_events_stats stats;

    want->n = 0;
    assert_int_equal(engine_call(k->b.engine, list_nodes, want), QUIRE_OK);
    replay(p, UINT64_MAX); /* no batch; but all that was told has been published */
    quire_kv_events_stats_get(k->events, &stats);
    while (p->next < stats.batches_total) {
        if (!listen_once(p)) {
            replay(p, p->next); /* batches from before the connection */
        }
    }
}

/* The subscriber has exactly the engine's pages. If it missed batches that are not kept, asking for
 * them makes the tree tell everything again. */
static void assert_rebuilt(peer *p, const kit *k)
{
    hash_set want;
    uint32_t n_tries = 0, n_cleared;

    do { /* a telling that began behind the list of pages may be half done */
        n_cleared = p->n_cleared;
        catch_up(p, k, &want);
        assert_true(++n_tries < 100);
    } while (!p->is_exact || n_cleared != p->n_cleared);
    assert_true(is_same_set(p->set, want));
}

/* ---- publisher, engine, requests ---- */

static void open_kit(kit *k, quire_kv_events_opts opts)
{
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    engine.precache.is_off = true; /* nothing comes or goes while the engine is idle */
    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = "tcp://127.0.0.1:0";
    opts.topic = TOPIC;
    if (quire_kv_events_start(&k->events, &opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    quire_kv_events_watcher(k->events, 0, &engine.watcher);
    k->b = bench_tiny(&engine, &runtime);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        tokens_make(k->texts[i], N_PROMPT, i / 2); /* pairs begin alike */
        tokens_make(k->texts[i] + 2 * PAGE, N_PROMPT - 2 * PAGE, 100 + i);
    }
}

static void close_kit(kit *k)
{
    bench_close(&k->b);
    quire_kv_events_stop(k->events);
}

static void run(kit *k, uint32_t text, uint32_t n_tokens)
{
    const quire_request_params params = params_greedy(k->texts[text], n_tokens, 1);

    finish_as(submit(&k->b, &params), QUIRE_FINISH_LENGTH);
}

static void forget_all(kit *k)
{
    const quire_invalidate what = { .what = QUIRE_INVALIDATE_ALL };
    quire_prefix_dropped dropped;

    assert_int_equal(quire_engine_invalidate(k->b.engine, &what, &dropped), QUIRE_OK);
}

static quire_kv_events_stats stats_of(const kit *k)
{
    quire_kv_events_stats stats;

    quire_kv_events_stats_get(k->events, &stats);
    return stats;
}

/* ---- tests ---- */

/* Requests, evictions and invalidations: the subscriber follows. */
static void test_follows(void **state)
{
    quire_rng rng = test_rng(3);
    kit k;
    peer p;

    (void)state;
    open_kit(&k, (quire_kv_events_opts){ 0 });
    peer_open(&p, k.events);
    for (uint32_t i = 0; i < TEST_ROUNDS(60u, 20u); i++) {
        run(&k, quire_rng_below(&rng, N_TEXTS), 1 + quire_rng_below(&rng, N_PROMPT));
        if (i % 16 == 15) {
            forget_all(&k);
        }
        if (i % 4 == 0 || i % 16 == 15) {
            assert_rebuilt(&p, &k);
        }
    }
    assert_rebuilt(&p, &k);
    assert_int_equal(p.n_cleared, 1); /* only the beginning: nothing was lost */
    assert_true(p.n_streamed > 0);
    assert_true(stats_of(&k).removed_total > 0);
    assert_true(stats_of(&k).stored_total > stats_of(&k).removed_total);
    assert_true(stats_now(k.b.engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    peer_close(&p);
    close_kit(&k);
}

/* A subscriber that comes late gets all batches again, from number 0. */
static void test_replay(void **state)
{
    kit k;
    peer p, late;
    uint64_t n_replayed;

    (void)state;
    open_kit(&k, (quire_kv_events_opts){ 0 });
    peer_open(&p, k.events);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        run(&k, i, N_PROMPT);
    }
    assert_rebuilt(&p, &k);
    peer_open(&late, k.events);
    n_replayed = stats_of(&k).replayed_total;
    replay(&late, 0);
    assert_int_equal(late.next, p.next);
    assert_true(is_same_set(late.set, p.set));
    assert_int_equal(stats_of(&k).replayed_total - n_replayed, stats_of(&k).batches_total);
    replay(&late, p.next); /* nothing yet: the end at once */
    assert_int_equal(stats_of(&k).replayed_total - n_replayed, stats_of(&k).batches_total);
    peer_close(&late);
    peer_close(&p);
    close_kit(&k);
}

/* A subscriber that comes later than the batches kept is told everything again by the stream. */
static void test_replay_too_late(void **state)
{
    kit k;
    peer p, late;

    (void)state;
    open_kit(&k, (quire_kv_events_opts){ .replay_batches = 2, .again_us = 1 });
    peer_open(&p, k.events);
    for (uint32_t i = 0; i < 4; i++) {
        run(&k, i, N_PROMPT);
        assert_rebuilt(&p, &k);
    }
    peer_open(&late, k.events);
    replay(&late, 0);
    assert_false(late.is_exact);
    assert_rebuilt(&late, &k);
    peer_close(&late);
    peer_close(&p);
    close_kit(&k);
}

/* The queue is too small for a text's pages at once: lost events are told again. */
static void test_overflow(void **state)
{
    kit k;
    peer p;

    (void)state;
    open_kit(&k, (quire_kv_events_opts){ .queue_bytes = 320 }); /* one page */
    peer_open(&p, k.events);
    for (uint32_t i = 0; i < 200 && stats_of(&k).lost_total == 0; i++) {
        for (uint32_t j = 0; j < N_TEXTS; j++) {
            run(&k, j, N_PROMPT);
        }
        assert_rebuilt(&p, &k);
        forget_all(&k); /* the removed pages come at once */
    }
    assert_rebuilt(&p, &k);
    assert_true(p.n_cleared > 1);
    peer_close(&p);
    close_kit(&k);
}

/* The events of a tenant's text name the tenant. The end of the server clears all. */
static void test_tenant_and_end(void **state)
{
    kit k;
    peer p;
    quire_tenant_salt salt;
    quire_request_params params;

    (void)state;
    open_kit(&k, (quire_kv_events_opts){ 0 });
    peer_open(&p, k.events);
    run(&k, 0, N_PROMPT);
    assert_rebuilt(&p, &k);
    assert_string_equal(p.extra_key, "");
    quire_tenant_salt_make(&salt, "tenant-a", "");
    params = params_greedy(k.texts[0], N_PROMPT, 1);
    params.tenant = salt.bytes;
    params.tenant_bytes = salt.n;
    finish_as(submit(&k.b, &params), QUIRE_FINISH_LENGTH);
    assert_rebuilt(&p, &k);
    assert_string_equal(p.extra_key, "tenant-a");
    assert_true(p.set.n > 0);
    close_kit(&k);
    while (p.set.n > 0) {
        (void)listen_once(&p);
    }
    assert_int_equal(p.n_cleared, 2);
    peer_close(&p);
}

/* Messages that are no requests for a replay are ignored, and do not stop later requests. */
static void test_wrong_requests(void **state)
{
    kit k;
    peer p;

    (void)state;
    open_kit(&k, (quire_kv_events_opts){ 0 });
    peer_open(&p, k.events);
    (void)zmq_send(p.dealer, "x", 1, 0);
    (void)zmq_send(p.dealer, "", 0, ZMQ_SNDMORE);
    (void)zmq_send(p.dealer, "1234567", 7, 0);
    for (uint32_t i = 0; i < 5; i++) {
        (void)zmq_send(p.dealer, "12345678", 8, i < 4 ? ZMQ_SNDMORE : 0);
    }
    run(&k, 0, N_PROMPT);
    assert_rebuilt(&p, &k);
    replay(&p, 0);
    assert_int_equal(stats_of(&k).replays_total >= 1, 1);
    peer_close(&p);
    close_kit(&k);
}

/* Tell of a page of a device, without an engine. */
static bool tell_page(const quire_prefix_watcher *watcher, unsigned char number)
{
    static const int32_t tokens[PAGE];
    const quire_page_key key = { { number } }, root = { { 0 } };
    const quire_prefix_page page = {
        .key = &key, .parent = &root, .n_tokens = PAGE, .tokens = tokens
    };

    return watcher->stored(watcher->ctx, &page);
}

static void listen_all(peer *p, uint64_t n_batches)
{
    while (p->next < n_batches) {
        if (!listen_once(p)) {
            replay(p, p->next);
        }
    }
}

/* Pages of two devices, some of the same text: a subscriber tells them apart by the rank. Clearing
 * and retelling are published for each device. */
static void test_ranks(void **state)
{
    quire_kv_events_opts opts = { .endpoint = "tcp://127.0.0.1:0",
                                  .replay_endpoint = "tcp://127.0.0.1:0",
                                  .topic = TOPIC,
                                  .n_ranks = 2,
                                  .replay_batches = 8,
                                  .again_us = 1 };
    quire_prefix_watcher watchers[2];
    quire_error err = QUIRE_ERROR_INIT;
    quire_kv_events_stats stats;
    kit k;
    peer peers[2];

    (void)state;
    assert_int_equal(quire_kv_events_start(&k.events, &opts, &err), QUIRE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        quire_kv_events_watcher(k.events, i, &watchers[i]);
        peer_open(&peers[i], k.events);
        peers[i].rank = i;
        assert_true(watchers[i].cleared(watchers[i].ctx));
        replay(&peers[i], UINT64_MAX);
    }
    assert_true(tell_page(&watchers[0], 1));
    assert_true(tell_page(&watchers[1], 1));
    replay(&peers[0], UINT64_MAX);
    assert_true(tell_page(&watchers[1], 2));
    assert_true(watchers[0].removed(watchers[0].ctx, &(quire_page_key){ { 1 } }));
    replay(&peers[0], UINT64_MAX);
    for (uint32_t i = 0; i < 2; i++) {
        listen_all(&peers[i], stats_of(&k).batches_total);
        assert_true(peers[i].is_exact);
        assert_int_equal(peers[i].set.n, i == 0 ? 0 : 2);
    }
    assert_false(watchers[0].again(watchers[0].ctx));
    while (stats_of(&k).batches_total <= opts.replay_batches) {
        assert_true(tell_page(&watchers[1], (unsigned char)(10 + stats_of(&k).batches_total)));
        replay(&peers[1], UINT64_MAX);
    }
    replay(&peers[0], 0); /* more than is kept */
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(watchers[i].again(watchers[i].ctx));
        assert_false(watchers[i].again(watchers[i].ctx));
    }
    quire_kv_events_stop(k.events);
    while (peers[1].set.n > 0) {
        (void)listen_once(&peers[1]);
    }
    quire_kv_events_stats_get(NULL, &stats);
    assert_int_equal(stats.batches_total, 0);
    for (uint32_t i = 0; i < 2; i++) {
        peer_close(&peers[i]);
    }
    opts.n_ranks = QUIRE_KV_EVENTS_RANKS_MAX + 1;
    assert_int_equal(quire_kv_events_start(&k.events, &opts, &err), QUIRE_INVAL);
    assert_string_equal(err.message, "kv_events: at most 8 devices are possible");
}

static void test_address_in_use(void **state)
{
    quire_kv_events_opts opts = { .endpoint = "tcp://127.0.0.1:0" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_kv_events *first, *second;

    (void)state;
    assert_int_equal(quire_kv_events_start(&first, &opts, &err), QUIRE_OK);
    assert_null(quire_kv_events_replay_endpoint(first));
    opts.endpoint = quire_kv_events_endpoint(first);
    assert_int_equal(quire_kv_events_start(&second, &opts, &err), QUIRE_IO);
    assert_null(second);
    assert_non_null(strstr(err.message, "another program uses this address"));
    assert_non_null(strstr(err.message, opts.endpoint));
    opts.replay_endpoint = opts.endpoint;
    opts.endpoint = "tcp://127.0.0.1:0";
    assert_int_equal(quire_kv_events_start(&second, &opts, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "kv_events_replay: "));
    quire_kv_events_stop(first);
    quire_kv_events_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follows),         cmocka_unit_test(test_replay),
        cmocka_unit_test(test_replay_too_late), cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_tenant_and_end),  cmocka_unit_test(test_wrong_requests),
        cmocka_unit_test(test_address_in_use),  cmocka_unit_test(test_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
