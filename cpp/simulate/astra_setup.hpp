// What is settled before an ASTRA-sim run: that its parts fit, and which ranks will talk to which.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "simulate/astra.hpp"

namespace tacos::astra {

// Throws std::invalid_argument where the parts do not fit, so that the run itself needs no checks.
void check(const std::vector<Dimension>& dims, const Workload& workload,
           const std::vector<std::shared_ptr<const Workload>>& algorithms,
           const Column<std::int32_t>& algorithm_of, const System& system);

using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;

// Senders and receivers: of the nodes' messages, and all ranks in a line that collectives use.
Pairs pairs_that_talk(const std::vector<Dimension>& dims, const Workload& workload,
                      const std::vector<std::shared_ptr<const Workload>>& algorithms,
                      const Column<std::int32_t>& algorithm_of, const System& system);

}  // namespace tacos::astra
