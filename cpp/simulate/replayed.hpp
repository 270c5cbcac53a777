// A schedule in an event loop: the common part of both service rules for links.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "simulate/delays.hpp"
#include "simulate/simulate.hpp"
#include "simulate/speeds.hpp"
#include "simulate/turns.hpp"
#include "support/index.hpp"
#include "support/time_text.hpp"

namespace tacos::simulation {

class Replayed {
 public:
  Replayed(const Schedule& schedule, const Routes& routes, const Options& options,
           std::span<Task> tasks, const Progress& progress)
      : schedule_(schedule),
        routes_(routes),
        options_(options),
        delays_(schedule, routes, options),
        delays_ends_(delays_.at_ends()),
        uniform_bytes_(schedule.collective().uniform_bytes()),
        tasks_(tasks),
        turns_(schedule, tasks, progress),
        result_(routes.topology(), schedule.topology().npus()) {
    if (options.record) cause_.assign(tasks.size(), kNone);
  }

  Result take_result() {
    result_.cause.assign(cause_.size(), -1);
    for (Item item = 0; item < cause_.size(); ++item) {
      if (cause_[item] == kNone) continue;
      result_.cause[tasks_[item].transfer] =
          static_cast<std::int32_t>(tasks_[cause_[item]].transfer);
    }
    return std::move(result_);
  }
  // Explains why a run ended early: names a transfer that has not started.
  [[noreturn]] void refuse_circle() const {
    std::uint32_t stuck = 0;
    for (const Task& task : tasks_) {
      if (task.waits == 0) continue;
      stuck = task.transfer;
      break;
    }
    throw InfeasibleError("transfer " + std::to_string(stuck) +
                          " can never start: it waits for a transfer that waits for it");
  }
  [[noreturn]] void refuse_link(Item item, LinkId link, std::span<const Change> changes) const {
    throw InfeasibleError("transfer " + std::to_string(tasks_[item].transfer) +
                          " can never cross " + routes_.topology().describe(link) +
                          ", which is down, or nearly so, from " + time_text(changes.back().time) +
                          " on; give its fault an end, or a smaller slowdown");
  }

  RouteId route(Item item) const { return static_cast<RouteId>(tasks_[item].lane); }
  ChunkId chunk(Item item) const { return stored().chunk[tasks_[item].transfer]; }
  std::int64_t bytes(Item item) const {
    return uniform_bytes_ > 0 ? uniform_bytes_ : schedule_.collective().bytes(chunk(item));
  }

 protected:
  const Transfers& stored() const { return schedule_.stored(); }

  Delays::What what(Item item) const {
    return {tasks_[item].lane, tasks_[item].transfer, bytes(item)};
  }

  Time delay_at_end(Item item, std::uint32_t leg, std::size_t end) const {
    return delays_ends_ ? delays_.at_end(what(item), leg, end) : 0;
  }

  // A transfer is complete at one of its destinations.
  void arrived(Item item, std::size_t end, Time now) {
    const NodeId node = routes_.destinations(route(item))[end];
    if (!routes_.topology().is_npu(node)) return;
    result_.finish[at(node)] = now;
    if (!options_.record) return;
    result_.add_arrival(node, now, bytes(item), static_cast<std::int32_t>(tasks_[item].transfer));
  }

  const Schedule& schedule_;
  const Routes& routes_;
  const Options& options_;
  const Delays delays_;
  const bool delays_ends_;  // to look bytes up only where they matter
  // Of every chunk, or 0: then looking it up is a walk through memory.
  const std::int64_t uniform_bytes_;
  std::span<Task> tasks_;
  Turns turns_;
  std::vector<Item> cause_;  // the transfer that each one waited for last
  Result result_;
};

}  // namespace tacos::simulation
