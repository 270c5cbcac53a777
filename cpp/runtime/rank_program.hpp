// One rank's compiled share of a program: its steps with their dependencies, and the work that the rank
// does for one-sided steps of its peers. It applies to any size; layout.hpp adds the bytes.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/program.hpp"

namespace tacos {

// A connection, seen from one rank.
struct Port {
  NodeId peer = -1;
  std::int32_t channel = 0;
  auto operator<=>(const Port&) const = default;
};

struct RankStep {
  StepId id = -1;  // in the program
  StepOp op = StepOp::nop;
  bool served = false;  // a put or get of a peer, with this rank as its other end
  Buffer src_buffer = Buffer::none, dst_buffer = Buffer::none;  // buffers of this rank, or none
  std::int32_t src_slot = -1, dst_slot = -1, count = 0;
  Port to, from;           // peer -1: none
  StepId message = -1;     // the step that sends the message that this one receives or waits for
  std::int32_t waits = 0;  // steps of this rank that must be complete first
};

struct RankProgram {
  NodeId rank = 0;
  std::shared_ptr<const Program> program;
  std::vector<RankStep> steps;  // its own steps, then those of peers that it serves
  std::size_t own = 0;
  std::vector<std::int64_t> next_begin;  // per own step: steps that wait for it
  std::vector<std::int32_t> next;
  std::unordered_map<StepId, std::int32_t> by_message;  // sending step -> the step that receives
  std::vector<Port> out, in;                            // connections, sorted

  // The chunk in each slot of a step's data, from which both ends know its size.
  std::vector<std::int64_t> content_begin;
  std::vector<ChunkId> content;
  // Whether a step of any rank may have data in a slot of another size; then all slots
  // must have the same size.
  bool misplaced = false;

  std::vector<ChunkId> inputs, outputs;  // slot by slot
  // In place: per input slot, the output slot in the same memory, or -1.
  std::vector<std::int32_t> shared;
  // Whether a step writes to an input slot that is not shared.
  bool writes_input = false;
};

RankProgram compile(std::shared_ptr<const Program> program, NodeId rank);

}  // namespace tacos
