// The parcels of an all-to-all, as symmetric.hpp describes them; a Clock runs them.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "graph/best_first.hpp"
#include "synth/symmetric/outlets.hpp"

namespace tacos::symmetric {

class AllToAll {
 public:
  AllToAll(const AbelianGroup& group, Clock& clock, std::int32_t pieces)
      : group_(group),
        clock_(clock),
        outlets_(clock.outlets),
        pieces_(pieces),
        parcels_(std::int64_t{group.order() - 1} * pieces),
        unfinished_(parcels_),
        left_(at(group.order()) * at(pieces)),
        flying_(left_.size(), false),
        queues_(outlets_.size()) {
    for (std::size_t m = 0; m < outlets_.size(); ++m) axis_of_.push_back(only_axis(m));
    for (std::size_t d = 0; d < group.axes().size(); ++d) {
      distance_.push_back(distances(d));
      shortest_.push_back(shortest_outlets(d));
    }
    check_memory();
    Time longest = 0, shortest = kNever;
    for (const auto& distance : distance_) {
      longest += *std::max_element(distance.begin(), distance.end());
    }
    for (const auto& outlet : outlets_) shortest = std::min(shortest, outlet.period);
    level_ = std::max(shortest, longest / kLevels + 1);
    for (auto& queue : queues_) queue.levels.resize(at(longest / level_) + 1);
    // Within a level, what was offered last is served first.
    for (NodeId v = 1; v < group.order(); ++v) {
      for (std::int32_t k = 0; k < pieces_; ++k) {
        left_[index(v, k)] = v;
        offer(v, k);
      }
    }
  }

  bool done() const { return unfinished_ == 0; }
  double share() const {
    return 1.0 - static_cast<double>(unfinished_) / static_cast<double>(parcels_);
  }
  Time release(Time) const { return kNever; }
  void begin(Time now) { now_ = now; }

  void arrive(const Sent& sent) {
    flying_[index(sent.to, sent.piece)] = false;
    offer(sent.to, sent.piece);
  }

  bool start(std::size_t m) {
    auto& [levels, top] = queues_[m];
    for (;; --top) {
      for (auto& parcels = levels[top]; !parcels.empty();) {
        const std::size_t parcel = parcels.back();
        parcels.pop_back();
        ++looked_at;
        if (flying_[parcel] || !serves(m, parcel)) continue;
        const auto v = static_cast<NodeId>(parcel / at(pieces_));
        const auto piece = static_cast<std::int32_t>(parcel % at(pieces_));
        clock_.sent[m].push_back({group_.minus(v, left_[parcel]), v, piece, now_});
        left_[parcel] = after(m, left_[parcel]);
        flying_[parcel] = true;
        if (left_[parcel] == 0) --unfinished_;
        return true;
      }
      ++looked_at;
      if (top == 0) return false;
    }
  }

  std::size_t looked_at = 0;  // parcels and levels; the clock counts them as work

 private:
  static constexpr Time kLevels = 1 << 14;
  static constexpr double kMostHops = 1 << 29;
  struct Queue {
    std::vector<std::vector<std::uint32_t>> levels;  // parcels by remaining work
    std::size_t top = 0;
  };

  std::size_t index(NodeId v, std::int32_t piece) const { return at(v) * at(pieces_) + at(piece); }

  void check_memory() const {
    double hops = 0;
    for (std::size_t d = 0; d < distance_.size(); ++d) {
      Time period = kNever;
      for (std::size_t m = 0; m < outlets_.size(); ++m) {
        if (axis_of_[m] == d) period = std::min(period, outlets_[m].period);
      }
      const auto sum = std::accumulate(distance_[d].begin(), distance_[d].end(), 0.0);
      hops += sum / static_cast<double>(period) * static_cast<double>(left_.size()) /
              static_cast<double>(distance_[d].size());
    }
    if (hops <= kMostHops) return;
    const auto bytes = hops * static_cast<double>(sizeof(Sent) + sizeof(ChunkId) * 2);
    throw Error("an all-to-all in which each of " + std::to_string(group_.order()) +
                " NPUs sends about " + std::to_string(static_cast<std::int64_t>(hops)) +
                " chunks needs " + std::to_string(static_cast<std::int64_t>(bytes) >> 30) +
                " GiB, more than the symmetric engine takes");
  }

  // The dimension in which an outlet moves.
  std::size_t only_axis(std::size_t m) const {
    std::optional<std::size_t> found;
    for (const NodeId by : outlets_[m].by) {
      for (std::size_t d = 0; d < group_.axes().size(); ++d) {
        if (AbelianGroup::digit(by, group_.axes()[d]) == 0) continue;
        if (found && *found != d) {
          invalid("the symmetric engine needs links along dimensions for an all-to-all");
        }
        found = d;
      }
    }
    return *found;
  }

  // The least outlet time that a chunk takes from 0 to each place of a dimension.
  std::vector<Time> distances(std::size_t d) const {
    const auto& axis = group_.axes()[d];
    BestFirst<Time, NoMark> search(axis.size);
    search.start(0, 0);
    while (const auto place = search.next()) {
      const Time so_far = search.key(*place);
      for (std::size_t m = 0; m < outlets_.size(); ++m) {
        // Moves commute, so a port may come first; once is enough, since two of its moves equal one.
        if (axis_of_[m] != d || (outlets_[m].port() && *place != 0)) continue;
        for (const NodeId by : outlets_[m].by) {
          search.offer((*place + AbelianGroup::digit(by, axis)) % axis.size,
                       so_far + outlets_[m].period);
        }
      }
    }
    std::vector<Time> distance;
    for (std::int32_t place = 0; place < axis.size; ++place) {
      if (!search.reached(place)) clock_.stuck();
      distance.push_back(search.key(place));
    }
    return distance;
  }

  // The rest of a displacement after an outlet has moved the chunk.
  NodeId after(std::size_t m, NodeId left) const {
    if (!outlets_[m].port()) return outlets_[m].back(left);
    const auto& axis = group_.axes()[axis_of_[m]];
    return left - AbelianGroup::digit(left, axis) * axis.stride;
  }

  // The outlets for the next move along a shortest path, per place of a dimension.
  std::vector<std::vector<std::size_t>> shortest_outlets(std::size_t d) const {
    const auto& axis = group_.axes()[d];
    std::vector<std::vector<std::size_t>> shortest(at(axis.size));
    for (std::int32_t place = 1; place < axis.size; ++place) {
      for (std::size_t m = 0; m < outlets_.size(); ++m) {
        if (axis_of_[m] != d) continue;
        const auto next = AbelianGroup::digit(after(m, place * axis.stride), axis);
        if (distance_[d][at(next)] + outlets_[m].period == distance_[d][at(place)]) {
          shortest[at(place)].push_back(m);
        }
      }
    }
    return shortest;
  }

  // The outlet for a parcel's next move in a dimension. If several are equally good, such as both directions
  // halfway around a ring, parcels that differ in other dimensions or in the piece take turns.
  std::optional<std::size_t> outlet_for(std::size_t d, std::size_t parcel) const {
    const auto& axis = group_.axes()[d];
    const auto& shortest = shortest_[d][at(AbelianGroup::digit(left_[parcel], axis))];
    if (shortest.size() < 2) return shortest.empty() ? std::nullopt : std::optional(shortest[0]);
    const auto v = parcel / at(pieces_), piece = parcel % at(pieces_), stride = at(axis.stride);
    const auto elsewhere = v / (stride * at(axis.size)) * stride + v % stride;
    return shortest[(elsewhere * at(pieces_) + piece) % shortest.size()];
  }

  bool serves(std::size_t m, std::size_t parcel) const {
    return outlet_for(axis_of_[m], parcel) == m;
  }

  void offer(NodeId v, std::int32_t piece) {
    const auto parcel = index(v, piece);
    if (left_[parcel] == 0) return;
    Time work = 0;
    for (std::size_t d = 0; d < distance_.size(); ++d) {
      work += distance_[d][at(AbelianGroup::digit(left_[parcel], group_.axes()[d]))];
    }
    const auto level = at(work / level_);
    for (std::size_t d = 0; d < distance_.size(); ++d) {
      const auto m = outlet_for(d, parcel);
      if (!m) continue;
      queues_[*m].levels[level].push_back(static_cast<std::uint32_t>(parcel));
      queues_[*m].top = std::max(queues_[*m].top, level);
    }
  }

  const AbelianGroup& group_;
  Clock& clock_;
  const std::vector<Outlet>& outlets_;
  std::int32_t pieces_;
  std::int64_t parcels_, unfinished_;
  Time now_ = 0;
  std::vector<NodeId> left_;  // per parcel: the rest of its displacement
  std::vector<bool> flying_;
  std::vector<std::size_t> axis_of_;                             // per outlet
  std::vector<std::vector<Time>> distance_;                      // per dimension and place
  std::vector<std::vector<std::vector<std::size_t>>> shortest_;  // outlets, likewise
  Time level_ = 1;
  std::vector<Queue> queues_;
};

}  // namespace tacos::symmetric
