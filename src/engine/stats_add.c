/* stats_add.c - the sum of the figures of several devices.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/stats.h"

#include <string.h>

static void histogram_add(quire_histogram *sum, const quire_histogram *more)
{
    for (uint32_t i = 0; i <= sum->n_bounds; i++) {
        sum->counts[i] += more->counts[i];
    }
    sum->n += more->n;
    sum->sum += more->sum;
}

static void class_add(quire_class_stats *sum, const quire_class_stats *more)
{
    sum->requests_total += more->requests_total;
    sum->refused_total += more->refused_total;
    sum->finished_total += more->finished_total;
    sum->displaced_total += more->displaced_total;
    sum->parked_total += more->parked_total;
    sum->resumed_total += more->resumed_total;
    sum->preempted_total += more->preempted_total;
    sum->promoted_total += more->promoted_total;
    sum->turns_total += more->turns_total;
    sum->cuts_total += more->cuts_total;
    sum->steps_total += more->steps_total;
    sum->interrupted_total += more->interrupted_total;
    sum->late_steps_total += more->late_steps_total;
    sum->left_out_total += more->left_out_total;
    sum->prefill_rows_total += more->prefill_rows_total;
    sum->decode_rows_total += more->decode_rows_total;
    sum->waiting += more->waiting;
    sum->running += more->running;
    sum->parked += more->parked;
    sum->running_limit += more->running_limit;
    histogram_add(&sum->queue, &more->queue);
    histogram_add(&sum->ttft, &more->ttft);
    histogram_add(&sum->tpot, &more->tpot);
}

static void prefix_add(quire_prefix_stats *sum, const quire_prefix_stats *more)
{
    sum->query_tokens_total += more->query_tokens_total;
    sum->hit_tokens_total += more->hit_tokens_total;
    sum->lookups_total += more->lookups_total;
    sum->hits_total += more->hits_total;
    sum->published_tokens_total += more->published_tokens_total;
    sum->regret_tokens_total += more->regret_tokens_total;
    sum->nodes += more->nodes;
    sum->tokens += more->tokens;
    sum->evictable_bytes += more->evictable_bytes;
    sum->roots += more->roots;
    sum->refs += more->refs;
    sum->apart_bytes += more->apart_bytes;
    for (uint32_t i = 0; i < QUIRE_PREFIX_GONE_COUNT; i++) {
        sum->gone_nodes_total[i] += more->gone_nodes_total[i];
    }
    for (uint32_t i = 0; i < QUIRE_PREFIX_GONE_COUNT; i++) {
        sum->gone_tokens_total[i] += more->gone_tokens_total[i];
    }
}

/* Fragmentation is weighted by free bytes. */
static void cache_add(quire_cache_stats *sum, const quire_cache_stats *more)
{
    sum->budget_bytes += more->budget_bytes;
    sum->extent_bytes += more->extent_bytes;
    sum->live_bytes += more->live_bytes;
    sum->cached_bytes += more->cached_bytes;
    sum->tail_bytes += more->tail_bytes;
    sum->locked_bytes += more->locked_bytes;
    sum->slack_bytes += more->slack_bytes;
    sum->offloaded_bytes += more->offloaded_bytes;
    sum->charged_bytes += more->charged_bytes;
    sum->charged_peak_bytes += more->charged_peak_bytes;
    sum->extent_peak_bytes += more->extent_peak_bytes;
    sum->pages_live += more->pages_live;
    sum->pages_cached += more->pages_cached;
    sum->pages_free += more->pages_free;
    sum->pages_offloaded += more->pages_offloaded;
    sum->pages_peak += more->pages_peak;
    sum->allocs_total += more->allocs_total;
    sum->frees_total += more->frees_total;
    sum->alloc_failures_total += more->alloc_failures_total;
    sum->page_copies_total += more->page_copies_total;
    sum->page_moves_total += more->page_moves_total;
    sum->offloads_total += more->offloads_total;
    sum->onloads_total += more->onloads_total;
    sum->watermark_pages += more->watermark_pages;
    sum->seqs_open += more->seqs_open;
    sum->extents += more->extents;
    sum->extents_empty += more->extents_empty;
    if (sum->free_bytes + more->free_bytes > 0) {
        sum->external_fragmentation = (sum->external_fragmentation * (double)sum->free_bytes +
                                       more->external_fragmentation * (double)more->free_bytes) /
                                      (double)(sum->free_bytes + more->free_bytes);
    }
    sum->free_bytes += more->free_bytes;
}

static void precache_add(quire_precache_stats *sum, const quire_precache_stats *more)
{
    sum->runs_total += more->runs_total;
    sum->aborted_runs_total += more->aborted_runs_total;
    sum->tokens_total += more->tokens_total;
    sum->gain_tokens_total += more->gain_tokens_total;
    sum->waste_tokens_total += more->waste_tokens_total;
    sum->pauses_total += more->pauses_total;
    sum->is_on |= more->is_on;
}

static void memory_add(quire_memory_stats *sum, const quire_memory_stats *more)
{
    sum->pinned_budget_bytes += more->pinned_budget_bytes;
    sum->pinned_charged_bytes += more->pinned_charged_bytes;
    sum->pinned_cached_bytes += more->pinned_cached_bytes;
    sum->pinned_pin_bytes += more->pinned_pin_bytes;
    sum->pinned_need_bytes += more->pinned_need_bytes;
    sum->pinned_need_p99_bytes += more->pinned_need_p99_bytes;
    sum->pinned_grown_total += more->pinned_grown_total;
    sum->pinned_shrunk_total += more->pinned_shrunk_total;
    sum->spilled_bytes += more->spilled_bytes;
    sum->spilled_pages_total += more->spilled_pages_total;
    sum->dynamic_budget_bytes += more->dynamic_budget_bytes;
    sum->dynamic_charged_bytes += more->dynamic_charged_bytes;
    sum->pins += more->pins;
    sum->pins_computing += more->pins_computing;
    sum->pin_bytes += more->pin_bytes;
    sum->pins_created_total += more->pins_created_total;
    sum->pins_expired_total += more->pins_expired_total;
    sum->pins_dropped_total += more->pins_dropped_total;
    sum->pins_refused_total += more->pins_refused_total;
    precache_add(&sum->precache, &more->precache);
}

static void offload_file_add(quire_offload_file_stats *sum, const quire_offload_file_stats *more)
{
    sum->capacity_bytes += more->capacity_bytes;
    sum->used_bytes += more->used_bytes;
    sum->stripes_used += more->stripes_used;
    sum->stripes_max += more->stripes_max;
    sum->read_bytes_total += more->read_bytes_total;
    sum->written_bytes_total += more->written_bytes_total;
    sum->attended_bytes_total += more->attended_bytes_total;
    sum->chosen_total += more->chosen_total;
    sum->left_total += more->left_total;
    sum->read_us_total += more->read_us_total;
    sum->wait_us_total += more->wait_us_total;
    sum->failures_total += more->failures_total;
    sum->is_broken |= more->is_broken;
}

/* One failure in words: the first device's that has one. */
static void offload_add(quire_offload_stats *sum, const quire_offload_stats *more)
{
    sum->pages += more->pages;
    sum->pages_out_total += more->pages_out_total;
    sum->pages_back_total += more->pages_back_total;
    sum->buffer_bytes += more->buffer_bytes;
    offload_file_add(&sum->file, &more->file);
    sum->below.is_on |= more->below.is_on;
    offload_file_add(&sum->below.file, &more->below.file);
    sum->below.pages += more->below.pages;
    sum->below.pages_down_total += more->below.pages_down_total;
    sum->below.pages_up_total += more->below.pages_up_total;
    if (sum->trouble[0] == '\0') {
        memcpy(sum->trouble, more->trouble, sizeof(sum->trouble));
    }
}

static void overflow_add(quire_overflow_stats *sum, const quire_overflow_stats *more)
{
    sum->requests_total += more->requests_total;
    sum->lost_total += more->lost_total;
    sum->is_on |= more->is_on;
    offload_add(&sum->offload, &more->offload);
}

/* Figures of an owner's questions. */
static void questions_add(quire_store_stats *sum, const quire_store_stats *more)
{
    for (uint32_t i = 0; i < QUIRE_STORE_RESULT_COUNT; i++) {
        sum->results_total[i] += more->results_total[i];
    }
    sum->refused_total += more->refused_total;
    sum->gets_now += more->gets_now;
    sum->puts_now += more->puts_now;
}

/* Add the figures of a part's records, unless another device has added the common part already. The
 * counts of records that a store passed to the part are the device's own in any case. */
static void records_add(quire_store_stats *sum, const quire_store_stats *part)
{
    if (!part->is_common) {
        quire_store_stats_add(sum, part);
    } else {
        sum->passed_total += part->passed_total;
        sum->unpassed_total += part->unpassed_total;
    }
}

/* The worst state, and the first device's trouble that has it. */
static void state_add(quire_store_stats *sum, const quire_store_stats *more)
{
    if (more->state > sum->state || sum->trouble[0] == '\0') {
        memcpy(sum->trouble, more->trouble, sizeof sum->trouble);
    }
    sum->state = more->state > sum->state ? more->state : sum->state;
}

/* A store of several parts counts its own questions; one of one part is that part. */
static void store_add(quire_tier_stats *sum, const quire_tier_stats *more)
{
    if (more->n_parts > 1 || !more->store.is_common) {
        questions_add(&sum->store, &more->store);
    }
    state_add(&sum->store, &more->store);
    for (uint32_t i = 0; i < more->n_parts && i < sum->n_parts; i++) {
        const quire_store_stats *part = &more->parts[i].stats;

        if (!part->is_common) {
            questions_add(&sum->parts[i].stats, part);
        }
        state_add(&sum->parts[i].stats, part);
        records_add(&sum->parts[i].stats, part);
        records_add(&sum->store, part);
    }
}

static void tier_add(quire_tier_stats *sum, const quire_tier_stats *more)
{
    sum->fetching += more->fetching;
    sum->fetches_total += more->fetches_total;
    sum->ahead_total += more->ahead_total;
    sum->fetched_tokens_total += more->fetched_tokens_total;
    sum->fetched_bytes_total += more->fetched_bytes_total;
    sum->slow_total += more->slow_total;
    sum->skipped_total += more->skipped_total;
    sum->short_total += more->short_total;
    sum->copied_pages_total += more->copied_pages_total;
    sum->refused_pages_total += more->refused_pages_total;
    histogram_add(&sum->fetch, &more->fetch);
    store_add(sum, more);
}

void quire_engine_stats_add(quire_engine_stats *sum, const quire_engine_stats *more)
{
    sum->requests_total += more->requests_total;
    sum->adopted_total += more->adopted_total;
    sum->finished_stop_total += more->finished_stop_total;
    sum->finished_length_total += more->finished_length_total;
    sum->finished_cancelled_total += more->finished_cancelled_total;
    sum->finished_error_total += more->finished_error_total;
    sum->rejected_queue_full_total += more->rejected_queue_full_total;
    sum->rejected_invalid_total += more->rejected_invalid_total;
    sum->states_left_total += more->states_left_total;
    sum->states_used_total += more->states_used_total;
    sum->states_fetched_total += more->states_fetched_total;
    sum->preemptions_total += more->preemptions_total;
    sum->prefix_waits_total += more->prefix_waits_total;
    sum->requests_waiting += more->requests_waiting;
    sum->requests_prefilling += more->requests_prefilling;
    sum->requests_decoding += more->requests_decoding;
    sum->prompt_tokens_total += more->prompt_tokens_total;
    sum->cached_tokens_session_total += more->cached_tokens_session_total;
    sum->cached_tokens_prefix_total += more->cached_tokens_prefix_total;
    sum->computed_prompt_tokens_total += more->computed_prompt_tokens_total;
    sum->scored_prompt_tokens_total += more->scored_prompt_tokens_total;
    sum->recomputed_tokens_total += more->recomputed_tokens_total;
    sum->generated_tokens_total += more->generated_tokens_total;
    sum->context_shifts_total += more->context_shifts_total;
    sum->context_dropped_tokens_total += more->context_dropped_tokens_total;
    sum->context_condensings_whole_total += more->context_condensings_whole_total;
    sum->context_condensings_again_total += more->context_condensings_again_total;
    sum->condensings_total += more->condensings_total;
    sum->condensings_found_total += more->condensings_found_total;
    sum->condensings_again_total += more->condensings_again_total;
    sum->condensings_found_again_total += more->condensings_found_again_total;
    sum->condensed_tokens_total += more->condensed_tokens_total;
    sum->repeated_tokens_total += more->repeated_tokens_total;
    sum->attend_read_pages_total += more->attend_read_pages_total;
    sum->attend_left_pages_total += more->attend_left_pages_total;
    sum->condensed_texts += more->condensed_texts;
    sum->condensed_held_bytes += more->condensed_held_bytes;
    sum->condensed_text_bytes += more->condensed_text_bytes;
    sum->steps_total += more->steps_total;
    sum->step_rows_total += more->step_rows_total;
    sum->step_seconds_total += more->step_seconds_total;
    sum->views_seconds_total += more->views_seconds_total;
    sum->requests_parked += more->requests_parked;
    for (uint32_t i = 0; i < sum->n_classes; i++) {
        class_add(&sum->classes[i], &more->classes[i]);
    }
    histogram_add(&sum->ttft, &more->ttft);
    histogram_add(&sum->inter_token, &more->inter_token);
    histogram_add(&sum->queue, &more->queue);
    histogram_add(&sum->e2e, &more->e2e);
    prefix_add(&sum->prefix, &more->prefix);
    cache_add(&sum->cache, &more->cache);
    tier_add(&sum->tier, &more->tier);
    overflow_add(&sum->overflow, &more->overflow);
    memory_add(&sum->memory, &more->memory);
}

/* ---- without gauges ---- */

static void prefix_gauges_clear(quire_prefix_stats *s)
{
    s->nodes = 0;
    s->tokens = 0;
    s->evictable_bytes = 0;
    s->roots = 0;
    s->refs = 0;
    s->apart_bytes = 0;
}

static void cache_gauges_clear(quire_cache_stats *s)
{
    *s = (quire_cache_stats){ .allocs_total = s->allocs_total,
                              .frees_total = s->frees_total,
                              .alloc_failures_total = s->alloc_failures_total,
                              .page_copies_total = s->page_copies_total,
                              .page_moves_total = s->page_moves_total,
                              .offloads_total = s->offloads_total,
                              .onloads_total = s->onloads_total };
}

static void memory_gauges_clear(quire_memory_stats *s)
{
    s->pinned_budget_bytes = 0;
    s->pinned_charged_bytes = 0;
    s->pinned_cached_bytes = 0;
    s->pinned_pin_bytes = 0;
    s->pinned_need_bytes = 0;
    s->pinned_need_p99_bytes = 0;
    s->spilled_bytes = 0;
    s->dynamic_budget_bytes = 0;
    s->dynamic_charged_bytes = 0;
    s->pins = 0;
    s->pins_computing = 0;
    s->pin_bytes = 0;
}

static void offload_file_gauges_clear(quire_offload_file_stats *s)
{
    s->capacity_bytes = 0;
    s->used_bytes = 0;
    s->stripes_used = 0;
    s->stripes_max = 0;
}

void quire_engine_stats_gauges_clear(quire_engine_stats *stats)
{
    stats->condensed_texts = 0;
    stats->condensed_held_bytes = 0;
    stats->condensed_text_bytes = 0;
    for (uint32_t i = 0; i < stats->n_classes; i++) {
        stats->classes[i].running_limit = 0;
    }
    prefix_gauges_clear(&stats->prefix);
    cache_gauges_clear(&stats->cache);
    memory_gauges_clear(&stats->memory);
    stats->overflow.offload.pages = 0;
    stats->overflow.offload.buffer_bytes = 0;
    offload_file_gauges_clear(&stats->overflow.offload.file);
    offload_file_gauges_clear(&stats->overflow.offload.below.file);
    stats->overflow.offload.below.pages = 0;
}
