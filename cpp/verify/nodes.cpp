// Chunks that can be proven right node by node.
//
// Whether a node may send a chunk depends only on what arrives there, so nodes are examined one by one, each with one row over
// all chunks that stays in the cache while the lanes into and out of the node are read once, from end to end. Following the
// chunks one by one would read all lanes out of order, and needs them sorted first.
//
// Two kinds of chunks are proven this way. A chunk is proven if the conditions hold at all nodes; all other chunks are left to
// check_chunks(), which reports violations, if there are any.
//
// Copied to all: every node that does not start with the chunk receives it exactly once, and sends it only afterwards. Then every
// node gets it, and every transfer is needed.
//
// Summed over all: every node but one, the root, sends what it has added up once, after all that it adds has arrived. Every
// transfer takes time, so these transfers form a tree, and the root ends with every contribution once. From
// there the sum is copied, after all parts have arrived: a node receives it at most once, and sends it only afterwards.
// The copies are of the root's sum, so all nodes have added up in the same order. A node that does not want the sum and receives
// it sends it on, so every transfer is needed.
//
// Times are compared in quanta: a start is not before an arrival if it is not before the arrival rounded up.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "support/parallel.hpp"
#include "verify/rules.hpp"

namespace tacos::verification {

namespace {

using Quanta = std::uint32_t;
constexpr Quanta kNotThere = std::numeric_limits<Quanta>::max();

enum class Kind : std::uint8_t { other, copied_to_all, summed_over_all };

class NodeRules {
 public:
  explicit NodeRules(const Examined& examined)
      : topology_(examined.schedule.topology()),
        collective_(examined.schedule.collective()),
        stored_(examined.schedule.stored()),
        lanes_(examined.lanes),
        chunks_(collective_.chunks()),
        left_(at(chunks_), 0),
        kind_(at(chunks_), Kind::other),
        wanted_by_all_(at(chunks_), 0),
        roots_(at(chunks_), 0) {}

  // Which chunks are left.
  std::vector<std::uint8_t> run(const Examined& examined) {
    sort_chunks();
    if (copied_.empty() && summed_.empty()) return std::move(left_);
    sort_lanes();
    const auto npus = at(topology_.npus());
    auto threads = std::min<std::size_t>(at(examined.threads), npus);
    // Rows are small compared with a large schedule, unless it has as many chunks as transfers.
    const auto row = at(chunks_) * (summed_.empty() ? 1 : 5) * sizeof(Quanta);
    const auto budget = std::max<std::size_t>(stored_.chunk.size(), std::size_t{1} << 26);
    threads = std::clamp<std::size_t>(budget / row, 1, threads);
    std::vector<Rows> rows(threads);
    for (auto& one : rows) {
      one.there.assign(at(chunks_), kNotThere);
      if (summed_.empty()) continue;
      one.added.assign(at(chunks_), 0);
      one.passed_on.assign(at(chunks_), kNotThere);
      one.sent.assign(at(chunks_), kNotThere);
      one.wanted = wanted_by_all_;
    }
    parallel(npus, 4, static_cast<std::int32_t>(threads), examined.progress, 0.2, 0.6,
             [&](std::size_t npu, std::int32_t thread) { check_node(npu, rows[at(thread)]); });
    for (const ChunkId chunk : summed_) {
      if (roots_[chunk] != 1) leave(chunk);
    }
    return std::move(left_);
  }

 private:
  // What one thread knows of the node it examines, by chunk.
  struct Rows {
    std::vector<Quanta> there;      // when a copy is there: 0 from the start
    std::vector<Quanta> added;      // sums: when the last part has arrived; 0: no part arrives
    std::vector<Quanta> passed_on;  // sums: when the node sends its part towards the root
    std::vector<Quanta> sent;       // sums: when the node first sends a copy
    std::vector<std::uint8_t> wanted;
  };

  // Lists of chunks or lanes by node.
  struct ByNode {
    std::vector<std::size_t> begin;
    std::vector<std::uint32_t> entry;

    template <typename Visit>  // visit(add) calls add(node, entry) in any order, twice the same
    void fill(std::size_t nodes, const Visit& visit) {
      begin.assign(nodes + 2, 0);
      visit([&](NodeId node, std::uint32_t) { ++begin[at(node) + 2]; });
      std::partial_sum(begin.begin(), begin.end(), begin.begin());
      entry.resize(begin.back());
      visit([&](NodeId node, std::uint32_t one) { entry[begin[at(node) + 1]++] = one; });
    }
    std::span<const std::uint32_t> of(std::size_t node) const {
      return std::span(entry).subspan(begin[node], begin[node + 1] - begin[node]);
    }
  };

  void leave(ChunkId chunk) { std::atomic_ref(left_[chunk]).store(1, std::memory_order_relaxed); }

  void sort_chunks() {
    const auto npus = at(topology_.npus());
    std::size_t listed = 0;
    for (ChunkId chunk = 0; chunk < chunks_; ++chunk) {
      const auto inputs = collective_.inputs(chunk).size();
      const auto outputs = collective_.outputs(chunk).size();
      if (!collective_.reduces(chunk) && outputs == npus) {
        kind_[chunk] = Kind::copied_to_all;
        copied_.push_back(chunk);
        listed += inputs;
      } else if (collective_.reduces(chunk) && inputs == npus && npus > 0 && outputs > 0) {
        kind_[chunk] = Kind::summed_over_all;
        summed_.push_back(chunk);
        wanted_by_all_[chunk] = outputs == npus;
        listed += outputs == npus ? 0 : outputs;
      } else {
        left_[chunk] = 1;
      }
    }
    // The lists below must stay small compared with the schedule.
    if (listed > stored_.chunk.size() / 8 + (std::size_t{1} << 20)) {
      std::fill(left_.begin(), left_.end(), 1);
      copied_.clear();
      summed_.clear();
      return;
    }
    holds_.fill(npus, [&](const auto& add) {
      for (const ChunkId chunk : copied_) {
        for (const NodeId npu : collective_.inputs(chunk)) add(npu, chunk);
      }
    });
    wants_.fill(npus, [&](const auto& add) {
      for (const ChunkId chunk : summed_) {
        if (wanted_by_all_[chunk]) continue;
        for (const NodeId npu : collective_.outputs(chunk)) add(npu, chunk);
      }
    });
  }

  // Lanes by their ends. Only paths of one leg between NPUs can be examined here.
  void sort_lanes() {
    const auto npus = topology_.npus();
    std::vector<std::uint8_t> usable(lanes_.count(), 1);
    for (std::size_t lane = 0; lane < lanes_.count(); ++lane) {
      const auto& route = lanes_.walk_of(lane);
      if (route.kind == RouteKind::path && route.legs == 1 && route.sources[0] < npus &&
          route.destinations[0] < npus) {
        continue;
      }
      usable[lane] = 0;
      for (auto i = stored_.lane_begin[lane]; i < stored_.lane_begin[lane + 1]; ++i) {
        leave(stored_.chunk[at(i)]);
      }
    }
    const auto by_end = [&](ByNode& lists, auto&& end) {
      lists.fill(at(npus), [&](const auto& add) {
        for (std::size_t lane = 0; lane < lanes_.count(); ++lane) {
          if (usable[lane]) add(end(lanes_.walk_of(lane)), static_cast<std::uint32_t>(lane));
        }
      });
    };
    by_end(in_, [](const Walk& route) { return route.destinations[0]; });
    by_end(out_, [](const Walk& route) { return route.sources[0]; });
  }

  // The transfers of a lane that carry chunks of a kind: visit(chunk, start).
  template <typename Visit>
  void each(std::size_t lane, Kind kind, const Visit& visit) const {
    const auto first = at(stored_.lane_begin[lane]), last = at(stored_.lane_begin[lane + 1]);
    const auto row = lanes_.row(lane, stored_.lane_begin[lane]);
    const ChunkId* const chunk = stored_.chunk.data() + first;
    const Quanta* const start = stored_.start.data() + row;
    const bool all = at(chunks_) == (kind == Kind::copied_to_all ? copied_ : summed_).size();
    for (std::size_t i = 0; i < last - first; ++i) {
      if (all || kind_[chunk[i]] == kind) visit(chunk[i], start[i]);
    }
  }

  // How many quanta, rounded up, after its start a transfer of a lane arrives.
  class Delay {
   public:
    Delay(const NodeRules& rules, std::size_t lane) : rules_(rules), lane_(lane) {
      slowest_ = std::numeric_limits<std::int64_t>::max();
      for (const auto& step : rules.lanes_.walk_of(lane).crossings) {
        latency_ += rules.topology_.latency(step.link);
        slowest_ = std::min(slowest_, rules.topology_.bandwidth(step.link));
      }
    }
    // When a transfer arrives, or kNotThere if that time is too large to store or the transfer takes no time.
    Quanta arrival(ChunkId chunk, Quanta start) {
      const auto bytes = rules_.collective_.bytes(chunk);
      if (bytes != bytes_) {
        bytes_ = bytes;
        const Time takes =
            latency_ + transmission_time(bytes, slowest_) + rules_.lanes_.reduce_time(lane_, bytes);
        const auto quantum = rules_.stored_.quantum;
        quanta_ = static_cast<std::uint64_t>((takes + quantum - 1) / quantum);
      }
      const auto there = start + quanta_;
      return quanta_ == 0 || there >= kNotThere ? kNotThere : static_cast<Quanta>(there);
    }

   private:
    const NodeRules& rules_;
    std::size_t lane_;
    Time latency_ = 0;
    std::int64_t slowest_;
    std::int64_t bytes_ = -1;
    std::uint64_t quanta_ = 0;
  };

  void check_node(std::size_t npu, Rows& rows) {
    if (!copied_.empty()) check_copies(npu, rows);
    if (!summed_.empty()) check_sums(npu, rows);
  }

  void check_copies(std::size_t npu, Rows& rows) {
    auto& there = rows.there;
    for (const ChunkId chunk : copied_) there[chunk] = kNotThere;
    for (const ChunkId chunk : holds_.of(npu)) there[chunk] = 0;
    for (const auto lane : in_.of(npu)) {
      Delay delay(*this, lane);
      const bool adds = lanes_.adds(lane);
      each(lane, Kind::copied_to_all, [&](ChunkId chunk, Quanta start) {
        const Quanta now = delay.arrival(chunk, start);
        if (there[chunk] != kNotThere || now == kNotThere || adds) leave(chunk);
        there[chunk] = now;
      });
    }
    for (const ChunkId chunk : copied_) {
      if (there[chunk] == kNotThere) leave(chunk);
    }
    for (const auto lane : out_.of(npu)) {
      const bool input = lanes_.reads_input(lane);
      each(lane, Kind::copied_to_all, [&](ChunkId chunk, Quanta start) {
        if (start < there[chunk] || (input && there[chunk] > 0)) leave(chunk);
      });
    }
  }

  void check_sums(std::size_t npu, Rows& rows) {
    auto& [there, added, passed_on, sent, wanted] = rows;
    for (const ChunkId chunk : summed_) {
      there[chunk] = passed_on[chunk] = sent[chunk] = kNotThere;
      added[chunk] = 0;
    }
    for (const auto lane : in_.of(npu)) {
      Delay delay(*this, lane);
      const bool adds = lanes_.adds(lane);
      each(lane, Kind::summed_over_all, [&](ChunkId chunk, Quanta start) {
        const Quanta now = delay.arrival(chunk, start);
        if (now == kNotThere || (!adds && there[chunk] != kNotThere)) leave(chunk);
        auto& then = adds ? added[chunk] : there[chunk];
        then = adds ? std::max(then, now) : now;
      });
    }
    for (const auto lane : out_.of(npu)) {
      const bool input = lanes_.reads_input(lane), adds = lanes_.adds(lane);
      each(lane, Kind::summed_over_all, [&](ChunkId chunk, Quanta start) {
        if (input || start == kNotThere || (adds && passed_on[chunk] != kNotThere)) leave(chunk);
        auto& then = adds ? passed_on[chunk] : sent[chunk];
        then = std::min(then, start);
      });
    }
    for (const ChunkId chunk : wants_.of(npu)) wanted[chunk] = 1;
    for (const ChunkId chunk : summed_) {
      const bool root = passed_on[chunk] == kNotThere, receives = there[chunk] != kNotThere;
      const bool sends = sent[chunk] != kNotThere;
      bool fine = false;
      if (root) {
        std::atomic_ref(roots_[chunk]).fetch_add(1, std::memory_order_relaxed);
        fine = !receives && (!sends || sent[chunk] >= added[chunk]);
      } else {
        fine = added[chunk] <= passed_on[chunk] &&
               (!sends || (receives && sent[chunk] >= there[chunk]));
        // A node that wants the sum receives it; a node that does not want it sends it on.
        fine = fine && (wanted[chunk] ? receives : !receives || sends);
      }
      if (!fine) leave(chunk);
    }
    for (const ChunkId chunk : wants_.of(npu)) wanted[chunk] = 0;
  }

  const Topology& topology_;
  const Collective& collective_;
  const Transfers& stored_;
  const Lanes& lanes_;
  const ChunkId chunks_;
  std::vector<std::uint8_t> left_;
  std::vector<Kind> kind_;
  std::vector<std::uint8_t> wanted_by_all_;
  std::vector<std::uint32_t> roots_;      // sums: number of nodes that do not send their part
  std::vector<ChunkId> copied_, summed_;  // the chunks of each kind
  ByNode holds_;                          // copied chunks that a node has from the start
  ByNode wants_;                          // sums that a node wants, where not all nodes do
  ByNode in_, out_;                       // lanes
};

}  // namespace

std::vector<std::uint8_t> check_nodes(const Examined& examined) {
  return NodeRules(examined).run(examined);
}

}  // namespace tacos::verification
