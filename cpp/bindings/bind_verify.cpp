#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "verify/verify.hpp"
#include "verify/verify_program.hpp"
#include "verify/verify_workload.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_verify(nb::module_& m) {
  nb::class_<Violation>(m, "Violation", "One error in a schedule, a program or a workload.")
      .def_ro("rule", &Violation::rule, "The violated rule, as listed at tacos.verify.")
      .def_ro("transfer", &Violation::transfer,
              "Stored transfer, step of a program, row of a workload, or -1.")
      .def_ro("time_ps", &Violation::time, "Time in picoseconds, or -1.")
      .def_ro("chunk", &Violation::chunk, "Chunk, or -1.")
      .def_ro("link", &Violation::link, "Link, or -1.")
      .def_ro("message", &Violation::message, "One sentence that says what is wrong.")
      .def("__repr__", [](const Violation& v) { return v.rule + ": " + v.message; });

  nb::class_<VerifyReport>(m, "VerifyReport", "The result of the verifier.")
      .def_ro("checked", &VerifyReport::checked,
              "Number of stored transfers, or steps, that were checked.")
      .def_ro("found", &VerifyReport::found,
              "Number of violations, including those beyond the limit.")
      .def_ro("violations", &VerifyReport::violations, "The violations, up to the limit.")
      .def_ro("consistent", &VerifyReport::consistent,
              "Whether all NPUs that end with a sum add it up in the same order.")
      .def_ro("difference", &VerifyReport::difference,
              "A sentence that names two NPUs which do not, or an empty string.");

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
      "block_transfers"_a = 0, "progress"_a = nb::none(), "Check a schedule; see tacos.verify.");

  m.def(
      "verify_program",
      [](const Program& program, std::int64_t limit, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return verify(program, limit, report);
      },
      "program"_a, nb::kw_only(), "limit"_a = 100, "progress"_a = nb::none(),
      "Check a program; see tacos.verify.");

  m.def(
      "verify_workload",
      [](const Workload& workload, std::int64_t limit) {
        const nb::gil_scoped_release release;
        return verify(workload, limit);
      },
      "workload"_a, nb::kw_only(), "limit"_a = 100, "Check a workload; see tacos.verify.");
}

}  // namespace tacos::bindings
