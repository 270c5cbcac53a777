// Simulation of schedules on a network.
//
// The transfers of the schedule, in the order of its starts, go through the service rule of
// service.hpp; two shortcuts find the same without events (order_sweep.hpp, jitter_rounds.hpp), but make no record. Dependencies are
// derived from the schedule's own times (turns.hpp); `Timing` determines how its start times are used. Every transfer reads the same values as in the schedule, so a run computes
// the same results, only at other times.
//
// Disturbances do not change the rule. If a link's speed changes over time, bytes pass at the current
// speed, the link's window ends when all bytes have passed, and a leg is delayed as much as the most delayed link on
// its way. Jitter delays each leg by a random amount that depends only on seed, transfer, leg and
// destination. Transfers of a late NPU start no earlier than the NPU does.
//
// Timing::shared has a different service rule, see shared.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "model/schedule.hpp"
#include "simulate/speeds.hpp"
#include "support/large.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

enum class Timing : std::uint8_t {
  first_come,  // a transfer starts when its data have arrived and its links are free
  order,       // the same, and every link serves its legs in the order of the schedule's starts
  schedule,    // at the schedule's own starts; fails if that is impossible
  shared,      // when its data have arrived and its connection is free; links are shared fairly
};

struct Options {
  Timing timing = Timing::first_come;
  bool congestion = true;
  bool record = true;  // record intervals, arrivals and causes, not only each NPU's finish
  std::unordered_map<LinkId, std::vector<Change>> changes;  // of links whose speed changes
  std::vector<Time> late;                                   // per NPU, or empty
  // Per NPU: the slowdown of sums, in units of 1 / kNormal; or empty.
  std::vector<std::int64_t> reduce_slowdown;
  Time jitter = 0;  // each delay is uniform between 0 and this
  std::uint64_t seed = 0;
  // For tests: true forces a shortcut (order_sweep.hpp, jitter_rounds.hpp; other runs fail), false the event loop.
  std::optional<bool> shortcut = std::nullopt;
};

struct Result {
  Result() = default;
  Result(const Topology& topology, std::int32_t npus)
      : finish(static_cast<std::size_t>(npus), 0),
        busy(static_cast<std::size_t>(topology.links()), 0) {}

  // The intervals in which links were busy, with their transfers, ordered by begin.
  LargeVector<LinkId> link;
  LargeVector<Time> begin, end;
  LargeVector<std::int32_t> transfer;
  // The times at which chunks were complete at NPUs, in order.
  LargeVector<NodeId> arrival_npu;
  LargeVector<Time> arrival_time;
  LargeVector<std::int64_t> arrival_bytes;
  LargeVector<std::int32_t> arrival_transfer;
  LargeVector<std::int32_t> cause;  // per transfer: the last transfer that it waited for, or -1
  // Always filled in:
  std::vector<Time> finish;  // per NPU: its last arrival, or 0
  std::vector<Time> busy;    // per link: total busy time

  void reserve(std::size_t intervals, std::size_t arrivals) {
    link.reserve(intervals);
    begin.reserve(intervals);
    end.reserve(intervals);
    transfer.reserve(intervals);
    arrival_npu.reserve(arrivals);
    arrival_time.reserve(arrivals);
    arrival_bytes.reserve(arrivals);
    arrival_transfer.reserve(arrivals);
  }
  void add_interval(LinkId which, Time from, Time until, std::int32_t by) {
    link.push_back(which);
    begin.push_back(from);
    end.push_back(until);
    transfer.push_back(by);
  }
  void add_arrival(NodeId npu, Time when, std::int64_t bytes, std::int32_t of) {
    arrival_npu.push_back(npu);
    arrival_time.push_back(when);
    arrival_bytes.push_back(bytes);
    arrival_transfer.push_back(of);
  }
};

// Sorts the intervals by begin.
void sort_intervals(Result& result);

// `schedule` is packed and has fewer than 2^31 transfers. `routes` has one route per lane; it may be
// on another topology than the schedule.
Result simulate(const Schedule& schedule, const Routes& routes, const Options& given,
                const Progress& progress);

}  // namespace tacos::simulation
