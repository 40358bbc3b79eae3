/* chat_jinja.cpp - chat formats by llama.cpp's common library, up to the prompt: see
 * chat_internal.h.
 *
 * All calls of the library run in guard_run(), which turns exceptions into statuses.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_jinja.h"

#include <common.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <llama.h>

namespace
{

/* Brackets in brackets of a template: the library's parser recurses a dozen functions for each. */
constexpr int BRACKETS_MAX = 256;

constexpr const char *TEMPLATE = "chat template";

const char *text_or_empty(const char *text)
{
    return text != nullptr ? text : "";
}

void check_nesting(const std::string &text)
{
    int depth = 0;

    for (const char c : text) {
        depth += c == '(' || c == '[' || c == '{';
        depth -= (c == ')' || c == ']' || c == '}') && depth > 0;
        if (depth > BRACKETS_MAX) {
            throw quire::failure{ QUIRE_LIMIT, "brackets are nested too deeply" };
        }
    }
}

/* A template's parse errors, in words: the library's own loading loses them. */
void check_syntax(const std::string &text)
{
    jinja::lexer lexer;
    const auto tokens = lexer.tokenize(text);

    (void)jinja::parse_from_tokens(tokens);
}

} // namespace

struct quire_chat_jinja {
    common_chat_templates_ptr templates;
    std::string text;
    quire_chat_abilities abilities;
    mutable quire::parser_cache parsers;
};

bool quire_chat_jinja_exists(void)
{
    return true;
}

/* ---- asking ---- */

namespace
{

std::vector<common_chat_msg> messages_of(const quire_chat_ask *ask)
{
    std::vector<common_chat_msg> messages;

    messages.reserve(ask->n_messages);
    for (size_t i = 0; i < ask->n_messages; i++) {
        const quire_chat_message *from = &ask->messages[i];

        if (from->extra != nullptr) {
            common_json object = common_json::parse(from->extra);
            common_json list = common_json::array();

            object["role"] = from->role;
            object["content"] = from->content;
            list.push_back(object);
            messages.push_back(common_chat_msgs_parse_oaicompat(list).at(0));
        } else {
            common_chat_msg message;

            message.role = from->role;
            message.content = from->content;
            messages.push_back(std::move(message));
        }
    }
    return messages;
}

/* The tools of a text; with a name, the one tool of that name. */
std::vector<common_chat_tool> tools_of(const char *text, const char *name)
{
    std::vector<common_chat_tool> tools, named;

    if (text_or_empty(text)[0] == '\0') {
        return tools;
    }
    tools = common_chat_tools_parse_oaicompat(common_json::parse(text));
    if (tools.size() > QUIRE_CHAT_TOOLS_MAX) {
        throw quire::failure{ QUIRE_LIMIT, "more tools than QUIRE_CHAT_TOOLS_MAX" };
    }
    if (name == nullptr) {
        return tools;
    }
    for (const auto &tool : tools) {
        if (tool.name == name) {
            named.push_back(tool);
        }
    }
    if (named.empty()) {
        throw quire::failure{ QUIRE_INVAL, "tool_choice names a function that is not in tools" };
    }
    return named;
}

/* The tools of which grammar and reader are made. */
std::vector<common_chat_tool> plain_of(const quire_chat_ask *ask, const char *name)
{
    return tools_of(ask->plain_tools != nullptr ? ask->plain_tools : ask->tools, name);
}

void add_switches(const quire_chat_ask *ask, common_chat_templates_inputs *in)
{
    in->reasoning_format = ask->reasoning == QUIRE_REASONING_NONE ? COMMON_REASONING_FORMAT_NONE
                                                                  : COMMON_REASONING_FORMAT_AUTO;
    in->enable_thinking = ask->thinking != QUIRE_CHAT_OFF;
    if (text_or_empty(ask->kwargs)[0] != '\0') {
        const common_json kwargs = common_json::parse(ask->kwargs);

        for (const auto &item : kwargs.items()) {
            in->chat_template_kwargs[item.key()] = item.value().dump();
        }
        const auto thinking = in->chat_template_kwargs.find("enable_thinking");

        if (thinking != in->chat_template_kwargs.end() && ask->thinking == QUIRE_CHAT_DEFAULT) {
            in->enable_thinking = thinking->second != "false";
        }
    }
    if (ask->thinking != QUIRE_CHAT_DEFAULT) {
        in->chat_template_kwargs.erase("enable_thinking");
    }
    if (text_or_empty(ask->reasoning_effort)[0] != '\0') {
        if (std::strcmp(ask->reasoning_effort, "none") == 0) {
            in->enable_thinking = false;
            in->chat_template_kwargs.erase("enable_thinking");
        } else {
            in->chat_template_kwargs["reasoning_effort"] =
                common_json(std::string(ask->reasoning_effort)).dump();
        }
    }
}

common_chat_templates_inputs inputs_of(const quire_chat_jinja *jinja, const quire_chat_ask *ask)
{
    common_chat_templates_inputs in;

    in.messages = messages_of(ask);
    in.tools = tools_of(ask->tools, nullptr);
    in.tool_choice = ask->tool_choice == QUIRE_TOOL_CHOICE_NONE ? COMMON_CHAT_TOOL_CHOICE_NONE
                                                                : COMMON_CHAT_TOOL_CHOICE_AUTO;
    in.parallel_tool_calls = ask->parallel_calls == QUIRE_CHAT_DEFAULT
                                 ? jinja->abilities.has_parallel
                                 : ask->parallel_calls == QUIRE_CHAT_ON;
    in.json_schema = text_or_empty(ask->schema);
    in.add_generation_prompt = !ask->omits_generation_prompt && !ask->continues_final;
    in.continue_final_message =
        ask->continues_final ? COMMON_CHAT_CONTINUATION_AUTO : COMMON_CHAT_CONTINUATION_NONE;
    add_switches(ask, &in);
    return in;
}

/* Whether the last of thoughts that begin in the text does not end there. */
bool is_within_thoughts(const common_chat_params &params)
{
    const std::string &text = params.generation_prompt;
    size_t begin, end = std::string::npos;

    if (params.thinking_start_tag.empty() || params.thinking_end_tags.empty()) {
        return false;
    }
    begin = text.rfind(params.thinking_start_tag);
    for (const auto &tag : params.thinking_end_tags) {
        const size_t at = text.rfind(tag);

        end = at != std::string::npos && (end == std::string::npos || at > end) ? at : end;
    }
    return begin != std::string::npos && (end == std::string::npos || begin > end);
}

void add_arrays(quire_chat_parser *p)
{
    for (const auto &trigger : p->params.grammar_triggers) {
        p->trigger_texts.push_back(trigger.value);
    }
    for (size_t i = 0; i < p->trigger_texts.size(); i++) {
        p->triggers.push_back(
            { p->trigger_texts[i].c_str(),
              p->params.grammar_triggers[i].type != COMMON_GRAMMAR_TRIGGER_TYPE_WORD });
    }
    for (const auto &stop : p->params.additional_stops) {
        if (!stop.empty()) {
            p->stops.push_back(stop.c_str());
        }
    }
    for (const auto &token : p->params.preserved_tokens) {
        p->shown_tokens.push_back(token.c_str());
    }
}

/* Make a call required. The library's grammars for that allow any text before the call; so the
 * grammar of voluntary calls is taken where it begins at a fixed text, and this text is demanded.
 */
void require_call(const quire_chat_jinja *jinja, const quire_chat_ask *ask,
                  common_chat_templates_inputs *in, quire_chat_parser *p)
{
    const char *name =
        ask->tool_choice == QUIRE_TOOL_CHOICE_NAMED ? text_or_empty(ask->tool_name) : nullptr;
    const std::vector<common_chat_tool> plain = plain_of(ask, name);
    /* The prompt describes all tools, as in the turns around; the answer may call one of them. */
    std::string prompt = p->params.prompt;

    if (name != nullptr) {
        in->tools = tools_of(ask->tools, name);
        jinja->parsers.apply(jinja->templates.get(), *in, plain, p);
    }
    if (p->params.grammar_lazy && !p->params.grammar_triggers.empty() &&
        p->params.grammar_triggers[0].type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
        p->must_begin = p->params.grammar_triggers[0].value;
    } else {
        in->tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        jinja->parsers.apply(jinja->templates.get(), *in, plain, p);
    }
    if (p->built->grammar.empty()) {
        throw quire::failure{ QUIRE_UNSUPP, "it has no form for calls of tools, so none can be "
                                            "demanded (tool_choice)" };
    }
    p->params.prompt = std::move(prompt);
}

void apply(const quire_chat_jinja *jinja, const quire_chat_ask *ask, quire_chat_parser *p)
{
    common_chat_templates_inputs in = inputs_of(jinja, ask);
    const std::vector<common_chat_tool> plain = plain_of(ask, nullptr);

    if (ask->is_text_only) {
        quire::apply_text(jinja->templates.get(), in, plain, p);
    } else {
        jinja->parsers.apply(jinja->templates.get(), in, plain, p);
    }
    if (ask->tool_choice >= QUIRE_TOOL_CHOICE_REQUIRED && !ask->is_text_only) {
        require_call(jinja, ask, &in, p);
    }
    if (p->params.prompt.size() > QUIRE_CHAT_PROMPT_BYTES_MAX) {
        throw quire::failure{ QUIRE_LIMIT, "it writes more than QUIRE_CHAT_PROMPT_BYTES_MAX" };
    }
    p->reading = common_chat_parser_params(p->params);
    p->reading.reasoning_format = in.reasoning_format;
    p->reading.parse_tool_calls = in.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    if (ask->omits_generation_prompt) {
        p->reading.generation_prompt.clear();
    }
    if (ask->continues_final && !ask->is_text_only) {
        p->before = quire::parse_answer(p, "", true);
    }
    p->has_short_ids = jinja->text.find("[TOOL_CALLS]") != std::string::npos;
    p->begins_thinking = is_within_thoughts(p->params);
    add_arrays(p);
}

} // namespace

int quire_chat_jinja_apply(const quire_chat_jinja *jinja, const quire_chat_ask *ask,
                           quire_chat_parser **parser, quire_error *err)
{
    std::unique_ptr<quire_chat_parser> made;
    int rc;

    *parser = nullptr;
    rc = quire::guard_run(
        TEMPLATE,
        [&]() {
            made = std::make_unique<quire_chat_parser>();
            apply(jinja, ask, made.get());
        },
        err);
    if (rc < 0) {
        return rc;
    }
    *parser = made.release();
    return QUIRE_OK;
}

void quire_chat_parser_rules(const quire_chat_parser *p, quire_chat_rules *out)
{
    const common_chat_params &from = p->params;
    const bool thinks = !from.thinking_start_tag.empty() && !from.thinking_end_tags.empty();

    *out = {};
    out->text = { from.prompt.c_str(), from.prompt.size() };
    out->grammar = p->built->grammar.empty() ? nullptr : p->built->grammar.c_str();
    out->is_grammar_lazy = from.grammar_lazy;
    out->triggers = p->triggers.data();
    out->n_triggers = (uint32_t)p->triggers.size();
    out->must_begin = p->must_begin.empty() ? nullptr : p->must_begin.c_str();
    out->stops = p->stops.data();
    out->n_stops = (uint32_t)p->stops.size();
    out->shown_tokens = p->shown_tokens.data();
    out->n_shown_tokens = (uint32_t)p->shown_tokens.size();
    out->thinking_begin = thinks ? from.thinking_start_tag.c_str() : nullptr;
    out->thinking_end = thinks ? from.thinking_end_tags[0].c_str() : nullptr;
    out->begins_thinking = p->begins_thinking;
    out->answer_begin = from.generation_prompt.c_str();
}

quire_chat_parser *quire_chat_parser_hold(quire_chat_parser *parser)
{
    parser->n_holders.fetch_add(1);
    return parser;
}

void quire_chat_parser_release(quire_chat_parser *parser)
{
    if (parser != nullptr && parser->n_holders.fetch_sub(1) == 1) {
        delete parser;
    }
}

/* ---- loading ---- */

namespace
{

/* Whether a mark in the thoughts of an earlier answer is in the prompt. */
bool keeps_thoughts(const quire_chat_jinja *jinja)
{
    common_chat_templates_inputs in;
    common_chat_msg user, answer;

    user.role = "user";
    user.content = "1";
    answer.role = "assistant";
    answer.content = "2";
    answer.reasoning_content = "quire-thought";
    in.messages = { user, answer, user };
    in.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
    return common_chat_templates_apply(jinja->templates.get(), in).prompt.find("quire-thought") !=
           std::string::npos;
}

void load(quire_chat_jinja *jinja, const quire_model *model, const char *text)
{
    const struct llama_model *llama = quire_model_llama(model);
    const char *own = text != nullptr ? text : llama_model_chat_template(llama, nullptr);

    jinja->text = text_or_empty(own);
    check_nesting(jinja->text);
    check_syntax(jinja->text);
    jinja->templates = common_chat_templates_init(llama, text != nullptr ? text : "");

    auto caps = common_chat_templates_get_caps(jinja->templates.get());
    common_chat_templates_inputs in;
    common_chat_msg message;

    jinja->abilities.has_jinja = true;
    jinja->abilities.has_tools = caps["supports_tools"] || caps["supports_tool_calls"];
    jinja->abilities.has_parallel = caps["supports_parallel_tool_calls"];
    message.role = "user";
    message.content = "?";
    in.messages = { message };
    (void)common_chat_templates_apply(jinja->templates.get(), in);
    jinja->abilities.has_thinking =
        common_chat_templates_support_enable_thinking(jinja->templates.get());
    jinja->abilities.keeps_thoughts = jinja->abilities.has_thinking && keeps_thoughts(jinja);
}

} // namespace

int quire_chat_jinja_create(quire_chat_jinja **out, const quire_model *model, const char *text,
                            quire_error *err)
{
    const char *own = text != nullptr ? text : quire_model_chat_template(model);
    quire_chat_jinja *jinja = nullptr;
    int rc;

    *out = nullptr;
    if (std::strlen(text_or_empty(own)) > QUIRE_CHAT_TEMPLATE_BYTES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "chat template: more than %zu bytes",
                               QUIRE_CHAT_TEMPLATE_BYTES_MAX);
    }
    rc = quire::guard_run(
        TEMPLATE,
        [&]() {
            jinja = new quire_chat_jinja();
            load(jinja, model, text);
        },
        err);
    if (rc < 0) {
        quire_chat_jinja_destroy(jinja);
        return rc;
    }
    *out = jinja;
    return QUIRE_OK;
}

void quire_chat_jinja_destroy(quire_chat_jinja *jinja)
{
    /* A deeply nested template is freed by recursion, which needs the stack of the guard. */
    if (jinja != nullptr && quire::guard_run(
                                TEMPLATE, [&]() { delete jinja; }, nullptr) < 0) {
        return; /* no thread: the memory is lost */
    }
}

void quire_chat_jinja_abilities(const quire_chat_jinja *jinja, quire_chat_abilities *out)
{
    *out = jinja->abilities;
}
