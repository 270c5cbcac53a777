#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <limits>
#include <optional>

#include "columns.hpp"
#include "lowering/fold.hpp"
#include "lowering/lower.hpp"
#include "lowering/pace.hpp"
#include "simulate/run_program.hpp"
#include "simulation_columns.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

simulation::Timing timing_of_program(const std::string& name) {
  if (name == "first-come") return simulation::Timing::first_come;
  if (name == "order") return simulation::Timing::order;
  if (name == "shared") return simulation::Timing::shared;
  invalid("timing of a program must be one of first-come, order, shared; got \"" + name + "\"");
}

nb::dict run_columns(const Program& program, const Array<std::int64_t>& chunk_bytes,
                     std::shared_ptr<Topology> topology, const std::string& timing, bool record,
                     std::int32_t limit, const Array<std::int64_t>& link_begin,
                     const Array<std::int32_t>& links, const Array<std::int64_t>& position,
                     const nb::object& progress) {
  simulation::ProgramOptions options;
  options.timing = timing_of_program(timing);
  options.record = record;
  options.limit = limit;
  options.link_begin.assign(link_begin.data(), link_begin.data() + link_begin.shape(0));
  options.links.assign(links.data(), links.data() + links.shape(0));
  options.position.assign(position.data(), position.data() + position.shape(0));
  const std::vector<std::int64_t> sizes(chunk_bytes.data(),
                                        chunk_bytes.data() + chunk_bytes.shape(0));
  const auto report = progress_to(progress);
  simulation::Result result;
  {
    const nb::gil_scoped_release release;
    result = simulation::run_program(program, sizes, std::move(topology), options, report);
  }
  return simulation_columns(std::move(result), record);
}

nb::dict departure_columns(const Schedule& schedule) {
  Departures found;
  {
    const nb::gil_scoped_release release;
    found = departures(schedule);
  }
  nb::dict columns;
  columns["src"] = give(std::move(found.src));
  columns["dst"] = give(std::move(found.dst));
  columns["channel"] = give(std::move(found.channel));
  columns["route"] = give(std::move(found.route));
  columns["start_ps"] = give(std::move(found.start));
  return columns;
}

}  // namespace

void bind_run_program(nb::module_& m) {
  m.def("run_program", &run_columns, "program"_a, "chunk_bytes"_a.noconvert(), "topology"_a,
        nb::kw_only(), "timing"_a, "record"_a, "limit"_a, "link_begin"_a.noconvert(),
        "links"_a.noconvert(), "position"_a.noconvert(), "progress"_a = nb::none(),
        nb::sig("def run_program(program: Program, "
                "chunk_bytes: numpy.typing.NDArray[numpy.int64], topology: Topology, *, "
                "timing: str, record: bool, limit: int, "
                "link_begin: numpy.typing.NDArray[numpy.int64], "
                "links: numpy.typing.NDArray[numpy.int32], "
                "position: numpy.typing.NDArray[numpy.int64], progress: object | None = None) "
                "-> dict[str, numpy.typing.NDArray[typing.Any]]"),
        "Simulate a program thread by thread; see tacos.simulate.");
  m.def(
      "lower_paced",
      [](const Schedule& schedule, bool in_place, bool timed, std::optional<Time> limit,
         const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        auto paced = lower_paced(schedule, in_place, timed, report,
                                 limit.value_or(std::numeric_limits<Time>::max()));
        return std::tuple(std::make_shared<Program>(std::move(paced.program)), paced.window,
                          paced.dependencies, paced.shared, paced.runs);
      },
      "schedule"_a, nb::kw_only(), "in_place"_a = false, "timed"_a = false, "limit"_a = nb::none(),
      "progress"_a = nb::none(),
      "The program of a schedule with the window that runs fastest, that window, the program's "
      "times "
      "with\n"
      "links that serve first come, first served, and with shared links (-1: not run), and the "
      "number "
      "of\n"
      "simulations. If no window is below the limit, both times are at or above it.");
  m.def(
      "paced_by_orbit",
      [](const Schedule& schedule, std::optional<Time> limit,
         const nb::object& progress) -> std::optional<std::tuple<Time, Time, std::int32_t>> {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        const auto paced =
            paced_by_orbit(schedule, report, limit.value_or(std::numeric_limits<Time>::max()));
        if (!paced) return std::nullopt;
        return std::tuple(paced->dependencies, paced->shared, paced->runs);
      },
      "schedule"_a, nb::kw_only(), "limit"_a = nb::none(), "progress"_a = nb::none(),
      "The times of an orbit's program and the number of simulations, as lower_paced; None if it "
      "cannot be executed by "
      "orbit.");
  m.def(
      "folded",
      [](const Schedule& schedule, const nb::object& progress) -> std::shared_ptr<Schedule> {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        auto found = folded(schedule, report);
        return found ? std::make_shared<Schedule>(std::move(*found)) : nullptr;
      },
      "schedule"_a, "progress"_a = nb::none(),
      nb::sig("def folded(schedule: Schedule, progress: object | None = None) -> Schedule | None"),
      "The orbit that a packed schedule expands, in chunks of the size of the largest one; None "
      "without a symmetry.");
  m.def("departures", &departure_columns, "schedule"_a,
        nb::sig("def departures(schedule: Schedule) "
                "-> dict[str, numpy.typing.NDArray[typing.Any]]"),
        "The channel of every transfer in the program of a schedule, by (src, dst, start).");
}

}  // namespace tacos::bindings
