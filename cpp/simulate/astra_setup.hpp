// Preparation of an ASTRA-sim run: checks its inputs, and finds the pairs of ranks that communicate.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "simulate/astra.hpp"

namespace tacos::astra {

// Throws std::invalid_argument if the inputs are inconsistent, so that the run itself needs no checks.
void check(const std::vector<Dimension>& dims, const Workload& workload,
           const std::vector<std::shared_ptr<const Workload>>& algorithms,
           const Column<std::int32_t>& algorithm_of, const System& system);

using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;

// Pairs of sender and receiver: those of the nodes' messages, and all pairs in each line that collectives use.
Pairs pairs_that_talk(const std::vector<Dimension>& dims, const Workload& workload,
                      const std::vector<std::shared_ptr<const Workload>>& algorithms,
                      const Column<std::int32_t>& algorithm_of, const System& system);

}  // namespace tacos::astra
