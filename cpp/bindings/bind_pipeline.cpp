#include "columns.hpp"
#include "simulate/pipeline.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

struct PipelineColumns {
  Column<std::int32_t> stage, chunk, microbatch;
  Column<std::uint8_t> pass;
  Column<std::int64_t> start_ps, end_ps;
  Column<std::int32_t> in_flight;
};

std::vector<std::int64_t> values(const Array<std::int64_t>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

PipelineColumns run(std::int32_t rule, std::int32_t stages, std::int32_t chunks,
                    std::int32_t microbatches, bool blocking, const Array<std::int64_t>& forward,
                    const Array<std::int64_t>& backward, const Array<std::int64_t>& weight,
                    const Array<std::int64_t>& send_forward,
                    const Array<std::int64_t>& send_backward,
                    const Array<std::int64_t>& ready_start, const Array<std::int64_t>& ready_end,
                    const Array<std::int64_t>& stretch_ppm) {
  if (rule < 0 || rule > 2) {
    throw std::invalid_argument("rule must be 0, 1 or 2");
  }
  const Pipeline pipeline{static_cast<PipelineRule>(rule),
                          stages,
                          chunks,
                          microbatches,
                          blocking,
                          values(forward),
                          values(backward),
                          values(weight),
                          values(send_forward),
                          values(send_backward),
                          values(ready_start),
                          values(ready_end),
                          values(stretch_ppm)};
  const nb::gil_scoped_release release;
  PipelineTimes found = simulate_pipeline(pipeline);
  return {std::move(found.stage),    std::move(found.chunk),    std::move(found.microbatch),
          std::move(found.pass),     std::move(found.start_ps), std::move(found.end_ps),
          std::move(found.in_flight)};
}

}  // namespace

void bind_pipeline(nb::module_& m) {
  nb::class_<PipelineColumns>(m, "PipelineTimes", "When each stage of a pipeline runs each pass.")
      .def_prop_ro(
          "stage", [](const PipelineColumns& c) { return view(c.stage); }, nb::rv_policy::reference,
          "Per pass, its stage; the passes of a stage follow each other in order.")
      .def_prop_ro(
          "chunk", [](const PipelineColumns& c) { return view(c.chunk); }, nb::rv_policy::reference,
          "Per pass, which part of the stage's layers.")
      .def_prop_ro(
          "microbatch", [](const PipelineColumns& c) { return view(c.microbatch); },
          nb::rv_policy::reference, "Per pass, its micro-batch.")
      .def_prop_ro(
          "kind", [](const PipelineColumns& c) { return view(c.pass); }, nb::rv_policy::reference,
          "Per pass: 0 forward, 1 backward, 2 gradients of weights alone.")
      .def_prop_ro(
          "start_ps", [](const PipelineColumns& c) { return view(c.start_ps); },
          nb::rv_policy::reference, "Per pass, when it starts, in picoseconds.")
      .def_prop_ro(
          "end_ps", [](const PipelineColumns& c) { return view(c.end_ps); },
          nb::rv_policy::reference, "Per pass, when it ends, in picoseconds.")
      .def_prop_ro(
          "in_flight", [](const PipelineColumns& c) { return view(c.in_flight); },
          nb::rv_policy::reference,
          "Per stage, the most forward passes whose backward pass has not run.");
  m.def("pipeline", &run, "rule"_a, "stages"_a, "chunks"_a, "microbatches"_a, "blocking"_a,
        "forward"_a, "backward"_a, "weight"_a, "send_forward"_a, "send_backward"_a, "ready_start"_a,
        "ready_end"_a, "stretch_ppm"_a,
        "Simulates a training pipeline; durations are in picoseconds, by stage and chunk.");
}

}  // namespace tacos::bindings
