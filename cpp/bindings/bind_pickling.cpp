#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "columns.hpp"
#include "model/collective.hpp"
#include "model/program.hpp"
#include "model/routes.hpp"
#include "model/schedule.hpp"
#include "model/topology.hpp"
#include "model/workload.hpp"
#include "pickling.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

// clang-format off
constexpr std::array kTopology{
  "npus", "switch_capabilities", "link_src", "link_dst", "link_latency_ps", "link_bandwidth_Bps",
  "link_model", "forwarding", "routing", "reduce_bandwidth_Bps", "family", "dims", "symmetric",
  "names", "faults",
};
constexpr std::array kFaults{
  "link", "dead", "src", "dst", "latency_ps", "bandwidth_Bps", "dropped", "capabilities", "names",
  "npus", "dims", "symmetric",
};
constexpr std::array kCollectivePart{
  "kind", "size", "chunks", "root", "group", "bytes", "inputs", "outputs", "input_begin",
  "output_begin", "reduces",
};
constexpr std::array kCollective{"npus", "parts"};
constexpr std::array kRoutes{"topology", "kinds", "link_begin", "links"};
constexpr std::array kSchedule{
  "collective", "routes", "lane_route", "lane_op", "lane_reads", "lane_begin", "chunk", "start",
  "quantum_ps", "orders", "node_image", "link_image", "engine", "bound_ps",
  "in_switch_bound_ps", "consistent",
  "cut_short", "matched_ports", "rejected", "name", "dialect", "protocol", "min_bytes", "max_bytes",
  "threads_per_block", "executed_ps", "target",
};
constexpr std::array kProgram{
  "collective", "in_place", "scratch_slots", "thread_rank", "thread_channel", "thread_send_peer",
  "thread_recv_peer", "thread_begin", "op", "src_buffer", "src_slot", "dst_buffer", "dst_slot",
  "count", "peer", "comes_from", "dep_begin", "dep", "size_bytes", "part_bytes", "window", "engine",
  "name", "format", "dialect", "protocol", "min_bytes", "max_bytes", "threads_per_block", "either_place",
};
constexpr std::array kWorkload{
  "npus", "rank", "kind", "peer", "bytes", "tag", "duration_ps", "flops", "comm", "id", "on_cpu",
  "group", "priority", "dims", "name", "dep_begin", "dep", "groups", "names",
};
// clang-format on

std::span<const char* const> names_of(nb::handle item) {
  if (nb::isinstance<Topology>(item)) return kTopology;
  if (nb::isinstance<Faults>(item)) return kFaults;
  if (nb::isinstance<CollectivePart>(item)) return kCollectivePart;
  if (nb::isinstance<Collective>(item)) return kCollective;
  if (nb::isinstance<Routes>(item)) return kRoutes;
  if (nb::isinstance<Schedule>(item)) return kSchedule;
  if (nb::isinstance<Program>(item)) return kProgram;
  if (nb::isinstance<Workload>(item)) return kWorkload;
  throw nb::type_error("only what the core owns is taken apart");
}

// Links mostly have few distinct latencies and bandwidths: such a column is stored as its distinct values and a byte per link.
constexpr std::size_t kMostValues = 32;  // in a search of which a link costs little (chosen)
constexpr std::array kFewValues{"link_latency_ps", "link_bandwidth_Bps"};

nb::object with_few_values(std::span<const std::int64_t> column, nb::object whole) {
  std::vector<std::int64_t> values;
  std::vector<std::uint8_t> which;
  for (const auto value : column) {
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end() && values.size() == kMostValues) return whole;
    which.push_back(static_cast<std::uint8_t>(found - values.begin()));
    if (found == values.end()) values.push_back(value);
  }
  return nb::make_tuple(nb::cast(give(std::move(values))), nb::cast(give(std::move(which))));
}

// The columns of distinct values in full.
bool restore_columns(PyObject* kept) {
  for (const char* name : kFewValues) {
    PyObject* pair = PyDict_GetItemString(kept, name);
    if (pair == nullptr || !PyTuple_CheckExact(pair) || PyTuple_Size(pair) != 2) continue;
    const auto column =
        nb::steal(PyObject_GetItem(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1)));
    if (!column.is_valid() || PyDict_SetItemString(kept, name, column.ptr()) != 0) return false;
  }
  return true;
}

// A plain C function: pickle stores it by its name, unlike functions of nanobind.
PyObject* restore(PyObject*, PyObject* args) {
  PyObject *kind = nullptr, *kept = nullptr;
  if (PyArg_ParseTuple(args, "OO!", &kind, &PyDict_Type, &kept) == 0) return nullptr;
  const auto none = nb::steal(PyTuple_New(0));
  const auto all = nb::steal(PyDict_Copy(kept));
  if (!all.is_valid() || !restore_columns(all.ptr())) return nullptr;
  return PyObject_Call(kind, none.ptr(), all.ptr());
}
PyMethodDef restore_definition{
    "_restore", &restore, METH_VARARGS,
    "_restore(kind, fields, /)\n--\n\nMake an object of a class from its fields."};
PyObject* restore_function = nullptr;

}  // namespace

nb::dict fields(nb::handle item) {
  nb::dict result;
  for (const char* name : names_of(item)) result[name] = item.attr(name);
  // The constructors take the provenance as text, as the core stores it.
  if (nb::isinstance<Schedule>(item)) {
    result["provenance"] = nb::cast(nb::cast<const Schedule&>(item).provenance());
  } else if (nb::isinstance<Program>(item)) {
    result["provenance"] = nb::cast(nb::cast<const Program&>(item).spec().provenance);
  }
  return result;
}

nb::tuple reduced(nb::handle item) {
  auto kept = fields(item);
  if (nb::isinstance<Topology>(item)) {
    const auto& spec = nb::cast<const Topology&>(item).spec();
    for (const char* name : kFewValues) {
      const auto& column = name == kFewValues[0] ? spec.link_latency_ps : spec.link_bandwidth_Bps;
      kept[name] = with_few_values(column.span(), kept[name]);
    }
  }
  return nb::make_tuple(nb::handle(restore_function), nb::make_tuple(item.type(), kept));
}

void bind_pickling(nb::module_& m) {
  const nb::object name = m.attr("__name__");
  restore_function = PyCFunction_NewEx(&restore_definition, nullptr, name.ptr());
  if (restore_function == nullptr) throw nb::python_error();
  m.attr("_restore") = nb::handle(restore_function);
  m.def("fields", &fields, "item"_a, nb::sig("def fields(item: object) -> dict[str, typing.Any]"),
        "The constructor arguments that recreate an object of this module.");
}

}  // namespace tacos::bindings
