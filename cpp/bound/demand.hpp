// What a collective demands of the network, independent of the algorithm: how much must leave a set of
// nodes, what one NPU needs from which others, and how far it has to travel.
//
// A chunk must leave a set S at least once if some output is outside S and
//   - all its inputs are in S (equal replicas), or
//   - some input is in S (a sum, which contains every input).
// Switches that multicast or reduce let one passage serve many NPUs, but there must be one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "graph/cuts.hpp"
#include "model/collective.hpp"

namespace tacos {

struct Crossing {
  __int128 bytes = 0;
  std::map<std::int64_t, std::int64_t> chunks;  // number of each size; empty: not chosen yet
};

// What must leave the set at least once. O(members), or O(pairs) if sizes differ by pair.
Crossing crossing(const Collective& collective, const NodeSet& inside);

// The whole buffer of a part, `times` over.
Crossing whole_buffer(const CollectivePart& part, std::int64_t times);

// The bytes that must at least leave and enter each NPU. O(members) or O(pairs).
struct Ports {
  std::vector<double> out, in;
};
Ports ports(const Collective& collective);

// The demand of NPU `npu`: what has to enter it (`reversed`: leave it, with the destinations as
// supplies). Sums count at their single end; an all-reduce counts as a reduce to its first member.
// Custom parts are left out. nullopt if there is no demand.
std::optional<SinkDemand> demand_at(const Collective& collective, NodeId npu, bool reversed);

// The custom chunks' demands, one for each pair of a chunk and an NPU that needs it (for sums: and
// one for each that contributes).
void custom_demands(const Collective& collective,
                    const std::function<bool(const SinkDemand&)>& take);

// Classes of NPUs with equal results of demand_at() and deliveries(), as equal numbers. All numbers
// differ if pairs may have any sizes.
std::vector<std::int32_t> alike(const Collective& collective);

// A chunk of `bytes` goes from the nearest of `from` to all of `to`; `reversed`: from all of `to` to
// `from`, which is a single node then.
struct Delivery {
  std::span<const NodeId> from, to;
  std::int64_t bytes = 0;
  bool reversed = false;
  bool own = false;  // whether `to` differs from one NPU to the next
};
// The deliveries that a collective needs: at most one per NPU and part or, in custom parts, per chunk.
// If sizes differ by pair, `bytes` is the smallest. Ends when `take` returns false.
void deliveries(const Collective& collective, const std::function<bool(const Delivery&)>& take);

}  // namespace tacos
