#include "synth/paths.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "graph/best_first.hpp"
#include "model/port_routes.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/matching.hpp"

namespace tacos {

namespace {

constexpr Time kDearest = Time{1} << 60;      // highest price of a link
constexpr Time kMostShifted = Time{1} << 52;  // of which 1024 times as much fits 64 bits
constexpr Time kFarthest = Time{1} << 62;    // highest cost of a node, so that sums do not overflow
constexpr std::int64_t kSearches = 2048;     // at least, if there are as many chunks (chosen)
constexpr std::int64_t kWork = 400'000'000;  // links visited in all rounds, about (chosen)
constexpr std::size_t kSizes = 4;            // of chunks whose times are kept (chosen)
constexpr int kMostRounds = 6;
constexpr std::int64_t kWeight = 16;  // the price of the busiest link, in transmission times

// The chunks of one search: a single one, or several with the same holder and one destination each.
struct Batch {
  std::vector<ChunkId> chunks;
};

class Layer {
 public:
  Layer(const Topology& topology, const Collective& collective, const GreedyOptions& options)
      : topology_(topology),
        collective_(collective),
        backwards_(options.backwards),
        search_(topology.nodes()) {
    price_.resize(at(topology.links()));
    load_.assign(at(topology.links()), 0);
    wait_.assign(at(topology.links()), 0);
    links_.resize(collective.chunks());
    make_batches(options.seed);
  }

  // Calls `take` with the links of each chunk, without detours, and with them if that helps; and with
  // the share of the work that is done.
  template <typename Take>
  void run(const Progress& progress, const Take& take) {
    std::int64_t work = 1;
    for (const Batch& batch : batches_) {
      // Through switches, a tree with k destinations takes k searches, each from all its NPUs.
      const auto takers = static_cast<std::int64_t>(collective_.outputs(batch.chunks[0]).size());
      const auto again = topology_.nodes() > topology_.npus() ? takers * takers : takers;
      work += topology_.links() * (1 + again / topology_.npus());
    }
    const auto rounds = std::clamp<std::int64_t>(kWork / work, 1, kMostRounds);
    std::vector<std::vector<LinkId>> best;
    Time least = std::numeric_limits<Time>::max();
    for (std::int64_t round = 0; round < rounds; ++round) {
      detours_ = round > 0;
      for (std::size_t i = 0; i < batches_.size(); ++i) {
        const auto done = static_cast<double>(round) +
                          static_cast<double>(i) / static_cast<double>(batches_.size());
        const auto share = done / static_cast<double>(rounds);
        if (detours_) lift(batches_[i]);
        lay(batches_[i], part_of(progress, share, share));
      }
      const Time busiest = load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
      if (round == 0) take(links_, 1.0 / static_cast<double>(rounds));
      if (busiest >= least && round > 1) break;
      if (busiest >= least) continue;
      least = busiest;
      if (detours_) best = links_;
    }
    if (!best.empty()) take(best, 1.0);
  }

 private:
  void make_batches(std::uint64_t seed) {
    std::vector<std::vector<ChunkId>> simple(at(topology_.npus()));  // by holder
    std::int64_t pairs = 0;
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      const auto inputs = collective_.inputs(chunk), outputs = collective_.outputs(chunk);
      if (outputs.empty()) continue;
      if (inputs.size() == 1 && outputs.size() == 1) {
        if (inputs[0] == outputs[0]) continue;
        simple[at(inputs[0])].push_back(chunk);
        ++pairs;
      } else {
        batches_.push_back({{chunk}});
      }
    }
    const auto most = at(std::max<std::int64_t>(1, pairs / kSearches));
    for (auto& chunks : simple) {
      // Mix near and far destinations: those of one batch should not be neighbours.
      std::sort(chunks.begin(), chunks.end(), [&](ChunkId a, ChunkId b) {
        return std::pair(mix(a + seed), a) < std::pair(mix(b + seed), b);
      });
      for (std::size_t i = 0; i < chunks.size(); i += most) {
        const auto end = std::min(i + most, chunks.size());
        batches_.push_back({{chunks.begin() + static_cast<std::ptrdiff_t>(i),
                             chunks.begin() + static_cast<std::ptrdiff_t>(end)}});
      }
    }
    std::sort(batches_.begin(), batches_.end(), [&](const Batch& a, const Batch& b) {
      return std::pair(mix(std::uint64_t{2} * a.chunks[0] + seed), a.chunks[0]) <
             std::pair(mix(std::uint64_t{2} * b.chunks[0] + seed), b.chunks[0]);
    });
  }

  void lift(const Batch& batch) {
    for (const ChunkId chunk : batch.chunks) {
      const auto& busy = busy_times(collective_.bytes(chunk));
      for (const LinkId link : links_[chunk]) {
        load_[at(link)] -= busy[at(link)];
        stale_.push_back(link);
      }
      links_[chunk].clear();
    }
  }

  void lay(const Batch& batch, const Progress& progress) {
    bytes_ = collective_.bytes(batch.chunks[0]);
    busy_ = busy_times(bytes_);
    const auto most = std::max_element(load_.begin(), load_.end());
    if (most != load_.end()) {
      busiest_ = std::max<Time>(1, *most);
      const auto busy = busy_[at(most - load_.begin())];
      pipelined_ = detours_ ? std::max<Time>(1, busiest_ / busy / 8) : 1;
    }
    set_prices();
    progress.spend(static_cast<double>(topology_.links()) * work::kCell);
    search_.clear();
    for (const NodeId npu : collective_.inputs(batch.chunks[0])) search_.start(npu, 0);
    if (batch.chunks.size() == 1) {
      grow(batch.chunks[0], progress);
    } else {
      if (progress) progress(0.0);
      search([](NodeId) { return false; });
      for (const ChunkId chunk : batch.chunks) join(chunk, collective_.outputs(chunk)[0]);
    }
    spend(progress);
  }

  // The busy times of all links for a number of bytes. Most chunks have one of two sizes, and dividing is slow.
  const std::vector<Time>& busy_times(std::int64_t bytes) {
    if (known_.size() >= kSizes && !known_.contains(bytes)) known_.clear();
    auto& busy = known_[bytes];
    for (LinkId link = static_cast<LinkId>(busy.size()); link < topology_.links(); ++link) {
      busy.push_back(topology_.busy_time(link, bytes));
    }
    return busy;
  }

  // Sets the prices that have changed since the last time; `stale_` lists the links whose load or wait has.
  void set_prices() {
    const auto scale = std::tuple(detours_, busiest_, pipelined_, bytes_);
    if (std::exchange(scale_, scale) == scale) {
      for (const LinkId link : stale_) set_price(link);
    } else {
      for (LinkId link = 0; link < topology_.links(); ++link) set_price(link);
    }
    stale_.clear();
  }

  // Integers throughout: the same on every machine.
  void set_price(LinkId link) {
    const Time busy = busy_[at(link)], load = load_[at(link)];
    const auto share = load < kMostShifted
                           ? std::min<std::int64_t>(2048, load * 1024 / busiest_)
                           : static_cast<std::int64_t>(std::min<__int128>(
                                 2048, static_cast<__int128>(load) * 1024 / busiest_));
    const auto square = share * share >> 10;
    const auto weight = detours_ ? kWeight * square * square : share;  // of 2^20
    const auto price = (static_cast<__int128>(busy) * weight >> 20) + busy +
                       topology_.latency(link) + wait_[at(link)] / pipelined_;
    price_[at(link)] = static_cast<Time>(std::min<__int128>(kDearest, price));
  }

  // The next node at which `stop` is true. Nodes of the tree are sources: another path to them would deliver the chunk twice.
  template <typename Stop>
  std::optional<NodeId> search(const Stop& stop) {
    while (const auto node = search_.next()) {
      if (stop(*node)) return node;
      const Time cost = search_.key(*node);
      for (const LinkId link : topology_.out_links(*node)) {
        search_.offer(topology_.dst(link), std::min(cost + price_[at(link)], kFarthest), link);
      }
    }
    return std::nullopt;
  }

  void spend(const Progress& progress) {
    progress.spend(static_cast<double>(search_.take_offers()) * work::kVisit);
  }

  void grow(ChunkId chunk, const Progress& progress) {
    wanted_.assign(at(topology_.npus()), 0);
    for (const NodeId npu : collective_.outputs(chunk)) wanted_[at(npu)] = 1;
    std::size_t waiting = collective_.outputs(chunk).size();
    const auto served = [&](NodeId npu) {
      waiting -= wanted_[at(npu)];
      wanted_[at(npu)] = 0;
    };
    for (const NodeId npu : collective_.inputs(chunk)) served(npu);
    const auto wanted = [&](NodeId node) {
      return topology_.is_npu(node) && wanted_[at(node)] != 0;
    };
    while (waiting > 0) {
      if (progress) progress(0.0);
      spend(progress);
      const auto found = search(wanted);
      const auto path = join(chunk, found ? *found : first_wanted());
      Time time = search_.key(topology_.src(path[0])), delay = 0, slowest = 0;
      bool switched = false;
      for (const LinkId link : path) {
        const Time passes = transmission_time(bytes_, topology_.bandwidth(link));
        slowest = cut_through_ ? std::max(slowest, passes) : slowest + passes;
        delay += topology_.latency(link) + wait_[at(link)];
        // Further branches pay a higher price, and wait for this one.
        wait_[at(link)] += busy_[at(link)];
        set_price(link);
        const NodeId next = topology_.dst(link);
        if (!topology_.is_npu(next)) {
          switched = true;
          continue;
        }
        time = std::min(time + (delay + slowest) / pipelined_, kLongestSchedule);
        delay = slowest = 0;
        search_.start(next, time);
        served(next);
      }
      // The search continues from the new NPUs, unless it used old prices of links at switches.
      if (switched) search_.restart();
    }
    for (const LinkId link : links_[chunk]) wait_[at(link)] = 0;
  }

  NodeId first_wanted() const {
    const auto first = std::find(wanted_.begin(), wanted_.end(), 1);
    return static_cast<NodeId>(first - wanted_.begin());
  }

  // Adds the path that was found to `npu` to the chunk's links and to their loads.
  std::span<const LinkId> join(ChunkId chunk, NodeId npu) {
    if (!search_.reached(npu)) cannot_reach(topology_, collective_, chunk, npu, backwards_);
    const auto& busy = busy_times(collective_.bytes(chunk));
    auto& links = links_[chunk];
    const auto first = links.size();
    for (NodeId node = npu; !search_.source(node); node = topology_.src(links.back())) {
      links.push_back(search_.mark(node));
      Time& load = load_[at(links.back())];
      load += busy[at(links.back())];
      stale_.push_back(links.back());
      if (load > kLongestSchedule) too_long();
    }
    std::reverse(links.begin() + static_cast<std::ptrdiff_t>(first), links.end());
    return std::span(links).subspan(first);
  }

  const Topology& topology_;
  const Collective& collective_;
  const bool backwards_;
  const bool cut_through_ = topology_.spec().forwarding == Forwarding::cut_through;
  bool detours_ = false;  // whether a longer way around a busy link may be worth it
  std::vector<Batch> batches_;
  std::vector<std::vector<LinkId>> links_;  // of each chunk: path after path, from NPU to NPU
  Time busiest_ = 1;
  // The number of chunks that share the latency of their trees, since they follow each other in a pipeline:
  // an eighth of those on the busiest link, since not all trees are equally deep.
  Time pipelined_ = 1;
  std::int64_t bytes_ = 0;
  std::vector<Time> load_, price_;                      // of each link
  std::vector<Time> busy_;                              // of each link, for a chunk of `bytes_`
  std::map<std::int64_t, std::vector<Time>> known_;     // busy times of all links, by bytes
  std::vector<LinkId> stale_;                           // links whose prices may have changed
  std::tuple<bool, Time, Time, std::int64_t> scale_{};  // of all prices
  std::vector<Time> wait_;  // until the tree's branches so far have passed it
  BestFirst<Time>
      search_;  // from the NPUs of the tree, which have the chunk at the time of their key
  std::vector<std::uint8_t> wanted_;
};

// The hops of all chunks as rows of one table of routes.
class Table {
 public:
  Table(const std::shared_ptr<const Topology>& topology, const Collective& collective)
      : topology_(topology), collective_(collective), single_(at(topology->links()), -1) {}

  Paths make(const std::vector<std::vector<LinkId>>& links, const Progress& progress) {
    std::vector<std::size_t> begin{0};
    std::vector<RouteId> route;
    std::size_t spent = 0;
    for (const auto& row : links) {
      if (progress && begin.size() % 0x1000 == 0) progress(0.0);
      if (route.size() - spent > 0xfff) {
        progress.spend(static_cast<double>(route.size() - spent) * work::kTransfer);
        spent = route.size();
      }
      for (std::size_t first = 0, i = 0; i < row.size(); ++i) {
        if (!topology_->is_npu(topology_->dst(row[i]))) continue;
        route.push_back(id_of(std::span(row).subspan(first, i + 1 - first)));
        first = i + 1;
      }
      begin.push_back(route.size());
    }
    progress.spend(static_cast<double>(route.size() - spent) * work::kTransfer);
    Routes routes(topology_, std::move(kinds_), std::move(begin_), std::move(links_));
    auto remaining = times_left(routes, begin, route);
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      if (progress && chunk % 0x1000 == 0) progress(0.0);
      sort_by_source(routes, begin[chunk], begin[chunk + 1], route, remaining);
    }
    return {std::move(routes), std::move(begin), std::move(route), std::move(remaining)};
  }

 private:
  RouteId id_of(std::span<const LinkId> links) {
    RouteId& id = links.size() == 1
                      ? single_[at(links[0])]
                      : ids_.try_emplace(std::vector(links.begin(), links.end()), -1).first->second;
    if (id < 0) {
      id = static_cast<RouteId>(begin_.size() - 1);
      const auto first = links_.size();
      links_.insert(links_.end(), links.begin(), links.end());
      kinds_.push_back(static_cast<std::uint8_t>(ports_.replace(links_, first)));
      begin_.push_back(static_cast<std::int64_t>(links_.size()));
    }
    return id;
  }

  // A hop comes after the hop that feeds it, so one pass from the last to the first is enough.
  std::vector<Time> times_left(const Routes& routes, const std::vector<std::size_t>& begin,
                               const std::vector<RouteId>& route) const {
    std::vector<Time> remaining(route.size()), behind(at(topology_->npus()), 0);
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      for (auto hop = begin[chunk + 1]; hop-- > begin[chunk];) {
        const RouteId r = route[hop];
        Time time = behind[at(routes.destinations(r)[0])];
        for (std::int32_t leg = 0; leg < routes.legs(r); ++leg)
          time += routes.leg_time(r, leg, collective_.bytes(chunk));
        remaining[hop] = std::min(time, kLongestSchedule);
        Time& longest = behind[at(routes.sources(r)[0])];
        longest = std::max(longest, remaining[hop]);
      }
      for (auto hop = begin[chunk]; hop < begin[chunk + 1]; ++hop) {
        behind[at(routes.sources(route[hop])[0])] = 0;
      }
    }
    return remaining;
  }

  static void sort_by_source(const Routes& routes, std::size_t first, std::size_t last,
                             std::vector<RouteId>& route, std::vector<Time>& remaining) {
    std::vector<std::tuple<NodeId, RouteId, Time>> rows;
    for (auto hop = first; hop < last; ++hop) {
      rows.emplace_back(routes.sources(route[hop])[0], route[hop], remaining[hop]);
    }
    std::sort(rows.begin(), rows.end());
    for (auto hop = first; hop < last; ++hop) {
      std::tie(std::ignore, route[hop], remaining[hop]) = rows[hop - first];
    }
  }

  const std::shared_ptr<const Topology>& topology_;
  const Collective& collective_;
  std::vector<RouteId> single_;                 // by link; -1: none yet
  std::map<std::vector<LinkId>, RouteId> ids_;  // of longer routes
  std::vector<std::int64_t> begin_{0};
  std::vector<LinkId> links_;
  std::vector<std::uint8_t> kinds_;
  PortRoutes ports_{*topology_};
};

}  // namespace

std::vector<Paths> lay_paths(const std::shared_ptr<const Topology>& topology,
                             const Collective& collective, const GreedyOptions& options,
                             const Progress& progress) {
  std::vector<Paths> result;
  Layer(*topology, collective, options).run(progress, [&](const auto& links, double done) {
    result.push_back(Table(topology, collective).make(links, part_of(progress, done, done)));
  });
  return result;
}

}  // namespace tacos
