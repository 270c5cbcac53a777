// The iteration order of libstdc++'s std::unordered_set<std::uint64_t>.
//
// ASTRA-sim visits the ready nodes of a custom collective in that order, so it determines which of two sends uses a
// link first. This class maintains the same singly linked list and the same growing number of buckets,
// so that results do not depend on the standard library that tacos is built with:
//   - a new key goes to the front of its bucket; a key of an empty bucket goes to the front of the list;
//   - the set grows when it is full, and then inserts its keys again, from first to last, by the same rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tacos {

class HashOrder {
 public:
  bool empty() const { return nodes_.size() == 1; }

  // Inserts a new key, and the value that for_each reports for it.
  void insert(std::uint64_t key, std::uint32_t value) {
    if (nodes_.size() > buckets_.size()) grow();
    nodes_.push_back({key, value, 0});
    link(static_cast<std::uint32_t>(nodes_.size() - 1));
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (auto node = nodes_[0].next; node != 0; node = nodes_[node].next) visit(nodes_[node].value);
  }

  // Erases all keys; as in the set, the buckets stay.
  void clear() {
    for (std::size_t i = 1; i < nodes_.size(); ++i) buckets_[bucket(nodes_[i].key)] = kNone;
    nodes_.resize(1);
    nodes_[0].next = 0;
  }

 private:
  struct Node {
    std::uint64_t key;
    std::uint32_t value, next;  // 0: the end
  };
  static constexpr std::uint32_t kNone = 0xffffffff;
  // The numbers of buckets that the set has when keys are added one by one.
  static constexpr std::array<std::uint64_t, 28> kSizes = {
      13,       29,        59,        127,       257,       541,        1109,
      2357,     5087,      10273,     20753,     42043,     85229,      172933,
      351061,   712697,    1447153,   2938679,   5967347,   12117689,   24607243,
      49969847, 101473717, 206062531, 418451333, 849749479, 1725587117, 3504151727};

  std::size_t bucket(std::uint64_t key) const { return key % buckets_.size(); }

  void grow() {
    buckets_.assign(kSizes[size_++], kNone);
    auto node = nodes_[0].next;
    nodes_[0].next = 0;
    while (node != 0) {
      const auto next = nodes_[node].next;
      link(node);
      node = next;
    }
  }

  void link(std::uint32_t node) {
    auto& before = buckets_[bucket(nodes_[node].key)];
    if (before == kNone) {
      const auto first = nodes_[0].next;
      if (first != 0) buckets_[bucket(nodes_[first].key)] = node;
      before = 0;
    }
    nodes_[node].next = nodes_[before].next;
    nodes_[before].next = node;
  }

  std::vector<Node> nodes_ = {{0, 0, 0}};  // node 0 precedes the first
  std::vector<std::uint32_t> buckets_;     // per bucket, the node before its first
  std::size_t size_ = 0;
};

}  // namespace tacos
