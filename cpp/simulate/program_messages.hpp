// What a program sends: which steps send a message, how large it is and which route it takes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/program.hpp"
#include "model/routes.hpp"
#include "simulate/run_program.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

inline bool sends_message(StepOp op) { return sends(op) || one_sided(op) || op == StepOp::signal; }
inline bool pulls(StepOp op) { return op == StepOp::get || op == StepOp::get_reduce; }

// The bytes that every step moves: those of the chunks in its slots. Where chunks differ in size, they
// are followed through the slots in `order`, in which the steps could run; a slot that no step has
// written counts as the largest chunk.
std::vector<std::int64_t> step_bytes(const Program& program,
                                     std::span<const std::int64_t> chunk_bytes,
                                     const std::vector<StepId>& order);

// The route of every message, and the connection it belongs to.
struct MessageRoutes {
  MessageRoutes(const Program& program, std::shared_ptr<const Topology> topology,
                const ProgramOptions& options, const Progress& progress);

  std::optional<Routes> routes;           // one per connection
  std::vector<std::uint32_t> connection;  // per step
};

}  // namespace tacos::simulation
