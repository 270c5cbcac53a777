#include <nanobind/stl/shared_ptr.h>

#include "columns.hpp"
#include "runtime/layout.hpp"
#include "runtime/waves.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

// The data of a program that a driver in Python needs, as columns.
struct WaveColumns {
  std::int32_t count;
  Column<std::int32_t> receive, store, act;
  Column<std::uint8_t> aside;
  Column<std::int64_t> order;
};

struct RankLayout {
  StepId first_step = 0;  // the rank's steps follow each other
  bool padded = false;
  std::int64_t scratch_elements = 0;
  Column<std::int64_t> input_offset, output_offset, given_input, given_output, begin;
  Column<std::uint8_t> src_buffer, dst_buffer;
  Column<std::int64_t> src_offset, dst_offset, elements;
};

WaveColumns columns_of_waves(const Program& program) {
  const nb::gil_scoped_release release;
  Waves waves = cut_into_waves(program);
  return {waves.count,          std::move(waves.receive), std::move(waves.store),
          std::move(waves.act), std::move(waves.aside),   std::move(waves.order)};
}

RankLayout lay_out_rank(const std::shared_ptr<Program>& program, NodeId rank, std::int64_t count) {
  const nb::gil_scoped_release release;
  const RankProgram share = compile(program, rank);
  Layout layout = lay_out(share, count);
  std::vector<std::uint8_t> src_buffer, dst_buffer;
  std::vector<std::int64_t> src_offset, dst_offset, elements;
  for (const auto& segment : layout.segments) {
    src_buffer.push_back(static_cast<std::uint8_t>(segment.src.buffer));
    dst_buffer.push_back(static_cast<std::uint8_t>(segment.dst.buffer));
    src_offset.push_back(segment.src.offset);
    dst_offset.push_back(segment.dst.offset);
    elements.push_back(segment.elements);
  }
  return {share.own > 0 ? share.steps.front().id : 0,
          layout.padded,
          layout.scratch_elements,
          std::move(layout.input_offset),
          std::move(layout.output_offset),
          std::move(layout.given_input),
          std::move(layout.given_output),
          std::move(layout.begin),
          std::move(src_buffer),
          std::move(dst_buffer),
          std::move(src_offset),
          std::move(dst_offset),
          std::move(elements)};
}

}  // namespace

void bind_waves(nb::module_& m) {
  nb::class_<WaveColumns>(m, "Waves", "A program divided into waves of messages.")
      .def_ro("count", &WaveColumns::count, "Number of waves; the first has no messages.")
      .def_prop_ro(
          "receive", [](const WaveColumns& c) { return view(c.receive); }, nb::rv_policy::reference,
          "Per step, the wave in which its message arrives, or -1.")
      .def_prop_ro(
          "store", [](const WaveColumns& c) { return view(c.store); }, nb::rv_policy::reference,
          "Per step, the wave in which the message is stored or added, or -1.")
      .def_prop_ro(
          "aside", [](const WaveColumns& c) { return view(c.aside); }, nb::rv_policy::reference,
          "Per step, whether the message must be staged until it is stored.")
      .def_prop_ro(
          "act", [](const WaveColumns& c) { return view(c.act); }, nb::rv_policy::reference,
          "Per step, the wave in which it sends, or does its local work.")
      .def_prop_ro(
          "order", [](const WaveColumns& c) { return view(c.order); }, nb::rv_policy::reference,
          "Local work of steps in order: 2 i where step i stores, 2 i + 1 where it acts.");
  m.def("waves", &columns_of_waves, "program"_a,
        "Divide a program of sends and receives into waves, in which messages move together.");

  nb::class_<RankLayout>(m, "RankLayout", "The positions of one rank's data, in elements.")
      .def_ro("first_step", &RankLayout::first_step, "First of the rank's steps.")
      .def_ro("padded", &RankLayout::padded,
              "Whether all slots have the same size, unlike the caller's.")
      .def_ro("scratch_elements", &RankLayout::scratch_elements,
              "Size of the scratch buffer in elements.")
      .def_prop_ro(
          "input_offset", [](const RankLayout& c) { return view(c.input_offset); },
          nb::rv_policy::reference, "Offset of each input slot, then the total size.")
      .def_prop_ro(
          "output_offset", [](const RankLayout& c) { return view(c.output_offset); },
          nb::rv_policy::reference, "Offset of each output slot, then the total size.")
      .def_prop_ro(
          "given_input", [](const RankLayout& c) { return view(c.given_input); },
          nb::rv_policy::reference, "Offset of each slot in the caller's input.")
      .def_prop_ro(
          "given_output", [](const RankLayout& c) { return view(c.given_output); },
          nb::rv_policy::reference, "Offset of each slot in the caller's output.")
      .def_prop_ro(
          "begin", [](const RankLayout& c) { return view(c.begin); }, nb::rv_policy::reference,
          "First segment of each step, then their number.")
      .def_prop_ro(
          "src_buffer", [](const RankLayout& c) { return view(c.src_buffer); },
          nb::rv_policy::reference, "Per segment, the buffer it is read from.")
      .def_prop_ro(
          "src_offset", [](const RankLayout& c) { return view(c.src_offset); },
          nb::rv_policy::reference, "Per segment, the offset at which it is read.")
      .def_prop_ro(
          "dst_buffer", [](const RankLayout& c) { return view(c.dst_buffer); },
          nb::rv_policy::reference, "Per segment, the buffer it is written to.")
      .def_prop_ro(
          "dst_offset", [](const RankLayout& c) { return view(c.dst_offset); },
          nb::rv_policy::reference, "Per segment, the offset at which it is written.")
      .def_prop_ro(
          "elements", [](const RankLayout& c) { return view(c.elements); },
          nb::rv_policy::reference, "Per segment, its elements.");
  m.def("lay_out", &lay_out_rank, "program"_a, "rank"_a, "count"_a,
        "The positions of a rank's data in a buffer of this many elements.");
}

}  // namespace tacos::bindings
