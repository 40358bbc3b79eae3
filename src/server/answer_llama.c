/* answer_llama.c - answers of /completion and /infill, in llama-server's form.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include <string.h>

static void write_repeats(quire_json_out *json, const quire_sampler_opts *sampler)
{
    quire_json_u64(json, "repeat_last_n", sampler->penalty_tokens);
    quire_json_number(json, "repeat_penalty", (double)sampler->repeat_penalty);
    quire_json_number(json, "repetition_penalty", (double)sampler->repetition_penalty);
    quire_json_number(json, "presence_penalty", (double)sampler->presence_penalty);
    quire_json_number(json, "frequency_penalty", (double)sampler->frequency_penalty);
    quire_json_number(json, "dry_multiplier", (double)sampler->dry_multiplier);
    quire_json_number(json, "dry_base", (double)sampler->dry_base);
    quire_json_i64(json, "dry_allowed_length", sampler->dry_allowed_length);
    quire_json_u64(json, "dry_penalty_last_n", sampler->dry_tokens);
    quire_json_array(json, "dry_sequence_breakers");
    for (uint32_t i = 0; i < sampler->n_dry_breakers; i++) {
        quire_json_string(json, NULL, sampler->dry_breakers[i]);
    }
    quire_json_array_end(json);
}

void quire_answer_sampling_write(quire_json_out *json, const char *key,
                                 const quire_sampler_opts *sampler)
{
    quire_json_object(json, key);
    quire_json_number(json, "temperature", (double)sampler->temperature);
    quire_json_number(json, "dynatemp_range", (double)sampler->dynatemp_range);
    quire_json_number(json, "dynatemp_exponent", (double)sampler->dynatemp_exponent);
    quire_json_i64(json, "top_k", sampler->top_k);
    quire_json_number(json, "top_p", (double)sampler->top_p);
    quire_json_number(json, "min_p", (double)sampler->min_p);
    quire_json_number(json, "top_n_sigma", (double)sampler->top_n_sigma);
    quire_json_number(json, "xtc_probability", (double)sampler->xtc_probability);
    quire_json_number(json, "xtc_threshold", (double)sampler->xtc_threshold);
    quire_json_number(json, "typical_p", (double)sampler->typical_p);
    write_repeats(json, sampler);
    quire_json_u64(json, "mirostat", sampler->mirostat);
    quire_json_number(json, "mirostat_tau", (double)sampler->mirostat_tau);
    quire_json_number(json, "mirostat_eta", (double)sampler->mirostat_eta);
    quire_json_u64(json, "min_keep", sampler->min_keep);
    quire_json_array(json, "samplers");
    for (uint32_t i = 0; i < sampler->order.n; i++) {
        quire_json_string(json, NULL,
                          quire_sampler_kind_name((quire_sampler_kind)sampler->order.kinds[i]));
    }
    quire_json_array_end(json);
    quire_json_object_end(json);
}

/* Arrays of a choice's elements. */
enum {
    PROBABILITIES,
    TOKENS
};

static void take(quire_generation *gen, quire_choice *choice, const quire_request_token *token)
{
    if (gen->params.has_logprobs) {
        quire_answer_logprob_add(gen, &choice->logprobs[PROBABILITIES], token, true);
    }
    if (gen->returns_tokens) {
        quire_json_out json = { &choice->logprobs[TOKENS], choice->logprobs[TOKENS].n > 0 };

        quire_json_i64(&json, NULL, token->token);
    }
}

/* Of the tokens since the last event. */
static void write_tokens(quire_json_out *json, quire_choice *choice)
{
    quire_answer_elements_write(json, "tokens", &choice->logprobs[TOKENS]);
}

static void write_probabilities(quire_json_out *json, const quire_generation *gen,
                                quire_choice *choice)
{
    if (gen->params.has_logprobs) {
        quire_answer_elements_write(json, "completion_probabilities",
                                    &choice->logprobs[PROBABILITIES]);
    }
}

static const char *stop_type(const quire_request_result *result)
{
    if (result->finish != QUIRE_FINISH_STOP) {
        return "limit";
    }
    return result->stop_index >= 0 ? "word" : "eos";
}

/* The last event of an answer, or its whole reply. */
static void write_end(quire_json_out *json, const quire_generation *gen, quire_choice *choice,
                      const quire_bytes *text)
{
    const quire_request_result *result = choice->result;
    const int32_t stop = result->stop_index;

    quire_json_object(json, NULL);
    quire_json_u64(json, "index", (uint64_t)(choice - gen->choices));
    quire_json_text(json, "content", text->data, text->n);
    write_tokens(json, choice);
    quire_json_i64(json, "id_slot", -1);
    quire_json_bool(json, "stop", true);
    quire_json_string(json, "model", gen->http->server->opts.model_name);
    quire_json_u64(json, "tokens_predicted", result->n_generated_tokens);
    quire_json_u64(json, "tokens_evaluated", result->n_prompt_tokens);
    quire_answer_sampling_write(json, "generation_settings", &gen->params.sampler);
    quire_json_text(json, "prompt", choice->prompt->text.data, choice->prompt->text.n);
    quire_json_bool(json, "has_new_line", text->n > 0 && memchr(text->data, '\n', text->n) != NULL);
    quire_json_bool(json, "truncated", choice->result->n_dropped_tokens > 0);
    quire_json_string(json, "stop_type", stop_type(result));
    quire_json_string(json, "stopping_word", stop >= 0 ? gen->stops[stop] : "");
    quire_json_u64(json, "tokens_cached",
                   (uint64_t)result->n_prompt_tokens + result->n_generated_tokens);
    quire_answer_timings_write(json, result);
    write_probabilities(json, gen, choice);
    quire_json_object_end(json);
}

static void write_whole(quire_bytes *out, quire_generation *gen)
{
    quire_json_out json = { out, false };

    if (gen->n_choices > 1) {
        quire_json_array(&json, NULL);
    }
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        write_end(&json, gen, &gen->choices[i], &gen->choices[i].text);
        if (gen->choices[i].text.status < 0) {
            out->status = gen->choices[i].text.status;
        }
    }
    if (gen->n_choices > 1) {
        quire_json_array_end(&json);
    }
}

static void add_text(quire_generation *gen, quire_choice *choice, const char *text, size_t n)
{
    quire_json_out json = { &gen->pending, false };

    quire_event_begin(gen, NULL);
    quire_json_object(&json, NULL);
    quire_json_u64(&json, "index", (uint64_t)(choice - gen->choices));
    quire_json_text(&json, "content", text, n);
    write_tokens(&json, choice);
    quire_json_bool(&json, "stop", false);
    quire_json_i64(&json, "id_slot", -1);
    quire_json_u64(&json, "tokens_predicted", choice->n_taken);
    quire_json_u64(&json, "tokens_evaluated", choice->prompt->n_tokens);
    write_probabilities(&json, gen, choice);
    quire_json_object_end(&json);
    quire_event_end(gen);
}

static void end_choice(quire_generation *gen, quire_choice *choice)
{
    const quire_bytes none = { 0 };
    quire_json_out json = { &gen->pending, false };

    quire_event_begin(gen, NULL);
    write_end(&json, gen, choice, &none);
    quire_event_end(gen);
}

/* The last answer's end is the end of the stream. */
static void end_all(quire_generation *gen)
{
    (void)gen;
}

static void add_error(quire_generation *gen)
{
    quire_event_begin(gen, NULL);
    quire_api_error_write(&gen->pending, &gen->http->err, QUIRE_ERROR_OPENAI);
    quire_event_end(gen);
}

const quire_answer_form quire_form_llama = { .keeps_prompts = true,
                                             .is_llama = true,
                                             .take = take,
                                             .id_prefix = "cmpl",
                                             .whole = write_whole,
                                             .text = add_text,
                                             .choice_end = end_choice,
                                             .end = end_all,
                                             .error = add_error };
