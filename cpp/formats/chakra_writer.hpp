// Workloads as Chakra execution traces: one file per rank.
//
// The nodes of a program have further attributes, which other readers skip. A message
// names the chunks that it carries (total_chunk_cnt, msg_chunk_cnt, msg_chunk_idx), and all nodes name the
// step that they belong to, so that the program can be read back:
//   tacos_step  on a step's first node: op, thread (of the rank), src_buffer, src_slot, dst_buffer,
//               dst_slot, count
//   tacos_of    on its other nodes: the id of the first
// Durations in a trace are whole microseconds. Other durations are rounded to the nearest, and the attribute
// tacos_duration_ps gives them exactly.
#pragma once

#include <string>
#include <string_view>

#include "lowering/program_nodes.hpp"
#include "model/workload.hpp"

namespace tacos::chakra {

// The contents of a rank's file; `about` is the text of the metadata's attribute "tacos".
std::string file(const ProgramNodes& nodes, NodeId rank, std::string_view about);
std::string file(const Workload& workload, NodeId rank);

}  // namespace tacos::chakra
