#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrow.hpp"
#include "columns.hpp"
#include "hooks.hpp"
#include "json.hpp"
#include "model/channel_routes.hpp"
#include "model/port_routes.hpp"
#include "model/schedule.hpp"
#include "pickling.hpp"
#include "timing/compose.hpp"
#include "timing/retime.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

constexpr double kSecondsPerPicosecond = 1e-12;

std::shared_ptr<Routes> make_routes(std::shared_ptr<Topology> topology,
                                    const Array<std::uint8_t>& kinds,
                                    const Array<std::int64_t>& link_begin,
                                    const Array<std::int32_t>& links) {
  return std::make_shared<Routes>(std::move(topology), copy(kinds), copy(link_begin), copy(links));
}

std::optional<Symmetry> make_symmetry(const std::vector<std::int32_t>& orders,
                                      const std::optional<Array<std::int32_t>>& node_image,
                                      const std::optional<Array<std::int32_t>>& link_image) {
  if (orders.empty()) return std::nullopt;
  if (!node_image || !link_image) invalid("a symmetry needs node_image and link_image");
  return Symmetry{orders, copy(*node_image), copy(*link_image)};
}

std::shared_ptr<Schedule> make_schedule(
    std::shared_ptr<Collective> collective, std::shared_ptr<Routes> routes,
    const Array<std::int32_t>& lane_route, const Array<std::uint8_t>& lane_op,
    const Array<std::uint8_t>& lane_reads, const Array<std::int64_t>& lane_begin,
    const Array<std::uint32_t>& chunk, const Array<std::uint32_t>& start, std::int64_t quantum_ps,
    const std::vector<std::int32_t>& orders, const std::optional<Array<std::int32_t>>& node_image,
    const std::optional<Array<std::int32_t>>& link_image, std::string provenance,
    std::string engine, std::optional<Time> bound_ps, std::optional<Time> in_switch_bound_ps,
    bool consistent, bool cut_short, bool matched_ports, std::vector<std::string> rejected,
    std::string name, std::string dialect, std::string protocol, std::uint64_t min_bytes,
    std::uint64_t max_bytes, std::int32_t threads_per_block, std::optional<Time> executed_ps,
    std::optional<std::string> target, bool given_away) {
  try {
    if (!nb::isinstance<nb::dict>(from_json(provenance))) {
      invalid("the provenance must be a JSON object");
    }
  } catch (nb::python_error&) {
    invalid("the provenance is not JSON: " + provenance.substr(0, 40));
  }
  Transfers transfers{copy(lane_route),
                      copy(lane_op),
                      copy(lane_reads),
                      copy(lane_begin),
                      given_away ? adopt(chunk) : copy(chunk),
                      given_away ? adopt(start) : copy(start),
                      quantum_ps};
  auto symmetry = make_symmetry(orders, node_image, link_image);
  const nb::gil_scoped_release release;  // the arguments are not used below
  const Schedule schedule(std::move(collective), std::move(routes), std::move(transfers),
                          std::move(symmetry), std::move(provenance));
  return std::make_shared<Schedule>(
      schedule
          .with_facts({std::move(engine),
                       bound_ps,
                       in_switch_bound_ps,
                       consistent,
                       cut_short,
                       matched_ports,
                       std::move(rejected),
                       {std::move(name), std::move(dialect), std::move(protocol), min_bytes,
                        max_bytes, threads_per_block}})
          .with_executed(executed_ps, std::move(target).value_or("")));
}

std::shared_ptr<Schedule> retime_columns(std::shared_ptr<Collective> collective,
                                         std::shared_ptr<Routes> routes,
                                         const Array<std::int32_t>& route,
                                         const Array<std::uint32_t>& chunk,
                                         const Array<std::int32_t>& step,
                                         const Array<std::uint8_t>& op,
                                         const Array<std::uint8_t>& reads, std::string provenance,
                                         const nb::object& progress, std::optional<bool> sweep) {
  const auto span = [](const auto& array) { return std::span(array.data(), array.shape(0)); };
  const Order order{span(route), span(chunk), span(step), span(op), span(reads)};
  const auto report = progress_to(progress);
  const nb::gil_scoped_release release;  // the caller's frame keeps the arrays alive
  return std::make_shared<Schedule>(retime(std::move(collective), std::move(routes), order,
                                           std::move(provenance), report, sweep));
}

// The package resolves names of nodes and links, as for all other functions.
nb::dict rows(const Schedule& schedule, const nb::object& given_npu, const nb::object& given_link) {
  std::optional<std::int32_t> npu;
  std::optional<std::int32_t> link;
  if (!given_npu.is_none() || !given_link.is_none()) {
    const nb::object topology = nb::cast(schedule.shared_topology());
    if (!given_npu.is_none()) {
      npu = nb::cast<std::int32_t>(hooks().find_npu(topology, given_npu));
    }
    if (!given_link.is_none()) {
      link = nb::cast<std::int32_t>(hooks().find_link(topology, given_link));
    }
  }
  Schedule::Rows found;
  {
    const nb::gil_scoped_release release;
    found = schedule.rows(npu, link);
  }
  nb::dict columns;
  columns["transfer"] = give(std::move(found.transfer));
  columns["src"] = give(std::move(found.src));
  columns["dst"] = give(std::move(found.dst));
  columns["route"] = give(std::move(found.route));
  columns["chunk"] = give(std::move(found.chunk));
  columns["bytes"] = give(std::move(found.bytes));
  columns["op"] = give(std::move(found.op));
  columns["reads"] = give(std::move(found.reads));
  columns["start_ps"] = give(std::move(found.start));
  columns["arrival_ps"] = give(std::move(found.arrival));
  return columns;
}

nb::dict all_rows(const Schedule& schedule) { return rows(schedule, nb::none(), nb::none()); }

// The executed time, which the package computes on first use.
Time executed_ps(const std::shared_ptr<Schedule>& schedule) {
  auto& kept = schedule->executed();
  if (kept.time < 0) {
    const nb::object found = hooks().executed_ps(schedule);
    if (found.is_none()) return schedule->time();
    kept.time = nb::cast<Time>(found);
  }
  return kept.time;
}

std::optional<double> efficiency(const std::shared_ptr<Schedule>& schedule) {
  const auto& bound = schedule->facts().bound;
  if (!bound) return std::nullopt;
  const Time time = executed_ps(schedule);
  if (time == 0) return std::nullopt;
  return static_cast<double>(*bound) / static_cast<double>(time);
}

double algbw(const std::shared_ptr<Schedule>& schedule) {
  const Time time = executed_ps(schedule);
  if (time == 0) return 0;
  return static_cast<double>(schedule->collective().size()) /
         (static_cast<double>(time) * kSecondsPerPicosecond);
}

}  // namespace

void bind_schedule(nb::module_& m) {
  nb::class_<Routes>(m, "Routes", R"(A table of routes that transfers refer to.

Route r uses the links links[link_begin[r]:link_begin[r + 1]]; kinds[r] is 0 for a path, 1 for a
multicast tree, 2 for a reduce tree and 3 for a spread route, over whose paths a chunk divides evenly.)")
      .def(nb::new_(&make_routes), "topology"_a, "kinds"_a, "link_begin"_a, "links"_a)
      .def_prop_ro("topology", &Routes::shared_topology)
      .def_prop_ro("count", &Routes::count, "Number of routes.")
      .def_prop_ro(
          "kinds", [](const Routes& r) { return view(r.kinds()); }, nb::rv_policy::reference)
      .def_prop_ro(
          "link_begin", [](const Routes& r) { return view(r.link_begin()); },
          nb::rv_policy::reference)
      .def_prop_ro(
          "links", [](const Routes& r) { return view(r.all_links()); }, nb::rv_policy::reference)
      .def_prop_ro(
          "shares",
          [](const Routes& r) {
            std::vector<double> shares;
            shares.reserve(r.all_links().size());
            for (RouteId route = 0; route < r.count(); ++route) {
              for (std::size_t i = 0; i < r.links(route).size(); ++i) {
                const auto share = r.share(route, i);
                shares.push_back(static_cast<double>(share.parts) / share.of);
              }
            }
            return nb::cast(give(std::move(shares)));
          },
          nb::sig("def shares(self) -> numpy.typing.NDArray[numpy.float64]"),
          "Per entry of `links`: the share of a chunk that crosses it, less than 1 in spread "
          "routes only.")
      .def(
          "sources",
          [](const Routes& r, std::int32_t i) {
            if (i < 0 || i >= r.count()) throw nb::index_error("no such route");
            return std::vector<NodeId>(r.sources(i).begin(), r.sources(i).end());
          },
          "route"_a, "Nodes at which the route begins.")
      .def(
          "destinations",
          [](const Routes& r, std::int32_t i) {
            if (i < 0 || i >= r.count()) throw nb::index_error("no such route");
            return std::vector<NodeId>(r.destinations(i).begin(), r.destinations(i).end());
          },
          "route"_a, "Nodes at which the route ends.")
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));

  m.def(
      "shortest_routes",
      [](std::shared_ptr<Topology> topology, const Array<std::int32_t>& src,
         const Array<std::int32_t>& dst, const nb::object& progress) {
        const auto s = std::span(src.data(), src.shape(0)), d = std::span(dst.data(), dst.shape(0));
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Routes>(shortest_routes(std::move(topology), s, d, report));
      },
      "topology"_a, "src"_a, "dst"_a, "progress"_a = nb::none(),
      "Paths for algorithms that do not know the topology, one per pair of NPUs.");

  m.def(
      "port_routes",
      [](const Routes& routes) { return std::make_shared<Routes>(port_routes(routes)); },
      nb::call_guard<nb::gil_scoped_release>(), "routes"_a,
      "Return the table with each path through switches replaced by the route that switches choose "
      "between its ports.");

  m.def(
      "message_routes",
      [](const Routes& routes, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Routes>(message_routes(routes, report));
      },
      "routes"_a, "progress"_a = nb::none(),
      "Return the table with each route between two NPUs replaced by the one that a program's "
      "messages take.");

  m.def(
      "channel_routes",
      [](const Topology& topology, NodeId src, NodeId dst) {
        for (const NodeId npu : {src, dst}) {
          if (npu < 0 || npu >= topology.npus()) {
            throw nb::index_error(("no NPU " + std::to_string(npu)).c_str());
          }
        }
        return channel_routes(topology, src, dst);
      },
      "topology"_a, "src"_a, "dst"_a,
      R"(Return the routes that the channels between two NPUs take in turn, each a list of links.

They are the parallel links between the two or, where both plug into several switches, the two links through each of the
fastest. The list is empty if there are fewer than two of them; then all channels take the route of :func:`shortest_routes`.)");

  nb::class_<Schedule>(m, "Schedule", R"(All transfers of a collective, with their times.

Immutable. Transfers that share route, operation and what they read form a lane; a transfer is a
chunk and a start in units of `quantum_ps`. An orbit stores the transfers of representatives and a
symmetry instead of all transfers; expand() writes them out.)",
                       nb::is_weak_referenceable())
      .def(nb::new_(&make_schedule), nb::kw_only(), "collective"_a, "routes"_a,
           "lane_route"_a.noconvert(), "lane_op"_a.noconvert(), "lane_reads"_a.noconvert(),
           "lane_begin"_a.noconvert(), "chunk"_a.noconvert(), "start"_a.noconvert(), "quantum_ps"_a,
           "orders"_a = std::vector<std::int32_t>{}, "node_image"_a = nb::none(),
           "link_image"_a = nb::none(), "provenance"_a = "{}", "engine"_a = "",
           "bound_ps"_a = nb::none(), "in_switch_bound_ps"_a = nb::none(), "consistent"_a = true,
           "cut_short"_a = false, "matched_ports"_a = false,
           "rejected"_a = std::vector<std::string>{}, "name"_a = "", "dialect"_a = "",
           "protocol"_a = "", "min_bytes"_a = 0, "max_bytes"_a = 0, "threads_per_block"_a = 0,
           "executed_ps"_a = nb::none(), "target"_a = nb::none(), "given_away"_a = false,
           R"(Check that the columns are consistent.

Columns must have the same types as the properties of the same names; nothing is converted.
With given_away=True, `chunk` and `start` are used without copying; do not write to them.)")
      .def_prop_ro("topology", &Schedule::shared_topology)
      .def_prop_ro("collective", &Schedule::shared_collective)
      .def_prop_ro("routes", &Schedule::shared_routes)
      .def_prop_ro(
          "form", [](const Schedule& s) { return s.symmetry() ? "orbit" : "packed"; },
          "\"packed\" or \"orbit\".")
      .def_prop_ro(
          "lane_route", [](const Schedule& s) { return view(s.stored().lane_route); },
          nb::rv_policy::reference, "Route of each lane.")
      .def_prop_ro(
          "lane_op", [](const Schedule& s) { return view(s.stored().lane_op); },
          nb::rv_policy::reference, "Per lane: 0 copy, 1 reduce.")
      .def_prop_ro(
          "lane_reads", [](const Schedule& s) { return view(s.stored().lane_reads); },
          nb::rv_policy::reference, "Per lane: 0 reads the source's input, 1 its acc.")
      .def_prop_ro(
          "lane_begin", [](const Schedule& s) { return view(s.stored().lane_begin); },
          nb::rv_policy::reference, "First transfer of each lane, then the number of transfers.")
      .def_prop_ro(
          "chunk", [](const Schedule& s) { return view(s.stored().chunk); },
          nb::rv_policy::reference, "Chunk of each stored transfer.")
      .def_prop_ro(
          "start", [](const Schedule& s) { return view(s.stored().start); },
          nb::rv_policy::reference,
          "Starts in units of quantum_ps: per lane those of leg 0, then of leg 1, …")
      .def_prop_ro(
          "quantum_ps", [](const Schedule& s) { return s.stored().quantum; },
          "Unit of the starts in picoseconds.")
      .def_prop_ro(
          "orders",
          [](const Schedule& s) {
            return s.symmetry() ? s.symmetry()->orders : std::vector<std::int32_t>{};
          },
          "Orders of the symmetry's generators; empty for a packed schedule.")
      .def_prop_ro(
          "node_image",
          [](const Schedule& s) {
            return view(s.symmetry() ? s.symmetry()->node_image : Column<NodeId>());
          },
          nb::rv_policy::reference,
          "Image of each node under each generator, generator by generator.")
      .def_prop_ro(
          "link_image",
          [](const Schedule& s) {
            return view(s.symmetry() ? s.symmetry()->link_image : Column<LinkId>());
          },
          nb::rv_policy::reference,
          "Image of each link under each generator, generator by generator.")
      .def_prop_ro("transfers", &Schedule::transfers, "Number of transfers.")
      .def_prop_ro("stored_transfers", &Schedule::stored_transfers,
                   "Number of stored transfers; an orbit stores only its representatives.")
      .def_prop_ro("memory_bytes", &Schedule::memory_bytes, "Bytes the columns take.")
      .def_prop_ro("expanded_bytes", &Schedule::expanded_bytes, "Bytes that expand() will take.")
      .def_prop_ro(
          "time_ps", &Schedule::time,
          "Arrival of the last chunk in picoseconds, if every link keeps the schedule's order.")
      .def_prop_ro(
          "time_s",
          [](const Schedule& s) { return static_cast<double>(s.time()) * kSecondsPerPicosecond; },
          "Arrival of the last chunk in seconds, if every link keeps the schedule's order.")
      .def_prop_ro(
          "executed_s",
          [](const std::shared_ptr<Schedule>& s) {
            return static_cast<double>(executed_ps(s)) * kSecondsPerPicosecond;
          },
          "How long the schedule takes in seconds when its target executes it, see\n"
          "tacos.execution; computed on first use. This is the time that all commands print.")
      .def_prop_ro(
          "executed_ps",
          [](const Schedule& s) {
            const Time time = s.executed().time;
            return time < 0 ? std::nullopt : std::optional<Time>(time);
          },
          "`executed_s` in picoseconds; None: not computed yet.")
      .def_prop_ro(
          "target",
          [](const Schedule& s) {
            const auto& target = s.executed().target;
            return target.empty() ? std::nullopt : std::optional<std::string>(target);
          },
          "What the executed time is for, one of tacos.execution.targets(); None: the slowest of "
          "three rules for links counts.")
      .def(
          "with_executed",
          [](const Schedule& s, std::optional<Time> executed_ps,
             std::optional<std::string> target) {
            return std::make_shared<Schedule>(
                s.with_executed(executed_ps, std::move(target).value_or("")));
          },
          "executed_ps"_a.none(), "target"_a.none(),
          "Return the same schedule with its executed time for a target; None computes the time "
          "on first use.")
      .def_prop_ro("algbw_Bps", &algbw, "Size / executed time, as nccl-tests defines it.")
      .def_prop_ro(
          "busbw_Bps",
          [](const std::shared_ptr<Schedule>& s) {
            return algbw(s) * s->collective().bus_factor();
          },
          "algbw times nccl-tests' factor for the collective; 0 where it defines none.")
      .def_prop_ro("efficiency", &efficiency,
                   "Bound / executed time, or None where the bound was not computed.")
      .def_prop_ro(
          "provenance", [](const Schedule& s) { return from_json(s.provenance()); },
          nb::sig("def provenance(self) -> dict[str, typing.Any]"),
          "How the schedule was made: engine, seed, options, bound.")
      .def(
          "with_provenance",
          [](const Schedule& s, const nb::dict& provenance) {
            return std::make_shared<Schedule>(s.with_provenance(to_json(provenance)));
          },
          "provenance"_a,
          nb::sig("def with_provenance(self, provenance: dict[str, typing.Any]) -> Schedule"),
          "Return the same schedule with a different provenance.")
      .def_prop_ro(
          "engine", [](const Schedule& s) { return s.facts().engine; },
          "Name of the engine that made the schedule, or an empty string.")
      .def_prop_ro(
          "bound_ps", [](const Schedule& s) { return s.facts().bound; },
          "Lower bound on the time of any schedule of this problem, in picoseconds; None: not "
          "computed.")
      .def_prop_ro(
          "in_switch_bound_ps", [](const Schedule& s) { return s.facts().in_switch_bound; },
          "The bound that sums in switches would have, in picoseconds, if the schedule is for a "
          "target "
          "without them; else None.")
      .def_prop_ro(
          "consistent", [](const Schedule& s) { return s.facts().consistent; },
          "False if NPUs are known to end with different bits of a sum.")
      .def_prop_ro(
          "cut_short", [](const Schedule& s) { return s.facts().cut_short; },
          "Whether a time limit ended the search for the schedule.")
      .def_prop_ro(
          "matched_ports", [](const Schedule& s) { return s.facts().matched_ports; },
          "Whether each port of a switch between boxes has one peer in the schedule.")
      .def_prop_ro(
          "rejected", [](const Schedule& s) { return s.facts().rejected; },
          "Why the search rejected other answers, one sentence each.")
      .def_prop_ro(
          "name", [](const Schedule& s) { return s.facts().file.name; },
          "Name in the file that the schedule was lifted from, or an empty string.")
      .def_prop_ro(
          "dialect", [](const Schedule& s) { return s.facts().file.dialect; },
          "Dialect of that file, or an empty string.")
      .def_prop_ro(
          "protocol", [](const Schedule& s) { return s.facts().file.protocol; },
          "Protocol that the file names, or that NCCL would use; or an empty string.")
      .def_prop_ro(
          "min_bytes", [](const Schedule& s) { return s.facts().file.min_bytes; },
          "Smallest size that the file is for.")
      .def_prop_ro(
          "max_bytes", [](const Schedule& s) { return s.facts().file.max_bytes; },
          "Largest size that the file is for; 0: no limit.")
      .def_prop_ro(
          "threads_per_block", [](const Schedule& s) { return s.facts().file.threads_per_block; },
          "Threads per block that the file names; 0: none.")
      .def(
          "with_facts",
          [](const Schedule& s, std::optional<std::string> engine, std::optional<Time> bound_ps,
             std::optional<Time> in_switch_bound_ps, std::optional<bool> consistent,
             std::optional<bool> cut_short, std::optional<bool> matched_ports,
             std::optional<std::vector<std::string>> rejected, std::optional<std::string> name,
             std::optional<std::string> dialect, std::optional<std::string> protocol,
             std::optional<std::uint64_t> min_bytes, std::optional<std::uint64_t> max_bytes,
             std::optional<std::int32_t> threads_per_block) {
            auto facts = s.facts();
            const auto put = [](auto& field, auto& given) {
              if (given) field = std::move(*given);
            };
            put(facts.engine, engine);
            if (bound_ps) facts.bound = bound_ps;
            if (in_switch_bound_ps) facts.in_switch_bound = in_switch_bound_ps;
            put(facts.consistent, consistent);
            put(facts.cut_short, cut_short);
            put(facts.matched_ports, matched_ports);
            put(facts.rejected, rejected);
            put(facts.file.name, name);
            put(facts.file.dialect, dialect);
            put(facts.file.protocol, protocol);
            put(facts.file.min_bytes, min_bytes);
            put(facts.file.max_bytes, max_bytes);
            put(facts.file.threads_per_block, threads_per_block);
            return std::make_shared<Schedule>(s.with_facts(std::move(facts)));
          },
          nb::kw_only(), "engine"_a = nb::none(), "bound_ps"_a = nb::none(),
          "in_switch_bound_ps"_a = nb::none(), "consistent"_a = nb::none(),
          "cut_short"_a = nb::none(), "matched_ports"_a = nb::none(), "rejected"_a = nb::none(),
          "name"_a = nb::none(), "dialect"_a = nb::none(), "protocol"_a = nb::none(),
          "min_bytes"_a = nb::none(), "max_bytes"_a = nb::none(),
          "threads_per_block"_a = nb::none(),
          "Return the same schedule with other values of these fields; None keeps a field.")
      .def(
          "rows",
          [](const Schedule& s, const nb::object& npu, const nb::object& link) {
            return rows(s, npu, link);
          },
          nb::kw_only(), "npu"_a = nb::none(), "link"_a = nb::none(),
          nb::sig("def rows(self, *, npu: int | str | None = None, "
                  "link: int | str | tuple[int | str, int | str] | None = None) -> "
                  "dict[str, numpy.typing.NDArray[typing.Any]]"),
          R"(Transfers as columns ordered by start: all, one NPU's, or one link's.

An NPU is a number or a name, a link a number or a pair of nodes.
Without an NPU and a link, an orbit returns its stored transfers. The rows of an NPU or a link are those
of the whole schedule; their `transfer` and `route` name the stored ones that they are images of.)")
      .def(
          "to_pandas", [](nb::handle self) { return hooks().to_pandas(self); },
          nb::sig("def to_pandas(self) -> pandas.DataFrame"),
          R"(The transfers as a pandas DataFrame with the columns of `rows`; needs pandas.

`op` and `reads` are names ("copy" or "reduce", "input" or "acc"), and `src_name` and `dst_name` are
added.)")
      .def(
          "to_arrow", [](const Schedule& s) { return hooks().to_arrow(all_rows(s)); },
          nb::sig("def to_arrow(self) -> pyarrow.Table"),
          R"(The transfers as a pyarrow Table with the columns of `rows`; needs the extra ``arrow``.

Polars, DuckDB and others accept the schedule itself, without a copy and without pyarrow.)")
      .def(
          "__arrow_c_stream__",
          [](const Schedule& s, const nb::object&) { return arrow_stream(all_rows(s)); },
          "requested_schema"_a = nb::none(),
          nb::sig("def __arrow_c_stream__(self, requested_schema: object = None) -> object"),
          "The transfers for any library that supports the Arrow PyCapsule interface.")
      .def(
          "link_bytes",
          [](const Schedule& s) {
            Schedule::LinkUse use;
            {
              const nb::gil_scoped_release release;
              use = s.link_use();
            }
            return give(std::move(use.bytes));
          },
          nb::rv_policy::reference, "Bytes that each link carries.")
      .def(
          "link_utilisation",
          [](const Schedule& s) {
            std::vector<double> share;
            {
              const nb::gil_scoped_release release;
              const double whole = s.time() > 0 ? static_cast<double>(s.time()) : 1.0;
              for (const Time busy : s.link_use().busy) {
                share.push_back(static_cast<double>(busy) / whole);
              }
            }
            return give(std::move(share));
          },
          nb::rv_policy::reference, "Share of the schedule's time that each link is busy.")
      .def(
          "dependencies",
          [](const Schedule& s) {
            Schedule::Dependencies found;
            {
              const nb::gil_scoped_release release;
              found = s.dependencies();
            }
            return nb::make_tuple(give(std::move(found.begin)), give(std::move(found.writer)));
          },
          nb::sig("def dependencies(self) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.int64]]"),
          R"(Columns (begin, writer): transfer t reads the data that transfers writer[begin[t]:begin[t + 1]] wrote.

Each reader of a sum of n arrivals lists all n of them.)")
      .def(
          "expand", [](const Schedule& s) { return std::make_shared<Schedule>(s.expand()); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Return the packed form with all transfers; expanded_bytes is its size.")
      .def(
          "reverse",
          [](const Schedule& s, const nb::object& progress) {
            const auto report = progress_to(progress);
            const nb::gil_scoped_release release;
            return std::make_shared<Schedule>(reverse(s, report));
          },
          "progress"_a = nb::none(),
          "Return a schedule of the reversed collective on the reversed topology: the same "
          "transfers backwards.")
      .def(
          "then",
          [](const Schedule& s, const Schedule& second, std::shared_ptr<Collective> collective,
             const nb::object& progress) {
            const auto report = progress_to(progress);
            const nb::gil_scoped_release release;
            return std::make_shared<Schedule>(
                concatenate(s, second, std::move(collective), report));
          },
          "second"_a, "collective"_a, "progress"_a = nb::none(),
          "Return this schedule followed by `second`, for `collective`; each chunk continues as "
          "soon as it is ready.")
      .def(
          "__eq__",
          [](const Schedule& a, nb::handle b) {
            return nb::isinstance<Schedule>(b) && a == nb::cast<const Schedule&>(b);
          },
          "other"_a.none(), "Equal topology, collective and transfers; provenance may differ.")
      .def("__hash__",
           [](const Schedule& s) { return nb::hash(nb::make_tuple(s.transfers(), s.time())); })
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def(
          "_repr_html_", [](nb::handle self) { return hooks().to_html(self); },
          nb::sig("def _repr_html_(self) -> str"), "HTML for notebooks.")
      .def("__repr__", [](const Schedule& s) {
        const auto micros = [](Time time) {
          return std::to_string(static_cast<double>(time) * 1e-6) + " us";
        };
        const Time executed = s.executed().time;
        return "<tacos.Schedule " + std::string(s.symmetry() ? "orbit" : "packed") + ": " +
               std::to_string(s.transfers()) + " transfers" +
               (executed < 0 ? "" : ", executed in " + micros(executed)) + ", ideal " +
               micros(s.time()) + ">";
      });

  m.def("retime", &retime_columns, "collective"_a, "routes"_a, "route"_a, "chunk"_a, "step"_a,
        "op"_a, "reads"_a, "provenance"_a = "{}", "progress"_a = nb::none(), "sweep"_a = nb::none(),
        "Earliest start times of an ordered list of transfers; see tacos.schedule.retime. "
        "`sweep`\n"
        "forces one sweep over the list (True) or the event loop (False).");
}

}  // namespace tacos::bindings
