// Programs as Chakra execution traces: for every rank a file with a graph of nodes.
//
//   send                SEND
//   recv                RECV
//   recv_reduce         RECV, then a COMP for the sum
//   recv_send, recv_reduce_send, recv_reduce_forward   RECV, the COMP of a sum, SEND
//   nop, copy, reduce   COMP
// The nodes of a step wait for what the step waits for: the step before it in its thread and those it
// depends on. A SEND is complete on arrival, but a program's send once it has left; so who waits for a
// send waits for its fence, a COMP of 1 ns that starts together with it. Sends of one thread therefore
// leave in their order without waiting for each other's arrival.
//
// Threads may share a link, the port into a switch for example. Whoever knows the links can give the
// order of the sends on each; a send then also waits for the fence of the one before it. That is a
// control dependency, all others are data dependencies: it is no part of the program.
//
// A message's tag is its number among those from its sender to its receiver. Nodes are numbered and
// written in an order in which they can run.
//
// Beside what ASTRA-sim reads, a message says which chunks it carries (total_chunk_cnt, msg_chunk_cnt,
// msg_chunk_idx), and all nodes say which step they belong to, so that the program can be read back:
//   tacos_step  on a step's first node: op, thread (of the rank), src_buffer, src_slot, dst_buffer,
//               dst_slot, count
//   tacos_of    on its other nodes: the id of the first
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/program.hpp"
#include "support/progress.hpp"

namespace tacos::chakra {

// The messages of a schedule, in order of their starts, with the link on which they leave.
struct Departures {
  std::vector<NodeId> src, dst;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> link;
};

class Writer {
 public:
  // `chunk_bytes` of each chunk; sums take `reduce_Bps`, or 1 ns if that is 0. Throws
  // std::invalid_argument for what a trace cannot say: one-sided steps, messages that have no
  // receiver, and steps that wait for each other or read what nobody has written.
  Writer(std::shared_ptr<const Program> program, std::vector<std::int64_t> chunk_bytes,
         std::int64_t reduce_Bps, const Departures& departures, const Progress& progress);

  std::int64_t nodes(NodeId rank) const;  // at least one: a rank without steps idles
  // The file of a rank; `about` is the text of the metadata's attribute "tacos".
  std::string file(NodeId rank, std::string_view about) const;

 private:
  struct Message {
    std::int64_t bytes = 0;
    ChunkId chunk = 0;  // the first it carries
    std::int32_t tag = 0;
  };

  void match();
  bool sort(const Progress& progress);
  void follow();
  void keep_order(const Departures& departures);
  void number();
  bool fenced(StepId step) const { return fenced_[static_cast<std::size_t>(step)]; }
  std::uint32_t step_nodes(StepId step) const;
  std::int64_t duration_us(StepId step) const;
  void put_step(std::string& out, StepId step) const;

  std::shared_ptr<const Program> program_;
  std::vector<std::int64_t> chunk_bytes_;
  std::int64_t reduce_Bps_;
  std::vector<ThreadId> thread_of_;
  std::vector<ThreadId> first_thread_;    // of each rank
  std::vector<StepId> receiver_;          // of each send
  std::vector<StepId> after_;             // the send before on a shared link, or -1
  std::vector<StepId> order_;             // by rank; within a rank as the steps can run
  std::vector<std::size_t> order_begin_;  // of each rank
  std::vector<std::uint32_t> first_node_;
  std::vector<bool> fenced_;
  std::vector<Message> message_;  // of each step that sends
};

// The file of a rank whose only node is a collective.
std::string collective_file(std::int64_t comm_type, std::int64_t bytes);

}  // namespace tacos::chakra
