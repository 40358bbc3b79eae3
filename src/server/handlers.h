/* handlers.h - handlers of the paths; for src/server only.
 *
 * Each handler queues a reply on http and returns QUIRE_OK, or fills http->err and returns an
 * error. http->engine is set unless the route says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_HANDLERS_H
#define QUIRE_SERVER_HANDLERS_H

#include "server/http.h"

/* api_models.c */
int quire_api_dashboard(quire_http *http);
int quire_api_chat_page(quire_http *http);
int quire_api_health(quire_http *http);
int quire_api_models(quire_http *http);
int quire_api_model(quire_http *http);
int quire_api_props(quire_http *http);
int quire_api_slots(quire_http *http);
int quire_api_metrics(quire_http *http);

/* api_tokenize.c */
int quire_api_tokenize(quire_http *http);
int quire_api_detokenize(quire_http *http);

/* api_template.c */
int quire_api_template(quire_http *http);

/* api_chat.c, api_completions.c */
int quire_api_chat(quire_http *http);
int quire_api_chat_count(quire_http *http);
int quire_api_completions(quire_http *http);
int quire_api_completion(quire_http *http); /* llama-server's */

/* api_infill.c */
int quire_api_infill(quire_http *http);

/* api_messages.c */
int quire_api_messages(quire_http *http);
int quire_api_messages_count(quire_http *http);

/* api_responses.c */
int quire_api_responses(quire_http *http);
int quire_api_responses_count(quire_http *http);
int quire_api_response_get(quire_http *http);
int quire_api_response_delete(quire_http *http);

/* api_embeddings.c */
#define QUIRE_EMBEDDING_INPUTS_MAX 2048u /* of one request */
int quire_api_embeddings(quire_http *http);

/* api_sessions.c */
int quire_api_sessions_list(quire_http *http);
int quire_api_session_get(quire_http *http);
int quire_api_session_delete(quire_http *http);
int quire_api_sessions_delete(quire_http *http);

/* api_cache.c */
int quire_api_cache_invalidate(quire_http *http);
int quire_api_cache_stats(quire_http *http);
/* api_stats.c: the member "overflow" of an object, requests larger than the budget, if there is a
 * place for their pages. */
void quire_api_overflow_write(quire_json_out *json, const quire_overflow_stats *stats);
int quire_api_explain(quire_http *http);
int quire_api_explain_last(quire_http *http);

/* api_pins.c */
int quire_api_pin_create(quire_http *http);
int quire_api_pins_list(quire_http *http);
int quire_api_pin_get(quire_http *http);
int quire_api_pin_renew(quire_http *http);
int quire_api_pin_delete(quire_http *http);

/* api_memory.c */
int quire_api_regions(quire_http *http);
int quire_api_events(quire_http *http);
int quire_api_what_if(quire_http *http);

/* api_tuning.c */
int quire_api_tuning_get(quire_http *http);
int quire_api_tuning_run(quire_http *http);

/* api_pages.c */
int quire_api_pages(quire_http *http);

#endif /* QUIRE_SERVER_HANDLERS_H */
