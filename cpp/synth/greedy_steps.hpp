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

// Whether this variant applies: every NPU needs every chunk, all chunks are equal, all links are equal and direct,
// and a chunk arrives a small whole number of steps after its start. In large problems it is enough that chunks differ by at
// most a byte, and that a chunk arrives within a small number of steps: it is sent on at the beginning of the next one.
bool stepwise(const Topology& topology, const Collective& collective);

// A problem as flat columns: the input of the matching, for CPU threads and for a GPU.
struct StepProblem {
  // The in-links of each NPU, in the order in which they take turns.
  std::vector<std::uint32_t> in_begin;
  std::vector<LinkId> in_link;
  std::vector<NodeId> in_source;
  std::vector<std::uint32_t> own_begin;  // initial chunks of each NPU: the head of its log
  std::vector<ChunkId> own;
  std::vector<std::uint64_t> log_begin;  // each NPU's region of the log of all arrivals
  std::vector<std::uint32_t> shift;      // rotation of an NPU's in-links by the seed
  Time period = 0;                       // of a step
  std::uint32_t lag = 1;                 // steps from a start until the chunk can be forwarded

  std::span<const ChunkId> held(NodeId npu) const {
    const auto first = own_begin[at(npu)];
    return {own.data() + first, own_begin[at(npu) + 1] - first};
  }
};

// Requires stepwise().
StepProblem step_problem(const Topology& topology, const Collective& collective,
                         const GreedyOptions& options);

// The transfers over the topology's links, lane by lane; nullopt if this variant does not apply.
std::optional<Transfers> greedy_steps(const Topology& topology, const Collective& collective,
                                      const GreedyOptions& options, const Progress& progress);

}  // namespace tacos
