// JSON as a stream of values, for texts that are too long for trees of objects.
//
// The caller has already parsed the text with a parser that explains syntax errors; here such an
// error only ends the reading. The caller checks the type of a value before reading it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "support/error.hpp"

namespace tacos::json {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Calls field(name) for every field of the object; the callback must read or skip the value.
  template <typename Field>
  void object(const Field& field) {
    expect('{');
    for (bool more = !take('}'); more; more = !take('}')) {
      const auto name = string();
      expect(':');
      field(name);
      if (peek() != '}') expect(',');
    }
  }

  // Calls element() for every element of the list; the callback must read or skip the element.
  template <typename Element>
  void list(const Element& element) {
    expect('[');
    for (bool more = !take(']'); more; more = !take(']')) {
      element();
      if (peek() != ']') expect(',');
    }
  }

  // The text between the quotes; escapes are not decoded.
  std::string_view string() {
    expect('"');
    const auto begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) broken();
    return text_.substr(begin, at_++ - begin);
  }

  // A whole number of at most 18 digits, or nothing; then the reader does not move.
  std::optional<std::int64_t> number() {
    peek();
    auto at = at_;
    const bool negative = at < text_.size() && text_[at] == '-';
    if (negative) ++at;
    const auto begin = at;
    std::int64_t value = 0;
    while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') {
      if (at - begin == 18) return std::nullopt;  // one more could exceed 64 bits
      value = value * 10 + (text_[at++] - '0');
    }
    const bool ends = at == text_.size() || ends_value(text_[at]);
    if (at == begin || !ends) return std::nullopt;
    at_ = at;
    return negative ? -value : value;
  }

  bool null() {
    peek();
    if (text_.substr(at_, 4) != "null") return false;
    at_ += 4;
    return true;
  }

  void skip() {
    std::size_t depth = 0;
    do {
      const char first = peek();
      if (first == '"') {
        string();
      } else if (first == '{' || first == '[') {
        ++at_;
        ++depth;
      } else if (first == '}' || first == ']') {
        if (depth == 0) broken();
        ++at_;
        --depth;
      } else if (first == 0) {
        broken();
      } else {
        ++at_;  // a comma, a colon, or a character of a number or word
        while (depth == 0 && at_ < text_.size() && !ends_value(text_[at_])) ++at_;
      }
    } while (depth > 0);
  }

  // The next character that is not white space, 0 at the end.
  char peek() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  // How the next value begins, for messages: printable and short.
  std::string excerpt() {
    peek();
    std::string found;
    for (const char c : text_.substr(at_, 40)) {
      if (!found.empty() && ends_value(c) && found[0] != '"') break;
      found += c >= ' ' && c <= '~' ? c : '?';
      if (found.size() > 1 && c == '"') break;
    }
    return found.empty() ? "missing" : found;
  }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  static bool ends_value(char c) { return is_space(c) || c == ',' || c == ']' || c == '}'; }

  [[noreturn]] static void broken() { invalid("not JSON"); }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) broken();
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace tacos::json
