// Shared by both variants of the greedy engine: which route chooses first, which NPU has which chunk, and the
// error if an NPU cannot be reached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/collective.hpp"
#include "model/topology.hpp"
#include "synth/greedy.hpp"

namespace tacos {

inline std::uint64_t mix(std::uint64_t x) {  // the finalizer of SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Which of its `degree` routes a destination lets choose first; they take turns from there. Both ways
// to run the engine use it, with the number of chunks that the destination has so far.
inline std::size_t first_turn(const GreedyOptions& options, NodeId destination,
                              std::size_t received, std::size_t degree) {
  const std::uint64_t shift =
      options.seed == 0 ? 0 : mix(options.seed * 0x10001 + static_cast<std::size_t>(destination));
  return (received + shift) % degree;
}

// One bit per NPU and chunk.
class Bits {
 public:
  Bits(std::size_t rows, std::size_t columns)
      : words_((columns + 63) / 64), bits_(rows * words_, 0) {}

  bool test(std::size_t row, std::size_t column) const {
    return (bits_[row * words_ + column / 64] >> (column % 64) & 1) != 0;
  }
  void set(std::size_t row, std::size_t column) {
    bits_[row * words_ + column / 64] |= std::uint64_t{1} << (column % 64);
  }
  const std::uint64_t* row(std::size_t row) const { return bits_.data() + row * words_; }
  std::size_t words() const { return words_; }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

[[noreturn]] inline void cannot_reach(const Topology& topology, const Collective& collective,
                                      ChunkId chunk, NodeId npu, bool backwards) {
  const auto from = topology.name(collective.inputs(chunk)[0]), to = topology.name(npu);
  throw InfeasibleError((backwards ? to : from) + " cannot reach " + (backwards ? from : to) +
                        ", which needs its chunk " + std::to_string(chunk));
}

// Called when nothing more can be sent: names an NPU that waits in vain, and the NPU that it waits for.
[[noreturn]] inline void report_unreachable(const Topology& topology, const Collective& collective,
                                            const Bits& have, bool backwards) {
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    for (const NodeId npu : collective.outputs(chunk)) {
      if (have.test(static_cast<std::size_t>(npu), chunk)) continue;
      cannot_reach(topology, collective, chunk, npu, backwards);
    }
  }
  throw InfeasibleError("some NPU cannot be reached");
}

}  // namespace tacos
