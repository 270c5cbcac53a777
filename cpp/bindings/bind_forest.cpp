#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "columns.hpp"
#include "synth/forest/chunks.hpp"
#include "synth/forest/orbits.hpp"
#include "synth/forest/packing.hpp"
#include "synth/forest/rates.hpp"
#include "synth/forest/team_exchange.hpp"
#include "synth/forest/two_way.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_forest(nb::module_& m) {
  nb::class_<Forest>(m, "Forest", "Trees that span a group, with weights; see tacos.synth.forest.")
      .def_prop_ro("routes",
                   [](const Forest& f) { return std::const_pointer_cast<Routes>(f.routes); })
      .def_prop_ro(
          "root", [](const Forest& f) { return give(f.root); }, nb::rv_policy::reference,
          "Root of each tree.")
      .def_prop_ro(
          "weight", [](const Forest& f) { return give(f.weight); }, nb::rv_policy::reference,
          "Weight of each tree.")
      .def_prop_ro(
          "hop_begin", [](const Forest& f) { return give(f.hop_begin); }, nb::rv_policy::reference,
          "The first hop of each tree, then their number.")
      .def_prop_ro(
          "hop", [](const Forest& f) { return give(f.hop); }, nb::rv_policy::reference,
          "The routes of all trees; the route into a node precedes those out of it.")
      .def_prop_ro(
          "depth", [](const Forest& f) { return give(f.depth); }, nb::rv_policy::reference,
          "Hops from the root to the end of each hop.")
      .def_prop_ro(
          "node_image",
          [](const Forest& f) {
            return view(f.symmetry ? f.symmetry->node_image : Column<NodeId>());
          },
          nb::rv_policy::reference,
          "Image of each node under each generator of the symmetry; empty without one.")
      .def_prop_ro(
          "link_image",
          [](const Forest& f) {
            return view(f.symmetry ? f.symmetry->link_image : Column<LinkId>());
          },
          nb::rv_policy::reference)
      .def_ro("demand_weight", &Forest::demand_weight,
              "Total weight of the trees of a root with a demand of 1.")
      .def_ro("unit_Bps", &Forest::unit_Bps)
      .def_ro("unit_parts", &Forest::unit_parts,
              "A tree of weight w carries w * unit_Bps / unit_parts * rate bytes per second.")
      .def_ro("rate", &Forest::rate,
              "Share of the rate that the cuts allow; below 1 if the trees miss it.")
      .def_ro("tolerance", &Forest::tolerance,
              "Relative error by which bandwidths were rounded down.");
  m.def(
      "pack_forest",
      [](std::shared_ptr<Topology> topology, const Array<std::int32_t>& members,
         const Array<std::int32_t>& roots, const Array<std::int64_t>& amounts, double slack,
         const nb::object& progress) {
        const auto report = progress_to(progress);
        std::vector<Demand> demands;
        for (std::size_t i = 0; i < roots.shape(0) && i < amounts.shape(0); ++i) {
          demands.push_back({roots.data()[i], amounts.data()[i]});
        }
        const std::span<const NodeId> all(members.data(), members.shape(0));
        const nb::gil_scoped_release release;
        return pack(topology, all, demands, slack, report);
      },
      "topology"_a, "members"_a, "roots"_a, "amounts"_a, "slack"_a = 0.0, "progress"_a = nb::none(),
      nb::sig("def pack_forest(topology: Topology, members: numpy.typing.NDArray[numpy.int32], "
              "roots: numpy.typing.NDArray[numpy.int32], "
              "amounts: numpy.typing.NDArray[numpy.int64], slack: float = 0.0, "
              "progress: object | None = None) -> "
              "Forest"),
      "Trees from roots to all members, as fast as the cuts allow; see tacos.synth.forest.");
  m.def(
      "narrowest_cut",
      [](std::shared_ptr<Topology> topology, const Array<std::int32_t>& members,
         const Array<std::int32_t>& roots, const Array<std::int64_t>& amounts,
         const nb::object& progress) {
        const auto report = progress_to(progress);
        std::vector<Demand> demands;
        for (std::size_t i = 0; i < roots.shape(0) && i < amounts.shape(0); ++i) {
          demands.push_back({roots.data()[i], amounts.data()[i]});
        }
        const std::span<const NodeId> all(members.data(), members.shape(0));
        forest::NarrowestCut found;
        {
          const nb::gil_scoped_release release;
          found = forest::narrowest_cut(*topology, all, demands, report);
        }
        return nb::make_tuple(give(found.inside), found.time.bytes, found.time.bandwidth_Bps);
      },
      "topology"_a, "members"_a, "roots"_a, "amounts"_a, "progress"_a = nb::none(),
      nb::sig("def narrowest_cut(topology: Topology, members: numpy.typing.NDArray[numpy.int32], "
              "roots: numpy.typing.NDArray[numpy.int32], "
              "amounts: numpy.typing.NDArray[numpy.int64], progress: object | None = None) -> "
              "tuple[numpy.typing.NDArray[numpy.uint8], int, int]"),
      "The nodes of the cut that limits the rates of roots most, the demands in it, and its "
      "bandwidth; see tacos.synth.owners.");
  m.def(
      "reroute_forest",
      [](const Forest& forest, std::shared_ptr<Topology> topology, const Array<std::int64_t>& begin,
         const Array<std::int32_t>& links) {
        return rerouted(forest, topology, std::span(begin.data(), begin.shape(0)),
                        std::span(links.data(), links.shape(0)));
      },
      "forest"_a, "topology"_a, "begin"_a, "links"_a,
      nb::sig("def reroute_forest(forest: Forest, topology: Topology, "
              "begin: numpy.typing.NDArray[numpy.int64], links: numpy.typing.NDArray[numpy.int32]) "
              "-> Forest"),
      "Trees whose links are replaced by paths of another network; see "
      "tacos.synth.forest.logical.");
  m.def(
      "schedule_forest",
      [](const Forest& forest, const Array<std::int32_t>& holder,
         std::shared_ptr<Collective> collective, std::string provenance,
         const nb::object& progress) {
        const auto report = progress_to(progress);
        const std::span<const NodeId> holders(holder.data(), holder.shape(0));
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            schedule(forest, holders, std::move(collective), std::move(provenance), report));
      },
      "forest"_a, "holder"_a, "collective"_a, "provenance"_a = "{}", "progress"_a = nb::none(),
      nb::sig("def schedule_forest(forest: Forest, holder: numpy.typing.NDArray[numpy.int32], "
              "collective: Collective, provenance: str = '{}', progress: object | None = None) -> "
              "Schedule"),
      "A schedule that sends chunks from their holders down the trees; see tacos.synth.forest.");
  m.def(
      "pack_two_way",
      [](std::shared_ptr<Topology> topology, const Array<std::int32_t>& members, std::int64_t count,
         const nb::object& progress) -> std::optional<std::pair<Forest, Forest>> {
        const auto report = progress_to(progress);
        const std::span<const NodeId> all(members.data(), members.shape(0));
        const nb::gil_scoped_release release;
        auto found = pack_two_way(topology, all, count, report);
        if (!found) return std::nullopt;
        return std::pair(std::move(found->up), std::move(found->down));
      },
      "topology"_a, "members"_a, "count"_a, "progress"_a = nb::none(),
      nb::sig("def pack_two_way(topology: Topology, members: numpy.typing.NDArray[numpy.int32], "
              "count: int, progress: object | None = None) -> tuple[Forest, Forest] | None"),
      "Trees that carry sums up and results down; see tacos.synth.forest.");
  m.def(
      "schedule_all_reduce",
      [](const Forest& up, const Forest& down, const Array<std::int32_t>& holder,
         std::shared_ptr<Collective> collective, std::string provenance,
         const nb::object& progress) {
        const auto report = progress_to(progress);
        const std::span<const NodeId> holders(holder.data(), holder.shape(0));
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            all_reduce(up, down, holders, std::move(collective), std::move(provenance), report));
      },
      "up"_a, "down"_a, "holder"_a, "collective"_a, "provenance"_a = "{}",
      "progress"_a = nb::none(),
      nb::sig("def schedule_all_reduce(up: Forest, down: Forest, "
              "holder: numpy.typing.NDArray[numpy.int32], collective: Collective, "
              "provenance: str = '{}', progress: object | None = None) -> Schedule"),
      "A schedule that sends sums up to their holders and results down; see tacos.synth.forest.");
  m.def(
      "team_exchange",
      [](std::shared_ptr<Topology> topology, const Array<std::int32_t>& members, std::int32_t team,
         std::shared_ptr<Collective> collective, std::string provenance,
         const nb::object& progress) -> std::shared_ptr<Schedule> {
        const auto report = progress_to(progress);
        const std::span<const NodeId> all(members.data(), members.shape(0));
        const nb::gil_scoped_release release;
        auto found = team_exchange(topology, all, team, std::move(collective),
                                   std::move(provenance), report);
        return found ? std::make_shared<Schedule>(std::move(*found)) : nullptr;
      },
      "topology"_a, "members"_a, "team"_a, "collective"_a, "provenance"_a = "{}",
      "progress"_a = nb::none(),
      nb::sig("def team_exchange(topology: Topology, members: numpy.typing.NDArray[numpy.int32], "
              "team: int, collective: Collective, provenance: str = '{}', "
              "progress: object | None = None) -> Schedule | None"),
      "An all-reduce of few bytes, whose sums cross between teams once; see tacos.synth.forest.");
  m.def(
      "pack_orbits",
      [](std::shared_ptr<Topology> topology, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return pack_orbits(topology, report);
      },
      "topology"_a, "progress"_a = nb::none(),
      "The trees of some NPUs; those of the others are images of them; see tacos.synth.forest.");
  m.def(
      "schedule_orbits",
      [](std::shared_ptr<Topology> topology, std::shared_ptr<Collective> collective,
         const Forest* forward, const Forest* backward, const std::string& provenance,
         const nb::object& progress) -> std::shared_ptr<Schedule> {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        auto found = schedule_orbits(topology, collective, forward, backward, provenance, report);
        return found ? std::make_shared<Schedule>(std::move(*found)) : nullptr;
      },
      "topology"_a, "collective"_a, "forward"_a = nb::none(), "backward"_a = nb::none(),
      "provenance"_a = "{}", "progress"_a = nb::none(),
      nb::sig("def schedule_orbits(topology: Topology, collective: Collective, "
              "forward: Forest | None = None, backward: Forest | None = None, provenance: str = "
              "'{}', progress: object | None = None) -> Schedule | None"),
      "A schedule from the trees of some NPUs and their images; see tacos.synth.forest.");
  m.def("all_alike", &all_alike, "topology"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Whether translations along the dimensions map the network to itself and move every link.");
}

}  // namespace tacos::bindings
