#include "synth/refine.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/neighbours.hpp"
#include "synth/reservations.hpp"
#include "timing/compose.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr std::size_t kMostSpreadsAtOnce = 8;

// The routes of a schedule, then those between neighbours that are not among them.
Routes hops_of(const Schedule& schedule, const Progress& progress) {
  std::int64_t bytes = 1;
  for (ChunkId chunk = 0; chunk < schedule.collective().chunks(); ++chunk) {
    bytes = std::max(bytes, schedule.collective().bytes(chunk));
  }
  const auto near = neighbour_routes(schedule.shared_topology(), bytes, progress);
  std::map<std::vector<LinkId>, bool> seen;
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  std::vector<std::uint8_t> kinds;
  const auto add = [&](const Routes& from, RouteId r, bool always) {
    const auto path = from.links(r);
    const bool fresh = seen.emplace(std::vector(path.begin(), path.end()), true).second;
    if (!fresh && !always) return;
    kinds.push_back(from.kinds()[at(r)]);
    links.insert(links.end(), path.begin(), path.end());
    begin.push_back(static_cast<std::int64_t>(links.size()));
  };
  for (RouteId r = 0; r < schedule.routes().count(); ++r) {
    if (!schedule.routes().unicast(r) || schedule.routes().legs(r) != 1) {
      throw InfeasibleError(
          "only schedules over routes of one leg between two NPUs can be refined");
    }
    add(schedule.routes(), r, true);
  }
  for (RouteId r = 0; r < near.count(); ++r) {
    if (near.legs(r) == 1) add(near, r, false);
  }
  return Routes(schedule.shared_topology(), std::move(kinds), std::move(begin), std::move(links));
}

struct Delivery {
  RouteId hop;
  Time start, arrival;
};

struct Spread {
  ChunkId chunk;
  std::size_t size;  // which of the distinct sizes
  std::vector<std::pair<NodeId, Time>> holders;
  std::vector<NodeId> needed;  // NPUs that need it and do not hold it
  std::vector<Delivery> tree;
};

// A hop that a tree may take next.
struct Offer {
  Time arrival;
  std::uint64_t tie;
  Time start;
  RouteId hop;
  bool operator>(const Offer& other) const {
    return arrival != other.arrival ? arrival > other.arrival : tie > other.tie;
  }
};

struct Fixed {
  RouteId route;
  ChunkId chunk;
  std::uint8_t op, reads;
  Time start;
};

class Refinement {
 public:
  Refinement(const Schedule& schedule, const RefineOptions& options, const Progress& progress)
      : schedule_(schedule),
        hops_(std::make_shared<Routes>(hops_of(schedule, progress))),
        options_(options),
        random_(options.seed),
        reserved_(schedule.topology().links()),
        out_(at(schedule.topology().nodes())),
        reached_(at(schedule.topology().nodes()), kNever),
        useful_(at(schedule.topology().nodes())) {
    for (RouteId hop = 0; hop < hops_->count(); ++hop) out_[at(source(hop))].push_back(hop);
    read();
  }

  void run(const Progress& progress) {
    progress.spend(static_cast<double>(schedule_.stored().chunk.size()) * work::kTransfer);
    if (spreads_.empty()) return;
    std::vector<std::size_t> chosen;
    std::vector<std::vector<Delivery>> before;
    std::int64_t spent = 0;
    while (looked_at_ < options_.hops) {
      const Time end = *std::max_element(end_.begin(), end_.end());
      if (end <= std::max(options_.goal, fixed_end_)) break;
      if (progress) progress(static_cast<double>(looked_at_) / static_cast<double>(options_.hops));
      progress.spend(static_cast<double>(looked_at_ - spent) * work::kGap);
      spent = looked_at_;
      choose(end, chosen);
      before.resize(std::max(before.size(), chosen.size()));
      Time last = 0, sum = 0;
      for (std::size_t k = 0; k < chosen.size(); ++k) {
        last = std::max(last, end_[chosen[k]]);
        sum += end_[chosen[k]];
        occupy(chosen[k], false);
        before[k].clear();
        std::swap(before[k], spreads_[chosen[k]].tree);
      }
      Time new_last = 0, new_sum = 0;
      bool grown = true;
      for (const auto i : chosen) {
        grown = grown && grow(i);
        new_last = std::max(new_last, end_[i]);
        new_sum += end_[i];
      }
      if (grown && std::pair(new_last, new_sum) <= std::pair(last, sum)) continue;
      for (const auto i : chosen) occupy(i, false);
      for (std::size_t k = 0; k < chosen.size(); ++k) {
        std::swap(spreads_[chosen[k]].tree, before[k]);
        occupy(chosen[k], true);
      }
    }
  }

  Schedule result(std::string provenance, const Progress& progress) const {
    std::vector<RouteId> route;
    std::vector<ChunkId> chunk;
    std::vector<std::uint8_t> op, reads;
    std::vector<Time> start;
    const auto add = [&](const Fixed& one) {
      route.push_back(one.route);
      chunk.push_back(one.chunk);
      op.push_back(one.op);
      reads.push_back(one.reads);
      start.push_back(one.start);
    };
    for (const auto& one : fixed_) add(one);
    constexpr auto copy = static_cast<std::uint8_t>(Op::copy);
    constexpr auto acc = static_cast<std::uint8_t>(Reads::acc);
    for (const auto& spread : spreads_) {
      for (const auto& one : spread.tree) add({one.hop, spread.chunk, copy, acc, one.start});
    }
    const auto step = dense_rank(start);
    return with_starts(schedule_.shared_collective(), hops_, {route, chunk, step, op, reads}, start,
                       std::move(provenance), progress)
        .with_facts(schedule_.facts());
  }

 private:
  NodeId source(RouteId hop) const { return hops_->sources(hop)[0]; }
  NodeId destination(RouteId hop) const { return hops_->destinations(hop)[0]; }

  std::size_t size_of(std::int64_t bytes) {
    const auto [found, fresh] = sizes_.try_emplace(bytes, windows_.size());
    if (fresh) {
      auto& [windows, begin, flight] = windows_.emplace_back();
      begin.push_back(0);
      for (RouteId hop = 0; hop < hops_->count(); ++hop) {
        hops_->windows(hop, 0, bytes, windows);
        begin.push_back(windows.size());
        flight.push_back(hops_->leg_time(hop, 0, bytes));
      }
    }
    return found->second;
  }

  // Sorts the schedule into what is free and what is fixed.
  void read() {
    const auto& t = schedule_.stored();
    const auto& collective = schedule_.collective();
    const auto final_value = spread_final_values(schedule_);
    std::vector<std::size_t> spread_of(collective.chunks(), collective.chunks());
    std::vector<std::map<NodeId, Time>> sums(collective.chunks());  // when the last part came in
    for (std::int32_t lane = 0; lane < schedule_.lanes(); ++lane) {
      const RouteId route = t.lane_route[at(lane)];
      for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
        const ChunkId chunk = t.chunk[at(i)];
        const std::size_t size = size_of(collective.bytes(chunk));
        const Time start = schedule_.start(lane, i, 0), arrival = schedule_.arrival(lane, i);
        if (final_value[at(i)]) {
          if (spread_of[chunk] == collective.chunks()) {
            spread_of[chunk] = spreads_.size();
            spreads_.push_back({chunk, size, {}, {}, {}});
          }
          auto& spread = spreads_[spread_of[chunk]];
          spread.tree.push_back({route, start, arrival});
          continue;
        }
        fixed_.push_back({route, chunk, t.lane_op[at(lane)], t.lane_reads[at(lane)], start});
        fixed_end_ = std::max(fixed_end_, arrival);
        auto& complete = sums[chunk][schedule_.routes().destinations(route)[0]];
        complete = std::max(complete, arrival);
        take(route, size, start, true);
      }
    }
    end_.assign(spreads_.size(), 0);
    for (std::size_t i = 0; i < spreads_.size(); ++i) {
      auto& spread = spreads_[i];
      std::map<NodeId, bool> holds;
      if (collective.reduces(spread.chunk)) {
        for (const auto& one : spread.tree) holds[source(one.hop)] = true;
        for (const auto& one : spread.tree) holds.erase(destination(one.hop));
        for (const auto& [npu, _] : holds) {
          spread.holders.emplace_back(npu, sums[spread.chunk][npu]);
        }
      } else {
        for (const NodeId npu : collective.inputs(spread.chunk)) {
          holds[npu] = true;
          spread.holders.emplace_back(npu, 0);
        }
      }
      for (const NodeId npu : collective.outputs(spread.chunk)) {
        if (!holds.contains(npu)) spread.needed.push_back(npu);
      }
      occupy(i, true);
    }
  }

  // One of the latest chunks, which end at `last`, and others: half of them late ones, too.
  void choose(Time last, std::vector<std::size_t>& chosen) {
    late_.clear();
    for (std::size_t i = 0; i < end_.size(); ++i) {
      if (end_[i] == last) late_.push_back(i);
    }
    chosen.assign(1, late_[random_() % late_.size()]);
    const auto wanted = random_() % std::min(kMostSpreadsAtOnce, spreads_.size());
    for (std::uint64_t k = 0; k < wanted; ++k) {
      const bool late = late_.size() > 1 && random_() % 2;
      const auto i = late ? late_[random_() % late_.size()] : random_() % spreads_.size();
      if (std::find(chosen.begin(), chosen.end(), i) == chosen.end()) chosen.push_back(i);
    }
    std::shuffle(chosen.begin(), chosen.end(), random_);
  }

  std::span<const Routes::Window> windows(RouteId hop, std::size_t size) const {
    const auto& all = windows_[size];
    const auto first = all.begin[at(hop)];
    return std::span(all.windows).subspan(first, all.begin[at(hop) + 1] - first);
  }

  void take(RouteId hop, std::size_t size, Time start, bool taken) {
    reserved_.mark(windows(hop, size), start, taken);
  }

  // Takes the times of a chunk's tree, or gives them back; sets when the chunk has arrived.
  void occupy(std::size_t i, bool taken) {
    end_[i] = 0;
    for (const auto& one : spreads_[i].tree) {
      take(one.hop, spreads_[i].size, one.start, taken);
      end_[i] = std::max(end_[i], one.arrival);
    }
  }

  Time earliest(RouteId hop, std::size_t size, Time ready) {
    ++looked_at_;
    return reserved_.free_start(windows(hop, size), ready, false);
  }

  // Gives a chunk a new tree, adding the hop that arrives first each time; false if some NPU was not reached.
  bool grow(std::size_t i) {
    auto& spread = spreads_[i];
    offers_.clear();
    const auto& flight = windows_[spread.size].flight;
    touched_.clear();
    const auto offer = [&](RouteId hop) {
      const Time start = earliest(hop, spread.size, reached_[at(source(hop))]);
      offers_.push_back({start + flight[at(hop)], random_(), start, hop});
      std::push_heap(offers_.begin(), offers_.end(), std::greater<>());
    };
    const auto reach = [&](NodeId npu, Time time) {
      reached_[at(npu)] = time;
      touched_.push_back(npu);
      for (const RouteId hop : out_[at(npu)]) {
        if (reached_[at(destination(hop))] == kNever) offer(hop);
      }
    };
    auto missing = spread.needed.size();
    for (const NodeId npu : spread.needed) useful_[at(npu)] = 1;
    for (const auto& [npu, time] : spread.holders) reached_[at(npu)] = time;
    for (const auto& [npu, time] : spread.holders) reach(npu, time);
    while (missing > 0 && !offers_.empty()) {
      std::pop_heap(offers_.begin(), offers_.end(), std::greater<>());
      const Offer best = offers_.back();
      offers_.pop_back();
      const NodeId npu = destination(best.hop);
      if (reached_[at(npu)] != kNever) continue;
      if (links_busy(best.hop, spread.size, best.start)) {
        offer(best.hop);
        continue;
      }
      take(best.hop, spread.size, best.start, true);
      spread.tree.push_back({best.hop, best.start, best.arrival});
      missing -= useful_[at(npu)];
      reach(npu, best.arrival);
    }
    prune(i);
    for (const NodeId npu : touched_) reached_[at(npu)] = kNever;
    for (const NodeId npu : spread.needed) useful_[at(npu)] = 0;
    return missing == 0;
  }

  bool links_busy(RouteId hop, std::size_t size, Time start) {
    return earliest(hop, size, start) != start;
  }

  // Removes relays that forward nothing. Keeps the marks in `useful_` only for NPUs that need the chunk.
  void prune(std::size_t i) {
    auto& spread = spreads_[i];
    relays_.clear();
    kept_.clear();
    end_[i] = 0;
    for (auto one = spread.tree.rbegin(); one != spread.tree.rend(); ++one) {
      if (!useful_[at(destination(one->hop))]) {
        take(one->hop, spread.size, one->start, false);
        continue;
      }
      auto& from = useful_[at(source(one->hop))];
      if (!from) relays_.push_back(source(one->hop));
      from = 1;
      kept_.push_back(*one);
      end_[i] = std::max(end_[i], one->arrival);
    }
    for (const NodeId npu : relays_) useful_[at(npu)] = 0;
    std::swap(spread.tree, kept_);
  }

  struct Windows {
    std::vector<Routes::Window> windows;
    std::vector<std::size_t> begin;  // of each hop
    std::vector<Time> flight;        // from start to arrival
  };

  const Schedule& schedule_;
  std::shared_ptr<const Routes> hops_;
  RefineOptions options_;
  std::mt19937_64 random_;
  std::map<std::int64_t, std::size_t> sizes_;
  std::vector<Windows> windows_;  // per distinct size of chunks
  Reservations reserved_;
  std::vector<std::vector<RouteId>> out_;  // hops that leave a node
  std::vector<Spread> spreads_;
  std::vector<Time> end_;  // when each of them has arrived everywhere
  std::vector<Fixed> fixed_;
  Time fixed_end_ = 0;
  std::int64_t looked_at_ = 0;
  // Scratch of one move.
  std::vector<Time> reached_;
  std::vector<std::uint8_t> useful_;
  std::vector<NodeId> touched_, relays_;
  std::vector<std::size_t> late_;
  std::vector<Offer> offers_;  // a heap
  std::vector<Delivery> kept_;
};

}  // namespace

Schedule refine(const Schedule& schedule, const RefineOptions& options, std::string provenance,
                const Progress& progress) {
  if (schedule.symmetry()) {
    return refine(schedule.expand(), options, std::move(provenance), progress);
  }
  Refinement refinement(schedule, options, progress);
  refinement.run(progress);
  return refinement.result(std::move(provenance), progress);
}

}  // namespace tacos
