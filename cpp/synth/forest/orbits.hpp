// Forests and schedules of networks that look the same from several NPUs (translations.hpp): those of one NPU
// and their images.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "synth/forest/packing.hpp"

namespace tacos {

// Trees with all NPUs as members and roots, as fast as the cuts allow: those of NPU 0, or of one NPU of each
// orbit. nullopt if there is no symmetry, or if no such trees that fill the cuts were found.
std::optional<Forest> pack_orbits(const std::shared_ptr<const Topology>& topology,
                                  const Progress& progress);

// An orbit: an all-gather, reduce-scatter or all-reduce of all NPUs. If all NPUs are equivalent, trees are balanced for
// the given number of chunks, and chosen by their time for the given size. Otherwise they are those of pack_orbits(), on the
// network (`forward`) and on the reversed one, as far as needed. nullopt if the network has no symmetry, or for
// other collectives.
std::optional<Schedule> schedule_orbits(const std::shared_ptr<const Topology>& topology,
                                        const std::shared_ptr<const Collective>& collective,
                                        const Forest* forward, const Forest* backward,
                                        const std::string& provenance, const Progress& progress);

// Whether all NPUs are equivalent, in the sense of translations.hpp.
bool all_alike(const Topology& topology);

}  // namespace tacos
