// Numbers the pairs of a chunk and a node that transfers touch, so that one array can hold their states.
//
// A chunk whose transfers have at least as many ends as there are nodes gets one place per node. Any other chunk gets one
// place per end of its transfers, and its nodes are assigned to these places by hashing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/topology.hpp"
#include "support/index.hpp"
#include "support/large.hpp"

namespace tacos {

class Cells {
 public:
  // `ends` counts the sources and destinations of every chunk's transfers.
  Cells(std::int32_t nodes, const std::vector<std::uint32_t>& ends) : nodes_(at(nodes)) {
    begin_.reserve(ends.size() + 1);
    begin_.push_back(0);
    bool sparse = false;
    for (const auto count : ends) {
      sparse = sparse || (count > 0 && count < nodes_);
      begin_.push_back(begin_.back() + std::min<std::size_t>(count, nodes_));
    }
    if (sparse) node_at_.assign(begin_.back(), kNobody);
  }

  std::size_t size() const { return begin_.back(); }

  std::size_t operator()(std::size_t chunk, NodeId node) {
    const auto begin = begin_[chunk], places = begin_[chunk + 1] - begin;
    if (places == nodes_) return begin + at(node);
    auto place = at(node) * 0x9e3779b1u % places;
    while (node_at_[begin + place] != node) {
      if (node_at_[begin + place] == kNobody) {
        node_at_[begin + place] = node;
        break;
      }
      if (++place == places) place = 0;
    }
    return begin + place;
  }

  // A guess of the number, for prefetching: exact for chunks with one place per node.
  std::size_t guess(std::size_t chunk, NodeId node) const {
    const auto begin = begin_[chunk];
    return begin_[chunk + 1] - begin == nodes_ ? begin + at(node) : begin;
  }

 private:
  static constexpr NodeId kNobody = -1;
  std::size_t nodes_;
  std::vector<std::size_t> begin_;  // per chunk
  LargeVector<NodeId> node_at_;     // per place, if some chunks have fewer places than nodes
};

}  // namespace tacos
