// Networks that look the same from every NPU, described from one of them.
//
// The topology's dimensions give every NPU coordinates. If moving all NPUs by one along each dimension is a
// symmetry of the network, and no move but the identity keeps a link in place, then the trees of NPU 0
// together with all their images use each link exactly as often as NPU 0's trees use the links of its
// orbit. Then the trees of one NPU are the whole packing, and orbits are its only resources. Boxes on
// a common fabric are such networks, too, although they are not products.
//
// If a move by one along a dimension is not a symmetry, a move by several may be, for example if pairs of NPUs
// share a resource. Then, or if no move along a dimension is (as in boxes with irregular wiring), NPUs fall into
// several orbits, and the trees of one NPU of each orbit (its `base`) are the whole packing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/routes.hpp"
#include "model/schedule.hpp"
#include "model/topology.hpp"

namespace tacos::forest {

class Translations {
 public:
  // The translations along the dimensions from `first` on; nullopt if the network has no such symmetry.
  static std::optional<Translations> of(const Topology& topology, std::size_t first = 0);

  bool transitive() const { return order_ == npus_; }  // whether all NPUs are images of NPU 0
  std::int32_t order() const { return order_; }        // of the group
  // The representative of an NPU's orbit, and the element that moves it to the NPU (as the image of NPU 0).
  NodeId base(NodeId npu) const { return npu - element(npu); }
  NodeId element(NodeId npu) const { return minus(npu, 0); }
  LinkId moved(LinkId link, NodeId element) const;

  const Symmetry& symmetry() const { return symmetry_; }
  // The difference of two NPUs as elements of the group, by the coordinates that can be moved; 0 is the identity.
  NodeId minus(NodeId u, NodeId v) const;
  std::int32_t orbits() const { return orbits_; }
  const std::vector<std::int32_t>& orbit() const { return orbit_; }  // of each link

 private:
  Symmetry symmetry_;
  struct Axis {
    std::int32_t size, stride;
  };
  bool add(const Topology& topology, Axis axis);
  // Whether every orbit of links is as large as the group.
  bool find_orbits(const Topology& topology);

  std::int32_t npus_ = 0, order_ = 1;
  std::vector<Axis> axes_;
  std::vector<NodeId> node_image_;
  std::vector<LinkId> link_image_;
  std::vector<std::int32_t> orbit_;
  std::int32_t orbits_ = 0;
};

// Hops from NPU 0 that use the same orbits and take the same time: a chunk that has reached u may go on to
// u + by[i] over the image of routes[i].
struct HopClass {
  std::vector<std::int32_t> orbits;
  Time latency = 0;
  std::vector<NodeId> by;
  std::vector<RouteId> routes;
};

struct Hops {
  std::shared_ptr<const Routes> routes;  // all from NPU 0
  std::vector<HopClass> classes;
};

// The hops over each link out of NPU 0 to all NPUs that it leads to through switches, each on the fastest path.
Hops hops(const std::shared_ptr<const Topology>& topology, const Translations& translations);

}  // namespace tacos::forest
