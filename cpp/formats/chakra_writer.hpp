// Workloads as Chakra execution traces: for every rank a file with its nodes.
//
// The nodes of a program say more than a workload does, in attributes that other readers skip. A message
// says which chunks it carries (total_chunk_cnt, msg_chunk_cnt, msg_chunk_idx), and all nodes say which
// step they belong to, so that the program can be read back:
//   tacos_step  on a step's first node: op, thread (of the rank), src_buffer, src_slot, dst_buffer,
//               dst_slot, count
//   tacos_of    on its other nodes: the id of the first
// Durations in a trace are whole microseconds. Others are rounded to the nearest one, and the attribute
// tacos_duration_ps has them exactly.
#pragma once

#include <string>
#include <string_view>

#include "lowering/program_nodes.hpp"
#include "model/workload.hpp"

namespace tacos::chakra {

// The file of a rank; `about` is the text of the metadata's attribute "tacos".
std::string file(const ProgramNodes& nodes, NodeId rank, std::string_view about);
std::string file(const Workload& workload, NodeId rank);

}  // namespace tacos::chakra
