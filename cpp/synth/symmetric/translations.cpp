#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "synth/symmetric/abelian_group.hpp"
#include "synth/symmetric/symmetric.hpp"

namespace tacos {

namespace {

using symmetric::AbelianGroup;
using symmetric::Shift;

std::vector<NodeId> sorted_sources(const Topology& topology, NodeId node) {
  std::vector<NodeId> from;
  for (const LinkId link : topology.in_links(node)) from.push_back(topology.src(link));
  std::sort(from.begin(), from.end());
  return from;
}

// One move of all NPUs, extended to switches and links. Builders number the links of all NPUs in the
// same way, so the image of an NPU's link is nearly always the link at the same position; if it is
// not, the others are tried.
class Translation {
 public:
  Translation(const Topology& topology, const Shift& shift, std::span<NodeId> node,
              std::span<LinkId> link)
      : topology_(topology), node_(node), link_(link), taken_(link.size()) {
    for (NodeId v = 0; v < topology.npus(); ++v) node_[at(v)] = shift(v);
    std::fill(node_.begin() + topology.npus(), node_.end(), -1);
    std::fill(link_.begin(), link_.end(), -1);
    for (NodeId v = 0; v < topology.npus(); ++v) move_switches(v);
    for (NodeId s = topology.npus(); s < topology.nodes(); ++s) {
      if (node_[at(s)] < 0) refuse(topology.name(s));
    }
    const bool switched = topology.nodes() > topology.npus();  // else all links leave some NPU
    for (NodeId v = 0; v < topology.npus(); ++v) {
      move_links(topology.out_links(v), topology.out_links(node_[at(v)]));
      if (switched) move_links(topology.in_links(v), topology.in_links(node_[at(v)]));
    }
    for (LinkId l = 0; l < topology.links(); ++l) {
      if (link_[at(l)] < 0) refuse(topology.describe(l));
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    invalid("the symmetric engine needs a topology that is the same from every NPU, but " + what +
            " has no image under a move along a dimension");
  }

  void move_switches(NodeId v) {
    const auto from = topology_.out_links(v), to = topology_.out_links(node_[at(v)]);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const NodeId s = topology_.dst(from[i]);
      if (topology_.is_npu(s) || node_[at(s)] >= 0) continue;
      auto around = sorted_sources(topology_, s);
      if (!topology_.is_npu(around.back())) refuse(topology_.name(s));
      for (auto& npu : around) npu = node_[at(npu)];
      std::sort(around.begin(), around.end());
      for (std::size_t tried = 0; tried < to.size() && node_[at(s)] < 0; ++tried) {
        const NodeId image = topology_.dst(to[(i + tried) % to.size()]);
        if (topology_.is_npu(image) || sorted_sources(topology_, image) != around) continue;
        node_[at(s)] = image;
      }
    }
  }

  void move_links(std::span<const LinkId> from, std::span<const LinkId> to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const LinkId l = from[i];
      for (std::size_t tried = 0; tried < to.size() && link_[at(l)] < 0; ++tried) {
        const LinkId image = to[(i + tried) % to.size()];
        if (taken_[at(image)] || topology_.src(image) != node_[at(topology_.src(l))] ||
            topology_.dst(image) != node_[at(topology_.dst(l))] ||
            topology_.latency(image) != topology_.latency(l) ||
            topology_.bandwidth(image) != topology_.bandwidth(l)) {
          continue;
        }
        link_[at(l)] = image;
        taken_[at(image)] = true;
      }
    }
  }

  const Topology& topology_;
  std::span<NodeId> node_;
  std::span<LinkId> link_;
  std::vector<bool> taken_;
};

}  // namespace

Symmetry translations(const Topology& topology) {
  const AbelianGroup group(topology);
  const auto nodes = at(topology.nodes()), links = at(topology.links());
  Symmetry symmetry;
  std::vector<NodeId> node_image;
  std::vector<LinkId> link_image;
  if (group.axes().empty()) {  // a single NPU, moved to itself
    symmetry.orders = {1};
    node_image.resize(nodes);
    link_image.resize(links);
    std::iota(node_image.begin(), node_image.end(), 0);
    std::iota(link_image.begin(), link_image.end(), 0);
  }
  const auto count = group.axes().size();
  node_image.resize(std::max<std::size_t>(count, 1) * nodes);
  link_image.resize(std::max<std::size_t>(count, 1) * links);
  for (std::size_t d = 0; d < count; ++d) {
    const auto& axis = group.axes()[d];
    symmetry.orders.push_back(axis.size);
    const Translation move(topology, Shift(group, axis.stride),
                           std::span(node_image).subspan(d * nodes, nodes),
                           std::span(link_image).subspan(d * links, links));
  }
  symmetry.node_image = std::move(node_image);
  symmetry.link_image = std::move(link_image);
  return symmetry;
}

}  // namespace tacos
