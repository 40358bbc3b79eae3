/* chat_answers.cpp - answers read by llama.cpp's common library, and its triggers: see
 * chat_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_jinja.h"

#include <sys/random.h>

#include <cstring>
#include <new>
#include <regex>
#include <string>
#include <vector>

struct quire_chat_reading {
    quire_chat_parser *parser;
    common_chat_msg message;
    std::vector<std::string> ids;
    std::vector<quire_chat_call> calls;
    bool is_whole = false;
};

common_chat_msg quire::parse_answer(const quire_chat_parser *p, const std::string &text,
                                    bool is_partial)
{
    return common_chat_peg_parse(p->built->parser, text, is_partial, p->reading);
}

/* ---- reading ---- */

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

/* Whether an answer keeps to the format up to its end. The library reads one that is cut as far as
 * it goes, whether it has ended or not. */
bool keeps_format(const quire_chat_parser *p, const std::string &text)
{
    const std::string whole = p->reading.generation_prompt + text;
    common_peg_parse_context context(whole, COMMON_PEG_PARSE_FLAG_NONE);

    return p->built->parser.empty() || p->built->parser.parse(context).success();
}

/* The answer as far as it keeps to the format. */
common_chat_msg read_or_partly(const quire_chat_parser *p, const std::string &text, bool is_last)
{
    if (is_last) {
        try {
            return quire::parse_answer(p, text, false);
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &) {
            /* cut off, or not of the format: the readable part counts */
        }
    }
    return quire::parse_answer(p, text, true);
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
    r->is_whole = is_last && (message.tool_calls.empty() || keeps_format(p, text));
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
    out->is_whole = r->is_whole;
}

/* ---- triggers ---- */

/* The first group that has matched some text; the whole match without one. */
static size_t group_begin(const std::cmatch &match)
{
    for (size_t i = 1; i < match.size(); i++) {
        if (match.length(i) > 0) {
            return (size_t)match.position(i);
        }
    }
    return (size_t)match.position(0);
}

bool quire_chat_pattern_find(const char *pattern, const char *text, size_t n, bool is_at_start,
                             quire_chat_place *place)
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
    *place = { (size_t)match.position(0), group_begin(match) };
    return true;
}
