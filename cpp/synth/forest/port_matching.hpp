// Selects, among the hops that could start at a moment, as many as possible that can start together.
//
// Hops of a class use the same resources. Of each class at most one hop starts, and each resource takes
// one. Offers are taken in their order; where a port then has none, the others make room for it along an
// alternating path, as for a matching in a bipartite graph. That is exact where every class uses two
// resources, a port's way out and another one's way in, and a good guess elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tacos::forest {

class PortMatching {
 public:
  // Of each class: where its resources begin in `used`, and which of them is its port.
  PortMatching(std::size_t resources, std::span<const std::size_t> begin,
               std::span<const std::int32_t> used, std::span<const std::int32_t> port);

  // The classes of the offers that start, in no particular order. With `rearranged`, ports make room.
  std::span<const std::int32_t> choose(std::span<const std::int32_t> offers, bool rearranged);

 private:
  static constexpr std::int32_t kNone = -1, kSeveral = -2;

  std::span<const std::int32_t> used(std::int32_t c) const;
  // The class that has taken resources of class c, if it is only one.
  std::int32_t blocker(std::int32_t c) const;
  void take(std::int32_t c, std::int32_t owner);
  bool serve(std::int32_t port);

  std::span<const std::size_t> begin_;
  std::span<const std::int32_t> used_, port_;
  std::vector<std::int32_t> owner_;                // of each resource: the class that has taken it
  std::vector<std::vector<std::int32_t>> offers_;  // of each port
  std::vector<std::int32_t> ports_, chosen_;
  std::vector<std::int64_t> seen_;  // of each class: the last search that came by
  std::int64_t search_ = 0;
};

}  // namespace tacos::forest
