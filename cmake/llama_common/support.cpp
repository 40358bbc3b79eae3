/* support.cpp - functions that the chat part of llama.cpp's `common` expects from the rest of it.
 *
 * Texts are joined and split as the declarations in common.h say. Messages of the library are
 * dropped: failures reach the caller as exceptions, and a library does not print.
 *
 * SPDX-License-Identifier: MIT */
#include "common.h"
#include "log.h"

int common_log_get_verbosity_thold(void)
{
    return -1;
}

struct common_log *common_log_main(void)
{
    return nullptr;
}

void common_log_add(struct common_log *, enum ggml_log_level, const char *, ...)
{
}

std::string string_join(const std::vector<std::string> &values, const std::string &separator)
{
    std::string joined;

    for (size_t i = 0; i < values.size(); i++) {
        joined.append(i > 0 ? separator : "").append(values[i]);
    }
    return joined;
}

std::vector<std::string> string_split(const std::string &text, const std::string &delimiter)
{
    std::vector<std::string> parts;
    size_t at = 0;

    for (size_t end; (end = text.find(delimiter, at)) != std::string::npos && !delimiter.empty();
         at = end + delimiter.size()) {
        parts.push_back(text.substr(at, end - at));
    }
    parts.push_back(text.substr(at));
    return parts;
}

std::string string_repeat(const std::string &text, size_t n)
{
    std::string repeated;

    while (n-- > 0) {
        repeated += text;
    }
    return repeated;
}

void string_replace_all(std::string &text, const std::string &search, const std::string &replace)
{
    if (search.empty()) {
        return;
    }
    std::string replaced;
    size_t at = 0;

    for (size_t end; (end = text.find(search, at)) != std::string::npos; at = end + search.size()) {
        replaced.append(text, at, end - at).append(replace);
    }
    replaced.append(text, at);
    text = std::move(replaced);
}

std::string common_token_to_piece(const struct llama_vocab *vocab, llama_token token, bool special)
{
    std::string piece(64, '\0');
    int32_t n = llama_token_to_piece(vocab, token, &piece[0], (int32_t)piece.size(), 0, special);

    if (n < 0) {
        piece.resize((size_t)-n);
        n = llama_token_to_piece(vocab, token, &piece[0], (int32_t)piece.size(), 0, special);
    }
    piece.resize(n > 0 ? (size_t)n : 0);
    return piece;
}

std::vector<llama_token> common_tokenize(const struct llama_vocab *vocab, const std::string &text,
                                         bool add_special, bool parse_special)
{
    std::vector<llama_token> tokens(text.size() + 2);
    const int32_t n = llama_tokenize(vocab, text.data(), (int32_t)text.size(), tokens.data(),
                                     (int32_t)tokens.size(), add_special, parse_special);

    tokens.resize(n > 0 ? (size_t)n : 0);
    return tokens;
}
