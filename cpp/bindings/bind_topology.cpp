#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "hooks.hpp"
#include "model/topology.hpp"
#include "pickling.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

LinkModel link_model(const std::string& name) {
  if (name == "pipelined") return LinkModel::pipelined;
  if (name == "blocking") return LinkModel::blocking;
  invalid("link_model is \"" + name + "\"; it must be \"pipelined\" or \"blocking\"");
}

Forwarding forwarding(const std::string& name) {
  if (name == "cut_through") return Forwarding::cut_through;
  if (name == "store_and_forward") return Forwarding::store_and_forward;
  invalid("forwarding is \"" + name + "\"; it must be \"cut_through\" or \"store_and_forward\"");
}

std::string name_of(LinkModel model) {
  return model == LinkModel::pipelined ? "pipelined" : "blocking";
}

std::string name_of(Forwarding mode) {
  return mode == Forwarding::cut_through ? "cut_through" : "store_and_forward";
}

std::shared_ptr<Topology> make_topology(
    std::int32_t npus, const Array<std::uint8_t>& switch_capabilities,
    const Array<std::int32_t>& link_src, const Array<std::int32_t>& link_dst,
    const Array<std::int64_t>& link_latency_ps, const Array<std::int64_t>& link_bandwidth_Bps,
    const std::string& model, const std::string& mode, std::int64_t reduce_bandwidth_Bps,
    std::string family, const std::vector<std::pair<std::string, std::int32_t>>& dims,
    bool symmetric, std::vector<std::string> names, bool given_away) {
  const auto taken = [&](const auto& array) { return given_away ? adopt(array) : copy(array); };
  TopologySpec spec;
  spec.npus = npus;
  spec.switch_capabilities = copy(switch_capabilities);
  spec.link_src = taken(link_src);
  spec.link_dst = taken(link_dst);
  spec.link_latency_ps = taken(link_latency_ps);
  spec.link_bandwidth_Bps = taken(link_bandwidth_Bps);
  spec.link_model = link_model(model);
  spec.forwarding = forwarding(mode);
  spec.reduce_bandwidth_Bps = reduce_bandwidth_Bps;
  spec.family = std::move(family);
  for (const auto& [kind, size] : dims) spec.dims.push_back({kind, size});
  spec.symmetric = symmetric;
  spec.names = std::move(names);
  return std::make_shared<Topology>(std::move(spec));
}

std::string counted(std::int64_t count, const char* one, const char* several) {
  return std::to_string(count) + " " + (count == 1 ? one : several);
}

}  // namespace

void bind_topology(nb::module_& m) {
  nb::class_<Topology>(m, "Topology", R"(A network: NPUs, switches and directed links.

Nodes 0 … npus-1 are NPUs, the others are switches. The functions of tacos.topology make topologies.
They are immutable; the columns are read-only NumPy arrays with one entry per link or switch.)")
      .def(nb::new_(&make_topology), nb::kw_only(), "npus"_a, "switch_capabilities"_a, "link_src"_a,
           "link_dst"_a, "link_latency_ps"_a, "link_bandwidth_Bps"_a, "link_model"_a = "pipelined",
           "forwarding"_a = "cut_through", "reduce_bandwidth_Bps"_a = 0, "family"_a = "",
           "dims"_a = std::vector<std::pair<std::string, std::int32_t>>{}, "symmetric"_a = false,
           "names"_a = std::vector<std::string>{}, "given_away"_a = false,
           R"(Check that the columns are consistent.

With given_away=True, the links' columns are used without copying; do not write to them.)")
      .def_prop_ro("npus", &Topology::npus, "Number of NPUs.")
      .def_prop_ro(
          "switches", [](const Topology& t) { return t.nodes() - t.npus(); }, "Number of switches.")
      .def_prop_ro("nodes", &Topology::nodes, "Number of NPUs and switches.")
      .def_prop_ro("links", &Topology::links, "Number of directed links.")
      .def_prop_ro(
          "switch_capabilities",
          [](const Topology& t) { return view(t.spec().switch_capabilities); },
          nb::rv_policy::reference, "Bits per switch: 1 multicast, 2 reduce.")
      .def_prop_ro(
          "link_src", [](const Topology& t) { return view(t.spec().link_src); },
          nb::rv_policy::reference, "Node each link leaves.")
      .def_prop_ro(
          "link_dst", [](const Topology& t) { return view(t.spec().link_dst); },
          nb::rv_policy::reference, "Node each link enters.")
      .def_prop_ro(
          "link_latency_ps", [](const Topology& t) { return view(t.spec().link_latency_ps); },
          nb::rv_policy::reference, "Latency of each link in picoseconds.")
      .def_prop_ro(
          "link_bandwidth_Bps", [](const Topology& t) { return view(t.spec().link_bandwidth_Bps); },
          nb::rv_policy::reference, "Bandwidth of each link in bytes per second.")
      .def_prop_ro(
          "link_model", [](const Topology& t) { return name_of(t.spec().link_model); },
          "\"pipelined\": a link is busy m/B; \"blocking\": latency + m/B.")
      .def_prop_ro(
          "forwarding", [](const Topology& t) { return name_of(t.spec().forwarding); },
          "How switches forward data: \"cut_through\" or \"store_and_forward\".")
      .def_prop_ro(
          "reduce_bandwidth_Bps", [](const Topology& t) { return t.spec().reduce_bandwidth_Bps; },
          "Bytes per second that an NPU reduces; 0: reducing takes no time.")
      .def_prop_ro(
          "family", [](const Topology& t) { return t.spec().family; },
          "Name that the builder gave it, such as \"torus\".")
      .def_prop_ro(
          "dims",
          [](const Topology& t) {
            std::vector<std::pair<std::string, std::int32_t>> dims;
            for (const auto& d : t.spec().dims) dims.emplace_back(d.kind, d.size);
            return dims;
          },
          "Kind and size of each dimension, the fastest-running first; empty if there are none.")
      .def_prop_ro(
          "symmetric", [](const Topology& t) { return t.spec().symmetric; },
          "Whether translating the coordinates of all nodes maps the network to itself.")
      .def_prop_ro(
          "names", [](const Topology& t) { return t.spec().names; },
          "Names of all nodes, or an empty list.")
      .def(
          "node_name",
          [](const Topology& t, std::int32_t node) {
            if (node < 0 || node >= t.nodes()) {
              throw nb::index_error(("node " + std::to_string(node) + " is not one of 0 to " +
                                     std::to_string(t.nodes() - 1))
                                        .c_str());
            }
            return t.name(node);
          },
          "node"_a, "The node's name, or a default such as \"npu 3\".")
      .def("unreachable_pair", &Topology::unreachable_pair,
           nb::call_guard<nb::gil_scoped_release>(),
           "Two NPUs, the first of which cannot reach the second; None if there are none.")
      .def("diameter", &Topology::diameter, "samples"_a = 256,
           nb::call_guard<nb::gil_scoped_release>(),
           "Hops of the longest shortest path between NPUs, seen from up to `samples` of them.")
      .def(
          "reversed", [](const Topology& t) { return std::make_shared<Topology>(t.reversed()); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Return the topology with all links reversed, and multicast and reduce exchanged; link "
          "ids stay.")
      .def(
          "__eq__",
          [](const Topology& a, nb::handle b) {
            return nb::isinstance<Topology>(b) && a == nb::cast<const Topology&>(b);
          },
          "other"_a.none())
      .def("__hash__",
           [](const Topology& t) {
             return nb::hash(nb::make_tuple(t.npus(), t.links(), t.spec().family));
           })
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def(
          "_repr_html_", [](nb::handle self) { return hooks().to_html(self); },
          nb::sig("def _repr_html_(self) -> str"), "HTML for notebooks.")
      .def(
          "to_pandas", [](nb::handle self) { return hooks().to_pandas(self); },
          nb::sig("def to_pandas(self) -> pandas.DataFrame"),
          R"(The links as a pandas DataFrame, one row per link; needs pandas.

The columns are link, src, dst, src_name, dst_name, latency_ps and bandwidth_Bps.)")
      .def("__repr__", [](const Topology& t) {
        return "<tacos.Topology " + (t.spec().family.empty() ? "custom" : t.spec().family) + ": " +
               counted(t.npus(), "NPU", "NPUs") + ", " +
               counted(t.nodes() - t.npus(), "switch", "switches") + ", " +
               counted(t.links(), "link", "links") + ">";
      });
}

}  // namespace tacos::bindings
