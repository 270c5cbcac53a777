#include "synth/forest/team_exchange.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "graph/best_first.hpp"
#include "support/error.hpp"
#include "support/index.hpp"
#include "synth/forest/chunks.hpp"
#include "synth/forest/timing.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr std::size_t kMostWork = 2'000'000;  // about a second

class TeamExchange {
 public:
  TeamExchange(std::shared_ptr<const Topology> topology, std::span<const NodeId> members,
               std::int32_t team, std::size_t chunks)
      : topology_(std::move(topology)), members_(members), team_(at(team)) {
    for (std::size_t x = 0; x < chunks; ++x) add(static_cast<ChunkId>(x));
  }

  std::optional<Schedule> schedule(std::shared_ptr<const Collective> collective,
                                   std::string provenance, const Progress& progress) {
    std::int64_t bytes = 0;
    for (ChunkId x = 0; x < collective->chunks(); ++x) {
      if (collective->bytes(x) == 0) return std::nullopt;
      bytes = std::max(bytes, collective->bytes(x));
    }
    const auto routes = straight(bytes);
    if (!routes || work(*routes) > kMostWork) return std::nullopt;
    std::vector<std::int32_t> every_link(at(topology_->links()));
    std::iota(every_link.begin(), every_link.end(), 0);
    const auto timing = forest::time_by_urgency(*routes, moves_, bytes, every_link, 1, progress);
    if (team_ > 1 && !sent_in_time(*routes, *collective, timing.start)) return std::nullopt;
    const Order order{moves_.route, moves_.chunk, moves_.step, op_, reads_};
    return with_starts(std::move(collective), routes, order, timing.start, std::move(provenance),
                       progress);
  }

 private:
  enum Step : std::int32_t { collect, across, spread };

  // For each pair, the fastest path through switches only; null if a pair has none of one leg.
  std::shared_ptr<const Routes> straight(std::int64_t bytes) const {
    std::vector<std::int64_t> begin{0};
    std::vector<LinkId> links;
    std::map<NodeId, std::vector<LinkId>> known;
    Fastest search(topology_->nodes());
    for (std::size_t r = 0; r < source_.size(); ++r) {
      const auto [found, added] = known.try_emplace(source_[r]);
      if (added) found->second = fastest_from(source_[r], bytes, search);
      const auto first = static_cast<std::ptrdiff_t>(links.size());
      for (NodeId node = destination_[r]; node != source_[r];) {
        const LinkId into = found->second[at(node)];
        if (into < 0) return nullptr;
        links.push_back(into);
        node = topology_->src(into);
      }
      std::reverse(links.begin() + first, links.end());
      begin.push_back(static_cast<std::int64_t>(links.size()));
    }
    std::vector<std::uint8_t> kinds(source_.size(), static_cast<std::uint8_t>(RouteKind::path));
    auto routes = std::make_shared<const Routes>(topology_, std::move(kinds), std::move(begin),
                                                 std::move(links));
    for (RouteId r = 0; r < routes->count(); ++r) {
      if (routes->legs(r) != 1) return nullptr;
    }
    return routes;
  }

  // The cost of timing: every transfer may trigger a look at all routes over one of its links.
  std::size_t work(const Routes& routes) const {
    std::vector<std::size_t> users(at(topology_->links()), 0);
    for (const LinkId link : routes.all_links().span()) ++users[at(link)];
    return moves_.route.size() * *std::max_element(users.begin(), users.end());
  }

  // The latencies and the slowest transmission on the way to a node, and the last link.
  struct Way {
    Time latency = 0, slowest = 0;
    LinkId into = -1;
  };
  using Fastest = BestFirst<Time, Way>;

  // The link into each node on the fastest path from the source; -1 if there is none.
  std::vector<LinkId> fastest_from(NodeId source, std::int64_t bytes, Fastest& search) const {
    search.clear();
    search.start(source, 0);
    while (const auto node = search.next()) {
      if (topology_->is_npu(*node) && *node != source) continue;
      const Way way = search.mark(*node);
      for (const LinkId link : topology_->out_links(*node)) {
        const Time latency = way.latency + topology_->latency(link);
        const Time slowest =
            std::max(way.slowest, transmission_time(bytes, topology_->bandwidth(link)));
        search.offer(topology_->dst(link), latency + slowest, {latency, slowest, link});
      }
    }
    std::vector<LinkId> into(at(topology_->nodes()), -1);
    for (const NodeId node : search.reached()) into[at(node)] = search.mark(node).into;
    return into;
  }

  NodeId member(std::size_t which, std::size_t place) const {
    return members_[which * team_ + place];
  }

  std::int32_t move(ChunkId chunk, NodeId from, NodeId to, Step step,
                    std::span<const std::int32_t> after) {
    const auto next = static_cast<RouteId>(source_.size());
    const auto [found, added] = known_.try_emplace({from, to}, next);
    if (added) {
      source_.push_back(from);
      destination_.push_back(to);
    }
    moves_.route.push_back(found->second);
    moves_.chunk.push_back(chunk);
    moves_.step.push_back(step);
    moves_.piece.push_back(static_cast<std::int32_t>(chunk));
    moves_.turn.push_back(to > from ? to - from : to - from + topology_->npus());
    moves_.after.insert(moves_.after.end(), after.begin(), after.end());
    moves_.close();
    op_.push_back(static_cast<std::uint8_t>(step == spread ? Op::copy : Op::reduce));
    reads_.push_back(static_cast<std::uint8_t>(team_ == 1 ? Reads::input : Reads::acc));
    return static_cast<std::int32_t>(moves_.route.size()) - 1;
  }

  void add(ChunkId chunk) {
    const auto teams = members_.size() / team_, place = chunk % team_;
    std::vector<std::vector<std::int32_t>> into(teams);
    for (std::size_t t = 0; t < teams; ++t) {
      for (std::size_t i = 0; i < team_; ++i) {
        if (i != place) into[t].push_back(move(chunk, member(t, i), member(t, place), collect, {}));
      }
    }
    const auto sums = into;
    for (std::size_t t = 0; t < teams; ++t) {
      for (std::size_t ahead = 1; ahead < teams; ++ahead) {
        const auto other = (t + ahead) % teams;
        into[other].push_back(move(chunk, member(t, place), member(other, place), across, sums[t]));
      }
    }
    for (std::size_t t = 0; t < teams; ++t) {
      for (std::size_t i = 0; i < team_; ++i) {
        if (i != place) move(chunk, member(t, place), member(t, i), spread, into[t]);
      }
    }
  }

  // Whether every owner sends its team's sum before anything is added to it.
  bool sent_in_time(const Routes& routes, const Collective& collective,
                    const std::vector<Time>& start) const {
    std::map<std::pair<ChunkId, NodeId>, Time> last, first;
    for (std::size_t i = 0; i < start.size(); ++i) {
      if (moves_.step[i] != across) continue;
      const auto r = moves_.route[i];
      const auto chunk = moves_.chunk[i];
      auto& sent = last[{chunk, source_[at(r)]}];
      sent = std::max(sent, start[i]);
      const Time arrival = start[i] + routes.leg_time(r, 0, collective.bytes(chunk));
      const auto [found, added] = first.try_emplace({chunk, destination_[at(r)]}, arrival);
      if (!added) found->second = std::min(found->second, arrival);
    }
    return std::ranges::all_of(last, [&](const auto& entry) {
      const auto found = first.find(entry.first);
      return found == first.end() || entry.second < found->second;  // arrivals come before starts
    });
  }

  std::shared_ptr<const Topology> topology_;
  std::span<const NodeId> members_;
  std::size_t team_;
  std::map<std::pair<NodeId, NodeId>, RouteId> known_;
  std::vector<NodeId> source_, destination_;  // of each route
  ForestMoves moves_;
  std::vector<std::uint8_t> op_, reads_;
};

}  // namespace

std::optional<Schedule> team_exchange(const std::shared_ptr<const Topology>& topology,
                                      std::span<const NodeId> members, std::int32_t team,
                                      std::shared_ptr<const Collective> collective,
                                      std::string provenance, const Progress& progress) {
  if (team < 1 || members.size() % at(team) != 0) {
    invalid("team is " + std::to_string(team) + "; it must divide the " +
            std::to_string(members.size()) + " members");
  }
  if (topology->spec().reduce_bandwidth_Bps != 0 || members.size() < 2) return std::nullopt;
  TeamExchange all(topology, members, team, collective->chunks());
  return all.schedule(std::move(collective), std::move(provenance), progress);
}

}  // namespace tacos
