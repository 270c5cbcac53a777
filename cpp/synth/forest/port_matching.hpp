// Selects, among the hops that could start at a moment, as many as possible that can start together.
//
// Hops of a class use the same resources. At most one hop of each class starts, and each resource serves
// one. Offers are accepted in order; if a port then has none, others make room for it along an
// alternating path, as for a matching in a bipartite graph. This is exact if every class uses two
// resources, the output of one port and the input of another, and a heuristic otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tacos::forest {

class PortMatching {
 public:
  // Per class: the offset of its resources in `used`, and the resource that is its port.
  PortMatching(std::size_t resources, std::span<const std::size_t> begin,
               std::span<const std::int32_t> used, std::span<const std::int32_t> port);

  // The classes of the offers that start, in no particular order. With `rearranged`, ports make room.
  std::span<const std::int32_t> choose(std::span<const std::int32_t> offers, bool rearranged);

 private:
  static constexpr std::int32_t kNone = -1, kSeveral = -2;

  std::span<const std::int32_t> used(std::int32_t c) const;
  // The class that occupies resources of class c, if there is only one.
  std::int32_t blocker(std::int32_t c) const;
  void take(std::int32_t c, std::int32_t owner);
  bool serve(std::int32_t port);

  std::span<const std::size_t> begin_;
  std::span<const std::int32_t> used_, port_;
  std::vector<std::int32_t> owner_;                // per resource: the class that occupies it
  std::vector<std::vector<std::int32_t>> offers_;  // per port
  std::vector<std::int32_t> ports_, chosen_;
  std::vector<std::int64_t> seen_;  // per class: the last search that visited it
  std::int64_t search_ = 0;
};

}  // namespace tacos::forest
