/* chat_jinja.cpp - chat formats by llama.cpp's common library: see chat_internal.h.
 *
 * All calls of the library run in guard_run(), which turns exceptions into statuses.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_guard.h"
#include "model/chat_internal.h"

/* Headers of the library call it: see cmake/llama_common/limits.h. */
extern "C" void quire_jinja_step(void);

#include <chat.h>
#include <common.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>

#include <sys/random.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <regex>
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
};

struct quire_chat_parser {
    std::atomic<unsigned> n_holders{ 1 };
    common_chat_params params;
    common_chat_parser_params reading;
    common_chat_msg before; /* what the prompt already holds of a continued message */
    bool has_short_ids = false;
    bool begins_thinking = false;
    std::string must_begin;
    /* the same as C's arrays */
    std::vector<std::string> trigger_texts;
    std::vector<quire_chat_trigger> triggers;
    std::vector<const char *> stops, shown_tokens;
};

struct quire_chat_reading {
    quire_chat_parser *parser;
    common_chat_msg message;
    std::vector<std::string> ids;
    std::vector<quire_chat_call> calls;
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

/* The tools; with a name, the one tool of that name. */
std::vector<common_chat_tool> tools_of(const quire_chat_ask *ask, const char *name)
{
    std::vector<common_chat_tool> tools, named;

    if (text_or_empty(ask->tools)[0] == '\0') {
        return tools;
    }
    tools = common_chat_tools_parse_oaicompat(common_json::parse(ask->tools));
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
    in.tools = tools_of(ask, nullptr);
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
        p->stops.push_back(stop.c_str());
    }
    for (const auto &token : p->params.preserved_tokens) {
        p->shown_tokens.push_back(token.c_str());
    }
}

common_chat_msg read(const quire_chat_parser *p, const std::string &text, bool is_partial)
{
    return common_chat_parse(text, is_partial, p->reading);
}

/* The library's grammar of formats that put each call between tags of its own takes any number of
 * calls and of blanks, whatever parallel_tool_calls says. */
void bound_calls(std::string *grammar, bool is_parallel)
{
    static const std::string begin = "\ntool-calls ::= (tool-call", end = " space)+\n";
    const size_t at = grammar->find(begin);
    const size_t behind = at != std::string::npos ? grammar->find('\n', at + 1) : at;

    if (behind == std::string::npos || grammar->compare(behind + 1 - end.size(), end.size(), end)) {
        return;
    }
    grammar->replace(
        at, behind - at,
        "\ntool-calls ::= tool-call" +
            (is_parallel ? " (space tool-call){0," + std::to_string(QUIRE_CHAT_CALLS_MAX - 1) + "}"
                         : ""));
}

/* The library's grammar of strings has an escaped blank, which its parser refuses: the call would
 * be lost. */
void mend_escapes(std::string *grammar)
{
    static const std::string escapes = R"(["\\/ bfnrt])";

    for (size_t at = 0; (at = grammar->find(escapes, at)) != std::string::npos;) {
        grammar->erase(at + escapes.find(' '), 1);
    }
}

/* The parameters of a function without the schemas of its arguments, but with their names. */
std::string names_of(const std::string &parameters)
{
    common_json from = common_json::parse(parameters);
    common_json properties = common_json::object();
    common_json out = common_json::object();

    if (from.contains("properties") && from.at("properties").is_object()) {
        for (const auto &item : from.at("properties").items()) {
            const bool is_string = item.value().is_object() && item.value().contains("type") &&
                                   item.value().at("type") == "string";

            properties[item.key()] =
                is_string ? common_json::parse("{\"type\":\"string\"}") : common_json::object();
        }
    }
    out["type"] = "object";
    out["properties"] = properties;
    if (from.contains("required") && from.at("required").is_array()) {
        out["required"] = from.at("required");
    }
    return out.dump();
}

/* Apply the template. The library refuses a request for a schema that it cannot read; the grammar
 * of such tools then knows the names of their arguments alone, and the prompt has their schemas. */
common_chat_params apply_template(const quire_chat_jinja *jinja,
                                  const common_chat_templates_inputs &in)
{
    try {
        return common_chat_templates_apply(jinja->templates.get(), in);
    } catch (const std::exception &e) {
        if (std::strstr(e.what(), "JSON schema") == nullptr || in.tools.empty()) {
            throw;
        }
    }
    common_chat_templates_inputs plain = in, described = in;

    for (auto &tool : plain.tools) {
        tool.parameters = names_of(tool.parameters);
    }
    described.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;

    common_chat_params params = common_chat_templates_apply(jinja->templates.get(), plain);

    params.prompt = common_chat_templates_apply(jinja->templates.get(), described).prompt;
    return params;
}

/* Make a call required. The library's grammars for that allow any text before the call; so the
 * grammar of voluntary calls is taken where it begins at a fixed text, and this text is demanded.
 */
void require_call(const quire_chat_jinja *jinja, const quire_chat_ask *ask,
                  common_chat_templates_inputs *in, quire_chat_parser *p)
{
    /* The prompt describes all tools, as in the turns around; the answer may call one of them. */
    std::string prompt = p->params.prompt;

    if (ask->tool_choice == QUIRE_TOOL_CHOICE_NAMED) {
        in->tools = tools_of(ask, text_or_empty(ask->tool_name));
        p->params = apply_template(jinja, *in);
    }
    if (p->params.grammar_lazy && !p->params.grammar_triggers.empty() &&
        p->params.grammar_triggers[0].type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
        p->must_begin = p->params.grammar_triggers[0].value;
    } else {
        in->tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        p->params = apply_template(jinja, *in);
    }
    if (p->params.grammar.empty()) {
        throw quire::failure{ QUIRE_UNSUPP, "it has no form for calls of tools, so none can be "
                                            "demanded (tool_choice)" };
    }
    p->params.prompt = std::move(prompt);
}

void apply(const quire_chat_jinja *jinja, const quire_chat_ask *ask, quire_chat_parser *p)
{
    common_chat_templates_inputs in = inputs_of(jinja, ask);

    p->params = apply_template(jinja, in);
    if (ask->tool_choice >= QUIRE_TOOL_CHOICE_REQUIRED) {
        require_call(jinja, ask, &in, p);
    }
    bound_calls(&p->params.grammar, in.parallel_tool_calls);
    mend_escapes(&p->params.grammar);
    if (p->params.prompt.size() > QUIRE_CHAT_PROMPT_BYTES_MAX) {
        throw quire::failure{ QUIRE_LIMIT, "it writes more than QUIRE_CHAT_PROMPT_BYTES_MAX" };
    }
    p->reading = common_chat_parser_params(p->params);
    p->reading.reasoning_format = in.reasoning_format;
    p->reading.parse_tool_calls = in.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    if (!p->params.parser.empty()) {
        p->reading.parser.load(p->params.parser);
    }
    if (ask->omits_generation_prompt) {
        p->reading.generation_prompt.clear();
    }
    if (ask->continues_final) {
        p->before = read(p, "", true);
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
    out->grammar = from.grammar.empty() ? nullptr : from.grammar.c_str();
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

/* ---- reading answers ---- */

namespace
{

std::string new_id(bool is_short)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char random[24];
    const size_t n = is_short ? 9 : sizeof random;
    std::string id = is_short ? "" : "call_";

    if (getrandom(random, n, 0) != (ssize_t)n) {
        throw quire::failure{ QUIRE_IO, "no random bytes for the id of a call" };
    }
    for (size_t i = 0; i < n; i++) {
        id += letters[random[i] % (sizeof letters - 1)];
    }
    return id;
}

/* Take the part of a field that the prompt already has out of it. */
void cut(std::string *field, const std::string &before)
{
    if (!before.empty() && field->compare(0, before.size(), before) == 0) {
        field->erase(0, before.size());
    }
}

/* The answer as far as it keeps to the format. */
common_chat_msg read_or_partly(const quire_chat_parser *p, const std::string &text, bool is_last)
{
    if (is_last) {
        try {
            return read(p, text, false);
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &) {
            /* cut off, or not of the format: what can be read counts */
        }
    }
    return read(p, text, true);
}

bool is_empty(const common_chat_msg &message)
{
    return message.content.empty() && message.reasoning_content.empty() &&
           message.tool_calls.empty();
}

void read_answer(quire_chat_reading *r, const std::string &text, bool is_last)
{
    const quire_chat_parser *p = r->parser;
    common_chat_msg message;

    try {
        message = read_or_partly(p, text, is_last);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {
        if (!is_last) {
            return; /* more text may decide */
        }
    }
    if (is_last && is_empty(message)) {
        message.content = text;
    }
    if (message.tool_calls.size() > QUIRE_CHAT_CALLS_MAX) {
        message.tool_calls.resize(QUIRE_CHAT_CALLS_MAX);
    }
    cut(&message.reasoning_content, p->before.reasoning_content);
    cut(&message.content, p->before.content);
    message.set_tool_call_ids(r->ids, [&]() { return new_id(p->has_short_ids); });
    for (auto &call : message.tool_calls) {
        if (is_last && call.arguments.empty()) {
            call.arguments = "{}";
        }
    }
    r->message = std::move(message);
    r->calls.clear();
    for (const auto &call : r->message.tool_calls) {
        r->calls.push_back({ { call.id.c_str(), call.id.size() },
                             { call.name.c_str(), call.name.size() },
                             { call.arguments.c_str(), call.arguments.size() } });
    }
}

} // namespace

int quire_chat_reading_create(quire_chat_reading **out, quire_chat_parser *parser, quire_error *err)
{
    *out = new (std::nothrow) quire_chat_reading();
    if (*out == nullptr) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for reading an answer");
    }
    (*out)->parser = quire_chat_parser_hold(parser);
    return QUIRE_OK;
}

void quire_chat_reading_destroy(quire_chat_reading *reading)
{
    if (reading != nullptr) {
        quire_chat_parser_release(reading->parser);
        delete reading;
    }
}

int quire_chat_reading_read(quire_chat_reading *reading, const char *text, size_t n, bool is_last,
                            quire_error *err)
{
    return quire::guard_run(
        "answer", [&]() { read_answer(reading, std::string(text, n), is_last); }, err);
}

void quire_chat_reading_answer(const quire_chat_reading *r, quire_chat_answer *out)
{
    out->reasoning = { r->message.reasoning_content.c_str(), r->message.reasoning_content.size() };
    out->content = { r->message.content.c_str(), r->message.content.size() };
    out->calls = r->calls.data();
    out->n_calls = (uint32_t)r->calls.size();
}

/* ---- grammars ---- */

int quire_chat_grammar_accept(struct llama_sampler *grammar, int32_t token)
{
    try {
        llama_sampler_accept(grammar, token);
    } catch (...) {
        return QUIRE_INVAL;
    }
    return QUIRE_OK;
}

bool quire_chat_pattern_find(const char *pattern, const char *text, size_t n, bool is_at_start,
                             size_t *at)
{
    const size_t length = std::strlen(pattern);
    const bool is_whole = length > 1 && pattern[0] == '^' && pattern[length - 1] == '$';
    const auto flags =
        is_at_start ? std::regex_constants::match_default : std::regex_constants::match_not_bol;
    std::cmatch match;

    try {
        const std::regex regex(pattern);

        if (is_whole ? !is_at_start || !std::regex_match(text, text + n, match, regex)
                     : !std::regex_search(text, text + n, match, regex, flags)) {
            return false;
        }
    } catch (...) {
        return false;
    }
    *at = (size_t)match.position(0);
    for (size_t i = 1; i < match.size(); i++) {
        if (match.length(i) > 0) {
            *at = (size_t)match.position(i);
            break;
        }
    }
    return true;
}
