#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrow.hpp"
#include "columns.hpp"
#include "hooks.hpp"
#include "lowering/program_nodes.hpp"
#include "model/workload.hpp"
#include "pickling.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

using Groups = std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>>;

template <typename T>
using Optional = std::optional<Array<T>>;

template <typename T>
Column<T> copy_if(const Optional<T>& array) {
  return array ? copy(*array) : Column<T>();
}

std::shared_ptr<Workload> make_workload(
    std::int32_t npus, const Array<std::int32_t>& rank, const Array<std::uint8_t>& kind,
    const Optional<std::int32_t>& peer, const Optional<std::int64_t>& bytes,
    const Optional<std::int32_t>& tag, const Optional<std::int64_t>& duration_ps,
    const Optional<std::int64_t>& flops, const Optional<std::uint8_t>& comm,
    const Optional<std::int64_t>& id, const Optional<std::uint8_t>& on_cpu,
    const Optional<std::int32_t>& group, const Optional<std::int32_t>& priority,
    const Optional<std::uint8_t>& dims, const Optional<std::int32_t>& name,
    const Optional<std::int64_t>& dep_begin, const Optional<std::int64_t>& dep, Groups groups,
    std::vector<std::string> names) {
  WorkloadColumns c;
  c.npus = npus;
  c.rank = copy(rank);
  c.kind = copy(kind);
  c.peer = copy_if(peer);
  c.bytes = copy_if(bytes);
  c.tag = copy_if(tag);
  c.duration_ps = copy_if(duration_ps);
  c.flops = copy_if(flops);
  c.comm = copy_if(comm);
  c.id = copy_if(id);
  c.on_cpu = copy_if(on_cpu);
  c.group = copy_if(group);
  c.priority = copy_if(priority);
  c.dims = copy_if(dims);
  c.name = copy_if(name);
  c.dep_begin = copy_if(dep_begin);
  c.dep = copy_if(dep);
  c.groups = std::move(groups);
  c.names = std::move(names);
  const nb::gil_scoped_release release;
  return std::make_shared<Workload>(std::move(c));
}

template <typename T>
auto shown(Column<T> WorkloadColumns::* column) {
  return [column](const Workload& workload) { return view(workload.columns().*column); };
}

// The columns of the nodes, without dependencies, since a node may have any number of them.
nb::typed<nb::dict, nb::str, nb::any> node_rows(const Workload& workload) {
  const auto& c = workload.columns();
  nb::typed<nb::dict, nb::str, nb::any> out;
  const auto put = [&](const char* name, const auto& column) {
    out[name] = nb::cast(view(column), nb::rv_policy::reference);
  };
  put("rank", c.rank);
  put("id", c.id);
  put("kind", c.kind);
  put("peer", c.peer);
  put("bytes", c.bytes);
  put("tag", c.tag);
  put("duration_ps", c.duration_ps);
  put("flops", c.flops);
  put("comm", c.comm);
  put("group", c.group);
  put("priority", c.priority);
  put("dims", c.dims);
  put("on_cpu", c.on_cpu);
  put("name", c.name);
  return out;
}

void bind_nodes(nb::module_& m) {
  nb::class_<ProgramNodes>(m, "ProgramNodes",
                           "The nodes of a program, and the step that each belongs to.")
      .def_prop_ro(
          "program",
          [](const ProgramNodes& nodes) { return std::const_pointer_cast<Program>(nodes.program); },
          "The program.")
      .def_prop_ro(
          "workload",
          [](const ProgramNodes& nodes) {
            return std::const_pointer_cast<Workload>(nodes.workload);
          },
          "The nodes that carry out the program.");
  m.def(
      "program_nodes",
      [](std::shared_ptr<Program> program, const Array<std::int64_t>& chunk_bytes,
         std::int64_t reduce_bps, const Array<std::int32_t>& src, const Array<std::int32_t>& dst,
         const Array<std::uint32_t>& chunk, const Array<std::int32_t>& link,
         const nb::object& progress) {
        const auto rows = src.shape(0);
        if (dst.shape(0) != rows || chunk.shape(0) != rows || link.shape(0) != rows) {
          invalid("src, dst, chunk and link differ in length");
        }
        const auto report = progress_to(progress);
        const auto sizes = list(chunk_bytes);
        const SendOrder departures{list(src), list(dst), list(chunk), list(link)};
        const nb::gil_scoped_release release;
        return std::make_shared<ProgramNodes>(
            program_nodes(std::move(program), sizes, reduce_bps, departures, report));
      },
      "program"_a, "chunk_bytes"_a, nb::kw_only(), "reduce_Bps"_a, "src"_a, "dst"_a, "chunk"_a,
      "link"_a, "progress"_a.none() = nb::none(),
      R"(The nodes that carry out a program; see tacos.program_nodes.

On each link, messages leave in the order of the rows (src, dst, chunk, link).)");
}

}  // namespace

void bind_workload(nb::module_& m) {
  const auto keep = nb::rv_policy::reference;
  const auto none = nb::none();
  nb::class_<Workload>(
      m, "Workload",
      R"(The computations, messages and memory accesses of each rank, with their dependencies.

One row per node, ordered by rank. The functions of tacos.workload make workloads. They are immutable;
the columns are read-only NumPy arrays.)")
      .def(nb::new_(&make_workload), nb::kw_only(), "npus"_a, "rank"_a, "kind"_a,
           "peer"_a.none() = none, "bytes"_a.none() = none, "tag"_a.none() = none,
           "duration_ps"_a.none() = none, "flops"_a.none() = none, "comm"_a.none() = none,
           "id"_a.none() = none, "on_cpu"_a.none() = none, "group"_a.none() = none,
           "priority"_a.none() = none, "dims"_a.none() = none, "name"_a.none() = none,
           "dep_begin"_a.none() = none, "dep"_a.none() = none, "groups"_a = Groups{},
           "names"_a = std::vector<std::string>{},
           R"(Check that the columns are consistent.

Columns must have the same types as the properties of the same names; nothing is converted. Omitted
columns have defaults; tacos.workload.from_nodes converts, broadcasts and sorts.)")
      .def_prop_ro("npus", &Workload::npus, "Number of ranks.")
      .def_prop_ro("nodes", &Workload::nodes, "Number of nodes.")
      .def_prop_ro("rank", shown(&WorkloadColumns::rank), keep, "Rank of each node, ascending.")
      .def_prop_ro("kind", shown(&WorkloadColumns::kind), keep,
                   "0 send, 1 recv, 2 comp, 3 coll, 4 load, 5 store.")
      .def_prop_ro("peer", shown(&WorkloadColumns::peer), keep,
                   "The other rank of a send or recv, otherwise -1.")
      .def_prop_ro("bytes", shown(&WorkloadColumns::bytes), keep,
                   "Size of a message or collective, or the bytes that a comp, load or store moves "
                   "in memory.")
      .def_prop_ro("tag", shown(&WorkloadColumns::tag), keep, "Tag of a send or recv.")
      .def_prop_ro("duration_ps", shown(&WorkloadColumns::duration_ps), keep,
                   "Duration of a comp in picoseconds; 0 if unknown.")
      .def_prop_ro("flops", shown(&WorkloadColumns::flops), keep,
                   "Floating-point operations of a comp; 0 if unknown.")
      .def_prop_ro("comm", shown(&WorkloadColumns::comm), keep,
                   "Kind of a collective: an index into tacos.workload.COMMS.")
      .def_prop_ro("id", shown(&WorkloadColumns::id), keep, "Number of the node within its rank.")
      .def_prop_ro("on_cpu", shown(&WorkloadColumns::on_cpu), keep,
                   "1 for a comp that does not occupy the NPU.")
      .def_prop_ro("group", shown(&WorkloadColumns::group), keep,
                   "Group of a collective, 0 for all ranks.")
      .def_prop_ro("priority", shown(&WorkloadColumns::priority), keep, "Priority of a collective.")
      .def_prop_ro("dims", shown(&WorkloadColumns::dims), keep,
                   "Dimensions that a collective uses, as bits.")
      .def_prop_ro("name", shown(&WorkloadColumns::name), keep,
                   "Name of each node: an index into `names`.")
      .def_prop_ro("dep_begin", shown(&WorkloadColumns::dep_begin), keep,
                   "Offset of each node's dependencies in `dep`, then their number.")
      .def_prop_ro("dep", shown(&WorkloadColumns::dep), keep, "Rows that nodes wait for.")
      .def_prop_ro(
          "groups", [](const Workload& workload) { return workload.columns().groups; },
          "Numbers and ranks of the groups, by number.")
      .def_prop_ro(
          "names", [](const Workload& workload) { return workload.columns().names; },
          "The distinct names of nodes.")
      .def("rows", &node_rows,
           nb::sig("def rows(self) -> dict[str, numpy.typing.NDArray[typing.Any]]"),
           "All columns except the dependencies, by name.")
      .def(
          "to_pandas", [](nb::handle self) { return hooks().to_pandas(self); },
          nb::sig("def to_pandas(self) -> pandas.DataFrame"),
          R"(The nodes as a pandas DataFrame with the columns of `rows`; needs pandas.

`kind` and `comm` are names such as "send" and "all_reduce".)")
      .def(
          "to_arrow", [](const Workload& w) { return hooks().to_arrow(node_rows(w)); },
          nb::sig("def to_arrow(self) -> pyarrow.Table"),
          R"(The nodes as a pyarrow Table with the columns of `rows`; needs the extra ``arrow``.

Polars, DuckDB and others accept the workload itself, without a copy and without pyarrow.)")
      .def(
          "__arrow_c_stream__",
          [](const Workload& w, const nb::object&) { return arrow_stream(node_rows(w)); },
          "requested_schema"_a = nb::none(),
          nb::sig("def __arrow_c_stream__(self, requested_schema: object = None) -> object"),
          "The nodes for any library that supports the Arrow PyCapsule interface.")
      .def(
          "describe",
          [](const Workload& workload, std::int64_t row) {
            if (row < 0 || row >= workload.nodes()) {
              throw nb::index_error(("row " + std::to_string(row) + " is not one of 0 to " +
                                     std::to_string(workload.nodes() - 1))
                                        .c_str());
            }
            return workload.describe(static_cast<std::size_t>(row));
          },
          "row"_a, "A node in words, for messages.")
      .def(
          "__eq__",
          [](const Workload& a, nb::handle b) {
            return nb::isinstance<Workload>(b) && a == nb::cast<const Workload&>(b);
          },
          "other"_a.none(), "Equal ranks, nodes, groups and names.")
      .def("__hash__",
           [](const Workload& w) { return nb::hash(nb::make_tuple(w.npus(), w.nodes())); })
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__repr__", [](const Workload& workload) {
        return "<tacos.Workload: " + std::to_string(workload.npus()) + " ranks, " +
               std::to_string(workload.nodes()) + " nodes>";
      });
  bind_nodes(m);
}

}  // namespace tacos::bindings
