#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "columns.hpp"
#include "model/collective.hpp"
#include "pickling.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

using Shared = std::shared_ptr<Collective>;

template <typename T>
Column<T> copy_or_empty(const std::optional<Array<T>>& array) {
  return array ? copy(*array) : Column<T>();
}

constexpr std::array<const char*, 5> kUnitNames = {"member", "share", "pair", "buffer", "row"};

std::string checked_name(std::string name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || name.size() > 64 || !std::all_of(name.begin(), name.end(), fits)) {
    invalid("the name of a collective has up to 64 small letters, digits and _, not \"" +
            name.substr(0, 64) + "\"");
  }
  return name;
}

CollectivePart make_part(const std::string& kind, std::int64_t size, std::int32_t chunks,
                         std::int32_t root, const std::optional<Array<std::int32_t>>& group,
                         const std::optional<Array<std::int64_t>>& bytes,
                         const std::optional<Array<std::int32_t>>& inputs,
                         const std::optional<Array<std::int32_t>>& outputs,
                         const std::optional<Array<std::int64_t>>& input_begin,
                         const std::optional<Array<std::int64_t>>& output_begin,
                         const std::optional<Array<std::uint8_t>>& reduces) {
  CollectivePart part;
  // Kinds that are not in the table list their chunks.
  if (!find_kind(kind) && reduces && reduces->size() > 0) {
    part.kind = CollectiveKind::custom;
    part.name = checked_name(kind);
  } else {
    part.kind = collective_kind(kind);
  }
  part.size = size;
  part.chunks = chunks;
  part.root = root;
  part.group = copy_or_empty(group);
  part.bytes = copy_or_empty(bytes);
  part.inputs = copy_or_empty(inputs);
  part.outputs = copy_or_empty(outputs);
  part.input_begin = copy_or_empty(input_begin);
  part.output_begin = copy_or_empty(output_begin);
  part.reduces = copy_or_empty(reduces);
  return part;
}

std::string kind_of(const Collective& collective) {
  const auto kind = collective.parts()[0].kind_name();
  for (const auto& part : collective.parts()) {
    if (part.kind_name() != kind) return "mixed";
  }
  return std::string(kind);
}

ChunkId chunks_of(const Collective& collective) {
  if (!collective.resolved()) {
    invalid("the number of chunks is not chosen yet: call with_chunks(n)");
  }
  return collective.chunks();
}

ChunkId in_range(const Collective& collective, std::int64_t chunk) {
  if (chunk < 0 || chunk >= std::int64_t{chunks_of(collective)}) {
    throw nb::index_error(("chunk " + std::to_string(chunk) + " is not one of 0 to " +
                           std::to_string(std::int64_t{collective.chunks()} - 1))
                              .c_str());
  }
  return static_cast<ChunkId>(chunk);
}

// Chunk and NPU columns of all NPUs' inputs or outputs.
nb::tuple condition(const Collective& collective, bool inputs) {
  std::vector<ChunkId> chunk;
  std::vector<NodeId> npu;
  for (ChunkId c = 0; c < chunks_of(collective); ++c) {
    for (const NodeId node : inputs ? collective.inputs(c) : collective.outputs(c)) {
      chunk.push_back(c);
      npu.push_back(node);
    }
  }
  return nb::make_tuple(give(std::move(chunk)), give(std::move(npu)));
}

}  // namespace

void bind_collective(nb::module_& m) {
  m.def(
      "collective_kinds",
      [] {
        nb::list rows;
        for (const KindTraits& kind : kKinds) {
          nb::dict row;
          row["name"] = std::string(kind.name);
          row["unit"] = kUnitNames[static_cast<std::size_t>(kind.unit)];
          row["reduces"] = kind.reduces;
          row["rooted"] = kind.rooted();
          row["per_pair"] = kind.per_pair();
          row["spreads"] = kind.spreads();
          row["two_phases"] = kind.two_phases();
          row["even"] = kind.even;
          row["listed"] = kind.listed();
          row["whole_input"] = kind.whole_input();
          row["whole_output"] = kind.whole_output();
          row["reverse"] = std::string(traits(kind.reverse).name);
          rows.append(row);
        }
        return rows;
      },
      nb::sig("def collective_kinds() -> list[dict[str, typing.Any]]"),
      "The records of the kinds that are stored without a list of chunks; see "
      "tacos.collective.KINDS.");

  nb::class_<CollectivePart>(m, "CollectivePart", "One of the collectives that run at once.")
      .def(nb::new_(&make_part), "kind"_a, "size"_a, "chunks"_a = 0, "root"_a = -1,
           "group"_a = nb::none(), "bytes"_a = nb::none(), "inputs"_a = nb::none(),
           "outputs"_a = nb::none(), "input_begin"_a = nb::none(), "output_begin"_a = nb::none(),
           "reduces"_a = nb::none())
      .def_prop_ro("kind", [](const CollectivePart& p) { return std::string(p.kind_name()); })
      .def_prop_ro(
          "label", [](const CollectivePart& p) { return label_of(p.kind_name()); },
          "The kind as people write it, such as \"all-reduce\".")
      .def_prop_ro("sums", &CollectivePart::sums, "Whether the value of any chunk is a sum.")
      .def_prop_ro(
          "bus_factor",
          [](const CollectivePart& p) { return bus_factor(p.traits().bus, p.members()); },
          "busbw / algbw as in nccl-tests; 0 where undefined.")
      .def_ro("size", &CollectivePart::size)
      .def_ro("chunks", &CollectivePart::chunks, "Pieces per unit; 0: not chosen yet.")
      .def_ro("root", &CollectivePart::root, "Position of the root in the group, or -1.")
      .def_prop_ro(
          "group", [](const CollectivePart& p) { return view(p.group); }, nb::rv_policy::reference)
      .def_prop_ro(
          "bytes", [](const CollectivePart& p) { return view(p.bytes); }, nb::rv_policy::reference)
      .def_prop_ro(
          "inputs", [](const CollectivePart& p) { return view(p.inputs); },
          nb::rv_policy::reference)
      .def_prop_ro(
          "outputs", [](const CollectivePart& p) { return view(p.outputs); },
          nb::rv_policy::reference)
      .def_prop_ro(
          "input_begin", [](const CollectivePart& p) { return view(p.input_begin); },
          nb::rv_policy::reference)
      .def_prop_ro(
          "output_begin", [](const CollectivePart& p) { return view(p.output_begin); },
          nb::rv_policy::reference)
      .def_prop_ro(
          "reduces", [](const CollectivePart& p) { return view(p.reduces); },
          nb::rv_policy::reference)
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));

  nb::class_<Collective>(
      m, "Collective",
      R"(The chunks that each NPU holds at the start, and those that it must hold at the end.

Made by the functions of tacos.collective. Named collectives are stored symbolically; the
pre- and postcondition columns are generated on demand.)")
      .def(nb::new_([](std::int32_t npus, std::vector<CollectivePart> parts) {
             return std::make_shared<Collective>(npus, std::move(parts));
           }),
           "npus"_a, "parts"_a)
      .def_prop_ro("npus", &Collective::npus, "Number of NPUs of the network.")
      .def_prop_ro("parts", &Collective::parts, "The collectives that run at once.")
      .def_prop_ro("resolved", &Collective::resolved, "Whether the number of chunks is chosen.")
      .def_prop_ro(
          "kind", [](const Collective& c) { return kind_of(c); },
          "Kind of the parts, or \"mixed\".")
      .def_prop_ro(
          "label", [](const Collective& c) { return label_of(kind_of(c)); },
          "The kind as people write it, such as \"all-reduce\".")
      .def_prop_ro(
          "chunks", [](const Collective& c) { return chunks_of(c); },
          "Number of chunks in all parts.")
      .def_prop_ro("size_bytes", &Collective::size,
                   "Size as nccl-tests counts it: the parts' common size, or their sum.")
      .def_prop_ro("bus_factor", &Collective::bus_factor,
                   "busbw / algbw as in nccl-tests; 0 where undefined.")
      .def(
          "with_chunks",
          [](const Collective& c, std::int32_t chunks) {
            return std::make_shared<Collective>(c.with_chunks(chunks));
          },
          "chunks"_a, "Return the same collective with all unset chunk counts set.")
      .def(
          "resized",
          [](const Collective& c, std::int64_t size) {
            return std::make_shared<Collective>(c.resized(size));
          },
          "size_bytes"_a, "Return the same collective scaled to this size; sizes are rounded up.")
      .def(
          "chunk_bytes",
          [](const Collective& c) {
            std::vector<std::int64_t> bytes;
            bytes.reserve(chunks_of(c));
            for (ChunkId x = 0; x < c.chunks(); ++x) bytes.push_back(c.bytes(x));
            return give(std::move(bytes));
          },
          nb::rv_policy::reference, "Size of every chunk in bytes.")
      .def(
          "reduces",
          [](const Collective& c, std::int64_t chunk) { return c.reduces(in_range(c, chunk)); },
          "chunk"_a, "Whether the chunk's value is the sum of its inputs.")
      .def(
          "inputs",
          [](const Collective& c, std::int64_t chunk) {
            const auto nodes = c.inputs(in_range(c, chunk));
            return std::vector<NodeId>(nodes.begin(), nodes.end());
          },
          "chunk"_a, "NPUs that hold the chunk, or a contribution to it, at the start.")
      .def(
          "outputs",
          [](const Collective& c, std::int64_t chunk) {
            const auto nodes = c.outputs(in_range(c, chunk));
            return std::vector<NodeId>(nodes.begin(), nodes.end());
          },
          "chunk"_a, "NPUs that must hold the chunk at the end.")
      .def(
          "precondition", [](const Collective& c) { return condition(c, true); },
          nb::sig("def precondition(self) -> tuple[numpy.typing.NDArray[numpy.uint32], "
                  "numpy.typing.NDArray[numpy.int32]]"),
          "Columns (chunk, NPU): the chunks that each NPU holds at the start.")
      .def(
          "postcondition", [](const Collective& c) { return condition(c, false); },
          nb::sig("def postcondition(self) -> tuple[numpy.typing.NDArray[numpy.uint32], "
                  "numpy.typing.NDArray[numpy.int32]]"),
          "Columns (chunk, NPU): the chunks that each NPU must hold at the end.")
      .def(
          "reversed",
          [](const Collective& c) { return std::make_shared<Collective>(c.reversed()); },
          "Return the collective with inputs and outputs exchanged: all-gather <-> reduce-scatter, "
          "and so on.")
      .def(
          "__eq__",
          [](const Collective& a, nb::handle b) {
            return nb::isinstance<Collective>(b) && a == nb::cast<const Collective&>(b);
          },
          "other"_a.none())
      .def("__hash__",
           [](const Collective& c) { return nb::hash(nb::make_tuple(c.npus(), c.size())); })
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__repr__", [](const Collective& c) {
        const auto& part = c.parts()[0];
        std::string text = "<tacos.Collective " + std::string(part.kind_name());
        if (c.parts().size() > 1) text += " and " + std::to_string(c.parts().size() - 1) + " more";
        text += " of " + std::to_string(c.size()) + " B";
        if (!part.group.empty()) text += " on " + std::to_string(part.members()) + " NPUs";
        return text + (c.resolved() ? ", " + std::to_string(c.chunks()) + " chunks>" : ">");
      });
}

}  // namespace tacos::bindings
