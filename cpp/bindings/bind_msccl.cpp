#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <limits>

#include "columns.hpp"
#include "formats/keep_order.hpp"
#include "formats/mscclpp_plan.hpp"
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
      "The same algorithm in fewer, larger steps: neighbours merged, receives fused with sends.");
  m.def(
      "keep_order",
      [](const Program& program, std::int32_t channels, std::int32_t steps, std::int32_t peers,
         std::int32_t awaited, bool join) {
        const nb::gil_scoped_release release;
        return std::make_shared<Program>(
            keep_order(program, {channels, steps, peers, awaited, join}));
      },
      "program"_a, nb::kw_only(), "channels"_a, "steps"_a, "peers"_a, "awaited"_a = kAnyNumber,
      "join"_a = false,
      "The same threads within an executor's limits: one per connection and direction, in order.");
  m.def(
      "stuck",
      [](const Program& program, std::int32_t depth) {
        const nb::gil_scoped_release release;
        return stuck(program, depth);
      },
      "program"_a, "depth"_a,
      "A step that never runs if a connection holds at most `depth` messages, or -1.");
  m.def(
      "read_mscclpp",
      [](const nb::bytes& gpus, std::string_view collective, bool in_place,
         std::string provenance) {
        const std::string_view text(gpus.c_str(), gpus.size());
        const auto kind = collective_kind(collective);
        const nb::gil_scoped_release release;
        // Slots take memory, so limit them to a few per byte of the text.
        const auto most = static_cast<std::int64_t>(
            std::min<std::size_t>(16 * text.size(), std::numeric_limits<std::int32_t>::max()));
        return std::make_shared<Program>(mscclpp::program_of(mscclpp::decoded(text), kind, in_place,
                                                             most, std::move(provenance)));
      },
      "gpus"_a, nb::kw_only(), "collective"_a, "in_place"_a, "provenance"_a,
      "The program of an MSCCL++ plan, from the JSON text of its list of GPUs.");
  m.attr("MSCCLPP_MOST_OPS") = mscclpp::kMostOps;
  m.attr("MSCCLPP_MOST_CHANNELS") = mscclpp::kMostChannels;
  m.attr("MSCCLPP_MOST_CHANNELS_PER_OP") = mscclpp::kMostChannelsPerOp;
  m.attr("MSCCLPP_MOST_SEMAPHORES_PER_OP") = mscclpp::kMostSemaphoresPerOp;
}

}  // namespace tacos::bindings
