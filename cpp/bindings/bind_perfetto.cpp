#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "formats/perfetto.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

template <typename T>
std::span<const T> span(const Array<T>& array) {
  return {array.data(), array.shape(0)};
}

using CounterColumns = std::tuple<std::string, std::string, Array<std::int64_t>, Array<double>>;

}  // namespace

void bind_perfetto(nb::module_& m) {
  m.def(
      "write_perfetto",
      [](const Topology& topology, const Array<std::int32_t>& link,
         const Array<std::int64_t>& begin_ps, const Array<std::int64_t>& end_ps,
         const Array<std::int32_t>& transfer, const Array<std::int32_t>& arrival_npu,
         const Array<std::int64_t>& arrival_ps, const Array<std::int64_t>& arrival_bytes,
         const Array<std::int32_t>& arrival_transfer, const Array<std::int32_t>& cause,
         const Array<std::uint32_t>& chunk, const std::vector<CounterColumns>& counters,
         std::string about, const nb::callable& sink, const nb::object& progress) {
        perfetto::Trace trace{span(link),
                              span(begin_ps),
                              span(end_ps),
                              span(transfer),
                              span(arrival_npu),
                              span(arrival_ps),
                              span(arrival_bytes),
                              span(arrival_transfer),
                              span(cause),
                              span(chunk),
                              {},
                              std::move(about)};
        for (const auto& [name, unit, time, value] : counters) {
          const auto times = span(time);
          const auto values = span(value);
          trace.counters.push_back(
              {name, unit, {times.begin(), times.end()}, {values.begin(), values.end()}});
        }
        const auto report = progress_to(progress);
        const auto put = [&](std::string_view block) {
          const nb::gil_scoped_acquire gil;
          sink(nb::bytes(block.data(), block.size()));
        };
        const nb::gil_scoped_release release;
        perfetto::write(topology, trace, put, report);
      },
      "topology"_a, nb::kw_only(), "link"_a, "begin_ps"_a, "end_ps"_a, "transfer"_a,
      "arrival_npu"_a, "arrival_ps"_a, "arrival_bytes"_a, "arrival_transfer"_a, "cause"_a,
      "chunk"_a, "counters"_a, "about"_a, "sink"_a, "progress"_a = nb::none(),
      nb::sig("def write_perfetto(topology: Topology, *, link: numpy.typing.NDArray[numpy.int32], "
              "begin_ps: numpy.typing.NDArray[numpy.int64], "
              "end_ps: numpy.typing.NDArray[numpy.int64], "
              "transfer: numpy.typing.NDArray[numpy.int32], "
              "arrival_npu: numpy.typing.NDArray[numpy.int32], "
              "arrival_ps: numpy.typing.NDArray[numpy.int64], "
              "arrival_bytes: numpy.typing.NDArray[numpy.int64], "
              "arrival_transfer: numpy.typing.NDArray[numpy.int32], "
              "cause: numpy.typing.NDArray[numpy.int32], "
              "chunk: numpy.typing.NDArray[numpy.uint32], "
              "counters: list[tuple[str, str, numpy.typing.NDArray[numpy.int64], "
              "numpy.typing.NDArray[numpy.float64]]], about: str, "
              "sink: typing.Callable[[bytes], object], progress: object | None = None) -> None"),
      "Write a trace as Perfetto's protobuf, block by block; see tacos.simulate.trace_export.");
}

}  // namespace tacos::bindings
