#include "lowering/by_orbit.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "lowering/lower.hpp"
#include "model/channel_routes.hpp"
#include "support/index.hpp"
#include "support/pairs.hpp"

namespace tacos {

// The images of nodes, or of links, under the elements of a group. Elements are numbered by the powers of the generators, of
// which the first varies fastest.
class ByOrbit::Images {
 public:
  Images(const std::vector<std::int32_t>& orders, const Column<std::int32_t>& images)
      : orders_(orders), lowest_(images.size() / orders.size(), -1), count_(lowest_.size(), 0) {
    const auto size = lowest_.size();
    for (std::size_t g = 0; g < orders.size(); ++g) {
      const auto generator = images.slice(g * size, (g + 1) * size);
      auto& powers = powers_.emplace_back();
      powers.emplace_back(generator.begin(), generator.end());
      while ((std::int64_t{1} << powers.size()) < orders[g]) {
        const auto& half = powers.back();
        std::vector<std::int32_t> twice(size);
        for (std::size_t i = 0; i < size; ++i) twice[i] = half[at(half[i])];
        powers.push_back(std::move(twice));
      }
    }
    std::vector<std::int32_t> found;
    for (std::size_t first = 0; first < size; ++first) {
      if (lowest_[first] >= 0) continue;
      found.assign(1, static_cast<std::int32_t>(first));
      lowest_[first] = found[0];
      for (std::size_t i = 0; i < found.size(); ++i) {
        for (const auto& powers : powers_) {
          const auto image = powers[0][at(found[i])];
          if (lowest_[at(image)] >= 0) continue;
          lowest_[at(image)] = static_cast<std::int32_t>(first);
          found.push_back(image);
        }
      }
      count_[first] = static_cast<std::int32_t>(found.size());
    }
  }

  std::int32_t image(std::int32_t of, std::int64_t element) const {
    for (std::size_t g = 0; element > 0; ++g) {
      const auto times = static_cast<std::uint64_t>(element % orders_[g]);
      for (std::size_t bit = 0; times >> bit != 0; ++bit) {
        if (times >> bit & 1) of = powers_[g][bit][at(of)];
      }
      element /= orders_[g];
    }
    return of;
  }
  std::int32_t lowest(std::int32_t of) const { return lowest_[at(of)]; }
  std::int32_t orbit_size(std::int32_t of) const { return count_[at(lowest(of))]; }

 private:
  const std::vector<std::int32_t>& orders_;
  std::vector<std::int32_t> lowest_;  // of the orbit of each
  std::vector<std::int32_t> count_;   // of the orbit's members, per lowest member
  std::vector<std::vector<std::vector<std::int32_t>>> powers_;  // 1, 2, 4, … of each generator
};

class ByOrbit::Group {
 public:
  Group(const Symmetry& symmetry, std::int32_t npus)
      : symmetry_(symmetry),
        nodes(symmetry.orders, symmetry.node_image),
        links(symmetry.orders, symmetry.link_image),
        element_(at(npus), 0),
        place_(at(npus), -1) {
    std::vector<NodeId> images;
    const auto count = symmetry.node_image.size() / symmetry.orders.size();
    for (NodeId npu = 0; npu < npus; ++npu) {
      if (nodes.lowest(npu) != npu) continue;
      free_ = free_ && nodes.orbit_size(npu) == symmetry.size();
      place_[at(npu)] = static_cast<std::int32_t>(ranks.size());
      ranks.push_back(npu);
      images.assign(1, npu);
      for (std::size_t g = 0; g < symmetry.orders.size(); ++g) {
        const auto block = images.size();
        for (auto left = block * at(symmetry.orders[g] - 1); left > 0; --left) {
          images.push_back(symmetry.node_image[g * count + at(images[images.size() - block])]);
        }
      }
      for (std::size_t i = 0; i < images.size(); ++i) {
        if (images[i] >= npus) free_ = false;
        if (free_) element_[at(images[i])] = static_cast<std::int64_t>(i);
      }
    }
  }

  // Whether no element but the identity keeps an NPU in place.
  bool is_free() const { return free_; }
  std::int64_t size() const { return symmetry_.size(); }
  // The element that takes an NPU to the lowest of its orbit.
  std::int64_t to_lowest(NodeId npu) const {
    std::int64_t element = element_[at(npu)], result = 0, stride = 1;
    for (const auto order : symmetry_.orders) {
      result += (order - element % order) % order * stride;
      stride *= order;
      element /= order;
    }
    return result;
  }
  std::int32_t orbit(NodeId npu) const { return place_[at(nodes.lowest(npu))]; }
  // The powers 1, 2, 4, … of each generator.
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> result;
    std::int64_t stride = 1;
    for (const auto order : symmetry_.orders) {
      for (std::int64_t power = 1; power < order; power *= 2) result.push_back(power * stride);
      stride *= order;
    }
    return result;
  }

 private:
  const Symmetry& symmetry_;
  bool free_ = true;

 public:
  const Images nodes, links;
  std::vector<NodeId> ranks;  // the lowest of each orbit of NPUs

 private:
  std::vector<std::int64_t> element_;  // per NPU: takes the lowest of its orbit there
  std::vector<std::int32_t> place_;    // per lowest NPU, in `ranks`
};

ByOrbit::ByOrbit(const Schedule& schedule, std::unique_ptr<Group> group, OrbitMoves moves)
    : schedule_(&schedule), group_(std::move(group)), moves_(std::move(moves)) {}
ByOrbit::~ByOrbit() = default;
ByOrbit::ByOrbit(ByOrbit&&) noexcept = default;

std::optional<ByOrbit> ByOrbit::of(const Schedule& schedule) {
  if (!schedule.symmetry()) return std::nullopt;
  const auto& topology = schedule.topology();
  const auto& collective = schedule.collective();
  const auto& stored = schedule.stored();
  const auto& part = collective.parts()[0];
  auto group = std::make_unique<Group>(*schedule.symmetry(), topology.npus());
  if (!group->is_free() || collective.parts().size() != 1 || !part.traits().uniform()) return {};

  OrbitMoves result;
  result.ranks = group->ranks;
  result.of.resize(group->ranks.size());
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  const auto position = collective.positions();
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId route = stored.lane_route[at(lane)];
    const NodeId src = schedule.routes().sources(route)[0];
    const NodeId dst = schedule.routes().destinations(route)[0];
    if (schedule.routes().kind(route) != RouteKind::path) return {};
    for (const NodeId end : {src, dst}) {
      const auto element = group->to_lowest(end);
      const auto moved = [&](NodeId npu) { return group->nodes.image(npu, element); };
      for (const LinkId link : schedule.routes().links(route)) {
        links.push_back(group->links.image(link, element));
      }
      begin.push_back(static_cast<std::int64_t>(links.size()));
      auto& moves = result.of[at(group->orbit(end))];
      for (auto i = stored.lane_begin[at(lane)]; i < stored.lane_begin[at(lane) + 1]; ++i) {
        Move move{moved(src),
                  moved(dst),
                  collective.image(stored.chunk[at(i)], moved, position),
                  static_cast<RouteId>(begin.size()) - 2,
                  static_cast<Op>(stored.lane_op[at(lane)]),
                  static_cast<Reads>(stored.lane_reads[at(lane)]),
                  schedule.start(lane, i, 0),
                  schedule.arrival(lane, i)};
        move.image_of = static_cast<std::int32_t>(i);
        moves.push_back(move);
      }
    }
  }
  const auto count = begin.size() - 1;
  result.routes = std::make_shared<const Routes>(
      schedule.shared_topology(),
      std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(RouteKind::path)),
      std::move(begin), std::move(links));
  const auto same = same_routes(*result.routes);
  // How many ranks add up the sums of each piece that begins at an orbit of ranks.
  std::vector<std::int32_t> made(group->ranks.size() * at(part.chunks), 0);
  for (auto& moves : result.of) {
    for (Move& move : moves) move.route = same[at(move.route)];
    assign_channels(*result.routes, moves);
    if (!part.traits().two_phases()) continue;
    const NodeId rank = result.ranks[at(&moves - result.of.data())];
    std::map<ChunkId, std::pair<Time, Op>> last;
    for (const Move& move : moves) {
      if (move.dst != rank) continue;
      auto& known = last.try_emplace(move.chunk, -1, Op::reduce).first->second;
      known = std::max(known, std::pair(move.arrival, move.op));
    }
    for (const auto& [chunk, end] : last) {
      const auto pieces = static_cast<ChunkId>(part.chunks);
      const auto owner = group->orbit(part.group[chunk / pieces]);
      const auto which = at(owner) * pieces + chunk % pieces;
      if (end.second == Op::reduce && made[which]++ > 0) return {};
    }
  }
  return ByOrbit(schedule, std::move(group), std::move(result));
}

Program ByOrbit::lower(std::int32_t window, const Progress& progress) const {
  return lower_orbit(*schedule_, moves_, window, progress);
}

bool ByOrbit::shares_links() const {
  std::map<LinkId, NodeId> known;  // per orbit of links: the difference of a connection's ends
  for (const auto& moves : moves_.of) {
    for (const Move& move : moves) {
      if (moves_.ranks[at(&moves - moves_.of.data())] != move.src) continue;
      for (const LinkId link : moves_.routes->links(move.route)) {
        if (known.try_emplace(group_->links.lowest(link), move.dst).first->second != move.dst) {
          return true;
        }
      }
    }
  }
  return false;
}

std::optional<simulation::MessageRoutes> ByOrbit::messages(const Program& program,
                                                           const Progress& progress) const {
  const auto& topology = schedule_->topology();
  const auto& s = program.spec();
  simulation::MessageRoutes own(program, schedule_->shared_topology(), {}, progress);
  const auto& routes = *own.routes;
  for (RouteId r = 0; r < routes.count(); ++r) {
    if (routes.kind(r) != RouteKind::path) return std::nullopt;
  }

  // Whether images of messages take the images of its links.
  const auto steps = group_->steps();
  std::vector<std::uint64_t> pairs;
  std::vector<ThreadId> senders;
  for (ThreadId t = 0; t < program.threads(); ++t) {
    if (s.thread_send_peer[at(t)] < 0) continue;
    senders.push_back(t);
    for (const auto element : steps) {
      pairs.push_back(pair_key(group_->nodes.image(s.thread_rank[at(t)], element),
                               group_->nodes.image(s.thread_send_peer[at(t)], element)));
    }
  }
  const ChannelRoutes images(schedule_->shared_topology(), std::move(pairs), progress);
  for (const ThreadId t : senders) {
    const auto links =
        routes.links(static_cast<RouteId>(own.connection[at(s.thread_begin[at(t)])]));
    for (const auto element : steps) {
      const auto there = images.routes()->links(images.of(
          group_->nodes.image(s.thread_rank[at(t)], element),
          group_->nodes.image(s.thread_send_peer[at(t)], element), s.thread_channel[at(t)]));
      const auto image = [&](LinkId link) { return group_->links.image(link, element); };
      if (!std::equal(links.begin(), links.end(), there.begin(), there.end(),
                      [&](LinkId a, LinkId b) { return image(a) == b; })) {
        return std::nullopt;
      }
    }
  }

  // The network of orbits. NPUs are split into those that send and those that receive, so that a message leads from one to another.
  const auto ranks = static_cast<NodeId>(group_->ranks.size());
  TopologySpec spec;
  spec.npus = 2 * ranks;
  spec.link_model = topology.spec().link_model;
  spec.forwarding = topology.spec().forwarding;
  spec.reduce_bandwidth_Bps = topology.spec().reduce_bandwidth_Bps;
  std::map<NodeId, NodeId> switches;
  std::map<LinkId, LinkId> known;
  std::vector<NodeId> src, dst;
  std::vector<Time> latency;
  std::vector<std::int64_t> bandwidth, begin{0};
  std::vector<LinkId> taken;
  const auto node = [&](NodeId of, bool sends) {
    if (topology.is_npu(of)) return group_->orbit(of) + (sends ? 0 : ranks);
    const auto next = static_cast<NodeId>(spec.npus + std::ssize(switches));
    return switches.try_emplace(group_->nodes.lowest(of), next).first->second;
  };
  for (RouteId r = 0; r < routes.count(); ++r) {
    for (const LinkId link : routes.links(r)) {
      if (group_->links.orbit_size(link) != group_->size()) return std::nullopt;
      const LinkId lowest = group_->links.lowest(link);
      const auto [found, added] = known.try_emplace(lowest, static_cast<LinkId>(src.size()));
      const auto first = taken.begin() + begin.back();
      if (std::find(first, taken.end(), found->second) != taken.end()) return std::nullopt;
      taken.push_back(found->second);
      if (!added) continue;
      src.push_back(node(topology.src(link), true));
      dst.push_back(node(topology.dst(link), false));
      if (src.back() == dst.back()) return std::nullopt;
      latency.push_back(topology.latency(link));
      bandwidth.push_back(topology.bandwidth(link));
    }
    for (const LinkId link : routes.links(r).subspan(1)) {
      if (topology.is_npu(topology.src(link))) return std::nullopt;
    }
    begin.push_back(static_cast<std::int64_t>(taken.size()));
  }
  spec.switch_capabilities = std::vector<std::uint8_t>(switches.size(), 0);
  spec.link_src = std::move(src);
  spec.link_dst = std::move(dst);
  spec.link_latency_ps = std::move(latency);
  spec.link_bandwidth_Bps = std::move(bandwidth);
  Routes orbits(
      std::make_shared<const Topology>(std::move(spec)),
      std::vector<std::uint8_t>(at(routes.count()), static_cast<std::uint8_t>(RouteKind::path)),
      std::move(begin), std::move(taken));
  return simulation::MessageRoutes(std::move(orbits), std::move(own.connection));
}

}  // namespace tacos
