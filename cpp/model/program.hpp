// A program: a collective algorithm as the ranks run it, in steps over buffer slots, without bytes or
// times. Files of other systems load as programs; exporters and the runtime work from them.
//
// Ranks are the NPUs. A rank has threads, which run at once; a thread is a sequence of steps that run in
// order. Steps work on the slots of three buffers; a slot holds one chunk:
//   input    the chunks that the rank holds at the start, in order of their ids;
//   output   the chunks that the rank must hold at the end, in order of their ids;
//   scratch  the number of slots that the program asks for.
// For the named collectives this is the layout that NCCL and MPI prescribe. In place, the input and the
// output slot of one chunk are the same memory; otherwise a correct program does not modify the input.
//
// What a step does with `count` slots, starting at `src` and `dst`:
//   nop                  nothing: it only waits
//   copy                 dst = src
//   reduce               dst = dst + src
//   send                 sends src
//   recv                 dst = what arrives
//   recv_send            dst = what arrives, and sends it on
//   recv_reduce          dst = src + what arrives
//   recv_reduce_forward  sends src + what arrives, stores nothing
//   recv_reduce_send     dst = src + what arrives, and sends it on
//   put                  dst of the peer = src, without an action of the peer
//   get                  dst = src of the peer
//   get_reduce           dst = dst + src of the peer
//   signal, wait         order the steps of two ranks
// A step starts when the one before it in its thread and the steps it depends on (of its rank) are
// complete, and, if it receives or waits, when `comes_from`, the step that sends or signals, is.
//
// The class holds any program that a file may contain. The verifier checks whether every message has a
// receiver, whether ranks can deadlock or race, and whether the result is right.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/chunk_lists.hpp"
#include "model/collective.hpp"
#include "model/file_facts.hpp"
#include "support/column.hpp"

namespace tacos {

using StepId = std::int32_t;
using ThreadId = std::int32_t;

enum class StepOp : std::uint8_t {
  nop,
  copy,
  reduce,
  send,
  recv,
  recv_send,
  recv_reduce,
  recv_reduce_forward,
  recv_reduce_send,
  put,
  get,
  get_reduce,
  signal,
  wait,
};
inline constexpr std::uint8_t kStepOps = 14;

constexpr bool sends(StepOp op) {
  return op == StepOp::send || op == StepOp::recv_send || op == StepOp::recv_reduce_forward ||
         op == StepOp::recv_reduce_send;
}
constexpr bool receives(StepOp op) {
  return op == StepOp::recv || op == StepOp::recv_send || op == StepOp::recv_reduce ||
         op == StepOp::recv_reduce_forward || op == StepOp::recv_reduce_send;
}
constexpr bool one_sided(StepOp op) {
  return op == StepOp::put || op == StepOp::get || op == StepOp::get_reduce;
}
// Whether the step names a slot to read, and one to write.
constexpr bool has_src(StepOp op) {
  return op != StepOp::nop && op != StepOp::recv && op != StepOp::recv_send &&
         op != StepOp::signal && op != StepOp::wait;
}
constexpr bool has_dst(StepOp op) {
  return op != StepOp::nop && op != StepOp::send && op != StepOp::recv_reduce_forward &&
         op != StepOp::signal && op != StepOp::wait;
}

enum class Buffer : std::uint8_t { input, output, scratch, none };

// Typed fields for code; the provenance is for people.
struct ProgramFacts {
  std::int64_t size_bytes = 0;  // the collective's size before it was counted in chunks; 0: unknown
  std::vector<std::int64_t> part_bytes;  // of each part, if there are several
  std::int32_t window = 0;  // messages of a rank that cross a limiting link at once; 0: any number
  std::string engine;       // of the schedule it was lowered from; empty: unknown
  // Of the file that the program was read from.
  FileFacts file;
  std::string format;         // empty: none
  bool either_place = false;  // whether it serves calls both in place and out of place
};

// The data of a program, which Program's constructor checks.
struct ProgramSpec {
  std::shared_ptr<const Collective> collective;  // its sizes are proportions
  bool in_place = false;
  Column<std::int32_t> scratch_slots;  // per rank

  // Threads, in order of their ranks. A thread communicates with at most one peer in each direction.
  Column<NodeId> thread_rank;
  Column<std::int32_t> thread_channel;
  Column<NodeId> thread_send_peer, thread_recv_peer;  // -1: none
  Column<std::int64_t> thread_begin;                  // first step, then the number of steps

  // Steps.
  Column<std::uint8_t> op, src_buffer, dst_buffer;
  Column<std::int32_t> src_slot, dst_slot;  // -1: none
  Column<std::int32_t> count;
  Column<NodeId> peer;             // of one-sided steps, signals and waits; else -1
  Column<StepId> comes_from;       // the step that sends or signals; -1: none
  Column<std::int64_t> dep_begin;  // per step, then the number of dependencies
  Column<StepId> dep;

  std::string provenance = "{}";  // JSON: name, protocol, limits, how it was made
  ProgramFacts facts;
};

class Program {
 public:
  // The only constructor: checks shape and ranges; throws std::invalid_argument.
  explicit Program(ProgramSpec spec);

  const ProgramSpec& spec() const { return spec_; }
  const Collective& collective() const { return *spec_.collective; }
  std::int32_t ranks() const { return spec_.collective->npus(); }
  ThreadId threads() const { return static_cast<ThreadId>(spec_.thread_rank.size()); }
  StepId steps() const { return static_cast<StepId>(spec_.op.size()); }
  StepOp op(StepId step) const {
    return static_cast<StepOp>(spec_.op[static_cast<std::size_t>(step)]);
  }
  ThreadId thread_of(StepId step) const;
  // "rank 3, thread 1, step 4": how messages name a step.
  std::string describe(StepId step) const;
  // How many slots a buffer of a rank has.
  std::int32_t slots(NodeId rank, Buffer buffer) const;
  // The chunks of a rank's input and output buffer, slot by slot.
  std::vector<ChunkId> input_chunks(NodeId rank) const { return chunk_lists_->inputs(rank); }
  std::vector<ChunkId> output_chunks(NodeId rank) const { return chunk_lists_->outputs(rank); }

  Program with_provenance(std::string provenance) const;
  Program with_facts(ProgramFacts facts) const;
  // The same steps with another value of `in_place`.
  Program with_in_place(bool in_place) const;
  bool operator==(const Program& other) const;

 private:
  void check() const;
  void check_step(ThreadId thread, StepId step) const;

  ProgramSpec spec_;
  std::shared_ptr<const ChunkLists> chunk_lists_;  // of the spec's collective, which copies share
  std::vector<std::int32_t> input_slots_, output_slots_;
};

// The collective with one byte per chunk; unchanged if chunks have individual sizes (all-to-all-v,
// send-recv, custom).
Collective counted_in_chunks(const Collective& collective);

// The program's steps in topological order, and for each the length of the longest chain of steps that wait
// for it. Throws std::invalid_argument if steps wait for each other in a cycle.
struct Walk {
  std::vector<StepId> order;
  std::vector<std::int32_t> still_to_come;  // per step
};
Walk walk(const Program& program);

}  // namespace tacos
