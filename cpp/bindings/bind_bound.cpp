#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bound/bound.hpp"
#include "columns.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_bound(nb::module_& m) {
  nb::class_<Bottleneck>(m, "Bottleneck", "A set of nodes and what must pass its links.")
      .def_ro("nodes", &Bottleneck::nodes, "The nodes of the set, or of the first of several.")
      .def_ro("leaving", &Bottleneck::leaving,
              "Whether the links out of it bind, or those into it.")
      .def_ro("sets", &Bottleneck::sets, "How many disjoint sets of its kind bind together.")
      .def_ro("bytes", &Bottleneck::bytes, "What must pass.")
      .def_ro("links", &Bottleneck::links, "How many links there are.")
      .def_ro("bandwidth_Bps", &Bottleneck::bandwidth_Bps, "Their joint bandwidth.");

  nb::class_<BoundReport>(m, "BoundReport", "What the search for a bound found.")
      .def_ro("time_ps", &BoundReport::time, "The largest bound.")
      .def_prop_ro(
          "latency_ps", [](const BoundReport& r) { return r.farthest.time; },
          "The time of the longest path that a chunk needs.")
      .def_prop_ro(
          "src", [](const BoundReport& r) { return r.farthest.from; },
          "Where that path begins, or -1.")
      .def_prop_ro(
          "dst", [](const BoundReport& r) { return r.farthest.to; }, "Where that path ends, or -1.")
      .def_prop_ro(
          "all_distances", [](const BoundReport& r) { return r.farthest.all; },
          "Whether every distance was measured.")
      .def_ro("bandwidth_s", &BoundReport::bandwidth_s, "The narrowest cut, as a fluid.")
      .def_ro("bottleneck", &BoundReport::bottleneck, "The narrowest cut; no nodes: none.")
      .def_prop_ro(
          "timed_ps", [](const BoundReport& r) { return r.timed.time; },
          "The bound of latencies and bandwidths together.")
      .def_prop_ro(
          "timed_nodes", [](const BoundReport& r) { return r.timed.nodes; }, "Around these nodes.")
      .def_prop_ro(
          "timed_leaving", [](const BoundReport& r) { return r.timed.leaving; },
          "Whether out of them, or into them.")
      .def_ro("in_chunks", &BoundReport::time_in_chunks, "Whether whole chunks make the time.")
      .def_ro("all_cuts", &BoundReport::all_cuts, "Whether every NPU's cuts were searched.")
      .def_ro("lines", &BoundReport::lines, "Whether all pairs were weighed along the dimensions.")
      .def_ro("line_s", &BoundReport::line_s, "What all pairs need in the fullest dimension.")
      .def_ro("line", &BoundReport::line, "That dimension, or -1.")
      .def_ro("even_lines", &BoundReport::even_lines, "Whether each has links of one speed.")
      .def_ro("two_halves", &BoundReport::two_halves,
              "Whether a reduce-scatter and an all-gather reach an all-reduce's bound.");

  m.def(
      "bound",
      [](const Topology& topology, const Collective& collective, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return bound(topology, collective, report);
      },
      "topology"_a, "collective"_a, "progress"_a = nb::none(), "See tacos.bound.");
  m.def(
      "distance_sum",
      [](const Topology& topology, const Collective& collective, const Array<std::int64_t>& length,
         const nb::object& progress) {
        if (length.shape(0) != static_cast<std::size_t>(topology.links())) {
          invalid("length has " + std::to_string(length.shape(0)) + " entries for " +
                  std::to_string(topology.links()) + " links");
        }
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return distance_sum(topology, collective, {length.data(), length.shape(0)}, report);
      },
      "topology"_a, "collective"_a, "length"_a, "progress"_a = nb::none(),
      "Bytes times distance of all pairs that have something to send, by lengths of the links.");
}

}  // namespace tacos::bindings
