#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "columns.hpp"
#include "simulate/simulate.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

simulation::Timing timing_of(const std::string& name) {
  if (name == "dependencies") return simulation::Timing::dependencies;
  if (name == "order") return simulation::Timing::order;
  if (name == "schedule") return simulation::Timing::schedule;
  invalid("timing is \"" + name + "\", allowed are dependencies, order, schedule");
}

// Rows (link, time, speed), grouped by link and ordered by time.
void read_speeds(const Array<std::int32_t>& link, const Array<std::int64_t>& time,
                 const Array<std::int64_t>& speed, simulation::Options& options) {
  for (std::size_t i = 0; i < link.shape(0); ++i) {
    options.speeds[link.data()[i]].push_back({time.data()[i], speed.data()[i]});
  }
}

nb::dict simulate_columns(const Schedule& schedule, const Routes& routes, const std::string& timing,
                          bool congestion, bool record, const Array<std::int32_t>& speed_link,
                          const Array<std::int64_t>& speed_time, const Array<std::int64_t>& speed,
                          const Array<std::int64_t>& late, const Array<std::int64_t>& reduce_speed,
                          std::int64_t jitter_ps, std::uint64_t seed, const nb::object& progress) {
  simulation::Options options;
  options.timing = timing_of(timing);
  options.congestion = congestion;
  options.record = record;
  options.jitter = jitter_ps;
  options.seed = seed;
  options.late.assign(late.data(), late.data() + late.shape(0));
  options.reduce_speed.assign(reduce_speed.data(), reduce_speed.data() + reduce_speed.shape(0));
  read_speeds(speed_link, speed_time, speed, options);
  const auto report = progress_to(progress);
  simulation::Result result;
  {
    const nb::gil_scoped_release release;
    result = simulation::simulate(schedule, routes, options, report);
  }
  nb::dict columns;
  columns["link"] = give(std::move(result.link));
  columns["begin_ps"] = give(std::move(result.begin));
  columns["end_ps"] = give(std::move(result.end));
  columns["transfer"] = give(std::move(result.transfer));
  columns["arrival_npu"] = give(std::move(result.arrival_npu));
  columns["arrival_ps"] = give(std::move(result.arrival_time));
  columns["arrival_bytes"] = give(std::move(result.arrival_bytes));
  columns["arrival_transfer"] = give(std::move(result.arrival_transfer));
  columns["npu_finish_ps"] = give(std::move(result.finish));
  columns["cause"] = give(std::move(result.cause));
  return columns;
}

}  // namespace

void bind_simulate(nb::module_& m) {
  m.def(
      "simulate", &simulate_columns, "schedule"_a, "routes"_a, nb::kw_only(), "timing"_a,
      "congestion"_a, "record"_a, "speed_link"_a.noconvert(), "speed_time_ps"_a.noconvert(),
      "speed"_a.noconvert(), "late_ps"_a.noconvert(), "reduce_speed"_a.noconvert(), "jitter_ps"_a,
      "seed"_a, "progress"_a = nb::none(),
      nb::sig("def simulate(schedule: Schedule, routes: Routes, *, timing: str, congestion: bool, "
              "record: bool, speed_link: numpy.typing.NDArray[numpy.int32], "
              "speed_time_ps: numpy.typing.NDArray[numpy.int64], "
              "speed: numpy.typing.NDArray[numpy.int64], "
              "late_ps: numpy.typing.NDArray[numpy.int64], "
              "reduce_speed: numpy.typing.NDArray[numpy.int64], jitter_ps: int, seed: int, "
              "progress: object | None = None) -> dict[str, numpy.typing.NDArray[typing.Any]]"),
      R"(Runs a packed schedule over routes, one per lane; see tacos.simulate.

Rows (speed_link, speed_time_ps, speed) give links other speeds, in parts of 2**32, from a time on.)");
}

}  // namespace tacos::bindings
