#include "bound/bound.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "bound/crowd.hpp"
#include "bound/demand.hpp"
#include "bound/exits.hpp"
#include "bound/farthest.hpp"
#include "bound/parts.hpp"
#include "bound/timed_cuts.hpp"
#include "bound/weighted_cut.hpp"
#include "graph/cuts.hpp"
#include "graph/exchanges.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

using enum CollectiveKind;

constexpr double kFlowBudget = 3e8;        // links visited by flows (chosen)
constexpr NodeId kNodesForFlows = 2048;    // in larger symmetric networks, dimensions suffice
constexpr NodeId kNpusForRemainders = 64;  // in larger networks a byte more or less does not matter
constexpr std::size_t kMostImages = std::size_t{1} << 26;  // NPUs in images of a set (chosen)
constexpr double kSame = 1 + 1e-9;
constexpr double kMostGain = 1.5;       // of weighing the best cut in time again (measured: 1.47)
constexpr std::size_t kMostRanges = 8;  // distances tried around one NPU

double seconds(Ratio ratio) {
  return static_cast<double>(ratio.bytes) / static_cast<double>(ratio.bandwidth_Bps);
}

// Whether every NPU takes part in the same way, so that a symmetry of the network is a symmetry of the problem.
bool all_take_part_alike(const Topology& topology, const Collective& collective) {
  return std::all_of(collective.parts().begin(), collective.parts().end(),
                     [&](const CollectivePart& part) {
                       return part.traits().uniform() && part.members() == topology.npus();
                     });
}

class Search {
 public:
  Search(const Topology& topology, const Collective& collective, const Progress& progress,
         std::shared_ptr<const Exchanges> exchanges = nullptr)
      : topology_(topology),
        collective_(collective),
        progress_(progress),
        alike_(all_take_part_alike(topology, collective)),
        symmetric_(topology.spec().symmetric && alike_),
        uneven_(std::any_of(collective.parts().begin(), collective.parts().end(),
                            [](const CollectivePart& part) {
                              return part.members() > 0 && part.size % part.members() != 0;
                            })),
        large_(symmetric_ && topology.nodes() > kNodesForFlows),
        twin_(large_ ? std::vector<NodeId>() : twins(topology)),
        exchanges_(std::move(exchanges)),
        approaches_(topology),
        timed_(topology, find_exchanges()) {}

  BoundReport run() {
    in_time_ = !large_;
    std::vector<NodeId> same;  // exchanges preserve the set of all NPUs
    if (exchanges_) same = exchanges_->classes(std::vector<std::int32_t>(at(topology_.nodes()), 0));
    report_.farthest = farthest(topology_, collective_,
                                {symmetric_, large_, exchanges_ ? same : twin_}, progress_);
    weigh_ports();
    weigh_blocks();
    weigh_halves();
    if (in_time_) weigh_near_and_far();
    if (symmetric_) weigh_lines();
    if (large_) {
      report_.all_cuts = false;
      for (const auto& part : collective_.parts()) {
        if (part.kind == all_reduce) weigh_dimensions(part);
      }
    } else {
      for (const auto& part : collective_.parts()) {
        if (part.kind == all_reduce) weigh_all_reduce(part);
      }
      if (collective_.parts().size() > 1) weigh_all_reduces();
      if (!report_.two_halves) {
        search_flows(false);
        if (!two_way_sums()) search_flows(true);
        search_custom();
      }
    }
    weigh_again();
    report_.time = std::max({report_.time, report_.farthest.time, report_.timed.time});
    return report_;
  }

  // Searches only the cuts of single NPUs' demands, and keeps the binding set around each NPU.
  Ratio run_flows(bool reversed) {
    keep_tight_ = !reversed;
    weigh_ports();
    weigh_blocks();
    search_flows(reversed);
    return best_;
  }
  bool all_cuts() const { return report_.all_cuts; }
  std::vector<std::vector<NodeId>> tight_sets();

 private:
  void weigh_lines();

  // In symmetric networks, one NPU represents all already.
  const Exchanges* find_exchanges() {
    if (!exchanges_ && alike_ && !symmetric_) exchanges_ = std::make_shared<Exchanges>(topology_);
    return exchanges_.get();
  }

  // Numbers that an exchange must preserve for the collective to stay the same.
  std::vector<std::int32_t> labels() const {
    auto result = alike(collective_);
    result.resize(at(topology_.nodes()), -1);
    return result;
  }

  // --- cuts ---

  // Evaluates the cut around `nodes`: what must leave them or, if not `leaving`, enter them.
  void weigh(std::span<const NodeId> nodes, bool leaving) {
    NodeSet inside(at(topology_.nodes()), leaving ? 0 : 1);
    for (const NodeId node : nodes) inside[at(node)] = leaving ? 1 : 0;
    const auto load = crossing(collective_, inside);
    if (load.bytes == 0) return;
    Exits exits;
    for (const NodeId node : nodes) {
      for (const auto link : leaving ? topology_.out_links(node) : topology_.in_links(node)) {
        const NodeId other = leaving ? topology_.dst(link) : topology_.src(link);
        if (inside[at(other)] == inside[at(node)]) continue;
        exits.add(topology_, link, approaches_.around(link));
      }
    }
    if (exits.links() == 0) name_the_unreachable(inside);
    weigh(load, exits, {std::vector(nodes.begin(), nodes.end()), leaving});
    if (!in_time_) return;
    std::vector<NodeId> from, to;
    for (NodeId npu = 0; npu < topology_.npus(); ++npu)
      (inside[at(npu)] ? from : to).push_back(npu);
    weigh_in_time(inside, from, to, nodes, leaving);
  }

  // The same with the latencies of the paths to the links and beyond them, for what `from` sends `to`.
  void weigh_in_time(const NodeSet& outside, std::span<const NodeId> from,
                     std::span<const NodeId> to, std::span<const NodeId> nodes, bool leaving) {
    if (timed_.tired()) return;
    for (const auto& part : collective_.parts()) {
      std::vector<NodeId> senders, takers;
      std::vector<std::uint8_t> member(at(topology_.npus()), 0);
      for (const NodeId npu : part.group) member[at(npu)] = 1;
      const auto select = [&](std::span<const NodeId> npus, std::vector<NodeId>& chosen,
                              bool root) {
        for (const NodeId npu : npus) {
          if (member[at(npu)] && (!root || npu == part.group[at(part.root)])) chosen.push_back(npu);
        }
      };
      select(from, senders, part.kind == broadcast || part.kind == scatter);
      select(to, takers, part.kind == reduce || part.kind == gather);
      const Time time = timed_.least(part, outside, senders, takers);
      if (time <= report_.timed.time) continue;
      report_.timed.time = time;
      report_.timed.nodes.assign(nodes.begin(), nodes.end());
      report_.timed.leaving = leaving;
      cut_ = {part.kind == all_reduce ? part.size : 0, outside, senders, takers};
    }
  }

  // Evaluates the best cut in time once more, by a dearer argument, if it may be what limits the time.
  void weigh_again() {
    if (cut_.size == 0 || static_cast<double>(report_.timed.time) * kMostGain <
                              static_cast<double>(std::max(report_.time, report_.farthest.time)))
      return;
    report_.timed.time = weighted_least(topology_, timed_, cut_.outside, cut_.senders, cut_.takers,
                                        cut_.size, report_.timed.time);
  }

  // Evaluates single NPUs against the NPUs that are at least some distance away.
  void weigh_near_and_far() {
    for (const NodeId npu : representatives()) {
      for (const bool leaving : {true, false}) {
        if (timed_.tired()) return;
        NodeSet outside(at(topology_.nodes()), leaving ? 0 : 1);
        outside[at(npu)] = leaving ? 1 : 0;
        const auto& far = timed_.distance(npu, !leaving);
        std::vector<Time> times(far.begin(), far.begin() + topology_.npus());
        std::sort(times.begin(), times.end());
        times.erase(std::unique(times.begin(), times.end()), times.end());
        const auto stride = (times.size() + kMostRanges - 1) / kMostRanges;
        for (std::size_t i = 1; i < times.size(); i += stride) {
          std::vector<NodeId> others;
          for (NodeId other = 0; other < topology_.npus(); ++other) {
            if (other != npu && far[at(other)] >= times[i]) others.push_back(other);
          }
          const std::span<const NodeId> here(&npu, 1);
          if (leaving) {
            weigh_in_time(outside, here, others, here, leaving);
          } else {
            weigh_in_time(outside, others, here, here, leaving);
          }
        }
      }
    }
  }

  void weigh(const Crossing& load, const Exits& exits, Bottleneck bottleneck) {
    auto bytes = load.bytes, bandwidth = exits.bandwidth_Bps();
    while (bytes > kLargestTerm || bandwidth > kLargestTerm) bytes /= 2, bandwidth /= 2;
    const Ratio ratio{static_cast<std::int64_t>(bytes),
                      std::max<std::int64_t>(static_cast<std::int64_t>(bandwidth), 1)};
    if (static_cast<__int128>(ratio.bytes) * best_.bandwidth_Bps >
        static_cast<__int128>(best_.bytes) * ratio.bandwidth_Bps) {
      best_ = ratio;
      report_.bandwidth_s =
          static_cast<double>(load.bytes) / static_cast<double>(exits.bandwidth_Bps());
      bottleneck.bytes = static_cast<double>(load.bytes);
      bottleneck.links = exits.links();
      bottleneck.bandwidth_Bps = static_cast<double>(exits.bandwidth_Bps());
      report_.bottleneck = std::move(bottleneck);
    }
    const Time fluid = exits.fluid(load.bytes);
    const Time whole = whole_chunks(load, exits, topology_.spec().link_model, fluid);
    if (whole > report_.time) {
      report_.time = whole;
      report_.time_in_chunks = whole > fluid;
    }
  }

  void weigh_set(const NodeSet& inside, bool leaving) {
    std::vector<NodeId> nodes, others;
    for (NodeId node = 0; node < topology_.nodes(); ++node) {
      (inside[at(node)] ? nodes : others).push_back(node);
    }
    // The smaller side is easier to describe.
    if (nodes.size() <= others.size()) {
      weigh(nodes, leaving);
    } else {
      weigh(others, !leaving);
    }
  }

  [[noreturn]] void name_the_unreachable(const NodeSet& inside) const {
    std::pair<NodeId, NodeId> found{0, 0};
    deliveries(collective_, [&](const Delivery& delivery) {
      for (const NodeId a : delivery.from) {
        for (const NodeId b : delivery.to) {
          const auto [from, to] = delivery.reversed ? std::pair{b, a} : std::pair{a, b};
          if (!inside[at(from)] || inside[at(to)]) continue;
          found = {from, to};
          return false;
        }
      }
      return true;
    });
    unreachable(topology_, found.first, found.second);
  }

  // The NPUs whose links need the most time, out and in, without and with latency.
  void weigh_ports() {
    const auto load = ports(collective_);
    // In a symmetric network, only the first and the last NPU: the last has the smallest piece.
    const NodeId stride = symmetric_ ? std::max<NodeId>(topology_.npus() - 1, 1) : 1;
    for (const bool leaving : {true, false}) {
      std::pair<double, NodeId> fullest{0, -1}, slowest{0, -1};
      for (NodeId npu = 0; npu < topology_.npus(); npu += stride) {
        const auto bytes = (leaving ? load.out : load.in)[at(npu)];
        if (bytes == 0) continue;
        double bandwidth = 1e-300;  // without links, the time exceeds all others
        Time latency = kLongestTime;
        for (const auto link : leaving ? topology_.out_links(npu) : topology_.in_links(npu)) {
          bandwidth += static_cast<double>(topology_.bandwidth(link));
          latency = std::min(latency, topology_.latency(link));
        }
        const auto time = bytes / bandwidth;
        const auto arrival = time + static_cast<double>(latency) / kPicosecondsPerSecond;
        if (time > fullest.first) fullest = {time, npu};
        if (arrival > slowest.first) slowest = {arrival, npu};
      }
      if (fullest.second < 0) continue;
      weigh(std::span(&fullest.second, 1), leaving);
      if (slowest.second != fullest.second) weigh(std::span(&slowest.second, 1), leaving);
    }
  }

  // Blocks of NPUs that agree in some of their coordinates: boxes, racks, rows, planes.
  void weigh_blocks() {
    for (const auto& chosen : dimension_choices(topology_)) {
      if (large_) {
        const auto block = block_of_first(topology_, chosen);
        weigh(block, true);
        weigh(block, false);
        continue;
      }
      const auto parts = blocks(topology_, chosen);
      if (parts.count < 2) continue;
      for (const bool leaving : {true, false}) {
        if (alike_) {
          weigh_narrowest(parts, leaving);
          continue;
        }
        // A wider block may have more to carry, so all are evaluated.
        for (std::int32_t block = 0; block < parts.count; ++block) {
          weigh(parts.nodes(block), leaving);
        }
      }
    }
  }

  void weigh_narrowest(const Parts& parts, bool leaving) {
    const auto width = parts.bandwidth(topology_, leaving);
    const auto narrow = std::min_element(width.begin(), width.end()) - width.begin();
    weigh(parts.nodes(static_cast<std::int32_t>(narrow)), leaving);
  }

  // Halves along every dimension, which all-to-all traffic has to cross.
  void weigh_halves() {
    const bool pairs = std::any_of(collective_.parts().begin(), collective_.parts().end(),
                                   [](const CollectivePart& part) {
                                     return part.traits().per_pair() || part.kind == send_recv;
                                   });
    if (!pairs) return;
    for (std::size_t d = 0; d < topology_.spec().dims.size(); ++d) {
      const auto half = half_along(topology_, d);
      weigh_set(half, true);
      weigh_set(half, false);
    }
  }

  // --- flows ---

  // One NPU of each class of equivalent NPUs.
  std::vector<NodeId> representatives() const {
    if (symmetric_ && (!uneven_ || topology_.npus() > kNpusForRemainders)) {
      return {0, topology_.npus() - 1};
    }
    const auto kind = labels();
    const auto same = exchanges_ ? exchanges_->classes(kind) : twin_;
    return first_of(same, kind);
  }

  // The first NPU of each class and kind.
  std::vector<NodeId> first_of(std::span<const NodeId> same,
                               std::span<const std::int32_t> kind) const {
    std::set<std::pair<NodeId, std::int32_t>> seen;
    std::vector<NodeId> result;
    for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
      if (seen.emplace(same[at(npu)], kind[at(npu)]).second) result.push_back(npu);
    }
    return result;
  }

  // Whether all parts are all-reduces and links are symmetric: then a set whose links
  // bind outwards also binds inwards, and one search finds both.
  bool two_way_sums() const {
    return balanced() && std::all_of(collective_.parts().begin(), collective_.parts().end(),
                                     [](const auto& part) { return part.kind == all_reduce; });
  }

  double flow_work() const {
    std::vector<Time> hop(at(topology_.links()), 1);
    const NodeId first = 0;
    const auto far = distances(topology_, std::span(&first, 1), hop, false);
    const auto longest = *std::max_element(far.begin(), far.end());
    return static_cast<double>(topology_.links() + topology_.nodes()) *
           static_cast<double>(std::max<Time>(longest, 1));
  }

  void search_flows(bool reversed) {
    const auto npus = representatives();
    const auto affordable = at(std::max(kFlowBudget / flow_work(), 1.0));
    const std::size_t stride =
        std::max<std::size_t>((npus.size() + affordable - 1) / affordable, 1);
    if (stride > 1) report_.all_cuts = false;
    std::optional<CutSearch> search;
    for (std::size_t i = 0; i < npus.size(); i += stride) {
      if (progress_)
        progress_((0.5 * reversed) +
                  0.5 * static_cast<double>(i) / static_cast<double>(npus.size()));
      const auto demand = demand_at(collective_, npus[i], reversed);
      if (!demand) continue;
      if (!search) search.emplace(topology_, reversed);
      deepen(*search, *demand, reversed);
      progress_.spend(static_cast<double>(search->take_visits()) * work::kArc +
                      static_cast<double>(topology_.links()) * work::kCell);
    }
  }

  std::vector<NodeId> npus_of(const NodeSet& nodes) const {
    std::vector<NodeId> result;
    for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
      if (nodes[at(npu)]) result.push_back(npu);
    }
    return result;
  }

  void search_custom() {
    std::optional<CutSearch> search;
    double left = kFlowBudget / flow_work();
    custom_demands(collective_, [&](const SinkDemand& demand) {
      if (!search) search.emplace(topology_, false);
      deepen(*search, demand, false);
      progress_.spend(static_cast<double>(search->take_visits()) * work::kArc);
      if (progress_) progress_(0.9);
      if (--left > 0) return true;
      report_.all_cuts = false;
      return false;
    });
  }

  // Dinkelbach's iteration from the best cut known.
  void deepen(CutSearch& search, const SinkDemand& demand, bool reversed) {
    while (const auto inside = search.above(demand, best_)) {
      const auto before = seconds(best_);
      weigh_set(*inside, !reversed);
      if (seconds(best_) <= before) return;  // rounding, or a relaxed search
    }
    if (!keep_tight_) return;
    auto npus = npus_of(search.tight());
    if (npus.size() == at(topology_.npus())) npus.clear();  // no set is tight
    tight_.push_back({demand.sink, best_, std::move(npus)});
  }

  // --- all-reduce among sets ---

  void weigh_parts(const CollectivePart& part, const Parts& parts) {
    if (parts.count < 2) return;
    for (const bool leaving : {true, false}) {
      const auto exits = parts.exits(topology_, approaches_, leaving);
      if (exits.links() == 0) continue;
      weigh(whole_buffer(part, 2 * (std::int64_t{parts.count} - 1)), exits,
            {parts.nodes(0), leaving, parts.count, parts.of});
      weigh_narrowest(parts, leaving);
    }
  }

  void weigh_dimensions(const CollectivePart& part) {
    // A switch that reduces or multicasts would have to be in one of the sets.
    const auto& capabilities = topology_.spec().switch_capabilities;
    if (std::any_of(capabilities.begin(), capabilities.end(), [](auto c) { return c != 0; }))
      return;
    for (const auto& chosen : dimension_choices(topology_)) {
      const auto block = block_of_first(topology_, chosen);
      NodeSet inside(at(topology_.nodes()));
      for (const NodeId node : block) inside[at(node)] = 1;
      Exits exits;
      for (const NodeId node : block) {
        for (const auto link : topology_.out_links(node)) {
          if (inside[at(topology_.dst(link))]) continue;
          exits.add(topology_, link, approaches_.around(link));
        }
      }
      std::int64_t npus = 0;
      for (const NodeId node : block) npus += topology_.is_npu(node);
      const auto sets = topology_.npus() / npus;
      exits.repeat(sets);
      weigh(whole_buffer(part, 2 * (sets - 1)), exits,
            {block, true, static_cast<std::int32_t>(sets)});
    }
  }

  void weigh_all_reduce(const CollectivePart& part) {
    if (part.members() < 2) return;
    for (const auto& chosen : dimension_choices(topology_)) {
      auto parts = blocks(topology_, chosen);
      parts.gather_members(topology_, part.group.span());
      weigh_parts(part, parts);
    }
    for (auto& parts : joined_faster(topology_)) {
      parts.gather_members(topology_, part.group.span());
      weigh_parts(part, parts);
    }
    if (part.members() < topology_.npus()) {
      weigh_parts(part, crowd(topology_, part.group.span()));
    }
    // An all-gather of the same buffer: its binding sets are those of the all-reduce, and the sum of the
    // times of both halves is attainable.
    auto half = part;
    half.chunks = 0;
    half.kind = all_gather;
    const Collective gathering(topology_.npus(), {half});
    Search forth(topology_, gathering, progress_, exchanges_);
    const double there = seconds(forth.run_flows(false));
    double back = there;
    if (!balanced()) {
      half.kind = reduce_scatter;
      const Collective scattering(topology_.npus(), {half});
      Search other(topology_, scattering, progress_, exchanges_);
      back = seconds(other.run_flows(true));
      report_.all_cuts = report_.all_cuts && other.all_cuts();
    }
    report_.all_cuts = report_.all_cuts && forth.all_cuts();
    auto parts = Parts::of_sets(topology_, forth.tight_sets());
    parts.gather_members(topology_, part.group.span());
    weigh_parts(part, parts);
    report_.two_halves = collective_.parts().size() == 1 && report_.all_cuts &&
                         report_.bandwidth_s * kSame >= there + back;
  }

  // All-reduces that run at once cross the borders of the same sets. If a set without a member of one all-reduce adds up for
  // it, then all p sets with a member send and receive, so that the 2(p - 1) passages counted are still a lower bound.
  void weigh_all_reduces() {
    std::vector<NodeId> members;
    for (const auto& part : collective_.parts()) {
      if (part.kind == all_reduce)
        members.insert(members.end(), part.group.begin(), part.group.end());
    }
    if (members.empty()) return;
    for (const auto& chosen : dimension_choices(topology_)) {
      auto parts = blocks(topology_, chosen);
      parts.gather_members(topology_, members);
      if (parts.count < 2) continue;
      Crossing load;
      for (const auto& part : collective_.parts()) {
        if (part.kind != all_reduce) continue;
        std::vector<std::int32_t> sets;
        for (const NodeId npu : part.group) sets.push_back(parts.of[at(npu)]);
        std::sort(sets.begin(), sets.end());
        const auto count = std::unique(sets.begin(), sets.end()) - sets.begin();
        const auto own = whole_buffer(part, 2 * (std::int64_t{count} - 1));
        load.bytes += own.bytes;
        for (const auto& [bytes, chunks] : own.chunks) load.chunks[bytes] += chunks;
      }
      if (load.bytes == 0) continue;
      for (const bool leaving : {true, false}) {
        const auto exits = parts.exits(topology_, approaches_, leaving);
        if (exits.links() > 0) weigh(load, exits, {parts.nodes(0), leaving, parts.count, parts.of});
      }
    }
  }

  bool balanced() const {
    for (NodeId node = 0; node < topology_.nodes(); ++node) {
      __int128 sum = 0;
      for (const auto link : topology_.out_links(node)) sum += topology_.bandwidth(link);
      for (const auto link : topology_.in_links(node)) sum -= topology_.bandwidth(link);
      if (sum != 0) return false;
    }
    return true;
  }

  static constexpr __int128 kLargestTerm = static_cast<__int128>(1) << 62;

  const Topology& topology_;
  const Collective& collective_;
  const Progress& progress_;
  const bool alike_;  // whether every NPU takes part in the same way
  const bool symmetric_;
  const bool uneven_;               // members' pieces differ by a byte
  const bool large_;                // too large for flows and for all shortest paths
  const std::vector<NodeId> twin_;  // the first node with the same neighbours
  Ratio best_;
  BoundReport report_;
  struct Tight {
    NodeId sink;
    Ratio time;  // of the best cut when it was searched
    std::vector<NodeId> npus;
  };
  bool keep_tight_ = false;
  bool in_time_ = false;  // whether timed cuts are evaluated, too
  struct {
    std::int64_t size = 0;  // of an all-reduce; 0: another collective
    NodeSet outside;
    std::vector<NodeId> senders, takers;
  } cut_;                                       // the best cut in time
  std::shared_ptr<const Exchanges> exchanges_;  // of equal parts, where all NPUs take part alike
  const Approaches approaches_;
  TimedCuts timed_;
  std::vector<Tight> tight_;
};

// After an all-gather's search: for each member the smallest binding set around it, unless it contains
// all members.
std::vector<std::vector<NodeId>> Search::tight_sets() {
  std::vector<std::vector<NodeId>> result;
  std::vector<NodeId> group(collective_.parts()[0].group.begin(),
                            collective_.parts()[0].group.end());
  std::sort(group.begin(), group.end());
  const auto kind = labels();
  std::map<NodeId, std::vector<NodeId>> around;
  std::optional<CutSearch> search;
  for (auto& found : tight_) {
    if (seconds(found.time) != seconds(best_)) {  // a narrower cut was found later
      if (!search) search.emplace(topology_, false);
      if (search->above(*demand_at(collective_, found.sink, false), best_)) continue;
      found.npus = npus_of(search->tight());
    }
    const auto& set = found.npus;
    if (set.empty() || std::includes(set.begin(), set.end(), group.begin(), group.end())) continue;
    if (symmetric_) {
      for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
        result.push_back(translated(topology_, set, npu));
      }
      return result;
    }
    if (exchanges_ && set.size() * group.size() <= kMostImages) {
      exchanges_->each_image(found.sink, set, kind, [&](NodeId npu, const auto& image) {
        if (topology_.is_npu(npu)) around.emplace(npu, image);
      });
    }
    around.emplace(found.sink, set);
  }
  std::map<NodeId, std::vector<NodeId>> twins;
  for (const NodeId npu : collective_.parts()[0].group) twins[twin_[at(npu)]].push_back(npu);
  for (const NodeId first : first_of(twin_, kind)) {
    const auto found = around.find(first);
    if (found == around.end()) continue;
    const auto& set = found->second;
    result.push_back(set);
    for (const NodeId npu : twins[twin_[at(first)]]) {
      if (std::binary_search(set.begin(), set.end(), npu)) continue;
      result.push_back(set);
      std::replace(result.back().begin(), result.back().end(), first, npu);
    }
  }
  return result;
}

// The traffic of all pairs along one dimension loads all links of that dimension equally.
void Search::weigh_lines() {
  double block = 0;
  for (const auto& part : collective_.parts()) {
    if (part.kind == all_to_all)
      block += std::floor(static_cast<double>(part.size) / part.members());
  }
  if (block == 0) return;
  const auto dims = lines(topology_, 0);
  report_.lines = !dims.empty();
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].hops == 0) continue;
    const double others = static_cast<double>(topology_.npus()) / topology_.spec().dims[d].size;
    const double time = block * others * static_cast<double>(dims[d].hops) /
                        static_cast<double>(dims[d].bandwidth_Bps);
    report_.even_lines = report_.even_lines && dims[d].even;
    if (time <= report_.line_s) continue;
    report_.line_s = time;
    report_.line = static_cast<std::int32_t>(d);
  }
}

}  // namespace

BoundReport bound(const Topology& topology, const Collective& collective,
                  const Progress& progress) {
  return Search(topology, collective, progress).run();
}

double distance_sum(const Topology& topology, const Collective& collective,
                    std::span<const std::int64_t> length, const Progress& progress) {
  double sum = 0;
  // From every NPU, even if the network is symmetric, since the lengths may not be.
  for (NodeId npu = 0; npu < topology.npus(); ++npu) {
    if (progress) progress(static_cast<double>(npu) / topology.npus());
    std::vector<std::int64_t> distance;
    for (const auto& part : collective.parts()) {
      if (part.kind != all_to_all && part.kind != all_to_all_v && part.kind != send_recv) continue;
      const Collective alone(topology.npus(), {part});
      const auto demand = demand_at(alone, npu, true);
      if (!demand) continue;
      if (distance.empty()) distance = distances(topology, std::span(&npu, 1), length, false);
      for (const auto& [node, bytes] : demand->supplies) {
        const auto far = std::max<std::int64_t>(distance[at(node)], 0);
        sum += static_cast<double>(far) * static_cast<double>(bytes);
      }
    }
  }
  return sum;
}

}  // namespace tacos
