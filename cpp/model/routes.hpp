// Routes: how a chunk gets from one NPU to another, as a table that transfers refer to.
//
// A route is one of
//   path       a chain of links from a source to a destination;
//   multicast  a tree of links from one source to several destinations, branching only at switches
//              that can multicast;
//   reduce     a tree of links from several sources to one end, joining only at switches that can
//              reduce;
//   spread     all paths from a source to a destination over a set of links without cycles, through
//              switches only. The chunk divides evenly over these paths, so a link carries the share
//              of the bytes that its paths are of all paths.
// Its ends are NPUs, or switches with a capability. A path is cut into legs wherever it passes a
// node that takes in whole chunks: every intermediate NPU, and under store-and-forward every node.
// A leg reserves all its links at once; between two legs the chunk waits in the node. A tree is one
// leg, and so is a spread route.
//
// Within a leg that starts at time 0 the head of the chunk reaches a link at the link's offset: the
// latencies before it (cut-through) or the whole arrival times before it (trees and spread routes under
// store-and-forward, where a joining switch waits for its last input). Where paths of a spread route meet,
// the last head and the slowest transmission count.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/topology.hpp"
#include "support/column.hpp"
#include "support/index.hpp"
#include "support/progress.hpp"

namespace tacos {

using RouteId = std::int32_t;

// The largest number of paths of a spread route; between ports with more, messages take the first (chosen).
inline constexpr std::int64_t kMostPaths = 1 << 20;

enum class RouteKind : std::uint8_t { path, multicast, reduce, spread };

class Routes {
 public:
  // `link_begin` delimits each route's links in `links`. A path lists them from source to
  // destination; a tree or a spread route in any order in which a link comes after the links that feed it.
  Routes(std::shared_ptr<const Topology> topology, Column<std::uint8_t> kinds,
         Column<std::int64_t> link_begin, Column<LinkId> links);  // throws std::invalid_argument

  const Topology& topology() const { return *topology_; }
  const std::shared_ptr<const Topology>& shared_topology() const { return topology_; }
  std::int32_t count() const { return static_cast<std::int32_t>(kinds_.size()); }
  RouteKind kind(RouteId r) const { return static_cast<RouteKind>(kinds_[at(r)]); }
  std::span<const LinkId> links(RouteId r) const { return links_.slice(from(r), from(r + 1)); }
  std::span<const NodeId> sources(RouteId r) const { return ends(r, kind(r) == RouteKind::reduce); }
  std::span<const NodeId> destinations(RouteId r) const {
    return ends(r, kind(r) != RouteKind::reduce);
  }
  std::int32_t legs(RouteId r) const { return legs_[at(r)]; }
  // Whether a chunk of any size reaches each link at the same offset: not where it waits between legs, nor where a tree or a
  // spread route leads through nodes that take in whole chunks.
  bool steady(RouteId r) const {
    const bool flows = topology_->spec().forwarding == Forwarding::cut_through;
    return legs(r) == 1 && (flows || kind(r) == RouteKind::path);
  }
  // Whether a message between NPUs can take it: a path or a spread route.
  bool unicast(RouteId r) const {
    return kind(r) == RouteKind::path || kind(r) == RouteKind::spread;
  }

  // The share of a chunk that crosses link number `i` of a route, as `of` equal parts of which it gets `parts`.
  struct Share {
    std::int32_t parts, of;
    std::int64_t bytes(std::int64_t whole) const {
      if (parts == of) return whole;
      return static_cast<std::int64_t>((static_cast<__int128>(whole) * parts + of - 1) / of);
    }
  };
  Share share(RouteId r, std::size_t i) const {
    return parts_.empty() ? Share{1, 1} : Share{parts_[from(r) + i], paths_[at(r)]};
  }

  const Column<std::uint8_t>& kinds() const { return kinds_; }
  const Column<std::int64_t>& link_begin() const { return link_begin_; }
  const Column<LinkId>& all_links() const { return links_; }

  // The same routes against the links of the reversed topology.
  Routes reversed(std::shared_ptr<const Topology> reversed_topology) const;

  bool operator==(const Routes& other) const {
    return kinds_ == other.kinds_ && link_begin_ == other.link_begin_ && links_ == other.links_;
  }

  // The time a link is taken by a transfer, counted from the start of the leg it belongs to.
  struct Window {
    LinkId link;
    Time offset;
    Time busy;
  };
  // Appends the windows of one leg of route r for a chunk of `bytes`, in the order of links(r).
  void windows(RouteId r, std::int32_t leg, std::int64_t bytes, std::vector<Window>& out) const;
  // From the start of leg `leg` to the arrival of the whole chunk at the leg's end (of a tree: at
  // destination number `destination`).
  Time leg_time(RouteId r, std::int32_t leg, std::int64_t bytes, std::size_t destination = 0) const;

 private:
  std::size_t from(RouteId r) const { return static_cast<std::size_t>(link_begin_[at(r)]); }
  // Positions in links(r) of a leg's first link and of the one after its last.
  std::pair<std::size_t, std::size_t> leg_links(RouteId r, std::int32_t leg) const;
  // The ends of r on its many side (a tree's leaves) or on its single side.
  std::span<const NodeId> ends(RouteId r, bool many) const;
  // Appends the windows of a spread route; returns the time from its start to the arrival.
  Time spread_windows(RouteId r, std::int64_t bytes, std::vector<Window>& out) const;
  void check_latency(RouteId r) const;
  void add_path(RouteId r);
  void add_tree(RouteId r);
  void add_spread(RouteId r);
  [[noreturn]] void refuse(RouteId r, const std::string& why) const;

  std::shared_ptr<const Topology> topology_;
  Column<std::uint8_t> kinds_;
  Column<std::int64_t> link_begin_;
  Column<LinkId> links_;
  // Per link, positions counted from the route's first link: the leg it belongs to, and the link
  // next to it on the side of the route's root (-1 at a leg's root). Of a spread route: the link's ends, as
  // numbers of the route's nodes, of which the source is 0.
  std::vector<std::int32_t> leg_, towards_root_;
  // Per route: the single end (source of a path or multicast, end of a reduce), the number of legs,
  // and the other ends with the link that touches each.
  std::vector<NodeId> roots_;
  std::vector<std::int32_t> legs_;
  std::vector<std::int64_t> leaves_begin_;
  std::vector<NodeId> leaves_;
  std::vector<std::int32_t> leaf_links_;
  // If there are spread routes, the paths over each link, and all paths of each route.
  std::vector<std::int32_t> parts_, paths_;
};

// Default paths: the direct link if there is one, or the switch that both NPUs are connected to; on
// products of rings, lines, cliques and switches dimension by dimension; otherwise the fewest hops with
// the lowest link ids. Throws InfeasibleError naming the pair that is not connected.
// Between the port at which such a path leaves an NPU and the port at which it enters another, switches route it
// as the topology's routing says.
Routes shortest_routes(std::shared_ptr<const Topology> topology, std::span<const NodeId> src,
                       std::span<const NodeId> dst, const Progress& progress);

}  // namespace tacos
