#include "bound/farthest.hpp"

#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "bound/demand.hpp"
#include "bound/parts.hpp"
#include "graph/cuts.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

constexpr double kBudget = 3e7;  // links visited (chosen)

// Lower bounds of a chunk's time on every link. Through switches a chunk is serialized once, by the
// slowest link; the first link and the last one are at most as slow. Between switches it may divide over several
// links, so only its latency counts there.
class Costs {
 public:
  explicit Costs(const Topology& topology)
      : topology_(topology), first_(at(topology.links())), last_(first_) {}

  void set(std::int64_t bytes) {
    if (bytes == bytes_) return;
    bytes_ = bytes;
    const bool whole = topology_.spec().forwarding == Forwarding::store_and_forward;
    for (LinkId link = 0; link < topology_.links(); ++link) {
      const Time send = sending_time(bytes, topology_.bandwidth(link));
      const Time latency = topology_.latency(link);
      const bool leaves = topology_.is_npu(topology_.src(link));
      const bool enters = topology_.is_npu(topology_.dst(link));
      first_[at(link)] = latency + (leaves || (whole && enters) ? send : 0);
      last_[at(link)] = latency + (enters || (whole && leaves) ? send : 0);
    }
  }
  std::span<const Time> first() const { return first_; }
  std::span<const Time> last() const { return last_; }

 private:
  const Topology& topology_;
  std::vector<Time> first_, last_;
  std::int64_t bytes_ = -1;
};

void measure(const Topology& topology, const Delivery& delivery, std::span<const Time> cost,
             Farthest& longest) {
  const auto distance = distances(topology, delivery.from, cost, delivery.reversed);
  for (const NodeId npu : delivery.to) {
    const Time far = distance[at(npu)];
    const auto [from, to] =
        delivery.reversed ? std::pair{npu, delivery.from[0]} : std::pair{delivery.from[0], npu};
    if (far < 0) unreachable(topology, from, to);
    if (far > longest.time) longest = {far, from, to, longest.all};
  }
}

// In a product of symmetric networks the distances add up over the dimensions.
Farthest along_all_lines(const Topology& topology, std::int64_t bytes) {
  Farthest result{0, 0, 0};
  const auto dims = lines(topology, bytes);
  result.all = !dims.empty();
  for (const auto& line : dims) {
    result.time += line.farthest_ps;
    result.to += line.farthest;
  }
  return result;
}

}  // namespace

void unreachable(const Topology& topology, NodeId from, NodeId to) {
  throw InfeasibleError(topology.name(from) + " cannot reach " + topology.name(to));
}

Farthest farthest(const Topology& topology, const Collective& collective, const Likeness& likeness,
                  const Progress& progress) {
  Farthest result;
  Costs costs(topology);
  double work = 0;
  std::set<std::tuple<NodeId, const NodeId*, std::size_t, std::int64_t, bool>> seen;
  deliveries(collective, [&](const Delivery& delivery) {
    if (delivery.to.empty()) return true;
    if (likeness.large) {
      result = along_all_lines(topology, delivery.bytes);
      return false;
    }
    // The distance from an NPU with the same neighbours is equal.
    if (delivery.from.size() == 1 && !delivery.own) {
      const NodeId twin = likeness.twin[at(delivery.from[0])];
      if (!seen.emplace(twin, delivery.to.data(), delivery.to.size(), delivery.bytes,
                        delivery.reversed)
               .second) {
        return true;
      }
    }
    costs.set(delivery.bytes);
    measure(topology, delivery, costs.first(), result);
    if (delivery.bytes > 0 && topology.nodes() > topology.npus()) {
      measure(topology, delivery, costs.last(), result);
    }
    if (progress) progress(0);
    progress.spend(static_cast<double>(topology.links() + topology.nodes()) * work::kVisit);
    work += static_cast<double>(topology.links() + topology.nodes());
    result.all = work < kBudget;
    return result.all && !likeness.symmetric;
  });
  return result;
}

}  // namespace tacos
