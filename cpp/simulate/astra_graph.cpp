#include "simulate/astra_graph.hpp"

#include <limits>
#include <utility>

#include "simulate/hash_order.hpp"

namespace tacos::astra {

namespace {

constexpr std::uint32_t kNoNode = std::numeric_limits<std::uint32_t>::max();

}  // namespace

// Children are in the order of a hash set into which they were inserted one by one, row by row.
WorkloadGraph::WorkloadGraph(const Workload& workload) : workload_(&workload) {
  const auto& c = workload.columns();
  const auto rows = c.rank.size();
  parents_.assign(rows, 0);
  child_begin_.assign(rows + 1, 0);
  // To skip duplicate dependencies, remember the last row that named each parent.
  std::vector<std::uint32_t> named;
  const auto each_edge = [&](auto&& visit) {
    named.assign(rows, kNoNode);
    for (std::size_t row = 0; row < rows; ++row) {
      for (auto i = c.dep_begin[row]; i < c.dep_begin[row + 1]; ++i) {
        const auto parent = static_cast<std::size_t>(c.dep[static_cast<std::size_t>(i)]);
        const auto now = static_cast<std::uint32_t>(row);
        if (std::exchange(named[parent], now) != now) visit(parent, row);
      }
    }
  };
  each_edge([&](std::size_t parent, std::size_t row) {
    ++child_begin_[parent + 1];
    ++parents_[row];
  });
  for (std::size_t row = 0; row < rows; ++row) child_begin_[row + 1] += child_begin_[row];
  children_.resize(child_begin_[rows]);
  auto next = child_begin_;
  each_edge([&](std::size_t parent, std::size_t row) {
    children_[next[parent]++] = static_cast<std::uint32_t>(row);
  });
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = child_begin_[row], to = child_begin_[row + 1];
    if (to - from < 2) continue;
    HashOrder order;
    for (auto i = from; i < to; ++i) order.insert(hash(children_[i]), children_[i]);
    auto out = from;
    order.for_each([&](std::uint32_t child) { children_[out++] = child; });
  }
}

std::vector<std::uint32_t> WorkloadGraph::roots(std::int32_t rank) const {
  // ASTRA-sim inserts each node of the file, then its parents, into one hash map, and iterates over it.
  HashOrder map;
  const auto& c = workload_->columns();
  const auto first = workload_->begin(rank), last = workload_->end(rank);
  std::vector<bool> known(last - first, false);
  const auto add = [&](std::uint32_t row) {
    if (known[row - first]) return;
    known[row - first] = true;
    map.insert(hash(row), row);
  };
  std::vector<std::uint32_t> named(last - first, kNoNode);
  for (auto row = static_cast<std::uint32_t>(first); row < last; ++row) {
    add(row);
    HashOrder parents;
    for (auto i = c.dep_begin[row]; i < c.dep_begin[row + 1]; ++i) {
      const auto parent = static_cast<std::uint32_t>(c.dep[static_cast<std::size_t>(i)]);
      if (std::exchange(named[parent - first], row) != row) parents.insert(hash(parent), parent);
    }
    parents.for_each(add);
  }
  std::vector<std::uint32_t> found;
  map.for_each([&](std::uint32_t row) {
    if (parents_[row] == 0) found.push_back(row);
  });
  return found;
}

}  // namespace tacos::astra
