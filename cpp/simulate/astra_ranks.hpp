// The state of one rank: its programs (the workload itself, or a custom collective) and its system layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "simulate/astra.hpp"
#include "simulate/astra_graph.hpp"
#include "simulate/hash_order.hpp"

namespace tacos::astra {

// The progress of one rank through the nodes of one workload.
class RankProgress {
 public:
  RankProgress(const WorkloadGraph& nodes, std::int32_t rank, bool custom)
      : workload(nodes.workload()), graph_(nodes), first_(workload.begin(rank)), custom_(custom) {
    const auto size = workload.end(rank) - first_;
    waiting_.resize(size);
    issued_.assign(size, false);
    done_.assign(size, false);
    for (std::size_t i = 0; i < size; ++i) waiting_[i] = graph_.parents(first_ + i);
    for (const auto row : graph_.roots(rank)) free(row);
  }

  // The nodes to start now, in order. A node that `ends_at_once` does not delay the next node, and
  // is complete before any other event; nodes that waited for it are returned by the next call.
  template <typename EndsAtOnce>
  std::vector<std::uint32_t> take(const EndsAtOnce& ends_at_once) {
    std::vector<std::uint32_t> rows, over;
    if (custom_) {
      ready_.for_each([&](std::uint32_t row) { rows.push_back(row); });
      ready_.clear();
    } else {
      const auto pop = [&](Unit& unit) {
        rows.push_back(unit.heap.top().second);
        unit.heap.pop();
      };
      while (!units_[kRecvs].heap.empty()) pop(units_[kRecvs]);
      for (const auto unit : {kComms, kComps, kCpu}) {
        while (!units_[unit].busy && !units_[unit].heap.empty()) {
          pop(units_[unit]);
          if (ends_at_once(rows.back())) {
            over.push_back(rows.back());
            rows.pop_back();
          } else {
            units_[unit].busy = true;
          }
        }
      }
      std::sort(rows.begin(), rows.end(),
                [&](std::uint32_t a, std::uint32_t b) { return graph_.hash(a) < graph_.hash(b); });
    }
    for (const auto row : rows) issued_[row - first_] = true;
    under_way_ += rows.size();
    for (const auto row : over) {
      issued_[row - first_] = true;
      ++under_way_;
      finish(row, false);
    }
    return rows;
  }

  void finish(std::uint32_t row, bool held_unit = true) {
    done_[row - first_] = true;
    --under_way_;
    if (!custom_ && held_unit) units_[unit_of(row)].busy = false;
    for (const auto child : graph_.children(row)) {
      if (--waiting_[child - first_] == 0) free(child);
    }
  }

  bool over() const {
    if (under_way_ > 0 || !ready_.empty()) return false;
    return std::all_of(units_.begin(), units_.end(), [](const Unit& u) { return u.heap.empty(); });
  }

  // Nodes that would start with another event of this rank.
  void each_ready(const std::function<void(std::uint32_t)>& visit) const {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (!issued_[i] && waiting_[i] == 0) visit(static_cast<std::uint32_t>(first_ + i));
    }
  }

  // Nodes that have begun and never end.
  void each_stuck(const std::function<void(std::uint32_t)>& visit) const {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (issued_[i] && !done_[i]) visit(static_cast<std::uint32_t>(first_ + i));
    }
  }

  const Workload& workload;
  std::int32_t stream = -1;                            // the stream of a custom collective
  const std::vector<std::int32_t>* members = nullptr;  // maps its rank numbers to ranks

 private:
  // What executes nodes of one kind, with those that are ready; the one with the lowest id starts first.
  struct Unit {
    using Entry = std::pair<std::uint64_t, std::uint32_t>;  // id, row
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
    bool busy = false;
  };
  static constexpr std::size_t kRecvs = 0, kComms = 1, kComps = 2, kCpu = 3;

  std::size_t unit_of(std::uint32_t row) const {
    switch (workload.kind(row)) {
      case NodeKind::recv:
        return kRecvs;
      case NodeKind::comp:
        return workload.columns().on_cpu[row] != 0 ? kCpu : kComps;
      default:
        return kComms;
    }
  }

  void free(std::uint32_t row) {
    if (custom_) {
      ready_.insert(graph_.hash(row), row);
    } else {
      units_[unit_of(row)].heap.emplace(graph_.hash(row), row);
    }
  }

  const WorkloadGraph& graph_;
  std::size_t first_;
  bool custom_;
  std::size_t under_way_ = 0;
  std::vector<std::uint32_t> waiting_;
  std::vector<bool> issued_, done_;
  HashOrder ready_;
  std::array<Unit, 4> units_;
};

// A collective of one rank: the number of its unfinished streams, and the node that waits for them.
struct DataSet {
  std::uint32_t row;
  std::int32_t streams_left;
};

struct StreamPhase {
  std::int32_t queue;
  std::int32_t algorithm = -1;  // a custom one, else `native`
  PhaseSpec native{};
};

// One chunk of a collective, and its current phase.
struct Stream {
  std::int32_t rank = 0, dataset = 0, id = 0, priority = 0;
  const std::vector<std::int32_t>* members = nullptr;
  std::vector<StreamPhase> phases;
  std::size_t phase_at = 0;  // the next phase
  std::int32_t queue = -1;
  bool local = false;  // the phase runs in a group, whose staging takes 10 ns
  bool begun = false;
  std::unique_ptr<Host> host{};
  std::unique_ptr<Phase> phase{};
};

// Chooses the queue of a dimension for the next phase: all queues in turn, or only one half of them.
class QueueTurns {
 public:
  QueueTurns(std::int32_t first, std::int32_t count)
      : first_(first), count_(count), upper_(count / 2) {}

  // The queue, and whether its ring runs forward.
  std::pair<std::int32_t, bool> any() {
    const bool forward = count_ == 1 || any_ < count_ / 2;
    const auto queue = first_ + any_;
    any_ = (any_ + 1) % count_;
    return {queue, forward};
  }
  std::pair<std::int32_t, bool> lower_half() {
    const auto queue = first_ + lower_++;
    if (lower_ >= count_ / 2) lower_ = 0;
    return {queue, true};
  }
  std::pair<std::int32_t, bool> upper_half() {
    const auto queue = first_ + upper_++;
    if (upper_ >= count_) upper_ = count_ / 2;
    return {queue, false};
  }

 private:
  std::int32_t first_, count_;
  std::int32_t any_ = 0, lower_ = 0, upper_;
};

// The system layer of one rank.
struct RankState {
  std::int32_t program = 0;
  Nanoseconds finish = -1, compute = 0;
  std::int32_t streams = 0, priority = 0;
  std::vector<std::vector<std::int32_t>> active;  // streams by queue, running ones first
  std::vector<std::size_t> running;               // by queue
  std::vector<QueueTurns> queues;                 // by dimension
  std::map<std::pair<std::uint8_t, std::size_t>, std::int32_t>
      trees;  // used, by comm and dimension
  std::map<std::int32_t, std::int32_t> group_streams;
  std::map<std::pair<std::int32_t, std::uint8_t>, std::int32_t> group_algorithm;
};

}  // namespace tacos::astra
