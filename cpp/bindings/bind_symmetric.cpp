#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "synth/symmetric/symmetric.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_symmetric(nb::module_& m) {
  m.def(
      "synthesize_symmetric",
      [](std::shared_ptr<Topology> topology, std::shared_ptr<Collective> collective,
         std::string provenance, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(synthesize_symmetric(
            std::move(topology), std::move(collective), std::move(provenance), report));
      },
      "topology"_a, "collective"_a, "provenance"_a = "{}", "progress"_a = nb::none(),
      "Solve a collective for one NPU of a symmetric network; see tacos.synth.symmetric.");

  m.def(
      "translations",
      [](const Topology& topology) {
        Symmetry symmetry;
        {
          const nb::gil_scoped_release release;
          symmetry = translations(topology);
        }
        return nb::make_tuple(symmetry.orders, view(symmetry.node_image),
                              view(symmetry.link_image));
      },
      "topology"_a,
      nb::sig("def translations(topology: Topology) -> tuple[list[int], "
              "numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32]]"),
      "The translations by one along each dimension: orders, node_image and link_image of a "
      "schedule.");
}

}  // namespace tacos::bindings
