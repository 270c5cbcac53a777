// The order and the times of the passes of a training pipeline.
//
// A pipeline has `stages`, each with `chunks` parts of the model (virtual stages); part c of stage s is virtual stage
// c * stages + s. Every micro-batch passes all virtual stages forward and then backward. A stage runs one pass at a time,
// in the order of the schedule, as early as its input has arrived.
#pragma once

#include <cstdint>
#include <vector>

namespace tacos {

enum class PipelineRule : std::uint8_t {
  gpipe,        // all forward passes, then all backward passes
  interleaved,  // one forward, one backward; with several chunks as in Megatron-LM
  zero_bubble,  // the same, with gradients of weights while a stage would wait (ZB-H1)
};

// Durations are in picoseconds, by virtual stage: entry stage * chunks + chunk.
struct Pipeline {
  PipelineRule rule = PipelineRule::interleaved;
  std::int32_t stages = 1, chunks = 1, microbatches = 1;
  bool blocking = false;  // whether a stage waits until its output has been sent
  std::vector<std::int64_t> forward, backward;
  std::vector<std::int64_t> weight;         // the part of the backward pass that may be delayed
  std::vector<std::int64_t> send_forward;   // to the next virtual stage
  std::vector<std::int64_t> send_backward;  // to the virtual stage before
  // Earliest start and end of the first forward pass.
  std::vector<std::int64_t> ready_start, ready_end;
  // By stage and micro-batch: how much longer its passes take, in millionths; empty: no longer.
  std::vector<std::int64_t> stretch_ppm;
};

enum class Pass : std::uint8_t { forward, backward, weight };

// One row per pass, in the order in which each stage runs its passes, stage by stage.
struct PipelineTimes {
  std::vector<std::int32_t> stage, chunk, microbatch;
  std::vector<std::uint8_t> pass;
  std::vector<std::int64_t> start_ps, end_ps;
  // Per stage: the largest number of micro-batches (times chunks) whose activations it holds.
  std::vector<std::int32_t> in_flight;
};

// Throws std::invalid_argument if a column has the wrong length, or if the passes deadlock.
PipelineTimes simulate_pipeline(const Pipeline& pipeline);

}  // namespace tacos
