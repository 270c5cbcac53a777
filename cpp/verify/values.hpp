// What the verifier knows about a value: which contributions it contains, and in which order they were added.
//
// Both are fingerprints of fixed size, since true sets would cost O(N) per transfer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/collective.hpp"
#include "model/topology.hpp"

namespace tacos::verification {

using Fingerprint = unsigned __int128;

// A sum of contributions. The count keeps multiplicities small: 2^128 times a weight would be zero.
struct Value {
  Fingerprint sum = 0;
  std::uint64_t count = 0;

  bool operator==(const Value&) const = default;
  Value& operator+=(const Value& other) {
    sum += other.sum;
    count = std::min(count + other.count, std::uint64_t{1} << 62);
    return *this;
  }
};

inline std::uint64_t mix(std::uint64_t x) {  // the finalizer of SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// How a value was added up, up to the order of the operands of each sum: equal fingerprints mean equal
// bits. The open sum at a node has several operands until it is read.
class Expression {
 public:
  using Print = std::uint64_t;

  static Print input(NodeId node) { return mix(mix(static_cast<Print>(node)) + 1); }

  void assign(Print operand) { *this = Expression(operand, 1); }
  void add(Print operand) {
    if (operands_ == 1) total_ = mix(total_);
    total_ = operands_ == 0 ? operand : total_ + mix(operand);
    ++operands_;
  }
  // A read closes the sum: what arrives later is added to its result.
  Print read() {
    if (operands_ > 1) *this = Expression(mix(mix(total_) + operands_), 1);
    return total_;
  }
  // A switch adds more than two operands in an order of its own, anew for each transfer.
  Print read_in_network(std::uint64_t transfer) {
    return operands_ > 2 ? mix(read() + mix(transfer)) : read();
  }

  Expression() = default;

 private:
  Expression(Print total, std::uint64_t operands) : total_(total), operands_(operands) {}

  Print total_ = 0;  // of one operand itself, of several the sum of their hashes
  std::uint64_t operands_ = 0;
};

inline Value contribution(NodeId node) {
  const auto seed = static_cast<std::uint64_t>(node) * 2;
  return {static_cast<Fingerprint>(mix(seed)) << 64 | mix(seed + 1), 1};
}

// Whether several NPUs end with one sum, whose order of addition then matters.
inline bool sums_end_at_several(const Collective& collective) {
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.reduces(chunk) && collective.outputs(chunk).size() > 1) return true;
  }
  return false;
}

}  // namespace tacos::verification
