#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bound/bound.hpp"
#include "bound/rising_lengths.hpp"
#include "columns.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_bound(nb::module_& m) {
  nb::class_<Bottleneck>(m, "Bottleneck",
                         "A set of nodes and the bytes that must cross its boundary.")
      .def_ro("nodes", &Bottleneck::nodes,
              "The nodes of the set; of several sets, those of the first.")
      .def_ro("leaving", &Bottleneck::leaving,
              "Whether its outgoing links are the limit, or its incoming links.")
      .def_ro("sets", &Bottleneck::sets,
              "Number of disjoint sets of this kind that limit the time together.")
      .def_ro(
          "set_of", &Bottleneck::set_of,
          "The set of each node, -1 if none; empty if there is one set, or if all are images of "
          "the first.")
      .def_ro("bytes", &Bottleneck::bytes, "Bytes that must pass.")
      .def_ro("links", &Bottleneck::links, "Number of these links.")
      .def_ro("bandwidth_Bps", &Bottleneck::bandwidth_Bps, "Total bandwidth of these links.");

  nb::class_<BoundReport>(m, "BoundReport", "The result of a search for lower bounds.")
      .def_ro("time_ps", &BoundReport::time, "The largest bound.")
      .def_prop_ro(
          "latency_ps", [](const BoundReport& r) { return r.farthest.time; },
          "The time of the longest path that a chunk needs.")
      .def_prop_ro(
          "src", [](const BoundReport& r) { return r.farthest.from; }, "Start of that path, or -1.")
      .def_prop_ro(
          "dst", [](const BoundReport& r) { return r.farthest.to; }, "End of that path, or -1.")
      .def_prop_ro(
          "all_distances", [](const BoundReport& r) { return r.farthest.all; },
          "Whether all distances were computed.")
      .def_ro("bandwidth_s", &BoundReport::bandwidth_s,
              "Time of the narrowest cut for a fluid, without latencies and chunks.")
      .def_ro("bottleneck", &BoundReport::bottleneck,
              "The narrowest cut; without nodes if there is none.")
      .def_prop_ro(
          "timed_ps", [](const BoundReport& r) { return r.timed.time; },
          "The bound by latencies and bandwidths together.")
      .def_prop_ro(
          "timed_nodes", [](const BoundReport& r) { return r.timed.nodes; },
          "The nodes of the cut of that bound.")
      .def_prop_ro(
          "timed_leaving", [](const BoundReport& r) { return r.timed.leaving; },
          "Whether the links out of these nodes are the limit, or those into them.")
      .def_ro("in_chunks", &BoundReport::time_in_chunks, "Whether the bound counts whole chunks.")
      .def_ro("all_cuts", &BoundReport::all_cuts, "Whether every NPU's cuts were searched.")
      .def_ro("lines", &BoundReport::lines,
              "Whether traffic between all pairs was counted along the dimensions.")
      .def_ro("line_s", &BoundReport::line_s, "Time for all pairs in the busiest dimension.")
      .def_ro("line", &BoundReport::line, "That dimension, or -1.")
      .def_ro("even_lines", &BoundReport::even_lines,
              "Whether all links of each dimension have one speed.")
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
      "Sum of bytes times distance over all pairs, for given lengths of the links.");
  m.def(
      "rising_lengths",
      [](const Topology& topology, const Collective& collective, std::int64_t rounds,
         const nb::object& progress) {
        const auto report = progress_to(progress);
        std::vector<std::int64_t> lengths;
        {
          const nb::gil_scoped_release release;
          lengths = rising_lengths(topology, collective, rounds, report);
        }
        return give(std::move(lengths));
      },
      "topology"_a, "collective"_a, "rounds"_a, "progress"_a = nb::none(),
      "Lengths of the links that rise with the load of all pairs' bytes.");
}

}  // namespace tacos::bindings
