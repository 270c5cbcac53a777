#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "columns.hpp"
#include "simulate/simulate.hpp"
#include "simulate/unchanged_run.hpp"
#include "simulation_columns.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

simulation::Timing timing_of(const std::string& name) {
  if (name == "first-come") return simulation::Timing::first_come;
  if (name == "order") return simulation::Timing::order;
  if (name == "schedule") return simulation::Timing::schedule;
  if (name == "shared") return simulation::Timing::shared;
  invalid("timing is \"" + name + "\"; it must be one of first-come, order, schedule, shared");
}

// Rows (link, time, slowdown), grouped by link and ordered by time.
void read_changes(const Array<std::int32_t>& link, const Array<std::int64_t>& time,
                  const Array<std::int64_t>& slowdown, simulation::Options& options) {
  for (std::size_t i = 0; i < link.shape(0); ++i) {
    options.changes[link.data()[i]].push_back({time.data()[i], slowdown.data()[i]});
  }
}

nb::dict simulate_columns(const Schedule& schedule, const Routes& routes, const std::string& timing,
                          bool congestion, bool record, const Array<std::int32_t>& slow_link,
                          const Array<std::int64_t>& slow_time, const Array<std::int64_t>& slowdown,
                          const Array<std::int64_t>& late,
                          const Array<std::int64_t>& reduce_slowdown, std::int64_t jitter_ps,
                          std::uint64_t seed, const nb::object& progress,
                          std::optional<bool> shortcut) {
  simulation::Options options;
  options.shortcut = shortcut;
  options.timing = timing_of(timing);
  options.congestion = congestion;
  options.record = record;
  options.jitter = jitter_ps;
  options.seed = seed;
  options.late.assign(late.data(), late.data() + late.shape(0));
  options.reduce_slowdown.assign(reduce_slowdown.data(),
                                 reduce_slowdown.data() + reduce_slowdown.shape(0));
  read_changes(slow_link, slow_time, slowdown, options);
  const auto report = progress_to(progress);
  simulation::Result result;
  {
    const nb::gil_scoped_release release;
    result = simulation::simulate(schedule, routes, options, report);
  }
  auto cause = std::move(result.cause);
  auto columns = simulation_columns(std::move(result), record);
  if (record) columns["cause"] = give(std::move(cause));
  return columns;
}

nb::object unchanged_run_columns(const Schedule& schedule, const Routes& routes,
                                 const nb::object& progress) {
  const auto report = progress_to(progress);
  std::optional<simulation::Result> result;
  {
    const nb::gil_scoped_release release;
    result = simulation::unchanged_run(schedule, routes, report);
  }
  return result ? nb::object(simulation_columns(std::move(*result), false)) : nb::none();
}

}  // namespace

void bind_simulate(nb::module_& m) {
  m.def(
      "simulate", &simulate_columns, "schedule"_a, "routes"_a, nb::kw_only(), "timing"_a,
      "congestion"_a, "record"_a, "slow_link"_a.noconvert(), "slow_time_ps"_a.noconvert(),
      "slowdown"_a.noconvert(), "late_ps"_a.noconvert(), "reduce_slowdown"_a.noconvert(),
      "jitter_ps"_a, "seed"_a, "progress"_a = nb::none(), "shortcut"_a = nb::none(),
      nb::sig("def simulate(schedule: Schedule, routes: Routes, *, timing: str, congestion: bool, "
              "record: bool, slow_link: numpy.typing.NDArray[numpy.int32], "
              "slow_time_ps: numpy.typing.NDArray[numpy.int64], "
              "slowdown: numpy.typing.NDArray[numpy.int64], "
              "late_ps: numpy.typing.NDArray[numpy.int64], "
              "reduce_slowdown: numpy.typing.NDArray[numpy.int64], jitter_ps: int, seed: int, "
              "progress: object | None = None, shortcut: bool | None = None) -> "
              "dict[str, numpy.typing.NDArray[typing.Any]]"),
      R"(Simulate a packed schedule over routes, one per lane; see tacos.simulate.

Rows (slow_link, slow_time_ps, slowdown) make links slower from a time on, in units of 1 / 2**20; 0 is
down. `shortcut` forces a shortcut (True) or the event loop (False).)");

  m.def(
      "unchanged_run", &unchanged_run_columns, "schedule"_a, "routes"_a, "progress"_a = nb::none(),
      nb::sig("def unchanged_run(schedule: Schedule, routes: Routes, progress: object | None = "
              "None) -> dict[str, numpy.typing.NDArray[typing.Any]] | None"),
      "Return the result of simulate without a record, if a quick check shows that an undisturbed "
      "run equals the schedule; otherwise None.");
}

}  // namespace tacos::bindings
