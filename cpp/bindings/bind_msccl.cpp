#include <nanobind/stl/shared_ptr.h>

#include "columns.hpp"
#include "formats/pack.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_msccl(nb::module_& m) {
  m.def(
      "pack",
      [](const Program& program, std::int32_t channels, std::int32_t fusing_channels,
         std::int32_t steps, std::int32_t count, std::int32_t peers, bool few_threads,
         std::int32_t unit, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        const PackOptions options{channels, fusing_channels, steps, count,
                                  peers,    few_threads,     unit};
        return std::make_shared<Program>(pack(program, options, report));
      },
      "program"_a, nb::kw_only(), "channels"_a, "fusing_channels"_a, "steps"_a, "count"_a,
      "peers"_a = 32, "few_threads"_a = false, "unit"_a = 0, "progress"_a = nb::none(),
      "The same algorithm in fewer, larger steps: neighbours together, receives fused with sends.");
  m.def(
      "stuck",
      [](const Program& program, std::int32_t depth) {
        const nb::gil_scoped_release release;
        return stuck(program, depth);
      },
      "program"_a, "depth"_a,
      "Some step that never runs if a connection holds at most `depth` messages, or -1.");
}

}  // namespace tacos::bindings
