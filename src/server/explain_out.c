/* explain_out.c - explanations of cache misses as JSON.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"
#include "server/token_text.h"

static void write_token(quire_json_out *json, const char *key, const quire_model *model,
                        int32_t token)
{
    quire_token_text text;

    if (token < 0) {
        quire_json_null(json, key);
        return;
    }
    quire_token_text_get(model, token, &text);
    quire_json_object(json, key);
    quire_json_i64(json, "id", token);
    quire_json_text(json, "text", text.text, text.n);
    quire_json_object_end(json);
}

void quire_explanation_write(quire_json_out *json, const char *key, const quire_model *model,
                             const quire_explanation *explanation)
{
    const quire_explanation *e = explanation;

    quire_json_object(json, key);
    quire_json_string(json, "request_id", e->request_id);
    quire_json_u64(json, "prompt_tokens", e->n_prompt_tokens);
    quire_json_u64(json, "cached_tokens", e->n_cached_tokens);
    quire_json_u64(json, "same_tokens", e->n_same_tokens);
    quire_json_string(json, "end", quire_prefix_end_name(e->end));
    if (e->cut == QUIRE_PREFIX_CUT_NONE) {
        quire_json_null(json, "cut_by");
    } else {
        quire_json_string(json, "cut_by", quire_prefix_cut_name(e->cut));
    }
    write_token(json, "prompt_token", model, e->prompt_token);
    write_token(json, "cached_token", model, e->cached_token);
    quire_json_u64(json, "computed_tokens", e->n_computed_tokens);
    quire_json_number(json, "computed_ms", e->computed_ms);
    quire_json_bool(json, "waited_for_prefix", e->has_waited);
    if (e->end == QUIRE_PREFIX_END_EVICTED) {
        quire_json_object(json, "gone");
        quire_json_u64(json, "tokens", e->n_gone_tokens);
        quire_json_string(json, "reason", quire_prefix_gone_name(e->gone));
        quire_json_number(json, "ago_ms", (double)e->gone_ago_us / 1000.0);
        quire_json_number(json, "cost_ms", e->gone_ms);
        quire_json_object_end(json);
    } else {
        quire_json_null(json, "gone");
    }
    quire_json_object_end(json);
}
