/* chat_parsers.cpp - parsers and grammars of the last requests: see chat_jinja.h.
 *
 * The library renders, and makes a parser and a grammar, in one call. With the switch below on, the
 * call makes neither (cmake/llama_common/limits.h): the prompt's end is known then, which the
 * parser depends on beside the request's tools and switches, and no message. Only where this
 * combination is new is the call repeated in full; the library keeps the rendered text for the
 * repetition.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_jinja.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace
{

constexpr size_t PARSERS_MAX = 8;
/* Of key and grammar. The parser is of about their size. */
constexpr size_t BYTES_MAX = (size_t)1 << 20;

thread_local bool wants_text = false;

/* Switches off the making of parsers in this scope. */
class text_scope
{
  public:
    text_scope()
    {
        wants_text = true;
    }
    ~text_scope()
    {
        wants_text = false;
    }
    text_scope(const text_scope &) = delete;
    text_scope &operator=(const text_scope &) = delete;
};

void add(std::string *key, const std::string &text)
{
    *key += std::to_string(text.size());
    *key += ':';
    *key += text;
}

void add(std::string *key, int value)
{
    *key += std::to_string(value);
    *key += ';';
}

/* All that a parser depends on. */
std::string key_of(const common_chat_templates_inputs &in, const common_chat_params &params)
{
    std::string key;

    for (const auto &tool : in.tools) {
        add(&key, tool.name);
        add(&key, tool.description);
        add(&key, tool.parameters);
    }
    add(&key, in.json_schema);
    add(&key, in.grammar);
    for (const auto &item : in.chat_template_kwargs) {
        add(&key, item.first);
        add(&key, item.second);
    }
    add(&key, (int)in.tool_choice);
    add(&key, (int)in.parallel_tool_calls);
    add(&key, (int)in.reasoning_format);
    add(&key, (int)in.enable_thinking);
    add(&key, (int)in.add_generation_prompt);
    add(&key, (int)in.continue_final_message);
    add(&key, params.generation_prompt);
    return key;
}

/* The library's grammar of formats that put each call between tags of its own takes any number of
 * calls and of blanks, even if parallel_tool_calls is false. */
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

/* The functions' rules of a few formats take calls one after the other without an end. */
void bound_repeated(std::string *grammar, bool is_parallel)
{
    static const char *const begins[] = { "\ntools ::= (",
                                          "\nkimi-k3-tool-call ::= \"<|open|>tools<|sep|>\" (" };

    for (const char *begin : begins) {
        const size_t at = grammar->find(begin);
        const size_t end = at != std::string::npos ? grammar->find('\n', at + 1) : at;
        const size_t plus = end != std::string::npos ? grammar->rfind(")+", end) : end;

        if (plus != std::string::npos && plus > at) {
            grammar->replace(plus + 1, 1,
                             is_parallel ? "{1," + std::to_string(QUIRE_CHAT_CALLS_MAX) + "}"
                                         : std::string());
        }
    }
}

/* The library's grammar takes any text for the number of a call (Kimi K3). */
void mend_numbers(std::string *grammar)
{
    static const std::string rule = "\nkimi-k3-tool-", until = "\"\\\"\" until-";

    for (size_t at = 0; (at = grammar->find(rule, at)) != std::string::npos; at++) {
        const size_t end = grammar->find('\n', at + 1);
        const size_t number = grammar->find(until, at);
        const size_t behind = grammar->find(" \"<|sep|>\"", number);

        if (number < end && behind < end) {
            grammar->replace(number, behind - number, R"("\"" (" index=\"" [0-9]{1,3} "\"")?)");
        }
    }
}

/* Where a call has no name's end (GLM 4.7, Spark 2.5), the library's reader takes no blank before
 * the call's end, in spite of its grammar. */
void mend_ends(std::string *grammar)
{
    static const std::string name = " ::= ((\"\" \"", end = ") space \"</tool_call>\"";

    if (grammar->find(name) == std::string::npos) {
        return;
    }
    for (size_t at = 0; (at = grammar->find(end, at)) != std::string::npos;) {
        grammar->erase(at + 1, std::strlen(" space"));
    }
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
common_chat_params apply_template(const common_chat_templates *templates,
                                  const common_chat_templates_inputs &in)
{
    try {
        return common_chat_templates_apply(templates, in);
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

    common_chat_params params = common_chat_templates_apply(templates, plain);

    params.prompt = common_chat_templates_apply(templates, described).prompt;
    return params;
}

/* Apply the template with other tools. Returns whether it takes them. */
bool with_tools(const common_chat_templates *templates, common_chat_templates_inputs in,
                const std::vector<common_chat_tool> &tools, common_chat_params *out)
{
    in.tools = tools;
    try {
        *out = apply_template(templates, in);
    } catch (const std::exception &) {
        return false;
    }
    return true;
}

} // namespace

extern "C" bool quire_chat_wants_text(void)
{
    return wants_text;
}

void quire::apply_text(const common_chat_templates *templates,
                       const common_chat_templates_inputs &in,
                       const std::vector<common_chat_tool> &plain, quire_chat_parser *p)
{
    const text_scope scope;

    p->built = std::make_shared<const built_parser>();
    try {
        p->params = apply_template(templates, in);
    } catch (const std::exception &e) {
        if (with_tools(templates, in, plain, &p->params)) {
            return;
        }
        std::vector<common_chat_tool> simple = in.tools;

        for (auto &tool : simple) {
            tool.parameters = R"({"type":"object","properties":{"a":{"type":"string"}}})";
        }
        if (!in.tools.empty() && with_tools(templates, in, simple, &p->params)) {
            throw std::runtime_error(std::string("it cannot describe these tools: ") + e.what());
        }
        throw;
    }
}

std::shared_ptr<const quire::built_parser> quire::parser_cache::find(const std::string &key)
{
    const std::lock_guard<std::mutex> lock(mutex_);

    for (size_t i = 0; i < items_.size(); i++) {
        if (items_[i]->key == key) {
            std::rotate(items_.begin(), items_.begin() + (ptrdiff_t)i,
                        items_.begin() + (ptrdiff_t)i + 1);
            return items_[0];
        }
    }
    return nullptr;
}

void quire::parser_cache::keep(const std::shared_ptr<const built_parser> &built)
{
    const std::lock_guard<std::mutex> lock(mutex_);

    if (built->key.size() + built->grammar.size() > BYTES_MAX) {
        return;
    }
    items_.insert(items_.begin(), built);
    if (items_.size() > PARSERS_MAX) {
        items_.pop_back();
    }
}

void quire::parser_cache::apply(const common_chat_templates *templates,
                                const common_chat_templates_inputs &in,
                                const std::vector<common_chat_tool> &plain, quire_chat_parser *p)
{
    common_chat_templates_inputs called = in;
    std::string key;

    called.tools = plain;
    apply_text(templates, in, plain, p);
    key = key_of(called, p->params);
    p->built = find(key);
    if (p->built == nullptr) {
        auto made = std::make_shared<built_parser>();
        std::string prompt = std::move(p->params.prompt);

        /* A template may write the given tools alone: then the calls are read by these. */
        if (!with_tools(templates, in, plain, &p->params)) {
            p->params = apply_template(templates, in);
        }
        p->params.prompt = std::move(prompt);
        if (!p->params.parser.empty()) {
            made->parser.load(p->params.parser);
        }
        made->grammar = std::move(p->params.grammar);
        bound_calls(&made->grammar, in.parallel_tool_calls);
        bound_repeated(&made->grammar, in.parallel_tool_calls);
        mend_ends(&made->grammar);
        mend_numbers(&made->grammar);
        mend_escapes(&made->grammar);
        made->key = std::move(key);
        p->built = made;
        keep(p->built);
    }
    p->params.parser.clear();
    p->params.grammar.clear();
}
