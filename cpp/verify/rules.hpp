// The rules of the verifier, which verify.hpp lists: one function for what concerns links, one for what concerns chunks.
#pragma once

#include <cstdint>

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

// Rule capacity; progress goes from 0 to 0.4.
void check_capacity(const Examined& examined);

// Rules causality, postcondition, contribution and unneeded, and the order of sums; progress goes from 0.4 to 1.
void check_chunks(const Examined& examined, const VerifyOptions& options);

}  // namespace tacos::verification
