/* unsupported.c - see unsupported.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/unsupported.h"

#include <string.h>

#define IN_CHAT   QUIRE_UNSUPPORTED_IN_CHAT
#define IN_TEXT   QUIRE_UNSUPPORTED_IN_TEXT
#define IN_OPENAI QUIRE_UNSUPPORTED_IN_OPENAI
#define NOTHING   QUIRE_FIELD_NOTHING

#define TOOLS      "use `tools` and `tool_choice`"
#define TEXT_ONLY  "only chats have tools, thoughts and a template"
#define CONSTRAINT "use `grammar`, or a field of [structured output](#structured-output)"
#define FROM_START "a grammar holds from the first token to the last"
#define ENDS       "an answer ends by `max_tokens`, `stop`, `stop_token_ids` or the model's own end"
#define SAMPLING   "tokens are chosen by the fields of [samplers](#samplers)"
#define SEARCH     "answers are sampled one token at a time, `n` of them"
#define TOKEN_SETS "use `logit_bias`, -100 for a token that must not be chosen"
#define TEMPLATE   "the prompt is made of the messages by the server's chat template"
#define PROMPT     "a prompt is text or tokens, used as it is"
#define INFILL     "use `/infill`, where it is part of the prompt"
#define TRUNCATION "use `context_overflow` and `context_keep`"
#define THOUGHTS   "use `enable_thinking`, `reasoning_effort` and `reasoning_budget`"
#define MEDIA      "requests and answers are text"
#define REPLY      "replies do not hold this"
#define INNER      "the server's own chat format says it"
#define BUDGET_END "a budget of thoughts ends by the template's own tag"

/* clang-format off */
const quire_unsupported quire_unsupported_list[] = {
    { "tools", NOTHING, TEXT_ONLY, IN_TEXT },
    { "tool_choice", "\"none\", \"auto\"", TEXT_ONLY, IN_TEXT },
    { "parallel_tool_calls", "true", TEXT_ONLY, IN_TEXT },
    { "functions", NOTHING, TOOLS, 0 },
    { "function_call", "\"none\", \"auto\"", TOOLS, 0 },

    { "guided_grammar", NOTHING, CONSTRAINT, 0 },
    { "guided_decoding_backend", NOTHING, CONSTRAINT, 0 },
    { "guided_whitespace_pattern", NOTHING, CONSTRAINT, 0 },
    { "structural_tag", NOTHING, CONSTRAINT, 0 },
    { "ebnf", NOTHING, CONSTRAINT, 0 },
    { "grammar_lazy", "false", FROM_START, 0 },
    { "grammar_triggers", NOTHING, FROM_START, 0 },
    { "grammar_type", NOTHING, FROM_START, 0 },

    { "include_stop_str_in_output", "false", ENDS, 0 },
    { "no_stop_trim", "false", ENDS, 0 },
    { "stop_regex", NOTHING, ENDS, 0 },
    { "n_indent", "0", ENDS, 0 },
    { "t_max_prompt_ms", "0, -1", ENDS, 0 },
    { "t_max_predict_ms", "0, -1", ENDS, 0 },

    { "tfs_z", "1", SAMPLING, 0 },
    { "adaptive_target", "-1", SAMPLING, 0 },
    { "adaptive_decay", "0.9", SAMPLING, 0 },
    { "logits_processors", NOTHING, SAMPLING, 0 },
    { "custom_logit_processor", NOTHING, SAMPLING, 0 },
    { "custom_params", NOTHING, SAMPLING, 0 },
    { "vllm_xargs", NOTHING, SAMPLING, 0 },
    { "repetition_detection", NOTHING, SAMPLING, 0 },
    { "top_a", "0", SAMPLING, 0 },
    { "backend_sampling", "false", SAMPLING, 0 },
    { "use_beam_search", "false", SEARCH, 0 },
    { "length_penalty", "1", SEARCH, 0 },
    { "early_stopping", "false", SEARCH, 0 },
    { "allowed_token_ids", NOTHING, TOKEN_SETS, 0 },
    { "bad_words", NOTHING, TOKEN_SETS, 0 },
    { "lora", NOTHING, "there are no adapters", 0 },
    { "lora_path", NOTHING, "there are no adapters", 0 },

    { "chat_template", NOTHING, TEMPLATE, 0 },
    { "chat_template_kwargs", NOTHING, TEXT_ONLY, IN_TEXT },
    { "documents", NOTHING, TEMPLATE, 0 },
    { "generation_prompt", NOTHING, TEMPLATE, 0 },
    { "chat_format", "0", INNER, 0 },
    { "chat_parser", NOTHING, INNER, 0 },
    { "parse_tool_calls", "true", INNER, 0 },
    { "preserved_tokens", NOTHING, INNER, 0 },
    { "message_delimiters", NOTHING, INNER, 0 },
    { "add_generation_prompt", "true", TEXT_ONLY, IN_TEXT },
    { "continue_final_message", "false", TEXT_ONLY, IN_TEXT },
    { "add_special_tokens", "false", TEMPLATE, IN_CHAT },
    { "add_special_tokens", "true", PROMPT, IN_TEXT },
    { "prompt_embeds", NOTHING, PROMPT, 0 },
    { "input_ids", NOTHING, PROMPT, 0 },
    { "input_embeds", NOTHING, PROMPT, 0 },
    { "suffix", NOTHING, INFILL, 0 },
    { "input_prefix", NOTHING, INFILL, 0 },
    { "input_suffix", NOTHING, INFILL, 0 },
    { "input_extra", NOTHING, INFILL, 0 },
    { "echo", "false", "the answer of a chat does not repeat the prompt", IN_CHAT },
    { "truncate_prompt_tokens", "", TRUNCATION, 0 },
    { "n_keep", "0", TRUNCATION, 0 },
    { "n_discard", "0", TRUNCATION, 0 },
    { "n_cache_reuse", "0", "the cache is used where a prompt's beginning is the same", 0 },
    { "kv_transfer_params", NOTHING, "one server computes both prompt and answer", 0 },
    { "session_params", NOTHING, "use `session_id`", 0 },

    { "reasoning_effort", "", TEXT_ONLY, IN_TEXT },
    { "reasoning_format", "\"none\"", TEXT_ONLY, IN_TEXT },
    { "reasoning_budget", "-1", TEXT_ONLY, IN_TEXT },
    { "reasoning_budget_tokens", "-1", TEXT_ONLY, IN_TEXT },
    { "thinking_budget", "-1", TEXT_ONLY, IN_TEXT },
    { "thinking_budget_tokens", "-1", TEXT_ONLY, IN_TEXT },
    { "thinking_token_budget", "-1", TEXT_ONLY, IN_TEXT },
    { "enable_thinking", "", TEXT_ONLY, IN_TEXT },
    { "reasoning", NOTHING, THOUGHTS, 0 },
    { "include_reasoning", "true", THOUGHTS, 0 },
    { "thinking", NOTHING, THOUGHTS, 0 },
    { "thinking_forced_open", "false", THOUGHTS, 0 },
    { "separate_reasoning", "true", "use `reasoning_format`", 0 },
    { "stream_reasoning", "true", "use `reasoning_format`", 0 },
    { "reasoning_control", "false", BUDGET_END, 0 },
    { "reasoning_budget_message", NOTHING, BUDGET_END, 0 },
    { "reasoning_budget_start_tag", NOTHING, BUDGET_END, 0 },
    { "reasoning_budget_end_tag", NOTHING, BUDGET_END, 0 },
    { "reasoning_budget_end_tags", NOTHING, BUDGET_END, 0 },
    { "verbosity", "\"medium\"", "a system message can say how long an answer shall be", 0 },

    { "modalities", "[], [\"text\"]", MEDIA, 0 },
    { "audio", NOTHING, MEDIA, 0 },
    { "image_data", NOTHING, MEDIA, 0 },
    { "multimodal_data", NOTHING, MEDIA, 0 },
    { "mm_processor_kwargs", NOTHING, MEDIA, 0 },
    { "media_io_kwargs", NOTHING, MEDIA, 0 },
    { "prediction", NOTHING, "an answer is not compared with an expected one", 0 },
    /* {} switches the search on. */
    { "web_search_options", "false", "there is no web search", 0 },
    { "store", "false", "only `/v1/responses` stores answers", 0 },

    { "n_probs", "0", "use `logprobs`", IN_OPENAI },
    { "post_sampling_probs", "false", "use `logprobs`", 0 },
    { "logprob_token_ids", NOTHING, REPLY, 0 },
    { "return_tokens", "false", REPLY, IN_OPENAI },
    { "return_token_ids", "false", REPLY, 0 },
    { "return_tokens_as_token_ids", "false", REPLY, 0 },
    { "return_progress", "false", REPLY, 0 },
    { "return_hidden_states", "false", REPLY, 0 },
    { "return_routed_experts", "false", REPLY, 0 },
    { "top_logprobs_num", "0", REPLY, 0 },
    { "logprob_start_len", "-1", REPLY, 0 },
    { "verbose", "false", REPLY, 0 },
    { "detokenize", "true", REPLY, 0 },
    { "response_fields", NOTHING, REPLY, 0 },
    { "request_id", NOTHING, "the server chooses the ids of its replies", 0 },
    { "rid", NOTHING, "the server chooses the ids of its replies", 0 },
    { "sse_ping_interval", "-1", "a stream has the events of its answer alone", 0 },
    { "skip_special_tokens", "true", "special tokens are never text of an answer", 0 },
    { "spaces_between_special_tokens", "true", "special tokens are never text of an answer", 0 },
};
/* clang-format on */
const size_t quire_unsupported_n = sizeof quire_unsupported_list / sizeof quire_unsupported_list[0];

static bool applies(const quire_unsupported *row, quire_unsupported_kind kind)
{
    switch (row->in) {
    case QUIRE_UNSUPPORTED_IN_CHAT:
        return kind == QUIRE_UNSUPPORTED_OF_CHAT;
    case QUIRE_UNSUPPORTED_IN_TEXT:
        return kind != QUIRE_UNSUPPORTED_OF_CHAT;
    case QUIRE_UNSUPPORTED_IN_OPENAI:
        return kind != QUIRE_UNSUPPORTED_OF_LLAMA;
    case QUIRE_UNSUPPORTED_ALWAYS:
        break;
    }
    return true;
}

void quire_unsupported_refuse(quire_fields *fields, quire_unsupported_kind kind)
{
    for (size_t i = 0; i < quire_unsupported_n; i++) {
        const quire_unsupported *row = &quire_unsupported_list[i];

        if (applies(row, kind)) {
            quire_field_refuse(fields, row->name, row->accepted, row->why);
        }
    }
}

/* ---- documentation ---- */

#define LINE_COLUMNS 100

/* Document a field: its kind of completions and its accepted values. */
static void document_field(quire_bytes *out, const quire_unsupported *row)
{
    static const char *const kinds[] = { "", " in chats", " in text completions",
                                         " outside `/completion` and `/infill`" };

    (void)quire_bytes_addf(out, " `%s`%s", row->name, kinds[row->in]);
    if (strcmp(row->accepted, NOTHING) != 0) {
        (void)quire_bytes_addf(out, " (`%s`)", row->accepted[0] != '\0' ? row->accepted : "null");
    }
}

/* One entry of the list, in lines. */
static void document_entry(quire_bytes *out, const char *words)
{
    size_t column = 0;

    while (*words != '\0') {
        const size_t n = strcspn(words, " ");

        if (column > 0 && column + 1 + n > LINE_COLUMNS) {
            (void)quire_bytes_addf(out, "\n ");
            column = 1;
        }
        (void)quire_bytes_addf(out, "%s%.*s", column > 0 ? " " : "", (int)n, words);
        column += n + (column > 0);
        words += n;
        words += strspn(words, " ");
    }
    (void)quire_bytes_addf(out, "\n");
}

int quire_unsupported_document(quire_bytes *out)
{
    quire_bytes entry = { 0 };

    for (size_t i = 0; i < quire_unsupported_n; i++) {
        const quire_unsupported *row = &quire_unsupported_list[i];
        const bool is_first = i == 0 || strcmp(row[-1].why, row->why) != 0;
        const bool is_last = i + 1 == quire_unsupported_n || strcmp(row[1].why, row->why) != 0;

        (void)quire_bytes_addf(&entry, "%s", is_first ? "-" : ",");
        document_field(&entry, row);
        if (is_last) {
            (void)quire_bytes_addf(&entry, ": %s.", row->why);
            document_entry(out, entry.data != NULL ? entry.data : "");
            quire_bytes_clear(&entry);
        }
    }
    out->status = entry.status < 0 ? entry.status : out->status;
    quire_bytes_fini(&entry);
    return out->status;
}
