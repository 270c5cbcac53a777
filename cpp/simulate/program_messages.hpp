// The messages of a program: the steps that send them, their sizes and routes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/program.hpp"
#include "model/routes.hpp"
#include "simulate/run_program.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

inline bool sends_message(StepOp op) { return sends(op) || one_sided(op) || op == StepOp::signal; }
inline bool pulls(StepOp op) { return op == StepOp::get || op == StepOp::get_reduce; }

// The bytes that every step moves: those of the chunks in its slots. If chunks differ in size, they
// are followed through the slots, in an `order` in which the steps can run. A slot that no step has
// written counts as the largest chunk.
std::vector<std::int64_t> step_bytes(const Program& program,
                                     std::span<const std::int64_t> chunk_bytes,
                                     const std::vector<StepId>& order);

// The route and the connection of every message.
struct MessageRoutes {
  MessageRoutes(const Program& program, std::shared_ptr<const Topology> topology,
                const ProgramOptions& options, const Progress& progress);
  MessageRoutes(Routes of, std::vector<std::uint32_t> connections)
      : routes(std::move(of)), connection(std::move(connections)) {}

  std::optional<Routes> routes;           // one per connection
  std::vector<std::uint32_t> connection;  // per step
};

}  // namespace tacos::simulation
