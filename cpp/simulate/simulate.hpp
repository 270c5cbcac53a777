// Simulation of schedules on a network.
//
// The transfers of the schedule, in the order of its starts, go through the service rule of
// service.hpp. What waits for what is taken from the schedule's own times (turns.hpp); how its start
// times count is the `Timing`. Every transfer reads what it reads in the schedule, so a run computes
// the same values, only at other times.
//
// Disturbances leave the rule as it is. A link's speed may change over time: its bytes progress at that
// speed, its window ends when they are through, and a leg arrives as much later as the link on its way
// that lost most. Jitter makes each leg arrive later by a draw that depends on seed, transfer, leg and
// destination only. A late NPU's transfers start no earlier than it does.
//
// Timing::shared has another service rule, which shared.hpp describes.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "model/schedule.hpp"
#include "simulate/speeds.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

enum class Timing : std::uint8_t {
  dependencies,  // a transfer starts when its data are there and its links are free
  order,         // the same, and every link serves its legs in the order of the schedule's starts
  schedule,      // at the schedule's own starts, or not at all
  shared,        // when its data are there and its connection is free; links are shared fairly
};

struct Options {
  Timing timing = Timing::dependencies;
  bool congestion = true;
  bool record = true;  // intervals, arrivals and causes; otherwise only when each NPU is done
  std::unordered_map<LinkId, std::vector<Change>> changes;  // of the links that are slow at times
  std::vector<Time> late;                                   // per NPU, or empty
  std::vector<std::int64_t> reduce_slowdown;                // per NPU in parts of kNormal, or empty
  Time jitter = 0;  // each delay is uniform between 0 and this
  std::uint64_t seed = 0;
  // For tests: insists on one sweep over the schedule where nothing is recorded (in_turn.hpp; other runs are refused) or on the
  // event loop.
  std::optional<bool> in_turn = std::nullopt;
};

struct Result {
  // When a link was taken by which transfer, ordered by begin.
  std::vector<LinkId> link;
  std::vector<Time> begin, end;
  std::vector<std::int32_t> transfer;
  // When a chunk was whole and in its place at an NPU, in order of time.
  std::vector<NodeId> arrival_npu;
  std::vector<Time> arrival_time;
  std::vector<std::int64_t> arrival_bytes;
  std::vector<std::int32_t> arrival_transfer;
  std::vector<std::int32_t> cause;  // per transfer: the one it waited for last, or -1
  // Always there:
  std::vector<Time> finish;  // per NPU: its last arrival, or 0
  std::vector<Time> busy;    // per link: how long in all
};

// Brings the intervals into the order of their begins.
void sort_intervals(Result& result);

// `schedule` is packed and has fewer than 2^31 transfers. `routes` has one route per lane; it may be
// on another topology than the schedule.
Result simulate(const Schedule& schedule, const Routes& routes, const Options& given,
                const Progress& progress);

}  // namespace tacos::simulation
