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

template <typename T>
std::vector<T> list(const Array<T>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

// A column of the traces, copied: `add` may move it.
template <typename T>
auto column(std::vector<T> chakra::Traces::* member) {
  return [member](const chakra::Traces& traces) { return give(traces.*member); };
}

void bind_writer(nb::module_& m) {
  using chakra::Writer;
  nb::class_<Writer>(m, "ChakraWriter", "A program as Chakra traces, one file per rank.")
      .def(nb::new_([](std::shared_ptr<Program> program, const Array<std::int64_t>& chunk_bytes,
                       std::int64_t reduce_bps, const Array<std::int32_t>& src,
                       const Array<std::int32_t>& dst, const Array<std::uint32_t>& chunk,
                       const Array<std::int32_t>& link, const nb::object& progress) {
             const auto rows = src.shape(0);
             if (dst.shape(0) != rows || chunk.shape(0) != rows || link.shape(0) != rows) {
               invalid("src, dst, chunk and link differ in length");
             }
             const auto report = progress_to(progress);
             auto sizes = list(chunk_bytes);
             const chakra::Departures departures{list(src), list(dst), list(chunk), list(link)};
             const nb::gil_scoped_release release;
             return std::make_shared<Writer>(std::move(program), std::move(sizes), reduce_bps,
                                             departures, report);
           }),
           "program"_a, "chunk_bytes"_a, nb::kw_only(), "reduce_Bps"_a, "src"_a, "dst"_a, "chunk"_a,
           "link"_a, "progress"_a.none() = nb::none(),
           R"(Link by link, messages leave in the order of the rows (src, dst, chunk, link).)")
      .def("nodes", &Writer::nodes, "rank"_a, "How many nodes the trace of a rank has.")
      .def(
          "file",
          [](const Writer& writer, NodeId rank, const std::string& about) {
            std::string text;
            {
              const nb::gil_scoped_release release;
              text = writer.file(rank, about);
            }
            return bytes_of(text);
          },
          "rank"_a, "about"_a, "The file of a rank, with a note in its metadata.");
  m.def(
      "chakra_collective",
      [](std::int64_t comm_type, std::int64_t size) {
        return bytes_of(chakra::collective_file(comm_type, size));
      },
      "comm_type"_a, "size_bytes"_a, "The file of a rank whose only node is a collective.");
}

void bind_reader(nb::module_& m) {
  using chakra::Traces;
  const auto keep = nb::rv_policy::reference;
  nb::class_<Traces>(m, "ChakraTraces", "Chakra traces as columns: one row per node, by rank.")
      .def(nb::init<>())
      .def(
          "add",
          [](Traces& traces, const nb::bytes& file) {
            const std::string_view text(file.c_str(), file.size());
            const nb::gil_scoped_release release;
            traces.add(text);
          },
          "file"_a, "Take in the trace of the next rank.")
      .def("check_peers", &Traces::check_peers, nb::call_guard<nb::gil_scoped_release>(),
           "Refuse messages with a rank that has no trace.")
      .def_prop_ro("ranks", &Traces::ranks)
      .def_prop_ro("nodes", &Traces::nodes)
      .def_prop_ro(
          "about",
          [](const Traces& traces) {
            nb::list notes;
            for (const auto& note : traces.about) notes.append(bytes_of(note));
            return notes;
          },
          nb::sig("def about(self) -> list[bytes]"), "What tacos noted in each rank's metadata.")
      .def_prop_ro("rank", column(&Traces::rank), keep)
      .def_prop_ro(
          "id",
          [](const Traces& traces) {
            return give(std::vector<std::int64_t>(traces.id.begin(), traces.id.end()));
          },
          keep)
      .def_prop_ro("kind", column(&Traces::kind), keep)
      .def_prop_ro("peer", column(&Traces::peer), keep)
      .def_prop_ro("bytes", column(&Traces::bytes), keep)
      .def_prop_ro("tag", column(&Traces::tag), keep)
      .def_prop_ro("duration_us", column(&Traces::duration_us), keep)
      .def_prop_ro("comm", column(&Traces::comm), keep)
      .def_prop_ro("on_cpu", column(&Traces::on_cpu), keep)
      .def_prop_ro("group", column(&Traces::group), keep)
      .def_prop_ro("priority", column(&Traces::priority), keep)
      .def_prop_ro("dims", column(&Traces::dims), keep)
      .def_prop_ro("dep_begin", column(&Traces::dep_begin), keep)
      .def_prop_ro("dep", column(&Traces::dep), keep)
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
          "provenance"_a, "A program of the messages that the traces speak of.");
}

}  // namespace

void bind_chakra(nb::module_& m) {
  bind_writer(m);
  bind_reader(m);
}

}  // namespace tacos::bindings
