#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "columns.hpp"
#include "hooks.hpp"
#include "model/topology.hpp"
#include "pickling.hpp"
#include "support/index.hpp"

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

constexpr std::array kRoutings{"spread", "destination", "first"};  // in order of the enumeration

Routing routing(const std::string& name) {
  const auto found = std::find(kRoutings.begin(), kRoutings.end(), name);
  if (found == kRoutings.end()) {
    invalid("routing is \"" + name + "\"; it must be \"spread\", \"destination\" or \"first\"");
  }
  return static_cast<Routing>(found - kRoutings.begin());
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
    const std::string& model, const std::string& mode, const std::string& choice,
    std::int64_t reduce_bandwidth_Bps, std::string family,
    const std::vector<std::pair<std::string, std::int32_t>>& dims, bool symmetric,
    std::vector<std::string> names, std::shared_ptr<Faults> faults, bool given_away) {
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
  spec.routing = routing(choice);
  spec.reduce_bandwidth_Bps = reduce_bandwidth_Bps;
  spec.family = std::move(family);
  for (const auto& [kind, size] : dims) spec.dims.push_back({kind, size});
  spec.symmetric = symmetric;
  spec.names = std::move(names);
  spec.faults = std::move(faults);
  return std::make_shared<Topology>(std::move(spec));
}

std::vector<std::pair<std::string, std::int32_t>> pairs(const std::vector<Dimension>& dims) {
  std::vector<std::pair<std::string, std::int32_t>> result;
  for (const auto& d : dims) result.emplace_back(d.kind, d.size);
  return result;
}

std::shared_ptr<Faults> make_faults(
    const Array<std::int32_t>& link, const Array<std::uint8_t>& dead,
    const Array<std::int32_t>& src, const Array<std::int32_t>& dst,
    const Array<std::int64_t>& latency_ps, const Array<std::int64_t>& bandwidth_Bps,
    const Array<std::int32_t>& dropped, const Array<std::uint8_t>& capabilities,
    std::vector<std::string> names, std::int32_t npus,
    const std::vector<std::pair<std::string, std::int32_t>>& dims, bool symmetric) {
  auto faults = std::make_shared<Faults>();
  faults->link = copy(link);
  faults->dead = copy(dead);
  faults->src = copy(src);
  faults->dst = copy(dst);
  faults->latency_ps = copy(latency_ps);
  faults->bandwidth_Bps = copy(bandwidth_Bps);
  faults->dropped = copy(dropped);
  faults->capabilities = list(capabilities);
  faults->names = std::move(names);
  faults->npus = npus;
  for (const auto& [kind, size] : dims) faults->dims.push_back({kind, size});
  faults->symmetric = symmetric;
  return faults;
}

std::string counted(std::int64_t count, const char* one, const char* several) {
  return std::to_string(count) + " " + (count == 1 ? one : several);
}

}  // namespace

void bind_topology(nb::module_& m) {
  nb::class_<Faults>(
      m, "Faults",
      R"(What is wrong with a network: the columns that its healthy network differs in.

Nodes and links have their numbers in the healthy network, whose other nodes and links are all present, in the
same order. A topology checks its faults. The functions of tacos.topology make them.)")
      .def(nb::new_(&make_faults), nb::kw_only(), "link"_a, "dead"_a, "src"_a, "dst"_a,
           "latency_ps"_a, "bandwidth_Bps"_a, "dropped"_a, "capabilities"_a, "names"_a, "npus"_a,
           "dims"_a, "symmetric"_a)
      .def_prop_ro(
          "link", [](const Faults& f) { return view(f.link); }, nb::rv_policy::reference,
          "Links that are dead or slow, ascending.")
      .def_prop_ro(
          "dead", [](const Faults& f) { return view(f.dead); }, nb::rv_policy::reference,
          "Per entry of `link`: 1 if it is dead, 0 if it is present at another speed.")
      .def_prop_ro(
          "src", [](const Faults& f) { return view(f.src); }, nb::rv_policy::reference,
          "Node that each of these links leaves.")
      .def_prop_ro(
          "dst", [](const Faults& f) { return view(f.dst); }, nb::rv_policy::reference,
          "Node that each of these links enters.")
      .def_prop_ro(
          "latency_ps", [](const Faults& f) { return view(f.latency_ps); },
          nb::rv_policy::reference, "Their healthy latencies in picoseconds.")
      .def_prop_ro(
          "bandwidth_Bps", [](const Faults& f) { return view(f.bandwidth_Bps); },
          nb::rv_policy::reference, "Their healthy bandwidths in bytes per second.")
      .def_prop_ro(
          "dropped", [](const Faults& f) { return view(f.dropped); }, nb::rv_policy::reference,
          "NPUs that are gone, and switches that lead nowhere without them, ascending.")
      .def_prop_ro(
          "capabilities", [](const Faults& f) { return nb::cast(give(f.capabilities)); },
          nb::sig("def capabilities(self) -> numpy.typing.NDArray[numpy.uint8]"),
          "Bits of each dropped switch.")
      .def_prop_ro(
          "names", [](const Faults& f) { return f.names; },
          "Names of the dropped nodes, or an empty list.")
      .def_prop_ro(
          "npus", [](const Faults& f) { return f.npus; }, "Number of NPUs of the healthy network.")
      .def_prop_ro(
          "dims", [](const Faults& f) { return pairs(f.dims); }, "Its dimensions.")
      .def_prop_ro(
          "symmetric", [](const Faults& f) { return f.symmetric; }, "Whether it is symmetric.")
      .def(
          "__eq__",
          [](const Faults& a, nb::handle b) {
            return nb::isinstance<Faults>(b) && a == nb::cast<const Faults&>(b);
          },
          "other"_a.none())
      .def("__hash__",
           [](const Faults& f) {
             return nb::hash(nb::make_tuple(f.npus, f.link.size(), f.dropped.size()));
           })
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__repr__", [](const Faults& f) {
        std::size_t dead = 0;
        for (const auto flag : f.dead) dead += flag != 0;
        return "<tacos.Faults: " +
               counted(static_cast<std::int64_t>(dead), "dead link", "dead links") + ", " +
               counted(static_cast<std::int64_t>(f.link.size() - dead), "slow link", "slow links") +
               ", " + counted(static_cast<std::int64_t>(f.dropped.size()), "node", "nodes") +
               " dropped>";
      });

  nb::class_<Topology>(m, "Topology", R"(A network: NPUs, switches and directed links.

Nodes 0 … npus-1 are NPUs, the others are switches. The functions of tacos.topology make topologies.
They are immutable; the columns are read-only NumPy arrays with one entry per link or switch.)")
      .def(nb::new_(&make_topology), nb::kw_only(), "npus"_a, "switch_capabilities"_a, "link_src"_a,
           "link_dst"_a, "link_latency_ps"_a, "link_bandwidth_Bps"_a, "link_model"_a = "pipelined",
           "forwarding"_a = "cut_through", "routing"_a = "spread", "reduce_bandwidth_Bps"_a = 0,
           "family"_a = "", "dims"_a = std::vector<std::pair<std::string, std::int32_t>>{},
           "symmetric"_a = false, "names"_a = std::vector<std::string>{},
           "faults"_a.none() = nb::none(), "given_away"_a = false,
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
          "routing",
          [](const Topology& t) {
            return std::string(kRoutings[at(static_cast<int>(t.spec().routing))]);
          },
          "Which of several equal paths through switches messages take: \"spread\" (all of them, "
          "evenly), \"destination\" (one chosen by the destination) or \"first\".")
      .def_prop_ro(
          "reduce_bandwidth_Bps", [](const Topology& t) { return t.spec().reduce_bandwidth_Bps; },
          "Bytes per second that an NPU reduces; 0: reducing takes no time.")
      .def_prop_ro(
          "family", [](const Topology& t) { return t.spec().family; },
          "Name that the builder gave it, such as \"torus\".")
      .def_prop_ro(
          "dims", [](const Topology& t) { return pairs(t.spec().dims); },
          "Kind and size of each dimension, the fastest-running first; empty if there are none.")
      .def_prop_ro(
          "symmetric", [](const Topology& t) { return t.spec().symmetric; },
          "Whether translating the coordinates of all nodes maps the network to itself.")
      .def_prop_ro(
          "names", [](const Topology& t) { return t.spec().names; },
          "Names of all nodes, or an empty list.")
      .def_prop_ro(
          "faults", [](const Topology& t) { return t.spec().faults; },
          nb::sig("def faults(self) -> Faults | None"),
          "What edits broke: dead and slow links, and dropped nodes; None if nothing.")
      .def(
          "healthy",
          [](const std::shared_ptr<Topology>& t) {
            return t->spec().faults == nullptr ? t : std::make_shared<Topology>(t->healthy());
          },
          nb::call_guard<nb::gil_scoped_release>(),
          R"(Return the network without its faults, the same topology if it has none.)")
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
