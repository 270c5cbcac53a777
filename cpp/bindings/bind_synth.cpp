#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "synth/balanced.hpp"
#include "synth/greedy.hpp"
#include "synth/greedy_steps.hpp"
#include "synth/justify.hpp"
#include "synth/leaders.hpp"
#include "synth/multitree.hpp"
#include "synth/refine.hpp"
#include "synth/steiner/steiner.hpp"
#include "synth/tree_layout.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_synth(nb::module_& m) {
  m.def(
      "greedy",
      [](std::shared_ptr<Topology> topology, std::shared_ptr<Collective> collective,
         std::uint64_t seed, std::int32_t threads, bool steps, bool backwards,
         const std::string& provenance, const nb::object& progress) {
        const GreedyOptions options{seed, threads, steps, backwards};
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            greedy(std::move(topology), std::move(collective), options, provenance, report));
      },
      "topology"_a, "collective"_a, nb::kw_only(), "seed"_a = 0, "threads"_a = 0, "steps"_a = true,
      "backwards"_a = false, "provenance"_a = "{}", "progress"_a = nb::none(),
      "A schedule of a collective without sums; see tacos.synth.greedy.");

  m.def(
      "steiner_schedule",
      [](std::shared_ptr<Topology> topology, std::shared_ptr<Collective> collective,
         const std::string& provenance, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            steiner_schedule(std::move(topology), std::move(collective), provenance, report));
      },
      "topology"_a, "collective"_a, "provenance"_a = "{}", "progress"_a = nb::none(),
      "A schedule over trees through any NPUs; see tacos.synth.steiner.");

  m.def(
      "balanced",
      [](const std::shared_ptr<Collective>& collective, std::shared_ptr<Routes> routes,
         const Array<std::int32_t>& hop, const Array<std::int32_t>& box,
         const Array<std::uint32_t>& chunk, const Array<std::int32_t>& src,
         const Array<std::int32_t>& dst, double least_s, const std::string& provenance,
         const nb::object& progress) {
        const auto span = [](const auto& array) { return std::span(array.data(), array.shape(0)); };
        const auto report = progress_to(progress);
        const Neighbours neighbours{std::move(routes), span(hop), span(box), least_s};
        const Messages messages{span(chunk), span(src), span(dst)};
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            balanced(collective, neighbours, messages, provenance, report));
      },
      "collective"_a, "routes"_a, nb::kw_only(), "hop"_a, "box"_a, "chunk"_a, "src"_a, "dst"_a,
      "least_s"_a, "provenance"_a = "{}", "progress"_a = nb::none(),
      "A schedule of messages between pairs, through relays in their boxes; see "
      "tacos.synth.balanced.");

  m.def(
      "multitree",
      [](std::shared_ptr<Topology> topology, const Array<std::int32_t>& roots,
         const Array<std::int64_t>& member_begin, const Array<std::int32_t>& members,
         const nb::object& progress) {
        const auto span = [](const auto& array) { return std::span(array.data(), array.shape(0)); };
        const auto report = progress_to(progress);
        Trees trees;
        {
          const nb::gil_scoped_release release;
          trees = multitree(topology, span(roots), span(member_begin), span(members), report);
        }
        return nb::make_tuple(trees.routes, give(std::move(trees.tree)),
                              give(std::move(trees.step)), give(std::move(trees.route)));
      },
      "topology"_a, "roots"_a, "member_begin"_a, "members"_a, "progress"_a = nb::none(),
      nb::sig("def multitree(topology: Topology, roots: numpy.typing.NDArray[numpy.int32], "
              "member_begin: numpy.typing.NDArray[numpy.int64], "
              "members: numpy.typing.NDArray[numpy.int32], progress: object | None = None) -> "
              "tuple[Routes, numpy.typing.NDArray[numpy.int32], "
              "numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32]]"),
      "Trees that grow together: routes, and of each edge its tree, step and route; see "
      "tacos.synth.baselines.multitree.");

  m.def(
      "lay_out_trees",
      [](const Array<std::int32_t>& parent, const Array<std::int32_t>& place,
         const std::shared_ptr<Routes>& routes, const Array<std::int64_t>& weight, bool fixed_root,
         std::int64_t trials, const nb::object& progress) {
        const auto span = [](const auto& array) { return std::span(array.data(), array.shape(0)); };
        const TreeLayout problem{span(parent), span(weight), fixed_root, trials};
        const auto report = progress_to(progress);
        std::vector<std::int32_t> found;
        {
          const nb::gil_scoped_release release;
          found = lay_out(problem, *routes, span(place), report);
        }
        return give(std::move(found));
      },
      "parent"_a, "place"_a, "routes"_a, "weight"_a, nb::kw_only(), "fixed_root"_a, "trials"_a,
      "progress"_a = nb::none(), nb::rv_policy::reference,
      "An assignment of ranks to the places of trees whose edges share few links; see "
      "tacos.synth.baselines.trees.");
  m.def(
      "refine",
      [](const std::shared_ptr<Schedule>& schedule, std::uint64_t seed, std::int64_t hops,
         std::int64_t goal_ps, const std::string& provenance, const nb::object& progress) {
        const RefineOptions options{seed, hops, goal_ps};
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(refine(*schedule, options, provenance, report));
      },
      "schedule"_a, nb::kw_only(), "seed"_a = 0, "hops"_a, "goal_ps"_a = 0, "provenance"_a = "{}",
      "progress"_a = nb::none(),
      "The schedule after local search over what spreads finished values; see tacos.refine.");
  m.def(
      "justify",
      [](const std::shared_ptr<Schedule>& schedule, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(justify(*schedule, report));
      },
      "schedule"_a, nb::kw_only(), "progress"_a = nb::none(),
      "The schedule after its transfers were moved in time; see tacos.refine.");
  m.def(
      "meet_at_leaders",
      [](const std::shared_ptr<Topology>& topology, const std::shared_ptr<Collective>& collective,
         const std::vector<std::tuple<std::vector<NodeId>, std::vector<std::int32_t>,
                                      std::vector<NodeId>, bool>>& choices,
         std::uint64_t seed, std::int64_t hops, std::int64_t goal_ps, std::int64_t most_ps,
         std::size_t first, const std::string& provenance, const nb::object& progress) {
        std::vector<Leaders> leaders;
        for (const auto& [npus, digits, receivers, straight] : choices)
          leaders.push_back({npus, digits, receivers, straight});
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(meet_at_leaders(
            topology, collective, leaders, LeaderOptions{seed, hops, goal_ps, most_ps, first},
            provenance, report));
      },
      "topology"_a, "collective"_a, "choices"_a, nb::kw_only(), "seed"_a = 0, "hops"_a,
      "goal_ps"_a = 0, "most_ps"_a = 0, "first"_a = 0, "provenance"_a = "{}",
      "progress"_a = nb::none(),
      "An all-reduce that meets at some of these sets of leaders: NPUs, the sizes of the groups of "
      "their stages, and receivers; see tacos.synth.leaders.");
  m.def("greedy_stepwise", &stepwise, "topology"_a, "collective"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Whether greedy works step by step, with 9 bytes per transfer.");
  m.def(
      "greedy_step_problem",
      [](const Topology& topology, const Collective& collective, std::uint64_t seed) {
        if (!stepwise(topology, collective)) {
          throw std::invalid_argument("the greedy engine does not go step by step here");
        }
        auto problem = step_problem(topology, collective, GreedyOptions{.seed = seed});
        nb::typed<nb::dict, nb::str, nb::any> columns;
        columns["in_begin"] = give(std::move(problem.in_begin));
        columns["in_link"] = give(std::move(problem.in_link));
        columns["in_source"] = give(std::move(problem.in_source));
        columns["own_begin"] = give(std::move(problem.own_begin));
        columns["own"] = give(std::move(problem.own));
        columns["log_begin"] = give(std::move(problem.log_begin));
        columns["shift"] = give(std::move(problem.shift));
        columns["period_ps"] = problem.period;
        columns["lag"] = problem.lag;
        return columns;
      },
      "topology"_a, "collective"_a, "seed"_a = 0,
      "The input of the step-by-step matching, as flat columns; see cpp/synth/greedy_steps.hpp.");
}

}  // namespace tacos::bindings
