#include "verify/verify.hpp"

#include <cstdint>
#include <vector>

#include "support/parallel.hpp"
#include "verify/findings.hpp"
#include "verify/lanes.hpp"
#include "verify/orbits.hpp"
#include "verify/rules.hpp"
#include "verify/values.hpp"

namespace tacos {

VerifyReport verify(const Schedule& schedule, const VerifyOptions& options,
                    const Progress& progress) {
  using namespace verification;
  Findings findings(options.limit);
  Orbits orbits(schedule);
  const bool fine = orbits.check(findings);
  if (fine) {
    const Lanes lanes(schedule);
    const Examined examined{schedule, lanes,    orbits,
                            findings, progress, usable_threads(options.threads)};
    check_capacity(examined);
    std::vector<std::uint8_t> left;
    if (!schedule.symmetry()) left = check_nodes(examined);
    check_chunks(examined, options, left);
  }
  return findings.report(schedule.stored_transfers(),
                         fine || !sums_end_at_several(schedule.collective()));
}

}  // namespace tacos
