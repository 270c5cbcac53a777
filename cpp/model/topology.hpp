// A topology: nodes and directed links.
//
// Nodes 0 … npus-1 are NPUs (endpoints), the rest are switches, which forward and may be able to
// multicast (send one input to several outputs) or to reduce (join several inputs into one output).
// A link has a latency α and a bandwidth B. A transfer of m bytes that starts at t
//   - keeps the link busy until t + m/B (pipelined) or until t + α + m/B (blocking), and
//   - arrives whole at t + α + m/B.
// Parallel links are distinct links.
//
// A topology also keeps what its builder knew: a family ("torus"), the dimensions that give
// every NPU coordinates (NPU id = c0 + n0·(c1 + n1·(c2 + …))), and whether translating these
// coordinates is a symmetry of the network. Layouts, dimension-ordered routes, hierarchical
// algorithms and the symmetric engine use them; they are optional.
//
// A topology that was broken by edits keeps its faults, from which healthy() makes the network before them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/time.hpp"
#include "support/column.hpp"

namespace tacos {

using NodeId = std::int32_t;
using LinkId = std::int32_t;

enum class LinkModel : std::uint8_t { pipelined, blocking };
enum class Forwarding : std::uint8_t { cut_through, store_and_forward };
// Which of several equal paths through switches a message takes; equal paths have the fewest hops, whatever their speed.
//   spread        all of them: the message divides evenly
//   destination   one that depends on the destination alone, as in the tables of InfiniBand switches
//   first         the one with the lowest link ids
enum class Routing : std::uint8_t { spread, destination, first };

inline constexpr std::uint8_t kMulticast = 1;  // capability bits of a switch
inline constexpr std::uint8_t kReduce = 2;

struct Dimension {
  std::string kind;  // "ring", "line", "clique", "switch", or "box" for anything else
  std::int32_t size = 0;
  bool operator==(const Dimension&) const = default;
};

// What is wrong with a network: what its healthy network has and it lacks. Nodes and links are numbered as in
// the healthy network, whose other nodes and links are all present, in the same order.
struct Faults {
  Column<LinkId> link;        // links that are dead, or slow: at another speed; ascending
  Column<std::uint8_t> dead;  // per entry of `link`: 1 dead, 0 slow
  Column<NodeId> src, dst;    // their ends,
  Column<Time> latency_ps;    // and their speeds in the healthy network
  Column<std::int64_t> bandwidth_Bps;
  Column<NodeId> dropped;  // NPUs, and switches that lead nowhere without them; ascending
  std::vector<std::uint8_t> capabilities;  // of the dropped switches
  std::vector<std::string> names;          // of the dropped nodes, if nodes have names
  std::int32_t npus = 0;                   // of the healthy network, as the following two
  std::vector<Dimension> dims;
  bool symmetric = false;
  bool operator==(const Faults&) const = default;
};

// The data of a topology, which Topology's constructor checks.
struct TopologySpec {
  std::int32_t npus = 0;
  Column<std::uint8_t> switch_capabilities;  // one entry per switch
  Column<NodeId> link_src, link_dst;
  Column<Time> link_latency_ps;
  Column<std::int64_t> link_bandwidth_Bps;
  LinkModel link_model = LinkModel::pipelined;
  Forwarding forwarding = Forwarding::cut_through;
  Routing routing = Routing::spread;
  std::int64_t reduce_bandwidth_Bps = 0;  // 0: reducing is free
  std::string family;
  std::vector<Dimension> dims;
  bool symmetric = false;
  std::vector<std::string> names;  // of all nodes, or empty
  std::shared_ptr<Faults> faults;  // null: the network is healthy
};

class Topology {
 public:
  explicit Topology(TopologySpec spec);  // throws std::invalid_argument

  const TopologySpec& spec() const { return spec_; }
  std::int32_t npus() const { return spec_.npus; }
  std::int32_t nodes() const { return nodes_; }
  std::int32_t links() const { return static_cast<std::int32_t>(spec_.link_src.size()); }

  NodeId src(LinkId link) const { return spec_.link_src[index(link)]; }
  NodeId dst(LinkId link) const { return spec_.link_dst[index(link)]; }
  Time latency(LinkId link) const { return spec_.link_latency_ps[index(link)]; }
  std::int64_t bandwidth(LinkId link) const { return spec_.link_bandwidth_Bps[index(link)]; }

  bool is_npu(NodeId node) const { return node < spec_.npus; }
  bool can(NodeId node, std::uint8_t capability) const {
    return !is_npu(node) && (spec_.switch_capabilities[index(node - spec_.npus)] & capability) != 0;
  }

  // Links that leave or enter a node, in order of id.
  std::span<const LinkId> out_links(NodeId node) const {
    return adjacent(*out_, spec_.link_src, node);
  }
  std::span<const LinkId> in_links(NodeId node) const {
    return adjacent(*in_, spec_.link_dst, node);
  }

  // How long `bytes` keep a link busy under the link model.
  Time busy_time(LinkId link, std::int64_t bytes) const {
    const Time time = transmission_time(bytes, bandwidth(link));
    return spec_.link_model == LinkModel::blocking ? time + latency(link) : time;
  }

  // Two NPUs of which the first cannot reach the second, if there are any.
  std::optional<std::pair<NodeId, NodeId>> unreachable_pair() const;

  // Hops of the longest shortest path between NPUs, from at most `samples` evenly spread NPUs (a lower
  // bound if there are more); -1 if some NPU cannot be reached.
  std::int32_t diameter(std::int32_t samples) const;

  // Every link turned around, multicast and reduce exchanged. Link ids stay.
  Topology reversed() const;

  // The network without its faults.
  Topology healthy() const;

  std::string name(NodeId node) const;
  std::string describe(LinkId link) const;  // "link 3 (npu 0 -> npu 1)"

  bool operator==(const Topology& other) const;

 private:
  // Built on demand: code that uses the symmetry of a network never asks for it, and in such networks it
  // would be the largest part.
  struct Adjacency {
    std::once_flag made;
    std::vector<LinkId> begin, links;
  };
  template <typename Int>
  static std::size_t index(Int i) {
    return static_cast<std::size_t>(i);
  }
  std::span<const LinkId> adjacent(Adjacency& a, const Column<NodeId>& ends, NodeId node) const {
    std::call_once(a.made, [&] { make_adjacency(a, ends); });
    const auto from = index(a.begin[index(node)]), to = index(a.begin[index(node) + 1]);
    return std::span(a.links).subspan(from, to - from);
  }
  void make_adjacency(Adjacency& result, const Column<NodeId>& ends) const;
  // Hops from `from` along (or, if `backwards`, against) the links; -1 if there is no path.
  std::vector<std::int32_t> hops(NodeId from, bool backwards) const;
  void check() const;
  void check_faults(const Faults& faults) const;

  TopologySpec spec_;
  std::int32_t nodes_ = 0;
  std::shared_ptr<Adjacency> out_ = std::make_shared<Adjacency>();
  std::shared_ptr<Adjacency> in_ = std::make_shared<Adjacency>();
};

}  // namespace tacos
