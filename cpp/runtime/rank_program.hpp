// One rank's share of a program, compiled: its steps with what waits for what, and what the rank
// does on behalf of its peers' one-sided steps. No bytes yet: see layout.hpp.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/program.hpp"

namespace tacos {

// Where data leave to or arrive from: the ends of one connection.
struct Port {
  NodeId peer = -1;
  std::int32_t channel = 0;
  auto operator<=>(const Port&) const = default;
};

struct RankStep {
  StepId id = -1;  // in the program
  StepOp op = StepOp::nop;
  bool served = false;  // a peer's put or get, of which this rank is the other end
  Buffer src_buffer = Buffer::none, dst_buffer = Buffer::none;  // of this rank, else none
  std::int32_t src_slot = -1, dst_slot = -1, count = 0;
  Port to, from;           // peer -1: none
  StepId message = -1;     // the step that sends what this one receives or waits for
  std::int32_t waits = 0;  // steps of this rank that must be complete before
};

struct RankProgram {
  NodeId rank = 0;
  std::shared_ptr<const Program> program;
  std::vector<RankStep> steps;  // the rank's own, then those it serves
  std::size_t own = 0;
  std::vector<std::int64_t> next_begin;  // per own step: steps that wait for it
  std::vector<std::int32_t> next;
  std::unordered_map<StepId, std::int32_t> by_message;  // the step that takes in what a step sends
  std::vector<Port> out, in;                            // connections, sorted

  // Which chunk each slot of a step's data holds, so that both ends know its size.
  std::vector<std::int64_t> content_begin;
  std::vector<ChunkId> content;
  // Whether the data of some step, of any rank, may lie in a slot of another size; then all slots
  // must be made alike.
  bool misplaced = false;

  std::vector<ChunkId> inputs, outputs;  // slot by slot
  std::vector<std::int32_t> shared;      // in place: input slot -> the output slot it is, or -1
  bool writes_input = false;             // to slots that are not shared
};

RankProgram compile(std::shared_ptr<const Program> program, NodeId rank);

}  // namespace tacos
