// The orbit form of a schedule, checked independently by the verifier: whether the symmetry is a symmetry of the network
// and of the collective, and which image of each stored transfer is checked in place of all others.
//
// Of an orbit, only the chunks of the lowest member of each orbit of members are followed. Each stored transfer is moved
// by the element that takes its chunk's owner to that member.
//
// If the size does not divide evenly, images of a chunk differ in size by a byte. Then the chunks of each size are followed,
// and on links each transfer takes the time from the earliest entry to the latest end among its images.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/schedule.hpp"
#include "support/index.hpp"
#include "verify/findings.hpp"

namespace tacos::verification {

class Orbits {
 public:
  // The image of a stored transfer that is checked: the number of its chunk among those that are checked, and the element
  // that it is moved by.
  struct Image {
    std::uint32_t chunk;
    std::int32_t moved;
  };

  // The sizes of a chunk's images.
  struct Sizes {
    std::int64_t least, most;
  };

  // A schedule without a symmetry has one image of each transfer, the transfer itself.
  explicit Orbits(const Schedule& schedule);

  // Returns false, with a finding, if it is not a symmetry of the network and the collective.
  bool check(Findings& findings);

  // The lowest link of each link's orbit; without a symmetry each link itself.
  std::span<const LinkId> link_class() const { return link_class_; }
  // Whether the images of a link are all different, so that images of one transfer never meet there.
  bool moves(std::size_t link) const { return link_orbit_[link] == schedule_.symmetry()->size(); }

  // All chunks are checked; of an orbit, only those of the lowest member of each orbit of members.
  std::size_t checked_chunks() const {
    return schedule_.symmetry() ? owners_.size() * per_owner_ : at(collective_.chunks());
  }
  ChunkId checked_chunk(std::size_t i) const {
    if (!schedule_.symmetry()) return static_cast<ChunkId>(i);
    return static_cast<ChunkId>(owners_[i / per_owner_] * per_owner_ + i % per_owner_);
  }
  Image checked_image(std::size_t transfer) const {
    return schedule_.symmetry() ? images_of_[transfer] : Image{stored_.chunk[transfer], 0};
  }

  bool uneven() const { return !sizes_.empty(); }  // whether images of a chunk differ in size
  Sizes sizes(ChunkId chunk) const {
    if (sizes_.empty()) {
      const auto bytes = collective_.bytes(chunk);
      return {bytes, bytes};
    }
    return sizes_[size_class(chunk)];
  }

  NodeId image(NodeId node, std::int32_t element) const {
    if (element == 0) return node;
    if (element_[at(node)] >= 0) {
      return images_[first_image_[at(node)] + at(product(element_[at(node)], element))];
    }
    const auto& s = *schedule_.symmetry();
    for (std::size_t g = 0; g < s.orders.size(); ++g) {
      for (auto power = element % s.orders[g]; power > 0; --power) {
        node = s.node_image[g * element_.size() + at(node)];
      }
      element /= s.orders[g];
    }
    return node;
  }

 private:
  std::int32_t product(std::int32_t a, std::int32_t b) const {
    std::int32_t result = 0, stride = 1;
    for (const auto order : schedule_.symmetry()->orders) {
      result += (a % order + b % order) % order * stride;
      stride *= order;
      a /= order;
      b /= order;
    }
    return result;
  }

  // The orbit of the member on which the size of a chunk depends, and the piece.
  std::size_t size_class(ChunkId chunk) const {
    return at(orbit_of_[chunk / pieces_ % orbit_of_.size()]) * pieces_ + chunk % pieces_;
  }
  bool find_sizes(const CollectivePart& part, std::span<const NodeId> lowest, Findings& findings);

  std::int32_t inverse(std::int32_t a) const;
  bool check_generators(const Symmetry& s, Findings& findings) const;
  bool check_collective(const Symmetry& s, Findings& findings);
  void number_elements(const Symmetry& s, std::span<const NodeId> lowest);
  void find_images(const CollectivePart& part, std::span<const NodeId> lowest);

  const Schedule& schedule_;
  const Topology& topology_;
  const Collective& collective_;
  const Transfers& stored_;
  std::vector<LinkId> link_class_;
  std::vector<std::int64_t> link_orbit_;  // links per orbit, of the lowest link
  // Per node of an orbit as large as the group: the element that takes the orbit's lowest
  // node there (otherwise -1), and where in images_ the images of that lowest node begin.
  std::vector<std::int32_t> element_;
  std::vector<std::size_t> first_image_;
  std::vector<NodeId> images_;
  std::vector<std::size_t> owners_;  // positions of the orbits' lowest members in the group
  std::size_t per_owner_ = 1;        // chunks
  std::vector<Image> images_of_;     // per stored transfer
  // If images of a chunk differ in size: the orbit of each member, the pieces of a block, and the sizes of each class.
  std::vector<std::int32_t> orbit_of_;
  std::size_t pieces_ = 1;
  std::vector<Sizes> sizes_;
};

}  // namespace tacos::verification
