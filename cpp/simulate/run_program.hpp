// Simulates programs as ranks run them: thread by thread, on a network.
//
// A step starts when the previous step of its thread and the steps it depends on are complete and,
// if it receives or waits, its message has arrived. Then
//   nop, copy, recv, wait     are complete at once;
//   reduce, recv_reduce       after bytes over the topology's reduce bandwidth, if it has one;
//   send, put, signal         send a message, and are complete when its last byte has left;
//   recv_send, recv_reduce_send, recv_reduce_forward   receive, and then send like a send;
//   get, get_reduce           receive a message from the peer, and are complete when it has arrived (and been
//                             added).
// A signal is a message without bytes on its thread's connection, so it arrives after what the thread
// has put there before. A message takes the route of its thread, or the default one: that of its
// channel (channel_routes, as in lift), else what shortest_routes finds.
//
// Links serve the messages
//   first_come    one at a time, by (ready time, position), see service.hpp;
//   order         one at a time, by position;
//   shared        all at once with fair rates, see shared_loop.hpp; every thread has its own
//                 connections.
// The position of a message is that of its step in a given order or, by default, in walk() of the program.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/program.hpp"
#include "simulate/simulate.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

struct MessageRoutes;

struct ProgramOptions {
  Timing timing = Timing::first_come;  // not `schedule`
  bool record = true;
  std::int32_t limit = 0;  // Timing::shared: messages in flight from, and to, an NPU; 0: any number
  // The links of each thread's route, as offsets and a list; a thread without links takes the default route.
  std::vector<std::int64_t> link_begin;
  std::vector<LinkId> links;
  std::vector<std::int64_t> position;  // per step, or empty
};

// What all runs of a program on a network have in common: the order in which steps wait for each other, and the messages with their routes.
// `chunk_bytes` has the size of each chunk of the program's collective. The program must outlive this.
class ProgramRuns {
 public:
  // Of the options, those that choose routes and positions count. Throws InfeasibleError if steps wait for each other
  // in a cycle.
  ProgramRuns(const Program& program, std::span<const std::int64_t> chunk_bytes,
              std::shared_ptr<const Topology> topology, const ProgramOptions& options,
              const Progress& progress);
  // The same with given routes, which need not lead from a message's sender to its receiver: their links are what
  // messages take.
  ProgramRuns(const Program& program, std::span<const std::int64_t> chunk_bytes,
              MessageRoutes paths);
  ~ProgramRuns();
  ProgramRuns(const ProgramRuns&) = delete;
  ProgramRuns& operator=(const ProgramRuns&) = delete;

  // In the result, a message has the number of the step that sends it, and `finish` is the time at which the last step
  // of each rank is complete. Throws InfeasibleError, naming a step, if the program deadlocks.
  Result run(Timing timing, bool record, std::int32_t limit, const Progress& progress) const;

  struct Steps;

 private:
  std::unique_ptr<const Steps> steps_;
};

// One run.
Result run_program(const Program& program, std::span<const std::int64_t> chunk_bytes,
                   std::shared_ptr<const Topology> topology, const ProgramOptions& options,
                   const Progress& progress);

}  // namespace tacos::simulation
