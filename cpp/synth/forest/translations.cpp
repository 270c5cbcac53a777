#include "synth/forest/translations.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "graph/best_first.hpp"
#include "support/index.hpp"

namespace tacos::forest {

namespace {

// Extends a move of the NPUs to all nodes and links, if it is a symmetry.
class Extension {
 public:
  Extension(const Topology& topology, std::vector<NodeId> npus)
      : topology_(topology), node_(std::move(npus)), link_(at(topology.links()), -1) {
    node_.resize(at(topology.nodes()), -1);
  }

  bool find() { return move_switches() && move_links(); }
  const std::vector<NodeId>& node() const { return node_; }
  const std::vector<LinkId>& link() const { return link_; }

 private:
  using Neighbour = std::tuple<NodeId, bool, std::int64_t, Time>;

  // The neighbours of a switch whose images are known: the images if `moved`, otherwise the nodes themselves.
  std::vector<Neighbour> around(NodeId node, bool moved) const {
    std::vector<Neighbour> result;
    const auto add = [&](NodeId other, bool out, LinkId link) {
      const NodeId image = moved ? node_[at(other)] : (taken_[at(other)] ? other : -1);
      if (image < 0) return;
      result.emplace_back(image, out, topology_.bandwidth(link), topology_.latency(link));
    };
    for (const LinkId link : topology_.out_links(node)) add(topology_.dst(link), true, link);
    for (const LinkId link : topology_.in_links(node)) add(topology_.src(link), false, link);
    std::sort(result.begin(), result.end());
    return result;
  }

  // Finds images of switches next to nodes with known images, until all switches have one.
  bool move_switches() {
    taken_.assign(node_.size(), 0);
    std::fill(taken_.begin(), taken_.begin() + topology_.npus(), 1);
    for (std::size_t open = node_.size() - at(topology_.npus()); open > 0;) {
      std::map<std::pair<std::vector<Neighbour>, std::uint8_t>, std::vector<NodeId>> free;
      const auto capabilities = [&](NodeId s) {
        return topology_.spec().switch_capabilities[at(s - topology_.npus())];
      };
      for (NodeId s = topology_.nodes() - 1; s >= topology_.npus(); --s) {
        if (taken_[at(s)]) continue;
        if (auto known = around(s, false); !known.empty()) {
          free[{std::move(known), capabilities(s)}].push_back(s);
        }
      }
      std::vector<std::pair<NodeId, NodeId>> found;
      for (NodeId s = topology_.npus(); s < topology_.nodes(); ++s) {
        if (node_[at(s)] >= 0) continue;
        const auto known = around(s, true);
        if (known.empty()) continue;
        const auto images = free.find({known, capabilities(s)});
        if (images == free.end() || images->second.empty()) return false;
        found.emplace_back(s, images->second.back());
        images->second.pop_back();
      }
      if (found.empty()) return false;
      for (const auto& [s, image] : found) {
        node_[at(s)] = image;
        taken_[at(image)] = 1;
      }
      open -= found.size();
    }
    return true;
  }

  bool move_links() {
    using Ends = std::tuple<NodeId, NodeId, std::int64_t, Time>;
    std::map<Ends, std::vector<LinkId>> free;
    const auto key = [&](LinkId link, NodeId from, NodeId to) {
      return Ends{from, to, topology_.bandwidth(link), topology_.latency(link)};
    };
    for (LinkId link = topology_.links() - 1; link >= 0; --link) {
      free[key(link, topology_.src(link), topology_.dst(link))].push_back(link);
    }
    for (LinkId link = 0; link < topology_.links(); ++link) {
      const auto images =
          free.find(key(link, node_[at(topology_.src(link))], node_[at(topology_.dst(link))]));
      if (images == free.end() || images->second.empty()) return false;
      link_[at(link)] = images->second.back();
      images->second.pop_back();
    }
    return true;
  }

  const Topology& topology_;
  std::vector<NodeId> node_;
  std::vector<LinkId> link_;
  std::vector<std::uint8_t> taken_;  // whether a node is an image
};

std::optional<Extension> move_along(const Topology& topology, std::int32_t stride,
                                    std::int32_t size) {
  std::vector<NodeId> npus;
  for (NodeId v = 0; v < topology.npus(); ++v) {
    npus.push_back(v / stride % size + 1 < size ? v + stride : v - (size - 1) * stride);
  }
  Extension extension(topology, std::move(npus));
  if (!extension.find()) return std::nullopt;
  return extension;
}

}  // namespace

std::optional<Translations> Translations::of(const Topology& topology, std::size_t first) {
  std::int64_t npus = 1;
  for (const auto& [kind, size] : topology.spec().dims) npus *= std::max(size, 1);
  if (topology.npus() < 2 || npus != topology.npus()) return std::nullopt;
  Translations result;
  result.npus_ = topology.npus();
  std::int32_t stride = 1;
  const auto& dims = topology.spec().dims;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto size = dims[d].size;
    for (std::int32_t by = 1; by < size && d >= first; ++by) {
      if (size % by == 0 && result.add(topology, {size / by, stride * by})) break;
    }
    stride *= std::max(size, 1);
  }
  if (result.axes_.empty()) return std::nullopt;
  result.find_orbits(topology);
  result.symmetry_.node_image = result.node_image_;
  result.symmetry_.link_image = result.link_image_;
  return result;
}

bool Translations::add(const Topology& topology, Axis axis) {
  const auto move = move_along(topology, axis.stride, axis.size);
  if (!move) return false;
  axes_.push_back(axis);
  order_ *= axis.size;
  symmetry_.orders.push_back(axis.size);
  node_image_.insert(node_image_.end(), move->node().begin(), move->node().end());
  link_image_.insert(link_image_.end(), move->link().begin(), move->link().end());
  if (find_orbits(topology)) return true;
  axes_.pop_back();
  order_ /= axis.size;
  symmetry_.orders.pop_back();
  node_image_.resize(node_image_.size() - at(topology.nodes()));
  link_image_.resize(link_image_.size() - at(topology.links()));
  return false;
}

bool Translations::find_orbits(const Topology& topology) {
  const auto links = at(topology.links());
  std::vector<LinkId> queue;
  orbit_.assign(links, -1);
  orbits_ = 0;
  for (LinkId first = 0; first < topology.links(); ++first) {
    if (orbit_[at(first)] >= 0) continue;
    queue.assign(1, first);
    orbit_[at(first)] = orbits_;
    for (std::size_t head = 0; head < queue.size(); ++head) {
      for (std::size_t g = 0; g < axes_.size(); ++g) {
        const LinkId image = link_image_[g * links + at(queue[head])];
        if (orbit_[at(image)] >= 0) continue;
        orbit_[at(image)] = orbits_;
        queue.push_back(image);
      }
    }
    if (queue.size() != at(order_)) return false;
    ++orbits_;
  }
  return true;
}

NodeId Translations::minus(NodeId u, NodeId v) const {
  NodeId result = 0;
  for (const auto& [size, stride] : axes_) {
    const auto digit = u / stride % size - v / stride % size;
    result += (digit < 0 ? digit + size : digit) * stride;
  }
  return result;
}

LinkId Translations::moved(LinkId link, NodeId element) const {
  const auto links = orbit_.size();
  for (std::size_t g = 0; g < axes_.size(); ++g) {
    for (auto times = element / axes_[g].stride % axes_[g].size; times > 0; --times) {
      link = link_image_[g * links + at(link)];
    }
  }
  return link;
}

Hops hops(const std::shared_ptr<const Topology>& topology, const Translations& translations) {
  using Key = std::tuple<Time, std::vector<std::int32_t>>;
  std::map<Key, std::size_t> known;
  Hops result;
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  BestFirst<Time> search(topology->nodes());
  for (const LinkId first : topology->out_links(0)) {
    search.clear();
    const auto go = [&](LinkId link, Time time) {
      if (topology->dst(link) != 0) search.offer(topology->dst(link), time, link);
    };
    go(first, topology->latency(first));
    while (const auto node = search.next()) {
      const Time time = search.key(*node);
      if (!topology->is_npu(*node)) {
        for (const LinkId link : topology->out_links(*node))
          go(link, time + topology->latency(link));
        continue;
      }
      std::vector<LinkId> path;
      for (NodeId back = *node; back != 0; back = topology->src(path.back())) {
        path.push_back(search.mark(back));
      }
      std::reverse(path.begin(), path.end());
      std::vector<std::int32_t> orbits;
      for (const LinkId link : path) orbits.push_back(translations.orbit()[at(link)]);
      std::sort(orbits.begin(), orbits.end());
      const auto [found, added] = known.try_emplace({time, orbits}, result.classes.size());
      if (added) result.classes.push_back({orbits, time, {}, {}});
      result.classes[found->second].by.push_back(*node);
      result.classes[found->second].routes.push_back(static_cast<RouteId>(begin.size() - 1));
      links.insert(links.end(), path.begin(), path.end());
      begin.push_back(static_cast<std::int64_t>(links.size()));
    }
  }
  std::vector<std::uint8_t> kinds(begin.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
  result.routes = std::make_shared<const Routes>(topology, std::move(kinds), std::move(begin),
                                                 std::move(links));
  return result;
}

}  // namespace tacos::forest
