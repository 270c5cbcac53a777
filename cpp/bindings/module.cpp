// The extension module tacos._core: calls the functions of the bind_*.cpp files and maps exceptions.
#include <nanobind/nanobind.h>

#include "runtime/tcp.hpp"
#include "support/error.hpp"

namespace nb = nanobind;

namespace tacos::bindings {
void bind_topology(nb::module_& m);
void bind_collective(nb::module_& m);
void bind_schedule(nb::module_& m);
void bind_symmetric(nb::module_& m);
void bind_verify(nb::module_& m);
void bind_bound(nb::module_& m);
void bind_simulate(nb::module_& m);
void bind_run_program(nb::module_& m);
void bind_order(nb::module_& m);
void bind_synth(nb::module_& m);
void bind_forest(nb::module_& m);
void bind_program(nb::module_& m);
void bind_workload(nb::module_& m);
void bind_chakra(nb::module_& m);
void bind_astra(nb::module_& m);
void bind_msccl(nb::module_& m);
void bind_perfetto(nb::module_& m);
void bind_crc32(nb::module_& m);
void bind_run_workload(nb::module_& m);
void bind_pipeline(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_waves(nb::module_& m);
void bind_aggregation(nb::module_& m);
void bind_hub(nb::module_& m);
void bind_arrow(nb::module_& m);
void bind_hooks(nb::module_& m);
void bind_meter(nb::module_& m);
void bind_pickling(nb::module_& m);
}  // namespace tacos::bindings

NB_MODULE(_core, m) {
  // Objects that modules keep until the interpreter exits are not leaks.
  nb::set_leak_warnings(false);
  m.doc() = "The compiled core of tacos; use it through the package tacos.";
  nb::exception<tacos::Error> error(m, "TacosError", PyExc_Exception);
  nb::exception<tacos::InfeasibleError> infeasible(m, "InfeasibleError", error.ptr());
  const nb::tuple both = nb::make_tuple(error, nb::handle(PyExc_RuntimeError));
  nb::exception<tacos::CommunicationError> communication(m, "CommunicationError", both);
  const nb::exception<tacos::WorkIsUp> work_is_up(m, "WorkIsUp", PyExc_Exception);
  tacos::bindings::bind_meter(m);
  tacos::bindings::bind_topology(m);
  tacos::bindings::bind_collective(m);
  tacos::bindings::bind_schedule(m);
  tacos::bindings::bind_symmetric(m);
  tacos::bindings::bind_verify(m);
  tacos::bindings::bind_bound(m);
  tacos::bindings::bind_simulate(m);
  tacos::bindings::bind_run_program(m);
  tacos::bindings::bind_order(m);
  tacos::bindings::bind_synth(m);
  tacos::bindings::bind_forest(m);
  tacos::bindings::bind_program(m);
  tacos::bindings::bind_workload(m);
  tacos::bindings::bind_chakra(m);
  tacos::bindings::bind_astra(m);
  tacos::bindings::bind_msccl(m);
  tacos::bindings::bind_perfetto(m);
  tacos::bindings::bind_crc32(m);
  tacos::bindings::bind_run_workload(m);
  tacos::bindings::bind_pipeline(m);
  tacos::bindings::bind_runtime(m);
  tacos::bindings::bind_waves(m);
  tacos::bindings::bind_aggregation(m);
  tacos::bindings::bind_hub(m);
  tacos::bindings::bind_arrow(m);
  tacos::bindings::bind_hooks(m);
  tacos::bindings::bind_pickling(m);
}
