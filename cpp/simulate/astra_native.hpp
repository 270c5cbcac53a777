// The collectives of ASTRA-sim's system layer, each as the state machine of one rank.
//
// Every piece of data is staged before it is sent: it moves between the NPU and the network
// adapter, which takes the endpoint delay. Received pieces that are summed wait for the
// memory too. Three events drive an algorithm; it responds with calls of `Host`, and reports when
// its phase is over. Details such as the number of pieces in flight are
// those of ASTRA-sim, because times depend on them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/workload.hpp"

namespace tacos::astra {

enum class Algorithm : std::uint8_t { ring, direct, halving_doubling, double_binary_tree };

struct Implementation {
  Algorithm algorithm = Algorithm::ring;
  std::int32_t window = -1;  // for `direct`: pieces in flight, -1 for all
  bool whole = false;        // over all ranks as one dimension: oneRing, oneDirect, …

  // From ASTRA-sim's names: "ring", "direct", "direct4", "oneHalvingDoubling", …
  static Implementation parse(const std::string& name);  // throws std::invalid_argument
};

// The ranks of one line of a dimension, and the position of this rank.
struct Line {
  std::int32_t size = 0, position = 0;
  std::int32_t first = 0, stride = 1;
  const std::vector<std::int32_t>* members = nullptr;  // instead of first and stride

  std::int32_t rank(std::int32_t place) const {
    const auto at = static_cast<std::size_t>(place);
    return members != nullptr ? (*members)[at] : first + place * stride;
  }
};

class Host {
 public:
  virtual ~Host() = default;
  virtual void stage(std::int64_t bytes, bool sum) = 0;  // `ready` follows
  virtual void send(std::int32_t rank, std::int64_t bytes) = 0;
  virtual void receive(std::int32_t rank, std::int64_t bytes) = 0;  // `received` follows
};

enum class Stage : std::uint8_t { begin, ready, received };

struct PhaseSpec {
  Implementation implementation;
  Comm comm{};
  std::int64_t bytes = 0;
  Line line;
  bool forward = true;    // direction of the ring
  bool root_last = true;  // for a tree: whether its root is the last rank or the first

  std::int64_t bytes_after() const;  // the size of the next phase
};

class Phase {
 public:
  virtual ~Phase() = default;
  virtual bool on(Stage stage) = 0;  // true: the phase is over
};

std::unique_ptr<Phase> begin_phase(const PhaseSpec& spec, Host& host);

}  // namespace tacos::astra
