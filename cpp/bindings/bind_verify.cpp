#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "verify/verify.hpp"
#include "verify/verify_program.hpp"
#include "verify/verify_workload.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_verify(nb::module_& m) {
  nb::class_<Violation>(m, "Violation",
                        "One way in which a schedule, a program or a workload is wrong.")
      .def_ro("rule", &Violation::rule, "Which of the rules listed at tacos.verify.")
      .def_ro("transfer", &Violation::transfer,
              "Stored transfer, step of a program, row of a workload, or -1.")
      .def_ro("time_ps", &Violation::time, "When in picoseconds, or -1.")
      .def_ro("chunk", &Violation::chunk, "Chunk, or -1.")
      .def_ro("link", &Violation::link, "Link, or -1.")
      .def_ro("message", &Violation::message, "What is wrong, in a sentence.")
      .def("__repr__", [](const Violation& v) { return v.rule + ": " + v.message; });

  nb::class_<VerifyReport>(m, "VerifyReport", "What the verifier found.")
      .def_ro("checked", &VerifyReport::checked, "Stored transfers, or steps, that were checked.")
      .def_ro("found", &VerifyReport::found, "Number of violations, also beyond the limit.")
      .def_ro("violations", &VerifyReport::violations, "The violations, up to the limit.")
      .def_ro("consistent", &VerifyReport::consistent,
              "Whether all NPUs that end with a sum add it up in the same order.")
      .def_ro("difference", &VerifyReport::difference,
              "Two NPUs that do not, in a sentence, or nothing.");

  m.def(
      "verify",
      [](const Schedule& schedule, bool allow_unneeded, std::int64_t limit, std::int32_t threads,
         std::int64_t block_transfers, const nb::object& progress) {
        const VerifyOptions options{allow_unneeded, limit, threads, block_transfers};
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return verify(schedule, options, report);
      },
      "schedule"_a, nb::kw_only(), "allow_unneeded"_a = false, "limit"_a = 100, "threads"_a = 0,
      "block_transfers"_a = 0, "progress"_a = nb::none(), "Checks a schedule; see tacos.verify.");

  m.def(
      "verify_program",
      [](const Program& program, std::int64_t limit, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return verify(program, limit, report);
      },
      "program"_a, nb::kw_only(), "limit"_a = 100, "progress"_a = nb::none(),
      "Checks a program; see tacos.verify.");

  m.def(
      "verify_workload",
      [](const Workload& workload, std::int64_t limit) {
        const nb::gil_scoped_release release;
        return verify(workload, limit);
      },
      "workload"_a, nb::kw_only(), "limit"_a = 100, "Checks a workload; see tacos.verify.");
}

}  // namespace tacos::bindings
