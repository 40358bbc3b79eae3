/* figures.c - see figures.h: the engine's thread counts in its own struct and publishes copies.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/loop_object.h"

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof(a)[0]))

/* Bounds in seconds, similar to vLLM's metrics: users often monitor both. */
static const double ttft_bounds[] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,
                                      0.75,  1.0,   2.5,  5.0,  7.5,  10.0, 20.0, 40.0, 80.0 };
static const double token_bounds[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                       0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5 };
static const double request_bounds[] = { 0.001, 0.01, 0.05, 0.1,   0.3,   0.5,  0.8,  1.0,
                                         1.5,   2.0,  2.5,  5.0,   10.0,  15.0, 20.0, 30.0,
                                         40.0,  50.0, 60.0, 120.0, 240.0, 480.0 };

void quire_figures_init(quire_figures *figures, uint32_t n_classes)
{
    quire_engine_stats *stats = &figures->now;

    quire_histogram_init(&stats->ttft, ttft_bounds, COUNT(ttft_bounds));
    quire_histogram_init(&stats->inter_token, token_bounds, COUNT(token_bounds));
    quire_histogram_init(&stats->queue, request_bounds, COUNT(request_bounds));
    quire_histogram_init(&stats->e2e, request_bounds, COUNT(request_bounds));
    quire_histogram_init(&stats->tier.fetch, request_bounds, COUNT(request_bounds));
    quire_cost_init(&stats->cost);
    stats->n_classes = n_classes;
    for (uint32_t i = 0; i < n_classes; i++) {
        quire_class_stats *c = &stats->classes[i];

        quire_histogram_init(&c->queue, request_bounds, COUNT(request_bounds));
        quire_histogram_init(&c->ttft, ttft_bounds, COUNT(ttft_bounds));
        quire_histogram_init(&c->tpot, token_bounds, COUNT(token_bounds));
    }
}

void quire_loop_stats_publish(quire_loop *loop)
{
    quire_engine_stats *s = &loop->figures.now;

    s->requests_waiting = loop->set.n_queued - loop->set.n_parked;
    s->requests_parked = loop->set.n_parked;
    for (uint32_t i = 0; i < s->n_classes; i++) {
        s->classes[i].running = loop->set.n_running_of[i];
        s->classes[i].parked = loop->set.n_parked_of[i];
        s->classes[i].waiting = loop->set.queues[i].n - loop->set.n_parked_of[i];
        s->classes[i].running_limit = loop->set.limits[i];
    }
    s->requests_prefilling = 0;
    s->requests_decoding = 0;
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        if (loop->set.running[i]->state == QUIRE_REQUEST_DECODE) {
            s->requests_decoding++;
        } else {
            s->requests_prefilling++;
        }
    }
    quire_loop_condensed_stats_fill(loop);
    quire_loop_lanes_stats_fill(loop);
    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->figures.shared = *s;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

void quire_loop_stats_get(quire_loop *loop, quire_engine_stats *out)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    *out = loop->figures.shared;
    out->requests_total = loop->inbox.n_arrivals;
    out->adopted_total = loop->inbox.n_adopted;
    out->rejected_queue_full_total = loop->inbox.n_queue_full;
    for (uint32_t i = 0; i < out->n_classes; i++) {
        out->classes[i].requests_total = loop->inbox.n_arrivals_of[i];
        out->classes[i].refused_total = loop->inbox.n_queue_full_of[i];
    }
    for (const quire_queue_link *l = loop->inbox.requests.first; l != NULL; l = l->next) {
        out->classes[((const quire_request *)(const void *)l)->class_index].waiting++;
    }
    out->rejected_invalid_total = loop->inbox.n_invalid;
    out->requests_waiting += loop->inbox.requests.n;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    quire_prefix_stats_get(loop->tree, &out->prefix);
    quire_cache_stats_get(loop->cache, &out->cache);
    out->sessions = quire_sessions_count(loop->sessions);
    out->session_evictions_total = quire_sessions_evictions_total(loop->sessions);
    out->uptime_us = quire_loop_now_us(loop) - loop->created_us;
}
