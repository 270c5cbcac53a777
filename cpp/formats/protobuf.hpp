// The part of the Protocol Buffers wire format that Chakra's and Perfetto's traces use.
//
// A message is a sequence of fields: a key (number · 8 + wire type) and a value. Lengths and integers
// are varints: seven bits per byte, the lowest first.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "support/error.hpp"

namespace tacos::protobuf {

enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

constexpr std::size_t varint_bytes(std::uint64_t value) {
  std::size_t bytes = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++bytes;
  }
  return bytes;
}

constexpr std::uint64_t key(std::uint32_t field, Wire wire) {
  return (static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(wire);
}

inline void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

inline void put_number(std::string& out, std::uint32_t field, std::uint64_t value) {
  put_varint(out, key(field, Wire::varint));
  put_varint(out, value);
}

inline void put_bytes(std::string& out, std::uint32_t field, std::string_view value) {
  put_varint(out, key(field, Wire::bytes));
  put_varint(out, value.size());
  out.append(value);
}

inline void put_fixed64(std::string& out, std::uint32_t field, std::uint64_t value) {
  put_varint(out, key(field, Wire::fixed64));
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

struct Field {
  std::uint32_t number;
  Wire wire;
  std::uint64_t value;     // if it is a number
  std::string_view bytes;  // if it is a message, a text or a packed list
};

// Reads the fields of one message, or the varints of a packed list. `base` is the position of the bytes in
// the file, which errors (std::invalid_argument) name.
class Reader {
 public:
  Reader(std::string_view bytes, std::size_t base) : bytes_(bytes), base_(base) {}

  bool done() const { return at_ == bytes_.size(); }
  std::size_t position() const { return base_ + at_; }
  std::size_t position(std::string_view part) const {
    return base_ + static_cast<std::size_t>(part.data() - bytes_.data());
  }

  std::uint64_t varint() {
    const auto begin = position();
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (done()) fail(begin, "a number is cut short");
      const auto byte = static_cast<std::uint8_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) break;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail(begin, "a number has more than 64 bits");
  }

  std::string_view length_and_bytes() {
    const auto begin = position();
    const auto length = varint();
    const auto left = bytes_.size() - at_;
    if (length > left) {
      fail(begin, "a length of " + std::to_string(length) + " where " + std::to_string(left) +
                      " are left");
    }
    const auto found = bytes_.substr(at_, length);
    at_ += length;
    return found;
  }

  Field field() {
    const auto begin = position();
    const auto read = varint();
    const auto number = read >> 3;
    if (number == 0 || number >= 1u << 29) {
      fail(begin, "a field has the number " + std::to_string(number));
    }
    Field found{static_cast<std::uint32_t>(number), static_cast<Wire>(read & 7), 0, {}};
    switch (found.wire) {
      case Wire::varint:
        found.value = varint();
        return found;
      case Wire::fixed64:
        found.value = fixed<std::uint64_t>();
        return found;
      case Wire::fixed32:
        found.value = fixed<std::uint32_t>();
        return found;
      case Wire::bytes:
        found.bytes = length_and_bytes();
        return found;
    }
    fail(begin, "field " + std::to_string(number) + " has the unknown wire type " +
                    std::to_string(read & 7));
  }

  [[noreturn]] static void fail(std::size_t position, const std::string& what) {
    invalid("byte " + std::to_string(position) + ": " + what);
  }

 private:
  template <typename Int>
  std::uint64_t fixed() {
    if (bytes_.size() - at_ < sizeof(Int)) fail(position(), "a number is cut short");
    Int value = 0;
    for (std::size_t i = 0; i < sizeof(Int); ++i) {
      value |=
          static_cast<Int>(static_cast<Int>(static_cast<std::uint8_t>(bytes_[at_ + i])) << (8 * i));
    }
    at_ += sizeof(Int);
    return value;
  }

  std::string_view bytes_;
  std::size_t base_, at_ = 0;
};

}  // namespace tacos::protobuf
