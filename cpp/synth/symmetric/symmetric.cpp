#include "synth/symmetric/symmetric.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "synth/symmetric/all_to_all.hpp"
#include "synth/symmetric/gather.hpp"
#include "synth/symmetric/outlets.hpp"
#include "synth/symmetric/short_trees.hpp"

namespace tacos {

namespace {

using namespace symmetric;

// Trees of shortest paths are tried for at most this many pieces times NPUs, and moves times NPUs: some milliseconds (chosen).
constexpr std::int64_t kMostPieces = 65'536, kMostMoves = 1'048'576;

class Synthesis {
 public:
  Synthesis(std::shared_ptr<const Topology> topology, std::shared_ptr<const Collective> collective,
            const Progress& progress)
      : group_(*topology),
        topology_(std::move(topology)),
        collective_(std::move(collective)),
        progress_(progress),
        symmetry_(translations(*topology_)),
        outlets_(topology_, group_) {
    const auto& part = collective_->parts()[0];
    kind_ = part.kind;
    pieces_ = part.chunks;
    const auto cut = std::int64_t{group_.order()} * std::max(pieces_, 1);
    if (collective_->parts().size() != 1 || !part.traits().uniform() ||
        part.members() != group_.order() || !collective_->resolved() || part.size < cut) {
      invalid(
          "the symmetric engine needs an all-gather, reduce-scatter, all-reduce or all-to-all "
          "of all NPUs, with a byte for each chunk");
    }
    bytes_ = (part.size + cut - 1) / cut;
    position_ = collective_->positions();
  }

  Schedule run(std::string provenance) {
    find_times();
    return assemble(std::move(provenance));
  }

 private:
  struct Row {
    ChunkId chunk;
    std::uint32_t start;  // in quanta
  };
  using Lanes = std::vector<std::vector<Row>>;  // per route
  struct Found {
    Lanes summed, copied;
    Time last = 0;  // arrival
  };

  // Starts are 32-bit multiples of a quantum. If they do not fit, they are computed again, with times
  // rounded up to a larger quantum.
  void find_times() {
    const auto rate = topology_->spec().reduce_bandwidth_Bps;
    const bool sums = rate > 0 && traits(kind_).reduces;
    const Time reducing = sums ? transmission_time(bytes_, rate) : 0;
    outlets_.set_times(bytes_, 1);
    quantum_ = std::gcd(outlets_.quantum(), reducing);
    while (true) {
      outlets_.set_times(bytes_, quantum_);
      reduce_time_ = (reducing + quantum_ - 1) / quantum_ * quantum_;
      time_once();
      constexpr Time kMost = std::numeric_limits<std::uint32_t>::max();
      if (found_.last / quantum_ <= kMost) return;
      quantum_ = found_.last / kMost + found_.last / kMost / 64 + 1;
    }
  }

  void time_once() {
    if (kind_ == CollectiveKind::all_to_all) {
      found_ = empty();
      Clock clock{*topology_, outlets_.all(), 0, at_once()};
      AllToAll traffic(group_, clock, pieces_);
      clock.run(traffic, 0, progress_);
      store_all_to_all(std::move(clock.sent));
      return;
    }
    time_gathers<Gather>(progress_);
    if (!small()) return;
    auto first = std::move(found_);
    time_gathers<ShortTrees>(part_of(progress_, 1, 1));
    if (first.last <= found_.last) found_ = std::move(first);
  }

  bool small() const {
    std::int64_t moves = 0;
    for (const auto& outlet : outlets_.all()) moves += std::ssize(outlet.by);
    return std::int64_t{group_.order()} * pieces_ <= kMostPieces &&
           group_.order() * moves <= kMostMoves;
  }

  // Finds an all-gather, backwards or forwards or both.
  template <typename Traffic>
  void time_gathers(const Progress& progress) {
    found_ = empty();
    Clock clock{*topology_, outlets_.all(), 0, at_once()};
    std::vector<Time> released(at(pieces_), 0);
    if (kind_ != CollectiveKind::all_gather) {
      Clock backwards{*topology_, outlets_.all(), reduce_time_, at_once()};
      Traffic traffic(group_, backwards, released);
      backwards.run(traffic, 0, reported_from(progress, 0));
      store_reversed(std::move(backwards.sent), released, clock.free);
    }
    if (kind_ != CollectiveKind::reduce_scatter) {
      Traffic traffic(group_, clock, released);
      clock.run(traffic, *std::min_element(released.begin(), released.end()),
                reported_from(progress, 0.5));
      store_gather(std::move(clock.sent));
    }
  }

  std::vector<Time> at_once() const { return std::vector<Time>(outlets_.all().size(), 0); }
  Found empty() const {
    const Lanes lanes(at(outlets_.routes()->count()));
    return {lanes, lanes, 0};
  }

  // An all-reduce has two halves.
  Progress reported_from(const Progress& progress, double half) const {
    return traits(kind_).two_phases() ? part_of(progress, half, half + 0.5) : progress;
  }

  // Below, transfers are translated so that they leave NPU 0.

  void store_gather(Log log) {
    for (std::size_t m = 0; m < log.size(); ++m) {
      for (const auto& [from, to, piece, start] : std::exchange(log[m], {})) {
        const auto owner = position_[at(group_.minus(0, from))];
        store(found_.copied, m, group_.minus(to, from), owner, piece, start);
      }
    }
  }

  // An all-gather backwards in time. Sets when each piece is complete, and each outlet free.
  void store_reversed(Log log, std::vector<Time>& complete, std::vector<Time>& free) {
    Time end = 0;
    for (std::size_t m = 0; m < log.size(); ++m) {
      const Time takes = outlets_.all()[m].time + reduce_time_;
      if (!log[m].empty()) end = std::max(end, log[m].back().start + takes);
    }
    std::fill(complete.begin(), complete.end(), 0);
    for (std::size_t m = 0; m < log.size(); ++m) {
      const auto& outlet = outlets_.all()[m];
      const auto sent = std::exchange(log[m], {});
      for (auto i = sent.rbegin(); i != sent.rend(); ++i) {
        const Time start = end - outlet.time - reduce_time_ - i->start;
        store(found_.summed, m, group_.minus(i->to, i->from), position_[at(i->to)], i->piece,
              start);
        complete[at(i->piece)] = std::max(complete[at(i->piece)], end - i->start);
        free[m] = start + outlet.period;
      }
    }
  }

  void store_all_to_all(Log log) {
    for (std::size_t m = 0; m < log.size(); ++m) {
      const auto& outlet = outlets_.all()[m];
      for (const auto& [from, to, piece, start] : std::exchange(log[m], {})) {
        const NodeId left = group_.minus(to, from);
        const NodeId by = outlet.port() ? outlet_axis_part(outlet, left) : outlet.by[0];
        const auto owner = std::int64_t{position_[at(group_.minus(0, from))]};
        store(found_.copied, m, by, owner * group_.order() + position_[at(left)], piece, start);
      }
    }
  }

  // A port moves by all that is left in its dimension.
  NodeId outlet_axis_part(const Outlet& outlet, NodeId left) const {
    for (const auto& axis : group_.axes()) {
      if (AbelianGroup::digit(outlet.by[0], axis) != 0)
        return AbelianGroup::digit(left, axis) * axis.stride;
    }
    return 0;
  }

  void store(Lanes& lanes, std::size_t m, NodeId by, std::int64_t block, std::int32_t piece,
             Time start) {
    const auto& outlet = outlets_.all()[m];
    std::size_t which = 0;
    if (outlet.port()) {
      const auto found = std::lower_bound(outlet.by.begin(), outlet.by.end(), by);
      which = at(found - outlet.by.begin());
    }
    lanes[at(outlet.routes[which])].push_back({static_cast<ChunkId>(block * pieces_ + piece),
                                               static_cast<std::uint32_t>(start / quantum_)});
    found_.last = std::max(found_.last, start + outlet.time);  // no leg starts later
  }

  Schedule assemble(std::string provenance) {
    std::vector<RouteId> lane_route;
    std::vector<std::uint8_t> op, reads;
    std::vector<std::int64_t> lane_begin{0};
    std::vector<ChunkId> chunks;
    std::vector<std::uint32_t> starts;
    const auto add = [&](Lanes& lanes, Op what) {
      for (const auto& outlet : outlets_.all()) {
        for (const RouteId r : outlet.routes) {
          const auto rows = std::exchange(lanes[at(r)], {});
          if (rows.empty()) continue;
          lane_route.push_back(r);
          op.push_back(static_cast<std::uint8_t>(what));
          reads.push_back(static_cast<std::uint8_t>(Reads::acc));
          for (const auto& row : rows) chunks.push_back(row.chunk);
          std::uint32_t waited = 0;
          for (const Time leg : outlet.legs) {
            for (const auto& row : rows) starts.push_back(row.start + waited);
            waited += static_cast<std::uint32_t>(leg / quantum_);
          }
          lane_begin.push_back(static_cast<std::int64_t>(chunks.size()));
        }
      }
    };
    add(found_.summed, Op::reduce);
    add(found_.copied, Op::copy);
    Transfers transfers{
        std::move(lane_route), std::move(op),     std::move(reads), std::move(lane_begin),
        std::move(chunks),     std::move(starts), quantum_};
    return Schedule(collective_, outlets_.routes(), std::move(transfers), std::move(symmetry_),
                    std::move(provenance));
  }

  AbelianGroup group_;
  std::shared_ptr<const Topology> topology_;
  std::shared_ptr<const Collective> collective_;
  const Progress& progress_;
  Symmetry symmetry_;
  std::vector<std::int32_t> position_;  // of each NPU in the collective's group
  Outlets outlets_;
  CollectiveKind kind_;
  std::int32_t pieces_ = 0;
  std::int64_t bytes_ = 0;  // of the largest chunk
  Time quantum_ = 1;
  Time reduce_time_ = 0;
  Found found_;
};

}  // namespace

Schedule synthesize_symmetric(std::shared_ptr<const Topology> topology,
                              std::shared_ptr<const Collective> collective, std::string provenance,
                              const Progress& progress) {
  return Synthesis(std::move(topology), std::move(collective), progress).run(std::move(provenance));
}

}  // namespace tacos
