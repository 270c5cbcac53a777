#include "verify/orbits.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace tacos::verification {

namespace {

bool broken(Findings& findings, const std::string& message) {
  findings.add({"symmetry", -1, -1, -1, -1, message});
  return false;
}

bool check_order(std::span<const std::int32_t> image, std::int32_t order) {
  std::vector<bool> seen(image.size());
  for (std::size_t v = 0; v < image.size(); ++v) {
    if (seen[v]) continue;
    std::int32_t length = 0;
    auto w = static_cast<std::int32_t>(v);
    do {
      if (seen[at(w)]) return false;  // not a permutation
      seen[at(w)] = true;
      w = image[at(w)];
      ++length;
    } while (w != static_cast<std::int32_t>(v) && length <= order);
    if (order % length != 0 || w != static_cast<std::int32_t>(v)) return false;
  }
  return true;
}

bool commute(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  for (std::size_t v = 0; v < a.size(); ++v) {
    if (a[at(b[v])] != b[at(a[v])]) return false;
  }
  return true;
}

// The lowest member of each element's orbit.
std::vector<std::int32_t> classes(const Column<std::int32_t>& images, std::size_t count) {
  std::vector<std::int32_t> lowest(count, -1), stack;
  for (std::size_t v = 0; v < count; ++v) {
    if (lowest[v] >= 0) continue;
    stack.assign(1, static_cast<std::int32_t>(v));
    lowest[v] = static_cast<std::int32_t>(v);
    while (!stack.empty()) {
      const auto w = at(stack.back());
      stack.pop_back();
      for (std::size_t g = 0; g * count < images.size(); ++g) {
        const auto image = images[g * count + w];
        if (lowest[at(image)] >= 0) continue;
        lowest[at(image)] = static_cast<std::int32_t>(v);
        stack.push_back(image);
      }
    }
  }
  return lowest;
}

}  // namespace

Orbits::Orbits(const Schedule& schedule)
    : schedule_(schedule),
      topology_(schedule.topology()),
      collective_(schedule.collective()),
      stored_(schedule.stored()),
      link_class_(at(topology_.links())) {
  std::iota(link_class_.begin(), link_class_.end(), 0);
}

bool Orbits::check(Findings& findings) {
  if (!schedule_.symmetry()) return true;
  const auto& s = *schedule_.symmetry();
  if (!check_generators(s, findings)) return false;
  const auto links = at(topology_.links());
  link_class_ = classes(s.link_image, links);
  link_orbit_.assign(links, 0);
  for (const auto c : link_class_) ++link_orbit_[at(c)];
  return check_collective(s, findings);
}

bool Orbits::check_generators(const Symmetry& s, Findings& findings) const {
  const auto nodes = at(topology_.nodes()), links = at(topology_.links());
  for (std::size_t g = 0; g < s.orders.size(); ++g) {
    const auto node = s.node_image.slice(g * nodes, (g + 1) * nodes);
    const auto link = s.link_image.slice(g * links, (g + 1) * links);
    const auto name = "generator " + std::to_string(g);
    for (std::size_t v = 0; v < nodes; ++v) {
      const auto from = static_cast<NodeId>(v);
      if (topology_.is_npu(from) != topology_.is_npu(node[v]) ||
          topology_.can(from, kMulticast) != topology_.can(node[v], kMulticast) ||
          topology_.can(from, kReduce) != topology_.can(node[v], kReduce)) {
        return broken(findings,
                      name + " takes " + topology_.name(from) + " to a node of another kind");
      }
    }
    for (std::size_t l = 0; l < links; ++l) {
      const auto from = static_cast<LinkId>(l);
      if (topology_.src(link[l]) != node[at(topology_.src(from))] ||
          topology_.dst(link[l]) != node[at(topology_.dst(from))] ||
          topology_.latency(link[l]) != topology_.latency(from) ||
          topology_.bandwidth(link[l]) != topology_.bandwidth(from)) {
        return broken(findings, name + " takes " + topology_.describe(from) + " to " +
                                    topology_.describe(link[l]) + ", which is not its image");
      }
    }
    if (!check_order(node, s.orders[g]) || !check_order(link, s.orders[g])) {
      return broken(findings, name + " does not have order " + std::to_string(s.orders[g]));
    }
    for (std::size_t h = 0; h < g; ++h) {
      const auto other_node = s.node_image.slice(h * nodes, (h + 1) * nodes);
      const auto other_link = s.link_image.slice(h * links, (h + 1) * links);
      if (!commute(node, other_node) || !commute(link, other_link)) {
        return broken(findings, name + " and generator " + std::to_string(h) + " do not commute");
      }
    }
  }
  return true;
}

bool Orbits::check_collective(const Symmetry& s, Findings& findings) {
  const auto& part = collective_.parts()[0];
  if (collective_.parts().size() != 1 || !part.traits().uniform()) {
    return broken(findings,
                  "an orbit describes an all-gather, reduce-scatter, all-reduce or all-to-all");
  }
  const auto lowest = classes(s.node_image, at(topology_.nodes()));
  std::map<NodeId, std::int64_t> orbit;
  for (const NodeId npu : part.group) ++orbit[lowest[at(npu)]];
  for (const auto& [first, members] : orbit) {
    if (members != s.size()) {
      return broken(findings, "the group does not act freely on the orbit of " +
                                  topology_.name(first) + " within the process group");
    }
  }
  if (!find_sizes(part, lowest, findings)) return false;
  number_elements(s, lowest);
  find_images(part, lowest);
  return true;
}

// Owners of chunks or, of messages between pairs, their receivers determine the sizes.
bool Orbits::find_sizes(const CollectivePart& part, std::span<const NodeId> lowest,
                        Findings& findings) {
  if (collective_.uniform_bytes() > 0) return true;
  std::map<NodeId, std::int32_t> number;
  for (const NodeId npu : part.group) {
    const auto [found, added] =
        number.try_emplace(lowest[at(npu)], static_cast<std::int32_t>(number.size()));
    orbit_of_.push_back(found->second);
  }
  pieces_ = at(part.chunks);
  std::vector<Sizes> sizes(number.size() * pieces_, {std::numeric_limits<std::int64_t>::max(), 0});
  for (std::size_t chunk = 0; chunk < at(part.members()) * pieces_; ++chunk) {
    const auto bytes = collective_.bytes(static_cast<ChunkId>(chunk));
    if (bytes == 0) {
      return broken(findings, "chunk " + std::to_string(chunk) +
                                  " has no bytes; an orbit needs a byte for each chunk");
    }
    auto& [least, most] = sizes[size_class(static_cast<ChunkId>(chunk))];
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  sizes_ = std::move(sizes);
  return true;
}

// Elements of the group are numbered by the powers of the generators, of which the first varies
// fastest. If an orbit has as many nodes as the group has elements, each of its nodes is the image of
// the lowest under exactly one element.
void Orbits::number_elements(const Symmetry& s, std::span<const NodeId> lowest) {
  const auto nodes = lowest.size(), group = at(s.size());
  std::vector<std::size_t> members(nodes, 0);
  for (const NodeId first : lowest) ++members[at(first)];
  element_.assign(nodes, -1);
  first_image_.assign(nodes, 0);
  for (std::size_t v = 0; v < nodes; ++v) {
    if (members[v] != group) continue;
    const auto first = images_.size();
    images_.push_back(static_cast<NodeId>(v));
    for (std::size_t generator = 0; generator < s.orders.size(); ++generator) {
      const auto image = s.node_image.slice(generator * nodes, (generator + 1) * nodes);
      const auto block = images_.size() - first;  // the products of the generators before
      for (auto left = block * at(s.orders[generator] - 1); left > 0; --left) {
        images_.push_back(image[at(images_[images_.size() - block])]);
      }
    }
    for (std::size_t i = first; i < images_.size(); ++i) {
      element_[at(images_[i])] = static_cast<std::int32_t>(i - first);
      first_image_[at(images_[i])] = first;
    }
  }
}

std::int32_t Orbits::inverse(std::int32_t a) const {
  std::int32_t result = 0, stride = 1;
  for (const auto order : schedule_.symmetry()->orders) {
    result += (order - a % order) % order * stride;
    stride *= order;
    a /= order;
  }
  return result;
}

// Finds for each stored transfer the image that carries a chunk of the lowest member of an orbit.
void Orbits::find_images(const CollectivePart& part, std::span<const NodeId> lowest) {
  const auto position = collective_.positions();
  const auto n = at(part.members()), pieces = at(part.chunks);
  const bool pairs = part.traits().per_pair();
  per_owner_ = (pairs ? n : 1) * pieces;
  std::vector<std::size_t> orbit(lowest.size());
  for (std::size_t i = 0; i < n; ++i) {
    if (lowest[at(part.group[i])] != part.group[i]) continue;
    orbit[at(part.group[i])] = owners_.size();
    owners_.push_back(i);
  }
  images_of_.reserve(stored_.chunk.size());
  for (const ChunkId chunk : stored_.chunk) {
    const NodeId owner = part.group[chunk / per_owner_];
    const auto moved = inverse(element_[at(owner)]);
    auto rest = chunk % per_owner_;
    if (pairs) {
      const NodeId receiver = image(part.group[rest / pieces], moved);
      rest = at(position[at(receiver)]) * pieces + rest % pieces;
    }
    const auto index = orbit[at(lowest[at(owner)])] * per_owner_ + rest;
    images_of_.push_back({static_cast<std::uint32_t>(index), moved});
  }
}

}  // namespace tacos::verification
