// Synchronization between the steps of a plan: signals, semaphores, barriers and packets.
//
// Operations are recorded one by one; `join` then adds the dependencies between steps that the plan
// guarantees.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/mscclpp_plan.hpp"
#include "formats/steps.hpp"

namespace tacos::mscclpp {

class Meetings {
 public:
  using Step = std::int64_t;

  explicit Meetings(const ExecutionPlan& plan);

  // `number` counts the GPU's channels of a kind (memory or port).
  void signal(NodeId gpu, Kind kind, std::int32_t number, Step step);
  void wait(NodeId gpu, Kind kind, std::int32_t number, Step step);
  void acquire(NodeId gpu, std::int32_t semaphore, ThreadId thread, Step step);
  void release(NodeId gpu, std::int32_t semaphore, ThreadId thread, Step step);
  // A threadblock arrives at a barrier in one step and leaves in the next; `where` is for messages.
  void barrier(NodeId gpu, std::int32_t number, ThreadId thread, Step comes, std::int32_t expected,
               std::string where);
  // Packets in slots; slots are numbered over all ranks.
  void wrote(std::int64_t first_slot, std::int64_t slots, Step step);
  void reads(std::int64_t first_slot, std::int64_t slots, Step step, std::string where);

  // Throws std::invalid_argument if a step waits for something that never happens.
  void join(Steps& steps) const;

 private:
  struct Coming {
    Step comes;
    std::int32_t expected;
    std::string where;
  };
  struct Read {
    std::int64_t first_slot, slots;
    Step step;
    std::string where;
  };
  using PerThread = std::map<ThreadId, std::vector<Step>>;
  using Key = std::pair<NodeId, std::int32_t>;

  std::size_t channel(NodeId gpu, Kind kind, std::int32_t number) const;
  void join_channels(Steps& steps) const;
  void join_semaphores(Steps& steps) const;
  void join_barriers(Steps& steps) const;
  void join_packets(Steps& steps) const;

  const ExecutionPlan& plan_;
  std::array<std::vector<std::size_t>, 2> first_channel_;  // per kind and GPU
  std::array<std::vector<std::vector<Step>>, 2> signals_, waits_;
  std::map<Key, PerThread> acquires_, releases_;
  std::map<Key, std::map<ThreadId, std::vector<Coming>>> barriers_;
  std::unordered_map<std::int64_t, Step> packets_;
  std::vector<Read> reads_;
};

}  // namespace tacos::mscclpp
