// The greedy engine step by step, for networks of equal links; see greedy.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "synth/greedy.hpp"

namespace tacos {

// Whether this way applies: every NPU wants every chunk, all chunks and all links are alike and direct,
// and a chunk arrives a whole number of steps, not too many, after its start.
bool stepwise(const Topology& topology, const Collective& collective);

// A problem as flat columns, all that the matching reads: threads here and a GPU work from the same.
struct StepProblem {
  std::vector<std::uint32_t>
      in_begin;  // the in-links of each NPU, in the order in which they take turns
  std::vector<LinkId> in_link;
  std::vector<NodeId> in_source;
  std::vector<std::uint32_t> own_begin;  // what each NPU holds at the start: the head of its log
  std::vector<ChunkId> own;
  std::vector<std::uint64_t> log_begin;  // each NPU's region of the log of all arrivals
  std::vector<std::uint32_t> shift;  // by how much the seed turns the order of an NPU's in-links
  Time period = 0;                   // of a step
  std::uint32_t lag = 1;             // steps from a start to where the chunk can be sent on

  std::span<const ChunkId> held(NodeId npu) const {
    const auto first = own_begin[at(npu)];
    return {own.data() + first, own_begin[at(npu) + 1] - first};
  }
};

// Only where stepwise() says so.
StepProblem step_problem(const Topology& topology, const Collective& collective,
                         const GreedyOptions& options);

// The transfers over the topology's links, lane by lane; nothing where this way does not apply.
std::optional<Transfers> greedy_steps(const Topology& topology, const Collective& collective,
                                      const GreedyOptions& options, const Progress& progress);

}  // namespace tacos
