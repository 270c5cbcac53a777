#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "hooks.hpp"
#include "json.hpp"
#include "lowering/lift.hpp"
#include "lowering/lower.hpp"
#include "model/program.hpp"
#include "pickling.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

std::shared_ptr<Program> make_program(
    std::shared_ptr<Collective> collective, bool in_place, const Array<std::int32_t>& scratch_slots,
    const Array<std::int32_t>& thread_rank, const Array<std::int32_t>& thread_channel,
    const Array<std::int32_t>& thread_send_peer, const Array<std::int32_t>& thread_recv_peer,
    const Array<std::int64_t>& thread_begin, const Array<std::uint8_t>& op,
    const Array<std::uint8_t>& src_buffer, const Array<std::int32_t>& src_slot,
    const Array<std::uint8_t>& dst_buffer, const Array<std::int32_t>& dst_slot,
    const Array<std::int32_t>& count, const Array<std::int32_t>& peer,
    const Array<std::int32_t>& comes_from, const Array<std::int64_t>& dep_begin,
    const Array<std::int32_t>& dep, std::string provenance, std::int64_t size_bytes,
    std::vector<std::int64_t> part_bytes, std::int32_t window, std::string engine, std::string name,
    std::string format, std::string dialect, std::string protocol, std::uint64_t min_bytes,
    std::uint64_t max_bytes, std::int32_t threads_per_block, bool either_place) {
  ProgramSpec spec;
  spec.collective = std::move(collective);
  spec.in_place = in_place;
  spec.scratch_slots = copy(scratch_slots);
  spec.thread_rank = copy(thread_rank);
  spec.thread_channel = copy(thread_channel);
  spec.thread_send_peer = copy(thread_send_peer);
  spec.thread_recv_peer = copy(thread_recv_peer);
  spec.thread_begin = copy(thread_begin);
  spec.op = copy(op);
  spec.src_buffer = copy(src_buffer);
  spec.src_slot = copy(src_slot);
  spec.dst_buffer = copy(dst_buffer);
  spec.dst_slot = copy(dst_slot);
  spec.count = copy(count);
  spec.peer = copy(peer);
  spec.comes_from = copy(comes_from);
  spec.dep_begin = copy(dep_begin);
  spec.dep = copy(dep);
  spec.provenance = std::move(provenance);
  spec.facts = {size_bytes,
                std::move(part_bytes),
                window,
                std::move(engine),
                {std::move(name), std::move(dialect), std::move(protocol), min_bytes, max_bytes,
                 threads_per_block},
                std::move(format),
                either_place};
  const nb::gil_scoped_release release;  // the arguments are not used below
  return std::make_shared<Program>(std::move(spec));
}

void check_rank(const Program& p, NodeId rank) {
  if (rank >= 0 && rank < p.ranks()) return;
  invalid("rank is " + std::to_string(rank) + "; it must be 0 to " + std::to_string(p.ranks() - 1));
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program", R"(A collective algorithm as the ranks run it.

Ranks have threads, and threads have steps, which move slots of an input, an output and a scratch
buffer. A program has no sizes and no times. tacos.lower and tacos.load make programs. They are
immutable; the columns are read-only NumPy arrays.)")
      .def(nb::new_(&make_program), nb::kw_only(), "collective"_a, "in_place"_a, "scratch_slots"_a,
           "thread_rank"_a, "thread_channel"_a, "thread_send_peer"_a, "thread_recv_peer"_a,
           "thread_begin"_a, "op"_a, "src_buffer"_a, "src_slot"_a, "dst_buffer"_a, "dst_slot"_a,
           "count"_a, "peer"_a, "comes_from"_a, "dep_begin"_a, "dep"_a, "provenance"_a = "{}",
           "size_bytes"_a = 0, "part_bytes"_a = std::vector<std::int64_t>{}, "window"_a = 0,
           "engine"_a = "", "name"_a = "", "format"_a = "", "dialect"_a = "", "protocol"_a = "",
           "min_bytes"_a = 0, "max_bytes"_a = 0, "threads_per_block"_a = 0,
           "either_place"_a = false,
           R"(Check that the columns are consistent.

Columns must have the same types as the properties of the same names; nothing is converted.)")
      .def_prop_ro(
          "collective", [](const Program& p) { return p.spec().collective; },
          "The program's collective; only the proportions of its sizes matter.")
      .def_prop_ro(
          "in_place", [](const Program& p) { return p.spec().in_place; },
          "Whether the input and output slot of a chunk are the same memory.")
      .def_prop_ro("ranks", &Program::ranks, "Number of ranks.")
      .def_prop_ro("threads", &Program::threads, "Number of threads of all ranks.")
      .def_prop_ro("steps", &Program::steps, "Number of steps of all ranks.")
      .def_prop_ro(
          "scratch_slots", [](const Program& p) { return view(p.spec().scratch_slots); },
          nb::rv_policy::reference, "Scratch slots of each rank.")
      .def_prop_ro(
          "thread_rank", [](const Program& p) { return view(p.spec().thread_rank); },
          nb::rv_policy::reference, "Rank of each thread, ascending.")
      .def_prop_ro(
          "thread_channel", [](const Program& p) { return view(p.spec().thread_channel); },
          nb::rv_policy::reference, "Channel of each thread.")
      .def_prop_ro(
          "thread_send_peer", [](const Program& p) { return view(p.spec().thread_send_peer); },
          nb::rv_policy::reference, "The rank that a thread sends to, or -1.")
      .def_prop_ro(
          "thread_recv_peer", [](const Program& p) { return view(p.spec().thread_recv_peer); },
          nb::rv_policy::reference, "The rank that a thread receives from, or -1.")
      .def_prop_ro(
          "thread_begin", [](const Program& p) { return view(p.spec().thread_begin); },
          nb::rv_policy::reference, "First step of each thread, then the number of steps.")
      .def_prop_ro(
          "op", [](const Program& p) { return view(p.spec().op); }, nb::rv_policy::reference,
          "Operation of each step: an index into STEP_OPS.")
      .def_prop_ro(
          "src_buffer", [](const Program& p) { return view(p.spec().src_buffer); },
          nb::rv_policy::reference, "0 input, 1 output, 2 scratch, 3 none.")
      .def_prop_ro(
          "src_slot", [](const Program& p) { return view(p.spec().src_slot); },
          nb::rv_policy::reference, "First slot that a step reads, or -1.")
      .def_prop_ro(
          "dst_buffer", [](const Program& p) { return view(p.spec().dst_buffer); },
          nb::rv_policy::reference, "0 input, 1 output, 2 scratch, 3 none.")
      .def_prop_ro(
          "dst_slot", [](const Program& p) { return view(p.spec().dst_slot); },
          nb::rv_policy::reference, "First slot that a step writes, or -1.")
      .def_prop_ro(
          "count", [](const Program& p) { return view(p.spec().count); }, nb::rv_policy::reference,
          "Number of slots that a step moves.")
      .def_prop_ro(
          "peer", [](const Program& p) { return view(p.spec().peer); }, nb::rv_policy::reference,
          "The other rank of a one-sided step, a signal or a wait; else -1.")
      .def_prop_ro(
          "comes_from", [](const Program& p) { return view(p.spec().comes_from); },
          nb::rv_policy::reference,
          "The step that sends or signals what a step receives or waits for, or -1.")
      .def_prop_ro(
          "dep_begin", [](const Program& p) { return view(p.spec().dep_begin); },
          nb::rv_policy::reference, "First dependency of each step, then their number.")
      .def_prop_ro(
          "dep", [](const Program& p) { return view(p.spec().dep); }, nb::rv_policy::reference,
          "Steps of the same rank that must be complete first.")
      .def(
          "input_chunks",
          [](const Program& p, NodeId rank) {
            check_rank(p, rank);
            return give(p.input_chunks(rank));
          },
          "rank"_a, nb::rv_policy::reference, "The chunk in each slot of a rank's input buffer.")
      .def(
          "output_chunks",
          [](const Program& p, NodeId rank) {
            check_rank(p, rank);
            return give(p.output_chunks(rank));
          },
          "rank"_a, nb::rv_policy::reference,
          "The chunk that each slot of a rank's output buffer must end with.")
      .def(
          "describe",
          [](const Program& p, StepId step) {
            if (step < 0 || step >= p.steps()) {
              throw nb::index_error(("step " + std::to_string(step) + " is not one of 0 to " +
                                     std::to_string(p.steps() - 1))
                                        .c_str());
            }
            return p.describe(step);
          },
          "step"_a, "Rank, thread and number of a step, for messages.")
      .def_prop_ro(
          "provenance", [](const Program& p) { return from_json(p.spec().provenance); },
          nb::sig("def provenance(self) -> dict[str, typing.Any]"),
          "Name, protocol, limits, and how the program was made.")
      .def(
          "with_provenance",
          [](const Program& p, const nb::dict& provenance) {
            return std::make_shared<Program>(p.with_provenance(to_json(provenance)));
          },
          "provenance"_a,
          nb::sig("def with_provenance(self, provenance: dict[str, typing.Any]) -> Program"),
          "Return the same program with a different provenance.")
      .def_prop_ro(
          "size_bytes", [](const Program& p) { return p.spec().facts.size_bytes; },
          "Original size of the collective in bytes; 0: unknown.")
      .def_prop_ro(
          "part_bytes", [](const Program& p) { return p.spec().facts.part_bytes; },
          "Sizes of the parts, if there are several and they are known.")
      .def_prop_ro(
          "window", [](const Program& p) { return p.spec().facts.window; },
          "Most messages of a rank that cross a limiting link at once; 0: any number.")
      .def_prop_ro(
          "engine", [](const Program& p) { return p.spec().facts.engine; },
          "Engine of the schedule that the program was lowered from, or an empty string.")
      .def_prop_ro(
          "name", [](const Program& p) { return p.spec().facts.file.name; },
          "Name in the file that the program was read from, or an empty string.")
      .def_prop_ro(
          "format", [](const Program& p) { return p.spec().facts.format; },
          "Format of the file that the program was read from, or an empty string.")
      .def_prop_ro(
          "dialect", [](const Program& p) { return p.spec().facts.file.dialect; },
          "Dialect of that file, or an empty string.")
      .def_prop_ro(
          "protocol", [](const Program& p) { return p.spec().facts.file.protocol; },
          "Protocol that the file names, or an empty string.")
      .def_prop_ro(
          "min_bytes", [](const Program& p) { return p.spec().facts.file.min_bytes; },
          "Smallest size that the file is for.")
      .def_prop_ro(
          "max_bytes", [](const Program& p) { return p.spec().facts.file.max_bytes; },
          "Largest size that the file is for; 0: no limit.")
      .def_prop_ro(
          "threads_per_block",
          [](const Program& p) { return p.spec().facts.file.threads_per_block; },
          "Threads per block that the file names; 0: none.")
      .def_prop_ro(
          "either_place", [](const Program& p) { return p.spec().facts.either_place; },
          "Whether the file is for calls both in place and out of place.")
      .def(
          "with_facts",
          [](const Program& p, std::optional<std::int64_t> size_bytes,
             std::optional<std::vector<std::int64_t>> part_bytes,
             std::optional<std::int32_t> window, std::optional<std::string> engine,
             std::optional<std::string> name, std::optional<std::string> format,
             std::optional<std::string> dialect, std::optional<std::string> protocol,
             std::optional<std::uint64_t> min_bytes, std::optional<std::uint64_t> max_bytes,
             std::optional<std::int32_t> threads_per_block, std::optional<bool> either_place) {
            auto facts = p.spec().facts;
            const auto put = [](auto& field, auto& given) {
              if (given) field = std::move(*given);
            };
            put(facts.size_bytes, size_bytes);
            put(facts.part_bytes, part_bytes);
            put(facts.window, window);
            put(facts.engine, engine);
            put(facts.file.name, name);
            put(facts.format, format);
            put(facts.file.dialect, dialect);
            put(facts.file.protocol, protocol);
            put(facts.file.min_bytes, min_bytes);
            put(facts.file.max_bytes, max_bytes);
            put(facts.file.threads_per_block, threads_per_block);
            put(facts.either_place, either_place);
            return std::make_shared<Program>(p.with_facts(std::move(facts)));
          },
          nb::kw_only(), "size_bytes"_a = nb::none(), "part_bytes"_a = nb::none(),
          "window"_a = nb::none(), "engine"_a = nb::none(), "name"_a = nb::none(),
          "format"_a = nb::none(), "dialect"_a = nb::none(), "protocol"_a = nb::none(),
          "min_bytes"_a = nb::none(), "max_bytes"_a = nb::none(),
          "threads_per_block"_a = nb::none(), "either_place"_a = nb::none(),
          "Return the same program with other values of these fields; None keeps a field.")
      .def(
          "with_in_place",
          [](const Program& p, bool in_place) {
            return std::make_shared<Program>(p.with_in_place(in_place));
          },
          "in_place"_a,
          "Return the same steps with input and output in the same memory, or in different memory.")
      .def(
          "__eq__",
          [](const Program& a, nb::handle b) {
            return nb::isinstance<Program>(b) && a == nb::cast<const Program&>(b);
          },
          "other"_a.none(), "Equal collective, threads and steps; provenance may differ.")
      .def("__hash__",
           [](const Program& p) { return nb::hash(nb::make_tuple(p.ranks(), p.steps())); })
      .def("__reduce__", &reduced, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def(
          "_repr_html_", [](nb::handle self) { return hooks().to_html(self); },
          nb::sig("def _repr_html_(self) -> str"), "HTML for notebooks.")
      .def("__repr__", [](const Program& p) {
        return "<tacos.Program " + std::string(p.collective().parts()[0].kind_name()) + ": " +
               std::to_string(p.ranks()) + " ranks, " + std::to_string(p.threads()) + " threads, " +
               std::to_string(p.steps()) + " steps>";
      });

  m.def(
      "lower",
      [](const Schedule& schedule, bool in_place, std::optional<std::int32_t> rank,
         std::int32_t window, bool reuse_scratch, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Program>(
            lower(schedule, {in_place, rank, window, reuse_scratch}, report));
      },
      "schedule"_a, nb::kw_only(), "in_place"_a = false, "rank"_a = nb::none(), "window"_a = 0,
      "reuse_scratch"_a = true, "progress"_a = nb::none(),
      "The program of a schedule; see tacos.lower.");
  m.def(
      "lift",
      [](const Program& program, std::shared_ptr<Topology> topology, std::int64_t size,
         std::string provenance, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return std::make_shared<Schedule>(
            lift(program, topology, size, std::move(provenance), report));
      },
      "program"_a, "topology"_a, "size_bytes"_a, nb::kw_only(), "provenance"_a = "{}",
      "progress"_a = nb::none(), "The schedule of a program; see tacos.lift.");
}

}  // namespace tacos::bindings
