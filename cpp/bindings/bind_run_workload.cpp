#include <nanobind/stl/shared_ptr.h>

#include "columns.hpp"
#include "simulate/run_workload.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_run_workload(nb::module_& m) {
  m.def(
      "run_workload",
      [](const std::shared_ptr<Routes>& routes, const Array<std::int32_t>& rank,
         const Array<std::uint8_t>& kind, const Array<std::int64_t>& duration_ps,
         const Array<std::int32_t>& message, const Array<std::int64_t>& dep_begin,
         const Array<std::int64_t>& dep, const Array<std::int64_t>& bytes,
         const Array<std::int32_t>& connection, const Array<std::int32_t>& connection_route,
         const nb::object& progress) {
        const auto span = [](const auto& array) { return std::span(array.data(), array.shape(0)); };
        const simulation::LoweredWorkload workload{
            span(rank), span(kind),  span(duration_ps), span(message),         span(dep_begin),
            span(dep),  span(bytes), span(connection),  span(connection_route)};
        for (const auto route : workload.connection_route) {
          if (route < 0 || route >= routes->count()) {
            throw std::invalid_argument("connection_route has a value out of range");
          }
        }
        const auto report = progress_to(progress);
        simulation::NodeTimes times;
        {
          const nb::gil_scoped_release release;
          times = simulation::run_workload(workload, *routes, report);
        }
        return nb::make_tuple(give(std::move(times.start)), give(std::move(times.end)));
      },
      "routes"_a, nb::kw_only(), "rank"_a, "kind"_a, "duration_ps"_a, "message"_a, "dep_begin"_a,
      "dep"_a, "bytes"_a, "connection"_a, "connection_route"_a, "progress"_a = nb::none(),
      nb::sig("def run_workload(routes: Routes, *, rank: numpy.typing.NDArray[numpy.int32], "
              "kind: numpy.typing.NDArray[numpy.uint8], "
              "duration_ps: numpy.typing.NDArray[numpy.int64], "
              "message: numpy.typing.NDArray[numpy.int32], "
              "dep_begin: numpy.typing.NDArray[numpy.int64], "
              "dep: numpy.typing.NDArray[numpy.int64], bytes: numpy.typing.NDArray[numpy.int64], "
              "connection: numpy.typing.NDArray[numpy.int32], "
              "connection_route: numpy.typing.NDArray[numpy.int32], "
              "progress: object | None = None) -> "
              "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]"),
      "Start and end of each node of a workload, in picoseconds; see "
      "cpp/simulate/run_workload.hpp.");
}

}  // namespace tacos::bindings
