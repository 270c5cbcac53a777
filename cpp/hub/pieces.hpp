// Converts queued frames to the list of memory ranges that one system call sends.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "hub/frame.hpp"

namespace tacos::hub {

// Lists the frames of `out` with their data and padding, except the first `done` bytes, which have been sent. Returns the
// number of pieces; frames that do not fit are left for the next call.
template <typename Queue>
std::size_t list_pieces(const Queue& out, std::size_t done, std::span<iovec> pieces) {
  static constexpr std::array<std::byte, 8> kZeros{};
  std::size_t count = 0, skip = done;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto some = std::min(skip, bytes);
    skip -= some;
    if (bytes == some) return;
    pieces[count].iov_base = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + some;
    pieces[count++].iov_len = bytes - some;
  };
  for (const auto& one : out) {
    if (count + 3 > pieces.size()) break;
    add(&one.frame, sizeof one.frame);
    add(one.data, one.frame.bytes);
    add(kZeros.data(), padded(one.frame.bytes) - one.frame.bytes);
  }
  return count;
}

}  // namespace tacos::hub
