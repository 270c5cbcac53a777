// Chakra execution traces, read into columns: one row per node, rank after rank.
//
// Missing optional fields get defaults: id 0, no dependencies, tag and priority 0. Numbers may have any
// integer type (int32, sint64, fixed32, …). Control and data dependencies are treated alike. Unknown fields and
// attributes are skipped. A METADATA_NODE, and a node without a type, takes no time. In a workload, such a node is removed,
// and its successors inherit its dependencies; in a program, it is a step that does nothing.
//
// Kernels of one device and stream run one after the other, but converted traces of PyTorch lack these dependencies. So each
// kernel is made to wait for the one before, in the order of start times, then of ids, as far as the dependencies allow.
//
// `workload` returns all nodes. `restored` and `derived` make a Program of traces that only send, receive and
// compute. If tacos wrote the traces, attributes name the thread and slots of each step, and `restored` returns the
// program that was written. Other traces only give the messages, their sizes and the dependencies. `derived` returns a
// program of the collective send_recv: every message is its own
// chunk, from an input slot of its sender to an output slot of its receiver; a COMP is a
// step that does nothing. Its threads are chains of dependent nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/steps.hpp"
#include "model/program.hpp"
#include "model/workload.hpp"

namespace tacos::chakra {

constexpr std::int64_t kNoRow = -1;  // in place of a row

class Traces {
 public:
  explicit Traces(bool chain_streams = true) : chain_streams_(chain_streams) {}

  // Reads the trace of the next rank. Throws std::invalid_argument, which names the byte and the node.
  void add(std::string_view file);
  // Call it after all ranks were added: throws if a node names a rank that has no trace.
  void check_peers() const;

  // Whether the traces are an algorithm: either tacos wrote them as one, or they have only messages, and computations
  // without figures.
  bool is_program() const;

  // Moves the columns into the workload; the traces are empty afterwards. `named` has the number of the group for
  // each of the group names.
  Workload workload(std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> groups,
                    const std::vector<std::int32_t>& named) &&;

  std::int32_t ranks() const { return static_cast<std::int32_t>(about.size()); }
  std::size_t nodes() const { return id.size(); }

  // The program that tacos wrote, given its collective and the contents of the metadata.
  Program restored(std::shared_ptr<const Collective> collective, bool in_place,
                   std::vector<std::int32_t> scratch_slots, const Threads& threads,
                   std::string provenance) const;
  // A program from traces of any other tool.
  Program derived(std::string provenance) const;

  std::vector<std::string> about;  // per rank, the metadata's attribute "tacos"
  std::vector<std::int32_t> rank;
  std::vector<std::int64_t> id;
  std::vector<std::uint8_t> kind;
  std::vector<std::int32_t> peer, tag, name;
  std::vector<std::int64_t> bytes, duration_ps, flops;
  std::vector<std::uint8_t> comm, on_cpu, dims;  // as in Workload
  std::vector<std::int32_t> group, priority;     // -1 - i for group_names[i]
  std::vector<std::string> group_names;         // names that are not numbers, in order of first use
  std::vector<std::string> process_groups;      // texts of metadata nodes, without duplicates
  std::vector<std::int64_t> dep_begin{0}, dep;  // rows
  std::vector<std::uint8_t>
      dep_is_control;  // in traces of tacos: a dependency that only orders a link
  // The step that a row belongs to: the row of the step's first node, or -1. Only for first nodes, the step itself: op,
  // thread, src_buffer, src_slot, dst_buffer, dst_slot, count.
  std::vector<std::int64_t> step_of;
  std::vector<std::int32_t> step_fields;
  static constexpr std::size_t kStepFields = 7;

 private:
  struct Node;
  void refuse_other_nodes() const;
  void add_metadata(std::string_view bytes, std::size_t position);
  void add_node(std::string_view message, std::size_t position);
  void add_row(const Node& node, std::size_t position);
  void resolve(std::size_t first_row);
  void chain_streams(std::size_t first_row);
  void drop_notes();
  std::int32_t named_group(std::string_view text);
  std::vector<std::size_t> runnable(std::size_t first, std::size_t last) const;
  // For each recv, the row of its send; throws if a message has no partner.
  std::vector<std::int64_t> pairs() const;
  std::string describe(std::size_t row) const;

  NameTable names_;
  bool chain_streams_;
  std::vector<std::uint8_t> is_note_;  // a node that takes no time
  std::vector<std::int64_t> start_us_;
  std::vector<std::pair<std::int64_t, std::int64_t>> stream_;  // device and stream, or -1
};

}  // namespace tacos::chakra
