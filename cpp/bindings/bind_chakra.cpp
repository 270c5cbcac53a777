#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "formats/chakra_reader.hpp"
#include "formats/chakra_writer.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// A column of the traces, copied: `add` may move it.
template <typename T>
auto column(std::vector<T> chakra::Traces::* member) {
  return [member](const chakra::Traces& traces) { return give(traces.*member); };
}

void bind_writer(nb::module_& m) {
  m.def(
      "chakra_file",
      [](const Workload& workload, NodeId rank) {
        std::string text;
        {
          const nb::gil_scoped_release release;
          text = chakra::file(workload, rank);
        }
        return bytes_of(text);
      },
      "workload"_a, "rank"_a, "The Chakra trace of a rank.");
  m.def(
      "chakra_program_file",
      [](const ProgramNodes& nodes, NodeId rank, const std::string& about) {
        std::string text;
        {
          const nb::gil_scoped_release release;
          text = chakra::file(nodes, rank, about);
        }
        return bytes_of(text);
      },
      "nodes"_a, "rank"_a, "about"_a,
      "The Chakra trace of a rank, with the steps of the program and a note in the metadata.");
}

void bind_reader(nb::module_& m) {
  using chakra::Traces;
  const auto keep = nb::rv_policy::reference;
  nb::class_<Traces>(m, "ChakraTraces", "Chakra traces as columns: one row per node, by rank.")
      .def(nb::init<bool>(), "chain_streams"_a = true)
      .def(
          "add",
          [](Traces& traces, const nb::bytes& file) {
            const std::string_view text(file.c_str(), file.size());
            const nb::gil_scoped_release release;
            traces.add(text);
          },
          "file"_a, "Read the trace of the next rank.")
      .def("check_peers", &Traces::check_peers, nb::call_guard<nb::gil_scoped_release>(),
           "Refuse messages with a rank that has no trace.")
      .def_prop_ro("is_program", &Traces::is_program,
                   "Whether the traces are an algorithm and not a workload.")
      .def_prop_ro("ranks", &Traces::ranks)
      .def_prop_ro("nodes", &Traces::nodes)
      .def_prop_ro(
          "about",
          [](const Traces& traces) {
            nb::list notes;
            for (const auto& note : traces.about) notes.append(bytes_of(note));
            return notes;
          },
          nb::sig("def about(self) -> list[bytes]"), "The note of tacos in each rank's metadata.")
      .def_prop_ro("rank", column(&Traces::rank), keep)
      .def_prop_ro(
          "group_names",
          [](const Traces& traces) {
            nb::list names;
            for (const auto& name : traces.group_names) names.append(bytes_of(name));
            return names;
          },
          nb::sig("def group_names(self) -> list[bytes]"), "Names of groups that are not numbers.")
      .def_prop_ro(
          "process_groups",
          [](const Traces& traces) {
            nb::list texts;
            for (const auto& text : traces.process_groups) texts.append(bytes_of(text));
            return texts;
          },
          nb::sig("def process_groups(self) -> list[bytes]"), "The texts of metadata nodes.")
      .def(
          "workload",
          [](Traces& traces, std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> groups,
             const std::vector<std::int32_t>& named) {
            const nb::gil_scoped_release release;
            return std::make_shared<Workload>(std::move(traces).workload(std::move(groups), named));
          },
          "groups"_a, "named"_a, "Move all nodes into a workload; the traces are empty afterwards.")
      .def(
          "restored",
          [](const Traces& traces, std::shared_ptr<Collective> collective, bool in_place,
             const Array<std::int32_t>& scratch_slots, const Array<std::int32_t>& thread_rank,
             const Array<std::int32_t>& send_peer, const Array<std::int32_t>& recv_peer,
             const Array<std::int32_t>& channel, std::string provenance) {
            auto scratch = list(scratch_slots);
            const Threads threads{list(thread_rank), list(send_peer), list(recv_peer),
                                  list(channel)};
            const nb::gil_scoped_release release;
            return std::make_shared<Program>(traces.restored(std::move(collective), in_place,
                                                             std::move(scratch), threads,
                                                             std::move(provenance)));
          },
          nb::kw_only(), "collective"_a, "in_place"_a, "scratch_slots"_a, "thread_rank"_a,
          "send_peer"_a, "recv_peer"_a, "channel"_a, "provenance"_a,
          "The program that tacos wrote.")
      .def(
          "derived",
          [](const Traces& traces, std::string provenance) {
            const nb::gil_scoped_release release;
            return std::make_shared<Program>(traces.derived(std::move(provenance)));
          },
          "provenance"_a, "A program of the messages in the traces.");
}

}  // namespace

void bind_chakra(nb::module_& m) {
  bind_writer(m);
  bind_reader(m);
}

}  // namespace tacos::bindings
