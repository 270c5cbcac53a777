// Networks that look the same from every NPU, seen from one of them.
//
// The topology's dimensions give every NPU coordinates. If moving all NPUs by one along each dimension is a
// symmetry of the network, and no move but the identity keeps a link in place, then the trees of NPU 0
// together with all their images use each link exactly as often as NPU 0's trees use the links of its
// orbit. One NPU's trees then are the whole packing, and orbits are its only resources. Boxes on
// a common fabric are such networks, too, although they are no products.
//
// A dimension of n NPUs that cannot be moved by one may still be the product of two smaller ones, as
// where pairs of NPUs share something; all its factorizations into two are tried.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "routes.hpp"
#include "schedule.hpp"
#include "topology.hpp"

namespace tacos::forest {

class Translations {
 public:
  // None where the network has no such symmetry.
  static std::optional<Translations> of(const Topology& topology);

  const Symmetry& symmetry() const { return symmetry_; }
  // NPUs as elements of the group; 0 is the identity.
  NodeId minus(NodeId u, NodeId v) const;
  std::int32_t orbits() const { return orbits_; }
  const std::vector<std::int32_t>& orbit() const { return orbit_; }  // of each link

 private:
  Symmetry symmetry_;
  std::vector<std::int32_t> sizes_;
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

// By every link that leaves NPU 0, to all NPUs that it leads to through switches, each the fastest way.
Hops hops(const std::shared_ptr<const Topology>& topology, const Translations& translations);

}  // namespace tacos::forest
