// The rules of the verifier, which verify.hpp lists: one function for links, others for chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "verify/findings.hpp"
#include "verify/lanes.hpp"
#include "verify/orbits.hpp"

namespace tacos::verification {

// What all rules read, and where they report.
struct Examined {
  const Schedule& schedule;
  const Lanes& lanes;
  const Orbits& orbits;
  Findings& findings;
  const Progress& progress;
  std::int32_t threads;
};

// Rule capacity; progress goes from 0 to 0.2.
void check_capacity(const Examined& examined);

// Checks the other rules node by node, for schedules without a symmetry. Returns 1 for each chunk that this does not prove
// correct, and reports nothing; progress goes from 0.2 to 0.6.
std::vector<std::uint8_t> check_nodes(const Examined& examined);

// Checks the rules causality, postcondition, contribution and unneeded, and the order of sums, for the chunks that are left,
// or for all chunks if the list is empty; progress goes from 0.6 to 1.
void check_chunks(const Examined& examined, const VerifyOptions& options,
                  std::span<const std::uint8_t> left);

}  // namespace tacos::verification
