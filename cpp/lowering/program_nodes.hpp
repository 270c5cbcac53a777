// Programs as workloads: the nodes that carry out each step.
//
//   send                SEND
//   recv                RECV
//   recv_reduce         RECV, then a COMP for the sum
//   recv_send, recv_reduce_send, recv_reduce_forward   RECV, the COMP of a sum, SEND
//   nop, copy, reduce   COMP
// The nodes of a step wait for what the step waits for: the step before it in its thread and those it
// depends on. A SEND is complete on arrival, but a program's send is complete when its data have left. So nodes that wait
// for a send wait for its fence, a COMP without duration that starts together with it. Sends of one
// thread therefore leave in order without waiting for each other's arrival.
//
// Threads may share a link, for example the port into a switch. A caller that knows the links can give
// the order of the sends on each link; a send then also waits for the fence of the one before it. That is a
// control dependency, since it is not part of the program; all others are data dependencies.
//
// A message's tag is its number among those from its sender to its receiver. Nodes are numbered in an
// order in which they can run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/program.hpp"
#include "model/workload.hpp"
#include "support/progress.hpp"

namespace tacos {

// The messages of a schedule, in order of their starts, with the link on which they leave.
struct SendOrder {
  std::vector<NodeId> src, dst;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> link;
};

// Why a node waits: for data, for its turn on a link, or for both.
enum class Wait : std::uint8_t { data, control, both };

struct ProgramNodes {
  std::shared_ptr<const Program> program;
  std::shared_ptr<const Workload> workload;
  std::vector<StepId> step;    // per node; -1 for an idle rank
  std::vector<Wait> wait;      // per dependency of the workload
  std::vector<ChunkId> chunk;  // per step that sends: its first chunk
};

// `chunk_bytes` has the size of each chunk. The rate of sums is `reduce_Bps`, rounded to microseconds as in traces;
// 0: they take no time. Throws std::invalid_argument if a workload cannot express the program: for one-sided
// steps, messages without a receiver, deadlocks, and steps that read an empty slot.
ProgramNodes program_nodes(std::shared_ptr<const Program> program,
                           const std::vector<std::int64_t>& chunk_bytes, std::int64_t reduce_Bps,
                           const SendOrder& departures, const Progress& progress);

}  // namespace tacos
