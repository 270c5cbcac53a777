#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "columns.hpp"
#include "synth/greedy.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_synth(nb::module_& m) {
  m.def(
      "greedy",
      [](std::shared_ptr<Topology> topology, std::shared_ptr<Collective> collective,
         std::uint64_t seed, std::int32_t threads, bool steps, const std::string& provenance,
         const nb::object& progress) {
        const GreedyOptions options{seed, threads, steps};
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            greedy(std::move(topology), std::move(collective), options, provenance, report));
      },
      "topology"_a, "collective"_a, nb::kw_only(), "seed"_a = 0, "threads"_a = 0, "steps"_a = true,
      "provenance"_a = "{}", "progress"_a = nb::none(),
      "A schedule of a collective that sums nothing; see tacos.synth.greedy.");
}

}  // namespace tacos::bindings
