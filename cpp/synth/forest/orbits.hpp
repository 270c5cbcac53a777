// Forests and schedules of networks that look the same from every NPU (translations.hpp): those of NPU 0,
// and their images.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "progress.hpp"
#include "schedule.hpp"
#include "synth/forest/packing.hpp"

namespace tacos {

// Trees of NPU 0, with all NPUs as members and roots, as fast as the cuts allow; nothing where there is
// no symmetry, or where no balance was found that fills the cuts.
std::optional<Forest> pack_orbits(const std::shared_ptr<const Topology>& topology,
                                  const Progress& progress);

// An all-gather, reduce-scatter or all-reduce of all NPUs: an orbit where the chunks are equal, else what
// it expands to. Trees are balanced for the given number of chunks, and chosen by their time for the given size.
// Nothing where the network has no symmetry, or the collective is another.
std::optional<Schedule> schedule_orbits(const std::shared_ptr<const Topology>& topology,
                                        const std::shared_ptr<const Collective>& collective,
                                        const std::string& provenance, const Progress& progress);

}  // namespace tacos
