// A workload's dependencies in the order in which ASTRA-sim visits them, that of its hash sets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/workload.hpp"

namespace tacos::astra {

class WorkloadGraph {
 public:
  // Keeps a reference to the workload, which must outlive it.
  explicit WorkloadGraph(const Workload& workload);

  const Workload& workload() const { return *workload_; }
  std::uint64_t hash(std::size_t row) const {
    return static_cast<std::uint64_t>(workload_->columns().id[row]);
  }
  // The number of nodes that a row waits for, and the rows that wait for it.
  std::uint32_t parents(std::size_t row) const { return parents_[row]; }
  std::span<const std::uint32_t> children(std::size_t row) const {
    return std::span(children_).subspan(child_begin_[row],
                                        child_begin_[row + 1] - child_begin_[row]);
  }
  // The rows of a rank that wait for nothing, in the order in which ASTRA-sim finds them.
  std::vector<std::uint32_t> roots(std::int32_t rank) const;

 private:
  const Workload* workload_;
  std::vector<std::uint32_t> parents_, children_;
  std::vector<std::size_t> child_begin_;
};

}  // namespace tacos::astra
