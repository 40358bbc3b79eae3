/* metrics_device.c - the table of metrics of each device.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics_internal.h"

#define LABELS "`device`: its place in --device, from 0; `name`"

/* clang-format off */
static const quire_metric_family families[] = {
    { "quire_device_down", "gauge", "1 or 0", LABELS,
      "Whether the device was lost. Its requests went on elsewhere, if there was another one.",
      SAMPLES(DEVICE(NULL, VALUE_BOOL, is_lost)) },
    { "quire_device_requests", "gauge", "requests", LABELS,
      "Requests that wait or run on the device.", SAMPLES(DEVICE(NULL, VALUE_U32, requests)) },
    { "quire_device_requests_total", "counter", "requests", LABELS "; `what`: `all`, `adopted`",
      "Requests that the device took, and of these the ones that were taken over from a lost "
      "device.",
      SAMPLES(DEVICE("what=\"all\"", VALUE_U64, requests_total),
              DEVICE("what=\"adopted\"", VALUE_U64, adopted_total)) },
    { "quire_device_prompt_tokens_total", "counter", "tokens", LABELS "; `what`: `all`, `cached`",
      "Prompt tokens of the requests that began on the device, and those of them that were cached "
      "there.",
      SAMPLES(DEVICE("what=\"all\"", VALUE_U64, prompt_tokens_total),
              DEVICE("what=\"cached\"", VALUE_U64, cached_tokens_total)) },
    { "quire_device_generated_tokens_total", "counter", "tokens", LABELS,
      "Tokens that the device generated.",
      SAMPLES(DEVICE(NULL, VALUE_U64, generated_tokens_total)) },
    { "quire_device_fetched_tokens_total", "counter", "tokens", LABELS,
      "Tokens whose KV came from the store below memory to the device instead of being computed.",
      SAMPLES(DEVICE(NULL, VALUE_U64, fetched_tokens_total)) },
    { "quire_device_copied_pages_total", "counter", "pages", LABELS,
      "Pages of the device that the store below memory has taken.",
      SAMPLES(DEVICE(NULL, VALUE_U64, copied_pages_total)) },
    { "quire_device_kv_bytes", "gauge", "bytes", LABELS "; `what`: `budget`, `live`, `cached`",
      "KV on the device: the budget, pages that requests use, and pages that are cached only.",
      SAMPLES(DEVICE("what=\"budget\"", VALUE_U64, budget_bytes),
              DEVICE("what=\"live\"", VALUE_U64, live_bytes),
              DEVICE("what=\"cached\"", VALUE_U64, cached_bytes)) },
};
/* clang-format on */

const quire_metric_table quire_metrics_device = { families,
                                                  sizeof(families) / sizeof(families[0]) };
